//! One resource, listed and watched as text, for indices that keep next to nothing of each object.
//!
//! A watch ends by itself every [`WATCH`], just after a bookmark, so that what has been fed is never much older than
//! that without anybody noticing.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use futures::io::{AsyncBufReadExt, BufReader};
use kube::Client;
use palisade_engine::Object;
use palisade_engine::json::{Cursor, Malformed};
use tokio::time::{sleep, timeout};

use crate::live::{METADATA, METADATA_LIST, NoAnswer, WHOLE, get, page_uri};

/// How long one watch lasts.
pub(crate) const WATCH: Duration = Duration::from_secs(15);
/// How much longer it may be silent before it is given up for dead.
const GRACE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);
const NOT_SERVED: Duration = Duration::from_secs(5);
/// The longest pause where the API server forbids it: nothing but a change of rights helps.
const FORBIDDEN: Duration = Duration::from_secs(30);
/// A page of the largest objects there are still fits in a few seconds.
const PAGE_PATIENCE: Duration = Duration::from_secs(30);

/// What is fed, in order.
pub enum Fed<'a> {
    /// A list begins. What it does not show is gone when it is complete.
    Begin,
    Listed(&'a Object<'a>),
    /// The list is complete, as of a revision.
    Complete(u64),
    Applied(&'a Object<'a>),
    Deleted(&'a Object<'a>),
    /// Nothing has happened up to a revision that was not fed.
    Reached(u64),
}

/// What a feed shows, by key.
#[derive(Debug)]
pub struct Mirror<K, V> {
    items: HashMap<K, V>,
    /// What the list that runs has shown so far.
    shown: Option<HashSet<K>>,
}

impl<K, V> Default for Mirror<K, V> {
    fn default() -> Self {
        Self { items: HashMap::new(), shown: None }
    }
}

impl<K: Clone + Eq + Hash, V: PartialEq> Mirror<K, V> {
    pub fn get(&self, key: &K) -> Option<&V> {
        self.items.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.items.iter()
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.items.keys()
    }

