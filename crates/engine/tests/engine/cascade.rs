//! The cascade guard, sentence by sentence.

use palisade_engine::{Census, Code, Unknown, UnreadableKind, prose};
use serde_json::json;

use crate::world::{
    Given, allowed, census, delete, delete_owner, delete_with, in_namespace, labelled, outcome, refused,
    settings,
};

const ALWAYS: &str = r#""policy.kruise.io/delete-protection":"Always""#;
const CASCADING: &str = r#""policy.kruise.io/delete-protection":"Cascading""#;

fn holding(objects: Vec<(&'static str, String)>) -> Given {
    Given { objects: Ok(objects), ..Given::default() }
}

#[test]
fn a_namespace_stays_while_it_holds_a_labelled_object() {
    let world = holding(vec![
        ("ConfigMap", in_namespace("shop", "free", "", "{}")),
        ("ConfigMap", in_namespace("shop", "kept", ALWAYS, "{}")),
    ]);
    refused(
        &delete("Namespace", &labelled("shop", ""), &world),
        403,
        "namespace \"shop\" is protected from deletion: a protected object would go with it: configmap \"shop/kept\" \
         (label policy.kruise.io/delete-protection=Always). Delete those first. \
         To lift it: kubectl label configmap kept -n shop policy.kruise.io/delete-protection-",
    );
}

#[test]
fn what_is_already_going_does_not_count() {
    let going = r#"{"metadata":{"name":"a","namespace":"shop","deletionTimestamp":"2026-01-01T00:00:00Z",
        "labels":{"policy.kruise.io/delete-protection":"Always"}}}"#;
    allowed(&delete("Namespace", &labelled("shop", ""), &holding(vec![("ConfigMap", going.to_owned())])));
}

#[test]
fn a_cascading_workload_counts_while_it_has_replicas() {
    let with =
        |replicas: u8| in_namespace("shop", "web", CASCADING, &format!(r#"{{"replicas":{replicas}}}"#));
    let verdict = delete("Namespace", &labelled("shop", ""), &holding(vec![("Deployment", with(2))]));
    let message = prose::refusal(&verdict).unwrap();
    assert!(message.contains("deployment \"shop/web\" (label policy.kruise.io/delete-protection=Cascading, and it has 2 replicas)"), "{message}");
    allowed(&delete("Namespace", &labelled("shop", ""), &holding(vec![("Deployment", with(0))])));
}

#[test]
fn an_annotated_workload_counts_too() {
    let web = r#"{"metadata":{"name":"web","namespace":"shop",
        "annotations":{"policy.kruise.io/disable-cascading-deletion":"true"}},"spec":{"replicas":1}}"#;
    let verdict = delete("Namespace", &labelled("shop", ""), &holding(vec![("Deployment", web.to_owned())]));
    assert!(prose::refusal(&verdict).unwrap().contains("kubectl annotate deployments.apps web -n shop"));
}

#[test]
fn what_a_denying_protection_selects_counts_and_an_exemption_does_not_help() {
    let rule = json!({"protectedResources": [{"resourceSelector": [{"apiVersion": "v1", "kind": "ConfigMap"}]}],
        "exempt": {"users": ["jane"]}});
    let objects = || Ok(vec![("ConfigMap", in_namespace("shop", "c", "", "{}"))]);
    let world = Given { objects: objects(), ..Given::protected(&[("sample", rule.clone())]) };
    let message = prose::refusal(&delete("Namespace", &labelled("shop", ""), &world)).unwrap();
    assert!(
        message
            .ends_with("configmap \"shop/c\" (ResourceDeletionProtection \"sample\"). Delete those first."),
        "{message}"
    );
    for action in ["Warn", "Audit"] {
        let mut rule = rule.clone();
        rule["action"] = action.into();
        allowed(&delete(
            "Namespace",
            &labelled("shop", ""),
            &Given { objects: objects(), ..Given::protected(&[("sample", rule)]) },
        ));
    }
}

