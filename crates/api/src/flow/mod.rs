//! `PodDeletionFlowControl`: how many pods of the cluster may be deleted in a time.
//!
//! ```yaml
//! apiVersion: policy.kruise.io/v1alpha1
//! kind: PodDeletionFlowControl
//! metadata: {name: default}
//! spec:
//!   limitRules:
//!   - {interval: 1m, limit: 50}
//!   - {interval: 1h, limit: 1000}
//!   whiteListSelector:
//!     matchExpressions:
//!     - {key: tier, operator: In, value: batch}
//! ```

mod interval;
mod schema;
mod status;

use serde_json::{Value, json};

pub use interval::Interval;
pub use schema::definition;
pub use status::{Batch, Pending, Refusals, RuleStatus, Stamp, Status};

use crate::action::Action;
use crate::exempt::{Exempt, Exemptions};
use crate::labels::{LabelRule, LabelSelector};

pub const GROUP: &str = "policy.kruise.io";
pub const VERSION: &str = "v1alpha1";
pub const KIND: &str = "PodDeletionFlowControl";
pub const PLURAL: &str = "poddeletionflowcontrols";

const MOST_RULES: usize = 8;
const HIGHEST_LIMIT: i64 = i32::MAX as i64;

/// What a flow control asks for, in a form that can't be wrong.
#[derive(Clone, Debug)]
pub struct Control {
    /// No two of them have the same interval.
    pub rules: Vec<LimitRule>,
    /// The pods that it does not concern.
    pub white_list: Option<LabelRule>,
    /// The namespaces that it governs; all without it.
    pub namespaces: Option<LabelRule>,
    pub action: Action,
    /// Who is counted, but never refused.
    pub exempt: Exemptions,
}

/// At most `limit` pods in any `interval`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRule {
    pub interval: Interval,
    pub limit: i64,
}

impl Control {
    /// Reads `spec`, or says what is wrong with it.
    pub fn read(spec: &Value) -> Result<Self, String> {
        let given = |field: &str| spec.get(field).filter(|value| !value.is_null());
        let rules = match given("limitRules").and_then(Value::as_array) {
            Some(rules) if rules.len() > MOST_RULES => {
                return Err(format!("spec.limitRules: there are more than {MOST_RULES}"));
            }
            Some(rules) if !rules.is_empty() => rules,
            _ => return Err("spec.limitRules: there are none".to_owned()),
        };
        let mut read: Vec<LimitRule> = Vec::with_capacity(rules.len());
        for (number, rule) in rules.iter().enumerate() {
            let rule = LimitRule::read(rule)
                .map_err(|(field, why)| format!("spec.limitRules[{number}].{field}: {why}"))?;
            if let Some(other) = read.iter().find(|other| other.interval.millis == rule.interval.millis) {
                return Err(format!(
                    "spec.limitRules[{number}]: there is another rule for {}: {} and {} contradict each other",
                    rule.interval, other.limit, rule.limit
                ));
            }
            read.push(rule);
        }
        let white_list = given("whiteListSelector")
            .map(|selector| {
                let rule = selector_of(selector)?;
                if rule.expressions().is_empty() {
                    return Err("an empty one would be for every pod".to_owned());
                }
                Ok(rule)
            })
            .transpose()
            .map_err(|why: String| format!("spec.whiteListSelector: {why}"))?;
        let namespaces = given("namespaceSelector")
            .map(selector_of)
            .transpose()
            .map_err(|why| format!("spec.namespaceSelector: {why}"))?
            .filter(|rule| !rule.expressions().is_empty());
        let action = given("action")
            .map(|action| serde_json::from_value(action.clone()))
            .transpose()
            .map_err(|error| format!("spec.action: {error}"))?;
        let exempt: Option<Exempt> = given("exempt")
            .map(|exempt| serde_json::from_value(exempt.clone()))
            .transpose()
            .map_err(|error| format!("spec.exempt: {error}"))?;
        Ok(Self {
            rules: read,
            white_list,
            namespaces,
            action: action.unwrap_or_default(),
            exempt: Exemptions::of(exempt.as_ref()),
        })
    }
}

impl LimitRule {
    fn read(rule: &Value) -> Result<Self, (&'static str, String)> {
        let interval = rule.get("interval").and_then(Value::as_str);
        let interval = interval.ok_or_else(|| ("interval", "it is missing".to_owned()))?;
        let interval = Interval::read(interval).map_err(|why| ("interval", why))?;
        let limit = rule.get("limit").and_then(Value::as_i64);
        match limit.ok_or_else(|| ("limit", "it is missing".to_owned()))? {
            limit @ 0..=HIGHEST_LIMIT => Ok(Self { interval, limit }),
            limit => Err(("limit", format!("{limit} is not between 0 and {HIGHEST_LIMIT}"))),
        }
    }
}

