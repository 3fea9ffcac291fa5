//! The search for protected objects among those of one kind.
//!
//! A first page shows most namespaces whole. Of a kind that has more, the labels are asked for by selector; every page is
//! read only where a rule or an annotation may protect what no selector finds. Where metadata does not decide, the same
//! page is asked for once more, with whole objects.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use palisade_api::kinds::{Cascade, cascade_of};
use palisade_api::marks;
use palisade_engine::json::{Cursor, Malformed};
use palisade_engine::{Judged, Kind, Metadata, Object, Search, Subject, UnreadableKind, World};
use tokio::time::{Instant, sleep, timeout_at};

use crate::discovery::Served;
use crate::live::{LiveWorld, METADATA_LIST, NoAnswer, WHOLE, page_uri};

/// Between two tries of a list whose storage is just being set up.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a page of a kind may take before it is found out whether the kind is broken.
const PATIENCE: Duration = Duration::from_secs(2);
/// After this time another version of a kind is asked as well.
const NEXT_VERSION: Duration = Duration::from_millis(500);
/// How often a kind that depends on others is asked before it counts as broken, and the first pause between.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);
/// What the API server says of it, behind much else.
const CONVERSION: &str = "conversion webhook for";

pub(crate) type Judge<'a> = &'a (dyn Fn(&Subject<'_>, bool) -> Judged + Sync);

/// How much of a kind is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// All that may be protected.
    All,
    /// All.
    Every,
    /// The first page of what is labelled.
    FirstLabelled,
}

/// The search among the objects of one kind.
#[derive(Clone, Copy)]
pub(crate) struct KindSearch<'a> {
    pub(crate) world: &'a LiveWorld,
    pub(crate) served: &'a Served,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) judge: Judge<'a>,
    pub(crate) pages: Pages,
    /// Whether "not found" is no answer: the definition says that the kind is served.
    pub(crate) must_be_served: bool,
}

impl KindSearch<'_> {
    /// What is protected, or why nobody can tell.
    pub(crate) async fn run(self) -> Result<Search, UnreadableKind> {
        let Self { world, served, namespace, .. } = self;
        if served.stale {
            return Err(unreadable(served, "its API server does not answer", true));
        }
        let is_concerned = world.protections().may_deny(&served.group, Some(&served.kind), namespace);
        // Where a rule may protect something, it is asked for each time: it may answer for this namespace.
        if !is_concerned && let Some(why) = world.broken.recall(served, Instant::now()) {
            return Err(unreadable(served, &why, true));
        }
        let end = Instant::now() + world.time_to_search();
        let Ok(answer) = timeout_at(end, self.with_tries(end)).await else {
            // It may have waited for its turn, so nothing is known about the kind.
            return Err(unreadable(served, "the API server did not answer in time", false));
        };
        match answer {
            Ok(found) => {
                world.broken.forget(served);
                Ok(found)
            }
            Err(why) if why.may_pass() && world.depends_on_others(served).await => {
                world.broken.remember(served, &why.text, Instant::now());
                Err(unreadable(served, &why.text, true))
            }
            Err(why) => {
                let missing = world.searching.missing(&why);
                Err(UnreadableKind { missing, ..unreadable(served, &why.text, false) })
            }
        }
    }

    /// Another API server may fail once, as its connection is made anew; the API server itself may put us off for longer.
    async fn with_tries(self, end: Instant) -> Result<Search, NoAnswer> {
        // Neither a conversion nor another API server is behind a group without a dot.
        let mut patience = self.served.group.contains('.').then_some(PATIENCE);
        let mut number = 0;
        loop {
            let failures = match self.in_some_version(patience).await {
                Ok(found) => return Ok(found),
                Err(failures) => failures,
            };
            number += 1;
            let why = told(&failures);
            let is_over = || Instant::now() + PAUSE * number >= end;
            if !why.may_pass()
                || is_over()
                || (why.is_late || number >= TRIES) && self.world.depends_on_others(self.served).await
            {
                return Err(why);
            }
            if why.is_late {
                // The API server answers for it, and takes long: that is waited for.
                patience = None;
            }
            sleep(PAUSE * number).await;
        }
    }

    /// One version shows the objects of all. The next is asked where one can't be converted to, or takes long; where none
    /// answers, what each said.
    pub(crate) async fn in_some_version(
        self,
        patience: Option<Duration>,
    ) -> Result<Search, Vec<(String, NoAnswer)>> {
        let versions: Vec<Served> = self.served.in_every_version().collect();
        let mut waiting = versions.iter();
        let search = |served| {
            let version = VersionSearch { search: KindSearch { served, ..self }, patience };
            async move { (served, version.run().await) }
        };
        let mut running: FuturesUnordered<_> = waiting.next().map(search).into_iter().collect();
        let mut failures = Vec::new();
        loop {
            tokio::select! {
                answer = running.next() => match answer {
                    Some((_, Ok(found))) => return Ok(found),
                    Some((served, Err(why))) => {
                        failures.push((served.version.clone(), why));
                        running.extend(waiting.next().map(search));
                    }
                    None => return Err(failures),
                },
                () = sleep(NEXT_VERSION), if patience.is_some() && waiting.len() > 0 => running.extend(waiting.next().map(search)),
            }
        }
    }
}

/// The search in one version of a kind.
struct VersionSearch<'a> {
    search: KindSearch<'a>,
    /// How long each page may take.
    patience: Option<Duration>,
}

