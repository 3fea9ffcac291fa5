//! Critical services, end to end.

use std::time::Duration;

use palisade_testkit::wait_until;
use serde_json::{Value, json};

use crate::cluster::{Cluster, EVENTUALLY, Said, allowed, alone, denied, lifting, shared, warned};
use crate::command_line::palisade;
use crate::finalizer_controller::FinalizerController;
use crate::labels::definition;

pub(crate) const FINALIZER: &str = "my.crd.group/super-important";

/// The seed's cluster, with names of its own: a namespace with a Deployment that finalizes custom resources.
pub(crate) struct Scene<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) ns: String,
    /// Where the custom resources are.
    pub(crate) elsewhere: String,
    pub(crate) group: String,
    pub(crate) service: String,
}

impl<'a> Scene<'a> {
    pub(crate) async fn set(cluster: &'a Cluster) -> Self {
        let (ns, elsewhere) = (cluster.namespace().await, cluster.namespace().await);
        let scene =
            Self { cluster, group: format!("{ns}.example.com"), service: format!("for-{ns}"), ns, elsewhere };
        cluster.apply(&scene.definition()).await;
        cluster.apply(&scene.deployment()).await;
        cluster.must(&format!("wait crd/{} --for=condition=Established --timeout=30s", scene.crd())).await;
        cluster.eventually(&format!("get {}", scene.crd())).await;
        cluster
            .must(&format!(
                "wait deployment/provider -n {} --for=condition=Available --timeout=60s",
                scene.ns
            ))
            .await;
        scene
    }

    /// With the seed's `CriticalService`, as it is written there.
    pub(crate) async fn set_with_service(cluster: &'a Cluster) -> Self {
        let scene = Self::set(cluster).await;
        cluster.apply(&scene.critical_service()).await;
        scene
    }

    pub(crate) fn crd(&self) -> String {
        format!("coolresources.{}", self.group)
    }

    pub(crate) fn definition(&self) -> String {
        definition(&self.group, "CoolResource", "coolresources", "Namespaced", &["v1"])
    }

