//! What a budget counts: which pods are its own, who wants them, and how many are available.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use palisade_api::budget::{Budget, Chosen, Target};
use palisade_engine::Metadata;

use crate::budgets::pods::{Controller, Labels, NamespacePods, Pod, State};
use crate::budgets::workloads::{End, Workload, Workloads};

/// Longer than any chain of owners that means something.
const DEEPEST: usize = 8;

/// What workloads are known: from watches, and from questions asked because the watches did not tell yet.
pub(crate) struct Owners<'a> {
    pub(crate) watched: &'a Workloads,
    /// `None`: there is no such object any more.
    pub(crate) asked: &'a HashMap<Box<str>, Option<Workload>>,
}

/// Who looks after a pod, from its own controller up.
#[derive(Debug)]
struct Chain<'a> {
    links: Vec<(&'a Controller, &'a Workload)>,
    /// The highest link that is gone or going, by its place in the chain.
    ends_at: Option<usize>,
}

impl<'a> Owners<'a> {
    /// The chain above a controller, or the link that nobody knows yet.
    fn chain(&self, controller: &'a Controller) -> Result<Chain<'a>, &'a Controller> {
        let mut chain = Chain { links: Vec::new(), ends_at: None };
        let mut next = Some(controller);
        while let Some(controller) = next.filter(|_| chain.links.len() < DEEPEST) {
            // A static pod's.
            if &*controller.kind == "Node" && controller.group.is_empty() {
                break;
            }
            let known = match (self.watched.get_as(controller), self.watched.deleted(controller)) {
                (Some((workload, meant)), _) => meant.then_some((workload, false)),
                (None, Some(deleted)) => Some((deleted, true)),
                (None, None) => {
                    self.asked.get(&controller.uid).ok_or(controller)?.as_ref().map(|asked| (asked, false))
                }
            };
            let at = chain.links.len();
            let Some((workload, deleted)) = known else {
                chain.ends_at = Some(at);
                break;
            };
            match workload.end {
                Some(End::Orphaned) => break,
                Some(End::Collected) => chain.ends_at = Some(at),
                None if deleted => chain.ends_at = Some(at),
                None => {}
            }
            chain.links.push((controller, workload));
            next = workload.controller.as_deref();
        }
        Ok(chain)
    }
}

impl<'a> Chain<'a> {
    /// The part of the chain up to a target, if it is in it.
    fn up_to(mut self, target: &Target) -> Option<Self> {
        let found = self.links.iter().position(|(controller, _)| {
            *controller.group == *target.group
                && *controller.kind == *target.kind
                && *controller.name == *target.name
        })?;
        self.links.truncate(found + 1);
        Some(self)
    }

    /// Who says how many pods are wanted: its uid, and how many.
    fn wants(&self) -> Option<(&'a str, i64)> {
        let (controller, workload) = self.links[self.wanting()?];
        Some((&*controller.uid, workload.wants?))
    }

    /// Whether the pod goes with what ends. While the one that says how many pods there should be stays, the loss of a
    /// part below it makes no pod unwanted.
    fn is_ending(&self) -> bool {
        self.ends_at.is_some_and(|ends_at| self.wanting().is_none_or(|wanting| wanting <= ends_at))
    }

    /// The link that says how many pods are wanted. It is the lowest that has a say. But a `ReplicaSet` is one revision
    /// of what owns it, and a `UnitedDeployment` has parts; of other owners nobody knows what their scale counts:
    /// Prometheus' is shards.
    fn wanting(&self) -> Option<usize> {
        let says = |at: usize| self.links.get(at).is_some_and(|(_, workload)| workload.wants.is_some());
        let lowest = (0..self.links.len()).find(|at| says(*at))?;
        let is = |at: usize, group: &str, kind: &str| {
            let (controller, _) = self.links[at];
            *controller.group == *group && *controller.kind == *kind
        };
        let own = if is(lowest, "apps", "ReplicaSet") && says(lowest + 1) { lowest + 1 } else { lowest };
        let united =
            (own..self.links.len()).rfind(|at| is(*at, "apps.kruise.io", "UnitedDeployment") && says(*at));
        Some(united.unwrap_or(own))
    }

