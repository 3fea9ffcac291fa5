//! The guard of critical services, sentence by sentence.

use futures::executor::block_on;
use palisade_engine::{
    Action, Census, Code, Count, Expects, Holders, Object, Parting, Present, Review, Subject, Unknown, User,
    Verdict, decide, prose,
};
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    Given, allowed, census, delete, delete_with, in_namespace, kind, labelled, outcome, refused, service,
    settings,
};

const FINALIZER: &str = "my.crd.group/super-important";
const CRD: &str = r#"customresourcedefinition.apiextensions.k8s.io "coolresources.my.crd.group""#;
const PROVIDER: &str = r#"deployments.apps "finalizer-namespace/finalizer-deployment""#;
const BEST_EFFORT: &str =
    r#"kubectl patch crit for-finalizer-deployment --type=merge -p '{"spec":{"deletionMode":"BestEffort"}}'"#;

/// The seed's.
fn spec(mode: &str) -> Value {
    json!({
        "provider": {"group": "apps", "resource": "deployments", "namespace": "finalizer-namespace", "name": "finalizer-deployment"},
        "criteria": [
            {"type": "Finalizer", "finalizer": {"group": "my.crd.group", "resource": "coolresources", "finalizerName": FINALIZER}},
            {"type": "SpecificResource", "specificResource": {"group": "apiextensions.k8s.io",
                "resource": "CustomResourceDefinition", "name": "coolresources.my.crd.group"}},
        ],
        "deletionMode": mode,
    })
}

fn holders(names: &[&str], going: bool) -> Holders {
    Holders { resource: "coolresources.my.crd.group".to_owned(), census: census(names), going }
}

/// An object, and that it is there.
fn there(kind: &str, name: &str, going: bool) -> Present {
    Present { kind: kind.to_owned(), names: vec![name.to_owned()], going }
}

/// With holders of the finalizer, and the definition if it is there, and going.
fn world(mode: &str, names: &[&str], definition: Option<bool>) -> Given {
    let mut present = std::collections::BTreeMap::new();
    present.insert(PROVIDER, Ok(there("deployment", "finalizer-namespace/finalizer-deployment", false)));
    if let Some(going) = definition {
        present.insert(CRD, Ok(there("customresourcedefinition", "coolresources.my.crd.group", going)));
    }
    Given {
        services: Ok(vec![service("for-finalizer-deployment", &spec(mode))]),
        holders: [(FINALIZER, Ok(holders(names, definition == Some(true))))].into(),
        present,
        ..Given::default()
    }
}

fn deployment() -> String {
    in_namespace("finalizer-namespace", "finalizer-deployment", "", "{}")
}

fn delete_provider(world: &Given) -> Verdict {
    delete("Deployment", &deployment(), world)
}

#[test]
fn a_provider_stays_while_objects_carry_its_finalizer() {
    refused(
        &delete_provider(&world("Ordered", &["default/a", "default/b"], None)),
        409,
        "deployment \"finalizer-namespace/finalizer-deployment\" must outlive what depends on it: 2 coolresources.my.crd.group \
         still carry finalizer \"my.crd.group/super-important\" (default/a, default/b). Delete them first; \
         kubectl get crit for-finalizer-deployment -o yaml shows what is left.",
    );
}

#[test]
fn one_is_one_and_many_are_cut() {
    let said = |names: &[&str], count: Count| {
        let mut world = world("Ordered", names, None);
        let all = holders(names, false);
        let census = Census { count, ..all.census };
        world.holders.insert(FINALIZER, Ok(Holders { census, ..all }));
        prose::refusal(&delete_provider(&world)).unwrap()
    };
    let one = said(&["default/a"], Count::Exactly(1));
    assert!(
        one.contains("1 coolresources.my.crd.group still carries finalizer")
            && one.contains("(default/a). Delete it first;"),
        "{one}"
    );
    let many = said(&["a/1", "a/2", "a/3", "a/4", "a/5"], Count::AtLeast(500));
    assert!(
        many.contains("at least 500 coolresources.my.crd.group still carry")
            && many.contains("(a/1, a/2, a/3, a/4, a/5, …). Delete them first;"),
        "{many}"
    );
}

