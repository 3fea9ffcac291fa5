//! Label selectors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelExpression>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabelExpression {
    pub key: String,
    pub operator: Operator,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// A label selector.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabelRule(Vec<LabelExpression>);

impl LabelRule {
    pub fn of(selector: &LabelSelector) -> Self {
        let equal = selector.match_labels.iter().map(|(key, value)| LabelExpression {
            key: key.clone(),
            operator: Operator::In,
            values: vec![value.clone()],
        });
        Self(equal.chain(selector.match_expressions.iter().cloned()).collect())
    }

    pub fn matches<'a>(&self, labels: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|LabelExpression { key, operator, values }| {
            let value = labels(key);
            let listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
            match operator {
                Operator::In => listed,
                Operator::NotIn => !listed,
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }

    /// As the `labelSelector` of a list.
    pub fn query(&self) -> String {
        let one = |LabelExpression { key, operator, values }: &LabelExpression| match operator {
            Operator::In => format!("{key} in ({})", values.join(",")),
            Operator::NotIn => format!("{key} notin ({})", values.join(",")),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        };
        self.0.iter().map(one).collect::<Vec<_>>().join(",")
    }

    /// As a selector of a webhook configuration, which says the same in the same words.
    pub fn expressions(&self) -> &[LabelExpression] {
        &self.0
    }
}

/// Labels as a map, for what is not in a review.
pub fn look_up<'a>(labels: &'a BTreeMap<String, String>) -> impl Fn(&str) -> Option<&'a str> {
    move |key| labels.get(key).map(String::as_str)
}

impl LabelSelector {
    /// Reads a selector, or the shorthand of the designs: `{app: web}` for `{matchLabels: {app: web}}`.
    pub fn read(value: &Value) -> Result<Self, String> {
        let Value::Object(members) = value else { return Err("it is not an object".to_owned()) };
        let spelled = members.keys().any(|key| matches!(key.as_str(), MATCH_LABELS | MATCH_EXPRESSIONS));
        let selector = if spelled {
            if let Some(other) =
                members.keys().find(|key| !matches!(key.as_str(), MATCH_LABELS | MATCH_EXPRESSIONS))
            {
                return Err(format!("\"{other}\" can't stand beside {MATCH_LABELS} or {MATCH_EXPRESSIONS}"));
            }
            serde_json::from_value(value.clone()).map_err(|error| error.to_string())?
        } else {
            let mut match_labels = BTreeMap::new();
            for (key, value) in members {
                let Value::String(value) = value else {
                    return Err(format!(
                        "\"{key}\" is neither {MATCH_LABELS} nor {MATCH_EXPRESSIONS}, and its value is no label's"
                    ));
                };
                match_labels.insert(key.clone(), value.clone());
            }
            Self { match_labels, match_expressions: Vec::new() }
        };
        selector.check()?;
        Ok(selector)
    }

    /// What Kubernetes asks of a selector.
    fn check(&self) -> Result<(), String> {
        for (key, value) in &self.match_labels {
            check_key(key)?;
            check_value(value)?;
        }
        for LabelExpression { key, operator, values } in &self.match_expressions {
            check_key(key)?;
            values.iter().try_for_each(|value| check_value(value))?;
            let takes_values = matches!(operator, Operator::In | Operator::NotIn);
            match (takes_values, values.is_empty()) {
                (true, true) => return Err(format!("{operator:?} needs values (key \"{key}\")")),
                (false, false) => return Err(format!("{operator:?} takes no values (key \"{key}\")")),
                _ => {}
            }
        }
        Ok(())
    }
}

const MATCH_LABELS: &str = "matchLabels";
const MATCH_EXPRESSIONS: &str = "matchExpressions";

fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_prefix = |prefix: &str| {
        let label = |part: &str| {
            part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !part.is_empty()
                && !part.starts_with('-')
                && !part.ends_with('-')
        };
        prefix.len() <= 253 && prefix.split('.').all(label)
    };
    if !name.is_empty() && is_word(name) && prefix.is_none_or(is_prefix) {
        Ok(())
    } else {
        Err(format!("\"{key}\" is no label key"))
    }
}

fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_word(value) { Ok(()) } else { Err(format!("\"{value}\" is no label value")) }
}

/// Whether a text can be the value of a label.
pub fn is_value(text: &str) -> bool {
    check_value(text).is_ok()
}

/// Whether a text can be the key of a label.
pub fn is_key(text: &str) -> bool {
    check_key(text).is_ok()
}

/// At most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_word(text: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().all(|&byte| inner(byte)) && end(bytes.first()) && end(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(json!({"app": "web"}), json!({"matchLabels": {"app": "web"}}))]
    #[case(json!({"matchLabels": {"app": "web"}}), json!({"matchLabels": {"app": "web"}}))]
    #[case(json!({}), json!({}))]
    fn a_selector_may_be_written_short(#[case] written: Value, #[case] meant: Value) {
        assert_eq!(serde_json::to_value(LabelSelector::read(&written).unwrap()).unwrap(), meant);
    }

    #[rstest]
    #[case(json!("app=web"), "it is not an object")]
    #[case(json!({"matchLables": {"app": "web"}}), "\"matchLables\" is neither matchLabels nor matchExpressions, and its value is no label's")]
    #[case(json!({"app": "web", "matchLabels": {"app": "web"}}), "\"app\" can't stand beside matchLabels or matchExpressions")]
    #[case(json!({"app": 1}), "\"app\" is neither matchLabels nor matchExpressions, and its value is no label's")]
    #[case(json!({"app": "a b"}), "\"a b\" is no label value")]
    #[case(json!({"a b": "x"}), "\"a b\" is no label key")]
    #[case(json!({"Example.com/app": "x"}), "\"Example.com/app\" is no label key")]
    #[case(json!({"matchExpressions": [{"key": "app", "operator": "In"}]}), "In needs values (key \"app\")")]
    #[case(json!({"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["x"]}]}), "Exists takes no values (key \"app\")")]
    fn what_is_no_selector_is_told(#[case] written: Value, #[case] why: &str) {
        assert_eq!(LabelSelector::read(&written).unwrap_err(), why);
    }
}
