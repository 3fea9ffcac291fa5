//! `palisade why`: the webhook's own answer, without deleting anything.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use kube::api::{Api, PostParams};
use palisade_api::components::druid;
use palisade_api::gates::FeatureGates;
use palisade_api::names;
use palisade_cluster::budgets::{Budgets, snapshot};
use palisade_cluster::components::Guarded;
use palisade_cluster::flow::Flows;
use palisade_cluster::{Discovery, Ledger, Live, Served, discover, list_protections, segment};
use palisade_engine::{
    Action, Code, Expects, Kind, Object, ProtectedComponents, Review, Settings, Subject, User, Verdict,
    decide, prose,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::args::{Output, WhyArgs};
use crate::connect::{Error, connect};
use crate::output::say;

const PATIENCE: Duration = Duration::from_secs(30);
/// As `kubectl auth can-i`: the answer was no.
const REFUSED: u8 = 1;
const NOT_REGISTERED: &str = "nothing is registered with the API server, and so nothing is refused now; \
                              `palisade resume` or a replica that starts puts it back";

pub(crate) async fn why(args: WhyArgs) -> Result<ExitCode, Error> {
    let (kind_word, name) = object(&args.object)?;
    let client = connect(&args.cluster).await?;
    let discovery = discover(&client).await?;
    let served = find(&discovery, &kind_word)?;
    let namespace = args.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
    let json = get(&client, &format!("{}/{}", served.path(Some(namespace)), segment(&name))).await?;
    let object = Object::parse(json.as_bytes())?;
    let is_pod = served.group.is_empty() && served.kind == "Pod";
    let Served { group, kind, plural, .. } = served;
    let subject =
        Subject { kind: Kind { group: group.into(), kind: kind.into(), plural: plural.into() }, object };
    let shown = format!("{} \"{}\"", subject.kind, name);

    if !is_registered(&client).await {
        eprintln!("Warning: {NOT_REGISTERED}");
    }
    let settings = Settings { own_namespace: args.palisade_namespace, gates: FeatureGates::default() };
    let user = myself(&client).await?;
    let protections = list_protections(client.clone()).await?.protections;
    let guarded = Guarded { built_in: etcd_components(&client).await.map(Arc::new), ..Guarded::default() };
    let (_guarded, guarded) = watch::channel(Some(guarded));
    let mut live = Live::new(client.clone(), move || protections.clone()).with_components(guarded);
    if is_pod {
        let index = Arc::new(snapshot(&client, namespace).await?);
        let (_sender, discovery) = watch::channel(Some(discovery));
        let flows = Flows::new(client.clone(), |_| {});
        flows.list().await?;
        let budgets = Budgets::new(client.clone(), index, discovery, |_| {});
        live = live.with_ledger(Arc::new(Ledger { budgets, flows }));
    }
    let world = live.until(Instant::now() + PATIENCE);
    let review = Review {
        action: Action::Delete(subject),
        user,
        propagation: None,
        is_owner: true,
        // Asked of the API server, whatever is registered with it.
        expects: Expects { critical: true, components: true, ..Expects::default() },
        dry_run: true,
    };
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
        Some(refusal) => say(refusal),
        None => say(format!("{shown} may be deleted: nothing protects it")),
    }
}

fn print_json(verdict: &Verdict) {
    let lifts = || verdict.findings.iter().filter_map(|finding| finding.lift.as_ref());
    let lift = verdict.about.as_ref().map(|about| prose::lifting(about, lifts())).unwrap_or_default();
    say(format!(
        "{:#}",
        json!({
            "allowed": verdict.is_allowed(),
            "code": verdict.code().map(Code::status),
            "reason": verdict.code().map(Code::reason),
            "message": prose::refusal(verdict),
            "lift": lift,
            "warnings": warnings(verdict),
        })
    ));
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

/// The resource that kubectl would take a word for.
fn find(discovery: &Discovery, word: &str) -> Result<Served, Error> {
    let found = discovery.resources.iter().find(|served| served.is_called(word)).cloned();
    found.ok_or_else(|| format!("the cluster serves no resource \"{word}\"").into())
}

/// Whether the API server asks Palisade; yes, if we may not know.
async fn is_registered(client: &Client) -> bool {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    !matches!(configurations.get_metadata_opt(names::PALISADE).await, Ok(None))
}

/// etcd-druid's components, if the replicas protect them. They were told by flags, and tell by what they registered.
async fn etcd_components(client: &Client) -> Option<ProtectedComponents> {
    let path =
        format!("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{}", names::PALISADE);
    let configuration: Value = serde_json::from_str(&get(client, &path).await.ok()?).ok()?;
    let webhooks = configuration["webhooks"].as_array()?;
    let webhook = webhooks.iter().find(|webhook| webhook["name"] == "etcd-components.palisade.dev")?;
    let conditions = webhook["matchConditions"].as_array()?;
    let operators = conditions.iter().find(|condition| condition["name"] == "not-by-operator")?;
    let (_, list) = operators["expression"].as_str()?.split_once(" in ")?;
    let operators: Vec<String> = serde_json::from_str(list.trim_end_matches(')')).ok()?;
    let components = druid::components(operators.first()?, &[druid::EXEMPT.to_owned()], &[]);
    Some(ProtectedComponents { name: None, components: Ok(components) })
}

/// Who the API server takes us for.
async fn myself(client: &Client) -> Result<User<'static>, Error> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
    let groups = user.groups.unwrap_or_default().into_iter().map(Into::into).collect();
    Ok(User { name: user.username.unwrap_or_default().into(), groups })
}

async fn get(client: &Client, path: &str) -> Result<String, Error> {
    let request = http::Request::get(path).body(Vec::new())?;
    match client.request_text(request).await {
        Ok(text) => Ok(text),
        Err(kube::Error::Api(status)) => Err(status.message.into()),
        Err(error) => Err(error.into()),
    }
}
