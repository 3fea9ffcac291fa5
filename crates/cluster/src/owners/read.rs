//! Reading owners, many together.
//!
//! A few are asked for by name. Many of one kind and namespace, or more of those that were asked for before, are read
//! with a list: its first pages show most of them, and those that are left are asked for by name.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use kube::Client;
use palisade_engine::Object;
use palisade_engine::json::{Cursor, Malformed};

use super::{Location, Reference, references};
use crate::discovery::{Discovery, Served};
use crate::live::{LiveWorld, METADATA_LIST, NoAnswer, WHOLE, get, page_uri};
use crate::named::name_selector;

/// Questions that are under way at once.
const AT_ONCE: usize = 16;
/// Questions by name that are under way at once for one kind.
const NAMES_AT_ONCE: usize = 4;
/// How many are asked for by name before a list is cheaper.
const FEW: usize = 4;
/// How many pages of a list are read before names are cheaper.
const PAGES: usize = 10;

/// Whom to ask.
pub(crate) trait Ask: Sync {
    fn ask(&self, uri: &str, accept: &str) -> impl Future<Output = Result<String, NoAnswer>> + Send;
}

impl Ask for LiveWorld {
    async fn ask(&self, uri: &str, accept: &str) -> Result<String, NoAnswer> {
        Self::ask(self, uri, accept).await
    }
}

/// The API server, with time for each question.
pub(crate) struct Patient {
    pub(crate) client: Client,
    pub(crate) patience: Duration,
}

impl Ask for Patient {
    async fn ask(&self, uri: &str, accept: &str) -> Result<String, NoAnswer> {
        let asked = self.client.request_text(get(uri, accept)?);
        match tokio::time::timeout(self.patience, asked).await {
            Ok(answer) => answer.map_err(NoAnswer::from),
            Err(_) => Err(NoAnswer::new("the API server did not answer in time".to_owned())),
        }
    }
}

/// An object as far as it matters to what it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: String,
    pub(crate) owners: Vec<Reference>,
}

/// What was found at a place; `None` if there is nothing that stays.
pub(crate) type Found = Option<Owner>;

/// Reads owners, and keeps what it read.
pub(crate) struct Reader<'a, A> {
    asker: &'a A,
    discovery: &'a Discovery,
    found: HashMap<Location, Found>,
    /// Kinds and namespaces that were asked about.
    asked: HashSet<Collection>,
}

/// The objects of a kind, in a namespace or without one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Collection {
    group: String,
    kind: String,
    namespace: Option<String>,
}

/// What came of one question.
struct Answered {
    found: Vec<(Location, Found)>,
    failed: Option<(BTreeSet<Location>, NoAnswer)>,
}

impl<'a, A: Ask> Reader<'a, A> {
    pub(crate) fn new(asker: &'a A, discovery: &'a Discovery) -> Self {
        Self { asker, discovery, found: HashMap::new(), asked: HashSet::new() }
    }

    pub(crate) fn knows(&self, location: &Location) -> bool {
        self.found.contains_key(location)
    }

    /// What was read at a place; `None` if nothing was read.
    pub(crate) fn get(&self, location: &Location) -> Option<&Found> {
        self.found.get(location)
    }

    /// Reads all that are not known yet. Returns those that could not be read, and why.
    pub(crate) async fn read(&mut self, wanted: BTreeSet<Location>) -> HashMap<Location, NoAnswer> {
        let mut collections: BTreeMap<Collection, BTreeSet<Location>> = BTreeMap::new();
        for location in wanted.into_iter().filter(|location| !self.knows(location)) {
            collections.entry(Collection::of(&location)).or_default().insert(location);
        }
        let mut questions = Vec::new();
        for (collection, locations) in collections {
            let again = !self.asked.insert(collection.clone());
            let Some(served) = self.discovery.find(&collection.group, &collection.kind) else {
                // A kind that is not served has no objects.
                self.found.extend(locations.into_iter().map(|location| (location, None)));
                continue;
            };
            if again || locations.len() > FEW {
                questions.push(Question { served, collection, locations, by_name: false });
            } else {
                questions.extend(locations.into_iter().map(|location| Question {
                    served,
                    collection: collection.clone(),
                    locations: BTreeSet::from([location]),
                    by_name: true,
                }));
            }
        }
        let mut asked = Vec::new();
        for question in questions {
            asked.push(question.answer(self.asker));
        }
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        let mut failed = HashMap::new();
        while let Some(answered) = answers.next().await {
            self.found.extend(answered.found);
            if let Some((locations, why)) = answered.failed {
                failed.extend(locations.into_iter().map(|location| (location, why.clone())));
            }
            // A page may have been long.
            tokio::task::yield_now().await;
        }
        failed
    }
}

