//! The `CustomResourceDefinition`, with the rules that keep nonsense out.
//!
//! The shorthand `selector: {app: web}` can't be said in a schema; the webhook checks selectors.

use serde_json::{Value, json};

use super::{GROUP, KIND, PLURAL, VERSION};
use crate::schema::{Definition, age, column, conditions, count, enforced, text, wide};

/// The definition as an object.
pub fn definition() -> Value {
    let columns = vec![
        column(
            "Allowed",
            "integer",
            ".status.unavailableAllowed",
            "How many more pods may become unavailable now",
        ),
        column("Available", "integer", ".status.currentAvailable", "How many pods are available"),
        column("Desired", "integer", ".status.desiredAvailable", "How many pods must stay available"),
        column("Total", "integer", ".status.totalReplicas", "How many pods are wanted"),
        column(
            "Generated",
            "string",
            r".metadata.labels.palisade\.dev/generated",
            "Whether annotations of its workload asked for it",
        ),
        enforced("Whether the API server asks about its pods"),
        age(),
        wide(column("Max-Unavailable", "string", ".spec.maxUnavailable", "How many may be unavailable")),
        wide(column("Min-Available", "string", ".spec.minAvailable", "How many must stay available")),
        wide(column(
            "By-Administrator",
            "boolean",
            ".status.writtenBy.administrator",
            "Whether an administrator wrote it; another one lets at least one pod go",
        )),
    ];
    Definition {
        group: GROUP,
        version: VERSION,
        kind: KIND,
        plural: PLURAL,
        short_name: "pub",
        scope: "Namespaced",
        about: "How many pods of an application may be unavailable at a time, whoever takes them down: by deletion, \
            eviction, update in place, or a readiness gate.",
        columns,
        spec: spec(),
        status: status(),
    }
    .object()
}

fn spec() -> Value {
    json!({
        "type": "object",
        "description": "Which pods it is for, and how many of them may be unavailable.",
        "properties": {
            "selector": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "description": "Which pods of the namespace it is for: a label selector, or just labels: {app: web}. \
                    An empty one is for all of them.",
            },
            "targetRef": {
                "type": "object",
                "description": "The workload whose pods it is for.",
                "required": ["apiVersion", "kind", "name"],
                "properties": {
                    "apiVersion": {
                        "type": "string", "maxLength": 317,
                        "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)(/[a-z]([-a-z0-9]*[a-z0-9])?)?$",
                        "description": "GROUP/VERSION, GROUP, or VERSION for the core group. It stands for the group in every version.",
                    },
                    "kind": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[A-Za-z][A-Za-z0-9]*$"},
                    "name": {"type": "string", "minLength": 1, "maxLength": 253},
                },
            },
            "maxUnavailable": amount("How many of its pods may be unavailable: a number, or a percentage, rounded up. \
                Of a single replica, no percentage below 100% allows it."),
            "minAvailable": amount("How many of its pods must stay available: a number, or a percentage, rounded up. \
                Never more than are wanted."),
        },
        "x-kubernetes-validations": [
            {"rule": "has(self.selector) != has(self.targetRef)",
             "message": "exactly one of selector and targetRef must be given"},
            {"rule": "has(self.maxUnavailable) != has(self.minAvailable)",
             "message": "exactly one of maxUnavailable and minAvailable must be given"},
        ],
    })
}

fn amount(about: &str) -> Value {
    json!({
        "x-kubernetes-int-or-string": true,
        "description": about,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 0 && self <= 2147483647 : self.matches('^(100|0?[0-9]{1,2})%$')",
            "message": "must be a number of 0 or more, or a percentage from 0% to 100%",
        }],
    })
}

fn status() -> Value {
    let reservations = |about: &str| json!({"type": "object", "additionalProperties": {"type": "string"}, "description": about});
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": count(),
            "writtenBy": {
                "type": "object", "required": ["generation", "administrator"],
                "description": "Who wrote it. A budget that no administrator wrote lets at least one pod go, whatever its limit: \
                    see --generated-budget-min-unavailable of Palisade.",
                "properties": {
                    "generation": count(),
                    "administrator": {"type": "boolean",
                        "description": "Whether whoever wrote this generation may write budgets in all namespaces."},
                },
            },
            "unavailableAllowed": count(), "currentAvailable": count(), "desiredAvailable": count(), "totalReplicas": count(),
            "deletedPods": reservations("Pods whose deletion or eviction was admitted and not seen yet, by uid."),
            "unavailablePods": reservations("Pods whose update was admitted and not seen yet, by uid."),
            "reservedAt": reservations("When each of them was last admitted."),
            "tentative": {"type": "array", "x-kubernetes-list-type": "set", "items": text(),
                "description": "Those that whoever asked may still give back, because somebody else may refuse them."},
            "livedOn": reservations("Pods whose loss was admitted and nothing came of, and when that was seen: others come first."),
            "observedPodsResourceVersion": text(),
            "conditions": conditions(),
        },
    })
}
