//! The guards, one file each. To add one: its file here, and its line in [`ask`].

mod cascade;
mod labels;
mod protections;

use crate::Settings;
use crate::review::{Review, Subject};
use crate::verdict::Found;
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
    if gates.resources_deletion_protection {
        labels::ask(subject, world, &mut found).await;
        protections::ask(subject, &review.user, world, &mut found).await;
    }
    // Where nothing is protected, nothing is guarded with it.
    if gates.resources_deletion_protection && gates.cascade_protection {
        cascade::ask(subject, review, world, &mut found).await;
    }
    found
}
