//! The authority and the serving certificate, in one Secret that all replicas share.
//!
//! Whoever starts first makes it. From then on every replica watches it and serves what it holds, and the
//! leader renews it (see [`plan`]). If it is deleted, it is put back as it was.

mod plan;

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use palisade_api::names;
use palisade_cluster::sync;
use tokio::sync::watch;
use tokio::time::sleep;

pub use plan::{CertificateError, Material};

use crate::leadership::Leadership;

/// How often the leader looks whether something is to be renewed.
const LOOK: Duration = Duration::from_secs(600);

/// The Secret's keeper.
#[derive(Clone)]
pub struct Certificates {
    secrets: Api<Secret>,
    /// What callers verify us by: IP addresses and DNS names.
    hosts: Vec<String>,
}

impl Certificates {
    pub fn new(client: Client, namespace: &str, hosts: Vec<String>) -> Self {
        Self { secrets: Api::namespaced(client, namespace), hosts }
    }

    /// What the Secret holds, made or mended first if need be. Keeps trying: an API server that is not
    /// there yet is no reason to die.
    pub async fn obtain(&self) -> Material {
        loop {
            match self.look(None).await {
                Ok(material) => return material,
                Err(error) => tracing::warn!(%error, "obtaining the serving certificate"),
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Publishes what the Secret holds whenever it changes, and renews it while leading. Never ends.
    pub async fn keep(&self, material: watch::Sender<Material>, mut leadership: watch::Receiver<Leadership>) {
        let config =
            watcher::Config::default().fields(&format!("metadata.name={}", names::TLS_SECRET)).timeout(60);
        let mut events = watcher(self.secrets.clone(), config).default_backoff().boxed();
        let mut round = tokio::time::interval(LOOK);
        let held = material.subscribe();
        loop {
            tokio::select! {
                Some(event) = events.next() => {
                    if let Err(error) = event {
                        tracing::warn!(%error, "watching the serving certificate");
                        continue;
                    }
                }
                _ = round.tick() => {}
                Ok(()) = leadership.changed() => {}
            }
            let leading = sync::current(&leadership).leading;
            let last = sync::current(&held);
            let looked = if leading { self.look(Some(&last)).await } else { self.read().await };
            match looked {
                Ok(new) => {
                    sync::send_new(&material, new);
                }
                // What we serve is still good: nothing changes until the Secret is.
                Err(error) => tracing::warn!(%error, "keeping the serving certificate"),
            }
        }
    }

    async fn read(&self) -> Result<Material, CertificateError> {
        let secret = self.secrets.get_opt(names::TLS_SECRET).await.map_err(Box::new)?;
        Material::from_secret(&secret.ok_or(CertificateError::Missing)?)
    }

    /// Brings the Secret up to date. A Secret that is gone or broken is written back from `last`.
    async fn look(&self, last: Option<&Material>) -> Result<Material, CertificateError> {
        let found = self.secrets.get_opt(names::TLS_SECRET).await.map_err(Box::new)?;
        let stored = found.as_ref().and_then(|secret| Material::from_secret(secret).ok());
        let held = stored.clone().or_else(|| last.cloned());
        let next = plan::next(held.as_ref(), &self.hosts, Timestamp::now())?;
        if stored.as_ref() == Some(&next) {
            return Ok(next);
        }
        // On a conflict somebody else was faster, and the next look finds what they wrote.
        match found {
            None => {
                let metadata =
                    ObjectMeta { name: Some(names::TLS_SECRET.to_owned()), ..ObjectMeta::default() };
                let mut secret =
                    Secret { metadata, type_: Some("kubernetes.io/tls".to_owned()), ..Secret::default() };
                secret.labels_mut().insert(names::MANAGED_BY.0.to_owned(), names::MANAGED_BY.1.to_owned());
                next.write_to(&mut secret);
                self.secrets.create(&PostParams::default(), &secret).await.map_err(Box::new)?;
            }
            Some(mut secret) => {
                next.write_to(&mut secret);
                let name = names::TLS_SECRET;
                self.secrets.replace(name, &PostParams::default(), &secret).await.map_err(Box::new)?;
            }
        }
        tracing::info!("wrote the serving certificate");
        Ok(next)
    }
}
