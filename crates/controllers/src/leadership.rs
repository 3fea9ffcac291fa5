//! One replica leads, by a Lease.
//!
//! A holder that has not renewed for [`LEASE`], as seen by our own clock since we first saw its last renewal,
//! has lost it: no two clocks are ever compared. The leader only writes what compare-and-swap protects, so
//! two of them for a moment would be untidy and nothing worse.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use palisade_api::names;
use palisade_cluster::sync;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(6);
const TRY: Duration = Duration::from_millis(1500);
const CALL: Duration = Duration::from_secs(2);

/// What the Lease says about us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    pub leading: bool,
    /// `palisade uninstall` was here: nothing is to be registered.
    pub suspended: bool,
}

/// Stands for election until told to stop, then gives the Lease back.
pub async fn campaign(
    client: Client,
    namespace: &str,
    identity: &str,
    leadership: watch::Sender<Leadership>,
    stop: watch::Receiver<bool>,
) {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    stand_until(&leases, identity, &leadership, stop).await;
}

/// Where the Lease is stored.
trait LeaseStore: Sync {
    fn read(&self) -> impl Future<Output = kube::Result<Option<Lease>>> + Send;
    fn create(&self, lease: &Lease) -> impl Future<Output = kube::Result<()>> + Send;
    /// Fails if it has changed since it was read: the resourceVersion in it says so.
    fn replace(&self, lease: &Lease) -> impl Future<Output = kube::Result<()>> + Send;
}

impl LeaseStore for Api<Lease> {
    async fn read(&self) -> kube::Result<Option<Lease>> {
        self.get_opt(names::PALISADE).await
    }

    async fn create(&self, lease: &Lease) -> kube::Result<()> {
        self.create(&PostParams::default(), lease).await.map(drop)
    }

    async fn replace(&self, lease: &Lease) -> kube::Result<()> {
        self.replace(names::PALISADE, &PostParams::default(), lease).await.map(drop)
    }
}

async fn stand_until(
    leases: &impl LeaseStore,
    identity: &str,
    leadership: &watch::Sender<Leadership>,
    mut stop: watch::Receiver<bool>,
) {
    let mut candidate = Candidate { identity, rival: None, renewed: None };
    let mut published = Leadership::default();
    loop {
        let patience = candidate.renewed.map_or(CALL, |renewed| {
            // A leader that gets no answer must know that it lost the Lease before another one can take it.
            CALL.min(LEASE.saturating_sub(TRY + renewed.elapsed()))
        });
        match timeout(patience, candidate.stand(leases)).await {
            Ok(Ok(result)) => published = result,
            Ok(Err(error)) => tracing::warn!(%error, "standing for election"),
            Err(_) => tracing::warn!("standing for election: the API server did not answer in time"),
        }
        if candidate.renewed.is_some_and(|renewed| renewed.elapsed() + TRY >= LEASE) {
            candidate.renewed = None;
            published.leading = false;
        }
        publish(leadership, published);
        // Also if whoever could tell us to stop is gone.
        if timeout(TRY, stop.wait_for(|stop| *stop)).await.is_ok() {
            break;
        }
    }
    if candidate.renewed.is_some() {
        // Without this the next leader would wait for the Lease to run out; that is all that is lost.
        let _ = timeout(CALL, candidate.resign(leases)).await;
    }
}

fn publish(leadership: &watch::Sender<Leadership>, new: Leadership) {
    let before = sync::send_new(leadership, new);
    if before.is_some_and(|before| before.leading != new.leading) {
        tracing::info!(leading = new.leading, "leadership changed");
    }
}

struct Candidate<'a> {
    identity: &'a str,
    /// The resource version of somebody else's Lease, and since when we have seen it unchanged.
    rival: Option<(String, Instant)>,
    /// When we last renewed, if we lead.
    renewed: Option<Instant>,
}

