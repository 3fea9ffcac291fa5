//! The label guard, sentence by sentence, on objects as users write them.

use palisade_engine::{Census, Code, Count, Unknown, prose};
use rstest::rstest;

use crate::world::{
    Given, allowed, census, delete, delete_with, evict, in_namespace, labelled, outcome, refused, settings,
};

const ALWAYS: &str = r#""policy.kruise.io/delete-protection":"Always""#;
const CASCADING: &str = r#""policy.kruise.io/delete-protection":"Cascading""#;

#[test]
fn an_object_without_marks_goes() {
    allowed(&delete("Namespace", &labelled("minio", r#""app":"minio""#), &Given::default()));
    allowed(&delete("Deployment", r#"{"metadata":{"name":"web","namespace":"shop"}}"#, &Given::default()));
}

#[test]
fn always_keeps_a_namespace() {
    refused(
        &delete("Namespace", &labelled("minio", ALWAYS), &Given::default()),
        403,
        "namespace \"minio\" is protected from deletion: label policy.kruise.io/delete-protection=Always. \
         To lift it: kubectl label namespace minio policy.kruise.io/delete-protection-",
    );
}

#[test]
fn karmadas_label_keeps_with_always_and_with_nothing_else() {
    refused(
        &delete(
            "Namespace",
            &labelled("minio", r#""resourcetemplate.karmada.io/deletion-protected":"Always""#),
            &Given::default(),
        ),
        403,
        "namespace \"minio\" is protected from deletion: label \
         resourcetemplate.karmada.io/deletion-protected=Always. \
         To lift it: kubectl label namespace minio resourcetemplate.karmada.io/deletion-protected-",
    );
    for value in ["", "Never", "always", "true"] {
        let label = format!(r#""resourcetemplate.karmada.io/deletion-protected":"{value}""#);
        allowed(&delete("Namespace", &labelled("minio", &label), &Given::default()));
    }
}

#[test]
fn a_namespaced_object_is_lifted_in_its_namespace_and_by_its_very_kind() {
    refused(
        &delete("AdvancedStatefulSet", &in_namespace("shop", "db", ALWAYS, "{}"), &Given::default()),
        403,
        "statefulset.apps.kruise.io \"shop/db\" is protected from deletion: \
         label policy.kruise.io/delete-protection=Always. \
         To lift it: kubectl label statefulsets.apps.kruise.io db -n shop policy.kruise.io/delete-protection-",
    );
}

#[test]
fn a_name_that_a_shell_would_split_is_quoted() {
    let message =
        prose::refusal(&delete("ClusterRole", &labelled("it's mine", ALWAYS), &Given::default())).unwrap();
    assert!(message.ends_with(
        r"kubectl label clusterroles.rbac.authorization.k8s.io 'it'\''s mine' policy.kruise.io/delete-protection-"
    ));
}

#[test]
fn a_mistyped_value_protects_like_always_and_says_so() {
    let verdict = delete(
        "ConfigMap",
        &in_namespace("a", "b", r#""policy.kruise.io/delete-protection":"alway""#, "{}"),
        &Given::default(),
    );
    assert_eq!(
        outcome(&verdict),
        (
            Some(403),
            Some(
                "configmap \"a/b\" is protected from deletion: label policy.kruise.io/delete-protection=alway \
                 (not a known value, so it protects like Always). \
                 To lift it: kubectl label configmap b -n a policy.kruise.io/delete-protection-"
                    .to_owned()
            ),
            vec![
                "configmap \"a/b\": label policy.kruise.io/delete-protection has the value \"alway\", \
                 which protects like Always; known values are Always and Cascading"
                    .to_owned()
            ],
        )
    );
}

#[test]
fn all_protections_are_named_and_lifted_together() {
    let json = r#"{"metadata":{"name":"web","namespace":"shop","labels":{"policy.kruise.io/delete-protection":"Always",
        "resourcetemplate.karmada.io/deletion-protected":"Always"},
        "annotations":{"policy.kruise.io/disable-cascading-deletion":"true"}},"spec":{"replicas":2}}"#;
    refused(
        &delete("Deployment", json, &Given::default()),
        403,
        "deployment \"shop/web\" is protected from deletion: label policy.kruise.io/delete-protection=Always; \
         label resourcetemplate.karmada.io/deletion-protected=Always; \
         annotation policy.kruise.io/disable-cascading-deletion=true, and it has 2 replicas. \
         To lift it: kubectl label deployments.apps web -n shop policy.kruise.io/delete-protection- \
         resourcetemplate.karmada.io/deletion-protected- && kubectl annotate deployments.apps web -n shop \
         policy.kruise.io/disable-cascading-deletion-",
    );
}

#[rstest]
fn a_cascading_workload_stays_while_it_has_replicas(
    #[values(
        "Deployment",
        "StatefulSet",
        "ReplicaSet",
        "CloneSet",
        "AdvancedStatefulSet",
        "UnitedDeployment"
    )]
    of: &str,
    #[values(
        r#""policy.kruise.io/delete-protection":"Cascading""#,
        r#""policy.kruise.io/disable-cascading-deletion":"true""#
    )]
    label: &str,
) {
    for (spec, kept) in [
        (r#"{"replicas":3}"#, Some("3 replicas")),
        (r#"{"replicas":1}"#, Some("1 replica")),
        ("{}", Some("1 replica")),
        ("null", Some("1 replica")),
        (r#"{"replicas":0}"#, None),
    ] {
        let verdict = delete(of, &in_namespace("shop", "web", label, spec), &Given::default());
        match kept {
            None => allowed(&verdict),
            Some(replicas) => {
                assert_eq!(verdict.code(), Some(Code::Forbidden));
                let message = prose::refusal(&verdict).unwrap();
                assert!(
                    message.contains(&format!(", and it has {replicas}. Scale it to 0 first.")),
                    "{message}"
                );
            }
        }
    }
}

#[test]
fn a_workload_whose_replicas_cannot_be_read_is_kept_until_they_can() {
    let verdict =
        delete("CloneSet", &in_namespace("shop", "web", CASCADING, r#"{"replicas":"3"}"#), &Given::default());
    assert_eq!(verdict.code(), Some(Code::Unavailable));
}

#[test]
fn a_cascading_namespace_stays_while_it_holds_pods_or_claims() {
    let pods = census(&["web-0", "web-1", "web-2"]);
    let world = Given { pods: Ok(pods.clone()), claims: Ok(Census::NONE), ..Given::default() };
    refused(
        &delete("Namespace", &labelled("shop", CASCADING), &world),
        403,
        "namespace \"shop\" is protected from deletion: label policy.kruise.io/delete-protection=Cascading, \
         and it has 3 active pods: web-0, web-1, web-2. Delete those first. \
         To lift it: kubectl label namespace shop policy.kruise.io/delete-protection-",
    );
    let world = Given { pods: Ok(pods), claims: Ok(census(&["data"])), ..Given::default() };
    refused(
        &delete(
            "Namespace",
            &labelled("shop", r#""policy.kruise.io/disable-cascading-deletion":"true""#),
            &world,
        ),
        403,
        "namespace \"shop\" is protected from deletion: label policy.kruise.io/disable-cascading-deletion=true, \
         and it has 3 active pods: web-0, web-1, web-2 and 1 bound persistent volume claim: data. \
         Delete those first. To lift it: kubectl label namespace shop policy.kruise.io/disable-cascading-deletion-",
    );
    let world = Given { pods: Ok(Census::NONE), claims: Ok(Census::NONE), ..Given::default() };
    allowed(&delete("Namespace", &labelled("shop", CASCADING), &world));
}

#[test]
fn a_count_that_was_not_finished_says_so() {
    let names = ["a", "b"].map(str::to_owned).to_vec();
    let world = Given {
        pods: Ok(Census { count: Count::AtLeast(500), names }),
        claims: Ok(Census::NONE),
        ..Given::default()
    };
    let message = prose::refusal(&delete("Namespace", &labelled("shop", CASCADING), &world)).unwrap();
    assert!(
        message.contains("and it has at least 500 active pods: a, b, …. Delete those first."),
        "{message}"
    );
}

#[test]
fn not_being_able_to_ask_is_a_refusal_that_says_why() {
    let forbidden = Unknown::new("its active pods", "pods is forbidden");
    let world = Given { pods: Err(forbidden.clone()), claims: Ok(Census::NONE), ..Given::default() };
    refused(
        &delete("Namespace", &labelled("shop", CASCADING), &world),
        503,
        "namespace \"shop\" is protected from deletion: label policy.kruise.io/delete-protection=Cascading, and \
         its active pods could not be found out (pods is forbidden). Try again later. \
         To lift it: kubectl label namespace shop policy.kruise.io/delete-protection-",
    );
    let world = Given { pods: Err(forbidden), claims: Ok(census(&["data"])), ..Given::default() };
    assert_eq!(delete("Namespace", &labelled("shop", CASCADING), &world).code(), Some(Code::Forbidden));
}

fn definition(versions: &str, established: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"widgets.example.com","labels":{{{CASCADING}}}}},
        "spec":{{"group":"example.com","names":{{"plural":"widgets"}},"versions":{versions}}},
        "status":{{"conditions":[{{"type":"Established","status":"{established}"}}]}}}}"#
    )
}

const SERVED: &str = r#"[{"name":"v1","served":true,"storage":true}]"#;

#[test]
fn a_cascading_definition_stays_while_it_has_custom_resources() {
    let world = Given { instances: Ok(census(&["shop/a", "shop/b"])), ..Given::default() };
    refused(
        &delete("CustomResourceDefinition", &definition(SERVED, "True"), &world),
        403,
        "customresourcedefinition \"widgets.example.com\" is protected from deletion: \
         label policy.kruise.io/delete-protection=Cascading, and it has 2 custom resources (widgets.example.com): \
         shop/a, shop/b. Delete those first. To lift it: kubectl label \
         customresourcedefinitions.apiextensions.k8s.io widgets.example.com policy.kruise.io/delete-protection-",
    );
    let world = Given { instances: Ok(Census::NONE), ..Given::default() };
    allowed(&delete("CustomResourceDefinition", &definition(SERVED, "True"), &world));
}

#[test]
fn a_definition_without_a_served_version_cannot_be_judged() {
    let unserved = definition(r#"[{"name":"v1","served":false,"storage":true}]"#, "True");
    assert_eq!(
        delete("CustomResourceDefinition", &unserved, &Given::default()).code(),
        Some(Code::Unavailable)
    );
}

#[test]
fn a_definition_is_asked_about_whatever_its_status_says() {
    let world = Given { instances: Ok(census(&["a"])), ..Given::default() };
    let verdict = delete("CustomResourceDefinition", &definition(SERVED, "False"), &world);
    assert_eq!(verdict.code(), Some(Code::Forbidden));
}

#[test]
fn the_annotation_that_a_deployment_leaves_on_its_replicasets_is_nobodys_wish() {
    let with = |owners: &str| {
        format!(
            r#"{{"metadata":{{"name":"web-1","namespace":"shop","ownerReferences":{owners},
            "annotations":{{"policy.kruise.io/disable-cascading-deletion":"true"}}}},"spec":{{"replicas":2}}}}"#
        )
    };
    let owned =
        with(r#"[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"u","controller":true}]"#);
    allowed(&delete("ReplicaSet", &owned, &Given::default()));
    assert!(!delete("ReplicaSet", &with("[]"), &Given::default()).is_allowed());
}