    /// Takes what was fed, and returns what changed by it, with what it was before. An object of which nothing is to be
    /// kept is as good as gone; one that can't be read is taken to be as it was.
    pub fn take<E>(
        &mut self,
        fed: &Fed<'_>,
        key: impl FnOnce(&Object<'_>) -> K,
        read: impl FnOnce(&Object<'_>) -> Result<Option<V>, E>,
    ) -> Vec<(K, Option<V>)> {
        match fed {
            Fed::Begin => {
                self.shown = Some(HashSet::new());
                Vec::new()
            }
            Fed::Listed(object) | Fed::Applied(object) => {
                let key = key(object);
                if let Some(shown) = &mut self.shown {
                    shown.insert(key.clone());
                }
                let Ok(new) = read(object) else { return Vec::new() };
                if self.items.get(&key) == new.as_ref() {
                    return Vec::new();
                }
                let before = match new {
                    Some(new) => self.items.insert(key.clone(), new),
                    None => self.items.remove(&key),
                };
                vec![(key, before)]
            }
            Fed::Complete(_) => {
                let shown = self.shown.take().unwrap_or_default();
                let gone: Vec<K> = self.items.keys().filter(|key| !shown.contains(*key)).cloned().collect();
                let removed = gone.into_iter().map(|key| {
                    let before = self.items.remove(&key);
                    (key, before)
                });
                removed.collect()
            }
            Fed::Deleted(object) => {
                let key = key(object);
                let before = self.items.remove(&key);
                if before.is_some() { vec![(key, before)] } else { Vec::new() }
            }
            Fed::Reached(_) => Vec::new(),
        }
    }
}

/// Feeds a resource by its path, for ever. `query` may select some of it.
pub async fn feed(client: &Client, path: &str, query: &[(&str, &str)], mut take: impl FnMut(Fed<'_>) + Send) {
    follow(&Source { client, path, query, metadata_only: false }, |fed| match fed {
        Ok(fed) => take(fed),
        Err(Broken::NotServed) => {
            take(Fed::Begin);
            take(Fed::Complete(0));
        }
        Err(broken) => tracing::warn!(path, why = %broken, "listing and watching"),
    })
    .await;
}

/// What is fed.
pub(crate) struct Source<'a> {
    pub(crate) client: &'a Client,
    pub(crate) path: &'a str,
    pub(crate) query: &'a [(&'a str, &'a str)],
    pub(crate) metadata_only: bool,
}

/// Feeds a source for ever, and tells what breaks it.
pub(crate) async fn follow(source: &Source<'_>, mut take: impl FnMut(Result<Fed<'_>, &Broken>) + Send) {
    let Source { client, path, query, metadata_only } = *source;
    let (listed_as, watched_as) = if metadata_only { (METADATA_LIST, METADATA) } else { (WHOLE, WHOLE) };
    // How often in a row it was forbidden.
    let mut forbidden = 0;
    loop {
        let mut revision = match list(client, path, query, listed_as, &mut |fed| take(Ok(fed))).await {
            Ok(revision) => revision,
            Err(broken) => {
                take(Err(&broken));
                sleep(pause(&broken, &mut forbidden)).await;
                continue;
            }
        };
        loop {
            match watch(client, path, query, watched_as, &mut revision, &mut |fed| take(Ok(fed))).await {
                // Of a resource that nothing happens to, the API server sends no bookmarks: that it ended the watch in
                // order is the only sign of life.
                Ok(()) => {
                    forbidden = 0;
                    take(Ok(Fed::Reached(number(&revision))));
                }
                Err(Broken::Expired | Broken::NotServed) => break,
                Err(broken) => {
                    take(Err(&broken));
                    sleep(pause(&broken, &mut forbidden)).await;
                }
            }
        }
    }
}

/// How long to wait before another try.
fn pause(broken: &Broken, forbidden: &mut u32) -> Duration {
    match broken {
        Broken::Forbidden(_) => {
            *forbidden += 1;
            (PAUSE * 2_u32.saturating_pow((*forbidden).min(8))).min(FORBIDDEN)
        }
        Broken::NotServed => NOT_SERVED,
        _ => PAUSE,
    }
}

/// Watches the metadata of a resource without listing it, until that fails.
pub(crate) async fn watch_from_now(
    client: &Client,
    path: &str,
    mut take: impl FnMut(Fed<'_>) + Send,
) -> Result<(), Broken> {
    let request = get(&format!("{path}?limit=1"), METADATA_LIST)?;
    let asked = timeout(PAGE_PATIENCE, client.request_text(request)).await.map_err(|_| Broken::Silent)?;
    let (mut revision, _) = take_page(asked.map_err(NoAnswer::from)?.as_bytes(), &mut |_| {})?;
    loop {
        watch(client, path, &[], METADATA, &mut revision, &mut take).await?;
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the resource is not served")]
    NotServed,
    #[error("the revision is no longer known")]
    Expired,
    #[error("{0}")]
    Unreadable(#[from] Malformed),
    #[error("the connection was silent")]
    Silent,
    /// Palisade lacks a right.
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    Other(String),
}

impl From<NoAnswer> for Broken {
    fn from(why: NoAnswer) -> Self {
        match why.code {
            403 => Self::Forbidden(why.text),
            404 => Self::NotServed,
            410 => Self::Expired,
            _ => Self::Other(why.text),
        }
    }
}

/// Lists it all in pages, and returns the revision as the API server writes it.
pub(crate) async fn list(
    client: &Client,
    path: &str,
    query: &[(&str, &str)],
    accept: &str,
    take: &mut impl FnMut(Fed<'_>),
) -> Result<String, Broken> {
    take(Fed::Begin);
    let mut token = String::new();
    loop {
        let request = get(&page_uri(path, query, &token), accept)?;
        let asked = timeout(PAGE_PATIENCE, client.request_text(request)).await.map_err(|_| Broken::Silent)?;
        let text = asked.map_err(NoAnswer::from)?;
        let (revision, next) = take_page(text.as_bytes(), take)?;
        if next.is_empty() {
            take(Fed::Complete(number(&revision)));
            return Ok(revision);
        }
        token = next;
    }
}

/// Takes one page, and returns its revision and the token for the next.
pub(crate) fn take_page(text: &[u8], take: &mut impl FnMut(Fed<'_>)) -> Result<(String, String), Malformed> {
    let (mut revision, mut next) = (String::new(), String::new());
    Cursor::new(text).object(|key, value| {
        match &*key {
            "metadata" => value.object(|key, value| {
                match &*key {
                    "resourceVersion" => revision = value.string()?.into_owned(),
                    "continue" => next = value.string()?.into_owned(),
                    _ => value.skip()?,
                }
                Ok(())
            })?,
            "items" => value.list(|item| {
                take(Fed::Listed(&Object::read(item)?));
                Ok(())
            })?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok((revision, next))
}

async fn watch(
    client: &Client,
    path: &str,
    query: &[(&str, &str)],
    accept: &str,
    revision: &mut String,
    take: &mut impl FnMut(Fed<'_>),
) -> Result<(), Broken> {
    let uri = watch_uri(path, query, revision);
    let asked =
        timeout(GRACE, client.request_stream(get(&uri, accept)?)).await.map_err(|_| Broken::Silent)?;
    let mut lines = BufReader::new(Box::pin(asked.map_err(NoAnswer::from)?));
    let mut line = Vec::new();
    loop {
        line.clear();
        let read =
            timeout(WATCH + GRACE, lines.read_until(b'\n', &mut line)).await.map_err(|_| Broken::Silent)?;
        if read.map_err(|error| Broken::Other(error.to_string()))? == 0 {
            return Ok(());
        }
        take_event(&line, revision, take)?;
    }
}

fn watch_uri(path: &str, query: &[(&str, &str)], revision: &str) -> String {
    let mut words = form_urlencoded::Serializer::new(String::new());
    words.append_pair("watch", "true").append_pair("allowWatchBookmarks", "true");
    words.append_pair("timeoutSeconds", &WATCH.as_secs().to_string());
    words.append_pair("resourceVersion", revision).extend_pairs(query);
    format!("{path}?{}", words.finish())
}

/// Takes one line: `{"type": "ADDED", "object": …}`.
fn take_event(line: &[u8], revision: &mut String, take: &mut impl FnMut(Fed<'_>)) -> Result<(), Broken> {
    let (mut kind, mut text) = (std::borrow::Cow::default(), None);
    Cursor::new(line).object(|key, value| {
        match &*key {
            "type" => kind = value.string()?,
            "object" => text = value.raw_or_null()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    let text = text.unwrap_or(b"{}");
    if kind == "ERROR" {
        let mut code = 0;
        Cursor::new(text).object(|key, value| {
            if key == "code" {
                code = value.value()?;
                Ok(())
            } else {
                value.skip()
            }
        })?;
        return Err(if code == 410 { Broken::Expired } else { Broken::Other(format!("code {code}")) });
    }
    let object = Object::parse(text)?;
    revision.clear();
    revision.push_str(&object.metadata.resource_version);
    match &*kind {
        "ADDED" | "MODIFIED" => take(Fed::Applied(&object)),
        "DELETED" => take(Fed::Deleted(&object)),
        // A bookmark.
        _ => take(Fed::Reached(number(revision))),
    }
    Ok(())
}

/// A revision as a number. Kubernetes lets clients compare them so.
pub(crate) fn number(revision: &str) -> u64 {
    revision.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(line: &str) -> (Result<String, String>, String) {
        let (mut revision, mut seen) = ("1".to_owned(), String::new());
        let taken = take_event(line.as_bytes(), &mut revision, &mut |fed| {
            seen = match fed {
                Fed::Applied(object) => format!("applied {}", object.metadata.name),
                Fed::Deleted(object) => format!("deleted {}", object.metadata.name),
                Fed::Reached(revision) => format!("reached {revision}"),
                Fed::Begin | Fed::Listed(_) | Fed::Complete(_) => "a list".to_owned(),
            };
        });
        (taken.map(|()| seen).map_err(|broken| broken.to_string()), revision)
    }

    #[test]
    fn each_event_moves_the_revision_on() {
        let pod = |kind: &str| {
            format!(r#"{{"type":"{kind}","object":{{"metadata":{{"name":"web-0","resourceVersion":"7"}}}}}}"#)
        };
        assert_eq!(fed(&pod("ADDED")), (Ok("applied web-0".into()), "7".into()));
        assert_eq!(fed(&pod("MODIFIED")), (Ok("applied web-0".into()), "7".into()));
        assert_eq!(fed(&pod("DELETED")), (Ok("deleted web-0".into()), "7".into()));
        assert_eq!(fed(&pod("BOOKMARK")), (Ok("reached 7".into()), "7".into()));
    }

    #[test]
    fn a_mirror_tells_what_changed_and_what_a_list_does_not_show_is_gone() {
        let mut mirror: Mirror<String, u64> = Mirror::default();
        let mut take = |fed: &Fed<'_>| {
            let key = |object: &Object<'_>| object.metadata.name.to_string();
            // Odd ones are not kept.
            let read = |object: &Object<'_>| match number(&object.metadata.resource_version) {
                0 => Err("unreadable"),
                revision => Ok(Some(revision).filter(|revision| revision % 2 == 0)),
            };
            let mut changed = mirror.take(fed, key, read);
            changed.sort();
            changed
        };
        let text = |name: &str, revision: u64| {
            format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{revision}"}}}}"#)
        };
        let (a0, a2, a4, a5, b6) = (text("a", 0), text("a", 2), text("a", 4), text("a", 5), text("b", 6));
        let [a0, a2, a4, a5, b6] =
            [&a0, &a2, &a4, &a5, &b6].map(|text| Object::parse(text.as_bytes()).unwrap());
        let (a, b) = ("a".to_owned(), "b".to_owned());
        assert_eq!(take(&Fed::Begin), []);
        assert_eq!(take(&Fed::Listed(&a2)), [(a.clone(), None)]);
        assert_eq!(take(&Fed::Complete(9)), []);
        assert_eq!(take(&Fed::Applied(&a2)), [], "the same again");
        assert_eq!(take(&Fed::Applied(&a4)), [(a.clone(), Some(2))]);
        assert_eq!(take(&Fed::Applied(&b6)), [(b.clone(), None)]);
        assert_eq!(take(&Fed::Begin), []);
        assert_eq!(take(&Fed::Listed(&a0)), [], "it is there, and as it was");
        assert_eq!(take(&Fed::Complete(10)), [(b, Some(6))]);
        assert_eq!(take(&Fed::Applied(&a5)), [(a, Some(4))], "not kept any more");
        assert_eq!(take(&Fed::Deleted(&a5)), []);
    }

    #[test]
    fn an_expired_revision_is_told_from_other_errors_and_kept() {
        let error = |code: u16| format!(r#"{{"type":"ERROR","object":{{"kind":"Status","code":{code}}}}}"#);
        assert_eq!(fed(&error(410)), (Err("the revision is no longer known".into()), "1".into()));
        assert_eq!(fed(&error(500)), (Err("code 500".into()), "1".into()));
    }
}
