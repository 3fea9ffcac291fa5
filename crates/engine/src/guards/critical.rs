//! Critical services: what others depend on goes last.
//!
//! A provider is not deleted while a criterion of a `CriticalService` that names it is unmet: while an object carries
//! the finalizer that it takes away, or an object is there that needs it. What would take the provider down with it,
//! its Namespace or the definition of its kind, is not deleted either while the provider is there. A
//! `CriticalService` is not deleted before its provider is gone.
//!
//! What a group holds that is not searched (`--search-groups`) is not waited for, and a warning names the group.
//!
//! With `BestEffort` all of them go at any time, and what is left behind is told. So is a provider whose namespace is
//! terminating: its pods go anyway, and a shell without pods helps nobody.

use futures::future::join_all;
use palisade_api::critical::{self, Criterion, DeletionMode, Provider, Resource, Service};

use crate::Settings;
use crate::order::{Deadlock, carried_by_own, deadlock};
use crate::review::{Review, Subject};
use crate::verdict::{
    Blocker, Code, Finding, Found, Guard, LeftBehind, Lift, Needed, Parting, Reason, Warning,
};
use crate::world::{Answer, Critical, Holders, Scope, Unknown, World};

pub(super) async fn ask(
    subject: &Subject<'_>,
    review: &Review<'_>,
    world: &impl World,
    settings: &Settings,
    found: &mut Found,
) {
    if is_service(subject) {
        return Box::pin(ask_for_service(subject, world, settings, found)).await;
    }
    // Where the API server was told that there is one, it is asked for, also if this replica has not seen it yet.
    let concerned = (!review.expects.critical).then_some(subject);
    let services = match world.critical_services(concerned).await {
        Ok(services) => services,
        Err(unknown) => return found.findings.push(Finding::unreadable(Guard::Critical, unknown)),
    };
    let mut concerned = Vec::new();
    for Critical { name, uid, service } in &services {
        match service {
            Ok(service) if subject.takes_down(&service.provider) => concerned.push((name, uid, service)),
            Ok(_) => {}
            Err(why) => {
                let unknown = Unknown::new(format!("what CriticalService \"{name}\" needs"), why);
                found.findings.push(Finding::unreadable(Guard::Critical, unknown));
            }
        }
    }
    if concerned.is_empty() {
        return;
    }
    // What is not searched is not waited for, and that is told.
    let resources =
        concerned.iter().flat_map(|(_, _, service)| service.criteria.iter().map(Criterion::resource));
    let providers = concerned.iter().map(|(_, _, service)| &service.provider);
    let providers = providers.filter(|provider| !subject.is(provider)).map(|provider| &provider.resource);
    let outside = resources.chain(providers).filter(|resource| !world.is_searched(&resource.group));
    found.not_searched(outside.map(|resource| resource.group.clone()));
    let mut cases = Box::pin(cases(subject, &concerned, world)).await;
    for (case, service) in &mut cases {
        if !case.needed.blockers.is_empty() {
            let all = services.iter().filter_map(|other| Some((&*other.name, other.service.as_ref().ok()?)));
            case.needed.deadlock =
                deadlock(&case.needed.service, service, all).or_else(|| case.waits_for_own(service));
        }
    }
    let stays = cases.iter().any(|(case, _)| case.mode == DeletionMode::Ordered);
    let going = match subject.namespace() {
        Some(namespace) if stays => world.is_terminating(namespace).await,
        _ => false,
    };
    for (case, _) in cases {
        case.conclude(going, found);
    }
}

