//! The live questions about parents and components.

use std::sync::Arc;

use palisade_api::components::{self, Chosen, Components, GroupKind};
use palisade_api::critical::Resource;
use palisade_api::versions::PolicyKind;
use palisade_engine::{About, Answer, Kind, Metadata, Object, Parent, ProtectedComponents, Scaled, Unknown};
use serde::Deserialize;

use crate::critical::Resolved;
use crate::critical::{read_page, version_of};
use crate::discovery::Served;
use crate::live::{LiveWorld, NoAnswer, WHOLE, page_uri, segment};
use crate::named::Detail;

impl LiveWorld {
    pub(crate) async fn ask_for_parent(
        &self,
        kind: &GroupKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Answer<Option<Parent>> {
        let unknown =
            |why: NoAnswer| self.unknown(format!("what {} \"{name}\" is in the middle of", kind.kind), why);
        let Some(served) = self.served(&kind.group, &kind.kind).await.map_err(unknown)? else {
            return Ok(None);
        };
        let text = match self.ask_for_named(&served, namespace, name, Detail::Whole).await {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(why) if why.code == 404 => return Ok(None),
            Err(why) => return Err(unknown(why)),
        };
        let object =
            serde_json::from_str(&text).map_err(|error| unknown(NoAnswer::new(error.to_string())))?;
        let Served { group, kind, plural, namespaced, .. } = served;
        let kind = Kind { group: group.into(), kind: kind.into(), plural: plural.into() };
        let about = About {
            kind: kind.to_string(),
            kubectl_name: kind.kubectl_name(),
            namespace: namespace.filter(|_| namespaced).map(str::to_owned),
            name: name.to_owned(),
        };
        Ok(Some(Parent { about, object }))
    }

    pub(crate) async fn ask_for_scaled(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Answer<Option<Scaled>> {
        // Nobody is told to ask about it.
        if !self.searching.groups.may_read_plural(group, plural) {
            return Ok(None);
        }
        let unknown = |why: NoAnswer| self.unknown(format!("what {plural} \"{name}\" is"), why);
        let Some(served) = self.served(group, plural).await.map_err(unknown)? else { return Ok(None) };
        match self.ask_for_named(&served, Some(namespace), name, Detail::Metadata).await {
            Ok(object) => Ok(object.map(|object| Scaled { kind: served.kind, object })),
            Err(why) if why.code == 404 => Ok(None),
            Err(why) => Err(unknown(why)),
        }
    }

    /// The parent of the `StatefulSet` from whose template a claim was made: `TEMPLATE-SET-ORDINAL`.
    pub(crate) async fn ask_for_claimant(
        &self,
        components: &Components,
        namespace: &str,
        claim: &str,
        parent: &(dyn Fn(&Metadata<'_>) -> Option<String> + Sync),
    ) -> Answer<Option<String>> {
        if components.kind("apps", "StatefulSet").is_none() {
            return Ok(None);
        }
        let unknown = |why: NoAnswer| self.unknown("which StatefulSet the claim belongs to", why);
        let path = format!("/apis/apps/v1/namespaces/{}/statefulsets", segment(namespace));
        let selector = match &components.chosen {
            Chosen::Labelled(rule) => rule.query(),
            Chosen::Owned => String::new(),
        };
        let query: Vec<(&str, &str)> =
            Some(("labelSelector", &*selector)).filter(|(_, text)| !text.is_empty()).into_iter().collect();
        let (mut token, mut found) = (String::new(), None);
        loop {
            let text = self.ask(&page_uri(&path, &query, &token), WHOLE).await.map_err(unknown)?;
            token = read_page(&text, &mut |set| {
                if found.is_none() && makes(set, claim) {
                    found = parent(&set.metadata);
                }
            })
            .map_err(unknown)?;
            if token.is_empty() || found.is_some() {
                return Ok(found);
            }
        }
    }

    /// How a kind, or a plural, is served now.
    async fn served(&self, group: &str, word: &str) -> Result<Option<Served>, NoAnswer> {
        let resource = Resource { group: group.to_owned(), word: word.to_owned() };
        Ok(match self.resolve(&resource).await? {
            Resolved::Served(served) => Some(served),
            Resolved::Defined(definition) => {
                definition.served_versions.first().map(|version| version_of(&definition, version))
            }
            Resolved::NotServed => None,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SetSpec {
    #[serde(default)]
    volume_claim_templates: Vec<Template>,
}

#[derive(Deserialize)]
struct Template {
    metadata: TemplateMetadata,
}

#[derive(Deserialize)]
struct TemplateMetadata {
    #[serde(default)]
    name: String,
}

/// Whether a claim is one of a `StatefulSet`'s.
fn makes(set: &Object<'_>, claim: &str) -> bool {
    let spec: Option<SetSpec> = set.spec().and_then(|spec| serde_json::from_slice(spec).ok());
    spec.into_iter().flat_map(|spec| spec.volume_claim_templates).any(|Template { metadata }| {
        let ordinal = claim
            .strip_prefix(&*metadata.name)
            .and_then(|rest| rest.strip_prefix('-')?.strip_prefix(&*set.metadata.name)?.strip_prefix('-'));
        ordinal
            .is_some_and(|ordinal| ordinal.parse::<u32>().is_ok_and(|number| number.to_string() == ordinal))
    })
}

/// All `ComponentProtection`s; none, if the cluster does not know the kind.
pub(crate) async fn list_protections(world: &LiveWorld) -> Answer<Vec<Arc<ProtectedComponents>>> {
    let path = format!("/apis/{}/{}/{}", components::GROUP, components::VERSION, components::PLURAL);
    let mut all = Vec::new();
    let mut take = |object: &Object<'_>| {
        all.push(Arc::new(ProtectedComponents {
            name: Some(object.metadata.name.to_string()),
            components: object.spec_json().and_then(|spec| Components::read(&spec)),
        }));
    };
    match world.each(&path, WHOLE, &mut take).await {
        Ok(()) => Ok(all),
        Err(why) => match world.none_if_undefined(PolicyKind::ComponentProtection, why).await {
            Ok(()) => Ok(all),
            Err(why) => Err(Unknown::new("what ComponentProtections there are", why.text)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("data-main-0", true)]
    #[case("data-main-12", true)]
    #[case("logs-main-1", true)]
    #[case("data-main-", false)]
    #[case("data-main-0x", false)]
    #[case("data-main-00", false)]
    #[case("data-main-2-0", false)]
    #[case("data-other-0", false)]
    fn a_claim_is_known_by_its_name(#[case] claim: &str, #[case] is: bool) {
        let set = br#"{"metadata":{"name":"main"},"spec":{"volumeClaimTemplates":[{"metadata":{"name":"data"}},{"metadata":{"name":"logs"}}]}}"#;
        assert_eq!(makes(&Object::parse(set).unwrap(), claim), is);
    }
}
