//! What budgets read of a pod: whether it is available, and whether an update takes it down.

use std::borrow::Cow;

use palisade_api::budget::{NO_PROTECT, UNAVAILABLE_PREFIX};
use serde_json::Value;

use crate::json::{Cursor, Malformed, UniqueMembers};
use crate::object::Object;
use crate::review::User;

/// The condition that the kubelet derives from all others.
const READY: &str = "Ready";

/// How a pod stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodState<'a> {
    phase: Cow<'a, str>,
    /// The conditions that are True.
    met: Vec<Cow<'a, str>>,
    readiness_gates: Vec<Cow<'a, str>>,
}

/// How a pod would be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    Deletion,
    Eviction,
    /// An update of its spec that restarts it, by the field that changes.
    Update(String),
    /// A resize that restarts a container.
    Resize(String),
    /// A readiness gate that closes.
    Gate(String),
    /// A status that says that it does not run any more, by the phase.
    Phase(String),
    /// A status that says that it is not ready.
    Unready,
    /// A label that says it is being upgraded by hand.
    HotUpgrade(String),
    /// Other labels or owners, so that a budget that chose it by them no longer counts it.
    Parting,
}

/// Which part of a pod an update is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    Status,
    Resize,
}

impl<'a> PodState<'a> {
    pub fn read(pod: &Object<'a>) -> Result<Self, Malformed> {
        let mut state = Self::default();
        if let Some(spec) = pod.spec() {
            Cursor::new(spec).object(|key, value| {
                if key != "readinessGates" {
                    return value.skip();
                }
                value.list(|gate| {
                    gate.object(|key, value| {
                        if key != "conditionType" {
                            return value.skip();
                        }
                        state.readiness_gates.push(value.string()?);
                        Ok(())
                    })
                })
            })?;
        }
        if let Some(status) = pod.status() {
            Cursor::new(status).object(|key, value| {
                match &*key {
                    "phase" => state.phase = value.string_or_null()?.unwrap_or_default(),
                    "conditions" => value.list(|condition| {
                        let (mut kind, mut holds) = (Cow::default(), false);
                        condition.object(|key, value| {
                            match &*key {
                                "type" => kind = value.string()?,
                                "status" => holds = value.string()? == "True",
                                _ => value.skip()?,
                            }
                            Ok(())
                        })?;
                        if holds {
                            state.met.push(kind);
                        }
                        Ok(())
                    })?,
                    _ => value.skip()?,
                }
                Ok(())
            })?;
        }
        Ok(state)
    }

    /// Running and ready. The kubelet takes a moment to count a closed gate in; we don't.
    fn serves(&self) -> bool {
        self.phase == "Running"
            && self.meets(READY)
            && self.readiness_gates.iter().all(|gate| self.meets(gate))
    }

    /// Whether it ended, for good or ill.
    pub fn is_finished(&self) -> bool {
        matches!(&*self.phase, "Succeeded" | "Failed")
    }

    fn meets(&self, condition: &str) -> bool {
        self.met.iter().any(|met| met == condition)
    }
}

/// Whether a pod counts as available: running, ready, not going, not marked as being upgraded, not exempt.
pub fn is_available(pod: &Object<'_>, state: &PodState<'_>) -> bool {
    let metadata = &pod.metadata;
    state.serves()
        && metadata.deletion_timestamp.is_none()
        && metadata.annotations.get(NO_PROTECT) != Some("true")
        && !metadata.labels.iter().any(|(key, _)| key.starts_with(UNAVAILABLE_PREFIX))
}

/// How an update takes its pod down, if it does.
pub fn loss_by_update(
    old: &Object<'_>,
    new: &Object<'_>,
    part: Part,
    user: &User<'_>,
) -> Result<Option<Loss>, Malformed> {
    let marked = |pod: &Object<'_>, key: &str| pod.metadata.labels.get(key).is_some();
    let label =
        new.metadata.labels.iter().find(|(key, _)| key.starts_with(UNAVAILABLE_PREFIX) && !marked(old, key));
    if let Some((key, _)) = label {
        return Ok(Some(Loss::HotUpgrade(key.to_owned())));
    }
    let (before, after) = (&old.metadata, &new.metadata);
    let parting = (before.labels != after.labels || before.owners != after.owners).then_some(Loss::Parting);
    match part {
        Part::Whole => Ok(restarting_change(old, new)?.map(Loss::Update).or(parting)),
        Part::Resize => Ok(restarting_resize(old, new)?.map(Loss::Resize).or(parting)),
        // The kubelet says how things are; others say how they shall be.
        Part::Status if user.is_node() => Ok(parting),
        Part::Status => {
            let (before, after) = (PodState::read(old)?, PodState::read(new)?);
            let closed = before.readiness_gates.iter().find(|gate| before.meets(gate) && !after.meets(gate));
            let ended = loss_by_status(&before, &after).filter(|_| !user.is_kubernetes());
            Ok(ended.or_else(|| closed.map(|gate| Loss::Gate(gate.to_string()))).or(parting))
        }
    }
}

