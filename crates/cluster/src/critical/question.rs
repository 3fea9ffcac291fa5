//! The live questions about what depends on a provider: pages of metadata in sequence, until one shows something.

use palisade_api::critical::{self, Resource, Service, Target};
use palisade_api::versions::PolicyKind;
use palisade_engine::prose::NAMES_SHOWN;
use palisade_engine::{
    Answer, Census, Count, Critical, Holders, Kind, Metadata, Object, Present, Scope, Unknown,
};

use super::Resolved;
use super::served::version_of;
use crate::discovery::Served;
use crate::feed::{Fed, take_page};
use crate::live::{LiveWorld, METADATA_LIST, NoAnswer, WHOLE, page_uri_of};
use crate::named::name_selector;

/// The first page is small, since it mostly answers; those of a resource that has more grow.
const FIRST_PAGE: usize = 500;
const LARGEST_PAGE: usize = 4_000;

/// Which objects of a resource are in the way.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    Carrying(&'a str),
    Named { namespace: Option<&'a str>, name: &'a str },
}

/// Those that are, as far as the first page that shows any.
struct Shown {
    served: Served,
    count: Count,
    names: Vec<String>,
    going: bool,
}

impl LiveWorld {
    pub(crate) async fn ask_for_holders(&self, resource: &Resource, finalizer: &str) -> Answer<Holders> {
        let shown = self
            .look(resource, Wanted::Carrying(finalizer))
            .await
            .map_err(|why| self.unknown(format!("which {resource} carry finalizer \"{finalizer}\""), why))?;
        Ok(match shown {
            Some(Shown { served, count, names, going }) => {
                Holders { resource: served.resource(), census: Census { count, names }, going }
            }
            None => Holders { resource: resource.to_string(), census: Census::NONE, going: true },
        })
    }

    pub(crate) async fn ask_for_object(&self, target: &Target) -> Answer<Option<Present>> {
        let Target { resource, namespace, name } = target;
        let shown = self.look(resource, Wanted::Named { namespace: namespace.as_deref(), name }).await;
        let shown = shown.map_err(|why| self.unknown(format!("whether {target} is still there"), why))?;
        Ok(shown.map(|Shown { served, names, going, .. }| {
            let Served { group, kind, plural, .. } = served;
            let kind = Kind { group: group.into(), kind: kind.into(), plural: plural.into() };
            Present { kind: kind.to_string(), names, going }
        }))
    }

    pub(crate) async fn ask_for_scope(&self, resource: &Resource) -> Answer<Option<Scope>> {
        let resolved = self.resolve(resource).await;
        let namespaced =
            match resolved.map_err(|why| self.unknown(format!("how {resource} is served"), why))? {
                Resolved::Served(served) => served.namespaced,
                Resolved::Defined(definition) => definition.namespaced,
                Resolved::NotServed => return Ok(None),
            };
        Ok(Some(if namespaced { Scope::Namespaced } else { Scope::Cluster }))
    }

    /// Looks for objects of a resource that are in the way; there are none of one that is not served.
    async fn look(&self, resource: &Resource, wanted: Wanted<'_>) -> Result<Option<Shown>, NoAnswer> {
        let (definition, mut reasons) = match self.resolve(resource).await? {
            Resolved::NotServed => return Ok(None),
            Resolved::Defined(definition) => (Some(definition), Vec::new()),
            Resolved::Served(served) => match self.look_in(&served, wanted).await {
                Ok(shown) => return Ok(shown),
                // Discovery may be behind; and where one version can't be converted to, another may.
                Err(why) => (self.definition(resource).await?, vec![(served.version, why)]),
            },
        };
        let Some(definition) = definition else {
            // A definition that is gone took all with it, and discovery does not know yet.
            return match reasons.pop() {
                Some((_, why)) if why.code != 404 => Err(why),
                _ => Ok(None),
            };
        };
        for version in &definition.served_versions {
            if reasons.iter().any(|(tried, _)| tried == version) {
                continue;
            }
            match self.look_in(&version_of(&definition, version), wanted).await {
                Ok(shown) => return Ok(shown),
                Err(why) => reasons.push((version.clone(), why)),
            }
        }
        // Never said to be served, and not served: there is nothing of it.
        if !definition.established && reasons.iter().all(|(_, why)| why.code == 404) {
            return Ok(None);
        }
        let why: Vec<String> =
            reasons.iter().map(|(version, why)| format!("{version}: {}", why.text)).collect();
        let text = if why.is_empty() { "none of its versions is served".to_owned() } else { why.join("; ") };
        let right = reasons.into_iter().find_map(|(_, why)| why.right);
        Err(NoAnswer { right, ..NoAnswer::new(text) })
    }

