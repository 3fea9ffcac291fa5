//! A resource as people write it: a group, and its plural or its kind.

use std::fmt;

/// `deployments` or `Deployment` of `apps`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    pub group: String,
    /// As it is written.
    pub word: String,
}

impl Resource {
    /// `field` is where it is written, for what is said if it is wrong.
    pub(super) fn read(field: &str, group: &str, word: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if !group.chars().all(plain) {
            return Err(format!("{field}.group: \"{group}\" is no group: write it without a version"));
        }
        if word.is_empty() {
            return Err(format!("{field}.resource: it is missing"));
        }
        if !word.chars().all(plain) {
            return Err(format!("{field}.resource: \"{word}\" is no resource: write its plural or its kind"));
        }
        Ok(Self { group: group.to_owned(), word: word.to_owned() })
    }

    /// Whether this is what it means.
    pub fn is(&self, group: &str, kind: &str, plural: &str) -> bool {
        self.group == group
            && (self.word.eq_ignore_ascii_case(plural) || self.word.eq_ignore_ascii_case(kind))
    }

    /// What is written as `deployments.apps`.
    pub fn called(resource: &str) -> Self {
        let (word, group) = resource.split_once('.').unwrap_or((resource, ""));
        Self { group: group.to_owned(), word: word.to_owned() }
    }

    /// Whether it may be what is written so.
    pub fn is_called(&self, resource: &str) -> bool {
        self.may_be(&Self::called(resource))
    }

    /// Whether both may mean the same, for all that can be told without asking what is served.
    pub fn may_be(&self, other: &Self) -> bool {
        let (one, other_word) = (self.word.to_ascii_lowercase(), other.word.to_ascii_lowercase());
        self.group == other.group
            && (one == other_word || plural_of(&one) == other_word || one == plural_of(&other_word))
    }
}

/// As Kubernetes itself makes a plural of a kind.
fn plural_of(kind: &str) -> String {
    match kind {
        "endpoints" => kind.to_owned(),
        _ if ["s", "x", "z", "ch", "sh"].iter().any(|end| kind.ends_with(end)) => format!("{kind}es"),
        _ => match kind.strip_suffix('y') {
            Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
            _ => format!("{kind}s"),
        },
    }
}

/// `deployments.apps`
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.to_ascii_lowercase();
        if self.group.is_empty() { f.write_str(&word) } else { write!(f, "{word}.{}", self.group) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("deployments", true)]
    #[case("Deployment", true)]
    #[case("deployment", true)]
    #[case("Deployments", true)]
    #[case("deploymentz", false)]
    #[case("replicasets", false)]
    fn a_plural_and_a_kind_are_taken(#[case] word: &str, #[case] is: bool) {
        let resource = Resource::read("", "apps", word).unwrap();
        assert_eq!(resource.is("apps", "Deployment", "deployments"), is);
        assert!(!resource.is("example.com", "Deployment", "deployments"), "another group");
    }

    #[rstest]
    #[case("deployments", "Deployment", true)]
    #[case("Deployment", "deployments", true)]
    #[case("NetworkPolicy", "networkpolicies", true)]
    #[case("ingresses", "Ingress", true)]
    #[case("Gateway", "gateways", true)]
    #[case("pods", "Node", false)]
    fn two_spellings_of_one_are_told(#[case] one: &str, #[case] other: &str, #[case] same: bool) {
        let read = |word: &str| Resource::read("", "", word).unwrap();
        assert_eq!(read(one).may_be(&read(other)), same);
    }
}
