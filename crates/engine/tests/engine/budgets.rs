//! Budgets: which losses count, and what is said about them.

use std::sync::Mutex;

use futures::executor::block_on;
use palisade_engine::{
    Action, Code, Expects, Kind, Loss, Object, Part, Refused, Review, Spent, Standing, Subject, Unknown,
    User, Verdict, decide,
};
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Given, allowed, kind, outcome, refused, settings};

/// A pod that serves.
pub(crate) fn pod() -> Value {
    json!({
        "metadata": {"name": "web-0", "namespace": "shop", "uid": "u", "resourceVersion": "7", "labels": {"app": "web"}},
        "spec": {
            "containers": [
                {"name": "app", "image": "app:1", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                 "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"},
                                  {"resourceName": "memory", "restartPolicy": "RestartContainer"}]},
                {"name": "log", "image": "log:1"}],
            "initContainers": [{"name": "init", "image": "init:1"}, {"name": "side", "image": "side:1", "restartPolicy": "Always"}],
            "readinessGates": [{"conditionType": "example.com/lb"}],
            "tolerations": [],
        },
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"}, {"type": "example.com/lb", "status": "True"}]},
    })
}

/// The pod with one place of it changed.
pub(crate) fn changed(at: &str, to: &Value) -> Value {
    let mut pod = pod();
    match at.rsplit_once('/') {
        Some((parent, key)) if pod.pointer(at).is_none() => {
            pod.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = to.clone();
        }
        _ => *pod.pointer_mut(at).unwrap() = to.clone(),
    }
    pod
}

fn spent() -> Spent {
    let standing = Standing { budget: "web".into(), allowed: 0, available: 9, desired: 9, total: 10 };
    Spent { refused: vec![Refused::Budget(standing)], passed: vec![] }
}

pub(crate) fn review<'a>(action: Action<'a>, user: &'a str, groups: &[&'a str]) -> Review<'a> {
    Review {
        action,
        user: User { name: user.into(), groups: groups.iter().map(|&group| group.into()).collect() },
        propagation: None,
        is_owner: false,
        expects: Expects::default(),
        dry_run: false,
    }
}

pub(crate) fn subject(json: &str) -> Subject<'_> {
    Subject { kind: Kind::POD, object: Object::parse(json.as_bytes()).unwrap() }
}

pub(crate) fn delete(pod: &Value, world: &Given) -> Verdict {
    let text = pod.to_string();
    block_on(decide(&review(Action::Delete(subject(&text)), "jane", &[]), world, &settings()))
}

fn update_by(old: &Value, new: &Value, part: Part, groups: &[&str]) -> Option<Loss> {
    let (old, new) = (old.to_string(), new.to_string());
    let world = Given { spent: spent(), ..Given::default() };
    let action = Action::Update { pod: subject(&old), new: Object::parse(new.as_bytes()).unwrap(), part };
    block_on(decide(&review(action, "jane", groups), &world, &settings()));
    world.losses.lock().unwrap().first().map(|(loss, _)| loss.clone())
}

fn update(at: &str, to: &Value, part: Part) -> Option<Loss> {
    update_by(&pod(), &changed(at, to), part, &["dev"])
}

#[test]
fn a_spent_budget_refuses_with_its_numbers_and_the_next_command() {
    let world = Given { spent: spent(), ..Given::default() };
    refused(
        &delete(&pod(), &world),
        429,
        "pod \"shop/web-0\" has to stay available (this deletes it): budget \"web\" allows 0 more unavailable pods now \
         (9 available, 9 desired, 10 total). Wait until more are: kubectl get pub web -n shop -w. To lift it: \
         kubectl annotate pod web-0 -n shop pub.kruise.io/no-protect=true",
    );
}

#[test]
fn what_could_not_be_found_out_is_tried_again() {
    let unknown = Refused::BudgetsUnknown(Unknown::new("whether its budgets allow it", "no answer"));
    let world = Given { spent: Spent { refused: vec![unknown], passed: vec![] }, ..Given::default() };
    let (code, message, _) = outcome(&delete(&pod(), &world));
    assert_eq!(code, Some(429), "a drain waits for it");
    assert!(message.unwrap().contains("whether its budgets allow it could not be found out (no answer)"));
}

