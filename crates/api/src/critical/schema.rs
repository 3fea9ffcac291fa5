//! The `CustomResourceDefinition`, with the rules that keep nonsense out.

use serde_json::{Value, json};

use super::{GROUP, KIND, MOST_CRITERIA, PLURAL, VERSION};
use crate::schema::{
    Definition, NAMESPACE, SUBDOMAIN, age, column, conditions, count, enforced, moment, text, wide,
};

/// The definition as an object.
pub fn definition() -> Value {
    let columns = vec![
        column("Provider", "string", ".status.provider", "What outlives the others"),
        column(
            "Satisfied",
            "string",
            r#".status.conditions[?(@.type=="Satisfied")].status"#,
            "Whether nothing depends on it any more",
        ),
        column("Blocking", "integer", ".status.blocking", "How many objects are in the way"),
        enforced("Whether the API server asks about deletions of the provider"),
        age(),
        wide(column("Kind", "string", ".spec.provider.resource", "The resource of the provider")),
        wide(column(
            "Present",
            "string",
            r#".status.conditions[?(@.type=="ProviderPresent")].status"#,
            "Whether the provider is there",
        )),
        wide(column(
            "Mode",
            "string",
            ".spec.deletionMode",
            "What becomes of the provider while something is in the way",
        )),
    ];
    Definition {
        group: GROUP,
        version: VERSION,
        kind: KIND,
        plural: PLURAL,
        short_name: "crit",
        scope: "Cluster",
        about: "What others depend on goes last: a provider stays until its criteria are met.",
        columns,
        spec: spec(),
        status: status(),
    }
    .object()
}

fn spec() -> Value {
    json!({
        "type": "object",
        "description": "What goes last, and what must be over before.",
        "required": ["provider", "criteria"],
        "properties": {
            "provider": {
                "type": "object",
                "description": "What goes last: a workload, such as a Deployment.",
                "required": ["resource", "namespace", "name"],
                "properties": {"group": group(), "resource": resource(),
                    "namespace": name(63, NAMESPACE, "The namespace that it is in."), "name": name(253, SUBDOMAIN, "Its name.")},
            },
            "criteria": {
                "type": "array", "minItems": 1, "maxItems": MOST_CRITERIA, "items": criterion(),
                "description": "All of them must be met before the provider may be deleted.",
            },
            "deletionMode": {
                "type": "string", "enum": ["Ordered", "BestEffort"], "default": "Ordered",
                "description": "Ordered keeps the provider until all criteria are met. BestEffort lets it go, and tells what it \
                    leaves behind; it may be set at any time.",
            },
        },
    })
}

fn criterion() -> Value {
    json!({
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"type": "string", "enum": ["Finalizer", "SpecificResource"],
                "description": "Finalizer is met when no object of a resource, in any namespace, carries a finalizer. \
                    SpecificResource is met when an object is gone."},
            "finalizer": {
                "type": "object",
                "required": ["resource", "finalizerName"],
                "properties": {"group": group(), "resource": resource(),
                    "finalizerName": {"type": "string", "minLength": 1, "maxLength": 317,
                        "description": "The finalizer, as it stands in metadata.finalizers."}},
            },
            "specificResource": {
                "type": "object",
                "required": ["resource", "name"],
                "properties": {"group": group(), "resource": resource(), "name": name(253, "^[^/%]+$", "Its name."),
                    "namespace": {"type": "string", "maxLength": 63, "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$",
                        "description": "The namespace that it is in. Without one, where its resource has namespaces: any."}},
            },
        },
        "x-kubernetes-validations": [{
            "rule": "self.type == 'Finalizer' ? has(self.finalizer) && !has(self.specificResource) \
                : has(self.specificResource) && !has(self.finalizer)",
            "message": "type Finalizer needs finalizer and nothing else; type SpecificResource needs specificResource and nothing else",
        }],
    })
}

fn group() -> Value {
    json!({"type": "string", "maxLength": 253, "pattern": "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$",
        "description": "The API group, without a version; empty for Kubernetes' core."})
}

fn resource() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[A-Za-z0-9.-]+$",
        "description": "The resource, by its plural or its kind: deployments or Deployment."})
}

fn name(longest: usize, pattern: &str, about: &str) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": longest, "pattern": pattern, "description": about})
}

fn status() -> Value {
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": count(),
            "provider": text(),
            "providerUID": {"type": "string", "description": "The instance of the provider that is protected now."},
            "blocking": {"type": "integer", "format": "int64", "description": "How many objects are in the way."},
            "criteria": {"type": "array", "items": {
                "type": "object",
                "properties": {
                    "type": text(), "resource": text(), "finalizerName": text(),
                    "state": {"type": "string", "enum": ["Met", "Unmet", "Unknown"]},
                    "objects": {"type": "integer", "format": "int64", "description": "How many objects are in its way."},
                    "names": {"type": "array", "items": text(), "description": "What a few of them are called."},
                    "message": text(),
                    "lastCheckTime": moment(),
                },
            }},
            "conditions": conditions(),
        },
    })
}
