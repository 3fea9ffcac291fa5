//! What a workload asks for, and the budget that says it.

use std::collections::BTreeMap;

use palisade_api::budget::{self, Limit, MIN_UNAVAILABLE};
use palisade_api::generate::{Ask, Flavour, GENERATED, GENERATED_FOR, Given};
use palisade_api::labels::{LabelRule, LabelSelector};
use palisade_api::names;
use palisade_engine::json::{Cursor, Malformed};
use palisade_engine::{Object, Owner};
use serde_json::{Value, json};

/// A kind of workload that budgets are generated for.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "Kubernetes' name")]
pub(super) struct Kind {
    pub(super) group: &'static str,
    pub(super) kind: &'static str,
    strategy: Strategy,
}

/// Where the update strategy of a kind says how many pods may be unavailable.
#[derive(Debug)]
enum Strategy {
    /// It has none that says so.
    None,
    /// A path in `spec`, and what holds where nothing is there.
    Own(&'static str, Value),
    /// The workload that `spec.template` describes has one: the field of the template, and the strategy of that kind.
    OfTemplate(Vec<(&'static str, Strategy)>),
}

/// How many there are.
pub(super) const KINDS: usize = 6;

/// All of them.
pub(super) fn kinds() -> [Kind; KINDS] {
    let kind = |group, kind, strategy| Kind { group, kind, strategy };
    let deployment = || Strategy::Own("/strategy/rollingUpdate/maxUnavailable", json!("25%"));
    let stateful_set = || Strategy::Own("/updateStrategy/rollingUpdate/maxUnavailable", json!(1));
    let clone_set = || Strategy::Own("/updateStrategy/maxUnavailable", json!("20%"));
    let templates = vec![
        ("statefulSetTemplate", stateful_set()),
        ("advancedStatefulSetTemplate", stateful_set()),
        ("cloneSetTemplate", clone_set()),
        ("deploymentTemplate", deployment()),
    ];
    [
        kind("apps", "Deployment", deployment()),
        kind("apps", "StatefulSet", stateful_set()),
        kind("apps", "ReplicaSet", Strategy::None),
        kind("apps.kruise.io", "CloneSet", clone_set()),
        kind("apps.kruise.io", "StatefulSet", stateful_set()),
        kind("apps.kruise.io", "UnitedDeployment", Strategy::OfTemplate(templates)),
    ]
}

/// All that is kept of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) uid: Box<str>,
    pub(super) asks: [Ask; 2],
    pub(super) given: Given,
    /// The text of its own selector of pods.
    selector: Box<str>,
    /// The labels that its pods get, as far as its template tells.
    labels: BTreeMap<String, String>,
    /// Whether it is part of another workload, which has a budget for all of it.
    pub(super) is_part: bool,
    pub(super) going: bool,
}

impl Workload {
    pub(super) fn read(object: &Object<'_>, kind: &Kind) -> Result<Self, Malformed> {
        let metadata = &object.metadata;
        let annotation = |key: &str| metadata.annotations.get(key);
        let mut spec = Spec::default();
        if let Some(text) = object.spec() {
            spec.read(&mut Cursor::new(text), &kind.strategy)?;
        }
        let strategy = spec.max_unavailable(&kind.strategy);
        let selector = spec.selector.unwrap_or_else(|| "{}".into());
        Ok(Self {
            uid: (&*metadata.uid).into(),
            asks: Flavour::ALL.map(|flavour| Ask::read(flavour, annotation)),
            given: Given { strategy, replicas: spec.replicas.unwrap_or(1) },
            selector,
            labels: spec.labels,
            is_part: metadata.owners.iter().any(is_workload),
            going: metadata.deletion_timestamp.is_some(),
        })
    }
}

impl Workload {
    /// Why its selector can't be a budget's, if so.
    pub(super) fn selector_problem(&self) -> Option<&'static str> {
        let selector =
            serde_json::from_str::<Value>(&self.selector).ok().map(|value| LabelSelector::read(&value));
        match selector {
            Some(Ok(selector))
                if selector.match_labels.is_empty() && selector.match_expressions.is_empty() =>
            {
                Some(
                    "it has no selector, and a PodDisruptionBudget without one is for every pod of the namespace",
                )
            }
            Some(Ok(_)) => None,
            Some(Err(_)) | None => Some("its selector is none that a PodDisruptionBudget understands"),
        }
    }

    /// Whether another budget's selector is for its pods.
    pub(super) fn is_covered_by(&self, selector: &Value) -> bool {
        let own = serde_json::from_str::<Value>(&self.selector)
            .ok()
            .and_then(|value| LabelSelector::read(&value).ok());
        let own = own.map(|own| own.match_labels).unwrap_or_default();
        LabelSelector::read(selector).is_ok_and(|other| {
            LabelRule::of(&other).matches(|key| self.labels.get(key).or(own.get(key)).map(String::as_str))
        })
    }
}

/// What is read of a workload's `spec`.
#[derive(Default)]
struct Spec {
    replicas: Option<i64>,
    selector: Option<Box<str>>,
    labels: BTreeMap<String, String>,
    /// `strategy` and `updateStrategy`.
    strategies: serde_json::Map<String, Value>,
    /// That of the workload that its template describes, by the field of the template.
    of_template: Option<(&'static str, Box<Spec>)>,
}

impl Spec {
    fn read(&mut self, spec: &mut Cursor<'_>, strategy: &Strategy) -> Result<(), Malformed> {
        spec.object_or_null(|key, value| {
            match (&*key, strategy) {
                ("replicas", _) => self.replicas = value.value()?,
                ("selector", _) => {
                    self.selector = value.raw_or_null()?.map(|text| String::from_utf8_lossy(text).into());
                }
                ("template", Strategy::OfTemplate(templates)) => {
                    self.of_template = described(value, templates)?;
                }
                ("template", _) => self.labels = template_labels(value)?,
                ("strategy" | "updateStrategy", _) => {
                    self.strategies.insert(key.to_string(), value.value()?);
                }
                _ => value.skip()?,
            }
            Ok(())
        })?;
        if let Some((_, described)) = &mut self.of_template {
            self.labels = std::mem::take(&mut described.labels);
        }
        Ok(())
    }

