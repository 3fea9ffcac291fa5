//! What the `CustomResourceDefinition`s of all our kinds have in common.

use serde_json::{Value, json};

/// A kind of ours, in one version.
pub(crate) struct Definition<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) plural: &'a str,
    pub(crate) short_name: &'a str,
    pub(crate) scope: &'a str,
    pub(crate) about: &'a str,
    pub(crate) columns: Vec<Value>,
    pub(crate) spec: Value,
    pub(crate) status: Value,
}

impl Definition<'_> {
    /// The definition as an object.
    pub(crate) fn object(self) -> Value {
        let Self { group, version, kind, plural, short_name, scope, about, columns, spec, status } = self;
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {
                "group": group,
                "scope": scope,
                "names": {
                    "kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                    "singular": kind.to_lowercase(), "shortNames": [short_name], "categories": ["palisade"],
                },
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": {
                        "type": "object",
                        "description": about,
                        "required": ["spec"],
                        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"},
                            "metadata": {"type": "object"}, "spec": spec, "status": status},
                    }},
                }],
            },
        })
    }
}

/// A column of `kubectl get`.
pub(crate) fn column(name: &str, kind: &str, path: &str, about: &str) -> Value {
    json!({"name": name, "type": kind, "jsonPath": path, "description": about})
}

/// One of `kubectl get -o wide`.
pub(crate) fn wide(mut column: Value) -> Value {
    column["priority"] = json!(1);
    column
}

/// The last column that is always shown.
pub(crate) fn age() -> Value {
    column("Age", "date", ".metadata.creationTimestamp", "Since when it is there")
}

/// Whether the API server asks about what an object concerns.
pub(crate) fn enforced(about: &str) -> Value {
    column("Enforced", "string", r#".status.conditions[?(@.type=="Enforced")].status"#, about)
}

pub(crate) fn text() -> Value {
    json!({"type": "string"})
}

pub(crate) fn count() -> Value {
    json!({"type": "integer", "format": "int64"})
}

pub(crate) fn moment() -> Value {
    json!({"type": "string", "format": "date-time"})
}

pub(crate) fn conditions() -> Value {
    json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status"],
            "properties": {"type": text(), "status": text(), "reason": text(), "message": text(),
                "observedGeneration": count(), "lastTransitionTime": moment()},
        },
    })
}

/// What the name of a namespace looks like.
pub(crate) const NAMESPACE: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// What the name of most objects looks like.
pub(crate) const SUBDOMAIN: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$";
/// What the key of a label or an annotation looks like.
pub(crate) const LABEL_KEY: &str =
    "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$";

fn label_value() -> Value {
    json!({"type": "string", "maxLength": 63, "pattern": "^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$"})
}

/// A label selector that selects by something. `value` beside `values` is a shorthand, where it is taken.
pub(crate) fn label_selector(about: &str, shorthand: bool) -> Value {
    let mut properties = json!({
        "key": {"type": "string", "minLength": 1, "maxLength": 317, "pattern": LABEL_KEY},
        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
        "values": {"type": "array", "maxItems": 64, "items": label_value()},
    });
    let (mut given, mut rules) = ("(has(self.values) && size(self.values) > 0)", Vec::new());
    if shorthand {
        properties["value"] = label_value();
        properties["value"]["description"] = json!("Short for a single one of values.");
        given = "(has(self.value) || (has(self.values) && size(self.values) > 0))";
        rules.push(json!({"rule": "!has(self.value) || !has(self.values)",
            "message": "value and values are both given: give one of them"}));
    }
    rules.push(json!({"rule": format!("(self.operator in ['In', 'NotIn']) == {given}"),
        "message": "In and NotIn need values; Exists and DoesNotExist take none"}));
    json!({
        "type": "object", "minProperties": 1, "description": about,
        "properties": {
            "matchLabels": {
                "type": "object", "minProperties": 1, "maxProperties": 32,
                "additionalProperties": label_value(),
            },
            "matchExpressions": {
                "type": "array", "minItems": 1, "maxItems": 16,
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": properties,
                    "x-kubernetes-validations": rules,
                },
            },
        },
    })
}

pub(crate) fn action(about: &str) -> Value {
    json!({"type": "string", "enum": ["Deny", "Warn", "Audit"], "default": "Deny", "description": about})
}

pub(crate) fn exempt(about: &str) -> Value {
    let list = |about: &str| json!({"type": "array", "maxItems": 256, "items": {"type": "string", "minLength": 1, "maxLength": 512}, "description": about});
    json!({
        "type": "object",
        "description": about,
        "properties": {
            "users": list("User names."),
            "groups": list("Groups."),
            "serviceAccounts": {
                "type": "array", "maxItems": 256,
                "items": {
                    "type": "object",
                    "required": ["namespace", "name"],
                    "properties": {
                        "namespace": {"type": "string", "minLength": 1, "maxLength": 63},
                        "name": {"type": "string", "minLength": 1, "maxLength": 253},
                    },
                },
            },
        },
    })
}
