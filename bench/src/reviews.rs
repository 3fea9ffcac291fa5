//! Reviews of about a size, shaped as an API server writes them.

use serde_json::json;

/// The sizes that are measured: a small object, one with a usual history, and a large one.
pub(crate) const SIZES: [(usize, &str); 3] = [(1 << 10, "1 kB"), (12 << 10, "12 kB"), (100 << 10, "100 kB")];

/// What becomes of a review.
#[derive(Clone, Copy)]
pub(crate) enum Answered {
    Allowed,
    Refused,
}

impl Answered {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
        }
    }
}

/// A DELETE of a Deployment that carries `Cascading`, scaled to what it takes to be answered so.
pub(crate) fn review(size: usize, answered: Answered) -> Vec<u8> {
    let replicas = match answered {
        Answered::Allowed => 0,
        Answered::Refused => 3,
    };
    let mut review = json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "requestKind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "requestResource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "name": "web",
            "namespace": "shop",
            "operation": "DELETE",
            "userInfo": {"username": "jane", "groups": ["developers", "system:authenticated"]},
            "object": null,
            "oldObject": {
                "kind": "Deployment",
                "apiVersion": "apps/v1",
                "metadata": {
                    "name": "web", "namespace": "shop", "uid": "8e6f0a4e-7a52-4c1c-9a55-d8d3e0a7c0a1",
                    "resourceVersion": "1234567", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
                    "labels": {"app": "web", "policy.kruise.io/delete-protection": "Cascading"}, "annotations": {}, "managedFields": [],
                },
                "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                    "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}},
                "status": {"replicas": 3, "readyReplicas": 3},
            },
            "dryRun": false,
            "options": {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "propagationPolicy": "Background"},
        },
    });
    let object = &mut review["request"]["oldObject"];
    // What objects are made of: field ownership, a last-applied configuration, containers.
    let mut number = 0;
    while object.to_string().len() + 500 < size {
        let managed = json!({"manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "apps/v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {}}},
                "f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
                    format!("k:{{\"name\":\"c{number}\"}}"): {".": {}, "f:image": {}, "f:env": {}}}}}}}});
        let container = json!({"name": format!("c{number}"), "image": "registry.example.com/team/app:v1.2.3",
            "env": [{"name": "GREETING", "value": "hello, world"}, {"name": "LEVEL", "value": "info"}],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}, "terminationMessagePath": "/dev/termination-log"});
        if let Some(list) = object["metadata"]["managedFields"].as_array_mut() {
            list.push(managed);
        }
        if let Some(list) = object["spec"]["template"]["spec"]["containers"].as_array_mut() {
            list.push(container);
        }
        number += 1;
        if number % 4 == 1 {
            let applied = object["spec"].to_string();
            object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
                applied.chars().take(size / 4).collect::<String>().into();
        }
    }
    review.to_string().into_bytes()
}
