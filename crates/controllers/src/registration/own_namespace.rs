//! The Namespace that Palisade itself lives in.
//!
//! Whoever deletes it deletes the replicas, and a registration without replicas refuses what it asks about. So a
//! replica that sees its Namespace go removes the registration, and the registration is owned by the Namespace: when
//! all replicas were quicker to end, the garbage collector removes it.

use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use palisade_cluster::sync;
use tokio::sync::watch;

/// Our Namespace, if it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnNamespace {
    pub name: String,
    pub uid: String,
    pub terminating: bool,
}

impl OwnNamespace {
    fn of(namespace: &PartialObjectMeta<Namespace>) -> Self {
        Self {
            name: namespace.name_any(),
            uid: namespace.uid().unwrap_or_default(),
            terminating: namespace.metadata.deletion_timestamp.is_some(),
        }
    }

    fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            ..OwnerReference::default()
        }
    }

    /// Makes the registration ours, in place of a Namespace that was ours before. Owners that others added stay.
    pub(super) fn own(&self, registration: &mut ValidatingWebhookConfiguration) {
        let reference = self.reference();
        let owners = registration.owner_references_mut();
        if !owners.contains(&reference) {
            owners.retain(|owner| !is_namespace(owner));
            owners.push(reference);
        }
    }

    /// Whether the registration goes with this Namespace. One that an older version left has no owner.
    pub(super) fn takes_along(&self, registration: &ValidatingWebhookConfiguration) -> bool {
        let mut namespaces = registration.owner_references().iter().filter(|owner| is_namespace(owner));
        self.terminating && namespaces.next().is_none_or(|owner| owner.uid == self.uid)
    }
}

fn is_namespace(owner: &OwnerReference) -> bool {
    owner.api_version == "v1" && owner.kind == "Namespace"
}

/// Publishes our Namespace whenever it changes; `None` while it is not known or not there. Never ends.
pub async fn watch_own_namespace(client: Client, name: &str, published: watch::Sender<Option<OwnNamespace>>) {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(60);
    let mut events = watcher(namespaces, config).default_backoff().boxed();
    let mut listed = None;
    while let Some(event) = events.next().await {
        let new = match event {
            Ok(Event::Init) => {
                listed = None;
                continue;
            }
            Ok(Event::InitApply(namespace)) => {
                listed = Some(OwnNamespace::of(&namespace));
                continue;
            }
            Ok(Event::InitDone) => listed.take(),
            Ok(Event::Apply(namespace)) => Some(OwnNamespace::of(&namespace)),
            Ok(Event::Delete(_)) => None,
            // What is known stays known: at worst the registration stays until the garbage collector takes it.
            Err(error) => {
                tracing::warn!(%error, "watching our own namespace");
                continue;
            }
        };
        sync::send_new(&published, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(uid: &str, terminating: bool) -> OwnNamespace {
        OwnNamespace { name: "palisade-system".to_owned(), uid: uid.to_owned(), terminating }
    }

    fn owned_by(owners: &[OwnerReference]) -> ValidatingWebhookConfiguration {
        let mut registration = ValidatingWebhookConfiguration::default();
        registration.owner_references_mut().extend_from_slice(owners);
        registration
    }

    #[test]
    fn the_registration_has_one_namespace_and_keeps_other_owners() {
        let other = OwnerReference { kind: "Application".to_owned(), ..OwnerReference::default() };
        let old = namespace("old", false).reference();
        let mut registration = owned_by(&[other.clone(), old]);
        namespace("new", false).own(&mut registration);
        assert_eq!(registration.owner_references(), [other, namespace("new", false).reference()]);
        let before = registration.clone();
        namespace("new", false).own(&mut registration);
        assert_eq!(registration, before, "nothing changes where nothing has to");
    }

    #[test]
    fn only_the_registration_of_a_namespace_goes_with_it() {
        let ours = owned_by(&[namespace("a", true).reference()]);
        assert!(namespace("a", true).takes_along(&ours));
        assert!(!namespace("a", false).takes_along(&ours));
        assert!(!namespace("b", true).takes_along(&ours), "another installation's");
        assert!(namespace("a", true).takes_along(&owned_by(&[])));
    }
}
