//! `AdmissionReview`s: what we read of them, and how we answer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use palisade_api::{action as policy, budget, components, critical, flow};
use palisade_engine::json::{Cursor, Malformed};
use palisade_engine::{
    Action, Expects, Guard, Kind, Metadata, Object, Part, Portion, Propagation, Reason, Review, Subject,
    User, Verdict, prose,
};
use serde::{Deserialize, Serialize};

const API_VERSION: &str = "admission.k8s.io/v1";
/// What Kubernetes makes has 36.
const LONGEST_UID: usize = 128;
/// Some kinds have longer names than the usual 253.
const LONGEST_NAME: usize = 1_024;
const LONGEST_NAMESPACE: usize = 63;
const LONGEST_USER: usize = 1_024;

/// Why a request is no review that we can decide.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReview {
    /// So bad that there is nobody to answer: the call itself fails.
    #[error("{0}")]
    Unreadable(String),
    /// A review with a uid, but not one that can be decided: it is refused.
    #[error("{why}")]
    Undecidable { uid: String, why: String },
}

/// A review, and the uid that its answer carries back.
#[derive(Debug)]
pub struct Read<'a> {
    pub uid: Cow<'a, str>,
    /// The version of the resource that it is about.
    pub version: Cow<'a, str>,
    pub review: Review<'a>,
}

/// What we read of a request.
#[derive(Default)]
struct Request<'a> {
    uid: Cow<'a, str>,
    group: Cow<'a, str>,
    kind: Cow<'a, str>,
    resource: Cow<'a, str>,
    /// The kind's group is another's for subresources such as `scale`.
    resource_group: Cow<'a, str>,
    resource_version: Cow<'a, str>,
    sub_resource: Cow<'a, str>,
    name: Cow<'a, str>,
    namespace: Cow<'a, str>,
    operation: Cow<'a, str>,
    object: Option<&'a [u8]>,
    old_object: Option<Object<'a>>,
    user: User<'a>,
    propagation: Option<Propagation>,
    dry_run: bool,
}

/// Reads a review, in one pass, borrowing from `body`.
pub fn read(body: &[u8]) -> Result<Read<'_>, BadReview> {
    let mut request = Request::default();
    match read_envelope(body, &mut request) {
        Ok(()) if request.uid.is_empty() => Err(BadReview::Unreadable("the request holds no uid".to_owned())),
        Ok(()) if request.uid.len() > LONGEST_UID => {
            Err(BadReview::Unreadable(format!("the request's uid is longer than {LONGEST_UID} bytes")))
        }
        Ok(()) => request.into_review(),
        Err(why) => Err(match uid(body) {
            // Somebody is waiting for an answer to this uid, and it is no.
            Some(uid) => BadReview::Undecidable { uid, why: format!("the review could not be read: {why}") },
            None => BadReview::Unreadable(why),
        }),
    }
}

/// The uid of a review of which nothing else may be readable; `None` also if there are several.
fn uid(body: &[u8]) -> Option<String> {
    let mut found = Vec::new();
    let read = Cursor::new(body).members(|key, value| {
        if key != "request" {
            return value.skip();
        }
        value.members(|key, value| {
            if key != "uid" {
                return value.skip();
            }
            found.push(value.string()?);
            Ok(())
        })
    });
    match (read, found.as_slice()) {
        (Ok(()), [uid]) if !uid.is_empty() => Some(uid.to_string()),
        _ => None,
    }
}

fn read_envelope<'a>(body: &'a [u8], request: &mut Request<'a>) -> Result<(), String> {
    let (mut api_version, mut kind, mut found) = (Cow::default(), Cow::default(), false);
    let mut cursor = Cursor::new(body);
    let read = cursor.object(|key, value| {
        match &*key {
            "apiVersion" => api_version = value.string()?,
            "kind" => kind = value.string()?,
            "request" => found = value.object_or_null(|key, value| request.read_member(&key, value))?,
            _ => value.skip()?,
        }
        Ok(())
    });
    read.and_then(|()| cursor.end()).map_err(|error| format!("the body is no AdmissionReview: {error}"))?;
    if api_version != API_VERSION || kind != "AdmissionReview" {
        return Err(format!(
            "expected an AdmissionReview of {API_VERSION}, got kind \"{kind}\" of \"{api_version}\""
        ));
    }
    if found { Ok(()) } else { Err("the AdmissionReview holds no request".to_owned()) }
}

