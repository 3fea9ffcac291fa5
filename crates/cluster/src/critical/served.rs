//! How a resource is served, where "not at all" has consequences.
//!
//! Discovery lags behind definitions, and a restarted API server may know none for a moment. So what it does not show
//! is looked for among the definitions, and a group that another API server should serve is not taken to be empty.

use palisade_api::critical::Resource;
use palisade_engine::{Definition, Object};

use crate::discovery::{AUTOMATIC, Discovery, Served, discover};
use crate::live::{LiveWorld, METADATA_LIST, NoAnswer, WHOLE, page_uri, segment};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// What a resource turned out to be.
pub(crate) enum Resolved {
    Served(Served),
    /// Discovery does not show it, and there is a definition of it.
    Defined(Definition),
    NotServed,
}

impl Discovery {
    /// How a resource is served that people wrote.
    pub fn resolve(&self, resource: &Resource) -> Option<&Served> {
        self.resources.iter().find(|served| resource.is(&served.group, &served.kind, &served.plural))
    }
}

impl LiveWorld {
    /// Finds out how a resource is served, now.
    pub(crate) async fn resolve(&self, resource: &Resource) -> Result<Resolved, NoAnswer> {
        let discovery = self.discovery().await?;
        if let Some(served) = discovery.resolve(resource) {
            return Ok(Resolved::Served(served.clone()));
        }
        if let Some(definition) = self.definition(resource).await? {
            return Ok(Resolved::Defined(definition));
        }
        let group = &resource.group;
        let is_shown = || discovery.resources.iter().any(|served| served.group == *group);
        if discovery.unreachable.contains(group) || !is_shown() && self.should_be_served(group).await? {
            return Err(NoAnswer::new(format!("the API server of {group} does not answer")));
        }
        Ok(Resolved::NotServed)
    }

    /// What is served now, asked for once.
    pub(crate) async fn discovery(&self) -> Result<&Discovery, NoAnswer> {
        let asked = async { discover(&self.client).await.map_err(NoAnswer::from) };
        self.discovered.get_or_try_init(|| self.in_time(asked)).await
    }

    /// The definition of a resource, if there is one.
    pub(super) async fn definition(&self, resource: &Resource) -> Result<Option<Definition>, NoAnswer> {
        let group = format!(".{}", resource.group);
        let mut names = Vec::new();
        self.each(DEFINITIONS, METADATA_LIST, &mut |object| {
            let name = &object.metadata.name;
            // A name is `plural.group`, and no plural has a dot.
            if name.strip_suffix(&*group).is_some_and(|plural| !plural.contains('.')) {
                names.push(name.to_string());
            }
        })
        .await?;
        for name in names {
            let text = match self.ask(&format!("{DEFINITIONS}/{}", segment(&name)), WHOLE).await {
                Ok(text) => text,
                Err(why) if why.code == 404 => continue,
                Err(why) => return Err(why),
            };
            let object = Object::parse(text.as_bytes()).map_err(|error| NoAnswer::new(error.to_string()))?;
            let definition = object.definition().map_err(|error| NoAnswer::new(error.to_string()))?;
            if resource.is(&definition.group, &definition.kind, &definition.plural) {
                return Ok(Some(definition));
            }
        }
        Ok(None)
    }

    /// Whether somebody has registered an API server for a group.
    async fn should_be_served(&self, group: &str) -> Result<bool, NoAnswer> {
        let mut found = false;
        self.each(API_SERVICES, METADATA_LIST, &mut |object| {
            // Those that the API server made for itself follow its definitions, a moment later.
            let registered = object.metadata.labels.get(AUTOMATIC).is_none();
            found |=
                registered && object.metadata.name.split_once('.').is_some_and(|(_, served)| served == group);
        })
        .await?;
        Ok(found)
    }

    /// Shows every object of a path, page by page.
    pub(crate) async fn each(
        &self,
        path: &str,
        accept: &str,
        take: &mut (dyn FnMut(&Object<'_>) + Send),
    ) -> Result<(), NoAnswer> {
        let mut token = String::new();
        loop {
            let text = self.ask(&page_uri(path, &[], &token), accept).await?;
            token = super::question::read_page(&text, take)?;
            if token.is_empty() {
                return Ok(());
            }
        }
    }
}

/// One version of what a definition defines.
pub(crate) fn version_of(definition: &Definition, version: &str) -> Served {
    let Definition { group, plural, kind, namespaced, .. } = definition;
    Served::new(group, version, kind, plural, *namespaced)
}