    pub(crate) fn deployment(&self) -> String {
        format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: provider, namespace: {}}}, spec: {{replicas: 1, \
             selector: {{matchLabels: {{app: provider}}}}, template: {{metadata: {{labels: {{app: provider}}}}, \
             spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: app, image: example/app}}]}}}}}}}}",
            self.ns
        )
    }

    pub(crate) fn critical_service(&self) -> String {
        let Self { ns, group, service, .. } = self;
        format!(
            "apiVersion: palisade.dev/v1alpha1
kind: CriticalService
metadata:
  name: {service}
spec:
  provider:
    group: apps
    resource: deployments
    namespace: {ns}
    name: provider
  criteria:
  - type: Finalizer
    finalizer:
      group: {group}
      resource: coolresources
      finalizerName: {FINALIZER}
  - type: SpecificResource
    specificResource:
      group: apiextensions.k8s.io
      resource: CustomResourceDefinition
      name: coolresources.{group}
"
        )
    }

    /// A custom resource that carries the finalizer.
    pub(crate) fn instance(&self, name: &str) -> String {
        format!(
            "{{apiVersion: {}/v1, kind: CoolResource, metadata: {{name: {name}, namespace: {}, finalizers: [{FINALIZER}]}}}}",
            self.group, self.elsewhere
        )
    }

    async fn delete_provider(&self) -> Said {
        self.cluster.kubectl(&format!("delete deployment provider -n {} --wait=false", self.ns)).await
    }

    /// Takes the finalizer away.
    async fn free(&self, name: &str) {
        let patch = r#"{"metadata":{"finalizers":null}}"#;
        self.cluster
            .must(&format!("patch {} {name} -n {} --type=merge -p {patch}", self.crd(), self.elsewhere))
            .await;
    }

    async fn set_mode(&self, mode: &str) {
        let patch = format!(r#"{{"spec":{{"deletionMode":"{mode}"}}}}"#);
        self.cluster.must(&format!("patch crit {} --type=merge -p {patch}", self.service)).await;
    }

    async fn status(&self) -> Value {
        let text = self.cluster.must(&format!("get crit {} -o json", self.service)).await;
        serde_json::from_str::<Value>(&text).expect("json")["status"].clone()
    }

    /// Waits until the status is as expected.
    async fn status_becomes(&self, expected: impl Fn(&Value) -> bool) {
        let mut last = Value::Null;
        for _ in 0..EVENTUALLY.as_millis() / 200 {
            last = self.status().await;
            if expected(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("the status is still {last:#}");
    }

    /// Leaves nothing behind that others would meet.
    async fn strike(&self) {
        self.cluster
            .kubectl(&format!(
                "patch crit {} --type=merge -p {{\"spec\":{{\"deletionMode\":\"BestEffort\"}}}}",
                self.service
            ))
            .await;
        self.cluster.kubectl(&format!("delete crit {} --ignore-not-found", self.service)).await;
    }
}

fn condition<'a>(status: &'a Value, kind: &str) -> (&'a str, &'a str) {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    found.map_or(("", ""), |condition| {
        (condition["status"].as_str().unwrap_or_default(), condition["reason"].as_str().unwrap_or_default())
    })
}

#[test]
fn a_provider_its_namespace_and_its_service_stay_while_something_depends_on_it() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        let Scene { ns, elsewhere, group, service, .. } = &scene;
        // In the very moment after it was created.
        denied(
            &scene.delete_provider().await,
            "Conflict",
            &format!("customresourcedefinition \"coolresources.{group}\" is still there"),
        );
        for name in ["a", "b"] {
            cluster.apply(&scene.instance(name)).await;
        }
        let left = format!(
            "2 coolresources.{group} still carry finalizer \"{FINALIZER}\" ({elsewhere}/a, {elsewhere}/b); customresourcedefinition \
             \"coolresources.{group}\" is still there. Delete them first; kubectl get crit {service} -o yaml shows what is left."
        );
        for how in
            ["", "--dry-run=server", "--cascade=orphan", "--cascade=foreground", "--force --grace-period=0"]
        {
            let said = cluster.kubectl(&format!("delete deployment provider -n {ns} {how}")).await;
            denied(
                &said,
                "Conflict",
                &format!("deployment \"{ns}/provider\" must outlive what depends on it: {left}"),
            );
            let said = cluster.kubectl(&format!("delete namespace {ns} {how}")).await;
            denied(
                &said,
                "Conflict",
                &format!(
                    "namespace \"{ns}\" must outlive what depends on deployment \"{ns}/provider\" in it: {left}"
                ),
            );
            let said = cluster.kubectl(&format!("delete crit {service} {how}")).await;
            denied(
                &said,
                "Conflict",
                &format!(
                    "must outlive its provider: deployment \"{ns}/provider\" is still there. Delete it first."
                ),
            );
        }
        let all = cluster.kubectl(&format!("delete --raw /apis/apps/v1/namespaces/{ns}/deployments")).await;
        denied(&all, "Conflict", "must outlive");
        let refused = scene.delete_provider().await;
        let why = palisade(cluster, &format!("why deployment provider -n {ns}")).await;
        assert!(!why.ok && refused.err.contains(why.out.trim()), "{why:?} beside {refused:?}");
        let json = palisade(cluster, &format!("why namespace {ns} -o json")).await;
        let json: Value = serde_json::from_str(&json.out).expect("json");
        assert_eq!((&json["code"], &json["reason"]), (&409.into(), &"Conflict".into()));

        // Nobody else is concerned.
        cluster.must(&format!("create deployment other --image=example/app -n {ns}")).await;
        allowed(&cluster.kubectl(&format!("delete deployment other -n {ns}")).await);

        for name in ["a", "b"] {
            scene.free(name).await;
        }
        denied(
            &scene.delete_provider().await,
            "Conflict",
            "must outlive what depends on it: customresourcedefinition",
        );
        allowed(&cluster.kubectl(&format!("delete crd {} --timeout=60s", scene.crd())).await);
        let said = cluster.kubectl(&format!("delete crit {service}")).await;
        denied(&said, "Conflict", "must outlive its provider");
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --dry-run=server")).await);
        allowed(&cluster.kubectl(&format!("delete deployment provider -n {ns} --timeout=60s")).await);
        allowed(&cluster.kubectl(&format!("delete crit {service}")).await);
    });
}

/// Everything of a scene, in the seed's order, which is the wrong one.
fn everything(scene: &Scene<'_>) -> [String; 3] {
    let namespace = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {}}}}}", scene.ns);
    let first = [scene.critical_service(), namespace, scene.deployment()].join("\n---\n");
    [first, scene.definition(), scene.instance("some-instance")]
}

