//! The `CustomResourceDefinition`, with the rules that keep nonsense out.

use serde_json::{Value, json};

use super::{GROUP, KIND, PLURAL, VERSION};
use crate::schema::{
    Definition, LABEL_KEY, age, column, conditions, count, enforced, exempt, label_selector, moment, text,
    wide,
};

/// The definition as an object.
pub fn definition() -> Value {
    let columns = vec![
        column("Parent", "string", ".spec.parent.kind", "The kind whose operator is meant"),
        column("Kinds", "string", ".status.resolved", "How many of the kinds are served"),
        enforced("Whether the API server asks about changes of the components"),
        column("Refused", "integer", ".status.refused", "Changes that were refused"),
        age(),
        wide(column("Parents", "integer", ".status.parents", "How many parents there are")),
        wide(column("Last-Refused", "date", ".status.lastRefused", "When a change was last refused")),
    ];
    Definition {
        group: GROUP,
        version: VERSION,
        kind: KIND,
        plural: PLURAL,
        short_name: "cprot",
        scope: "Cluster",
        about: "What an operator manages changes by its hand alone.",
        columns,
        spec: spec(),
        status: status(),
    }
    .object()
}

fn spec() -> Value {
    json!({
        "type": "object",
        "description": "Whose components are protected, what they are, and who may change them.",
        "required": ["parent", "kinds", "operators"],
        "properties": {
            "parent": kind("What the operator reconciles. Components belong to one of it, in their own namespace."),
            "kinds": {"type": "array", "minItems": 1, "maxItems": 64, "items": kind("A kind, in every version of its group."),
                "description": "What is protected. A workload's scale is included."},
            "selector": label_selector("Which labels components have.", false),
            "ownedByParent": {"type": "boolean", "description": "Components are what has an owner reference to a parent."},
            "parentLabel": {"type": "string", "maxLength": 317, "pattern": LABEL_KEY,
                "description": "The label that holds the parent's name. Without it, the owner reference tells."},
            "operators": users("Who may change components at any time: user names, such as system:serviceaccount:NAMESPACE:NAME.", 1),
            "exempt": exempt("Who may change components while nothing is in progress, and delete them while the parent is being deleted."),
            "disableAnnotation": {"type": "string", "maxLength": 317, "pattern": LABEL_KEY,
                "description": "An annotation on a parent that switches the protection of its components off, whatever its value."},
            "reconciling": states("When the parent is being reconciled: all of these hold. Then nobody but the operators may change anything."),
            "deleting": states("When the parent is being deleted, besides by a deletionTimestamp: all of these hold."),
            "freeUpdates": {"type": "array", "maxItems": 16,
                "description": "Who may update which of the kinds at any time.",
                "items": {
                    "type": "object", "required": ["kinds", "users"],
                    "properties": {
                        "kinds": {"type": "array", "minItems": 1, "maxItems": 64, "items": kind("A kind, in every version of its group.")},
                        "users": users("User names; {namespace} stands for the component's namespace, {parent} for its parent's name.", 1),
                    },
                }},
        },
        "x-kubernetes-validations": [{
            "rule": "has(self.selector) != (has(self.ownedByParent) && self.ownedByParent)",
            "message": "give exactly one of selector and ownedByParent: true",
        }],
    })
}

fn kind(about: &str) -> Value {
    json!({
        "type": "object", "description": about, "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 317,
                "pattern": r"^(v[0-9]+((alpha|beta)[0-9]+)?|[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[a-z]([-a-z0-9]*[a-z0-9])?)$"},
            "kind": {"type": "string", "maxLength": 63, "pattern": "^[A-Za-z][A-Za-z0-9]*$"},
        },
    })
}

fn users(about: &str, least: usize) -> Value {
    json!({"type": "array", "minItems": least, "maxItems": 256, "description": about,
        "items": {"type": "string", "minLength": 1, "maxLength": 512, "pattern": "^[^\\x00-\\x1f]+$"}})
}

fn states(about: &str) -> Value {
    json!({
        "type": "array", "maxItems": 16, "description": about,
        "items": {
            "type": "object", "required": ["path", "values"],
            "properties": {
                "path": {"type": "string", "minLength": 2, "maxLength": 512,
                    "description": "A field of the parent: .status.phase, or .status.conditions[?(@.type==\"Ready\")].status."},
                "values": {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string", "maxLength": 512},
                    "description": "One of these."},
            },
        },
    })
}

fn status() -> Value {
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": count(),
            "kinds": {"type": "array", "items": text()},
            "resolved": text(),
            "parents": count(),
            "refused": count(),
            "lastRefused": moment(),
            "conditions": conditions(),
        },
    })
}
