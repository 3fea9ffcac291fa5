//! Many protected objects: whatever there is, the commands list and lift exactly what was counted.

use std::collections::{BTreeMap, BTreeSet};

use palisade_engine::{Object, OwnerState, SourceMarks, prose};
use proptest::prelude::*;
use serde_json::json;

use crate::world::{Given, delete, kind, labelled};

const PROTECTION: &str = "policy.kruise.io/delete-protection";
const KARMADA: &str = "resourcetemplate.karmada.io/deletion-protected";
const CASCADE: &str = "policy.kruise.io/disable-cascading-deletion";

/// An object of the model.
#[derive(Clone, Debug)]
struct Item {
    kind: &'static str,
    namespace: &'static str,
    number: u16,
    labels: BTreeMap<&'static str, &'static str>,
    annotation: Option<&'static str>,
    is_going: bool,
    replicas: u8,
    /// Its controller carries `delete-protection=Always`, too.
    is_copied: bool,
    /// A `ResourceDeletionProtection` names it.
    is_ruled: bool,
}

impl Item {
    fn plain(kind: &'static str, number: u16) -> Self {
        Self {
            kind,
            namespace: "shop",
            number,
            labels: BTreeMap::new(),
            annotation: None,
            is_going: false,
            replicas: 1,
            is_copied: false,
            is_ruled: false,
        }
    }

    fn labelled(self, key: &'static str, value: &'static str) -> Self {
        let mut labels = self.labels.clone();
        labels.insert(key, value);
        Self { labels, ..self }
    }

    fn name(&self) -> String {
        format!("{}{:03}", if self.is_ruled { "ruled-" } else { "x" }, self.number)
    }

    fn json(&self) -> String {
        let mut object = json!({
            "metadata": {
                "name": self.name(), "namespace": self.namespace, "uid": format!("{}{}", self.kind, self.number),
                "labels": self.labels,
            },
            "spec": {"replicas": self.replicas},
        });
        if let Some(value) = self.annotation {
            object["metadata"]["annotations"] = json!({CASCADE: value});
        }
        if self.is_going {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        if self.is_copied {
            object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "o", "controller": true}]);
        }
        object.to_string()
    }

    fn is_workload(&self) -> bool {
        self.kind == "Deployment"
    }

    /// The keys of labels and annotations that protect it.
    fn protecting(&self) -> BTreeSet<(&'static str, &'static str)> {
        let cascades = self.is_workload() && self.replicas > 0;
        let mut keys = BTreeSet::new();
        if self.is_going {
            return keys;
        }
        match self.labels.get(PROTECTION) {
            None => {}
            Some(&"Always") if self.is_copied => {}
            Some(&"Cascading") if !cascades => {}
            Some(_) => {
                keys.insert(("label", PROTECTION));
            }
        }
        if self.labels.get(KARMADA) == Some(&"Always") {
            keys.insert(("label", KARMADA));
        }
        if cascades && self.labels.get(CASCADE).is_some_and(|value| *value != "false") {
            keys.insert(("label", CASCADE));
        }
        if cascades && self.annotation.is_some_and(|value| value != "false") {
            keys.insert(("annotate", CASCADE));
        }
        keys
    }

    fn is_counted(&self) -> bool {
        !self.is_going && (self.is_ruled || !self.protecting().is_empty())
    }
}

/// What kubectl does of a command, on the model.
struct Command {
    verb: String,
    kinds: Vec<String>,
    names: Vec<String>,
    /// `None` for all.
    namespace: Option<String>,
    selector: Option<String>,
    keys: Vec<String>,
}

impl Command {
    fn parse(text: &str) -> Self {
        let mut words: Vec<String> = Vec::new();
        for (index, part) in text.split('\'').enumerate() {
            if index % 2 == 1 {
                words.last_mut().unwrap().push_str(part);
            } else {
                words.extend(part.split(' ').map(str::to_owned));
            }
        }
        let mut words = words.into_iter().filter(|word| !word.is_empty());
        assert_eq!(words.next().as_deref(), Some("kubectl"), "{text}");
        let verb = words.next().unwrap();
        let kinds = words.next().unwrap().split(',').map(str::to_owned).collect();
        let mut command = Self {
            verb,
            kinds,
            names: Vec::new(),
            namespace: Some("default".to_owned()),
            selector: None,
            keys: Vec::new(),
        };
        while let Some(word) = words.next() {
            match &*word {
                "-n" => command.namespace = words.next(),
                "-A" => command.namespace = None,
                "-l" => command.selector = words.next(),
                _ => match word.strip_suffix('-') {
                    Some(key) => command.keys.push(key.to_owned()),
                    None => command.names.push(word),
                },
            }
        }
        assert!(command.selector.is_some() == command.names.is_empty() || command.verb == "get", "{text}");
        command
    }

