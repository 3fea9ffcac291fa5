//! What depends on providers, as watches show it: metadata only, and of exactly the resources that services name.
//!
//! For the status alone; what is decided about a deletion is asked live.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use palisade_api::critical::{Criterion, Resource, Service, Target};
use palisade_api::search_groups::{SearchGroups, group_name};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::question::full_name;
use super::{Resolved, Services};
use crate::discovery::{Discovery, Served};
use crate::feed::{Broken, Fed, Mirror, Source, follow};
use crate::live::Live;
use crate::named::name_selector;
use crate::sync::{self, lock};

/// How long to gather changes before they are told.
const GATHER: Duration = Duration::from_millis(200);
/// How long to ask about what is not served.
const PATIENCE: Duration = Duration::from_secs(5);
/// A watch says something at least this often while it works.
const SILENT: Duration = Duration::from_secs(40);

/// What is watched: a path, and one name on it or all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Feed {
    path: String,
    name: Option<String>,
}

/// An object that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependent {
    pub uid: String,
    pub going: bool,
}

/// What is kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    dependent: Dependent,
    /// Those that criteria name.
    finalizers: BTreeSet<String>,
}

/// What is seen of a criterion or a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The resource is not served.
    NotServed,
    /// Why nobody can tell.
    Unknown(String),
    /// The objects in question, by name.
    There(BTreeMap<String, Dependent>),
}

/// What all watches show.
#[derive(Default)]
pub struct Dependents {
    groups: SearchGroups,
    feeds: Mutex<BTreeMap<Feed, Arc<Watched>>>,
    discovery: Mutex<Option<Discovery>>,
    /// Why resources that are not served can't be taken to be empty.
    doubtful: Mutex<BTreeMap<Resource, String>>,
    changed: watch::Sender<u64>,
}

struct Watched {
    view: Arc<Mutex<View>>,
    finalizers: BTreeSet<String>,
    task: JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct View {
    objects: Mirror<String, Kept>,
    state: State,
    heard: Instant,
}

impl Default for View {
    fn default() -> Self {
        Self { objects: Mirror::default(), state: State::Waiting, heard: Instant::now() }
    }
}

enum State {
    Waiting,
    Listed,
    NotServed,
    Broken(String),
}

impl Dependents {
    /// What is seen of these groups.
    pub fn new(groups: SearchGroups) -> Self {
        Self { groups, ..Self::default() }
    }

    /// Moves when something may look different.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// What a resource is called where it is served: `deployments.apps`.
    pub fn name_of(&self, resource: &Resource) -> String {
        let discovery = lock(&self.discovery);
        let served = discovery.as_ref().and_then(|discovery| discovery.resolve(resource));
        served.map_or_else(|| resource.to_string(), Served::resource)
    }

    /// What is in the way of a criterion.
    pub fn of(&self, criterion: &Criterion) -> Sight {
        match criterion {
            Criterion::Object(target) => self.object(target),
            Criterion::Finalizer { resource, finalizer } => {
                self.see(resource, None, None, |kept| kept.finalizers.contains(finalizer))
            }
        }
    }

    /// An object, if it is there.
    pub fn object(&self, target: &Target) -> Sight {
        let Target { resource, namespace, name } = target;
        self.see(resource, namespace.as_deref(), Some(name), |_| true)
    }

    fn see(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: Option<&String>,
        wanted: impl Fn(&Kept) -> bool,
    ) -> Sight {
        if !self.groups.contain(&resource.group) {
            return Sight::Unknown(format!("--search-groups leaves {} out", group_name(&resource.group)));
        }
        let resolved = lock(&self.discovery).as_ref().map(|discovery| discovery.resolve(resource).cloned());
        let Some(served) = resolved else {
            return Sight::Unknown("it has not been looked at yet".to_owned());
        };
        let Some(served) = served else {
            return lock(&self.doubtful).get(resource).cloned().map_or(Sight::NotServed, Sight::Unknown);
        };
        let feed = Feed { path: served.path(namespace), name: name.cloned() };
        let watched = lock(&self.feeds).get(&feed).cloned();
        let Some(watched) = watched else {
            let why = if served.watchable { "it has not been looked at yet" } else { "it can't be watched" };
            return Sight::Unknown(why.to_owned());
        };
        let view = lock(&watched.view);
        match &view.state {
            State::Waiting => Sight::Unknown("it has not been looked at yet".to_owned()),
            State::NotServed => Sight::NotServed,
            State::Broken(why) => Sight::Unknown(why.clone()),
            State::Listed if view.heard.elapsed() > SILENT => {
                Sight::Unknown("the API server has not been heard of for a while".to_owned())
            }
            State::Listed => {
                let all = view.objects.iter().filter(|(_, kept)| wanted(kept));
                Sight::There(all.map(|(name, kept)| (name.clone(), kept.dependent.clone())).collect())
            }
        }
    }

