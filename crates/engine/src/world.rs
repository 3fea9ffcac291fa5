//! What guards may ask about everything but the object itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::{Future, Ready, ready};
use std::sync::Arc;

use palisade_api::action::Action;
use palisade_api::components::{Components, GroupKind};
use palisade_api::critical::{Provider, Resource, Service, Target};

use crate::guards::copies::SourceMarks;
use crate::object::{Definition, Metadata};
use crate::pod::Loss;
use crate::protections::Protections;
use crate::review::{Expects, Kind, Subject, User};
use crate::rights::MissingRights;
use crate::tally::{Counted, Seen};
use crate::verdict::{About, Doomed, OwnerRef};

/// The rest of the cluster, in the guards' words.
///
/// "I could not find out" is an answer of its own: it never stands for "nothing there".
pub trait World: Sync {
    /// The pods of a namespace that are not Succeeded, Failed or terminating.
    fn active_pods(&self, namespace: &str) -> impl Future<Output = Answer<Census>> + Send;

    /// The claims of a namespace that are Bound and not terminating.
    fn bound_claims(&self, namespace: &str) -> impl Future<Output = Answer<Census>> + Send;

    /// The custom resources of a definition that are not terminating.
    fn instances(&self, definition: &Definition) -> impl Future<Output = Answer<Census>> + Send;

    /// Whether an API group is searched (`--search-groups`). Nobody asks for what there is of another.
    fn is_searched(&self, group: &str) -> bool;

