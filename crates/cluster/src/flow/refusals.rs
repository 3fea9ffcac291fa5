//! How many deletions were beyond a limit in the last hour.

use jiff::{SignedDuration, Timestamp};
use palisade_api::flow::{Refusals, Status};

use crate::seconds;

/// How finely they are kept, and for how long.
const REFUSALS: i64 = 300;
const HOUR: i64 = 3_600;

/// Notes deletions beyond a limit.
pub(crate) fn note_refusals(status: &mut Status, pods: u64, now: Timestamp) {
    let since =
        Timestamp::from_second(now.as_second().div_euclid(REFUSALS) * REFUSALS).unwrap_or(now).to_string();
    match status.refusals.iter_mut().find(|refusals| refusals.since == since) {
        Some(refusals) => refusals.pods += pods,
        None => status.refusals.push(Refusals { since, pods }),
    }
    status.last_refused = Some(seconds(now));
    keep_refusals(status, now);
}

/// Forgets those of more than an hour ago.
pub(super) fn keep_refusals(status: &mut Status, now: Timestamp) {
    let is_recent = |refusals: &Refusals| {
        let since = refusals.since.parse::<Timestamp>();
        since.is_ok_and(|since| now.duration_since(since).abs() < SignedDuration::from_secs(HOUR))
    };
    status.refusals.retain(is_recent);
    status.refused_last_hour = status.refusals.iter().map(|refusals| refusals.pods).sum();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_last_hour_are_kept() {
        let mut status = Status::default();
        for minute in 0..180 {
            note_refusals(&mut status, 2, Timestamp::from_second(minute * 60).unwrap());
        }
        assert!((110..=130).contains(&status.refused_last_hour), "{}", status.refused_last_hour);
        assert!(status.refusals.len() <= 13);
        assert_eq!(status.last_refused.as_deref(), Some("1970-01-01T02:59:00Z"));
    }
}