    /// Whether a pod is one that the workload no longer wants.
    fn is_surplus(&self, pod: &str) -> bool {
        let Some((_, workload)) = self.links.first() else { return false };
        let (Some(first), Some(wants)) = (workload.first_ordinal, workload.wants) else { return false };
        let ordinal = pod.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse::<i64>().ok());
        ordinal.is_some_and(|ordinal| ordinal >= first + wants)
    }
}

/// What a pod is to a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    None,
    /// It is chosen, but its workload does not want it any more.
    Unwanted,
    Member,
}

/// What a pod is to a budget, judged by itself.
pub(crate) fn membership(
    budget: &Budget,
    pod: &Metadata<'_>,
    controller: Option<&Controller>,
    owners: &Owners<'_>,
) -> Result<Membership, Controller> {
    if let Chosen::Selected(rule) = &budget.pods
        && !rule.matches(|key| pod.labels.get(key))
    {
        return Ok(Membership::None);
    }
    let chain = controller.map(|controller| owners.chain(controller)).transpose().map_err(Clone::clone)?;
    let chain = match (&budget.pods, chain) {
        (Chosen::Selected(_), None) => return Ok(Membership::Member),
        (Chosen::Selected(_), Some(chain)) => chain,
        (Chosen::Of(_), None) => return Ok(Membership::None),
        (Chosen::Of(target), Some(chain)) => match chain.up_to(target) {
            Some(chain) => chain,
            None => return Ok(Membership::None),
        },
    };
    let unwanted = chain.is_ending()
        || chain.is_surplus(&pod.name)
        || chain.wants().is_some_and(|(_, wants)| wants == 0);
    Ok(if unwanted { Membership::Unwanted } else { Membership::Member })
}

/// A budget's numbers, without reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) total: i64,
    /// The pods that are available, and the number of the workload whose they are.
    pub(crate) available: HashMap<Box<str>, usize>,
    /// How many pods each workload wants.
    pub(crate) wants: Vec<i64>,
}

/// Counts the pods of a budget, or tells which owners must be asked about first.
pub(crate) fn census(
    budget: &Budget,
    namespace: &str,
    pods: Option<&NamespacePods>,
    owners: &Owners<'_>,
) -> Result<Census, Vec<Controller>> {
    let mut census = Census::default();
    let mut missing: HashSet<Controller> = HashSet::new();
    let mut selected: HashMap<*const (Arc<str>, Arc<str>), bool> = HashMap::new();
    let mut chains: HashMap<*const Controller, Result<Option<Chain<'_>>, &Controller>> = HashMap::new();
    let mut wanted: HashMap<&str, usize> = HashMap::new();
    // Those that want themselves, each.
    census.wants.push(i64::MAX);
    for (uid, pod) in pods.into_iter().flatten() {
        if let Chosen::Selected(rule) = &budget.pods {
            let matches = |labels: &Labels| rule.matches(|key| find(labels, key));
            if !*selected.entry(pod.labels.as_ptr()).or_insert_with(|| matches(&pod.labels)) {
                continue;
            }
        }
        let chain = match &pod.controller {
            None => None,
            Some(controller) => {
                let known = chains.entry(Arc::as_ptr(controller)).or_insert_with(|| {
                    owners.chain(controller).map(|chain| match &budget.pods {
                        Chosen::Selected(_) => Some(chain),
                        Chosen::Of(target) => chain.up_to(target),
                    })
                });
                match known {
                    Ok(chain) => chain.as_ref(),
                    // A pod that is going tells nothing that the others don't.
                    Err(_) if pod.is_terminating() => None,
                    Err(unknown) => {
                        missing.insert((*unknown).clone());
                        None
                    }
                }
            }
        };
        match (&budget.pods, chain) {
            (Chosen::Of(_), None) => {}
            (_, Some(chain)) if chain.is_ending() => {}
            (_, Some(chain)) => {
                if let Some((workload, wants)) = chain.wants() {
                    let number = *wanted.entry(workload).or_insert_with(|| {
                        census.wants.push(wants);
                        census.wants.len() - 1
                    });
                    if pod.is_available() && wants != 0 && !chain.is_surplus(&pod.name) {
                        census.available.insert(uid.clone(), number);
                    }
                } else {
                    census.count_itself(uid, pod);
                }
            }
            // An unknown owner of a pod that is going: it counts neither way.
            (Chosen::Selected(_), None) if pod.controller.is_some() => {}
            (Chosen::Selected(_), None) => census.count_itself(uid, pod),
        }
    }
    if !missing.is_empty() {
        return Err(missing.into_iter().collect());
    }
    // A target wants its pods also while it has none.
    if let Chosen::Of(Target { group, kind, name }) = &budget.pods
        && wanted.is_empty()
        && let Some(workload) = owners.watched.find(namespace, group, kind, name)
        && workload.end.is_none()
    {
        census.wants.push(workload.wants.unwrap_or_default());
    }
    census.total += census.wants[1..].iter().sum::<i64>();
    Ok(census)
}

