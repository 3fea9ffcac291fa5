//! The guards, one file each. To add one: its file here, and its line in [`ask`].

mod cascade;
mod labels;
mod protections;

use crate::Settings;
use crate::review::{Subject, User};
use crate::verdict::Found;
use crate::world::World;

/// Asks every guard that is switched on.
pub(crate) async fn ask(
    subject: &Subject<'_>,
    user: &User<'_>,
    world: &impl World,
    settings: &Settings,
) -> Found {
    let mut found = Found::default();
    if settings.gates.resources_deletion_protection {
        labels::ask(subject, world, &mut found).await;
        protections::ask(subject, user, world, &mut found).await;
    }
    if settings.gates.cascade_protection {
        cascade::ask(subject, world, &mut found).await;
    }
    found
}