#[test]
fn a_provider_stays_while_an_object_is_there_also_one_that_is_going() {
    refused(
        &delete_provider(&world("Ordered", &[], Some(false))),
        409,
        "deployment \"finalizer-namespace/finalizer-deployment\" must outlive what depends on it: customresourcedefinition \
         \"coolresources.my.crd.group\" is still there. Delete it first; \
         kubectl get crit for-finalizer-deployment -o yaml shows what is left.",
    );
    refused(
        &delete_provider(&world("Ordered", &["default/a"], Some(true))),
        409,
        "deployment \"finalizer-namespace/finalizer-deployment\" must outlive what depends on it: 1 coolresources.my.crd.group \
         still carries finalizer \"my.crd.group/super-important\" (default/a); customresourcedefinition \
         \"coolresources.my.crd.group\" is still there (terminating). They are going already: try again when they are gone; \
         kubectl get crit for-finalizer-deployment -o yaml shows what is left.",
    );
}

#[test]
fn a_provider_goes_when_nothing_depends_on_it() {
    allowed(&delete_provider(&world("Ordered", &[], None)));
}

#[rstest]
#[case("Deployment", in_namespace("finalizer-namespace", "another", "", "{}"))]
#[case("Deployment", in_namespace("another", "finalizer-deployment", "", "{}"))]
#[case("StatefulSet", in_namespace("finalizer-namespace", "finalizer-deployment", "", "{}"))]
#[case("Namespace", labelled("another", ""))]
fn others_are_not_concerned(#[case] of: &str, #[case] json: String) {
    allowed(&delete(of, &json, &world("Ordered", &["default/a"], Some(false))));
}

#[test]
fn a_provider_that_is_going_already_may_go() {
    let going = r#"{"metadata":{"name":"finalizer-deployment","namespace":"finalizer-namespace","deletionTimestamp":"2026-01-01T00:00:00Z"}}"#;
    allowed(&delete("Deployment", going, &world("Ordered", &["default/a"], Some(false))));
}

#[test]
fn a_kind_may_be_written_for_a_plural() {
    let mut given = world("Ordered", &["default/a"], None);
    let mut spec = spec("Ordered");
    spec["provider"]["resource"] = json!("Deployment");
    given.services = Ok(vec![service("kind", &spec)]);
    assert_eq!(delete_provider(&given).code(), Some(Code::Conflict));
}

#[test]
fn what_cannot_be_asked_is_no_yes() {
    let unknown =
        || Err(Unknown::new("which coolresources.my.crd.group carry finalizer \"x\"", "403: forbidden"));
    let mut given = world("Ordered", &[], None);
    given.holders.insert(FINALIZER, unknown());
    refused(
        &delete_provider(&given),
        503,
        &format!(
            "deployment \"finalizer-namespace/finalizer-deployment\" may have to outlive what depends on it: which \
             coolresources.my.crd.group carry finalizer \"x\" could not be found out (403: forbidden). Try again later; \
             kubectl get crit for-finalizer-deployment -o yaml shows what is left. To lift it: {BEST_EFFORT}"
        ),
    );
    given.present.insert(CRD, Ok(there("customresourcedefinition", "coolresources.my.crd.group", false)));
    let verdict = delete_provider(&given);
    assert_eq!(verdict.code(), Some(Code::Conflict), "what is known decides");
    assert!(prose::refusal(&verdict).unwrap().contains("403: forbidden"), "and the rest is told");
    let given =
        Given { services: Err(Unknown::new("the CriticalServices", "gone fishing")), ..Given::default() };
    assert_eq!(delete_provider(&given).code(), Some(Code::Unavailable));
}

