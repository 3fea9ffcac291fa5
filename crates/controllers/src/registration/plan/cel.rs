//! Expressions in CEL, the Common Expression Language, which the API server evaluates for every request that a rule
//! matches.
//!
//! Names, users and labels are written by somebody else. An [`Expression`] holds nothing of theirs except string
//! literals that [`string`] and [`strings`] quote: its source is literal text of this crate, and [`cel!`] puts nothing
//! but other expressions into it.

use std::fmt;

use k8s_openapi::api::admissionregistration::v1::MatchCondition;

/// A part of an expression, or all of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expression(String);

/// An expression from its source, in which other expressions take the place of `{}`: `cel!("{} in {}", name, names)`.
macro_rules! cel {
    ($source:literal $(, $part:expr)* $(,)?) => {
        // With `concat!`, a format string captures no variables: all that gets in is an `Expression`.
        $crate::registration::cel::Expression::formatted(format_args!(
            concat!($source)
            $(, $crate::registration::cel::Expression::as_str(&$part))*
        ))
    };
}
pub(crate) use cel;

impl Expression {
    /// For [`cel!`] only.
    pub(crate) fn formatted(source: fmt::Arguments<'_>) -> Self {
        Self(source.to_string())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How long it is. The API server counts characters, of which there are no more.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The condition of a webhook.
    pub fn condition(self, name: &'static str) -> MatchCondition {
        MatchCondition { name: name.to_owned(), expression: self.0 }
    }
}

/// A text as a string literal.
pub fn string(text: &str) -> Expression {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => literal.extend(['\\', character]),
            // Neither a line nor what nobody can see is left as it is. All of these have four digits.
            '\u{2028}' | '\u{2029}' | '\u{feff}' => literal.push_str(&escaped(character)),
            _ if character.is_control() => literal.push_str(&escaped(character)),
            _ => literal.push(character),
        }
    }
    literal.push('"');
    Expression(literal)
}

fn escaped(character: char) -> String {
    format!("\\u{:04x}", u32::from(character))
}

/// Texts as a list of string literals.
pub fn strings<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Expression {
    let literals: Vec<String> = texts.into_iter().map(|text| string(text.as_ref()).0).collect();
    Expression(format!("[{}]", literals.join(", ")))
}

/// Whether one of several holds.
pub(super) fn any(expressions: impl IntoIterator<Item = Expression>) -> Expression {
    joined(" || ", expressions)
}

/// Whether all of several hold.
pub(super) fn all(expressions: impl IntoIterator<Item = Expression>) -> Expression {
    joined(" && ", expressions)
}

/// The sum of several.
pub(super) fn sum(expressions: impl IntoIterator<Item = Expression>) -> Expression {
    joined(" + ", expressions)
}

fn joined(operator: &'static str, expressions: impl IntoIterator<Item = Expression>) -> Expression {
    let sources: Vec<String> = expressions.into_iter().map(|expression| expression.0).collect();
    Expression(sources.join(operator))
}

#[cfg(test)]
mod tests {
    use super::{all, any, string, strings, sum};
    use proptest::prelude::{Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

    /// Reads one string literal as CEL's grammar has it, and returns what comes after it.
    fn read(source: &str) -> Option<(String, &str)> {
        let mut text = String::new();
        let mut rest = source.strip_prefix('"')?;
        // Three would begin a literal that may span lines.
        if rest.starts_with("\"\"") {
            return None;
        }
        loop {
            let next = rest.chars().next()?;
            rest = &rest[next.len_utf8()..];
            match next {
                '"' => return Some((text, rest)),
                '\n' | '\r' => return None,
                '\\' => {
                    let escape = rest.chars().next()?;
                    rest = &rest[escape.len_utf8()..];
                    match escape {
                        '"' | '\\' => text.push(escape),
                        'u' => {
                            let digits = rest.get(..4)?;
                            rest = &rest[4..];
                            text.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
                        }
                        _ => return None,
                    }
                }
                other => text.push(other),
            }
        }
    }

    /// Reads a list of string literals, and nothing after it.
    fn read_list(source: &str) -> Option<Vec<String>> {
        let mut texts = Vec::new();
        let mut rest = source.strip_prefix('[')?;
        if rest == "]" {
            return Some(texts);
        }
        loop {
            let (text, after) = read(rest)?;
            texts.push(text);
            if after == "]" {
                return Some(texts);
            }
            rest = after.strip_prefix(", ")?;
        }
    }

    #[test]
    fn what_would_end_a_literal_does_not() {
        for (text, literal) in [
            ("", r#""""#),
            ("web", r#""web""#),
            (r#"x"] || true || "y" in [""#, r#""x\"] || true || \"y\" in [\"""#),
            ("x'] && false && 'n' in ['", r#""x'] && false && 'n' in ['""#),
            (r"\", r#""\\""#),
            ("a\nb\rc\td\0", r#""a\u000ab\u000dc\u0009d\u0000""#),
            ("\u{2028}\u{2029}\u{7f}\u{85}", r#""\u2028\u2029\u007f\u0085""#),
            ("größer 🦀", "\"größer 🦀\""),
        ] {
            assert_eq!(string(text).as_str(), literal);
            assert_eq!(read(literal), Some((text.to_owned(), "")));
        }
        let long = "\"\\\n".repeat(100_000);
        assert_eq!(read(string(&long).as_str()), Some((long, "")));
    }

    #[test]
    fn an_expression_is_put_together_from_expressions() {
        let names = strings(["a", "b\""]);
        assert_eq!(cel!("x in {} && y == {{}}", names).as_str(), r#"x in ["a", "b\""] && y == {}"#);
        assert_eq!(any([cel!("a"), cel!("b")]).as_str(), "a || b");
        assert_eq!(all([cel!("a"), cel!("b")]).as_str(), "a && b");
        assert_eq!(sum([string("a"), cel!("b")]).as_str(), "\"a\" + b");
    }

    /// Texts with much of what matters to a parser in them.
    fn texts() -> impl Strategy<Value = String> {
        let odd = prop::sample::select(vec![
            '"',
            '\'',
            '\\',
            '\n',
            '\r',
            '\0',
            '`',
            '{',
            '}',
            '$',
            '[',
            ']',
            ',',
            'u',
            'x',
            '0',
            '\u{7f}',
            '\u{85}',
            '\u{2028}',
            '\u{feff}',
            '\u{ffff}',
            '\u{10ffff}',
            ' ',
        ]);
        let character = prop_oneof![odd, proptest::char::any()];
        prop::collection::vec(character, 0..40).prop_map(|all| all.into_iter().collect())
    }

    proptest! {
        #[test]
        fn any_text_is_one_literal_that_means_it(text in texts()) {
            let literal = string(&text);
            prop_assert_eq!(read(literal.as_str()), Some((text, "")));
            prop_assert!(!literal.as_str().chars().any(char::is_control));
        }

        #[test]
        fn any_texts_are_one_list_that_means_them(texts in prop::collection::vec(texts(), 0..6)) {
            prop_assert_eq!(read_list(strings(&texts).as_str()), Some(texts));
        }
    }
}
