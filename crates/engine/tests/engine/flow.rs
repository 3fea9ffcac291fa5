//! Flow control: which deletions count, and what is said about them.

use futures::executor::block_on;
use palisade_api::action::Action as Policy;
use palisade_engine::{
    Action, Code, Object, Part, Refused, Spent, Standing, Subject, Throttled, Unknown, Verdict, decide,
};
use rstest::rstest;
use serde_json::{Value, json};

use crate::budgets::{changed, delete, pod, review, subject};
use crate::world::{Given, allowed, kind, outcome, refused, settings};

fn throttled(limit: i64, used: i64, next_slot: Option<u32>) -> Throttled {
    let (control, interval) = ("default".to_owned(), "1m".to_owned());
    Throttled { control, action: Policy::Deny, interval, limit, used, next_slot }
}

fn refusing(all: Vec<Refused>) -> Given {
    Given { spent: Spent { refused: all, passed: vec![] }, ..Given::default() }
}

fn delete_by(user: &str, world: &Given) -> Verdict {
    let text = pod().to_string();
    block_on(decide(&review(Action::Delete(subject(&text)), user, &[]), world, &settings()))
}

#[rstest]
#[case(throttled(50, 50, Some(12)), "50 pods deleted in the last 1m (limit 50); next slot in 12s")]
#[case(throttled(1, 1, Some(3_605)), "1 pod deleted in the last 1m (limit 1); next slot in 1h5s")]
#[case(throttled(2, 5, Some(60)), "5 pods deleted in the last 1m (limit 2); next slot in 1m")]
fn a_rule_that_is_reached_refuses_with_its_numbers_and_the_next_commands(
    #[case] throttled: Throttled,
    #[case] numbers: &str,
) {
    refused(
        &delete(&pod(), &refusing(vec![Refused::Flow(throttled)])),
        429,
        &format!(
            "pod \"shop/web-0\" may not be deleted now: flow control \"default\": {numbers}. Wait until there is a slot: \
             kubectl get pdfc default -w. To lift it: kubectl patch pdfc default --type=merge -p '{{\"spec\":{{\"action\":\"Warn\"}}}}'"
        ),
    );
}

#[test]
fn whoever_nothing_came_of_is_told_that_others_come_first() {
    let message =
        outcome(&delete(&pod(), &refusing(vec![Refused::Flow(throttled(2, 1, Some(9)))]))).1.unwrap();
    let because = "flow control \"default\": nothing came of its deletion just now, and for 9s the last slot in 1m is left to \
                   others. Wait until";
    assert!(message.contains(because), "{message}");
}

#[test]
fn a_limit_of_zero_stops_all() {
    refused(
        &delete(&pod(), &refusing(vec![Refused::Flow(throttled(0, 0, None))])),
        429,
        "pod \"shop/web-0\" may not be deleted now: flow control \"default\": it stops all deletions of pods (limit 0 in 1m). \
         To lift it: kubectl patch pdfc default --type=merge -p '{\"spec\":{\"action\":\"Warn\"}}'",
    );
}

#[test]
fn a_budget_beside_it_is_told_too() {
    let standing = Standing { budget: "web".into(), allowed: 0, available: 9, desired: 9, total: 10 };
    let both = refusing(vec![Refused::Budget(standing), Refused::Flow(throttled(50, 50, Some(3)))]);
    let verdict = delete(&pod(), &both);
    let message = outcome(&verdict).1.unwrap();
    assert!(
        message
            .starts_with("pod \"shop/web-0\" has to stay available (this deletes it): budget \"web\" allows")
    );
    assert!(message.contains(
        "; flow control \"default\": 50 pods deleted in the last 1m (limit 50); next slot in 3s. "
    ));
    assert!(message.contains("no-protect=true && kubectl patch pdfc default"), "{message}");
    assert_eq!(verdict.retry_after, None, "nobody knows when the budget allows it");
}

#[test]
fn what_could_not_be_found_out_is_tried_again() {
    let unknown = Refused::FlowUnknown(Unknown::new("whether flow controls allow it", "no answer"));
    refused(
        &delete(&pod(), &refusing(vec![unknown])),
        429,
        "pod \"shop/web-0\" may not be deleted now: whether flow controls allow it could not be found out (no answer). \
         Try again later.",
    );
}

