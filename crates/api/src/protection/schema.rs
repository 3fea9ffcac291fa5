//! The `CustomResourceDefinition`, with the rules that keep nonsense out.

use serde_json::{Value, json};

use super::{GROUP, KIND, PLURAL, VERSION};
use crate::schema::{
    Definition, action, age, column, conditions, count, enforced, exempt, label_selector, moment, text,
};

/// The definition as an object.
pub fn definition() -> Value {
    let columns = vec![
        column("Mode", "string", ".spec.mode", "When it protects"),
        column("Action", "string", ".spec.action", "What becomes of a deletion that it protects from"),
        enforced("Whether the API server asks about all that it protects"),
        column("Denied", "integer", ".status.denied", "Deletions that it refused"),
        age(),
    ];
    Definition {
        group: GROUP,
        version: VERSION,
        kind: KIND,
        plural: PLURAL,
        short_name: "rdp",
        scope: "Cluster",
        about: "Protects objects from deletion, by kind, namespace, name and label.",
        columns,
        spec: spec(),
        status: status(),
    }
    .object()
}

fn spec() -> Value {
    json!({
        "type": "object",
        "description": "What is protected, and how.",
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
            "labelChanges": {
                "type": "string", "enum": ["Guard", "Ignore"], "default": "Guard",
                "description": "Guard: the action is also taken when a change of its labels would end an object's protection by a \
                    labelSelector. Ignore: labels may change freely.",
            },
            "action": action("Deny refuses the deletion. Warn lets it pass with a warning. Audit lets it pass and records it."),
            "message": {
                "type": "string", "maxLength": 512,
                "description": "Added to the refusal: whom to ask, for example.",
            },
            "exempt": exempt("Whom it does not concern. An exemption covers the object's own deletion, not a cascade onto it."),
        },
    })
}

/// Whether a selector `s` is for some namespaces, or for some labels.
const SOMEWHERE: &str =
    "(has(s.namespace) && s.namespace != '*') || has(s.labelSelector) || has(s.namespaceSelector)";

/// Names in which no `*` follows another: `**` means the same as `*`.
const NAME_PATTERN: &str = r"^\*?([^*]+\*?)*$";

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
                "items": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": NAME_PATTERN},
                "description": "The names, besides the selectors' own. * stands for any text. Without any name: all.",
            },
            "except": {
                "type": "array", "minItems": 1, "maxItems": 32, "items": selector(),
                "description": "What the entry is not for, in the form of resourceSelector. An object that one of these matches is \
                    not protected by the entry.",
                "x-kubernetes-validations": [{
                    "rule": format!("self.all(s, s.kind != '*' || (has(s.name) && s.name != '*') || {SOMEWHERE})"),
                    "message": "an exception of kind \"*\" needs a name, a namespace or a label selector: without any, the entry \
                        would protect nothing",
                }],
            },
        },
        "x-kubernetes-validations": [{
            "rule": format!(
                "has(self.resourceNames) && !('*' in self.resourceNames) \
                 ? self.resourceSelector.all(s, s.kind != '*' || !has(s.name) || s.name != '*' || {SOMEWHERE}) \
                 : self.resourceSelector.all(s, s.kind != '*' || \
                 (!has(self.resourceNames) && has(s.name) && s.name != '*') || {SOMEWHERE})"
            ),
            "message": "kind \"*\" needs a name, a namespace or a label selector: without any, nothing in the cluster could \
                be deleted any more",
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
                "allOf": [{"pattern": NAME_PATTERN}],
                "description": "The namespace; * stands for any text. Without it: every namespace.",
            },
            "name": {
                "type": "string", "minLength": 1, "maxLength": 253, "pattern": NAME_PATTERN,
                "description": "The name; * stands for any text.",
            },
            "labelSelector": label_selector("Which labels the object has.", false),
            "namespaceSelector": label_selector("Which labels the object's namespace has.", false),
        },
        "x-kubernetes-validations": [{
            "rule": "has(self.apiVersion) && self.apiVersion != '*' || self.kind == '*'",
            "message": "apiVersion is needed, unless kind is \"*\"",
        }],
    })
}

fn status() -> Value {
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": count(), "rules": count(), "denied": count(), "warned": count(), "audited": count(),
            "kinds": {"type": "array", "items": text()},
            "lastMatched": moment(),
            "conditions": conditions(),
        },
    })
}
