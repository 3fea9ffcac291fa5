//! Copies: protection labels and annotations that a controller copied to what it made.
//!
//! Kubernetes and operators copy labels and annotations: a Deployment's pod template to its `ReplicaSet`s and pods, a `StatefulSet`'s
//! claim template to its claims, a Certificate to its `CertificateRequest`s, a `DaemonSet`'s annotations to its
//! `ControllerRevision`s. There the mark is nobody's wish for that object, and a controller that may not delete what it made gets stuck.
//!
//! A mark is a copy if the object's controller owner, read now and with the uid of the owner reference, carries the same
//! key and value, or its pod, job or claim template does. A `StatefulSet`'s claims often have no owner: they are known by
//! their name, `TEMPLATE-SET-ORDINAL`. What a controller of Kubernetes' own wrote together with the owner reference is a
//! copy as well, also when the template has lost the label since.
//!
//! - Copies bind people, not service accounts and not Kubernetes' controllers.
//! - Copies guard neither their owner nor their Namespace.
//! - When the owner is gone or terminating there may be nothing left to compare with. Kubernetes' controllers (the garbage
//!   collector first) may then delete what came to life with both the label and the owner reference, written by one
//!   manager, if the owner is known to have been there. What somebody labelled by hand later stays, and so does what
//!   names an owner that nobody ever saw.

use std::collections::{BTreeMap, BTreeSet};

use palisade_api::marks::{Mark, Place};
use serde_json::Value;

use crate::field_managers::{MarkWriter, mark_writers};
use crate::object::{Metadata, Object};
use crate::review::{Subject, User};
use crate::verdict::{Doomed, OwnerRef};
use crate::world::{Answer, ClaimTemplate, OwnerState, World};

/// Whether a mark on the subject is a copy that does not bind this user.
pub(super) async fn is_free(
    subject: &Subject<'_>,
    mark: &Mark,
    user: &User<'_>,
    world: &impl World,
) -> Answer<bool> {
    if !user.is_automation() {
        return Ok(false);
    }
    let metadata = &subject.object.metadata;
    if is_by_kubernetes(metadata, mark) {
        return Ok(true);
    }
    let mut owner_is_going = false;
    if let Some(controller) = metadata.controller() {
        let owner = OwnerRef::of(controller);
        let mut states = world.owners(&[(subject.namespace().map(str::to_owned), owner)]).await?;
        match states.remove(&*controller.uid) {
            Some(OwnerState::There { labels, .. }) if labels.carry(mark) => return Ok(true),
            Some(OwnerState::There { is_terminating, .. }) => owner_is_going = is_terminating,
            Some(OwnerState::Gone) => owner_is_going = true,
            Some(OwnerState::GoneFromCluster) | None => {}
        }
    }
    if let (true, Some(namespace)) = (subject.kind.is_claim(), subject.namespace()) {
        let templates = world.claim_templates(namespace).await?;
        if is_claim_copy(&templates, subject.name(), mark) {
            return Ok(true);
        }
    }
    Ok(user.is_kubernetes() && went_with_owner(subject, mark, owner_is_going, world).await)
}

/// Whether a label came with an object whose owner or namespace is going or gone.
async fn went_with_owner(
    subject: &Subject<'_>,
    mark: &Mark,
    owner_is_going: bool,
    world: &impl World,
) -> bool {
    let metadata = &subject.object.metadata;
    let writers = mark_writers(metadata, mark);
    let came_with_it = !writers.is_empty()
        && match metadata.controller() {
            Some(controller) => {
                writers.iter().all(|writer| writer.wrote_owner(&controller.uid))
                    && world.has_seen_owner(&controller.uid)
            }
            None => subject.kind.is_claim() && writers.iter().all(MarkWriter::is_kubernetes),
        };
    came_with_it
        && (owner_is_going
            || match subject.namespace() {
                Some(namespace) => world.is_terminating(namespace).await,
                None => false,
            })
}

/// Whether a controller of Kubernetes' own wrote a mark together with the reference to the owner.
pub(super) fn is_by_kubernetes(metadata: &Metadata<'_>, mark: &Mark) -> bool {
    let Some(controller) = metadata.controller() else { return false };
    let writers = mark_writers(metadata, mark);
    !writers.is_empty()
        && writers.iter().all(|writer| writer.is_kubernetes() && writer.wrote_owner(&controller.uid))
}

