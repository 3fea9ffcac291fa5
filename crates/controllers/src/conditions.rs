//! Conditions of a status.

use jiff::Timestamp;
use palisade_api::condition::Condition;
use palisade_cluster::seconds;

/// Whether something holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Yes,
    No,
    Unknown,
}

impl From<bool> for Holds {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// Sets a condition, and keeps the time of its last change where it did not.
pub(crate) fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: &str,
    holds: impl Into<Holds>,
    reason: &str,
    message: String,
    generation: Option<i64>,
    now: Timestamp,
) {
    let status = match holds.into() {
        Holds::Yes => "True",
        Holds::No => "False",
        Holds::Unknown => "Unknown",
    };
    let known = conditions.iter().position(|condition| condition.r#type == kind);
    let since = known
        .filter(|&index| conditions[index].status == status)
        .map_or_else(|| seconds(now), |index| conditions[index].last_transition_time.clone());
    let new = Condition {
        r#type: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since,
        observed_generation: generation,
    };
    match known {
        Some(index) => conditions[index] = new,
        None => conditions.push(new),
    }
}
