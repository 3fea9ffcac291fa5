//! The first example of each page of the documentation is the one of its design, and works as it is written.

use crate::cluster::{Cluster, Said, allowed, denied, lifting, separate, workspace};
use crate::labels::definition;

/// The examples of the designs, as they stand there. `# ...` is where they leave something out.
const PROTECTION: &str = r#"
kind: ResourceDeletionProtection
metadata:
  name: sample
spec:
  protectedResources:
    - resourceSelector:
        - apiVersion: "apps/v1"
          kind: "Deployment"
          namespace: "sample"
      resourceNames:
        - "deployment-1"
        - "deployment-2"
    - resourceSelector:
        - apiVersion: "v1"
          kind: "Service"
          name: "service-1"
          namespace: "sample"
      resourceNames:
        - "service-1"
"#;
const BUDGET: &str = r#"
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
spec:
  #selector:
  #  app: xxx
  targetRef:
    apiVersion: apps.kruise.io
    kind: CloneSet
    name: app-xxx
  maxUnavailable: 5
  # minAvailable: 70%
status:
  deletedPods:
    pod-uid-xxx: "116894821"
  unavailablePods:
    pod-name-xxx: "116893007"
  unavailableAllowed: 2
  currentAvailable: 17
  desiredAvailable: 15
  totalReplicas: 20
"#;
const GENERATED: &str = r#"
apiVersion: apps
kind: Deployment
metadata:
  name: deploy-foo
  annotations:
    policy.kruise.io/generate-pub: "true"
    policy.kruise.io/generate-pub-maxUnavailable: "20%"
    # policy.kruise.io/generate-pub-minAvailable: "80%"
spec:
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 25%
      maxSurge: 25%
  # ...
"#;
const FLOW: &str = r"
apiVersion: policy.kruise.io/v1alpha1
kind: PodDeletionFlowControl
metadata:
  # ...
spec:
  limitRules:
  - interval: 1m
    limit: 50
  - interval: 10m
    limit: 300
  - interval: 1h
    limit: 1000
  whiteListSelector:
    matchExpressions:
    - key: xxx
      operator: In
      value: foo
";
const CRITICAL: &str = r"
kind: CriticalService
spec:
  provider:
    group: apps
    resource: deployments
    namespace: finalizer-namespace
    name: finalizer-deployment
  criteria:
  - type: Finalizer
    finalizer:
      group: my.crd.group
      resource: coolresources
      finalizerName: my.crd.group/super-important
  - type: SpecificResource
    specificResource:
      group: apiextensions.k8s.io
      resource: CustomResourceDefinition
      name: coolresources.my.crd.group
";
const LABEL: &str =
    "kubectl label <resource-type> <resource-name> resourcetemplate.karmada.io/deletion-protected=Always";
const LIFT: &str =
    "kubectl label <resource-type> <resource-name> resourcetemplate.karmada.io/deletion-protected-";

/// The fenced blocks of a page, in their order.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(workspace().join("docs").join(page)).expect("the page is there");
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(opened) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            found.push((opened.to_owned(), block.join("\n")));
        }
    }
    let of_language = found.into_iter().filter(|(opened, _)| opened == language);
    of_language.map(|(_, block)| block).collect()
}

/// The first example of a page: nothing but its title is before it.
fn first(page: &str) -> String {
    let text = std::fs::read_to_string(workspace().join("docs").join(page)).expect("the page is there");
    let (before, _) = text.split_once("```yaml\n").expect("it has an example");
    assert_eq!(before.trim().lines().count(), 1, "{page} begins with its example: {before}");
    blocks(page, "yaml").remove(0)
}

/// Every line of a design's example is in the page's, in the same order, and what was added is needed by the API.
#[track_caller]
fn is_as_designed(example: &str, design: &str, added: &[&str]) {
    let mut designed =
        design.lines().filter(|line| !line.trim().is_empty() && line.trim() != "# ...").peekable();
    let mut left = added.iter().copied().peekable();
    for line in example.lines() {
        // A group without a version is what the API completes.
        let is_same = |design: &&str| line == *design || line == format!("{design}/v1");
        if designed.next_if(is_same).is_none() {
            assert!(left.next_if(|added| line.trim() == *added).is_some(), "what is {line:?} in {example}?");
        }
    }
    assert_eq!(designed.next(), None, "it is left out of {example}");
    assert_eq!(left.next(), None, "it is not needed in {example}");
}