#[rstest]
#[case("/status/phase", json!("Pending"))]
#[case("/status/phase", json!("Succeeded"))]
#[case("/status/conditions/0/status", json!("False"))]
#[case("/status/conditions/1/status", json!("False"))]
#[case("/status/conditions", json!([]))]
#[case("/status", json!({}))]
#[case("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))]
#[case("/metadata/labels/unavailable-pod.kruise.io~1hot", json!(""))]
#[case("/metadata/annotations", json!({"pub.kruise.io/no-protect": "true"}))]
fn a_pod_that_is_not_available_costs_nothing(#[case] at: &str, #[case] to: Value) {
    let world = Given { spent: spent(), ..Given::default() };
    allowed(&delete(&changed(at, &to), &world));
    assert!(world.losses.lock().unwrap().is_empty());
}

#[rstest]
#[case("/metadata/annotations", json!({"pub.kruise.io/no-protect": "false"}))]
#[case("/spec/readinessGates", json!([]))]
#[case("/status/conditions/1/type", json!("Ready"))]
fn these_change_nothing_about_it(#[case] at: &str, #[case] to: Value) {
    let mut pod = changed(at, &to);
    if at.starts_with("/status") {
        pod["spec"]["readinessGates"] = json!([]);
    }
    assert_eq!(
        delete(&pod, &Given { spent: spent(), ..Given::default() }).code().map(Code::status),
        Some(429)
    );
}

#[rstest]
#[case("/spec/containers/0/image", json!("app:2"), Part::Whole, Some(Loss::Update("spec.containers[app]".into())))]
#[case("/spec/containers/1/image", json!("log:2"), Part::Whole, Some(Loss::Update("spec.containers[log]".into())))]
#[case("/spec/initContainers/1/image", json!("side:2"), Part::Whole, Some(Loss::Update("spec.initContainers[side]".into())))]
#[case("/spec/initContainers/0/image", json!("init:2"), Part::Whole, None)]
#[case("/spec/tolerations", json!([{"key": "x"}]), Part::Whole, None)]
#[case("/spec/activeDeadlineSeconds", json!(1), Part::Whole, Some(Loss::Update("spec.activeDeadlineSeconds".into())))]
#[case("/spec/terminationGracePeriodSeconds", json!(1), Part::Whole, None)]
#[case("/metadata/labels/version", json!("2"), Part::Whole, Some(Loss::Parting))]
#[case("/metadata/labels", json!({}), Part::Status, Some(Loss::Parting))]
#[case("/metadata/ownerReferences", json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "y", "controller": true}]), Part::Whole, Some(Loss::Parting))]
#[case("/metadata/annotations", json!({"note": "x"}), Part::Whole, None)]
#[case("/metadata/labels/unavailable-pod.kruise.io~1hot", json!("x"), Part::Whole, Some(Loss::HotUpgrade("unavailable-pod.kruise.io/hot".into())))]
#[case("/metadata/labels/unavailable-pod.kruise.io~1hot", json!("x"), Part::Status, Some(Loss::HotUpgrade("unavailable-pod.kruise.io/hot".into())))]
#[case("/spec/containers/0/resources/requests/memory", json!("2Gi"), Part::Resize, Some(Loss::Resize("memory of container app".into())))]
#[case("/spec/containers/0/resources/limits", json!({"memory": "2Gi"}), Part::Resize, Some(Loss::Resize("memory of container app".into())))]
#[case("/spec/containers/0/resources/requests/cpu", json!("2"), Part::Resize, None)]
#[case("/spec/containers/1/resources", json!({"requests": {"memory": "1Gi"}}), Part::Resize, None)]
#[case("/status/conditions/1/status", json!("False"), Part::Status, Some(Loss::Gate("example.com/lb".into())))]
#[case("/status/conditions/1/status", json!("Unknown"), Part::Status, Some(Loss::Gate("example.com/lb".into())))]
#[case("/status/conditions", json!([{"type": "Ready", "status": "True"}]), Part::Status, Some(Loss::Gate("example.com/lb".into())))]
#[case("/status/conditions/0/status", json!("False"), Part::Status, Some(Loss::Unready))]
#[case("/status/conditions/0/status", json!("Unknown"), Part::Status, Some(Loss::Unready))]
#[case("/status/conditions", json!([]), Part::Status, Some(Loss::Unready))]
#[case("/status/phase", json!("Failed"), Part::Status, Some(Loss::Phase("Failed".into())))]
#[case("/status/phase", json!("Succeeded"), Part::Status, Some(Loss::Phase("Succeeded".into())))]
#[case("/status/phase", json!("Pending"), Part::Status, Some(Loss::Phase("Pending".into())))]
#[case("/status/message", json!("x"), Part::Status, None)]
fn which_updates_take_a_pod_down(
    #[case] at: &str,
    #[case] to: Value,
    #[case] part: Part,
    #[case] loss: Option<Loss>,
) {
    assert_eq!(update(at, &to, part), loss);
}

