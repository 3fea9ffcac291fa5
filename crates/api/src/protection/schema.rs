//! The `CustomResourceDefinition`, with the rules that keep nonsense out.

use serde_json::{Value, json};

use super::{GROUP, KIND, PLURAL, VERSION};

/// The definition as an object.
pub fn definition() -> Value {
    let column = |name: &str, kind: &str, path: &str, about: &str| json!({"name": name, "type": kind, "jsonPath": path, "description": about});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": KIND, "listKind": format!("{KIND}List"), "plural": PLURAL,
                "singular": KIND.to_lowercase(), "shortNames": ["rdp"], "categories": ["palisade"],
            },
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Mode", "string", ".spec.mode", "When it protects"),
                    column("Action", "string", ".spec.action", "What becomes of a deletion that it protects from"),
                    column("Enforced", "string", r#".status.conditions[?(@.type=="Enforced")].status"#,
                        "Whether the API server asks about all that it protects"),
                    column("Denied", "integer", ".status.denied", "Deletions that it refused"),
                    column("Age", "date", ".metadata.creationTimestamp", "Since when it is there"),
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "Protects objects from deletion, by kind, namespace, name and label.",
                    "required": ["spec"],
                    "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"},
                        "metadata": {"type": "object"}, "spec": spec(), "status": status()},
                }},
            }],
        },
    })
}

fn spec() -> Value {
    json!({
        "type": "object",
        "required": ["protectedResources"],
        "properties": {
            "protectedResources": {
                "type": "array", "minItems": 1, "maxItems": 128, "items": entry(),
                "description": "What is protected. An object is protected if one of the entries matches it.",
            },
            "mode": {
                "type": "string", "enum": ["Always", "Cascading"], "default": "Always",
                "description": "Always: never deleted. Cascading: not while something would go with it.",
            },
            "action": {
                "type": "string", "enum": ["Deny", "Warn", "Audit"], "default": "Deny",
                "description": "Deny refuses the deletion. Warn lets it pass with a warning. Audit lets it pass and records it.",
            },
            "message": {
                "type": "string", "maxLength": 512,
                "description": "Added to the refusal: whom to ask, for example.",
            },
            "exempt": exempt(),
        },
    })
}

fn entry() -> Value {
    json!({
        "type": "object",
        "required": ["resourceSelector"],
        "properties": {
            "resourceSelector": {
                "type": "array", "minItems": 1, "maxItems": 32, "items": selector(),
                "description": "Which kinds, and where. The entry matches if one of them does.",
            },
            "resourceNames": {
                "type": "array", "minItems": 1, "maxItems": 1024,
                "items": {"type": "string", "minLength": 1, "maxLength": 253},
                "description": "The names, besides the selectors' own. * stands for any text. Without any name: all.",
            },
        },
        "x-kubernetes-validations": [{
            "rule": "self.resourceSelector.all(s, s.kind != '*' || has(self.resourceNames) || \
                (has(s.name) && s.name != '*') || (has(s.namespace) && s.namespace != '*') || has(s.labelSelector) || \
                has(s.namespaceSelector))",
            "message": "kind \"*\" needs a name, a namespace or a label selector",
        }],
    })
}

fn selector() -> Value {
    json!({
        "type": "object",
        "required": ["kind"],
        "properties": {
            "apiVersion": {
                "type": "string", "maxLength": 317,
                "pattern": r"^(\*|v[0-9]+((alpha|beta)[0-9]+)?|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[a-z]([-a-z0-9]*[a-z0-9])?)$",
                "description": "GROUP/VERSION, or VERSION for the core group. It stands for the group in every version.",
            },
            "kind": {
                "type": "string", "minLength": 1, "maxLength": 63, "pattern": r"^(\*|[A-Za-z][A-Za-z0-9]*)$",
                "description": "The kind; \"*\" for every kind of the group, or of all groups without an apiVersion.",
            },
            "namespace": {
                "type": "string", "minLength": 1, "maxLength": 63, "pattern": r"^[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?$",
                "description": "The namespace; * stands for any text. Without it: every namespace.",
            },
            "name": {
                "type": "string", "minLength": 1, "maxLength": 253,
                "description": "The name; * stands for any text.",
            },
            "labelSelector": label_selector("Which labels the object has."),
            "namespaceSelector": label_selector("Which labels the object's namespace has."),
        },
        "x-kubernetes-validations": [{
            "rule": "has(self.apiVersion) && self.apiVersion != '*' || self.kind == '*'",
            "message": "apiVersion is needed, unless kind is \"*\"",
        }],
    })
}

fn label_selector(about: &str) -> Value {
    json!({
        "type": "object", "minProperties": 1, "description": about,
        "properties": {
            "matchLabels": {
                "type": "object", "minProperties": 1, "maxProperties": 32,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "matchExpressions": {
                "type": "array", "minItems": 1, "maxItems": 16,
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string", "minLength": 1, "maxLength": 317},
                        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                        "values": {"type": "array", "maxItems": 64, "items": {"type": "string", "maxLength": 63}},
                    },
                    "x-kubernetes-validations": [{
                        "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
                        "message": "In and NotIn need values; Exists and DoesNotExist take none",
                    }],
                },
            },
        },
    })
}

fn exempt() -> Value {
    let list = |about: &str| json!({"type": "array", "maxItems": 256, "items": {"type": "string", "minLength": 1, "maxLength": 512}, "description": about});
    json!({
        "type": "object",
        "description": "Whom it does not concern. An exemption covers the object's own deletion, not a cascade onto it.",
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

fn status() -> Value {
    let text = json!({"type": "string"});
    let count = json!({"type": "integer", "format": "int64"});
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": count, "rules": count, "denied": count, "warned": count, "audited": count,
            "kinds": {"type": "array", "items": text},
            "lastMatched": {"type": "string", "format": "date-time"},
            "conditions": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status"],
                    "properties": {"type": text, "status": text, "reason": text, "message": text,
                        "observedGeneration": count,
                        "lastTransitionTime": {"type": "string", "format": "date-time"}},
                },
            },
        },
    })
}
