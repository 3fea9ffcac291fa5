//! Verdicts as sentences: subject, reason, next command.
//!
//! The one place where messages are written, so that `kubectl delete`, `--dry-run=server` and
//! `palisade why` say the same.

mod components;
mod critical;
mod disabled;
mod many;
mod rights;

use std::borrow::Cow;

use palisade_api::budget::Limit;
use palisade_api::marks::{Mark, Mode, Place};

use crate::pod::Loss;
use crate::rights::MissingRights;
use crate::verdict::{
    About, Code, Doomed, Ending, Finding, Held, Lift, Lifted, Reason, Ruled, Verdict, Warning,
};
use crate::world::{Census, Standing, Throttled, Unknown};

pub use critical::{endless, left_behind};
pub use many::{Many, many};

/// How many names a message lists before it says how many more there are.
pub const NAMES_SHOWN: usize = 5;

/// How much of a cause a warning tells.
const WHY_SHOWN: usize = 120;

/// Why not, and what to do; `None` for an allowed action.
pub fn refusal(verdict: &Verdict) -> Option<String> {
    let about = verdict.about.as_ref()?;
    if verdict.findings.is_empty() {
        return None;
    }
    let because: Vec<String> = verdict.findings.iter().map(|finding| because(&finding.reason)).collect();
    // Where not even a mark was seen, nobody knows.
    let known = verdict.findings.iter().any(|finding| !matches!(finding.reason, Reason::Unreadable(_)));
    let verb = if known { "is" } else { "may be" };
    let specific = critical::refusal(verdict, about).or_else(|| components::refusal(verdict, about));
    let says_what_to_do = specific.is_some();
    let mut text = match verdict.findings.iter().find_map(|finding| loss(&finding.reason)) {
        _ if specific.is_some() => specific.unwrap_or_default(),
        _ if verdict.code() == Some(Code::Invalid) => {
            format!("{} is refused: {}", subject(about), because.join("; "))
        }
        _ if !is_only_for_now(verdict) => {
            format!("{} {verb} protected from deletion: {}.", subject(about), because.join("; "))
        }
        Some(loss) => {
            format!("{} has to stay available ({}): {}.", subject(about), losing(loss), because.join("; "))
        }
        None => format!("{} may not be deleted now: {}.", subject(about), because.join("; ")),
    };
    if let Some(namespace) = &verdict.awaited_by {
        text.extend([" Namespace \"", namespace, "\" is terminating, and waits for it."]);
    }
    let ending = verdict.findings.iter().find_map(|finding| match &finding.reason {
        Reason::Unselected(_, _, ending) => Some(*ending),
        _ => None,
    });
    if let Some(ending) = ending {
        text.extend([" ", change(ending), " would end that."]);
    }
    // A step helps only if every finding has one: to scale down what is protected for ever would be for nothing.
    let waits = |finding: &&Finding| !matches!(finding.lift, Some(Lift::Grant(_)));
    let steps: Option<Vec<String>> =
        verdict.findings.iter().filter(waits).map(|finding| first_step(about, finding)).collect();
    if let Some(step) = steps.as_ref().and_then(|steps| steps.first()).filter(|_| !says_what_to_do) {
        text.push(' ');
        text.push_str(step);
    }
    if let Some(missing) = MissingRights::of(verdict) {
        text.push(' ');
        text.push_str(&rights::sentence(&missing));
    }
    for finding in &verdict.findings {
        if let Reason::Dooms(_, Some(many)) = &finding.reason {
            text.push_str(&many::told(many));
        }
    }
    let commands = lifting(about, verdict.findings.iter().filter_map(|finding| finding.lift.as_ref()));
    if !commands.is_empty() {
        text.push_str(" To lift it: ");
        text.push_str(&commands.join(" && "));
    }
    Some(text)
}