    /// Where the replicas of a kind's objects are; `None` if it has no `scale` subresource.
    fn scale(&self, kind: &Kind<'_>) -> impl Future<Output = Answer<Option<Scale>>> + Send;

    /// The pods of a namespace that mount some of its claims and have not ended, by claim.
    fn mounting_pods(
        &self,
        namespace: &str,
        claims: &BTreeSet<String>,
    ) -> impl Future<Output = Answer<BTreeMap<String, Census>>> + Send;

    /// The endpoints of some Services of a namespace that are ready and not terminating, by Service.
    fn ready_endpoints(
        &self,
        namespace: &str,
        services: &BTreeSet<String>,
    ) -> impl Future<Output = Answer<BTreeMap<String, Census>>> + Send;

    /// The pods on a Node that are not a `DaemonSet`'s, have not ended and are not terminating.
    fn pods_on_node(&self, node: &str) -> impl Future<Output = Answer<Census>> + Send;

    /// The objects of a namespace, or of the whole cluster, that name one of these uids as owner and are not terminating.
    fn dependents(
        &self,
        namespace: Option<&str>,
        owners: &BTreeSet<String>,
    ) -> impl Future<Output = Answer<Dependents>> + Send;

    /// The rules of all `ResourceDeletionProtection`s.
    fn protections(&self) -> &Protections;

    /// The labels of a namespace.
    fn namespace_labels(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Answer<BTreeMap<String, String>>> + Send;

    /// Whether a namespace is terminating. It changes a refusal's words, or lets Kubernetes' controllers clean up, so not
    /// knowing is no.
    fn is_terminating(&self, _namespace: &str) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// The labels of every namespace.
    fn all_namespace_labels(
        &self,
    ) -> impl Future<Output = Answer<BTreeMap<String, BTreeMap<String, String>>>> + Send;

    /// The objects of a place that `judge` finds protected. Of very many, some are only counted.
    fn search(
        &self,
        place: Place<'_>,
        judge: &(dyn Fn(&Subject<'_>, bool) -> Judged + Sync),
    ) -> impl Future<Output = Answer<Search>> + Send;

    /// What became of owners, by their uids. Each is asked for with the namespace of its dependent, in which it is
    /// unless it has none.
    fn owners(
        &self,
        _owners: &[(Option<String>, OwnerRef)],
    ) -> impl Future<Output = Answer<BTreeMap<String, OwnerState>>> + Send {
        ready(Err(Unknown::new("what its owner looks like", "there is nobody to ask")))
    }

    /// Whether an owner that is gone is known to have been there: then its deletion was admitted. Not knowing is no.
    fn has_seen_owner(&self, _uid: &str) -> bool {
        false
    }

    /// The claim templates of the `StatefulSet`s of a namespace.
    fn claim_templates(&self, _namespace: &str) -> impl Future<Output = Answer<Vec<ClaimTemplate>>> + Send {
        ready(Err(Unknown::new("which StatefulSet it belongs to", "there is nobody to ask")))
    }

    /// Charges a pod to every budget and every flow control that it concerns, or tells which of them do not allow it,
    /// and charges none. Unless `really`, it only tells.
    fn spend(&self, _withdrawal: &Withdrawal<'_>, _really: bool) -> impl Future<Output = Spent> + Send {
        async { Spent::default() }
    }

    /// All `CriticalService`s, if one of them may be about the subject, or in any case without one.
    fn critical_services(
        &self,
        _concerned: Option<&Subject<'_>>,
    ) -> impl Future<Output = Answer<Vec<Critical>>> + Send {
        async { Ok(Vec::new()) }
    }

    /// The objects of a resource, wherever they are, that carry a finalizer; none, if it is not served.
    fn holders(&self, resource: &Resource, _finalizer: &str) -> impl Future<Output = Answer<Holders>> + Send {
        nobody_to_ask(resource)
    }

    /// An object, if it is there; `None` also if its resource is not served.
    fn find(&self, target: &Target) -> impl Future<Output = Answer<Option<Present>>> + Send {
        nobody_to_ask(&target.resource)
    }

    /// Whether the objects of a resource have namespaces; `None` if it is not served.
    fn scope(&self, resource: &Resource) -> impl Future<Output = Answer<Option<Scope>>> + Send {
        nobody_to_ask(resource)
    }

    /// The component protections that are about a kind, or all of them without one.
    fn components(
        &self,
        _kind: Option<&GroupKind>,
    ) -> impl Future<Output = Answer<Vec<Arc<ProtectedComponents>>>> + Send {
        async { Ok(Vec::new()) }
    }

    /// A parent of components, by its name, in their namespace or in none; `None` if it is not there.
    fn parent(
        &self,
        kind: &GroupKind,
        _namespace: Option<&str>,
        name: &str,
    ) -> impl Future<Output = Answer<Option<Parent>>> + Send {
        ready(Err(Unknown::new(
            format!("what {} \"{name}\" is in the middle of", kind.kind),
            "there is nobody to ask",
        )))
    }

    /// The parent of the `StatefulSet` from whose template a claim was made, as `parent` reads it; `None` if there is
    /// none.
    fn claimed_by(
        &self,
        _components: &Components,
        _namespace: &str,
        _claim: &str,
        _parent: &(dyn Fn(&Metadata<'_>) -> Option<String> + Sync),
    ) -> impl Future<Output = Answer<Option<String>>> + Send {
        async { Ok(None) }
    }

    /// A workload that is scaled, by its plural; `None` if it is not there.
    fn scaled(
        &self,
        _group: &str,
        plural: &str,
        _namespace: &str,
        name: &str,
    ) -> impl Future<Output = Answer<Option<Scaled>>> + Send {
        ready(Err(Unknown::new(format!("what {plural} \"{name}\" is"), "there is nobody to ask")))
    }

    /// Waits until a policy that is being created will be asked about. No if that takes too long: then its status says
    /// from when on it holds.
    fn await_policy(&self, _policy: Declared<'_>) -> impl Future<Output = bool> + Send {
        async { true }
    }

    /// The JSON of a pod; `None` if there is no such pod.
    fn pod(&self, namespace: &str, name: &str) -> impl Future<Output = Answer<Option<String>>> + Send;

    /// How many pods a budget lets go at least that no administrator writes. If it is `really` written, who does so is
    /// remembered.
    fn note_author(&self, author: &BudgetAuthor<'_>, really: bool) -> u32;
}

fn nobody_to_ask<T>(resource: &Resource) -> Ready<Answer<T>> {
    ready(Err(Unknown::new(format!("what there is of {resource}"), "there is nobody to ask")))
}

/// A pod that would be lost.
#[derive(Clone, Debug)]
pub struct Withdrawal<'a> {
    pub pod: &'a Metadata<'a>,
    /// How, if it counts as available now: that costs its budgets.
    pub loss: Option<Loss>,
    /// What its labels and owners will be, where it is those that change.
    pub parting: Option<&'a Metadata<'a>>,
    /// Who removes it, if that is how it is lost, and it has not ended: that costs flow controls.
    pub removed_by: Option<&'a User<'a>>,
    /// Whether the pod stays as an object, so that nobody can tell later by its absence that it was lost.
    pub stays: bool,
    /// What there should be for it.
    pub expects: Expects,
    /// Whether it was read from the API server just now; otherwise it is as the caller tells.
    pub is_read: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Who does not allow it. If there is nobody, everybody was charged.
    pub refused: Vec<Refused>,
    /// The flow controls that are against it, and let it pass.
    pub passed: Vec<Throttled>,
}

/// Why a pod may not be lost now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    Budget(Standing),
    BudgetsUnknown(Unknown),
    Flow(Throttled),
    FlowUnknown(Unknown),
}

/// A rule of a flow control that a deletion is beyond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttled {
    pub control: String,
    pub action: Action,
    /// As it is written: `10m`.
    pub interval: String,
    pub limit: i64,
    /// How many were deleted in the interval.
    pub used: i64,
    /// In how many seconds there is something left again; `None` if it stops all.
    pub next_slot: Option<u32>,
}

/// A policy that is being created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared<'a> {
    Budget { namespace: &'a str, name: &'a str },
    FlowControl { name: &'a str },
    CriticalService { name: &'a str, provider: &'a Provider, is_new: bool },
}

/// Who writes a budget, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetAuthor<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    /// That the budget will have: the API server counts before it asks.
    pub generation: i64,
    /// The text of its `spec`.
    pub spec: &'a [u8],
    /// Whether they may write budgets in all namespaces.
    pub administrator: bool,
}

/// A component protection.
#[derive(Debug)]
pub struct ProtectedComponents {
    /// `None` for etcd-druid's, which flags switch on.
    pub name: Option<String>,
    /// What it asks for, or why nobody can tell.
    pub components: Result<Components, String>,
}

/// A parent of components.
#[derive(Clone, Debug)]
pub struct Parent {
    pub about: About,
    pub object: serde_json::Value,
}

/// A workload that is scaled.
#[derive(Clone, Debug)]
pub struct Scaled {
    pub kind: String,
    /// Its JSON, or that of its metadata.
    pub object: String,
}

/// A `CriticalService`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Critical {
    pub name: String,
    pub uid: String,
    /// What it asks for, or why nobody can tell.
    pub service: Result<Service, String>,
}

/// Objects that carry a finalizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// `coolresources.my.crd.group`
    pub resource: String,
    pub census: Census,
    /// Whether all of them are going already.
    pub going: bool,
}

/// An object that is there; several, where its namespace was not told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// `deployment`
    pub kind: String,
    /// `shop/web`
    pub names: Vec<String>,
    /// Whether all of them are going already.
    pub going: bool,
}

