//! What `Cascading` looks at, kind by kind.

use std::collections::BTreeMap;

use palisade_engine::{Census, Code, Count, Dependents, Scale, Unknown, UnreadableKind, prose};
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Given, allowed, census, delete, delete_as, labelled, outcome, refused};

const KEY: &str = "policy.kruise.io/delete-protection";
const ANNOTATION: &str = "policy.kruise.io/disable-cascading-deletion";

/// An object with the label, and with what else is given.
fn object(rest: &Value) -> String {
    let mut object = json!({"metadata": {"name": "x", "namespace": "shop", "uid": "u", "generation": 2,
        "labels": {KEY: "Cascading"}}});
    for (key, value) in rest.as_object().unwrap() {
        object[key] = value.clone();
    }
    object.to_string()
}

fn message(of: &str, rest: &Value, world: &Given) -> String {
    prose::refusal(&delete(of, &object(rest), world)).unwrap_or_else(|| panic!("{of} {rest} should stay"))
}

fn counted(names: &[(&str, &[&str])]) -> BTreeMap<String, Census> {
    names.iter().map(|(key, names)| ((*key).to_owned(), census(names))).collect()
}

#[rstest]
#[case("ReplicationController", json!({"spec": {"replicas": 2}}), "it has 2 replicas. Scale it to 0 first.")]
#[case("ReplicationController", json!({"spec": {}}), "it has 1 replica.")]
#[case("DaemonSet", json!({"status": {"observedGeneration": 2, "desiredNumberScheduled": 3}}),
    "it has 3 pods that it should run. Give it a node selector that no Node has first.")]
#[case("Job", json!({"status": {"active": 1, "startTime": "2026-01-01T00:00:00Z"}}),
    "it has 1 active pod. Suspend it, or wait until it has ended.")]
#[case("CronJob", json!({"status": {"active": [{"name": "x-1"}, {"name": "x-2"}]}}),
    "it has 2 active Jobs: x-1, x-2. Delete those first.")]
#[case("PersistentVolumeClaim", json!({"spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}),
    "it has a volume that it is bound to: v. To lift it:")]
#[case("PersistentVolume", json!({"spec": {"claimRef": {"namespace": "shop", "name": "c"}}, "status": {"phase": "Bound"}}),
    "it has a claim that it is bound to: shop/c. Delete those first.")]
fn it_stays_while_its_own_text_says_that_something_goes_with_it(
    #[case] of: &str,
    #[case] rest: Value,
    #[case] expected: &str,
) {
    let told = message(of, &rest, &Given::default());
    assert!(told.contains(expected), "{told}");
    // The annotation means the same.
    let mut annotated: Value = serde_json::from_str(&object(&rest)).unwrap();
    annotated["metadata"]["labels"] = Value::Null;
    annotated["metadata"]["annotations"] = json!({ANNOTATION: "true"});
    let verdict = delete(of, &annotated.to_string(), &Given::default());
    assert_eq!(verdict.code(), Some(Code::Forbidden), "{verdict:?}");
}

#[rstest]
#[case("ReplicationController", json!({"spec": {"replicas": 0}}))]
#[case("DaemonSet", json!({"status": {"observedGeneration": 2, "desiredNumberScheduled": 0}}))]
#[case("DaemonSet", json!({"status": {"observedGeneration": 2}}))]
#[case("Job", json!({"status": {"startTime": "2026-01-01T00:00:00Z"}}))]
#[case("Job", json!({"spec": {"suspend": true}}))]
#[case("Job", json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}))]
#[case("CronJob", json!({"status": {}}))]
#[case("CronJob", json!({}))]
#[case("PersistentVolume", json!({"status": {"phase": "Released"}}))]
fn it_goes_once_nothing_goes_with_it(#[case] of: &str, #[case] rest: Value) {
    allowed(&delete(of, &object(&rest), &Given::default()));
}

#[rstest]
#[case("DaemonSet", json!({"status": {"observedGeneration": 1, "desiredNumberScheduled": 0}}),
    "how many pods it should run could not be found out (its controller has not seen its newest generation yet")]
