//! Copied labels, sentence by sentence.

use std::collections::BTreeMap;

use palisade_engine::{
    Action, ClaimTemplate, Object, OwnerState, Portion, SourceMarks, Subject, Unknown, Verdict,
};
use palisade_engine::{advise, prose};
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Given, allowed, delete_as, kind, labelled, outcome, review};

const KEY: &str = "policy.kruise.io/delete-protection";
const OPERATOR: &str = "system:serviceaccount:cert-manager:cert-manager";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// What an owner hands on.
fn source(owner: &Value) -> SourceMarks {
    SourceMarks::of(&Object::parse(owner.to_string().as_bytes()).unwrap())
}

fn there(owner: &Value) -> OwnerState {
    OwnerState::There { labels: source(owner), is_terminating: false }
}

fn with_owner(state: OwnerState) -> Given {
    Given { owners: BTreeMap::from([("u".to_owned(), Ok(state))]), ..Given::default() }
}

/// A labelled dependent of owner "u", and who wrote the label and the owner reference.
fn dependent(namespace: &str, label_by: &str, owner_by: &str) -> String {
    let labels = json!({"f:labels": {".": {}, format!("f:{KEY}"): {}}});
    let owners = json!({"f:ownerReferences": {".": {}, "k:{\"uid\":\"u\"}": {}}});
    let fields = if label_by == owner_by {
        let mut both = labels;
        both["f:ownerReferences"] = owners["f:ownerReferences"].clone();
        json!([{"manager": label_by, "fieldsV1": {"f:metadata": both}}])
    } else {
        json!([{"manager": label_by, "fieldsV1": {"f:metadata": labels}},
               {"manager": owner_by, "fieldsV1": {"f:metadata": owners}}])
    };
    json!({"metadata": {"name": "w", "namespace": namespace, "labels": {KEY: "Always"}, "managedFields": fields,
        "ownerReferences": [{"apiVersion": "example.com/v1", "kind": "Widget", "name": "o", "uid": "u", "controller": true}]}})
    .to_string()
}

fn made() -> String {
    dependent("shop", "operator", "operator")
}

#[rstest]
#[case::its_label(json!({"metadata": {"labels": {KEY: "Always"}}}), true)]
#[case::another_value(json!({"metadata": {"labels": {KEY: "Cascading"}}}), false)]
#[case::another_label(json!({"metadata": {"labels": {"app": "Always"}}}), false)]
#[case::its_pod_template(json!({"spec": {"template": {"metadata": {"labels": {KEY: "Always"}}}}}), true)]
#[case::its_job_template(json!({"spec": {"jobTemplate": {"metadata": {"labels": {KEY: "Always"}}}}}), true)]
#[case::the_pods_of_its_jobs(json!({"spec": {"jobTemplate": {"spec": {"template": {"metadata": {"labels": {KEY: "Always"}}}}}}}), true)]
#[case::its_claim_template(json!({"spec": {"volumeClaimTemplates": [{}, {"metadata": {"labels": {KEY: "Always"}}}]}}), true)]
#[case::its_ephemeral_volumes(json!({"spec": {"volumes": [{"ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {KEY: "Always"}}}}}]}}), true)]
#[case::a_spec_of_its_own(json!({"spec": "template"}), false)]
#[case::nothing(json!({"metadata": {}}), false)]
fn a_copy_is_what_the_live_controller_hands_on(#[case] owner: Value, #[case] is_copy: bool) {
    let world = with_owner(there(&owner));
    assert_eq!(delete_as(OPERATOR, "Widget", &made(), &world).is_allowed(), is_copy);
    assert_eq!(delete_as(COLLECTOR, "Widget", &made(), &world).is_allowed(), is_copy);
}

#[rstest]
#[case("jane", false)]
#[case("system:admin", false)]
#[case("system:serviceaccount:shop:ci", true)]
#[case("system:serviceaccount:kube-system:replicaset-controller", true)]
#[case("system:kube-controller-manager", true)]
#[case("system:kube-scheduler", true)]
fn a_copy_binds_people(#[case] user: &str, #[case] may: bool) {
    let owner = there(&json!({"metadata": {"labels": {KEY: "Always"}}}));
    for json in [made(), dependent("shop", "kube-controller-manager", "kube-controller-manager")] {
        let verdict = delete_as(user, "Widget", &json, &with_owner(owner.clone()));
        assert_eq!(verdict.is_allowed(), may, "{user}");
        if !may {
            assert!(
                prose::refusal(&verdict).unwrap().contains("label policy.kruise.io/delete-protection=Always")
            );
        }
    }
}

