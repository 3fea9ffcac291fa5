//! What users write in policies, and the quoting of what goes into expressions.

use palisade_api::budget::{Amount, Limit};
use palisade_api::components::Path;
use palisade_api::flow::Interval;
use palisade_api::labels::{LabelRule, LabelSelector};
use palisade_controllers::registration::cel;
use palisade_fuzz::{Recipe, corpus, mutated};
use serde_json::{Value, json};

/// An input as it is, and what it makes of a text of the corpus.
fn texts(input: &[u8], known: &[Vec<u8>], words: &[&str]) -> [Vec<u8>; 2] {
    [input.to_vec(), mutated(&mut Recipe::new(input), known, words)]
}

#[test]
fn label_selectors() {
    let known = corpus("selectors");
    let words = [
        "\"matchLabels\":{",
        "\"matchExpressions\":[",
        "\"operator\":\"In\"",
        "\"NotIn\"",
        "\"Exists\"",
        "\"DoesNotExist\"",
        "\"values\":[",
        "\"key\":",
        "null",
        "\"a/b/c\"",
        "\"app\"",
        "\"-\"",
        "{",
        "}",
        "[",
        "]",
        ",",
        "1",
        "\"in (\"",
    ];
    bolero::check!(name = "selectors").for_each(move |input: &[u8]| {
        for text in texts(input, &known, &words) {
            let Ok(value) = serde_json::from_slice::<Value>(&text) else { continue };
            let Ok(selector) = LabelSelector::read(&value) else { continue };
            let rule = LabelRule::of(&selector);
            let none = rule.matches(|_| None);
            let wanted = rule.expressions().iter().any(|expression| {
                matches!(
                    expression.operator,
                    palisade_api::labels::Operator::In | palisade_api::labels::Operator::Exists
                )
            });
            assert_eq!(none, !wanted, "an object without labels: {value}");
            let _ = rule.matches(|_| Some("web"));
            // It goes into a URL and into a webhook configuration: what was read is made of keys and values alone.
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./ (),!".contains(c);
            assert!(rule.query().chars().all(plain), "{value}");
        }
    });
}

#[test]
fn path_expressions() {
    let known = corpus("paths");
    let words = [
        ".",
        "[",
        "]",
        "[*]",
        "[?(@.",
        "==",
        "'",
        "\"",
        ")]",
        "{",
        "}",
        "0",
        "18446744073709551616",
        "é",
        " ",
    ];
    let object = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Up", "n": 1.5},
        "a-b_c": [[1, [2]], {"x": null}]});
    bolero::check!(name = "paths").for_each(move |input: &[u8]| {
        for text in texts(input, &known, &words) {
            let Ok(text) = String::from_utf8(text) else { continue };
            let Ok(path) = Path::read(&text) else { continue };
            assert_eq!(path.to_string(), text);
            let found = path.values(&object);
            assert!(found.len() <= 16, "it leads to no more than there is");
            assert!(path.values(&Value::Null).is_empty());
        }
    });
}

#[test]
fn intervals() {
    let known = corpus("intervals");
    let words =
        ["1", "0", ".", "h", "m", "s", "ms", "us", "µs", "ns", "-", "+", "99999999999999999999", " ", "e"];
    bolero::check!(name = "intervals").for_each(move |input: &[u8]| {
        for text in texts(input, &known, &words) {
            let Ok(text) = String::from_utf8(text) else { continue };
            let Ok(interval) = Interval::read(&text) else { continue };
            assert!((1_000..=86_400_000).contains(&interval.millis), "{text}");
            assert_eq!(Interval::read(&interval.to_string()), Ok(interval));
        }
    });
}

#[test]
fn percentages() {
    let known = corpus("percentages");
    let words = ["%", "0", "100", "101", "-", "\"", "1e3", ".5", "4294967296", "2147483648", " ", "null"];
    bolero::check!(name = "percentages").for_each(move |input: &[u8]| {
        let mut recipe = Recipe::new(input);
        let total = i64::try_from(recipe.below(1 << 16)).unwrap_or(0) - 100;
        for text in texts(input, &known, &words) {
            let Ok(value) = serde_json::from_slice::<Value>(&text) else { continue };
            let Ok(amount) = Amount::read(&value) else { continue };
            for limit in [Limit::MaxUnavailable(amount), Limit::MinAvailable(amount)] {
                let desired = limit.desired(total);
                assert!((0..=total.max(0)).contains(&desired), "{value} of {total}: {desired}");
                assert!(limit.desired(i64::from(i32::MAX)) >= 0);
            }
        }
    });
}

#[test]
fn quoting() {
    let known = corpus("quoting");
    let words = [
        "'",
        "\"",
        "\\",
        "\\\"",
        "\n",
        "\r",
        "\u{0}",
        "\u{2028}",
        "\u{feff}",
        "] || true || [",
        "\"\"\"",
        "`",
        "//",
        "é",
    ];
    bolero::check!(name = "quoting").for_each(move |input: &[u8]| {
        for text in texts(input, &known, &words) {
            let text = String::from_utf8_lossy(&text);
            let literal = cel::string(&text);
            assert_eq!(unquoted(literal.as_str()).as_deref(), Some(&*text), "{literal:?}");
            let list = cel::strings([&*text, "x"]);
            assert_eq!(list.as_str(), format!("[{}, \"x\"]", literal.as_str()));
        }
    });
}

/// What CEL reads in a literal, by its grammar: nothing but escapes that it knows, and the quote only at both ends.
fn unquoted(literal: &str) -> Option<String> {
    let mut characters = literal.strip_prefix('"')?.strip_suffix('"')?.chars();
    let mut text = String::new();
    while let Some(character) = characters.next() {
        match character {
            '"' | '\n' | '\r' => return None,
            '\\' => match characters.next()? {
                escaped @ ('"' | '\\') => text.push(escaped),
                'u' => {
                    let digits: String = characters.by_ref().take(4).collect();
                    let number = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 4)?;
                    text.push(char::from_u32(number)?);
                }
                _ => return None,
            },
            plain => text.push(plain),
        }
    }
    Some(text)
}
