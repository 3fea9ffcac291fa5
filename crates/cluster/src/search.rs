//! The search for protected objects, in a namespace or among the custom resources of a definition.
//!
//! One consistent list of metadata for each kind, many kinds at once.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use palisade_api::kinds::is_transient;
use palisade_api::protection::Action;
use palisade_engine::{Answer, Definition, Judged, Place, Search, Subject, Unknown, UnreadableKind, World};
use tokio::time::timeout;

use crate::critical::version_of;
use crate::discovery::{Discovery, Served, discover};
use crate::kind_search::{Judge, KindSearch, Pages, kind_of};
use crate::live::{LiveWorld, NoAnswer};
use crate::owners::collected_with;
use crate::questions::OF_ONE_REVIEW;

/// What is left of a review's time when a search is given up that is only worth a warning.
const TO_GO_ON: Duration = Duration::from_millis(300);

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
    let found = collected_with(world, &world.searching.groups, discovery, uid, search.found).await;
    let found = found.map_err(|why| world.unknown("what would be collected with it", why))?;
    Ok(Search { found, ..search })
}

/// Every kind that is wanted, of a namespace or everywhere.
pub(crate) async fn in_kinds(
    world: &LiveWorld,
    namespace: Option<&str>,
    judge: Judge<'_>,
    pages: Pages,
    wanted: impl Fn(&Served) -> bool,
) -> Answer<(Search, Discovery)> {
    let unknown = |why: NoAnswer| world.unknown("what is protected in it", why);
    let asked = async { discover(&world.client).await.map_err(NoAnswer::from) };
    let discovery = world.in_time(asked).await.map_err(unknown)?;
    let (mut searches, mut not_searched) = (Vec::new(), BTreeSet::new());
    for served in &discovery.resources {
        if !(served.listable && wanted(served) && may_be_protected(world, served)) {
            continue;
        }
        if world.is_searched(&served.group) {
            searches.push(KindSearch { world, served, namespace, judge, pages, must_be_served: false }.run());
        } else {
            not_searched.insert(served.group.clone());
        }
    }
    let mut answers = stream::iter(searches).buffer_unordered(OF_ONE_REVIEW);
    let mut search = Search::default();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(kind) => search.add_kind(kind),
            Err(kind) => search.unreadable.push(kind),
        }
    }
    drop(answers);
    // Groups of which nobody knows what they serve.
    for group in &discovery.unreachable {
        if discovery.resources.iter().any(|served| served.group == *group) {
            continue;
        }
        if !world.is_searched(group) {
            not_searched.insert(group.clone());
            continue;
        }
        let why = "its API server does not answer".to_owned();
        let group = group.clone();
        search.unreadable.push(UnreadableKind { group, kind: None, why, is_broken: true, missing: None });
    }
    search.found.sort_by(|one, other| {
        (&one.about.kind, &one.about.name).cmp(&(&other.about.kind, &other.about.name))
    });
    search.unreadable.sort_by_key(UnreadableKind::resource);
    search.not_searched = not_searched.into_iter().collect();
    Ok((search, discovery))
}

/// Whether an object of a kind may be protected: where no label can, a rule must name the kind.
fn may_be_protected(world: &LiveWorld, served: &Served) -> bool {
    !is_transient(&served.group, &served.kind)
        || world.protections().of_kind(&kind_of(served)).next().is_some()
}

async fn in_definition(world: &LiveWorld, definition: &Definition, judge: Judge<'_>) -> Answer<Search> {
    let Some((first, others)) = definition.served_versions.split_first() else {
        return Ok(Search::default());
    };
    if !world.is_searched(&definition.group) {
        return Ok(Search { not_searched: vec![definition.group.clone()], ..Search::default() });
    }
    let served = Served { other_versions: others.to_vec(), ..version_of(definition, first) };
    let search = KindSearch {
        world,
        served: &served,
        namespace: None,
        judge,
        pages: Pages::All,
        must_be_served: true,
    };
    let answered = timeout(world.time_to_search(), search.in_some_version(None)).await;
    let failures = match answered {
        Ok(Ok(search)) => return Ok(search),
        Ok(Err(failures)) => failures,
        Err(_) => vec![(first.clone(), NoAnswer::new("the API server did not answer in time".to_owned()))],
    };
    let answered = failures.iter().any(|(_, why)| why.code != 404);
    // Not served, and never said to be: there is nothing of it.
    if !answered && !definition.established {
        return Ok(Search::default());
    }
    let Definition { group, kind, plural, .. } = definition.clone();
    let reasons: Vec<String> =
        failures.iter().map(|(version, why)| format!("{version}: {}", why.text)).collect();
    let (kind, why) = (Some((kind, plural)), reasons.join("; "));
    let missing = failures.iter().find_map(|(_, why)| world.searching.missing(why));
    let unreadable = UnreadableKind { group, kind, why, is_broken: true, missing };
    Ok(Search { unreadable: vec![unreadable], ..Search::default() })
}