async fn apply(cluster: &Cluster, example: &str) -> Said {
    let said = cluster.kubectl_with(["apply", "-f", "-"], example).await;
    assert!(said.ok, "{said:?}");
    said
}

#[test]
fn each_page_begins_with_the_example_of_its_design() {
    is_as_designed(&first("protections.md"), PROTECTION, &["apiVersion: palisade.dev/v1alpha1"]);
    is_as_designed(&first("budgets.md"), BUDGET, &["metadata:", "name: app-xxx"]);
    is_as_designed(&first("flow.md"), FLOW, &["name: default"]);
    is_as_designed(
        &first("critical.md"),
        CRITICAL,
        &["apiVersion: palisade.dev/v1alpha1", "metadata:", "name: for-finalizer-deployment"],
    );
    let pod_template = [
        "selector:",
        "matchLabels:",
        "app: foo",
        "template:",
        "metadata:",
        "labels:",
        "app: foo",
        "spec:",
        "containers:",
        "- name: foo",
        "image: example/foo",
    ];
    is_as_designed(&generated_example(), GENERATED, &pod_template);
    assert!(first("components.md").contains("kind: ComponentProtection"));
    let commands = blocks("labels.md", "sh");
    let named = |design: &str| design.replace("<resource-type> <resource-name>", "namespace minio");
    assert_eq!(commands[..2], [named(LABEL), named(LIFT)]);
}

fn generated_example() -> String {
    let of_workload = |block: &String| block.contains("kind: Deployment");
    blocks("budgets.md", "yaml").into_iter().find(of_workload).expect("an annotated workload")
}

#[test]
fn the_first_example_of_each_page_is_accepted_enforced_and_does_what_it_says() {
    separate("pages", async |cluster| {
        let cluster = &*cluster;
        protection(cluster).await;
        labels(cluster).await;
        budgets(cluster).await;
        critical(cluster).await;
        components(cluster).await;
        flow(cluster).await;
    });
}

async fn protection(cluster: &Cluster) {
    cluster.must("create namespace sample").await;
    for name in ["deployment-1", "deployment-2", "deployment-3"] {
        cluster.must(&format!("create deployment {name} --image=example/app --replicas=0 -n sample")).await;
    }
    for name in ["service-1", "service-2"] {
        cluster.must(&format!("create service clusterip {name} --tcp=80 -n sample")).await;
    }
    allowed(&apply(cluster, &first("protections.md")).await);
    cluster.must("wait rdp/sample --for=condition=Enforced --timeout=30s").await;
    for kept in ["deployment deployment-1", "deployment deployment-2", "service service-1"] {
        let said = cluster.kubectl(&format!("delete {kept} -n sample")).await;
        denied(&said, "Forbidden", "ResourceDeletionProtection \"sample\"");
    }
    for free in ["deployment deployment-3", "service service-2"] {
        allowed(&cluster.kubectl(&format!("delete {free} -n sample")).await);
    }
}

async fn labels(cluster: &Cluster) {
    let commands = blocks("labels.md", "sh");
    cluster.must("create namespace minio").await;
    allowed(&cluster.shell(&commands[0]).await);
    let said = cluster.kubectl("delete namespace minio").await;
    denied(&said, "Forbidden", "label resourcetemplate.karmada.io/deletion-protected=Always");
    assert_eq!(lifting(&said), commands[1], "the refusal prints what the page says");
    allowed(&cluster.shell(&commands[1]).await);
    allowed(&cluster.kubectl("delete namespace minio --wait=false").await);
}

async fn budgets(cluster: &Cluster) {
    cluster.apply(&definition("apps.kruise.io", "CloneSet", "clonesets", "Namespaced", &["v1alpha1"])).await;
    cluster.eventually("get --raw /apis/apps.kruise.io/v1alpha1/clonesets").await;
    cluster
        .apply("{apiVersion: apps.kruise.io/v1alpha1, kind: CloneSet, metadata: {name: app-xxx, namespace: default}, spec: {replicas: 0}}")
        .await;
    allowed(&apply(cluster, &first("budgets.md")).await);
    cluster.must("wait pub/app-xxx --for=condition=Enforced --timeout=30s").await;
    cluster.must("wait pub/app-xxx --for=condition=TargetFound --timeout=30s").await;
    let told =
        cluster.must("get pub app-xxx -o jsonpath={.status.deletedPods}{.status.unavailablePods}").await;
    assert!(!told.contains("xxx"), "the status is Palisade's: {told}");

    allowed(&apply(cluster, &generated_example()).await);
    let generated =
        "get pub deploy-foo -o jsonpath={.spec.targetRef.kind}/{.spec.targetRef.name}:{.spec.maxUnavailable}";
    cluster.eventually_prints(generated, |text| text == "Deployment/deploy-foo:20%").await;
    cluster.must("wait pub/deploy-foo --for=condition=Enforced --timeout=30s").await;
}