impl Census {
    /// A pod that nobody but itself wants.
    fn count_itself(&mut self, uid: &str, pod: &Pod) {
        self.total += i64::from(pod.state != State::Finished);
        if pod.is_available() {
            self.available.insert(uid.into(), 0);
        }
    }
}

fn find<'a>(labels: &'a Labels, key: &str) -> Option<&'a str> {
    labels.iter().find(|(each, _)| &**each == key).map(|(_, value)| &**value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets::shop::Shop;
    use crate::budgets::workloads::Scale;
    use crate::feed::Fed;
    use palisade_engine::Object;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn all() -> Value {
        json!({"selector": {"app": "web"}, "maxUnavailable": 1})
    }

    fn of(api: &str, kind: &str, name: &str) -> Value {
        json!({"targetRef": {"apiVersion": api, "kind": kind, "name": name}, "maxUnavailable": 1})
    }

    /// The metadata of a pod that the budget selects.
    fn pod(name: &str) -> Metadata<'static> {
        let text = json!({"metadata": {"name": name, "labels": {"app": "web"}}}).to_string();
        Object::parse(text.leak().as_bytes()).unwrap().metadata
    }

    #[test]
    fn a_deployment_in_the_middle_of_a_roll_counts_once() {
        let shop = Shop::default()
            .workload("Deployment", "web", 10, None)
            .workload("ReplicaSet", "web-1", 8, Some(("Deployment", "web")))
            .workload("ReplicaSet", "web-2", 5, Some(("Deployment", "web")))
            .pods(8, true, Some(("ReplicaSet", "web-1")))
            .pods(5, false, Some(("ReplicaSet", "web-2")));
        assert_eq!(shop.count(&all()), (10, 8, 9));
        assert_eq!(shop.count(&of("apps", "Deployment", "web")), (10, 8, 9));
        assert_eq!(
            shop.count(&of("apps/v1", "ReplicaSet", "web-1")),
            (8, 8, 7),
            "a target stands for itself"
        );
        assert_eq!(shop.count(&of("apps/v1", "Deployment", "other")), (0, 0, 0));
        assert_eq!(
            shop.count(&of("apps.kruise.io", "Deployment", "web")),
            (0, 0, 0),
            "another group is another kind"
        );
    }

    #[test]
    fn several_workloads_add_up_and_pods_without_one_count_themselves() {
        let shop = Shop::default()
            .workload("StatefulSet", "db", 3, None)
            .workload("CloneSet.apps.kruise.io", "clones", 4, None)
            .pods(3, true, Some(("StatefulSet", "db")))
            .pods(4, true, Some(("CloneSet.apps.kruise.io", "clones")))
            .pods(2, true, None)
            .pod("down", false, None, &json!({}))
            .pod("going", true, None, &json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(shop.count(&all()), (3 + 4 + 4, 3 + 4 + 2, 10));
    }

    #[test]
    fn the_one_that_knows_how_many_are_wanted_decides() {
        let united = ("UnitedDeployment.apps.kruise.io", "ud");
        let shop = Shop::default()
            .workload("UnitedDeployment.apps.kruise.io", "ud", 10, None)
            .workload("StatefulSet", "ud-a", 4, Some(united))
            .workload("StatefulSet", "ud-b", 4, Some(united))
            .pods(4, true, Some(("StatefulSet", "ud-a")));
        assert_eq!(shop.count(&of("apps.kruise.io/v1alpha1", "UnitedDeployment", "ud")), (10, 4, 9));
        assert_eq!(shop.count(&all()), (10, 4, 9));
        let operator = ("Kafka.example.com", "k");
        let shop = Shop::default()
            .workload("Kafka.example.com", "k", 99, None)
            .workload("StatefulSet", "brokers", 3, Some(operator))
            .pods(3, true, Some(("StatefulSet", "brokers")));
        assert_eq!(shop.count(&of("example.com/v1", "Kafka", "k")), (3, 3, 2), "its own kind has no scale");
    }

    #[test]
    fn a_target_without_pods_wants_them_all_the_same() {
        let shop = Shop::default().workload("Deployment", "web", 10, None);
        assert_eq!(shop.count(&of("apps", "Deployment", "web")), (10, 0, 9));
    }

    #[rstest]
    #[case::deployment_gone("web", json!({}), true)]
    #[case::deleted_in_the_foreground("", json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}), true)]
    #[case::orphaning("", json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"]}), false)]
    fn a_workload_that_goes_takes_its_pods(#[case] gone: &str, #[case] metadata: Value, #[case] free: bool) {
        let mut shop = Shop::default();
        if gone.is_empty() {
            shop = shop.workload_with("Deployment", "web", &json!({"replicas": 3}), None, &metadata);
        }
        let shop = shop
            .workload("ReplicaSet", "web-1", 3, Some(("Deployment", "web")))
            .pods(3, true, Some(("ReplicaSet", "web-1")))
            .gone("web");
        assert_eq!(shop.count(&all()), if free { (0, 0, 0) } else { (3, 3, 2) });
    }

    #[test]
    fn pods_of_a_part_that_is_deleted_are_wanted_while_the_whole_stays() {
        let of_old = Some(("ReplicaSet", "web-1"));
        let shop = || {
            Shop::default()
                .workload("Deployment", "web", 3, None)
                .workload("ReplicaSet", "web-1", 3, Some(("Deployment", "web")))
                .pods(3, true, of_old)
        };
        let is = |shop: &Shop| {
            let controller =
                shop.pods.of_namespace("shop").unwrap().values().next().unwrap().controller.clone();
            membership(&Budget::read(&all()).unwrap(), &pod("x"), controller.as_deref(), &shop.owners())
                .unwrap()
        };
        let deleted = shop().deleted("ReplicaSet", "web-1");
        assert_eq!((deleted.count(&all()), is(&deleted)), ((3, 3, 2), Membership::Member));
        assert_eq!(deleted.count(&of("apps/v1", "Deployment", "web")), (3, 3, 2));
        let replaced = deleted.workload("ReplicaSet", "web-2", 3, Some(("Deployment", "web"))).pods(
            3,
            true,
            Some(("ReplicaSet", "web-2")),
        );
        assert_eq!(replaced.count(&all()), (3, 6, 2), "what takes their place counts for the same whole");

        let foreground =
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]});
        let above = Some(("Deployment", "web"));
        let terminating =
            shop().workload_with("ReplicaSet", "web-1", &json!({"replicas": 3}), above, &foreground);
        assert_eq!((terminating.count(&all()), is(&terminating)), ((3, 3, 2), Membership::Member));

        let whole = shop().deleted("Deployment", "web").gone("web");
        assert_eq!(
            (whole.count(&all()), is(&whole)),
            ((0, 0, 0), Membership::Unwanted),
            "the cascade goes on"
        );
        let both = whole.deleted("ReplicaSet", "web-1");
        assert_eq!((both.count(&all()), is(&both)), ((0, 0, 0), Membership::Unwanted));
        let alone = Shop::default()
            .workload("ReplicaSet", "web-1", 3, None)
            .pods(3, true, of_old)
            .deleted("ReplicaSet", "web-1")
            .gone("web-1");
        assert_eq!((alone.count(&all()), is(&alone)), ((0, 0, 0), Membership::Unwanted), "it is the whole");
    }

    #[test]
    fn a_list_that_misses_a_part_says_that_it_is_deleted() {
        let mut shop = Shop::default()
            .workload("Deployment", "web", 3, None)
            .workload("ReplicaSet", "web-1", 3, Some(("Deployment", "web")))
            .pods(3, true, Some(("ReplicaSet", "web-1")));
        let kind = ("apps".into(), "ReplicaSet".into());
        for fed in [Fed::Begin, Fed::Complete(9)] {
            shop.workloads.take(&fed, &kind, &Scale(None), &mut HashSet::new());
        }
        assert_eq!(shop.count(&all()), (3, 3, 2));
    }

    #[test]
    fn what_a_workload_no_longer_wants_is_not_counted_on() {
        let of_db = Some(("StatefulSet", "db"));
        let shop = Shop::default()
            .workload("StatefulSet", "db", 2, None)
            .pod("db-0", false, of_db, &json!({}))
            .pod("db-1", true, of_db, &json!({}))
            .pod("db-2", true, of_db, &json!({}));
        assert_eq!(shop.count(&all()), (2, 1, 1));
        let budget = Budget::read(&all()).unwrap();
        let owners = shop.owners();
        let db = Controller {
            uid: "db".into(),
            group: "apps".into(),
            kind: "StatefulSet".into(),
            name: "db".into(),
        };
        let is = |name: &str| membership(&budget, &pod(name), Some(&db), &owners).unwrap();
        assert_eq!(
            (is("db-1"), is("db-2"), is("db-10")),
            (Membership::Member, Membership::Unwanted, Membership::Unwanted)
        );
        let none =
            Shop::default().workload("Deployment", "web", 0, None).pods(3, true, Some(("Deployment", "web")));
        assert_eq!(none.count(&all()), (0, 0, 0));
    }

    #[test]
    fn an_owner_that_nobody_knows_is_asked_for_but_not_for_a_pod_that_goes() {
        let budget = Budget::read(&all()).unwrap();
        let count = |shop: &Shop| {
            let owners = shop.owners();
            census(&budget, "shop", shop.pods.of_namespace("shop"), &owners)
        };
        let shop = Shop::default().pods(2, true, Some(("ReplicaSet", "web-1")));
        assert_eq!(count(&shop).unwrap_err().iter().map(|owner| &*owner.name).collect::<Vec<_>>(), ["web-1"]);
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        // In whatever order they come.
        for number in 0..8 {
            let name = format!("going-{number}");
            let shop = Shop::default().pod(&name, true, Some(("ReplicaSet", "web-1")), &going).pods(
                1,
                true,
                Some(("ReplicaSet", "web-1")),
            );
            assert!(count(&shop).is_err(), "{name}");
        }
        let shop = Shop::default().pod("x", true, Some(("ReplicaSet", "web-1")), &going);
        assert_eq!(count(&shop).map(|census| (census.total, census.available.len())), Ok((0, 0)));
    }

    #[test]
    fn a_scale_that_counts_something_else_is_not_taken_for_pods() {
        let prometheus = ("Prometheus.example.com", "p");
        let mut shop = Shop::default().workload("StatefulSet", "p-0", 4, Some(prometheus)).pods(
            4,
            true,
            Some(("StatefulSet", "p-0")),
        );
        let text = json!({"metadata": {"name": "p", "namespace": "shop", "uid": "p", "resourceVersion": "1"}, "spec": {"shards": 1}}).to_string();
        let object = Object::parse(text.as_bytes()).unwrap();
        let kind = ("example.com".into(), "Prometheus".into());
        shop.workloads.take(&Fed::Applied(&object), &kind, &Scale::at(".spec.shards"), &mut HashSet::new());
        assert_eq!(shop.count(&all()), (4, 4, 3));
        assert_eq!(shop.count(&of("example.com/v1", "Prometheus", "p")), (4, 4, 3));
    }

    #[test]
    fn an_owner_by_another_name_is_none() {
        let shop = Shop::default().workload("ReplicaSet", "web-1", 3, None);
        let owners = shop.owners();
        let budget = Budget::read(&all()).unwrap();
        let is = |kind: &str, name: &str| {
            let forged = Controller {
                uid: "web-1".into(),
                group: "apps".into(),
                kind: kind.into(),
                name: name.into(),
            };
            membership(&budget, &pod("x"), Some(&forged), &owners).unwrap()
        };
        assert_eq!(
            (is("ReplicaSet", "web-1"), is("ReplicaSet", "web-2"), is("Deployment", "web-1")),
            (Membership::Member, Membership::Unwanted, Membership::Unwanted)
        );
    }
}
