//! The order that `CriticalService`s ask for, and where it has no end.

use std::collections::HashMap;

use palisade_api::critical::{self, Criterion, DeletionMode, Provider, Resource, Service, Target};

/// Why a provider can never go in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deadlock {
    /// It waits for something that goes only with it, or after it.
    Itself(Own),
    /// Each of these services waits for the next, and the last one for the first.
    Cycle(Vec<String>),
}

/// What only a provider's own end could end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    Provider,
    Namespace,
    /// A `CriticalService` that it is the provider of.
    Service,
    /// The definition of its kind.
    Kind,
    /// The definition of all `CriticalService`s.
    Definition,
}

type Named<'a> = (&'a str, &'a Service);

/// Why the provider of a service can never go in order, if so. `others` may include the service itself.
pub fn deadlock<'a>(
    name: &'a str,
    service: &'a Service,
    others: impl IntoIterator<Item = Named<'a>>,
) -> Option<Deadlock> {
    if service.mode == DeletionMode::BestEffort {
        return None;
    }
    let ordered = |(other, service): &Named<'_>| *other != name && service.mode == DeletionMode::Ordered;
    let all: Vec<Named<'_>> =
        [(name, service)].into_iter().chain(others.into_iter().filter(ordered)).collect();
    // A provider waits for the criteria of every service that names it. The service in question comes first.
    let mut providers: Vec<Vec<Named<'_>>> = Vec::new();
    let mut numbers: HashMap<(&str, &str, &str, &str), usize> = HashMap::new();
    for (name, service) in all {
        let Provider { resource, namespace, name: provider } = &service.provider;
        let number =
            *numbers.entry((&resource.group, &resource.word, namespace, provider)).or_insert_with(|| {
                providers.push(Vec::new());
                providers.len() - 1
            });
        providers[number].push((name, service));
    }
    let waits = |one: usize, other: usize| {
        let criteria = providers[one].iter().flat_map(|(_, each)| &each.criteria);
        let mut targets = criteria.filter_map(Criterion::target);
        targets
            .find_map(|target| providers[other].iter().find_map(|(name, each)| ends_with(target, name, each)))
    };
    if let Some(own) = waits(0, 0) {
        return Some(Deadlock::Itself(own));
    }
    // Breadth first, so that the shortest way round is told. Each provider is reached once.
    let mut unseen: Vec<usize> = (1..providers.len()).collect();
    let mut ways: Vec<Vec<usize>> = vec![vec![0]];
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let Some(&last) = way.last() else { continue };
            if way.len() > 1 && waits(last, 0).is_some() {
                let name = |number: &usize| providers[*number].first().map(|(name, _)| (*name).to_owned());
                return Some(Deadlock::Cycle(way.iter().filter_map(name).collect()));
            }
            unseen.retain(|&next| {
                let waits = waits(last, next).is_some();
                if waits {
                    longer.push([&way[..], &[next]].concat());
                }
                !waits
            });
        }
        ways = longer;
    }
    None
}

/// Whether one of the objects that carry a finalizer goes only with, or after, the provider that waits for them.
pub fn carried_by_own<'a>(
    resource: &Resource,
    holders: impl IntoIterator<Item = &'a String>,
    name: &str,
    service: &Service,
) -> Option<Deadlock> {
    let own = holders.into_iter().find_map(|holder| {
        let (namespace, name_of) = match holder.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, &**holder),
        };
        let target = Target { resource: resource.clone(), namespace, name: name_of.to_owned() };
        ends_with(&target, name, service)
    });
    own.filter(|_| service.mode == DeletionMode::Ordered).map(Deadlock::Itself)
}