/// Deletes some manifests again and again, as a client would, until nothing of them is left.
async fn delete_until_gone(cluster: &Cluster, manifests: &str) {
    for _ in 0..120 {
        let said = cluster.kubectl_with(["delete", "-f", "-", "--wait=false"], manifests).await;
        let left = said
            .err
            .lines()
            .filter(|line| !line.contains("NotFound") && !line.contains("no matches for kind"));
        if !said.ok
            && left
                .clone()
                .all(|line| line.trim().is_empty() || line.contains("ensure CRDs are installed first"))
            && said.out.is_empty()
        {
            return;
        }
        for line in left {
            let known = ["(Conflict)", "Warning", "ensure CRDs", "AlreadyExists", "failed calling webhook"];
            assert!(line.trim().is_empty() || known.iter().any(|word| line.contains(word)), "{line}");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    panic!("something of this is stuck: {manifests}");
}

/// Watches a scene go, and returns what went, in that order.
async fn watch_it_go(scene: &Scene<'_>) -> Vec<&'static str> {
    let Scene { ns, elsewhere, service, .. } = scene;
    // The last first, so that whoever is seen gone left all before it gone in the same look.
    let parts = [
        ("namespace", format!("namespace {ns}")),
        ("service", format!("crit {service}")),
        ("deployment", format!("deployment provider -n {ns}")),
        ("definition", format!("crd {}", scene.crd())),
        ("instance", format!("{} some-instance -n {elsewhere}", scene.crd())),
    ];
    let mut gone: Vec<&str> = Vec::new();
    for _ in 0..600 {
        let mut just_now = Vec::new();
        for (name, words) in parts.iter().filter(|(name, _)| !gone.contains(name)).collect::<Vec<_>>() {
            let said = scene.cluster.kubectl(&format!("get {words} -o name")).await;
            if !said.ok
                && (said.err.contains("NotFound") || said.err.contains("doesn't have a resource type"))
            {
                just_now.push(*name);
            }
        }
        gone.extend(just_now.iter().rev());
        if gone.len() == parts.len() {
            return gone;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("only these went: {gone:?}");
}

/// Both the namespace and the service wait for the Deployment, and for nothing else of this.
#[track_caller]
fn in_order(gone: &[&str]) {
    assert_eq!(gone[..3], ["instance", "definition", "deployment"]);
}

#[test]
fn everything_deleted_at_once_goes_in_order_and_nothing_is_stuck() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        cluster.apply(&scene.instance("some-instance")).await;
        let controller = FinalizerController::start(&scene);
        let all = everything(&scene).join("\n---\n");
        let (gone, ()) = futures::join!(watch_it_go(&scene), delete_until_gone(cluster, &all));
        in_order(&gone);
        assert_eq!(controller.finalized(), ["some-instance"]);
    });
}

#[test]
fn so_it_does_in_three_parts_at_once() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        cluster.apply(&scene.instance("some-instance")).await;
        let controller = FinalizerController::start(&scene);
        let [first, second, third] = everything(&scene);
        let (gone, (), (), ()) = futures::join!(
            watch_it_go(&scene),
            delete_until_gone(cluster, &first),
            delete_until_gone(cluster, &second),
            delete_until_gone(cluster, &third),
        );
        in_order(&gone);
        assert_eq!(controller.finalized(), ["some-instance"]);
    });
}

#[test]
fn so_it_does_when_replicas_are_killed_in_the_middle() {
    alone(async |cluster| {
        let (all, ns) = {
            let scene = Scene::set_with_service(cluster).await;
            for name in ["some-instance", "another"] {
                cluster.apply(&scene.instance(name)).await;
            }
            (everything(&scene).join("\n---\n"), scene.ns.clone())
        };
        let _ = cluster.kubectl_with(["delete", "-f", "-", "--wait=false"], &all).await;
        cluster.palisade.kill(0);
        cluster.palisade.kill(1);
        let said = cluster.kubectl(&format!("delete deployment provider -n {ns}")).await;
        assert!(!said.ok && said.err.contains("failed calling webhook"), "{said:?}");
        tokio::time::sleep(Duration::from_millis(1100)).await;
        cluster.palisade.revive().expect("revived");
        cluster.palisade.wait_ready().await.expect("ready");
        let elsewhere = cluster
            .must(&format!(
                "get coolresources.{ns}.example.com -A -o jsonpath={{.items[0].metadata.namespace}}"
            ))
            .await;
        let scene = Scene {
            cluster,
            group: format!("{ns}.example.com"),
            service: format!("for-{ns}"),
            ns,
            elsewhere,
        };
        denied(
            &scene.delete_provider().await,
            "Conflict",
            "They are going already: try again when they are gone",
        );
        let controller = FinalizerController::start(&scene);
        let (gone, ()) = futures::join!(watch_it_go(&scene), delete_until_gone(cluster, &all));
        in_order(&gone);
        assert_eq!(controller.finalized().len(), 2);
    });
}

#[test]
fn a_provider_that_is_created_again_is_protected_again() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        let uid = format!("get deployment provider -n {} -o jsonpath={{.metadata.uid}}", scene.ns);
        let first = cluster.must(&uid).await;
        scene.status_becomes(|status| status["providerUID"] == first.as_str()).await;
        scene.set_mode("BestEffort").await;
        warned(
            &cluster.kubectl(&format!("delete deployment provider -n {} --timeout=60s", scene.ns)).await,
            "goes before what depends on it",
        );
        scene
            .status_becomes(|status| {
                status["providerUID"].is_null()
                    && condition(status, "ProviderPresent") == ("False", "NotFound")
            })
            .await;
        scene.set_mode("Ordered").await;
        cluster.apply(&scene.deployment()).await;
        denied(&scene.delete_provider().await, "Conflict", "must outlive");
        let second = cluster.must(&uid).await;
        assert_ne!(first, second);
        scene
            .status_becomes(|status| {
                status["providerUID"] == second.as_str()
                    && condition(status, "ProviderPresent") == ("True", "Present")
            })
            .await;
        scene.strike().await;
    });
}

