//! Rules for whatever there is: whom they bind, and what goes on under them.

use std::collections::BTreeMap;

use futures::executor::block_on;
use palisade_engine::{
    Action, Object, OwnerState, Part, Portion, Review, SourceMarks, Subject, Unknown, User, Verdict, decide,
};
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Given, allowed, delete_as, kind, outcome, review, settings};

const CONTROLLER: &str = "system:serviceaccount:kube-system:replicaset-controller";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
const NAMESPACES: &str = "system:serviceaccount:kube-system:namespace-controller";
const TTL: &str = "system:serviceaccount:kube-system:ttl-after-finished-controller";
const POD_GC: &str = "system:serviceaccount:kube-system:pod-garbage-collector";
const MANAGER: &str = "system:kube-controller-manager";
const OPERATOR: &str = "system:serviceaccount:cert-manager:cert-manager";
const JANE: &str = "jane";

fn everything() -> Value {
    json!({"kind": "*", "namespace": "prod-*"})
}

fn pods() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod"})
}

fn there(is_terminating: bool) -> OwnerState {
    OwnerState::There { labels: SourceMarks::default(), is_terminating }
}

fn protecting(selector: &Value, except: &Value) -> Given {
    let entry = if except.is_null() {
        json!({"resourceSelector": [selector]})
    } else {
        json!({"resourceSelector": [selector], "except": except})
    };
    let owner = |state: OwnerState| Ok(state);
    let owners = [
        ("live", owner(there(false))),
        ("going", owner(there(true))),
        ("gone", owner(OwnerState::Gone)),
        ("unreadable", Err(Unknown::new("what its owner looks like", "timeout"))),
    ];
    Given {
        owners: BTreeMap::from(owners.map(|(uid, state)| (uid.to_owned(), state))),
        namespaces: BTreeMap::from([(
            "prod-a".to_owned(),
            BTreeMap::from([("tier".into(), "scratch".into())]),
        )]),
        ..Given::protected(&[("default", json!({"protectedResources": [entry]}))])
    }
}

/// An object, and the uid of its controller: `live`, `going`, `gone`, `unreadable`, or none at all.
fn object(owner: &str, labels: &Value, spec: &Value) -> String {
    let owner = match owner {
        "" => json!([]),
        "pod" => json!([{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "gone", "controller": true}]),
        "mere" => json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "live"}]),
        uid => {
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": uid, "controller": true}])
        }
    };
    json!({"metadata": {"name": "x", "namespace": "prod-a", "labels": labels, "ownerReferences": owner}, "spec": spec})
        .to_string()
}

fn code(verdict: &Verdict) -> u16 {
    outcome(verdict).0.unwrap_or(200)
}

#[rstest]
// A controller's pods come back, whoever deletes them.
#[case::people(everything(), JANE, "Pod", "live", 200)]
#[case::tools(everything(), OPERATOR, "Pod", "live", 200)]
#[case::controllers(everything(), CONTROLLER, "Pod", "live", 200)]
#[case::collected(everything(), COLLECTOR, "Pod", "gone", 200)]
#[case::with_the_namespace(everything(), NAMESPACES, "Pod", "live", 200)]
#[case::it_does_not_come_back(everything(), JANE, "Pod", "gone", 403)]
#[case::nobody_knows(everything(), JANE, "Pod", "unreadable", 503)]
#[case::no_controller(everything(), JANE, "Pod", "mere", 403)]
#[case::of_nobody(everything(), JANE, "Pod", "", 403)]
#[case::its_node_is_gone(everything(), POD_GC, "Pod", "", 200)]
#[case::preempted(everything(), "system:kube-scheduler", "Pod", "", 200)]
#[case::of_nobody_collected(everything(), COLLECTOR, "Pod", "", 403)]
// Where the rule names pods, people do not.
#[case::named_people(pods(), JANE, "Pod", "live", 403)]
#[case::named_operator(pods(), OPERATOR, "Pod", "live", 200)]
#[case::named_controller(pods(), CONTROLLER, "Pod", "live", 200)]
#[case::named_collected(pods(), COLLECTOR, "Pod", "gone", 403)]
#[case::named_of_nobody(pods(), POD_GC, "Pod", "", 403)]
// Anything else of a controller's.
#[case::person(everything(), JANE, "ReplicaSet", "live", 403)]
#[case::its_controller(everything(), CONTROLLER, "ReplicaSet", "live", 200)]
#[case::an_operators(everything(), OPERATOR, "ConfigMap", "live", 200)]
#[case::cleaned_up_by_an_operator(everything(), OPERATOR, "ConfigMap", "going", 200)]
#[case::an_operators_without_owner(everything(), OPERATOR, "ConfigMap", "gone", 403)]
#[case::an_operators_that_it_is_not_controller_of(everything(), OPERATOR, "ConfigMap", "mere", 403)]
#[case::an_operators_unknown(everything(), OPERATOR, "ConfigMap", "unreadable", 503)]
#[case::a_cascade(everything(), COLLECTOR, "ConfigMap", "gone", 403)]
#[case::a_cascade_in_the_foreground(everything(), COLLECTOR, "ConfigMap", "going", 403)]
#[case::a_namespaces_cascade(everything(), NAMESPACES, "ConfigMap", "live", 403)]
#[case::a_pods_claim(everything(), COLLECTOR, "PersistentVolumeClaim", "pod", 200)]
#[case::a_pods_claim_by_hand(everything(), JANE, "PersistentVolumeClaim", "pod", 403)]
// A controller manager without accounts of its own may be any of them.
#[case::manager(everything(), MANAGER, "ReplicaSet", "live", 200)]
#[case::manager_collects(everything(), MANAGER, "ReplicaSet", "gone", 403)]
#[case::manager_collects_in_the_foreground(everything(), MANAGER, "ReplicaSet", "going", 403)]
// What nobody owns.
#[case::of_people(everything(), CONTROLLER, "ConfigMap", "", 403)]
#[case::of_an_operator(everything(), OPERATOR, "ConfigMap", "", 403)]
#[case::transient(everything(), JANE, "Lease", "", 200)]
fn who_may_delete(
    #[case] rule: Value,
    #[case] user: &str,
    #[case] of: &str,
    #[case] owner: &str,
    #[case] expected: u16,
) {
    let world = protecting(&rule, &Value::Null);
    let verdict = delete_as(user, of, &object(owner, &json!({}), &json!({"replicas": 1})), &world);
    assert_eq!(code(&verdict), expected, "{:?}", outcome(&verdict));
}

