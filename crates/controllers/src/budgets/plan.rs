//! What a budget's status should say.

use jiff::Timestamp;
use palisade_api::budget::{Chosen, Status};
use palisade_cluster::budgets::{Known, Observed};

use crate::conditions::set_condition;
use crate::registration::{Carried, budget_name};

const ENFORCED: &str = "Enforced";
const TARGET_FOUND: &str = "TargetFound";

/// The status that follows from what was observed; without it, from what is wrong with the budget.
pub(super) fn status(known: &Known, observed: Option<Observed>, carried: &Carried, now: Timestamp) -> Status {
    let target_found = observed.as_ref().and_then(|observed| observed.target_found);
    let mut status = observed.map_or_else(|| known.status.clone(), |observed| observed.status);
    let mut set = |kind: &str, holds: bool, reason: &str, message: String| {
        set_condition(&mut status.conditions, kind, holds, reason, message, known.generation, now);
    };
    let budget = match &known.budget {
        Ok(budget) => budget,
        Err(why) => {
            set(
                ENFORCED,
                false,
                "Unreadable",
                format!("{why}; until then no pod of the namespace may be lost"),
            );
            return status;
        }
    };
    if is_carried(carried, known) {
        set(ENFORCED, true, "Registered", "the API server asks about its pods".to_owned());
    } else {
        set(ENFORCED, false, "NotRegistered", "the registration does not carry it yet".to_owned());
    }
    match (&budget.pods, target_found) {
        (Chosen::Of(target), Some(true)) => {
            set(TARGET_FOUND, true, "Found", format!("{} {} is there", target.kind, target.name));
        }
        (Chosen::Of(target), _) => {
            set(TARGET_FOUND, false, "NotFound", format!("there is no {} {}", target.kind, target.name));
        }
        (Chosen::Selected(_), _) => status.conditions.retain(|condition| condition.r#type != TARGET_FOUND),
    }
    status
}

/// Whether the registration carries a budget.
pub(super) fn is_carried(carried: &Carried, known: &Known) -> bool {
    carried.holds(&budget_name(&known.key), &known.uid, known.generation)
}

pub(super) fn is_enforced(status: &Status) -> bool {
    status.conditions.iter().any(|condition| condition.r#type == ENFORCED && condition.status == "True")
}

/// Whether a status has seen pods up to a revision that we have not.
pub(super) fn has_foresight(status: &Status, revision: u64) -> bool {
    let seen = status.observed_pods_resource_version.as_deref().and_then(|seen| seen.parse::<u64>().ok());
    seen.is_some_and(|seen| seen > revision)
}