#[test]
fn best_effort_is_the_way_out_and_tells_what_is_left_behind() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        let Scene { ns, elsewhere, group, service, .. } = &scene;
        cluster.apply(&scene.instance("a")).await;
        denied(&scene.delete_provider().await, "Conflict", "must outlive");
        // The command that a refusal of the service names does it.
        let refused = cluster.kubectl(&format!("delete crit {service}")).await;
        allowed(&cluster.shell(&lifting(&refused)).await);
        let left = format!(
            "deployment \"{ns}/provider\" goes before what depends on it (CriticalService \"{service}\" is BestEffort): \
             1 coolresources.{group} still carries finalizer \"{FINALIZER}\" ({elsewhere}/a)"
        );
        warned(
            &cluster.kubectl(&format!("delete deployment provider -n {ns} --dry-run=server")).await,
            &left,
        );
        let events = format!(
            "get events -A --field-selector involvedObject.name={service},reason=Orphaned -o jsonpath={{.items[*].message}}"
        );
        assert_eq!(cluster.must(&events).await, "", "nothing came of a dry run");
        warned(&scene.delete_provider().await, &left);
        cluster.eventually_prints(&events, |text| text.contains(&left)).await;
        allowed(&cluster.kubectl(&format!("delete crit {service}")).await);
        scene.free("a").await;
    });
}

#[test]
fn a_provider_in_a_namespace_that_is_terminating_may_go() {
    shared(async |cluster| {
        let scene = Scene::set(cluster).await;
        let ns = &scene.ns;
        cluster.apply(&scene.instance("a")).await;
        // Pods go first, and take their time: the rest is still there meanwhile.
        cluster.apply(&format!("{{apiVersion: v1, kind: Pod, metadata: {{name: slow, namespace: {ns}, finalizers: [example.com/hold]}}, \
            spec: {{containers: [{{name: app, image: example/app}}]}}}}")).await;
        cluster.must(&format!("delete namespace {ns} --wait=false")).await;
        cluster.apply(&scene.critical_service()).await;
        let said = cluster.kubectl(&format!("delete deployment provider -n {ns} --dry-run=server")).await;
        warned(&said, "goes before what depends on it (its namespace is terminating)");
        let patch = r#"{"metadata":{"finalizers":null}}"#;
        cluster.must(&format!("patch pod slow -n {ns} --type=merge -p {patch}")).await;
        cluster.must(&format!("wait namespace/{ns} --for=delete --timeout=80s")).await;
        allowed(&cluster.kubectl(&format!("delete crit {}", scene.service)).await);
        scene.free("a").await;
    });
}

#[test]
fn a_holder_behind_hundreds_of_others_is_found() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        let free: Vec<String> =
            (0..600).map(|n| scene.instance(&format!("free-{n:03}")).replace(FINALIZER, "")).collect();
        cluster.kubectl_with(["create", "-f", "-"], &free.join("\n---\n")).await;
        cluster.apply(&scene.instance("holder")).await;
        let holder = format!(
            "1 coolresources.{} still carries finalizer \"{FINALIZER}\" ({}/holder)",
            scene.group, scene.elsewhere
        );
        denied(&scene.delete_provider().await, "Conflict", &holder);
        scene.status_becomes(|status| status["blocking"] == 2).await;
        scene.free("holder").await;
        let said = scene.delete_provider().await;
        denied(&said, "Conflict", "must outlive what depends on it: customresourcedefinition");
        scene.strike().await;
    });
}

#[test]
fn what_is_not_served_is_met_and_counts_once_it_is() {
    shared(async |cluster| {
        let scene = Scene::set(cluster).await;
        let typo =
            scene.critical_service().replace("resource: coolresources", "resource: latecomers").replace(
                &format!("resource: CustomResourceDefinition\n      name: coolresources.{}", scene.group),
                "resource: crontabs\n      name: x",
            );
        let said = cluster.kubectl_with(["apply", "-f", "-"], &typo).await;
        warned(
            &said,
            &format!(
                "the cluster serves no latecomers.{}; what waits for it is met until it does",
                scene.group
            ),
        );
        scene
            .status_becomes(|status| {
                condition(status, "Resolved") == ("False", "NotServed")
                    && condition(status, "Satisfied").0 == "True"
            })
            .await;
        allowed(
            &cluster.kubectl(&format!("delete deployment provider -n {} --dry-run=server", scene.ns)).await,
        );
        cluster.apply(&definition(&scene.group, "LateComer", "latecomers", "Cluster", &["v1"])).await;
        let late = format!("latecomers.{}", scene.group);
        cluster.must(&format!("wait crd/{late} --for=condition=Established --timeout=30s")).await;
        cluster.eventually(&format!("get {late}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: {}/v1, kind: LateComer, metadata: {{name: l, finalizers: [{FINALIZER}]}}}}",
                scene.group
            ))
            .await;
        denied(
            &scene.delete_provider().await,
            "Conflict",
            &format!("1 {late} still carries finalizer \"{FINALIZER}\" (l)"),
        );
        scene.status_becomes(|status| condition(status, "Satisfied") == ("False", "Blocked")).await;
        cluster
            .must(&format!("patch {late} l --type=merge -p {{\"metadata\":{{\"finalizers\":null}}}}"))
            .await;
        allowed(&scene.delete_provider().await);
        scene.strike().await;
    });
}

