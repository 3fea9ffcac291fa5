//! What we answer.

use std::collections::BTreeSet;

use palisade_api::action::Action;
use palisade_api::budget::Limit;
use palisade_api::gates::Gate;
use palisade_api::marks::{Mark, Place};

use crate::object::{Metadata, Object, Owner};
use crate::order::Deadlock;
use crate::pod::Loss;
use crate::prose::Many;
use crate::review::{Kind, Subject};
use crate::rights::MissingRights;
use crate::tally::LabelSet;
use crate::world::{Census, Holders, Present, Standing, Throttled, Unknown, UnreadableKind};

/// The answer to a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What the findings are about; `None` when there is nothing to say.
    pub about: Option<About>,
    /// The same, as an Event names it.
    pub object: Option<ObjectRef>,
    /// Why not. All of them, so that nobody lifts one protection only to meet the next.
    pub findings: Vec<Finding>,
    /// What people should know whatever the outcome.
    pub warnings: Vec<Warning>,
    /// The protections that the deletion concerns, whatever they do about it.
    pub matched: Vec<Matched>,
    /// The flow controls that were against it, and let it pass.
    pub passed: Vec<Throttled>,
    /// The critical services that something still depends on, and that let it pass.
    pub left_behind: Vec<LeftBehind>,
    /// The protections that an update takes away, if it is allowed.
    pub lifted: Vec<Lifted>,
    /// The namespace that is terminating, and waits for what was refused to go.
    pub awaited_by: Option<String>,
    /// After how many seconds it is worth another try, if that is soon.
    pub retry_after: Option<u32>,
}

/// What the guards found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) findings: Vec<Finding>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) matched: Vec<Matched>,
    pub(crate) passed: Vec<Throttled>,
    pub(crate) left_behind: Vec<LeftBehind>,
    pub(crate) lifted: Vec<Lifted>,
}

impl Found {
    /// It stays, so nothing is left behind.
    pub(crate) fn stays(&mut self) {
        self.left_behind.clear();
        self.lifted.clear();
        let left_behind = |warning: &Warning| {
            matches!(
                warning,
                Warning::LeftBehind(_) | Warning::DependentsStay(_) | Warning::DependentsUnknown(_)
            )
        };
        self.warnings.retain(|warning| !left_behind(warning));
    }

    /// Says which groups were not looked at, all in one warning.
    pub(crate) fn not_searched(&mut self, groups: impl IntoIterator<Item = String>) {
        let told = self.warnings.iter_mut().find_map(|warning| match warning {
            Warning::NotSearched(told) => Some(told),
            _ => None,
        });
        let mut all: BTreeSet<String> = groups.into_iter().collect();
        match told {
            Some(told) => {
                all.extend(told.drain(..));
                told.extend(all);
            }
            None if all.is_empty() => {}
            None => self.warnings.push(Warning::NotSearched(all.into_iter().collect())),
        }
    }
}

/// A `ResourceDeletionProtection` that selected the object, for an asker whom it does not exempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    pub protection: String,
    pub action: Action,
}

/// The subject in the words of messages and commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// `deployment`
    pub kind: String,
    /// `deployments.apps`
    pub kubectl_name: String,
    pub namespace: Option<String>,
    pub name: String,
}

/// An object in the words of Events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    pub group: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
}

/// A protection that an update takes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifted {
    pub mark: Mark,
    /// What it says now, if it protects less and is there still.
    pub now: Option<String>,
}

/// One reason against an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub guard: Guard,
    pub code: Code,
    pub reason: Reason,
    /// How the person who meets it gets past it.
    pub lift: Option<Lift>,
}

impl Finding {
    /// What decides could not be found out.
    pub(crate) fn unreadable(guard: Guard, unknown: Unknown) -> Self {
        Self::unknown(guard, Reason::Unreadable(unknown), None)
    }

