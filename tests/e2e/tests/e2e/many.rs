//! Many protected objects: a refusal counts them, and its commands list and lift exactly those.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cascade::{known, owned};
use crate::cluster::{Cluster, Said, allowed, denied, lifting, shared};
use crate::command_line::palisade;
use crate::labels::definition;

const LABEL: &str = "policy.kruise.io/delete-protection";
const KARMADA: &str = "resourcetemplate.karmada.io/deletion-protected";
const CASCADE: &str = "policy.kruise.io/disable-cascading-deletion";

/// What the printed commands list: `configmap/a`, or `shop: configmap/a` where they tell the namespace.
async fn listed(cluster: &Cluster, said: &Said) -> Vec<String> {
    let (_, list) = said.err.split_once(" To list them: ").unwrap_or_else(|| panic!("{said:?}"));
    let (commands, _) = list.split_once("; To lift it: ").unwrap_or_else(|| panic!("{said:?}"));
    let mut found = Vec::new();
    for command in commands.split(" && ") {
        let names =
            "-o jsonpath='{range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{\"\\n\"}{end}'";
        let names = if command.contains(" -l ") { names } else { "--show-kind --no-headers" };
        let printed = cluster.shell(&format!("{command} {names}")).await;
        assert!(printed.ok, "{command}: {printed:?}");
        let word = |line: &str| line.split_whitespace().next().unwrap_or_default().to_lowercase();
        found.extend(printed.out.lines().map(|line| {
            let word = word(line);
            let mut parts = word.split('/');
            let kind = parts.next().unwrap_or_default().split('.').next().unwrap_or_default().to_owned();
            format!("{kind}/{}", parts.next_back().unwrap_or_default())
        }));
    }
    found.sort();
    found
}

/// What a command may not change, of every object: its labels and annotations, and the resourceVersion of those that
/// nobody else writes.
async fn state(cluster: &Cluster, kinds: &str, place: &str) -> BTreeMap<String, Value> {
    let text = cluster.must(&format!("get {kinds} {place} -o json")).await;
    let list: Value = serde_json::from_str(&text).expect("a list");
    let items = list["items"].as_array().expect("items").iter();
    items
        .map(|item| {
            let metadata = &item["metadata"];
            let kind = item["kind"].as_str().unwrap_or_default().to_lowercase();
            let is_quiet = !["deployment", "replicaset", "pod"].contains(&&*kind);
            let version = if is_quiet { metadata["resourceVersion"].clone() } else { Value::Null };
            let mut annotations = metadata["annotations"].clone();
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.remove("deployment.kubernetes.io/revision");
                annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            }
            let name = metadata["name"].as_str().unwrap_or_default();
            (format!("{kind}/{name}"), serde_json::json!([metadata["labels"], annotations, version]))
        })
        .collect()
}

/// Pastes the commands into a shell: what was counted carries no mark any more, and nothing else has changed.
async fn lifts_exactly(cluster: &Cluster, said: &Said, kinds: &str, place: &str, counted: &BTreeSet<String>) {
    let before = state(cluster, kinds, place).await;
    let lifted = cluster.shell(&lifting(said)).await;
    assert!(lifted.ok, "{}: {lifted:?}", lifting(said));
    let after = state(cluster, kinds, place).await;
    for (name, was) in before {
        let is = after.get(&name).cloned().unwrap_or_default();
        if counted.contains(&name) {
            let text = is.to_string();
            assert!(![LABEL, KARMADA, CASCADE].iter().any(|key| text.contains(key)), "{name} is {is}");
        } else if !name.starts_with("replicaset/") || was.to_string().contains(LABEL) {
            // The annotations of a Deployment are its ReplicaSets', too.
            assert_eq!(is, was, "{name}");
        }
    }
}

