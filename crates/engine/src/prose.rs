//! Verdicts as sentences: subject, reason, next command.
//!
//! The one place where messages are written, so that `kubectl delete`, `--dry-run=server` and
//! `palisade why` say the same.

use std::borrow::Cow;

use palisade_api::marks::{Mark, Mode, Place};

use crate::verdict::{About, Finding, Held, Lift, Reason, Verdict, Warning};
use crate::world::{Census, Unknown};

/// How many names a message lists before it says how many more there are.
pub const NAMES_SHOWN: usize = 5;

/// Why not, and what to do; `None` for an allowed action.
pub fn refusal(verdict: &Verdict) -> Option<String> {
    let about = verdict.about.as_ref()?;
    if verdict.findings.is_empty() {
        return None;
    }
    let because: Vec<String> = verdict.findings.iter().map(|finding| because(&finding.reason)).collect();
    let mut text = format!("{} is protected from deletion: {}.", subject(about), because.join("; "));
    if let Some(step) = verdict.findings.iter().find_map(first_step) {
        text.push(' ');
        text.push_str(step);
    }
    let commands = lifting(about, &verdict.findings);
    if !commands.is_empty() {
        text.push_str(" To lift it: ");
        text.push_str(&commands.join(" && "));
    }
    Some(text)
}

/// What one finding says, for the `causes` of a refusal.
pub fn because(reason: &Reason) -> String {
    match reason {
        Reason::Marked(mark) => match mark.mistyped {
            None => written(mark),
            Some(_) => format!("{} (not a known value, so it protects like Always)", written(mark)),
        },
        Reason::MarkedWhile(mark, held) => {
            let held: Vec<String> = held.iter().map(holding).collect();
            format!("{}, and it has {}", written(mark), held.join(" and "))
        }
        Reason::MarkedUnknown(mark, unknown) => format!("{}, and {}", written(mark), not_known(unknown)),
        Reason::Unreadable(unknown) => not_known(unknown),
    }
}

/// What to say besides the outcome. Kubernetes cuts warnings at 256 characters.
pub fn warning(about: &About, warning: &Warning) -> String {
    match warning {
        Warning::Mistyped(mark) => format!(
            "{}: {} {} has the value \"{}\", which protects like {}; known values are {}",
            subject(about),
            place(mark.place),
            mark.key,
            mark.value,
            match mark.mode {
                Mode::Always => "Always",
                Mode::Cascading => "true",
            },
            mark.mistyped.unwrap_or_default(),
        ),
        Warning::CascadingNotKnown(mark) => format!(
            "{}: {} does not protect it: Cascading is not known for this kind; Always is",
            subject(about),
            written(mark),
        ),
    }
}

/// `deployment "shop/web"`
pub fn subject(about: &About) -> String {
    match &about.namespace {
        Some(namespace) => format!("{} \"{namespace}/{}\"", about.kind, about.name),
        None => format!("{} \"{}\"", about.kind, about.name),
    }
}

/// The commands that lift every protection, one for labels and one for annotations.
pub fn lifting(about: &About, findings: &[Finding]) -> Vec<String> {
    let mut labels: Vec<&str> = Vec::new();
    let mut annotations: Vec<&str> = Vec::new();
    for finding in findings {
        let (keys, key) = match &finding.lift {
            Some(Lift::RemoveLabel(key)) => (&mut labels, key),
            Some(Lift::RemoveAnnotation(key)) => (&mut annotations, key),
            None => continue,
        };
        if !keys.contains(key) {
            keys.push(key);
        }
    }
    let command = |verb: &str, keys: &[&str]| {
        let namespace =
            about.namespace.as_ref().map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
        let removed = keys.join("- ");
        format!("kubectl {verb} {} {}{namespace} {removed}-", about.kubectl_name, shell_word(&about.name))
    };
    let mut commands = Vec::new();
    if !labels.is_empty() {
        commands.push(command("label", &labels));
    }
    if !annotations.is_empty() {
        commands.push(command("annotate", &annotations));
    }
    commands
}

/// `label policy.kruise.io/delete-protection=Always`
fn written(mark: &Mark) -> String {
    format!("{} {}={}", place(mark.place), mark.key, mark.value)
}

fn place(place: Place) -> &'static str {
    match place {
        Place::Label => "label",
        Place::Annotation => "annotation",
    }
}

fn not_known(unknown: &Unknown) -> String {
    format!("{} could not be found out ({})", unknown.question, unknown.why)
}

fn holding(held: &Held) -> String {
    match held {
        Held::ActivePods(census) => counted(census, "active pod", "active pods"),
        Held::BoundClaims(census) => {
            counted(census, "bound persistent volume claim", "bound persistent volume claims")
        }
        Held::Instances(resource, census) => counted(
            census,
            &format!("custom resource ({resource})"),
            &format!("custom resources ({resource})"),
        ),
        Held::Replicas(1) => "1 replica".to_owned(),
        Held::Replicas(replicas) => format!("{replicas} replicas"),
    }
}

/// `3 active pods: web-0, web-1, web-2`
fn counted(census: &Census, one: &str, many: &str) -> String {
    let noun = if census.count.is_one() { one } else { many };
    let mut text = format!("{} {noun}: {}", census.count, census.names.join(", "));
    if census.count.seen() > census.names.len() {
        text.push_str(", …");
    }
    text
}

/// What makes a `Cascading` refusal go away without lifting the protection.
fn first_step(finding: &Finding) -> Option<&'static str> {
    match &finding.reason {
        Reason::MarkedWhile(_, held) if held.iter().any(|held| matches!(held, Held::Replicas(_))) => {
            Some("Scale it to 0 first.")
        }
        Reason::MarkedWhile(..) => Some("Delete those first."),
        Reason::MarkedUnknown(..) | Reason::Unreadable(_) => Some("Try again later."),
        Reason::Marked(_) => None,
    }
}

/// A name as one word of a shell. RBAC names may hold nearly anything.
fn shell_word(name: &str) -> Cow<'_, str> {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':' | '@' | '/' | '+' | ',');
    if name.chars().all(plain) {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(format!("'{}'", name.replace('\'', r"'\''")))
    }
}