/// How a status takes its pod down, if it does: a pod that has ended or is not ready gets no traffic, and the kubelet
/// stops what has ended.
fn loss_by_status(before: &PodState<'_>, after: &PodState<'_>) -> Option<Loss> {
    if before.phase == "Running" && after.phase != "Running" {
        return Some(Loss::Phase(after.phase.to_string()));
    }
    (before.meets(READY) && !after.meets(READY)).then_some(Loss::Unready)
}

/// Whether somebody other than Kubernetes says by a status that a pod has ended, or is not ready any more. That is worth
/// as much as a deletion.
pub(crate) fn is_ended_by_status(
    old: &Object<'_>,
    new: &Object<'_>,
    user: &User<'_>,
) -> Result<bool, Malformed> {
    if user.is_kubernetes() {
        return Ok(false);
    }
    let (before, after) = (PodState::read(old)?, PodState::read(new)?);
    let ends = after.is_finished() || before.meets(READY) && !after.meets(READY);
    Ok(!before.is_finished() && ends)
}

/// The first field of a spec that changes and is not known to leave the containers alone.
fn restarting_change(old: &Object<'_>, new: &Object<'_>) -> Result<Option<String>, Malformed> {
    if old.spec() == new.spec() {
        return Ok(None);
    }
    let (old, new) = (spec_of(old)?, spec_of(new)?);
    let keys: std::collections::BTreeSet<&String> = [&old, &new]
        .into_iter()
        .filter_map(|spec| spec.as_object())
        .flat_map(serde_json::Map::keys)
        .collect();
    for key in keys {
        let (before, after) = (&old[key], &new[key]);
        if before == after {
            continue;
        }
        match key.as_str() {
            "tolerations" | "schedulingGates" | "terminationGracePeriodSeconds" | "ephemeralContainers" => {}
            // An init container that is done is not run again; one that stays is a container.
            "initContainers" => {
                let lasting = |list: &Value| -> Vec<Value> {
                    let all = list.as_array().cloned().unwrap_or_default();
                    all.into_iter().filter(|container| container["restartPolicy"] == "Always").collect()
                };
                if let Some(changed) = changed_container(&lasting(before), &lasting(after)) {
                    return Ok(Some(format!("spec.initContainers[{changed}]")));
                }
            }
            "containers" => {
                let list = |list: &Value| list.as_array().cloned().unwrap_or_default();
                if let Some(changed) = changed_container(&list(before), &list(after)) {
                    return Ok(Some(format!("spec.containers[{changed}]")));
                }
            }
            other => return Ok(Some(format!("spec.{other}"))),
        }
    }
    Ok(None)
}

/// The first container that differs, and where: `app].image`.
fn changed_container(old: &[Value], new: &[Value]) -> Option<String> {
    let name = |container: &Value| container["name"].as_str().unwrap_or_default().to_owned();
    let changed = new.iter().find(|container| !old.contains(container)).map(name);
    changed.or_else(|| old.iter().find(|container| !new.contains(container)).map(name))
}

/// The first container whose resources change in a way that its resize policy restarts it for.
fn restarting_resize(old: &Object<'_>, new: &Object<'_>) -> Result<Option<String>, Malformed> {
    let (old, new) = (spec_of(old)?, spec_of(new)?);
    let containers = |spec: &Value| -> Vec<Value> {
        ["containers", "initContainers"]
            .iter()
            .filter_map(|list| spec[*list].as_array())
            .flatten()
            .cloned()
            .collect()
    };
    let before = containers(&old);
    for container in containers(&new) {
        let Some(was) = before.iter().find(|was| was["name"] == container["name"]) else { continue };
        let policies = container["resizePolicy"].as_array().cloned().unwrap_or_default();
        let restarts = |resource: &str| {
            policies.iter().any(|policy| {
                policy["resourceName"] == resource && policy["restartPolicy"] == "RestartContainer"
            })
        };
        let changes = |resource: &str| {
            ["requests", "limits"]
                .iter()
                .any(|side| was["resources"][*side][resource] != container["resources"][*side][resource])
        };
        if let Some(resource) =
            ["cpu", "memory"].iter().find(|resource| restarts(resource) && changes(resource))
        {
            let name = container["name"].as_str().unwrap_or_default();
            return Ok(Some(format!("{resource} of container {name}")));
        }
    }
    Ok(None)
}

fn spec_of(pod: &Object<'_>) -> Result<Value, Malformed> {
    let UniqueMembers(spec) = Cursor::new(pod.spec().unwrap_or(b"{}")).value()?;
    Ok(spec)
}
