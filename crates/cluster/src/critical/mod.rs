//! `CriticalService`s, and what depends on their providers.
//!
//! ```text
//! CriticalServices ─ watch ─▶ Services ─▶ which deletions are worth a question
//!                                          │
//!          served: how a resource is served now ◀─ question: who carries a finalizer, what is still there (live)
//!                                          │
//! what criteria name ─ watches ─▶ Dependents ─▶ status (the leader's)
//! ```

mod dependents;
mod question;
mod served;

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::{ApiResource, DynamicObject};
use kube::{Client, ResourceExt};
use palisade_api::critical::{self, Service, Status};
use palisade_api::versions::PolicyKind;
use palisade_engine::Subject;
use tokio::sync::watch;

use crate::objects::{Change, resource, status_of, watch_policies};
use crate::progress::PolicyProgress;
use crate::sync;

pub use dependents::{Dependent, Dependents, Sight, watch_dependents};
pub(crate) use question::{list_services, read_page};
pub(crate) use served::{Resolved, version_of};

/// A `CriticalService`, as it was last seen.
#[derive(Clone, Debug)]
pub struct Known {
    pub name: String,
    pub uid: String,
    pub generation: Option<i64>,
    /// What it asks for, or why nobody can tell.
    pub service: Result<Service, String>,
    pub status: Status,
}

/// All of them by name.
#[derive(Clone, Debug, Default)]
pub struct Services(pub BTreeMap<String, Arc<Known>>);

/// How to talk about `CriticalService`s with a client.
pub fn service_resource() -> ApiResource {
    resource(critical::GROUP, critical::VERSION, critical::KIND, critical::PLURAL)
}

impl Known {
    fn read(object: &DynamicObject) -> Self {
        Self {
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation,
            service: Service::read(object.data.get("spec").unwrap_or(&serde_json::Value::Null)),
            status: status_of(object),
        }
    }
}

impl Services {
    /// Those that can be read, by name.
    pub fn readable(&self) -> impl Iterator<Item = (&str, &Service)> {
        self.0.values().filter_map(|known| Some((&*known.name, known.service.as_ref().ok()?)))
    }

    /// Whether one of them may be about a subject.
    pub(crate) fn concern(&self, subject: &Subject<'_>) -> bool {
        self.readable().any(|(_, service)| subject.takes_down(&service.provider))
    }
}

/// Watches `CriticalService`s, for ever, and publishes them; `None` before the first list is complete.
pub async fn watch_services(
    client: Client,
    progress: Arc<PolicyProgress>,
    published: watch::Sender<Option<Services>>,
) {
    let mut current = Services::default();
    let resource = service_resource();
    watch_policies(client, PolicyKind::CriticalService, &resource, &progress, |change| {
        let named = |object: &DynamicObject| (object.name_any(), Arc::new(Known::read(object)));
        match change {
            Change::All(objects) => current.0 = objects.iter().map(named).collect(),
            Change::Put(object) => current.0.extend([named(&object)]),
            Change::Gone(object) => drop(current.0.remove(&object.name_any())),
        }
        sync::send(&published, Some(current.clone()));
    })
    .await;
}
