//! Cascading: what would go with an object, for every kind.
//!
//! | kind | what counts |
//! | --- | --- |
//! | Namespace | active pods (not Succeeded, Failed or terminating) and Bound claims (not terminating) |
//! | `CustomResourceDefinition` | custom resources that are not terminating |
//! | workloads, `ReplicationController` | `spec.replicas`, unset means 1, whatever the propagation policy |
//! | `DaemonSet` | `status.desiredNumberScheduled` |
//! | Job, `CronJob` | `status.active` |
//! | `PersistentVolumeClaim` | its volume, if it is Bound; pods that mount it and have not ended |
//! | `PersistentVolume` | its claim, if it is Bound |
//! | Service | endpoints that are ready and not terminating |
//! | Node | pods that are not a `DaemonSet`'s, have not ended and are not terminating |
//! | any other kind with a `scale` subresource | the replicas at its `specReplicasPath`, unset means 1 |
//! | any other kind | objects that name it as owner and are not terminating |
//!
//! A status that is older than the object tells nothing: what it would decide is unknown. What is in groups that are not
//! searched (`--search-groups`) does not count, and a warning names them.
//!
//! The cloud's node controller deletes Nodes whose machines are gone. Nothing on such a Node can be kept, so it is not
//! bound.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use palisade_api::components::GroupKind;
use palisade_api::kinds::{Cascade, cascade_of};
use palisade_api::marks::IGNORE_UNREADABLE_KINDS;
use serde_json::Value;

use crate::object::Object;
use crate::review::{Kind, Subject, User};
use crate::rights::MissingRights;
use crate::verdict::{Doomed, Found, Held, Reason, Undecided};
use crate::world::{Answer, Census, Count, Dependents, Scale, Unknown, UnreadableKind, World};

/// How many questions may be asked for the objects that would go with another, and how many kinds may be looked up.
const MOST_QUESTIONS: usize = 32;

/// What would go with an object that somebody deletes. Groups that are not searched are told.
pub(super) async fn held(
    subject: &Subject<'_>,
    user: &User<'_>,
    world: &impl World,
    found: &mut Found,
) -> Answer<Vec<Held>> {
    if subject.kind.is_node() && user.is_cloud_node_controller() {
        return Ok(Vec::new());
    }
    if let Some(told) = told(subject) {
        return told;
    }
    let (namespace, name) = (subject.namespace(), subject.name().to_owned());
    let question = match cascade_of(&subject.kind.group, &subject.kind.kind) {
        Cascade::Namespace => return held_by_namespace(subject.name(), world).await,
        Cascade::Definition => return held_by_definition(subject, world, found).await,
        Cascade::Claim => Question::Mounted(namespace.unwrap_or_default().to_owned()),
        Cascade::Service => Question::Endpoints(namespace.unwrap_or_default().to_owned()),
        Cascade::Node => Question::Node(name.clone()),
        _ => {
            if let Some(scale) = world.scale(&subject.kind).await? {
                let spec = subject.object.spec_json().map_err(|why| Unknown::new(REPLICAS, why))?;
                return replicas_at(&scale, subject.object.version(), &spec);
            }
            Question::Dependents(namespace.map(str::to_owned))
        }
    };
    let key = match &question {
        Question::Dependents(_) => subject.object.metadata.uid.to_string(),
        _ => name,
    };
    let ignored = subject.object.metadata.annotations.get(IGNORE_UNREADABLE_KINDS).unwrap_or_default();
    let mut not_searched = Vec::new();
    let mut answer = question.ask(&BTreeSet::from([key.clone()]), ignored, world, &mut not_searched).await?;
    found.not_searched(not_searched);
    Ok(answer.remove(&key).unwrap_or_default())
}

/// How much of an object is needed to say what would go with it.
pub(super) enum Look {
    /// Its text says it.
    Told(Answer<Vec<Held>>),
    /// Its text would, and only its metadata was shown.
    Closer,
    /// Others must be asked.
    Ask,
}

