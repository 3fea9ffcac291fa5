//! `palisade uninstall`: the registration goes first, so that nothing waits for what is about to stop.
//!
//! It is what one runs when Palisade is the trouble. So it needs nothing of Palisade: no replica, no Lease, no kind of
//! ours. And it deletes no policy, nor does anything that it prints.

use std::process::ExitCode;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, DeleteParams};
use palisade_api::names;
use palisade_api::search_groups::SearchGroups;
use palisade_controllers::rights;
use palisade_controllers::suspension::{Suspended, suspend};
use serde_json::Value;

use crate::args::UninstallArgs;
use crate::connect::{Error, connect};
use crate::output::say;

pub(crate) async fn uninstall(args: UninstallArgs) -> Result<ExitCode, Error> {
    let UninstallArgs { cluster, namespace } = args;
    let client = connect(&cluster).await?;
    // The mark comes first: a leader puts back what goes before it.
    let suspended = suspend(client.clone(), &namespace).await;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let was = match configurations.delete(names::PALISADE, &DeleteParams::default()).await {
        Ok(_) => "removed the registration",
        Err(kube::Error::Api(status)) if status.code == 404 => "there was no registration",
        Err(error) => return Err(error.into()),
    };
    let keeps = match &suspended {
        Ok(Suspended::ByMark) => ", and running replicas keep it so",
        Ok(Suspended::WithoutNamespace) => ", and without its namespace no replica registers again",
        Err(_) => "",
    };
    say(format!("{was}: nothing is protected now{keeps}"));
    if let Err(error) = suspended {
        let lease = format!("the lease {} in namespace {namespace}", names::PALISADE);
        return Err(format!("marking {lease}: {error}; a running replica registers again: stop all").into());
    }
    say(
        "policies stay, and hold again after `palisade resume`, or once all replicas were stopped and started",
    );
    say("to remove the rest, and no policy:");
    for command in removal(&namespace) {
        say(format!("  {command}"));
    }
    if matches!(suspended, Ok(Suspended::ByMark)) {
        say(format!(
            "to protect again:    kubectl annotate lease {} -n {namespace} {}-",
            names::PALISADE,
            names::SUSPENDED
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The commands that remove what Palisade was installed with, less what holds policies: its kinds, and its namespace.
fn removal(namespace: &str) -> Vec<String> {
    let delete = |words: &[String]| format!("kubectl delete --ignore-not-found {}", words.join(" "));
    let (mut namespaced, mut cluster) = (vec![format!("-n {namespace}")], Vec::new());
    namespaced.extend(["deployment", "service"].map(|kind| format!("{kind}/{}", names::PALISADE)));
    for manifest in rights::manifests(namespace, &SearchGroups::default()) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_lowercase();
        let (kind, name) = (text(&manifest["kind"]), text(&manifest["metadata"]["name"]));
        if matches!(&*kind, "namespace" | "customresourcedefinition") {
            continue;
        }
        let is_namespaced = manifest["metadata"]["namespace"].is_string();
        if is_namespaced { &mut namespaced } else { &mut cluster }.push(format!("{kind}/{name}"));
    }
    namespaced.push(format!("secret/{}", names::TLS_SECRET));
    namespaced.push(format!("configmap/{}", names::SETTINGS));
    vec![delete(&namespaced), delete(&cluster)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_command_deletes_what_holds_policies() {
        let commands = removal("elsewhere");
        assert_eq!(
            commands,
            [
                "kubectl delete --ignore-not-found -n elsewhere deployment/palisade service/palisade \
                 serviceaccount/palisade role/palisade rolebinding/palisade role/palisade-settings \
                 rolebinding/palisade-settings secret/palisade-tls configmap/palisade-settings",
                "kubectl delete --ignore-not-found clusterrole/palisade clusterrolebinding/palisade \
                 clusterrole/palisade-reader clusterrolebinding/palisade-reader clusterrole/palisade-view \
                 clusterrole/palisade-edit",
            ]
        );
    }
}