    /// Watches these, and nothing else.
    fn watch(
        &self,
        client: &Client,
        wanted: BTreeMap<Feed, BTreeSet<String>>,
        noticed: &Arc<watch::Sender<()>>,
    ) {
        // Nobody else changes it.
        let mut feeds = lock(&self.feeds).clone();
        feeds.retain(|feed, watched| wanted.get(feed) == Some(&watched.finalizers));
        for (feed, finalizers) in wanted {
            feeds.entry(feed.clone()).or_insert_with(|| {
                let view = Arc::new(Mutex::new(View::default()));
                let watching =
                    keep_view(client.clone(), feed, finalizers.clone(), view.clone(), noticed.clone());
                Arc::new(Watched { view, finalizers, task: tokio::spawn(watching) })
            });
        }
        let before = std::mem::replace(&mut *lock(&self.feeds), feeds);
        drop(before);
    }

    fn tell(&self) {
        sync::count(&self.changed);
    }
}

/// Watches what all services name while `active` holds. Never ends.
pub async fn watch_dependents(
    client: Client,
    dependents: Arc<Dependents>,
    mut services: watch::Receiver<Option<Services>>,
    mut discovery: watch::Receiver<Option<Discovery>>,
    mut active: watch::Receiver<bool>,
) {
    let (noticed_tx, mut noticed) = watch::channel(());
    let noticed_tx = Arc::new(noticed_tx);
    let mut asked = BTreeSet::new();
    loop {
        let discovered = discovery.has_changed().unwrap_or(false);
        let (wanted, unserved) = {
            let (services, discovery) = (sync::newest(&mut services), sync::newest(&mut discovery));
            lock(&dependents.discovery).clone_from(&discovery);
            match (services, discovery, sync::newest(&mut active)) {
                (Some(services), Some(discovery), true) => {
                    let groups = &dependents.groups;
                    (wanted(groups, &services, &discovery), unserved(groups, &services, &discovery))
                }
                _ => (BTreeMap::new(), BTreeSet::new()),
            }
        };
        dependents.watch(&client, wanted, &noticed_tx);
        let in_doubt = !lock(&dependents.doubtful).is_empty();
        if discovered || unserved != asked || in_doubt {
            let doubtful = doubtful(&client, &unserved).await;
            *lock(&dependents.doubtful) = doubtful;
            asked = unserved;
        }
        dependents.tell();
        // Until something else is to be watched, what the watches show is passed on.
        loop {
            tokio::select! {
                Ok(()) = services.changed() => break,
                Ok(()) = discovery.changed() => break,
                Ok(()) = active.changed() => break,
                Ok(()) = noticed.changed() => {
                    sleep(GATHER).await;
                    noticed.mark_unchanged();
                    dependents.tell();
                }
            }
        }
    }
}

/// What is to be watched, and the finalizers that matter there.
fn wanted(
    groups: &SearchGroups,
    services: &Services,
    discovery: &Discovery,
) -> BTreeMap<Feed, BTreeSet<String>> {
    let mut wanted: BTreeMap<Feed, BTreeSet<String>> = BTreeMap::new();
    let mut add =
        |resource: &Resource, namespace: Option<&str>, name: Option<&String>, finalizer: Option<&String>| {
            let is_watched = |served: &&Served| served.watchable && groups.contain(&served.group);
            if let Some(served) = discovery.resolve(resource).filter(is_watched) {
                let feed = Feed { path: served.path(namespace), name: name.cloned() };
                wanted.entry(feed).or_default().extend(finalizer.cloned());
            }
        };
    for (_, Service { provider, criteria, .. }) in services.readable() {
        add(&provider.resource, Some(&provider.namespace), Some(&provider.name), None);
        for criterion in criteria {
            match criterion {
                Criterion::Finalizer { resource, finalizer } => add(resource, None, None, Some(finalizer)),
                Criterion::Object(Target { resource, namespace, name }) => {
                    add(resource, namespace.as_deref(), Some(name), None);
                }
            }
        }
    }
    wanted
}

/// The resources that services name and discovery does not show.
fn unserved(groups: &SearchGroups, services: &Services, discovery: &Discovery) -> BTreeSet<Resource> {
    let mut unserved = BTreeSet::new();
    for (_, service) in services.readable() {
        let all = service.criteria.iter().map(Criterion::resource).chain([&service.provider.resource]);
        let all = all.filter(|resource| groups.contain(&resource.group));
        unserved.extend(all.filter(|resource| discovery.resolve(resource).is_none()).cloned());
    }
    unserved
}

/// Those of them that can't be taken to be empty, and why.
async fn doubtful(client: &Client, unserved: &BTreeSet<Resource>) -> BTreeMap<Resource, String> {
    let world = Live::new(client.clone(), Arc::default).until(Instant::now() + PATIENCE);
    let mut doubtful = BTreeMap::new();
    for resource in unserved {
        let why = match world.resolve(resource).await {
            Ok(Resolved::NotServed) => continue,
            Ok(Resolved::Defined(definition)) if definition.served_versions.is_empty() => {
                "none of its versions is served".to_owned()
            }
            Ok(Resolved::Defined(_) | Resolved::Served(_)) => "it has not been looked at yet".to_owned(),
            Err(why) => why.text,
        };
        doubtful.insert(resource.clone(), why);
    }
    doubtful
}

async fn keep_view(
    client: Client,
    feed: Feed,
    finalizers: BTreeSet<String>,
    view: Arc<Mutex<View>>,
    noticed: Arc<watch::Sender<()>>,
) {
    let selector = feed.name.as_ref().map(|name| name_selector(name));
    let query: Vec<(&str, &str)> = selector.iter().map(|selector| ("fieldSelector", &**selector)).collect();
    let source = Source { client: &client, path: &feed.path, query: &query, metadata_only: true };
    follow(&source, |fed| {
        let changed = lock(&view).take(fed, feed.name.is_some(), &finalizers);
        if changed {
            sync::send(&noticed, ());
        }
    })
    .await;
}

impl View {
    /// Takes what was fed, and says whether anything looks different now.
    fn take(&mut self, fed: Result<Fed<'_>, &Broken>, all: bool, finalizers: &BTreeSet<String>) -> bool {
        let fed = match fed {
            Ok(fed) => fed,
            Err(broken) => {
                let state = match broken {
                    Broken::NotServed => State::NotServed,
                    // The next watch goes on where this one ended, or lists anew.
                    Broken::Expired | Broken::Silent if matches!(self.state, State::Listed) => return false,
                    other => State::Broken(other.to_string()),
                };
                self.state = state;
                return true;
            }
        };
        self.heard = Instant::now();
        let read = |object: &palisade_engine::Object<'_>| -> Result<Option<Kept>, Broken> {
            let metadata = &object.metadata;
            let carried = metadata.finalizers.iter().map(ToString::to_string);
            let carried: BTreeSet<String> = carried.filter(|each| finalizers.contains(each)).collect();
            let keep = all || !carried.is_empty();
            Ok(keep.then(|| Kept {
                dependent: Dependent {
                    uid: metadata.uid.to_string(),
                    going: metadata.deletion_timestamp.is_some(),
                },
                finalizers: carried,
            }))
        };
        let changed = self.objects.take(&fed, |object| full_name(&object.metadata), read);
        // After a failure the watch goes on where it was; before the first list it knows nothing.
        let healed = match (&self.state, &fed) {
            (State::Listed, _) => false,
            (State::Broken(_), Fed::Applied(_) | Fed::Deleted(_) | Fed::Reached(_))
            | (_, Fed::Complete(_)) => true,
            _ => false,
        };
        if healed {
            self.state = State::Listed;
        }
        healed || !changed.is_empty() && matches!(self.state, State::Listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_engine::Object;

    /// What is in view: names, or why not.
    fn seen(view: &View) -> Result<Vec<String>, String> {
        match &view.state {
            State::Waiting => Err("waiting".to_owned()),
            State::NotServed => Err("not served".to_owned()),
            State::Broken(why) => Err(why.clone()),
            State::Listed => {
                let mut names: Vec<String> = view.objects.iter().map(|(name, _)| name.clone()).collect();
                names.sort();
                Ok(names)
            }
        }
    }

    #[test]
    fn only_what_carries_a_finalizer_that_matters_is_kept_and_failures_are_told() {
        let finalizers = BTreeSet::from(["f".to_owned()]);
        let text = |name: &str, finalizer: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"u","finalizers":["{finalizer}","x"]}}}}"#
            )
        };
        let (holder, freed, other) = (text("a", "f"), text("a", "g"), text("b", "g"));
        let [holder, freed, other] =
            [&holder, &freed, &other].map(|text| Object::parse(text.as_bytes()).unwrap());
        let mut view = View::default();
        let mut take = |fed: Result<Fed<'_>, &Broken>| {
            let changed = view.take(fed, false, &finalizers);
            (changed, seen(&view))
        };
        let a = || Ok(vec!["n/a".to_owned()]);
        assert_eq!(take(Ok(Fed::Begin)), (false, Err("waiting".to_owned())));
        assert_eq!(take(Ok(Fed::Listed(&holder))), (false, Err("waiting".to_owned())), "half a list is none");
        assert!(!take(Ok(Fed::Listed(&other))).0);
        assert_eq!(take(Ok(Fed::Complete(1))), (true, a()));
        assert_eq!(take(Ok(Fed::Applied(&other))), (false, a()), "nobody cares");
        assert_eq!(take(Err(&Broken::Expired)), (false, a()), "a list follows");
        let forbidden = Broken::Other("403: no".to_owned());
        assert_eq!(take(Err(&forbidden)), (true, Err("403: no".to_owned())));
        assert_eq!(take(Ok(Fed::Reached(2))), (true, a()), "it goes on where it was");
        assert_eq!(take(Ok(Fed::Applied(&freed))), (true, Ok(Vec::new())));
        assert_eq!(take(Err(&Broken::NotServed)), (true, Err("not served".to_owned())));
        assert!(!take(Ok(Fed::Begin)).0);
        assert_eq!(take(Ok(Fed::Complete(3))), (true, Ok(Vec::new())), "it is served again");
    }
}
