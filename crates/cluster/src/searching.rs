//! What is searched, and what is said where the API server forbids it.

use palisade_api::search_groups::SearchGroups;
use palisade_engine::{MissingRights, Right, Verb};

use crate::live::NoAnswer;

/// Which groups are searched, and by whom.
#[derive(Clone, Debug, Default)]
pub struct Searching {
    pub groups: SearchGroups,
    /// Palisade's service account: `palisade-system:palisade`. Without one somebody else asks, who may lack rights that
    /// Palisade has.
    pub account: Option<String>,
}

impl Searching {
    /// What Palisade lacks, if that is why there is no answer.
    pub(crate) fn missing(&self, why: &NoAnswer) -> Option<MissingRights> {
        Some(MissingRights::one(self.account.as_ref()?, why.right.clone()?))
    }
}

/// The right that a read needs, by the path that is read.
pub(crate) fn right_to_read(uri: &str) -> Option<Right> {
    let path = uri.split('?').next()?;
    let mut words = path.split('/').filter(|word| !word.is_empty());
    let group = match words.next()? {
        "api" => "",
        _ => words.next()?,
    };
    let _version = words.next()?;
    let rest: Vec<&str> = words.collect();
    let (plural, verb) = match rest[..] {
        [plural] | ["namespaces", _, plural] => (plural, Verb::List),
        [plural, _] | ["namespaces", _, plural, _] => (plural, Verb::Get),
        _ => return None,
    };
    // It ends up in a command that somebody may run, and whoever reaches our port can name anything.
    let is_name = |word: &str| {
        word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte))
    };
    (is_name(group) && is_name(plural)).then(|| Right {
        verb,
        group: group.to_owned(),
        plural: plural.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("/api/v1/pods?limit=500", Some((Verb::List, "", "pods")))]
    #[case("/api/v1/namespaces", Some((Verb::List, "", "namespaces")))]
    #[case("/api/v1/namespaces/shop", Some((Verb::Get, "", "namespaces")))]
    #[case("/api/v1/namespaces/shop/pods/web", Some((Verb::Get, "", "pods")))]
    #[case("/apis/example.com/v1/namespaces/shop/widgets?limit=1&fieldSelector=a%2Fb", Some((Verb::List, "example.com", "widgets")))]
    #[case("/apis/apps/v1/deployments", Some((Verb::List, "apps", "deployments")))]
    #[case("/apis/example.com/v1/widgets;reboot", None)]
    #[case("/apis/$(reboot)/v1/widgets", None)]
    #[case("/apis", None)]
    #[case("", None)]
    fn a_path_tells_which_right_it_needs(#[case] uri: &str, #[case] expected: Option<(Verb, &str, &str)>) {
        let right = right_to_read(uri);
        let right =
            right.as_ref().map(|Right { verb, group, plural }| (*verb, group.as_str(), plural.as_str()));
        assert_eq!(right, expected);
    }
}
