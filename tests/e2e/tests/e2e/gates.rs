//! Features that are off say so, refuse nothing, and come back with all that they had counted.

use std::time::Duration;

use palisade_testkit::wait_until;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Said, denied, run, separate_with, warned};
use crate::command_line::palisade;

/// Replicas have just been started, and the machine may be busy.
const LONG: Duration = Duration::from_secs(120);
const REGISTRATION: &str = "validatingwebhookconfiguration palisade";
/// The rest of the flags works on, whatever is off.
const ARGS: [&str; 3] = [
    "--enable-etcd-components-webhook",
    "--reconciler-service-account=system:serviceaccount:garden:etcd-druid",
    "--reservation-expiry=10m",
];
const PROTECTION: &str = "ResourcesDeletionProtection";
const CASCADE: &str = "CascadeProtection";
const BUDGET: &str = "PodUnavailableBudget";
const FLOW: &str = "PodDeletionFlowControl";
const CRITICAL: &str = "CriticalService";
const COMPONENT: &str = "ComponentProtection";
const ALL: [&str; 6] = [PROTECTION, CASCADE, BUDGET, FLOW, CRITICAL, COMPONENT];

/// Something of each feature.
struct Scene {
    ns: String,
    /// Holds something protected, and nothing else.
    holder: String,
    /// Under flow control.
    flow: String,
}

impl Scene {
    async fn set(cluster: &Cluster) -> Self {
        let (ns, holder, flow) =
            (cluster.namespace().await, cluster.namespace().await, cluster.namespace().await);
        for (name, label) in [
            ("labelled", "policy.kruise.io/delete-protection=Always"),
            ("more", "policy.kruise.io/delete-protection=Always"),
            ("karmada", "resourcetemplate.karmada.io/deletion-protected=Always"),
        ] {
            cluster.must(&format!("create configmap {name} -n {ns}")).await;
            cluster.must(&format!("label configmap {name} -n {ns} {label}")).await;
        }
        for name in ["ruled", "parent", "needed"] {
            cluster.must(&format!("create configmap {name} -n {ns}")).await;
        }
        for name in ["by-label", "by-annotation", "provider"] {
            cluster.must(&format!("create deployment {name} --image=example/app -n {ns}")).await;
        }
        let key = "policy.kruise.io/disable-cascading-deletion=true";
        cluster.must(&format!("label deployment by-label -n {ns} {key}")).await;
        cluster.must(&format!("annotate deployment by-annotation -n {ns} {key}")).await;
        cluster.must(&format!("create configmap labelled -n {holder}")).await;
        cluster
            .must(&format!("label configmap labelled -n {holder} policy.kruise.io/delete-protection=Always"))
            .await;
        cluster.pod(&ns, "web").await;
        cluster.must(&format!("label pod web -n {ns} app=web")).await;
        for name in ["first", "second"] {
            cluster.pod(&flow, name).await;
        }
        let uid = cluster.must(&format!("get configmap parent -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: v1, kind: Secret, metadata: {{name: owned, namespace: {ns}, ownerReferences: [{{apiVersion: v1, \
                 kind: ConfigMap, name: parent, uid: {uid}}}]}}}}"
            ))
            .await;
        let scene = Self { ns, holder, flow };
        for (_, manifest) in scene.manifests("sample") {
            cluster.apply(&manifest).await;
        }
        scene
    }

