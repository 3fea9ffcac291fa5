//! Protections: an administrator protects objects by `ResourceDeletionProtection`.
//!
//! A deletion of an object that a rule selects is refused, warned about or recorded, as the rule's action says;
//! with mode `Cascading`, only while something would go with the object. Whom the protection exempts, it does not
//! concern. The rules are in [`palisade_api::protection`].
//!
//! A rule for whatever there is is for people and their tools: see [`super::churn`] for what goes on under it.
//!
//! A label that a rule selects by is part of the protection: a change of labels by which an object would no longer be
//! selected, or would enter one of the rule's exceptions, is treated as a deletion, unless the rule ignores label changes.
//! So is a change of owners by which somebody would make an object a controller's, and free to go.

use std::collections::BTreeMap;

use palisade_api::labels::look_up;
use palisade_api::protection::{Action, Mode, Rule};

use crate::guards::cascading::held;
use crate::guards::churn;
use crate::object::Metadata;
use crate::review::{Review, Subject, User};
use crate::verdict::{Code, Ending, Finding, Found, Guard, Lift, Matched, Reason, Ruled, Warning};
use crate::world::{Answer, Unknown, World};

pub(super) async fn ask(subject: &Subject<'_>, review: &Review<'_>, world: &impl World, found: &mut Found) {
    let protections = world.protections();
    for unreadable in &protections.unreadable {
        let unknown = Unknown::new(
            format!("what ResourceDeletionProtection {} protects", unreadable.name),
            &unreadable.why,
        );
        found.findings.push(Finding::unreadable(Guard::Protections, unknown));
    }
    let metadata = &subject.object.metadata;
    match Selecting::of(subject, &[metadata], world).await {
        Ok(selecting) => {
            let selected = concerning(selecting.rules(metadata), &review.user);
            let (bound, unknown) = churn::binding(selected, subject, review, world).await;
            answer(subject, &review.user, bound, Event::Deletion, world, found).await;
            for (rule, unknown) in unknown.into_iter().filter(|(rule, _)| rule.action == Action::Deny) {
                let reason = Reason::RuledUnknown(ruled(rule), unknown);
                let lift = Some(exempting(rule, &review.user));
                found.findings.push(Finding::unknown(Guard::Protections, reason, lift));
            }
        }
        Err(unknown) => found.findings.push(Finding::unreadable(Guard::Protections, unknown)),
    }
}

/// The same for a change by which protections would no longer hold the subject: labels could be taken away, or a
/// controller named, and the object deleted after that. The API server asks about it only where a protection could be
/// read, so that those that could not do not count here.
pub(super) async fn ask_about_change(
    subject: &Subject<'_>,
    new: &Metadata<'_>,
    user: &User<'_>,
    world: &impl World,
    found: &mut Found,
) {
    let old = &subject.object.metadata;
    let relabelled = old.labels != new.labels;
    let adopted = churn::is_made_a_controllers(old, new) && !churn::may_adopt(subject, user);
    if !relabelled && !adopted {
        return;
    }
    let selecting = match Selecting::of(subject, &[old, new], world).await {
        Ok(selecting) => selecting,
        Err(unknown) => return found.findings.push(Finding::unreadable(Guard::Protections, unknown)),
    };
    let after = selecting.rules(new);
    // One of its other rules may still select it.
    let still = |rule: &Rule| after.iter().any(|other| other.protection == rule.protection);
    let (kept, ended): (Vec<&Rule>, Vec<&Rule>) =
        selecting.rules(old).into_iter().partition(|rule| still(rule));
    let ended = ended.into_iter().filter(|rule| rule.guards_labels).collect();
    answer(subject, user, concerning(ended, user), Event::Ending(Ending::Labels), world, found).await;
    if adopted {
        let broad = kept.into_iter().filter(|rule| rule.is_broad()).collect();
        answer(subject, user, concerning(broad, user), Event::Ending(Ending::Controller), world, found).await;
    }
}

/// The rules that may select a subject, and what they need to know of its namespace.
struct Selecting<'a, 'b> {
    subject: &'b Subject<'b>,
    rules: Vec<&'a Rule>,
    namespace_labels: BTreeMap<String, String>,
}

