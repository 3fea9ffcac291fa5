//! Kinds that nobody can list hold up no deletion that they do not concern.

use std::time::{Duration, Instant};

use palisade_testkit::wait_until;
use tokio::net::TcpListener;

use crate::cluster::{Cluster, EVENTUALLY, allowed, alone, denied, lifting, warned};

const CRD: &str = "widgets.broken.example.com";

/// A definition with two versions, which are converted by a webhook that is at this address, or by nobody.
fn definition(stored: &str, webhook: Option<&str>) -> String {
    let version = |name: &str| {
        format!(
            "{{name: {name}, served: true, storage: {}, schema: {{openAPIV3Schema: {{type: object, \
             x-kubernetes-preserve-unknown-fields: true}}}}}}",
            name == stored
        )
    };
    let conversion = match webhook {
        Some(url) => format!(
            "{{strategy: Webhook, webhook: {{conversionReviewVersions: [v1], clientConfig: {{url: \"{url}\"}}}}}}"
        ),
        None => "{strategy: None}".to_owned(),
    };
    format!(
        "{{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {{name: {CRD}}}, spec: \
         {{group: broken.example.com, scope: Namespaced, conversion: {conversion}, \
         names: {{kind: Widget, plural: widgets, singular: widget}}, versions: [{}, {}]}}}}",
        version("v1"),
        version("v2")
    )
}

async fn widget(cluster: &Cluster, version: &str, namespace: &str, name: &str) {
    let widget = format!(
        "{{apiVersion: broken.example.com/{version}, kind: Widget, metadata: {{name: {name}, namespace: {namespace}}}}}"
    );
    let made =
        wait_until(EVENTUALLY, || async { cluster.kubectl_with(["create", "-f", "-"], &widget).await.ok });
    assert!(made.await, "widget {name} could be made");
}

/// A namespace with one widget that is stored as v1 and one that is stored as v2, so that no version shows both
/// without the webhook; and one with a widget that v1 shows.
async fn widgets(cluster: &Cluster) -> (String, String) {
    let (both, old) = (cluster.namespace().await, cluster.namespace().await);
    cluster.apply(&definition("v1", None)).await;
    cluster.must(&format!("wait crd/{CRD} --for=condition=Established --timeout=30s")).await;
    widget(cluster, "v1", &both, "one").await;
    widget(cluster, "v1", &old, "one").await;
    cluster.apply(&definition("v2", None)).await;
    // The API server takes the new definition up a moment later.
    let stored = wait_until(EVENTUALLY, || async {
        let _ = cluster.kubectl(&format!("delete {CRD} two -n {both} --ignore-not-found")).await;
        widget(cluster, "v2", &both, "two").await;
        cluster.apply(&definition("v2", Some("https://127.0.0.1:1/convert"))).await;
        let broken = |version: &'static str| {
            let path = format!("get --raw /apis/broken.example.com/{version}/namespaces/{both}/widgets");
            wait_until(Duration::from_secs(5), move || {
                let path = path.clone();
                async move { cluster.kubectl(&path).await.err.contains("conversion webhook") }
            })
        };
        if broken("v1").await && broken("v2").await {
            return true;
        }
        cluster.apply(&definition("v2", None)).await;
        false
    });
    assert!(stored.await, "no version shows the widgets");
    (both, old)
}

async fn remove_widgets(cluster: &Cluster) {
    cluster.apply(&definition("v2", None)).await;
    let gone = wait_until(EVENTUALLY, || async {
        cluster.kubectl(&format!("delete crd {CRD} --wait=false")).await.ok
    });
    assert!(gone.await);
    cluster.must(&format!("wait crd/{CRD} --for=delete --timeout=60s")).await;
}

async fn protect_widgets(cluster: &Cluster, namespace: &str) {
    cluster
        .apply(&format!(
            "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: widgets}}, spec: \
             {{protectedResources: [{{resourceSelector: [{{apiVersion: broken.example.com/v1, kind: Widget, \
             namespace: {namespace}}}]}}]}}}}"
        ))
        .await;
    cluster.must("wait rdp/widgets --for=condition=Enforced --timeout=30s").await;
}