/// What an update takes away: `label a=b was removed`.
pub fn lifted(lifted: &Lifted) -> String {
    match &lifted.now {
        None => format!("{} was removed", written(&lifted.mark)),
        Some(now) => format!("{} was changed to \"{now}\"", written(&lifted.mark)),
    }
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
        Reason::Ruled(rule, held) | Reason::Unselected(rule, held, _) if held.is_empty() => ruled(rule),
        Reason::Ruled(rule, held) | Reason::Unselected(rule, held, _) => {
            let held: Vec<String> = held.iter().map(holding).collect();
            format!("{}, and it has {}", ruled(rule), held.join(" and "))
        }
        Reason::RuledUnknown(rule, unknown) => format!("{}, and {}", ruled(rule), not_known(unknown)),
        Reason::Dooms(doomed, many) => {
            let named: Vec<String> = doomed.iter().map(one_of_the_doomed).collect();
            let named = named.join(", ");
            match many {
                Some(many) => format!("{} protected objects would go with it: {named}, …", many.count),
                None if doomed.len() == 1 => format!("a protected object would go with it: {named}"),
                None => format!("{} protected objects would go with it: {named}", doomed.len()),
            }
        }
        Reason::Own(held) => {
            format!("every protection that it defines would vanish: it has {}", holding(held))
        }
        Reason::Spent(_, standing) => {
            let Standing { budget, allowed, available, desired, total } = standing;
            let (allowed, pods) = (allowed.max(&0), if *allowed == 1 { "pod" } else { "pods" });
            format!(
                "budget \"{budget}\" allows {allowed} more unavailable {pods} now ({available} available, \
                 {desired} desired, {total} total)"
            )
        }
        Reason::Throttled(throttled) => throttling(throttled),
        Reason::Managed(managed) => components::because(managed),
        Reason::Needed(needed) => critical::because(needed),
        Reason::Serves(provider) => format!("it must outlive its provider: {provider} is still there"),
        Reason::Invalid(why) => why.clone(),
        Reason::NeededUnknown { unknown, .. }
        | Reason::ServesUnknown(unknown)
        | Reason::SpentUnknown(_, unknown)
        | Reason::FlowUnknown(unknown)
        | Reason::Unreadable(unknown) => not_known(unknown),
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
            on_one_line(&mark.value),
            match mark.mode {
                Mode::Always => "Always",
                Mode::Cascading => "true",
            },
            mark.mistyped.unwrap_or_default(),
        ),
        Warning::Unselected(rule, ending) => {
            let change = match ending {
                Ending::Labels => "with this change of its labels it no longer is",
                Ending::Controller => "as a controller's it no longer is",
            };
            format!("{} is protected from deletion: {}; {change}", subject(about), ruled(rule))
        }
        Warning::Ruled(rule) => format!("{} is protected from deletion: {}", subject(about), ruled(rule)),
        Warning::Throttled(throttled) => format!("{} is beyond {}", subject(about), throttling(throttled)),
        Warning::LeftBehind(left) => left_behind(about, left),
        Warning::DependentsStay(staying) => {
            let named: Vec<String> = staying.iter().take(NAMES_SHOWN).map(one_of_the_doomed).collect();
            let more = if staying.len() > NAMES_SHOWN { ", …" } else { "" };
            format!(
                "{} owns protected objects in namespaces, and they stay behind: {}{more}. The garbage collector's deletion of \
                 them is refused",
                subject(about),
                named.join(", ")
            )
        }
        Warning::DependentsUnknown(unknown) => format!(
            "{} may own protected objects in namespaces, and they would stay behind: {}",
            subject(about),
            not_known(unknown)
        ),
        Warning::NotServed(resource) => {
            format!(
                "{}: the cluster serves no {resource}; what waits for it is met until it does",
                subject(about)
            )
        }
        Warning::ProviderNotServed(resource) => {
            format!(
                "{}: the cluster serves no {resource}; its provider is protected once it does",
                subject(about)
            )
        }
        Warning::OwnNamespace => {
            format!(
                "{}: nothing is refused in Palisade's own namespace, so its provider is not protected",
                subject(about)
            )
        }
        Warning::NoParent(kind, name) => {
            format!("{}: it is a component of {kind} \"{name}\", which is not there", subject(about))
        }
        Warning::NotHeldYet => format!(
            "{} does not hold yet: the registration could not be changed in time; its condition Enforced says from when on it does",
            subject(about)
        ),
        Warning::Bounded { limit, least } => bounded(about, *limit, *least),
        Warning::Deadlocked(deadlock) => format!("{}: {}", subject(about), endless(deadlock)),
        Warning::Unreadable(unreadable) => {
            let why: String = unreadable.why.chars().take(WHY_SHOWN).collect();
            format!("{}: its {} could not be looked at ({why})", subject(about), unreadable.resource())
        }
        Warning::NotSearched(groups) => rights::not_searched(about, groups),
        Warning::InTemplate(mark) => format!(
            "{}: {} in its template is copied to all that is made from it: people can't delete those, controllers can. To \
             protect it, set the label on its own metadata",
            subject(about),
            written(mark),
        ),
        Warning::Transient(mark) => format!(
            "{}: {} does not protect it: Endpoints, EndpointSlices, Events and Leases are never protected by label",
            subject(about),
            written(mark),
        ),
        Warning::Disabled(what) => disabled::warning(about, what),
    }
}

