//! Webhooks for deletions of what owns something protected, and of nothing else.
//!
//! The API server is told the first characters of the owners' uids, in one text that it searches: that costs some
//! microseconds, however many they are. The more there are, the fewer characters of each are told, so that all of it has
//! a bound. Then it asks about some deletions that concern nobody, and a replica finds nothing.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhook;
use palisade_cluster::{Ancestor, Ancestors, UID_PREFIX};

use super::cel::{Expression, cel, string};
use super::{Wanted, rule};
use crate::registration::coverage::Namespaces;

const PATH: &str = "/admit/owners";
/// For owners whose deletion is never refused.
const WARNING_PATH: &str = "/admit/labelled-dependents";
const CONDITION: &str = "owner";
/// How long one text may be: the API server takes expressions of 100,000 characters.
pub(super) const LONGEST_TEXT: usize = 90_000;
/// How many namespaces are named before all are meant.
const NAMESPACES_TOLD: usize = 200;
/// Characters of a uid that are told, from the most to the fewest.
const PREFIXES: [usize; 5] = [UID_PREFIX, 6, 5, 4, 3];
const SEPARATOR: &str = "|";

/// What is known of owners.
#[derive(Clone, Copy, Debug)]
pub enum Owners<'a> {
    Known(&'a Ancestors),
    /// Nothing yet, so that the webhooks for them stay as they are.
    Registered(&'a [ValidatingWebhook]),
}

/// Owners that are asked about in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    /// Pods are a group of their own: they are many, and come and go.
    Pods,
    Others,
    /// Those that go with a warning.
    Warned,
}

impl Group {
    const ALL: [Self; 3] = [Self::Pods, Self::Others, Self::Warned];

    fn of(ancestor: &Ancestor) -> Self {
        let Ancestor { group, plural, guarded, .. } = ancestor;
        match guarded {
            false => Self::Warned,
            true if group.is_empty() && plural == "pods" => Self::Pods,
            true => Self::Others,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Pods => "owners-pods",
            Self::Others => "owners",
            Self::Warned => "owners-warned",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Pods | Self::Others => PATH,
            Self::Warned => WARNING_PATH,
        }
    }

    /// How many webhooks there are for it at most.
    fn most(self) -> usize {
        match self {
            Self::Pods | Self::Warned => 1,
            Self::Others => 4,
        }
    }

    /// `owners-2.palisade.dev`
    fn webhook_name(self, number: usize) -> String {
        if number == 0 { self.name().to_owned() } else { format!("{}-{number}", self.name()) }
    }
}

impl Wanted<'_> {
    pub(super) fn owners(&self) -> Vec<ValidatingWebhook> {
        match self.owners {
            Owners::Known(ancestors) => {
                Group::ALL.into_iter().flat_map(|group| self.owners_of(group, ancestors)).collect()
            }
            Owners::Registered(webhooks) => self.owners_as_registered(webhooks),
        }
    }

    fn owners_of(&self, group: Group, Ancestors(all): &Ancestors) -> Vec<ValidatingWebhook> {
        let owners = || all.iter().filter(|(_, ancestor)| Group::of(ancestor) == group);
        let is_ours = |ancestor: &Ancestor| ancestor.namespace.as_deref() == Some(self.own_namespace);
        let others = || owners().filter(|(_, ancestor)| !is_ours(ancestor));
        let resources: BTreeSet<(&str, &str)> =
            others().map(|(_, owner)| (&*owner.group, &*owner.plural)).collect();
        if resources.is_empty() {
            return Vec::new();
        }
        // Owners without a namespace are asked about whatever a selector of namespaces says.
        let named: BTreeSet<&String> = others().filter_map(|(_, owner)| owner.namespace.as_ref()).collect();
        let namespaces = if named.len() <= NAMESPACES_TOLD {
            Namespaces::Some(named.into_iter().cloned().collect())
        } else {
            Namespaces::All
        };
        let uids: Vec<&str> = others().map(|(uid, _)| &**uid).collect();
        let texts = texts(&uids, group.most());
        let webhook = |(number, text): (usize, (usize, String))| ValidatingWebhook {
            rules: Some(resources.iter().map(|(group, plural)| rule("DELETE", group, plural)).collect()),
            namespace_selector: Some(self.namespaces(&namespaces)),
            match_conditions: Some(vec![owns(text.0, &text.1).condition(CONDITION)]),
            ..self.owners_webhook(group, number)
        };
        texts.into_iter().enumerate().map(webhook).collect()
    }

    /// What is in place, in the form that it should have.
    fn owners_as_registered(&self, registered: &[ValidatingWebhook]) -> Vec<ValidatingWebhook> {
        let numbered = |group: Group| (0..group.most()).map(move |number| (group, number));
        let kept = Group::ALL.into_iter().flat_map(numbered).filter_map(|(group, number)| {
            let webhook = self.owners_webhook(group, number);
            let live = registered.iter().find(|live| live.name == webhook.name)?;
            let mut conditions = live.match_conditions.clone().unwrap_or_default();
            conditions.retain(|condition| condition.name == CONDITION);
            Some(ValidatingWebhook {
                rules: live.rules.clone(),
                namespace_selector: live.namespace_selector.clone(),
                match_conditions: (!conditions.is_empty()).then_some(conditions),
                ..webhook
            })
        });
        kept.collect()
    }

    fn owners_webhook(&self, group: Group, number: usize) -> ValidatingWebhook {
        let webhook = self.webhook_at(&group.webhook_name(number), group.path());
        match group {
            Group::Pods | Group::Others => webhook,
            // A warning is not worth an administrator's time, let alone a refusal.
            Group::Warned => ValidatingWebhook {
                failure_policy: Some("Ignore".to_owned()),
                timeout_seconds: Some(2),
                ..webhook
            },
        }
    }
}

