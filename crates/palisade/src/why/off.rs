//! What `palisade why` says of features that are off.

use palisade_api::gates::{FeatureGates, Gate};
use palisade_engine::{Code, Guard, Kind, Verdict, prose};

/// The features that are off, of those that may protect an object of a kind.
pub(super) fn features_off(gates: FeatureGates, kind: &Kind<'_>) -> Vec<Gate> {
    let is_pod = kind.group.is_empty() && kind.kind == "Pod";
    let concerns = |gate: &Gate| match gate {
        Gate::PodUnavailableBudget | Gate::PodDeletionFlowControl => is_pod,
        Gate::ResourcesDeletionProtection
        | Gate::CascadeProtection
        | Gate::CriticalService
        | Gate::ComponentProtection => true,
    };
    gates.off().filter(concerns).collect()
}

/// That a feature is off, and what follows.
pub(super) fn note(gate: Gate) -> String {
    let what = match gate {
        Gate::ResourcesDeletionProtection => {
            "protection labels and ResourceDeletionProtections refuse nothing"
        }
        Gate::CascadeProtection => "nobody looks for protected objects that go with it",
        Gate::PodUnavailableBudget => "PodUnavailableBudgets refuse nothing",
        Gate::PodDeletionFlowControl => "PodDeletionFlowControls refuse nothing",
        Gate::CriticalService => "CriticalServices refuse nothing",
        Gate::ComponentProtection => {
            "ComponentProtections and the protection of etcd-druid's components refuse nothing"
        }
    };
    format!("feature gate {} is off: {what}", gate.name())
}

/// Names in a row.
pub(super) fn names(gates: &[Gate]) -> String {
    gates.iter().map(|gate| gate.name()).collect::<Vec<_>>().join(", ")
}

/// What would refuse it if all features were on, and which of those that are off that takes.
pub(super) fn would_refuse(
    verdict: &Verdict,
    with_all_on: Verdict,
    off: &[Gate],
) -> Option<(Vec<Gate>, String)> {
    let mut with_all_on = with_all_on;
    // What could not be found out is nobody's refusal.
    with_all_on
        .findings
        .retain(|finding| finding.code != Code::Unavailable && !verdict.findings.contains(finding));
    let is_needed =
        |gate: &Gate| with_all_on.findings.iter().any(|finding| gates_of(finding.guard).contains(gate));
    let needed: Vec<Gate> = off.iter().filter(|gate| is_needed(gate)).copied().collect();
    let message = prose::refusal(&with_all_on)?;
    (!needed.is_empty()).then_some((needed, message))
}

/// The features that a guard belongs to.
fn gates_of(guard: Guard) -> &'static [Gate] {
    match guard {
        Guard::Labels | Guard::Protections => &[Gate::ResourcesDeletionProtection],
        Guard::Cascade => &[Gate::CascadeProtection, Gate::ResourcesDeletionProtection],
        Guard::Critical => &[Gate::CriticalService],
        Guard::Components => &[Gate::ComponentProtection],
        Guard::Budgets => &[Gate::PodUnavailableBudget],
        Guard::Flow => &[Gate::PodDeletionFlowControl],
    }
}
