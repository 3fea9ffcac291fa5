//! Protections: an administrator protects objects by `ResourceDeletionProtection`.
//!
//! A deletion of an object that a rule selects is refused, warned about or recorded, as the rule's action says;
//! with mode `Cascading`, only while something would go with the object. Whom the protection exempts, it does not
//! concern. The rules are in [`palisade_api::protection`].

use palisade_api::protection::{Action, Mode, Rule};

use crate::guards::labels::held;
use crate::protections::Protections;
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
    let selecting = match selecting(subject, protections, world).await {
        Ok(selecting) => selecting,
        Err(unknown) => {
            found.findings.push(Finding::unreadable(Guard::Protections, unknown));
            return;
        }
    };
    let groups = || user.groups.iter().map(AsRef::as_ref);
    let concerned: Vec<&Rule> =
        selecting.into_iter().filter(|rule| !rule.exempt.cover(&user.name, groups())).collect();
    let cascading = concerned.iter().any(|rule| rule.mode == Mode::Cascading);
    let held = if cascading { held(subject, world).await } else { None };
    // Of several rules of one protection, one is enough.
    let mut seen: Vec<&str> = Vec::new();
    for rule in concerned {
        if seen.contains(&rule.protection.as_str()) {
            continue;
        }
        let ruled = Ruled { protection: rule.protection.clone(), message: rule.message.clone() };
        let outcome = match (rule.mode, &held) {
            (Mode::Always, _) => Ok(Vec::new()),
            (Mode::Cascading, None) => {
                found.warnings.push(Warning::RuleNotKnown(ruled));
                continue;
            }
            (Mode::Cascading, Some(Ok(held))) if held.is_empty() => continue,
            (Mode::Cascading, Some(held)) => held.clone(),
        };
        seen.push(&rule.protection);
        found.matched.push(Matched { protection: rule.protection.clone(), action: rule.action });
        match (rule.action, outcome) {
            (Action::Deny, Ok(held)) => {
                found.findings.push(finding(rule, user, Code::Forbidden, Reason::Ruled(ruled, held)));
            }
            (Action::Deny, Err(unknown)) => {
                found.findings.push(finding(
                    rule,
                    user,
                    Code::Unavailable,
                    Reason::RuledUnknown(ruled, unknown),
                ));
            }
            (Action::Warn, _) => found.warnings.push(Warning::Ruled(ruled)),
            (Action::Audit, _) => {}
        }
    }
}

/// The rules that select the subject, in the protections' order.
async fn selecting<'a>(
    subject: &Subject<'_>,
    protections: &'a Protections,
    world: &impl World,
) -> Answer<Vec<&'a Rule>> {
    let metadata = &subject.object.metadata;
    let labels = |key: &str| metadata.labels.get(key);
    let mut selecting: Vec<&Rule> = protections
        .of_kind(&subject.kind)
        .filter(|rule| rule.selects(subject.namespace(), subject.name(), labels))
        .collect();
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

fn finding(rule: &Rule, user: &User<'_>, code: Code, reason: Reason) -> Finding {
    let lift = Lift::Command(rule.exempting.command(&rule.protection, &user.name));
    Finding { guard: Guard::Protections, code, reason, lift: Some(lift) }
}
