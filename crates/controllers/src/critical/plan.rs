//! What the status of a `CriticalService` should say.

use jiff::{SignedDuration, Timestamp};
use palisade_api::critical::{Criterion, CriterionStatus, DeletionMode, Provider, Service, State, Status};
use palisade_cluster::critical::{Dependents, Known, Services, Sight};
use palisade_cluster::seconds;
use palisade_engine::prose::{self, NAMES_SHOWN};
use palisade_engine::{Deadlock, Own, deadlock};

use crate::conditions::{Holds, set_condition};
use crate::registration::{Carried, critical_name};

const DEADLOCKED: &str = "Deadlocked";
/// How long a check that found nothing new may go untold.
const RECHECKED: SignedDuration = SignedDuration::from_mins(5);

/// What it is derived from.
pub(super) struct View<'a> {
    pub(super) services: &'a Services,
    pub(super) dependents: &'a Dependents,
    pub(super) carried: &'a Carried,
    pub(super) own_namespace: &'a str,
}

impl View<'_> {
    /// The status that follows from what is seen.
    pub(super) fn status(&self, old: &Status, known: &Known, now: Timestamp) -> Status {
        let generation = known.generation;
        let mut conditions = old.conditions.clone();
        let mut set = |kind: &str, holds: Holds, reason: &str, message: String| {
            set_condition(&mut conditions, kind, holds, reason, message, generation, now);
        };
        let service = match &known.service {
            Ok(service) => service,
            Err(why) => {
                set("Enforced", Holds::No, "Unreadable", why.clone());
                return Status { observed_generation: generation, conditions, ..old.clone() };
            }
        };
        let Service { provider, criteria, mode } = service;
        let (enforced, reason, message) = self.enforced(known, provider);
        set("Enforced", enforced, reason, message.to_owned());
        let seen = self.dependents.object(&provider.target());
        let (present, reason, message) = presence(&seen, provider);
        set("ProviderPresent", present, reason, message);
        let sights: Vec<Sight> = criteria.iter().map(|criterion| self.dependents.of(criterion)).collect();
        let criteria: Vec<CriterionStatus> = criteria
            .iter()
            .zip(&sights)
            .enumerate()
            .map(|(number, (criterion, sight))| stand(criterion, sight, old.criteria.get(number), now))
            .collect();
        let blocking = criteria.iter().map(|criterion| criterion.objects).sum();
        let (satisfied, reason, message) = satisfaction(&criteria, *mode);
        set("Satisfied", satisfied, reason, message);
        let (resolved, reason, message) = resolution(service, &seen, &sights);
        set("Resolved", resolved, reason, message);
        let deadlock = deadlock(&known.name, service, self.services.readable())
            .or_else(|| waits_for_itself(service, &sights).then_some(Deadlock::Itself(Own::Provider)));
        match &deadlock {
            Some(deadlock) => {
                let reason = match deadlock {
                    Deadlock::Itself(_) => "WaitsForItself",
                    Deadlock::Cycle(_) => "Cycle",
                };
                set(DEADLOCKED, Holds::Yes, reason, prose::endless(deadlock));
            }
            None => conditions.retain(|condition| condition.r#type != DEADLOCKED),
        }
        let provider_uid = match &seen {
            Sight::There(objects) => objects.values().next().map(|provider| provider.uid.clone()),
            Sight::NotServed => None,
            Sight::Unknown(_) => old.provider_uid.clone(),
        };
        Status {
            observed_generation: generation,
            provider: format!("{}/{}", provider.namespace, provider.name),
            provider_uid,
            blocking,
            criteria,
            conditions,
        }
    }

    fn enforced(&self, known: &Known, provider: &Provider) -> (Holds, &'static str, &'static str) {
        if provider.namespace == self.own_namespace {
            (Holds::No, "OwnNamespace", "nothing is refused in Palisade's own namespace")
        } else if self.carried.holds(&critical_name(&known.name), &known.uid, known.generation) {
            (
                Holds::Yes,
                "Registered",
                "the API server asks about deletions of the provider and of its namespace",
            )
        } else {
            (Holds::No, "NotRegistered", "the registration does not carry it yet")
        }
    }
}

fn presence(seen: &Sight, provider: &Provider) -> (Holds, &'static str, String) {
    let target = provider.target();
    match seen {
        Sight::NotServed => (Holds::No, "NotServed", format!("the cluster serves no {}", provider.resource)),
        Sight::Unknown(why) => (Holds::Unknown, "Unknown", why.clone()),
        Sight::There(objects) => match objects.values().next() {
            None => (Holds::No, "NotFound", format!("{target} is not there")),
            Some(provider) if provider.going => (Holds::Yes, "Terminating", format!("{target} is going")),
            Some(_) => (Holds::Yes, "Present", format!("{target} is there")),
        },
    }
}

