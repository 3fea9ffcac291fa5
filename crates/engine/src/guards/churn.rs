//! Churn: what controllers, and Kubernetes itself, delete all the time.
//!
//! A rule for whatever there is ("everything in these namespaces", "this kind everywhere") is for people and their tools.
//! What comes and goes by itself goes on under it:
//!
//! | object | people and tools | service accounts | Kubernetes' controllers | garbage collector, namespace controller |
//! | --- | --- | --- | --- | --- |
//! | a controller's pod | may, also evict | may, also evict | may | may |
//! | the same, and the rule names pods | no | may delete | may | no |
//! | anything else of a controller's | no | may | may | no |
//! | what a pod owns as its controller | no | may | may | garbage collector may |
//! | a pod of nobody's | no | no | may, when its node is gone, or for preemption | no |
//! | a Job that is finished and has outlived its TTL | no | no | the TTL controller may | no |
//! | any other object | no | no | no | no |
//!
//! "A controller's" means that its controller owner is there, with the uid of the reference. Nobody can tell from a review
//! whether a service account is the one that an owner's controller runs as, so that any service account counts as it: the
//! object comes back. What makes an object a controller's is guarded by [`may_adopt`].
//!
//! The garbage collector and the namespace controller are bound, so that a protected object does not go because something
//! else did.

use palisade_api::protection::Rule;

use crate::object::Metadata;
use crate::review::{Action, Review, Subject, User};
use crate::verdict::OwnerRef;
use crate::world::{Answer, OwnerState, Unknown, World};

/// Kubernetes' controllers that delete what nobody owns: the account's name, and the kind.
const CLEANERS: [(&str, &str, &str); 8] = [
    ("pod-garbage-collector", "", "Pod"),
    ("taint-eviction-controller", "", "Pod"),
    ("node-controller", "", "Pod"),
    ("ttl-after-finished-controller", "batch", "Job"),
    ("tokens-controller", "", "Secret"),
    ("token-cleaner", "", "Secret"),
    ("legacy-service-account-token-cleaner", "", "Secret"),
    ("certificate-controller", "certificates.k8s.io", "CertificateSigningRequest"),
];

/// Whether a deletion passes a rule for whatever there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    Yes,
    No,
    /// If the controller owner is there.
    WithOwner,
    /// If it is there, and not going itself.
    WithLastingOwner,
}

/// Those of some rules that bind whoever deletes the subject, and those of which it could not be found out.
pub(super) async fn binding<'a>(
    rules: Vec<&'a Rule>,
    subject: &Subject<'_>,
    review: &Review<'_>,
    world: &impl World,
) -> (Vec<&'a Rule>, Vec<(&'a Rule, Unknown)>) {
    let mut owner: Option<Answer<Option<OwnerState>>> = None;
    let (mut binding, mut unknown) = (Vec::new(), Vec::new());
    for rule in rules {
        let passes = passes(rule, subject, review);
        if passes == Passes::No {
            binding.push(rule);
            continue;
        }
        if passes == Passes::Yes {
            continue;
        }
        if owner.is_none() {
            owner = Some(controller_of(subject, world).await);
        }
        match owner.as_ref() {
            Some(Ok(Some(OwnerState::There { is_terminating, .. })))
                if passes == Passes::WithOwner || !is_terminating => {}
            Some(Err(why)) => unknown.push((rule, why.clone())),
            _ => binding.push(rule),
        }
    }
    (binding, unknown)
}

fn passes(rule: &Rule, subject: &Subject<'_>, review: &Review<'_>) -> Passes {
    if !rule.is_broad() {
        return Passes::No;
    }
    let user = &review.user;
    let Some(owner) = subject.object.metadata.controller() else {
        return if is_cleaned(subject, user) && !rule.names_pods() { Passes::Yes } else { Passes::No };
    };
    let is_eviction = matches!(review.action, Action::Evict { .. });
    let comes_back = subject.kind.is_pod() && !rule.names_pods();
    let is_of_pod = owner.kind == "Pod" && owner.api_version == "v1";
    match Deleter::of(user) {
        Deleter::Person | Deleter::ServiceAccount if comes_back => Passes::WithOwner,
        Deleter::ServiceAccount if !is_eviction => Passes::WithOwner,
        Deleter::Controller => Passes::Yes,
        Deleter::GarbageCollector | Deleter::NamespaceController | Deleter::AnyOfThem if comes_back => {
            Passes::Yes
        }
        Deleter::GarbageCollector | Deleter::AnyOfThem if is_of_pod => Passes::Yes,
        Deleter::AnyOfThem => Passes::WithLastingOwner,
        Deleter::Person
        | Deleter::ServiceAccount
        | Deleter::GarbageCollector
        | Deleter::NamespaceController => Passes::No,
    }
}

