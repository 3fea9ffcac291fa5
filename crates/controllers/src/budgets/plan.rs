//! What a budget's status should say.

use jiff::Timestamp;
use palisade_api::budget::{self, Budget, Chosen, Status, WrittenBy};
use palisade_cluster::budgets::{Known, Observed};

use crate::conditions::set_condition;
use crate::registration::{Carried, budget_name};

const ENFORCED: &str = "Enforced";
const TARGET_FOUND: &str = "TargetFound";
const BOUNDED: &str = "Bounded";

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
    match bound(known, budget, status.total_replicas) {
        Some((reason, message)) => {
            set_condition(&mut status.conditions, BOUNDED, true, reason, message, known.generation, now);
        }
        None => status.conditions.retain(|condition| condition.r#type != BOUNDED),
    }
    let mut set = |kind: &str, holds: bool, reason: &str, message: String| {
        set_condition(&mut status.conditions, kind, holds, reason, message, known.generation, now);
    };
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

/// Why it lets more pods go than its limit says, if so.
fn bound(known: &Known, budget: &Budget, total: i64) -> Option<(&'static str, String)> {
    if !budget.is_bounded(total) {
        return None;
    }
    let (field, value) = budget.limit.written();
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pods = match budget.min_unavailable() {
        1 => "1 pod".to_owned(),
        least => format!("{least} pods"),
    };
    let message = format!("{field}: {value} would let fewer pods go, and so it lets {pods} go");
    if known.is_generated {
        let message = format!("{message}, as every budget does that annotations ask for");
        return Some(("Generated", message));
    }
    let generation = known.generation.unwrap_or_default();
    let (namespace, name) = (&known.key.namespace, &known.key.name);
    Some((
        "NotByAdministrator",
        format!(
            "{message}: no administrator is known to have written it. An administrator can approve of it: kubectl annotate pub \
             {name} -n {namespace} {}={generation} --overwrite",
            budget::APPROVED
        ),
    ))
}

/// A status that says that no administrator wrote the budget: nobody has said so in time.
pub(super) fn unsigned(known: &Known) -> Option<Status> {
    let written_by = Some(WrittenBy { generation: known.generation?, administrator: false });
    (!known.author.is_known()).then(|| Status { written_by, ..known.status.clone() })
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
