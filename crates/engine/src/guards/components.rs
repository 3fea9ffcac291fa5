//! Components: what an operator manages changes by its hand alone.
//!
//! An object is a component if its labels, as they are stored, or its owner reference say so, and name its parent.
//!
//! | the parent | operators | exempt accounts | anybody else |
//! | --- | --- | --- | --- |
//! | is not there, or carries the annotation that switches it off | everything | everything | everything |
//! | is being deleted | everything | delete | nothing |
//! | is being reconciled | everything | nothing | nothing |
//! | is at rest | everything | update, delete | nothing |
//!
//! A parent may release kinds that its operator no longer makes for it; these are anybody's then. A parent whose group is
//! not searched (`--search-groups`) is not read: everything is allowed, with a warning.
//!
//! Whom `freeUpdates` names may update what it names at any time. A status write is a change only if labels or owners
//! change with it: without them, nobody would know a component any more.

use palisade_api::components::{Chosen, Components, GroupKind};
use serde_json::Value;

use crate::object::{Metadata, Object};
use crate::pod::Part;
use crate::review::{Action, Portion, Review, Subject, User};
use crate::verdict::{Change, Code, Finding, Found, Guard, Lift, Managed, Reason, State, Warning};
use crate::world::{Answer, Parent, ProtectedComponents, Unknown, World};

/// Who collects garbage, with and without an account of its own.
const COLLECTORS: [&str; 2] =
    ["system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"];

pub(super) async fn ask(subject: &Subject<'_>, review: &Review<'_>, world: &impl World, found: &mut Found) {
    let Some(change) = change(subject, review) else { return };
    let kind = GroupKind::new(&subject.kind.group, &subject.kind.kind);
    let protections = match world.components((!review.expects.components).then_some(&kind)).await {
        Ok(protections) => protections,
        Err(unknown) => return found.findings.push(Finding::unreadable(Guard::Components, unknown)),
    };
    for protection in &protections {
        let ProtectedComponents { name, components } = &**protection;
        match components {
            Ok(components) => judge(subject, change, review, world, (name.as_ref(), components), found).await,
            Err(why) => {
                let name = name.as_deref().unwrap_or_default();
                let unknown = Unknown::new(format!("what ComponentProtection \"{name}\" protects"), why);
                found.findings.push(Finding::unreadable(Guard::Components, unknown));
            }
        }
    }
}

/// What would become of the object; `None` for what is no change of it.
fn change(subject: &Subject<'_>, review: &Review<'_>) -> Option<Change> {
    let stripped = |new: &Object<'_>| identity(&new.metadata) != identity(&subject.object.metadata);
    match &review.action {
        Action::Delete(_) | Action::Evict { .. } => Some(Change::Delete),
        Action::Scale { .. } => Some(Change::Scale),
        Action::Update { new, part: Part::Status, .. }
        | Action::Change { new, part: Portion::Status, .. } => stripped(new).then_some(Change::Strip),
        Action::Update { .. } | Action::Change { .. } => Some(Change::Update),
        Action::Create(_) | Action::Declare { .. } | Action::Other => None,
    }
}

/// What an object is known by.
fn identity<'a>(metadata: &'a Metadata<'_>) -> (Vec<(&'a str, &'a str)>, Vec<&'a str>) {
    let mut labels: Vec<(&str, &str)> = metadata.labels.iter().collect();
    let mut owners: Vec<&str> = metadata.owners.iter().map(|owner| &*owner.uid).collect();
    labels.sort_unstable();
    owners.sort_unstable();
    (labels, owners)
}

async fn judge(
    subject: &Subject<'_>,
    change: Change,
    review: &Review<'_>,
    world: &impl World,
    (name, components): (Option<&String>, &Components),
    found: &mut Found,
) {
    let Some(kind) = components.kind(&subject.kind.group, &subject.kind.kind) else { return };
    if kind.deletions_only && change != Change::Delete || components.operators.contains(&*review.user.name) {
        return;
    }
    if !world.is_searched(&components.parent.group) {
        // What its parent is in the middle of can't be read, so that nothing can be refused.
        if component_parent(&subject.object.metadata, components).is_some() {
            found.not_searched([components.parent.group.clone()]);
        }
        return;
    }
    let parents = match parents_of(subject, components, world).await {
        Ok(parents) => parents,
        Err(unknown) => return found.findings.push(Finding::unreadable(Guard::Components, unknown)),
    };
    let mut missing = Vec::new();
    let mut is_there = false;
    for name_of_parent in parents {
        if change == Change::Update && may_update(subject, components, &review.user.name, &name_of_parent) {
            continue;
        }
        match parent_by_name(subject, components, &name_of_parent, world).await {
            Ok(Some(parent)) => {
                is_there = true;
                found.findings.extend(refusal(parent, subject, change, &review.user, components, name));
            }
            Ok(None) => {
                missing.push(Warning::NoParent(components.parent.kind.clone(), name_of_parent));
            }
            Err(unknown) => found.findings.push(Finding::unreadable(Guard::Components, unknown)),
        }
    }
    if !is_there {
        found.warnings.extend(missing);
    }
}

