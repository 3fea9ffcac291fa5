//! Budgets: so many pods of an application stay available, whoever takes one down.
//!
//! A pod that is available (running, ready, not going, not marked as being upgraded or exempt) is lost by a deletion,
//! an eviction, an update in place that restarts it, a readiness gate that somebody closes, a label
//! `unavailable-pod.kruise.io/…`, or the loss of the labels or the owner that a budget chose it by. Each costs one of what every `PodUnavailableBudget` that the pod belongs to allows.
//! A pod that is not available costs nothing, and in a namespace that is terminating nothing does.
//!
//! What a loss costs is taken only if nothing else refuses it, and never on a dry run.

use palisade_api::budget::{self, Budget};

use crate::pod::{Loss, PodState, is_available, loss_by_update};
use crate::review::{Action, Review, Subject};
use crate::verdict::{Code, Finding, Found, Guard, Lift, Reason};
use crate::world::{Spent, Unknown, Withdrawal, World};

pub(super) async fn ask(subject: &Subject<'_>, review: &Review<'_>, world: &impl World, found: &mut Found) {
    let loss = match loss(subject, review) {
        Ok(Some(loss)) => loss,
        Ok(None) => return,
        Err(unknown) => {
            found.findings.push(Finding::unreadable(Guard::Budgets, unknown));
            return;
        }
    };
    let really = found.findings.is_empty() && !review.dry_run;
    let withdrawal = Withdrawal {
        pod: &subject.object.metadata,
        loss: loss.clone(),
        parting: match &review.action {
            Action::Update { new, .. } if loss == Loss::Parting => Some(&new.metadata),
            _ => None,
        },
        expects_budgets: review.expects_budgets,
    };
    let refused: Vec<Reason> = match world.spend(&withdrawal, really).await {
        Ok(Spent::Granted) => return,
        Ok(Spent::Refused(standings)) => {
            standings.into_iter().map(|standing| Reason::Spent(loss.clone(), standing)).collect()
        }
        Err(unknown) => vec![Reason::SpentUnknown(loss, unknown)],
    };
    if let Some(namespace) = subject.namespace()
        && world.is_terminating(namespace).await
    {
        return;
    }
    found.findings.extend(refused.into_iter().map(|reason| Finding {
        guard: Guard::Budgets,
        code: Code::TooManyRequests,
        reason,
        lift: Some(Lift::SetAnnotation(budget::NO_PROTECT, "true")),
    }));
}

/// How the pod would be lost, if it is available and would be.
fn loss(subject: &Subject<'_>, review: &Review<'_>) -> Result<Option<Loss>, Unknown> {
    let unreadable =
        |error: crate::json::Malformed| Unknown::new("whether the pod is available", error.to_string());
    let state = PodState::read(&subject.object).map_err(unreadable)?;
    if !is_available(&subject.object, &state) {
        return Ok(None);
    }
    match &review.action {
        Action::Delete(_) => Ok(Some(Loss::Deletion)),
        Action::Evict { .. } => Ok(Some(Loss::Eviction)),
        Action::Update { pod, new, part } => {
            loss_by_update(&pod.object, new, *part, &review.user).map_err(unreadable)
        }
        Action::Declare { .. } | Action::Other => Ok(None),
    }
}

/// Whether a budget says something.
pub(super) fn check(subject: &Subject<'_>) -> Found {
    let mut found = Found::default();
    let spec =
        serde_json::from_slice(subject.object.spec().unwrap_or(b"{}")).map_err(|error| error.to_string());
    if let Err(why) = spec.and_then(|spec| Budget::read(&spec)) {
        let reason = Reason::Invalid(why);
        found.findings.push(Finding { guard: Guard::Budgets, code: Code::Invalid, reason, lift: None });
    }
    found
}