#[test]
fn a_definition_of_which_no_version_is_served_hides_nothing() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        cluster.apply(&scene.instance("a")).await;
        let serve = async |served: bool| {
            let patch = format!(r#"[{{"op":"replace","path":"/spec/versions/0/served","value":{served}}}]"#);
            cluster.must(&format!("patch crd {} --type=json -p {patch}", scene.crd())).await;
        };
        serve(false).await;
        let said = scene.delete_provider().await;
        denied(&said, "Conflict", "customresourcedefinition");
        let refused = wait_until(EVENTUALLY, || async {
            scene.delete_provider().await.err.contains("none of its versions is served")
        });
        assert!(refused.await);
        scene.status_becomes(|status| status["criteria"][0]["state"] == "Unknown").await;
        serve(true).await;
        scene.status_becomes(|status| status["criteria"][0]["state"] == "Unmet").await;
        scene.free("a").await;
        scene.strike().await;
    });
}

#[test]
fn what_cannot_be_asked_is_no_yes() {
    alone(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        let ns = &scene.ns;
        cluster.must(&format!("delete crd {}", scene.crd())).await;
        allowed(&cluster.kubectl(&format!("delete deployment provider -n {ns} --dry-run=server")).await);
        // Another API server should serve the group, and does not.
        let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("v1.{}", scene.group)},
            "spec": {"group": scene.group, "version": "v1", "insecureSkipTLSVerify": true, "groupPriorityMinimum": 1000,
                "versionPriority": 15, "service": {"name": "nobody", "namespace": "kube-system", "port": 1}}});
        cluster.apply(&service.to_string()).await;
        let said = scene.delete_provider().await;
        denied(&said, "ServiceUnavailable", &format!("the API server of {} does not answer", scene.group));
        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        denied(&said, "ServiceUnavailable", &format!("the API server of {} does not answer", scene.group));
        cluster.must(&format!("delete apiservice v1.{}", scene.group)).await;
        let back = wait_until(EVENTUALLY, || async {
            cluster.kubectl(&format!("delete deployment provider -n {ns} --dry-run=server")).await.ok
        });
        assert!(back.await);

        // We may not list it.
        let said = scene.cluster.must("get clusterrolebinding palisade-reader -o json").await;
        cluster.apply(&scene.definition()).await;
        cluster.must(&format!("wait crd/{} --for=condition=Established --timeout=30s", scene.crd())).await;
        cluster.must("delete clusterrolebinding palisade-reader").await;
        let refused =
            wait_until(EVENTUALLY, || async { scene.delete_provider().await.err.contains("coolresources.") });
        assert!(refused.await);
        let refused = scene.delete_provider().await;
        cluster.apply(&said).await;
        assert!(refused.err.contains("is forbidden"), "{refused:?}");
        scene.status_becomes(|status| condition(status, "Satisfied") == ("False", "Blocked")).await;
        scene.strike().await;
    });
}

#[test]
fn after_a_restart_of_the_api_server_nothing_slips_through() {
    alone(async |cluster| {
        let ns = {
            let scene = Scene::set_with_service(cluster).await;
            cluster.apply(&scene.instance("a")).await;
            scene.ns
        };
        cluster.plane.restart_apiserver().await.expect("restarted");
        // From its first moment on, whatever discovery knows by then.
        for _ in 0..50 {
            let said = cluster.kubectl(&format!("delete deployment provider -n {ns} --wait=false")).await;
            assert!(!said.ok, "{said:?}");
        }
        let said = cluster.kubectl(&format!("delete deployment provider -n {ns} --wait=false")).await;
        denied(&said, "Conflict", "still carries finalizer");
        let (group, service) = (format!("{ns}.example.com"), format!("for-{ns}"));
        let elsewhere = cluster
            .must(&format!("get coolresources.{group} -A -o jsonpath={{.items[0].metadata.namespace}}"))
            .await;
        let scene = Scene { cluster, ns, elsewhere, group, service };
        cluster.apply(&scene.instance("b")).await;
        scene.status_becomes(|status| status["criteria"][0]["objects"] == 2).await;
        for name in ["a", "b"] {
            scene.free(name).await;
        }
        scene.strike().await;
    });
}

