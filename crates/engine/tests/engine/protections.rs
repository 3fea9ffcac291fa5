//! The protections guard, sentence by sentence.

use std::collections::BTreeMap;

use futures::executor::block_on;
use palisade_api::protection::Action::{self as Taken, Deny};
use palisade_api::protection::UnreadableProtection;
use palisade_engine::{
    Action, Code, Dependents, Matched, Object, Part, Portion, Protections, Subject, Verdict, decide, prose,
};
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    Given, allowed, delete, in_namespace, kind, labelled, outcome, refused, review, settings,
};

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
    assert_eq!(verdict.matched, [Matched { protection: "sample".to_owned(), action: Deny }]);
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
    assert_eq!(actions, [("a", Taken::Audit), ("w", Taken::Warn)]);
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

/// What is said about a change of labels, by jane.
fn relabel(of: &str, old: &str, new: &str, world: &Given) -> Verdict {
    let json = |labels: &str| in_namespace("shop", "c", labels, r#"{"replicas":2}"#).leak();
    let object = |labels: &str| Object::parse(json(labels).as_bytes()).unwrap();
    let subject = Subject { kind: kind(of), object: object(old) };
    let action = if of == "Pod" {
        Action::Update { pod: subject, new: object(new), part: Part::Status }
    } else {
        Action::Change { subject, new: object(new), part: Portion::Whole }
    };
    block_on(decide(&review(action), world, &settings()))
}

const WEB: &str = r#""app":"web""#;

#[rstest]
#[case::taken_away(json!({"matchLabels": {"app": "web"}}), WEB, "", false)]
#[case::another_value(json!({"matchLabels": {"app": "web"}}), WEB, r#""app":"api""#, false)]
#[case::something_else(json!({"matchLabels": {"app": "web"}}), WEB, r#""app":"web","tier":"x""#, true)]
#[case::never_selected(json!({"matchLabels": {"app": "web"}}), r#""app":"api""#, "", true)]
#[case::selected_from_now_on(json!({"matchLabels": {"app": "web"}}), "", WEB, true)]
#[case::a_label_that_excludes(json!({"matchExpressions": [{"key": "tmp", "operator": "DoesNotExist"}]}), WEB, r#""app":"web","tmp":"y""#, false)]
#[case::a_value_that_excludes(json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["tmp"]}]}), WEB, r#""app":"tmp""#, false)]
#[case::one_listed_value_for_another(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]}), WEB, r#""app":"api""#, true)]
fn a_selected_label_is_part_of_the_protection(
    #[case] selector: Value,
    #[case] old: &str,
    #[case] new: &str,
    #[case] may: bool,
    #[values("ConfigMap", "Pod", "Widget")] of: &str,
) {
    let named = |group: &str, of: &str| json!({"apiVersion": group, "kind": of, "labelSelector": selector});
    for selector in [
        named(
            match of {
                "Widget" => "example.com/v1",
                _ => "v1",
            },
            of,
        ),
        json!({"kind": "*", "labelSelector": selector}),
    ] {
        let world = Given::protected(&[("sample", spec(&selector))]);
        let verdict = relabel(of, old, new, &world);
        assert_eq!(verdict.is_allowed(), may, "{selector}");
        if !may {
            let message = prose::refusal(&verdict).unwrap();
            assert!(
                message.contains(
                    "\"shop/c\" is protected from deletion: ResourceDeletionProtection \"sample\". This change of its labels \
                     would end that. To lift it: kubectl patch rdp sample"
                ),
                "{message}"
            );
            assert_eq!(verdict.matched, [Matched { protection: "sample".to_owned(), action: Deny }]);
        }
    }
}

#[test]
fn a_change_of_labels_is_answered_as_a_deletion_would_be() {
    let selector =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": {"matchLabels": {"app": "web"}}});
    let with = |key: &str, value: Value| {
        let mut spec = spec(&selector);
        spec[key] = value;
        Given::protected(&[("sample", spec)])
    };
    let change = |world: &Given| relabel("ConfigMap", WEB, "", world);
    allowed(&change(&with("exempt", json!({"users": ["jane"]}))));
    allowed(&change(&with("labelChanges", json!("Ignore"))));
    let nothing_owned =
        Given { scale: Ok(None), dependents: Ok(Dependents::default()), ..with("mode", json!("Cascading")) };
    allowed(&change(&nothing_owned));
    assert!(!change(&with("labelChanges", json!("Guard"))).is_allowed());
    let warned = change(&with("action", json!("Warn")));
    let warning = "configmap \"shop/c\" is protected from deletion: ResourceDeletionProtection \"sample\"; with this change of its \
        labels it no longer is";
    assert_eq!(outcome(&warned), (None, None, vec![warning.to_owned()]));
    let audited = change(&with("action", json!("Audit")));
    allowed_with_match(&audited);
}

#[track_caller]
fn allowed_with_match(verdict: &Verdict) {
    assert_eq!(outcome(verdict), (None, None, vec![]));
    assert_eq!(verdict.matched, [Matched { protection: "sample".to_owned(), action: Taken::Audit }]);
}

#[test]
fn labels_of_what_a_protection_still_selects_may_change() {
    let by = |labels: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": {"matchLabels": labels}});
    let both = json!({"protectedResources": [{"resourceSelector": [by(json!({"app": "web"})), by(json!({"app": "api"}))]}]});
    let world = Given::protected(&[("sample", both)]);
    allowed(&relabel("ConfigMap", WEB, r#""app":"api""#, &world));
    assert!(!relabel("ConfigMap", WEB, "", &world).is_allowed());
    let world = Given::protected(&[
        ("one", spec(&by(json!({"app": "web"})))),
        ("two", spec(&by(json!({"app": "api"})))),
    ]);
    let message = prose::refusal(&relabel("ConfigMap", WEB, r#""app":"api""#, &world)).unwrap();
    assert!(
        message.contains("\"one\"") && !message.contains("\"two\""),
        "another one may exempt others: {message}"
    );
}

#[test]
fn labels_of_what_is_terminating_may_change() {
    let selector =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": {"matchLabels": {"app": "web"}}});
    let world = Given::protected(&[("sample", spec(&selector))]);
    let going = r#"{"metadata":{"name":"c","namespace":"shop","deletionTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"web"}}}"#;
    let subject = Subject { kind: kind("ConfigMap"), object: Object::parse(going.as_bytes()).unwrap() };
    let new = Object::parse(br#"{"metadata":{"name":"c","namespace":"shop"}}"#).unwrap();
    let change = Action::Change { subject, new, part: Portion::Whole };
    allowed(&block_on(decide(&review(change), &world, &settings())));
}

#[test]
fn policies_have_labels_too() {
    let selector = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodDeletionFlowControl", "labelSelector": {"matchLabels": {"app": "web"}}});
    let world = Given::protected(&[("sample", spec(&selector))]);
    let policy = |labels: &str| {
        let json = format!(
            r#"{{"metadata":{{"name":"f","labels":{{{labels}}}}},"spec":{{"rules":[{{"interval":"1m","maxDeletions":1}}]}}}}"#
        );
        Subject {
            kind: kind("PodDeletionFlowControl"),
            object: Object::parse(json.leak().as_bytes()).unwrap(),
        }
    };
    let change = Action::Declare { subject: policy(""), old: Some(policy(WEB)) };
    let verdict = block_on(decide(&review(change), &world, &settings()));
    assert!(prose::refusal(&verdict).unwrap().contains("ResourceDeletionProtection \"sample\""));
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
