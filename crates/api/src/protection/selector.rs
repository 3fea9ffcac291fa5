//! An entry of `resourceSelector` or `except`, ready to be asked.

use std::collections::HashSet;

use super::{Pattern, ResourceSelector, Target};
use crate::labels::LabelRule;

/// What one entry matches.
#[derive(Clone, Debug)]
pub struct Selector {
    pub target: Target,
    pub namespace: Option<Pattern>,
    /// `None`: every name.
    names: Option<Names>,
    pub labels: Option<LabelRule>,
    pub namespace_labels: Option<LabelRule>,
}

#[derive(Clone, Debug)]
struct Names {
    exact: HashSet<String>,
    patterns: Vec<Pattern>,
}

impl Selector {
    /// Reads an entry, with the names that stand beside it.
    pub(super) fn of(selector: &ResourceSelector, resource_names: &[String]) -> Result<Self, String> {
        let group = match selector.api_version.as_deref() {
            None | Some("*") => None,
            Some(version) => match version.split_once('/') {
                None => Some(""),
                Some((group, _)) => Some(group),
            },
        };
        let target = match (selector.kind.as_str(), group) {
            ("*", group) => Target::Every { group: group.map(str::to_owned) },
            (_, None) => return Err(format!("kind {} without an apiVersion", selector.kind)),
            (kind, Some(group)) => Target::Kind { group: group.to_owned(), kind: kind.to_owned() },
        };
        Ok(Self {
            target,
            namespace: selector.namespace.as_deref().map(Pattern::new),
            names: Names::of(selector.name.iter().chain(resource_names)),
            labels: selector.label_selector.as_ref().map(LabelRule::of),
            namespace_labels: selector.namespace_selector.as_ref().map(LabelRule::of),
        })
    }

    /// Whether it matches an object of its kind, as far as the object itself can tell: the labels of its namespace are
    /// another question.
    pub(super) fn matches<'a>(
        &self,
        namespace: Option<&str>,
        name: &str,
        labels: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        let in_namespace = match (&self.namespace, namespace) {
            (None, _) => true,
            (Some(pattern), Some(namespace)) => pattern.matches(namespace),
            (Some(_), None) => false,
        };
        in_namespace
            && (self.namespace_labels.is_none() || namespace.is_some())
            && self.names.as_ref().is_none_or(|names| names.contain(name))
            && self.labels.as_ref().is_none_or(|rule| rule.matches(labels))
    }

    /// Whether it asks for a namespace, which cluster-scoped objects do not have.
    pub fn is_namespaced(&self) -> bool {
        self.namespace.is_some() || self.namespace_labels.is_some()
    }

    /// The names that it is for; `None` for every name.
    pub fn names(&self) -> Option<impl Iterator<Item = Pattern>> {
        let Names { exact, patterns } = self.names.as_ref()?;
        Some(exact.iter().map(|name| Pattern::new(name)).chain(patterns.iter().cloned()))
    }

    /// The one namespace that it is for, if it is for one.
    pub fn only_namespace(&self) -> Option<&str> {
        self.namespace.as_ref().and_then(Pattern::exact)
    }
}

impl Names {
    fn of<'a>(names: impl Iterator<Item = &'a String>) -> Option<Self> {
        let mut all = Self { exact: HashSet::new(), patterns: Vec::new() };
        for name in names {
            let pattern = Pattern::new(name);
            match pattern.exact() {
                Some(exact) => drop(all.exact.insert(exact.to_owned())),
                None => all.patterns.push(pattern),
            }
        }
        (!all.exact.is_empty() || !all.patterns.is_empty()).then_some(all)
    }

    fn contain(&self, name: &str) -> bool {
        self.exact.contains(name) || self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}
