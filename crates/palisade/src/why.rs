//! `palisade why`: the webhook's own answer, without deleting anything.

use std::process::ExitCode;
use std::time::Duration;

use kube::Client;
use palisade_api::gates::FeatureGates;
use palisade_cluster::Live;
use palisade_engine::{Action, Code, Kind, Object, Review, Settings, Subject, Verdict, decide, prose};
use serde_json::json;
use tokio::time::Instant;

use crate::args::{Output, WhyArgs};
use crate::connect::{Error, connect};

const PATIENCE: Duration = Duration::from_secs(30);
/// As `kubectl auth can-i`: the answer was no.
const REFUSED: u8 = 1;

pub(crate) async fn why(args: WhyArgs) -> Result<ExitCode, Error> {
    let (kind_word, name) = object(&args.object)?;
    let client = connect(&args.cluster).await?;
    let served = find(&client, &kind_word).await?;
    let namespace = args.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
    let json = get(&client, &served.path(namespace, &name)).await?;
    let object = Object::parse(json.as_bytes())?;
    let Served { group, kind, plural, .. } = served;
    let subject =
        Subject { kind: Kind { group: group.into(), kind: kind.into(), plural: plural.into() }, object };
    let shown = format!("{} \"{}\"", subject.kind, name);

    let settings = Settings { own_namespace: args.palisade_namespace, gates: FeatureGates::default() };
    let world = Live::new(client).until(Instant::now() + PATIENCE);
    let review = Review { action: Action::Delete(subject), dry_run: true };
    let verdict = decide(&review, &world, &settings).await;
    match args.output {
        Output::Text => print_text(&shown, &verdict),
        Output::Json => print_json(&verdict),
    }
    Ok(if verdict.is_allowed() { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
}

fn print_text(shown: &str, verdict: &Verdict) {
    for warning in warnings(verdict) {
        eprintln!("Warning: {warning}");
    }
    match prose::refusal(verdict) {
        Some(refusal) => println!("{refusal}"),
        None => println!("{shown} may be deleted: nothing protects it"),
    }
}

fn print_json(verdict: &Verdict) {
    let lift =
        verdict.about.as_ref().map(|about| prose::lifting(about, &verdict.findings)).unwrap_or_default();
    println!(
        "{:#}",
        json!({
            "allowed": verdict.is_allowed(),
            "code": verdict.code().map(Code::status),
            "reason": verdict.code().map(Code::reason),
            "message": prose::refusal(verdict),
            "lift": lift,
            "warnings": warnings(verdict),
        })
    );
}

fn warnings(verdict: &Verdict) -> Vec<String> {
    let Some(about) = &verdict.about else { return Vec::new() };
    verdict.warnings.iter().map(|warning| prose::warning(about, warning)).collect()
}

fn object(words: &[String]) -> Result<(String, String), Error> {
    let parts = match words {
        [kind, name] => Some((kind.as_str(), name.as_str())),
        [one] => one.split_once('/'),
        _ => None,
    };
    match parts {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => {
            Ok((kind.to_lowercase(), name.to_owned()))
        }
        _ => {
            Err("name the object as KIND NAME or KIND/NAME, for example: palisade why namespace shop".into())
        }
    }
}

/// A resource that the cluster serves.
struct Served {
    group: String,
    version: String,
    kind: String,
    plural: String,
    namespaced: bool,
}

impl Served {
    fn path(&self, namespace: &str, name: &str) -> String {
        let Self { group, version, plural, .. } = self;
        let root =
            if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        if self.namespaced {
            format!("{root}/namespaces/{namespace}/{plural}/{name}")
        } else {
            format!("{root}/{plural}/{name}")
        }
    }
}

/// The resource that kubectl would take a word for: plural, singular, short name or kind, with or without
/// `.group`; the API server's order decides between several.
async fn find(client: &Client, word: &str) -> Result<Served, Error> {
    let core = client.list_core_api_versions_aggregated().await?;
    let groups = client.list_api_groups_aggregated().await?;
    for group in core.items.into_iter().chain(groups.items) {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        let bare = match word.strip_suffix(&name) {
            Some(rest) if !name.is_empty() => rest.strip_suffix('.').unwrap_or(word),
            _ => word,
        };
        for version in group.versions {
            let matching = version.resources.into_iter().find(|resource| {
                let kind = resource.response_kind.as_ref().and_then(|kind| kind.kind.as_deref());
                resource.resource.as_deref() == Some(bare)
                    || resource.singular_resource.as_deref() == Some(bare)
                    || kind.is_some_and(|kind| kind.to_lowercase() == bare)
                    || resource.short_names.iter().any(|short| short == bare)
            });
            if let Some(resource) = matching {
                return Ok(Served {
                    group: name,
                    version: version.version.unwrap_or_default(),
                    kind: resource.response_kind.and_then(|kind| kind.kind).unwrap_or_default(),
                    plural: resource.resource.unwrap_or_default(),
                    namespaced: resource.scope.as_deref() == Some("Namespaced"),
                });
            }
        }
    }
    Err(format!("the cluster serves no resource \"{word}\"").into())
}

async fn get(client: &Client, path: &str) -> Result<String, Error> {
    let request = http::Request::get(path).body(Vec::new())?;
    match client.request_text(request).await {
        Ok(text) => Ok(text),
        Err(kube::Error::Api(status)) => Err(status.message.into()),
        Err(error) => Err(error.into()),
    }
}
