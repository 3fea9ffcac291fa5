//! The guard of components, sentence by sentence.

use std::sync::Arc;

use futures::executor::block_on;
use palisade_api::components::{Components, druid};
use palisade_engine::{
    Action, Code, Expects, Object, Portion, ProtectedComponents, Review, Subject, Unknown, User, Verdict,
    decide, prose,
};
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Given, allowed, in_namespace, kind, outcome, refused, settings};

const DRUID: &str = "system:serviceaccount:garden:etcd-druid";
const GC: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
const MEMBER: &str = "system:serviceaccount:shop:main";
const LABELS: &str = r#""app.kubernetes.io/managed-by":"etcd-druid","app.kubernetes.io/part-of":"main""#;
const LIFT: &str = "kubectl annotate etcds.druid.gardener.cloud main -n shop druid.gardener.cloud/disable-etcd-component-protection=";

/// An Etcd that says what it is in the middle of.
fn etcd(operation: &str, state: &str) -> Value {
    json!({"metadata": {"name": "main"}, "status": {"lastOperation": {"type": operation, "state": state}}})
}

fn at_rest() -> Value {
    etcd("Reconcile", "Succeeded")
}

fn going() -> Value {
    json!({"metadata": {"name": "main", "deletionTimestamp": "2026-01-01T00:00:00Z"}})
}

fn world(parent: &Value) -> Given {
    let components = Ok(druid::components(DRUID, &[GC.to_owned()], &["sre".to_owned()]));
    Given {
        guarded: Ok(vec![Arc::new(ProtectedComponents { name: None, components })]),
        parent: Ok(Some(parent.clone())),
        ..Given::default()
    }
}

#[derive(Clone, Copy, Debug)]
enum How {
    Update,
    Status,
    Delete,
}

/// What is said to a user who changes an object from one text to another.
fn changed(of: &str, old: &str, new: &str, how: How, user: &str, world: &Given) -> Verdict {
    let subject = || Subject { kind: kind(of), object: Object::parse(old.as_bytes()).unwrap() };
    let new = || Object::parse(new.as_bytes()).unwrap();
    let action = match how {
        How::Update => Action::Change { subject: subject(), new: new(), part: Portion::Whole },
        How::Status => Action::Change { subject: subject(), new: new(), part: Portion::Status },
        How::Delete => Action::Delete(subject()),
    };
    decided(action, user, world)
}

fn decided(action: Action<'_>, user: &str, world: &Given) -> Verdict {
    let groups = if user == "joe" { vec!["sre".into()] } else { vec!["system:masters".into()] };
    let review = Review {
        action,
        user: User { name: user.into(), groups },
        propagation: None,
        is_owner: false,
        expects: Expects::default(),
        dry_run: false,
    };
    block_on(decide(&review, world, &settings()))
}