impl VersionSearch<'_> {
    async fn run(self) -> Result<Search, NoAnswer> {
        let mut found = Found::default();
        if self.search.pages == Pages::FirstLabelled {
            for selector in marks::protecting_selectors() {
                self.page(&[("labelSelector", &selector)], "", &mut found).await?;
            }
            return Ok(found.search);
        }
        let Some(token) = self.page(&[], "", &mut found).await? else { return Ok(found.search) };
        let kind = self.kind();
        let cascade = cascade_of(&kind.group, &kind.kind);
        // Of any other kind there may be very many. An annotation beyond the first page is not seen there: the object
        // itself stays by it, and what it is in waits for it.
        let annotated = !matches!(cascade, Cascade::Other | Cascade::Namespace | Cascade::Definition);
        if self.search.pages == Pages::Every
            || annotated
            || self.search.world.protections().may_deny(&kind.group, Some(&kind.kind), self.search.namespace)
        {
            self.pages(&[], token, &mut found).await?;
            return Ok(found.search);
        }
        found = Found::default();
        found.search.was_by_selector(&kind);
        for selector in marks::protecting_selectors() {
            self.pages(&[("labelSelector", &selector)], String::new(), &mut found).await?;
        }
        Ok(found.search)
    }

    fn kind(&self) -> Kind<'static> {
        kind_of(self.search.served)
    }

    async fn pages(&self, query: &[(&str, &str)], token: String, found: &mut Found) -> Result<(), NoAnswer> {
        let mut next = Some(token);
        while let Some(token) = next {
            next = self.page(query, &token, found).await?;
        }
        Ok(())
    }

    /// Judges one page, and says where the next begins.
    async fn page(
        &self,
        query: &[(&str, &str)],
        token: &str,
        found: &mut Found,
    ) -> Result<Option<String>, NoAnswer> {
        let uri = page_uri(&self.search.served.path(self.search.namespace), query, token);
        let Some(text) = self.list(&uri, METADATA_LIST).await? else { return Ok(None) };
        let mut page = self.judge_page(&text, false, &found.several_labels).map_err(malformed)?;
        // Whole objects come a page at a time as well: a thousand workloads are not asked for one by one.
        if page.needs_whole {
            let Some(text) = self.list(&uri, WHOLE).await? else { return Ok(None) };
            page = self.judge_page(&text, true, &found.several_labels).map_err(malformed)?;
        }
        found.search.add_page(page.search);
        found.several_labels.extend(page.several_labels);
        Ok(page.next)
    }

    fn judge_page(&self, text: &str, whole: bool, listed: &HashSet<String>) -> Result<JudgedPage, Malformed> {
        let mut page = JudgedPage::default();
        Cursor::new(text.as_bytes()).object(|key, value| match &*key {
            "metadata" => value.object(|key, value| {
                if key == "continue" {
                    page.next =
                        value.string_or_null()?.map(Cow::into_owned).filter(|token| !token.is_empty());
                    Ok(())
                } else {
                    value.skip()
                }
            }),
            "items" => value.list(|item| {
                let subject = Subject { kind: self.kind(), object: Object::read(item)? };
                let Metadata { labels, uid, .. } = &subject.object.metadata;
                let keys =
                    [marks::DELETE_PROTECTION, marks::DELETION_PROTECTED, marks::DISABLE_CASCADING_DELETION];
                if keys.into_iter().filter(|key| labels.get(key).is_some()).count() > 1 {
                    if listed.contains(&**uid) {
                        return Ok(());
                    }
                    page.several_labels.push(uid.to_string());
                }
                let judged = (self.search.judge)(&subject, whole);
                page.needs_whole |= !page.search.add(&subject, judged);
                Ok(())
            }),
            _ => value.skip(),
        })?;
        Ok(page)
    }

    /// A page; `None` if the kind is not served, or not to be listed.
    async fn list(&self, uri: &str, accept: &str) -> Result<Option<String>, NoAnswer> {
        loop {
            match self.search.world.list_once(uri, accept, self.patience).await {
                Ok(text) => return Ok(Some(text)),
                Err(why) if why.code == 404 && !self.search.must_be_served => return Ok(None),
                Err(why) if why.code == 405 => return Ok(None),
                // An aggregated API server that knows no metadata-only lists.
                Err(why) if why.code == 406 && accept != WHOLE => {
                    return self.search.world.list_once(uri, WHOLE, self.patience).await.map(Some);
                }
                // Whoever runs the search gives up in time.
                Err(why) if why.code == 429 && why.text.contains("initializing") => sleep(AGAIN).await,
                Err(why) => return Err(why),
            }
        }
    }
}

pub(crate) fn kind_of(served: &Served) -> Kind<'static> {
    let Served { group, kind, plural, .. } = served.clone();
    Kind { group: group.into(), kind: kind.into(), plural: plural.into() }
}

/// What was found of a kind so far.
#[derive(Default)]
struct Found {
    search: Search,
    /// The uids of objects that more than one selector shows: they count once.
    several_labels: HashSet<String>,
}

#[derive(Default)]
struct JudgedPage {
    search: Search,
    several_labels: Vec<String>,
    next: Option<String>,
    /// Whether metadata did not decide about one of its objects.
    needs_whole: bool,
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn malformed(error: Malformed) -> NoAnswer {
    NoAnswer::new(error.to_string())
}

/// What a kind's versions said: the first that is not about the version itself.
fn told(failures: &[(String, NoAnswer)]) -> NoAnswer {
    let worst = failures.iter().map(|(_, why)| why).max_by_key(|why| why.may_pass());
    let worst = worst.map_or_else(|| NoAnswer::new("it is not served".to_owned()), Clone::clone);
    NoAnswer { is_late: failures.iter().any(|(_, why)| why.is_late), ..worst }
}

fn unreadable(served: &Served, why: &str, is_broken: bool) -> UnreadableKind {
    let Served { group, kind, plural, .. } = served.clone();
    let why = why.find(CONVERSION).map_or(why, |at| &why[at..]).to_owned();
    UnreadableKind { group, kind: Some((kind, plural)), why, is_broken, missing: None }
}
