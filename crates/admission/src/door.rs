//! Decode, decide, answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use axum::routing::post;
use http_body_util::BodyExt;
use palisade_api::gates::{DISABLED, Gate};
use palisade_api::versions::{AT, PolicyKind, PolicyVersions};
use palisade_cluster::{Behind, Live, LiveWorld};
use palisade_engine::{Action, Expects, Settings, Verdict, World, advise, decide, warn_of_disabled};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, field};

use crate::connections::Connection;
use crate::line::Line;
use crate::metrics::{Metrics, Rejected};
use crate::wire::{self, BadReview, Refused};

/// Objects are at most 1.5 MiB in etcd; a review holds two of them and may spell them longer.
const LARGEST_BODY: usize = 8 << 20;
/// All bodies that are being read or decided together, and so how many reviews run at once.
const ROOM_KIB: usize = 128 << 10;
/// What a review takes of that room at least: 2,048 at once.
const LEAST_KIB: usize = 64;
/// For a caller that names no deadline: what Kubernetes gives a webhook by default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes the world that one review is decided in.
pub trait Worlds: Send + Sync + 'static {
    type World: World + Send;
    fn until(&self, deadline: Instant) -> Self::World;

    /// Waits until policies of some kinds are known, each as of a resourceVersion at least; not beyond a deadline.
    fn until_known(
        &self,
        kinds: &[PolicyKind],
        versions: &PolicyVersions,
        deadline: Instant,
    ) -> impl Future<Output = Result<(), Behind>> + Send;
}

impl Worlds for Live {
    type World = LiveWorld;
    fn until(&self, deadline: Instant) -> LiveWorld {
        Self::until(self, deadline)
    }

    async fn until_known(
        &self,
        kinds: &[PolicyKind],
        versions: &PolicyVersions,
        deadline: Instant,
    ) -> Result<(), Behind> {
        Self::until_known(self, kinds, versions, deadline).await
    }
}

/// What the handler of a review needs.
pub struct Door<W> {
    worlds: W,
    settings: Settings,
    metrics: Arc<Metrics>,
    record: Box<dyn Fn(Recorded<'_>) + Send + Sync>,
    room: Semaphore,
}

/// What is worth remembering of a review that is not a dry run.
#[derive(Clone, Copy, Debug)]
pub enum Recorded<'a> {
    /// A verdict that counts for protections.
    Counted(&'a Verdict),
    /// A provider goes before what depends on it.
    LeftBehind(&'a Verdict),
    /// A change of a component was refused.
    Managed(&'a Verdict),
    /// Something was refused that is there.
    Refused(Asker<'a>, &'a Verdict),
    /// A protection label was taken away.
    Lifted(Asker<'a>, &'a Verdict),
}

/// What a review says besides its verdict.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// `Delete`, `Evict`, `Update` or `Scale`.
    pub action: &'static str,
    /// The version of the resource.
    pub version: &'a str,
    pub user: &'a str,
}

impl<W: Worlds> Door<W> {
    /// `record` is told what is worth remembering.
    pub fn new(
        worlds: W,
        settings: Settings,
        metrics: Arc<Metrics>,
        record: impl Fn(Recorded<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self { worlds, settings, metrics, record: Box::new(record), room: Semaphore::new(ROOM_KIB) }
    }
}

/// `POST /admit`, without a socket, and with words after it that say what our webhook asks for: see [`Asked`].
pub fn router<W: Worlds>(door: Arc<Door<W>>) -> Router {
    Router::new()
        .route("/admit", post(admit::<W>))
        .route("/admit/{*words}", post(admit::<W>))
        .with_state(door)
}

async fn admit<W: Worlds>(State(door): State<Arc<Door<W>>>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let answered = match Asked::read(parts.uri.path()) {
        Some(asked) => door.admit(&parts, body, asked).await,
        None => return not_found(),
    };
    match answered {
        Ok(answer) => json(answer),
        Err(rejection) => {
            door.metrics.rejected(rejection.why);
            tracing::info!(
                guard = "none",
                code = rejection.status.as_u16(),
                why = rejection.message,
                "rejected a request"
            );
            let mut response = Response::new(Body::from(rejection.message));
            *response.status_mut() = rejection.status;
            response
        }
    }
}

fn not_found() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// Which of our webhooks asks: `/admit/budgets/flow`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asked {
    /// The verdict counts for protections: an object that carries a label and is also selected by a protection is
    /// asked about by two webhooks.
    counted: bool,
    /// It owns something protected, which is worth a search.
    as_owner: bool,
    /// A label is set where it is worth a warning, and nothing is to be decided.
    for_advice: bool,
    /// The feature that is off for what is asked about. Whoever asks is told, and nothing is decided.
    disabled: Option<Gate>,
    /// There are budgets, flow controls or critical services for it, also if this replica does not know of one yet.
    expects: Expects,
    /// The kinds of policies that it is asked for. They must be known, or the answer would be that there are none.
    kinds: Vec<PolicyKind>,
    /// How new the policies are that the registration carries: a replica that has seen less must not answer.
    versions: PolicyVersions,
}

impl Asked {
    fn read(path: &str) -> Option<Self> {
        let mut asked = Self::default();
        let mut words = path.strip_prefix("/admit")?.split('/').skip(1).peekable();
        if words.peek().is_none() {
            // Registered by an older version: nobody knows what for.
            asked.kinds.extend(PolicyKind::ALL);
        }
        while let Some(word) = words.next() {
            asked.kinds.extend(PolicyKind::of_word(word));
            let said = match word {
                AT => {
                    asked.versions = PolicyVersions::read(words.next()?)?;
                    continue;
                }
                DISABLED => {
                    asked.disabled = Some(Gate::of_word(words.next()?)?);
                    continue;
                }
                // Labels are in the review itself, and policies that are written are of no policy's concern.
                "labels" | "policies" | "evictions" => continue,
                "cascade" => {
                    asked.kinds.extend([PolicyKind::Protection, PolicyKind::CriticalService]);
                    continue;
                }
                "protections" => &mut asked.counted,
                "owners" => {
                    asked.kinds.push(PolicyKind::Protection);
                    &mut asked.as_owner
                }
                "advice" => &mut asked.for_advice,
                "budgets" => &mut asked.expects.budgets,
                "flow" => &mut asked.expects.flow,
                "critical" => &mut asked.expects.critical,
                "components" => &mut asked.expects.components,
                "labelled-dependents" => &mut asked.expects.labelled_dependents,
                "administrator" => &mut asked.expects.administrator,
                _ => return None,
            };
            *said = true;
        }
        Some(asked)
    }

    /// Whether only warnings are wanted. Then nothing is refused, whatever happens.
    fn only_warns(&self) -> bool {
        self.for_advice || self.disabled.is_some()
    }
}

/// A request that is answered with an HTTP error: to the API server, a failed call.
struct Rejection {
    status: StatusCode,
    /// For the metric.
    why: Rejected,
    message: String,
}

impl Rejection {
    fn new(status: StatusCode, why: Rejected, message: impl Into<String>) -> Self {
        Self { status, why, message: message.into() }
    }
}

impl<W: Worlds> Door<W> {
    async fn admit(&self, parts: &Parts, body: Body, asked: Asked) -> Result<Vec<u8>, Rejection> {
        let deadline = Instant::now() + timeout(parts.uri.query())?;
        let headers = &parts.headers;
        if !is_json(headers) {
            let message = "the content type must be application/json";
            return Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Rejected::ContentType, message));
        }
        let (body, _room) = self.read_body(headers, body, deadline).await?;
        self.decide(&body, deadline, asked, parts.extensions.get()).await
    }

