//! The order that `CriticalService`s ask for, and where it has no end.

use palisade_api::critical::{self, Criterion, DeletionMode, Resource, Service, Target};

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
    Service,
    /// The definition of all `CriticalService`s.
    Definition,
}

/// Why the provider of a service can never go in order, if so. `others` may include the service itself.
pub fn deadlock<'a>(
    name: &'a str,
    service: &'a Service,
    others: impl IntoIterator<Item = (&'a str, &'a Service)>,
) -> Option<Deadlock> {
    if service.mode == DeletionMode::BestEffort {
        return None;
    }
    if let Some(own) = waits_for(service, name, service) {
        return Some(Deadlock::Itself(own));
    }
    let mut unseen: Vec<(&str, &Service)> = others
        .into_iter()
        .filter(|(other, service)| *other != name && service.mode == DeletionMode::Ordered)
        .collect();
    // Breadth first, so that the shortest way round is told.
    let mut ways: Vec<Vec<(&str, &Service)>> = vec![vec![(name, service)]];
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let Some(&(_, last)) = way.last() else { continue };
            if way.len() > 1 && waits_for(last, name, service).is_some() {
                return Some(Deadlock::Cycle(way.iter().map(|(name, _)| (*name).to_owned()).collect()));
            }
            unseen.retain(|&(other, next)| {
                let waits = waits_for(last, other, next).is_some();
                if waits {
                    longer.push([&way[..], &[(other, next)]].concat());
                }
                !waits
            });
        }
        ways = longer;
    }
    None
}

/// Whether one service waits for something that goes only with, or after, the provider of another.
fn waits_for(service: &Service, name: &str, other: &Service) -> Option<Own> {
    service.criteria.iter().find_map(|criterion| match criterion {
        Criterion::Finalizer { .. } => None,
        Criterion::Object(target) => ends_with(target, name, other),
    })
}

fn ends_with(target: &Target, name: &str, Service { provider, .. }: &Service) -> Option<Own> {
    let Target { resource, namespace, name: wanted } = target;
    let in_namespace = namespace.as_ref().is_none_or(|namespace| *namespace == provider.namespace);
    let is = |resource: &Resource, group: &str, kind: &str, plural: &str| resource.is(group, kind, plural);
    if resource.may_be(&provider.resource) && *wanted == provider.name && in_namespace {
        Some(Own::Provider)
    } else if is(resource, "", "Namespace", "namespaces") && *wanted == provider.namespace {
        Some(Own::Namespace)
    } else if is(resource, critical::GROUP, critical::KIND, critical::PLURAL) && wanted == name {
        Some(Own::Service)
    } else if is(resource, "apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions")
        && *wanted == format!("{}.{}", critical::PLURAL, critical::GROUP)
    {
        Some(Own::Definition)
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
    fn a_chain_is_no_cycle() {
        assert_eq!(
            cycle(&[("a", &["apps/deployments/b-ns/b"], "Ordered"), ("b", &["/nodes//c"], "Ordered")]),
            [None, None]
        );
    }
}