    fn max_unavailable(&self, strategy: &Strategy) -> Value {
        let given = |path: &str| {
            let mut steps = path.split('/').skip(1);
            let first = self.strategies.get(steps.next()?)?;
            steps.try_fold(first, |value, step| value.get(step)).filter(|value| !value.is_null())
        };
        match strategy {
            Strategy::None => json!(1),
            Strategy::Own(path, default) => {
                let kind = ["/strategy/type", "/updateStrategy/type"].into_iter().find_map(given);
                let rolls = !kind.is_some_and(|kind| kind == "Recreate" || kind == "OnDelete");
                // One that does not roll has no number to give.
                let default = if rolls { default.clone() } else { json!(1) };
                given(path).cloned().unwrap_or(default)
            }
            Strategy::OfTemplate(templates) => {
                let described = self.of_template.as_ref().and_then(|(field, spec)| {
                    let (_, strategy) = templates.iter().find(|(name, _)| name == field)?;
                    Some(spec.max_unavailable(strategy))
                });
                described.unwrap_or_else(|| json!(1))
            }
        }
    }
}

/// The workload that a template describes: the first of the fields that it may have.
fn described(
    template: &mut Cursor<'_>,
    templates: &[(&'static str, Strategy)],
) -> Result<Option<(&'static str, Box<Spec>)>, Malformed> {
    let mut found = None;
    template.object_or_null(|key, value| {
        let known = templates.iter().find(|(field, _)| *field == &*key);
        let Some((field, strategy)) = known.filter(|_| found.is_none()) else { return value.skip() };
        value.object_or_null(|key, value| {
            if key != "spec" {
                return value.skip();
            }
            let mut spec = Box::<Spec>::default();
            spec.read(value, strategy)?;
            found = Some((*field, spec));
            Ok(())
        })?;
        Ok(())
    })?;
    Ok(found)
}

/// The labels of a pod template, where it is one.
fn template_labels(template: &mut Cursor<'_>) -> Result<BTreeMap<String, String>, Malformed> {
    let mut labels = BTreeMap::new();
    template.object_or_null(|key, value| {
        if key != "metadata" {
            return value.skip();
        }
        value.object_or_null(|key, value| {
            if key != "labels" {
                return value.skip();
            }
            labels = value.value::<Option<_>>()?.unwrap_or_default();
            Ok(())
        })?;
        Ok(())
    })?;
    Ok(labels)
}

fn is_workload(owner: &Owner<'_>) -> bool {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    owner.controller && kinds().iter().any(|kind| kind.group == group && kind.kind == owner.kind)
}

/// A budget, as it was last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Existing {
    /// The uid of the workload that we generated it for; `None` if we did not.
    pub(super) made_for: Option<Box<str>>,
    owner: Option<Box<str>>,
    labelled: bool,
    has_labels: bool,
    min_unavailable: Option<Box<str>>,
    pub(super) spec: Value,
}

impl Existing {
    pub(super) fn read(object: &Object<'_>) -> Self {
        let metadata = &object.metadata;
        Self {
            made_for: metadata.annotations.get(GENERATED_FOR).map(Into::into),
            owner: metadata.owners.iter().find(|owner| owner.controller).map(|owner| (&*owner.uid).into()),
            labelled: metadata.labels.get(GENERATED.0) == Some(GENERATED.1),
            has_labels: metadata.labels.iter().next().is_some(),
            min_unavailable: metadata.annotations.get(MIN_UNAVAILABLE).map(Into::into),
            spec: serde_json::from_slice(object.spec().unwrap_or(b"{}")).unwrap_or_default(),
        }
    }

    /// Whether we made it for this workload.
    pub(super) fn is_for(&self, workload: &Workload) -> bool {
        self.made_for.as_deref() == Some(&*workload.uid)
    }
}

/// The budget that a workload asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Desired {
    owner: Value,
    uid: Box<str>,
    /// How many it lets go at least, whatever becomes of its workload. A `PodDisruptionBudget` has nothing like it.
    min_unavailable: Option<Box<str>>,
    pub(super) spec: Value,
}

impl Desired {
    pub(super) fn new(
        flavour: Flavour,
        workload: &Workload,
        (api_version, kind, name): (&str, &str, &str),
        limit: Limit,
        min_unavailable: u32,
    ) -> Self {
        let (field, value) = limit.written();
        let mut spec = match flavour {
            Flavour::Unavailable => {
                json!({"targetRef": {"apiVersion": api_version, "kind": kind, "name": name}})
            }
            // One that also lets pods go that do not serve: they would hold up a drain for ever.
            Flavour::Disruption => json!({
                "selector": serde_json::from_str::<Value>(&workload.selector).unwrap_or_default(),
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            }),
        };
        spec[field] = value;
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": workload.uid, "controller": true});
        let bounded = flavour == Flavour::Unavailable && min_unavailable > 0;
        let min_unavailable = bounded.then(|| min_unavailable.to_string().into());
        Self { owner, uid: workload.uid.clone(), min_unavailable, spec }
    }

