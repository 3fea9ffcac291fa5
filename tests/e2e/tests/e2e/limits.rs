//! The registration stays small, whatever the number of policies, and says what it has no room for.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::core::GroupVersionKind;
use palisade_api::gates::FeatureGates;
use palisade_cluster::components::{Guarded, Sighted};
use palisade_cluster::{Ancestors, Discovery};
use palisade_controllers::registration::{
    Coverage, Endpoint, FailurePolicy, Governed, Managed, Owners, Providers, Wanted, plan,
};
use palisade_testkit::wait_until;
use serde_json::{Value, json};

use crate::cluster::{Cluster, allowed, denied, separate};

/// How many policies there are in these tests.
const MANY: usize = 1_000;
/// For what takes its time with so many.
const PATIENCE: Duration = Duration::from_secs(180);

fn protections(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("palisade.dev", "v1alpha1", "ResourceDeletionProtection");
    let resource = ApiResource::from_gvk_with_plural(&kind, "resourcedeletionprotections");
    Api::all_with(cluster.client.clone(), &resource)
}

async fn create_all(cluster: &Cluster, all: Vec<(String, Value)>) {
    let api = protections(cluster);
    let create = |(name, spec): (String, Value)| {
        let api = api.clone();
        async move {
            let object = json!({"apiVersion": "palisade.dev/v1alpha1", "kind": "ResourceDeletionProtection",
                "metadata": {"name": name, "labels": {"many": "yes"}}, "spec": spec});
            let object: DynamicObject = serde_json::from_value(object).expect("an object");
            api.create(&PostParams::default(), &object).await.expect("created");
        }
    };
    stream::iter(all.into_iter().map(create)).buffer_unordered(16).collect::<Vec<()>>().await;
}

async fn delete_all(cluster: &Cluster) {
    let many = ListParams::default().labels("many=yes");
    protections(cluster).delete_collection(&DeleteParams::default(), &many).await.expect("deleted");
}

/// The webhooks of the registration, and how many bytes they take.
async fn registration(cluster: &Cluster) -> (usize, usize) {
    let text = cluster.must("get validatingwebhookconfiguration palisade -o json").await;
    let configuration: Value = serde_json::from_str(&text).expect("JSON");
    let webhooks = configuration["webhooks"].as_array().expect("webhooks");
    (webhooks.len(), serde_json::to_vec(webhooks).expect("JSON").len())
}

/// The condition `Enforced`: its status and its reason.
async fn enforced(cluster: &Cluster, name: &str) -> String {
    let condition = "{.status.conditions[?(@.type=='Enforced')].status} {.status.conditions[?(@.type=='Enforced')].reason}";
    let words = ["get", "rdp", name, "-o", &format!("jsonpath={condition}")].map(str::to_owned);
    cluster.kubectl_with(words.iter().map(String::as_str), "").await.out
}

async fn becomes(cluster: &Cluster, name: &str, expected: &str) {
    let became = wait_until(PATIENCE, || async { enforced(cluster, name).await == expected });
    assert!(became.await, "{name}: {} instead of {expected}", enforced(cluster, name).await);
}

