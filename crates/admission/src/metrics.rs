//! What Palisade counts. No object names and no users in labels: the number of series is fixed.

use std::time::Duration;

use palisade_api::action::Action;
use palisade_cluster::Entry;
use palisade_engine::{Code, Guard, Verdict};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Every metric of one replica.
pub struct Metrics {
    registry: Registry,
    reviews: Family<Outcome, Counter>,
    refusals: Family<ByGuard, Counter>,
    rejected: Family<Why, Counter>,
    matched: Family<ByAction, Counter>,
    durations: Histogram,
    reservations: Family<Outcome, Counter>,
    ledger_writes: Counter,
    ledger_conflicts: Counter,
    pub connections: Gauge,
    closed_connections: Family<Why, Counter>,
    events: Family<Outcome, Counter>,
    pub leader: Gauge,
    pub indexed_pods: Gauge,
    pub pod_watch_silence: Gauge,
    pub flow_controls_tripped: Gauge,
    pub flow_trips: Counter,
    pub generated_budget_writes: Counter,
    pub registration_writes: Counter,
    pub certificate_expiry: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByGuard {
    guard: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByAction {
    action: &'static str,
}

fn action_name(action: Action) -> &'static str {
    match action {
        Action::Deny => "deny",
        Action::Warn => "warn",
        Action::Audit => "audit",
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Why {
    why: &'static str,
}

const ALLOWED: &str = "allowed";
const WARNED: &str = "warned";
const REFUSED: &str = "refused";
const RESERVED: &str = "reserved";

/// Why a request was no review that could be decided.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rejected {
    BadTimeout,
    ContentType,
    TooLarge,
    NoRoom,
    BrokenBody,
    SlowBody,
    Unreadable,
    Undecidable,
    TooLate,
}

impl Rejected {
    const ALL: &[Self] = &[
        Self::BadTimeout,
        Self::ContentType,
        Self::TooLarge,
        Self::NoRoom,
        Self::BrokenBody,
        Self::SlowBody,
        Self::Unreadable,
        Self::Undecidable,
        Self::TooLate,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::BadTimeout => "bad-timeout",
            Self::ContentType => "content-type",
            Self::TooLarge => "too-large",
            Self::NoRoom => "no-room",
            Self::BrokenBody => "broken-body",
            Self::SlowBody => "slow-body",
            Self::Unreadable => "unreadable",
            Self::Undecidable => "undecidable",
            Self::TooLate => "too-late",
        }
    }
}

/// What became of an Event.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    Written,
    /// It was said before.
    Repeated,
    /// There were too many.
    Dropped,
    Failed,
}

impl Told {
    const ALL: &[Self] = &[Self::Written, Self::Repeated, Self::Dropped, Self::Failed];

    fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Repeated => "repeated",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}

/// Why a connection was closed by us.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Closed {
    /// There was no TLS on it, or not in time.
    Handshake,
    /// It sent no review in time.
    Silent,
    /// Its place was needed by another.
    Crowded,
}

impl Closed {
    const ALL: &[Self] = &[Self::Handshake, Self::Silent, Self::Crowded];

    fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Silent => "silent",
            Self::Crowded => "crowded",
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        // 50 µs to 6.5 s, each four times the last.
        let durations = Histogram::new((0..9).map(|n| 0.000_05 * 4_f64.powi(n)));
        let mut metrics = Self {
            registry: Registry::with_prefix("palisade"),
            reviews: Family::default(),
            refusals: Family::default(),
            rejected: Family::default(),
            matched: Family::default(),
            durations,
            reservations: Family::default(),
            ledger_writes: Counter::default(),
            ledger_conflicts: Counter::default(),
            connections: Gauge::default(),
            closed_connections: Family::default(),
            events: Family::default(),
            leader: Gauge::default(),
            indexed_pods: Gauge::default(),
            pod_watch_silence: Gauge::default(),
            flow_controls_tripped: Gauge::default(),
            flow_trips: Counter::default(),
            generated_budget_writes: Counter::default(),
            registration_writes: Counter::default(),
            certificate_expiry: Gauge::default(),
        };
        metrics.register();
        metrics.touch();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let Self {
            registry,
            reviews,
            refusals,
            rejected,
            matched,
            durations,
            reservations,
            ledger_writes,
            ledger_conflicts,
            connections,
            closed_connections,
            events,
            leader,
            indexed_pods,
            pod_watch_silence,
            flow_controls_tripped,
            flow_trips,
            generated_budget_writes,
            registration_writes,
            certificate_expiry,
        } = self;
        registry.register(
            "reviews",
            "Reviews answered, by outcome: allowed, warned, refused",
            reviews.clone(),
        );
        registry.register("refusals", "Findings that refused something, by guard and code", refusals.clone());
        registry.register(
            "rejected_requests",
            "Requests that were no review we could decide, by why",
            rejected.clone(),
        );
        registry.register(
            "review_duration_seconds",
            "From the body's last byte to the answer",
            durations.clone(),
        );
        registry.register(
            "protected_deletions",
            "Deletions that a ResourceDeletionProtection concerned, by its action; dry runs aside",
            matched.clone(),
        );
        register_ledger(registry, reservations, ledger_writes, ledger_conflicts);
        registry.register("connections", "Open connections of API servers", connections.clone());
        registry.register(
            "closed_connections",
            "Connections that were closed before they sent a review, by why: handshake, silent, crowded",
            closed_connections.clone(),
        );
        registry.register(
            "events",
            "Events about refusals and lifted protections, by outcome: written, repeated, dropped, failed",
            events.clone(),
        );
        registry.register("leader", "1 on the replica that runs the controllers", leader.clone());
        registry.register(
            "indexed_pods",
            "Pods that are kept in the index, for budgets",
            indexed_pods.clone(),
        );
        registry.register(
            "pod_watch_silence_seconds",
            "How long the watch of pods has said nothing; above 20 it is dead",
            pod_watch_silence.clone(),
        );
        registry.register(
            "flow_controls_tripped",
            "Flow controls whose limit is reached, as the replica sees them that runs the controllers",
            flow_controls_tripped.clone(),
        );
        registry.register(
            "flow_trips",
            "Times that the limit of a flow control was reached",
            flow_trips.clone(),
        );
        registry.register(
            "generated_budget_writes",
            "Times that a generated budget was created, changed or removed",
            generated_budget_writes.clone(),
        );
        registry.register(
            "registration_writes",
            "Times the webhook configuration was created, changed, repaired or removed",
            registration_writes.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "When the serving certificate ends, in seconds since 1970",
            certificate_expiry.clone(),
        );
    }

    /// Makes every series there from the start, so that a first refusal shows as an increase.
    fn touch(&self) {
        for outcome in [ALLOWED, WARNED, REFUSED] {
            let _ = self.reviews.get_or_create(&Outcome { outcome });
        }
        for outcome in [RESERVED, REFUSED] {
            let _ = self.reservations.get_or_create(&Outcome { outcome });
        }
        for guard in Guard::ALL {
            for code in Code::ALL {
                let _ = self.refusals.get_or_create(&ByGuard { guard: guard.name(), code: code.status() });
            }
        }
        for action in [Action::Deny, Action::Warn, Action::Audit] {
            let _ = self.matched.get_or_create(&ByAction { action: action_name(action) });
        }
        for told in Told::ALL {
            let _ = self.events.get_or_create(&Outcome { outcome: told.name() });
        }
        for why in Closed::ALL {
            let _ = self.closed_connections.get_or_create(&Why { why: why.name() });
        }
        for why in Rejected::ALL {
            let _ = self.rejected.get_or_create(&Why { why: why.name() });
        }
    }

    pub(crate) fn decided(&self, verdict: &Verdict, took: Duration) {
        let outcome = match (verdict.is_allowed(), verdict.warnings.is_empty()) {
            (true, true) => ALLOWED,
            (true, false) => WARNED,
            (false, _) => REFUSED,
        };
        self.reviews.get_or_create(&Outcome { outcome }).inc();
        self.durations.observe(took.as_secs_f64());
        for guard in Guard::ALL {
            let mut codes: Vec<u16> = verdict
                .findings
                .iter()
                .filter(|finding| finding.guard == *guard)
                .map(|finding| finding.code.status())
                .collect();
            codes.dedup();
            for code in codes {
                self.refusals.get_or_create(&ByGuard { guard: guard.name(), code }).inc();
            }
        }
    }

    /// Counts what the ledger did.
    pub fn entered(&self, entry: Entry) {
        let outcome = |outcome: &'static str, count: usize| {
            self.reservations.get_or_create(&Outcome { outcome }).inc_by(count as u64);
        };
        match entry {
            Entry::Reserved(count) => outcome(RESERVED, count),
            Entry::Refused(count) => outcome(REFUSED, count),
            Entry::Written => drop(self.ledger_writes.inc()),
            Entry::Conflict => drop(self.ledger_conflicts.inc()),
        }
    }

    pub(crate) fn matched(&self, verdict: &Verdict) {
        for matched in &verdict.matched {
            self.matched.get_or_create(&ByAction { action: action_name(matched.action) }).inc();
        }
    }

    pub(crate) fn rejected(&self, why: Rejected) {
        self.rejected.get_or_create(&Why { why: why.name() }).inc();
    }

    /// Counts an Event.
    pub fn told(&self, told: Told) {
        self.events.get_or_create(&Outcome { outcome: told.name() }).inc();
    }

    pub(crate) fn closed(&self, why: Closed) {
        self.closed_connections.get_or_create(&Why { why: why.name() }).inc();
    }

    /// All of it, in the text format that Prometheus reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn register_ledger(
    registry: &mut Registry,
    reservations: &Family<Outcome, Counter>,
    ledger_writes: &Counter,
    ledger_conflicts: &Counter,
) {
    registry.register(
        "reservations",
        "Pods charged to budgets and flow controls, by outcome: reserved, refused; a pod of several counts for each",
        reservations.clone(),
    );
    registry.register(
        "ledger_writes",
        "Times that the status of a budget or a flow control was written for pods",
        ledger_writes.clone(),
    );
    registry.register(
        "ledger_conflicts",
        "Times that another replica wrote such a status first",
        ledger_conflicts.clone(),
    );
}