/// How a criterion stands. The time of the last check stays while nothing else changes, for a while.
fn stand(
    criterion: &Criterion,
    sight: &Sight,
    old: Option<&CriterionStatus>,
    now: Timestamp,
) -> CriterionStatus {
    let (kind, finalizer_name) = match criterion {
        Criterion::Finalizer { finalizer, .. } => ("Finalizer", Some(finalizer.clone())),
        Criterion::Object(_) => ("SpecificResource", None),
    };
    let known = |state: State, message: String| CriterionStatus {
        r#type: kind.to_owned(),
        resource: criterion.resource().to_string(),
        finalizer_name: finalizer_name.clone(),
        state,
        message,
        last_check_time: old.and_then(|old| old.last_check_time.clone()),
        ..CriterionStatus::default()
    };
    let mut status = match sight {
        Sight::Unknown(why) => return known(State::Unknown, why.clone()),
        Sight::NotServed => known(State::Met, "it is not served".to_owned()),
        Sight::There(objects) if objects.is_empty() => known(State::Met, String::new()),
        Sight::There(objects) => {
            let going = objects.values().filter(|dependent| dependent.going).count();
            let message = format!("{going} of {} going already", objects.len());
            CriterionStatus {
                objects: objects.len() as u64,
                names: objects.keys().take(NAMES_SHOWN).cloned().collect(),
                ..known(State::Unmet, if going > 0 { message } else { String::new() })
            }
        }
    };
    let checked = status.last_check_time.as_deref().and_then(|time| time.parse::<Timestamp>().ok());
    let recently = checked.is_some_and(|time| now.duration_since(time) < RECHECKED);
    if old != Some(&status) || !recently {
        status.last_check_time = Some(seconds(now));
    }
    status
}

fn satisfaction(criteria: &[CriterionStatus], mode: DeletionMode) -> (Holds, &'static str, String) {
    let in_state = |state: State| criteria.iter().filter(move |criterion| criterion.state == state);
    let unmet: Vec<String> = in_state(State::Unmet).map(told).collect();
    let unknown: Vec<String> = in_state(State::Unknown)
        .map(|criterion| format!("{} ({})", criterion.resource, criterion.message))
        .collect();
    if !unmet.is_empty() {
        let stays = match mode {
            DeletionMode::Ordered => "the provider stays",
            DeletionMode::BestEffort => "the provider may go all the same",
        };
        (Holds::No, "Blocked", format!("{stays}; in the way: {}", unmet.join("; ")))
    } else if unknown.is_empty() {
        (Holds::Yes, "AllMet", "nothing depends on the provider any more".to_owned())
    } else {
        (Holds::Unknown, "Unknown", format!("could not be found out: {}", unknown.join("; ")))
    }
}

/// `2 coolresources.my.crd.group with finalizer my.crd.group/super-important (default/a, default/b)`
fn told(criterion: &CriterionStatus) -> String {
    let CriterionStatus { resource, finalizer_name, objects, names, .. } = criterion;
    let finalizer = finalizer_name.as_ref().map(|name| format!(" with finalizer {name}")).unwrap_or_default();
    let more = if *objects > names.len() as u64 { ", …" } else { "" };
    format!("{objects} {resource}{finalizer} ({}{more})", names.join(", "))
}

fn resolution(service: &Service, provider: &Sight, sights: &[Sight]) -> (Holds, &'static str, String) {
    let criteria = service.criteria.iter().map(Criterion::resource).zip(sights);
    let mut unserved: Vec<String> = criteria
        .chain([(&service.provider.resource, provider)])
        .filter(|(_, sight)| **sight == Sight::NotServed)
        .map(|(resource, _)| resource.to_string())
        .collect();
    unserved.sort();
    unserved.dedup();
    if unserved.is_empty() {
        return (Holds::Yes, "Resolved", "every resource that it names is served".to_owned());
    }
    (
        Holds::No,
        "NotServed",
        format!("not served, so nothing is waited for until they are: {}", unserved.join(", ")),
    )
}

/// Whether the provider itself carries a finalizer that it waits for.
fn waits_for_itself(service: &Service, sights: &[Sight]) -> bool {
    let Service { provider, criteria, mode } = service;
    let name = format!("{}/{}", provider.namespace, provider.name);
    *mode == DeletionMode::Ordered
        && criteria.iter().zip(sights).any(|(criterion, sight)| match (criterion, sight) {
            (Criterion::Finalizer { resource, .. }, Sight::There(objects)) => {
                resource.may_be(&provider.resource) && objects.contains_key(&name)
            }
            _ => false,
        })
}
