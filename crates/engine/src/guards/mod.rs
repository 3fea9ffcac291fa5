//! The guards, one file each. To add one: its file here, and its line in [`ask`].

mod labels;

use crate::Settings;
use crate::review::Subject;
use crate::verdict::{Finding, Warning};
use crate::world::World;

/// Asks every guard that is switched on.
pub(crate) async fn ask(
    subject: &Subject<'_>,
    world: &impl World,
    settings: &Settings,
) -> (Vec<Finding>, Vec<Warning>) {
    let mut findings = Vec::new();
    let mut warnings = Vec::new();
    if settings.gates.resources_deletion_protection {
        labels::ask(subject, world, &mut findings, &mut warnings).await;
    }
    (findings, warnings)
}
