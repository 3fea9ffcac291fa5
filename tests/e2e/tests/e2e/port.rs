//! What somebody can do who reaches the webhook's port.

use std::time::Duration;

use palisade_testkit::{Assets, ControlPlane, Palisade, PalisadeOptions};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::caller::{Caller, deletion};
use crate::cluster::{Cluster, allowed, denied, palisade_binary, shared, workspace};
use crate::pods::pods;

#[test]
fn a_review_that_names_a_member_twice_is_refused_as_malformed() {
    shared(async |cluster| {
        let caller = Caller::of(cluster).await;
        let labels = json!({"policy.kruise.io/delete-protection": "Always"});
        let review = deletion(
            "ConfigMap",
            "configmaps",
            &json!({"metadata": {
            "name": "kept", "namespace": "default", "uid": "1", "labels": labels}}),
        );
        assert_eq!(caller.ask("/admit", &review.to_string()).await["status"]["code"], 403);
        // Whichever of the two is read, it is not what another reader sees.
        let harmless = r#"{"metadata":{"name":"kept","namespace":"default","uid":"1"}}"#;
        for key in ["oldObject", r"oldObj\u0065ct"] {
            let text = review.to_string();
            let first = text.replacen(r#""oldObject":"#, &format!(r#""{key}":{harmless},"oldObject":"#), 1);
            let last = text.replacen(r#""operation":"#, &format!(r#""{key}":{harmless},"operation":"#), 1);
            for doubled in [first, last] {
                let answer = caller.ask("/admit", &doubled).await;
                assert_eq!(
                    (&answer["allowed"], &answer["status"]["code"]),
                    (&false.into(), &400.into()),
                    "{doubled}"
                );
            }
        }
        let relabelled = review.to_string().replacen(r#""labels":"#, r#""labels":{},"labels":"#, 1);
        assert_eq!(caller.ask("/admit", &relabelled).await["status"]["code"], 400);
    });
}

/// A pod, as the API server has it.
async fn pod(cluster: &Cluster, ns: &str, name: &str) -> Value {
    let text = cluster.must(&format!("get pod {name} -n {ns} -o json")).await;
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn nothing_is_charged_for_a_pod_that_is_not_there() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let caller = Caller::of(cluster).await;
        pods(cluster, &ns, 3, "").await;
        cluster
            .apply(&format!(
                "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\n\
                 metadata: {{name: web, namespace: {ns}}}\n\
                 spec: {{selector: {{matchLabels: {{app: web}}}}, maxUnavailable: 2}}\n---\n\
                 apiVersion: policy.kruise.io/v1alpha1\nkind: PodDeletionFlowControl\nmetadata: {{name: {ns}}}\n\
                 spec: {{limitRules: [{{interval: 1h, limit: 50}}], \
                 namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {ns}}}}}}}\n"
            ))
            .await;
        let enforced = |kind: &str, name: &str| {
            format!("wait {kind} {name} -n {ns} --for=condition=Enforced --timeout=60s")
        };
        cluster.must(&enforced("pub", "web")).await;
        cluster.must(&enforced("pdfc", &ns)).await;

        let real = pod(cluster, &ns, "p0").await;
        let invented = |change: fn(&mut Value)| {
            let mut pod = real.clone();
            change(&mut pod["metadata"]);
            deletion("Pod", "pods", &pod).to_string()
        };
        for review in [
            invented(|metadata| metadata["uid"] = "00000000-0000-4000-8000-000000000000".into()),
            invented(|metadata| metadata["uid"] = "x".repeat(100).into()),
            invented(|metadata| metadata["uid"] = "".into()),
            invented(|metadata| metadata["name"] = "nobody".into()),
            invented(|metadata| metadata["name"] = "p1".into()),
        ] {
            for path in ["/admit/budgets", "/admit/flow", "/admit/budgets/flow"] {
                assert_eq!(caller.ask(path, &review).await["allowed"], true, "{review}");
            }
        }
        let long = invented(|metadata| metadata["uid"] = "x".repeat(1_000).into());
        assert_eq!(caller.ask("/admit/budgets", &long).await["status"]["code"], 400);
        let reserved =
            cluster.must(&format!("get pub web -n {ns} -o jsonpath={{.status.deletedPods}}")).await;
        assert_eq!(reserved, "");
        let counted = cluster.must(&format!("get pdfc {ns} -o jsonpath={{.status.pending}}")).await;
        assert_eq!(counted, "");

        // A revision that never was holds nothing for longer than the pod is there.
        let highest = invented(|metadata| metadata["resourceVersion"] = u64::MAX.to_string().into());
        assert_eq!(caller.ask("/admit/budgets", &highest).await["allowed"], true);
        allowed(&cluster.kubectl(&format!("delete pod p0 -n {ns} --force --grace-period=0")).await.quiet());
        cluster
            .eventually_prints(
                &format!("get pub web -n {ns} -o jsonpath={{.status.deletedPods}}"),
                str::is_empty,
            )
            .await;
        cluster.must(&format!("delete pdfc {ns}")).await;
    });
}

#[test]
fn policies_that_can_not_be_are_not_announced() {
    shared(async |cluster| {
        let caller = Caller::of(cluster).await;
        let creation = |namespace: &str| {
            let budget = json!({"metadata": {"name": "web", "namespace": namespace},
                "spec": {"selector": {}, "maxUnavailable": 1}});
            let mut review = deletion("PodUnavailableBudget", "podunavailablebudgets", &Value::Null);
            let request = &mut review["request"];
            (request["operation"], request["namespace"]) = ("CREATE".into(), namespace.into());
            request["kind"]["group"] = "policy.kruise.io".into();
            request["resource"]["group"] = "policy.kruise.io".into();
            (request["object"], request["name"]) = (budget, "web".into());
            review.to_string()
        };
        for namespace in ["no-such-namespace", "x'] || true || ['"] {
            let answer = caller.ask("/admit?timeout=10s", &creation(namespace)).await;
            assert!(
                answer["warnings"].to_string().contains("does not hold yet"),
                "it does not hold: {answer}"
            );
        }
        let registration = cluster.must("get validatingwebhookconfiguration palisade -o yaml").await;
        assert!(
            !registration.contains("no-such-namespace") && !registration.contains("|| true ||"),
            "{registration}"
        );
    });
}

#[test]
fn silent_connections_go_in_seconds_and_keep_nobody_else_out() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap kept -n {ns}")).await;
        cluster
            .must(&format!("label configmap kept -n {ns} policy.kruise.io/delete-protection=Always"))
            .await;
        let caller = Caller::of(cluster).await;
        let mut without_tls = Vec::new();
        for _ in 0..600 {
            without_tls.push(TcpStream::connect(&caller.address).await.expect("connected"));
        }
        let mut without_request = Vec::new();
        for _ in 0..150 {
            // It may be closed before it has shaken hands: there are many.
            without_request.extend(caller.connect().await.ok());
        }
        for _ in 0..5 {
            denied(
                &cluster.kubectl(&format!("delete configmap kept -n {ns}")).await,
                "Forbidden",
                "protected",
            );
        }
        let mut byte = [0];
        let gone = async {
            for stream in &mut without_tls {
                assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
            }
            for stream in &mut without_request {
                assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
            }
        };
        // The handshake has 5 s, and the first review 10; the machine may be busy. Idle connections of the API
        // server stay for two minutes.
        tokio::time::timeout(Duration::from_secs(60), gone).await.expect("all are closed");
        denied(&cluster.kubectl(&format!("delete configmap kept -n {ns}")).await, "Forbidden", "protected");
    });
}

