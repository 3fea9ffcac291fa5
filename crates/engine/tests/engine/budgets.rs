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
