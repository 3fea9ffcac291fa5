//! `ResourceDeletionProtection`: an administrator protects objects by kind, namespace, name and label.
//!
//! ```yaml
//! apiVersion: palisade.dev/v1alpha1
//! kind: ResourceDeletionProtection
//! metadata: {name: sample}
//! spec:
//!   protectedResources:
//!   - resourceSelector:
//!     - {apiVersion: apps/v1, kind: Deployment, namespace: sample}
//!     resourceNames: [deployment-1, deployment-2]
//! ```
//!
//! An object is protected by an entry if any of its selectors matches it and, where `name` or `resourceNames`
//! is given, its name is one of them, unless one of the selectors of its `except` matches it too. `*` stands for any
//! text in names and namespaces.

mod pattern;
mod rule;
mod schema;
mod selector;

use serde::{Deserialize, Serialize};

pub use crate::action::Action;
pub use crate::exempt::{Exempt, Exemptions};
pub use pattern::Pattern;
pub use rule::{Exempting, Rule, Target, UnreadableProtection, rules_of};
pub use schema::definition;
pub use selector::Selector;

use crate::condition::Condition;
use crate::labels::LabelSelector;

pub const GROUP: &str = "palisade.dev";
pub const VERSION: &str = "v1alpha1";
pub const KIND: &str = "ResourceDeletionProtection";
pub const PLURAL: &str = "resourcedeletionprotections";

/// What the administrator writes.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub protected_resources: Vec<ProtectedResources>,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default)]
    pub action: Action,
    #[serde(default)]
    pub label_changes: LabelChanges,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exempt: Option<Exempt>,
}

/// One entry: some selectors, and the names they are for.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectedResources {
    pub resource_selector: Vec<ResourceSelector>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// What the entry is not for, whatever its selectors match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<ResourceSelector>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceSelector {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
}

/// When it protects.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Always,
    Cascading,
}

/// What becomes of a change of labels by which an object is no longer selected.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum LabelChanges {
    /// The action is taken, as for a deletion.
    #[default]
    Guard,
    /// Nothing.
    Ignore,
}

/// What Palisade says about it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many rules it comes to: one for each selector.
    pub rules: usize,
    /// The resources that they resolve to: `deployments.apps`.
    pub kinds: Vec<String>,
    pub conditions: Vec<Condition>,
    /// Deletions that were refused, that passed with a warning, and that would have been refused.
    pub denied: u64,
    pub warned: u64,
    pub audited: u64,
    /// When the last of them was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_matched: Option<String>,
}