    /// The object to create.
    pub(super) fn object(&self, flavour: Flavour, namespace: &str, name: &str) -> Value {
        let (api_version, kind, _) = resource(flavour);
        let mut annotations = json!({GENERATED_FOR: self.uid});
        if let Some(min_unavailable) = &self.min_unavailable {
            annotations[MIN_UNAVAILABLE] = json!(min_unavailable);
        }
        json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name, "namespace": namespace,
                "labels": {GENERATED.0: GENERATED.1, names::MANAGED_BY.0: names::MANAGED_BY.1},
                "annotations": annotations,
                "ownerReferences": [self.owner],
            },
            "spec": self.spec,
        })
    }

    /// The changes that an existing one needs, as a JSON patch; empty if none.
    pub(super) fn changes(&self, existing: &Existing) -> Vec<Value> {
        let mut changes = Vec::new();
        if existing.spec != self.spec {
            changes.push(json!({"op": "replace", "path": "/spec", "value": self.spec}));
        }
        if existing.owner.as_deref() != Some(&*self.uid) {
            changes.push(json!({"op": "add", "path": "/metadata/ownerReferences", "value": [self.owner]}));
        }
        if existing.made_for.as_deref() != Some(&*self.uid) {
            let key = GENERATED_FOR.replace('/', "~1");
            changes.push(
                json!({"op": "add", "path": format!("/metadata/annotations/{key}"), "value": self.uid}),
            );
        }
        let key = MIN_UNAVAILABLE.replace('/', "~1");
        match &self.min_unavailable {
            same if *same == existing.min_unavailable => {}
            // There are annotations: it is ours.
            Some(least) => changes
                .push(json!({"op": "add", "path": format!("/metadata/annotations/{key}"), "value": least})),
            None => {
                changes.push(json!({"op": "remove", "path": format!("/metadata/annotations/{key}")}));
            }
        }
        if !existing.labelled {
            changes.push(if existing.has_labels {
                let key = GENERATED.0.replace('~', "~0").replace('/', "~1");
                json!({"op": "add", "path": format!("/metadata/labels/{key}"), "value": GENERATED.1})
            } else {
                json!({"op": "add", "path": "/metadata/labels", "value": {GENERATED.0: GENERATED.1}})
            });
        }
        changes
    }
}

