//! A controller that finalizes custom resources, as the seed's Deployment would: it works only while its pods run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::critical::{FINALIZER, Scene};

/// Runs until it is dropped.
pub(crate) struct FinalizerController {
    task: JoinHandle<()>,
    finalized: Arc<Mutex<Vec<String>>>,
}

impl Drop for FinalizerController {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FinalizerController {
    pub(crate) fn start(scene: &Scene<'_>) -> Self {
        let finalized = Arc::new(Mutex::new(Vec::new()));
        let gvk = GroupVersionKind::gvk(&scene.group, "v1", "CoolResource");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "coolresources");
        let (client, ns) = (scene.cluster.client.clone(), scene.ns.clone());
        let task = tokio::spawn(keep(client, resource, ns, finalized.clone()));
        Self { task, finalized }
    }

    /// What it has finalized.
    pub(crate) fn finalized(&self) -> Vec<String> {
        self.finalized.lock().expect("whole").clone()
    }
}

async fn keep(client: Client, resource: ApiResource, ns: String, finalized: Arc<Mutex<Vec<String>>>) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &ns);
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let running = pods
            .list(&ListParams::default().labels("app=provider"))
            .await
            .is_ok_and(|pods| pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_none()));
        if !running {
            continue;
        }
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        // The definition may be gone.
        let Ok(objects) = all.list(&ListParams::default()).await else { continue };
        for object in objects.iter().filter(|object| object.metadata.deletion_timestamp.is_some()) {
            let left: Vec<&String> = object.finalizers().iter().filter(|each| *each != FINALIZER).collect();
            let api: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), &object.namespace().unwrap_or_default(), &resource);
            let patch = Patch::Merge(json!({"metadata": {"finalizers": left}}));
            if api.patch(&object.name_any(), &PatchParams::default(), &patch).await.is_ok() {
                finalized.lock().expect("whole").push(object.name_any());
            }
        }
    }
}
