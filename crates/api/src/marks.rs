//! Marks: the labels and annotations by which one object asks to be protected.
//!
//! | key | value | meaning |
//! | --- | --- | --- |
//! | `policy.kruise.io/delete-protection` (label) | `Always` | never deleted while the label is there |
//! | | `Cascading` | not deleted while it has active dependents |
//! | | anything else | as `Always`, with a warning: a typing error must not unprotect |
//! | `resourcetemplate.karmada.io/deletion-protected` (label) | `Always` | as `Always` |
//! | | anything else | nothing: Karmada's documentation lifts it that way |
//! | `policy.kruise.io/disable-cascading-deletion` (label or annotation) | `true` | as `Cascading` |
//! | | `false` | nothing |
//! | | anything else | as `true`, with a warning |

/// Label of the Kruise designs: `Always` or `Cascading`.
pub const DELETE_PROTECTION: &str = "policy.kruise.io/delete-protection";
/// Label of the Karmada design: `Always`.
pub const DELETION_PROTECTED: &str = "resourcetemplate.karmada.io/deletion-protected";
/// Label or annotation of the first Kruise design: `true`.
pub const DISABLE_CASCADING_DELETION: &str = "policy.kruise.io/disable-cascading-deletion";

/// The value of [`DELETE_PROTECTION`] and [`DELETION_PROTECTED`] that always protects.
pub const ALWAYS: &str = "Always";
/// The value of [`DELETE_PROTECTION`] that protects what still has dependents.
pub const CASCADING: &str = "Cascading";

/// The label selectors that show every object that a label protects. One selector cannot say "or".
pub fn protecting_selectors() -> [String; 3] {
    let cascading = DISABLE_CASCADING_DELETION;
    [
        DELETE_PROTECTION.to_owned(),
        format!("{DELETION_PROTECTED}={ALWAYS}"),
        format!("{cascading},{cascading}!=false"),
    ]
}

/// An annotation on what is to be deleted: the kinds, as `widgets.example.com,…`, whose objects in it need not be looked
/// at while they can't be read.
pub const IGNORE_UNREADABLE_KINDS: &str = "palisade.dev/ignore-unreadable-kinds";

/// How strongly a mark protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not deleted as long as the mark is there.
    Always,
    /// Not deleted as long as something would go with it.
    Cascading,
}

/// Where a mark is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Label,
    Annotation,
}

/// One label or annotation that protects the object it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub place: Place,
    pub key: &'static str,
    pub value: String,
    pub mode: Mode,
    /// The values that mean something, where `value` is none of them.
    pub mistyped: Option<&'static str>,
}

impl Mark {
    /// What a label asks for; `None` if it asks for nothing.
    pub fn of_label(key: &str, value: &str) -> Option<Self> {
        let label = |key, mode, mistyped| {
            Some(Self { place: Place::Label, key, value: value.to_owned(), mode, mistyped })
        };
        match (key, value) {
            (DELETE_PROTECTION, ALWAYS) => label(DELETE_PROTECTION, Mode::Always, None),
            (DELETE_PROTECTION, CASCADING) => label(DELETE_PROTECTION, Mode::Cascading, None),
            (DELETE_PROTECTION, _) => label(DELETE_PROTECTION, Mode::Always, Some("Always and Cascading")),
            (DELETION_PROTECTED, ALWAYS) => label(DELETION_PROTECTED, Mode::Always, None),
            _ => Self::disable_cascading(Place::Label, key, value),
        }
    }

    /// What an annotation asks for; `None` if it asks for nothing.
    pub fn of_annotation(key: &str, value: &str) -> Option<Self> {
        Self::disable_cascading(Place::Annotation, key, value)
    }

    fn disable_cascading(place: Place, key: &str, value: &str) -> Option<Self> {
        let mistyped = match (key, value) {
            (DISABLE_CASCADING_DELETION, "false") => return None,
            (DISABLE_CASCADING_DELETION, "true") => None,
            (DISABLE_CASCADING_DELETION, _) => Some("true and false"),
            _ => return None,
        };
        Some(Self {
            place,
            key: DISABLE_CASCADING_DELETION,
            value: value.to_owned(),
            mode: Mode::Cascading,
            mistyped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(DELETE_PROTECTION, "Always", Some((Mode::Always, None)))]
    #[case(DELETE_PROTECTION, "Cascading", Some((Mode::Cascading, None)))]
    #[case(DELETE_PROTECTION, "alway", Some((Mode::Always, Some("Always and Cascading"))))]
    #[case(DELETE_PROTECTION, "cascading", Some((Mode::Always, Some("Always and Cascading"))))]
    #[case(DELETE_PROTECTION, "", Some((Mode::Always, Some("Always and Cascading"))))]
    #[case(DELETE_PROTECTION, "false", Some((Mode::Always, Some("Always and Cascading"))))]
    #[case(DELETION_PROTECTED, "Always", Some((Mode::Always, None)))]
    #[case(DELETION_PROTECTED, "always", None)]
    #[case(DELETION_PROTECTED, "Never", None)]
    #[case(DELETION_PROTECTED, "", None)]
    #[case(DISABLE_CASCADING_DELETION, "true", Some((Mode::Cascading, None)))]
    #[case(DISABLE_CASCADING_DELETION, "false", None)]
    #[case(DISABLE_CASCADING_DELETION, "yes", Some((Mode::Cascading, Some("true and false"))))]
    #[case(DISABLE_CASCADING_DELETION, "True", Some((Mode::Cascading, Some("true and false"))))]
    #[case("app", "Always", None)]
    fn labels(#[case] key: &str, #[case] value: &str, #[case] expected: Option<(Mode, Option<&str>)>) {
        let mark = Mark::of_label(key, value);
        assert_eq!(mark.as_ref().map(|m| (m.mode, m.mistyped)), expected);
        assert!(mark.is_none_or(|m| m.place == Place::Label && m.key == key && m.value == value));
    }

    #[rstest]
    #[case(DISABLE_CASCADING_DELETION, "true", Some((Mode::Cascading, None)))]
    #[case(DISABLE_CASCADING_DELETION, "false", None)]
    #[case(DISABLE_CASCADING_DELETION, "1", Some((Mode::Cascading, Some("true and false"))))]
    #[case(DELETE_PROTECTION, "Always", None)]
    #[case(DELETION_PROTECTED, "Always", None)]
    fn annotations(#[case] key: &str, #[case] value: &str, #[case] expected: Option<(Mode, Option<&str>)>) {
        let mark = Mark::of_annotation(key, value);
        assert_eq!(mark.as_ref().map(|m| (m.mode, m.mistyped)), expected);
        assert!(mark.is_none_or(|m| m.place == Place::Annotation));
    }
}
