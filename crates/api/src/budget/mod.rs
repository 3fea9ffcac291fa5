//! `PodUnavailableBudget`: how many pods of an application may be unavailable at a time.
//!
//! ```yaml
//! apiVersion: policy.kruise.io/v1alpha1
//! kind: PodUnavailableBudget
//! metadata: {name: web, namespace: shop}
//! spec:
//!   targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}   # or selector
//!   maxUnavailable: 20%                                             # or minAvailable
//! ```

mod author;
mod limit;
mod schema;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use author::{Author, WrittenBy};
pub use limit::{Amount, Limit};
pub use schema::definition;

use crate::condition::Condition;
use crate::labels::{LabelRule, LabelSelector};

pub const GROUP: &str = "policy.kruise.io";
pub const VERSION: &str = "v1alpha1";
pub const KIND: &str = "PodUnavailableBudget";
pub const PLURAL: &str = "podunavailablebudgets";

/// A label with this prefix says that its pod is being upgraded by hand, and so not available.
pub const UNAVAILABLE_PREFIX: &str = "unavailable-pod.kruise.io/";
/// An annotation on a budget that nobody with a right to write one wrote: how many pods it lets go at least.
pub const MIN_UNAVAILABLE: &str = "palisade.dev/min-unavailable";
/// How many pods a budget that no administrator wrote lets go at least, unless a flag says otherwise.
pub const DEFAULT_MIN_UNAVAILABLE: u32 = 1;
/// An annotation on a budget. An administrator who sets it, or changes its value, has the budget taken at its word as if
/// they had written it. On its own it means nothing.
pub const APPROVED: &str = "palisade.dev/approved";
/// An annotation on a pod: with the value `true`, no budget counts it.
pub const NO_PROTECT: &str = "pub.kruise.io/no-protect";

/// What a budget asks for, in a form that can't be wrong.
#[derive(Clone, Debug)]
pub struct Budget {
    pub pods: Chosen,
    pub limit: Limit,
    /// How many it lets go at least, whatever its limit says.
    min_unavailable: u32,
}

/// Whose pods a budget is for.
#[derive(Clone, Debug)]
pub enum Chosen {
    Selected(LabelRule),
    Of(Target),
}

/// A workload, in whatever version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub group: String,
    pub kind: String,
    pub name: String,
}

impl Budget {
    /// Reads `spec`, or says what is wrong with it.
    pub fn read(spec: &Value) -> Result<Self, String> {
        let given = |field: &str| spec.get(field).filter(|value| !value.is_null());
        let pods = match (given("selector"), given("targetRef")) {
            (Some(selector), None) => {
                let selector =
                    LabelSelector::read(selector).map_err(|why| format!("spec.selector: {why}"))?;
                Chosen::Selected(LabelRule::of(&selector))
            }
            (None, Some(target)) => {
                Chosen::Of(Target::read(target).map_err(|why| format!("spec.targetRef: {why}"))?)
            }
            (Some(_), Some(_)) => {
                return Err("spec.selector and spec.targetRef are both given: give one of them".to_owned());
            }
            (None, None) => {
                return Err("neither spec.selector nor spec.targetRef is given: give one of them".to_owned());
            }
        };
        let amount =
            |field: &str, value: &Value| Amount::read(value).map_err(|why| format!("spec.{field}: {why}"));
        let limit = match (given("maxUnavailable"), given("minAvailable")) {
            (Some(value), None) => Limit::MaxUnavailable(amount("maxUnavailable", value)?),
            (None, Some(value)) => Limit::MinAvailable(amount("minAvailable", value)?),
            (Some(_), Some(_)) => {
                return Err(
                    "spec.maxUnavailable and spec.minAvailable are both given: give one of them".to_owned()
                );
            }
            (None, None) => {
                return Err(
                    "neither spec.maxUnavailable nor spec.minAvailable is given: give one of them".to_owned()
                );
            }
        };
        Ok(Self { pods, limit, min_unavailable: 0 })
    }

    /// The same, with what its annotation [`MIN_UNAVAILABLE`] says. What can't be read says nothing.
    #[must_use]
    pub fn bounded_by(self, annotation: Option<&str>) -> Self {
        let min_unavailable = annotation.and_then(|text| text.parse().ok()).unwrap_or_default();
        Self { min_unavailable, ..self }
    }

    /// The same, letting at least so many pods go.
    #[must_use]
    pub fn letting_go(self, least: u32) -> Self {
        Self { min_unavailable: self.min_unavailable.max(least), ..self }
    }

    /// How many it lets go at least, whatever its limit says.
    pub fn min_unavailable(&self) -> u32 {
        self.min_unavailable
    }

    /// Whether its limit would let fewer of `total` wanted pods go than it does.
    pub fn is_bounded(&self, total: i64) -> bool {
        self.limit.letting_go(self.min_unavailable, total) != self.limit
    }

    /// How many of `total` wanted pods must stay available.
    pub fn desired(&self, total: i64) -> i64 {
        self.limit.letting_go(self.min_unavailable, total).desired(total)
    }
}

