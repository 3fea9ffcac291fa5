//! Decode and decide, without a network.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use palisade_admission::{answer, read};
use palisade_api::gates::FeatureGates;
use palisade_engine::{
    Answer, Census, Definition, Judged, Place, Protections, Search, Settings, Subject, Unknown, World, decide,
};

use crate::Error;
use crate::report::{Report, micros, quantile};
use crate::reviews::{Answered, SIZES, review};

/// Nothing that is measured here asks anything.
struct Nobody;

static PROTECTIONS: OnceLock<Protections> = OnceLock::new();

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
    fn protections(&self) -> &Protections {
        PROTECTIONS.get_or_init(Protections::default)
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
    for (size, name) in SIZES {
        let time = |answered: Answered| {
            let body = review(size, answered);
            rounds(size, || {
                let Ok(read) = read(&body) else { return };
                let verdict = runtime.block_on(decide(&read.review, &Nobody, &settings));
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