/// A label selector, in which `value: foo` is short for `values: [foo]`.
fn selector_of(written: &Value) -> Result<LabelRule, String> {
    let mut spelled = written.clone();
    let expressions = spelled.get_mut("matchExpressions").and_then(Value::as_array_mut);
    for expression in expressions.into_iter().flatten().filter_map(Value::as_object_mut) {
        let Some(value) = expression.remove("value").filter(|value| !value.is_null()) else { continue };
        if expression.get("values").is_some_and(|values| !values.is_null()) {
            return Err("value and values are both given: give one of them".to_owned());
        }
        expression.insert("values".to_owned(), json!([value]));
    }
    LabelSelector::read(&spelled).map(|selector| LabelRule::of(&selector))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::look_up;
    use rstest::rstest;
    use std::collections::BTreeMap;

    fn one_rule(mut rest: Value) -> Value {
        rest["limitRules"] = json!([{"interval": "1m", "limit": 1}]);
        rest
    }

    #[test]
    fn the_seeds_example() {
        let control = Control::read(&json!({
            "limitRules": [{"interval": "1m", "limit": 50}, {"interval": "10m", "limit": 300}, {"interval": "1h", "limit": 1000}],
            "whiteListSelector": {"matchExpressions": [{"key": "xxx", "operator": "In", "value": "foo"}]},
        }))
        .unwrap();
        let rules: Vec<(i64, i64)> =
            control.rules.iter().map(|rule| (rule.interval.millis, rule.limit)).collect();
        assert_eq!(rules, [(60_000, 50), (600_000, 300), (3_600_000, 1_000)]);
        let listed = |value: &str| {
            let labels = BTreeMap::from([("xxx".to_owned(), value.to_owned())]);
            control.white_list.as_ref().unwrap().matches(look_up(&labels))
        };
        assert!(listed("foo"));
        assert!(!listed("bar"));
        assert_eq!(control.action, Action::Deny);
        assert!(control.namespaces.is_none());
    }

    #[test]
    fn an_empty_namespace_selector_is_for_all() {
        assert!(Control::read(&one_rule(json!({"namespaceSelector": {}}))).unwrap().namespaces.is_none());
    }

    #[rstest]
    #[case(json!({}), "spec.limitRules: there are none")]
    #[case(json!({"limitRules": []}), "spec.limitRules: there are none")]
    #[case(json!({"limitRules": vec![json!({"interval": "1m", "limit": 1}); 9]}), "spec.limitRules: there are more than 8")]
    #[case(json!({"limitRules": [{"limit": 1}]}), "spec.limitRules[0].interval: it is missing")]
    #[case(json!({"limitRules": [{"interval": "1m"}]}), "spec.limitRules[0].limit: it is missing")]
    #[case(json!({"limitRules": [{"interval": "1d", "limit": 1}]}), "spec.limitRules[0].interval: \"1d\" is no duration such as 30s, 10m or 1h")]
    #[case(json!({"limitRules": [{"interval": "1m", "limit": -1}]}), "spec.limitRules[0].limit: -1 is not between 0 and 2147483647")]
    #[case(
        json!({"limitRules": [{"interval": "1m", "limit": 1}, {"interval": "60s", "limit": 2}]}),
        "spec.limitRules[1]: there is another rule for 60s: 1 and 2 contradict each other"
    )]
    #[case(one_rule(json!({"whiteListSelector": {}})), "spec.whiteListSelector: an empty one would be for every pod")]
    #[case(
        one_rule(json!({"whiteListSelector": {"matchExpressions": [{"key": "a", "operator": "In", "value": "x", "values": ["y"]}]}})),
        "spec.whiteListSelector: value and values are both given: give one of them"
    )]
    #[case(
        one_rule(json!({"whiteListSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "value": "x"}]}})),
        "spec.whiteListSelector: Exists takes no values (key \"a\")"
    )]
    #[case(
        one_rule(json!({"action": "Refuse"})),
        "spec.action: unknown variant `Refuse`, expected one of `Deny`, `Warn`, `Audit`"
    )]
    fn what_is_wrong_is_told(#[case] spec: Value, #[case] why: &str) {
        assert_eq!(Control::read(&spec).unwrap_err(), why);
    }
}