/// What an object that would go with another tells by itself.
pub(super) fn look(subject: &Subject<'_>, whole: bool) -> Look {
    match cascade_of(&subject.kind.group, &subject.kind.kind) {
        // What is in them does not go unasked when their owner does: their own deletion is reviewed then.
        Cascade::Namespace | Cascade::Definition => Look::Told(Ok(Vec::new())),
        Cascade::Service | Cascade::Node | Cascade::Other => Look::Ask,
        _ if !whole => Look::Closer,
        _ => told(subject).map_or(Look::Ask, Look::Told),
    }
}

/// Finds out what would go with objects that would themselves go with another. The questions are joined: one for all
/// claims of a namespace, and so on. Where there are too many of them, or one finds no answer, the object counts as
/// protected: a refusal loses nothing, and it says why.
pub(super) async fn settle(mut found: Vec<Doomed>, ignored: &str, world: &impl World) -> Vec<Doomed> {
    let kinds: BTreeMap<(String, String), Kind<'static>> = found
        .iter()
        .filter_map(|doomed| doomed.undecided.as_ref())
        .filter(|undecided| cascade_of(&undecided.kind.group, &undecided.kind.kind) == Cascade::Other)
        .map(|undecided| {
            let Kind { group, kind, .. } = &undecided.kind;
            ((group.to_string(), kind.to_string()), undecided.kind.clone())
        })
        .collect();
    let asked = kinds.into_iter().take(MOST_QUESTIONS).map(async |(key, kind)| {
        let scale = world.scale(&kind).await;
        (key, scale)
    });
    let scales: BTreeMap<(String, String), Answer<Option<Scale>>> =
        join_all(asked).await.into_iter().collect();
    let mut keys: BTreeMap<Question, BTreeSet<String>> = BTreeMap::new();
    let questions: Vec<Option<Answer<(Question, String)>>> = found
        .iter()
        .map(|doomed| doomed.undecided.as_ref().map(|undecided| Question::about(doomed, undecided, &scales)))
        .collect();
    for (question, key) in questions.iter().flatten().flatten() {
        keys.entry(question.clone()).or_default().insert(key.clone());
    }
    let asked = keys.into_iter().take(MOST_QUESTIONS).map(async |(question, keys)| {
        // What holds these objects was searched in the same groups, and told of the others.
        let answer = question.ask(&keys, ignored, world, &mut Vec::new()).await;
        (question, answer)
    });
    let answers: BTreeMap<Question, Answer<BTreeMap<String, Vec<Held>>>> =
        join_all(asked).await.into_iter().collect();
    for (doomed, question) in found.iter_mut().zip(questions) {
        let (Some(undecided), Some(question)) = (doomed.undecided.take(), question) else { continue };
        let held = question.and_then(|(question, key)| match answers.get(&question) {
            Some(answer) => answer.clone().map(|mut held| held.remove(&key).unwrap_or_default()),
            None => Err(Unknown::new("what would go with it", "there are too many such objects to ask")),
        });
        decide(doomed, *undecided, &held);
    }
    found.retain(|doomed| !doomed.because.is_empty());
    found
}

/// Protects an object by its undecided protections, unless nothing would go with it.
fn decide(doomed: &mut Doomed, undecided: Undecided, held: &Answer<Vec<Held>>) {
    let Undecided { marks, rules, .. } = undecided;
    if held.as_ref().is_ok_and(Vec::is_empty) {
        return;
    }
    for mark in marks {
        doomed.add(match held {
            Ok(held) => Reason::MarkedWhile(mark, held.clone()),
            Err(unknown) => Reason::MarkedUnknown(mark, unknown.clone()),
        });
    }
    for rule in rules {
        doomed.add(match held {
            Ok(held) => Reason::Ruled(rule, held.clone()),
            Err(unknown) => Reason::RuledUnknown(rule, unknown.clone()),
        });
    }
}

