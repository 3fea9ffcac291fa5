//! `palisade why`: the webhook's own answer, without deleting anything.
//!
//! ```text
//! who may read everything   the engine decides here, by what the replicas published and by what the cluster holds
//! who may not               the API server is asked to delete it for show, and so asks the webhook itself
//! who may not delete either the engine decides by what the user may read; what nobody saw is named
//! ```

mod dry_run;
mod off;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use palisade_api::gates::{FeatureGates, Gate};
use palisade_api::{budget, names};
use palisade_cluster::budgets::{Budgets, Index, snapshot};
use palisade_cluster::components::Guarded;
use palisade_cluster::flow::Flows;
use palisade_cluster::{Discovery, Ledger, Live, Searching, Served, discover, list_protections, segment};
use palisade_engine::{
    Action, Code, Expects, Kind, Object, Review, Settings, Subject, User, Verdict, decide, prose,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use self::dry_run::{DryRun, dry_run};
use crate::args::{Output, WhyArgs};
use crate::connect::{Error, connect_without_retry};
use crate::output::say;
use crate::published::Published;

const PATIENCE: Duration = Duration::from_secs(30);
/// As `kubectl auth can-i`: the answer was no.
const REFUSED: u8 = 1;
/// There is no answer.
const UNKNOWN: u8 = 2;
const NOT_REGISTERED: &str = "nothing is registered with the API server, and so nothing is refused now; \
                              `palisade resume` or a replica that starts puts it back";

/// Whether an object may be deleted.
#[derive(Debug, Default)]
struct Answer {
    /// The code and the reason of the refusal, if it is one.
    refusal: Option<(u16, String)>,
    message: Option<String>,
    /// The commands that lift it.
    lift: Vec<String>,
    warnings: Vec<String>,
    /// What could not be seen, and may protect it all the same.
    unseen: Vec<String>,
    /// Whether what could not be seen may be what decides.
    undecided: bool,
    /// The features that are off, of those that may protect it.
    features_off: Vec<Gate>,
    /// Those of them that would refuse it, as far as that is known.
    would_refuse: Vec<Gate>,
}

/// The object in question.
struct Asked<'a> {
    served: Served,
    namespace: &'a str,
    name: &'a str,
}

impl Asked<'_> {
    fn path(&self) -> String {
        format!("{}/{}", self.served.path(Some(self.namespace)), segment(self.name))
    }

    fn kind(&self) -> Kind<'static> {
        let Served { group, kind, plural, .. } = self.served.clone();
        Kind { group: group.into(), kind: kind.into(), plural: plural.into() }
    }
}

pub(crate) async fn why(args: WhyArgs) -> Result<ExitCode, Error> {
    let (kind_word, name) = object(&args.object)?;
    let client = connect_without_retry(&args.cluster).await?;
    let discovery = discover(&client).await?;
    let served = find(&discovery, &kind_word)?;
    let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let asked = Asked { served, namespace: &namespace, name: &name };
    let shown = format!("{} \"{name}\"", asked.kind());

    let mut notes = Vec::new();
    let published = Published::read(&client, &args.palisade_namespace).await.unwrap_or_else(|why| {
        notes.push(format!("what the replicas decide by is not known ({why}); this is by the defaults"));
        Published::default()
    });
    if !is_registered(&client, &published).await {
        notes.push(NOT_REGISTERED.to_owned());
    }
    let features_off = off::features_off(published.gates, &asked.kind());
    notes.extend(features_off.iter().copied().map(off::note));
    let read = get(&client, &asked.path()).await;
    let (json, forbidden) = match read {
        Ok(json) => (Some(json), String::new()),
        Err(Unread::Forbidden(why)) => (None, why),
        Err(Unread::Other(why)) => return Err(why.into()),
    };
    let object = json.as_deref().map(|json| Object::parse(json.as_bytes())).transpose()?;
    let settings = Settings { own_namespace: args.palisade_namespace, gates: published.gates };
    let reads_everything = may_read_everything(&client).await?;
    let world = Questions { client: &client, discovery, published: &published, settings, reads_everything };
    let mut answer = if reads_everything {
        let object = object.ok_or(forbidden)?;
        world.decide(&asked, object).await?
    } else {
        let uid = object.as_ref().map(|object| object.metadata.uid.to_string());
        match (dry_run(&client, &asked.path(), uid.as_deref()).await?, object) {
            (DryRun::Answered(answer), _) => answer,
            (DryRun::NotAllowed(_), Some(object)) => world.decide(&asked, object).await?,
            (DryRun::NotAllowed(why), None) => {
                return Err(format!(
                    "you may neither read {shown} nor delete it, so there is no way to tell: {why}"
                )
                .into());
            }
        }
    };
    notes.append(&mut answer.warnings);
    answer.warnings = notes;
    answer.features_off = features_off;
    match args.output {
        Output::Text => answer.print_text(&shown),
        Output::Json => answer.print_json(),
    }
    Ok(answer.exit_code())
}

