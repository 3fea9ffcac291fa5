//! What Palisade says about a `CriticalService`.

use serde::{Deserialize, Serialize};

use crate::condition::Condition;

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `finalizer-namespace/finalizer-deployment`
    pub provider: String,
    /// The instance that is protected now.
    #[serde(rename = "providerUID", skip_serializing_if = "Option::is_none")]
    pub provider_uid: Option<String>,
    /// How many objects are in the way.
    pub blocking: u64,
    /// In the order of the spec.
    pub criteria: Vec<CriterionStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// How one criterion stands.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct CriterionStatus {
    pub r#type: String,
    /// `coolresources.my.crd.group`
    pub resource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finalizer_name: Option<String>,
    pub state: State,
    /// How many objects are in its way.
    pub objects: u64,
    /// What a few of them are called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// What there is to know besides.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_check_time: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum State {
    Met,
    Unmet,
    #[default]
    Unknown,
}
