//! What goes on under rules for every kind, and what must not become part of it.
//!
//! The decision knows it all; what is plain is not even asked about, so that rollouts and history limits work while nobody
//! answers.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhook;

use super::cel::{Expression, cel, strings};
use super::label_advice::by_somebody_else;
use super::label_changes::updated;
use super::outage::not_terminating;
use super::{Wanted, lasting};
use crate::registration::coverage::Namespaces;

const KUBE_SYSTEM: &str = "system:serviceaccount:kube-system:";
/// They remove what has lost its owner or its namespace: only pods of controllers are free for them.
const COLLECTORS: [&str; 2] = ["generic-garbage-collector", "namespace-controller"];
/// They delete what nobody owns: pods of nodes that are gone, and Jobs that have outlived their TTL.
const CLEANERS: [&str; 4] = [
    "pod-garbage-collector",
    "taint-eviction-controller",
    "node-controller",
    "ttl-after-finished-controller",
];

impl Wanted<'_> {
    /// Changes of owners by which an object would become a controller's.
    pub(super) fn adoptions(&self) -> Option<ValidatingWebhook> {
        let all = &self.coverage.adoptions;
        let nowhere = Namespaces::Some(BTreeSet::new());
        let namespaces = all.keys().cloned().fold(nowhere, Namespaces::and);
        let mut resources: BTreeSet<&(String, String)> = all.values().flatten().collect();
        let every = |group: &str| resources.iter().any(|(of, plural)| of == group && plural == "*");
        let (everything, groups) = (every("*"), resources.iter().map(|(group, _)| group.clone()));
        let whole: BTreeSet<String> = groups.filter(|group| every(group)).collect();
        // What a wider rule covers need not be said.
        resources.retain(|(group, plural)| {
            (plural == "*" || !whole.contains(group)) && (group == "*" || !everything)
        });
        (!resources.is_empty()).then(|| ValidatingWebhook {
            rules: Some(resources.into_iter().map(|(group, plural)| updated(group, plural)).collect()),
            namespace_selector: Some(self.namespaces(&namespaces)),
            match_conditions: Some(vec![
                by_somebody_else().condition("by-somebody-else"),
                adopted().condition("adopted"),
                not_terminating().condition("not-terminating"),
                lasting().condition("lasting"),
            ]),
            ..self.counted_webhook("adoptions")
        })
    }
}

/// That an object gets a controller that it did not have.
fn adopted() -> Expression {
    cel!(
        "object.metadata.?ownerReferences.orValue([]).exists(n, n.?controller.orValue(false) && \
         !oldObject.metadata.?ownerReferences.orValue([]).exists(o, o.uid == n.uid && o.?controller.orValue(false)))"
    )
}

/// That a deletion is not one that Kubernetes' controllers make all the time.
pub(super) fn not_churn() -> Expression {
    let accounts = |names: &[&str]| strings(names.iter().map(|name| format!("{KUBE_SYSTEM}{name}")));
    cel!(
        "!(request.userInfo.username in {0} || (request.userInfo.username.startsWith({1}) && \
         (!(request.userInfo.username in {2}) || (request.resource.resource == 'pods' && request.resource.group == '')) && \
         oldObject.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false))))",
        accounts(&CLEANERS),
        super::string(KUBE_SYSTEM),
        accounts(&COLLECTORS)
    )
}

#[cfg(test)]
mod tests {
    use palisade_api::protection::rules_of;
    use palisade_cluster::{Discovery, Served};
    use palisade_engine::Protections;
    use serde_json::{Value, json};

    use super::*;
    use crate::registration::coverage::Coverage;
    use crate::registration::plan::plan;
    use crate::registration::plan::tests::plan_as;

    fn planned(selectors: &Value) -> Vec<ValidatingWebhook> {
        let spec = json!({"protectedResources": [{"resourceSelector": selectors}]});
        let rules = rules_of("sample", &serde_json::from_value(spec).unwrap()).unwrap();
        let resources = vec![
            Served::new("", "v1", "ConfigMap", "configmaps", true),
            Served::new("apps", "v1", "Deployment", "deployments", true),
        ];
        let discovery = Discovery { resources, ..Discovery::default() };
        let coverage = Coverage::of(&Protections::new(rules, Vec::new()), &discovery);
        plan_as(|wanted| plan(&Wanted { coverage: &coverage, ..wanted.clone() }))
    }

    fn adoptions(selectors: &Value) -> Vec<(String, String)> {
        let webhooks = planned(selectors);
        let adoptions = webhooks.iter().filter(|webhook| webhook.name == "adoptions.palisade.dev");
        let rules = adoptions.flat_map(|webhook| webhook.rules.iter().flatten());
        let words = |words: &Option<Vec<String>>| words.iter().flatten().cloned().collect::<String>();
        rules.map(|rule| (words(&rule.api_groups), words(&rule.resources))).collect()
    }

    #[test]
    fn adoptions_are_asked_about_where_a_rule_is_for_whatever_there_is() {
        let asked = |group: &str, resource: &str| vec![(group.to_owned(), resource.to_owned())];
        assert_eq!(adoptions(&json!([{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"}])), []);
        let maps = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        assert_eq!(adoptions(&json!([maps])), asked("", "configmaps/*"));
        let core = json!({"apiVersion": "v1", "kind": "*", "namespace": "a"});
        assert_eq!(adoptions(&json!([maps, core])), asked("", "*/*"), "the wider one says it all");
        assert_eq!(adoptions(&json!([maps, core, {"kind": "*", "namespace": "a"}])), asked("*", "*/*"));
    }

    #[test]
    fn what_controllers_delete_all_the_time_is_asked_about_only_where_objects_are_named() {
        let conditions = |selectors: &Value| -> Vec<String> {
            let webhooks = planned(selectors);
            let protecting = webhooks.iter().filter(|webhook| webhook.name.starts_with("protections"));
            let all = protecting.flat_map(|webhook| webhook.match_conditions.iter().flatten());
            all.map(|condition| condition.name.clone()).collect()
        };
        let has = |selectors: &Value| conditions(selectors).iter().any(|name| name == "not-churn");
        assert!(has(&json!([{"kind": "*", "namespace": "prod-*"}])));
        assert!(!has(&json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}])));
    }
}
