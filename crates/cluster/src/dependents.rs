//! The objects that name others as owner, found by metadata lists of every kind.
//!
//! Nobody has an index of owners: every kind of the namespace is listed, or of the cluster for owners without one, as
//! many lists at once as any search may have under way. Each owner for which something was found is decided, so that the
//! search ends a moment after the last of them: what is left of the review's time would only make the count larger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use palisade_engine::{Answer, Census, Dependents, Judged, Search, Subject, Unknown};
use tokio::time::{Instant, sleep};

use crate::cascading::Tally;
use crate::discovery::Served;
use crate::kind_search::Pages;
use crate::live::LiveWorld;
use crate::search::in_kinds;
use crate::sync::lock;

/// How long to go on counting once each owner is known to have dependents.
const COUNTING: Duration = Duration::from_secs(1);
/// How often to look whether that is so.
const ROUND: Duration = Duration::from_millis(20);

/// The dependents of some owners, by uid.
struct Found<'a> {
    owners: &'a BTreeSet<String>,
    by_owner: Mutex<BTreeMap<String, Tally>>,
}

impl Found<'_> {
    /// Takes an object in, if it names one of the owners. Nothing but its name is kept.
    fn look_at(&self, subject: &Subject<'_>) {
        let metadata = &subject.object.metadata;
        if subject.is_already_going() {
            return;
        }
        for owner in &metadata.owners {
            if self.owners.contains(&*owner.uid) {
                let name = || format!("{} {}", subject.kind, crate::cascading::full_name(&subject.object));
                lock(&self.by_owner).entry(owner.uid.to_string()).or_default().add(&metadata.uid, name);
            }
        }
    }

    /// Waits until each owner is known to have dependents, and a moment longer.
    async fn all(&self) {
        loop {
            sleep(ROUND).await;
            let found = lock(&self.by_owner).values().filter(|tally| !tally.is_empty()).count();
            if found == self.owners.len() {
                return sleep(COUNTING).await;
            }
        }
    }

    fn censuses(&self, is_all: bool) -> BTreeMap<String, Census> {
        let found = lock(&self.by_owner);
        found.iter().map(|(owner, tally)| (owner.clone(), tally.census(is_all))).collect()
    }
}

impl LiveWorld {
    pub(crate) async fn ask_for_dependents(
        &self,
        namespace: Option<&str>,
        owners: &BTreeSet<String>,
    ) -> Answer<Dependents> {
        let found = Found { owners, by_owner: Mutex::default() };
        let judge = |subject: &Subject<'_>, _whole: bool| {
            found.look_at(subject);
            Judged::Free
        };
        let wanted = |served: &Served| namespace.is_none() || served.namespaced;
        let search = in_kinds(self, namespace, &judge, Pages::Every, wanted);
        let end = Instant::now() + self.time_to_search();
        let (looked_at, is_late) = tokio::select! {
            answer = search => match answer {
                Ok((search, _)) => (Some(search), false),
                Err(unknown) => return Err(Unknown { question: "what it owns".to_owned(), ..unknown }),
            },
            () = found.all() => (None, false),
            () = tokio::time::sleep_until(end) => (None, true),
        };
        let is_all = looked_at.as_ref().is_some_and(|search| search.unreadable.is_empty());
        let by_owner = found.censuses(is_all);
        // What was found until now decides about its owners; of the others nobody knows.
        if is_late && by_owner.len() < owners.len() {
            return Err(Unknown::new("what it owns", "it took too long to list every kind"));
        }
        let Search { unreadable, not_searched, .. } = looked_at.unwrap_or_default();
        Ok(Dependents { by_owner, unreadable, not_searched })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_engine::{Count, Kind, Object};

    #[test]
    fn an_object_counts_once_for_each_of_its_owners_unless_it_is_going() {
        let owners = BTreeSet::from(["u1".to_owned(), "u2".to_owned()]);
        let found = Found { owners: &owners, by_owner: Mutex::default() };
        let owned = |uid: &str, rest: &str| {
            let refs = r#"[{"uid":"u1"},{"uid":"u1","controller":true},{"uid":"u3"}]"#;
            let json = format!(
                r#"{{"metadata":{{"name":"{uid}","namespace":"shop","uid":"{uid}","ownerReferences":{refs}{rest}}}}}"#
            );
            let kind = Kind { group: "".into(), kind: "ConfigMap".into(), plural: "configmaps".into() };
            found.look_at(&Subject { kind, object: Object::parse(json.as_bytes()).unwrap() });
        };
        owned("a", "");
        owned("a", "");
        owned("b", "");
        owned("c", r#","deletionTimestamp":"2026-01-01T00:00:00Z""#);
        let names = vec!["configmap shop/a".to_owned(), "configmap shop/b".to_owned()];
        let expected = Census { count: Count::Exactly(2), names };
        assert_eq!(found.censuses(true), BTreeMap::from([("u1".to_owned(), expected)]));
    }
}
