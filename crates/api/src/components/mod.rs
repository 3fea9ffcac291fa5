//! `ComponentProtection`: what an operator manages changes by its hand alone.
//!
//! ```yaml
//! apiVersion: palisade.dev/v1alpha1
//! kind: ComponentProtection
//! metadata: {name: postgres}
//! spec:
//!   parent: {apiVersion: db.example/v1, kind: Postgres}
//!   kinds:
//!   - {apiVersion: apps/v1, kind: StatefulSet}
//!   selector: {matchLabels: {app.kubernetes.io/managed-by: postgres-operator}}
//!   parentLabel: db.example/postgres
//!   operators: ["system:serviceaccount:pg-system:postgres-operator"]
//! ```

pub mod druid;
mod path;
mod schema;
mod user;

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::protection::{GROUP, VERSION};
pub use path::Path;
pub use schema::definition;
pub use user::{Part, UserTemplate};

use crate::condition::Condition;
use crate::exempt::{Exempt, Exemptions};
use crate::labels::{LabelRule, LabelSelector};

pub const KIND: &str = "ComponentProtection";
pub const PLURAL: &str = "componentprotections";

/// What one protection asks for, in a form that can't be wrong.
#[derive(Clone, Debug)]
pub struct Components {
    pub parent: GroupKind,
    /// There is at least one.
    pub kinds: Vec<ComponentKind>,
    pub chosen: Chosen,
    /// The label that holds the parent's name; without it, the owner reference tells.
    pub parent_label: Option<String>,
    pub operators: HashSet<String>,
    pub exempt: Exemptions,
    /// On the parent; its presence switches protection off.
    pub disable_annotation: Option<String>,
    /// The parent is being reconciled if all of these hold, and there are any.
    pub reconciling: Vec<StateRule>,
    /// The same for its deletion.
    pub deleting: Vec<StateRule>,
    pub free_updates: Vec<FreeUpdates>,
    pub released: Vec<ReleasedKinds>,
    /// Asked in order where there is no parent by the name that a component gives.
    pub other_parents: Vec<OtherParent>,
    /// Whether the garbage collector may clean up after a parent that goes, though nobody exempts it.
    pub collects: bool,
}

/// A kind, in every version of its group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKind {
    pub group: String,
    pub kind: String,
}

/// A kind that is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentKind {
    pub of: GroupKind,
    /// Only deletions are the operator's business.
    pub deletions_only: bool,
}

/// How components are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    Labelled(LabelRule),
    /// By an owner reference to the parent.
    Owned,
}

/// A state that a field of the parent tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRule {
    pub path: Path,
    pub values: Vec<String>,
}

/// Who may update what at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeUpdates {
    pub kinds: Vec<GroupKind>,
    pub users: Vec<UserTemplate>,
}

/// Kinds that an operator does not make for a parent with an annotation, whatever its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleasedKinds {
    pub annotation: String,
    pub kinds: Vec<GroupKind>,
}

