//! Questions asked of the API server while a review waits.
//!
//! Each is a consistent read (no `resourceVersion`, so never from a stale cache), of metadata only where
//! that can answer, in pages of [`PAGE`], under the review's deadline. A page that shows something in the
//! way ends the question; only pages full of what is already going are followed by the next.

use std::future::Future;

use http::Request;
use http::header::ACCEPT;
use kube::Client;
use palisade_engine::prose::NAMES_SHOWN;
use palisade_engine::{Answer, Census, Count, Definition, Unknown, World};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

/// How many objects one answer of the API server may hold.
const PAGE: usize = 500;

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const WHOLE: &str = "application/json";

/// The API server.
#[derive(Clone)]
pub struct Live {
    client: Client,
}

/// The API server, for as long as one review may wait.
pub struct LiveWorld {
    client: Client,
    deadline: Instant,
}

impl Live {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// A world whose questions are given up at `deadline`.
    pub fn until(&self, deadline: Instant) -> LiveWorld {
        LiveWorld { client: self.client.clone(), deadline }
    }
}

impl World for LiveWorld {
    async fn active_pods(&self, namespace: &str) -> Answer<Census> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let query = [("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed")];
        let counted = self.count(&path, &query, METADATA_LIST, Item::is_staying, Item::name).await;
        counted.map_err(|why| Unknown::new("its active pods", why.text))
    }

    async fn bound_claims(&self, namespace: &str) -> Answer<Census> {
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        let bound = |item: &Item| item.is_staying() && item.status.phase.as_deref() == Some("Bound");
        let counted = self.count(&path, &[], WHOLE, bound, Item::name).await;
        counted.map_err(|why| Unknown::new("its bound persistent volume claims", why.text))
    }

    async fn instances(&self, definition: &Definition) -> Answer<Census> {
        let Definition { group, plural, served_versions, established: _ } = definition;
        let mut reasons = Vec::new();
        // One version shows the custom resources of all. The next is asked where a conversion fails, or where
        // the API server has not caught up with the definition yet.
        for version in served_versions {
            let path = format!("/apis/{group}/{version}/{plural}");
            match self.count(&path, &[], METADATA_LIST, Item::is_staying, Item::full_name).await {
                Ok(census) => return Ok(census),
                Err(why) => reasons.push(format!("{version}: {}", why.text)),
            }
        }
        Err(Unknown::new("its custom resources", reasons.join("; ")))
    }

    async fn pod(&self, namespace: &str, name: &str) -> Answer<Option<String>> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let asked = async { self.client.request_text(get(&path, METADATA)?).await.map_err(NoAnswer::from) };
        match self.in_time(asked).await {
            Ok(pod) => Ok(Some(pod)),
            Err(why) if why.not_found => Ok(None),
            Err(why) => Err(Unknown::new("its labels", why.text)),
        }
    }
}

impl LiveWorld {
    /// Counts what is in the way, as far as the first page that shows any.
    async fn count(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &str,
        in_the_way: impl Fn(&Item) -> bool + Send,
        name: impl Fn(&Item) -> String + Send,
    ) -> Result<Census, NoAnswer> {
        let mut token = String::new();
        loop {
            let page: Page = self.page(path, query, accept, &token).await?;
            let items = page.items.unwrap_or_default();
            let found: Vec<&Item> = items.iter().filter(|item| in_the_way(item)).collect();
            let more = page.metadata.r#continue.filter(|token| !token.is_empty());
            match more {
                Some(next) if found.is_empty() => token = next,
                more => {
                    let count = if more.is_some() {
                        Count::AtLeast(found.len())
                    } else {
                        Count::Exactly(found.len())
                    };
                    let names = found.iter().take(NAMES_SHOWN).map(|item| name(item)).collect();
                    return Ok(Census { count, names });
                }
            }
        }
    }

    async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &str,
        token: &str,
    ) -> Result<T, NoAnswer> {
        let uri = page_uri(path, query, token);
        let asked = async { self.client.request(get(&uri, accept)?).await.map_err(NoAnswer::from) };
        self.in_time(asked).await
    }

    /// The client has no read timeout, and patiently repeats what the API server puts off: the deadline is
    /// what keeps a review from waiting with it.
    async fn in_time<T>(&self, asked: impl Future<Output = Result<T, NoAnswer>>) -> Result<T, NoAnswer> {
        tokio::time::timeout_at(self.deadline, asked).await.unwrap_or_else(|_| {
            Err(NoAnswer { text: "the API server did not answer in time".to_owned(), not_found: false })
        })
    }
}

fn page_uri(path: &str, query: &[(&str, &str)], token: &str) -> String {
    let mut encoded = form_urlencoded::Serializer::new(String::new());
    encoded.append_pair("limit", &PAGE.to_string()).extend_pairs(query);
    if !token.is_empty() {
        encoded.append_pair("continue", token);
    }
    format!("{path}?{}", encoded.finish())
}

fn get(uri: &str, accept: &str) -> Result<Request<Vec<u8>>, NoAnswer> {
    Request::get(uri)
        .header(ACCEPT, accept)
        .body(Vec::new())
        .map_err(|error| NoAnswer { text: error.to_string(), not_found: false })
}

/// Why the API server did not tell.
struct NoAnswer {
    text: String,
    not_found: bool,
}

impl From<kube::Error> for NoAnswer {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                Self { not_found: status.code == 404, text: format!("{}: {}", status.code, status.message) }
            }
            other => Self { text: other.to_string(), not_found: false },
        }
    }
}

#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    /// An empty list of metadata says `null`.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct PageMetadata {
    r#continue: Option<String>,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMetadata,
    #[serde(default)]
    status: ItemStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemMetadata {
    name: String,
    namespace: Option<String>,
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
struct ItemStatus {
    phase: Option<String>,
}

impl Item {
    fn is_staying(&self) -> bool {
        self.metadata.deletion_timestamp.is_none()
    }

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn full_name(&self) -> String {
        match &self.metadata.namespace {
            Some(namespace) => format!("{namespace}/{}", self.metadata.name),
            None => self.metadata.name.clone(),
        }
    }
}