#[test]
fn the_kubelet_says_how_things_are() {
    let closed = changed("/status/conditions/1/status", &json!("False"));
    assert_eq!(update_by(&pod(), &closed, Part::Status, &["system:nodes"]), None);
    let failed = changed("/status/phase", &json!("Failed"));
    assert_eq!(update_by(&pod(), &failed, Part::Status, &["system:nodes"]), None);
    assert_eq!(
        update_by(&pod(), &failed, Part::Status, &["system:masters"]),
        Some(Loss::Phase("Failed".into()))
    );
}

#[test]
fn a_mark_that_was_there_already_takes_nothing_more_down() {
    let marked = changed("/metadata/labels/unavailable-pod.kruise.io~1hot", &json!("x"));
    let mut again = marked.clone();
    again["metadata"]["labels"]["unavailable-pod.kruise.io/hot"] = json!("y");
    assert_eq!(update_by(&marked, &again, Part::Whole, &[]), None, "it is not available any more");
}

#[test]
fn nothing_is_taken_on_a_dry_run_or_where_something_else_refuses() {
    let world = Given::default();
    let text = pod().to_string();
    let mut dry = review(Action::Delete(subject(&text)), "jane", &[]);
    dry.dry_run = true;
    allowed(&block_on(decide(&dry, &world, &settings())));
    let labelled = changed("/metadata/labels/policy.kruise.io~1delete-protection", &json!("Always"));
    let both = Given { spent: spent(), ..Given::default() };
    let verdict = delete(&labelled, &both);
    assert_eq!(verdict.code().map(Code::status), Some(403));
    assert_eq!(verdict.findings.len(), 2, "both are told");
    allowed(&delete(&pod(), &world));
    let really: Vec<bool> = [&world.losses, &both.losses]
        .into_iter()
        .flat_map(|losses| losses.lock().unwrap().clone())
        .map(|(_, really)| really)
        .collect();
    assert_eq!(really, [false, true, false], "dry run, then in earnest; then beside a label");
}

#[test]
fn in_a_terminating_namespace_nothing_is_kept() {
    let mut pod = pod();
    pod["metadata"]["namespace"] = json!("going");
    allowed(&delete(&pod, &Given { spent: spent(), ..Given::default() }));
}

#[test]
fn our_own_pods_are_never_kept() {
    let mut pod = pod();
    pod["metadata"]["namespace"] = json!("palisade-system");
    allowed(&delete(&pod, &Given { spent: spent(), ..Given::default() }));
}

#[test]
fn an_eviction_is_charged_as_one() {
    let world = Given { spent: spent(), pod: Ok(Some(pod().to_string())), ..Given::default() };
    let action = Action::Evict { namespace: "shop".into(), name: "web-0".into() };
    let verdict = block_on(decide(&review(action, "jane", &[]), &world, &settings()));
    assert!(
        outcome(&verdict)
            .1
            .unwrap()
            .starts_with("pod \"shop/web-0\" has to stay available (this evicts it): ")
    );
    assert_eq!(*Mutex::lock(&world.losses).unwrap(), [(Loss::Eviction, true)]);
}

#[rstest]
#[case(json!({"selector": {"app": "web"}, "maxUnavailable": 1}), None)]
#[case(json!({"selector": {"matchLables": {"app": "web"}}, "maxUnavailable": 1}),
    Some("podunavailablebudget.policy.kruise.io \"shop/web\" is refused: spec.selector: \"matchLables\" is neither matchLabels nor \
          matchExpressions, and its value is no label's"))]
