//! Counts of objects, by the protection labels that they carry.
//!
//! A command with a label selector concerns everything that carries the label. It may be printed only where that is
//! exactly what was counted, so a search counts both: the objects that it looked at, and those that are protected.

use std::collections::{BTreeMap, BTreeSet};

use palisade_api::marks::{
    ALWAYS, CASCADING, DELETE_PROTECTION, DELETION_PROTECTED, DISABLE_CASCADING_DELETION, Mark, Place,
};

use crate::object::Metadata;
use crate::review::Subject;
use crate::verdict::{Doomed, Reason};

/// Values of a protection label that one selector can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LabelClass {
    /// `policy.kruise.io/delete-protection=Always`
    Always,
    /// `policy.kruise.io/delete-protection=Cascading`
    Cascading,
    /// The same key with any other value.
    OtherProtection,
    /// `resourcetemplate.karmada.io/deletion-protected=Always`
    DeletionProtected,
    /// `policy.kruise.io/disable-cascading-deletion=true`
    DisableCascading,
    /// The same key with any other value but `false`.
    OtherDisableCascading,
}

impl LabelClass {
    /// All of them. What carries several is listed by the first.
    pub(crate) const ALL: [Self; 6] = [
        Self::Always,
        Self::Cascading,
        Self::OtherProtection,
        Self::DeletionProtected,
        Self::DisableCascading,
        Self::OtherDisableCascading,
    ];
    /// Those of [`DELETE_PROTECTION`], every value of which protects.
    pub(crate) const OF_DELETE_PROTECTION: [Self; 3] = [Self::Always, Self::Cascading, Self::OtherProtection];

    /// `None` for an annotation.
    fn of(mark: &Mark) -> Option<Self> {
        if mark.place == Place::Annotation {
            return None;
        }
        Some(match (mark.key, &*mark.value) {
            (DELETE_PROTECTION, ALWAYS) => Self::Always,
            (DELETE_PROTECTION, CASCADING) => Self::Cascading,
            (DELETE_PROTECTION, _) => Self::OtherProtection,
            (DELETION_PROTECTED, _) => Self::DeletionProtected,
            (DISABLE_CASCADING_DELETION, "true") => Self::DisableCascading,
            (DISABLE_CASCADING_DELETION, _) => Self::OtherDisableCascading,
            _ => return None,
        })
    }

    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Always | Self::Cascading | Self::OtherProtection => DELETE_PROTECTION,
            Self::DeletionProtected => DELETION_PROTECTED,
            Self::DisableCascading | Self::OtherDisableCascading => DISABLE_CASCADING_DELETION,
        }
    }

    /// Whether a selector of [`palisade_api::marks::protecting_selectors`] shows every object that carries it, and its key
    /// alone. That of the others leaves a value out.
    fn is_searched_for(self) -> bool {
        !matches!(self, Self::DisableCascading | Self::OtherDisableCascading)
    }
}

/// Which classes of labels an object carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabelSet(u8);

impl LabelSet {
    pub(crate) fn of(metadata: &Metadata<'_>) -> Self {
        let marks = metadata.labels.iter().filter_map(|(key, value)| Mark::of_label(key, value));
        Self::of_marks(marks.filter_map(|mark| LabelClass::of(&mark)))
    }

    pub(crate) fn of_marks(classes: impl IntoIterator<Item = LabelClass>) -> Self {
        Self(classes.into_iter().fold(0, |bits, class| bits | 1 << class as u8))
    }

    pub(crate) fn contains(self, class: LabelClass) -> bool {
        self.0 & 1 << class as u8 != 0
    }

    pub(crate) fn any(self, classes: &[LabelClass]) -> bool {
        classes.iter().any(|class| self.contains(*class))
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = LabelClass> {
        LabelClass::ALL.into_iter().filter(move |class| self.contains(*class))
    }

    /// The class by which it is listed.
    pub(crate) fn first(self) -> Option<LabelClass> {
        self.iter().next()
    }
}

/// Counts of one kind, by namespace (empty for objects without one) and by what they have in common.
type OfKind<K> = BTreeMap<String, BTreeMap<K, usize>>;

fn count<K: Ord>(
    kinds: &mut BTreeMap<String, OfKind<K>>,
    kind: &str,
    namespace: &str,
    key: K,
    number: usize,
) {
    if !kinds.contains_key(kind) {
        kinds.insert(kind.to_owned(), OfKind::new());
    }
    let Some(namespaces) = kinds.get_mut(kind) else { return };
    if !namespaces.contains_key(namespace) {
        namespaces.insert(namespace.to_owned(), BTreeMap::new());
    }
    if let Some(counts) = namespaces.get_mut(namespace) {
        *counts.entry(key).or_default() += number;
    }
}

fn merge<K: Ord>(kinds: &mut BTreeMap<String, OfKind<K>>, other: BTreeMap<String, OfKind<K>>) {
    for (kind, namespaces) in other {
        for (namespace, counts) in namespaces {
            for (key, number) in counts {
                count(kinds, &kind, &namespace, key, number);
            }
        }
    }
}

/// How many of the objects that `is_meant` in some namespaces of a kind.
fn sum<K>(
    kinds: &BTreeMap<String, OfKind<K>>,
    kind: &str,
    scope: Option<&str>,
    is_meant: impl Fn(&K) -> bool,
) -> usize {
    let Some(namespaces) = kinds.get(kind) else { return 0 };
    let of = |counts: &BTreeMap<K, usize>| -> usize {
        counts.iter().filter(|(key, _)| is_meant(key)).map(|(_, number)| number).sum()
    };
    match scope {
        Some(namespace) => namespaces.get(namespace).map(of).unwrap_or_default(),
        None => namespaces.values().map(of).sum(),
    }
}

/// Every object that a search looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    kinds: BTreeMap<String, OfKind<LabelSet>>,
    /// Kinds of which only labelled objects were looked at.
    by_selector: BTreeSet<String>,
}