/// A question that is asked for all objects that it is about together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    /// Of claims of a namespace, by name.
    Mounted(String),
    /// Of Services of a namespace, by name.
    Endpoints(String),
    Node(String),
    /// Of owners in a namespace or in none, by uid.
    Dependents(Option<String>),
    /// Of one object, which is read whole.
    Replicas {
        group: String,
        kind: String,
        namespace: Option<String>,
        name: String,
        scale: Vec<(String, String)>,
    },
}

impl Question {
    /// The question about an object, and the key by which its answer is found.
    fn about(
        doomed: &Doomed,
        undecided: &Undecided,
        scales: &BTreeMap<(String, String), Answer<Option<Scale>>>,
    ) -> Answer<(Self, String)> {
        let (namespace, name) = (doomed.about.namespace.clone(), doomed.about.name.clone());
        let (group, kind) = (undecided.kind.group.to_string(), undecided.kind.kind.to_string());
        let question = match cascade_of(&group, &kind) {
            Cascade::Claim => Self::Mounted(namespace.unwrap_or_default()),
            Cascade::Service => Self::Endpoints(namespace.unwrap_or_default()),
            Cascade::Node => Self::Node(name.clone()),
            _ => match scales.get(&(group.clone(), kind.clone())) {
                Some(Ok(None)) => return Ok((Self::Dependents(namespace), undecided.uid.clone())),
                Some(Ok(Some(scale))) => {
                    let scale = scale.paths.clone().into_iter().collect();
                    Self::Replicas { group, kind, namespace, name: name.clone(), scale }
                }
                Some(Err(unknown)) => return Err(unknown.clone()),
                None => return Err(Unknown::new(REPLICAS, "there are too many kinds to ask")),
            },
        };
        Ok((question, name))
    }

    /// What would go with each of the objects; nothing with those that have no entry.
    async fn ask(
        &self,
        keys: &BTreeSet<String>,
        ignored: &str,
        world: &impl World,
        not_searched: &mut Vec<String>,
    ) -> Answer<BTreeMap<String, Vec<Held>>> {
        Ok(match self {
            Self::Mounted(namespace) => each(world.mounting_pods(namespace, keys).await?, Held::MountingPods),
            Self::Endpoints(namespace) => {
                each(world.ready_endpoints(namespace, keys).await?, Held::ReadyEndpoints)
            }
            Self::Node(name) => {
                each(BTreeMap::from([(name.clone(), world.pods_on_node(name).await?)]), Held::NodePods)
            }
            Self::Dependents(namespace) => {
                let Dependents { by_owner, unreadable, not_searched: groups } =
                    world.dependents(namespace.as_deref(), keys).await?;
                not_searched.extend(groups);
                let is_ignored = |kind: &UnreadableKind| {
                    ignored.split(',').any(|ignored| ignored.trim() == kind.resource())
                };
                let unread: Vec<&UnreadableKind> =
                    unreadable.iter().filter(|kind| !is_ignored(kind)).collect();
                // What is known to be owned decides, also if a kind could not be listed.
                if !unread.is_empty() && keys.iter().any(|key| !by_owner.contains_key(key)) {
                    return Err(not_listed(&unread));
                }
                each(by_owner, Held::Dependents)
            }
            Self::Replicas { group, kind, namespace, name, scale } => {
                let kind = GroupKind { group: group.clone(), kind: kind.clone() };
                let read = world.parent(&kind, namespace.as_deref(), name).await;
                let read = read.map_err(|unknown| Unknown { question: REPLICAS.to_owned(), ..unknown })?;
                // It is gone by now.
                let Some(parent) = read else { return Ok(BTreeMap::new()) };
                let version = parent.object["apiVersion"].as_str().unwrap_or_default();
                let version = version.rsplit('/').next().unwrap_or_default();
                let scale = Scale { paths: scale.iter().cloned().collect() };
                BTreeMap::from([(name.clone(), replicas_at(&scale, version, &parent.object["spec"])?)])
            }
        })
    }
}

