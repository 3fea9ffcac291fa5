//! What goes on while no replica answers: clean-up, and pods that the cluster needs in order to be mended.

use crate::cluster::{Cluster, Said, allowed, alone, denied};
use crate::pods::{evict, pods};

const LABEL: &str = "policy.kruise.io/delete-protection";
const HELD: &str = "finalizers: [example.com/held]";

#[track_caller]
fn held_up(said: &Said) {
    assert!(!said.ok && said.err.contains("failed calling webhook"), "should be held up: {said:?}");
}

async fn release(cluster: &Cluster, ns: &str, what: &str) {
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    let said = cluster.kubectl_with(["patch", what, "-n", ns, "--type=merge", "-p", patch], "").await;
    assert!(said.ok, "{said:?}");
    let gone = async || !cluster.exists(&format!("{what} -n {ns}")).await;
    assert!(palisade_testkit::wait_until(crate::cluster::EVENTUALLY, gone).await, "{what} is still there");
}

fn kill_all(cluster: &mut Cluster) {
    cluster.palisade.kill(0);
    cluster.palisade.kill(1);
}

#[test]
fn what_is_going_goes_also_while_nobody_answers() {
    alone(async |cluster| {
        let ns = &cluster.namespace().await;
        let ending = &cluster.namespace().await;
        for space in [ns, ending] {
            cluster
                .apply(&format!(
                    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: going, namespace: {space}, {HELD}}}\n"
                ))
                .await;
        }
        cluster
            .apply(&format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: going, namespace: {ns}, labels: {{app: web}}, {HELD}}}\n\
                 spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: app, image: example/app}}]}}\n\
                 ---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kept, namespace: {ns}, labels: {{{LABEL}: Always}}}}\n"
            ))
            .await;
        pods(cluster, ns, 1, "").await;
        allowed(&cluster.kubectl(&format!("delete configmap going -n {ns} --wait=false")).await);
        allowed(&cluster.kubectl(&format!("delete pod going -n {ns} --wait=false")).await);
        allowed(&cluster.kubectl(&format!("delete namespace {ending} --wait=false")).await);
        cluster
            .eventually_prints(
                &format!("get configmap going -n {ending} -o jsonpath={{.metadata.deletionTimestamp}}"),
                |out| !out.is_empty(),
            )
            .await;
        // Everything that could ask about them does so.
        for (what, space) in [("configmap/going", ns), ("pod/going", ns), ("configmap/going", ending)] {
            cluster.must(&format!("label {what} -n {space} {LABEL}=Always")).await;
        }
        cluster
            .apply(&format!(
                "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: web, namespace: {ns}}}\n\
                 spec: {{selector: {{app: web}}, maxUnavailable: 0}}\n\
                 ---\napiVersion: palisade.dev/v1alpha1\nkind: ResourceDeletionProtection\nmetadata: {{name: {ns}}}\n\
                 spec: {{protectedResources: [{{resourceSelector: [{{kind: '*', namespace: {ns}}}, {{kind: '*', namespace: {ending}}}]}}]}}\n"
            ))
            .await;
        cluster
            .must(&format!("wait resourcedeletionprotection/{ns} --for=condition=Enforced --timeout=30s"))
            .await;
        cluster.must(&format!("wait pub/web -n {ns} --for=condition=Enforced --timeout=30s")).await;
        kill_all(cluster);
        held_up(&cluster.kubectl(&format!("delete configmap kept -n {ns}")).await);
        held_up(&cluster.kubectl(&format!("delete pod p0 -n {ns}")).await);
        for (what, space) in [("configmap/going", ns), ("pod/going", ns), ("configmap/going", ending)] {
            let said = cluster.kubectl(&format!("delete {what} -n {space} --wait=false")).await;
            assert!(said.ok, "{said:?}");
        }
        let said = cluster.kubectl(&format!("delete namespace {ending} --wait=false")).await;
        assert!(said.ok, "{said:?}");
        release(cluster, ns, "configmap/going").await;
        release(cluster, ns, "pod/going").await;
        release(cluster, ending, "configmap/going").await;
        let gone = async || !cluster.exists(&format!("namespace {ending}")).await;
        assert!(palisade_testkit::wait_until(crate::cluster::EVENTUALLY, gone).await, "it has ended");
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        cluster.palisade.revive().expect("revived");
        cluster.palisade.wait_ready().await.expect("ready");
        cluster.eventually(&format!("delete resourcedeletionprotection {ns} --ignore-not-found")).await;
    });
}