impl<'a> Request<'a> {
    fn read_member(&mut self, key: &str, value: &mut Cursor<'a>) -> Result<(), Malformed> {
        match key {
            "uid" => self.uid = value.string()?,
            "kind" => value.object(|key, value| {
                match &*key {
                    "group" => self.group = value.string()?,
                    "kind" => self.kind = value.string()?,
                    _ => value.skip()?,
                }
                Ok(())
            })?,
            "resource" => value.object(|key, value| {
                match &*key {
                    "resource" => self.resource = value.string()?,
                    "group" => self.resource_group = value.string()?,
                    "version" => self.resource_version = value.string()?,
                    _ => value.skip()?,
                }
                Ok(())
            })?,
            "subResource" => self.sub_resource = value.string()?,
            "name" => self.name = value.string()?,
            "namespace" => self.namespace = value.string()?,
            "operation" => self.operation = value.string()?,
            "object" => self.object = value.raw_or_null()?,
            "oldObject" => self.old_object = value.optional(Object::read)?,
            "userInfo" => value.object(|key, value| {
                match &*key {
                    "username" => self.user.name = value.string()?,
                    "groups" => value.list(|group| {
                        self.user.groups.push(group.string()?);
                        Ok(())
                    })?,
                    _ => value.skip()?,
                }
                Ok(())
            })?,
            "options" => self.propagation = value.optional(read_propagation)?.flatten(),
            "dryRun" => self.dry_run = value.value::<Option<bool>>()?.unwrap_or(false),
            _ => value.skip()?,
        }
        Ok(())
    }

    /// What is longer than it can be. What is written to a status, an Event or the log has a bound.
    fn too_long(&self) -> Option<String> {
        let none = Metadata::default();
        let old = self.old_object.as_ref().map_or(&none, |object| &object.metadata);
        let namespace = self.namespace.len().max(old.namespace.as_deref().map_or(0, str::len));
        let sizes = [
            ("name", self.name.len().max(old.name.len()), LONGEST_NAME),
            ("namespace", namespace, LONGEST_NAMESPACE),
            ("uid", old.uid.len(), LONGEST_UID),
            ("resourceVersion", old.resource_version.len(), LONGEST_UID),
            ("userInfo.username", self.user.name.len(), LONGEST_USER),
        ];
        let (what, size, longest) = sizes.into_iter().find(|(_, size, longest)| size > longest)?;
        Some(format!("its {what} has {size} bytes, and {longest} are allowed"))
    }