impl Answer {
    fn of(verdict: &Verdict, unseen: Vec<String>) -> Self {
        let lifts = || verdict.findings.iter().filter_map(|finding| finding.lift.as_ref());
        let about = verdict.about.as_ref();
        let warning = |about| verdict.warnings.iter().map(|warning| prose::warning(about, warning)).collect();
        Self {
            refusal: verdict.code().map(|code| (code.status(), code.reason().to_owned())),
            message: prose::refusal(verdict),
            lift: about.map(|about| prose::lifting(about, lifts())).unwrap_or_default(),
            warnings: about.map(warning).unwrap_or_default(),
            undecided: !unseen.is_empty()
                && verdict.findings.iter().all(|finding| finding.code == Code::Unavailable),
            unseen,
            features_off: Vec::new(),
            would_refuse: Vec::new(),
        }
    }

    fn exit_code(&self) -> ExitCode {
        match &self.refusal {
            _ if self.undecided => ExitCode::from(UNKNOWN),
            Some(_) => ExitCode::from(REFUSED),
            None => ExitCode::SUCCESS,
        }
    }

    fn print_text(&self, shown: &str) {
        for warning in &self.warnings {
            eprintln!("Warning: {warning}");
        }
        if !self.unseen.is_empty() {
            let unseen = self.unseen.join(", ");
            eprintln!("Warning: you may not delete {shown}, nor see {unseen}; they may protect it, too");
        }
        match &self.message {
            _ if self.undecided => say(format!("whether {shown} may be deleted is not known")),
            Some(message) => say(message),
            None if !self.would_refuse.is_empty() => {
                let off = off::names(&self.would_refuse);
                say(format!("{shown} may be deleted: what would refuse it is off ({off})"));
            }
            None if !self.features_off.is_empty() => {
                let off = off::names(&self.features_off);
                say(format!("{shown} may be deleted: nothing protects it; features that are off: {off}"));
            }
            None => say(format!("{shown} may be deleted: nothing protects it")),
        }
    }

    fn print_json(&self) {
        let Self { refusal, message, lift, warnings, unseen, undecided, features_off, would_refuse: _ } =
            self;
        let features_off: Vec<&str> = features_off.iter().map(|gate| gate.name()).collect();
        say(format!(
            "{:#}",
            json!({
                "allowed": if *undecided { None } else { Some(refusal.is_none()) },
                "code": refusal.as_ref().map(|(code, _)| code),
                "reason": refusal.as_ref().map(|(_, reason)| reason),
                "message": message,
                "lift": lift,
                "warnings": warnings,
                "unseen": unseen,
                "featuresOff": features_off,
            })
        ));
    }
}

/// Where the engine's questions are answered.
struct Questions<'a> {
    client: &'a Client,
    discovery: Discovery,
    published: &'a Published,
    settings: Settings,
    /// Whether the user may read what a replica may.
    reads_everything: bool,
}

