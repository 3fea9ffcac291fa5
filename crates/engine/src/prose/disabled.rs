//! What is said while a feature is off.

use palisade_api::gates::Gate;

use super::{subject, written};
use crate::verdict::{About, Disabled};

/// What somebody should know who writes a policy, or deletes an object, that a feature is for.
pub(super) fn warning(about: &About, disabled: &Disabled) -> String {
    let subject = subject(about);
    match disabled {
        Disabled::Policy(gate) => format!("{subject} is not enforced: {}", gate.off_message()),
        Disabled::InvalidPolicy(why) => {
            format!("{subject} is not valid, and can't be enforced once its feature is on: {why}")
        }
        Disabled::Mark(mark) => format!(
            "{subject} is not protected from deletion: {} has no effect while feature gate {} is off",
            written(mark),
            Gate::ResourcesDeletionProtection.name(),
        ),
        Disabled::Cascade => format!(
            "{subject}: nobody looks for protected objects that go with it: feature gate {} is off",
            Gate::CascadeProtection.name(),
        ),
    }
}
