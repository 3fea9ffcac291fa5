//! Names with `*` for any text.

/// A name, or a pattern of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The one name that it stands for, if it does.
    pub fn exact(&self) -> Option<&str> {
        (!self.0.contains('*')).then_some(self.0.as_str())
    }

    /// What every name begins with that it matches.
    pub fn prefix(&self) -> &str {
        self.0.split_once('*').map_or(&self.0, |(prefix, _)| prefix)
    }

    pub fn matches(&self, name: &str) -> bool {
        let Some((head, rest)) = self.0.split_once('*') else { return self.0 == name };
        let Some(mut left) = name.strip_prefix(head) else { return false };
        let mut parts = rest.split('*').peekable();
        // Each part is taken where it first fits, except the last, which must end the name.
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return left.ends_with(part);
            }
            match left.find(part) {
                Some(at) => left = &left[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("web", "web", true)]
    #[case("web", "web-1", false)]
    #[case("web-*", "web-1", true)]
    #[case("web-*", "web-", true)]
    #[case("web-*", "web", false)]
    #[case("*-db", "users-db", true)]
    #[case("*-db", "users-db-1", false)]
    #[case("*", "", true)]
    #[case("*", "anything", true)]
    #[case("a*b*c", "a-b-b-c", true)]
    #[case("a*b*c", "ac", false)]
    #[case("a*a", "a", false)]
    #[case("**", "x", true)]
    fn examples(#[case] pattern: &str, #[case] name: &str, #[case] expected: bool) {
        assert_eq!(Pattern::new(pattern).matches(name), expected);
    }

    /// The plain definition: `*` takes nothing, or one letter and then anything it could.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                by_definition(rest, name) || !name.is_empty() && by_definition(pattern, &name[1..])
            }
            ([p, pattern @ ..], [n, name @ ..]) => p == n && by_definition(pattern, name),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn it_is_what_its_definition_says(pattern in "[ab*]{0,7}", name in "[ab]{0,8}") {
            prop_assert_eq!(Pattern::new(&pattern).matches(&name), by_definition(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