/// Another kind of parent that components of a kind may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherParent {
    pub of: GroupKind,
    pub parent: GroupKind,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    parent: WrittenKind,
    kinds: Vec<WrittenKind>,
    selector: Option<Value>,
    #[serde(default)]
    owned_by_parent: bool,
    parent_label: Option<String>,
    #[serde(default)]
    operators: Vec<String>,
    exempt: Option<Exempt>,
    disable_annotation: Option<String>,
    #[serde(default)]
    reconciling: Vec<WrittenState>,
    #[serde(default)]
    deleting: Vec<WrittenState>,
    #[serde(default)]
    free_updates: Vec<WrittenFree>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenKind {
    api_version: String,
    kind: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenState {
    path: String,
    values: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFree {
    kinds: Vec<WrittenKind>,
    users: Vec<String>,
}

impl GroupKind {
    pub fn new(group: &str, kind: &str) -> Self {
        Self { group: group.to_owned(), kind: kind.to_owned() }
    }

    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }

    fn read(field: &str, written: &WrittenKind) -> Result<Self, String> {
        let WrittenKind { api_version, kind } = written;
        if api_version.is_empty() || kind.is_empty() {
            return Err(format!("{field}: apiVersion and kind are both needed"));
        }
        let group = match api_version.split_once('/') {
            Some((group, version)) if !group.is_empty() && !version.is_empty() && !version.contains('/') => {
                group
            }
            None => "",
            Some(_) => return Err(format!("{field}.apiVersion: \"{api_version}\" is no GROUP/VERSION")),
        };
        Ok(Self::new(group, kind))
    }
}

impl StateRule {
    fn read(field: &str, written: WrittenState) -> Result<Self, String> {
        let path = Path::read(&written.path).map_err(|why| format!("{field}.path: {why}"))?;
        if written.values.is_empty() {
            return Err(format!("{field}.values: there are none"));
        }
        Ok(Self { path, values: written.values })
    }

    pub fn holds(&self, parent: &Value) -> bool {
        self.path.values(parent).iter().any(|value| self.values.iter().any(|wanted| wanted == value))
    }
}

impl Components {
    /// Reads `spec`, or says what is wrong with it.
    pub fn read(spec: &Value) -> Result<Self, String> {
        let written = Written::deserialize(spec).map_err(|error| format!("spec: {error}"))?;
        let chosen = match (&written.selector, written.owned_by_parent) {
            (Some(selector), false) => {
                let selector =
                    LabelSelector::read(selector).map_err(|why| format!("spec.selector: {why}"))?;
                let rule = LabelRule::of(&selector);
                if rule.expressions().is_empty() {
                    return Err("spec.selector: an empty one would be for everything".to_owned());
                }
                Chosen::Labelled(rule)
            }
            (None, true) => Chosen::Owned,
            _ => return Err("spec: give exactly one of selector and ownedByParent: true".to_owned()),
        };
        let kinds = kinds("spec.kinds", &written.kinds)?;
        if written.operators.is_empty() {
            return Err("spec.operators: there are none".to_owned());
        }
        let states = |field: &str, all: Vec<WrittenState>| {
            let read = all
                .into_iter()
                .enumerate()
                .map(|(number, state)| StateRule::read(&format!("{field}[{number}]"), state));
            read.collect::<Result<Vec<_>, _>>()
        };
        let free = written.free_updates.iter().enumerate().map(|(number, free)| {
            let field = format!("spec.freeUpdates[{number}]");
            let users = free
                .users
                .iter()
                .map(|user| UserTemplate::read(user).map_err(|why| format!("{field}.users: {why}")));
            let users = users.collect::<Result<Vec<_>, _>>()?;
            if users.is_empty() {
                return Err(format!("{field}.users: there are none"));
            }
            Ok(FreeUpdates { kinds: self::kinds(&format!("{field}.kinds"), &free.kinds)?, users })
        });
        Ok(Self {
            parent: GroupKind::read("spec.parent", &written.parent)?,
            kinds: kinds.into_iter().map(|of| ComponentKind { of, deletions_only: false }).collect(),
            chosen,
            parent_label: key("spec.parentLabel", written.parent_label)?,
            operators: written.operators.into_iter().collect(),
            exempt: Exemptions::of(written.exempt.as_ref()),
            disable_annotation: key("spec.disableAnnotation", written.disable_annotation)?,
            free_updates: free.collect::<Result<_, String>>()?,
            reconciling: states("spec.reconciling", written.reconciling)?,
            deleting: states("spec.deleting", written.deleting)?,
            released: Vec::new(),
            other_parents: Vec::new(),
            collects: true,
        })
    }

    /// The kinds of parents that a component of a kind may have, in the order in which they are asked.
    pub fn parents_of(&self, group: &str, kind: &str) -> impl Iterator<Item = &GroupKind> {
        let others = self.other_parents.iter().filter(move |other| other.of.is(group, kind));
        std::iter::once(&self.parent).chain(others.map(|other| &other.parent))
    }

    pub fn kind(&self, group: &str, kind: &str) -> Option<&ComponentKind> {
        self.kinds.iter().find(|each| each.of.is(group, kind))
    }
}

/// The key of a label or an annotation, if one is given.
fn key(field: &str, written: Option<String>) -> Result<Option<String>, String> {
    match written.filter(|key| !key.is_empty()) {
        Some(key) if !crate::labels::is_key(&key) => Err(format!("{field}: \"{key}\" is no key")),
        key => Ok(key),
    }
}

fn kinds(field: &str, written: &[WrittenKind]) -> Result<Vec<GroupKind>, String> {
    if written.is_empty() {
        return Err(format!("{field}: there are none"));
    }
    written
        .iter()
        .enumerate()
        .map(|(number, kind)| GroupKind::read(&format!("{field}[{number}]"), kind))
        .collect()
}

/// What Palisade says about it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What its kinds resolve to: `statefulsets.apps`.
    pub kinds: Vec<String>,
    /// How many there are, for a column: `2/3`.
    pub resolved: String,
    /// How many parents there are.
    pub parents: u64,
    /// How many changes were refused, and when the last was.
    pub refused: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refused: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