#[test]
fn any_namespaced_kind_can_be_a_provider_and_is_not_lost_with_its_definition() {
    shared(async |cluster| {
        let scene = Scene::set(cluster).await;
        let Scene { ns, group, .. } = &scene;
        crate::pods::workload(cluster, ns, "StatefulSet", 1).await;
        cluster.apply(&scene.instance("w").replace(FINALIZER, "").replace(&scene.elsewhere, ns)).await;
        cluster.must(&format!("create configmap needed -n {ns}")).await;
        let service = |name: &str, group: &str, resource: &str, object: &str| {
            format!(
                "{{apiVersion: palisade.dev/v1alpha1, kind: CriticalService, metadata: {{name: {name}}}, spec: {{provider: \
                 {{group: {group}, resource: {resource}, namespace: {ns}, name: {object}}}, criteria: [{{type: SpecificResource, \
                 specificResource: {{resource: ConfigMap, name: needed}}}}]}}}}"
            )
        };
        let (first, second) = (format!("{ns}-1"), format!("{ns}-2"));
        cluster.apply(&service(&first, "apps", "StatefulSet", "web")).await;
        cluster.apply(&service(&second, group, "coolresources", "w")).await;
        let there = format!("configmap \"{ns}/needed\" is still there. Delete it first;");
        denied(&cluster.kubectl(&format!("delete statefulset web -n {ns}")).await, "Conflict", &there);
        denied(&cluster.kubectl(&format!("delete {} w -n {ns}", scene.crd())).await, "Conflict", &there);
        let said = cluster.kubectl(&format!("delete crd {}", scene.crd())).await;
        denied(
            &said,
            "Conflict",
            &format!("must outlive what depends on coolresource.{group} \"{ns}/w\" in it: {there}"),
        );
        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        denied(&said, "Conflict", &format!("kubectl get crit {first} {second} -o yaml show what is left."));
        cluster.must(&format!("delete configmap needed -n {ns}")).await;
        allowed(&cluster.kubectl(&format!("delete crd {} --timeout=60s", scene.crd())).await);
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --timeout=80s")).await);
        allowed(&cluster.kubectl(&format!("delete crit {first} {second}")).await);
    });
}

#[test]
fn a_changed_provider_is_protected_when_the_change_is_answered() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        let (ns, other) = (&scene.ns, cluster.namespace().await);
        crate::pods::workload(cluster, &other, "StatefulSet", 1).await;
        let moved = scene.critical_service().replace(
            &format!("resource: deployments\n    namespace: {ns}\n    name: provider"),
            &format!("resource: StatefulSet\n    namespace: {other}\n    name: web"),
        );
        cluster.apply(&moved).await;
        denied(
            &cluster.kubectl(&format!("delete statefulset web -n {other}")).await,
            "Conflict",
            "must outlive",
        );
        allowed(&cluster.kubectl(&format!("delete deployment provider -n {ns}")).await);
        scene.strike().await;
    });
}

#[test]
fn cycles_and_waiting_for_oneself_are_told() {
    shared(async |cluster| {
        let (ns, other) = (cluster.namespace().await, cluster.namespace().await);
        for (ns, name) in [(&ns, "a"), (&other, "b")] {
            cluster.must(&format!("create deployment {name} --image=example/app -n {ns}")).await;
        }
        let service = |name: &str, provider: (&str, &str), object: &str| {
            format!(
                "{{apiVersion: palisade.dev/v1alpha1, kind: CriticalService, metadata: {{name: {name}}}, spec: {{provider: \
                 {{group: apps, resource: deployments, namespace: {}, name: {}}}, criteria: [{{type: SpecificResource, \
                 specificResource: {object}}}]}}}}",
                provider.0, provider.1
            )
        };
        let (a, b) = (format!("{ns}-a"), format!("{ns}-b"));
        cluster
            .apply(&service(
                &a,
                (&ns, "a"),
                &format!("{{group: apps, resource: Deployment, namespace: {other}, name: b}}"),
            ))
            .await;
        let second = service(&b, (&other, "b"), &format!("{{resource: namespaces, name: {ns}}}"));
        warned(&cluster.kubectl_with(["apply", "-f", "-"], &second).await, "That is a cycle");
        let reason = |name: &str| {
            format!("get crit {name} -o jsonpath={{.status.conditions[?(@.type==\"Deadlocked\")].reason}}")
        };
        for name in [&a, &b] {
            cluster.eventually_prints(&reason(name), |text| text == "Cycle").await;
        }
        let said = cluster.kubectl(&format!("delete deployment a -n {ns}")).await;
        denied(
            &said,
            "Conflict",
            &format!("That is a cycle, in which each waits for the next (\"{a}\", \"{b}\", \"{a}\")"),
        );
        // The way out that it names.
        allowed(&cluster.shell(&lifting(&said)).await);
        warned(&cluster.kubectl(&format!("delete deployment a -n {ns}")).await, "BestEffort");
        cluster.eventually_prints(&reason(&b), str::is_empty).await;
        cluster.must(&format!("delete crit {a}")).await;
        let itself = service(
            &a,
            (&ns, "a"),
            &format!("{{group: palisade.dev, resource: CriticalService, name: {a}}}"),
        );
        warned(
            &cluster.kubectl_with(["apply", "-f", "-"], &itself).await,
            "It waits for a CriticalService of its own",
        );
        let itself = service(&a, (&ns, "a"), &format!("{{resource: Namespace, name: {ns}}}"));
        warned(
            &cluster.kubectl_with(["apply", "-f", "-"], &itself).await,
            "It waits for the provider's own namespace",
        );
        cluster.eventually_prints(&reason(&a), |text| text == "WaitsForItself").await;
        for name in [&a, &b] {
            cluster
                .must(&format!(
                    "patch crit {name} --type=merge -p {{\"spec\":{{\"deletionMode\":\"BestEffort\"}}}}"
                ))
                .await;
            cluster.must(&format!("delete crit {name}")).await;
        }
    });
}