#[test]
fn a_rule_that_would_freeze_the_cluster_is_refused() {
    crate::cluster::shared(async |cluster| {
        let refused = [
            json!({"resourceSelector": [{"kind": "*"}]}),
            json!({"resourceSelector": [{"kind": "*", "apiVersion": "*"}]}),
            json!({"resourceSelector": [{"kind": "*", "name": "*"}]}),
            json!({"resourceSelector": [{"kind": "*", "namespace": "*"}]}),
            json!({"resourceSelector": [{"kind": "*"}], "resourceNames": ["*"]}),
            json!({"resourceSelector": [{"kind": "*"}], "resourceNames": ["web", "*"]}),
            json!({"resourceSelector": [{"kind": "*", "name": "*"}], "resourceNames": ["web"]}),
            json!({"resourceSelector": [{"kind": "*", "namespace": "*", "name": "*"}]}),
        ];
        let create = async |entry: &Value| {
            let protection = json!({"apiVersion": "palisade.dev/v1alpha1", "kind": "ResourceDeletionProtection",
                "metadata": {"name": "frozen"}, "spec": {"protectedResources": [entry]}});
            cluster.kubectl_with(["create", "--dry-run=server", "-f", "-"], &protection.to_string()).await
        };
        for entry in &refused {
            let said = create(entry).await;
            assert!(
                !said.ok
                    && said.err.contains("without any, nothing in the cluster could be deleted any more"),
                "{entry}: {said:?}"
            );
        }
        let doubled = [
            json!({"resourceSelector": [{"kind": "*", "name": "**"}]}),
            json!({"resourceSelector": [{"kind": "*", "namespace": "**"}]}),
            json!({"resourceSelector": [{"kind": "*"}], "resourceNames": ["**"]}),
        ];
        for entry in &doubled {
            let said = create(entry).await;
            assert!(!said.ok, "{entry}: {said:?}");
        }
        let fine = [
            json!({"resourceSelector": [{"kind": "*", "name": "web-*"}]}),
            json!({"resourceSelector": [{"kind": "*", "namespace": "shop"}], "resourceNames": ["*"]}),
            json!({"resourceSelector": [{"kind": "*", "labelSelector": {"matchLabels": {"a": "b"}}}]}),
            json!({"resourceSelector": [{"kind": "*"}], "resourceNames": ["web", "*-db"]}),
        ];
        for entry in &fine {
            allowed(&create(entry).await);
        }
    });
}

#[test]
fn a_thousand_protections_of_every_kind_hold_and_what_does_not_fit_says_so() {
    separate("thousand", async |cluster| {
        let ns = cluster.namespace().await;
        for name in ["in-namespace", "labelled", "named-999"] {
            cluster.must(&format!("create configmap {name} -n {ns}")).await;
        }
        let other = cluster.namespace().await;
        for name in ["labelled", "named-999", "free"] {
            cluster.must(&format!("create configmap {name} -n {other}")).await;
        }
        cluster.must(&format!("label configmap labelled -n {other} app=app-998")).await;
        let spec = |selector: Value| json!({"protectedResources": [{"resourceSelector": [selector]}]});
        let all = (0..MANY).map(|number| {
            let selector = match number % 3 {
                // The last of them is the one that is there.
                0 if number == 999 => json!({"kind": "*", "name": "named-999"}),
                0 => json!({"kind": "*", "namespace": format!("team-{number}")}),
                1 => json!({"kind": "*", "name": format!("named-{number}")}),
                _ => json!({"kind": "*", "labelSelector": {"matchLabels": {"app": format!("app-{number}")}}}),
            };
            (format!("many-{number}"), spec(selector))
        });
        let mut all: Vec<(String, Value)> = all.collect();
        all.push(("many-namespace".to_owned(), spec(json!({"kind": "*", "namespace": ns}))));
        create_all(cluster, all).await;
        for name in ["many-0", "many-998", "many-999", "many-namespace"] {
            becomes(cluster, name, "True Registered").await;
        }
        let (count, size) = registration(cluster).await;
        assert!(count <= 40 && size < 300_000, "{count} webhooks of {size} bytes");

        let delete = |ns: &str, name: &str| format!("delete configmap {name} -n {ns} --dry-run=server");
        denied(&cluster.kubectl(&delete(&ns, "in-namespace")).await, "Forbidden", "many-namespace");
        denied(&cluster.kubectl(&delete(&other, "labelled")).await, "Forbidden", "many-998");
        denied(&cluster.kubectl(&delete(&other, "named-999")).await, "Forbidden", "many-999");
        allowed(&cluster.kubectl(&delete(&other, "free")).await);
        denied(
            &cluster.kubectl(&format!("delete namespace {ns} --dry-run=server")).await,
            "Forbidden",
            "many-namespace",
        );

        // More than fits: the younger ones say so, and those that were there hold as before.
        let long = |number: usize| json!({"matchLabels": {format!("example.com/{number}-{}", "k".repeat(55)): "x".repeat(63)}});
        let rule = |number: usize| json!({"kind": "*", "labelSelector": long(number)});
        let entry = |entry: usize| {
            let rules: Vec<Value> = (entry * 32..entry * 32 + 32).map(rule).collect();
            json!({"resourceSelector": rules})
        };
        let entries: Vec<Value> = (0..8).map(entry).collect();
        create_all(cluster, vec![("many-more".to_owned(), json!({"protectedResources": entries}))]).await;
        becomes(cluster, "many-more", "False RegistrationFull").await;
        assert_eq!(enforced(cluster, "many-998").await, "True Registered");
        denied(&cluster.kubectl(&delete(&other, "labelled")).await, "Forbidden", "many-998");
        let message = "get rdp many-more -o jsonpath={.status.conditions[?(@.type=='Enforced')].message}";
        assert!(cluster.must(message).await.contains("the registration has no room"), "it says why");
        delete_all(cluster).await;
        let (ns, gone) =
            (&ns, wait_until(PATIENCE, || async { cluster.kubectl(&delete(&ns, "in-namespace")).await.ok }));
        assert!(gone.await, "{ns}");
    });
}

