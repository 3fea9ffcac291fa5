//! What a flow control's status should say.

use jiff::{SignedDuration, Timestamp};
use palisade_api::action::Action;
use palisade_api::flow::{RuleStatus, Status};
use palisade_cluster::flow::Known;

use crate::conditions::set_condition;
use crate::registration::{Carried, flow_name};

const ENFORCED: &str = "Enforced";
const TRIPPED: &str = "Tripped";
/// So long nothing must have been refused before it is said that there is room again.
const QUIET: SignedDuration = SignedDuration::from_secs(10);

/// The status that follows from what was observed; without it, from what is wrong with the flow control.
pub(super) fn status(known: &Known, observed: Option<Status>, carried: &Carried, now: Timestamp) -> Status {
    let mut status = observed.unwrap_or_else(|| known.status.clone());
    let mut conditions = std::mem::take(&mut status.conditions);
    let mut set = |kind: &str, holds: bool, reason: &str, message: String| {
        set_condition(&mut conditions, kind, holds, reason, message, known.generation, now);
    };
    match &known.control {
        Err(why) => set(ENFORCED, false, "Unreadable", format!("{why}; until then no pod may be deleted")),
        Ok(_) if carried.holds(&flow_name(&known.name), &known.uid, known.generation) => {
            set(ENFORCED, true, "Registered", "the API server asks about deletions of pods".to_owned());
        }
        Ok(_) => set(ENFORCED, false, "NotRegistered", "the registration does not carry it yet".to_owned()),
    }
    let refused = status.last_refused.as_deref().and_then(|last| last.parse::<Timestamp>().ok());
    let lately = refused.is_some_and(|last| now.duration_since(last) < QUIET);
    let full = status.rules.iter().any(|rule| rule.remaining == 0);
    // Once it has tripped, a slot that somebody waits for is no room yet.
    if lately || is_tripped(&known.status) && full {
        let limit = tightest(&status).map(|rule| format!("{} in {}", rule.limit, rule.interval));
        let message = format!("deletions are beyond the limit of {}", limit.unwrap_or_default());
        set(TRIPPED, true, "LimitReached", message);
    } else {
        set(TRIPPED, false, "WithinLimits", "deletions are within all limits".to_owned());
    }
    status.conditions = conditions;
    status
}

/// Whether deletions are beyond a limit.
pub(super) fn is_tripped(status: &Status) -> bool {
    status.conditions.iter().any(|condition| condition.r#type == TRIPPED && condition.status == "True")
}

/// What is said when that changes.
pub(super) fn note(known: &Known, status: &Status) -> String {
    let Some(RuleStatus { interval, limit, used, .. }) = tightest(status) else { return String::new() };
    let pods = if *used == 1 { "pod was" } else { "pods were" };
    let counted = match limit {
        0 => format!("it stops all deletions of pods (limit 0 in {interval})"),
        _ => format!("{used} {pods} deleted in the last {interval} (limit {limit})"),
    };
    if !is_tripped(status) {
        return format!("there is room again: {counted}");
    }
    let action = known.control.as_ref().map(|control| control.action).unwrap_or_default();
    let become_of = match action {
        Action::Deny => "are refused",
        Action::Warn => "pass with a warning",
        Action::Audit => "pass, and are recorded",
    };
    format!("{counted}: further deletions {become_of}")
}

fn tightest(status: &Status) -> Option<&RuleStatus> {
    status.rules.iter().min_by_key(|rule| rule.remaining)
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_api::flow::Control;
    use serde_json::json;

    fn known(status: Status) -> Known {
        Known {
            name: "default".to_owned(),
            uid: "u".to_owned(),
            generation: Some(1),
            resource_version: "1".to_owned(),
            control: Control::read(&json!({"limitRules": [{"interval": "1m", "limit": 2}]})),
            status,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// With so many of two used, and the last refusal at a second.
    fn observed(used: i64, refused: Option<i64>) -> Status {
        let rule = RuleStatus {
            interval: "1m".to_owned(),
            limit: 2,
            used,
            remaining: 2 - used,
            ..RuleStatus::default()
        };
        Status {
            rules: vec![rule],
            last_refused: refused.map(|second| at(second).to_string()),
            ..Status::default()
        }
    }

    fn planned(before: &Status, observed: Status, second: i64) -> Status {
        let observed = Status { conditions: before.conditions.clone(), ..observed };
        status(&known(before.clone()), Some(observed), &Carried::default(), at(second))
    }

    #[test]
    fn it_trips_when_something_is_refused_and_recovers_when_there_has_been_room_for_a_while() {
        let calm = planned(&Status::default(), observed(2, None), 100);
        assert!(!is_tripped(&calm), "full is not refused");
        let tripped = planned(&calm, observed(2, Some(100)), 101);
        assert!(is_tripped(&tripped));
        assert_eq!(
            note(&known(calm), &tripped),
            "2 pods were deleted in the last 1m (limit 2): further deletions are refused"
        );
        assert!(
            is_tripped(&planned(&tripped, observed(1, Some(100)), 105)),
            "somebody may be waiting for it"
        );
        assert!(is_tripped(&planned(&tripped, observed(2, Some(100)), 130)), "there is no room");
        let recovered = planned(&tripped, observed(1, Some(100)), 130);
        assert!(!is_tripped(&recovered));
        assert_eq!(
            note(&known(tripped), &recovered),
            "there is room again: 1 pod was deleted in the last 1m (limit 2)"
        );
        assert!(
            !is_tripped(&planned(&recovered, observed(2, Some(100)), 140)),
            "full again is not refused again"
        );
    }

    #[test]
    fn it_is_enforced_once_the_registration_carries_this_generation() {
        let enforced = |carried: &Carried, known: &Known| {
            let status = status(known, None, carried, at(0));
            let condition = status.conditions.iter().find(|condition| condition.r#type == ENFORCED).unwrap();
            (condition.status.clone(), condition.reason.clone())
        };
        let mut known = known(Status::default());
        let pair = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
        assert_eq!(
            enforced(&Carried::of([("flow:default", "u", Some(1))]), &known),
            pair("True", "Registered")
        );
        assert_eq!(
            enforced(&Carried::of([("default", "u", Some(1))]), &known),
            pair("False", "NotRegistered")
        );
        known.generation = Some(2);
        assert_eq!(
            enforced(&Carried::of([("flow:default", "u", Some(1))]), &known),
            pair("False", "NotRegistered")
        );
        known.control = Err("no".to_owned());
        assert_eq!(
            enforced(&Carried::of([("flow:default", "u", Some(2))]), &known),
            pair("False", "Unreadable")
        );
    }
}