fn component(of: &str, how: How, user: &str, parent: &Value) -> Verdict {
    let object = in_namespace("shop", "main", LABELS, "{}");
    changed(of, &object, &object.replace("{}}", r#"{"x":1}}"#), how, user, &world(parent))
}

/// Who may do what while the parent is in which state: the seed's sentences and ours.
#[rstest]
#[case("at rest", at_rest(), [true, true], [true, true], [false, false])]
#[case("no status", json!({"metadata": {}}), [true, true], [true, true], [false, false])]
#[case("deleting by timestamp", going(), [true, true], [false, true], [false, false])]
#[case("deleting by operation", etcd("Delete", "Processing"), [true, true], [false, true], [false, false])]
#[case("deleting after an error", etcd("Delete", "Error"), [true, true], [false, true], [false, false])]
#[case("deleted", etcd("Delete", "Succeeded"), [true, true], [true, true], [false, false])]
#[case("reconciling", etcd("Reconcile", "Processing"), [true, true], [false, false], [false, false])]
#[case("reconciling after an error", etcd("Reconcile", "Error"), [true, true], [false, false], [false, false])]
#[case("reconciling again", etcd("Reconcile", "Requeue"), [true, true], [false, false], [false, false])]
#[case("creating", etcd("Create", "Processing"), [true, true], [true, true], [false, false])]
fn who_may_update_and_delete(
    #[case] state: &str,
    #[case] parent: Value,
    #[case] operator: [bool; 2],
    #[case] exempt: [bool; 2],
    #[case] others: [bool; 2],
    #[values("StatefulSet", "ConfigMap", "Service", "Lease", "Job")] of: &str,
) {
    let users =
        [(DRUID, operator), (GC, exempt), ("joe", exempt), ("jane", others), ("kubernetes-admin", others)];
    for (user, expected) in users {
        let may = [How::Update, How::Delete].map(|how| component(of, how, user, &parent).is_allowed());
        assert_eq!(may, expected, "{state}: {user} on {of}");
    }
}

#[test]
fn a_parent_that_goes_while_it_is_reconciled_is_going() {
    let mut both = etcd("Reconcile", "Processing");
    both["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(component("StatefulSet", How::Delete, GC, &both).is_allowed());
}

#[test]
fn a_refusal_names_the_parent_and_what_lifts_it() {
    let said = |how, parent: &Value| component("StatefulSet", how, "jane", parent);
    let is = "statefulset \"shop/main\" is managed by an operator: it is a component of etcd.druid.gardener.cloud \"shop/main\"";
    refused(
        &said(How::Delete, &at_rest()),
        403,
        &format!("{is}, and only etcd-druid may delete it. To lift it: {LIFT}"),
    );
    refused(
        &said(How::Update, &etcd("Reconcile", "Processing")),
        403,
        &format!("{is}, which is being reconciled, and only etcd-druid may change it. To lift it: {LIFT}"),
    );
    refused(
        &said(How::Update, &going()),
        403,
        &format!("{is}, which is being deleted, and only etcd-druid may change it. To lift it: {LIFT}"),
    );
}

#[test]
fn what_is_not_managed_or_has_no_parent_is_nobodys_business() {
    for labels in
        ["", r#""app.kubernetes.io/managed-by":"helm""#, r#""app.kubernetes.io/managed-by":"etcd-druid""#]
    {
        let object = in_namespace("shop", "main", labels, "{}");
        allowed(&changed("ConfigMap", &object, &object, How::Delete, "jane", &world(&at_rest())));
    }
    let object = in_namespace("shop", "main", LABELS, "{}");
    allowed(&changed("Deployment", &object, &object, How::Delete, "jane", &world(&at_rest())));
}

#[test]
fn a_missing_parent_allows_with_a_warning_and_one_that_cannot_be_asked_refuses() {
    let object = in_namespace("shop", "main", LABELS, "{}");
    let missing = Given { parent: Ok(None), ..world(&at_rest()) };
    let verdict = changed("ConfigMap", &object, &object, How::Delete, "jane", &missing);
    let warning = "configmap \"shop/main\": it is a component of Etcd \"main\", which is not there";
    assert_eq!(outcome(&verdict), (None, None, vec![warning.to_owned()]));
    let unknown = Unknown::new("what Etcd \"main\" is in the middle of", "no");
    let silent = Given { parent: Err(unknown), ..world(&at_rest()) };
    let verdict = changed("ConfigMap", &object, &object, How::Delete, "jane", &silent);
    assert_eq!(verdict.code(), Some(Code::Unavailable));
    assert!(
        changed("ConfigMap", &object, &object, How::Delete, DRUID, &silent).is_allowed(),
        "the operator works on"
    );
}

#[test]
fn the_annotation_switches_it_off_whatever_its_value() {
    for value in ["", "false", "yes"] {
        let mut parent = etcd("Reconcile", "Processing");
        parent["metadata"]["annotations"] =
            json!({"druid.gardener.cloud/disable-etcd-component-protection": value});
        allowed(&component("StatefulSet", How::Delete, "jane", &parent));
    }
}

#[test]
fn what_etcd_druid_no_longer_makes_is_anybodys() {
    let mut parent = etcd("Reconcile", "Processing");
    parent["metadata"]["annotations"] =
        json!({"druid.gardener.cloud/disable-etcd-runtime-component-creation": ""});
    for of in ["Service", "PodDisruptionBudget", "Lease", "Role", "RoleBinding", "ServiceAccount"] {
        for how in [How::Update, How::Delete] {
            allowed(&component(of, how, "jane", &parent));
            assert!(!component(of, how, "jane", &at_rest()).is_allowed(), "{of} without the annotation");
        }
    }
    for of in ["StatefulSet", "ConfigMap", "Job"] {
        for how in [How::Update, How::Delete] {
            assert!(!component(of, how, "jane", &parent).is_allowed(), "{of} is made all the same");
        }
    }
}

#[test]
fn a_job_that_copies_backups_belongs_to_its_task() {
    let task = json!({"kind": "EtcdCopyBackupsTask", "metadata": {"name": "main"}});
    let verdict = component("Job", How::Delete, "jane", &task);
    refused(
        &verdict,
        403,
        "job \"shop/main\" is managed by an operator: it is a component of etcdcopybackupstask.druid.gardener.cloud \
         \"shop/main\", and only etcd-druid may delete it. To lift it: kubectl annotate \
         etcdcopybackupstasks.druid.gardener.cloud main -n shop druid.gardener.cloud/disable-etcd-component-protection=",
    );
    allowed(&component("Job", How::Delete, DRUID, &task));
    allowed(&component("Job", How::Delete, GC, &task));
    let going =
        json!({"kind": "EtcdCopyBackupsTask", "metadata": {"name": "main", "deletionTimestamp": "x"}});
    allowed(&component("Job", How::Delete, GC, &going));
    assert!(!component("Job", How::Update, GC, &going).is_allowed());
    // Only a Job has such a parent; and the Etcd by that name comes first.
    assert!(component("ConfigMap", How::Delete, "jane", &task).is_allowed());
    let mut freed = at_rest();
    freed["metadata"]["annotations"] = json!({"druid.gardener.cloud/disable-etcd-component-protection": ""});
    allowed(&component("Job", How::Delete, "jane", &freed));
}

#[test]
fn a_member_may_update_leases_and_nothing_else() {
    for parent in [at_rest(), going(), etcd("Reconcile", "Processing")] {
        allowed(&component("Lease", How::Update, MEMBER, &parent));
        assert!(!component("Lease", How::Delete, MEMBER, &parent).is_allowed());
        assert!(!component("ConfigMap", How::Update, MEMBER, &parent).is_allowed());
        assert!(!component("Lease", How::Update, "system:serviceaccount:other:main", &parent).is_allowed());
    }
}

#[test]
fn stripping_labels_is_a_change_and_other_status_writes_are_none() {
    let (object, bare) = (in_namespace("shop", "main", LABELS, "{}"), in_namespace("shop", "main", "", "{}"));
    let world = world(&at_rest());
    for how in [How::Update, How::Status] {
        assert!(!changed("Service", &object, &bare, how, "jane", &world).is_allowed(), "{how:?}");
        allowed(&changed("Service", &bare, &object, how, "jane", &world));
    }
    let said = prose::refusal(&changed("Service", &object, &bare, How::Status, "jane", &world)).unwrap();
    assert!(said.contains("may change the labels and owners that it is known by"), "{said}");
    let counted = object.replace("{}}", r#"{},"status":{"x":1}}"#);
    allowed(&changed("Service", &object, &counted, How::Status, "jane", &world));
}

#[test]
fn a_scale_is_a_change_of_the_workload() {
    let scale = |name: &'static str, user: &str| {
        let action = Action::Scale {
            group: "apps".into(),
            plural: "statefulsets".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        decided(action, user, &world(&at_rest()))
    };
    let said = prose::refusal(&scale("main", "jane")).unwrap();
    assert!(said.contains("and only etcd-druid may scale it"), "{said}");
    allowed(&scale("other", "jane"));
    allowed(&scale("main", DRUID));
    allowed(&scale("main", GC));
}

#[test]
fn a_claim_is_known_by_its_labels_or_by_its_name_and_may_be_updated() {
    let labelled = in_namespace("shop", "data-main-0", LABELS, "{}");
    let bare = in_namespace("shop", "data-main-0", "", "{}");
    let claim = |object: &str, how: How, claimant: Option<&str>| {
        let world = Given { claimant: Ok(claimant.map(str::to_owned)), ..world(&at_rest()) };
        changed("PersistentVolumeClaim", object, object, how, "jane", &world).is_allowed()
    };
    assert!(!claim(&labelled, How::Delete, None));
    assert!(!claim(&bare, How::Delete, Some("main")));
    assert!(claim(&bare, How::Delete, None), "nobody's");
    assert!(claim(&labelled, How::Update, None));
    // Labels that name another do not hide whose it is.
    let relabelled = labelled.replace("main\"}", "nope\"}");
    assert_ne!(relabelled, labelled);
    let world = Given { claimant: Ok(Some("main".to_owned())), ..world(&at_rest()) };
    let verdict = changed("PersistentVolumeClaim", &relabelled, &relabelled, How::Delete, "jane", &world);
    assert!(prose::refusal(&verdict).unwrap().contains("\"shop/main\""));
}

#[test]
fn the_garbage_collector_cleans_up_after_a_parent_that_goes() {
    let spec = postgres(&json!({"ownedByParent": true}));
    let owned = r#"{"metadata":{"name":"db","namespace":"shop","ownerReferences":[
        {"apiVersion":"db.example/v1","kind":"Postgres","name":"main","uid":"u"}]}}"#;
    let may = |parent: &Value| {
        let world = generic(&spec, parent.clone());
        [How::Update, How::Delete].map(|how| changed("Service", owned, owned, how, GC, &world).is_allowed())
    };
    let mut parent = json!({"metadata": {}});
    assert_eq!(may(&parent), [false, false], "nobody exempts it");
    parent["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(may(&parent), [false, true]);
    parent["metadata"]["finalizers"] = json!(["orphan"]);
    assert_eq!(may(&parent), [true, true], "it takes owner references away");
}

#[test]
fn what_is_going_already_is_let_go() {
    let object = r#"{"metadata":{"name":"main","namespace":"shop","deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["x"],
        "labels":{"app.kubernetes.io/managed-by":"etcd-druid","app.kubernetes.io/part-of":"main"}}}"#;
    for how in [How::Update, How::Delete, How::Status] {
        allowed(&changed("ConfigMap", object, object, how, "jane", &world(&at_rest())));
    }
}

#[test]
fn the_gate_and_our_own_namespace_switch_it_off() {
    let object = in_namespace("palisade-system", "main", LABELS, "{}");
    allowed(&changed("ConfigMap", &object, &object, How::Delete, "jane", &world(&at_rest())));
    let mut off = settings();
    off.gates.component_protection = false;
    let object = in_namespace("shop", "main", LABELS, "{}");
    allowed(&crate::world::delete_with("ConfigMap", &object, &world(&at_rest()), &off));
}

fn postgres(rest: &Value) -> Value {
    let mut spec = json!({
        "parent": {"apiVersion": "db.example/v1", "kind": "Postgres"},
        "kinds": [{"apiVersion": "apps/v1", "kind": "StatefulSet"}, {"apiVersion": "v1", "kind": "Service"}],
        "operators": ["operator"],
        "disableAnnotation": "db.example/hands-off",
        "reconciling": [{"path": ".status.phase", "values": ["Reconciling"]}],
        "deleting": [{"path": ".status.phase", "values": ["Deleting"]}],
    });
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    spec
}

fn generic(spec: &Value, parent: Value) -> Given {
    let protected =
        ProtectedComponents { name: Some("postgres".to_owned()), components: Components::read(spec) };
    Given { guarded: Ok(vec![Arc::new(protected)]), parent: Ok(Some(parent)), ..Given::default() }
}

#[test]
fn any_operators_components_are_known_by_owner_and_removing_it_is_a_change() {
    let owned = r#"{"metadata":{"name":"db","namespace":"shop","ownerReferences":[
        {"apiVersion":"db.example/v1beta1","kind":"Postgres","name":"main","uid":"u"}]}}"#;
    let (bare, other) =
        (r#"{"metadata":{"name":"db","namespace":"shop"}}"#, owned.replace("Postgres", "MySQL"));
    let world = generic(&postgres(&json!({"ownedByParent": true})), json!({"metadata": {}}));
    for how in [How::Update, How::Status] {
        assert!(!changed("Service", owned, bare, how, "jane", &world).is_allowed(), "{how:?}");
    }
    allowed(&changed("Service", owned, owned, How::Update, "operator", &world));
    allowed(&changed("Service", &other, &other, How::Delete, "jane", &world));
    let said = prose::refusal(&changed("Service", owned, owned, How::Delete, "jane", &world)).unwrap();
    assert!(said.contains("only the operators of ComponentProtection \"postgres\" may delete it"), "{said}");
    assert!(
        said.ends_with("kubectl annotate postgress.db.example main -n shop db.example/hands-off="),
        "{said}"
    );
}