#[test]
fn a_protection_with_all_selectors_that_it_may_have_holds() {
    separate("selectors", async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap c -n {ns}")).await;
        let kinds = [
            ("v1", "ConfigMap"),
            ("v1", "Secret"),
            ("v1", "Service"),
            ("apps/v1", "Deployment"),
            ("batch/v1", "Job"),
            ("v1", "ServiceAccount"),
        ];
        let selector = |number: usize| {
            let (version, kind) = kinds[number % kinds.len()];
            let namespace = if number == 4_092 { ns.clone() } else { format!("team-{number}") };
            json!({"apiVersion": version, "kind": kind, "namespace": namespace})
        };
        let entry = |entry: usize| json!({"resourceSelector": (0..32).map(|n| selector(entry * 32 + n)).collect::<Vec<_>>()});
        let spec = json!({"protectedResources": (0..128).map(entry).collect::<Vec<_>>()});
        create_all(cluster, vec![("many".to_owned(), spec)]).await;
        becomes(cluster, "many", "True Registered").await;
        denied(
            &cluster.kubectl(&format!("delete configmap c -n {ns} --dry-run=server")).await,
            "Forbidden",
            "\"many\"",
        );
        let (count, size) = registration(cluster).await;
        assert!(count <= 40 && size < 300_000, "{count} webhooks of {size} bytes");
        delete_all(cluster).await;
        let gone = wait_until(PATIENCE, || async {
            cluster.kubectl(&format!("delete configmap c -n {ns}")).await.ok
        });
        assert!(gone.await);
    });
}

#[test]
fn a_registration_for_a_thousand_namespaces_with_budgets_is_taken() {
    crate::cluster::shared(async |cluster| {
        let namespaces: BTreeSet<String> = (0..MANY).map(|number| format!("team-{number:010}")).collect();
        let providers = Providers::default();
        let (guarded, sighted, discovery) = (Guarded::default(), Sighted::default(), Discovery::default());
        let wanted = Wanted {
            endpoint: &Endpoint::Url("https://127.0.0.1:1".to_owned()),
            authorities: "",
            own_namespace: "palisade-system",
            gates: FeatureGates::default(),
            failure_policy: FailurePolicy::Fail,
            eviction_namespaces: &namespaces,
            budget_namespaces: &namespaces,
            flow: Some(&Governed::All),
            providers: &providers,
            managed: Managed { guarded: &guarded, sighted: &sighted, discovery: &discovery },
            coverage: &Coverage::default(),
            owners: Owners::Known(&Ancestors::default()),
            versions: &palisade_api::versions::PolicyVersions::default(),
        };
        let mut webhooks = plan(&wanted);
        // As it is, but for what nobody has: it is asked about nothing.
        for rule in webhooks.iter_mut().flat_map(|webhook| webhook.rules.iter_mut().flatten()) {
            rule.api_groups = Some(vec!["nobody.example.com".to_owned()]);
        }
        for webhook in &mut webhooks {
            webhook.client_config.ca_bundle = None;
        }
        let metadata = ObjectMeta { name: Some("a-thousand-namespaces".to_owned()), ..ObjectMeta::default() };
        let configuration = ValidatingWebhookConfiguration { metadata, webhooks: Some(webhooks) };
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
        configurations.create(&PostParams::default(), &configuration).await.expect("taken");
        configurations.delete("a-thousand-namespaces", &DeleteParams::default()).await.expect("deleted");
    });
}
