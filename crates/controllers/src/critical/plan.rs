//! What the status of a `CriticalService` should say.

use jiff::{SignedDuration, Timestamp};
use palisade_api::critical::{Criterion, CriterionStatus, Provider, Service, State, Status};
use palisade_api::search_groups::SearchGroups;
use palisade_cluster::critical::{Known, Services, Sight};
use palisade_cluster::seconds;
use palisade_engine::prose::{self, NAMES_SHOWN};
use palisade_engine::{Deadlock, carried_by_own, deadlock};

use crate::conditions::{Holds, set_condition};
use crate::not_searched::{self, NOT_SEARCHED, left_out};
use crate::registration::{Carried, critical_name};

const ENFORCED: &str = "Enforced";
const DEADLOCKED: &str = "Deadlocked";
/// How long a check that found nothing new may go untold.
const RECHECKED: SignedDuration = SignedDuration::from_mins(5);

/// What it is derived from, besides what is seen.
pub(super) struct View<'a> {
    pub(super) services: &'a Services,
    pub(super) carried: &'a Carried,
    pub(super) groups: &'a SearchGroups,
    pub(super) own_namespace: &'a str,
}

/// What is seen of a service.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) provider: Sight,
    /// What each criterion is about, and what is in its way.
    pub(super) criteria: Vec<(String, Sight)>,
}

/// The status of a service that nobody can read.
pub(super) fn unreadable(old: &Status, known: &Known, why: &str, now: Timestamp) -> Status {
    let mut status = Status { observed_generation: known.generation, ..old.clone() };
    let (why, generation) = (why.to_owned(), known.generation);
    set_condition(&mut status.conditions, ENFORCED, Holds::No, "Unreadable", why, generation, now);
    status
}

