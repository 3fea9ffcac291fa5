//! Protections: an administrator protects objects by `ResourceDeletionProtection`.
//!
//! A deletion of an object that a rule selects is refused, warned about or recorded, as the rule's action says;
//! with mode `Cascading`, only while something would go with the object. Whom the protection exempts, it does not
//! concern. The rules are in [`palisade_api::protection`].
//!
//! A label that a rule selects by is part of the protection: a change of labels by which an object would no longer be
//! selected is treated as a deletion, unless the rule ignores label changes.

use palisade_api::protection::{Action, Mode, Rule};

use crate::guards::labels::{group_not_searched, held};
use crate::object::Metadata;
use crate::review::{Subject, User};
use crate::verdict::{Code, Finding, Found, Guard, Lift, Matched, Reason, Ruled, Warning};
use crate::world::{Answer, Unknown, World};

pub(super) async fn ask(subject: &Subject<'_>, user: &User<'_>, world: &impl World, found: &mut Found) {
    let protections = world.protections();
    for unreadable in &protections.unreadable {
        let unknown = Unknown::new(
            format!("what ResourceDeletionProtection {} protects", unreadable.name),
            &unreadable.why,
        );
        found.findings.push(Finding::unreadable(Guard::Protections, unknown));
    }
    let rules = protections.of_kind(&subject.kind).collect();
    match selecting(subject, &subject.object.metadata, rules, world).await {
        Ok(selecting) => answer(subject, user, selecting, Event::Deletion, world, found).await,
        Err(unknown) => found.findings.push(Finding::unreadable(Guard::Protections, unknown)),
    }
}

/// The same for a change of labels by which protections would no longer select the subject: labels could be taken away,
/// and the object deleted after that. The API server asks about it only where a protection could be read, so that those
/// that could not do not count here.
pub(super) async fn ask_about_labels(
    subject: &Subject<'_>,
    new: &Metadata<'_>,
    user: &User<'_>,
    world: &impl World,
    found: &mut Found,
) {
    let old = &subject.object.metadata;
    let selects = |rule: &Rule, metadata: &Metadata<'_>| {
        rule.selects(subject.namespace(), subject.name(), |key| metadata.labels.get(key))
    };
    let of_kind = || world.protections().of_kind(&subject.kind);
    // One of its other rules may still select it.
    let ends = |rule: &&Rule| {
        rule.guards_labels
            && selects(rule, old)
            && !of_kind().any(|other| {
                other.protection == rule.protection
                    && (other.namespace_labels.is_none() || other.namespace_labels == rule.namespace_labels)
                    && selects(other, new)
            })
    };
    let ended: Vec<&Rule> = of_kind().filter(ends).collect();
    if ended.is_empty() {
        return;
    }
    match selecting(subject, old, ended, world).await {
        Ok(ended) => answer(subject, user, ended, Event::LabelChange, world, found).await,
        Err(unknown) => found.findings.push(Finding::unreadable(Guard::Protections, unknown)),
    }
}

/// What rules are asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Deletion,
    LabelChange,
}

/// What rules that select the subject say.
async fn answer(
    subject: &Subject<'_>,
    user: &User<'_>,
    selecting: Vec<&Rule>,
    event: Event,
    world: &impl World,
    found: &mut Found,
) {
    let groups = || user.groups.iter().map(AsRef::as_ref);
    let concerned: Vec<&Rule> =
        selecting.into_iter().filter(|rule| !rule.exempt.cover(&user.name, groups())).collect();
    let cascading = concerned.iter().any(|rule| rule.mode == Mode::Cascading);
    let not_searched = if cascading { group_not_searched(subject, world) } else { None };
    let held = if cascading && not_searched.is_none() { held(subject, world).await } else { None };
    // Of several rules of one protection, one is enough.
    let mut seen: Vec<&str> = Vec::new();
    for rule in concerned {
        if seen.contains(&rule.protection.as_str()) {
            continue;
        }
        let ruled = Ruled { protection: rule.protection.clone(), message: rule.message.clone() };
        let outcome = match (rule.mode, &held) {
            (Mode::Always, _) => Ok(Vec::new()),
            (Mode::Cascading, None) if not_searched.is_some() => {
                found.not_searched(not_searched.clone());
                continue;
            }
            (Mode::Cascading, None) => {
                // It protects from no deletion, and so from no change of labels.
                if event == Event::Deletion {
                    found.warnings.push(Warning::RuleNotKnown(ruled));
                }
                continue;
            }
            (Mode::Cascading, Some(Ok(held))) if held.is_empty() => continue,
            (Mode::Cascading, Some(held)) => held.clone(),
        };
        seen.push(&rule.protection);
        found.matched.push(Matched { protection: rule.protection.clone(), action: rule.action });
        match (rule.action, outcome) {
            (Action::Deny, Ok(held)) => {
                let reason = match event {
                    Event::Deletion => Reason::Ruled(ruled, held),
                    Event::LabelChange => Reason::Unselected(ruled, held),
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
                Event::LabelChange => Warning::Unselected(ruled),
            }),
            (Action::Audit, _) => {}
        }
    }
}

/// Those of some rules that select the subject with these labels, in the protections' order.
async fn selecting<'a>(
    subject: &Subject<'_>,
    metadata: &Metadata<'_>,
    rules: Vec<&'a Rule>,
    world: &impl World,
) -> Answer<Vec<&'a Rule>> {
    let labels = |key: &str| metadata.labels.get(key);
    let selects = |rule: &&Rule| rule.selects(subject.namespace(), subject.name(), labels);
    let mut selecting: Vec<&Rule> = rules.into_iter().filter(selects).collect();
    // Asked only if a rule wants to know.
    if let Some(namespace) = subject.namespace()
        && selecting.iter().any(|rule| rule.namespace_labels.is_some())
    {
        let labels = world.namespace_labels(namespace).await?;
        let look_up = palisade_api::labels::look_up(&labels);
        selecting.retain(|rule| rule.namespace_labels.as_ref().is_none_or(|wanted| wanted.matches(&look_up)));
    }
    selecting.sort_by(|one, other| one.protection.cmp(&other.protection));
    Ok(selecting)
}

fn exempting(rule: &Rule, user: &User<'_>) -> Lift {
    Lift::Command(rule.exempting.command(&rule.protection, &user.name))
}