#[rstest]
#[case(json!({"name": "x"}))]
#[case(json!({"namespace": "prod-*"}))]
#[case(json!({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}))]
#[case(json!({"namespaceSelector": {"matchLabels": {"tier": "scratch"}}}))]
fn a_rule_that_says_more_than_a_kind_binds_everybody(#[case] more: Value) {
    let mut named = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet"});
    named.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let world = protecting(&named, &Value::Null);
    for user in [JANE, OPERATOR, CONTROLLER, COLLECTOR] {
        let verdict =
            delete_as(user, "ReplicaSet", &object("live", &json!({}), &json!({"replicas": 1})), &world);
        assert_eq!(code(&verdict), 403, "{user}");
    }
}

#[test]
fn finished_jobs_go_when_their_time_is_over() {
    let world = protecting(&everything(), &Value::Null);
    let job = |ttl: Value| object("", &json!({}), &json!({"ttlSecondsAfterFinished": ttl}));
    assert_eq!(code(&delete_as(TTL, "Job", &job(json!(1)), &world)), 200);
    assert_eq!(code(&delete_as(MANAGER, "Job", &job(json!(1)), &world)), 200);
    assert_eq!(code(&delete_as(MANAGER, "Job", &job(Value::Null), &world)), 403);
    assert_eq!(code(&delete_as(JANE, "Job", &job(json!(1)), &world)), 403);
    assert_eq!(code(&delete_as(TTL, "ConfigMap", &job(json!(1)), &world)), 403);
}

#[rstest]
#[case::everything(everything(), "live", 200)]
#[case::of_nobody(everything(), "", 403)]
#[case::its_owner_is_gone(everything(), "gone", 403)]
#[case::the_rule_names_pods(pods(), "live", 403)]
fn evictions(#[case] rule: Value, #[case] owner: &str, #[case] expected: u16) {
    for user in [JANE, OPERATOR] {
        let pod = object(owner, &json!({}), &json!({}));
        let world = Given { pod: Ok(Some(pod)), ..protecting(&rule, &Value::Null) };
        let asked = Review {
            user: User { name: user.into(), groups: Vec::new() },
            ..review(Action::Evict { namespace: "prod-a".into(), name: "x".into() })
        };
        assert_eq!(code(&block_on(decide(&asked, &world, &settings()))), expected, "{user}");
    }
}