fn names(counted: &[&str]) -> BTreeSet<String> {
    counted.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_namespace_counts_what_it_holds_and_prints_commands_for_exactly_that() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let counted = names(&[
            "configmap/a1",
            "configmap/a2",
            "configmap/a3",
            "configmap/a4",
            "configmap/b1",
            "configmap/b2",
            "configmap/both",
            "deployment/annotated",
            "deployment/c1",
            "deployment/c2",
            "deployment/c3",
            "pod/bare",
            "secret/typo1",
            "secret/typo2",
        ]);
        let maps = "a1 a2 a3 a4 b1 b2 both free";
        for name in maps.split(' ') {
            cluster.must(&format!("create configmap {name} -n {ns}")).await;
        }
        cluster.must(&format!("label configmap a1 a2 a3 a4 both -n {ns} {LABEL}=Always")).await;
        cluster.must(&format!("label configmap b1 b2 both -n {ns} {KARMADA}=Always")).await;
        cluster.must(&format!("label configmap free -n {ns} {KARMADA}=Never")).await;
        for name in ["typo1", "typo2", "free"] {
            cluster.must(&format!("create secret generic {name} -n {ns}")).await;
        }
        cluster.must(&format!("label secret typo1 typo2 -n {ns} {LABEL}=alway")).await;
        for (name, replicas) in [("c1", 1), ("c2", 1), ("c3", 1), ("none", 0), ("annotated", 1), ("free", 0)]
        {
            let deployment = format!("deployment {name} --image=example/app --replicas={replicas} -n {ns}");
            cluster.must(&format!("create {deployment}")).await;
        }
        cluster.must(&format!("label deployment c1 c2 c3 none -n {ns} {LABEL}=Cascading")).await;
        cluster.must(&format!("annotate deployment annotated -n {ns} {CASCADE}=true")).await;
        // Its ReplicaSet and its pod carry a copy.
        let template = format!(
            "{{metadata: {{labels: {{app: t, {LABEL}: Always}}}}, spec: {{containers: [{{name: a, image: example/app}}]}}}}"
        );
        cluster
            .apply(&format!(
                "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: templated, namespace: {ns}}}, spec: {{replicas: 1, \
                 selector: {{matchLabels: {{app: t}}}}, template: {template}}}}}"
            ))
            .await;
        cluster.pod(&ns, "bare").await;
        cluster.must(&format!("label pod bare -n {ns} {LABEL}=Always")).await;
        for name in ["c1", "c2", "c3", "annotated", "templated"] {
            cluster.must(&format!("rollout status deployment {name} -n {ns} --timeout=60s")).await;
        }

        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        denied(&said, "Forbidden", ": 14 protected objects would go with it: ");
        assert_eq!(listed(cluster, &said).await, counted.iter().cloned().collect::<Vec<_>>(), "{said:?}");
        // Its Cascading has nothing to keep in one of them, so those that it keeps are named.
        let command = format!("kubectl label deployments.apps c1 c2 c3 -n {ns} {LABEL}-");
        assert!(lifting(&said).contains(&command), "{said:?}");
        let command = format!("kubectl label configmap -n {ns} -l {LABEL}=Always {LABEL}-");
        assert!(lifting(&said).contains(&command), "{said:?}");

        let why = palisade(cluster, &format!("why namespace {ns}")).await;
        assert!(said.err.contains(why.out.trim()), "{why:?} beside {said:?}");
        let json = palisade(cluster, &format!("why namespace {ns} -o json")).await;
        let json: Value = serde_json::from_str(&json.out).expect("json");
        let lift: Vec<&str> =
            json["lift"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert_eq!(lift.join(" && "), lifting(&said));

        let kinds = "configmaps,secrets,pods,deployments,replicasets,serviceaccounts";
        lifts_exactly(cluster, &said, kinds, &format!("-n {ns}"), &counted).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
        cluster.must(&format!("wait namespace/{ns} --for=delete --timeout=80s")).await;
    });
}

