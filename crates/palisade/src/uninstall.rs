//! `palisade uninstall`: the registration goes first, so that nothing waits for what is about to stop.

use std::process::ExitCode;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, DeleteParams};
use palisade_api::names;
use palisade_controllers::leadership;

use crate::args::UninstallArgs;
use crate::connect::{Error, connect};
use crate::output::say;

pub(crate) async fn uninstall(args: UninstallArgs) -> Result<ExitCode, Error> {
    let UninstallArgs { cluster, namespace } = args;
    let client = connect(&cluster).await?;
    leadership::suspend(client.clone(), &namespace, true).await?;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let was = match configurations.delete(names::PALISADE, &DeleteParams::default()).await {
        Ok(_) => "removed the registration",
        Err(kube::Error::Api(status)) if status.code == 404 => "there was no registration",
        Err(error) => return Err(error.into()),
    };
    say(format!("{was}: nothing is protected now, and running replicas keep it so"));
    say(format!("to remove the rest:  palisade manifests --namespace {namespace} | kubectl delete -f -"));
    say(format!(
        "to protect again:    kubectl annotate lease {} -n {namespace} {}-",
        names::PALISADE,
        names::SUSPENDED
    ));
    Ok(ExitCode::SUCCESS)
}