#[rstest]
#[case("jane", Some(10), Some(10))]
#[case("jane", Some(11), None)]
#[case("jane", None, None)]
#[case("system:serviceaccount:shop:operator", Some(3), Some(3))]
#[case("system:kube-controller-manager", Some(3), None)]
#[case("system:kube-scheduler", Some(3), None)]
#[case("system:serviceaccount:kube-system:replicaset-controller", Some(3), None)]
#[case("system:serviceaccount:kube-system:generic-garbage-collector", Some(3), None)]
#[case("system:serviceaccount:kube-system:taint-eviction-controller", Some(3), Some(3))]
fn who_is_told_to_wait_and_when(#[case] user: &str, #[case] next: Option<u32>, #[case] hint: Option<u32>) {
    let limit = if next.is_some() { 50 } else { 0 };
    let world = refusing(vec![Refused::Flow(throttled(limit, 50, next))]);
    assert_eq!(delete_by(user, &world).retry_after, hint);
}

#[test]
fn of_several_the_longest_wait_counts() {
    let flows = [3, 9].map(|next| Refused::Flow(throttled(50, 50, Some(next))));
    assert_eq!(delete_by("jane", &refusing(flows.to_vec())).retry_after, Some(9));
    let flows = [3, 19].map(|next| Refused::Flow(throttled(50, 50, Some(next))));
    assert_eq!(delete_by("jane", &refusing(flows.to_vec())).retry_after, None);
}

#[rstest]
#[case("/status/phase", json!("Pending"), true)]
#[case("/status/conditions", json!([]), true)]
#[case("/metadata/labels/unavailable-pod.kruise.io~1hot", json!(""), true)]
#[case("/metadata/annotations", json!({"pub.kruise.io/no-protect": "true"}), true)]
#[case("/status", json!({}), true)]
#[case("/status/phase", json!("Succeeded"), false)]
#[case("/status/phase", json!("Failed"), false)]
#[case("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), false)]
fn every_pod_counts_that_is_not_going_and_has_not_ended(
    #[case] at: &str,
    #[case] to: Value,
    #[case] counts: bool,
) {
    let world = refusing(vec![Refused::Flow(throttled(1, 1, Some(60)))]);
    let verdict = delete(&changed(at, &to), &world);
    assert_eq!(verdict.code().map(Code::status), counts.then_some(429));
    assert_eq!(world.removals.lock().unwrap().len(), usize::from(counts));
}

#[rstest]
#[case("/status/phase", json!("Failed"), "jane", &[], true)]
#[case("/status/phase", json!("Succeeded"), "jane", &["system:masters"], true)]
#[case("/status/conditions/0/status", json!("False"), "jane", &[], true)]
#[case("/status/conditions", json!([]), "jane", &[], true)]
#[case("/status/message", json!("x"), "jane", &[], false)]
#[case("/status/conditions/1/status", json!("False"), "jane", &[], false)]
#[case("/status/phase", json!("Failed"), "system:node:a", &["system:nodes"], false)]
#[case("/status/phase", json!("Failed"), "system:serviceaccount:kube-system:pod-garbage-collector", &[], false)]
#[case("/status/conditions/0/status", json!("False"), "system:serviceaccount:kube-system:node-controller", &[], false)]
#[case("/status/phase", json!("Failed"), "system:serviceaccount:shop:pod-garbage-collector", &[], true)]
fn a_pod_that_is_ended_by_its_status_counts_unless_kubernetes_says_so(
    #[case] at: &str,
    #[case] to: Value,
    #[case] user: &str,
    #[case] groups: &[&str],
    #[case] counts: bool,
) {
    let (old, new) = (pod().to_string(), changed(at, &to).to_string());
    let action = Action::Update {
        pod: subject(&old),
        new: Object::parse(new.as_bytes()).unwrap(),
        part: Part::Status,
    };
    let world = refusing(vec![Refused::Flow(throttled(1, 1, Some(60)))]);
    let verdict = block_on(decide(&review(action, user, groups), &world, &settings()));
    assert_eq!(verdict.code().map(Code::status), counts.then_some(429));
}