impl Candidate<'_> {
    async fn stand(&mut self, leases: &impl LeaseStore) -> kube::Result<Leadership> {
        let asked = Instant::now();
        let Some(mut lease) = leases.read().await? else {
            let metadata = ObjectMeta { name: Some(names::PALISADE.to_owned()), ..ObjectMeta::default() };
            let mut lease = Lease { metadata, spec: None };
            self.take(&mut lease);
            leases.create(&lease).await?;
            self.renewed = Some(asked);
            return Ok(Leadership { leading: true, suspended: false });
        };
        let suspended = lease.annotations().contains_key(names::SUSPENDED);
        if !self.may_take(&lease) {
            self.renewed = None;
            return Ok(Leadership { leading: false, suspended });
        }
        self.take(&mut lease);
        leases.replace(&lease).await?;
        self.rival = None;
        self.renewed = Some(asked);
        Ok(Leadership { leading: true, suspended })
    }

    fn may_take(&mut self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return true;
        }
        let version = lease.resource_version().unwrap_or_default();
        match &self.rival {
            Some((seen, since)) if *seen == version => since.elapsed() > LEASE,
            _ => {
                self.rival = Some((version, Instant::now()));
                false
            }
        }
    }

    fn take(&self, lease: &mut Lease) {
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        let now = Some(MicroTime(Timestamp::now()));
        if spec.holder_identity.as_deref() != Some(self.identity) {
            spec.holder_identity = Some(self.identity.to_owned());
            spec.acquire_time.clone_from(&now);
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0) + 1);
        }
        spec.lease_duration_seconds = i32::try_from(LEASE.as_secs()).ok();
        spec.renew_time = now;
    }

    async fn resign(&self, leases: &impl LeaseStore) -> kube::Result<()> {
        let Some(mut lease) = leases.read().await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_deref() == Some(self.identity) {
            spec.holder_identity = None;
            leases.replace(&lease).await?;
        }
        Ok(())
    }
}

/// Whether the Lease is marked now, whatever we last saw.
pub(crate) async fn is_suspended(client: Client, namespace: &str) -> kube::Result<bool> {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    let lease = leases.get_opt(names::PALISADE).await?;
    Ok(lease.is_some_and(|lease| lease.annotations().contains_key(names::SUSPENDED)))
}

