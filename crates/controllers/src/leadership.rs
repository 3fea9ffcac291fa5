//! One replica leads, by a Lease.
//!
//! A holder that has not renewed for [`LEASE`], as seen by our own clock since we first saw its last renewal,
//! has lost it: no two clocks are ever compared. The leader only writes what compare-and-swap protects, so
//! two of them for a moment would be untidy and nothing worse.
//!
//! While the Lease is marked ([`crate::suspension`]), whoever leads registers nothing. A leader that is told to stop
//! gives the Lease back, and one that crashes does not. So a replica that starts, and finds a marked Lease that nobody
//! holds and nobody takes, was started again after all others were stopped: it takes the mark away.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use palisade_api::names;
use palisade_cluster::sync;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::suspension::{is_marked, unmark};

const LEASE: Duration = Duration::from_secs(6);
const TRY: Duration = Duration::from_millis(1500);
const CALL: Duration = Duration::from_secs(2);

/// What the Lease says about us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    pub leading: bool,
    /// Until when nobody else can lead, by a clock that goes on while this process is stopped. Nobody is told when it
    /// moves on.
    pub until: Option<Instant>,
    /// `palisade uninstall` was here: nothing is to be registered.
    pub suspended: bool,
}

impl Leadership {
    /// Whether nobody else leads at this moment. A process that was stopped leads, by what it knew then, until it learns
    /// better; this it knows at once.
    pub fn holds_now(&self) -> bool {
        self.leading && self.until.is_some_and(|until| Instant::now() < until)
    }
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
    let mut candidate = Candidate { identity, rival: None, renewed: None, just_started: true };
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
        published.until = candidate.renewed.map(|renewed| renewed + LEASE);
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
    let before = sync::change(leadership, |held| {
        let before = std::mem::replace(held, new);
        let moved_on = Leadership { until: new.until, ..before };
        (moved_on != new).then_some(before)
    });
    if before.is_some_and(|before| before.leading != new.leading) {
        tracing::info!(leading = new.leading, "leadership changed");
    }
    if new.suspended && before.is_some_and(|before| !before.suspended) {
        tracing::warn!("palisade uninstall was here: nothing is registered until palisade resume");
    }
}

struct Candidate<'a> {
    identity: &'a str,
    /// The resource version of somebody else's Lease, and since when we have seen it unchanged.
    rival: Option<(String, Instant)>,
    /// When we last renewed, if we lead.
    renewed: Option<Instant>,
    /// Whether we have seen nothing yet but a marked Lease that nobody holds.
    just_started: bool,
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
            self.just_started = false;
            return Ok(Leadership { leading: true, suspended: false, until: None });
        };
        let mut suspended = is_marked(&lease);
        self.just_started &= suspended && holder(&lease).is_empty();
        if self.just_started {
            // A replica that runs takes a Lease that nobody holds at its next try.
            if !self.is_unchanged(&lease) {
                return Ok(Leadership { leading: false, suspended, until: None });
            }
            tracing::info!("started again after all replicas were stopped: no longer suspended");
            suspended = !unmark(&mut lease);
        } else if !self.may_take(&lease) {
            self.renewed = None;
            return Ok(Leadership { leading: false, suspended, until: None });
        }
        self.take(&mut lease);
        leases.replace(&lease).await?;
        self.rival = None;
        self.renewed = Some(asked);
        self.just_started = false;
        Ok(Leadership { leading: true, suspended, until: None })
    }

    fn may_take(&mut self, lease: &Lease) -> bool {
        let holder = holder(lease);
        holder.is_empty() || holder == self.identity || self.is_unchanged(lease)
    }

    /// Whether nobody has written the Lease for as long as it lasts.
    fn is_unchanged(&mut self, lease: &Lease) -> bool {
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

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use palisade_cluster::sync::lock;

    use super::*;
    use tokio::time::sleep;

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
    async fn leadership_that_nobody_renewed_does_not_hold_whatever_was_published() {
        let stored = Arc::new(Stored::default());
        let mut replica = start(&stored, "a");
        replica.until_leading(true).await;
        assert!(sync::current(&replica.leadership).holds_now());
        // As a process does that is stopped: nothing of it runs, and time goes on.
        replica.task.abort();
        for _ in 0..10 {
            sleep(LEASE / 10).await;
        }
        let leadership = sync::current(&replica.leadership);
        assert!(leadership.leading && !leadership.holds_now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_no_news() {
        let stored = Arc::new(Stored::default());
        let mut replica = start(&stored, "a");
        replica.until_leading(true).await;
        sync::newest(&mut replica.leadership);
        sleep(4 * LEASE).await;
        assert!(sync::current(&replica.leadership).holds_now());
        assert!(!replica.leadership.has_changed().unwrap());
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

    impl Stored {
        fn mark(&self) {
            let mut lease = lock(&self.lease).clone().unwrap_or_default();
            lease.annotations_mut().insert(names::SUSPENDED.to_owned(), "true".to_owned());
            self.write(&lease, lease.metadata.resource_version.as_deref()).unwrap();
        }
    }

    impl Replica {
        fn is_suspended(&self) -> bool {
            sync::peek(&self.leadership, |leadership| leadership.suspended)
        }

        async fn ends_as_told(self) {
            sync::send(&self.stop, true);
            self.task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_that_run_or_crash_stay_suspended() {
        let stored = Arc::new(Stored::default());
        let (mut a, mut b) = (start(&stored, "a"), start(&stored, "b"));
        a.until_leading(true).await;
        stored.mark();
        sleep(3 * LEASE).await;
        assert!(a.is_suspended() && b.is_suspended());
        // One ends as it should and comes back, while the other one runs.
        a.ends_as_told().await;
        b.until_leading(true).await;
        let a = start(&stored, "a2");
        sleep(3 * LEASE).await;
        assert!(a.is_suspended() && b.is_suspended() && b.leads());
        // All crash and come back.
        a.task.abort();
        b.task.abort();
        let mut c = start(&stored, "c");
        c.until_leading(true).await;
        sleep(3 * LEASE).await;
        assert!(c.is_suspended());
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_starts_while_another_takes_over_stays_suspended() {
        let stored = Arc::new(Stored::default());
        let (mut a, mut b) = (start(&stored, "a"), start(&stored, "b"));
        a.until_leading(true).await;
        stored.mark();
        sleep(2 * LEASE).await;
        a.ends_as_told().await;
        // The Lease is free for a moment.
        let c = start(&stored, "c");
        b.until_leading(true).await;
        sleep(3 * LEASE).await;
        assert!(b.is_suspended() && c.is_suspended() && !c.leads());
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_that_are_started_after_all_were_stopped_are_not_suspended() {
        let stored = Arc::new(Stored::default());
        let mut a = start(&stored, "a");
        a.until_leading(true).await;
        stored.mark();
        sleep(2 * LEASE).await;
        a.ends_as_told().await;
        let (b, c) = (start(&stored, "b"), start(&stored, "c"));
        sleep(3 * LEASE).await;
        assert!(b.leads() != c.leads());
        assert!(!b.is_suspended() && !c.is_suspended());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_uninstall_made_binds_replicas_that_run() {
        let stored = Arc::new(Stored::default());
        let mut a = start(&stored, "a");
        a.until_leading(true).await;
        *lock(&stored.lease) = None;
        stored.mark();
        sleep(3 * LEASE).await;
        assert!(a.leads() && a.is_suspended());
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
