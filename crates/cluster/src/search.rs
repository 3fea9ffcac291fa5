//! The search for protected objects, in a namespace or among the custom resources of a definition.
//!
//! One consistent list of metadata for each kind, many kinds at once. A first page shows most namespaces whole.
//! Of a kind that has more, the labels are asked for by selector; every page is read only where a rule or an
//! annotation may protect what no selector finds.

use std::borrow::Cow;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use palisade_api::kinds::{Cascade, cascade_of, is_transient};
use palisade_api::marks;
use palisade_api::protection::Action;
use palisade_engine::json::{Cursor, Malformed};
use palisade_engine::{
    Answer, Definition, Doomed, Judged, Kind, Object, Place, Search, Subject, Unknown, World,
};

use crate::critical::version_of;
use crate::discovery::{Discovery, Served, discover};
use crate::live::{LiveWorld, METADATA_LIST, NoAnswer, WHOLE, page_uri};
use crate::named::Detail;
use crate::owners::collected_with;

/// Lists that are under way at once.
const AT_ONCE: usize = 32;
/// What is left of a review's time when a search is given up that is only worth a warning.
const TO_GO_ON: Duration = Duration::from_millis(300);
/// Between two tries of a list whose storage is just being set up.
const AGAIN: Duration = Duration::from_millis(100);

pub(crate) type Judge<'a> = &'a (dyn Fn(&Subject<'_>, bool) -> Judged + Sync);

/// Searches a place.
pub(crate) async fn search(world: &LiveWorld, place: Place<'_>, judge: Judge<'_>) -> Answer<Search> {
    match place {
        Place::Namespace(namespace) => in_namespace(world, namespace, judge).await,
        Place::Definition(definition) => in_definition(world, definition, judge).await,
        Place::Below { uid, namespace } => below(world, uid, namespace, judge).await,
        Place::LabelledBelow { uid } => {
            // Only a warning depends on it, so that there must be time to go on without.
            let search =
                tokio::time::timeout_at(world.deadline - TO_GO_ON, labelled_below(world, uid, judge));
            let late = |_| Err(Unknown::new("what would be collected with it", "it took too long"));
            search.await.unwrap_or_else(late)
        }
    }
}

async fn in_namespace(world: &LiveWorld, namespace: &str, judge: Judge<'_>) -> Answer<Search> {
    let every = |served: &Served| served.namespaced;
    let (search, _) = in_kinds(world, Some(namespace), judge, Pages::All, every).await?;
    Ok(search)
}

/// What would be collected with an object: in its namespace, or anywhere if it has none. What is in a namespace guards
/// an object that has none only by a rule, so that kinds without one need not be searched.
async fn below(world: &LiveWorld, uid: &str, namespace: Option<&str>, judge: Judge<'_>) -> Answer<Search> {
    let protections = world.protections();
    let ruled =
        |served: &Served| protections.of_kind(&kind_of(served)).any(|rule| rule.action == Action::Deny);
    let concerned = |served: &Served| match namespace {
        Some(_) => served.namespaced,
        None => !served.namespaced || ruled(served),
    };
    let (search, discovery) = in_kinds(world, namespace, &owned(judge), Pages::All, concerned).await?;
    collected(world, &discovery, uid, search).await
}

/// What labels protect in any namespace, of what would be collected with an object that has none. A page of each kind is
/// enough to name some of it.
async fn labelled_below(world: &LiveWorld, uid: &str, judge: Judge<'_>) -> Answer<Search> {
    let namespaced = |served: &Served| served.namespaced;
    let (search, discovery) = in_kinds(world, None, &owned(judge), Pages::FirstLabelled, namespaced).await?;
    collected(world, &discovery, uid, search).await
}

/// Only what has an owner can go with one.
fn owned(judge: Judge<'_>) -> impl Fn(&Subject<'_>, bool) -> Judged {
    move |subject, whole| {
        if subject.object.metadata.owners.is_empty() { Judged::Free } else { judge(subject, whole) }
    }
}

/// What would go with an object, of what was found.
async fn collected(world: &LiveWorld, discovery: &Discovery, uid: &str, search: Search) -> Answer<Search> {
    let Search { found, unreachable } = search;
    let found = collected_with(world, discovery, uid, found).await;
    let found = found.map_err(|why| Unknown::new("what would be collected with it", why.text))?;
    Ok(Search { found, unreachable })
}

/// Every kind that is wanted, of a namespace or everywhere.
async fn in_kinds(
    world: &LiveWorld,
    namespace: Option<&str>,
    judge: Judge<'_>,
    pages: Pages,
    wanted: impl Fn(&Served) -> bool,
) -> Answer<(Search, Discovery)> {
    let unknown = |why: NoAnswer| Unknown::new("what is protected in it", why.text);
    let asked = async { discover(&world.client).await.map_err(NoAnswer::from) };
    let discovery = world.in_time(asked).await.map_err(unknown)?;
    let mut searches = Vec::new();
    for served in &discovery.resources {
        if served.listable && wanted(served) && may_be_protected(world, served) {
            searches.push(KindSearch { world, served, namespace, judge, pages, must_be_served: false }.run());
        }
    }
    let mut answers = stream::iter(searches).buffer_unordered(AT_ONCE);
    let mut found = Vec::new();
    let mut failed = None;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(doomed) => found.extend(doomed),
            Err(why) => failed = Some(unknown(why)),
        }
    }
    drop(answers);
    // What is known to be protected decides, also if another kind could not be asked.
    match failed {
        Some(unknown) if found.is_empty() => Err(unknown),
        _ => {
            found.sort_by(|one, other| {
                (&one.about.kind, &one.about.name).cmp(&(&other.about.kind, &other.about.name))
            });
            Ok((Search { found, unreachable: discovery.unreachable.clone() }, discovery))
        }
    }
}