/// The first characters of uids in as many texts as there may be, and how many of each: `|0f9a7c52|11aa5b01`.
fn texts(uids: &[&str], most: usize) -> Vec<(usize, String)> {
    let prefixes =
        |length: usize| -> BTreeSet<&str> { uids.iter().filter_map(|uid| uid.get(..length)).collect() };
    for length in PREFIXES {
        let prefixes = prefixes(length);
        let in_one = LONGEST_TEXT / (length + 1);
        // The shortest always fit: there are not so many.
        if prefixes.len() > in_one * most {
            continue;
        }
        let all: Vec<&str> = prefixes.into_iter().collect();
        let text = |some: &[&str]| some.iter().flat_map(|prefix| [SEPARATOR, *prefix]).collect();
        return all.chunks(in_one).map(|some| (length, text(some))).collect();
    }
    Vec::new()
}

/// Whether an object's uid begins like one in a text.
fn owns(length: usize, text: &str) -> Expression {
    let prefix = match length {
        UID_PREFIX => cel!("oldObject.metadata.uid.substring(0, 8)"),
        6 => cel!("oldObject.metadata.uid.substring(0, 6)"),
        5 => cel!("oldObject.metadata.uid.substring(0, 5)"),
        4 => cel!("oldObject.metadata.uid.substring(0, 4)"),
        _ => cel!("oldObject.metadata.uid.substring(0, 3)"),
    };
    cel!("oldObject.metadata.uid.size() >= 8 && {}.contains('|' + {})", string(text), prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::plan::plan;
    use crate::registration::plan::tests::plan_as;

    fn uid(number: usize) -> String {
        // Spread like random ones.
        let first = u32::try_from(number).unwrap().wrapping_mul(2_654_435_769);
        format!("{first:08x}-0000-4000-8000-{number:012x}")
    }

    fn ancestor(plural: &str, namespace: Option<&str>, guarded: bool) -> Ancestor {
        Ancestor {
            group: String::new(),
            plural: plural.to_owned(),
            namespace: namespace.map(str::to_owned),
            guarded,
        }
    }

    fn many(count: usize) -> Ancestors {
        Ancestors(
            (0..count).map(|number| (uid(number), ancestor("configmaps", Some("shop"), true))).collect(),
        )
    }

    fn planned(owners: Owners<'_>) -> Vec<ValidatingWebhook> {
        let webhooks = plan_as(|wanted| plan(&Wanted { owners, ..wanted.clone() }));
        webhooks.into_iter().filter(|webhook| webhook.name.starts_with("owners")).collect()
    }

    fn expression(webhook: &ValidatingWebhook) -> &str {
        &webhook.match_conditions.as_ref().unwrap()[0].expression
    }

    #[test]
    fn without_owners_nothing_is_asked_about() {
        assert!(planned(Owners::Known(&Ancestors::default())).is_empty());
        let own = Ancestors([(uid(1), ancestor("configmaps", Some("palisade-system"), true))].into());
        assert!(planned(Owners::Known(&own)).is_empty(), "ours is never looked at");
    }

    #[test]
    fn only_the_kinds_and_namespaces_of_owners_are_asked_about() {
        let ancestors = Ancestors(
            [
                (uid(1), ancestor("configmaps", Some("shop"), true)),
                (uid(2), ancestor("secrets", Some("bank"), true)),
                (uid(3), ancestor("pods", Some("shop"), true)),
                (uid(4), ancestor("nodes", None, true)),
                (uid(5), ancestor("nodes", None, false)),
            ]
            .into(),
        );
        let webhooks = planned(Owners::Known(&ancestors));
        let told = |webhook: &ValidatingWebhook| {
            let resources: Vec<String> = webhook
                .rules
                .iter()
                .flatten()
                .map(|rule| rule.resources.as_ref().unwrap()[0].clone())
                .collect();
            let selector = webhook.namespace_selector.clone().unwrap().match_expressions.unwrap().remove(0);
            let namespaces = selector.values.unwrap_or_default();
            let policy = webhook.failure_policy.clone().unwrap();
            (webhook.name.clone(), resources.join(","), namespaces.join(","), policy)
        };
        let expected = |name: &str, resources: &str, namespaces: &str, policy: &str| {
            (format!("{name}.palisade.dev"), resources.to_owned(), namespaces.to_owned(), policy.to_owned())
        };
        assert_eq!(
            webhooks.iter().map(told).collect::<Vec<_>>(),
            [
                expected("owners-pods", "pods", "shop", "Fail"),
                expected("owners", "configmaps,nodes,secrets", "bank,shop", "Fail"),
                expected("owners-warned", "nodes", "", "Ignore"),
                // So that pods that a cluster needs are not held up.
                expected("owners-pods-system-pods", "pods", "shop", "Ignore"),
            ]
        );
        assert_eq!(
            expression(&webhooks[0]),
            format!(
                "oldObject.metadata.uid.size() >= 8 && \"|{}\".contains('|' + oldObject.metadata.uid.substring(0, 8))",
                &uid(3)[..8]
            )
        );
    }

    #[test]
    fn all_owners_are_told_and_the_more_there_are_the_less_of_each() {
        for (count, webhooks, length) in [
            (1, 1, 8),
            (10_000, 1, 8),
            (10_001, 2, 8),
            (40_000, 4, 8),
            (41_000, 4, 6),
            (55_000, 4, 5),
            (70_000, 4, 4),
            (200_000, 4, 4),
        ] {
            let ancestors = many(count);
            let planned = planned(Owners::Known(&ancestors));
            assert_eq!(planned.len(), webhooks, "{count}");
            let expressions: Vec<&str> = planned.iter().map(expression).collect();
            assert!(expressions.iter().all(|expression| expression.len() < 100_000));
            assert!(
                expressions
                    .iter()
                    .all(|expression| expression.ends_with(&format!("substring(0, {length}))"))),
                "{count}"
            );
            let told: BTreeSet<&str> = expressions
                .iter()
                .flat_map(|expression| expression.split('"').nth(1).unwrap().split('|').skip(1))
                .collect();
            assert!(ancestors.0.keys().all(|uid| told.contains(&uid[..length])), "{count}");
            let size: usize = expressions.iter().map(|expression| expression.len()).sum();
            assert!(size < 400_000, "{count}: {size}");
        }
    }

    #[test]
    fn with_many_namespaces_all_are_asked_about() {
        let ancestors = Ancestors(
            (0..=NAMESPACES_TOLD)
                .map(|number| (uid(number), ancestor("configmaps", Some(&format!("n{number}")), true)))
                .collect(),
        );
        let selector = planned(Owners::Known(&ancestors)).remove(0).namespace_selector.unwrap();
        assert_eq!(selector.match_expressions.unwrap()[0].operator, "NotIn");
    }

    #[test]
    fn what_is_registered_stays_until_owners_are_known() {
        let mut registered = planned(Owners::Known(&many(12_000)));
        let known = registered.clone();
        for webhook in &mut registered {
            webhook.client_config.ca_bundle = None;
            webhook.match_conditions.as_mut().unwrap().push(cel!("true").condition("another"));
        }
        let mut all = registered.clone();
        all.push(ValidatingWebhook { name: "cascade.palisade.dev".to_owned(), ..registered[0].clone() });
        assert_eq!(planned(Owners::Registered(&all)), known);
        assert!(planned(Owners::Registered(&[])).is_empty());
    }
}