    fn into_review(self) -> Result<Read<'a>, BadReview> {
        let mut dry_run = self.dry_run;
        let uid = self.uid.clone();
        let undecidable = |why: &str| BadReview::Undecidable { uid: uid.to_string(), why: why.to_owned() };
        if let Some(why) = self.too_long() {
            return Err(undecidable(&why));
        }
        let action = match (&*self.operation, &*self.sub_resource) {
            ("DELETE", "") => {
                let object = self.old_object.ok_or_else(|| {
                    undecidable("a DELETE without oldObject: what would be deleted is not known")
                })?;
                if self.kind.is_empty() {
                    return Err(undecidable("a DELETE of no kind"));
                }
                if object.metadata.name.is_empty() {
                    return Err(undecidable("a DELETE whose oldObject has no name"));
                }
                let kind = Kind { group: self.group, kind: self.kind, plural: self.resource };
                Action::Delete(Subject { kind, object })
            }
            ("CREATE", "eviction") => {
                let eviction = Eviction::parse(self.object)
                    .map_err(|error| undecidable(&format!("an eviction that could not be read: {error}")))?;
                dry_run |= eviction.is_dry_run();
                let name = Some(self.name).filter(|name| !name.is_empty()).unwrap_or(eviction.metadata.name);
                if name.is_empty() || self.namespace.is_empty() {
                    return Err(undecidable("an eviction that names no pod"));
                }
                Action::Evict { namespace: self.namespace, name }
            }
            ("UPDATE", part) if self.resource == "pods" && self.group.is_empty() => {
                let part = match part {
                    "" => Some(Part::Whole),
                    "status" => Some(Part::Status),
                    "resize" => Some(Part::Resize),
                    _ => None,
                };
                match (part, self.old_object, self.object) {
                    (None, _, _) => Action::Other,
                    (Some(part), Some(old), Some(new)) => {
                        let new = Object::parse(new).map_err(|error| {
                            undecidable(&format!("a pod that could not be read: {error}"))
                        })?;
                        Action::Update { pod: Subject { kind: Kind::POD, object: old }, new, part }
                    }
                    (Some(_), _, _) => return Err(undecidable("an UPDATE without object and oldObject")),
                }
            }
            ("CREATE" | "UPDATE", "") if is_policy(&self.group, &self.resource) => {
                let object = Object::parse(self.object.unwrap_or(b"{}"))
                    .map_err(|error| undecidable(&format!("a policy that could not be read: {error}")))?;
                let kind = Kind { group: self.group, kind: self.kind, plural: self.resource };
                let old = self.old_object.filter(|_| self.operation == "UPDATE");
                let old = old.map(|object| Subject { kind: kind.clone(), object });
                Action::Declare { subject: Subject { kind, object }, old }
            }
            // Only a warning can come of it, so what can't be read is let through.
            ("CREATE", "") => match self.object.and_then(|object| Object::parse(object).ok()) {
                Some(mut object) => {
                    if object.metadata.namespace().is_none() && !self.namespace.is_empty() {
                        object.metadata.namespace = Some(self.namespace);
                    }
                    let kind = Kind { group: self.group, kind: self.kind, plural: self.resource };
                    Action::Create(Subject { kind, object })
                }
                None => Action::Other,
            },
            ("UPDATE", "scale") if !self.name.is_empty() => Action::Scale {
                group: self.resource_group,
                plural: self.resource,
                namespace: self.namespace,
                name: self.name,
            },
            // Labels change through some subresources, such as a Namespace's `finalize`.
            ("UPDATE", part) => {
                let part = if part.is_empty() { Portion::Whole } else { Portion::Status };
                let (Some(object), Some(new)) = (self.old_object, self.object) else {
                    return Err(undecidable("an UPDATE without object and oldObject"));
                };
                let new = Object::parse(new)
                    .map_err(|error| undecidable(&format!("an object that could not be read: {error}")))?;
                let kind = Kind { group: self.group, kind: self.kind, plural: self.resource };
                Action::Change { subject: Subject { kind, object }, new, part }
            }
            ("CREATE" | "CONNECT" | "DELETE", _) => Action::Other,
            (unknown, _) => return Err(undecidable(&format!("the operation \"{unknown}\" is not known"))),
        };
        Ok(Read {
            uid,
            version: self.resource_version,
            review: Review {
                action,
                user: self.user,
                propagation: self.propagation,
                is_owner: false,
                expects: Expects::default(),
                dry_run,
            },
        })
    }
}

/// Whether it is one of our kinds that the schema alone does not check, or that should hold when it is created.
fn is_policy(group: &str, resource: &str) -> bool {
    matches!(
        (group, resource),
        (budget::GROUP, budget::PLURAL)
            | (flow::GROUP, flow::PLURAL)
            | (critical::GROUP, critical::PLURAL | components::PLURAL)
    )
}

