//! Budgets as accounts: whom a pod costs something, and what each has left.
//!
//! A reservation that is made for a pod of several accounts can be given back, by the time that it was made at, as long
//! as nobody else relies on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use palisade_api::budget::{self, Budget, Chosen, Status};
use palisade_api::versions::PolicyKind;
use palisade_engine::{Answer, Metadata, Object, PodState, Standing, Unknown, Withdrawal, is_available};
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::budgets::account::{Admitted, Life, Loser, Numbers, Seen, admit, has_seen_enough, release, sweep};
use crate::budgets::authors::{Authorship, MOST_AUTHORS};
use crate::budgets::census::{Census, Membership, census, membership};
use crate::budgets::owners::Lookup;
use crate::budgets::{Controller, Index, Key, Known, budget_resource};
use crate::commit::{self, Account, CALL, Decided, Entry, Tasks};
use crate::discovery::Discovery;
use crate::live::{WHOLE, get, segment};
use crate::objects::{exist, get_policy};
use crate::searching::Searching;

/// How long a request waits for the index to catch up with what another replica has seen.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Where budgets are spent from.
pub struct Budgets {
    lookup: Lookup,
    tasks: Tasks<Self>,
    pub(super) authors: Arc<Semaphore>,
    count: Box<dyn Fn(Entry) + Send + Sync>,
}

/// What is asked of a budget.
pub(crate) enum Ask {
    Charge(Loser),
    /// What was reserved at a time is not needed.
    Release(Box<str>, Timestamp),
    /// Who wrote it.
    Sign(Authorship),
}

/// How a budget stands, and what its status should say about it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// With what has been seen taken out.
    pub status: Status,
    /// Whether there is a workload by the name that it is for; `None` if it selects pods.
    pub target_found: Option<bool>,
}

impl Budgets {
    pub fn new(
        client: Client,
        index: Arc<Index>,
        discovery: watch::Receiver<Option<Discovery>>,
        searching: Arc<Searching>,
        count: impl Fn(Entry) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let lookup = Lookup { client, index, discovery, searching };
        let authors = Arc::new(Semaphore::new(MOST_AUTHORS));
        Arc::new(Self { lookup, tasks: Tasks::default(), authors, count: Box::new(count) })
    }

    pub fn index(&self) -> &Arc<Index> {
        &self.lookup.index
    }

    /// The budgets that a loss costs something.
    pub(crate) async fn concerned(&self, withdrawal: &Withdrawal<'_>) -> Answer<Vec<Arc<Known>>> {
        let namespace = withdrawal.pod.namespace.as_deref().unwrap_or_default();
        let mut budgets = self.lookup.index.budgets_in(namespace);
        if budgets.is_empty() && withdrawal.expects.budgets && self.has_budgets(namespace).await? {
            // One that was created just now, and the watch is about to bring.
            let brought = self.lookup.index.until(|index| !index.budgets_in(namespace).is_empty());
            // Without it, it has gone again in the meantime.
            let _ = timeout(CATCH_UP, brought).await;
            budgets = self.lookup.index.budgets_in(namespace);
        }
        if budgets.is_empty() {
            return Ok(Vec::new());
        }
        let awaits_author = |budgets: &[Arc<Known>]| {
            let least = self.lookup.index.min_unavailable();
            budgets.iter().any(|known| known.awaits_author(least))
        };
        if awaits_author(&budgets) {
            // It was written just now, and whoever admitted it is about to say by whom.
            let told = self.lookup.index.until(|index| !awaits_author(&index.budgets_in(namespace)));
            let _ = timeout(CATCH_UP, told).await;
            budgets = self.lookup.index.budgets_in(namespace);
        }
        self.lookup.index.until(Index::is_listed).await;
        let mut concerned = Vec::new();
        for known in budgets {
            if self.concerns(&known, withdrawal).await? {
                concerned.push(known);
            }
        }
        Ok(concerned)
    }