/// The first that is there of the kinds of parents that a component may have.
async fn parent_by_name(
    subject: &Subject<'_>,
    components: &Components,
    name: &str,
    world: &impl World,
) -> Answer<Option<Parent>> {
    for kind in components.parents_of(&subject.kind.group, &subject.kind.kind) {
        let parent = world.parent(kind, subject.namespace(), name).await?;
        if parent.is_some() {
            return Ok(parent);
        }
    }
    Ok(None)
}

/// Why a parent does not allow it, if so.
fn refusal(
    Parent { about, object }: Parent,
    subject: &Subject<'_>,
    change: Change,
    user: &User<'_>,
    components: &Components,
    name: Option<&String>,
) -> Option<Finding> {
    let carries = |annotation: &str| !object["metadata"]["annotations"][annotation].is_null();
    let is_released = components.released.iter().any(|released| {
        released.kinds.iter().any(|kind| kind.is(&subject.kind.group, &subject.kind.kind))
            && carries(&released.annotation)
    });
    if is_released || components.disable_annotation.as_deref().is_some_and(carries) {
        return None;
    }
    let state = state_of(&object, components);
    let exempt = components.exempt.cover(&user.name, user.groups.iter().map(AsRef::as_ref));
    let cleans_up = exempt || components.collects && COLLECTORS.contains(&&*user.name);
    let allowed = match (state, change) {
        (State::Deleting, Change::Delete) => cleans_up,
        // Who leaves dependents behind takes their owner references away.
        (State::Deleting, Change::Update) => cleans_up && is_orphaning(&object),
        (State::Deleting | State::Reconciling, _) => false,
        (State::AtRest, _) => exempt,
    };
    if allowed {
        return None;
    }
    let lift = components
        .disable_annotation
        .as_ref()
        .map(|annotation| Lift::Command(crate::prose::annotate_command(&about, annotation, "")));
    let reason = Reason::Managed(Managed { protection: name.cloned(), parent: about, change, state });
    Some(Finding { guard: Guard::Components, code: Code::Forbidden, reason, lift })
}

fn is_orphaning(parent: &Value) -> bool {
    parent["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|each| each == "orphan"))
}

/// The names of its parents: none for what is no component, and two for a claim whose labels say another than the
/// `StatefulSet` that it was made by. Labels of claims are anybody's to change.
async fn parents_of(
    subject: &Subject<'_>,
    components: &Components,
    world: &impl World,
) -> Answer<Vec<String>> {
    let mut parents: Vec<String> =
        component_parent(&subject.object.metadata, components).into_iter().collect();
    if let Some(namespace) = subject.namespace()
        && subject.kind.is_claim()
    {
        let by_metadata = |metadata: &Metadata<'_>| component_parent(metadata, components);
        let claimant = world.claimed_by(components, namespace, subject.name(), &by_metadata).await?;
        parents.extend(claimant.filter(|name| !parents.contains(name)));
    }
    Ok(parents)
}

/// The name of the parent, as the metadata of a component tells; `None` for what is no component.
pub fn component_parent(metadata: &Metadata<'_>, components: &Components) -> Option<String> {
    let owner = || metadata.owners.iter().find(|owner| components.parent.is(owner.group(), &owner.kind));
    match &components.chosen {
        Chosen::Labelled(rule) if !rule.matches(|key| metadata.labels.get(key)) => None,
        Chosen::Owned if owner().is_none() => None,
        _ => match &components.parent_label {
            Some(label) => metadata.labels.get(label).filter(|name| !name.is_empty()).map(str::to_owned),
            None => owner().map(|owner| owner.name.to_string()),
        },
    }
}

fn may_update(subject: &Subject<'_>, components: &Components, user: &str, parent: &str) -> bool {
    let namespace = subject.namespace().unwrap_or_default();
    components.free_updates.iter().any(|free| {
        free.kinds.iter().any(|kind| kind.is(&subject.kind.group, &subject.kind.kind))
            && free.users.iter().any(|template| template.is(user, namespace, parent))
    })
}

/// What the parent says that it is in the middle of; that it goes comes first.
fn state_of(parent: &Value, components: &Components) -> State {
    let all = |rules: &[palisade_api::components::StateRule]| {
        !rules.is_empty() && rules.iter().all(|rule| rule.holds(parent))
    };
    if !parent["metadata"]["deletionTimestamp"].is_null() || all(&components.deleting) {
        State::Deleting
    } else if all(&components.reconciling) {
        State::Reconciling
    } else {
        State::AtRest
    }
}

/// Whether a protection says something.
pub(super) fn check(subject: &Subject<'_>) -> Found {
    let mut found = Found::default();
    if let Err(why) = subject.object.spec_json().and_then(|spec| Components::read(&spec)) {
        found.findings.push(Finding::invalid(Guard::Components, why));
    }
    found
}