/// The services that something still depends on, or may.
async fn cases<'a>(
    subject: &Subject<'_>,
    concerned: &[(&String, &String, &'a Service)],
    world: &impl World,
) -> Vec<(Case, &'a Service)> {
    // Only a provider that is there would be lost with something else.
    let providers = join_all(concerned.iter().map(|(_, _, service)| async {
        if subject.is(&service.provider) {
            return Ok(Lost::Itself);
        }
        if !world.is_searched(&service.provider.resource.group) {
            return Ok(Lost::Nothing);
        }
        let found = world.find(&service.provider.target()).await?;
        Ok(found.map_or(Lost::Nothing, |provider| Lost::With(provider.to_string())))
    }));
    let losses: Vec<Answer<Lost>> = providers.await;
    let at_stake = || concerned.iter().zip(&losses).filter(|(_, lost)| !matches!(lost, Ok(Lost::Nothing)));
    // Each is asked once, however many services name it.
    let mut criteria: Vec<&Criterion> = Vec::new();
    for criterion in at_stake().flat_map(|((_, _, service), _)| &service.criteria) {
        if !criteria.contains(&criterion) {
            criteria.push(criterion);
        }
    }
    let answers = join_all(criteria.iter().map(|criterion| in_the_way(criterion, world))).await;
    let mut cases = Vec::new();
    for ((name, uid, service), lost) in at_stake() {
        let (mut blockers, mut unknown) = (Vec::new(), Vec::new());
        for (criterion, answer) in criteria.iter().zip(&answers) {
            match answer {
                _ if !service.criteria.contains(criterion) => {}
                Ok(blocker) => blockers.extend(blocker.clone()),
                Err(why) => unknown.push(why.clone()),
            }
        }
        // Once all are met it may go, there or not.
        if !(blockers.is_empty() && unknown.is_empty()) {
            let provider = match lost {
                Ok(Lost::With(provider)) => Some(provider.clone()),
                Ok(Lost::Itself | Lost::Nothing) => None,
                Err(why) => {
                    unknown.push(why.clone());
                    None
                }
            };
            let needed = Needed { service: (*name).clone(), provider, blockers, deadlock: None };
            cases.push((Case { uid: (*uid).clone(), mode: service.mode, needed, unknown }, *service));
        }
    }
    cases
}

/// What becomes of a provider.
enum Lost {
    Itself,
    /// It goes with the subject.
    With(String),
    /// It is not there.
    Nothing,
}

/// One service that a deletion concerns, and that something still depends on.
struct Case {
    uid: String,
    mode: DeletionMode,
    needed: Needed,
    unknown: Vec<Unknown>,
}

impl Case {
    /// Whether it waits for somebody to lose a finalizer who goes only after the provider.
    fn waits_for_own(&self, service: &Service) -> Option<Deadlock> {
        self.needed.blockers.iter().find_map(|blocker| match blocker {
            Blocker::Holders { holders: Holders { resource, census, .. }, .. } => {
                carried_by_own(&Resource::called(resource), &census.names, &self.needed.service, service)
            }
            Blocker::There(_) => None,
        })
    }

    fn conclude(self, going: bool, found: &mut Found) {
        let Self { uid, mode, needed, unknown } = self;
        let parting = match mode {
            DeletionMode::BestEffort => Parting::BestEffort,
            DeletionMode::Ordered if going => Parting::Terminating,
            DeletionMode::Ordered => {
                let best_effort = Lift::Command(best_effort(&needed.service));
                for why in unknown {
                    let (service, provider) = (needed.service.clone(), needed.provider.clone());
                    let reason = Reason::NeededUnknown { service, provider, unknown: why };
                    let lift = Some(best_effort.clone());
                    found.findings.push(Finding::unknown(Guard::Critical, reason, lift));
                }
                if !needed.blockers.is_empty() {
                    let lift = needed.deadlock.is_some().then_some(best_effort);
                    let reason = Reason::Needed(needed);
                    found.findings.push(Finding {
                        guard: Guard::Critical,
                        code: Code::Conflict,
                        reason,
                        lift,
                    });
                }
                return;
            }
        };
        let left = LeftBehind { uid, parting, needed, unknown };
        found.warnings.push(Warning::LeftBehind(left.clone()));
        found.left_behind.push(left);
    }
}

async fn in_the_way(criterion: &Criterion, world: &impl World) -> Answer<Option<Blocker>> {
    if !world.is_searched(&criterion.resource().group) {
        return Ok(None);
    }
    Ok(match criterion {
        Criterion::Finalizer { resource, finalizer } => {
            let holders = world.holders(resource, finalizer).await?;
            (!holders.census.is_none()).then(|| Blocker::Holders { finalizer: finalizer.clone(), holders })
        }
        Criterion::Object(target) => world.find(target).await?.map(Blocker::There),
    })
}

/// The service itself stays until its provider is gone.
async fn ask_for_service(subject: &Subject<'_>, world: &impl World, settings: &Settings, found: &mut Found) {
    // One that nobody can read protects nothing, and has nothing to wait for.
    let Ok(service) = read(subject) else { return };
    if service.mode == DeletionMode::BestEffort || settings.owns(&service.provider.namespace) {
        return;
    }
    if !world.is_searched(&service.provider.resource.group) {
        return found.not_searched([service.provider.resource.group.clone()]);
    }
    let lift = Some(Lift::Command(best_effort(subject.name())));
    found.findings.push(match world.find(&service.provider.target()).await {
        Ok(None) => return,
        Ok(Some(provider)) => {
            let reason = Reason::Serves(provider);
            Finding { guard: Guard::Critical, code: Code::Conflict, reason, lift }
        }
        Err(unknown) => Finding::unknown(Guard::Critical, Reason::ServesUnknown(unknown), lift),
    });
}

/// Whether a service that is being written says something, and can come true.
pub(super) async fn check(
    subject: &Subject<'_>,
    world: &impl World,
    settings: &Settings,
) -> (Found, Option<Provider>) {
    let mut found = Found::default();
    let service = match read(subject) {
        Ok(service) => service,
        Err(why) => {
            found.findings.push(Finding::invalid(Guard::Critical, why));
            return (found, None);
        }
    };
    let provider = &service.provider;
    // What is not known now shows in the status, and is asked again when it matters.
    match world.scope(&provider.resource).await {
        Ok(Some(Scope::Cluster)) => {
            let why = format!(
                "spec.provider.resource: {} have no namespaces, so they can't be providers",
                provider.resource
            );
            found.findings.push(Finding::invalid(Guard::Critical, why));
            return (found, None);
        }
        Ok(None) => found.warnings.push(Warning::ProviderNotServed(provider.resource.to_string())),
        Ok(Some(Scope::Namespaced)) | Err(_) => {}
    }
    if settings.owns(&provider.namespace) {
        found.warnings.push(Warning::OwnNamespace);
    }
    let mut resources: Vec<&Resource> = service.criteria.iter().map(Criterion::resource).collect();
    resources.sort();
    resources.dedup();
    let scopes = join_all(resources.iter().map(|resource| world.scope(resource))).await;
    let unserved = resources.iter().zip(scopes).filter(|(_, scope)| matches!(scope, Ok(None)));
    found.warnings.extend(unserved.map(|(resource, _)| Warning::NotServed(resource.to_string())));
    let named = resources.iter().copied().chain([&service.provider.resource]);
    let outside = named.filter(|resource| !world.is_searched(&resource.group));
    found.not_searched(outside.map(|resource| resource.group.clone()));
    let others = world.critical_services(None).await.unwrap_or_default();
    let others = others.iter().filter_map(|other| Some((&*other.name, other.service.as_ref().ok()?)));
    found.warnings.extend(deadlock(subject.name(), &service, others).map(Warning::Deadlocked));
    (found, Some(service.provider))
}

fn is_service(subject: &Subject<'_>) -> bool {
    subject.kind.group == critical::GROUP && subject.kind.plural == critical::PLURAL
}

fn read(subject: &Subject<'_>) -> Result<Service, String> {
    subject.object.spec_json().and_then(|spec| Service::read(&spec))
}

fn best_effort(service: &str) -> String {
    format!(r#"kubectl patch crit {service} --type=merge -p '{{"spec":{{"deletionMode":"BestEffort"}}}}'"#)
}

impl Subject<'_> {
    /// Whether it is a provider.
    fn is(&self, provider: &Provider) -> bool {
        let Provider { resource, namespace, name } = provider;
        resource.is(&self.kind.group, &self.kind.kind, &self.kind.plural)
            && self.namespace() == Some(namespace)
            && self.name() == name
    }

    /// Whether a provider goes with it.
    pub fn takes_down(&self, provider: &Provider) -> bool {
        if self.kind.is_namespace() {
            return self.name() == provider.namespace;
        }
        if self.kind.is_definition() {
            // One that can't be read is refused by the guard that looks into it.
            let definition = self.object.definition();
            return definition.is_ok_and(|d| provider.resource.is(&d.group, &d.kind, &d.plural));
        }
        self.is(provider)
    }
}