    fn concerns(&self, item: &Item) -> bool {
        self.kinds.contains(&kind(item.kind).kubectl_name())
            && self.namespace.as_ref().is_none_or(|namespace| namespace == item.namespace)
            && (self.names.is_empty() || self.names.contains(&item.name()))
            && self.selector.as_ref().is_none_or(|selector| selects(selector, &item.labels))
    }
}

/// Kubernetes' label selectors, as far as they are printed.
fn selects(selector: &str, labels: &BTreeMap<&str, &str>) -> bool {
    let mut terms: Vec<String> = Vec::new();
    let mut depth = 0;
    let mut term = String::new();
    for c in selector.chars() {
        match c {
            ',' if depth == 0 => terms.push(std::mem::take(&mut term)),
            _ => {
                depth += i32::from(c == '(') - i32::from(c == ')');
                term.push(c);
            }
        }
    }
    terms.push(term);
    terms.iter().all(|term| {
        if let Some((key, values)) = term.split_once(" notin (") {
            let values: Vec<&str> = values.trim_end_matches(')').split(',').collect();
            labels.get(key).is_none_or(|value| !values.contains(value))
        } else if let Some(key) = term.strip_prefix('!') {
            !labels.contains_key(key)
        } else if let Some((key, value)) = term.split_once("!=") {
            labels.get(key) != Some(&value)
        } else if let Some((key, value)) = term.split_once('=') {
            labels.get(key) == Some(&value)
        } else {
            labels.contains_key(&**term)
        }
    })
}

fn message(items: &[Item], of: &str) -> Option<String> {
    let rule = json!({"protectedResources": [
        {"resourceSelector": [{"apiVersion": "v1", "kind": "ConfigMap"}], "resourceNames": ["ruled-*"]}]});
    let owner = json!({"metadata": {"labels": {PROTECTION: "Always"}}}).to_string();
    let labels = SourceMarks::of(&Object::parse(owner.as_bytes()).unwrap());
    let world = Given {
        objects: Ok(items.iter().map(|item| (item.kind, item.json())).collect()),
        owners: BTreeMap::from([("o".to_owned(), Ok(OwnerState::There { labels, is_terminating: false }))]),
        // Of widgets there are too many to look at each.
        by_selector: vec!["Widget"],
        ..Given::protected(&[("sample", rule)])
    };
    let object = if of == "Namespace" {
        labelled("shop", "")
    } else {
        json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com",
            "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1", "served": true, "storage": true}]},
            "status": {"conditions": [{"type": "Established", "status": "True"}]}})
        .to_string()
    };
    prose::refusal(&delete(of, &object, &world))
}

