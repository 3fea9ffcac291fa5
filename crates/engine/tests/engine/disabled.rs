//! Features that are off.

use palisade_api::gates::Gate;
use palisade_engine::{Action, Object, Portion, Subject, Verdict, warn_of_disabled};
use rstest::rstest;

use crate::world::{allowed, in_namespace, kind, labelled, outcome, review};

fn subject<'a>(of: &str, json: &'a str) -> Subject<'a> {
    Subject { kind: kind(of), object: Object::parse(json.as_bytes()).unwrap() }
}

#[track_caller]
fn warned(verdict: &Verdict, warnings: &[&str]) {
    let warnings = warnings.iter().map(|&warning| warning.to_owned()).collect();
    assert_eq!(outcome(verdict), (None, None, warnings));
}

#[test]
fn who_writes_a_policy_is_told_that_its_feature_is_off() {
    let budget =
        in_namespace("shop", "web", "", r#"{"selector":{"matchLabels":{"app":"web"}},"maxUnavailable":1}"#);
    let off = "podunavailablebudget.policy.kruise.io \"shop/web\" is not enforced: feature gate PodUnavailableBudget is off; \
               to turn it on, start palisade run with --feature-gates=PodUnavailableBudget=true";
    let declare = |json| Action::Declare { subject: subject("PodUnavailableBudget", json), old: None };
    warned(&warn_of_disabled(&review(declare(&budget)), Gate::PodUnavailableBudget), &[off]);
    allowed(&warn_of_disabled(&review(declare(&budget)), Gate::PodDeletionFlowControl));
    let bad = in_namespace(
        "shop",
        "web",
        "",
        r#"{"selector":{"matchLabels":{"app":"web"}},"maxUnavailable":"many"}"#,
    );
    let verdict = warn_of_disabled(&review(declare(&bad)), Gate::PodUnavailableBudget);
    let (code, _, warnings) = outcome(&verdict);
    assert_eq!((code, warnings.len()), (None, 2), "never refused: {warnings:?}");
    assert!(
        warnings[1].contains("is not valid, and can't be enforced once its feature is on: "),
        "{warnings:?}"
    );
}

#[test]
fn a_protection_that_is_changed_is_told_of_as_well() {
    let json = labelled("sample", "");
    let change = |part| {
        let subject = subject("ResourceDeletionProtection", &json);
        Action::Change { subject, new: Object::parse(json.as_bytes()).unwrap(), part }
    };
    let verdict = warn_of_disabled(&review(change(Portion::Whole)), Gate::ResourcesDeletionProtection);
    assert_eq!(verdict.warnings.len(), 1);
    allowed(&warn_of_disabled(&review(change(Portion::Status)), Gate::ResourcesDeletionProtection));
    let going = r#"{"metadata":{"name":"sample","deletionTimestamp":"2026-01-01T00:00:00Z"}}"#;
    let create = Action::Create(subject("ResourceDeletionProtection", going));
    allowed(&warn_of_disabled(&review(create), Gate::ResourcesDeletionProtection));
}

#[rstest]
#[case(
    r#"{"metadata":{"name":"a","labels":{"policy.kruise.io/delete-protection":"Always"}}}"#,
    "label policy.kruise.io/delete-protection=Always"
)]
#[case(
    r#"{"metadata":{"name":"a","labels":{"resourcetemplate.karmada.io/deletion-protected":"Always"}}}"#,
    "label resourcetemplate.karmada.io/deletion-protected=Always"
)]
#[case(
    r#"{"metadata":{"name":"a","annotations":{"policy.kruise.io/disable-cascading-deletion":"true"}}}"#,
    "annotation policy.kruise.io/disable-cascading-deletion=true"
)]
fn who_deletes_what_is_labelled_is_told_that_it_has_no_effect(#[case] json: &str, #[case] mark: &str) {
    let delete = || review(Action::Delete(subject("Deployment", json)));
    let says = format!(
        "deployment \"a\" is not protected from deletion: {mark} has no effect while feature gate \
         ResourcesDeletionProtection is off"
    );
    warned(&warn_of_disabled(&delete(), Gate::ResourcesDeletionProtection), &[&says]);
    allowed(&warn_of_disabled(&delete(), Gate::CascadeProtection));
}

#[test]
fn what_has_no_label_goes_without_a_word() {
    let delete = |json| review(Action::Delete(subject("Namespace", json)));
    let plain = labelled("shop", "");
    allowed(&warn_of_disabled(&delete(&plain), Gate::ResourcesDeletionProtection));
    warned(
        &warn_of_disabled(&delete(&plain), Gate::CascadeProtection),
        &[
            "namespace \"shop\": nobody looks for protected objects that go with it: feature gate CascadeProtection is off",
        ],
    );
}
