//! Cascade: what would take a protected object down is guarded with it.
//!
//! A Namespace or a `CustomResourceDefinition` is not deleted while it holds an object that is protected by a
//! mark (`Always`; or `Cascading` while that holds something) or by a `ResourceDeletionProtection` that denies.
//! An object that is already going does not count, and an exemption does not either: it covers the object's own
//! deletion, not a cascade onto it. `Orphan` excuses neither: Kubernetes ignores it there.
//!
//! A label that a controller copied there guards nothing: see [`super::copies`].
//!
//! An owner is not deleted while a protected object would be collected with it, at any depth; unless it is deleted
//! with `Orphan`. A dependent is collected only if all its owners are gone.
//!
//! A label protects what belongs to whoever sets it: an object in a namespace guards owners there, and its Namespace.
//! An owner without a namespace is the administrators', and goes with a warning that names what stays behind; a
//! `ResourceDeletionProtection` guards it.
//!
//! A kind that could not be listed is a refusal, which names it and the annotation by which it is passed over, or the
//! right that Palisade lacks; one that nobody can list, and that no rule concerns, is a warning. Groups that are not
//! searched (`--search-groups`) are named in a warning.
//!
//! The definitions of Palisade's own kinds stay while there are objects of them: every protection would vanish
//! with them, unasked.

use std::collections::BTreeMap;

use palisade_api::kinds::{Cascade, cascade_of};
use palisade_api::labels::look_up;
use palisade_api::marks::{IGNORE_UNREADABLE_KINDS, Mark, Mode as MarkMode};
use palisade_api::protection::{self, Action, Mode, Rule};
use palisade_api::{budget, flow};

use crate::guards::cascading::{self, Look};
use crate::guards::labels::marks;
use crate::guards::{churn, copies};
use crate::object::Definition;
use crate::protections::Protections;
use crate::review::{Kind, Propagation, Review, Subject};
use crate::rights::MissingRights;
use crate::tally::{Counted, LabelSet, Seen};
use crate::verdict::{
    About, Code, Doomed, Finding, Found, Guard, Held, Lift, OwnerRef, Reason, Ruled, Undecided, Warning,
};
use crate::world::{Answer, Judged, Place, Search, Unknown, UnreadableKind, World};

pub(super) async fn ask(subject: &Subject<'_>, review: &Review<'_>, world: &impl World, found: &mut Found) {
    let answer = match cascade_of(&subject.kind.group, &subject.kind.kind) {
        Cascade::Namespace => in_namespace(subject, world).await,
        Cascade::Definition => in_definition(subject, world, found).await,
        _ if !collects(subject, review) => return,
        _ if review.is_owner => below(subject, world).await,
        _ => Ok(Search::default()),
    };
    let answer = match answer {
        Ok(mut search) => {
            let is_exact = search.unreadable.is_empty() && search.not_searched.is_empty();
            found.not_searched(std::mem::take(&mut search.not_searched));
            let kept = protected(std::mem::take(&mut search.found), subject, world).await;
            kept.map(|found| (Search { found, ..search }, is_exact))
        }
        Err(unknown) => Err(unknown),
    };
    match answer {
        Ok((Search { found: doomed, beyond, seen, unreadable, not_searched: _ }, is_exact)) => {
            let (in_the_way, passed): (Vec<UnreadableKind>, Vec<UnreadableKind>) =
                unreadable.into_iter().partition(|kind| is_in_the_way(kind, subject, world.protections()));
            found.warnings.extend(passed.into_iter().map(Warning::Unreadable));
            // What is known to be protected decides, also if another kind could not be listed.
            if doomed.is_empty() {
                let (forbidden, others): (Vec<_>, Vec<_>) =
                    in_the_way.into_iter().partition(|kind| kind.missing.is_some());
                for kinds in [forbidden, others] {
                    found.findings.extend((!kinds.is_empty()).then(|| not_looked_at(subject, &kinds)));
                }
            }
            if !doomed.is_empty() {
                found.findings.push(dooms(doomed, beyond, &seen, is_exact));
            }
        }
        Err(unknown) => {
            let (reason, lift) = (Reason::Unreadable(unknown), serving(subject));
            found.findings.push(Finding::unknown(Guard::Cascade, reason, lift));
        }
    }
    // Last, in the time that is left: it refuses nothing.
    let is_owner = review.is_owner || review.expects.labelled_dependents;
    if is_owner && !holds_objects(subject) && subject.namespace().is_none() && found.findings.is_empty() {
        Box::pin(warn_of_labelled(subject, world, found)).await;
    }
}