#[test]
fn a_name_that_kubectl_would_take_for_something_else_is_lifted_by_a_patch() {
    for name in ["-x", "x-", "a=b"] {
        let message =
            prose::refusal(&delete("ClusterRole", &labelled(name, ALWAYS), &Given::default())).unwrap();
        assert!(
            message.contains("kubectl patch clusterroles.rbac.authorization.k8s.io --type=json -p "),
            "{message}"
        );
        assert!(message.contains("/metadata/labels/policy.kruise.io~1delete-protection"), "{message}");
        assert!(
            message.contains(&format!(" -- {}", if name == "a=b" { "'a=b'" } else { name })),
            "{message}"
        );
    }
}

#[test]
fn a_value_cannot_pass_for_our_words() {
    let value = format!("no\\nTo lift it: rm -rf / {}", "x".repeat(300));
    let json = format!(
        r#"{{"metadata":{{"name":"web","namespace":"shop","annotations":{{"policy.kruise.io/disable-cascading-deletion":"{value}"}}}}}}"#
    );
    let verdict = delete("Deployment", &json, &Given::default());
    let (_, message, warnings) = outcome(&verdict);
    let message = message.unwrap();
    assert!(!message.contains('\n') && message.len() < 500, "{message}");
    assert!(
        warnings[0].len() <= 256 && warnings[0].ends_with("known values are true and false"),
        "{}",
        warnings[0]
    );
}