    /// For want of an answer. Another try may bring one, unless Palisade lacks a right: that must be granted.
    pub(crate) fn unknown(guard: Guard, reason: Reason, lift: Option<Lift>) -> Self {
        match reason.unknown().and_then(|unknown| unknown.missing.clone()) {
            Some(missing) => Self { guard, code: Code::Forbidden, reason, lift: Some(Lift::Grant(missing)) },
            None => Self { guard, code: Code::Unavailable, reason, lift },
        }
    }

    /// A policy that says nothing.
    pub(crate) fn invalid(guard: Guard, why: String) -> Self {
        Self { guard, code: Code::Invalid, reason: Reason::Invalid(why), lift: None }
    }
}

/// Who found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guard {
    Labels,
    Protections,
    Cascade,
    Critical,
    Components,
    Budgets,
    Flow,
}

impl Guard {
    /// Every guard there is.
    pub const ALL: &[Self] = &[
        Self::Labels,
        Self::Protections,
        Self::Cascade,
        Self::Critical,
        Self::Components,
        Self::Budgets,
        Self::Flow,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Protections => "protections",
            Self::Cascade => "cascade",
            Self::Critical => "critical",
            Self::Components => "components",
            Self::Budgets => "budgets",
            Self::Flow => "flow",
        }
    }
}

/// The kind of a refusal, in HTTP's numbers and Kubernetes' words. Where several meet, the first of this
/// order is the answer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// Protected: it stays until the protection is lifted.
    Forbidden,
    /// It makes no sense.
    Invalid,
    /// Not in this order: something depends on it.
    Conflict,
    /// Not now: a budget is spent, or the flow is too high.
    TooManyRequests,
    /// We could not find out, and that never means yes.
    Unavailable,
}

impl Code {
    /// Every code there is.
    pub const ALL: &[Self] =
        &[Self::Forbidden, Self::Invalid, Self::Conflict, Self::TooManyRequests, Self::Unavailable];

    pub fn status(self) -> u16 {
        match self {
            Self::Forbidden => 403,
            Self::Invalid => 422,
            Self::Conflict => 409,
            Self::TooManyRequests => 429,
            Self::Unavailable => 503,
        }
    }

    pub fn reason(self) -> &'static str {
        match self {
            Self::Forbidden => "Forbidden",
            Self::Invalid => "Invalid",
            Self::Conflict => "Conflict",
            Self::TooManyRequests => "TooManyRequests",
            Self::Unavailable => "ServiceUnavailable",
        }
    }
}

/// Why a guard says no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object carries a mark that always protects.
    Marked(Mark),
    /// The object carries a mark that protects it while it holds something.
    MarkedWhile(Mark, Vec<Held>),
    /// The object carries such a mark, and what it holds could not be found out.
    MarkedUnknown(Mark, Unknown),
    /// A `ResourceDeletionProtection` protects it, in mode `Cascading` while it holds something.
    Ruled(Ruled, Vec<Held>),
    /// A change would end the protection by one.
    Unselected(Ruled, Vec<Held>, Ending),
    /// One does in that mode, and what it holds could not be found out.
    RuledUnknown(Ruled, Unknown),
    /// Protected objects would go with it: these, or, where there are many, the first few of them.
    Dooms(Vec<Doomed>, Option<Many>),
    /// It is the definition of one of Palisade's own kinds, and there are objects of it.
    Own(Held),
    /// A budget does not allow that the pod is lost in this way now.
    Spent(Loss, Standing),
    /// Whether one allows it could not be found out in time.
    SpentUnknown(Loss, Unknown),
    /// A flow control does not allow more now.
    Throttled(Throttled),
    /// Whether one does could not be found out in time.
    FlowUnknown(Unknown),
    /// It, or what goes with it, is the provider of a `CriticalService` that something still depends on.
    Needed(Needed),
    /// Whether something does could not be found out.
    NeededUnknown { service: String, provider: Option<String>, unknown: Unknown },
    /// It is a `CriticalService`, and its provider is still there.
    Serves(Present),
    /// It is one, and whether its provider is there could not be found out.
    ServesUnknown(Unknown),
    /// It is a component that somebody else's operator manages.
    Managed(Managed),
    /// A policy that says nothing.
    Invalid(String),
    /// Something that decides could not be read.
    Unreadable(Unknown),
}

