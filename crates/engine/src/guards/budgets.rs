//! Budgets: so many pods of an application stay available, whoever takes one down.
//!
//! A pod that is available (running, ready, not going, not marked as being upgraded or exempt) is lost by a deletion,
//! an eviction, an update in place that restarts it, a readiness gate that somebody closes, a status by which somebody
//! other than Kubernetes says that it has ended or is not ready, a label
//! `unavailable-pod.kruise.io/…`, or the loss of the labels or the owner that a budget chose it by. Each costs one of
//! what every `PodUnavailableBudget` that the pod belongs to allows.
//! A pod that is not available costs nothing, and in a namespace that is terminating nothing does.
//!
//! A budget that no administrator wrote lets at least one pod go, whatever it says: who may write budgets in one
//! namespace must not stop those who drain nodes. Who writes a budget is noted when it is written.
//!
//! What a loss costs is taken only if nothing else refuses it, and never on a dry run.

use palisade_api::budget::{self, Budget};

use crate::pod::{Loss, PodState, is_available, loss_by_update};
use crate::review::{Action, Review, Subject};
use crate::verdict::{Code, Finding, Found, Guard, Lift, Reason, Warning};
use crate::world::{BudgetAuthor, Unknown, World};

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

/// Whether a budget says something, and who says it.
pub(super) fn check(
    subject: &Subject<'_>,
    old: Option<&Subject<'_>>,
    review: &Review<'_>,
    world: &impl World,
) -> Found {
    let mut found = Found::default();
    match subject.object.spec_json().and_then(|spec| Budget::read(&spec)) {
        Err(why) => found.findings.push(Finding::invalid(Guard::Budgets, why)),
        Ok(budget) => {
            let Some(author) = author(subject, old, review) else { return found };
            let least = world.note_author(&author, !review.dry_run);
            if least > 0 && !author.administrator && budget.limit.lets_none_go() {
                found.warnings.push(Warning::Bounded { limit: budget.limit, least });
            }
        }
    }
    found
}

/// Who decides what a budget says, if this changes it. A change of nothing but its metadata does not make it anybody
/// else's, but for an administrator who approves of it.
fn author<'a>(
    subject: &'a Subject<'_>,
    old: Option<&Subject<'_>>,
    review: &Review<'_>,
) -> Option<BudgetAuthor<'a>> {
    let metadata = &subject.object.metadata;
    let generation = metadata.generation?;
    let administrator = review.expects.administrator;
    if let Some(old) = old.map(|old| &old.object.metadata)
        && old.generation == Some(generation)
    {
        let approval = metadata.annotations.get(budget::APPROVED);
        let approves = approval.is_some() && approval != old.annotations.get(budget::APPROVED);
        if !(administrator && approves) {
            return None;
        }
    }
    Some(BudgetAuthor {
        namespace: subject.namespace().unwrap_or_default(),
        name: subject.name(),
        uid: &metadata.uid,
        generation,
        spec: subject.object.spec().unwrap_or(b"{}"),
        administrator,
    })
}