impl Collection {
    fn of(location: &Location) -> Self {
        let Location { group, kind, namespace, .. } = location;
        Self { group: group.clone(), kind: kind.clone(), namespace: namespace.clone() }
    }
}

/// What to find out about one kind, in a namespace or without one.
struct Question<'a> {
    served: &'a Served,
    collection: Collection,
    locations: BTreeSet<Location>,
    by_name: bool,
}

impl Question<'_> {
    async fn answer<A: Ask>(self, asker: &A) -> Answered {
        let mut missing = self.locations.clone();
        let mut found = Vec::new();
        let read = async {
            if !self.by_name && self.list(asker, &mut missing, &mut found).await? {
                return Ok(());
            }
            self.one_by_one(asker, &mut missing, &mut found).await
        };
        let failed = read.await.err();
        match failed {
            None => {
                found.extend(missing.into_iter().map(|location| (location, None)));
                Answered { found, failed: None }
            }
            Some(why) => Answered { found, failed: Some((missing, why)) },
        }
    }

    /// Reads pages until nothing is missing. Whether they showed all that there is, or that was asked for.
    async fn list<A: Ask>(
        &self,
        asker: &A,
        missing: &mut BTreeSet<Location>,
        found: &mut Vec<(Location, Found)>,
    ) -> Result<bool, NoAnswer> {
        let mut token = String::new();
        for _ in 0..PAGES {
            let Some((page, next)) = self.page(asker, &[], &token).await? else { return Ok(true) };
            for (location, owner) in page {
                missing.remove(&location);
                found.push((location, owner));
            }
            match next {
                Some(next) if !missing.is_empty() => token = next,
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    async fn one_by_one<A: Ask>(
        &self,
        asker: &A,
        missing: &mut BTreeSet<Location>,
        found: &mut Vec<(Location, Found)>,
    ) -> Result<(), NoAnswer> {
        let mut questions = Vec::new();
        for location in missing.iter().cloned() {
            questions.push(async {
                let selector = name_selector(&location.name);
                let page = self.page(asker, &[("fieldSelector", &selector)], "").await;
                (location, page)
            });
        }
        let mut answers = stream::iter(questions).buffer_unordered(NAMES_AT_ONCE);
        while let Some((location, page)) = answers.next().await {
            let (page, _) = page?.unwrap_or_default();
            // Not everything that serves an API knows field selectors.
            let owner = page.into_iter().find_map(|(at, owner)| (at == location).then_some(owner)).flatten();
            missing.remove(&location);
            found.push((location, owner));
        }
        Ok(())
    }

    /// A page of what there is, and where the next begins; `None` if there is no such kind.
    async fn page<A: Ask>(
        &self,
        asker: &A,
        query: &[(&str, &str)],
        token: &str,
    ) -> Result<Option<Page>, NoAnswer> {
        let uri = page_uri(&self.served.path(self.collection.namespace.as_deref()), query, token);
        let text = match asker.ask(&uri, METADATA_LIST).await {
            Ok(text) => text,
            Err(why) if matches!(why.code, 404 | 405) => return Ok(None),
            // An aggregated API server that knows no metadata-only lists.
            Err(why) if why.code == 406 => asker.ask(&uri, WHOLE).await?,
            Err(why) => {
                let text = format!("{}: {}", self.served.resource(), why.text);
                return Err(NoAnswer { text, ..why });
            }
        };
        self.read_page(&text).map(Some).map_err(|error| NoAnswer::new(error.to_string()))
    }

    fn read_page(&self, text: &str) -> Result<Page, Malformed> {
        let (mut owners, mut next) = (Vec::new(), None);
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
                let object = Object::read(item)?;
                let metadata = &object.metadata;
                let Collection { group, kind, namespace } = self.collection.clone();
                let location = Location { group, kind, namespace, name: metadata.name.to_string() };
                let stays = metadata.deletion_timestamp.is_none();
                let owner =
                    stays.then(|| Owner { uid: metadata.uid.to_string(), owners: references(metadata) });
                owners.push((location, owner));
                Ok(())
            }),
            _ => value.skip(),
        })?;
        Ok((owners, next))
    }
}

type Page = (Vec<(Location, Found)>, Option<String>);