    /// A policy of each feature that has policies.
    fn manifests(&self, name: &str) -> [(&'static str, String); 5] {
        let Self { ns, flow, .. } = self;
        let policy = |group: &str, kind: &str, namespace: &str, spec: &str| {
            format!(
                "{{apiVersion: {group}/v1alpha1, kind: {kind}, metadata: {{name: {name}{namespace}}}, spec: {{{spec}}}}}"
            )
        };
        [
            (
                PROTECTION,
                policy(
                    "palisade.dev",
                    "ResourceDeletionProtection",
                    "",
                    &format!(
                        "protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: ConfigMap, namespace: {ns}, name: ruled}}]}}]"
                    ),
                ),
            ),
            (
                BUDGET,
                policy(
                    "policy.kruise.io",
                    "PodUnavailableBudget",
                    &format!(", namespace: {ns}"),
                    "selector: {matchLabels: {app: web}}, maxUnavailable: 0",
                ),
            ),
            (
                FLOW,
                policy(
                    "policy.kruise.io",
                    "PodDeletionFlowControl",
                    "",
                    &format!(
                        "namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {flow}}}}}, \
                         limitRules: [{{interval: 2h, limit: 1}}]"
                    ),
                ),
            ),
            (
                CRITICAL,
                policy(
                    "palisade.dev",
                    "CriticalService",
                    "",
                    &format!(
                        "provider: {{group: apps, resource: deployments, namespace: {ns}, name: provider}}, criteria: \
                         [{{type: SpecificResource, specificResource: {{resource: configmaps, namespace: {ns}, name: needed}}}}]"
                    ),
                ),
            ),
            (
                COMPONENT,
                policy(
                    "palisade.dev",
                    "ComponentProtection",
                    "",
                    "parent: {apiVersion: v1, kind: ConfigMap}, kinds: [{apiVersion: v1, kind: Secret}], ownedByParent: true, \
                     operators: [op]",
                ),
            ),
        ]
    }

    /// The policies, for kubectl.
    fn policies(&self) -> [(&'static str, String); 5] {
        [
            (PROTECTION, "rdp sample".to_owned()),
            (BUDGET, format!("pub sample -n {}", self.ns)),
            (FLOW, "pdfc sample".to_owned()),
            (CRITICAL, "crit sample".to_owned()),
            (COMPONENT, "cprot sample".to_owned()),
        ]
    }

    /// What may not be deleted, by whom that is refused, and with which reason.
    fn refused(&self) -> [(&'static str, String, &'static str); 10] {
        let Self { ns, holder, flow } = self;
        [
            (PROTECTION, format!("configmap labelled -n {ns}"), "Forbidden"),
            (PROTECTION, format!("configmap karmada -n {ns}"), "Forbidden"),
            (PROTECTION, format!("deployment by-label -n {ns}"), "Forbidden"),
            (PROTECTION, format!("deployment by-annotation -n {ns}"), "Forbidden"),
            (PROTECTION, format!("configmap ruled -n {ns}"), "Forbidden"),
            (CASCADE, format!("namespace {holder}"), "Forbidden"),
            (BUDGET, format!("pod web -n {ns}"), "TooManyRequests"),
            (FLOW, format!("pod second -n {flow}"), "TooManyRequests"),
            (CRITICAL, format!("deployment provider -n {ns}"), "Conflict"),
            (COMPONENT, format!("secret owned -n {ns}"), "Forbidden"),
        ]
    }

    /// What is off is said to be off, and refuses nothing; all else is enforced, and refuses.
    async fn holds_without(&self, cluster: &Cluster, off: &[&str]) {
        for (gate, policy) in self.policies() {
            let (expected, words) = if off.contains(&gate) {
                ("False FeatureDisabled", format!("--feature-gates={gate}=true"))
            } else {
                ("True Registered", String::new())
            };
            let as_expected =
                wait_until(LONG, || async { enforced(cluster, &policy).await.starts_with(expected) }).await;
            let last = enforced(cluster, &policy).await;
            assert!(as_expected, "{policy}, off: {off:?}: {last}");
            assert!(last.contains(&words), "{policy}: {last}");
        }
        for (gate, object, reason) in self.refused() {
            let is_off = off.contains(&gate) || gate == CASCADE && off.contains(&PROTECTION);
            let as_expected = wait_until(LONG, || async {
                let said = deletes(cluster, &object).await;
                if is_off { said.ok } else { said.err.contains(&format!("({reason})")) }
            });
            assert!(as_expected.await, "{object}, off: {off:?}: {:?}", deletes(cluster, &object).await);
            if !is_off {
                denied(&deletes(cluster, &object).await, reason, "");
            }
        }
    }

    /// What the statuses hold besides conditions.
    async fn state(&self, cluster: &Cluster) -> Vec<Value> {
        let mut all = Vec::new();
        for (_, policy) in self.policies() {
            let mut status = status(cluster, &policy).await;
            status.as_object_mut().expect("a status").remove("conditions");
            all.push(status);
        }
        all
    }
}

async fn status(cluster: &Cluster, policy: &str) -> Value {
    let text = cluster.must(&format!("get {policy} -o json")).await;
    serde_json::from_str::<Value>(&text).expect("json")["status"].clone()
}

/// Status, reason and message of the condition `Enforced`.
async fn enforced(cluster: &Cluster, policy: &str) -> String {
    let status = status(cluster, policy).await;
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition["type"] == "Enforced").cloned();
    let word = |key: &str| condition.as_ref().and_then(|it| it[key].as_str().map(str::to_owned));
    ["status", "reason", "message"].map(|key| word(key).unwrap_or_default()).join(" ")
}

/// What the API server says about a deletion that is not carried out.
async fn deletes(cluster: &Cluster, object: &str) -> Said {
    cluster.kubectl(&format!("delete {object} --dry-run=server")).await
}

/// Restarts all replicas with some features off.
async fn turn_off(cluster: &mut Cluster, gates: &[&str]) {
    cluster.palisade.stop();
    start_without(cluster, gates).await;
}

async fn start_without(cluster: &mut Cluster, gates: &[&str]) {
    let off = gates.iter().map(|gate| format!("{gate}=false")).collect::<Vec<_>>().join(",");
    let mut args: Vec<String> = ARGS.map(str::to_owned).to_vec();
    args.push(format!("--feature-gates={off}"));
    cluster.palisade.start_with(args).await.expect("replicas become ready");
}

#[test]
fn a_feature_that_is_off_says_so_and_comes_back_with_its_state() {
    separate_with("gates", &ARGS, async |cluster| {
        let scene = Scene::set(cluster).await;
        let Scene { ns, flow, .. } = &scene;
        // One of one: from now on the second is refused.
        cluster.must(&format!("delete pod first -n {flow}")).await;
        scene.holds_without(cluster, &[]).await;
        let said = cluster.kubectl(&format!("delete configmap ruled -n {ns}")).await;
        denied(&said, "Forbidden", "ResourceDeletionProtection \"sample\"");
        cluster.eventually_prints("get rdp sample -o jsonpath={.status.denied}", |text| text == "1").await;

        cluster.palisade.stop();
        // Nobody writes while nobody runs: here is a loss that was admitted and not seen yet.
        let reservation = json!({"status": {"deletedPods": {"11111111-aaaa": "17"},
            "reservedAt": {"11111111-aaaa": "2026-01-01T00:00:00Z"}}});
        cluster
            .must(&format!("patch pub sample -n {ns} --subresource=status --type=merge -p {reservation}"))
            .await;
        let before = scene.state(cluster).await;
        start_without(cluster, &ALL).await;
        scene.holds_without(cluster, &ALL).await;
        says_so(cluster, &scene).await;
        // Nobody is kept waiting for a warning, also if nobody answers.
        cluster.palisade.kill(0);
        cluster.palisade.kill(1);
        let said = cluster.kubectl(&format!("delete configmap more -n {ns}")).await;
        assert!(said.ok, "{said:?}");
        assert_eq!(scene.state(cluster).await, before, "nothing but the condition was written");

        for gate in ALL {
            turn_off(cluster, &[gate]).await;
            scene.holds_without(cluster, &[gate]).await;
        }
        turn_off(cluster, &[]).await;
        scene.holds_without(cluster, &[]).await;
        assert_eq!(status(cluster, "rdp sample").await["denied"], 1);
        assert_eq!(status(cluster, "pdfc sample").await["rules"][0]["used"], 1);
    });
}

/// While all is off.
async fn says_so(cluster: &Cluster, scene: &Scene) {
    let Scene { ns, flow, .. } = scene;
    let policies =
        cluster.must(&format!("get {REGISTRATION} -o jsonpath={{.webhooks[*].failurePolicy}}")).await;
    assert!(policies.split_whitespace().all(|policy| policy == "Ignore"), "{policies}");
    for (gate, policy) in scene.policies() {
        let table = cluster.must(&format!("get {policy}")).await;
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let (head, row) = (lines.next().expect("a header"), lines.next().expect("a row"));
        let place = head.iter().position(|word| *word == "ENFORCED").expect("a column");
        // From the end: what was never counted is an empty column.
        assert_eq!(row[row.len() - (head.len() - place)], "False", "{table}");
        let off = format!("is not enforced: feature gate {gate} is off; to turn it on");
        let said = cluster.kubectl(&format!("annotate {policy} note=changed --overwrite")).await;
        warned(&said, &off);
    }
    for (gate, manifest) in scene.manifests("another") {
        let said = cluster.kubectl_with(["create", "--dry-run=server", "-f", "-"], &manifest).await;
        warned(&said, &format!("is not enforced: feature gate {gate} is off"));
        let bad = manifest.replace("spec: {", "spec: {nonsense: 1, ");
        let said = cluster.kubectl_with(["create", "--dry-run=server", "-f", "-"], &bad).await;
        assert!(!said.ok && !said.err.contains("denied the request"), "the schema refuses it: {said:?}");
    }
    for object in
        ["configmap labelled", "configmap karmada", "deployment by-label", "deployment by-annotation"]
    {
        let said = deletes(cluster, &format!("{object} -n {ns}")).await;
        warned(&said, "is not protected from deletion: ");
        warned(&said, "has no effect while feature gate ResourcesDeletionProtection is off");
    }
    for (gate, object) in [
        (PROTECTION, format!("configmap labelled -n {ns}")),
        (PROTECTION, format!("configmap ruled -n {ns}")),
        (BUDGET, format!("pod web -n {ns}")),
        (FLOW, format!("pod second -n {flow}")),
        (CRITICAL, format!("deployment provider -n {ns}")),
        (COMPONENT, format!("secret owned -n {ns}")),
    ] {
        let said = palisade(cluster, &format!("why {object}")).await;
        assert!(said.ok && said.out.contains(&format!("what would refuse it is off ({gate})")), "{said:?}");
        assert!(said.err.contains(&format!("Warning: feature gate {gate} is off: ")), "{said:?}");
        assert!(said.err.contains(&format!("with {gate} on, this would be refused: ")), "{said:?}");
        let said = palisade(cluster, &format!("why {object} -o json")).await;
        let json: Value = serde_json::from_str(&said.out).expect("json");
        assert_eq!(json["allowed"], true, "{json}");
        assert!(json["featuresOff"].as_array().is_some_and(|off| off.contains(&gate.into())), "{json}");
        assert!(json["warnings"].to_string().contains(&format!("{gate} is off")), "{json}");
    }
    let said = palisade(cluster, &format!("why configmap parent -n {ns}")).await;
    assert!(said.ok && said.out.contains("nothing protects it; features that are off: "), "{said:?}");
    // Who may not read everything is told, too.
    cluster.must(&format!("create rolebinding edith --clusterrole=edit --user=edith -n {ns}")).await;
    let kubeconfig = cluster.plane.kubeconfig_of("edith").expect("a kubeconfig");
    let words = format!("why configmap labelled -n {ns}");
    let said = run(&crate::cluster::palisade_binary(), &kubeconfig, words.split_whitespace(), "").await;
    assert!(said.ok && said.err.contains("feature gate ResourcesDeletionProtection is off: "), "{said:?}");
    assert!(said.err.contains("is not protected from deletion: label"), "{said:?}");

    // It is taken away and put back as ever.
    let said = palisade(cluster, "uninstall").await;
    assert!(said.ok && !cluster.exists(REGISTRATION).await, "{said:?}");
    let said = palisade(cluster, "resume").await;
    assert!(said.ok, "{said:?}");
    let is_back = wait_until(LONG, || cluster.exists(REGISTRATION));
    assert!(is_back.await, "the leader registers again");
}
