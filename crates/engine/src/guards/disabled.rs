//! Features that are off: nothing is refused, and people are told what would be enforced if they were on.
//!
//! - Whoever creates or changes a policy is told that its feature is off, and also if the policy says nothing.
//! - Whoever deletes an object with a protection label or annotation is told that it has no effect.
//! - Whoever deletes a Namespace or a `CustomResourceDefinition` is told that nobody looks at what goes with it.
//!
//! Asks nobody: the review says it all.

use palisade_api::budget::Budget;
use palisade_api::components::Components;
use palisade_api::critical::Service;
use palisade_api::flow::Control;
use palisade_api::gates::Gate;
use palisade_api::versions::PolicyKind;

use crate::guards::labels;
use crate::object::Object;
use crate::review::{Action, Kind, Portion, Review, Subject};
use crate::verdict::{About, Disabled, Found, Verdict, Warning};

/// What to say while a feature is off. Never refuses.
pub fn warn_of_disabled(review: &Review<'_>, gate: Gate) -> Verdict {
    match &review.action {
        Action::Declare { subject, .. } | Action::Create(subject) => {
            warn_of_policy(&subject.kind, &subject.object, gate)
        }
        Action::Change { subject, new, part: Portion::Whole } => warn_of_policy(&subject.kind, new, gate),
        Action::Delete(subject) if !subject.is_already_going() => warn_of_deletion(subject, gate),
        _ => Verdict::allow(),
    }
}

fn warn_of_policy(kind: &Kind<'_>, policy: &Object<'_>, gate: Gate) -> Verdict {
    let Some(policies) =
        gate.policies().filter(|policies| policies.resource() == (&*kind.group, &*kind.plural))
    else {
        return Verdict::allow();
    };
    // Somebody takes its finalizers away.
    if policy.metadata.deletion_timestamp.is_some() {
        return Verdict::allow();
    }
    let mut warnings = vec![Warning::Disabled(Disabled::Policy(gate))];
    warnings.extend(check(policies, policy).err().map(Disabled::InvalidPolicy).map(Warning::Disabled));
    Verdict::about(About::of(kind, policy), Found { warnings, ..Found::default() })
}

/// Whether a policy says something, as far as the policy alone tells.
fn check(kind: PolicyKind, policy: &Object<'_>) -> Result<(), String> {
    let spec = policy.spec_json()?;
    match kind {
        PolicyKind::Budget => Budget::read(&spec).map(drop),
        PolicyKind::FlowControl => Control::read(&spec).map(drop),
        PolicyKind::CriticalService => Service::read(&spec).map(drop),
        PolicyKind::ComponentProtection => Components::read(&spec).map(drop),
        // The schema checks all that there is to check.
        PolicyKind::Protection => Ok(()),
    }
}

fn warn_of_deletion(subject: &Subject<'_>, gate: Gate) -> Verdict {
    let takes_others = subject.kind.is_namespace() || subject.kind.is_definition();
    let warnings = match gate {
        Gate::ResourcesDeletionProtection => {
            labels::marks(subject).map(|mark| Warning::Disabled(Disabled::Mark(mark))).collect()
        }
        Gate::CascadeProtection if takes_others => vec![Warning::Disabled(Disabled::Cascade)],
        _ => Vec::new(),
    };
    Verdict::new(subject, Found { warnings, ..Found::default() })
}
