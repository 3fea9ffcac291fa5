//! Reviews: decode, decide, answer.
//!
//! Whatever comes in, nothing panics and nothing takes long; an object that carries `delete-protection` and is not going
//! is not let go, whatever surrounds it; one that is going is; and what is named twice is malformed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use palisade_admission::{BadReview, answer, read};
use palisade_api::gates::FeatureGates;
use palisade_engine::json::UniqueMembers;
use palisade_engine::{
    Answer, BudgetAuthor, Census, Definition, Dependents, Judged, Kind, Place, Protections, Scale, Search,
    Settings, Subject, Unknown, World, decide,
};
use palisade_fuzz::{Recipe, corpus, mutated};
use serde_json::Value;

const OWN: &str = "palisade-system";
const LABEL: &str = "policy.kruise.io/delete-protection";
/// On a machine that is busy with other things.
const LONGEST: Duration = Duration::from_secs(20);

const WORDS: &[&str] = &[
    "\"oldObject\":",
    "\"object\":null,",
    "\"request\":",
    "\"metadata\":{",
    "\"labels\":{",
    "\"deletionTimestamp\":",
    "\"2026-01-01T00:00:00Z\"",
    "null",
    "\"DELETE\"",
    "\"UPDATE\"",
    "\"CREATE\"",
    "\"eviction\"",
    "\"status\"",
    "\"scale\"",
    "\"Always\"",
    "\"Cascading\"",
    "\\u006f",
    "\\",
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\u{feff}",
    "\u{0}",
    "1e999",
    "-0",
    "\"policy.kruise.io/delete-protection\":\"Always\",",
    "\"palisade-system\"",
    "\"uid\":\"\",",
    "\"replicas\":\"x\"",
    " ",
    "\"annotations\":{\"policy.kruise.io/disable-cascading-deletion\":\"true\"},",
    "\"kind\":\"Pod\"",
    "true",
];

/// A cluster of which nothing can be found out.
struct Nobody(Protections);

fn nobody<T>() -> Answer<T> {
    Err(Unknown::new("anything", "nobody knows"))
}