    /// Whether there is a budget in a namespace, asked of the API server.
    async fn has_budgets(&self, namespace: &str) -> Answer<bool> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.lookup.client.clone(), namespace, &budget_resource());
        commit::call::<Self, _>(exist(&api, PolicyKind::Budget)).await
    }

    /// Whether a pod costs something of a budget.
    async fn concerns(&self, known: &Known, withdrawal: &Withdrawal<'_>) -> Answer<bool> {
        let budget = readable(known)?;
        let pod = withdrawal.pod;
        let controller = Controller::of(pod);
        if self.membership(known, budget, pod, controller.as_ref()).await? != Membership::Member {
            return Ok(false);
        }
        let Some(then) = withdrawal.parting else { return Ok(true) };
        let owner = Controller::of(then);
        let member = self.membership(known, budget, then, owner.as_ref()).await? == Membership::Member;
        Ok(match (&budget.pods, owner) {
            // A workload lets go of a pod that no longer looks like one of its own.
            (Chosen::Of(_), Some(owner)) if member => {
                !self.lookup.keeps(&known.key.namespace, &owner, &then.labels).await?
            }
            _ => !member,
        })
    }

    async fn membership(
        &self,
        known: &Known,
        budget: &Budget,
        pod: &Metadata<'_>,
        controller: Option<&Controller>,
    ) -> Answer<Membership> {
        self.lookup
            .with_owners(&known.key.namespace, |owners, _| {
                membership(budget, pod, controller, owners).map_err(|missing| vec![missing])
            })
            .await
    }

    /// How a budget stands that would not allow a loss, by what is known.
    pub(crate) async fn peek(&self, known: &Known, loser: &Loser) -> Answer<Option<Standing>> {
        let budget = readable(known)?;
        let census = self.census(known).await?;
        let mut status = known.status.clone();
        let (admitted, _, _) =
            admit(budget, &census, &mut status, std::slice::from_ref(loser), Timestamp::now());
        Ok(match admitted.first() {
            Some(Admitted::No(numbers)) => Some(standing(known, numbers)),
            _ => None,
        })
    }

    /// Reserves a loss. Where it was not reserved before, the answer is the time by which it can be given back.
    pub(crate) async fn charge(
        self: &Arc<Self>,
        known: &Known,
        loser: &Loser,
        deadline: Instant,
    ) -> Answer<Result<Option<Timestamp>, Standing>> {
        let said = commit::ask(self, &known.key, Ask::Charge(loser.clone()), deadline).await?;
        Ok(match said {
            Admitted::Reserved(at) => Ok(Some(at)),
            Admitted::Yes => Ok(None),
            Admitted::No(numbers) => Err(standing(known, &numbers)),
        })
    }

    /// Gives back what was reserved at a time. If that fails the reservation ends by itself: the pod is seen to live on.
    pub(crate) async fn release(
        self: &Arc<Self>,
        known: &Known,
        uid: &str,
        at: Timestamp,
        deadline: Instant,
    ) {
        let _ = commit::ask(self, &known.key, Ask::Release(uid.into(), at), deadline).await;
    }

    /// The pods of a budget, counted.
    async fn census(&self, known: &Known) -> Answer<Census> {
        let budget = readable(known)?;
        if let Chosen::Of(target) = &budget.pods
            && self.lookup.searching.groups.may_read(&target.group, &target.kind)
        {
            self.lookup.index.want_kind((target.group.as_str().into(), target.kind.as_str().into()));
        }
        let Key { namespace, .. } = &known.key;
        self.lookup.with_owners(namespace, |owners, pods| census(budget, namespace, pods, owners)).await
    }

    /// How a budget stands now, for its status. `lives_on` are pods that were seen to live on.
    pub async fn observe(&self, known: &Known, lives_on: &HashMap<String, Life>) -> Answer<Observed> {
        let budget = readable(known)?;
        let census = self.census(known).await?;
        let mut status = known.status.clone();
        {
            let (pods, revision, event_revision) = {
                let pods = self.lookup.index.pods();
                (pods.share_namespace(&known.key.namespace), pods.revision(), pods.event_revision())
            };
            let seen = Seen { pods: pods.as_deref(), revision, event_revision };
            sweep(&mut status, seen, lives_on, Timestamp::now());
        }
        Numbers::of(budget, &census, &status).show(&mut status, known.generation);
        let target_found = match &budget.pods {
            Chosen::Selected(_) => None,
            Chosen::Of(target) => {
                let namespace = &known.key.namespace;
                let is_watched = || {
                    let workloads = self.lookup.index.workloads();
                    workloads.find(namespace, &target.group, &target.kind, &target.name).is_some()
                };
                // Whoever wants pods is there; the others are looked for among all, or asked for if nobody watches them.
                Some(census.total > 0 || is_watched() || self.lookup.finds(namespace, target).await?)
            }
        };
        Ok(Observed { status, target_found })
    }

    /// How a pod is whose reservation nothing seems to come of; `None` if it is going, gone, or nobody can tell.
    pub async fn life_of(&self, namespace: &str, uid: &str) -> Option<Life> {
        // Nobody knows it by a name any more: the index has seen it go, or will.
        let name = self.lookup.index.pods().of_namespace(namespace)?.get(uid)?.name.clone();
        let path = format!("/api/v1/namespaces/{}/pods/{}", segment(namespace), segment(&name));
        let text =
            timeout(CALL, self.lookup.client.request_text(get(&path, WHOLE).ok()?)).await.ok()?.ok()?;
        let pod = Object::parse(text.as_bytes()).ok()?;
        if pod.metadata.uid != uid || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let state = PodState::read(&pod).ok()?;
        Some(if is_available(&pod, &state) { Life::Available } else { Life::Down })
    }
    /// Writes a status over the one that was read.
    pub async fn write(&self, known: &Known, status: &Status) -> kube::Result<Known> {
        let Key { namespace, name } = &known.key;
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.lookup.client.clone(), namespace, &budget_resource());
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": format!("{}/{}", budget::GROUP, budget::VERSION),
            "kind": budget::KIND,
            "metadata": {
                "name": name, "namespace": namespace, "uid": known.uid, "resourceVersion": known.resource_version,
            },
            "status": status,
        }))
        .map_err(kube::Error::SerdeError)?;
        let written = api.replace_status(name, &PostParams::default(), &object).await?;
        Ok(self.lookup.index.reader.read(&written))
    }
}