fn each(counted: BTreeMap<String, Census>, held: impl Fn(Census) -> Held) -> BTreeMap<String, Vec<Held>> {
    counted.into_iter().map(|(key, census)| (key, something(held(census)))).collect()
}

fn not_listed(kinds: &[&UnreadableKind]) -> Unknown {
    let told = kinds.iter().take(crate::prose::NAMES_SHOWN);
    let why: Vec<String> = told.map(|kind| format!("{}: {}", kind.resource(), kind.why)).collect();
    let more = if kinds.len() > crate::prose::NAMES_SHOWN { "; …" } else { "" };
    let resources: Vec<String> = kinds.iter().map(|kind| kind.resource()).collect();
    let why = format!(
        "{}{more}; to pass over them, annotate it with {IGNORE_UNREADABLE_KINDS}={}",
        why.join("; "),
        resources.join(",")
    );
    let missing = MissingRights::all(kinds.iter().filter_map(|kind| kind.missing.as_ref()));
    Unknown::new("what it owns", why).lacking(missing)
}

const REPLICAS: &str = "its replicas";

fn something(held: Held) -> Vec<Held> {
    if held.is_something() { vec![held] } else { Vec::new() }
}

/// What an object's own text tells; `None` where others must be asked.
fn told(subject: &Subject<'_>) -> Option<Answer<Vec<Held>>> {
    let object = &subject.object;
    Some(match cascade_of(&subject.kind.group, &subject.kind.kind) {
        Cascade::Workload => match object.replicas() {
            Ok(replicas) => Ok(something(Held::Replicas(replicas))),
            Err(error) => Err(Unknown::new("its spec.replicas", error.to_string())),
        },
        Cascade::DaemonSet => daemon_pods(object),
        Cascade::Job => job_pods(object),
        Cascade::CronJob => active_jobs(object),
        Cascade::Volume => bound(object, "which claim it is bound to", |spec| {
            let claim = &spec["claimRef"];
            let part = |key: &str| claim[key].as_str().unwrap_or_default();
            let name = [part("namespace"), part("name")].join("/");
            Held::BoundClaim(name.trim_matches('/').to_owned())
        }),
        Cascade::Claim => {
            let volume = bound(object, "whether it is bound", |spec| {
                Held::BoundVolume(spec["volumeName"].as_str().unwrap_or_default().to_owned())
            });
            // One that is not bound may still be mounted.
            return Some(volume).filter(|volume| volume.as_ref().map_or(true, |held| !held.is_empty()));
        }
        _ => return None,
    })
}

fn daemon_pods(object: &Object<'_>) -> Answer<Vec<Held>> {
    let unknown = |why: String| Unknown::new("how many pods it should run", why);
    let status = object.status_json().map_err(unknown)?;
    let (observed, generation) =
        (number(&status["observedGeneration"]), object.metadata.generation.unwrap_or_default());
    if observed.unwrap_or_default() < generation {
        return Err(unknown(format!(
            "its controller has not seen its newest generation yet: status.observedGeneration is behind {generation}"
        )));
    }
    let pods = number(&status["desiredNumberScheduled"]);
    let pods = pods.ok_or_else(|| unknown("status.desiredNumberScheduled is no number".to_owned()))?;
    Ok(something(Held::DaemonPods(pods)))
}

/// A Job has no `observedGeneration`. Until its controller has seen it, it has no start time, unless it is suspended or
/// has ended.
fn job_pods(object: &Object<'_>) -> Answer<Vec<Held>> {
    let unknown = |why: String| Unknown::new("its active pods", why);
    let status = object.status_json().map_err(unknown)?;
    let spec = object.spec_json().map_err(unknown)?;
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let has_ended = conditions.any(|condition| {
        matches!(condition["type"].as_str(), Some("Complete" | "Failed")) && condition["status"] == "True"
    });
    let active = number(&status["active"]);
    let active = active.ok_or_else(|| unknown("status.active is no number".to_owned()))?;
    if active == 0 && status["startTime"].is_null() && !has_ended && spec["suspend"] != true {
        return Err(unknown("its controller has not seen it yet: it has no status.startTime".to_owned()));
    }
    Ok(something(Held::JobPods(active)))
}