impl Seen {
    pub(crate) fn add(&mut self, subject: &Subject<'_>) {
        let metadata = &subject.object.metadata;
        let namespace = metadata.namespace().unwrap_or_default();
        count(&mut self.kinds, &subject.kind.kubectl_name(), namespace, LabelSet::of(metadata), 1);
    }

    pub(crate) fn was_by_selector(&mut self, kind: String) {
        self.by_selector.insert(kind);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        merge(&mut self.kinds, other.kinds);
        self.by_selector.extend(other.by_selector);
    }

    /// How many there are, in a namespace or in all; `None` if not all of them were looked at.
    pub(crate) fn number(
        &self,
        kind: &str,
        scope: Option<&str>,
        classes: &[LabelClass],
        is_meant: impl Fn(LabelSet) -> bool,
    ) -> Option<usize> {
        let is_searched_for = !classes.is_empty() && classes.iter().all(|class| class.is_searched_for());
        (is_searched_for || !self.by_selector.contains(kind))
            .then(|| sum(&self.kinds, kind, scope, |set| is_meant(*set)))
    }
}

/// What a protected object has in common with others, as far as commands are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Profile {
    /// The labels that it carries, whether they protect it or not.
    pub(crate) carried: LabelSet,
    /// The labels that protect it.
    pub(crate) protecting: LabelSet,
    /// Whether an annotation protects it.
    pub(crate) annotated: bool,
}

impl Profile {
    pub(crate) fn of(doomed: &Doomed) -> Self {
        let marks = || doomed.because.iter().filter_map(Reason::mark);
        Self {
            carried: doomed.carried,
            protecting: LabelSet::of_marks(marks().filter_map(LabelClass::of)),
            annotated: marks().any(|mark| mark.place == Place::Annotation),
        }
    }

    /// Whether a label or an annotation protects it.
    pub(crate) fn is_marked(self) -> bool {
        self.annotated || self.protecting != LabelSet::default()
    }
}

/// Protected objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    kinds: BTreeMap<String, OfKind<Profile>>,
    /// How many each `ResourceDeletionProtection` protects.
    by_protection: BTreeMap<String, usize>,
}

impl Counted {
    pub(crate) fn add(&mut self, doomed: &Doomed) {
        let about = &doomed.about;
        let namespace = about.namespace.as_deref().unwrap_or_default();
        count(&mut self.kinds, &about.kubectl_name, namespace, Profile::of(doomed), 1);
        let ruled = doomed.because.iter().filter_map(Reason::protection);
        // Several rules of one protection are one.
        for protection in ruled.collect::<BTreeSet<&str>>() {
            match self.by_protection.get_mut(protection) {
                Some(number) => *number += 1,
                None => {
                    self.by_protection.insert(protection.to_owned(), 1);
                }
            }
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        merge(&mut self.kinds, other.kinds);
        for (protection, number) in other.by_protection {
            *self.by_protection.entry(protection).or_default() += number;
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.kinds.keys().map(|kind| self.number(kind, None, |_| true)).sum()
    }

    /// How many labels or annotations protect.
    pub(crate) fn marked(&self) -> usize {
        self.kinds.keys().map(|kind| self.number(kind, None, Profile::is_marked)).sum()
    }

    pub(crate) fn by_protection(&self) -> &BTreeMap<String, usize> {
        &self.by_protection
    }

    /// How many there are of a kind, in a namespace or in all.
    pub(crate) fn number(
        &self,
        kind: &str,
        scope: Option<&str>,
        is_meant: impl Fn(Profile) -> bool,
    ) -> usize {
        sum(&self.kinds, kind, scope, |profile| is_meant(*profile))
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = (&str, &OfKind<Profile>)> {
        self.kinds.iter().map(|(kind, namespaces)| (&**kind, namespaces))
    }
}