#[test]
fn what_has_no_controller_is_no_copy() {
    let owner = || with_owner(there(&json!({"metadata": {"labels": {KEY: "Always"}}})));
    let mere_owner = made().replace("\"controller\":true", "\"controller\":false");
    assert!(!delete_as(OPERATOR, "Widget", &mere_owner, &owner()).is_allowed());
    let by_hand = labelled("w", &format!(r#""{KEY}":"Always""#));
    assert!(!delete_as(OPERATOR, "Widget", &by_hand, &owner()).is_allowed());
    assert!(!delete_as(COLLECTOR, "Widget", &by_hand, &owner()).is_allowed());
}

#[test]
fn what_kubernetes_copied_stays_a_copy_when_the_template_loses_the_label() {
    // Nobody is asked: who wrote it is in the object.
    let json = dependent("shop", "kube-controller-manager", "kube-controller-manager");
    allowed(&delete_as(
        "system:serviceaccount:kube-system:deployment-controller",
        "ReplicaSet",
        &json,
        &Given::default(),
    ));
    let by_hand = dependent("shop", "kubectl-label", "kube-controller-manager");
    let world = with_owner(there(&json!({"metadata": {}})));
    assert!(
        !delete_as("system:serviceaccount:kube-system:deployment-controller", "ReplicaSet", &by_hand, &world)
            .is_allowed()
    );
}

#[test]
fn an_owner_that_can_not_be_read_is_a_refusal_that_says_why() {
    let owners =
        BTreeMap::from([("u".to_owned(), Err(Unknown::new("what its owner looks like", "no answer")))]);
    let verdict = delete_as(OPERATOR, "Widget", &made(), &Given { owners, ..Given::default() });
    let (code, message, _) = outcome(&verdict);
    assert_eq!(code, Some(503));
    assert!(message.unwrap().contains("what its owner looks like could not be found out (no answer)"));
}

#[rstest]
#[case::made_with_both("operator", "operator", OwnerState::Gone, COLLECTOR, true)]
#[case::labelled_by_hand("kubectl-label", "operator", OwnerState::Gone, COLLECTOR, false)]
#[case::anybody_could_name_it("operator", "operator", OwnerState::GoneFromCluster, COLLECTOR, false)]
#[case::only_kubernetes_cleans_up("operator", "operator", OwnerState::Gone, OPERATOR, false)]
fn once_the_owner_is_gone_the_collector_takes_what_was_made_with_the_label(
    #[case] label_by: &str,
    #[case] owner_by: &str,
    #[case] owner: OwnerState,
    #[case] user: &str,
    #[case] may: bool,
) {
    let verdict = delete_as(user, "Widget", &dependent("shop", label_by, owner_by), &with_owner(owner));
    assert_eq!(verdict.is_allowed(), may);
}

#[test]
fn an_owner_that_nobody_ever_saw_takes_nothing_along() {
    let json =
        made().replace("\"uid\":\"u\"", "\"uid\":\"invented\"").replace("\\\"u\\\"", "\\\"invented\\\"");
    let owners = BTreeMap::from([("invented".to_owned(), Ok(OwnerState::Gone))]);
    assert!(!delete_as(COLLECTOR, "Widget", &json, &Given { owners, ..Given::default() }).is_allowed());
}

#[test]
fn a_terminating_owner_counts_as_gone_and_a_live_one_does_not() {
    let state = |is_terminating| OwnerState::There { labels: SourceMarks::default(), is_terminating };
    assert!(delete_as(COLLECTOR, "Widget", &made(), &with_owner(state(true))).is_allowed());
    assert!(!delete_as(COLLECTOR, "Widget", &made(), &with_owner(state(false))).is_allowed());
}

#[test]
fn in_a_terminating_namespace_claims_go_after_their_set() {
    let namespace_controller = "system:serviceaccount:kube-system:namespace-controller";
    let claim = |namespace: &str, manager: &str| {
        json!({"metadata": {"name": "data-db-0", "namespace": namespace, "labels": {KEY: "Always"}, "managedFields": [
            {"manager": manager, "fieldsV1": {"f:metadata": {"f:labels": {format!("f:{KEY}"): {}}}}}]}})
        .to_string()
    };
    let may = |namespace: &str, manager: &str| {
        let world = Given { claim_templates: Ok(Vec::new()), ..Given::default() };
        delete_as(namespace_controller, "PersistentVolumeClaim", &claim(namespace, manager), &world)
            .is_allowed()
    };
    assert!(may("going", "kube-controller-manager"));
    assert!(!may("going", "kubectl-label"), "the label is a promise");
    assert!(!may("shop", "kube-controller-manager"), "its set is gone, so the claim is nobody's copy");
}

#[rstest]
#[case("data-db-0", true)]
#[case("data-db-17", true)]
#[case("data-db-007", false)]
#[case("data-db-x", false)]
#[case("data-other-0", false)]
#[case("logs-db-0", false)]
#[case("data-db", false)]
fn a_claim_is_known_by_its_name_and_template(#[case] name: &str, #[case] is_copy: bool) {
    let labels = SourceMarks::in_template(&json!({"labels": {KEY: "Always"}}));
    let template = ClaimTemplate { set: "db".to_owned(), template: "data".to_owned(), labels };
    let unlabelled =
        ClaimTemplate { template: "logs".to_owned(), labels: SourceMarks::default(), ..template.clone() };
    let world =
        || Given { claim_templates: Ok(vec![template.clone(), unlabelled.clone()]), ..Given::default() };
    let json = crate::world::in_namespace("shop", name, &format!(r#""{KEY}":"Always""#), "{}");
    let user = "system:serviceaccount:kube-system:statefulset-controller";
    assert_eq!(delete_as(user, "PersistentVolumeClaim", &json, &world()).is_allowed(), is_copy);
    let holding = Given { objects: Ok(vec![("PersistentVolumeClaim", json)]), ..world() };
    assert_eq!(delete_as("jane", "Namespace", &labelled("shop", ""), &holding).is_allowed(), is_copy);
}

#[test]
fn copies_guard_no_namespace_and_are_neither_counted_nor_named() {
    let copied = || {
        let by_kubernetes = dependent("shop", "kube-controller-manager", "kube-controller-manager");
        vec![
            ("Widget", made()),
            (
                "Pod",
                by_kubernetes
                    .replace("\"uid\":\"u\"", "\"uid\":\"unread\"")
                    .replace("\\\"u\\\"", "\\\"unread\\\""),
            ),
        ]
    };
    let owner = there(&json!({"metadata": {"labels": {KEY: "Always"}}}));
    let world = Given { objects: Ok(copied()), ..with_owner(owner.clone()) };
    allowed(&delete_as("jane", "Namespace", &labelled("shop", ""), &world));
    let mut objects = copied();
    objects.push((
        "ConfigMap",
        crate::world::in_namespace("shop", "kept", &format!(r#""{KEY}":"Always""#), "{}"),
    ));
    let world = Given { objects: Ok(objects), ..with_owner(owner) };
    let message = prose::refusal(&delete_as("jane", "Namespace", &labelled("shop", ""), &world)).unwrap();
    assert!(message.contains("a protected object would go with it: configmap \"shop/kept\""), "{message}");
    assert!(!message.contains("\"shop/w\""), "{message}");
    let world = Given { objects: Ok(copied()), ..with_owner(there(&json!({}))) };
    let message = prose::refusal(&delete_as("jane", "Namespace", &labelled("shop", ""), &world)).unwrap();
    assert!(message.contains("widget.example.com \"shop/w\""), "no copy: {message}");
}

#[test]
fn what_a_rule_protects_stays_protected_though_its_label_is_a_copy() {
    let rule = json!({"protectedResources": [{"resourceSelector": [{"apiVersion": "example.com/v1", "kind": "Widget", "namespace": "shop"}]}]});
    let owner = there(&json!({"metadata": {"labels": {KEY: "Always"}}}));
    let world = Given {
        owners: with_owner(owner).owners,
        objects: Ok(vec![("Widget", made())]),
        ..Given::protected(&[("sample", rule)])
    };
    let message = prose::refusal(&delete_as("jane", "Namespace", &labelled("shop", ""), &world)).unwrap();
    assert!(
        message.contains("widget.example.com \"shop/w\" (ResourceDeletionProtection \"sample\")"),
        "{message}"
    );
    assert!(!message.contains("kubectl label"), "{message}");
    assert!(!delete_as(OPERATOR, "Widget", &made(), &world).is_allowed());
}

#[rstest]
#[case("Endpoints")]
#[case("EndpointSlice")]
#[case("Event")]
#[case("Lease")]
fn kinds_that_come_and_go_by_themselves_are_protected_by_no_label(#[case] of: &str) {
    let labels = format!(r#""{KEY}":"Always","resourcetemplate.karmada.io/deletion-protected":"Always""#);
    let json = crate::world::in_namespace("shop", "web", &labels, "{}");
    allowed(&delete_as("jane", of, &json, &Given::default()));
    let world = Given { objects: Ok(vec![("Lease", json)]), ..Given::default() };
    allowed(&delete_as("jane", "Namespace", &labelled("shop", ""), &world));
}

fn advised(of: &str, old: Option<&Value>, new: &Value) -> Verdict {
    let (old, new) = (old.map(Value::to_string), new.to_string());
    let object = |json: &'static str| Object::parse(json.as_bytes()).unwrap();
    let new = object(new.leak());
    let action = match old {
        None => Action::Create(Subject { kind: kind(of), object: new }),
        Some(old) => Action::Change {
            subject: Subject { kind: kind(of), object: object(old.leak()) },
            new,
            part: Portion::Whole,
        },
    };
    advise(&review(action))
}

#[test]
fn who_labels_a_template_is_told_that_it_is_copied() {
    let web = |labels: Value| json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"template": {"metadata": {"labels": labels}}}});
    let (bare, marked) = (web(json!({"app": "web"})), web(json!({KEY: "Always"})));
    let warning = "deployment \"shop/web\": label policy.kruise.io/delete-protection=Always in its template is copied to all that \
        is made from it: people can't delete those, controllers can. To protect it, set the label on its own metadata";
    assert!(warning.len() <= 256);
    for old in [None, Some(&bare)] {
        assert_eq!(outcome(&advised("Deployment", old, &marked)), (None, None, vec![warning.to_owned()]));
    }
    allowed(&advised("Deployment", Some(&marked), &marked));
    allowed(&advised("Deployment", None, &bare));
    let own = json!({"metadata": {"name": "web", "namespace": "shop", "labels": {KEY: "Always"}}, "spec": {"template": {}}});
    allowed(&advised("Deployment", None, &own));
}

#[test]
fn who_labels_what_no_label_protects_is_told_so() {
    let slice = |labels: Value| json!({"metadata": {"name": "web", "namespace": "shop", "labels": labels}});
    let (bare, marked) = (slice(json!({})), slice(json!({KEY: "Always"})));
    let verdict = advised("EndpointSlice", Some(&bare), &marked);
    let warning = "endpointslice \"shop/web\": label policy.kruise.io/delete-protection=Always does not protect it: Endpoints, \
        EndpointSlices, Events and Leases are never protected by label";
    assert_eq!(outcome(&verdict), (None, None, vec![warning.to_owned()]));
    allowed(&advised("EndpointSlice", Some(&marked), &marked));
}

#[test]
fn who_annotates_what_nothing_protects_is_told_so() {
    const ANNOTATION: &str = "policy.kruise.io/disable-cascading-deletion";
    let lease = |value: &str| json!({"metadata": {"name": "l", "namespace": "shop", "annotations": {ANNOTATION: value}}});
    let told = outcome(&advised("Lease", None, &lease("true"))).2;
    assert_eq!(told.len(), 1);
    assert!(
        told[0].contains("annotation policy.kruise.io/disable-cascading-deletion=true does not protect it"),
        "{told:?}"
    );
    allowed(&advised("Lease", Some(&lease("true")), &lease("true")));
    allowed(&advised("Lease", None, &lease("false")));
}
