//! Budgets: so many pods of an application stay available, whoever takes one down.
//!
//! A pod that is available (running, ready, not going, not marked as being upgraded or exempt) is lost by a deletion,
//! an eviction, an update in place that restarts it, a readiness gate that somebody closes, a status by which somebody
//! other than Kubernetes says that it has ended or is not ready, a label
//! `unavailable-pod.kruise.io/…`, or the loss of the labels or the owner that a budget chose it by. Each costs one of
//! what every `PodUnavailableBudget` that the pod belongs to allows.
//! A pod that is not available costs nothing, and in a namespace that is terminating nothing does.
//!
//! What a loss costs is taken only if nothing else refuses it, and never on a dry run.

use palisade_api::budget::{self, Budget};

use crate::pod::{Loss, PodState, is_available, loss_by_update};
use crate::review::{Action, Review, Subject};
use crate::verdict::{Code, Finding, Found, Guard, Lift, Reason};
use crate::world::Unknown;

/// A budget that does not allow it, or that could not be asked.
pub(super) fn finding(reason: Reason) -> Finding {
    let lift = Some(Lift::SetAnnotation(budget::NO_PROTECT, "true"));
    Finding { guard: Guard::Budgets, code: Code::TooManyRequests, reason, lift }
}

/// How the pod would be lost, if it is available and would be.
pub(super) fn loss(subject: &Subject<'_>, review: &Review<'_>) -> Result<Option<Loss>, Unknown> {
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
        Action::Create(_)
        | Action::Change { .. }
        | Action::Scale { .. }
        | Action::Declare { .. }
        | Action::Other => Ok(None),
    }
}

/// Whether a budget says something.
pub(super) fn check(subject: &Subject<'_>) -> Found {
    let mut found = Found::default();
    if let Err(why) = subject.object.spec_json().and_then(|spec| Budget::read(&spec)) {
        found.findings.push(Finding::invalid(Guard::Budgets, why));
    }
    found
}
