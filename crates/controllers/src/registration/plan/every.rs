//! Webhooks for the rules of `kind: "*"`: few and small ones, whatever the number of rules.
//!
//! Rules with a namespace share one webhook, and so do rules that differ in nothing. A few label selectors keep a webhook
//! each, since the API server evaluates those for nothing; more of them become one condition, which holds for whatever
//! one of them may select. What is asked about beyond what rules select is decided like anything else. Rules that do not
//! fit are left out, the youngest protections first, and their protections say so.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use palisade_api::labels::LabelRule;

use super::cel::{Expression, any, cel, string, strings};
use super::{LARGEST_LIST, sound};
use crate::registration::coverage::{Every, Namespaces};

/// How many webhooks with a label selector of their own there are, with a namespace and without.
const OWN_SELECTORS: usize = 4;
/// How many bytes such a selector may have.
const LARGEST_SELECTOR: usize = 8 << 10;
/// How many bytes the condition may have that stands for all other rules.
pub(super) const LARGEST_CONDITION: usize = 32 << 10;
/// What one more name adds to an expression or a list besides itself.
const QUOTES: usize = 4;
/// What a label adds to an expression besides its key and its values.
const LABEL_TERM: usize = 100;

/// What one webhook asks about.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EveryKind {
    /// `*`, or some groups.
    pub(super) groups: BTreeSet<String>,
    pub(super) namespaces: Namespaces,
    pub(super) labels: Vec<LabelSelectorRequirement>,
    pub(super) condition: Option<Expression>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EveryKinds {
    pub(super) webhooks: Vec<EveryKind>,
    /// The protections of which a rule did not fit.
    pub(super) left_out: BTreeSet<String>,
}

/// A rule, and its label selector as the API server takes it.
struct Selecting<'a> {
    rule: &'a Every,
    labels: Vec<LabelSelectorRequirement>,
}

impl EveryKinds {
    /// `rules` come in the order of their protections' age.
    pub(super) fn of(rules: &[Every]) -> Self {
        let mut all = Self::default();
        let sound = |rule| {
            let labels = Every::labels(rule).map(LabelRule::expressions).unwrap_or_default();
            Some(Selecting { rule, labels: sound(labels)? })
        };
        let (somewhere, anywhere): (Vec<Selecting<'_>>, Vec<Selecting<'_>>) =
            rules.iter().filter_map(sound).partition(|selecting| selecting.rule.namespace.is_some());
        all.add_somewhere(&somewhere);
        all.add_anywhere(&anywhere);
        all
    }

