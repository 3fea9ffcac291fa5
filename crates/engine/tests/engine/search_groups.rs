//! Groups that are not searched, and rights that are missing, sentence by sentence.

use std::sync::Arc;

use palisade_api::components::Components;
use palisade_engine::{
    Code, MissingRights, Present, ProtectedComponents, Right, Unknown, UnreadableKind, Verb, prose,
};
use rstest::rstest;
use serde_json::json;

use crate::world::{Given, census, delete, in_namespace, labelled, outcome, refused, service};

const CRD: &str = r#"{"metadata":{"name":"widgets.example.com","labels":{"policy.kruise.io/delete-protection":"Cascading"}},
    "spec":{"group":"example.com","scope":"Namespaced","names":{"kind":"Widget","plural":"widgets"},
    "versions":[{"name":"v1","served":true,"storage":true}]}}"#;
const GRANT: &str = "kubectl create clusterrole palisade-list-widgets.example.com --verb=list,watch \
    --resource=widgets.example.com --dry-run=client -o yaml | kubectl apply -f - && kubectl create clusterrolebinding \
    palisade-list-widgets.example.com --clusterrole=palisade-list-widgets.example.com \
    --serviceaccount=palisade-system:palisade --dry-run=client -o yaml | kubectl apply -f -";
const SENTENCE: &str = "Palisade may not list widgets.example.com, and trying again does not change that. Grant it, or \
    leave the group out of --search-groups.";

/// A world in which only the core group is searched.
fn core() -> Given {
    Given { searched: "core".parse().unwrap(), ..Given::default() }
}

fn missing() -> MissingRights {
    let right = Right { verb: Verb::List, group: "example.com".to_owned(), plural: "widgets".to_owned() };
    MissingRights::one("palisade-system:palisade", right)
}

#[track_caller]
fn let_go(verdict: &palisade_engine::Verdict, warning: &str) {
    assert_eq!(outcome(verdict), (None, None, vec![warning.to_owned()]));
}

#[test]
fn a_namespace_goes_with_a_warning_that_names_what_was_not_looked_at() {
    let world = Given { not_searched: vec!["apps".to_owned(), "example.com".to_owned()], ..core() };
    let_go(
        &delete("Namespace", &labelled("shop", ""), &world),
        "namespace \"shop\": not looked at, since --search-groups leaves them out: apps, example.com",
    );
}

#[test]
fn cascading_on_a_definition_whose_group_is_not_searched_protects_nothing_and_says_so() {
    // Nobody asks for its custom resources: the world would not know.
    let world = Given { not_searched: vec!["example.com".to_owned()], ..core() };
    let warning = "customresourcedefinition \"widgets.example.com\": not looked at, since --search-groups leaves it out: \
                   example.com";
    let_go(&delete("CustomResourceDefinition", CRD, &world), warning);
    let rule = json!({"protectedResources": [{"resourceSelector": [
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}]}], "mode": "Cascading"});
    let unlabelled = CRD.replace(r#""policy.kruise.io/delete-protection":"Cascading""#, "");
    let world = Given { searched: "core".parse().unwrap(), ..Given::protected(&[("crds", rule)]) };
    let_go(&delete("CustomResourceDefinition", &unlabelled, &world), warning);
    let always = CRD.replace("Cascading", "Always");
    assert_eq!(delete("CustomResourceDefinition", &always, &world).code(), Some(Code::Forbidden));
}

#[test]
fn a_kind_that_palisade_may_not_list_is_a_refusal_that_says_who_can_help() {
    let widgets = UnreadableKind {
        group: "example.com".to_owned(),
        kind: Some(("Widget".to_owned(), "widgets".to_owned())),
        why: "403: widgets.example.com is forbidden".to_owned(),
        is_broken: false,
        missing: Some(missing()),
    };
    let world = Given { unreadable: vec![widgets.clone()], ..Given::default() };
    refused(
        &delete("Namespace", &labelled("shop", ""), &world),
        403,
        &format!(
            "namespace \"shop\" may be protected from deletion: what is protected in it could not be found out \
             (widgets.example.com: 403: widgets.example.com is forbidden). {SENTENCE} To lift it: {GRANT}"
        ),
    );
    let ignored = r#"{"metadata":{"name":"shop","annotations":{"palisade.dev/ignore-unreadable-kinds":"widgets.example.com"}}}"#;
    assert!(delete("Namespace", ignored, &world).is_allowed());

    // One that was only late is worth another try.
    let late = UnreadableKind {
        group: "apps".to_owned(),
        kind: Some(("Deployment".to_owned(), "deployments".to_owned())),
        why: "it took too long".to_owned(),
        is_broken: false,
        missing: None,
    };
    let world = Given { unreadable: vec![widgets, late], ..Given::default() };
    let verdict = delete("Namespace", &labelled("shop", ""), &world);
    let told = prose::refusal(&verdict).unwrap();
    assert_eq!(verdict.code(), Some(Code::Forbidden));
    assert!(told.contains(&format!("Try again later. {SENTENCE} To lift it: kubectl annotate")), "{told}");
}