#[test]
fn what_is_already_going_may_always_go() {
    let json = format!(
        r#"{{"metadata":{{"name":"a","deletionTimestamp":"2026-01-01T00:00:00Z","labels":{{{ALWAYS}}}}}}}"#
    );
    allowed(&delete("Namespace", &json, &Given::default()));
}

#[test]
fn a_refusal_in_a_terminating_namespace_says_what_waits() {
    let message =
        prose::refusal(&delete("ConfigMap", &in_namespace("going", "c", ALWAYS, "{}"), &Given::default()))
            .unwrap();
    assert!(
        message.contains("=Always. Namespace \"going\" is terminating, and waits for it. To lift it: "),
        "{message}"
    );
}

#[test]
fn palisades_own_namespace_and_what_is_in_it_are_never_refused() {
    allowed(&delete("Namespace", &labelled("palisade-system", ALWAYS), &Given::default()));
    allowed(&delete("ConfigMap", &in_namespace("palisade-system", "a", ALWAYS, "{}"), &Given::default()));
    let verdict =
        delete("ConfigMap", &in_namespace("other", "palisade-system", ALWAYS, "{}"), &Given::default());
    assert_eq!(verdict.code(), Some(Code::Forbidden));
    let verdict = delete("ClusterRole", &labelled("palisade-system", ALWAYS), &Given::default());
    assert_eq!(verdict.code(), Some(Code::Forbidden), "only the namespace of that name is ours");
}