#[test]
fn the_status_follows_what_it_is_about() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        let Scene { ns, elsewhere, service, .. } = &scene;
        scene
            .status_becomes(|status| {
                condition(status, "Enforced") == ("True", "Registered")
                    && condition(status, "ProviderPresent") == ("True", "Present")
                    && condition(status, "Satisfied") == ("False", "Blocked")
                    && condition(status, "Resolved") == ("True", "Resolved")
                    && status["blocking"] == 1
            })
            .await;
        let table = cluster.must(&format!("get crit {service}")).await;
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(
            lines.next().expect("a header"),
            ["NAME", "PROVIDER", "SATISFIED", "BLOCKING", "ENFORCED", "AGE"]
        );
        assert_eq!(lines.next().expect("a row")[..4], [service, &format!("{ns}/provider"), "False", "1"]);
        for name in ["a", "b"] {
            cluster.apply(&scene.instance(name)).await;
        }
        scene
            .status_becomes(|status| {
                let finalizer = &status["criteria"][0];
                finalizer["state"] == "Unmet"
                    && finalizer["objects"] == 2
                    && finalizer["names"] == json!([format!("{elsewhere}/a"), format!("{elsewhere}/b")])
                    && finalizer["lastCheckTime"].is_string()
                    && status["blocking"] == 3
            })
            .await;
        scene.free("a").await;
        scene.free("b").await;
        scene
            .status_becomes(|status| status["criteria"][0]["state"] == "Met" && status["blocking"] == 1)
            .await;
        cluster.must(&format!("delete crd {}", scene.crd())).await;
        scene
            .status_becomes(|status| {
                condition(status, "Satisfied") == ("True", "AllMet")
                    && condition(status, "Resolved") == ("False", "NotServed")
            })
            .await;
        scene.strike().await;
    });
}

#[test]
fn the_status_of_what_nothing_happens_to_stays_as_it_is() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        cluster.apply(&scene.instance("a")).await;
        scene
            .status_becomes(|status| status["blocking"] == 2 && condition(status, "Enforced").0 == "True")
            .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let revision = format!("get crit {} -o jsonpath={{.metadata.resourceVersion}}", scene.service);
        let before = cluster.must(&revision).await;
        // Longer than a watch may be silent.
        tokio::time::sleep(Duration::from_secs(65)).await;
        assert_eq!(cluster.must(&revision).await, before, "{:#}", scene.status().await);
        scene.free("a").await;
        scene.strike().await;
    });
}