#[rstest]
#[case::kind(json!([{"apiVersion": "v1", "kind": "ConfigMap"}]), 200)]
#[case::another_kind(json!([{"apiVersion": "v1", "kind": "Secret"}]), 403)]
#[case::name(json!([{"kind": "*", "name": "x"}]), 200)]
#[case::pattern(json!([{"kind": "*", "name": "y-*"}, {"kind": "*", "name": "x*"}]), 200)]
#[case::another_name(json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "y"}]), 403)]
#[case::namespace(json!([{"kind": "*", "namespace": "prod-a"}]), 200)]
#[case::another_namespace(json!([{"kind": "*", "namespace": "prod-b*"}]), 403)]
#[case::labels(json!([{"kind": "*", "labelSelector": {"matchLabels": {"app": "web"}}}]), 200)]
#[case::other_labels(json!([{"kind": "*", "labelSelector": {"matchLabels": {"app": "db"}}}]), 403)]
#[case::namespace_labels(json!([{"kind": "*", "namespaceSelector": {"matchLabels": {"tier": "scratch"}}}]), 200)]
#[case::other_namespace_labels(json!([{"kind": "*", "namespaceSelector": {"matchLabels": {"tier": "prod"}}}]), 403)]
fn exceptions(#[case] except: Value, #[case] expected: u16) {
    let world = protecting(&everything(), &except);
    let verdict = delete_as(JANE, "ConfigMap", &object("", &json!({"app": "web"}), &json!({})), &world);
    assert_eq!(code(&verdict), expected, "{:?}", outcome(&verdict));
    // A Namespace is guarded by what is in it, and by nothing that is excepted.
    let inside = vec![("ConfigMap", object("", &json!({"app": "web"}), &json!({})))];
    let namespace = json!({"metadata": {"name": "prod-a", "labels": {"tier": "scratch"}}}).to_string();
    let world = Given { objects: Ok(inside), ..world };
    assert_eq!(code(&delete_as(JANE, "Namespace", &namespace, &world)), expected);
}

#[test]
fn a_controllers_pods_guard_nothing() {
    let namespace = json!({"metadata": {"name": "prod-a"}}).to_string();
    for (rule, expected) in [(everything(), 200), (pods(), 403)] {
        let inside = vec![("Pod", object("live", &json!({}), &json!({})))];
        let world = Given { objects: Ok(inside), ..protecting(&rule, &Value::Null) };
        assert_eq!(code(&delete_as(JANE, "Namespace", &namespace, &world)), expected, "{rule}");
    }
}

fn change(of: &str, user: &str, old: &str, new: &str, world: &Given) -> Verdict {
    let subject = Subject { kind: kind(of), object: Object::parse(old.as_bytes()).unwrap() };
    let new = Object::parse(new.as_bytes()).unwrap();
    let action = if of == "Pod" {
        Action::Update { pod: subject, new, part: Part::Whole }
    } else {
        Action::Change { subject, new, part: Portion::Whole }
    };
    let asked = Review { user: User { name: user.into(), groups: Vec::new() }, ..review(action) };
    block_on(decide(&asked, world, &settings()))
}

#[test]
fn to_enter_an_exception_is_to_leave_the_rule() {
    let by_label = |value: &str| json!({"kind": "*", "labelSelector": {"matchLabels": {"app": value}}});
    let world = protecting(&everything(), &json!([by_label("scratch")]));
    let with = |app: &str| object("", &json!({"app": app}), &json!({}));
    let refused = change("ConfigMap", JANE, &with("web"), &with("scratch"), &world);
    let (code, message, _) = outcome(&refused);
    assert_eq!(code, Some(403));
    assert!(message.unwrap().contains("This change of its labels would end that."));
    allowed(&change("ConfigMap", JANE, &with("web"), &with("api"), &world));
    allowed(&change("ConfigMap", JANE, &with("scratch"), &with("web"), &world));
    // Together with the labels of the namespace, too.
    let both = json!([{"kind": "*", "labelSelector": {"matchLabels": {"app": "scratch"}},
        "namespaceSelector": {"matchLabels": {"tier": "scratch"}}}]);
    let world = protecting(&everything(), &both);
    assert_eq!(outcome(&change("ConfigMap", JANE, &with("web"), &with("scratch"), &world)).0, Some(403));
}

#[rstest]
#[case::a_person(JANE, "", "live", 403)]
#[case::a_person_invents_one(JANE, "", "gone", 403)]
#[case::an_account_of_the_namespace("system:serviceaccount:prod-a:default", "", "live", 403)]
#[case::an_operator(OPERATOR, "", "live", 200)]
#[case::kubernetes(CONTROLLER, "", "live", 200)]
#[case::another_controller(JANE, "live", "going", 403)]
#[case::the_same(JANE, "live", "live", 200)]
#[case::none_any_more(JANE, "live", "", 200)]
#[case::an_owner_that_is_no_controller(JANE, "", "mere", 200)]
fn nobody_makes_an_object_a_controllers_to_delete_it(
    #[case] user: &str,
    #[case] old: &str,
    #[case] new: &str,
    #[case] expected: u16,
    #[values("ConfigMap", "Pod")] of: &str,
) {
    let world = protecting(&everything(), &Value::Null);
    let object = |owner: &str| object(owner, &json!({}), &json!({}));
    let verdict = change(of, user, &object(old), &object(new), &world);
    let (code, message, _) = outcome(&verdict);
    assert_eq!(code.unwrap_or(200), expected);
    if let Some(message) = message {
        assert!(message.contains("To make it a controller's would end that."), "{message}");
    }
}
