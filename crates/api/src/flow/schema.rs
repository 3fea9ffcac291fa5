//! The `CustomResourceDefinition`, with the rules that keep nonsense out.

use serde_json::{Value, json};

use super::{GROUP, HIGHEST_LIMIT, KIND, MOST_RULES, PLURAL, VERSION};
use crate::schema::{
    Definition, action, age, column, conditions, count, enforced, exempt, label_selector, moment, text, wide,
};

/// What Go and CEL take for a duration, without a sign.
const DURATION: &str = "^(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$";

/// The definition as an object.
pub fn definition() -> Value {
    let columns = vec![
        column(
            "Used",
            "string",
            ".status.used",
            "Of the rule with the least left: how many pods were deleted, of how many",
        ),
        column("Interval", "string", ".status.interval", "The interval of that rule"),
        column(
            "Refused-1h",
            "integer",
            ".status.refusedLastHour",
            "Deletions beyond a limit in the last hour",
        ),
        column("Action", "string", ".spec.action", "What becomes of a deletion beyond a limit"),
        enforced("Whether the API server asks about deletions of pods"),
        age(),
        wide(column(
            "Tripped",
            "string",
            r#".status.conditions[?(@.type=="Tripped")].status"#,
            "Whether deletions are beyond a limit now",
        )),
    ];
    Definition {
        group: GROUP,
        version: VERSION,
        kind: KIND,
        plural: PLURAL,
        short_name: "pdfc",
        scope: "Cluster",
        about: "How many pods of the cluster may be deleted or evicted in a time, whoever asks.",
        columns,
        spec: spec(),
        status: status(),
    }
    .object()
}

fn spec() -> Value {
    json!({
        "type": "object",
        "description": "How many pods may be deleted in which time, and whom that concerns.",
        "required": ["limitRules"],
        "properties": {
            "limitRules": {
                "type": "array", "minItems": 1, "maxItems": MOST_RULES, "items": rule(),
                "description": "All of them must agree to a deletion.",
                "x-kubernetes-validations": [{
                    "rule": format!("self.all(a, self.exists_one(b, a.interval == b.interval || a.interval.matches('{DURATION}') \
                        && b.interval.matches('{DURATION}') && duration(a.interval) == duration(b.interval)))"),
                    "message": "two rules for the same interval contradict each other",
                }],
            },
            "whiteListSelector": label_selector("Pods that are neither counted nor refused.", true),
            "namespaceSelector": namespace_selector(),
            "action": action("Deny refuses a deletion beyond a limit. Warn lets it pass with a warning. Audit lets it pass \
                and records it. All count it."),
            "exempt": exempt("Who is never refused. What they delete is counted all the same."),
        },
    })
}

fn rule() -> Value {
    json!({
        "type": "object",
        "required": ["interval", "limit"],
        "properties": {
            "interval": {
                "type": "string", "maxLength": 32,
                "description": "How long a deletion counts, from 1s to 24h: 30s, 10m, 1h30m.",
                "x-kubernetes-validations": [{
                    "rule": format!("self.matches('{DURATION}') && duration(self) >= duration('1s') && duration(self) <= duration('24h')"),
                    "message": "must be a duration between 1s and 24h, such as 30s, 10m or 1h30m",
                }],
            },
            "limit": {
                "type": "integer", "format": "int64", "minimum": 0, "maximum": HIGHEST_LIMIT,
                "description": "How many pods may be deleted in the interval, at any moment that one looks back. 0 stops all.",
            },
        },
    })
}

/// Which may be empty, and so for all.
fn namespace_selector() -> Value {
    let mut selector =
        label_selector("The namespaces that it governs, by their labels. Without it: all.", true);
    if let Some(selector) = selector.as_object_mut() {
        selector.remove("minProperties");
    }
    selector
}

fn status() -> Value {
    let stamp = r"[0-9a-f]+:-?[0-9]+";
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": count(),
            "used": text(), "interval": text(),
            "rules": {"type": "array", "items": {
                "type": "object",
                "properties": {
                    "interval": text(), "limit": count(), "used": count(), "remaining": count(),
                    "nextSlotAt": moment(),
                    "admitted": {"type": "array",
                        "items": {"type": "string", "pattern": format!("^[0-9]+@{stamp}--?[0-9]+$")},
                        "description": "What was admitted in the interval: PODS@CLOCK:FROM-UNTIL, in milliseconds of a clock."},
                },
            }},
            "clocks": {"type": "object", "additionalProperties": count(),
                "description": "What the clock of each host showed when a replica there last wrote."},
            "pending": {"type": "object", "additionalProperties": {"type": "string", "pattern": format!(r"^[^@/]+/[^@/]+@{stamp}(\+[0-9]+)?\??!?$")},
                "description": "Pods whose deletion was admitted and not seen yet, by uid."},
            "livedOn": {"type": "object", "additionalProperties": {"type": "string", "pattern": format!("^{stamp}$")},
                "description": "Pods whose deletion was admitted and nothing came of, and when that was seen: others come first."},
            "refusedLastHour": count(),
            "refusals": {"type": "array", "items": {"type": "object", "properties": {"since": moment(), "pods": count()}}},
            "lastRefused": moment(),
            "conditions": conditions(),
        },
    })
}