    async fn decide(
        &self,
        body: &[u8],
        deadline: Instant,
        asked: Asked,
        connection: Option<&Connection>,
    ) -> Result<Vec<u8>, Rejection> {
        let started = Instant::now();
        let read = match wire::read(body) {
            Ok(mut read) => {
                read.review.is_owner = asked.as_owner;
                read.review.expects = asked.expects;
                read
            }
            Err(BadReview::Undecidable { uid, why }) if asked.only_warns() => {
                // Open: nothing but a warning is lost.
                tracing::debug!(uid, why, "no warning for a review that could not be read");
                return Ok(wire::answer(&uid, &Verdict::allow()));
            }
            Err(BadReview::Undecidable { uid, why }) => {
                self.metrics.rejected(Rejected::Undecidable);
                Line::unread(&uid, started).refused("none", Refused::Malformed.code(), &why);
                return Ok(wire::refuse(&uid, Refused::Malformed, &why));
            }
            Err(BadReview::Unreadable(why)) => {
                return Err(Rejection::new(StatusCode::BAD_REQUEST, Rejected::Unreadable, why));
            }
        };
        let _answering = connection.map(|connection| {
            let answering = connection.answering();
            connection.prove();
            answering
        });
        let span = tracing::debug_span!("review", uid = %read.uid, refused = field::Empty);
        // The world is made of what is known then. A warning needs no policies.
        if !asked.only_warns()
            && let Err(behind) = self.worlds.until_known(&asked.kinds, &asked.versions, deadline).await
        {
            self.metrics.rejected(Rejected::TooLate);
            Line::of(&read, started).refused("none", Refused::TooLate.code(), "policies are not known yet");
            return Ok(wire::refuse(&read.uid, Refused::TooLate, &not_known(behind)));
        }
        let decided = if asked.for_advice {
            Ok(advise(&read.review))
        } else if let Some(gate) = asked.disabled {
            Ok(warn_of_disabled(&read.review, gate))
        } else {
            let world = self.worlds.until(deadline);
            timeout_at(deadline, decide(&read.review, &world, &self.settings)).instrument(span.clone()).await
        };
        let Ok(verdict) = decided else {
            self.metrics.rejected(Rejected::TooLate);
            Line::of(&read, started).refused("none", Refused::TooLate.code(), "no decision in time");
            let why = "Palisade could not decide in time; try again";
            return Ok(wire::refuse(&read.uid, Refused::TooLate, why));
        };
        self.metrics.decided(&verdict, started.elapsed());
        if asked.counted && !read.review.dry_run {
            self.metrics.matched(&verdict);
            (self.record)(Recorded::Counted(&verdict));
        }
        // Others of our webhooks may ask about the same deletion.
        if asked.expects.critical
            && !read.review.dry_run
            && verdict.is_allowed()
            && !verdict.left_behind.is_empty()
        {
            (self.record)(Recorded::LeftBehind(&verdict));
        }
        if asked.expects.components && !read.review.dry_run && !verdict.is_allowed() {
            (self.record)(Recorded::Managed(&verdict));
        }
        let line = Line::of(&read, started);
        line.write(&verdict);
        self.tell(&read, line.action, &verdict);
        span.record("refused", !verdict.is_allowed());
        Ok(wire::answer(&read.uid, &verdict))
    }

