//! The decision.
//!
//! ```text
//! Review ──▶ decide ──▶ every guard that applies ──▶ Verdict
//!                         │
//!                         └─ asks the World in its own words
//! ```
//!
//! The same engine answers the webhook and `palisade why`; only the [`World`] behind it differs.
//! Guards answer with data, and [`prose`] alone turns data into sentences.

mod field_managers;
mod guards;
pub mod json;
mod object;
mod order;
mod pod;
pub mod prose;
mod protections;
mod review;
mod rights;
mod tally;
mod verdict;
mod world;

pub use guards::components::component_parent;
pub use guards::copies::SourceMarks;
pub use guards::disabled::warn_of_disabled;
pub use guards::labels::advise;
pub use object::{Definition, Metadata, Object, Owner, Pairs};
pub use order::{Deadlock, Own, carried_by_own, deadlock};
pub use pod::{Loss, Part, PodState, is_available, loss_by_update};
pub use protections::Protections;
pub use review::{Action, Expects, Kind, Portion, Propagation, Review, Subject, User};
pub use rights::{MissingRights, Right, Verb};
pub use tally::{Counted, LabelSet, Seen};
pub use verdict::{
    About, Blocker, Change, Code, Disabled, Doomed, Ending, Finding, Guard, Held, LeftBehind, Lift, Lifted,
    Managed, Matched, Needed, ObjectRef, OwnerRef, Parting, Reason, Ruled, State, Undecided, Verdict,
    Warning,
};
pub use world::{
    Answer, BudgetAuthor, Census, ClaimTemplate, Count, Critical, Declared, Dependents, Holders, Judged,
    OwnerState, Parent, Place, Present, ProtectedComponents, Refused, Scale, Scaled, Scope, Search, Spent,
    Standing, Throttled, Unknown, UnreadableKind, Withdrawal, World,
};

use palisade_api::gates::FeatureGates;

/// What holds for every review of one replica.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Palisade's own namespace, in which nothing is ever refused.
    pub own_namespace: String,
    pub gates: FeatureGates,
}

/// Whether the action under review may go ahead.
pub async fn decide(review: &Review<'_>, world: &impl World, settings: &Settings) -> Verdict {
    match &review.action {
        Action::Delete(subject) | Action::Change { subject, .. } => {
            judge(subject, review, world, settings).await
        }
        Action::Evict { namespace, name } if !settings.owns(namespace) => {
            let pod = match world.pod(namespace, name).await {
                Ok(Some(pod)) => pod,
                // The API server answers 404 by itself.
                Ok(None) => return Verdict::allow(),
                Err(unknown) => {
                    return Verdict::unreadable(&Subject::named(Kind::POD, namespace, name), unknown);
                }
            };
            match Object::parse(pod.as_bytes()) {
                Ok(object) => judge(&Subject { kind: Kind::POD, object }, review, world, settings).await,
                Err(error) => {
                    let unknown = Unknown::new("what the pod looks like", error.to_string());
                    Verdict::unreadable(&Subject::named(Kind::POD, namespace, name), unknown)
                }
            }
        }
        Action::Update { pod, .. } => judge(pod, review, world, settings).await,
        Action::Scale { group, plural, namespace, name } if !settings.owns(namespace) => {
            let kind =
                |kind: String| Kind { group: group.clone(), kind: kind.into(), plural: plural.clone() };
            let unreadable = |unknown: Unknown| {
                Verdict::unreadable(&Subject::named(kind(plural.to_string()), namespace, name), unknown)
            };
            let scaled = match world.scaled(group, plural, namespace, name).await {
                Ok(Some(scaled)) => scaled,
                // The API server answers 404 by itself.
                Ok(None) => return Verdict::allow(),
                Err(unknown) => return unreadable(unknown),
            };
            match Object::parse(scaled.object.as_bytes()) {
                Ok(object) => {
                    judge(&Subject { kind: kind(scaled.kind), object }, review, world, settings).await
                }
                Err(error) => unreadable(Unknown::new("what is scaled", error.to_string())),
            }
        }
        Action::Declare { subject, old } => {
            if let Some(old) = old {
                let verdict = Box::pin(guards::check_change(old, subject, review, world, settings)).await;
                if !verdict.is_allowed() {
                    return verdict;
                }
            }
            guards::check_policy(subject, old.as_ref(), review, world, settings).await
        }
        Action::Create(_) | Action::Evict { .. } | Action::Scale { .. } | Action::Other => Verdict::allow(),
    }
}

async fn judge(
    subject: &Subject<'_>,
    review: &Review<'_>,
    world: &impl World,
    settings: &Settings,
) -> Verdict {
    if subject.is_already_going() || settings.owns_subject(subject) {
        return Verdict::allow();
    }
    let mut found = guards::ask(subject, review, world, settings).await;
    if !found.findings.is_empty() {
        found.stays();
    }
    let mut verdict = Verdict::new(subject, found);
    if let (false, Some(namespace)) = (verdict.is_allowed(), subject.namespace())
        && world.is_terminating(namespace).await
    {
        verdict.awaited_by = Some(namespace.to_owned());
    }
    verdict.retry_after = guards::flow::retry_after(&verdict.findings, &review.user);
    verdict
}

impl Settings {
    fn owns(&self, namespace: &str) -> bool {
        namespace == self.own_namespace
    }

    fn owns_subject(&self, subject: &Subject<'_>) -> bool {
        match subject.namespace() {
            Some(namespace) => self.owns(namespace),
            None => subject.kind.is_namespace() && self.owns(subject.name()),
        }
    }
}
