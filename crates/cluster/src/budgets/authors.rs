//! Who wrote a budget, from the review that admits it to its status.
//!
//! ```text
//! review of a budget ─▶ Authorship ─ the watch brings that very budget ─▶ status.writtenBy
//! ```
//!
//! A review comes before the budget is stored, and something else may still refuse it. So what is remembered names the
//! uid, the generation and the spec that were reviewed, and only the budget that has all three is signed. What is lost on
//! the way, because a replica ends, is not an administrator's: the leader says so after a while.

use std::sync::Arc;
use std::time::Duration;

use palisade_api::budget::{Status, WrittenBy};
use palisade_engine::BudgetAuthor;
use tokio::time::{Instant, sleep, timeout};

use crate::budgets::ledger::{Ask, Budgets};
use crate::budgets::{Index, Key, Known};
use crate::commit;

/// How long a request may go on after it was admitted here.
const EXPECTED: Duration = Duration::from_secs(60);
/// How long one attempt to write may take, and how many there are.
const ATTEMPT: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 6;
/// How many budgets may be waited for at a time. Beyond that it is not known who wrote them.
pub(super) const MOST_AUTHORS: usize = 256;

/// Who wrote which budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authorship {
    key: Key,
    uid: String,
    generation: i64,
    spec_digest: u64,
    administrator: bool,
}

impl Authorship {
    fn read(author: &BudgetAuthor<'_>, index: &Index) -> Option<Self> {
        let spec = serde_json::from_slice(author.spec).ok()?;
        Some(Self {
            key: Key { namespace: author.namespace.to_owned(), name: author.name.to_owned() },
            uid: author.uid.to_owned(),
            generation: author.generation,
            spec_digest: index.reader.digest(&spec),
            administrator: author.administrator,
        })
    }

    /// Says in a budget's status who wrote it, if it is the one. Returns whether that is news.
    pub(crate) fn sign(&self, known: &Known, status: &mut Status) -> bool {
        let is_it = known.uid == self.uid
            && known.generation == Some(self.generation)
            && known.spec_digest == self.spec_digest;
        let signed = status.written_by.filter(|written| written.generation == self.generation);
        // Nobody takes an administrator's word back but by a change.
        let is_news = match signed {
            Some(written) => self.administrator && !written.administrator,
            None => true,
        };
        if is_it && is_news {
            status.written_by =
                Some(WrittenBy { generation: self.generation, administrator: self.administrator });
        }
        is_it && is_news
    }
}

impl Budgets {
    /// Remembers who writes a budget, and says so in its status once it is there.
    pub(crate) fn note_author(self: &Arc<Self>, author: &BudgetAuthor<'_>) {
        // Without room, nobody knows who wrote it: it will let at least one pod go, which stops nobody.
        let Ok(room) = self.authors.clone().try_acquire_owned() else {
            let (namespace, budget) = (author.namespace, author.name);
            tracing::warn!(
                namespace,
                budget,
                "too many budgets are written at once to remember who wrote it"
            );
            return;
        };
        let Some(authorship) = Authorship::read(author, self.index()) else { return };
        let budgets = self.clone();
        tokio::spawn(async move {
            let _room = room;
            // If it never comes, something else refused it.
            let _ = timeout(EXPECTED, budgets.sign(&authorship)).await;
        });
    }

    async fn sign(self: &Arc<Self>, authorship: &Authorship) {
        let key = &authorship.key;
        let is_there = |index: &Index| {
            index.budget(key).is_some_and(|known| {
                known.uid == authorship.uid && known.generation >= Some(authorship.generation)
            })
        };
        self.index().until(is_there).await;
        // Its numbers are written with it.
        self.index().until(Index::is_listed).await;
        for _ in 0..ATTEMPTS {
            let deadline = Instant::now() + ATTEMPT;
            match commit::ask(self, key, Ask::Sign(authorship.clone()), deadline).await {
                Ok(_) => return,
                Err(unknown) => {
                    tracing::warn!(
                        budget = key.name,
                        namespace = key.namespace,
                        why = unknown.why,
                        "saying who wrote a budget"
                    );
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::DynamicObject;
    use palisade_api::budget::Author;
    use serde_json::{Value, json};

    fn budget(index: &Index, generation: i64, max: u32, status: &Value) -> Known {
        let object: DynamicObject = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "generation": generation},
            "spec": {"selector": {}, "maxUnavailable": max}, "status": status,
        }))
        .unwrap();
        index.reader.read(&object)
    }

    fn written(index: &Index, uid: &str, generation: i64, max: u32, administrator: bool) -> Authorship {
        let spec = json!({"maxUnavailable": max, "selector": {}}).to_string();
        let author = BudgetAuthor {
            namespace: "shop",
            name: "web",
            uid,
            generation,
            spec: spec.as_bytes(),
            administrator,
        };
        Authorship::read(&author, index).unwrap()
    }

    #[test]
    fn only_the_budget_that_was_reviewed_is_signed() {
        let index = Index::default();
        let known = budget(&index, 2, 0, &json!({}));
        for (other, why) in [
            (written(&index, "v", 2, 0, true), "another by the same name"),
            (written(&index, "u", 1, 0, true), "one that was never stored"),
            (written(&index, "u", 2, 1, true), "one that somebody else's took the place of"),
        ] {
            let mut status = known.status.clone();
            assert!(!other.sign(&known, &mut status), "{why}");
            assert_eq!(status, known.status, "{why}");
        }
        let mut status = known.status.clone();
        assert!(written(&index, "u", 2, 0, true).sign(&known, &mut status));
        assert_eq!(status.author(Some(2)), Author::Administrator);
        assert!(!written(&index, "u", 2, 0, true).sign(&known, &mut status), "nothing new");
        assert!(!written(&index, "u", 2, 0, false).sign(&known, &mut status), "not without a change");
        assert_eq!(status.author(Some(2)), Author::Administrator);
    }

    #[test]
    fn what_others_wrote_lets_a_pod_go_and_an_administrators_is_taken_at_its_word() {
        let index = Index::default();
        let desired = |status: Value| budget(&index, 2, 0, &status).budget.unwrap().desired(3);
        assert_eq!(desired(json!({"writtenBy": {"generation": 2, "administrator": true}})), 3);
        assert_eq!(desired(json!({"writtenBy": {"generation": 2, "administrator": false}})), 2);
        assert_eq!(desired(json!({})), 3, "for the moment that it takes to find out");
        assert_eq!(desired(json!({"writtenBy": {"generation": 1, "administrator": false}})), 2);
        let unbounded = Index::new(0);
        let status = json!({"writtenBy": {"generation": 2, "administrator": false}});
        assert_eq!(budget(&unbounded, 2, 0, &status).budget.unwrap().desired(3), 3);
    }
}