#[case("DaemonSet", json!({"status": {"observedGeneration": 1, "desiredNumberScheduled": 3}}), "could not be found out")]
#[case("DaemonSet", json!({}), "could not be found out")]
#[case("Job", json!({}), "its active pods could not be found out (its controller has not seen it yet")]
#[case("Job", json!({"status": {"active": "many"}}), "status.active is no number")]
fn a_status_that_is_behind_tells_nothing(#[case] of: &str, #[case] rest: Value, #[case] expected: &str) {
    let verdict = delete(of, &object(&rest), &Given::default());
    let told = prose::refusal(&verdict).unwrap();
    assert_eq!(verdict.code(), Some(Code::Unavailable));
    assert!(told.contains(expected), "{told}");
}

#[test]
fn a_claim_that_is_not_bound_stays_while_a_pod_mounts_it() {
    let pending = json!({"status": {"phase": "Pending"}});
    let world = Given { mounting: Ok(counted(&[("x", &["web-0"]), ("y", &["web-1"])])), ..Given::default() };
    let told = message("PersistentVolumeClaim", &pending, &world);
    assert!(told.contains("it has 1 pod that mounts it: web-0. Delete those first."), "{told}");
    let world = Given { mounting: Ok(counted(&[("y", &["web-1"])])), ..Given::default() };
    allowed(&delete("PersistentVolumeClaim", &object(&pending), &world));
}

#[test]
fn a_service_stays_while_it_has_ready_endpoints() {
    let world = Given { endpoints: Ok(counted(&[("x", &["web-0", "web-1"])])), ..Given::default() };
    let told = message("Service", &json!({}), &world);
    assert!(
        told.contains("it has 2 ready endpoints: web-0, web-1. Scale what is behind it to 0 first."),
        "{told}"
    );
    let world = Given { endpoints: Ok(BTreeMap::new()), ..Given::default() };
    allowed(&delete("Service", &object(&json!({})), &world));
}