impl<'a, 'b> Selecting<'a, 'b> {
    /// Rules that may select the subject with one of these labels, in the protections' order.
    async fn of(
        subject: &'b Subject<'b>,
        any_of: &[&Metadata<'_>],
        world: &'a impl World,
    ) -> Answer<Selecting<'a, 'b>> {
        let selected = |rule: &&Rule| any_of.iter().any(|metadata| selects(rule, subject, metadata));
        let mut rules: Vec<&Rule> = world.protections().of_kind(&subject.kind).filter(selected).collect();
        rules.sort_by(|one, other| one.protection.cmp(&other.protection));
        // Asked only if a rule wants to know.
        let namespace_labels = match subject.namespace() {
            Some(namespace) if rules.iter().any(|rule| rule.asks_for_namespace_labels()) => {
                world.namespace_labels(namespace).await?
            }
            _ => BTreeMap::new(),
        };
        Ok(Self { subject, rules, namespace_labels })
    }

    /// Those that select the subject with these labels.
    fn rules(&self, metadata: &Metadata<'_>) -> Vec<&'a Rule> {
        let Self { subject, namespace_labels, .. } = self;
        let kind = (&*subject.kind.group, &*subject.kind.kind);
        let in_namespace = |rule: &&Rule| {
            let labels = |key: &str| metadata.labels.get(key);
            selects(rule, subject, metadata)
                && rule.selects_in(
                    kind,
                    subject.namespace(),
                    subject.name(),
                    labels,
                    look_up(namespace_labels),
                )
        };
        self.rules.iter().copied().filter(in_namespace).collect()
    }
}

fn selects(rule: &Rule, subject: &Subject<'_>, metadata: &Metadata<'_>) -> bool {
    let kind = (&*subject.kind.group, &*subject.kind.kind);
    rule.selects(kind, subject.namespace(), subject.name(), |key| metadata.labels.get(key))
}

/// What rules are asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Deletion,
    /// A change that would end the protection.
    Ending(Ending),
}

/// Those of some rules that do not exempt the user.
fn concerning<'a>(mut rules: Vec<&'a Rule>, user: &User<'_>) -> Vec<&'a Rule> {
    rules.retain(|rule| !rule.exempt.cover(&user.name, user.groups.iter().map(AsRef::as_ref)));
    rules
}

/// What rules that select the subject, and that concern the user, say.
async fn answer(
    subject: &Subject<'_>,
    user: &User<'_>,
    concerned: Vec<&Rule>,
    event: Event,
    world: &impl World,
    found: &mut Found,
) {
    let cascading = concerned.iter().any(|rule| rule.mode == Mode::Cascading);
    let held = if cascading { Box::pin(held(subject, user, world, found)).await } else { Ok(Vec::new()) };
    // Of several rules of one protection, one is enough.
    let mut seen: Vec<&str> = Vec::new();
    for rule in concerned {
        if seen.contains(&rule.protection.as_str()) {
            continue;
        }
        let ruled = ruled(rule);
        let outcome = match (rule.mode, &held) {
            (Mode::Always, _) => Ok(Vec::new()),
            (Mode::Cascading, Ok(held)) if held.is_empty() => continue,
            (Mode::Cascading, held) => held.clone(),
        };
        seen.push(&rule.protection);
        found.matched.push(Matched { protection: rule.protection.clone(), action: rule.action });
        match (rule.action, outcome) {
            (Action::Deny, Ok(held)) => {
                let reason = match event {
                    Event::Deletion => Reason::Ruled(ruled, held),
                    Event::Ending(ending) => Reason::Unselected(ruled, held, ending),
                };
                found.findings.push(Finding {
                    guard: Guard::Protections,
                    code: Code::Forbidden,
                    reason,
                    lift: Some(exempting(rule, user)),
                });
            }
            (Action::Deny, Err(unknown)) => {
                let lift = Some(exempting(rule, user));
                let reason = Reason::RuledUnknown(ruled, unknown);
                found.findings.push(Finding::unknown(Guard::Protections, reason, lift));
            }
            (Action::Warn, _) => found.warnings.push(match event {
                Event::Deletion => Warning::Ruled(ruled),
                Event::Ending(ending) => Warning::Unselected(ruled, ending),
            }),
            (Action::Audit, _) => {}
        }
    }
}

fn ruled(rule: &Rule) -> Ruled {
    Ruled { protection: rule.protection.clone(), message: rule.message.clone() }
}

fn exempting(rule: &Rule, user: &User<'_>) -> Lift {
    Lift::Command(rule.exempting.command(&rule.protection, &user.name))
}