/// The change by which a protection would end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It would no longer be selected.
    Labels,
    /// It would be a controller's, which may delete it.
    Controller,
}

/// A `ResourceDeletionProtection` in the words of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruled {
    pub protection: String,
    pub message: Option<String>,
}

/// What still depends on the provider of a `CriticalService`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    pub service: String,
    /// The provider, where it would only go with the subject.
    pub provider: Option<String>,
    pub blockers: Vec<Blocker>,
    /// Why that can never end, if so.
    pub deadlock: Option<Deadlock>,
}

/// What is in the way of one criterion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    Holders { finalizer: String, holders: Holders },
    There(Present),
}

/// What a provider leaves behind that goes all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// Of the `CriticalService`.
    pub uid: String,
    pub parting: Parting,
    pub needed: Needed,
    /// What could not be found out.
    pub unknown: Vec<Unknown>,
}

/// Why it goes all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    BestEffort,
    /// Its namespace is terminating.
    Terminating,
}

/// A component, and what would become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Managed {
    /// The `ComponentProtection`; `None` for etcd-druid's own.
    pub protection: Option<String>,
    pub parent: About,
    pub change: Change,
    pub state: State,
}

/// What would become of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Update,
    Delete,
    Scale,
    /// It would lose what it is known by.
    Strip,
}

/// What a parent is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    AtRest,
    Reconciling,
    Deleting,
}

/// A protected object that would go with another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doomed {
    pub about: About,
    pub because: Vec<Reason>,
    /// The commands that lift its protection.
    pub lift: Vec<String>,
    /// The protection labels that it carries, whether they protect it or not.
    pub carried: LabelSet,
    pub owners: Vec<OwnerRef>,
    /// Which of its owners manages it.
    pub controller: Option<usize>,
    /// `Cascading` protections of it, where only others can tell whether something would go with it.
    pub undecided: Option<Box<Undecided>>,
}

/// An object whose own text does not tell whether something would go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    pub kind: Kind<'static>,
    pub uid: String,
    pub marks: Vec<Mark>,
    pub rules: Vec<Ruled>,
}

/// An owner reference that outlives what it was read from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerRef {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl OwnerRef {
    /// The owners of an object, each once: they may be named many times.
    pub(crate) fn all_of(metadata: &Metadata<'_>) -> Vec<Self> {
        let owners: BTreeSet<Self> = metadata.owners.iter().map(Self::of).collect();
        owners.into_iter().collect()
    }

    pub fn of(owner: &Owner<'_>) -> Self {
        Self {
            api_version: owner.api_version.to_string(),
            kind: owner.kind.to_string(),
            name: owner.name.to_string(),
            uid: owner.uid.to_string(),
        }
    }

    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

impl Doomed {
    pub(crate) fn add(&mut self, reason: Reason) {
        self.lift.extend(reason.mark().map(|mark| self.lifting(mark)).unwrap_or_default());
        self.because.push(reason);
    }

    fn lifting(&self, mark: &Mark) -> Vec<String> {
        crate::prose::lifting(&self.about, [&Lift::of_mark(mark)])
    }

    pub(crate) fn controller(&self) -> Option<&OwnerRef> {
        self.controller.and_then(|index| self.owners.get(index))
    }

    pub(crate) fn is_claim(&self) -> bool {
        self.about.kubectl_name == "persistentvolumeclaim"
    }

    /// Whether nothing but the object itself decides that it is protected: it has no owner whose label may be copied, and
    /// with which it may go, and nothing has to be asked about it.
    pub(crate) fn is_settled(&self) -> bool {
        self.owners.is_empty() && !self.is_claim() && self.undecided.is_none()
    }