/// Why a budget lets more pods go than it says.
fn bounded(about: &About, limit: Limit, least: u32) -> String {
    let (field, value) = limit.written();
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pods = if least == 1 { "1 pod".to_owned() } else { format!("{least} pods") };
    format!(
        "{}: {field}: {value} would let no pod go, and so it lets {pods} go: no administrator writes it. An administrator is \
         whoever may create and update budgets in all namespaces",
        subject(about)
    )
}

/// `deployment "shop/web"`
pub fn subject(about: &About) -> String {
    match &about.namespace {
        Some(namespace) => format!("{} \"{namespace}/{}\"", about.kind, about.name),
        None => format!("{} \"{}\"", about.kind, about.name),
    }
}

/// The commands that lift every protection, one for labels and one for annotations.
pub fn lifting<'a>(about: &About, lifts: impl IntoIterator<Item = &'a Lift>) -> Vec<String> {
    let mut labels: Vec<&str> = Vec::new();
    let mut annotations: Vec<&str> = Vec::new();
    let mut others: Vec<String> = Vec::new();
    let mut missing: Vec<&MissingRights> = Vec::new();
    for lift in lifts {
        let (keys, key) = match lift {
            Lift::RemoveLabel(key) => (&mut labels, key),
            Lift::RemoveAnnotation(key) => (&mut annotations, key),
            Lift::SetAnnotation(key, value) => {
                others.push(annotate_command(about, key, value));
                continue;
            }
            Lift::Command(command) => {
                others.push(command.clone());
                continue;
            }
            Lift::Commands(commands) => {
                others.extend(commands.iter().cloned());
                continue;
            }
            Lift::Grant(rights) => {
                missing.push(rights);
                continue;
            }
        };
        if !keys.contains(key) {
            keys.push(key);
        }
    }
    let command = |verb: &str, keys: &[&str]| {
        if !kubectl_takes(&about.name) {
            return patch_command(about, verb, keys);
        }
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
    others.extend(MissingRights::all(missing).iter().flat_map(rights::granting));
    for other in others {
        if !commands.contains(&other) {
            commands.push(other);
        }
    }
    commands
}

/// Whether kubectl would take a name for one, and not for a flag or a change of labels. RBAC names may be anything.
fn kubectl_takes(name: &str) -> bool {
    !name.starts_with('-') && !name.ends_with('-') && !name.contains('=')
}

/// The command that sets an annotation.
pub(crate) fn annotate_command(about: &About, key: &str, value: &str) -> String {
    let namespace = about.namespace.as_ref().map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    let (name, value) = (shell_word(&about.name), shell_word(value));
    format!("kubectl annotate {} {name}{namespace} {key}={value}", about.kubectl_name)
}

/// What `kubectl label` does, for a name that it cannot take.
fn patch_command(about: &About, verb: &str, keys: &[&str]) -> String {
    let map = if verb == "label" { "labels" } else { "annotations" };
    let removals: Vec<String> = keys
        .iter()
        .map(|key| {
            format!(
                r#"{{"op":"remove","path":"/metadata/{map}/{}"}}"#,
                key.replace('~', "~0").replace('/', "~1")
            )
        })
        .collect();
    let namespace = about.namespace.as_ref().map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    let patch = removals.join(",");
    format!(
        "kubectl patch {}{namespace} --type=json -p '[{patch}]' -- {}",
        about.kubectl_name,
        shell_word(&about.name)
    )
}

/// `label policy.kruise.io/delete-protection=Always`
fn written(mark: &Mark) -> String {
    format!("{} {}={}", place(mark.place), mark.key, on_one_line(&mark.value))
}

/// A value that somebody chose, short and without what could pass for our own words. Labels are never longer;
/// annotations may hold anything.
fn on_one_line(value: &str) -> String {
    const LONGEST: usize = 63;
    let mut text: String = value.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if value.chars().count() > LONGEST {
        text.push('…');
    }
    text
}

/// `ResourceDeletionProtection "sample" (ask the platform team)`
fn ruled(rule: &Ruled) -> String {
    match &rule.message {
        Some(message) => {
            let message: Vec<&str> = message.split_whitespace().collect();
            format!("ResourceDeletionProtection \"{}\" ({})", rule.protection, message.join(" "))
        }
        None => format!("ResourceDeletionProtection \"{}\"", rule.protection),
    }
}

fn change(ending: Ending) -> &'static str {
    match ending {
        Ending::Labels => "This change of its labels",
        Ending::Controller => "To make it a controller's",
    }
}