fn active_jobs(object: &Object<'_>) -> Answer<Vec<Held>> {
    let unknown = |why: String| Unknown::new("its active Jobs", why);
    let status = object.status_json().map_err(unknown)?;
    let jobs = status["active"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = jobs.iter().filter_map(|job| job["name"].as_str()).map(str::to_owned);
    let names = names.take(crate::prose::NAMES_SHOWN).collect();
    Ok(something(Held::ActiveJobs(Census { count: Count::Exactly(jobs.len()), names })))
}

/// What a claim or a volume is bound to.
fn bound(object: &Object<'_>, question: &str, to: impl Fn(&Value) -> Held) -> Answer<Vec<Held>> {
    let unknown = |why: String| Unknown::new(question, why);
    let status = object.status_json().map_err(unknown)?;
    if status["phase"] != "Bound" {
        return Ok(Vec::new());
    }
    Ok(vec![to(&object.spec_json().map_err(unknown)?)])
}

/// An integer; unset is 0.
fn number(value: &Value) -> Option<i64> {
    if value.is_null() { Some(0) } else { value.as_i64() }
}

/// The replicas of an object that has a `scale`; unset means 1, as for Kubernetes' own workloads.
fn replicas_at(scale: &Scale, version: &str, spec: &Value) -> Answer<Vec<Held>> {
    let unknown = |why: &str| Unknown::new(REPLICAS, why);
    let Some(path) = scale.paths.get(version).or_else(|| scale.paths.values().next()) else {
        // Nobody tells where they are; nearly everybody has them here.
        let replicas = spec["replicas"].as_i64();
        let replicas =
            replicas.ok_or_else(|| unknown("its API server does not tell where its spec has them"))?;
        return Ok(something(Held::Replicas(replicas)));
    };
    let steps = path.strip_prefix(".spec").unwrap_or(path).split('.').filter(|step| !step.is_empty());
    match steps.fold(spec, |value, step| &value[step]) {
        Value::Null => Ok(vec![Held::Replicas(1)]),
        value => {
            let replicas = value.as_i64().ok_or_else(|| unknown(&format!("{path} is no number")))?;
            Ok(something(Held::Replicas(replicas)))
        }
    }
}

async fn held_by_namespace(namespace: &str, world: &impl World) -> Answer<Vec<Held>> {
    let (pods, claims) = futures::join!(world.active_pods(namespace), world.bound_claims(namespace));
    let answers = [pods.map(Held::ActivePods), claims.map(Held::BoundClaims)];
    let known: Vec<Held> = answers.iter().flatten().filter(|held| held.is_something()).cloned().collect();
    // What is known to be held decides, also if the other question found no answer.
    if known.is_empty() { answers.into_iter().collect::<Answer<Vec<_>>>().map(|_| known) } else { Ok(known) }
}

async fn held_by_definition(
    subject: &Subject<'_>,
    world: &impl World,
    found: &mut Found,
) -> Answer<Vec<Held>> {
    let unknown = |why: String| Unknown::new("its custom resources", why);
    let definition = subject.object.definition().map_err(|error| unknown(error.to_string()))?;
    // Nobody knows whether there are any, and that is told.
    if !world.is_searched(&definition.group) {
        found.not_searched([definition.group]);
        return Ok(Vec::new());
    }
    if definition.served_versions.is_empty() {
        return Err(unknown("none of its versions is served".to_owned()));
    }
    let instances = world.instances(&definition).await?;
    Ok(something(Held::Instances(format!("{}.{}", definition.plural, definition.group), instances)))
}
