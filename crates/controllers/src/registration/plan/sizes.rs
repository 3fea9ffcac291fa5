//! How large the registration becomes, whatever the policies.

use std::collections::BTreeSet;

use palisade_api::protection::rules_of;
use palisade_cluster::{Discovery, Served};
use palisade_engine::Protections;
use serde_json::{Value, json};

use super::components::{COMPONENT_PROTECTIONS, LARGEST_COMPONENTS};
use super::owners::LONGEST_TEXT;
use super::tests::plan_as;
use super::{Namespaces, Wanted, left_out, merged, plan};
use crate::registration::coverage::Coverage;

/// What etcd takes, 1.5 MiB, with room for `managedFields`. It is stored in a shorter form than JSON, which is counted here.
const LARGEST: usize = 1_480_000;
const MOST: usize = 60;
/// Those of `owners.rs`, and one for pods of the system.
const OWNER_WEBHOOKS: usize = 7;

fn size(webhooks: &[k8s_openapi::api::admissionregistration::v1::ValidatingWebhook]) -> usize {
    serde_json::to_vec(webhooks).unwrap().len()
}

fn names(count: usize) -> BTreeSet<String> {
    (0..count).map(|number| format!("team-{number:010}")).collect()
}

fn discovery() -> Discovery {
    let kind = |number: usize| {
        Served::new("example.com", "v1", &format!("Kind{number}"), &format!("kinds{number}"), true)
    };
    Discovery { resources: (0..300).map(kind).collect(), ..Discovery::default() }
}

fn coverage(protections: impl IntoIterator<Item = Value>) -> Coverage {
    let rules = protections.into_iter().enumerate().flat_map(|(number, spec)| {
        rules_of(&format!("p{number}"), &serde_json::from_value(spec).unwrap()).unwrap()
    });
    Coverage::of(&Protections::new(rules, Vec::new()), &discovery())
}

fn one(selector: &Value) -> Value {
    json!({"protectedResources": [{"resourceSelector": [selector]}]})
}

#[test]
fn a_thousand_protections_of_every_kind_fit() {
    let shapes: [fn(usize) -> Value; 3] = [
        |number| json!({"kind": "*", "namespace": format!("team-{number}")}),
        |number| json!({"kind": "*", "labelSelector": {"matchLabels": {"app": format!("app-{number}")}}}),
        |number| json!({"kind": "*", "name": format!("name-{number}")}),
    ];
    for shape in shapes {
        let coverage = coverage((0..1_000).map(|number| one(&shape(number))));
        let webhooks = plan_as(|wanted| {
            let wanted = Wanted { coverage: &coverage, ..wanted.clone() };
            assert!(left_out(&wanted).is_empty(), "all of them are carried");
            plan(&wanted)
        });
        assert!(size(&webhooks) < 150_000, "{}", size(&webhooks));
        assert!(webhooks.len() <= 30, "{}", webhooks.len());
    }
}

#[test]
fn a_protection_with_all_selectors_that_it_may_have_fits() {
    let selector = |number: usize| {
        json!({"apiVersion": "example.com/v1", "kind": format!("Kind{}", number % 300),
            "namespace": format!("team-{number}")})
    };
    let entry = |entry: usize| json!({"resourceSelector": (0..32).map(|n| selector(entry * 32 + n)).collect::<Vec<_>>()});
    let coverage = coverage([json!({"protectedResources": (0..128).map(entry).collect::<Vec<_>>()})]);
    let webhooks = plan_as(|wanted| plan(&Wanted { coverage: &coverage, ..wanted.clone() }));
    assert!(size(&webhooks) < 150_000 && webhooks.len() <= 30, "{} {}", size(&webhooks), webhooks.len());
}

#[test]
fn kinds_share_namespaces_where_there_are_many_lists_of_them() {
    let selector = |number: usize| {
        one(
            &json!({"apiVersion": "example.com/v1", "kind": format!("Kind{number}"), "namespace": format!("n{number}")}),
        )
    };
    let few = coverage((0..4).map(selector));
    assert_eq!(merged(&few.resources), few.resources);
    let many = merged(&coverage((0..5).map(selector)).resources);
    let [(Namespaces::Some(names), kinds)] = &many.into_iter().collect::<Vec<_>>()[..] else {
        panic!("one list")
    };
    assert_eq!((names.len(), kinds.len()), (5, 5));
}

#[test]
fn a_thousand_namespaces_with_budgets_are_told_and_more_are_not() {
    for (count, told) in [(1_000, true), (5_000, false)] {
        let namespaces = names(count);
        let webhooks = plan_as(|wanted| {
            plan(&Wanted {
                budget_namespaces: &namespaces,
                eviction_namespaces: &namespaces,
                ..wanted.clone()
            })
        });
        assert!(size(&webhooks) < 400_000, "{}", size(&webhooks));
        let deletion = webhooks.iter().find(|webhook| webhook.name.starts_with("pod-deletion")).unwrap();
        let selector = deletion.namespace_selector.clone().unwrap().match_expressions.unwrap().remove(0);
        assert_eq!(selector.operator, if told { "In" } else { "NotIn" }, "{count}");
    }
}

#[test]
fn the_largest_registration_fits_into_etcd() {
    let long = |number: usize| format!("{number:05}{}", "x".repeat(58));
    let protections = (0..3_000).map(|number| {
        one(&match number % 4 {
            0 => json!({"kind": "*", "namespace": long(number)}),
            1 => json!({"kind": "*", "labelSelector": {"matchLabels": {long(number): long(number)}}}),
            2 => json!({"kind": "*", "name": long(number)}),
            _ => json!({"apiVersion": "example.com/v1", "kind": format!("Kind{}", number % 300), "namespace": long(number)}),
        })
    });
    let coverage = coverage(protections);
    // As many as are still told.
    let namespaces: BTreeSet<String> = (0..360).map(long).collect();
    let webhooks = plan_as(|wanted| {
        let wanted = Wanted {
            coverage: &coverage,
            budget_namespaces: &namespaces,
            eviction_namespaces: &namespaces,
            // Two certificates, while one takes the place of the other.
            authorities: &"x".repeat(2_000),
            ..wanted.clone()
        };
        assert!(!left_out(&wanted).is_empty(), "some do not fit");
        plan(&wanted)
    });
    let each = size(&webhooks[..1]);
    let components = COMPONENT_PROTECTIONS * 4 * each + LARGEST_COMPONENTS;
    let owners = OWNER_WEBHOOKS * (each + LONGEST_TEXT);
    let largest = size(&webhooks) + components + owners;
    assert!(largest < LARGEST, "{largest}");
    assert!(webhooks.len() <= MOST, "{}", webhooks.len());
}