#[test]
fn the_registration_follows_the_services_that_exist() {
    shared(async |cluster| {
        // What is asked about providers: namespaces, and kinds.
        let asked = async || {
            let text = cluster.must("get validatingwebhookconfiguration palisade -o json").await;
            let configuration: Value = serde_json::from_str(&text).expect("json");
            let webhooks = configuration["webhooks"].as_array().expect("webhooks").clone();
            webhooks
                .into_iter()
                .find(|webhook| webhook["name"] == "critical.palisade.dev")
                .unwrap_or_default()
        };
        let names = |webhook: &Value, ns: &str| {
            webhook["namespaceSelector"]["matchExpressions"][0]["values"]
                .as_array()
                .is_some_and(|all| all.iter().any(|value| value == ns))
        };
        let scene = Scene::set(cluster).await;
        assert!(!names(&asked().await, &scene.ns));
        cluster.apply(&scene.critical_service()).await;
        let providers = asked().await;
        assert!(names(&providers, &scene.ns), "{providers:#}");
        assert_eq!(providers["namespaceSelector"]["matchExpressions"][0]["operator"], "In");
        let condition = providers["matchConditions"][0]["expression"].as_str().expect("a condition");
        assert!(
            condition.contains("oldObject.metadata.name in [") && condition.contains("\"provider\""),
            "{condition}"
        );
        scene.strike().await;
        // It was announced, which is remembered for a while.
        for _ in 0..60 {
            if !names(&asked().await, &scene.ns) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("it still asks: {:#}", asked().await);
    });
}

#[test]
fn the_garbage_collector_is_refused_like_anyone_else_and_comes_back() {
    shared(async |cluster| {
        let scene = Scene::set_with_service(cluster).await;
        let ns = &scene.ns;
        cluster.must(&format!("create configmap owner -n {ns}")).await;
        let uid = cluster.must(&format!("get configmap owner -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        let owner = format!(
            r#"{{"metadata":{{"ownerReferences":[{{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"{uid}"}}]}}}}"#
        );
        cluster.must(&format!("patch deployment provider -n {ns} --type=merge -p {owner}")).await;
        cluster.must(&format!("delete configmap owner -n {ns}")).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(cluster.exists(&format!("deployment provider -n {ns}")).await);
        cluster.must(&format!("delete crd {}", scene.crd())).await;
        cluster.must(&format!("wait deployment/provider -n {ns} --for=delete --timeout=80s")).await;
        allowed(&cluster.kubectl(&format!("delete crit {}", scene.service)).await);
    });
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    shared(async |cluster| {
        let provider = "provider: {group: apps, resource: deployments, namespace: a, name: b}";
        let criteria =
            "criteria: [{type: SpecificResource, specificResource: {resource: configmaps, name: x}}]";
        let criterion = |criterion: &str| format!("{{{provider}, criteria: [{criterion}]}}");
        let cases = [
            (format!("{{{criteria}}}"), "spec.provider: Required value"),
            (
                format!(
                    "{{provider: {{group: apps, resource: deployments, namespace: my-ns-, name: b}}, {criteria}}}"
                ),
                "spec.provider.namespace",
            ),
            (
                format!(
                    "{{provider: {{group: apps, resource: deployments, namespace: ' ', name: b}}, {criteria}}}"
                ),
                "spec.provider.namespace",
            ),
            (
                format!(
                    "{{provider: {{group: apps, resource: deployments, namespace: a, name: X_y}}, {criteria}}}"
                ),
                "spec.provider.name",
            ),
            (format!("{{provider: {{}}, {criteria}}}"), "spec.provider.name: Required value"),
            (
                format!("{{provider: {{group: apps, resource: '', namespace: a, name: b}}, {criteria}}}"),
                "spec.provider.resource",
            ),
            (
                format!(
                    "{{provider: {{group: apps, resource: deployments, namespace: '', name: b}}, {criteria}}}"
                ),
                "spec.provider.namespace",
            ),
            (
                format!(
                    "{{provider: {{group: apps/v1, resource: deployments, namespace: a, name: b}}, {criteria}}}"
                ),
                "spec.provider.group",
            ),
            (
                format!("{{provider: {{resource: nodes, namespace: a, name: b}}, {criteria}}}"),
                "nodes have no namespaces, so they can't be providers",
            ),
            (format!("{{{provider}}}"), "spec.criteria: Required value"),
            (format!("{{{provider}, criteria: []}}"), "spec.criteria"),
            (criterion("{type: Finalizer}"), "type Finalizer needs finalizer and nothing else"),
            (
                criterion("{type: SpecificResource}"),
                "type SpecificResource needs specificResource and nothing else",
            ),
            (
                criterion(
                    "{type: Finalizer, finalizer: {resource: pods, finalizerName: f}, specificResource: {resource: pods, name: x}}",
                ),
                "type Finalizer needs finalizer and nothing else",
            ),
            (
                criterion("{type: Finalizer, specificResource: {resource: pods, name: x}}"),
                "type Finalizer needs finalizer and nothing else",
            ),
            (
                criterion("{type: Label, finalizer: {resource: pods, finalizerName: f}}"),
                "supported values: \"Finalizer\", \"SpecificResource\"",
            ),
            (
                criterion("{finalizer: {resource: pods, finalizerName: f}}"),
                "spec.criteria[0].type: Required value",
            ),
            (criterion("{type: Finalizer, finalizer: {resource: pods}}"), "finalizerName: Required value"),
            (criterion("{type: Finalizer, finalizer: {finalizerName: f}}"), "resource: Required value"),
            (
                criterion("{type: SpecificResource, specificResource: {resource: pods}}"),
                "name: Required value",
            ),
            (
                format!("{{{provider}, {criteria}, deletionMode: Never}}"),
                "supported values: \"Ordered\", \"BestEffort\"",
            ),
            (
                format!("{{{provider}, {criteria}, deletionmode: Ordered}}"),
                "unknown field \"spec.deletionmode\"",
            ),
        ];
        for (spec, why) in cases {
            let manifest = format!(
                "{{apiVersion: palisade.dev/v1alpha1, kind: CriticalService, metadata: {{name: nonsense}}, spec: {spec}}}"
            );
            let said = cluster.kubectl_with(["create", "-f", "-"], &manifest).await;
            assert!(!said.ok && said.err.contains(why), "{spec}: {said:?}");
        }
    });
}