/// Runs the commands of a message on the model, and compares.
fn check(items: &[Item], message: Option<String>) {
    let counted: Vec<&Item> = items.iter().filter(|item| item.is_counted()).collect();
    let Some(message) = message else {
        assert!(counted.is_empty(), "{counted:?}");
        return;
    };
    if counted.len() > 1 {
        let told = format!(": {} protected objects would go with it: ", counted.len());
        assert!(message.contains(&told), "{} in {message}", counted.len());
    }
    let (before, lifts) = message.split_once("To lift it: ").unwrap_or((&message, ""));
    let mut open: Vec<BTreeSet<(&str, &str)>> = items.iter().map(Item::protecting).collect();
    for command in lifts.split(" && ").filter(|command| !command.is_empty()).map(Command::parse) {
        assert!(!command.keys.is_empty());
        for (item, open) in items.iter().zip(&mut open).filter(|(item, _)| command.concerns(item)) {
            assert!(item.is_counted(), "{item:?} is not counted, and lifted by {message}");
            for key in &command.keys {
                let has = match &*command.verb {
                    "label" => item.labels.contains_key(&**key),
                    _ => item.annotation.is_some() && key == CASCADE,
                };
                let protects = item.protecting().contains(&(&*command.verb, &**key));
                assert!(protects || !has, "{key} does not protect {item:?}, and is lifted by {message}");
                open.retain(|(verb, of)| (*verb, *of) != (&*command.verb, &**key));
            }
        }
    }
    let marked = items.iter().filter(|item| !item.protecting().is_empty()).count();
    let lifted =
        items.iter().zip(&open).filter(|(item, open)| !item.protecting().is_empty() && open.is_empty());
    let lifted = lifted.count();
    if lifted < marked {
        assert!(before.contains(&format!("The commands lift {lifted} of the {marked} ")), "{message}");
    } else {
        assert!(!before.contains("The commands lift"), "{message}");
    }
    let Some((_, list)) = before.split_once(" To list ") else {
        assert!(counted.len() <= 5, "{message}");
        return;
    };
    let (which, commands) = list.split_once(": ").unwrap();
    let mut shown: BTreeMap<(&str, &str, String), usize> = BTreeMap::new();
    for command in commands.trim_end().trim_end_matches(';').split(" && ").map(Command::parse) {
        for item in items.iter().filter(|item| command.concerns(item)) {
            assert!(item.is_counted(), "{item:?} is not counted, and listed by {message}");
            *shown.entry((item.kind, item.namespace, item.name())).or_default() += 1;
        }
    }
    assert!(shown.values().all(|times| *times == 1), "something is listed twice by {message}");
    let expected =
        if shown.len() == counted.len() { "them".to_owned() } else { format!("{} of them", shown.len()) };
    assert_eq!(which, expected, "{message}");
    assert!(message.len() < 12_000, "{message}");
}

fn item(kind: &'static str, namespace: &'static str) -> impl Strategy<Value = Item> {
    let value = |values: &'static [&'static str]| prop::option::of(prop::sample::select(values));
    // Most of a namespace is labelled alike.
    let protection =
        prop_oneof![4 => Just(Some("Always")), 3 => value(&["Always", "Cascading", "alway", ""])];
    let cascading = value(&["true", "false", "yes"]);
    let rare = || prop::bool::weighted(0.1);
    let values = (protection, value(&["Always", "Never"]), cascading.clone(), cascading);
    (values, rare(), 0..3u8, rare(), rare()).prop_map(
        move |((protection, karmada, cascade, annotation), is_going, replicas, is_copied, is_ruled)| {
            let is_workload = kind == "Deployment";
            // What `Cascading` means elsewhere needs more than the object.
            let protection = protection.filter(|value| is_workload || *value != "Cascading");
            let labels =
                [(PROTECTION, protection), (KARMADA, karmada), (CASCADE, cascade.filter(|_| is_workload))];
            Item {
                labels: labels.into_iter().filter_map(|(key, value)| Some((key, value?))).collect(),
                annotation: annotation.filter(|_| is_workload),
                is_going,
                replicas,
                is_copied,
                is_ruled: is_ruled && kind == "ConfigMap",
                namespace,
                ..Item::plain(kind, 0)
            }
        },
    )
}

