//! The live questions behind `Cascading`: what would go with an object, where its own text does not tell.
//!
//! Each is a consistent list, page by page, under the review's deadline. A list of pods is read whole where volumes or
//! owners decide; nothing of it is kept but names.

use std::collections::{BTreeMap, BTreeSet};

use palisade_api::labels;
use palisade_engine::json::UniqueMembers;
use palisade_engine::prose::NAMES_SHOWN;
use palisade_engine::{Answer, Census, Count, Kind, Object, Scale};
use serde::Deserialize;
use serde_json::Value;

use crate::critical::read_page;
use crate::live::{LiveWorld, METADATA_LIST, NoAnswer, WHOLE, page_uri, segment};

/// Pods that have not ended.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// The label by which an `EndpointSlice` names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// How many are counted: a refusal needs no larger number.
const MOST_COUNTED: usize = 500;

/// What was found of one thing that was asked about.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// What tells one from another.
    seen: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl Tally {
    /// Counts something once, however often it is shown.
    pub(crate) fn add(&mut self, id: &str, name: impl FnOnce() -> String) {
        if self.seen.len() < MOST_COUNTED && self.seen.insert(id.to_owned()) && self.names.len() < NAMES_SHOWN
        {
            self.names.insert(name());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// The number and a few names; a lower bound, where not all was looked at.
    pub(crate) fn census(&self, is_all: bool) -> Census {
        let count = self.seen.len();
        let is_all = is_all && count < MOST_COUNTED;
        let names = self.names.iter().cloned().collect();
        Census { count: if is_all { Count::Exactly(count) } else { Count::AtLeast(count) }, names }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DefinitionSpec {
    #[serde(default)]
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionVersion {
    name: String,
    #[serde(default)]
    subresources: Subresources,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Subresources {
    scale: Option<DefinedScale>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DefinedScale {
    spec_replicas_path: String,
}

impl LiveWorld {
    /// A definition tells where replicas are. Nothing is asked of the `scale` itself: that would need a right to get
    /// subresources of every kind.
    pub(crate) async fn ask_for_scale(&self, kind: &Kind<'_>) -> Answer<Option<Scale>> {
        let unknown = |why: NoAnswer| self.unknown("its replicas", why);
        // Neither custom resources nor registered API servers have a group without a dot, and those of Kubernetes' own
        // that have a scale are known.
        if !kind.group.contains('.') {
            return Ok(None);
        }
        let name = segment(&format!("{}.{}", kind.plural, kind.group));
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        match self.ask(&path, WHOLE).await {
            Ok(text) => scale_of(&text).map_err(|why| unknown(NoAnswer::new(why))),
            // Another API server serves it, which says only whether there is one.
            Err(why) if why.code == 404 => {
                let discovery = self.discovery().await.map_err(unknown)?;
                let served = discovery.find(&kind.group, &kind.kind);
                Ok(served.filter(|served| served.scalable).map(|_| Scale::default()))
            }
            Err(why) => Err(unknown(why)),
        }
    }

    pub(crate) async fn ask_for_mounting_pods(
        &self,
        namespace: &str,
        claims: &BTreeSet<String>,
    ) -> Answer<BTreeMap<String, Census>> {
        let path = format!("/api/v1/namespaces/{}/pods", segment(namespace));
        let mut found: BTreeMap<String, Tally> = BTreeMap::new();
        let take = &mut |pod: &Object<'_>| {
            for claim in mounted_claims(pod).into_iter().filter(|claim| claims.contains(claim)) {
                found.entry(claim).or_default().add(&pod.metadata.uid, || pod.metadata.name.to_string());
            }
        };
        let asked = self.each_listed(&path, &[("fieldSelector", NOT_ENDED)], WHOLE, take).await;
        asked.map_err(|why| self.unknown("which pods mount it", why))?;
        Ok(censuses(&found))
    }

    pub(crate) async fn ask_for_ready_endpoints(
        &self,
        namespace: &str,
        services: &BTreeSet<String>,
    ) -> Answer<BTreeMap<String, Census>> {
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", segment(namespace));
        // Whoever reaches our port can send a review of a Service whose name is none: it has no endpoints.
        let names: Vec<&str> =
            services.iter().map(String::as_str).filter(|name| labels::is_value(name)).collect();
        let selector = format!("{SERVICE_NAME} in ({})", names.join(","));
        let mut found: BTreeMap<String, Tally> = BTreeMap::new();
        let mut token = String::new();
        loop {
            let uri = page_uri(&path, &[("labelSelector", &selector)], &token);
            let page = match self.ask(&uri, WHOLE).await {
                Ok(text) => read_slices(&text, &mut found),
                Err(why) => Err(why),
            };
            token = page.map_err(|why| self.unknown("its ready endpoints", why))?;
            if token.is_empty() {
                return Ok(censuses(&found));
            }
        }
    }

    pub(crate) async fn ask_for_pods_on_node(&self, node: &str) -> Answer<Census> {
        // A Node's name is a DNS name; whoever reaches our port can send another.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
        if !node.chars().all(is_plain) {
            return Ok(Census::NONE);
        }
        let selector = format!("spec.nodeName={node},{NOT_ENDED}");
        let mut tally = Tally::default();
        let take = &mut |pod: &Object<'_>| {
            let metadata = &pod.metadata;
            let of_daemon_set = metadata.controller().is_some_and(|owner| owner.kind == "DaemonSet");
            if !of_daemon_set && metadata.deletion_timestamp.is_none() {
                tally.add(&metadata.uid, || full_name(pod));
            }
        };
        let query = [("fieldSelector", selector.as_str())];
        let asked = self.each_listed("/api/v1/pods", &query, METADATA_LIST, take).await;
        asked.map_err(|why| self.unknown("the pods on it", why))?;
        Ok(tally.census(true))
    }

    /// Shows every object that a query selects, page by page.
    async fn each_listed(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &str,
        take: &mut (dyn FnMut(&Object<'_>) + Send),
    ) -> Result<(), NoAnswer> {
        let mut token = String::new();
        loop {
            let text = self.ask(&page_uri(path, query, &token), accept).await?;
            token = read_page(&text, take)?;
            if token.is_empty() {
                return Ok(());
            }
        }
    }
}

fn censuses(found: &BTreeMap<String, Tally>) -> BTreeMap<String, Census> {
    found.iter().map(|(key, tally)| (key.clone(), tally.census(true))).collect()
}

pub(crate) fn full_name(object: &Object<'_>) -> String {
    match object.metadata.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.metadata.name),
        None => object.metadata.name.to_string(),
    }
}

/// Where a definition says that replicas are, by version.
fn scale_of(definition: &str) -> Result<Option<Scale>, String> {
    let object = Object::parse(definition.as_bytes()).map_err(|error| error.to_string())?;
    let spec: DefinitionSpec =
        serde_json::from_slice(object.spec().unwrap_or(b"{}")).map_err(|error| error.to_string())?;
    let paths: BTreeMap<String, String> = spec
        .versions
        .into_iter()
        .filter_map(|version| Some((version.name, version.subresources.scale?.spec_replicas_path)))
        .collect();
    Ok((!paths.is_empty()).then_some(Scale { paths }))
}

/// The claims that a pod mounts, with those that were made for its ephemeral volumes.
fn mounted_claims(pod: &Object<'_>) -> Vec<String> {
    // A pod whose spec is no JSON object mounts nothing; the API server stores none such.
    let spec = pod.spec_json().unwrap_or_default();
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    volumes
        .filter_map(|volume| {
            let named = volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned);
            let made = || {
                volume["ephemeral"].is_object().then_some(())?;
                Some(format!("{}-{}", pod.metadata.name, volume["name"].as_str()?))
            };
            named.or_else(made)
        })
        .collect()
}

/// Counts the ready endpoints of a page of `EndpointSlice`s, and returns the token for the next.
fn read_slices(text: &str, found: &mut BTreeMap<String, Tally>) -> Result<String, NoAnswer> {
    let page: Value = serde_json::from_str(text)
        .map(|UniqueMembers(page)| page)
        .map_err(|error| NoAnswer::new(error.to_string()))?;
    for slice in page["items"].as_array().into_iter().flatten() {
        let Some(service) = slice["metadata"]["labels"][SERVICE_NAME].as_str() else { continue };
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let conditions = &endpoint["conditions"];
            // Not told means ready.
            if conditions["ready"] == false || conditions["terminating"] == true {
                continue;
            }
            let address = endpoint["addresses"][0].as_str().unwrap_or_default();
            let target = &endpoint["targetRef"];
            // With two families of addresses, a pod is in two slices.
            let id = target["uid"].as_str().unwrap_or(address);
            let name = target["name"].as_str().unwrap_or(address);
            found.entry(service.to_owned()).or_default().add(id, || name.to_owned());
        }
    }
    Ok(page["metadata"]["continue"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_tells_where_replicas_are_in_each_version() {
        let definition = r#"{"spec":{"versions":[{"name":"v1","subresources":{"scale":{"specReplicasPath":".spec.size"}}},
            {"name":"v2","subresources":{"status":{}}},{"name":"v3"}]}}"#;
        let paths = BTreeMap::from([("v1".to_owned(), ".spec.size".to_owned())]);
        assert_eq!(scale_of(definition), Ok(Some(Scale { paths })));
        assert_eq!(scale_of(r#"{"spec":{"versions":[{"name":"v3"}]}}"#), Ok(None));
        assert!(scale_of(r#"{"spec":{"versions":3}}"#).is_err());
    }

    #[test]
    fn a_pod_mounts_claims_by_name_and_those_of_its_ephemeral_volumes() {
        let pod = br#"{"metadata":{"name":"web"},"spec":{"volumes":[{"name":"a","persistentVolumeClaim":{"claimName":"data"}},
            {"name":"b","ephemeral":{"volumeClaimTemplate":{}}},{"name":"c","emptyDir":{}}]}}"#;
        assert_eq!(mounted_claims(&Object::parse(pod).unwrap()), ["data", "web-b"]);
        assert!(mounted_claims(&Object::parse(br#"{"metadata":{"name":"web"}}"#).unwrap()).is_empty());
    }

    #[test]
    fn endpoints_count_once_each_where_they_are_ready_and_not_terminating() {
        let page = r#"{"metadata":{"continue":"more"},"items":[
            {"metadata":{"labels":{"kubernetes.io/service-name":"s"}},"endpoints":[
                {"addresses":["10.0.0.1"],"conditions":{"ready":true},"targetRef":{"uid":"1","name":"p1"}},
                {"addresses":["10.0.0.2"],"conditions":{"ready":false},"targetRef":{"uid":"2","name":"p2"}},
                {"addresses":["10.0.0.3"],"conditions":{"ready":true,"terminating":true}},
                {"addresses":["10.0.0.4"]}]},
            {"metadata":{"labels":{"kubernetes.io/service-name":"s"}},"endpoints":[
                {"addresses":["fd00::1"],"conditions":{"ready":true},"targetRef":{"uid":"1","name":"p1"}}]},
            {"metadata":{"labels":{"kubernetes.io/service-name":"t"}},"endpoints":null}]}"#;
        let mut found = BTreeMap::new();
        assert_eq!(read_slices(page, &mut found).ok().as_deref(), Some("more"));
        let expected = Census { count: Count::Exactly(2), names: vec!["10.0.0.4".into(), "p1".into()] };
        assert_eq!(censuses(&found), BTreeMap::from([("s".to_owned(), expected)]));
    }

    #[test]
    fn what_is_not_counted_to_the_end_is_a_lower_bound() {
        let mut tally = Tally::default();
        for number in 0..2 * MOST_COUNTED {
            tally.add(&number.to_string(), || format!("{number:04}"));
        }
        let census = tally.census(true);
        assert_eq!((census.count, census.names.len()), (Count::AtLeast(MOST_COUNTED), NAMES_SHOWN));
        assert_eq!(Tally::default().census(false).count, Count::AtLeast(0));
    }
}
