//! A path into a parent: `.status.phase`, `.status.conditions[?(@.type=="Ready")].status`.

use std::fmt;

use serde_json::Value;

/// As kubectl's `jsonpath` takes it, without what a state is not told by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    text: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    Every,
    /// The elements of which a field has a value.
    Where(String, String),
}

impl Path {
    /// Reads a path, or says what is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("\"{text}\" is no path such as .status.phase: {why}");
        let bare = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        let mut rest = bare;
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                let (name, left) = after.split_at(end);
                let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                if name.is_empty() || !name.chars().all(plain) {
                    return Err(wrong("a dot is followed by the name of a field"));
                }
                steps.push(Step::Field(name.to_owned()));
                rest = left;
            } else if let Some(after) = rest.strip_prefix('[') {
                let end = closing(after).ok_or_else(|| wrong("a bracket is not closed"))?;
                steps.push(
                    Step::read(&after[..end]).ok_or_else(|| wrong("what stands in brackets is not known"))?,
                );
                rest = &after[end + 1..];
            } else {
                return Err(wrong("it begins with a dot"));
            }
        }
        if steps.is_empty() {
            return Err(wrong("it is empty"));
        }
        Ok(Self { text: text.to_owned(), steps })
    }

    /// Everything that it leads to, as text.
    pub fn values<'a>(&self, object: &'a Value) -> Vec<std::borrow::Cow<'a, str>> {
        let mut found = vec![object];
        for step in &self.steps {
            found = found.into_iter().flat_map(|value| step.take(value)).collect();
        }
        found.into_iter().filter_map(text_of).collect()
    }
}

/// Where a bracket is closed, quotes heeded.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, ']') => return Some(at),
            _ => {}
        }
    }
    None
}

fn unquoted(text: &str) -> Option<&str> {
    ['\'', '"'].iter().find_map(|&quote| text.strip_prefix(quote)?.strip_suffix(quote))
}

impl Step {
    /// What stands between brackets.
    fn read(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Every);
        }
        if let Ok(index) = text.parse() {
            return Some(Self::Index(index));
        }
        if let Some(name) = unquoted(text) {
            return Some(Self::Field(name.to_owned()));
        }
        let (field, value) = text.strip_prefix("?(@.")?.strip_suffix(')')?.split_once("==")?;
        let (field, value) = (field.trim(), unquoted(value.trim())?);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        (!field.is_empty() && field.chars().all(plain))
            .then(|| Self::Where(field.to_owned(), value.to_owned()))
    }

    fn take<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Field(name), Value::Object(members)) => members.get(name).into_iter().collect(),
            (Self::Index(index), Value::Array(items)) => items.get(*index).into_iter().collect(),
            (Self::Every, Value::Array(items)) => items.iter().collect(),
            (Self::Where(field, wanted), Value::Array(items)) => {
                let is =
                    |item: &&Value| item.get(field).and_then(text_of).is_some_and(|text| text == *wanted);
                items.iter().filter(is).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn text_of(value: &Value) -> Option<std::borrow::Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string().into()),
        _ => None,
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(".status.phase", &["Running"])]
    #[case("{.status.phase}", &["Running"])]
    #[case(".status['phase']", &["Running"])]
    #[case(".status.ready", &["true"])]
    #[case(".status.count", &["3"])]
    #[case(".status.conditions[?(@.type==\"Ready\")].status", &["False"])]
    #[case(".status.conditions[?(@.type == 'Odd]')].status", &["Unknown"])]
    #[case(".status.conditions[0].status", &["False"])]
    #[case(".status.conditions[*].type", &["Ready", "Odd]"])]
    #[case(".metadata.annotations[\"a.b/c\"]", &["x"])]
    #[case(".status.nothing.there", &[])]
    #[case(".status.phase.deeper", &[])]
    #[case(".status.conditions", &[])]
    fn it_leads_to(#[case] path: &str, #[case] values: &[&str]) {
        let object = json!({"metadata": {"annotations": {"a.b/c": "x"}}, "status": {"phase": "Running", "ready": true, "count": 3,
            "conditions": [{"type": "Ready", "status": "False"}, {"type": "Odd]", "status": "Unknown"}]}});
        assert_eq!(Path::read(path).unwrap().values(&object), values);
    }

    #[rstest]
    #[case("")]
    #[case(".")]
    #[case("status.phase")]
    #[case(".status..phase")]
    #[case(".status[phase]")]
    #[case(".status[")]
    #[case(".status[?(@.type)]")]
    #[case(".status[?(@.type==Ready)]")]
    #[case(".a b")]
    #[case(".status[0]x")]
    fn what_is_no_path_is_told(#[case] path: &str) {
        let why = Path::read(path).unwrap_err();
        assert!(why.starts_with(&format!("\"{path}\" is no path such as .status.phase: ")), "{why}");
    }
}
