//! The guards, one file each. To add one: its file here, and its line in [`ask`].

mod budgets;
mod cascade;
mod labels;
mod protections;

use crate::Settings;
use crate::review::{Action, Review, Subject};
use crate::verdict::{Found, Verdict};
use crate::world::World;

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
        labels::ask(subject, world, &mut found).await;
        protections::ask(subject, &review.user, world, &mut found).await;
    }
    // Where nothing is protected, nothing is guarded with it.
    if removed && gates.resources_deletion_protection && gates.cascade_protection {
        cascade::ask(subject, review, world, &mut found).await;
    }
    // Last, since it spends what the others would waste.
    if gates.pod_unavailable_budget && subject.kind.is_pod() {
        budgets::ask(subject, review, world, &mut found).await;
    }
    found
}

/// Whether a policy that is being written says something.
pub(crate) async fn check_policy(
    subject: &Subject<'_>,
    is_new: bool,
    review: &Review<'_>,
    world: &impl World,
    settings: &Settings,
) -> Verdict {
    if !settings.gates.pod_unavailable_budget {
        return Verdict::allow();
    }
    let found = budgets::check(subject);
    let happens = is_new && found.findings.is_empty() && !review.dry_run;
    if let Some(namespace) = subject.namespace().filter(|_| happens) {
        world.await_budget(namespace, subject.name()).await;
    }
    Verdict::new(subject, found)
}