#[test]
fn controllers_go_on_under_protection_by_default_while_nobody_answers() {
    alone(async |cluster| {
        let ns = &cluster.namespace().await;
        cluster.must(&format!("create deployment web --image=example/app --replicas=3 -n {ns}")).await;
        cluster.must(&format!("rollout status deployment/web -n {ns} --timeout=60s")).await;
        let spec =
            format!("{{protectedResources: [{{resourceSelector: [{{kind: \"*\", namespace: {ns}}}]}}]}}");
        crate::protections::protect(cluster, ns, &spec).await;
        kill_all(cluster);
        held_up(&cluster.kubectl(&format!("delete deployment web -n {ns}")).await);
        cluster.must(&format!("scale deployment web --replicas=1 -n {ns}")).await;
        cluster.must(&format!("set image deployment/web app=example/app:2 -n {ns}")).await;
        cluster.must(&format!("rollout status deployment/web -n {ns} --timeout=60s")).await;
        let pods = format!("get pods -n {ns} -o name");
        cluster.eventually_prints(&pods, |names| names.lines().count() == 1).await;
        cluster.palisade.revive().expect("revived");
        cluster.palisade.wait_ready().await.expect("ready");
        cluster.eventually(&format!("delete resourcedeletionprotection {ns} --ignore-not-found")).await;
    });
}

#[test]
fn pods_that_a_cluster_needs_are_not_held_up_while_nobody_answers() {
    alone(async |cluster| {
        let ns = &cluster.namespace().await;
        let pod = |name: &str, more: &str| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {ns}, labels: {{app: web}}}}\n\
                 spec: {{{more}terminationGracePeriodSeconds: 1, containers: [{{name: app, image: example/app}}]}}\n"
            )
        };
        let system = "priorityClassName: system-cluster-critical, ";
        cluster
            .apply(&format!(
                "{}{}{}{}---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: agent, namespace: kube-system}}\nspec:\n  \
                 selector: {{matchLabels: {{app: agent}}}}\n  template:\n    metadata: {{labels: {{app: agent}}}}\n    \
                 spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: app, image: example/app}}]}}\n",
                pod("system", system),
                pod("labelled", "priorityClassName: system-node-critical, "),
                pod("preempted", ""),
                pod("ordinary", "")
            ))
            .await;
        crate::pods::ready(cluster, ns).await;
        cluster.must(&format!("label pod labelled -n {ns} {LABEL}=Always")).await;
        cluster.must("rollout status daemonset/agent -n kube-system --timeout=60s").await;
        let agents =
            cluster.must("get pods -n kube-system -l app=agent -o jsonpath={.items[*].metadata.name}").await;
        let agents: Vec<&str> = agents.split_whitespace().collect();
        cluster
            .apply(&format!(
                "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: web, namespace: {ns}}}\n\
                 spec: {{selector: {{app: web}}, maxUnavailable: 0}}\n\
                 ---\napiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: agent, namespace: kube-system}}\n\
                 spec: {{selector: {{app: agent}}, maxUnavailable: 0}}\n\
                 ---\napiVersion: policy.kruise.io/v1alpha1\nkind: PodDeletionFlowControl\nmetadata: {{name: {ns}}}\n\
                 spec: {{limitRules: [{{interval: 1h, limit: 100}}]}}\n"
            ))
            .await;
        for (what, space) in
            [("pub/web", ns.as_str()), ("pub/agent", "kube-system"), (&format!("pdfc/{ns}"), ns)]
        {
            cluster.must(&format!("wait {what} -n {space} --for=condition=Enforced --timeout=30s")).await;
        }
        let delete = async |pod: &str, space: &str, more: &str| {
            cluster.kubectl(&format!("delete pod {pod} -n {space} --wait=false {more}")).await
        };
        let preempting = "--as=system:kube-scheduler";
        // While a replica answers they count as ever.
        denied(&delete("system", ns, "").await, "TooManyRequests", "allows 0 more unavailable pods");
        denied(&delete("labelled", ns, "").await, "Forbidden", "is protected from deletion");
        denied(
            &delete("preempted", ns, preempting).await,
            "TooManyRequests",
            "allows 0 more unavailable pods",
        );
        denied(&delete(agents[0], "kube-system", "").await, "TooManyRequests", "allows 0 more");
        denied(&evict(cluster, "kube-system", agents[1], "").await, "TooManyRequests", "allows 0 more");
        kill_all(cluster);
        let delete = async |pod: &str, space: &str, more: &str| {
            cluster.kubectl(&format!("delete pod {pod} -n {space} --wait=false {more}")).await
        };
        held_up(&delete("ordinary", ns, "").await);
        held_up(&evict(cluster, ns, "ordinary", "").await);
        allowed(&delete("system", ns, "").await);
        allowed(&delete("labelled", ns, "").await);
        allowed(&delete("preempted", ns, preempting).await);
        allowed(&delete(agents[0], "kube-system", "").await);
        allowed(&evict(cluster, "kube-system", agents[1], "").await);
        cluster.must("delete daemonset agent -n kube-system --wait=false").await;
        cluster.must("delete pub agent -n kube-system").await;
        cluster.must(&format!("delete pdfc {ns}")).await;
    });
}