/// Marks the Lease so that no replica registers anything, or takes the mark away. Repeats itself when the
/// leader renews at the same moment.
pub async fn suspend(client: Client, namespace: &str, suspended: bool) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    loop {
        let Some(mut lease) = leases.get_opt(names::PALISADE).await? else { return Ok(()) };
        if suspended {
            lease.annotations_mut().insert(names::SUSPENDED.to_owned(), "true".to_owned());
        } else {
            lease.annotations_mut().remove(names::SUSPENDED);
        }
        match leases.replace(names::PALISADE, &PostParams::default(), &lease).await {
            Err(kube::Error::Api(status)) if status.code == 409 => sleep(Duration::from_millis(50)).await,
            other => return other.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use palisade_cluster::sync::lock;

    use super::*;

    /// A Lease in memory, of an API server that can stand still.
    #[derive(Default)]
    struct Stored {
        lease: Mutex<Option<Lease>>,
        writes: Mutex<u64>,
        stands_still: watch::Sender<bool>,
    }

    impl Stored {
        async fn answers(&self) {
            let _ = self.stands_still.subscribe().wait_for(|still| !still).await;
        }

        fn write(&self, lease: &Lease, expected: Option<&str>) -> kube::Result<()> {
            let writes = {
                let mut writes = lock(&self.writes);
                *writes += 1;
                *writes
            };
            let mut stored = lock(&self.lease);
            if stored.as_ref().and_then(|stored| stored.metadata.resource_version.as_deref()) != expected {
                return Err(kube::Error::Api(Box::new(
                    kube::core::Status::failure("", "Conflict").with_code(409),
                )));
            }
            let mut lease = lease.clone();
            lease.metadata.resource_version = Some(writes.to_string());
            *stored = Some(lease);
            Ok(())
        }

        fn holder(&self) -> Option<String> {
            let stored = lock(&self.lease);
            stored.as_ref()?.spec.as_ref()?.holder_identity.clone()
        }
    }

    impl LeaseStore for Arc<Stored> {
        async fn read(&self) -> kube::Result<Option<Lease>> {
            self.answers().await;
            Ok(lock(&self.lease).clone())
        }

        async fn create(&self, lease: &Lease) -> kube::Result<()> {
            self.answers().await;
            self.write(lease, None)
        }

        async fn replace(&self, lease: &Lease) -> kube::Result<()> {
            self.answers().await;
            self.write(lease, lease.metadata.resource_version.as_deref())
        }
    }

    struct Replica {
        leadership: watch::Receiver<Leadership>,
        stop: watch::Sender<bool>,
        task: tokio::task::JoinHandle<()>,
    }

    fn start(stored: &Arc<Stored>, identity: &'static str) -> Replica {
        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let (stop, stopped) = watch::channel(false);
        let stored = stored.clone();
        let task = tokio::spawn(async move { stand_until(&stored, identity, &leadership_tx, stopped).await });
        Replica { leadership, stop, task }
    }

    impl Replica {
        fn leads(&self) -> bool {
            sync::current(&self.leadership).leading
        }

        async fn until_leading(&mut self, leading: bool) {
            let change = self.leadership.wait_for(|leadership| leadership.leading == leading);
            timeout(3 * LEASE, change).await.expect("in time").expect("it still stands");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_can_not_renew_stops_leading_before_its_lease_is_over_and_leads_again_later() {
        let stored = Arc::new(Stored::default());
        let mut replica = start(&stored, "a");
        replica.until_leading(true).await;
        sync::send(&stored.stands_still, true);
        let since = Instant::now();
        replica.until_leading(false).await;
        assert!(since.elapsed() < LEASE, "{:?}", since.elapsed());
        sleep(3 * LEASE).await;
        assert!(!replica.leads());
        sync::send(&stored.stands_still, false);
        replica.until_leading(true).await;
    }

    #[tokio::test(start_paused = true)]
    async fn another_leads_once_the_leader_is_gone_and_never_two_at_once() {
        let stored = Arc::new(Stored::default());
        let (mut a, mut b) = (start(&stored, "a"), start(&stored, "b"));
        a.until_leading(true).await;
        for _ in 0..20 {
            sleep(TRY).await;
            assert!(a.leads() && !b.leads());
        }
        a.task.abort();
        b.until_leading(true).await;
        assert_eq!(stored.holder().as_deref(), Some("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_outage_of_the_api_server_exactly_one_leads() {
        let stored = Arc::new(Stored::default());
        let (mut a, b) = (start(&stored, "a"), start(&stored, "b"));
        a.until_leading(true).await;
        sync::send(&stored.stands_still, true);
        a.until_leading(false).await;
        sleep(5 * LEASE).await;
        assert!(!a.leads() && !b.leads());
        sync::send(&stored.stands_still, false);
        sleep(3 * LEASE).await;
        assert!(a.leads() != b.leads(), "{} {}", a.leads(), b.leads());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_somebody_else_took_ends_the_leadership() {
        let stored = Arc::new(Stored::default());
        let mut replica = start(&stored, "a");
        replica.until_leading(true).await;
        {
            let mut lease = lock(&stored.lease);
            let lease = lease.as_mut().unwrap();
            lease.metadata.resource_version = Some("another".to_owned());
            lease.spec.as_mut().unwrap().holder_identity = Some("b".to_owned());
        }
        replica.until_leading(false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_told_to_stop_gives_the_lease_back() {
        let stored = Arc::new(Stored::default());
        let mut replica = start(&stored, "a");
        replica.until_leading(true).await;
        let Replica { stop, task, .. } = replica;
        sync::send(&stop, true);
        task.await.unwrap();
        assert_eq!(stored.holder(), None);
    }
}