    /// The marks that protect it, or may.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &Mark> {
        let undecided = self.undecided.iter().flat_map(|undecided| &undecided.marks);
        self.because.iter().filter_map(Reason::mark).chain(undecided)
    }

    /// The same without some marks; `None` if nothing else protects it.
    pub(crate) fn without_marks(mut self, marks: &[Mark]) -> Option<Self> {
        self.undecided = self.undecided.and_then(|mut undecided| {
            undecided.marks.retain(|mark| !marks.contains(mark));
            (!undecided.marks.is_empty() || !undecided.rules.is_empty()).then_some(undecided)
        });
        if !marks.is_empty() {
            self.lift.clear();
            for reason in std::mem::take(&mut self.because) {
                if reason.mark().is_none_or(|mark| !marks.contains(mark)) {
                    self.add(reason);
                }
            }
        }
        (!self.because.is_empty() || self.undecided.is_some()).then_some(self)
    }
}

impl Reason {
    /// The mark on the object that protects it, if that is why.
    pub(crate) fn mark(&self) -> Option<&Mark> {
        match self {
            Self::Marked(mark) | Self::MarkedWhile(mark, _) | Self::MarkedUnknown(mark, _) => Some(mark),
            _ => None,
        }
    }

    /// The `ResourceDeletionProtection` that protects the object, if that is why.
    pub(crate) fn protection(&self) -> Option<&str> {
        match self {
            Self::Ruled(rule, _) | Self::RuledUnknown(rule, _) => Some(&rule.protection),
            _ => None,
        }
    }
}

/// What an object still holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    ActivePods(Census),
    BoundClaims(Census),
    /// Custom resources, by the definition's `plural.group`.
    Instances(String, Census),
    Replicas(i64),
    /// The pods that a `DaemonSet` should run.
    DaemonPods(i64),
    /// The active pods of a Job.
    JobPods(i64),
    /// The active Jobs of a `CronJob`.
    ActiveJobs(Census),
    /// The volume that a claim is bound to; empty if its name is not told.
    BoundVolume(String),
    /// The claim that a volume is bound to, in the same way.
    BoundClaim(String),
    /// The pods that mount a claim, and have not ended.
    MountingPods(Census),
    ReadyEndpoints(Census),
    /// The pods of a Node that are not a `DaemonSet`'s.
    NodePods(Census),
    /// The objects that name it as owner.
    Dependents(Census),
}

impl Held {
    pub(crate) fn is_something(&self) -> bool {
        match self {
            Self::ActivePods(census)
            | Self::BoundClaims(census)
            | Self::Instances(_, census)
            | Self::ActiveJobs(census)
            | Self::MountingPods(census)
            | Self::ReadyEndpoints(census)
            | Self::NodePods(census)
            | Self::Dependents(census) => !census.is_none(),
            Self::Replicas(count) | Self::DaemonPods(count) | Self::JobPods(count) => *count != 0,
            Self::BoundVolume(_) | Self::BoundClaim(_) => true,
        }
    }
}