/// Whether an object of a kind may be protected: where no label can, a rule must name the kind.
fn may_be_protected(world: &LiveWorld, served: &Served) -> bool {
    let Served { group, kind, plural, .. } = served;
    let named = Kind { group: group.into(), kind: kind.into(), plural: plural.into() };
    !is_transient(group, kind) || world.protections().of_kind(&named).next().is_some()
}

async fn in_definition(world: &LiveWorld, definition: &Definition, judge: Judge<'_>) -> Answer<Search> {
    let mut reasons = Vec::new();
    let mut answered = false;
    for version in &definition.served_versions {
        let served = version_of(definition, version);
        let search = KindSearch {
            world,
            served: &served,
            namespace: None,
            judge,
            pages: Pages::All,
            must_be_served: true,
        };
        match search.run().await {
            Ok(found) => return Ok(Search { found, unreachable: Vec::new() }),
            Err(why) => {
                answered |= why.code != 404;
                reasons.push(format!("{version}: {}", why.text));
            }
        }
    }
    // Not served, and never said to be: there is nothing of it.
    if !answered && !definition.established {
        return Ok(Search::default());
    }
    Err(Unknown::new("which of its custom resources are protected", reasons.join("; ")))
}

fn kind_of(served: &Served) -> Kind<'static> {
    let Served { group, kind, plural, .. } = served.clone();
    Kind { group: group.into(), kind: kind.into(), plural: plural.into() }
}

/// How much of a kind is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// All that may be protected.
    All,
    /// The first page of what is labelled.
    FirstLabelled,
}

/// The search among the objects of one kind.
struct KindSearch<'a> {
    world: &'a LiveWorld,
    served: &'a Served,
    namespace: Option<&'a str>,
    judge: Judge<'a>,
    pages: Pages,
    /// Whether "not found" is no answer: the definition says that the kind is served.
    must_be_served: bool,
}

