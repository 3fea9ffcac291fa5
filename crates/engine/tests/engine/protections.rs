//! The protections guard, sentence by sentence.

use std::collections::BTreeMap;

use palisade_api::protection::{Action, UnreadableProtection};
use palisade_engine::{Code, Matched, Protections, prose};
use serde_json::{Value, json};

use crate::world::{Given, allowed, delete, in_namespace, labelled, outcome, refused};

fn spec(selector: &Value) -> Value {
    json!({"protectedResources": [{"resourceSelector": [selector]}]})
}

fn deployments() -> Value {
    spec(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop"}))
}

fn web(replicas: u8) -> String {
    in_namespace("shop", "web", r#""app":"web""#, &format!(r#"{{"replicas":{replicas}}}"#))
}

#[test]
fn what_a_rule_selects_is_refused_and_names_the_protection_and_the_way_out() {
    let world = Given::protected(&[("sample", deployments())]);
    let verdict = delete("Deployment", &web(2), &world);
    refused(
        &verdict,
        403,
        "deployment \"shop/web\" is protected from deletion: ResourceDeletionProtection \"sample\". To lift it: \
         kubectl patch rdp sample --type=json -p '[{\"op\":\"add\",\"path\":\"/spec/exempt\",\"value\":{\"users\":[\"jane\"]}}]'",
    );
    assert_eq!(verdict.matched, [Matched { protection: "sample".to_owned(), action: Action::Deny }]);
    allowed(&delete("Deployment", &in_namespace("other", "web", "", "{}"), &world));
    allowed(&delete("StatefulSet", &web(2), &world));
}

#[test]
fn a_message_is_added() {
    let mut spec = deployments();
    spec["message"] = "ask the platform team".into();
    let message =
        prose::refusal(&delete("Deployment", &web(2), &Given::protected(&[("sample", spec)]))).unwrap();
    assert!(message.contains("ResourceDeletionProtection \"sample\" (ask the platform team)."), "{message}");
}

#[test]
fn whom_it_exempts_it_does_not_concern() {
    for exempt in [json!({"users": ["jane"]}), json!({"groups": ["dev"]})] {
        let mut spec = deployments();
        spec["exempt"] = exempt;
        let verdict = delete("Deployment", &web(2), &Given::protected(&[("sample", spec)]));
        allowed(&verdict);
        assert!(verdict.matched.is_empty());
    }
    let mut spec = deployments();
    spec["exempt"] = json!({"users": ["joe"]});
    let message =
        prose::refusal(&delete("Deployment", &web(2), &Given::protected(&[("sample", spec)]))).unwrap();
    assert!(message.contains("/spec/exempt/users/-"), "joe stays exempt: {message}");
}

#[test]
fn warn_lets_it_pass_with_a_warning_and_audit_without_a_word() {
    let mut warn = deployments();
    warn["action"] = "Warn".into();
    let mut audit = deployments();
    audit["action"] = "Audit".into();
    let verdict = delete("Deployment", &web(2), &Given::protected(&[("a", audit), ("w", warn)]));
    let warning =
        "deployment \"shop/web\" is protected from deletion: ResourceDeletionProtection \"w\"".to_owned();
    assert_eq!(outcome(&verdict), (None, None, vec![warning]));
    let actions: Vec<_> =
        verdict.matched.iter().map(|matched| (matched.protection.as_str(), matched.action)).collect();
    assert_eq!(actions, [("a", Action::Audit), ("w", Action::Warn)]);
}

#[test]
fn cascading_protects_while_there_is_something_to_lose() {
    let mut spec = deployments();
    spec["mode"] = "Cascading".into();
    let world = Given::protected(&[("sample", spec)]);
    let message = prose::refusal(&delete("Deployment", &web(2), &world)).unwrap();
    assert!(message.contains("\"sample\", and it has 2 replicas. Scale it to 0 first."), "{message}");
    allowed(&delete("Deployment", &web(0), &world));
}

#[test]
fn cascading_on_a_kind_without_known_dependents_warns() {
    let mut spec = spec(&json!({"apiVersion": "v1", "kind": "ConfigMap"}));
    spec["mode"] = "Cascading".into();
    let verdict =
        delete("ConfigMap", &in_namespace("a", "b", "", "{}"), &Given::protected(&[("sample", spec)]));
    assert!(verdict.is_allowed());
    assert!(outcome(&verdict).2[0].contains("Cascading is not known for this kind; Always is"));
}

#[test]
fn labels_and_protections_are_all_named() {
    let world = Given::protected(&[("one", deployments()), ("two", deployments())]);
    let label = r#""policy.kruise.io/delete-protection":"Always""#;
    let message =
        prose::refusal(&delete("Deployment", &in_namespace("shop", "web", label, "{}"), &world)).unwrap();
    for part in [
        "label policy.kruise.io/delete-protection=Always",
        "\"one\"",
        "\"two\"",
        "kubectl patch rdp one",
        "kubectl patch rdp two",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn the_labels_of_a_namespace_are_asked_for_where_a_rule_wants_them() {
    let selector = json!({"apiVersion": "v1", "kind": "ConfigMap", "namespaceSelector": {"matchLabels": {"env": "prod"}}});
    let mut world = Given::protected(&[("sample", spec(&selector))]);
    let map = in_namespace("shop", "c", "", "{}");
    assert_eq!(
        delete("ConfigMap", &map, &world).code(),
        Some(Code::Unavailable),
        "it could not be found out"
    );
    for (env, code) in [("prod", Some(Code::Forbidden)), ("test", None)] {
        world.namespaces = [("shop".to_owned(), BTreeMap::from([("env".to_owned(), env.to_owned())]))].into();
        assert_eq!(delete("ConfigMap", &map, &world).code(), code, "{env}");
    }
}

#[test]
fn a_protection_that_cannot_be_read_protects_everything_that_is_asked_about() {
    let unreadable = UnreadableProtection { name: "odd".to_owned(), why: "nonsense".to_owned() };
    let world = Given { protections: Protections::new([], vec![unreadable]), ..Given::default() };
    let verdict = delete("ClusterRole", &labelled("a", ""), &world);
    assert_eq!(verdict.code(), Some(Code::Unavailable));
    assert!(prose::refusal(&verdict).unwrap().contains("what ResourceDeletionProtection odd protects"));
}

#[test]
fn every_kind_leaves_events_alone() {
    let world = Given::protected(&[("sample", spec(&json!({"kind": "*", "namespace": "shop"})))]);
    assert!(!delete("Widget", &in_namespace("shop", "w", "", "{}"), &world).is_allowed());
    allowed(&delete("Event", &in_namespace("shop", "e", "", "{}"), &world));
}
