//! A review that names a member twice is malformed, whichever of the two would be read.

use palisade_admission::{BadReview, read};
use rstest::rstest;
use serde_json::json;

/// A review in which every member that a guard reads is there.
fn review() -> String {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5", "operation": "DELETE", "name": "web", "namespace": "shop", "subResource": "",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "userInfo": {"username": "jane", "groups": ["dev"]}, "dryRun": false, "object": null,
        "options": {"propagationPolicy": "Orphan", "orphanDependents": true},
        "oldObject": {"spec": {"replicas": 1}, "status": {"phase": "Running"}, "metadata": {
            "deletionTimestamp": null, "deletionGracePeriodSeconds": 1, "resourceVersion": "7", "finalizers": ["a/b"],
            "labels": {"policy.kruise.io/delete-protection": "Always", "app": "web"},
            "annotations": {"policy.kruise.io/disable-cascading-deletion": "true"},
            "ownerReferences": [{"blockOwnerDeletion": true, "controller": true}],
        }},
    }})
    .to_string()
}

#[test]
fn without_a_duplicate_it_is_read() {
    // The object has no name yet, which is what the reader complains about last.
    let why = read(review().as_bytes()).unwrap_err().to_string();
    assert!(why.contains("no name"), "{why}");
}

#[rstest]
fn a_member_that_is_named_twice_is_malformed(
    #[values(
        "apiVersion",
        "request",
        "operation",
        "subResource",
        "resource",
        "username",
        "groups",
        "userInfo",
        "dryRun",
        "object",
        "oldObject",
        "options",
        "propagationPolicy",
        "orphanDependents",
        "metadata",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "resourceVersion",
        "finalizers",
        "labels",
        "policy.kruise.io/delete-protection",
        "app",
        "annotations",
        "policy.kruise.io/disable-cascading-deletion",
        "ownerReferences",
        "controller",
        "spec",
        "status"
    )]
    key: &str,
    #[values(false, true)] escaped: bool,
) {
    let text = review();
    let (before, after) = text.split_once(&format!("\"{key}\":")).unwrap();
    let first = if escaped { format!("\\u{:04x}{}", key.as_bytes()[0], &key[1..]) } else { key.to_owned() };
    // As large as the value that follows, and of its type, so that it is the name alone that is wrong.
    let value = value_at(after);
    let doubled = format!("{before}\"{first}\":{value},\"{key}\":{after}");
    let error = read(doubled.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("named twice"), "{error}: {doubled}");
    if key != "request" {
        assert!(matches!(&error, BadReview::Undecidable { uid, .. } if uid == "705ab4f5"), "{error:?}");
    }
}

#[test]
fn nobody_is_answered_by_one_of_two_uids() {
    let text = review().replace("\"uid\":", "\"uid\":\"1\",\"uid\":");
    assert!(matches!(read(text.as_bytes()), Err(BadReview::Unreadable(_))));
}

fn value_at(text: &str) -> String {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
    values.next().expect("a value").expect("JSON").to_string()
}