#[test]
fn every_service_that_names_it_is_asked() {
    let mut given = world("Ordered", &["default/a"], None);
    let mut second = spec("Ordered");
    second["criteria"] = json!([{"type": "SpecificResource", "specificResource": {"resource": "configmaps", "namespace": "x", "name": "y"}}]);
    given.services.as_mut().unwrap().push(service("second", &second));
    given.present.insert(r#"configmaps "x/y""#, Ok(there("configmap", "x/y", false)));
    refused(
        &delete_provider(&given),
        409,
        "deployment \"finalizer-namespace/finalizer-deployment\" must outlive what depends on it: 1 coolresources.my.crd.group \
         still carries finalizer \"my.crd.group/super-important\" (default/a); configmap \"x/y\" is still there. \
         Delete them first; kubectl get crit for-finalizer-deployment second -o yaml show what is left.",
    );
}

#[test]
fn the_namespace_of_a_provider_stays_with_it() {
    let namespace = labelled("finalizer-namespace", "");
    refused(
        &delete("Namespace", &namespace, &world("Ordered", &["default/a", "default/b"], None)),
        409,
        "namespace \"finalizer-namespace\" must outlive what depends on deployment \
         \"finalizer-namespace/finalizer-deployment\" in it: 2 coolresources.my.crd.group \
         still carry finalizer \"my.crd.group/super-important\" (default/a, default/b). Delete them first; \
         kubectl get crit for-finalizer-deployment -o yaml shows what is left.",
    );
    allowed(&delete("Namespace", &namespace, &world("Ordered", &[], None)));
    let mut gone = world("Ordered", &["default/a"], None);
    gone.present.remove(PROVIDER);
    allowed(&delete("Namespace", &namespace, &gone));
    gone.present.insert(PROVIDER, Err(Unknown::new("whether its provider is there", "no")));
    assert_eq!(delete("Namespace", &namespace, &gone).code(), Some(Code::Conflict));
    gone.holders.insert(FINALIZER, Err(Unknown::new("who carries it", "no")));
    assert_eq!(delete("Namespace", &namespace, &gone).code(), Some(Code::Unavailable));
    gone.holders.clear();
    allowed(&delete("Namespace", &namespace, &gone));
}

#[test]
fn so_does_the_definition_of_its_kind() {
    let mut spec = spec("Ordered");
    spec["provider"] =
        json!({"group": "example.com", "resource": "widgets", "namespace": "shop", "name": "w"});
    let mut given = world("Ordered", &["default/a"], None);
    given.services = Ok(vec![service("for-widget", &spec)]);
    given.present.insert(r#"widgets.example.com "shop/w""#, Ok(there("widget.example.com", "shop/w", false)));
    let definition = r#"{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","names":{"plural":"widgets","kind":"Widget"},
        "versions":[{"name":"v1","served":true,"storage":true}]}}"#;
    let verdict = delete("CustomResourceDefinition", definition, &given);
    assert_eq!(verdict.code(), Some(Code::Conflict));
    assert!(
        prose::refusal(&verdict)
            .unwrap()
            .contains("must outlive what depends on widget.example.com \"shop/w\" in it")
    );
    given.present.remove(r#"widgets.example.com "shop/w""#);
    allowed(&delete("CustomResourceDefinition", definition, &given));
}

#[test]
fn a_provider_in_a_namespace_that_is_terminating_may_go_with_a_warning() {
    let mut given = world("Ordered", &["default/a"], None);
    let mut spec = spec("Ordered");
    spec["provider"]["namespace"] = json!("going");
    given.services = Ok(vec![service("crit", &spec)]);
    let verdict = delete("Deployment", &in_namespace("going", "finalizer-deployment", "", "{}"), &given);
    let warning = "deployment \"going/finalizer-deployment\" goes before what depends on it (its namespace is terminating): \
                   1 coolresources.my.crd.group still carries finalizer \"my.crd.group/super-important\" (default/a)";
    assert_eq!(outcome(&verdict), (None, None, vec![warning.to_owned()]));
    assert_eq!(verdict.left_behind[0].parting, Parting::Terminating);
}

#[test]
fn best_effort_lets_all_go_and_tells_what_is_left_behind() {
    let given = world("BestEffort", &["default/a"], Some(false));
    let left = "(CriticalService \"for-finalizer-deployment\" is BestEffort): 1 coolresources.my.crd.group still carries finalizer \
                \"my.crd.group/super-important\" (default/a); customresourcedefinition \"coolresources.my.crd.group\" is still there";
    let verdict = delete_provider(&given);
    let said = format!(
        "deployment \"finalizer-namespace/finalizer-deployment\" goes before what depends on it {left}"
    );
    assert_eq!(outcome(&verdict), (None, None, vec![said]));
    assert_eq!(verdict.left_behind[0].uid, "uid-of-for-finalizer-deployment");
    let verdict = delete("Namespace", &labelled("finalizer-namespace", ""), &given);
    assert!(verdict.is_allowed() && verdict.left_behind.len() == 1);
    let json =
        json!({"metadata": {"name": "for-finalizer-deployment"}, "spec": spec("BestEffort")}).to_string();
    allowed(&delete("CriticalService", &json, &given));
    let mut unknown = given;
    unknown.holders.insert(FINALIZER, Err(Unknown::new("who carries it", "no answer")));
    let verdict = delete_provider(&unknown);
    assert!(verdict.is_allowed() && outcome(&verdict).2[0].contains("who carries it could not be found out"));
}

#[test]
fn one_service_that_is_best_effort_does_not_lift_another() {
    let mut given = world("BestEffort", &["default/a"], None);
    given.services.as_mut().unwrap().push(service("strict", &spec("Ordered")));
    let verdict = delete_provider(&given);
    assert_eq!(verdict.code(), Some(Code::Conflict));
    assert!(
        prose::refusal(&verdict).unwrap().ends_with("kubectl get crit strict -o yaml shows what is left.")
    );
}

#[test]
fn a_service_stays_until_its_provider_is_gone() {
    let json = json!({"metadata": {"name": "for-finalizer-deployment"}, "spec": spec("Ordered")}).to_string();
    let mut given = world("Ordered", &[], None);
    refused(
        &delete("CriticalService", &json, &given),
        409,
        &format!(
            "criticalservice.palisade.dev \"for-finalizer-deployment\" must outlive its provider: deployment \
             \"finalizer-namespace/finalizer-deployment\" is still there. Delete it first. To lift it: {BEST_EFFORT}"
        ),
    );
    given.present.insert(PROVIDER, Err(Unknown::new("whether its provider is there", "no")));
    assert_eq!(delete("CriticalService", &json, &given).code(), Some(Code::Unavailable));
    given.present.remove(PROVIDER);
    allowed(&delete("CriticalService", &json, &given));
}

#[test]
fn nothing_is_refused_in_our_own_namespace() {
    let mut spec = spec("Ordered");
    spec["provider"]["namespace"] = json!("palisade-system");
    let mut given = world("Ordered", &["default/a"], None);
    given.services = Ok(vec![service("own", &spec)]);
    given.present.insert(
        r#"deployments.apps "palisade-system/finalizer-deployment""#,
        Ok(there("deployment", "x", false)),
    );
    allowed(&delete(
        "Deployment",
        &in_namespace("palisade-system", "finalizer-deployment", "", "{}"),
        &given,
    ));
    allowed(&delete("Namespace", &labelled("palisade-system", ""), &given));
    let json = json!({"metadata": {"name": "own"}, "spec": spec}).to_string();
    allowed(&delete("CriticalService", &json, &given));
}

#[test]
fn its_gate_switches_it_off() {
    let mut off = settings();
    off.gates.critical_service = false;
    allowed(&delete_with("Deployment", &deployment(), &world("Ordered", &["default/a"], None), &off));
}

#[test]
fn it_is_told_together_with_other_protections() {
    let json = in_namespace(
        "finalizer-namespace",
        "finalizer-deployment",
        r#""policy.kruise.io/delete-protection":"Always""#,
        "{}",
    );
    refused(
        &delete("Deployment", &json, &world("Ordered", &["default/a"], None)),
        403,
        "deployment \"finalizer-namespace/finalizer-deployment\" is protected from deletion: label \
         policy.kruise.io/delete-protection=Always; it must outlive what depends on it: 1 coolresources.my.crd.group still \
         carries finalizer \"my.crd.group/super-important\" (default/a) (kubectl get crit \
         for-finalizer-deployment -o yaml shows what is left). To lift it: kubectl label deployments.apps \
         finalizer-deployment -n finalizer-namespace policy.kruise.io/delete-protection-",
    );
}

fn waits_for(group: &str, resource: &str, namespace: &str, name: &str) -> Value {
    let mut spec = spec("Ordered");
    spec["criteria"] = json!([{"type": "SpecificResource", "specificResource":
        {"group": group, "resource": resource, "namespace": namespace, "name": name}}]);
    spec
}

#[test]
fn a_refusal_says_that_it_can_never_end() {
    let mut given = world("Ordered", &[], None);
    given.services = Ok(vec![service(
        "for-finalizer-deployment",
        &waits_for("apps", "Deployment", "finalizer-namespace", "finalizer-deployment"),
    )]);
    given.present.insert(
        r#"deployment.apps "finalizer-namespace/finalizer-deployment""#,
        Ok(there("deployment", "finalizer-namespace/finalizer-deployment", false)),
    );
    refused(
        &delete_provider(&given),
        409,
        &format!(
            "deployment \"finalizer-namespace/finalizer-deployment\" must outlive what depends on it: deployment \
             \"finalizer-namespace/finalizer-deployment\" is still there. It waits for the provider itself, which only its own end \
             could end: nothing but BestEffort lets it go; kubectl get crit for-finalizer-deployment -o yaml shows what is left. \
             To lift it: {BEST_EFFORT}"
        ),
    );
    let mut second = waits_for("", "namespaces", "", "finalizer-namespace");
    second["provider"]["namespace"] = json!("second");
    given.services = Ok(vec![
        service(
            "for-finalizer-deployment",
            &waits_for("apps", "deployments", "second", "finalizer-deployment"),
        ),
        service("second", &second),
    ]);
    given.present.insert(
        r#"deployments.apps "second/finalizer-deployment""#,
        Ok(there("deployment", "second/finalizer-deployment", false)),
    );
    let said = prose::refusal(&delete_provider(&given)).unwrap();
    assert!(
        said.contains(
            "That is a cycle, in which each waits for the next (\"for-finalizer-deployment\", \"second\", \
        \"for-finalizer-deployment\"): nothing but BestEffort lets one go; kubectl get crit"
        ),
        "{said}"
    );
}

#[test]
fn a_provider_that_carries_the_finalizer_itself_is_told() {
    let mut given = world("Ordered", &[], None);
    let mut own = spec("Ordered");
    own["criteria"] = json!([{"type": "Finalizer", "finalizer": {"group": "apps", "resource": "Deployment", "finalizerName": FINALIZER}}]);
    given.services = Ok(vec![service("own", &own)]);
    let names = census(&["finalizer-namespace/finalizer-deployment"]);
    given.holders.insert(
        FINALIZER,
        Ok(Holders { resource: "deployments.apps".to_owned(), census: names, going: false }),
    );
    let said = prose::refusal(&delete_provider(&given)).unwrap();
    assert!(said.contains("It waits for the provider itself"), "{said}");
}

/// What is said of a service when it is written.
fn declare(name: &str, spec: &Value, world: &Given) -> (Option<u16>, Option<String>, Vec<String>) {
    let json = json!({"metadata": {"name": name}, "spec": spec}).to_string();
    let subject = Subject { kind: kind("CriticalService"), object: Object::parse(json.as_bytes()).unwrap() };
    let review = Review {
        action: Action::Declare { subject, old: None },
        user: User::default(),
        propagation: None,
        is_owner: false,
        expects: Expects::default(),
        dry_run: false,
    };
    outcome(&block_on(decide(&review, world, &settings())))
}

#[test]
fn what_says_nothing_is_refused_when_it_is_written() {
    let mut empty = spec("Ordered");
    empty["provider"] = json!({});
    let refused = |why: &str| {
        (Some(422), Some(format!("criticalservice.palisade.dev \"crit\" is refused: {why}")), vec![])
    };
    assert_eq!(declare("crit", &empty, &Given::default()), refused("spec.provider.resource: it is missing"));
    let mut nodes = spec("Ordered");
    nodes["provider"]["resource"] = json!("nodes");
    assert_eq!(
        declare("crit", &nodes, &Given::default()),
        refused("spec.provider.resource: nodes.apps have no namespaces, so they can't be providers")
    );
    assert_eq!(declare("crit", &spec("Ordered"), &Given::default()), (None, None, vec![]));
}

#[test]
fn what_can_hardly_be_meant_is_warned_about_when_it_is_written() {
    let said = |spec: &Value, world: &Given| {
        let (code, _, warnings) = declare("for-finalizer-deployment", spec, world);
        assert_eq!(code, None);
        warnings
    };
    let mut typos = waits_for("my.crd.group", "typos", "", "a");
    typos["provider"]["resource"] = json!("typos");
    assert_eq!(
        said(&typos, &Given::default()),
        [
            "criticalservice.palisade.dev \"for-finalizer-deployment\": the cluster serves no typos.apps; its provider is protected once it does",
            "criticalservice.palisade.dev \"for-finalizer-deployment\": the cluster serves no typos.my.crd.group; what waits for it is met until it does",
        ]
    );
    assert_eq!(
        said(&waits_for("my.crd.group", "broken", "", "a"), &Given::default()),
        [""; 0],
        "not knowing is no reason to worry anybody"
    );
    let own = said(&waits_for("", "Namespace", "", "finalizer-namespace"), &Given::default());
    assert!(own[0].contains("It waits for the provider's own namespace"), "{own:?}");
    let mut second = waits_for("apps", "deployments", "finalizer-namespace", "finalizer-deployment");
    second["provider"]["namespace"] = json!("second");
    let given = Given { services: Ok(vec![service("second", &second)]), ..Given::default() };
    let cycle = said(&waits_for("apps", "deployments", "second", "finalizer-deployment"), &given);
    assert!(cycle[0].contains("cycle") && cycle[0].contains("\"second\""), "{cycle:?}");
}