/// Leaves out what only copies protect.
pub(super) async fn without_copies(found: Vec<Doomed>, world: &impl World) -> Answer<Vec<Doomed>> {
    let may_be_copy = |doomed: &&Doomed| doomed.marks().next().is_some();
    let mut owners: BTreeMap<String, (Option<String>, OwnerRef)> = BTreeMap::new();
    for doomed in found.iter().filter(may_be_copy) {
        if let Some(owner) = doomed.controller() {
            owners.insert(owner.uid.clone(), (doomed.about.namespace.clone(), owner.clone()));
        }
    }
    let owners: Vec<_> = owners.into_values().collect();
    let states = if owners.is_empty() { BTreeMap::new() } else { world.owners(&owners).await? };
    let mut templates: BTreeMap<&str, Vec<ClaimTemplate>> = BTreeMap::new();
    for doomed in found.iter().filter(may_be_copy).filter(|doomed| doomed.is_claim()) {
        if let Some(namespace) = doomed.about.namespace.as_deref()
            && !templates.contains_key(namespace)
        {
            templates.insert(namespace, world.claim_templates(namespace).await?);
        }
    }
    let is_copy = |doomed: &Doomed, mark: &Mark| {
        let of_owner = doomed.controller().and_then(|owner| states.get(&owner.uid));
        let of_owner = of_owner
            .is_some_and(|state| matches!(state, OwnerState::There { labels, .. } if labels.carry(mark)));
        let templates = doomed.about.namespace.as_deref().and_then(|namespace| templates.get(namespace));
        of_owner
            || doomed.is_claim()
                && templates.is_some_and(|templates| is_claim_copy(templates, &doomed.about.name, mark))
    };
    let mut kept = Vec::new();
    for doomed in &found {
        let copies: Vec<Mark> = doomed.marks().filter(|mark| is_copy(doomed, mark)).cloned().collect();
        kept.extend(doomed.clone().without_marks(&copies));
    }
    Ok(kept)
}

fn is_claim_copy(templates: &[ClaimTemplate], claim: &str, mark: &Mark) -> bool {
    templates.iter().any(|template| template.made(claim) && template.labels.carry(mark))
}

/// The protection labels and annotations that an object hands on: its own, and those of its templates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceMarks(BTreeSet<(Place, String, String)>);

impl SourceMarks {
    pub fn of(object: &Object<'_>) -> Self {
        let mut all = in_templates(object);
        for (key, value) in object.metadata.labels.iter() {
            all.add(Mark::of_label(key, value));
        }
        for (key, value) in object.metadata.annotations.iter() {
            all.add(Mark::of_annotation(key, value));
        }
        all
    }

    /// The marks of one template's metadata.
    pub fn in_template(metadata: &Value) -> Self {
        let mut all = Self::default();
        for (key, value) in texts(&metadata["labels"]) {
            all.add(Mark::of_label(key, value));
        }
        for (key, value) in texts(&metadata["annotations"]) {
            all.add(Mark::of_annotation(key, value));
        }
        all
    }

    fn add(&mut self, mark: Option<Mark>) {
        self.0.extend(mark.map(|mark| (mark.place, mark.key.to_owned(), mark.value)));
    }

    pub(crate) fn carry(&self, mark: &Mark) -> bool {
        self.0.contains(&(mark.place, mark.key.to_owned(), mark.value.clone()))
    }

    pub(crate) fn marks(&self) -> impl Iterator<Item = Mark> {
        self.0.iter().filter_map(|(place, key, value)| match place {
            Place::Label => Mark::of_label(key, value),
            Place::Annotation => Mark::of_annotation(key, value),
        })
    }
}

fn texts(pairs: &Value) -> impl Iterator<Item = (&str, &str)> {
    let pairs = pairs.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// The marks of an object's pod, job and claim templates. A custom resource may have others; what its controller copies
/// from there is told by the custom resource itself or not at all.
pub(super) fn in_templates(object: &Object<'_>) -> SourceMarks {
    // What is no JSON object has no templates.
    let spec = object.spec_json().unwrap_or_default();
    let job = &spec["jobTemplate"];
    let one = [&spec["template"], job, &job["spec"]["template"]];
    let claims = spec["volumeClaimTemplates"].as_array().into_iter().flatten();
    // A pod makes claims for its ephemeral volumes.
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    let ephemeral = volumes.map(|volume| &volume["ephemeral"]["volumeClaimTemplate"]);
    let mut all = SourceMarks::default();
    for template in one.into_iter().chain(claims).chain(ephemeral) {
        all.0.extend(SourceMarks::in_template(&template["metadata"]).0);
    }
    all
}