impl World for Nobody {
    async fn active_pods(&self, _: &str) -> Answer<Census> {
        nobody()
    }
    async fn bound_claims(&self, _: &str) -> Answer<Census> {
        nobody()
    }
    async fn instances(&self, _: &Definition) -> Answer<Census> {
        nobody()
    }
    fn is_searched(&self, _: &str) -> bool {
        true
    }
    async fn scale(&self, _: &Kind<'_>) -> Answer<Option<Scale>> {
        nobody()
    }
    async fn mounting_pods(&self, _: &str, _: &BTreeSet<String>) -> Answer<BTreeMap<String, Census>> {
        nobody()
    }
    async fn ready_endpoints(&self, _: &str, _: &BTreeSet<String>) -> Answer<BTreeMap<String, Census>> {
        nobody()
    }
    async fn pods_on_node(&self, _: &str) -> Answer<Census> {
        nobody()
    }
    async fn dependents(&self, _: Option<&str>, _: &BTreeSet<String>) -> Answer<Dependents> {
        nobody()
    }
    fn protections(&self) -> &Protections {
        &self.0
    }
    async fn namespace_labels(&self, _: &str) -> Answer<BTreeMap<String, String>> {
        nobody()
    }
    async fn all_namespace_labels(&self) -> Answer<BTreeMap<String, BTreeMap<String, String>>> {
        nobody()
    }
    async fn search(
        &self,
        _: Place<'_>,
        _: &(dyn Fn(&Subject<'_>, bool) -> Judged + Sync),
    ) -> Answer<Search> {
        nobody()
    }
    fn note_author(&self, _: &BudgetAuthor<'_>, _: bool) -> u32 {
        0
    }
    async fn pod(&self, _: &str, _: &str) -> Answer<Option<String>> {
        nobody()
    }
}

/// What is answered; `None` where the call fails.
fn answered(body: &[u8]) -> Option<Value> {
    let started = Instant::now();
    let settings = Settings { own_namespace: OWN.to_owned(), gates: FeatureGates::default() };
    let answer = match read(body) {
        Ok(read) => {
            let verdict = block_on(decide(&read.review, &Nobody(Protections::default()), &settings));
            let answer: Value =
                serde_json::from_slice(&answer(&read.uid, &verdict)).expect("an answer is JSON");
            assert_eq!(answer["response"]["uid"].as_str(), Some(&*read.uid));
            assert_eq!(answer["response"]["allowed"], verdict.is_allowed());
            Some(answer["response"].clone())
        }
        Err(BadReview::Undecidable { .. } | BadReview::Unreadable(_)) => None,
    };
    assert!(started.elapsed() < LONGEST, "it took {:?}", started.elapsed());
    answer
}

fn is_allowed(answer: Option<&Value>) -> bool {
    answer.is_some_and(|answer| answer["allowed"] == true)
}

/// What another reader of JSON sees in it decides whether it may be allowed.
fn check(body: &[u8]) {
    let answer = answered(body);
    let Ok(UniqueMembers(seen)) = serde_json::from_slice(body) else { return };
    let request = &seen["request"];
    let plain = |value: &Value| value.is_null() || value == "";
    let metadata = &request["oldObject"]["metadata"];
    let own = [&metadata["namespace"], &metadata["name"]].iter().any(|name| **name == OWN);
    // Kinds that are never protected by a label, and `Cascading`, which lets go what holds nothing.
    let value = &metadata["labels"][LABEL];
    let protects = value.is_string() && value != "Cascading";
    let is_deletion = request["operation"] == "DELETE" && plain(&request["subResource"]);
    if is_deletion
        && protects
        && plain(&metadata["deletionTimestamp"])
        && !own
        && !is_never_protected(request)
    {
        assert!(!is_allowed(answer.as_ref()), "it is protected: {}", String::from_utf8_lossy(body));
    }
    let is_going = metadata["deletionTimestamp"].as_str().is_some_and(|time| !time.is_empty());
    if is_deletion
        && is_going
        && let Some(answer) = &answer
    {
        assert_eq!(answer["allowed"], true, "it is going: {}", String::from_utf8_lossy(body));
    }
}

fn is_never_protected(request: &Value) -> bool {
    ["Endpoints", "EndpointSlice", "Event", "Lease"].iter().any(|kind| request["kind"]["kind"] == *kind)
}

#[test]
fn reviews() {
    let texts = corpus("reviews");
    bolero::check!(name = "reviews").for_each(move |input: &[u8]| {
        check(input);
        check(&mutated(&mut Recipe::new(input), &texts, WORDS));
    });
}

#[test]
fn what_surrounds_a_protected_object_does_not_matter() {
    bolero::check!(name = "surroundings").for_each(|input: &[u8]| {
        let mut recipe = Recipe::new(input);
        let twice = (recipe.below(3) == 0).then(|| recipe.below(DOUBLED.len()));
        let going = recipe.below(3) == 0;
        let body = Built { recipe, doubled: twice.map(|number| DOUBLED[number]) }.review(going);
        let answer = answered(body.as_bytes());
        match twice {
            Some(_) => assert!(answer.is_none(), "a member is named twice: {body}"),
            None if going => assert!(is_allowed(answer.as_ref()), "it is going: {body}"),
            None => {
                let code = answer.as_ref().map(|answer| &answer["status"]["code"]);
                assert_eq!(code, Some(&403.into()), "it is protected: {body}");
            }
        }
    });
}

/// Members that are read, one of which may be named twice.
const DOUBLED: &[&str] = &[
    "request",
    "operation",
    "kind",
    "oldObject",
    "metadata",
    "name",
    "namespace",
    "labels",
    LABEL,
    "deletionTimestamp",
];

/// A review that is well-formed, with anything around what matters.
struct Built<'a> {
    recipe: Recipe<'a>,
    doubled: Option<&'static str>,
}

impl Built<'_> {
    fn review(mut self, going: bool) -> String {
        let other = self.recipe.pick(&["\"\"", "\"web\"", "\"\\u00e9\""]).to_owned();
        let labels = self.object(vec![(LABEL, "\"Always\"".to_owned()), ("app", other)], 0);
        let time = if going { "\"2026-01-01T00:00:00Z\"" } else { "null" };
        let metadata = self.object(
            vec![
                ("name", "\"web\"".to_owned()),
                ("namespace", "\"shop\"".to_owned()),
                ("labels", labels),
                ("deletionTimestamp", time.to_owned()),
            ],
            3,
        );
        let old = self.object(vec![("metadata", metadata)], 3);
        let kind = self.object(vec![("kind", "\"ConfigMap\"".to_owned())], 3);
        let request = self.object(
            vec![
                ("uid", "\"1\"".to_owned()),
                ("operation", "\"DELETE\"".to_owned()),
                ("kind", kind),
                ("oldObject", old),
            ],
            3,
        );
        self.object(
            vec![
                ("apiVersion", "\"admission.k8s.io/v1\"".to_owned()),
                ("kind", "\"AdmissionReview\"".to_owned()),
                ("request", request),
            ],
            3,
        )
    }

    /// An object of these members in any order, with a few others among them that nobody reads.
    fn object(&mut self, members: Vec<(&str, String)>, others: usize) -> String {
        let mut texts = Vec::new();
        for (key, value) in members {
            let doubled = self.doubled == Some(key);
            for _ in 0..=usize::from(doubled) {
                let at = self.recipe.below(texts.len() + 1);
                let key = self.key(key);
                texts.insert(at, format!("{key}:{value}"));
            }
        }
        for number in 0..self.recipe.below(others + 1) {
            let at = self.recipe.below(texts.len() + 1);
            let other = self.value(3);
            texts.insert(at, format!("\"x{number}\":{other}"));
        }
        let spaces = self.recipe.pick(&["", " ", "\n\t"]);
        format!("{{{spaces}{}{spaces}}}", texts.join(&format!("{spaces},{spaces}")))
    }

    /// A key, with or without an escape.
    fn key(&mut self, key: &str) -> String {
        if self.recipe.below(4) > 0 {
            return format!("\"{key}\"");
        }
        let at = self.recipe.below(key.len());
        format!("\"{}\\u{:04x}{}\"", &key[..at], key.as_bytes()[at], &key[at + 1..])
    }

    /// Any value that nobody reads.
    fn value(&mut self, depth: usize) -> String {
        let plain =
            ["null", "true", "-1.5e3", "\"\"", "\"\\\"}\"", "\"\\\\\"", "\"{[\"", "\"\\u00e9\"", "{}", "[]"];
        if depth == 0 || self.recipe.coin() {
            return self.recipe.pick(&plain).to_owned();
        }
        let inner: Vec<String> = (0..self.recipe.below(4)).map(|_| self.value(depth - 1)).collect();
        if self.recipe.coin() {
            return format!("[{}]", inner.join(","));
        }
        // Nobody reads these, so they may be named twice.
        let members: Vec<String> = inner.iter().map(|value| format!("\"oldObject\":{value}")).collect();
        format!("{{{}}}", members.join(", "))
    }
}