#[test]
fn states_are_read_by_paths() {
    let rest =
        json!({"selector": {"matchLabels": {"by": "pg"}}, "parentLabel": "pg", "exempt": {"users": ["ci"]}});
    let object = in_namespace("shop", "db", r#""by":"pg","pg":"main""#, "{}");
    let may = |phase: &str| {
        let world = generic(&postgres(&rest), json!({"metadata": {}, "status": {"phase": phase}}));
        [How::Update, How::Delete]
            .map(|how| changed("Service", &object, &object, how, "ci", &world).is_allowed())
    };
    assert_eq!(
        (may("Ready"), may("Reconciling"), may("Deleting")),
        ([true, true], [false, false], [false, true])
    );
}

#[rstest]
#[case(json!({}), "spec: give exactly one of selector and ownedByParent: true")]
#[case(json!({"ownedByParent": true, "selector": {"matchLabels": {"a": "b"}}}), "spec: give exactly one of selector and ownedByParent: true")]
#[case(json!({"ownedByParent": true, "kinds": []}), "spec.kinds: there are none")]
#[case(json!({"ownedByParent": true, "operators": []}), "spec.operators: there are none")]
#[case(json!({"ownedByParent": true, "parent": {"apiVersion": "v1", "kind": ""}}), "spec.parent: apiVersion and kind are both needed")]
#[case(
    json!({"ownedByParent": true, "reconciling": [{"path": "status.phase", "values": ["x"]}]}),
    "spec.reconciling[0].path: \"status.phase\" is no path such as .status.phase: it begins with a dot"
)]
#[case(json!({"ownedByParent": true, "colour": "red"}), "spec: unknown field `colour`")]
#[case(
    json!({"ownedByParent": true, "freeUpdates": [{"kinds": [{"apiVersion": "v1", "kind": "Service"}], "users": ["{name}"]}]}),
    "spec.freeUpdates[0].users: \"{name}\": {name} is not known; known are {namespace} and {parent}"
)]
fn what_makes_no_sense_is_refused_when_it_is_written(#[case] rest: Value, #[case] why: &str) {
    let json = json!({"metadata": {"name": "postgres"}, "spec": postgres(&rest)}).to_string();
    let subject =
        Subject { kind: kind("ComponentProtection"), object: Object::parse(json.as_bytes()).unwrap() };
    let verdict = decided(Action::Declare { subject, old: None }, "jane", &Given::default());
    assert_eq!(verdict.code(), Some(Code::Invalid));
    let said = prose::refusal(&verdict).unwrap();
    assert!(said.contains(why), "{said}");
}