impl KindSearch<'_> {
    async fn run(self) -> Result<Vec<Doomed>, NoAnswer> {
        let mut found = Vec::new();
        if self.pages == Pages::FirstLabelled {
            for selector in marks::protecting_selectors() {
                self.page(&[("labelSelector", &selector)], "", &mut found).await?;
            }
            found.dedup_by(|one, other| one.about == other.about);
            return Ok(found);
        }
        let Some(token) = self.page(&[], "", &mut found).await? else { return Ok(found) };
        let kind = self.kind();
        let annotated = cascade_of(&kind.group, &kind.kind) == Some(Cascade::Workload);
        if annotated || self.world.protections().of_kind(&kind).next().is_some() {
            self.pages(&[], token, &mut found).await?;
            return Ok(found);
        }
        found.clear();
        for selector in marks::protecting_selectors() {
            self.pages(&[("labelSelector", &selector)], String::new(), &mut found).await?;
        }
        found.dedup_by(|one, other| one.about == other.about);
        Ok(found)
    }

    fn kind(&self) -> Kind<'static> {
        kind_of(self.served)
    }

    async fn pages(
        &self,
        query: &[(&str, &str)],
        token: String,
        found: &mut Vec<Doomed>,
    ) -> Result<(), NoAnswer> {
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
        found: &mut Vec<Doomed>,
    ) -> Result<Option<String>, NoAnswer> {
        let path = self.served.path(self.namespace);
        let Some(text) = self.list(&page_uri(&path, query, token)).await? else { return Ok(None) };
        let (next, closer) =
            self.judge_page(&text, found).map_err(|error| NoAnswer::new(error.to_string()))?;
        for (namespace, name) in closer {
            let namespace = namespace.as_deref();
            let asked = self.world.ask_for_named(self.served, namespace, &name, Detail::Whole);
            let text = match asked.await {
                Ok(Some(text)) => text,
                Ok(None) => continue,
                Err(why) if why.code == 404 => continue,
                Err(why) => return Err(why),
            };
            let object = Object::parse(text.as_bytes()).map_err(|error| NoAnswer::new(error.to_string()))?;
            if let Judged::Protected(doomed) = (self.judge)(&Subject { kind: self.kind(), object }, true) {
                found.push(doomed);
            }
        }
        Ok(next)
    }

    #[expect(clippy::type_complexity, reason = "the next page, and who needs a closer look")]
    fn judge_page(
        &self,
        text: &str,
        found: &mut Vec<Doomed>,
    ) -> Result<(Option<String>, Vec<(Option<String>, String)>), Malformed> {
        let (mut next, mut closer) = (None, Vec::new());
        Cursor::new(text.as_bytes()).object(|key, value| match &*key {
            "metadata" => value.object(|key, value| {
                if key == "continue" {
                    next = value.string_or_null()?.map(Cow::into_owned).filter(|token| !token.is_empty());
                    Ok(())
                } else {
                    value.skip()
                }
            }),
            "items" => value.list(|item| {
                let subject = Subject { kind: self.kind(), object: Object::read(item)? };
                match (self.judge)(&subject, false) {
                    Judged::Free => {}
                    Judged::Protected(doomed) => found.push(doomed),
                    Judged::LookCloser => {
                        closer.push((subject.namespace().map(str::to_owned), subject.name().to_owned()));
                    }
                }
                Ok(())
            }),
            _ => value.skip(),
        })?;
        Ok((next, closer))
    }

    /// A page of metadata; `None` if the kind is not served, or not to be listed.
    async fn list(&self, uri: &str) -> Result<Option<String>, NoAnswer> {
        loop {
            match self.world.ask(uri, METADATA_LIST).await {
                Ok(text) => return Ok(Some(text)),
                Err(why) if why.code == 404 && !self.must_be_served => return Ok(None),
                Err(why) if why.code == 405 => return Ok(None),
                // An aggregated API server that knows no metadata-only lists.
                Err(why) if why.code == 406 => return self.world.ask(uri, WHOLE).await.map(Some),
                Err(why) if why.code == 429 && why.text.contains("initializing") => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(why) => {
                    return Err(NoAnswer {
                        text: format!("{}: {}", self.served.resource(), why.text),
                        ..why
                    });
                }
            }
            if tokio::time::Instant::now() >= self.world.deadline {
                return Err(NoAnswer::new(format!(
                    "{}: its storage is being set up",
                    self.served.resource()
                )));
            }
        }
    }
}