/// Who deletes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deleter {
    Person,
    ServiceAccount,
    /// One of Kubernetes' controllers, a kubelet, or the scheduler.
    Controller,
    GarbageCollector,
    NamespaceController,
    /// A controller manager whose controllers have no accounts of their own: it could be any of them.
    AnyOfThem,
}

impl Deleter {
    fn of(user: &User<'_>) -> Self {
        match account(user) {
            Some("generic-garbage-collector") => Self::GarbageCollector,
            Some("namespace-controller") => Self::NamespaceController,
            Some(_) => Self::Controller,
            None if user.name == "system:kube-controller-manager" => Self::AnyOfThem,
            None if user.is_kubernetes() => Self::Controller,
            None if user.is_automation() => Self::ServiceAccount,
            None => Self::Person,
        }
    }
}

/// The name of an account of `kube-system`.
fn account<'a>(user: &'a User<'_>) -> Option<&'a str> {
    user.name.strip_prefix("system:serviceaccount:kube-system:")
}

/// Whether Kubernetes cleans up what nobody owns.
fn is_cleaned(subject: &Subject<'_>, user: &User<'_>) -> bool {
    let (group, kind) = (&*subject.kind.group, &*subject.kind.kind);
    match account(user) {
        Some(account) => CLEANERS.contains(&(account, group, kind)),
        None if user.name == "system:kube-controller-manager" => is_job_with_ttl(subject),
        // Preemption, and what a kubelet finishes.
        None => subject.kind.is_pod() && (user.name == "system:kube-scheduler" || user.is_node()),
    }
}

fn is_job_with_ttl(subject: &Subject<'_>) -> bool {
    // What can't be read has none.
    let spec = subject.object.spec_json().unwrap_or_default();
    subject.kind.group == "batch" && subject.kind.kind == "Job" && spec["ttlSecondsAfterFinished"].is_number()
}

/// What became of the controller owner; `None` if there is none.
async fn controller_of(subject: &Subject<'_>, world: &impl World) -> Answer<Option<OwnerState>> {
    let Some(controller) = subject.object.metadata.controller() else { return Ok(None) };
    let owner = OwnerRef::of(controller);
    let mut states = world.owners(&[(subject.namespace().map(str::to_owned), owner)]).await?;
    Ok(states.remove(&*controller.uid))
}

/// Whether a change names a controller that was not the object's before.
pub(super) fn is_made_a_controllers(old: &Metadata<'_>, new: &Metadata<'_>) -> bool {
    let uid = |metadata: &Metadata<'_>| metadata.controller().map(|owner| owner.uid.to_string());
    uid(new).is_some_and(|new| uid(old) != Some(new))
}

/// Whether somebody may make an object a controller's: Kubernetes' controllers may, and service accounts of other
/// namespaces, as operators have them. Whoever may write in a namespace may act as a service account of it, so that those
/// count as people.
pub(super) fn may_adopt(subject: &Subject<'_>, user: &User<'_>) -> bool {
    if user.is_kubernetes() {
        return true;
    }
    let account =
        user.name.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    account.is_some_and(|(namespace, _)| subject.namespace() != Some(namespace))
}

/// Whether an object that a rule selects guards what would take it down. A controller's pods do not: they come back, and
/// what they belong to is guarded itself.
pub(super) fn guards_its_owner(rule: &Rule, subject: &Subject<'_>) -> bool {
    let is_controllers_pod = subject.kind.is_pod() && subject.object.metadata.controller().is_some();
    !(is_controllers_pod && rule.is_broad() && !rule.names_pods())
}
