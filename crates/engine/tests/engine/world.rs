//! A world in which every answer is given beforehand, and the words of these tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures::executor::block_on;
use palisade_api::components::{Components, GroupKind};
use palisade_api::critical::{Resource, Service, Target};
use palisade_api::gates::FeatureGates;
use palisade_api::marks;
use palisade_api::protection::rules_of;
use palisade_api::search_groups::SearchGroups;
use palisade_engine::{
    About, Action, Answer, BudgetAuthor, Census, ClaimTemplate, Code, Count, Critical, Definition,
    Dependents, Expects, Holders, Judged, Kind, Loss, Metadata, Object, OwnerRef, OwnerState, Parent, Place,
    Present, ProtectedComponents, Protections, Refused, Review, Scale, Scaled, Scope, Search, Settings,
    Spent, Subject, Unknown, UnreadableKind, User, Verdict, Withdrawal, World, decide, prose,
};
use serde_json::Value;

pub(crate) struct Given {
    pub(crate) spent: Spent,
    /// What was asked of budgets, and whether in earnest.
    pub(crate) losses: Mutex<Vec<(Loss, bool)>>,
    /// Who was charged to flow controls, and whether in earnest.
    pub(crate) removals: Mutex<Vec<(String, bool)>>,
    /// Who is remembered to have written budgets: uid, generation, whether an administrator.
    pub(crate) authors: Mutex<Vec<(String, i64, bool)>>,
    /// How many pods a budget lets go at least that no administrator wrote.
    pub(crate) min_unavailable: u32,
    pub(crate) pods: Answer<Census>,
    pub(crate) claims: Answer<Census>,
    pub(crate) instances: Answer<Census>,
    pub(crate) pod: Answer<Option<String>>,
    pub(crate) scale: Answer<Option<Scale>>,
    /// The pods that mount claims, by claim; the endpoints of Services, by Service; the pods of all Nodes.
    pub(crate) mounting: Answer<BTreeMap<String, Census>>,
    pub(crate) endpoints: Answer<BTreeMap<String, Census>>,
    pub(crate) on_node: Answer<Census>,
    /// What each owner owns, by its uid.
    pub(crate) dependents: Answer<Dependents>,
    /// How often the last five were asked.
    pub(crate) asked: Mutex<usize>,
    pub(crate) protections: Protections,
    pub(crate) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// What a search looks at: kinds and objects.
    pub(crate) objects: Answer<Vec<(&'static str, String)>>,
    /// Kinds of which a search looks only at what carries a label that may always protect.
    pub(crate) by_selector: Vec<&'static str>,
    /// The kinds that a search can't list.
    pub(crate) unreadable: Vec<UnreadableKind>,
    /// `--search-groups`
    pub(crate) searched: SearchGroups,
    /// The groups that a search leaves out.
    pub(crate) not_searched: Vec<String>,
    pub(crate) services: Answer<Vec<Critical>>,
    /// Who carries a finalizer.
    pub(crate) holders: BTreeMap<&'static str, Answer<Holders>>,
    /// Component protections.
    pub(crate) guarded: Answer<Vec<Arc<ProtectedComponents>>>,
    /// The parent of all components.
    pub(crate) parent: Answer<Option<Value>>,
    /// Whose a claim is by its name.
    pub(crate) claimant: Answer<Option<String>>,
    /// What became of owners, by their uids.
    pub(crate) owners: BTreeMap<String, Answer<OwnerState>>,
    pub(crate) claim_templates: Answer<Vec<ClaimTemplate>>,
    /// What is there: `deployments.apps "shop/web"`.
    pub(crate) present: BTreeMap<&'static str, Answer<Present>>,
}

impl Default for Given {
    fn default() -> Self {
        let unasked = || Unknown::new("a question that this case should not ask", "");
        Self {
            spent: Spent::default(),
            losses: Mutex::default(),
            removals: Mutex::default(),
            authors: Mutex::default(),
            min_unavailable: 1,
            pods: Err(unasked()),
            claims: Err(unasked()),
            instances: Err(unasked()),
            pod: Err(unasked()),
            scale: Err(unasked()),
            mounting: Err(unasked()),
            endpoints: Err(unasked()),
            on_node: Err(unasked()),
            dependents: Err(unasked()),
            asked: Mutex::default(),
            protections: Protections::default(),
            namespaces: BTreeMap::new(),
            objects: Ok(Vec::new()),
            by_selector: Vec::new(),
            unreadable: Vec::new(),
            searched: SearchGroups::default(),
            not_searched: Vec::new(),
            services: Ok(Vec::new()),
            holders: BTreeMap::new(),
            present: BTreeMap::new(),
            guarded: Ok(Vec::new()),
            parent: Ok(None),
            claimant: Ok(None),
            owners: BTreeMap::new(),
            claim_templates: Err(unasked()),
        }
    }
}

impl Given {
    /// A world with protections: name and spec.
    pub(crate) fn protected(protections: &[(&str, Value)]) -> Self {
        let rules = protections
            .iter()
            .flat_map(|(name, spec)| rules_of(name, &serde_json::from_value(spec.clone()).unwrap()).unwrap());
        Self { protections: Protections::new(rules, Vec::new()), ..Self::default() }
    }
}

/// A `CriticalService` by name and spec.
pub(crate) fn service(name: &str, spec: &Value) -> Critical {
    Critical { name: name.to_owned(), uid: format!("uid-of-{name}"), service: Service::read(spec) }
}

impl World for Given {
    async fn active_pods(&self, _: &str) -> Answer<Census> {
        self.pods.clone()
    }
    async fn bound_claims(&self, _: &str) -> Answer<Census> {
        self.claims.clone()
    }
    async fn instances(&self, _: &Definition) -> Answer<Census> {
        self.instances.clone()
    }
    fn is_searched(&self, group: &str) -> bool {
        self.searched.contain(group)
    }
    async fn scale(&self, _: &Kind<'_>) -> Answer<Option<Scale>> {
        *self.asked.lock().unwrap() += 1;
        self.scale.clone()
    }
    async fn mounting_pods(&self, _: &str, claims: &BTreeSet<String>) -> Answer<BTreeMap<String, Census>> {
        *self.asked.lock().unwrap() += 1;
        let mut mounting = self.mounting.clone()?;
        mounting.retain(|claim, _| claims.contains(claim));
        Ok(mounting)
    }
    async fn ready_endpoints(
        &self,
        _: &str,
        services: &BTreeSet<String>,
    ) -> Answer<BTreeMap<String, Census>> {
        *self.asked.lock().unwrap() += 1;
        let mut endpoints = self.endpoints.clone()?;
        endpoints.retain(|service, _| services.contains(service));
        Ok(endpoints)
    }
    async fn pods_on_node(&self, _: &str) -> Answer<Census> {
        *self.asked.lock().unwrap() += 1;
        self.on_node.clone()
    }
    async fn dependents(&self, _: Option<&str>, owners: &BTreeSet<String>) -> Answer<Dependents> {
        *self.asked.lock().unwrap() += 1;
        let mut dependents = self.dependents.clone()?;
        dependents.by_owner.retain(|owner, _| owners.contains(owner));
        Ok(dependents)
    }
    fn protections(&self) -> &Protections {
        &self.protections
    }
    async fn namespace_labels(&self, namespace: &str) -> Answer<BTreeMap<String, String>> {
        self.namespaces
            .get(namespace)
            .cloned()
            .ok_or_else(|| Unknown::new("the labels of its namespace", "not found"))
    }
    async fn is_terminating(&self, namespace: &str) -> bool {
        namespace == "going"
    }
    async fn all_namespace_labels(&self) -> Answer<BTreeMap<String, BTreeMap<String, String>>> {
        Ok(self.namespaces.clone())
    }
    async fn search(
        &self,
        _: Place<'_>,
        judge: &(dyn Fn(&Subject<'_>, bool) -> Judged + Sync),
    ) -> Answer<Search> {
        let mut search = Search {
            unreadable: self.unreadable.clone(),
            not_searched: self.not_searched.clone(),
            ..Search::default()
        };
        for (of, json) in self.objects.clone()? {
            // As a list shows it: metadata only.
            let whole: Value = serde_json::from_str(&json).unwrap();
            let metadata = serde_json::json!({"metadata": whole["metadata"]}).to_string();
            let subject = |json: &'static str| Subject {
                kind: kind(of),
                object: Object::parse(json.as_bytes()).unwrap(),
            };
            if self.by_selector.contains(&of) {
                search.was_by_selector(&kind(of));
                let labels = &whole["metadata"]["labels"];
                if labels[marks::DELETE_PROTECTION].is_null() && labels[marks::DELETION_PROTECTED] != "Always"
                {
                    continue;
                }
            }
            let (metadata, json): (&'static str, &'static str) = (metadata.leak(), json.leak());
            let judged = match judge(&subject(metadata), false) {
                Judged::LookCloser => judge(&subject(json), true),
                judged => judged,
            };
            let mut page = Search::default();
            page.add(&subject(metadata), judged);
            search.add_page(page);
        }
        Ok(search)
    }
    async fn owners(&self, owners: &[(Option<String>, OwnerRef)]) -> Answer<BTreeMap<String, OwnerState>> {
        let state = |(_, owner): &(Option<String>, OwnerRef)| {
            let given = self.owners.get(&owner.uid).unwrap_or_else(|| panic!("nobody asks about {owner:?}"));
            Ok((owner.uid.clone(), given.clone()?))
        };
        owners.iter().map(state).collect()
    }
    fn has_seen_owner(&self, uid: &str) -> bool {
        uid == "u"
    }
    async fn claim_templates(&self, _: &str) -> Answer<Vec<ClaimTemplate>> {
        self.claim_templates.clone()
    }
    async fn spend(&self, withdrawal: &Withdrawal<'_>, really: bool) -> Spent {
        let Withdrawal { loss, removed_by, .. } = withdrawal;
        self.losses.lock().unwrap().extend(loss.clone().map(|loss| (loss, really)));
        self.removals.lock().unwrap().extend(removed_by.map(|user| (user.name.to_string(), really)));
        let mut spent = self.spent.clone();
        spent.refused.retain(|refused| match refused {
            Refused::Budget(_) | Refused::BudgetsUnknown(_) => loss.is_some(),
            Refused::Flow(_) | Refused::FlowUnknown(_) => removed_by.is_some(),
        });
        if removed_by.is_none() {
            spent.passed.clear();
        }
        spent
    }
    async fn critical_services(&self, concerned: Option<&Subject<'_>>) -> Answer<Vec<Critical>> {
        let is_about = |service: &Critical| match (&service.service, concerned) {
            (Ok(service), Some(subject)) => subject.takes_down(&service.provider),
            (Err(_), Some(_)) => false,
            (_, None) => true,
        };
        let services = self.services.clone()?;
        Ok(if services.iter().any(is_about) { services } else { Vec::new() })
    }
    async fn holders(&self, resource: &Resource, finalizer: &str) -> Answer<Holders> {
        let none = || Ok(Holders { resource: resource.to_string(), census: Census::NONE, going: true });
        self.holders.get(finalizer).cloned().unwrap_or_else(none)
    }
    async fn find(&self, target: &Target) -> Answer<Option<Present>> {
        self.present.get(&*target.to_string()).cloned().transpose()
    }
    async fn components(&self, kind: Option<&GroupKind>) -> Answer<Vec<Arc<ProtectedComponents>>> {
        let is_about = |protected: &Arc<ProtectedComponents>| {
            kind.is_none_or(|kind| {
                protected.components.as_ref().is_ok_and(|all| all.kind(&kind.group, &kind.kind).is_some())
            })
        };
        Ok(self.guarded.clone()?.into_iter().filter(is_about).collect())
    }
    async fn parent(&self, kind: &GroupKind, namespace: Option<&str>, name: &str) -> Answer<Option<Parent>> {
        let kind_name = kind.kind.to_lowercase();
        let about = About {
            kind: format!("{kind_name}.{}", kind.group),
            kubectl_name: format!("{kind_name}s.{}", kind.group),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        let is_of_kind = |object: &Value| object["kind"].is_null() || object["kind"] == *kind.kind;
        Ok(self.parent.clone()?.filter(is_of_kind).map(|object| Parent { about, object }))
    }
    async fn claimed_by(
        &self,
        _: &Components,
        _: &str,
        _: &str,
        _: &(dyn Fn(&Metadata<'_>) -> Option<String> + Sync),
    ) -> Answer<Option<String>> {
        self.claimant.clone()
    }
    async fn scaled(&self, _: &str, plural: &str, namespace: &str, name: &str) -> Answer<Option<Scaled>> {
        assert_eq!(plural, "statefulsets");
        let labels = r#""app.kubernetes.io/managed-by":"etcd-druid","app.kubernetes.io/part-of":"main""#;
        let labels = if name == "main" { labels } else { "" };
        Ok(Some(Scaled {
            kind: "StatefulSet".to_owned(),
            object: in_namespace(namespace, name, labels, "{}"),
        }))
    }
    async fn scope(&self, resource: &Resource) -> Answer<Option<Scope>> {
        match &*resource.word {
            "nodes" | "CustomResourceDefinition" => Ok(Some(Scope::Cluster)),
            "typos" => Ok(None),
            "broken" => Err(Unknown::new("how it is served", "no")),
            _ => Ok(Some(Scope::Namespaced)),
        }
    }
    async fn pod(&self, _: &str, _: &str) -> Answer<Option<String>> {
        self.pod.clone()
    }
    fn note_author(&self, author: &BudgetAuthor<'_>, really: bool) -> u32 {
        if really {
            let said = (author.uid.to_owned(), author.generation, author.administrator);
            self.authors.lock().unwrap().push(said);
        }
        self.min_unavailable
    }
}

pub(crate) fn census(names: &[&str]) -> Census {
    Census { count: Count::Exactly(names.len()), names: names.iter().map(|&name| name.to_owned()).collect() }
}

pub(crate) fn settings() -> Settings {
    Settings { own_namespace: "palisade-system".into(), gates: FeatureGates::default() }
}

pub(crate) fn kind(kind: &str) -> Kind<'static> {
    let (group, plural) = match kind {
        "Namespace" => ("", "namespaces"),
        "ConfigMap" => ("", "configmaps"),
        "Pod" => ("", "pods"),
        "Deployment" => ("apps", "deployments"),
        "Job" => ("batch", "jobs"),
        "ReplicaSet" => ("apps", "replicasets"),
        "StatefulSet" => ("apps", "statefulsets"),
        "ServiceAccount" => ("", "serviceaccounts"),
        "Role" => ("rbac.authorization.k8s.io", "roles"),
        "RoleBinding" => ("rbac.authorization.k8s.io", "rolebindings"),
        "PodDisruptionBudget" => ("policy", "poddisruptionbudgets"),
        "CloneSet" => ("apps.kruise.io", "clonesets"),
        "AdvancedStatefulSet" => ("apps.kruise.io", "statefulsets"),
        "UnitedDeployment" => ("apps.kruise.io", "uniteddeployments"),
        "CustomResourceDefinition" => ("apiextensions.k8s.io", "customresourcedefinitions"),
        "ClusterRole" => ("rbac.authorization.k8s.io", "clusterroles"),
        "Widget" => ("example.com", "widgets"),
        "ReplicationController" => ("", "replicationcontrollers"),
        "DaemonSet" => ("apps", "daemonsets"),
        "ControllerRevision" => ("apps", "controllerrevisions"),
        "CronJob" => ("batch", "cronjobs"),
        "PersistentVolume" => ("", "persistentvolumes"),
        "Node" => ("", "nodes"),
        "Event" => ("", "events"),
        "Endpoints" => ("", "endpoints"),
        "EndpointSlice" => ("discovery.k8s.io", "endpointslices"),
        "PodUnavailableBudget" => ("policy.kruise.io", "podunavailablebudgets"),
        "PodDeletionFlowControl" => ("policy.kruise.io", "poddeletionflowcontrols"),
        "CriticalService" => ("palisade.dev", "criticalservices"),
        "ResourceDeletionProtection" => ("palisade.dev", "resourcedeletionprotections"),
        "ComponentProtection" => ("palisade.dev", "componentprotections"),
        "Lease" => ("coordination.k8s.io", "leases"),
        "Service" => ("", "services"),
        "PersistentVolumeClaim" => ("", "persistentvolumeclaims"),
        other => panic!("no such kind in these tests: {other}"),
    };
    let kind = kind.strip_prefix("Advanced").unwrap_or(kind);
    Kind { group: group.into(), kind: kind.to_owned().into(), plural: plural.into() }
}

pub(crate) fn review(action: Action<'_>) -> Review<'_> {
    Review {
        action,
        user: User { name: "jane".into(), groups: vec!["dev".into()] },
        propagation: None,
        is_owner: false,
        expects: Expects::default(),
        dry_run: false,
    }
}

pub(crate) fn delete_with(of: &str, json: &str, world: &Given, settings: &Settings) -> Verdict {
    let subject = Subject { kind: kind(of), object: Object::parse(json.as_bytes()).unwrap() };
    block_on(decide(&review(Action::Delete(subject)), world, settings))
}

pub(crate) fn delete_as(user: &str, of: &str, json: &str, world: &Given) -> Verdict {
    let subject = Subject { kind: kind(of), object: Object::parse(json.as_bytes()).unwrap() };
    let asked =
        Review { user: User { name: user.into(), groups: Vec::new() }, ..review(Action::Delete(subject)) };
    block_on(decide(&asked, world, &settings()))
}

/// The deletion of an object that the API server was told owns something: protected, or only labelled in a namespace.
pub(crate) fn delete_owner(of: &str, json: &str, world: &Given, is_owner: bool) -> Verdict {
    let subject = Subject { kind: kind(of), object: Object::parse(json.as_bytes()).unwrap() };
    let expects = Expects { labelled_dependents: !is_owner, ..Expects::default() };
    let review = Review { is_owner, expects, ..review(Action::Delete(subject)) };
    block_on(decide(&review, world, &settings()))
}

pub(crate) fn delete(of: &str, json: &str, world: &Given) -> Verdict {
    delete_with(of, json, world, &settings())
}

pub(crate) fn evict(namespace: &'static str, pod: Answer<Option<String>>) -> Verdict {
    let action = Action::Evict { namespace: namespace.into(), name: "web-0".into() };
    block_on(decide(&review(action), &Given { pod, ..Given::default() }, &settings()))
}

/// Code, message and warnings.
pub(crate) fn outcome(verdict: &Verdict) -> (Option<u16>, Option<String>, Vec<String>) {
    let warnings = verdict
        .warnings
        .iter()
        .map(|warning| prose::warning(verdict.about.as_ref().unwrap(), warning))
        .collect();
    (verdict.code().map(Code::status), prose::refusal(verdict), warnings)
}

#[track_caller]
pub(crate) fn refused(verdict: &Verdict, code: u16, message: &str) {
    assert_eq!(outcome(verdict), (Some(code), Some(message.to_owned()), vec![]));
}

#[track_caller]
pub(crate) fn allowed(verdict: &Verdict) {
    assert_eq!(outcome(verdict), (None, None, vec![]));
}

pub(crate) fn labelled(name: &str, labels: &str) -> String {
    format!(r#"{{"metadata":{{"name":"{name}","labels":{{{labels}}}}}}}"#)
}

pub(crate) fn in_namespace(namespace: &str, name: &str, labels: &str, spec: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","labels":{{{labels}}}}},"spec":{spec}}}"#
    )
}