impl Target {
    fn read(value: &Value) -> Result<Self, String> {
        let field = |name: &str| match value.get(name).and_then(Value::as_str) {
            Some(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => Err(format!("{name} is missing")),
        };
        Ok(Self { group: group_of(&field("apiVersion")?), kind: field("kind")?, name: field("name")? })
    }
}

/// The group of an `apiVersion`. The designs also write a bare group: `apps.kruise.io`, `apps`.
fn group_of(api_version: &str) -> String {
    let is_version = |text: &str| {
        text.strip_prefix('v').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    match api_version.split_once('/') {
        Some((group, _)) => group.to_owned(),
        None if is_version(api_version) => String::new(),
        None => api_version.to_owned(),
    }
}

/// What Palisade says about it.
///
/// Reservations are kept here, so that every replica spends from the same account: a pod is in `deletedPods` or
/// `unavailablePods` from the moment that its loss was admitted until the loss has been seen.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_by: Option<WrittenBy>,
    /// How many more pods may become unavailable now.
    pub unavailable_allowed: i64,
    pub current_available: i64,
    pub desired_available: i64,
    pub total_replicas: i64,
    /// Pods whose deletion or eviction was admitted and not seen yet: uid, and the revision that was asked about.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub deleted_pods: BTreeMap<String, String>,
    /// The same for pods that an update takes down.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unavailable_pods: BTreeMap<String, String>,
    /// When each of them was last admitted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reserved_at: BTreeMap<String, String>,
    /// Those that whoever asked may still give back, because somebody else may refuse them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub tentative: BTreeSet<String>,
    /// Pods of which nothing came just now, and when that was seen: others come first.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lived_on: BTreeMap<String, String>,
    /// The revision of pods up to which this has been seen. Whoever has not seen as much does not decide by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_pods_resource_version: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl Status {
    /// Whether the loss of a pod has been admitted and not seen yet.
    pub fn reserves(&self, uid: &str) -> bool {
        self.deleted_pods.contains_key(uid) || self.unavailable_pods.contains_key(uid)
    }

    /// Who wrote the budget, as of its generation.
    pub fn author(&self, generation: Option<i64>) -> Author {
        match self.written_by {
            Some(WrittenBy { generation: known, administrator }) if Some(known) == generation => {
                if administrator {
                    Author::Administrator
                } else {
                    Author::Other
                }
            }
            earlier => Author::Unknown { before: earlier.map(|earlier| earlier.administrator) },
        }
    }

    /// Whether any has.
    pub fn has_reservations(&self) -> bool {
        !self.deleted_pods.is_empty() || !self.unavailable_pods.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case("apps/v1", "apps")]
    #[case("apps", "apps")]
    #[case("apps.kruise.io", "apps.kruise.io")]
    #[case("apps.kruise.io/v1alpha1", "apps.kruise.io")]
    #[case("v1", "")]
    #[case("v1beta1", "")]
    #[case("vault", "vault")]
    fn a_group_may_stand_alone(#[case] api_version: &str, #[case] group: &str) {
        assert_eq!(group_of(api_version), group);
    }

    #[test]
    fn the_seeds_example() {
        let spec = json!({"targetRef": {"apiVersion": "apps.kruise.io", "kind": "CloneSet", "name": "app-xxx"}, "maxUnavailable": 5});
        let budget = Budget::read(&spec).unwrap();
        assert_eq!(budget.limit, Limit::MaxUnavailable(Amount::Number(5)));
        let Chosen::Of(target) = budget.pods else { panic!("{budget:?}") };
        assert_eq!((&*target.group, &*target.kind, &*target.name), ("apps.kruise.io", "CloneSet", "app-xxx"));
        let short = Budget::read(&json!({"selector": {"app": "xxx"}, "minAvailable": "70%"})).unwrap();
        assert_eq!(short.limit, Limit::MinAvailable(Amount::Percent(70)));
    }

    #[rstest]
    #[case(json!({"maxUnavailable": 1}), "neither spec.selector nor spec.targetRef is given: give one of them")]
    #[case(json!({"selector": {}, "targetRef": {}, "maxUnavailable": 1}), "spec.selector and spec.targetRef are both given: give one of them")]
    #[case(json!({"selector": {}}), "neither spec.maxUnavailable nor spec.minAvailable is given: give one of them")]
    #[case(json!({"selector": {}, "maxUnavailable": 1, "minAvailable": 1}), "spec.maxUnavailable and spec.minAvailable are both given: give one of them")]
    #[case(json!({"selector": {}, "maxUnavailable": -1}), "spec.maxUnavailable: -1 is less than 0")]
    #[case(json!({"selector": {}, "minAvailable": "101%"}), "spec.minAvailable: \"101%\" is neither a number nor a percentage from 0% to 100%")]
    #[case(json!({"selector": {"a": 1}, "minAvailable": 1}), "spec.selector: \"a\" is neither matchLabels nor matchExpressions, and its value is no label's")]
    #[case(json!({"targetRef": {"kind": "X", "name": "y"}, "minAvailable": 1}), "spec.targetRef: apiVersion is missing")]
    fn what_is_wrong_is_told(#[case] spec: Value, #[case] why: &str) {
        assert_eq!(Budget::read(&spec).unwrap_err(), why);
    }
}