fn numbered(items: Vec<Item>) -> Vec<Item> {
    items.into_iter().zip(0..).map(|(item, number)| Item { number, ..item }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn commands_for_a_namespace_concern_exactly_what_was_counted(
        items in prop::collection::vec(
            prop_oneof![item("ConfigMap", "shop"), item("Deployment", "shop"), item("Widget", "shop"), item("Service", "shop")],
            0..40,
        )
    ) {
        let items = numbered(items);
        check(&items, message(&items, "Namespace"));
    }

    #[test]
    fn commands_for_a_definition_concern_exactly_what_was_counted(
        items in prop::collection::vec(
            prop_oneof![item("Widget", "a"), item("Widget", "b"), item("Widget", "c")],
            0..40,
        )
    ) {
        let items = numbered(items);
        check(&items, message(&items, "CustomResourceDefinition"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn alike_or_very_many_they_are_told_too(
        number in prop::sample::select(&[1, 6, 60, 499, 501, 1_200u16][..]),
        odd in prop::collection::vec(item("Deployment", "shop"), 0..3),
    ) {
        let alike = (0..number).map(|_| Item::plain("Deployment", 0).labelled(PROTECTION, "Always"));
        let items = numbered(alike.chain(odd).collect());
        check(&items, message(&items, "Namespace"));
    }
}

#[test]
fn fourteen_are_counted_listed_and_lifted_by_kind() {
    let maps = (0..8).map(|n| Item::plain("ConfigMap", n).labelled(PROTECTION, "Always"));
    let sets = (8..13).map(|n| Item::plain("Deployment", n).labelled(KARMADA, "Always"));
    let free = Item::plain("Service", 14);
    let one = Item::plain("Service", 13).labelled(PROTECTION, "Always");
    let items: Vec<Item> = maps.chain(sets).chain([one, free]).collect();
    let message = message(&items, "Namespace").unwrap();
    let expected = "Delete those first. \
        To list them: kubectl get configmap -n shop -l policy.kruise.io/delete-protection=Always && \
        kubectl get deployments.apps -n shop -l resourcetemplate.karmada.io/deletion-protected=Always && \
        kubectl get service x013 -n shop; \
        To lift it: kubectl label configmap -n shop -l policy.kruise.io/delete-protection=Always policy.kruise.io/delete-protection- && \
        kubectl label deployments.apps -n shop -l resourcetemplate.karmada.io/deletion-protected=Always resourcetemplate.karmada.io/deletion-protected- && \
        kubectl label service x013 -n shop policy.kruise.io/delete-protection-";
    assert!(message.contains(": 14 protected objects would go with it: "), "{message}");
    assert!(message.ends_with(expected), "{message}");
    check(&items, Some(message));
}

#[test]
fn a_label_that_does_not_protect_everywhere_is_lifted_by_name() {
    let kept = (0..6).map(|n| Item::plain("ConfigMap", n).labelled(PROTECTION, "Always"));
    let going = Item { is_going: true, ..Item::plain("ConfigMap", 6) }.labelled(PROTECTION, "Always");
    let items: Vec<Item> = kept.chain([going]).collect();
    let message = message(&items, "Namespace").unwrap();
    assert!(
        message.ends_with(
            "To list them: kubectl get configmap x000 x001 x002 x003 x004 x005 -n shop; \
             To lift it: kubectl label configmap x000 x001 x002 x003 x004 x005 -n shop policy.kruise.io/delete-protection-"
        ),
        "{message}"
    );
}

#[test]
fn what_a_rule_protects_is_told_apart() {
    let ruled = (0..7).map(|n| Item { is_ruled: true, ..Item::plain("ConfigMap", n) });
    let marked = Item::plain("Deployment", 7).labelled(PROTECTION, "Always");
    let items: Vec<Item> = ruled.chain([marked]).collect();
    let message = message(&items, "Namespace").unwrap();
    assert!(
        message.ends_with(
            "Of these, labels or annotations protect 1, ResourceDeletionProtection \"sample\" protects 7 (kubectl get rdp \
             sample -o yaml). To list them: kubectl get configmap -n shop && kubectl get deployments.apps x007 -n shop; \
             To lift it: kubectl label deployments.apps x007 -n shop policy.kruise.io/delete-protection-"
        ),
        "{message}"
    );
}

#[test]
fn what_is_in_several_namespaces_is_lifted_by_one_command() {
    let in_namespace =
        |namespace, n| Item { namespace, ..Item::plain("Widget", n) }.labelled(PROTECTION, "Always");
    let items: Vec<Item> = (0..9).map(|n| in_namespace(["a", "b", "c"][usize::from(n) % 3], n)).collect();
    let told = message(&items, "CustomResourceDefinition").unwrap();
    assert!(
        told.ends_with(
            "To list them: kubectl get widgets.example.com -A -l policy.kruise.io/delete-protection=Always; \
             To lift it: kubectl label widgets.example.com -A -l policy.kruise.io/delete-protection=Always \
             policy.kruise.io/delete-protection-"
        ),
        "{told}"
    );
    // Where one of them is not counted, the other namespaces still have a selector.
    let copied = Item { is_copied: true, ..in_namespace("a", 9) };
    let items: Vec<Item> = items.into_iter().chain([copied]).collect();
    let told = message(&items, "CustomResourceDefinition").unwrap();
    assert!(
        told.ends_with(
            "To lift it: kubectl label widgets.example.com -n b -l policy.kruise.io/delete-protection=Always \
             policy.kruise.io/delete-protection- && kubectl label widgets.example.com -n c -l \
             policy.kruise.io/delete-protection=Always policy.kruise.io/delete-protection- && kubectl label \
             widgets.example.com x000 x003 x006 -n a policy.kruise.io/delete-protection-"
        ),
        "{told}"
    );
}