/// The refusal for protected objects: `found`, and those that were only counted.
fn dooms(mut found: Vec<Doomed>, beyond: Counted, seen: &Seen, is_exact: bool) -> Finding {
    let mut counted = beyond;
    for doomed in &found {
        counted.add(doomed);
    }
    let (many, lift) = if found.len() > crate::prose::NAMES_SHOWN {
        let (many, lift) = crate::prose::many(&found, &counted, seen, is_exact);
        found.truncate(crate::prose::NAMES_SHOWN);
        (Some(many), lift)
    } else {
        (None, found.iter().flat_map(|each| each.lift.clone()).collect())
    };
    Finding {
        guard: Guard::Cascade,
        code: Code::Forbidden,
        reason: Reason::Dooms(found, many),
        lift: Some(Lift::Commands(lift)),
    }
}

/// What is protected, of what may be.
async fn protected(found: Vec<Doomed>, subject: &Subject<'_>, world: &impl World) -> Answer<Vec<Doomed>> {
    let found = copies::without_copies(found, world).await?;
    let ignored: Vec<&str> = ignored_kinds(subject).collect();
    Ok(Box::pin(cascading::settle(found, &ignored.join(","), world)).await)
}

/// Whether it is a Namespace or a definition: what it holds was looked at.
fn holds_objects(subject: &Subject<'_>) -> bool {
    let cascade = cascade_of(&subject.kind.group, &subject.kind.kind);
    matches!(cascade, Cascade::Namespace | Cascade::Definition)
}

/// Whether a kind that could not be listed keeps the subject from being deleted.
///
/// One that is broken, and that no rule concerns, does not: what carries a label of its own is kept by that, whatever
/// becomes of what holds it, and nobody could delete it before it can be read. Only custom resources vanish with their
/// definition unasked.
fn is_in_the_way(unreadable: &UnreadableKind, subject: &Subject<'_>, protections: &Protections) -> bool {
    let UnreadableKind { group, kind, is_broken, why: _, missing: _ } = unreadable;
    let kind = kind.as_ref().map(|(kind, _)| kind.as_str());
    let (namespace, vanishes) = match cascade_of(&subject.kind.group, &subject.kind.kind) {
        Cascade::Namespace => (Some(subject.name()), false),
        Cascade::Definition => (None, true),
        _ => (subject.namespace(), false),
    };
    let is_ignored = ignored_kinds(subject).any(|ignored| ignored == unreadable.resource());
    !is_ignored && (!is_broken || vanishes || protections.may_deny(group, kind, namespace))
}

/// The kinds that need not be looked at while they can't be read.
fn ignored_kinds<'a>(subject: &'a Subject<'_>) -> impl Iterator<Item = &'a str> {
    let value = subject.object.metadata.annotations.get(IGNORE_UNREADABLE_KINDS).unwrap_or_default();
    // It ends up in a command that somebody may run.
    let is_resource = |kind: &&str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '*');
        !kind.is_empty() && kind.chars().all(plain)
    };
    value.split(',').map(str::trim).filter(is_resource)
}

fn not_looked_at(subject: &Subject<'_>, kinds: &[UnreadableKind]) -> Finding {
    let question = match cascade_of(&subject.kind.group, &subject.kind.kind) {
        Cascade::Definition => "which of its custom resources are protected",
        _ => "what is protected in it",
    };
    let told = kinds.iter().take(crate::prose::NAMES_SHOWN);
    let why: Vec<String> = told.map(|kind| format!("{}: {}", kind.resource(), kind.why)).collect();
    let more = if kinds.len() > crate::prose::NAMES_SHOWN { "; …" } else { "" };
    let mut ignored: Vec<String> = ignored_kinds(subject).map(str::to_owned).collect();
    ignored.extend(kinds.iter().map(UnreadableKind::resource));
    let about = About::new(subject);
    let command = crate::prose::annotate_command(&about, IGNORE_UNREADABLE_KINDS, &ignored.join(","));
    let missing = MissingRights::all(kinds.iter().filter_map(|kind| kind.missing.as_ref()));
    let unknown = Unknown::new(question, format!("{}{more}", why.join("; "))).lacking(missing);
    let lift = Lift::Command(format!("{command} --overwrite"));
    Finding::unknown(Guard::Cascade, Reason::Unreadable(unknown), Some(lift))
}