/// The command that lifts a protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lift {
    RemoveLabel(&'static str),
    RemoveAnnotation(&'static str),
    SetAnnotation(&'static str, &'static str),
    Command(String),
    Commands(Vec<String>),
    /// Palisade needs to know more.
    Grant(MissingRights),
}

impl Lift {
    pub(crate) fn of_mark(mark: &Mark) -> Self {
        match mark.place {
            Place::Label => Self::RemoveLabel(mark.key),
            Place::Annotation => Self::RemoveAnnotation(mark.key),
        }
    }
}

/// Something to say without refusing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// A mark with a value that means nothing, read in the way that protects.
    Mistyped(Mark),
    /// A mark in a template, which is copied to everything that is made from it.
    InTemplate(Mark),
    /// A mark on a kind that no label protects.
    Transient(Mark),
    /// A `ResourceDeletionProtection` that warns.
    Ruled(Ruled),
    /// A change of labels ends the protection by one that warns.
    Unselected(Ruled, Ending),
    /// A flow control that warns.
    Throttled(Throttled),
    /// A provider goes before what depends on it.
    LeftBehind(LeftBehind),
    /// An object without a namespace goes; objects in namespaces that it owns, and that labels protect, stay.
    DependentsStay(Vec<Doomed>),
    /// Whether there are such could not be found out.
    DependentsUnknown(Unknown),
    /// A criterion is about a resource that is not served.
    NotServed(String),
    /// So is a provider.
    ProviderNotServed(String),
    /// A provider is where nothing is ever refused.
    OwnNamespace,
    /// A component's parent is not there: its kind and name.
    NoParent(String, String),
    /// A policy that is being written does not hold yet.
    NotHeldYet,
    /// A budget that no administrator writes would let no pod go, and lets at least so many go.
    Bounded { limit: Limit, least: u32 },
    /// A provider can never go in order.
    Deadlocked(Deadlock),
    /// Groups that are not searched, and in which something may be that matters.
    NotSearched(Vec<String>),
    /// A kind that could not be searched for protected objects, and that no protection is known to concern.
    Unreadable(UnreadableKind),
    /// A feature is off that this concerns.
    Disabled(Disabled),
}

/// What a feature that is off would do if it were on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disabled {
    /// It would enforce the policy that is written.
    Policy(Gate),
    /// It would refuse the policy that is written, because it is not valid.
    InvalidPolicy(String),
    /// It would protect what is deleted, by a label or an annotation.
    Mark(Mark),
    /// It would look for what is protected in the Namespace, or of the kind, that is deleted.
    Cascade,
}

impl Verdict {
    pub fn allow() -> Self {
        Self::of(None, Found::default())
    }

    pub(crate) fn new(subject: &Subject<'_>, found: Found) -> Self {
        let verdict = Self::about(About::new(subject), found);
        let object = verdict.about.is_some().then(|| ObjectRef::new(subject));
        Self { object, ..verdict }
    }

    pub(crate) fn about(about: About, found: Found) -> Self {
        let says_nothing = found == Found::default();
        Self::of((!says_nothing).then_some(about), found)
    }

    fn of(about: Option<About>, found: Found) -> Self {
        let Found { findings, warnings, matched, passed, left_behind, lifted } = found;
        Self {
            about,
            object: None,
            findings,
            warnings,
            matched,
            passed,
            left_behind,
            lifted,
            awaited_by: None,
            retry_after: None,
        }
    }

    pub(crate) fn unreadable(subject: &Subject<'_>, unknown: Unknown) -> Self {
        let finding = Finding::unreadable(Guard::Labels, unknown);
        Self::new(subject, Found { findings: vec![finding], ..Found::default() })
    }

    pub fn is_allowed(&self) -> bool {
        self.findings.is_empty()
    }

    /// The code of the refusal, if it is one.
    pub fn code(&self) -> Option<Code> {
        self.findings.iter().map(|finding| finding.code).min()
    }
}

impl ObjectRef {
    fn new(subject: &Subject<'_>) -> Self {
        Self {
            group: subject.kind.group.to_string(),
            kind: subject.kind.kind.to_string(),
            namespace: subject.namespace().map(str::to_owned),
            name: subject.name().to_owned(),
            uid: subject.object.metadata.uid.to_string(),
        }
    }
}

impl About {
    pub(crate) fn new(subject: &Subject<'_>) -> Self {
        Self::of(&subject.kind, &subject.object)
    }

    pub(crate) fn of(kind: &Kind<'_>, object: &Object<'_>) -> Self {
        Self {
            kind: kind.to_string(),
            kubectl_name: kind.kubectl_name(),
            namespace: object.metadata.namespace().map(str::to_owned),
            name: object.metadata.name.to_string(),
        }
    }
}