/// A control plane of its own: the API server learns from a file at its start what to show us.
#[test]
fn with_a_client_ca_only_the_api_server_is_answered() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let assets = Assets::locate().expect("the control plane's binaries");
        let folder = workspace().join("target/e2e-callers");
        let plane =
            ControlPlane::start_with_caller_certificate(&assets, &folder).await.expect("a control plane");
        let args = vec![format!("--client-ca={}", plane.callers_authority().display())];
        let options = PalisadeOptions { binary: palisade_binary(), replicas: 2, args };
        let palisade = Palisade::start(&plane, options).await.expect("Palisade asks itself, and registers");
        let client = plane.client().await.expect("a client");
        let cluster = Cluster { plane, palisade, client };

        cluster.must("create configmap kept -n default").await;
        cluster.must("label configmap kept -n default policy.kruise.io/delete-protection=Always").await;
        denied(&cluster.kubectl("delete configmap kept -n default").await, "Forbidden", "protected");
        let caller = Caller::of(&cluster).await;
        let review =
            deletion("ConfigMap", "configmaps", &json!({"metadata": {"name": "a", "namespace": "b"}}));
        let answered = caller.post("/admit", &review.to_string()).await;
        assert!(!matches!(&answered, Ok((status, _)) if *status != 0), "{answered:?}");
    });
}