async fn critical(cluster: &Cluster) {
    let crd = "coolresources.my.crd.group";
    cluster.apply(&definition("my.crd.group", "CoolResource", "coolresources", "Namespaced", &["v1"])).await;
    cluster.eventually("get --raw /apis/my.crd.group/v1/coolresources").await;
    cluster
        .apply(
            "{apiVersion: my.crd.group/v1, kind: CoolResource, metadata: {name: some-instance, namespace: default, \
             finalizers: [my.crd.group/super-important]}}",
        )
        .await;
    cluster.must("create namespace finalizer-namespace").await;
    let deployment = "deployment finalizer-deployment -n finalizer-namespace";
    cluster.must(&format!("create {deployment} --image=example/app")).await;
    allowed(&apply(cluster, &first("critical.md")).await);
    cluster.must("wait crit/for-finalizer-deployment --for=condition=Enforced --timeout=30s").await;
    let said = cluster.kubectl(&format!("delete {deployment}")).await;
    denied(&said, "Conflict", &format!("1 {crd} still carries finalizer \"my.crd.group/super-important\""));
    denied(&said, "Conflict", &format!("customresourcedefinition \"{crd}\" is still there"));
    denied(
        &cluster.kubectl("delete namespace finalizer-namespace").await,
        "Conflict",
        "finalizer-deployment",
    );
    cluster.must(&format!("delete crd {crd} --wait=false")).await;
    let patch = r#"[{"op":"remove","path":"/metadata/finalizers"}]"#;
    cluster.must(&format!("patch {crd} some-instance --type=json -p {patch}")).await;
    cluster.must(&format!("wait crd/{crd} --for=delete --timeout=60s")).await;
    cluster.eventually(&format!("delete {deployment} --ignore-not-found")).await;
    cluster.eventually("delete crit for-finalizer-deployment --ignore-not-found").await;
}

async fn components(cluster: &Cluster) {
    cluster.apply(&definition("db.example", "Postgres", "postgreses", "Namespaced", &["v1"])).await;
    cluster.eventually("get --raw /apis/db.example/v1/postgreses").await;
    allowed(&apply(cluster, &first("components.md")).await);
    cluster.must("wait cprot/postgres --for=condition=Enforced --timeout=30s").await;
    cluster
        .apply("{apiVersion: db.example/v1, kind: Postgres, metadata: {name: main, namespace: default}}")
        .await;
    cluster
        .apply(
            "{apiVersion: v1, kind: Service, metadata: {name: main, namespace: default, labels: \
             {app.kubernetes.io/managed-by: postgres-operator, db.example/postgres: main}}, spec: {ports: [{port: 5432}]}}",
        )
        .await;
    let said = cluster.kubectl("delete service main").await;
    denied(&said, "Forbidden", "it is a component of postgres.db.example \"default/main\"");
    allowed(&cluster.shell(&lifting(&said)).await);
    allowed(&cluster.kubectl("delete service main").await);
}

async fn flow(cluster: &Cluster) {
    allowed(&apply(cluster, &first("flow.md")).await);
    cluster.must("wait pdfc/default --for=condition=Enforced --timeout=30s").await;
    let ns = cluster.namespace().await;
    cluster.pod(&ns, "listed").await;
    cluster.must(&format!("label pod listed -n {ns} xxx=foo")).await;
    cluster.pod(&ns, "counted").await;
    for name in ["listed", "counted"] {
        allowed(&cluster.kubectl(&format!("delete pod {name} -n {ns} --grace-period=1")).await);
    }
    let used = "get pdfc default -o jsonpath={.status.rules[?(@.interval=='1h')].used}";
    cluster.eventually_prints(used, |text| text == "1").await;
}