#[test]
fn a_dead_conversion_webhook_holds_up_only_what_a_protection_concerns() {
    alone(async |cluster| {
        let (both, old) = widgets(cluster).await;
        let delete = |ns: &str| format!("delete namespace {ns} --dry-run=server");
        let elsewhere = cluster.namespace().await;
        for ns in [&elsewhere, &old] {
            let said = cluster.kubectl(&delete(ns)).await;
            assert!(said.ok, "none of them is held up: {said:?}");
        }
        // While the API server has just taken the definition up, it shows no widgets at all; then, where there are none, or
        // only such as one version shows without a conversion, there is nothing to warn of.
        for ns in [&elsewhere, &old] {
            let quiet = wait_until(EVENTUALLY, || async {
                let said = cluster.kubectl(&delete(ns)).await;
                said.ok && !said.err.contains("Warning")
            });
            assert!(quiet.await, "{ns}");
        }
        warned(
            &cluster.kubectl(&delete(&both)).await,
            &format!("its {CRD} could not be looked at (conversion webhook for"),
        );
        let said = cluster.kubectl(&format!("delete crd {CRD} --dry-run=server")).await;
        denied(
            &said,
            "ServiceUnavailable",
            "which of its custom resources are protected could not be found out",
        );

        protect_widgets(cluster, &both).await;
        let said = cluster.kubectl(&delete(&elsewhere)).await;
        assert!(said.ok, "no rule is about its widgets: {said:?}");
        let said = cluster.kubectl(&delete(&both)).await;
        denied(
            &said,
            "ServiceUnavailable",
            &format!("what is protected in it could not be found out ({CRD}: conversion webhook for"),
        );
        assert!(said.err.contains("connection refused"), "it says why: {said:?}");
        let said = cluster.shell(&lifting(&said)).await;
        assert!(said.ok, "{said:?}");
        warned(&cluster.kubectl(&delete(&both)).await, &format!("its {CRD} could not be looked at"));

        // Once it can be read, it is, and what was written to get past it lifts nothing.
        cluster.apply(&definition("v2", None)).await;
        let refused = wait_until(EVENTUALLY, || async {
            cluster.kubectl(&delete(&both)).await.err.contains("2 protected objects would go with it")
        });
        assert!(refused.await);
        cluster.must("delete rdp widgets").await;
        remove_widgets(cluster).await;
    });
}

#[test]
fn a_conversion_webhook_that_never_answers_is_waited_for_once() {
    alone(async |cluster| {
        let (both, _) = widgets(cluster).await;
        // Connections are taken, and nothing is ever said.
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("https://{}/convert", silent.local_addr().expect("an address"));
        cluster.apply(&definition("v2", Some(&url))).await;
        let hangs = wait_until(EVENTUALLY, || async {
            let path = format!(
                "get --raw /apis/broken.example.com/v2/namespaces/{both}/widgets --request-timeout=2s"
            );
            let said = cluster.kubectl(&path).await;
            !said.ok && !said.err.contains("connection refused")
        });
        assert!(hangs.await);
        // What was found out while it was dead is over.
        tokio::time::sleep(Duration::from_secs(11)).await;
        let delete = format!("delete namespace {both} --dry-run=server");
        let mut quickest = Duration::MAX;
        for _ in 0..6 {
            let started = Instant::now();
            warned(&cluster.kubectl(&delete).await, &format!("its {CRD} could not be looked at"));
            quickest = quickest.min(started.elapsed());
        }
        assert!(quickest < Duration::from_secs(2), "most are told at once: {quickest:?}");
        drop(silent);
        remove_widgets(cluster).await;
    });
}

#[test]
fn an_aggregated_api_that_has_just_died_holds_up_only_what_a_protection_concerns() {
    alone(async |cluster| {
        let manifests = cluster.plane.start_sample_apiserver().expect("started");
        cluster.apply(&manifests).await;
        let service = "apiservice v1alpha1.wardle.example.com";
        cluster
            .must(&format!("wait {} --for=condition=Available --timeout=60s", service.replace(' ', "/")))
            .await;
        let (ns, ruled) = (cluster.namespace().await, cluster.namespace().await);
        cluster.eventually(&format!("get flunders.wardle.example.com -n {ns}")).await;
        let delete = |ns: &str| format!("delete namespace {ns} --dry-run=server");
        allowed(&cluster.kubectl(&delete(&ns)).await);
        cluster
            .apply(&format!(
                "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: flunders}}, \
                 spec: {{protectedResources: [{{resourceSelector: [{{apiVersion: wardle.example.com/v1alpha1, \
                 kind: Flunder, namespace: {ruled}}}]}}]}}}}"
            ))
            .await;
        cluster.must("wait rdp/flunders --for=condition=Enforced --timeout=30s").await;

        cluster.plane.kill_sample_apiserver();
        // From the first moment on, and for as long as discovery takes to notice.
        let started = Instant::now();
        let mut noticed = false;
        while started.elapsed() < Duration::from_secs(45) && !noticed {
            warned(&cluster.kubectl(&delete(&ns)).await, "wardle.example.com could not be looked at (");
            let said = cluster.kubectl(&delete(&ruled)).await;
            denied(&said, "ServiceUnavailable", "wardle.example.com: ");
            assert!(lifting(&said).contains("palisade.dev/ignore-unreadable-kinds="), "{said:?}");
            let condition =
                format!("get {service} -o jsonpath={{.status.conditions[?(@.type=='Available')].status}}");
            noticed =
                cluster.must(&condition).await == "False" && started.elapsed() > Duration::from_secs(15);
        }
        let said = cluster.kubectl(&delete(&ruled)).await;
        let said = cluster.shell(&lifting(&said)).await;
        assert!(said.ok, "{said:?}");
        warned(&cluster.kubectl(&delete(&ruled)).await, "could not be looked at (");

        cluster.must("delete rdp flunders").await;
        cluster.must(&format!("delete {service}")).await;
        let over = wait_until(EVENTUALLY, || async {
            let said = cluster.kubectl(&delete(&ns)).await;
            said.ok && !said.err.contains("Warning")
        });
        assert!(over.await);
    });
}
