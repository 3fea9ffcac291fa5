//! Flow control: so many pods of the cluster go in a time, whoever removes them.
//!
//! A pod that has not ended and is not going already costs one of what every rule of every `PodDeletionFlowControl`
//! allows that governs its namespace and does not white-list it; and so does one that somebody other than Kubernetes
//! ends by writing its status: it is as good as deleted. Nobody is asked how it would be missed: this is for
//! the day on which something deletes everything.

use palisade_api::flow::Control;

use crate::pod::{Part, PodState, is_ended_by_status};
use crate::review::{Action, Review, Subject, User};
use crate::verdict::{Code, Finding, Found, Guard, Lift, Reason, Warning};
use crate::world::{Throttled, Unknown};

/// A slot that frees later than this is not worth waiting for in a request.
const WORTH_WAITING: u32 = 10;

/// Who removes the pod, if it is removed and has not ended.
pub(super) fn remover<'a>(
    subject: &Subject<'_>,
    review: &'a Review<'a>,
) -> Result<Option<&'a User<'a>>, Unknown> {
    let unreadable =
        |error: crate::json::Malformed| Unknown::new("whether the pod has ended", error.to_string());
    match &review.action {
        Action::Delete(_) | Action::Evict { .. } => {}
        Action::Update { pod, new, part: Part::Status } => {
            let ended = is_ended_by_status(&pod.object, new, &review.user).map_err(unreadable)?;
            return Ok(ended.then_some(&review.user));
        }
        _ => return Ok(None),
    }
    let state = PodState::read(&subject.object).map_err(unreadable)?;
    Ok((!state.is_finished()).then_some(&review.user))
}

/// A flow control that does not allow it.
pub(super) fn finding(throttled: Throttled) -> Finding {
    let command = format!(
        r#"kubectl patch pdfc {} --type=merge -p '{{"spec":{{"action":"Warn"}}}}'"#,
        throttled.control
    );
    Finding {
        guard: Guard::Flow,
        code: Code::TooManyRequests,
        reason: Reason::Throttled(throttled),
        lift: Some(Lift::Command(command)),
    }
}

/// Whether one allows it could not be found out in time.
pub(super) fn unknown(unknown: Unknown) -> Finding {
    let reason = Reason::FlowUnknown(unknown);
    Finding { guard: Guard::Flow, code: Code::TooManyRequests, reason, lift: None }
}

/// Those that are against it, and let it pass.
pub(super) fn note(passed: Vec<Throttled>, found: &mut Found) {
    use palisade_api::action::Action;
    let warned = passed.iter().filter(|throttled| throttled.action == Action::Warn).cloned();
    found.warnings.extend(warned.map(Warning::Throttled));
    found.passed = passed;
}

/// After how many seconds it is worth another try, where flow controls are all that is in the way.
pub(crate) fn retry_after(findings: &[Finding], user: &User<'_>) -> Option<u32> {
    let waits = findings.iter().map(|finding| match &finding.reason {
        Reason::Throttled(throttled) => throttled.next_slot,
        _ => None,
    });
    let longest = waits.collect::<Option<Vec<u32>>>()?.into_iter().max()?;
    (longest <= WORTH_WAITING && !user.is_kubernetes()).then_some(longest.max(1))
}

/// Whether a flow control says something.
pub(super) fn check(subject: &Subject<'_>) -> Found {
    let mut found = Found::default();
    if let Err(why) = subject.object.spec_json().and_then(|spec| Control::read(&spec)) {
        found.findings.push(Finding::invalid(Guard::Flow, why));
    }
    found
}