/// `flow control "default": 50 pods deleted in the last 1m (limit 50); next slot in 12s`
fn throttling(throttled: &Throttled) -> String {
    let Throttled { control, interval, limit, used, next_slot, .. } = throttled;
    if *limit == 0 {
        return format!("flow control \"{control}\": it stops all deletions of pods (limit 0 in {interval})");
    }
    if used < limit {
        let wait = next_slot.map(duration).unwrap_or_default();
        return format!(
            "flow control \"{control}\": nothing came of its deletion just now, and for {wait} the last slot in {interval} is \
             left to others"
        );
    }
    let pods = if *used == 1 { "pod" } else { "pods" };
    let next = next_slot.map(|seconds| format!("; next slot in {}", duration(seconds))).unwrap_or_default();
    format!("flow control \"{control}\": {used} {pods} deleted in the last {interval} (limit {limit}){next}")
}

/// `12s`, `3m5s`, `1h`: as Kubernetes writes durations, without zeros.
fn duration(seconds: u32) -> String {
    let parts = [(seconds / 3_600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let told = parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}"));
    told.collect::<Vec<_>>().concat()
}

/// `deployment "shop/web" (label policy.kruise.io/delete-protection=Always)`
fn one_of_the_doomed(doomed: &Doomed) -> String {
    let because: Vec<String> = doomed.because.iter().map(because).collect();
    format!("{} ({})", subject(&doomed.about), because.join("; "))
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
        Held::DaemonPods(1) => "1 pod that it should run".to_owned(),
        Held::DaemonPods(pods) => format!("{pods} pods that it should run"),
        Held::JobPods(1) => "1 active pod".to_owned(),
        Held::JobPods(pods) => format!("{pods} active pods"),
        Held::ActiveJobs(census) => counted(census, "active Job", "active Jobs"),
        Held::BoundVolume(volume) => named("a volume that it is bound to", volume),
        Held::BoundClaim(claim) => named("a claim that it is bound to", claim),
        Held::MountingPods(census) => counted(census, "pod that mounts it", "pods that mount it"),
        Held::ReadyEndpoints(census) => counted(census, "ready endpoint", "ready endpoints"),
        Held::NodePods(census) => {
            counted(census, "pod that is not a DaemonSet's", "pods that are not a DaemonSet's")
        }
        Held::Dependents(census) => counted(census, "object that it owns", "objects that it owns"),
    }
}