impl Questions<'_> {
    /// Decides as a replica would, by what the user may read.
    async fn decide(self, asked: &Asked<'_>, object: Object<'_>) -> Result<Answer, Error> {
        let Self { client, discovery, published, settings, reads_everything } = self;
        let (mut unseen, noted) = (Vec::new(), !reads_everything);
        let protections = seen(
            list_protections(client.clone()).await,
            "ResourceDeletionProtections",
            noted.then_some(&mut unseen),
        )?;
        let protections = protections.unwrap_or_default().protections;
        let gates = published.gates;
        let built_in = published.etcd.as_ref().map(|etcd| Arc::new(etcd.components()));
        let guarded = Guarded { built_in, ..Guarded::default() };
        let (_guarded, guarded) = watch::channel(Some(guarded));
        // Who asks here may lack rights that the replicas have, so that nobody is told to grant them.
        let searching = Arc::new(Searching { groups: published.search_groups.clone(), account: None });
        let mut live = Live::new(client.clone(), move || protections.clone())
            .with_components(guarded)
            .with_searching(searching.clone());
        if asked.served.group.is_empty() && asked.served.kind == "Pod" {
            let least = published.min_unavailable.unwrap_or(budget::DEFAULT_MIN_UNAVAILABLE);
            let index = snapshot(client, asked.namespace, least).await;
            let index = if gates.pod_unavailable_budget {
                seen(index, "PodUnavailableBudgets", noted.then_some(&mut unseen))?
            } else {
                // Only what they would do is not known then.
                index.ok()
            };
            let index = index.unwrap_or_else(|| {
                let index = Index::default();
                index.switch_off();
                index
            });
            let flows = Flows::new(client.clone(), |_| {});
            let listed = flows.list().await;
            let listed = if gates.pod_deletion_flow_control {
                seen(listed, "PodDeletionFlowControls", noted.then_some(&mut unseen))?
            } else {
                listed.ok()
            };
            if listed.is_none() {
                flows.switch_off();
            }
            let (_sender, discovery) = watch::channel(Some(discovery));
            let budgets = Budgets::new(client.clone(), Arc::new(index), discovery, searching, |_| {});
            live = live.with_ledger(Arc::new(Ledger { budgets, flows }));
        }
        let review = Review {
            action: Action::Delete(Subject { kind: asked.kind(), object }),
            user: myself(client).await?,
            propagation: None,
            is_owner: true,
            // Asked of the API server, whatever is registered with it.
            expects: Expects { critical: true, components: true, ..Expects::default() },
            dry_run: true,
        };
        let verdict = decide(&review, &live.until(Instant::now() + PATIENCE), &settings).await;
        for finding in &verdict.findings {
            if finding.code == Code::Unavailable && noted {
                unseen.push(prose::because(&finding.reason));
            }
        }
        let mut answer = Answer::of(&verdict, unseen);
        let off = off::features_off(gates, &asked.kind());
        if !off.is_empty() {
            let all_on = Settings { gates: FeatureGates::default(), ..settings };
            let with_all_on = decide(&review, &live.until(Instant::now() + PATIENCE), &all_on).await;
            if let Some((gates, message)) = off::would_refuse(&verdict, with_all_on, &off) {
                let names = off::names(&gates);
                answer.warnings.push(format!("with {names} on, this would be refused: {message}"));
                answer.would_refuse = gates;
            }
        }
        Ok(answer)
    }
}

/// What was asked for. Who may not read everything goes on without it, and it is noted.
fn seen<T, E: Into<Error>>(
    asked: Result<T, E>,
    what: &str,
    unseen: Option<&mut Vec<String>>,
) -> Result<Option<T>, Error> {
    match (asked, unseen) {
        (Ok(answer), _) => Ok(Some(answer)),
        (Err(_), Some(unseen)) => {
            unseen.push(what.to_owned());
            Ok(None)
        }
        (Err(error), None) => Err(error.into()),
    }
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

/// Whether the API server asks Palisade. Who may not see the registration believes the replicas.
async fn is_registered(client: &Client, published: &Published) -> bool {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    match configurations.get_metadata_opt(names::PALISADE).await {
        Ok(found) => found.is_some(),
        Err(_) => published.registered.unwrap_or(true),
    }
}

/// Whether the user may list every kind, as a replica may.
async fn may_read_everything(client: &Client) -> Result<bool, Error> {
    let everything = ResourceAttributes {
        verb: Some("list".to_owned()),
        group: Some("*".to_owned()),
        resource: Some("*".to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(everything), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Who the API server takes us for.
async fn myself(client: &Client) -> Result<User<'static>, Error> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
    let groups = user.groups.unwrap_or_default().into_iter().map(Into::into).collect();
    Ok(User { name: user.username.unwrap_or_default().into(), groups })
}

/// Why an object was not read.
enum Unread {
    Forbidden(String),
    Other(String),
}

async fn get(client: &Client, path: &str) -> Result<String, Unread> {
    let request =
        http::Request::get(path).body(Vec::new()).map_err(|error| Unread::Other(error.to_string()))?;
    client.request_text(request).await.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 403 => Unread::Forbidden(status.message),
        kube::Error::Api(status) => Unread::Other(status.message),
        error => Unread::Other(error.to_string()),
    })
}
