//! Kinds that nobody can list, and for how long that is remembered.
//!
//! A custom resource whose conversion webhook is dead, and a resource whose own API server is, take their time to
//! fail. One review finds out; those that come after it in the next seconds are told at once, and do not wait.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use palisade_engine::Object;
use tokio::time::Instant;

use crate::discovery::{AUTOMATIC, Served};
use crate::live::{LiveWorld, METADATA_LIST, NoAnswer, WHOLE, page_uri};
use crate::sync::lock;

/// For how long a failure is remembered. A kind that works again is looked at from then on.
const REMEMBERED: Duration = Duration::from_secs(10);
/// How many kinds are remembered. No cluster serves so many that all of them are broken.
const MOST: usize = 1_000;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// The kinds that nobody could list a moment ago, shared by all reviews of a replica.
#[derive(Debug, Default)]
pub(crate) struct BrokenKinds(Mutex<HashMap<(String, String), Failure>>);

#[derive(Debug)]
struct Failure {
    why: String,
    until: Instant,
}

impl BrokenKinds {
    /// Why a kind could not be listed a moment ago.
    pub(crate) fn recall(&self, served: &Served, now: Instant) -> Option<String> {
        let failures = lock(&self.0);
        let failure = failures.get(&key(served))?;
        (now < failure.until).then(|| failure.why.clone())
    }

    pub(crate) fn remember(&self, served: &Served, why: &str, now: Instant) {
        let mut failures = lock(&self.0);
        failures.retain(|_, failure| now < failure.until);
        if failures.len() < MOST {
            failures.insert(key(served), Failure { why: why.to_owned(), until: now + REMEMBERED });
        }
    }

    pub(crate) fn forget(&self, served: &Served) {
        lock(&self.0).remove(&key(served));
    }
}

fn key(served: &Served) -> (String, String) {
    (served.group.clone(), served.plural.clone())
}

impl LiveWorld {
    /// Whether somebody besides the API server must answer for a kind to be listed: a conversion webhook, or another API
    /// server. Not knowing is no: then what could not be listed is a refusal.
    pub(crate) async fn depends_on_others(&self, served: &Served) -> bool {
        // Neither custom resources nor registered API servers have a group without a dot.
        if !served.group.contains('.') {
            return false;
        }
        let (converted, aggregated) = futures::join!(self.is_converted(served), self.is_aggregated(served));
        converted.unwrap_or(false) || aggregated.unwrap_or(false)
    }

    async fn is_converted(&self, served: &Served) -> Result<bool, NoAnswer> {
        let name = format!("metadata.name={}.{}", served.plural, served.group);
        let uri = page_uri(DEFINITIONS, &[("fieldSelector", &name)], "");
        let mut converted = false;
        let text = self.ask(&uri, WHOLE).await?;
        crate::critical::read_page(&text, &mut |object: &Object<'_>| {
            let strategy = object.spec_json().ok().map(|spec| spec["conversion"]["strategy"] == "Webhook");
            converted |= strategy.unwrap_or(false);
        })?;
        Ok(converted)
    }

    async fn is_aggregated(&self, served: &Served) -> Result<bool, NoAnswer> {
        let name = format!("metadata.name={}.{}", served.version, served.group);
        let uri = page_uri(API_SERVICES, &[("fieldSelector", &name)], "");
        let mut aggregated = false;
        let text = self.ask(&uri, METADATA_LIST).await?;
        crate::critical::read_page(&text, &mut |object: &Object<'_>| {
            aggregated |= object.metadata.labels.get(AUTOMATIC).is_none();
        })?;
        Ok(aggregated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_remembered_for_a_while_and_forgotten_with_the_first_answer() {
        let (kinds, widgets) =
            (BrokenKinds::default(), Served::new("example.com", "v1", "Widget", "widgets", true));
        kinds.remember(&widgets, "its conversion webhook is dead", Instant::now());
        assert_eq!(kinds.recall(&widgets, Instant::now()).as_deref(), Some("its conversion webhook is dead"));
        let gadgets = Served::new("example.com", "v1", "Gadget", "gadgets", true);
        assert_eq!(kinds.recall(&gadgets, Instant::now()), None);
        let other_version = Served { version: "v2".to_owned(), ..widgets.clone() };
        assert!(kinds.recall(&other_version, Instant::now()).is_some(), "all versions are tried together");
        kinds.forget(&widgets);
        assert_eq!(kinds.recall(&widgets, Instant::now()), None);

        kinds.remember(&widgets, "dead", Instant::now());
        tokio::time::advance(REMEMBERED).await;
        assert_eq!(kinds.recall(&widgets, Instant::now()), None);
        kinds.remember(&gadgets, "dead", Instant::now());
        assert_eq!(lock(&kinds.0).len(), 1, "what is over is dropped");
    }
}