fn named(what: &str, name: &str) -> String {
    if name.is_empty() { what.to_owned() } else { format!("{what}: {name}") }
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

/// Whether budgets and flow controls are all that is in the way.
fn is_only_for_now(verdict: &Verdict) -> bool {
    verdict.findings.iter().all(|finding| {
        loss(&finding.reason).is_some()
            || matches!(finding.reason, Reason::Throttled(_) | Reason::FlowUnknown(_))
    })
}

/// The way in which a budget would lose a pod.
fn loss(reason: &Reason) -> Option<&Loss> {
    match reason {
        Reason::Spent(loss, _) | Reason::SpentUnknown(loss, _) => Some(loss),
        _ => None,
    }
}

fn losing(loss: &Loss) -> String {
    match loss {
        Loss::Deletion => "this deletes it".to_owned(),
        Loss::Eviction => "this evicts it".to_owned(),
        Loss::Update(field) => format!("this changes {field}, which restarts it"),
        Loss::Resize(what) => format!("this resizes {what}, which restarts it"),
        Loss::Gate(gate) => format!("this closes its readiness gate {gate}"),
        Loss::Phase(phase) if phase.is_empty() => "this takes its phase away".to_owned(),
        Loss::Phase(phase) => format!("this sets its phase to {phase}"),
        Loss::Unready => "this says that it is not ready".to_owned(),
        Loss::Parting => "this takes away the labels or the owner that it is chosen by".to_owned(),
        Loss::HotUpgrade(label) => format!("label {label} takes it out of service"),
    }
}

/// What makes a `Cascading` refusal go away without lifting the protection.
fn first_step(about: &About, finding: &Finding) -> Option<String> {
    let step = match &finding.reason {
        Reason::MarkedWhile(_, held) | Reason::Ruled(_, held) => return step_without(about, held),
        Reason::Dooms(..) | Reason::Own(_) => "Delete those first.".to_owned(),
        Reason::Spent(_, standing) => {
            let namespace = about.namespace.as_deref().unwrap_or_default();
            format!("Wait until more are: kubectl get pub {} -n {namespace} -w.", standing.budget)
        }
        Reason::Throttled(throttled) if throttled.limit > 0 => {
            format!("Wait until there is a slot: kubectl get pdfc {} -w.", throttled.control)
        }
        Reason::Needed(needed) if needed.deadlock.is_none() => {
            format!("{}.", critical::first(&needed.blockers))
        }
        Reason::Serves(_) => "Delete it first.".to_owned(),
        Reason::MarkedUnknown(..)
        | Reason::NeededUnknown { .. }
        | Reason::ServesUnknown(_)
        | Reason::RuledUnknown(..)
        | Reason::SpentUnknown(..)
        | Reason::FlowUnknown(_)
        | Reason::Unreadable(_) => "Try again later.".to_owned(),
        Reason::Marked(_)
        | Reason::Unselected(..)
        | Reason::Throttled(_)
        | Reason::Needed(_)
        | Reason::Managed(_)
        | Reason::Invalid(_) => return None,
    };
    Some(step)
}

/// What to do first, so that nothing would go with an object; `None` where nothing can be done but to lift the protection.
fn step_without(about: &About, held: &[Held]) -> Option<String> {
    Some(match held.first()? {
        Held::Replicas(_) => "Scale it to 0 first.".to_owned(),
        Held::DaemonPods(_) => "Give it a node selector that no Node has first.".to_owned(),
        Held::JobPods(_) => "Suspend it, or wait until it has ended.".to_owned(),
        // A claim is bound until it is deleted.
        Held::BoundVolume(_) => return None,
        Held::ReadyEndpoints(_) => "Scale what is behind it to 0 first.".to_owned(),
        Held::NodePods(_) => {
            format!("Drain it first: kubectl drain {} --ignore-daemonsets.", shell_word(&about.name))
        }
        Held::ActivePods(_)
        | Held::BoundClaims(_)
        | Held::Instances(..)
        | Held::ActiveJobs(_)
        | Held::BoundClaim(_)
        | Held::MountingPods(_)
        | Held::Dependents(_) => "Delete those first.".to_owned(),
    })
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