#[test]
fn the_namespaces_own_labels_decide_about_a_namespace_selector() {
    let rule = json!({"protectedResources": [{"resourceSelector": [
        {"apiVersion": "v1", "kind": "ConfigMap", "namespaceSelector": {"matchLabels": {"env": "prod"}}}]}]});
    let world = Given {
        objects: Ok(vec![("ConfigMap", in_namespace("shop", "c", "", "{}"))]),
        ..Given::protected(&[("sample", rule)])
    };
    assert!(!delete("Namespace", &labelled("shop", r#""env":"prod""#), &world).is_allowed());
    assert!(delete("Namespace", &labelled("shop", r#""env":"test""#), &world).is_allowed());
}

#[test]
fn several_are_counted_and_a_few_are_named() {
    let objects =
        (0..7).map(|n| ("ConfigMap", in_namespace("shop", &format!("c{n}"), ALWAYS, "{}"))).collect();
    let message = prose::refusal(&delete("Namespace", &labelled("shop", ""), &holding(objects))).unwrap();
    assert!(message.contains("7 protected objects would go with it: configmap \"shop/c0\""), "{message}");
    assert!(message.contains(", …. Delete those first."), "{message}");
    assert!(!message.contains("c5"), "{message}");
}

#[test]
fn not_being_able_to_look_is_a_refusal() {
    let world = Given { objects: Err(Unknown::new("what is protected in it", "no")), ..Given::default() };
    assert_eq!(delete("Namespace", &labelled("shop", ""), &world).code(), Some(Code::Unavailable));
}

fn definition(group: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"widgets.{group}"}},"spec":{{"group":"{group}","names":{{"plural":"widgets","kind":"Widget"}},
        "versions":[{{"name":"v1","served":true,"storage":true}}]}},
        "status":{{"conditions":[{{"type":"Established","status":"True"}}]}}}}"#
    )
}

#[test]
fn a_definition_stays_while_a_custom_resource_is_protected() {
    let world = holding(vec![("Widget", in_namespace("shop", "w", ALWAYS, "{}"))]);
    let message =
        prose::refusal(&delete("CustomResourceDefinition", &definition("example.com"), &world)).unwrap();
    assert!(message.contains("widget.example.com \"shop/w\""), "{message}");
    assert!(
        message.ends_with("kubectl label widgets.example.com w -n shop policy.kruise.io/delete-protection-"),
        "{message}"
    );
    let world = holding(vec![("Widget", in_namespace("shop", "w", "", "{}"))]);
    allowed(&delete("CustomResourceDefinition", &definition("example.com"), &world));
}

#[test]
fn our_own_definitions_stay_while_there_are_objects_of_them() {
    let world = Given { instances: Ok(census(&["sample"])), ..Given::default() };
    let verdict = delete("CustomResourceDefinition", &definition("palisade.dev"), &world);
    assert_eq!(verdict.code(), Some(Code::Forbidden));
    assert!(prose::refusal(&verdict).unwrap().contains("every protection that it defines would vanish"));
    let budgets = definition("policy.kruise.io").replace("widgets", "podunavailablebudgets");
    assert_eq!(delete("CustomResourceDefinition", &budgets, &world).code(), Some(Code::Forbidden));
    allowed(&delete("CustomResourceDefinition", &definition("policy.kruise.io"), &world));
    let world = Given { instances: Ok(Census::NONE), ..Given::default() };
    allowed(&delete("CustomResourceDefinition", &definition("palisade.dev"), &world));
}

#[test]
fn its_gate_and_that_of_the_protections_switch_it_off() {
    let world = holding(vec![("ConfigMap", in_namespace("shop", "kept", ALWAYS, "{}"))]);
    let mut cascade_off = settings();
    cascade_off.gates.cascade_protection = false;
    let mut all_off = settings();
    all_off.gates.resources_deletion_protection = false;
    for settings in [cascade_off, all_off] {
        allowed(&delete_with("Namespace", &labelled("shop", ""), &world, &settings));
    }
}

#[test]
fn an_owner_in_a_namespace_stays_while_a_label_protects_what_it_owns() {
    let world = holding(vec![("ConfigMap", in_namespace("shop", "kept", ALWAYS, "{}"))]);
    let verdict = delete_owner("ConfigMap", &in_namespace("shop", "top", "", "{}"), &world, true);
    assert_eq!(verdict.code(), Some(Code::Forbidden));
}

#[test]
fn an_owner_without_a_namespace_goes_and_says_what_stays_behind() {
    let objects =
        (0..7).map(|n| ("ConfigMap", in_namespace("shop", &format!("c{n}"), ALWAYS, "{}"))).collect();
    let world = holding(objects);
    for is_owner in [true, false] {
        let verdict = delete_owner("ClusterRole", &labelled("reader", ""), &world, is_owner);
        let (code, refusal, warnings) = outcome(&verdict);
        assert_eq!((code, refusal, warnings.len()), (None, None, 1));
        assert!(
            warnings[0].starts_with(
                "clusterrole \"reader\" owns protected objects in namespaces, and they stay behind: \
                 configmap \"shop/c0\" (label policy.kruise.io/delete-protection=Always), "
            ),
            "{warnings:?}"
        );
        assert!(
            warnings[0].ends_with(", …. The garbage collector's deletion of them is refused"),
            "{warnings:?}"
        );
        assert!(!warnings[0].contains("c5"), "{warnings:?}");
    }
}

#[test]
fn what_labels_protect_without_a_namespace_guards_owners_without_one() {
    let world = holding(vec![("ClusterRole", labelled("kept", ALWAYS))]);
    let verdict = delete_owner("ClusterRole", &labelled("reader", ""), &world, true);
    assert_eq!(verdict.code(), Some(Code::Forbidden));
    allowed(&delete_owner("ClusterRole", &labelled("reader", ""), &world, false));
}

#[test]
fn what_a_rule_protects_guards_owners_without_a_namespace() {
    let rule = json!({"protectedResources": [{"resourceSelector": [
        {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "shop"}]}]});
    let world = Given {
        objects: Ok(vec![("ConfigMap", in_namespace("shop", "kept", ALWAYS, "{}"))]),
        ..Given::protected(&[("sample", rule)])
    };
    let verdict = delete_owner("ClusterRole", &labelled("reader", ""), &world, true);
    let (code, refusal, warnings) = outcome(&verdict);
    assert_eq!((code, warnings), (Some(403), vec![]));
    let refusal = refusal.unwrap();
    assert!(
        refusal.contains("configmap \"shop/kept\" (ResourceDeletionProtection \"sample\")"),
        "the rule keeps it, the label does not: {refusal}"
    );
}

#[test]
fn not_being_able_to_look_for_what_stays_behind_is_a_warning() {
    let world = Given { objects: Err(Unknown::new("what is protected in it", "no")), ..Given::default() };
    let verdict = delete_owner("ClusterRole", &labelled("reader", ""), &world, false);
    let (code, refusal, warnings) = outcome(&verdict);
    assert_eq!((code, refusal), (None, None));
    assert_eq!(
        warnings,
        [
            "clusterrole \"reader\" may own protected objects in namespaces, and they would stay behind: what is protected in \
          it could not be found out (no)"
        ]
    );
    let verdict = delete_owner("ClusterRole", &labelled("reader", ""), &world, true);
    assert_eq!(verdict.code(), Some(Code::Unavailable));
}

/// A world in which widgets can't be listed.
fn without_widgets(is_broken: bool, protections: &[(&str, serde_json::Value)]) -> Given {
    let widgets = UnreadableKind {
        group: "example.com".to_owned(),
        kind: Some(("Widget".to_owned(), "widgets".to_owned())),
        why: "500: its conversion webhook does not answer".to_owned(),
        is_broken,
        missing: None,
    };
    Given { unreadable: vec![widgets], ..Given::protected(protections) }
}

fn about_widgets(namespace: &str, action: &str) -> serde_json::Value {
    json!({"protectedResources": [{"resourceSelector": [
        {"apiVersion": "example.com/v1", "kind": "Widget", "namespace": namespace}]}], "action": action})
}

#[test]
fn a_kind_that_nobody_can_list_and_no_rule_concerns_is_a_warning() {
    let warning = "namespace \"shop\": its widgets.example.com could not be looked at (500: its conversion webhook does \
                   not answer)";
    for rules in
        [&[][..], &[("w", about_widgets("other-*", "Deny"))], &[("w", about_widgets("shop", "Warn"))]]
    {
        let verdict = delete("Namespace", &labelled("shop", ""), &without_widgets(true, rules));
        assert!(verdict.is_allowed(), "{rules:?}");
        let told: Vec<String> = verdict
            .warnings
            .iter()
            .map(|warning| prose::warning(verdict.about.as_ref().unwrap(), warning))
            .collect();
        assert_eq!(told, [warning], "{rules:?}");
    }
}

#[test]
fn a_kind_that_a_rule_concerns_or_that_we_may_not_list_is_a_refusal_with_a_way_out() {
    let refusal = "namespace \"shop\" may be protected from deletion: what is protected in it could not be found out \
        (widgets.example.com: 500: its conversion webhook does not answer). Try again later. To lift it: \
        kubectl annotate namespace shop palisade.dev/ignore-unreadable-kinds=widgets.example.com --overwrite";
    let worlds = [
        without_widgets(true, &[("w", about_widgets("sh*", "Deny"))]),
        without_widgets(
            true,
            &[(
                "w",
                json!({"protectedResources": [{"resourceSelector": [{"kind": "*", "namespace": "shop"}]}]}),
            )],
        ),
        without_widgets(false, &[]),
    ];
    for world in &worlds {
        refused(&delete("Namespace", &labelled("shop", ""), world), 503, refusal);
        let ignored = |kinds: &str| {
            format!(
                r#"{{"metadata":{{"name":"shop","annotations":{{"palisade.dev/ignore-unreadable-kinds":"{kinds}"}}}}}}"#
            )
        };
        let verdict = delete("Namespace", &ignored("gadgets.example.com, widgets.example.com"), world);
        assert!(verdict.is_allowed() && verdict.warnings.len() == 1, "{verdict:?}");
        let verdict = delete("Namespace", &ignored("gadgets.example.com,'; reboot"), world);
        let command = prose::refusal(&verdict).unwrap();
        let command = command.split_once("To lift it: ").unwrap().1;
        assert!(command.ends_with("kinds=gadgets.example.com,widgets.example.com --overwrite"), "{command}");
    }
}

#[test]
fn custom_resources_that_nobody_can_list_keep_their_definition() {
    let definition = r#"{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
        "names":{"kind":"Widget","plural":"widgets"},"versions":[{"name":"v1","served":true,"storage":true}]}}"#;
    let verdict = delete("CustomResourceDefinition", definition, &without_widgets(true, &[]));
    assert_eq!(verdict.code(), Some(Code::Unavailable));
    let ignored = definition.replace(
        r#""name":"widgets.example.com"}"#,
        r#""name":"widgets.example.com","annotations":{"palisade.dev/ignore-unreadable-kinds":"widgets.example.com"}}"#,
    );
    assert!(delete("CustomResourceDefinition", &ignored, &without_widgets(true, &[])).is_allowed());
}