#[test]
fn a_definition_counts_its_custom_resources_in_every_namespace() {
    shared(async |cluster| {
        let crd = "gadgets.many.example.com";
        cluster.apply(&definition("many.example.com", "Gadget", "gadgets", "Namespaced", &["v1"])).await;
        cluster.eventually("get --raw /apis/many.example.com/v1/gadgets").await;
        let mut counted = BTreeSet::new();
        let mut manifests = Vec::new();
        for place in 0..3 {
            let ns = cluster.namespace().await;
            for number in 0..6 {
                // Two of each namespace are free, but for one that has another label.
                let labels = match (place, number) {
                    (0..3, 0..4) => format!("{LABEL}: Always"),
                    (1 | 2, 4) => format!("{KARMADA}: Always"),
                    (0, 4) => format!("{KARMADA}: Never"),
                    _ => String::new(),
                };
                let name = format!("g{place}{number}");
                manifests.push(format!(
                    "{{apiVersion: many.example.com/v1, kind: Gadget, metadata: {{name: {name}, namespace: {ns}, labels: {{{labels}}}}}}}"
                ));
                if labels.contains("Always") {
                    counted.insert(format!("gadget/{name}"));
                }
            }
        }
        assert_eq!(counted.len(), 14);
        cluster.apply(&manifests.join("\n---\n")).await;
        let said = cluster.kubectl(&format!("delete crd {crd}")).await;
        denied(&said, "Forbidden", ": 14 protected objects would go with it: ");
        assert_eq!(listed(cluster, &said).await, counted.iter().cloned().collect::<Vec<_>>(), "{said:?}");
        let command = format!("kubectl label {crd} -A -l {LABEL}=Always {LABEL}-");
        assert!(lifting(&said).contains(&command), "{said:?}");
        lifts_exactly(cluster, &said, crd, "-A", &counted).await;
        allowed(&cluster.kubectl(&format!("delete crd {crd} --timeout=60s")).await);
    });
}

#[test]
fn an_owner_counts_only_what_would_go_with_it() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let top = owned(cluster, &ns, "top", "", &[]).await;
        let owner = format!("[{{apiVersion: v1, kind: ConfigMap, name: top, uid: {top}}}]");
        let mut counted = BTreeSet::new();
        let mut manifests = Vec::new();
        for number in 0..14 {
            let kind = if number < 6 { "ConfigMap" } else { "Secret" };
            counted.insert(format!("{}/o{number:02}", kind.to_lowercase()));
            manifests.push(format!(
                "{{apiVersion: v1, kind: {kind}, metadata: {{name: o{number:02}, namespace: {ns}, labels: {{{LABEL}: Always}}, \
                 ownerReferences: {owner}}}}}"
            ));
        }
        cluster.apply(&manifests.join("\n---\n")).await;
        // Somebody else's, with the same label.
        owned(cluster, &ns, "other", &format!("{LABEL}: Always"), &[]).await;
        known(cluster, &top).await;
        let said = cluster.kubectl(&format!("delete configmap top -n {ns} --wait=false")).await;
        denied(&said, "Forbidden", ": 14 protected objects would go with it: ");
        assert_eq!(listed(cluster, &said).await, counted.iter().cloned().collect::<Vec<_>>(), "{said:?}");
        let commands = lifting(&said);
        let named = format!("kubectl label configmap o00 o01 o02 o03 o04 o05 -n {ns} {LABEL}-");
        let selected = format!("kubectl label secret -n {ns} -l {LABEL}=Always {LABEL}-");
        assert!(commands.contains(&named) && commands.contains(&selected), "{commands}");
        lifts_exactly(cluster, &said, "configmaps,secrets", &format!("-n {ns}"), &counted).await;
        allowed(&cluster.kubectl(&format!("delete configmap top -n {ns} --wait=false")).await);
        cluster.must(&format!("label configmap other -n {ns} {LABEL}-")).await;
    });
}