#[test]
fn a_node_stays_while_pods_are_on_it_and_the_clouds_controller_is_not_bound() {
    let node = labelled("n1", &format!(r#""{KEY}":"Cascading""#));
    let world = Given { on_node: Ok(census(&["shop/web-0"])), ..Given::default() };
    refused(
        &delete("Node", &node, &world),
        403,
        "node \"n1\" is protected from deletion: label policy.kruise.io/delete-protection=Cascading, and it has 1 pod that is \
         not a DaemonSet's: shop/web-0. Drain it first: kubectl drain n1 --ignore-daemonsets. \
         To lift it: kubectl label node n1 policy.kruise.io/delete-protection-",
    );
    for user in [
        "system:serviceaccount:kube-system:node-controller",
        "system:serviceaccount:kube-system:cloud-controller-manager",
        "system:serviceaccount:kube-system:hcloud-cloud-controller-manager",
        "system:cloud-controller-manager",
    ] {
        allowed(&delete_as(user, "Node", &node, &world));
    }
    for user in [
        "system:serviceaccount:shop:node-controller",
        "system:serviceaccount:shop:cloud-controller-manager",
        "system:serviceaccount:kube-system:default",
        "cloud-controller-manager",
        "system:node:n1",
    ] {
        assert!(!delete_as(user, "Node", &node, &world).is_allowed(), "{user}");
    }
    let always = labelled("n1", &format!(r#""{KEY}":"Always""#));
    let user = "system:cloud-controller-manager";
    assert!(!delete_as(user, "Node", &always, &world).is_allowed(), "Always binds everybody");
    let world = Given { on_node: Ok(Census::NONE), ..Given::default() };
    allowed(&delete("Node", &node, &world));
}

fn scaled(paths: &[(&str, &str)]) -> Given {
    let paths = paths.iter().map(|(version, path)| ((*version).to_owned(), (*path).to_owned())).collect();
    Given { scale: Ok(Some(Scale { paths })), ..Given::default() }
}

#[rstest]
#[case(json!({"size": {"members": 3}}), Some(403), "it has 3 replicas. Scale it to 0 first.")]
#[case(json!({"size": {"members": 0}}), None, "")]
#[case(json!({}), Some(403), "it has 1 replica.")]
#[case(json!({"size": {"members": "3"}}), Some(503), ".spec.size.members is no number")]
#[case(json!({"size": 3}), Some(403), "it has 1 replica.")]
fn a_custom_resource_with_a_scale_stays_while_it_has_replicas(
    #[case] spec: Value,
    #[case] code: Option<u16>,
    #[case] expected: &str,
) {
    let world = scaled(&[("v1", ".spec.other"), ("v2", ".spec.size.members")]);
    let verdict = delete("Widget", &object(&json!({"apiVersion": "example.com/v2", "spec": spec})), &world);
    let (told, message, _) = outcome(&verdict);
    assert_eq!(told, code);
    assert!(message.unwrap_or_default().contains(expected), "{verdict:?}");
}

#[test]
fn where_nobody_tells_where_replicas_are_they_are_in_the_usual_place_or_unknown() {
    let stays = message("Widget", &json!({"spec": {"replicas": 2}}), &scaled(&[]));
    assert!(stays.contains("it has 2 replicas"), "{stays}");
    allowed(&delete("Widget", &object(&json!({"spec": {"replicas": 0}})), &scaled(&[])));
    assert_eq!(
        delete("Widget", &object(&json!({"spec": {"size": 2}})), &scaled(&[])).code(),
        Some(Code::Unavailable)
    );
}

fn owning(dependents: Dependents) -> Given {
    Given { scale: Ok(None), dependents: Ok(dependents), ..Given::default() }
}

#[test]
fn any_other_kind_stays_while_something_names_it_as_owner() {
    let by_owner = BTreeMap::from([(
        "u".to_owned(),
        Census { count: Count::AtLeast(2), names: vec!["configmap shop/a".to_owned()] },
    )]);
    let world = owning(Dependents { by_owner, ..Dependents::default() });
    refused(
        &delete("ConfigMap", &object(&json!({})), &world),
        403,
        "configmap \"shop/x\" is protected from deletion: label policy.kruise.io/delete-protection=Cascading, and it has \
         at least 2 objects that it owns: configmap shop/a, …. Delete those first. \
         To lift it: kubectl label configmap x -n shop policy.kruise.io/delete-protection-",
    );
    allowed(&delete("ConfigMap", &object(&json!({})), &owning(Dependents::default())));
}

#[test]
fn a_kind_that_can_not_be_listed_may_hold_dependents() {
    let widgets = UnreadableKind {
        group: "example.com".to_owned(),
        kind: Some(("Widget".to_owned(), "widgets".to_owned())),
        why: "no".to_owned(),
        is_broken: true,
        missing: None,
    };
    let world = owning(Dependents { unreadable: vec![widgets], ..Dependents::default() });
    let verdict = delete("ConfigMap", &object(&json!({})), &world);
    assert_eq!(verdict.code(), Some(Code::Unavailable));
    let told = prose::refusal(&verdict).unwrap();
    assert!(
        told.contains("what it owns could not be found out (widgets.example.com: no; to pass over them, annotate it with"),
        "{told}"
    );
    let mut ignoring: Value = serde_json::from_str(&object(&json!({}))).unwrap();
    ignoring["metadata"]["annotations"] =
        json!({"palisade.dev/ignore-unreadable-kinds": "widgets.example.com"});
    allowed(&delete("ConfigMap", &ignoring.to_string(), &world));
    let world = Given {
        scale: Ok(None),
        dependents: Err(Unknown::new("what it owns", "it took too long")),
        ..Given::default()
    };
    assert_eq!(delete("ConfigMap", &object(&json!({})), &world).code(), Some(Code::Unavailable));
}

#[test]
fn groups_that_are_not_searched_are_told() {
    let not_searched = vec!["example.com".to_owned()];
    let world = owning(Dependents { not_searched, ..Dependents::default() });
    let (code, _, warnings) = outcome(&delete("ConfigMap", &object(&json!({})), &world));
    assert_eq!((code, warnings.len()), (None, 1));
    assert!(warnings[0].contains("example.com"), "{warnings:?}");
}

#[test]
fn protections_follow_the_same_table() {
    let rule = json!({"mode": "Cascading",
        "protectedResources": [{"resourceSelector": [{"apiVersion": "v1", "kind": "Service"}]}]});
    let plain = r#"{"metadata":{"name":"x","namespace":"shop"}}"#;
    let with = |endpoints: &[(&str, &[&str])]| Given {
        endpoints: Ok(counted(endpoints)),
        ..Given::protected(&[("sample", rule.clone())])
    };
    let told = prose::refusal(&delete("Service", plain, &with(&[("x", &["web-0"])]))).unwrap();
    assert!(
        told.contains("ResourceDeletionProtection \"sample\", and it has 1 ready endpoint: web-0"),
        "{told}"
    );
    allowed(&delete("Service", plain, &with(&[])));
}

/// An object of a namespace, labelled `Cascading`.
fn inside(name: &str, rest: &Value) -> String {
    let mut object: Value = serde_json::from_str(&object(rest)).unwrap();
    object["metadata"]["name"] = json!(name);
    object["metadata"]["uid"] = json!(format!("uid-of-{name}"));
    object.to_string()
}

#[test]
fn what_is_in_a_namespace_is_judged_by_the_same_table() {
    let bound = json!({"status": {"phase": "Bound"}});
    let objects = vec![
        (
            "DaemonSet",
            inside("agent", &json!({"status": {"observedGeneration": 2, "desiredNumberScheduled": 1}})),
        ),
        ("DaemonSet", inside("idle", &json!({"status": {"observedGeneration": 2}}))),
        ("PersistentVolumeClaim", inside("bound", &bound)),
        ("PersistentVolumeClaim", inside("mounted", &json!({}))),
        ("PersistentVolumeClaim", inside("free", &json!({}))),
        ("Service", inside("web", &json!({}))),
        ("Service", inside("unused", &json!({}))),
        ("ConfigMap", inside("owner", &json!({}))),
        ("ConfigMap", inside("alone", &json!({}))),
    ];
    let world = Given {
        objects: Ok(objects),
        claim_templates: Ok(Vec::new()),
        scale: Ok(None),
        mounting: Ok(counted(&[("mounted", &["web-0"])])),
        endpoints: Ok(counted(&[("web", &["web-0"])])),
        dependents: Ok(Dependents {
            by_owner: counted(&[("uid-of-owner", &["configmap shop/c"])]),
            ..Dependents::default()
        }),
        ..Given::default()
    };
    let told = prose::refusal(&delete("Namespace", &labelled("shop", ""), &world)).unwrap();
    assert!(told.contains("5 protected objects would go with it"), "{told}");
    for name in ["idle", "free", "unused", "alone"] {
        assert!(!told.contains(name), "{told}");
    }
    assert_eq!(*world.asked.lock().unwrap(), 4, "one question for all of a kind");
}

#[test]
fn what_is_in_a_namespace_counts_as_protected_where_nobody_can_tell() {
    let objects = vec![("Service", inside("web", &json!({})))];
    let world = Given {
        objects: Ok(objects),
        endpoints: Err(Unknown::new("its ready endpoints", "no")),
        ..Given::default()
    };
    let verdict = delete("Namespace", &labelled("shop", ""), &world);
    assert_eq!(verdict.code(), Some(Code::Forbidden));
    let told = prose::refusal(&verdict).unwrap();
    assert!(told.contains("and its ready endpoints could not be found out (no)"), "{told}");
}

#[test]
fn very_many_questions_are_not_asked() {
    let paths = BTreeMap::from([("v1".to_owned(), ".spec.replicas".to_owned())]);
    let objects = (0..1_000).map(|number| ("Widget", inside(&format!("w{number}"), &json!({})))).collect();
    let world = Given {
        objects: Ok(objects),
        scale: Ok(Some(Scale { paths })),
        parent: Ok(Some(json!({"apiVersion": "example.com/v1", "spec": {"replicas": 0}}))),
        ..Given::default()
    };
    let told = prose::refusal(&delete("Namespace", &labelled("shop", ""), &world)).unwrap();
    assert!(told.contains("968 protected objects would go with it"), "{told}");
    assert!(told.contains("there are too many such objects to ask"), "{told}");
}

#[test]
fn an_annotation_that_a_controller_copied_binds_no_controller() {
    // As a DaemonSet's controller makes a ControllerRevision.
    let fields = json!([{"manager": "kube-controller-manager", "fieldsV1": {"f:metadata": {
        "f:annotations": {format!("f:{ANNOTATION}"): {}}, "f:ownerReferences": {"k:{\"uid\":\"u\"}": {}}}}}]);
    let revision = json!({"metadata": {"name": "agent-1", "namespace": "shop", "uid": "r",
        "annotations": {ANNOTATION: "true"}, "managedFields": fields,
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u", "controller": true}]}});
    let user = "system:serviceaccount:kube-system:daemon-set-controller";
    allowed(&delete_as(user, "ControllerRevision", &revision.to_string(), &Given::default()));
    let world = Given { objects: Ok(vec![("ControllerRevision", revision.to_string())]), ..Given::default() };
    allowed(&delete("Namespace", &labelled("shop", ""), &world));
    // A person is asked about as for any other object.
    allowed(&delete("ControllerRevision", &revision.to_string(), &owning(Dependents::default())));
}
