//! What Palisade must be allowed to do, and the objects that it is installed with.
//!
//! The one source of the RBAC that we ship: `palisade manifests` prints it.

use palisade_api::search_groups::{ALWAYS_READ, SearchGroups};
use palisade_api::{budget, components, critical, flow, names, protection};
use serde_json::{Value, json};

/// Everything that must be there before `palisade run`: its namespace, its account and its rights.
///
/// Of `groups` everything may be listed and watched.
pub fn manifests(namespace: &str, groups: &SearchGroups) -> Vec<Value> {
    let subject = json!([{"kind": "ServiceAccount", "name": names::PALISADE, "namespace": namespace}]);
    let rbac = "rbac.authorization.k8s.io";
    let object = |kind: &str, api: &str, name: &str, namespaced: bool, body: Value| {
        let mut metadata = json!({"name": name, "labels": {names::MANAGED_BY.0: names::MANAGED_BY.1}});
        if namespaced {
            metadata["namespace"] = json!(namespace);
        }
        let mut object = json!({"apiVersion": api, "kind": kind, "metadata": metadata});
        if let (Some(object), Value::Object(body)) = (object.as_object_mut(), body) {
            object.extend(body);
        }
        object
    };
    let rbac_v1 = format!("{rbac}/v1");
    let role = |kind: &str, name: &str, rules: Value| {
        object(kind, &rbac_v1, name, kind == "Role", json!({"rules": rules}))
    };
    let binding = |kind: &str, name: &str| {
        let role = kind.trim_end_matches("Binding");
        let body = json!({"roleRef": {"apiGroup": rbac, "kind": role, "name": name}, "subjects": subject});
        object(kind, &rbac_v1, name, role == "Role", body)
    };
    vec![
        object("Namespace", "v1", namespace, false, json!({})),
        object("ServiceAccount", "v1", names::PALISADE, true, json!({})),
        role("Role", names::PALISADE, own_rules()),
        binding("RoleBinding", names::PALISADE),
        role("Role", names::SETTINGS, settings_reader_rules()),
        everybody(binding("RoleBinding", names::SETTINGS)),
        role("ClusterRole", names::PALISADE, cluster_rules()),
        binding("ClusterRoleBinding", names::PALISADE),
        role("ClusterRole", READER, reader_rules(groups)),
        binding("ClusterRoleBinding", READER),
        user_role("palisade-view", &["view", "edit", "admin"], &viewer_rules()),
        user_role("palisade-edit", &["edit", "admin"], &editor_rules()),
        protection::definition(),
        budget::definition(),
        flow::definition(),
        critical::definition(),
        components::definition(),
    ]
}

const READER: &str = "palisade-reader";

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

fn rule_for(group: &str, resource: &str, name: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": verbs})
}

/// In its own namespace: the Lease, the Secret, and the settings that it publishes.
fn own_rules() -> Value {
    json!([
        rule("coordination.k8s.io", "leases", &["create"]),
        rule_for("coordination.k8s.io", "leases", names::PALISADE, &["get", "update"]),
        rule("", "configmaps", &["create"]),
        rule_for("", "configmaps", names::SETTINGS, &["get", "update"]),
        rule("", "secrets", &["create"]),
        rule_for("", "secrets", names::TLS_SECRET, &["get", "list", "watch", "update"]),
    ])
}

/// What the replicas decide by, so that `palisade why` answers as they do, whoever asks.
fn settings_reader_rules() -> Value {
    json!([rule_for("", "configmaps", names::SETTINGS, &["get"])])
}

/// A binding for everybody whom the API server knows, in place of our account.
fn everybody(mut binding: Value) -> Value {
    binding["subjects"] =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]);
    binding
}

/// Everywhere: its registration, and what `Cascading` and an eviction need to know.
fn cluster_rules() -> Value {
    let group = "admissionregistration.k8s.io";
    let configurations = "validatingwebhookconfigurations";
    let mut rules = vec![
        rule(group, configurations, &["create"]),
        rule_for(
            group,
            configurations,
            names::PALISADE,
            &["get", "list", "watch", "update", "patch", "delete"],
        ),
        rule("", "pods", &["get", "list", "watch"]),
        rule("", "persistentvolumeclaims", &["list"]),
        rule("discovery.k8s.io", "endpointslices", &["list"]),
        rule("", "namespaces", &["get", "list", "watch"]),
        rule("apiextensions.k8s.io", "customresourcedefinitions", &["get", "list", "watch"]),
        rule("apiregistration.k8s.io", "apiservices", &["list", "watch"]),
        rule(protection::GROUP, protection::PLURAL, &["get", "list", "watch"]),
        rule(protection::GROUP, &format!("{}/status", protection::PLURAL), &["update"]),
        rule(budget::GROUP, budget::PLURAL, &["get", "list", "watch", "create", "patch", "delete"]),
        rule(budget::GROUP, &format!("{}/status", budget::PLURAL), &["update"]),
        rule(flow::GROUP, flow::PLURAL, &["get", "list", "watch"]),
        rule(flow::GROUP, &format!("{}/status", flow::PLURAL), &["update"]),
        rule(critical::GROUP, critical::PLURAL, &["get", "list", "watch"]),
        rule(critical::GROUP, &format!("{}/status", critical::PLURAL), &["update"]),
        rule(components::GROUP, components::PLURAL, &["get", "list", "watch"]),
        rule(components::GROUP, &format!("{}/status", components::PLURAL), &["update"]),
        rule("policy", "poddisruptionbudgets", &["get", "list", "watch", "create", "patch", "delete"]),
        rule("events.k8s.io", "events", &["create", "patch"]),
    ];
    // Who owns pods, and how many it wants.
    rules.extend(ALWAYS_READ.iter().map(|(group, _, plural)| rule(group, plural, &["list", "watch"])));
    Value::Array(rules)
}

/// Whether a `CustomResourceDefinition` still has custom resources, and whether a Namespace holds something
/// that is protected. With `--search-groups` only those groups, and what is in others is not looked at. What is to be
/// looked at and may not be listed is refused, never let go.
///
/// There is no `get`: on every kind it would include subresources such as `nodes/proxy`, which is a shell on every
/// node. One object of any kind is read by a `list` of its name.
fn reader_rules(groups: &SearchGroups) -> Value {
    let groups = groups.named().unwrap_or_else(|| vec!["*"]);
    json!([{"apiGroups": groups, "resources": ["*"], "verbs": ["list", "watch"]}])
}

/// The policies, for who may view. Those that belong to no namespace are read only by who is bound in the whole cluster.
fn viewer_rules() -> Value {
    let read = ["get", "list", "watch"];
    json!([
        rule(budget::GROUP, budget::PLURAL, &read),
        rule(flow::GROUP, flow::PLURAL, &read),
        rule(protection::GROUP, protection::PLURAL, &read),
        rule(critical::GROUP, critical::PLURAL, &read),
        rule(components::GROUP, components::PLURAL, &read),
    ])
}

/// The budgets of a namespace, for who may edit it. The others are the administrator's, and a status is nobody's but
/// ours.
fn editor_rules() -> Value {
    let write = ["create", "update", "patch", "delete", "deletecollection"];
    json!([rule(budget::GROUP, budget::PLURAL, &write)])
}

/// A role that Kubernetes adds to its own roles for people.
fn user_role(name: &str, to: &[&str], rules: &Value) -> Value {
    let mut labels = json!({names::MANAGED_BY.0: names::MANAGED_BY.1});
    for role in to {
        labels[format!("rbac.authorization.k8s.io/aggregate-to-{role}")] = json!("true");
    }
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels}, "rules": rules})
}
