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
    mut stop: watch::Receiver<bool>,
) {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    let mut candidate = Candidate { identity, rival: None, renewed: None };
    while !*stop.borrow() {
        match timeout(CALL, candidate.stand(&leases)).await {
            Ok(Ok(result)) => publish(&leadership, result),
            Ok(Err(error)) => tracing::warn!(%error, "standing for election"),
            Err(_) => tracing::warn!("standing for election: the API server did not answer in time"),
        }
        if candidate.renewed.is_some_and(|renewed| renewed.elapsed() + TRY >= LEASE) {
            candidate.renewed = None;
            publish(&leadership, Leadership { leading: false, ..*leadership.borrow() });
        }
        let _ = timeout(TRY, stop.wait_for(|stop| *stop)).await;
    }
    if candidate.renewed.is_some() {
        // Without this the next leader would wait for the Lease to run out; that is all that is lost.
        let _ = timeout(CALL, candidate.resign(&leases)).await;
    }
}

fn publish(leadership: &watch::Sender<Leadership>, new: Leadership) {
    leadership.send_if_modified(|published| {
        let changed = *published != new;
        if changed && published.leading != new.leading {
            tracing::info!(leading = new.leading, "leadership changed");
        }
        *published = new;
        changed
    });
}

struct Candidate<'a> {
    identity: &'a str,
    /// The resource version of somebody else's Lease, and since when we have seen it unchanged.
    rival: Option<(String, Instant)>,
    /// When we last renewed, if we lead.
    renewed: Option<Instant>,
}

impl Candidate<'_> {
    async fn stand(&mut self, leases: &Api<Lease>) -> kube::Result<Leadership> {
        let asked = Instant::now();
        let Some(mut lease) = leases.get_opt(names::PALISADE).await? else {
            let metadata = ObjectMeta { name: Some(names::PALISADE.to_owned()), ..ObjectMeta::default() };
            let mut lease = Lease { metadata, spec: None };
            self.take(&mut lease);
            leases.create(&PostParams::default(), &lease).await?;
            self.renewed = Some(asked);
            return Ok(Leadership { leading: true, suspended: false });
        };
        let suspended = lease.annotations().contains_key(names::SUSPENDED);
        if !self.may_take(&lease) {
            self.renewed = None;
            return Ok(Leadership { leading: false, suspended });
        }
        self.take(&mut lease);
        // The resource version in it makes this fail if anybody else was faster.
        leases.replace(names::PALISADE, &PostParams::default(), &lease).await?;
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

    async fn resign(&self, leases: &Api<Lease>) -> kube::Result<()> {
        let mut lease = leases.get(names::PALISADE).await?;
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_deref() == Some(self.identity) {
            spec.holder_identity = None;
            leases.replace(names::PALISADE, &PostParams::default(), &lease).await?;
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
