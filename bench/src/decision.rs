//! Decode and decide, without a network.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::{Duration, Instant};

use palisade_admission::{answer, read};
use palisade_api::gates::FeatureGates;
use palisade_api::protection::{Rule, rules_of};
use palisade_engine::{
    Answer, BudgetAuthor, Census, Definition, Dependents, Judged, Kind, Place, Protections, Scale, Search,
    Settings, Subject, Unknown, World, decide,
};

use crate::Error;
use crate::report::{Report, micros, quantile};
use crate::reviews::{Answered, SIZES, review};

/// Nothing that is measured here asks anything.
struct Nobody(Protections);

impl World for Nobody {
    async fn active_pods(&self, _: &str) -> Answer<Census> {
        Err(Unknown::new("", ""))
    }
    async fn bound_claims(&self, _: &str) -> Answer<Census> {
        Err(Unknown::new("", ""))
    }
    async fn instances(&self, _: &Definition) -> Answer<Census> {
        Err(Unknown::new("", ""))
    }
    fn is_searched(&self, _: &str) -> bool {
        true
    }
    async fn scale(&self, _: &Kind<'_>) -> Answer<Option<Scale>> {
        Err(Unknown::new("", ""))
    }
    async fn mounting_pods(&self, _: &str, _: &BTreeSet<String>) -> Answer<BTreeMap<String, Census>> {
        Err(Unknown::new("", ""))
    }
    async fn ready_endpoints(&self, _: &str, _: &BTreeSet<String>) -> Answer<BTreeMap<String, Census>> {
        Err(Unknown::new("", ""))
    }
    async fn pods_on_node(&self, _: &str) -> Answer<Census> {
        Err(Unknown::new("", ""))
    }
    async fn dependents(&self, _: Option<&str>, _: &BTreeSet<String>) -> Answer<Dependents> {
        Err(Unknown::new("", ""))
    }
    fn protections(&self) -> &Protections {
        &self.0
    }
    async fn namespace_labels(&self, _: &str) -> Answer<BTreeMap<String, String>> {
        Ok(BTreeMap::new())
    }
    async fn all_namespace_labels(&self) -> Answer<BTreeMap<String, BTreeMap<String, String>>> {
        Ok(BTreeMap::new())
    }
    async fn search(
        &self,
        _: Place<'_>,
        _: &(dyn Fn(&Subject<'_>, bool) -> Judged + Sync),
    ) -> Answer<Search> {
        Ok(Search::default())
    }
    fn note_author(&self, _: &BudgetAuthor<'_>, _: bool) -> u32 {
        0
    }
    async fn pod(&self, _: &str, _: &str) -> Answer<Option<String>> {
        Err(Unknown::new("", ""))
    }
}

pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    let settings = Settings { own_namespace: "palisade-system".to_owned(), gates: FeatureGates::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    report.section(
        "A decision",
        "Decode, decide and encode the answer, per review of a Deployment, beside decoding the same bytes to a \
         `serde_json::Value`. Medians of 50 rounds.",
    );
    report.table(&["object", "allowed", "refused", "decoding it whole", "of that"]);
    let nobody = Nobody(Protections::default());
    for (size, name) in SIZES {
        let time = |answered: Answered| {
            let body = review(size, answered);
            rounds(size, || {
                let Ok(read) = read(&body) else { return };
                let verdict = runtime.block_on(decide(&read.review, &nobody, &settings));
                black_box(answer(&read.uid, &verdict));
            })
        };
        let (allowed, refused) = (time(Answered::Allowed), time(Answered::Refused));
        let body = review(size, Answered::Refused);
        let whole = rounds(size, || {
            let _ = black_box(serde_json::from_slice::<serde_json::Value>(&body));
        });
        let share = format!("{:.0} %", 100.0 * refused.as_secs_f64() / whole.as_secs_f64());
        report.row(&[name.to_owned(), micros(allowed), micros(refused), micros(whole), share]);
    }
    Ok(())
}

/// How the number of protections tells on a decision.
pub(crate) fn measure_rules(report: &mut Report) -> Result<(), Error> {
    let settings = Settings { own_namespace: "palisade-system".to_owned(), gates: FeatureGates::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    report.section(
        "Rules",
        "The same decision (12 kB, allowed) beside protections that are all for Deployments, each with ten names, and \
         none for this one: the worst case, since rules for other kinds are not looked at.",
    );
    report.table(&["protections", "names", "decision"]);
    let body = review(12 << 10, Answered::Allowed);
    for count in [0, 1, 50, 500] {
        let rules: Vec<Rule> =
            (0..count).map(rule).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let nobody = Nobody(Protections::new(rules, Vec::new()));
        let took = rounds(12 << 10, || {
            let Ok(read) = read(&body) else { return };
            let verdict = runtime.block_on(decide(&read.review, &nobody, &settings));
            black_box(answer(&read.uid, &verdict));
        });
        report.row(&[count.to_string(), (count * 10).to_string(), micros(took)]);
    }
    Ok(())
}

fn rule(number: usize) -> Result<Vec<Rule>, Error> {
    let names: Vec<String> = (0..10).map(|name| format!("app-{number}-{name}")).collect();
    let spec = serde_json::json!({"protectedResources": [
        {"resourceSelector": [{"apiVersion": "apps/v1", "kind": "Deployment"}], "resourceNames": names}]});
    rules_of(&format!("protection-{number}"), &serde_json::from_value(spec)?)
        .map_err(|error| error.to_string().into())
}

/// The median time of one call.
fn rounds(size: usize, call: impl Fn()) -> Duration {
    let calls = u32::try_from((20 << 20) / size / 50).unwrap_or(1).max(20);
    let mut times: Vec<Duration> = (0..50)
        .map(|_| {
            let started = Instant::now();
            (0..calls).for_each(|_| call());
            started.elapsed() / calls
        })
        .collect();
    quantile(&mut times, 0.5)
}