/// `deployment "shop/web"`
impl fmt::Display for Present {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> = self.names.iter().map(|name| format!("{} \"{name}\"", self.kind)).collect();
        f.write_str(&named.join(", "))
    }
}

/// Where the objects of a resource live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// How a budget stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub budget: String,
    /// How many more pods may become unavailable.
    pub allowed: i64,
    pub available: i64,
    pub desired: i64,
    pub total: i64,
}

/// Where to search for protected objects.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Every kind in a namespace.
    Namespace(&'a str),
    /// The custom resources of a definition.
    Definition(&'a Definition),
    /// What the garbage collector would remove with an object: in its namespace, or anywhere if it has none.
    /// What is in a namespace guards an object without one only by a rule.
    Below { uid: &'a str, namespace: Option<&'a str> },
    /// What the garbage collector would remove in any namespace with an object that has none, if labels did not protect
    /// it. Some of it is enough.
    LabelledBelow { uid: &'a str },
}

/// What became of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// It is there, with that uid.
    There { labels: SourceMarks, is_terminating: bool },
    /// It is not there any more, or another one of the same name is.
    Gone,
    /// The same of one without a namespace, whose dependent has one: anybody could have named it as an owner.
    GoneFromCluster,
}

/// A claim template of a `StatefulSet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimTemplate {
    pub set: String,
    pub template: String,
    pub labels: SourceMarks,
}

impl ClaimTemplate {
    /// Whether a claim was made from it: `TEMPLATE-SET-ORDINAL`.
    pub(crate) fn made(&self, claim: &str) -> bool {
        let rest = claim.strip_prefix(&*self.template).and_then(|rest| rest.strip_prefix('-'));
        let ordinal = rest.and_then(|rest| rest.strip_prefix(&*self.set)?.strip_prefix('-'));
        ordinal
            .is_some_and(|ordinal| ordinal.parse::<u32>().is_ok_and(|number| number.to_string() == ordinal))
    }
}

/// What is to be thought of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    Free,
    Protected(Doomed),
    /// Its metadata does not tell: show it whole.
    LookCloser,
}

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    pub found: Vec<Doomed>,
    /// Protected objects that are not in `found`, since there are too many.
    pub beyond: Counted,
    /// Everything that was looked at.
    pub seen: Seen,
    /// Kinds whose objects could not be listed.
    pub unreadable: Vec<UnreadableKind>,
    /// Groups that are served and not searched.
    pub not_searched: Vec<String>,
}

