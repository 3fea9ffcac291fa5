//! Questions asked of the API server while a review waits.
//!
//! Each is a consistent read (no `resourceVersion`, so never from a stale cache), of metadata only where
//! that can answer, in pages of [`PAGE`], under the review's deadline. A page that shows something in the
//! way ends the question; only pages full of what is already going are followed by the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Request;
use http::header::ACCEPT;
use kube::Client;
use palisade_api::components::{Components, GroupKind};
use palisade_api::critical::{Resource, Target};
use palisade_api::versions::{PolicyKind, PolicyVersions};
use palisade_engine::prose::NAMES_SHOWN;
use palisade_engine::{
    Answer, BudgetAuthor, Census, ClaimTemplate, Count, Critical, Declared, Definition, Dependents, Holders,
    Judged, Kind, Metadata, OwnerRef, OwnerState, Parent, Place, Present, ProtectedComponents, Protections,
    Right, Scale, Scaled, Scope, Search, Spent, Subject, Unknown, Withdrawal, World,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;

use crate::broken::BrokenKinds;
use crate::components::{self, Guarded};
use crate::critical::{self, Services};
use crate::discovery::{Discovery, Served};
use crate::ledger::Ledger;
use crate::named::{Detail, read_named};
use crate::objects::none_if_undefined;
use crate::owner_states::SeenOwners;
use crate::progress::{Behind, PolicyProgress};
use crate::questions::{Questions, SearchClients, Share};
use crate::searching::{Searching, right_to_read};
use crate::sync;

/// How many objects one answer of the API server may hold.
const PAGE: usize = 500;
/// What it takes to say that something took too long.
const ANSWERING: Duration = Duration::from_millis(100);

pub(crate) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(crate) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
pub(crate) const WHOLE: &str = "application/json";

/// The API server.
#[derive(Clone)]
pub struct Live {
    client: Client,
    search_clients: Arc<SearchClients>,
    broken: Arc<BrokenKinds>,
    questions: Arc<Questions>,
    protections: Arc<dyn Fn() -> Arc<Protections> + Send + Sync>,
    ledger: Option<Arc<Ledger>>,
    services: Option<watch::Receiver<Option<Services>>>,
    guarded: Option<watch::Receiver<Option<Guarded>>>,
    await_policy: Option<AwaitPolicy>,
    seen_owners: Arc<SeenOwners>,
    progress: Option<Arc<PolicyProgress>>,
    searching: Arc<Searching>,
}

/// Waits until the API server asks about what a policy concerns, and says whether it does.
pub type AwaitPolicy = Arc<dyn Fn(Declared<'_>) -> BoxFuture<'static, bool> + Send + Sync>;

/// The API server, for as long as one review may wait.
pub struct LiveWorld {
    pub(crate) client: Client,
    search_clients: Arc<SearchClients>,
    pub(crate) broken: Arc<BrokenKinds>,
    questions: Arc<Questions>,
    share: Share,
    pub(crate) deadline: Instant,
    protections: Arc<Protections>,
    ledger: Option<Arc<Ledger>>,
    services: Option<watch::Receiver<Option<Services>>>,
    guarded: Option<watch::Receiver<Option<Guarded>>>,
    await_policy: Option<AwaitPolicy>,
    /// What is served, once a question needed to know.
    pub(crate) discovered: OnceCell<Discovery>,
    pub(crate) seen_owners: Arc<SeenOwners>,
    pub(crate) searching: Arc<Searching>,
}

impl Live {
    /// `protections` gives those that are known at the time it is asked.
    pub fn new(client: Client, protections: impl Fn() -> Arc<Protections> + Send + Sync + 'static) -> Self {
        Self {
            search_clients: Arc::new(SearchClients::new(Vec::new())),
            client,
            broken: Arc::default(),
            questions: Arc::default(),
            protections: Arc::new(protections),
            ledger: None,
            services: None,
            guarded: None,
            await_policy: None,
            seen_owners: Arc::default(),
            progress: None,
            searching: Arc::default(),
        }
    }

    /// With what the watches of policies have seen, reviews wait until they know what they are asked by.
    #[must_use]
    pub fn with_progress(self, progress: Arc<PolicyProgress>) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Waits until policies of some kinds are known, each as of a resourceVersion at least.
    pub async fn until_known(
        &self,
        kinds: &[PolicyKind],
        versions: &PolicyVersions,
        deadline: Instant,
    ) -> Result<(), Behind> {
        let Some(progress) = &self.progress else {
            let kind = kinds.first().copied().or_else(|| versions.iter().map(|(kind, _)| kind).next());
            return kind.map_or(Ok(()), |kind| Err(Behind { kind, unserved: false }));
        };
        progress.until(kinds, versions, deadline).await
    }

    /// With groups, others are not searched; without them all are.
    #[must_use]
    pub fn with_searching(self, searching: Arc<Searching>) -> Self {
        Self { searching, ..self }
    }

    /// With [`SEARCHES`](crate::SEARCHES) clients of their own, which do not try again by themselves what an API server puts
    /// off, searches have a connection each, and learn at once that one does not answer.
    #[must_use]
    pub fn with_search_clients(self, clients: Vec<Client>) -> Self {
        Self { search_clients: Arc::new(SearchClients::new(clients)), ..self }
    }

    /// With a ledger, pods are charged to it; without one there are no budgets and no flow controls.
    #[must_use]
    pub fn with_ledger(self, ledger: Arc<Ledger>) -> Self {
        Self { ledger: Some(ledger), ..self }
    }

    /// With the `CriticalService`s that are known, only deletions that they concern are worth a question; without them
    /// all are.
    #[must_use]
    pub fn with_services(self, services: watch::Receiver<Option<Services>>) -> Self {
        Self { services: Some(services), ..self }
    }

    /// With the component protections that are known, only changes that they concern are worth a question; without them
    /// all are.
    #[must_use]
    pub fn with_components(self, guarded: watch::Receiver<Option<Guarded>>) -> Self {
        Self { guarded: Some(guarded), ..self }
    }

    /// With a way to wait for it, a policy is created only once it holds.
    #[must_use]
    pub fn with_await_policy(self, await_policy: AwaitPolicy) -> Self {
        Self { await_policy: Some(await_policy), ..self }
    }

    /// A world whose questions are given up at `deadline`.
    pub fn until(&self, deadline: Instant) -> LiveWorld {
        LiveWorld {
            client: self.client.clone(),
            search_clients: self.search_clients.clone(),
            broken: self.broken.clone(),
            questions: self.questions.clone(),
            share: Share::default(),
            deadline,
            protections: (self.protections)(),
            ledger: self.ledger.clone(),
            services: self.services.clone(),
            guarded: self.guarded.clone(),
            discovered: OnceCell::new(),
            await_policy: self.await_policy.clone(),
            seen_owners: Arc::clone(&self.seen_owners),
            searching: Arc::clone(&self.searching),
        }
    }
}

impl World for LiveWorld {
    async fn active_pods(&self, namespace: &str) -> Answer<Census> {
        let path = format!("/api/v1/namespaces/{}/pods", segment(namespace));
        let query = [("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed")];
        let counted = self.count(&path, &query, METADATA_LIST, Item::is_staying, Item::name).await;
        counted.map_err(|why| self.unknown("its active pods", why))
    }

    async fn bound_claims(&self, namespace: &str) -> Answer<Census> {
        let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims", segment(namespace));
        let bound = |item: &Item| item.is_staying() && item.status.phase.as_deref() == Some("Bound");
        let counted = self.count(&path, &[], WHOLE, bound, Item::name).await;
        counted.map_err(|why| self.unknown("its bound persistent volume claims", why))
    }

    async fn instances(&self, definition: &Definition) -> Answer<Census> {
        let Definition { group, plural, served_versions, established, .. } = definition;
        let (mut reasons, mut missing) = (Vec::new(), None);
        // Whoever reaches our port can send a review; it shall not make us list what is no custom resource.
        let name = format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}",
            segment(&format!("{plural}.{group}"))
        );
        match self.ask(&name, METADATA).await {
            Ok(_) => {}
            Err(why) if why.code == 404 => return Ok(Census::NONE),
            Err(why) => return Err(self.unknown("its custom resources", why)),
        }
        let mut served = false;
        // One version shows the custom resources of all. The next is asked where a conversion fails, or where
        // the API server has not caught up with the definition yet.
        for version in served_versions {
            let path = format!("/apis/{}/{}/{}", segment(group), segment(version), segment(plural));
            match self.count(&path, &[], METADATA_LIST, Item::is_staying, Item::full_name).await {
                Ok(census) => return Ok(census),
                Err(why) => {
                    served |= why.code != 404;
                    missing = missing.or(self.searching.missing(&why));
                    reasons.push(format!("{version}: {}", why.text));
                }
            }
        }
        if !served && !established {
            return Ok(Census::NONE);
        }
        Err(Unknown::new("its custom resources", reasons.join("; ")).lacking(missing))
    }

    fn is_searched(&self, group: &str) -> bool {
        self.searching.groups.contain(group)
    }

    async fn scale(&self, kind: &Kind<'_>) -> Answer<Option<Scale>> {
        self.ask_for_scale(kind).await
    }

    async fn mounting_pods(
        &self,
        namespace: &str,
        claims: &BTreeSet<String>,
    ) -> Answer<BTreeMap<String, Census>> {
        self.ask_for_mounting_pods(namespace, claims).await
    }

    async fn ready_endpoints(
        &self,
        namespace: &str,
        services: &BTreeSet<String>,
    ) -> Answer<BTreeMap<String, Census>> {
        self.ask_for_ready_endpoints(namespace, services).await
    }

    async fn pods_on_node(&self, node: &str) -> Answer<Census> {
        self.ask_for_pods_on_node(node).await
    }

    async fn dependents(&self, namespace: Option<&str>, owners: &BTreeSet<String>) -> Answer<Dependents> {
        self.ask_for_dependents(namespace, owners).await
    }

    fn protections(&self) -> &Protections {
        &self.protections
    }

    async fn namespace_labels(&self, namespace: &str) -> Answer<BTreeMap<String, String>> {
        let answer = self.namespace(namespace).await;
        let namespace = answer.map_err(|why| self.unknown("the labels of its namespace", why))?;
        Ok(namespace.metadata.labels.unwrap_or_default())
    }

    async fn is_terminating(&self, namespace: &str) -> bool {
        self.namespace(namespace).await.is_ok_and(|namespace| !namespace.is_staying())
    }

    async fn all_namespace_labels(&self) -> Answer<BTreeMap<String, BTreeMap<String, String>>> {
        let mut all = BTreeMap::new();
        let mut next = Some(String::new());
        while let Some(token) = next {
            let asked = self.page::<Page>("/api/v1/namespaces", &[], METADATA_LIST, &token).await;
            let page = asked.map_err(|why| self.unknown("the labels of its namespaces", why))?;
            let labels = |item: Item| (item.metadata.name, item.metadata.labels.unwrap_or_default());
            all.extend(page.items.unwrap_or_default().into_iter().map(labels));
            next = page.metadata.r#continue.filter(|token| !token.is_empty());
        }
        Ok(all)
    }

    async fn search(
        &self,
        place: Place<'_>,
        judge: &(dyn Fn(&Subject<'_>, bool) -> Judged + Sync),
    ) -> Answer<Search> {
        crate::search::search(self, place, judge).await
    }

    async fn owners(&self, owners: &[(Option<String>, OwnerRef)]) -> Answer<BTreeMap<String, OwnerState>> {
        self.ask_for_owners(owners).await
    }

    fn has_seen_owner(&self, uid: &str) -> bool {
        self.seen_owners.contain(uid)
    }

    async fn claim_templates(&self, namespace: &str) -> Answer<Vec<ClaimTemplate>> {
        self.ask_for_claim_templates(namespace).await
    }

    async fn spend(&self, withdrawal: &Withdrawal<'_>, really: bool) -> Spent {
        match &self.ledger {
            Some(ledger) => ledger.spend(withdrawal, self.deadline, really).await,
            None => Spent::default(),
        }
    }

    fn note_author(&self, author: &BudgetAuthor<'_>, really: bool) -> u32 {
        let Some(ledger) = &self.ledger else { return 0 };
        if really {
            ledger.budgets.note_author(author);
        }
        ledger.budgets.index().min_unavailable()
    }

    async fn critical_services(&self, concerned: Option<&Subject<'_>>) -> Answer<Vec<Critical>> {
        match (concerned, &self.services) {
            (Some(subject), Some(services)) if !concern(services, subject) => Ok(Vec::new()),
            _ => critical::list_services(self).await,
        }
    }

    async fn holders(&self, resource: &Resource, finalizer: &str) -> Answer<Holders> {
        self.ask_for_holders(resource, finalizer).await
    }

    async fn find(&self, target: &Target) -> Answer<Option<Present>> {
        self.ask_for_object(target).await
    }

    async fn scope(&self, resource: &Resource) -> Answer<Option<Scope>> {
        self.ask_for_scope(resource).await
    }

    async fn components(&self, kind: Option<&GroupKind>) -> Answer<Vec<Arc<ProtectedComponents>>> {
        let (known, built_in) = match &self.guarded {
            Some(guarded) => known_components(guarded, kind),
            None => (Vec::new(), None),
        };
        if kind.is_some() && self.guarded.is_some() {
            return Ok(known);
        }
        let mut all = components::list_protections(self).await?;
        all.extend(built_in);
        Ok(all)
    }

    async fn parent(&self, kind: &GroupKind, namespace: Option<&str>, name: &str) -> Answer<Option<Parent>> {
        self.ask_for_parent(kind, namespace, name).await
    }

    async fn claimed_by(
        &self,
        components: &Components,
        namespace: &str,
        claim: &str,
        parent: &(dyn Fn(&Metadata<'_>) -> Option<String> + Sync),
    ) -> Answer<Option<String>> {
        self.ask_for_claimant(components, namespace, claim, parent).await
    }

    async fn scaled(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Answer<Option<Scaled>> {
        self.ask_for_scaled(group, plural, namespace, name).await
    }

    async fn await_policy(&self, policy: Declared<'_>) -> bool {
        let Some(wait) = &self.await_policy else { return true };
        // One that holds a moment later is better than none, so there is time left to say so.
        let deadline = self.deadline - ANSWERING;
        tokio::time::timeout_at(deadline, wait(policy)).await.unwrap_or(false)
    }

    async fn pod(&self, namespace: &str, name: &str) -> Answer<Option<String>> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", segment(namespace), segment(name));
        match self.ask(&path, WHOLE).await {
            Ok(pod) => Ok(Some(pod)),
            Err(why) if why.code == 404 => Ok(None),
            Err(why) => Err(self.unknown("what the pod looks like", why)),
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

    /// The metadata of a namespace.
    async fn namespace(&self, name: &str) -> Result<Item, NoAnswer> {
        let path = format!("/api/v1/namespaces/{}", segment(name));
        let asked = async { self.client.request(get(&path, METADATA)?).await.map_err(NoAnswer::to(&path)) };
        self.in_time(asked).await
    }

    /// A question without an answer.
    pub(crate) fn unknown(&self, question: impl Into<String>, why: NoAnswer) -> Unknown {
        let missing = self.searching.missing(&why);
        Unknown::new(question, why.text).lacking(missing)
    }

    /// How long a search may still take, so that there is time left to say what it did not find out.
    pub(crate) fn time_to_search(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).saturating_sub(ANSWERING * 3)
    }

    /// The text of an answer to a question of a search. It is not asked again where the API server puts it off: who asks
    /// knows better when.
    pub(crate) async fn list_once(
        &self,
        uri: &str,
        accept: &str,
        patience: Option<Duration>,
    ) -> Result<String, NoAnswer> {
        let asked = async {
            let lent = self.search_clients.lend(&self.client);
            let asked = lent.client().request_text(get(uri, accept)?);
            let late = || NoAnswer { is_late: true, ..NoAnswer::new("it did not answer in time".to_owned()) };
            match patience {
                Some(patience) => tokio::time::timeout(patience, asked).await.map_err(|_| late())?,
                None => asked.await,
            }
            .map_err(NoAnswer::to(uri))
        };
        self.questions.search(&self.share, self.deadline, Box::pin(asked)).await
    }

    /// The text of an answer.
    pub(crate) async fn ask(&self, uri: &str, accept: &str) -> Result<String, NoAnswer> {
        let asked = async { self.client.request_text(get(uri, accept)?).await.map_err(NoAnswer::to(uri)) };
        self.in_time(asked).await
    }

    /// One object of any kind as JSON, by its name.
    pub(crate) async fn ask_for_named(
        &self,
        served: &Served,
        namespace: Option<&str>,
        name: &str,
        detail: Detail,
    ) -> Result<Option<String>, NoAnswer> {
        let path = served.path(namespace);
        self.in_time(read_named(&self.client, &path, name, detail)).await
    }

    async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &str,
        token: &str,
    ) -> Result<T, NoAnswer> {
        let uri = page_uri(path, query, token);
        let asked = async { self.client.request(get(&uri, accept)?).await.map_err(NoAnswer::to(&uri)) };
        self.in_time(asked).await
    }

    /// Whether a list of policies failed because the cluster does not know their kind: then there are none.
    pub(crate) async fn none_if_undefined(&self, kind: PolicyKind, why: NoAnswer) -> Result<(), NoAnswer> {
        if why.code != 404 {
            return Err(why);
        }
        let asked = async { none_if_undefined(&self.client, kind).await.map_err(NoAnswer::from) };
        self.in_time(asked).await.map(drop)
    }

    /// What a question is answered with, before the deadline.
    pub(crate) async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, NoAnswer>>,
    ) -> Result<T, NoAnswer> {
        self.questions.ask(self.deadline, Box::pin(asked)).await
    }
}

/// The protections that are known to be about a kind, and etcd-druid's.
fn known_components(
    guarded: &watch::Receiver<Option<Guarded>>,
    kind: Option<&GroupKind>,
) -> (Vec<Arc<ProtectedComponents>>, Option<Arc<ProtectedComponents>>) {
    sync::peek(guarded, |guarded| {
        let Some(guarded) = guarded.as_ref() else { return (Vec::new(), None) };
        (kind.map(|kind| guarded.about(kind)).unwrap_or_default(), guarded.built_in.clone())
    })
}

/// Whether a `CriticalService` that is known may be about a subject. A replica serves nobody before it knows them.
fn concern(services: &watch::Receiver<Option<Services>>, subject: &Subject<'_>) -> bool {
    sync::peek(services, |services| services.as_ref().is_some_and(|services| services.concern(subject)))
}

/// A name as one segment of a path, whatever is in it.
pub fn segment(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'~');
    let mut text = String::with_capacity(name.len());
    for &byte in name.as_bytes() {
        if plain(byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    // A dot or two would be taken for a way up.
    if matches!(name, "." | "..") { text.replace('.', "%2E") } else { text }
}

pub(crate) fn page_uri(path: &str, query: &[(&str, &str)], token: &str) -> String {
    page_uri_of(PAGE, path, query, token)
}

/// A page of so many.
pub(crate) fn page_uri_of(size: usize, path: &str, query: &[(&str, &str)], token: &str) -> String {
    let mut encoded = form_urlencoded::Serializer::new(String::new());
    encoded.append_pair("limit", &size.to_string()).extend_pairs(query);
    if !token.is_empty() {
        encoded.append_pair("continue", token);
    }
    format!("{path}?{}", encoded.finish())
}

pub(crate) fn get(uri: &str, accept: &str) -> Result<Request<Vec<u8>>, NoAnswer> {
    Request::get(uri)
        .header(ACCEPT, accept)
        .body(Vec::new())
        .map_err(|error| NoAnswer::new(error.to_string()))
}

/// Why the API server did not tell.
#[derive(Clone)]
pub(crate) struct NoAnswer {
    pub(crate) text: String,
    /// The API server's, or 0 if it did not say.
    pub(crate) code: u16,
    /// Whether it was not waited for any longer.
    pub(crate) is_late: bool,
    /// The right without which the API server forbids it.
    pub(crate) right: Option<Right>,
}

impl NoAnswer {
    pub(crate) fn new(text: String) -> Self {
        Self { text, code: 0, is_late: false, right: None }
    }

    /// What became of a read of a path.
    pub(crate) fn to(uri: &str) -> impl FnOnce(kube::Error) -> Self {
        move |error| {
            let why = Self::from(error);
            Self { right: if why.code == 403 { right_to_read(uri) } else { None }, ..why }
        }
    }

    /// Whether another try may answer: nobody did, or somebody could not.
    pub(crate) fn may_pass(&self) -> bool {
        self.code == 0 || self.code == 429 || self.code >= 500
    }
}

impl From<kube::Error> for NoAnswer {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let (code, text) = (status.code, format!("{}: {}", status.code, status.message));
                Self { code, ..Self::new(text) }
            }
            other => Self::new(other.to_string()),
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
    labels: Option<BTreeMap<String, String>>,
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