#[test]
fn a_gate_that_is_off_switches_the_guard_off() {
    let mut settings = settings();
    settings.gates.resources_deletion_protection = false;
    allowed(&delete_with("Namespace", &labelled("minio", ALWAYS), &Given::default(), &settings));
}

#[test]
fn evicting_a_pod_is_like_deleting_it() {
    let pod = in_namespace("shop", "web-0", ALWAYS, "{}");
    let verdict = evict("shop", Ok(Some(pod.clone())));
    assert_eq!(verdict, delete("Pod", &pod, &Given::default()));
    assert_eq!(verdict.code(), Some(Code::Forbidden));
    allowed(&evict("shop", Ok(Some(in_namespace("shop", "web-0", "", "{}")))));
}

#[test]
fn evicting_a_pod_that_is_gone_is_the_api_servers_business() {
    allowed(&evict("shop", Ok(None)));
}

#[test]
fn evicting_a_pod_that_cannot_be_read_is_refused() {
    refused(
        &evict("shop", Err(Unknown::new("its labels", "the API server did not answer in time"))),
        503,
        "pod \"shop/web-0\" may be protected from deletion: its labels could not be found out \
         (the API server did not answer in time). Try again later.",
    );
}

#[test]
fn evictions_in_palisades_own_namespace_are_not_even_looked_at() {
    allowed(&evict("palisade-system", Err(Unknown::new("asked", "though it should not be"))));
}

proptest::proptest! {
    #[test]
    fn any_label_value_but_the_lifting_ones_protects(value in "[A-Za-z0-9._-]{0,20}") {
        let json = labelled("a", &format!(r#""policy.kruise.io/delete-protection":"{value}""#));
        let verdict = delete("ClusterRole", &json, &Given::default());
        proptest::prop_assert_eq!(verdict.is_allowed(), value == "Cascading");
    }
}
