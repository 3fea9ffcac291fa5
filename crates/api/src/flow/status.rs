//! What Palisade says about a flow control, and the counts that all replicas share.
//!
//! Moments are kept as what a clock shows that nobody can set: a host's time since it started, in milliseconds, with
//! an id for that start. Every replica works out for itself how old at least something is by its own clock.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::condition::Condition;

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Of the rule with the least left: `12/50`.
    pub used: String,
    /// Its interval.
    pub interval: String,
    pub rules: Vec<RuleStatus>,
    /// What each clock showed when its replica last wrote.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub clocks: BTreeMap<String, i64>,
    /// Pods whose deletion was admitted and not seen yet, by uid.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pending: BTreeMap<String, Pending>,
    /// Pods whose deletion was admitted and nothing came of, and when that was seen: others come first.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lived_on: BTreeMap<String, Stamp>,
    /// Deletions beyond a limit in the last hour: refused, or let pass by `Warn` and `Audit`.
    pub refused_last_hour: u64,
    /// The same, by the time that they were in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusals>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refused: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// How one rule stands.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleStatus {
    pub interval: String,
    pub limit: i64,
    /// How many pods were deleted in the last interval.
    pub used: i64,
    pub remaining: i64,
    /// When there is something left again, if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_slot_at: Option<String>,
    /// What was admitted in the last interval, in a bounded number of batches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub admitted: Vec<Batch>,
}

/// How many were refused in five minutes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub struct Refusals {
    pub since: String,
    pub pods: u64,
}

/// A moment, by a clock: `1f3a09c2:81234567`.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(try_from = "String", into = "String")]
pub struct Stamp {
    pub clock: String,
    pub at: i64,
}

/// Pods that were admitted about the same time: `3@1f3a09c2:81234567-81235000`. Where the second is before the first,
/// nobody knows any more which pods they were.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(try_from = "String", into = "String")]
pub struct Batch {
    pub pods: i64,
    pub clock: String,
    /// When the first of them was.
    pub from: i64,
    /// When the last of them was. All count until this one is old enough.
    pub until: i64,
}

/// An admitted deletion: `shop/web-0@1f3a09c2:81234567`. `+2500` behind it says for how long it had been asked for by
/// then, a `?` that whoever asked may still give it back, and a `!` that it stays counted though the pod is there: it was
/// ended by its status.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(try_from = "String", into = "String")]
pub struct Pending {
    pub namespace: String,
    pub name: String,
    pub stamp: Stamp,
    pub asked_for: i64,
    pub tentative: bool,
    pub lasting: bool,
}

/// A word of a status that nobody of us wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" can't be read", self.0)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.clock, self.at)
    }
}

impl FromStr for Stamp {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let read = || {
            let (clock, at) = text.split_once(':')?;
            Some(Self { clock: clock.to_owned(), at: at.parse().ok()? })
        };
        read().ok_or_else(|| Unreadable(text.to_owned()))
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}-{}", self.pods, self.clock, self.from, self.until)
    }
}

impl FromStr for Batch {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let read = || {
            let (pods, rest) = text.split_once('@')?;
            let (clock, times) = rest.split_once(':')?;
            let (from, until) = times.split_once('-')?;
            let (pods, from, until) = (pods.parse().ok()?, from.parse().ok()?, until.parse().ok()?);
            Some(Self { pods, clock: clock.to_owned(), from, until })
        };
        read().ok_or_else(|| Unreadable(text.to_owned()))
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.namespace, self.name, self.stamp)?;
        if self.asked_for > 0 {
            write!(f, "+{}", self.asked_for)?;
        }
        f.write_str(if self.tentative { "?" } else { "" })?;
        f.write_str(if self.lasting { "!" } else { "" })
    }
}

impl FromStr for Pending {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let read = || {
            let (pod, stamp) = text.split_once('@')?;
            let (namespace, name) = pod.split_once('/')?;
            let (stamp, lasting) = stamp.strip_suffix('!').map_or((stamp, false), |stamp| (stamp, true));
            let (stamp, tentative) = stamp.strip_suffix('?').map_or((stamp, false), |stamp| (stamp, true));
            let (stamp, asked_for) = stamp.split_once('+').unwrap_or((stamp, "0"));
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            Some(Self {
                namespace,
                name,
                stamp: stamp.parse().ok()?,
                asked_for: asked_for.parse().ok()?,
                tentative,
                lasting,
            })
        };
        read().ok_or_else(|| Unreadable(text.to_owned()))
    }
}

macro_rules! as_text {
    ($($kind:ty),*) => {$(
        impl TryFrom<String> for $kind {
            type Error = Unreadable;

            fn try_from(text: String) -> Result<Self, Unreadable> {
                text.parse()
            }
        }

        impl From<$kind> for String {
            fn from(kind: $kind) -> Self {
                kind.to_string()
            }
        }
    )*};
}

as_text!(Stamp, Batch, Pending);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_is_read_as_it_was_written() {
        let written = json!({
            "used": "3/50", "interval": "1m", "refusedLastHour": 0,
            "rules": [{"interval": "1m", "limit": 50, "used": 3, "remaining": 47,
                "admitted": ["2@1f3a09c2:81234567-81234900", "1@77aa0011:12-12"]}],
            "clocks": {"1f3a09c2": 81_235_000},
            "pending": {"0a": "shop/web-0@1f3a09c2:81234567", "0c": "shop/web-1@1f3a09c2:81234568+2500?!"},
            "livedOn": {"0b": "1f3a09c2:81234999"},
        });
        let status: Status = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(
            status.rules[0].admitted[1],
            Batch { pods: 1, clock: "77aa0011".into(), from: 12, until: 12 }
        );
        assert_eq!((&*status.pending["0a"].name, status.pending["0a"].tentative), ("web-0", false));
        assert_eq!((status.pending["0c"].asked_for, status.pending["0c"].tentative), (2_500, true));
        assert_eq!((status.pending["0a"].lasting, status.pending["0c"].lasting), (false, true));
        assert_eq!(serde_json::to_value(status).unwrap(), written);
    }

    #[test]
    fn what_nobody_of_us_wrote_is_not_read() {
        for text in ["", "3", "3@x", "3@x:1", "x@y:1-2", "3@x:1-y"] {
            assert!(text.parse::<Batch>().is_err(), "{text}");
        }
        assert!("web-0@x:1".parse::<Pending>().is_err());
        assert!("x:y".parse::<Stamp>().is_err());
    }
}
