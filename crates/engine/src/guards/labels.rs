//! Labels: an object asks for its own protection.
//!
//! `Always` refuses every deletion while the mark is there. `Cascading` refuses it while something would go with the
//! object; what that is for each kind is in [`super::cascading`].
//!
//! Kinds that come and go by themselves (Endpoints, `EndpointSlice`s, Events, Leases) are protected by no mark, and a
//! mark that was copied binds people only: see [`super::copies`].
//!
//! The marks and their values are in [`palisade_api::marks`].

use palisade_api::kinds::is_transient;
use palisade_api::marks::{Mark, Mode};

use crate::guards::{cascading, copies};
use crate::object::Metadata;
use crate::review::{Action, Review, Subject, User};
use crate::verdict::{About, Code, Finding, Found, Guard, Lift, Reason, Verdict, Warning};
use crate::world::{Unknown, World};

pub(super) async fn ask(subject: &Subject<'_>, user: &User<'_>, world: &impl World, found: &mut Found) {
    let mut while_held = Vec::new();
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
            Mode::Cascading => while_held.push(mark),
        }
    }
    if while_held.is_empty() {
        return;
    }
    // Asked once, however many marks ask for it.
    let held = Box::pin(cascading::held(subject, user, world, found)).await;
    for mark in while_held {
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

/// Every mark in some metadata, whatever it means there.
pub(super) fn all_marks(metadata: &Metadata<'_>) -> Vec<Mark> {
    let labels = metadata.labels.iter().filter_map(|(key, value)| Mark::of_label(key, value));
    let annotations = metadata.annotations.iter().filter_map(|(key, value)| Mark::of_annotation(key, value));
    labels.chain(annotations).collect()
}

/// What to say to somebody who sets a mark where it is copied, or where it protects nothing. Never refuses, and asks
/// nobody.
pub fn advise(review: &Review<'_>) -> Verdict {
    let (kind, new, old) = match &review.action {
        Action::Create(subject) => (&subject.kind, &subject.object, None),
        Action::Change { subject, new, .. } => (&subject.kind, new, Some(&subject.object)),
        _ => return Verdict::allow(),
    };
    let mut found = Found::default();
    if is_transient(&kind.group, &kind.kind) {
        let old = old.map(|old| all_marks(&old.metadata)).unwrap_or_default();
        let set = all_marks(&new.metadata).into_iter().filter(|mark| !old.contains(mark));
        found.warnings.extend(set.map(Warning::Transient));
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
