//! `palisade manifests`

use std::process::ExitCode;

use palisade_controllers::rights;
use serde_json::json;

use crate::args::{ManifestFormat, ManifestsArgs};
use crate::connect::Error;
use crate::output::say;

pub(crate) fn print(args: &ManifestsArgs) -> Result<ExitCode, Error> {
    let manifests = rights::manifests(&args.namespace, &args.search_groups);
    match args.output {
        ManifestFormat::Yaml => {
            for manifest in manifests {
                say(format!("---\n{}", serde_saphyr::to_string(&manifest)?.trim_end()));
            }
        }
        ManifestFormat::Json => {
            say(format!("{:#}", json!({"apiVersion": "v1", "kind": "List", "items": manifests})));
        }
    }
    Ok(ExitCode::SUCCESS)
}