#[test]
fn cascading_on_a_definition_that_palisade_may_not_list_is_a_refusal_that_says_who_can_help() {
    let forbidden = Unknown::new("its custom resources", "v1: 403: widgets.example.com is forbidden");
    let world = Given { instances: Err(forbidden.lacking(Some(missing()))), ..Given::default() };
    refused(
        &delete("CustomResourceDefinition", CRD, &world),
        403,
        &format!(
            "customresourcedefinition \"widgets.example.com\" is protected from deletion: label \
             policy.kruise.io/delete-protection=Cascading, and its custom resources could not be found out (v1: 403: \
             widgets.example.com is forbidden). {SENTENCE} To lift it: {GRANT}"
        ),
    );
}

/// A service whose provider is a Deployment, and that waits for widgets to lose a finalizer.
fn waiting_for_widgets() -> palisade_engine::Critical {
    service(
        "web",
        &json!({"provider": {"group": "apps", "resource": "deployments", "namespace": "shop", "name": "web"},
            "criteria": [{"type": "Finalizer", "finalizer": {"group": "example.com", "resource": "widgets", "finalizerName": "f"}}]}),
    )
}

#[rstest]
#[case::criterion(
    "core,apps",
    "deployment \"shop/web\": not looked at, since --search-groups leaves it out: example.com"
)]
#[case::both(
    "core",
    "deployment \"shop/web\": not looked at, since --search-groups leaves it out: example.com"
)]
fn a_provider_does_not_wait_for_what_is_not_searched(#[case] groups: &str, #[case] warning: &str) {
    let world = Given {
        searched: groups.parse().unwrap(),
        services: Ok(vec![waiting_for_widgets()]),
        ..Given::default()
    };
    let_go(&delete("Deployment", &in_namespace("shop", "web", "", "{}"), &world), warning);
}

#[test]
fn a_namespace_does_not_wait_for_a_provider_that_is_not_searched() {
    let present = Present { kind: "deployment".to_owned(), names: vec!["shop/web".to_owned()], going: false };
    let given = |groups: &str| Given {
        searched: groups.parse().unwrap(),
        services: Ok(vec![waiting_for_widgets()]),
        present: [("deployments.apps \"shop/web\"", Ok(present.clone()))].into(),
        holders: [(
            "f",
            Ok(palisade_engine::Holders {
                resource: "widgets.example.com".to_owned(),
                census: census(&["shop/a"]),
                going: false,
            }),
        )]
        .into(),
        ..Given::default()
    };
    let delete = |groups: &str| delete("Namespace", &labelled("shop", ""), &given(groups));
    assert_eq!(delete("core,apps,example.com").code(), Some(Code::Conflict));
    let_go(
        &delete("core"),
        "namespace \"shop\": not looked at, since --search-groups leaves them out: apps, example.com",
    );
}

#[test]
fn a_component_whose_parent_is_not_searched_is_let_go_with_a_warning() {
    let components = Components::read(&json!({
        "parent": {"apiVersion": "example.com/v1", "kind": "Widget"},
        "kinds": [{"apiVersion": "v1", "kind": "ConfigMap"}],
        "ownedByParent": true, "operators": ["operator"],
    }));
    let protected = ProtectedComponents { name: Some("widgets".to_owned()), components };
    let world = Given { guarded: Ok(vec![Arc::new(protected)]), ..core() };
    let component = r#"{"metadata":{"name":"a","namespace":"shop","ownerReferences":[
        {"apiVersion":"example.com/v1","kind":"Widget","name":"w","uid":"u"}]}}"#;
    let_go(
        &delete("ConfigMap", component, &world),
        "configmap \"shop/a\": not looked at, since --search-groups leaves it out: example.com",
    );
    assert!(delete("ConfigMap", &in_namespace("shop", "b", "", "{}"), &world).warnings.is_empty());
}