/// A definition of which no version is served can be asked about once one is.
fn serving(subject: &Subject<'_>) -> Option<Lift> {
    let definition =
        subject.object.definition().ok().filter(|definition| definition.served_versions.is_empty())?;
    let name = format!("{}.{}", definition.plural, definition.group);
    let patch = r#"[{"op":"replace","path":"/spec/versions/0/served","value":true}]"#;
    Some(Lift::Command(format!("kubectl patch crd {name} --type=json -p '{patch}'")))
}

/// Whether dependents would be collected. Without a word, the API server's own default holds: Jobs and
/// `ReplicationController`s orphan theirs.
fn collects(subject: &Subject<'_>, review: &Review<'_>) -> bool {
    let by_default = match (&*subject.kind.group, &*subject.kind.kind) {
        ("batch", "Job") | ("", "ReplicationController") => Propagation::Orphan,
        _ => Propagation::Collect,
    };
    review.propagation.unwrap_or(by_default) == Propagation::Collect
}

async fn below(subject: &Subject<'_>, world: &impl World) -> Answer<Search> {
    let protections = world.protections();
    let labels = match subject.namespace() {
        _ if !protections.iter().any(Rule::asks_for_namespace_labels) => BTreeMap::new(),
        Some(namespace) => BTreeMap::from([(namespace.to_owned(), world.namespace_labels(namespace).await?)]),
        None => world.all_namespace_labels().await?,
    };
    // What is in a namespace has a label from whoever may write there.
    let marks = |inside: &Subject<'_>| subject.namespace().is_some() || inside.namespace().is_none();
    let judge = |inside: &Subject<'_>, whole: bool| {
        let by = Protectors { marks: marks(inside), protections };
        judge(inside, whole, by, |name| labels.get(name))
    };
    let place = Place::Below { uid: &subject.object.metadata.uid, namespace: subject.namespace() };
    world.search(place, &judge).await
}

/// Tells what an object without a namespace leaves behind in namespaces. Not knowing is no reason to keep it.
async fn warn_of_labelled(subject: &Subject<'_>, world: &impl World, found: &mut Found) {
    let none = Protections::default();
    let judge = |inside: &Subject<'_>, whole: bool| {
        let by = Protectors { marks: inside.namespace().is_some(), protections: &none };
        judge(inside, whole, by, |_| None)
    };
    let staying = match world.search(Place::LabelledBelow { uid: &subject.object.metadata.uid }, &judge).await
    {
        Ok(search) => {
            found.not_searched(search.not_searched);
            protected(search.found, subject, world).await
        }
        Err(unknown) => Err(unknown),
    };
    match staying {
        Ok(staying) if staying.is_empty() => {}
        Ok(staying) => found.warnings.push(Warning::DependentsStay(staying)),
        Err(unknown) => found.warnings.push(Warning::DependentsUnknown(unknown)),
    }
}

async fn in_namespace(subject: &Subject<'_>, world: &impl World) -> Answer<Search> {
    let protections = world.protections();
    let labels: BTreeMap<String, String> = subject
        .object
        .metadata
        .labels
        .iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let judge = |inside: &Subject<'_>, whole: bool| {
        judge(inside, whole, Protectors { marks: true, protections }, |_| Some(&labels))
    };
    world.search(Place::Namespace(subject.name()), &judge).await
}

async fn in_definition(subject: &Subject<'_>, world: &impl World, found: &mut Found) -> Answer<Search> {
    let unknown = |why: String| Unknown::new("which of its custom resources are protected", why);
    let definition = subject.object.definition().map_err(|error| unknown(error.to_string()))?;
    if is_ours(&definition) {
        let instances = world.instances(&definition).await?;
        let held = Held::Instances(format!("{}.{}", definition.plural, definition.group), instances);
        if held.is_something() {
            let reason = Reason::Own(held);
            found.findings.push(Finding { guard: Guard::Cascade, code: Code::Forbidden, reason, lift: None });
        }
        return Ok(Search::default());
    }
    if definition.served_versions.is_empty() {
        return Err(unknown("none of its versions is served".to_owned()));
    }
    let protections = world.protections();
    let kind = Kind {
        group: definition.group.as_str().into(),
        kind: definition.kind.as_str().into(),
        plural: definition.plural.as_str().into(),
    };
    let namespaces = if protections.of_kind(&kind).any(Rule::asks_for_namespace_labels) {
        world.all_namespace_labels().await?
    } else {
        BTreeMap::new()
    };
    let judge = |inside: &Subject<'_>, whole: bool| {
        judge(inside, whole, Protectors { marks: true, protections }, |name| namespaces.get(name))
    };
    world.search(Place::Definition(&definition), &judge).await
}

