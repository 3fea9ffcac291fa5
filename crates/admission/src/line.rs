//! The log: one line for each review.
//!
//! A refusal and a 503 are told at `info`, whatever else is allowed at `debug`. What a caller wrote is quoted, so that
//! it can't pass for a line of its own.

use palisade_engine::{Action, Verdict, prose};
use tokio::time::Instant;

use crate::wire::Read;

/// What a line says of a review, besides what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) action: &'static str,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    user: &'a str,
    uid: &'a str,
    dry_run: bool,
    started: Instant,
}

impl<'a> Line<'a> {
    pub(crate) fn of(read: &'a Read<'_>, started: Instant) -> Self {
        let review = &read.review;
        let (action, kind, namespace, name) = match &review.action {
            Action::Delete(subject) => ("Delete", &*subject.kind.kind, subject.namespace(), subject.name()),
            Action::Create(subject) => ("Create", &*subject.kind.kind, subject.namespace(), subject.name()),
            Action::Evict { namespace, name } => ("Evict", "Pod", Some(&**namespace), &**name),
            Action::Update { pod, .. } => ("Update", "Pod", pod.namespace(), pod.name()),
            Action::Change { subject, .. } => {
                ("Update", &*subject.kind.kind, subject.namespace(), subject.name())
            }
            Action::Scale { plural, namespace, name, .. } => {
                ("Scale", &**plural, Some(&**namespace), &**name)
            }
            Action::Declare { subject, old } => {
                let action = if old.is_none() { "Create" } else { "Update" };
                (action, &*subject.kind.kind, subject.namespace(), subject.name())
            }
            Action::Other => ("Other", "", None, ""),
        };
        Self {
            action,
            kind,
            namespace: namespace.unwrap_or_default(),
            name,
            user: &review.user.name,
            uid: &read.uid,
            dry_run: review.dry_run,
            started,
        }
    }

    /// Of a review of which only the uid could be read.
    pub(crate) fn unread(uid: &'a str, started: Instant) -> Self {
        Self { action: "", kind: "", namespace: "", name: "", user: "", uid, dry_run: false, started }
    }

    pub(crate) fn write(&self, verdict: &Verdict) {
        if let Some(code) = verdict.code() {
            let mut guards: Vec<&str> = verdict.findings.iter().map(|finding| finding.guard.name()).collect();
            guards.dedup();
            let because: Vec<String> =
                verdict.findings.iter().map(|finding| prose::because(&finding.reason)).collect();
            return self.refused(&guards.join(","), code.status(), &because.join("; "));
        }
        let Self { action, kind, namespace, name, user, uid, dry_run, started } = *self;
        let duration = started.elapsed();
        tracing::debug!(action, kind, namespace, name, user, uid, dry_run, ?duration, "allowed");
    }

    pub(crate) fn refused(&self, guard: &str, code: u16, why: &str) {
        let Self { action, kind, namespace, name, user, uid, dry_run, started } = *self;
        let duration = started.elapsed();
        let why: &str = why.char_indices().nth(1_000).map_or(why, |(end, _)| &why[..end]);
        tracing::info!(
            guard,
            code,
            action,
            kind,
            namespace,
            name,
            user,
            uid,
            dry_run,
            ?duration,
            why,
            "refused"
        );
    }
}