#[test]
fn what_has_ended_does_not_end_again() {
    let (old, new) =
        (changed("/status/phase", &json!("Failed")), changed("/status/phase", &json!("Succeeded")));
    let (old, new) = (old.to_string(), new.to_string());
    let action = Action::Update {
        pod: subject(&old),
        new: Object::parse(new.as_bytes()).unwrap(),
        part: Part::Status,
    };
    let world = refusing(vec![Refused::Flow(throttled(1, 1, Some(60)))]);
    allowed(&block_on(decide(&review(action, "jane", &[]), &world, &settings())));
}

#[test]
fn an_update_removes_nothing() {
    let (old, new) = (pod().to_string(), changed("/spec/containers/0/image", &json!("app:2")).to_string());
    let action =
        Action::Update { pod: subject(&old), new: Object::parse(new.as_bytes()).unwrap(), part: Part::Whole };
    let world = refusing(vec![Refused::Flow(throttled(1, 1, Some(60)))]);
    allowed(&block_on(decide(&review(action, "jane", &[]), &world, &settings())));
    assert!(world.removals.lock().unwrap().is_empty());
}

#[test]
fn a_terminating_namespace_goes_at_the_allowed_pace() {
    let mut pod = pod();
    pod["metadata"]["namespace"] = json!("going");
    let standing = Standing { budget: "web".into(), allowed: 0, available: 9, desired: 9, total: 10 };
    let world = refusing(vec![Refused::Budget(standing.clone())]);
    allowed(&delete(&pod, &world));
    assert_eq!(world.removals.lock().unwrap().len(), 2, "charged once more, without the budget");
    let world = refusing(vec![Refused::Budget(standing), Refused::Flow(throttled(1, 1, Some(60)))]);
    let message = outcome(&delete(&pod, &world)).1.unwrap();
    assert!(message.contains("flow control") && !message.contains("budget"), "{message}");
    assert!(message.contains("Namespace \"going\" is terminating, and waits for it."), "{message}");
}

#[test]
fn our_own_pods_are_never_refused() {
    let mut pod = pod();
    pod["metadata"]["namespace"] = json!("palisade-system");
    allowed(&delete(&pod, &refusing(vec![Refused::Flow(throttled(0, 0, None))])));
}

#[test]
fn one_that_warns_says_so_and_one_that_records_does_not() {
    let with = |action: Policy| {
        let passed = vec![Throttled { action, ..throttled(50, 50, Some(12)) }];
        delete(&pod(), &Given { spent: Spent { refused: vec![], passed }, ..Given::default() })
    };
    let warning = "pod \"shop/web-0\" is beyond flow control \"default\": 50 pods deleted in the last 1m (limit 50); next slot \
                   in 12s";
    assert_eq!(outcome(&with(Policy::Warn)), (None, None, vec![warning.to_owned()]));
    allowed(&with(Policy::Audit));
    assert_eq!(with(Policy::Audit).passed.len(), 1, "for the audit log");
}

#[test]
fn nothing_is_counted_on_a_dry_run_or_where_something_else_refuses() {
    let world = Given::default();
    let text = pod().to_string();
    let mut dry = review(Action::Delete(subject(&text)), "jane", &[]);
    dry.dry_run = true;
    allowed(&block_on(decide(&dry, &world, &settings())));
    let labelled = changed("/metadata/labels/policy.kruise.io~1delete-protection", &json!("Always"));
    delete(&labelled, &world);
    allowed(&delete(&pod(), &world));
    let really: Vec<bool> = world.removals.lock().unwrap().iter().map(|(_, really)| *really).collect();
    assert_eq!(really, [false, false, true]);
}

#[rstest]
#[case(json!({"limitRules": [{"interval": "1m", "limit": 50}]}), None)]
#[case(json!({"limitRules": []}), Some("spec.limitRules: there are none"))]
fn one_that_says_nothing_is_refused(#[case] spec: Value, #[case] why: Option<&str>) {
    let text = json!({"metadata": {"name": "default"}, "spec": spec}).to_string();
    let control =
        Subject { kind: kind("PodDeletionFlowControl"), object: Object::parse(text.as_bytes()).unwrap() };
    let declared = review(Action::Declare { subject: control, old: None }, "jane", &[]);
    let verdict = block_on(decide(&declared, &Given::default(), &settings()));
    let message =
        why.map(|why| format!("poddeletionflowcontrol.policy.kruise.io \"default\" is refused: {why}"));
    assert_eq!(outcome(&verdict), (why.map(|_| 422), message, vec![]));
}