/// What `DeleteOptions` say about dependents.
fn read_propagation(options: &mut Cursor<'_>) -> Result<Option<Propagation>, Malformed> {
    let mut said = None;
    options.object(|key, value| {
        match &*key {
            "propagationPolicy" => {
                said = value.string_or_null()?.map(|policy| match &*policy {
                    "Orphan" => Propagation::Orphan,
                    _ => Propagation::Collect,
                });
            }
            // The old way of saying it.
            "orphanDependents" => match value.value::<Option<bool>>()? {
                Some(true) => said = Some(Propagation::Orphan),
                Some(false) => said = Some(Propagation::Collect),
                None => {}
            },
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(said)
}

/// The body of `pods/eviction`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Eviction<'a> {
    #[serde(borrow)]
    metadata: EvictionMetadata<'a>,
    delete_options: Option<DeleteOptions>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EvictionMetadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions {
    dry_run: Option<Vec<String>>,
}

impl<'a> Eviction<'a> {
    fn parse(object: Option<&'a [u8]>) -> Result<Self, serde_json::Error> {
        object.map_or(Ok(Self::default()), serde_json::from_slice)
    }

    /// `deleteOptions.dryRun` inside an Eviction does not set the request's own `dryRun`.
    fn is_dry_run(&self) -> bool {
        self.delete_options
            .as_ref()
            .and_then(|options| options.dry_run.as_ref())
            .is_some_and(|dry| !dry.is_empty())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "Kubernetes' name")]
struct Status {
    status: &'static str,
    code: u16,
    reason: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    causes: Vec<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

#[derive(Serialize)]
struct Cause {
    reason: &'static str,
    message: String,
}

/// A refusal that no guard gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The review makes no sense.
    Malformed,
    /// There was no time left to decide.
    TooLate,
}

impl Refused {
    pub(crate) fn code(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::TooLate => 503,
        }
    }
}

/// The answer that carries a verdict.
pub fn answer(uid: &str, verdict: &Verdict) -> Vec<u8> {
    let warnings = match &verdict.about {
        Some(about) => verdict.warnings.iter().map(|warning| prose::warning(about, warning)).collect(),
        None => Vec::new(),
    };
    let mut audit_annotations = audit_annotations(verdict);
    if !verdict.lifted.is_empty() {
        let lifted: Vec<String> = verdict.lifted.iter().map(prose::lifted).collect();
        audit_annotations.insert("lifted-protection", lifted.join("; "));
    }
    let status = verdict.code().zip(prose::refusal(verdict)).map(|(code, message)| {
        let mut guards: Vec<&str> = verdict.findings.iter().map(|finding| finding.guard.name()).collect();
        guards.dedup();
        audit_annotations.insert("refused-by", guards.join(","));
        let causes = verdict
            .findings
            .iter()
            .map(|finding| Cause { reason: cause(finding.guard), message: prose::because(&finding.reason) });
        Status {
            status: "Failure",
            code: code.status(),
            reason: code.reason(),
            message,
            details: Some(Details { causes: causes.collect(), retry_after_seconds: verdict.retry_after }),
        }
    });
    encode(Response { uid, allowed: status.is_none(), status, warnings, audit_annotations })
}

/// Which policies were against it, by what they did about it.
fn audit_annotations(verdict: &Verdict) -> BTreeMap<&'static str, String> {
    let protections = verdict.matched.iter().map(|matched| (matched.action, matched.protection.as_str()));
    let protections: Vec<(policy::Action, &str)> = protections.collect();
    let denied = verdict.findings.iter().filter_map(|finding| match &finding.reason {
        Reason::Throttled(throttled) => Some(throttled),
        _ => None,
    });
    let flows: Vec<(policy::Action, &str)> = denied
        .chain(&verdict.passed)
        .map(|throttled| (throttled.action, throttled.control.as_str()))
        .collect();
    let keyed = [
        ("denied-by-protection", policy::Action::Deny, &protections),
        ("warned-by-protection", policy::Action::Warn, &protections),
        ("audited-by-protection", policy::Action::Audit, &protections),
        ("denied-by-flow-control", policy::Action::Deny, &flows),
        ("warned-by-flow-control", policy::Action::Warn, &flows),
        ("audited-by-flow-control", policy::Action::Audit, &flows),
    ];
    let named = keyed.into_iter().map(|(key, action, all)| {
        let names = all.iter().filter(|(taken, _)| *taken == action).map(|(_, name)| *name);
        (key, names.collect::<Vec<_>>().join(","))
    });
    named.filter(|(_, names)| !names.is_empty()).collect()
}

/// The answer to a review that was not decided.
pub(crate) fn refuse(uid: &str, refused: Refused, why: &str) -> Vec<u8> {
    let reason = match refused {
        Refused::Malformed => "BadRequest",
        Refused::TooLate => "ServiceUnavailable",
    };
    let status =
        Status { status: "Failure", code: refused.code(), reason, message: why.to_owned(), details: None };
    let audit_annotations = BTreeMap::new();
    encode(Response { uid, allowed: false, status: Some(status), warnings: Vec::new(), audit_annotations })
}

/// The word for a cause. Whoever drains nodes looks for Kubernetes' own.
fn cause(guard: Guard) -> &'static str {
    match guard {
        Guard::Budgets => "DisruptionBudget",
        Guard::Labels
        | Guard::Protections
        | Guard::Cascade
        | Guard::Critical
        | Guard::Components
        | Guard::Flow => guard.name(),
    }
}

fn encode(response: Response<'_>) -> Vec<u8> {
    let answer = Answer { api_version: API_VERSION, kind: "AdmissionReview", response };
    // Strings, numbers and lists of them always serialize; an empty body would be a failed call.
    serde_json::to_vec(&answer).unwrap_or_default()
}