fn is_ours(definition: &Definition) -> bool {
    let Definition { group, plural, .. } = definition;
    group == protection::GROUP
        || (group == budget::GROUP && plural == budget::PLURAL)
        || (group == flow::GROUP && plural == flow::PLURAL)
}

/// What counts as protection.
#[derive(Clone, Copy)]
struct Protectors<'a> {
    /// Whether labels and annotations do.
    marks: bool,
    protections: &'a Protections,
}

/// Whether an object is protected, and so guards what would take it down.
fn judge<'a>(
    subject: &Subject<'_>,
    whole: bool,
    by: Protectors<'_>,
    namespace_labels: impl Fn(&str) -> Option<&'a BTreeMap<String, String>>,
) -> Judged {
    if subject.is_already_going() {
        return Judged::Free;
    }
    let metadata = &subject.object.metadata;
    let mut closer = false;
    let mut doomed: Option<Doomed> = None;
    let new = || {
        let owners = OwnerRef::all_of(metadata);
        let controller = metadata.owners.iter().find(|owner| owner.controller).map(OwnerRef::of);
        Doomed {
            about: About::new(subject),
            because: Vec::new(),
            lift: Vec::new(),
            carried: LabelSet::of(metadata),
            controller: controller
                .and_then(|controller| owners.iter().position(|owner| *owner == controller)),
            owners,
            undecided: None,
        }
    };
    let is_copy = |mark: &Mark| copies::is_by_kubernetes(metadata, mark);
    for mark in marks(subject).filter(|mark| by.marks && !is_copy(mark)) {
        let reason = match mark.mode {
            MarkMode::Always => Reason::Marked(mark),
            MarkMode::Cascading => match cascading::look(subject, whole) {
                Look::Told(Ok(held)) if held.is_empty() => continue,
                Look::Told(Ok(held)) => Reason::MarkedWhile(mark, held),
                Look::Told(Err(unknown)) => Reason::MarkedUnknown(mark, unknown),
                Look::Closer => {
                    closer = true;
                    continue;
                }
                Look::Ask => {
                    undecided(doomed.get_or_insert_with(new), subject).marks.push(mark);
                    continue;
                }
            },
        };
        doomed.get_or_insert_with(new).add(reason);
    }
    let kind = (&*subject.kind.group, &*subject.kind.kind);
    let (namespace, name) = (subject.namespace(), subject.name());
    let labels = |key: &str| metadata.labels.get(key);
    let none = BTreeMap::new();
    let applies = |rule: &&Rule| {
        let of_namespace = namespace.and_then(&namespace_labels).unwrap_or(&none);
        rule.action == Action::Deny
            && rule.selects(kind, namespace, name, labels)
            && rule.selects_in(kind, namespace, name, labels, look_up(of_namespace))
            && churn::guards_its_owner(rule, subject)
    };
    for rule in by.protections.of_kind(&subject.kind).filter(applies) {
        let ruled = Ruled { protection: rule.protection.clone(), message: rule.message.clone() };
        let reason = match rule.mode {
            Mode::Always => Reason::Ruled(ruled, Vec::new()),
            Mode::Cascading => match cascading::look(subject, whole) {
                Look::Told(Ok(held)) if held.is_empty() => continue,
                Look::Told(Ok(held)) => Reason::Ruled(ruled, held),
                Look::Told(Err(unknown)) => Reason::RuledUnknown(ruled, unknown),
                Look::Closer => {
                    closer = true;
                    continue;
                }
                Look::Ask => {
                    undecided(doomed.get_or_insert_with(new), subject).rules.push(ruled);
                    continue;
                }
            },
        };
        // An exemption would not help here, and to do away with the rule is not for us to suggest.
        doomed.get_or_insert_with(new).add(reason);
    }
    match doomed {
        // Also if something protects it already: all that does is told, and lifted.
        _ if closer => Judged::LookCloser,
        Some(doomed) => Judged::Protected(doomed),
        None => Judged::Free,
    }
}

/// The place for protections of an object that others decide about.
fn undecided<'a>(doomed: &'a mut Doomed, subject: &Subject<'_>) -> &'a mut Undecided {
    let new = || Undecided {
        kind: subject.kind.to_owned(),
        uid: subject.object.metadata.uid.to_string(),
        marks: Vec::new(),
        rules: Vec::new(),
    };
    doomed.undecided.get_or_insert_with(|| Box::new(new()))
}