/// How many objects of a kind a search keeps, of those that nothing else decides about. The rest is counted.
const KEPT_OF_A_KIND: usize = 500;

impl Search {
    /// Takes in an object that was looked at; `false` if it has to be shown whole.
    pub fn add(&mut self, subject: &Subject<'_>, judged: Judged) -> bool {
        match judged {
            Judged::LookCloser => return false,
            Judged::Free => {}
            Judged::Protected(doomed) => self.found.push(doomed),
        }
        self.seen.add(subject);
        true
    }

    /// Takes in a page of the same kind.
    pub fn add_page(&mut self, page: Self) {
        let Self { found, beyond, seen, unreadable, not_searched } = page;
        for doomed in found {
            if self.found.len() >= KEPT_OF_A_KIND && doomed.is_settled() {
                self.beyond.add(&doomed);
            } else {
                self.found.push(doomed);
            }
        }
        self.beyond.merge(beyond);
        self.seen.merge(seen);
        self.unreadable.extend(unreadable);
        self.not_searched.extend(not_searched);
    }

    /// Takes in another kind.
    pub fn add_kind(&mut self, kind: Self) {
        let Self { found, beyond, seen, unreadable, not_searched } = kind;
        self.found.extend(found);
        self.beyond.merge(beyond);
        self.seen.merge(seen);
        self.unreadable.extend(unreadable);
        self.not_searched.extend(not_searched);
    }

    /// Only labelled objects of a kind were looked at.
    pub fn was_by_selector(&mut self, kind: &Kind<'_>) {
        self.seen.was_by_selector(kind.kubectl_name());
    }
}

/// Where the replicas of a kind's objects are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// The path of `spec.replicas`, as `.spec.replicas`, by version of the kind's group. Empty where another API server
    /// serves the kind, which does not tell.
    pub paths: BTreeMap<String, String>,
}

/// Objects that name others as owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependents {
    /// Those of each owner that has any.
    pub by_owner: BTreeMap<String, Census>,
    /// Kinds whose objects could not be listed.
    pub unreadable: Vec<UnreadableKind>,
    /// Groups that are served and not searched.
    pub not_searched: Vec<String>,
}

/// A kind whose objects could not be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableKind {
    pub group: String,
    /// Kind and plural; `None` for a whole group of which nobody knows what it serves.
    pub kind: Option<(String, String)>,
    pub why: String,
    /// Nobody can list it, not only Palisade: its conversion webhook or its own API server does not answer.
    pub is_broken: bool,
    /// What Palisade lacks to list it.
    pub missing: Option<MissingRights>,
}

impl UnreadableKind {
    /// `widgets.example.com`, or `*.example.com` for a whole group.
    pub fn resource(&self) -> String {
        let plural = self.kind.as_ref().map_or("*", |(_, plural)| plural);
        if self.group.is_empty() { plural.to_owned() } else { format!("{plural}.{}", self.group) }
    }
}

/// What came of a question.
pub type Answer<T> = Result<T, Unknown>;

/// A question that could not be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// What was asked: "the active pods of namespace shop".
    pub question: String,
    /// Why there is no answer.
    pub why: String,
    /// What Palisade lacks to find out. Without it another try is of no use.
    pub missing: Option<MissingRights>,
}

impl Unknown {
    pub fn new(question: impl Into<String>, why: impl Into<String>) -> Self {
        Self { question: question.into(), why: why.into(), missing: None }
    }

    /// The same for want of rights.
    #[must_use]
    pub fn lacking(self, missing: Option<MissingRights>) -> Self {
        Self { missing, ..self }
    }
}

/// How many there are of something, and what a few of them are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    pub count: Count,
    /// The first few, as people would name them.
    pub names: Vec<String>,
}

impl Census {
    pub const NONE: Self = Self { count: Count::Exactly(0), names: Vec::new() };

    pub(crate) fn is_none(&self) -> bool {
        self.count == Count::Exactly(0)
    }
}

/// A number that was not always counted to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Exactly(usize),
    AtLeast(usize),
}

impl Count {
    pub(crate) fn is_one(self) -> bool {
        self == Self::Exactly(1)
    }

    pub(crate) fn seen(self) -> usize {
        match self {
            Self::Exactly(n) | Self::AtLeast(n) => n,
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(n) => write!(f, "{n}"),
            Self::AtLeast(n) => write!(f, "at least {n}"),
        }
    }
}