impl Account for Budgets {
    type Key = Key;
    type Known = Known;
    type Status = Status;
    type Ask = Ask;
    type Said = Admitted;

    const QUESTION: &'static str = "whether its budgets allow it";

    fn tasks(&self) -> &Tasks<Self> {
        &self.tasks
    }

    fn watched(&self, key: &Key) -> Option<Arc<Known>> {
        self.lookup.index.budget(key)
    }

    fn version(known: &Known) -> (&str, &str) {
        (&known.uid, &known.resource_version)
    }

    /// By one reading of the index.
    async fn decide(&self, known: &Known, asked: &[&Ask]) -> Answer<Decided<Self>> {
        let behind = || commit::unknown::<Self>("this replica has not seen all pods yet");
        let caught_up =
            self.lookup.index.until(|index| has_seen_enough(&known.status, index.pods().revision()));
        timeout(CATCH_UP, caught_up).await.map_err(|_| behind())?;
        let budget = readable(known)?;
        let census = self.census(known).await?;
        let mut status = known.status.clone();
        let (mut changed, mut losers) = (false, Vec::new());
        for ask in asked {
            match ask {
                Ask::Charge(loser) => losers.push(loser.clone()),
                Ask::Release(uid, at) => changed |= release(&mut status, uid, *at),
                Ask::Sign(authorship) => changed |= authorship.sign(known, &mut status),
            }
        }
        let (admitted, numbers, reserved) = admit(budget, &census, &mut status, &losers, Timestamp::now());
        let mut admitted = admitted.into_iter();
        let said = asked.iter().map(|ask| match ask {
            Ask::Charge(_) => admitted.next().unwrap_or(Admitted::Yes),
            Ask::Release(..) | Ask::Sign(_) => Admitted::Yes,
        });
        let said = said.collect();
        if !changed && !reserved {
            return Ok((said, None));
        }
        numbers.show(&mut status, known.generation);
        Ok((said, Some(status)))
    }

    async fn write(&self, known: &Known, status: &Status) -> kube::Result<Known> {
        Self::write(self, known, status).await
    }

    async fn read(&self, key: &Key) -> kube::Result<Option<Known>> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.lookup.client.clone(), &key.namespace, &budget_resource());
        Ok(get_policy(&api, &key.name).await?.map(|object| self.lookup.index.reader.read(&object)))
    }

    fn free() -> Admitted {
        Admitted::Yes
    }

    fn is_refused(ask: &Ask, said: &Admitted) -> Option<bool> {
        matches!(ask, Ask::Charge(_)).then(|| matches!(said, Admitted::No(_)))
    }

    fn count(&self, entry: Entry) {
        (self.count)(entry);
    }
}

fn readable(known: &Known) -> Answer<&Budget> {
    known.budget.as_ref().map_err(|why| Unknown::new(format!("what budget {} asks for", known.key.name), why))
}

fn standing(known: &Known, numbers: &Numbers) -> Standing {
    let Numbers { allowed, available, desired, total } = *numbers;
    Standing { budget: known.key.name.clone(), allowed, available, desired, total }
}