/// `apiVersion`, kind and path of a flavour's resource.
pub(super) fn resource(flavour: Flavour) -> (String, &'static str, String) {
    let (group, version, kind, plural) = match flavour {
        Flavour::Unavailable => (budget::GROUP, budget::VERSION, budget::KIND, budget::PLURAL),
        Flavour::Disruption => ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    };
    (format!("{group}/{version}"), kind, plural.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_api::budget::Amount;
    use rstest::rstest;

    fn read(number: usize, object: &Value) -> Workload {
        let text = object.to_string();
        Workload::read(&Object::parse(text.as_bytes()).unwrap(), &kinds()[number]).unwrap()
    }

    #[rstest]
    #[case(0, json!({}), json!("25%"))]
    #[case(0, json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 3}}}), json!(3))]
    #[case(0, json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%", "maxSurge": 0}}}), json!("10%"))]
    #[case(0, json!({"strategy": {"type": "Recreate"}}), json!(1))]
    #[case(1, json!({}), json!(1))]
    #[case(1, json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}), json!(2))]
    #[case(1, json!({"updateStrategy": {"type": "OnDelete"}}), json!(1))]
    #[case(2, json!({}), json!(1))]
    #[case(3, json!({}), json!("20%"))]
    #[case(3, json!({"updateStrategy": {"maxUnavailable": 4}}), json!(4))]
    #[case(4, json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "50%"}}}), json!("50%"))]
    #[case(5, json!({"updateStrategy": {"maxUnavailable": 4}}), json!(1))]
    #[case(5, json!({"template": {"cloneSetTemplate": {"spec": {"updateStrategy": {"maxUnavailable": 4}}}}}), json!(4))]
    #[case(5, json!({"template": {"cloneSetTemplate": {"spec": {}}}}), json!("20%"))]
    #[case(5, json!({"template": {"deploymentTemplate": {"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": "30%"}}}}}}), json!("30%"))]
    #[case(5, json!({"template": {"deploymentTemplate": {"spec": {}}}}), json!("25%"))]
    #[case(5, json!({"template": {"deploymentTemplate": {"spec": {"strategy": {"type": "Recreate"}}}}}), json!(1))]
    #[case(5, json!({"template": {"statefulSetTemplate": {"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 3}}}}}}), json!(3))]
    #[case(5, json!({"template": {"advancedStatefulSetTemplate": {"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "40%"}}}}}}), json!("40%"))]
    #[case(5, json!({"template": {"advancedStatefulSetTemplate": {"spec": null}}}), json!(1))]
    #[case(5, json!({"template": {"advancedStatefulSetTemplate": null, "cloneSetTemplate": {"metadata": {}, "spec": {"updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": "5%"}}}}}), json!("5%"))]
    #[case(5, json!({"template": {"unheardOf": {"spec": {"updateStrategy": {"maxUnavailable": 4}}}}}), json!(1))]
    fn what_each_strategy_gives(#[case] number: usize, #[case] spec: Value, #[case] expected: Value) {
        assert_eq!(read(number, &json!({"spec": spec})).given.strategy, expected);
    }

    #[test]
    fn a_replica_set_of_a_deployment_is_part_of_it() {
        let owner = |kind: &str, api: &str| json!({"metadata": {"ownerReferences": [{"apiVersion": api, "kind": kind, "name": "x", "uid": "u", "controller": true}]}});
        assert!(read(2, &owner("Deployment", "apps/v1")).is_part);
        assert!(read(1, &owner("UnitedDeployment", "apps.kruise.io/v1alpha1")).is_part);
        assert!(!read(0, &owner("Database", "example.com/v1")).is_part);
    }

    #[test]
    fn only_what_differs_is_changed() {
        let workload = read(
            0,
            &json!({"metadata": {"uid": "u"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}}),
        );
        let limit = Limit::MaxUnavailable(Amount::Percent(20));
        for flavour in Flavour::ALL {
            let desired = Desired::new(flavour, &workload, ("apps/v1", "Deployment", "web"), limit, 1);
            let object = desired.object(flavour, "shop", "web");
            let seen = |object: &Value| {
                let text = object.to_string();
                Existing::read(&Object::parse(text.as_bytes()).unwrap())
            };
            assert_eq!(desired.changes(&seen(&object)), Vec::<Value>::new());
            assert!(seen(&object).is_for(&workload));
            let mut foreign = object.clone();
            foreign["metadata"]["annotations"] = json!({});
            assert!(!seen(&foreign).is_for(&workload), "neither an owner nor a label says that we made it");
            let mut edited = object.clone();
            edited["spec"]["maxUnavailable"] = json!(9);
            assert_eq!(
                desired.changes(&seen(&edited)),
                [json!({"op": "replace", "path": "/spec", "value": desired.spec})]
            );
            let mut loosened = object.clone();
            loosened["metadata"]["annotations"][MIN_UNAVAILABLE] = json!("9");
            let bound = |op: &str, value: &Value| {
                let mut change =
                    json!({"op": op, "path": "/metadata/annotations/palisade.dev~1min-unavailable"});
                if !value.is_null() {
                    change["value"] = value.clone();
                }
                change
            };
            let expected = match flavour {
                Flavour::Unavailable => bound("add", &json!("1")),
                Flavour::Disruption => bound("remove", &Value::Null),
            };
            assert_eq!(desired.changes(&seen(&loosened)), [expected]);
            let mut stripped = object;
            stripped["metadata"]["labels"] = json!({"mine": "x"});
            assert_eq!(
                desired.changes(&seen(&stripped)),
                [json!({"op": "add", "path": "/metadata/labels/palisade.dev~1generated", "value": "true"})]
            );
        }
    }

    #[test]
    fn a_disruption_budget_has_the_workloads_own_selector_and_lets_sick_pods_go() {
        let workload = read(
            0,
            &json!({"metadata": {"uid": "u"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}}),
        );
        let desired = Desired::new(
            Flavour::Disruption,
            &workload,
            ("apps/v1", "Deployment", "web"),
            Limit::MinAvailable(Amount::Number(2)),
            1,
        );
        assert_eq!(
            desired.spec,
            json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2, "unhealthyPodEvictionPolicy": "AlwaysAllow"})
        );
    }

    #[test]
    fn a_budget_over_all_pods_or_beside_another_is_not_generated() {
        let web = read(
            0,
            &json!({"metadata": {"uid": "u"}, "spec": {"selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web", "tier": "front"}}}}}),
        );
        assert_eq!(web.selector_problem(), None);
        assert!(web.is_covered_by(&json!({"matchLabels": {"tier": "front"}})));
        assert!(web.is_covered_by(&json!({})));
        assert!(!web.is_covered_by(&json!({"matchLabels": {"app": "db"}})));
        let united = read(
            5,
            &json!({"spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {"cloneSetTemplate": {
                "spec": {"template": {"metadata": {"labels": {"app": "web", "tier": "front"}}}}}}}}),
        );
        assert!(
            united.is_covered_by(&json!({"matchLabels": {"tier": "front"}})),
            "its template's template tells"
        );
        assert!(read(3, &json!({"spec": {}})).selector_problem().is_some());
        assert!(read(3, &json!({"spec": {"selector": "app=web"}})).selector_problem().is_some());
    }
}
