//! The guards, one file each. To add one: its file here, and its line in [`ask`].
//!
//! Budgets and flow controls are asked together: both are charged for a pod, or neither.

mod budgets;
mod cascade;
mod cascading;
mod churn;
pub(crate) mod components;
pub(crate) mod copies;
mod critical;
pub(crate) mod disabled;
pub(crate) mod flow;
pub(crate) mod labels;
mod lifted;
mod protections;

use palisade_api::{budget, components as component, critical as service, flow as api};

use crate::Settings;
use crate::pod::Loss;
use crate::review::{Action, Review, Subject};
use crate::verdict::{Finding, Found, Guard, Reason, Verdict, Warning};
use crate::world::{Declared, Refused, Withdrawal, World};

/// Asks every guard that is switched on.
pub(crate) async fn ask(
    subject: &Subject<'_>,
    review: &Review<'_>,
    world: &impl World,
    settings: &Settings,
) -> Found {
    let mut found = Found::default();
    let gates = settings.gates;
    let removed = matches!(review.action, Action::Delete(_) | Action::Evict { .. });
    if removed && gates.resources_deletion_protection {
        labels::ask(subject, &review.user, world, &mut found).await;
        protections::ask(subject, review, world, &mut found).await;
    }
    if let Action::Update { new, .. } | Action::Change { new, .. } = &review.action
        && gates.resources_deletion_protection
    {
        let asked = protections::ask_about_change(subject, &new.metadata, &review.user, world, &mut found);
        Box::pin(asked).await;
    }
    // Where nothing is protected, nothing is guarded with it.
    if removed && gates.resources_deletion_protection && gates.cascade_protection {
        cascade::ask(subject, review, world, &mut found).await;
    }
    if removed && gates.critical_service {
        critical::ask(subject, review, world, settings, &mut found).await;
    }
    if gates.component_protection {
        components::ask(subject, review, world, &mut found).await;
    }
    if gates.resources_deletion_protection {
        found.lifted = lifted::lifted(&subject.object, review);
    }
    // Last, since it spends what the others would waste.
    if subject.kind.is_pod() {
        spend(subject, review, world, settings, &mut found).await;
    }
    found
}

/// Charges the loss of a pod to budgets and flow controls together.
async fn spend(
    subject: &Subject<'_>,
    review: &Review<'_>,
    world: &impl World,
    settings: &Settings,
    found: &mut Found,
) {
    let gates = settings.gates;
    let loss = if gates.pod_unavailable_budget { budgets::loss(subject, review) } else { Ok(None) };
    let remover = if gates.pod_deletion_flow_control { flow::remover(subject, review) } else { Ok(None) };
    let (loss, removed_by) = match (loss, remover) {
        (Ok(None), Ok(None)) => return,
        (Ok(loss), Ok(remover)) => (loss, remover),
        (Err(unknown), _) => return found.findings.push(Finding::unreadable(Guard::Budgets, unknown)),
        (_, Err(unknown)) => return found.findings.push(Finding::unreadable(Guard::Flow, unknown)),
    };
    let really = found.findings.is_empty() && !review.dry_run;
    let mut withdrawal = Withdrawal {
        pod: &subject.object.metadata,
        parting: match &review.action {
            Action::Update { new, .. } if loss == Some(Loss::Parting) => Some(&new.metadata),
            _ => None,
        },
        loss: loss.clone(),
        removed_by,
        stays: matches!(review.action, Action::Update { .. }),
        expects: review.expects,
        is_read: matches!(review.action, Action::Evict { .. }),
    };
    let mut spent = world.spend(&withdrawal, really).await;
    let by_budgets = |refused: &Refused| matches!(refused, Refused::Budget(_) | Refused::BudgetsUnknown(_));
    // In a namespace that is terminating nothing stays available.
    if spent.refused.iter().any(by_budgets)
        && let Some(namespace) = subject.namespace()
        && world.is_terminating(namespace).await
    {
        withdrawal.loss = None;
        spent = world.spend(&withdrawal, really).await;
    }
    let loss = loss.unwrap_or(Loss::Deletion);
    found.findings.extend(spent.refused.into_iter().map(|refused| match refused {
        Refused::Budget(standing) => budgets::finding(Reason::Spent(loss.clone(), standing)),
        Refused::BudgetsUnknown(unknown) => budgets::finding(Reason::SpentUnknown(loss.clone(), unknown)),
        Refused::Flow(throttled) => flow::finding(throttled),
        Refused::FlowUnknown(unknown) => flow::unknown(unknown),
    }));
    flow::note(spent.passed, found);
}

/// Whether a policy may be written whose labels or owners change.
pub(crate) async fn check_change(
    old: &Subject<'_>,
    new: &Subject<'_>,
    review: &Review<'_>,
    world: &impl World,
    settings: &Settings,
) -> Verdict {
    let mut found = Found::default();
    if settings.gates.resources_deletion_protection && !old.is_already_going() && !settings.owns_subject(old)
    {
        protections::ask_about_change(old, &new.object.metadata, &review.user, world, &mut found).await;
    }
    Verdict::new(old, found)
}

/// Whether a policy that is being written says something.
pub(crate) async fn check_policy(
    subject: &Subject<'_>,
    old: Option<&Subject<'_>>,
    review: &Review<'_>,
    world: &impl World,
    settings: &Settings,
) -> Verdict {
    let is_new = old.is_none();
    let (gates, name) = (settings.gates, subject.name());
    let provider;
    let (mut found, declared) = match &*subject.kind.plural {
        budget::PLURAL if gates.pod_unavailable_budget => {
            let namespace = subject.namespace().unwrap_or_default();
            (budgets::check(subject, old, review, world), Declared::Budget { namespace, name })
        }
        api::PLURAL if gates.pod_deletion_flow_control => {
            (flow::check(subject), Declared::FlowControl { name })
        }
        component::PLURAL if gates.component_protection => {
            return Verdict::new(subject, components::check(subject));
        }
        service::PLURAL if gates.critical_service && !subject.is_already_going() => {
            let (found, read) = Box::pin(critical::check(subject, world, settings)).await;
            let Some(read) = read else { return Verdict::new(subject, found) };
            provider = read;
            (found, Declared::CriticalService { name, provider: &provider, is_new })
        }
        _ => return Verdict::allow(),
    };
    let awaited = is_new || matches!(declared, Declared::CriticalService { .. });
    let will_hold = awaited && found.findings.is_empty() && !review.dry_run;
    if will_hold && !world.await_policy(declared).await {
        found.warnings.push(Warning::NotHeldYet);
    }
    Verdict::new(subject, found)
}
