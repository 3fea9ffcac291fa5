//! `palisade resume`: takes back what `palisade uninstall` did.

use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::Api;
use palisade_api::names;
use palisade_controllers::suspension;
use tokio::time::{Instant, sleep};

use crate::args::ResumeArgs;
use crate::connect::{Error, connect};
use crate::output::say;

/// How long a running replica is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);
/// As `kubectl auth can-i`: the answer was no.
const NOT_REGISTERED: u8 = 1;

pub(crate) async fn resume(args: ResumeArgs) -> Result<ExitCode, Error> {
    let ResumeArgs { cluster, namespace } = args;
    let client = connect(&cluster).await?;
    let was_suspended = suspension::resume(client.clone(), &namespace).await?;
    say(if was_suspended { "no longer suspended" } else { "it was not suspended" });
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let deadline = Instant::now() + PATIENCE;
    while configurations.get_metadata_opt(names::PALISADE).await?.is_none() {
        if Instant::now() > deadline {
            say("nothing is registered, and so nothing is protected: no replica of Palisade runs. Start one");
            return Ok(ExitCode::from(NOT_REGISTERED));
        }
        sleep(LOOK).await;
    }
    say("the registration is in place: policies hold again");
    Ok(ExitCode::SUCCESS)
}