/// Whether an object goes only with, or after, the provider of a service.
fn ends_with(target: &Target, name: &str, Service { provider, .. }: &Service) -> Option<Own> {
    let Target { resource, namespace, name: wanted } = target;
    let in_namespace = namespace.as_ref().is_none_or(|namespace| *namespace == provider.namespace);
    if resource.may_be(&provider.resource) && *wanted == provider.name && in_namespace {
        Some(Own::Provider)
    } else if resource.is("", "Namespace", "namespaces") && *wanted == provider.namespace {
        Some(Own::Namespace)
    } else if resource.is(critical::GROUP, critical::KIND, critical::PLURAL) && wanted == name {
        Some(Own::Service)
    } else if !resource.is("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions") {
        None
    } else if *wanted == format!("{}.{}", critical::PLURAL, critical::GROUP) {
        Some(Own::Definition)
    } else if !provider.resource.group.is_empty() && provider.resource.is_called(wanted) {
        Some(Own::Kind)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    /// A service with a Deployment of its own name in its own namespace, that waits for objects:
    /// `group/resource/namespace/name`.
    fn service(name: &str, waits_for: &[&str], mode: &str) -> Service {
        let criteria: Vec<_> = waits_for
            .iter()
            .map(|text| {
                let [group, resource, namespace, name] = text.split('/').collect::<Vec<_>>()[..] else {
                    panic!("{text}")
                };
                json!({"type": "SpecificResource", "specificResource":
                    {"group": group, "resource": resource, "namespace": namespace, "name": name}})
            })
            .collect();
        let provider = json!({"group": "apps", "resource": "deployments", "namespace": format!("{name}-ns"), "name": name});
        Service::read(&json!({"provider": provider, "criteria": criteria, "deletionMode": mode})).unwrap()
    }

    #[rstest]
    #[case("apps/Deployment/a-ns/a", Some(Own::Provider))]
    #[case("apps/deployments//a", Some(Own::Provider))]
    #[case("apps/deployments/other/a", None)]
    #[case("apps/statefulsets/a-ns/a", None)]
    #[case("/namespaces//a-ns", Some(Own::Namespace))]
    #[case("/Namespace//a", None)]
    #[case("palisade.dev/criticalservices//a", Some(Own::Service))]
    #[case("palisade.dev/CriticalService//b", None)]
    #[case(
        "apiextensions.k8s.io/CustomResourceDefinition//criticalservices.palisade.dev",
        Some(Own::Definition)
    )]
    fn what_only_its_own_end_could_meet(#[case] waits_for: &str, #[case] expected: Option<Own>) {
        assert_eq!(deadlock("a", &service("a", &[waits_for], "Ordered"), []), expected.map(Deadlock::Itself));
        assert_eq!(deadlock("a", &service("a", &[waits_for], "BestEffort"), []), None, "it goes at any time");
    }

    fn cycle(services: &[(&str, &[&str], &str)]) -> Vec<Option<Vec<String>>> {
        let all: Vec<(&str, Service)> =
            services.iter().map(|(name, waits_for, mode)| (*name, service(name, waits_for, mode))).collect();
        let others = || all.iter().map(|(name, service)| (*name, service));
        all.iter()
            .map(|(name, service)| match deadlock(name, service, others()) {
                Some(Deadlock::Cycle(names)) => Some(names),
                Some(other) => panic!("{other:?}"),
                None => None,
            })
            .collect()
    }

    #[test]
    fn two_that_wait_for_each_other_are_a_cycle() {
        let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert_eq!(
            cycle(&[
                ("a", &["apps/deployments/b-ns/b"], "Ordered"),
                ("b", &["/namespaces//a-ns"], "Ordered")
            ]),
            [names(&["a", "b"]), names(&["b", "a"])]
        );
        assert_eq!(
            cycle(&[
                ("a", &["apps/deployments/b-ns/b"], "Ordered"),
                ("b", &["palisade.dev/criticalservices//c"], "Ordered"),
                ("c", &["/configmaps/x/y", "apps/deployments/a-ns/a"], "Ordered"),
                ("d", &["apps/deployments/a-ns/a"], "Ordered"),
            ]),
            [names(&["a", "b", "c"]), names(&["b", "c", "a"]), names(&["c", "a", "b"]), None]
        );
    }

    #[test]
    fn one_that_goes_at_any_time_breaks_a_cycle() {
        assert_eq!(
            cycle(&[
                ("a", &["apps/deployments/b-ns/b"], "Ordered"),
                ("b", &["apps/deployments/a-ns/a"], "BestEffort")
            ]),
            [None, None]
        );
    }

    #[test]
    fn services_of_one_provider_wait_together() {
        let first = service("a", &["palisade.dev/criticalservices//second"], "Ordered");
        let mut second = service("second", &["/nodes//x"], "Ordered");
        second.provider = first.provider.clone();
        let all = || [("a", &first), ("second", &second)];
        let own = Some(Deadlock::Itself(Own::Service));
        assert_eq!((deadlock("a", &first, all()), deadlock("second", &second, all())), (own.clone(), own));
    }

    #[test]
    fn a_finalizer_on_what_goes_after_the_provider_is_never_gone_before() {
        let a = service("a", &["/nodes//x"], "Ordered");
        let carried = |group: &str, word: &str, holder: &str| {
            let resource = Resource { group: group.to_owned(), word: word.to_owned() };
            carried_by_own(&resource, [&"other".to_owned(), &holder.to_owned()], "a", &a)
        };
        assert_eq!(carried("apps", "Deployment", "a-ns/a"), Some(Deadlock::Itself(Own::Provider)));
        assert_eq!(carried("apps", "Deployment", "b-ns/a"), None);
        assert_eq!(carried("", "namespaces", "a-ns"), Some(Deadlock::Itself(Own::Namespace)));
        assert_eq!(carried("palisade.dev", "criticalservices", "a"), Some(Deadlock::Itself(Own::Service)));
    }

    #[test]
    fn a_thousand_services_in_a_ring_are_told_in_the_end() {
        let count = 1_000;
        let all: Vec<(String, Service)> = (0..count)
            .map(|number| {
                let next = (number + 1) % count;
                let waits_for = format!("apps/deployments/s{next}-ns/s{next}");
                (format!("s{number}"), service(&format!("s{number}"), &[&waits_for], "Ordered"))
            })
            .collect();
        let others = all.iter().map(|(name, service)| (&**name, service));
        let Some(Deadlock::Cycle(names)) = deadlock("s0", &all[0].1, others) else { panic!("no cycle") };
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_chain_is_no_cycle() {
        assert_eq!(
            cycle(&[("a", &["apps/deployments/b-ns/b"], "Ordered"), ("b", &["/nodes//c"], "Ordered")]),
            [None, None]
        );
    }
}