    /// Has what is worth an Event remembered. A policy that is refused is not there to have one.
    fn tell(&self, read: &wire::Read<'_>, action: &'static str, verdict: &Verdict) {
        let review = &read.review;
        if review.dry_run || matches!(review.action, Action::Declare { .. } | Action::Create(_)) {
            return;
        }
        let asker = Asker { action, version: &read.version, user: &review.user.name };
        if !verdict.is_allowed() {
            (self.record)(Recorded::Refused(asker, verdict));
        } else if !verdict.lifted.is_empty() {
            (self.record)(Recorded::Lifted(asker, verdict));
        }
    }

    /// Reads a body. Room is taken as it arrives, so that a caller who only announces much holds little.
    async fn read_body(
        &self,
        headers: &HeaderMap,
        mut body: Body,
        deadline: Instant,
    ) -> Result<(Vec<u8>, SemaphorePermit<'_>), Rejection> {
        let announced = headers.get(CONTENT_LENGTH).map(|length| length.to_str().unwrap_or_default().parse());
        let capacity = match announced {
            Some(Ok(length)) if length <= LARGEST_BODY => length,
            Some(_) => return Err(too_large()),
            None => 0,
        };
        let mut room = self.room_for(LEAST_KIB, deadline).await?;
        // The rest is allocated as it comes.
        let mut bytes = Vec::with_capacity(capacity.min(LEAST_KIB << 10));
        loop {
            let slow = || {
                Rejection::new(
                    StatusCode::REQUEST_TIMEOUT,
                    Rejected::SlowBody,
                    "the body did not arrive in time",
                )
            };
            let frame = match timeout_at(deadline, body.frame()).await.map_err(|_| slow())? {
                None => return Ok((bytes, room)),
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    return Err(Rejection::new(
                        StatusCode::BAD_REQUEST,
                        Rejected::BrokenBody,
                        error.to_string(),
                    ));
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > LARGEST_BODY {
                return Err(too_large());
            }
            bytes.extend_from_slice(&data);
            let missing = (bytes.len() >> 10).saturating_sub(room.num_permits());
            if missing > 0 {
                room.merge(self.room_for(missing, deadline).await?);
            }
        }
    }

    async fn room_for(&self, kib: usize, deadline: Instant) -> Result<SemaphorePermit<'_>, Rejection> {
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        match timeout_at(deadline, self.room.acquire_many(kib)).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Rejection::new(
                StatusCode::SERVICE_UNAVAILABLE,
                Rejected::NoRoom,
                "too many reviews at once",
            )),
        }
    }
}

/// Why a replica does not decide yet, and what to do.
fn not_known(Behind { kind, unserved }: Behind) -> String {
    if unserved {
        let definition = kind.definition();
        return format!(
            "Palisade can't tell whether a policy refuses this: the kind {kind} is defined but not served, so that \
             policies of it can't be read. To lift it, serve it again: kubectl edit customresourcedefinition {definition}"
        );
    }
    format!("this replica of Palisade has not seen the newest policies of the kind {kind} yet; try again")
}

fn too_large() -> Rejection {
    let message = format!("the body is larger than {} MiB", LARGEST_BODY >> 20);
    Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, Rejected::TooLarge, message)
}

fn is_json(headers: &HeaderMap) -> bool {
    let essence = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map(|value| value.split(';').next().unwrap_or_default().trim());
    essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
}

/// How long the caller waits, from `?timeout=5s`, less what the answer needs on its way.
fn timeout(query: Option<&str>) -> Result<Duration, Rejection> {
    let given = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("timeout="));
    let patience = match given {
        None => DEFAULT_TIMEOUT,
        Some(text) => seconds(text).ok_or_else(|| {
            let message = format!("the timeout \"{text}\" is not a number of seconds such as 5s");
            Rejection::new(StatusCode::BAD_REQUEST, Rejected::BadTimeout, message)
        })?,
    };
    let patience = patience.min(LONGEST_TIMEOUT);
    Ok(patience.saturating_sub((patience / 10).min(Duration::from_millis(500))))
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: u64 = text.strip_suffix('s').unwrap_or(text).parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

fn json(answer: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(answer));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