    async fn look_in(&self, served: &Served, wanted: Wanted<'_>) -> Result<Option<Shown>, NoAnswer> {
        if !served.listable {
            return Err(NoAnswer::new("it can't be listed".to_owned()));
        }
        let (namespace, selector) = match wanted {
            Wanted::Carrying(_) => (None, None),
            Wanted::Named { namespace, name } => (namespace, Some(name_selector(name))),
        };
        let query: Vec<(&str, &str)> =
            selector.iter().map(|selector| ("fieldSelector", &**selector)).collect();
        let path = served.path(namespace);
        let (mut token, mut size) = (String::new(), FIRST_PAGE);
        loop {
            let uri = page_uri_of(size, &path, &query, &token);
            let text = match self.ask(&uri, METADATA_LIST).await {
                // An aggregated API server that knows no metadata-only lists.
                Err(why) if why.code == 406 => self.ask(&uri, WHOLE).await?,
                other => other?,
            };
            let (mut found, mut names, mut going) = (0, Vec::new(), true);
            let next = read_page(&text, &mut |object| {
                let metadata = &object.metadata;
                let in_the_way = match wanted {
                    Wanted::Carrying(finalizer) => metadata.finalizers.iter().any(|each| each == finalizer),
                    Wanted::Named { name, .. } => metadata.name == name,
                };
                if in_the_way {
                    found += 1;
                    going &= metadata.deletion_timestamp.is_some();
                    if names.len() < NAMES_SHOWN {
                        names.push(full_name(metadata));
                    }
                }
            })?;
            if found > 0 {
                let count = if next.is_empty() { Count::Exactly(found) } else { Count::AtLeast(found) };
                return Ok(Some(Shown { served: served.clone(), count, names, going }));
            }
            if next.is_empty() {
                return Ok(None);
            }
            (token, size) = (next, (size * 2).min(LARGEST_PAGE));
        }
    }
}

/// All `CriticalService`s; none, if the cluster does not know the kind.
pub(crate) async fn list_services(world: &LiveWorld) -> Answer<Vec<Critical>> {
    let path = format!("/apis/{}/{}/{}", critical::GROUP, critical::VERSION, critical::PLURAL);
    let mut services = Vec::new();
    let mut take = |object: &Object<'_>| {
        services.push(Critical {
            name: object.metadata.name.to_string(),
            uid: object.metadata.uid.to_string(),
            service: object.spec_json().and_then(|spec| Service::read(&spec)),
        });
    };
    match world.each(&path, WHOLE, &mut take).await {
        Ok(()) => Ok(services),
        Err(why) => match world.none_if_undefined(PolicyKind::CriticalService, why).await {
            Ok(()) => Ok(services),
            Err(why) => Err(Unknown::new("what CriticalServices there are", why.text)),
        },
    }
}

/// Shows the objects of a page, and returns the token for the next.
pub(crate) fn read_page(text: &str, take: &mut (dyn FnMut(&Object<'_>) + Send)) -> Result<String, NoAnswer> {
    let page = take_page(text.as_bytes(), &mut |fed| {
        if let Fed::Listed(object) = fed {
            take(object);
        }
    });
    page.map(|(_, next)| next).map_err(|error| NoAnswer::new(error.to_string()))
}

/// `shop/web`
pub(super) fn full_name(metadata: &Metadata<'_>) -> String {
    match &metadata.namespace {
        Some(namespace) => format!("{namespace}/{}", metadata.name),
        None => metadata.name.to_string(),
    }
}
