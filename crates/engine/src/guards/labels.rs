//! Labels: an object asks for its own protection.
//!
//! `Always` refuses every deletion while the mark is there. `Cascading` refuses it while the object holds
//! something that would go with it:
//!
//! - a Namespace: active pods (not Succeeded, Failed or terminating) or Bound claims (not terminating);
//! - a `CustomResourceDefinition`: custom resources that are not terminating; it is let go with a warning if their group
//!   is not searched;
//! - a workload: `spec.replicas` is not 0, whatever the propagation policy;
//! - any other kind: its dependents can't be listed cheaply, so it is let go with a warning that says so.
//!
//! Kinds that come and go by themselves (Endpoints, `EndpointSlice`s, Events, Leases) are protected by no mark, and a
//! label that was copied binds people only: see [`super::copies`].
//!
//! The marks and their values are in [`palisade_api::marks`].

use palisade_api::kinds::{Cascade, cascade_of, is_transient};
use palisade_api::marks::{Mark, Mode};

use crate::guards::copies;
use crate::review::{Action, Review, Subject, User};
use crate::verdict::{About, Code, Finding, Found, Guard, Held, Lift, Reason, Verdict, Warning};
use crate::world::{Answer, Unknown, World};

pub(super) async fn ask(subject: &Subject<'_>, user: &User<'_>, world: &impl World, found: &mut Found) {
    let mut cascading = Vec::new();
    for mark in marks(subject) {
        match Box::pin(copies::is_free(subject, &mark, user, world)).await {
            Ok(false) => {}
            Ok(true) => continue,
            Err(unknown) => {
                found.findings.push(not_known(&mark, unknown));
                continue;
            }
        }
        if mark.mistyped.is_some() {
            found.warnings.push(Warning::Mistyped(mark.clone()));
        }
        match mark.mode {
            Mode::Always => found.findings.push(finding(&mark, Reason::Marked(mark.clone()))),
            Mode::Cascading => cascading.push(mark),
        }
    }
    if cascading.is_empty() {
        return;
    }
    if let Some(group) = group_not_searched(subject, world) {
        return found.not_searched([group]);
    }
    // Asked once, however many marks ask for it.
    let Some(held) = held(subject, world).await else {
        found.warnings.extend(cascading.into_iter().map(Warning::CascadingNotKnown));
        return;
    };
    for mark in cascading {
        match &held {
            Ok(held) if held.is_empty() => {}
            Ok(held) => {
                found.findings.push(finding(&mark, Reason::MarkedWhile(mark.clone(), held.clone())));
            }
            Err(unknown) => found.findings.push(not_known(&mark, unknown.clone())),
        }
    }
}

/// The marks that protect an object; none on a kind that comes and goes by itself.
pub(super) fn marks(subject: &Subject<'_>) -> impl Iterator<Item = Mark> {
    let metadata = &subject.object.metadata;
    let lasts = !is_transient(&subject.kind.group, &subject.kind.kind);
    // A Deployment's controller copies annotations to its ReplicaSets and never takes them away again: there they
    // are nobody's wish, and the garbage collector would wait for ever.
    let copied = subject.kind.kind == "ReplicaSet" && metadata.owners.iter().any(|owner| owner.controller);
    let annotations = metadata.annotations.iter().filter(move |_| !copied);
    let labels = metadata.labels.iter().filter_map(|(key, value)| Mark::of_label(key, value));
    let all = labels.chain(annotations.filter_map(|(key, value)| Mark::of_annotation(key, value)));
    all.filter(move |_| lasts)
}

/// What to say to somebody who sets a label where it is copied, or where it protects nothing. Never refuses, and asks
/// nobody.
pub fn advise(review: &Review<'_>) -> Verdict {
    let (kind, new, old) = match &review.action {
        Action::Create(subject) => (&subject.kind, &subject.object, None),
        Action::Change { subject, new, .. } => (&subject.kind, new, Some(&subject.object)),
        _ => return Verdict::allow(),
    };
    let mut found = Found::default();
    if is_transient(&kind.group, &kind.kind) {
        let was = |key: &str| old.and_then(|old| old.metadata.labels.get(key));
        let set = new.metadata.labels.iter().filter(|(key, value)| was(key) != Some(value));
        found
            .warnings
            .extend(set.filter_map(|(key, value)| Mark::of_label(key, value)).map(Warning::Transient));
    } else {
        let old = old.map(copies::in_templates).unwrap_or_default();
        let set = copies::in_templates(new);
        found.warnings.extend(set.marks().filter(|mark| !old.carry(mark)).map(Warning::InTemplate));
    }
    Verdict::about(About::of(kind, new), found)
}

fn finding(mark: &Mark, reason: Reason) -> Finding {
    Finding { guard: Guard::Labels, code: Code::Forbidden, reason, lift: Some(Lift::of_mark(mark)) }
}

fn not_known(mark: &Mark, unknown: Unknown) -> Finding {
    let reason = Reason::MarkedUnknown(mark.clone(), unknown);
    Finding::unknown(Guard::Labels, reason, Some(Lift::of_mark(mark)))
}

/// The group of a definition's custom resources, if it is not searched: then nobody knows whether there are any.
pub(super) fn group_not_searched(subject: &Subject<'_>, world: &impl World) -> Option<String> {
    // A definition that can't be read is refused by what reads it.
    let definition = subject.kind.is_definition().then(|| subject.object.definition().ok()).flatten()?;
    (!world.is_searched(&definition.group)).then_some(definition.group)
}

/// What would go with the subject; `None` where nobody can tell for its kind.
pub(super) async fn held(subject: &Subject<'_>, world: &impl World) -> Option<Answer<Vec<Held>>> {
    Some(match cascade_of(&subject.kind.group, &subject.kind.kind)? {
        Cascade::Namespace => held_by_namespace(subject.name(), world).await,
        Cascade::Definition => held_by_definition(subject, world).await,
        Cascade::Workload => match subject.object.replicas() {
            Ok(0) => Ok(Vec::new()),
            Ok(replicas) => Ok(vec![Held::Replicas(replicas)]),
            Err(error) => Err(Unknown::new("its spec.replicas", error.to_string())),
        },
    })
}

async fn held_by_namespace(namespace: &str, world: &impl World) -> Answer<Vec<Held>> {
    let (pods, claims) = futures::join!(world.active_pods(namespace), world.bound_claims(namespace));
    let answers = [pods.map(Held::ActivePods), claims.map(Held::BoundClaims)];
    let known: Vec<Held> = answers.iter().flatten().filter(|held| held.is_something()).cloned().collect();
    // What is known to be held decides, also if the other question found no answer.
    if known.is_empty() { answers.into_iter().collect::<Answer<Vec<_>>>().map(|_| known) } else { Ok(known) }
}

async fn held_by_definition(subject: &Subject<'_>, world: &impl World) -> Answer<Vec<Held>> {
    let unknown = |why: String| Unknown::new("its custom resources", why);
    let definition = subject.object.definition().map_err(|error| unknown(error.to_string()))?;
    if definition.served_versions.is_empty() {
        return Err(unknown("none of its versions is served".to_owned()));
    }
    let instances = world.instances(&definition).await?;
    let held = Held::Instances(format!("{}.{}", definition.plural, definition.group), instances);
    Ok(if held.is_something() { vec![held] } else { Vec::new() })
}