    /// Rules that name a namespace.
    fn add_somewhere(&mut self, rules: &[Selecting<'_>]) {
        let mut named = Room::new(LARGEST_LIST);
        let fitting: Vec<&Selecting<'_>> = rules
            .iter()
            .filter(|selecting| {
                let namespace = selecting.rule.namespace.iter();
                let fits = named.take(namespace.map(|name| (name.clone(), name.len() + QUOTES)));
                if !fits {
                    self.left_out.insert(selecting.rule.protection.clone());
                }
                fits
            })
            .collect();
        let mut by_labels: Vec<EveryKind> = Vec::new();
        for Selecting { rule, labels } in &fitting {
            let namespaces = Namespaces::Some(rule.namespace.iter().cloned().collect());
            let groups = BTreeSet::from([rule.group()]);
            let same = |known: &&mut EveryKind| known.labels == *labels && known.groups == groups;
            match by_labels.iter_mut().find(same) {
                Some(known) => known.namespaces = known.namespaces.clone().and(namespaces),
                None => {
                    by_labels.push(EveryKind { groups, namespaces, labels: labels.clone(), condition: None });
                }
            }
            // One more than there may be is enough to know.
            if by_labels.len() > OWN_SELECTORS {
                break;
            }
        }
        if by_labels.len() > OWN_SELECTORS
            || by_labels.iter().any(|each| size(&each.labels) > LARGEST_SELECTOR)
        {
            // All of it is asked about in these namespaces, and in no others.
            let namespaces =
                fitting.iter().filter_map(|selecting| selecting.rule.namespace.clone()).collect();
            let groups = groups(fitting.iter().map(|selecting| selecting.rule));
            let namespaces = Namespaces::Some(namespaces);
            by_labels = vec![EveryKind { groups, namespaces, labels: Vec::new(), condition: None }];
        }
        self.webhooks.append(&mut by_labels);
    }

    /// Rules for all namespaces, or for those that a pattern or labels tell.
    fn add_anywhere(&mut self, rules: &[Selecting<'_>]) {
        let mut own: Vec<EveryKind> = Vec::new();
        let mut others: Vec<&Selecting<'_>> = Vec::new();
        for selecting in rules {
            let Selecting { rule, labels } = selecting;
            let groups = BTreeSet::from([rule.group()]);
            let is_known = |known: &EveryKind| known.labels == *labels && known.groups == groups;
            match (labels.is_empty() || size(labels) > LARGEST_SELECTOR, own.iter().any(is_known)) {
                (false, true) => {}
                (false, false) if own.len() < OWN_SELECTORS => own.push(EveryKind {
                    groups,
                    namespaces: Namespaces::All,
                    labels: labels.clone(),
                    condition: None,
                }),
                _ => others.push(selecting),
            }
        }
        self.webhooks.append(&mut own);
        let mut terms = Terms::default();
        let mut room = Room::new(LARGEST_CONDITION);
        let mut carried = Vec::new();
        for selecting in others {
            if terms.add(selecting, &mut room) {
                carried.push(selecting.rule);
            } else {
                self.left_out.insert(selecting.rule.protection.clone());
            }
        }
        if !carried.is_empty() {
            self.webhooks.push(EveryKind {
                groups: groups(carried.into_iter()),
                namespaces: Namespaces::All,
                labels: Vec::new(),
                condition: terms.condition(),
            });
        }
    }
}

/// What each object has that one of the rules selects.
#[derive(Default)]
struct Terms {
    /// Whether a rule selects objects of which nothing can be told.
    everything: bool,
    /// Labels by key, with one of these values; with any, if there are none.
    labels: BTreeMap<String, BTreeSet<String>>,
    names: BTreeSet<String>,
    name_prefixes: BTreeSet<String>,
    namespace_prefixes: BTreeSet<String>,
}

impl Terms {
    /// Adds what tells the objects of a rule, and says whether there was room for it.
    fn add(&mut self, Selecting { rule, labels }: &Selecting<'_>, room: &mut Room) -> bool {
        let entry =
            |kind: char, text: &str, more: usize| (format!("{kind}{text}"), text.len() + QUOTES + more);
        let by_value = labels.iter().find(|requirement| requirement.operator == "In");
        let by_key = labels.iter().find(|requirement| requirement.operator == "Exists");
        if let Some(requirement) = by_value.or(by_key) {
            let values = requirement.values.as_deref().unwrap_or_default();
            let of_key = |value: &String| (format!("v{} {value}", requirement.key), value.len() + QUOTES);
            let key = entry('k', &requirement.key, LABEL_TERM);
            if !room.take(std::iter::once(key).chain(values.iter().map(of_key))) {
                return false;
            }
            match self.labels.get_mut(&requirement.key) {
                // Any value does already.
                Some(known) if known.is_empty() || values.is_empty() => known.clear(),
                Some(known) => known.extend(values.iter().cloned()),
                None => drop(self.labels.insert(requirement.key.clone(), values.iter().cloned().collect())),
            }
            return true;
        }
        if let Some(prefix) = rule.namespace_prefix.as_deref() {
            let fits = room.take([entry('n', prefix, 0)].into_iter());
            if fits {
                self.namespace_prefixes.insert(prefix.to_owned());
            }
            return fits;
        }
        if let Some(names) = &rule.names {
            let entries = names.exact.iter().chain(&names.prefixes).map(|name| entry('o', name, 0));
            let fits = room.take(entries);
            if fits {
                self.names.extend(names.exact.iter().cloned());
                self.name_prefixes.extend(names.prefixes.iter().cloned());
            }
            return fits;
        }
        self.everything = true;
        true
    }

    /// Whether an object may be selected by one of the rules; `None` if any object may.
    fn condition(&self) -> Option<Expression> {
        if self.everything {
            return None;
        }
        let starts = |prefixes: &BTreeSet<String>, field: Expression| {
            (!prefixes.is_empty()).then(|| cel!("{}.exists(p, {}.startsWith(p))", strings(prefixes), field))
        };
        let (any_value, some_values): (Vec<_>, Vec<_>) =
            self.labels.iter().partition(|(_, values)| values.is_empty());
        let mut terms: Vec<Expression> = some_values
            .into_iter()
            .map(|(key, values)| {
                let key = string(key);
                cel!(
                    "has(oldObject.metadata.labels) && {0} in oldObject.metadata.labels \
                     && oldObject.metadata.labels[{0}] in {1}",
                    key,
                    strings(values)
                )
            })
            .collect();
        if !any_value.is_empty() {
            let keys = strings(any_value.iter().map(|(key, _)| key));
            terms.push(cel!(
                "has(oldObject.metadata.labels) && {}.exists(k, k in oldObject.metadata.labels)",
                keys
            ));
        }
        if !self.names.is_empty() {
            terms.push(cel!("oldObject.metadata.name in {}", strings(&self.names)));
        }
        terms.extend(starts(&self.name_prefixes, cel!("oldObject.metadata.name")));
        if let Some(term) = starts(&self.namespace_prefixes, cel!("oldObject.metadata.namespace")) {
            terms.push(cel!("has(oldObject.metadata.namespace) && {}", term));
        }
        Some(any(terms))
    }
}

/// Room for so many bytes, in which each entry is counted once.
struct Room {
    left: usize,
    entries: BTreeSet<String>,
}

impl Room {
    fn new(left: usize) -> Self {
        Self { left, entries: BTreeSet::new() }
    }

    /// Takes room for entries of some sizes, all or none, and says whether there was enough.
    fn take(&mut self, entries: impl Iterator<Item = (String, usize)>) -> bool {
        let new: BTreeMap<String, usize> =
            entries.filter(|(entry, _)| !self.entries.contains(entry)).collect();
        let needed: usize = new.values().sum();
        let fits = needed <= self.left;
        if fits {
            self.left -= needed;
            self.entries.extend(new.into_keys());
        }
        fits
    }
}

/// The groups of some rules; all, if one of them is for all.
fn groups<'a>(rules: impl Iterator<Item = &'a Every>) -> BTreeSet<String> {
    let groups: BTreeSet<String> = rules.map(Every::group).collect();
    if groups.contains("*") { BTreeSet::from(["*".to_owned()]) } else { groups }
}

fn size(labels: &[LabelSelectorRequirement]) -> usize {
    let values = |requirement: &LabelSelectorRequirement| {
        requirement.values.iter().flatten().map(|value| value.len() + QUOTES).sum::<usize>()
    };
    labels.iter().map(|requirement| requirement.key.len() + QUOTES + values(requirement)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_api::labels::{self, look_up};
    use palisade_api::protection::{Rule, rules_of};
    use palisade_cluster::Discovery;
    use palisade_engine::Protections;
    use serde_json::{Value, json};

    use crate::registration::coverage::Coverage;

    /// The rules of protections that are as old as they come.
    fn rules(selectors: impl IntoIterator<Item = Value>) -> Vec<Rule> {
        let of = |(number, selector): (usize, Value)| {
            let spec = json!({"protectedResources": [{"resourceSelector": [selector]}]});
            rules_of(&format!("p{number:05}"), &serde_json::from_value(spec).unwrap()).unwrap()
        };
        selectors.into_iter().enumerate().flat_map(of).collect()
    }

    fn merged(selectors: impl IntoIterator<Item = Value>) -> EveryKinds {
        let protections = Protections::new(rules(selectors), Vec::new());
        let coverage = Coverage::of(&protections, &Discovery::default()).in_order(str::to_owned);
        EveryKinds::of(&coverage.every)
    }

    fn namespaces(names: &[&str]) -> Namespaces {
        Namespaces::Some(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn namespaces_share_a_webhook_and_a_few_selectors_have_their_own() {
        let merged = merged([
            json!({"kind": "*", "namespace": "a"}),
            json!({"kind": "*", "namespace": "b"}),
            json!({"kind": "*", "labelSelector": {"matchLabels": {"app": "db"}}}),
            json!({"kind": "*", "labelSelector": {"matchLabels": {"app": "db"}}, "name": "x"}),
        ]);
        assert_eq!(merged.webhooks.len(), 2);
        assert_eq!(merged.webhooks[0].namespaces, namespaces(&["a", "b"]));
        assert_eq!(merged.webhooks[1].labels.len(), 1);
        assert!(merged.webhooks.iter().all(|webhook| webhook.condition.is_none()));
        assert!(merged.left_out.is_empty());
    }

    #[test]
    fn what_is_told_by_names_or_the_beginnings_of_namespaces_is_no_rule_for_everything() {
        let merged = merged([
            json!({"kind": "*", "name": "it's"}),
            json!({"kind": "*", "name": "db-*"}),
            json!({"kind": "*", "namespace": "prod-*"}),
        ]);
        let [webhook] = &merged.webhooks[..] else { panic!("{merged:?}") };
        assert_eq!(
            webhook.condition.as_ref().unwrap().as_str(),
            "oldObject.metadata.name in [\"it's\"] || [\"db-\"].exists(p, oldObject.metadata.name.startsWith(p)) || \
             has(oldObject.metadata.namespace) && [\"prod-\"].exists(p, oldObject.metadata.namespace.startsWith(p))"
        );
        let anything =
            self::merged([json!({"kind": "*", "name": "x"}), json!({"kind": "*", "name": "*-db"})]);
        assert_eq!(anything.webhooks[0].condition, None, "nothing can be told of it");
    }

    #[test]
    fn many_selectors_become_one_condition() {
        let merged = merged((0..1_000).map(|number| match number % 2 {
            0 => json!({"kind": "*", "labelSelector": {"matchLabels": {"app": format!("a{number}")}}}),
            _ => json!({"kind": "*", "labelSelector": {"matchExpressions": [
                {"key": format!("example.com/k{number}"), "operator": "Exists"}]}}),
        }));
        assert_eq!(merged.webhooks.len(), OWN_SELECTORS + 1);
        let condition = merged.webhooks[OWN_SELECTORS].condition.as_ref().unwrap().as_str();
        assert!(condition.len() <= LARGEST_CONDITION);
        assert!(condition.contains("\"app\" in oldObject.metadata.labels"), "{condition}");
        // The youngest are left out, and no others.
        let first = merged.left_out.first().unwrap();
        assert!(merged.left_out.len() > 100 && **first > *"p00200", "{first}");
    }

    #[test]
    fn too_many_namespaces_are_left_out_from_the_youngest_on() {
        let all = |count: usize| {
            (0..count).map(|number| json!({"kind": "*", "namespace": format!("team-{number:015}")}))
        };
        assert!(merged(all(1_000)).left_out.is_empty());
        let many = merged(all(2_000));
        let Namespaces::Some(names) = &many.webhooks[0].namespaces else { panic!("widened") };
        assert_eq!(names.len() + many.left_out.len(), 2_000);
        assert!(many.left_out.contains("p01999") && !many.left_out.contains("p00999"));
        // What fits is not affected by what does not.
        let mut first = all(2_000).collect::<Vec<_>>();
        first.push(json!({"kind": "*", "name": "x"}));
        assert!(!merged(first).left_out.contains("p02000"));
    }

    /// Whether a webhook asks about an object, as the API server would find.
    fn asks(
        webhook: &EveryKind,
        namespace: &str,
        name: &str,
        object: &BTreeMap<String, String>,
        terms: &Terms,
    ) -> bool {
        let in_namespace = match &webhook.namespaces {
            Namespaces::All => true,
            Namespaces::Some(names) => names.contains(namespace),
        };
        let labelled = webhook.labels.iter().all(|requirement| {
            let expression = labels::LabelExpression {
                key: requirement.key.clone(),
                operator: serde_json::from_value(json!(requirement.operator)).unwrap(),
                values: requirement.values.clone().unwrap_or_default(),
            };
            let selector =
                labels::LabelSelector { match_labels: BTreeMap::new(), match_expressions: vec![expression] };
            LabelRule::of(&selector).matches(look_up(object))
        });
        let told = webhook.condition.is_none()
            || terms.everything
            || terms.labels.iter().any(|(key, values)| {
                object.get(key).is_some_and(|value| values.is_empty() || values.contains(value))
            })
            || terms.names.contains(name)
            || terms.name_prefixes.iter().any(|prefix| name.starts_with(prefix))
            || terms.namespace_prefixes.iter().any(|prefix| namespace.starts_with(prefix));
        in_namespace && labelled && told
    }

    proptest::proptest! {
        /// Merging never loses an object that a rule selects.
        #[test]
        fn whatever_a_rule_selects_is_asked_about(
            choices in proptest::collection::vec((0..6_u8, 0..4_u8, 0..4_u8), 1..40),
            namespace in 0..4_u8, name in 0..4_u8, key in 0..4_u8, value in 0..4_u8,
        ) {
            let selector = |&(shape, one, other): &(u8, u8, u8)| {
                let labels = json!({"matchLabels": {format!("k{one}"): format!("v{other}")}});
                let keyed = json!({"matchExpressions": [{"key": format!("k{one}"), "operator": "Exists"},
                    {"key": "gone", "operator": "DoesNotExist"}]});
                match shape {
                    0 => json!({"kind": "*", "namespace": format!("n{one}")}),
                    1 => json!({"kind": "*", "namespace": format!("n{one}"), "labelSelector": labels}),
                    2 => json!({"kind": "*", "labelSelector": labels}),
                    3 => json!({"kind": "*", "labelSelector": keyed}),
                    4 => json!({"kind": "*", "name": format!("o{one}"), "namespace": "n*"}),
                    _ => json!({"kind": "*", "name": format!("o{one}*")}),
                }
            };
            let rules = rules(choices.iter().map(selector));
            let coverage = Coverage::of(&Protections::new(rules.clone(), Vec::new()), &Discovery::default());
            let merged = EveryKinds::of(&coverage.every);
            let mut terms = Terms::default();
            let mut room = Room::new(usize::MAX);
            for rule in &coverage.every {
                let labels = sound(rule.labels().map(LabelRule::expressions).unwrap_or_default()).unwrap();
                if rule.namespace.is_none() {
                    terms.add(&Selecting { rule, labels }, &mut room);
                }
            }
            let (namespace, name) = (format!("n{namespace}"), format!("o{name}"));
            let labels = BTreeMap::from([(format!("k{key}"), format!("v{value}"))]);
            let selected = rules.iter().any(|rule| {
                rule.selects(("", "ConfigMap"), Some(&namespace), &name, look_up(&labels))
            });
            let asked = merged.webhooks.iter().any(|webhook| asks(webhook, &namespace, &name, &labels, &terms));
            proptest::prop_assert!(!selected || asked, "{merged:?}");
            proptest::prop_assert!(merged.webhooks.len() <= 2 * OWN_SELECTORS + 1);
            proptest::prop_assert!(merged.left_out.is_empty());
        }
    }
}