impl View<'_> {
    /// The status that follows from what is seen.
    pub(super) fn status(
        &self,
        old: &Status,
        known: &Known,
        service: &Service,
        observed: &Observed,
        now: Timestamp,
    ) -> Status {
        let Service { provider, criteria, mode: _ } = service;
        let Observed { provider: seen, criteria: sights } = observed;
        let criteria: Vec<CriterionStatus> = criteria
            .iter()
            .zip(sights)
            .enumerate()
            .map(|(number, (criterion, (resource, sight)))| {
                stand(criterion, resource, sight, old.criteria.get(number), now)
            })
            .collect();
        let mut conditions = old.conditions.clone();
        let mut set = |kind: &str, (holds, reason, message): (Holds, &str, String)| {
            set_condition(&mut conditions, kind, holds, reason, message, known.generation, now);
        };
        set(ENFORCED, self.enforced(known, service));
        set("ProviderPresent", presence(seen, provider));
        set("Satisfied", satisfaction(&criteria));
        set("Resolved", resolution(provider, observed));
        let deadlock = deadlock(&known.name, service, self.services.readable())
            .or_else(|| waits_for_own(known, service, sights));
        match deadlock {
            Some(deadlock) => {
                let reason = match &deadlock {
                    Deadlock::Itself(_) => "WaitsForItself",
                    Deadlock::Cycle(_) => "Cycle",
                };
                set(DEADLOCKED, (Holds::Yes, reason, prose::endless(&deadlock)));
            }
            None => conditions.retain(|condition| condition.r#type != DEADLOCKED),
        }
        Status {
            observed_generation: known.generation,
            provider: format!("{}/{}", provider.namespace, provider.name),
            provider_uid: match seen {
                Sight::There(objects) => objects.values().next().map(|provider| provider.uid.clone()),
                Sight::NotServed => None,
                Sight::Unknown(_) => old.provider_uid.clone(),
            },
            blocking: criteria.iter().map(|criterion| criterion.objects).sum(),
            criteria,
            conditions,
        }
    }

    fn enforced(&self, known: &Known, service: &Service) -> (Holds, &'static str, String) {
        let provider = &service.provider;
        let named = service.criteria.iter().map(Criterion::resource).chain([&provider.resource]);
        let left_out = left_out(self.groups, named.map(|resource| resource.group.as_str()));
        let (holds, reason, message) = if provider.namespace == self.own_namespace {
            (Holds::No, "OwnNamespace", "nothing is refused in Palisade's own namespace")
        } else if self.carried.holds(&critical_name(&known.name), &known.uid, known.generation) {
            if !left_out.is_empty() {
                let so =
                    "what is there is not waited for, and a provider there is not guarded with its Namespace";
                return (Holds::No, NOT_SEARCHED, not_searched::message(&left_out, so));
            }
            (
                Holds::Yes,
                "Registered",
                "the API server asks about deletions of the provider and of its namespace",
            )
        } else {
            (Holds::No, "NotRegistered", "the registration does not carry it yet")
        };
        (holds, reason, message.to_owned())
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
    resource: &str,
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
        resource: resource.to_owned(),
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

fn satisfaction(criteria: &[CriterionStatus]) -> (Holds, &'static str, String) {
    let in_state = |state: State| criteria.iter().filter(move |criterion| criterion.state == state);
    let unmet: Vec<String> = in_state(State::Unmet).map(told).collect();
    let unknown: Vec<String> = in_state(State::Unknown)
        .map(|criterion| format!("{} ({})", criterion.resource, criterion.message))
        .collect();
    if !unmet.is_empty() {
        (Holds::No, "Blocked", format!("in the way: {}", unmet.join("; ")))
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

fn resolution(provider: &Provider, observed: &Observed) -> (Holds, &'static str, String) {
    let provider = (provider.resource.to_string(), observed.provider.clone());
    let all = observed.criteria.iter().chain([&provider]);
    let mut unserved: Vec<&str> =
        all.filter(|(_, sight)| *sight == Sight::NotServed).map(|(resource, _)| &**resource).collect();
    unserved.sort_unstable();
    unserved.dedup();
    let unknown = all_sights(observed).any(|sight| matches!(sight, Sight::Unknown(_)));
    if !unserved.is_empty() {
        let message = format!("not served, so nothing is waited for until they are: {}", unserved.join(", "));
        return (Holds::No, "NotServed", message);
    }
    if unknown {
        return (Holds::Unknown, "Unknown", "not all that it names could be looked at".to_owned());
    }
    (Holds::Yes, "Resolved", "every resource that it names is served".to_owned())
}

fn all_sights(observed: &Observed) -> impl Iterator<Item = &Sight> {
    observed.criteria.iter().map(|(_, sight)| sight).chain([&observed.provider])
}

/// Whether it waits for somebody to lose a finalizer who goes only after the provider.
fn waits_for_own(known: &Known, service: &Service, sights: &[(String, Sight)]) -> Option<Deadlock> {
    service.criteria.iter().zip(sights).find_map(|(criterion, (_, sight))| match (criterion, sight) {
        (Criterion::Finalizer { resource, .. }, Sight::There(objects)) => {
            carried_by_own(resource, objects.keys(), &known.name, service)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_cluster::critical::Dependent;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn known(name: &str, criterion: &Value) -> Known {
        let provider = json!({"group": "apps", "resource": "deployments", "namespace": "shop", "name": name});
        Known {
            name: name.to_owned(),
            uid: "u".to_owned(),
            generation: Some(1),
            service: Service::read(&json!({"provider": provider, "criteria": [criterion]})),
            status: Status::default(),
        }
    }

    fn finalizer() -> Value {
        json!({"type": "Finalizer", "finalizer": {"group": "example.com", "resource": "widgets", "finalizerName": "f"}})
    }

    fn there(names: &[(&str, bool)]) -> Sight {
        let dependent = |&(name, going): &(&str, bool)| {
            (name.to_owned(), Dependent { uid: format!("uid-of-{name}"), going })
        };
        Sight::There(names.iter().map(dependent).collect())
    }

    fn planned(old: &Status, known: &Known, provider: Sight, sight: Sight, second: i64) -> Status {
        let others = known.clone();
        let services = Services(BTreeMap::from([(known.name.clone(), Arc::new(others))]));
        let carried = Carried::of([("critical:web", "u", Some(1))]);
        let groups = SearchGroups::default();
        let view = View {
            services: &services,
            carried: &carried,
            groups: &groups,
            own_namespace: "palisade-system",
        };
        let observed = Observed { provider, criteria: vec![("widgets.example.com".to_owned(), sight)] };
        let now = Timestamp::from_second(second).unwrap();
        view.status(old, known, known.service.as_ref().unwrap(), &observed, now)
    }

    fn conditions(status: &Status) -> Vec<String> {
        let told = |condition: &palisade_api::condition::Condition| {
            format!("{}={} {}", condition.r#type, condition.status, condition.reason)
        };
        status.conditions.iter().map(told).collect()
    }

    #[test]
    fn what_is_in_the_way_is_counted_and_named() {
        let web = known("web", &finalizer());
        let holders = there(&[
            ("a/1", true),
            ("a/2", false),
            ("a/3", false),
            ("a/4", false),
            ("a/5", false),
            ("a/6", false),
        ]);
        let status = planned(&Status::default(), &web, there(&[("shop/web", false)]), holders, 10);
        assert_eq!(
            (status.blocking, &*status.provider, status.provider_uid.as_deref()),
            (6, "shop/web", Some("uid-of-shop/web"))
        );
        let criterion = &status.criteria[0];
        assert_eq!(
            (criterion.state, criterion.objects, &*criterion.message),
            (State::Unmet, 6, "1 of 6 going already")
        );
        assert_eq!(criterion.names, ["a/1", "a/2", "a/3", "a/4", "a/5"]);
        assert_eq!(
            conditions(&status),
            [
                "Enforced=True Registered",
                "ProviderPresent=True Present",
                "Satisfied=False Blocked",
                "Resolved=True Resolved"
            ]
        );
        let satisfied = &status.conditions[2].message;
        assert_eq!(
            satisfied,
            "in the way: 6 widgets.example.com with finalizer f (a/1, a/2, a/3, a/4, a/5, …)"
        );
    }

    #[test]
    fn what_is_not_served_is_met_and_what_is_not_known_is_not() {
        let web = known("web", &finalizer());
        let status = planned(&Status::default(), &web, there(&[]), Sight::NotServed, 10);
        assert_eq!(status.criteria[0].state, State::Met);
        assert_eq!(
            conditions(&status),
            [
                "Enforced=True Registered",
                "ProviderPresent=False NotFound",
                "Satisfied=True AllMet",
                "Resolved=False NotServed"
            ]
        );
        let unknown = Sight::Unknown("403".to_owned());
        let later = planned(&status, &web, unknown.clone(), unknown, 20);
        assert_eq!(later.criteria[0].state, State::Unknown);
        assert_eq!(
            conditions(&later),
            [
                "Enforced=True Registered",
                "ProviderPresent=Unknown Unknown",
                "Satisfied=Unknown Unknown",
                "Resolved=Unknown Unknown"
            ]
        );
        assert_eq!(
            later.criteria[0].last_check_time, status.criteria[0].last_check_time,
            "it was not checked"
        );
    }

    #[test]
    fn nothing_is_written_while_nothing_changes_except_once_in_a_while_that_it_was_checked() {
        let web = known("web", &finalizer());
        let at =
            |old: &Status, second: i64| planned(old, &web, there(&[("shop/web", false)]), there(&[]), second);
        let first = at(&Status::default(), 10);
        assert_eq!(at(&first, 200), first);
        let later = at(&first, 311);
        assert_eq!(later.criteria[0].last_check_time.as_deref(), Some("1970-01-01T00:05:11Z"));
        assert_eq!(Status { criteria: first.criteria.clone(), ..later }, first);
    }

    #[test]
    fn what_can_never_end_is_told_until_it_can() {
        let itself = json!({"type": "SpecificResource", "specificResource": {"resource": "namespaces", "name": "shop"}});
        let status =
            planned(&Status::default(), &known("web", &itself), there(&[]), there(&[("shop", false)]), 10);
        assert!(conditions(&status).contains(&"Deadlocked=True WaitsForItself".to_owned()));
        let status = planned(&status, &known("web", &finalizer()), there(&[]), there(&[]), 20);
        assert!(!conditions(&status).iter().any(|condition| condition.starts_with("Deadlocked")));
        let own = json!({"type": "Finalizer", "finalizer": {"group": "apps", "resource": "Deployment", "finalizerName": "f"}});
        let status = planned(&status, &known("web", &own), there(&[]), there(&[("shop/web", false)]), 30);
        assert!(conditions(&status).contains(&"Deadlocked=True WaitsForItself".to_owned()));
    }
}