fn a_budget_that_says_nothing_is_refused(#[case] spec: Value, #[case] message: Option<&str>) {
    let text = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}).to_string();
    let budget =
        Subject { kind: kind("PodUnavailableBudget"), object: Object::parse(text.as_bytes()).unwrap() };
    let verdict = block_on(decide(
        &review(Action::Declare { subject: budget, old: None }, "jane", &[]),
        &Given::default(),
        &settings(),
    ));
    assert_eq!(outcome(&verdict), (message.map(|_| 422), message.map(str::to_owned), vec![]));
}

fn read(text: &str) -> Subject<'_> {
    Subject { kind: kind("PodUnavailableBudget"), object: Object::parse(text.as_bytes()).unwrap() }
}

/// What is said to somebody who writes a budget over another one, and who is remembered.
fn written(
    old: Option<&Value>,
    new: &Value,
    administrator: bool,
    dry_run: bool,
    least: u32,
) -> (Vec<String>, Vec<(String, i64, bool)>) {
    let world = Given { min_unavailable: least, ..Given::default() };
    let (old, new) = (old.map(Value::to_string), new.to_string());
    let action = Action::Declare { subject: read(&new), old: old.as_deref().map(read) };
    let review = Review {
        expects: Expects { administrator, ..Expects::default() },
        dry_run,
        ..review(action, "jane", &[])
    };
    let verdict = block_on(decide(&review, &world, &settings()));
    assert!(verdict.is_allowed());
    (outcome(&verdict).2, world.authors.into_inner().unwrap())
}

fn budget(generation: i64, limit: &Value, annotations: &Value) -> Value {
    let mut spec = json!({"selector": {}});
    for (field, value) in limit.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u", "generation": generation, "annotations": annotations},
        "spec": spec})
}

#[test]
fn whoever_changes_what_a_budget_says_is_remembered() {
    let none = json!({"maxUnavailable": 0});
    let bare = |generation| budget(generation, &none, &json!({}));
    let approved = |value: &str| budget(2, &none, &json!({"palisade.dev/approved": value}));
    let remembered =
        |old: Option<&Value>, new: &Value, administrator: bool| written(old, new, administrator, false, 1).1;
    let by = |generation, administrator| vec![("u".to_owned(), generation, administrator)];
    assert_eq!(remembered(None, &bare(1), true), by(1, true));
    assert_eq!(remembered(None, &bare(1), false), by(1, false));
    assert_eq!(remembered(Some(&bare(1)), &bare(2), false), by(2, false));
    assert_eq!(remembered(Some(&bare(2)), &bare(2), true), [], "not by a change of metadata");
    assert_eq!(remembered(Some(&bare(2)), &approved("2"), true), by(2, true));
    assert_eq!(remembered(Some(&bare(2)), &approved("2"), false), [], "nobody approves of their own");
    assert_eq!(remembered(Some(&approved("2")), &approved("2"), true), [], "not for what others wrote there");
    assert_eq!(remembered(Some(&approved("2")), &approved("3"), true), by(2, true));
    assert_eq!(remembered(Some(&approved("2")), &bare(2), true), []);
    assert_eq!(written(None, &bare(1), true, true, 1).1, [], "a dry run");
}

#[rstest]
#[case(json!({"maxUnavailable": 0}), "maxUnavailable: 0")]
#[case(json!({"maxUnavailable": "0%"}), "maxUnavailable: 0%")]
#[case(json!({"minAvailable": "100%"}), "minAvailable: 100%")]
fn who_is_no_administrator_is_told_that_a_pod_may_go(#[case] limit: Value, #[case] said: &str) {
    let warned = format!(
        "podunavailablebudget.policy.kruise.io \"shop/web\": {said} would let no pod go, and so it lets 1 pod go: no administrator \
         writes it. An administrator is whoever may create and update budgets in all namespaces"
    );
    let new = budget(1, &limit, &json!({}));
    assert_eq!(written(None, &new, false, false, 1).0, [&*warned]);
    assert_eq!(written(None, &new, false, true, 1).0, [&*warned], "a dry run tells the same");
    assert!(written(None, &new, true, false, 1).0.is_empty());
    assert!(written(None, &new, false, false, 0).0.is_empty(), "every budget is taken at its word");
    assert!(
        written(None, &budget(1, &json!({"maxUnavailable": 1}), &json!({})), false, false, 1).0.is_empty()
    );
}
