//! What is said of critical services.

use super::{NAMES_SHOWN, not_known, subject};
use crate::order::{Deadlock, Own};
use crate::rights::MissingRights;
use crate::verdict::{About, Blocker, LeftBehind, Needed, Parting, Reason, Verdict};
use crate::world::{Count, Holders};

/// The whole refusal, where nothing but critical services is in the way; without what lifts it.
pub(super) fn refusal(verdict: &Verdict, about: &About) -> Option<String> {
    let mut needed: Vec<&Needed> = Vec::new();
    let (mut services, mut because): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    let mut of_providers: Vec<&str> = Vec::new();
    for finding in &verdict.findings {
        let (service, provider) = match &finding.reason {
            Reason::Needed(each) => {
                needed.push(each);
                because.push(blocking(each));
                (&each.service, &each.provider)
            }
            Reason::NeededUnknown { service, provider, unknown } => {
                because.push(not_known(unknown));
                (service, provider)
            }
            Reason::Serves(provider) => {
                let there = format!("{provider} is still there");
                return Some(format!(
                    "{} must outlive its provider: {there}. Delete it first.",
                    subject(about)
                ));
            }
            Reason::ServesUnknown(unknown) => {
                let why = not_known(unknown);
                let step = if unknown.missing.is_some() { "" } else { " Try again later." };
                return Some(format!("{} must outlive its provider: {why}.{step}", subject(about)));
            }
            _ => return None,
        };
        if !services.contains(&&**service) {
            services.push(service);
        }
        of_providers.extend(provider.as_deref());
    }
    of_providers.dedup();
    let it = match of_providers[..] {
        [provider] => format!("{provider} in it"),
        _ => "it".to_owned(),
    };
    let must = if needed.is_empty() { "may have to" } else { "must" };
    because.dedup();
    let must_outlive =
        format!("{} {must} outlive what depends on {it}: {}.", subject(about), because.join("; "));
    let deadlock = needed.iter().find_map(|needed| needed.deadlock.as_ref());
    let step = match deadlock {
        Some(deadlock) => format!("{}; ", endless(deadlock)),
        // The next sentence says what is missing.
        None if needed.is_empty() && MissingRights::of(verdict).is_some() => String::new(),
        None if needed.is_empty() => "Try again later; ".to_owned(),
        None => format!("{}; ", first(needed.iter().flat_map(|needed| &needed.blockers))),
    };
    let (shows, services) = (if services.len() == 1 { "shows" } else { "show" }, services.join(" "));
    Some(format!("{must_outlive} {step}kubectl get crit {services} -o yaml {shows} what is left."))
}

/// What to do about what is in the way.
pub(super) fn first<'a>(blockers: impl IntoIterator<Item = &'a Blocker>) -> &'static str {
    let (mut count, mut going) = (0, true);
    for blocker in blockers {
        match blocker {
            Blocker::Holders { holders, .. } => {
                count += match holders.census.count {
                    Count::Exactly(count) => count,
                    // There may be more.
                    Count::AtLeast(count) => count + 1,
                };
                going &= holders.going;
            }
            Blocker::There(found) => {
                count += found.names.len();
                going &= found.going;
            }
        }
    }
    match (count, going) {
        (1, false) => "Delete it first",
        (_, false) => "Delete them first",
        (1, true) => "It is going already: try again when it is gone",
        (_, true) => "They are going already: try again when they are gone",
    }
}

/// `it must outlive what depends on it: 2 widgets.example.com still carry finalizer "example.com/clean" (a, b)`
pub(super) fn because(needed: &Needed) -> String {
    let (it, service) = (needed.provider.as_deref().unwrap_or("it"), &needed.service);
    let left = blocking(needed);
    format!(
        "it must outlive what depends on {it}: {left} (kubectl get crit {service} -o yaml shows what is left)"
    )
}

fn blocking(needed: &Needed) -> String {
    needed.blockers.iter().map(blocker).collect::<Vec<_>>().join("; ")
}

fn blocker(blocker: &Blocker) -> String {
    match blocker {
        Blocker::Holders { finalizer, holders: Holders { resource, census, .. } } => {
            let carry = if census.count.is_one() { "carries" } else { "carry" };
            let mut names = census.names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
            if census.count.seen() > NAMES_SHOWN {
                names.push_str(", …");
            }
            format!("{} {resource} still {carry} finalizer \"{finalizer}\" ({names})", census.count)
        }
        Blocker::There(found) => {
            let are = if found.names.len() == 1 { "is" } else { "are" };
            let going = if found.going { " (terminating)" } else { "" };
            format!("{found} {are} still there{going}")
        }
    }
}

/// What a deadlock is about, without a full stop.
pub fn endless(deadlock: &Deadlock) -> String {
    match deadlock {
        Deadlock::Itself(own) => {
            let own = match own {
                Own::Provider => "the provider itself",
                Own::Namespace => "the provider's own namespace",
                Own::Service => "a CriticalService of its own",
                Own::Kind => "the definition of the provider's own kind",
                Own::Definition => "the definition of CriticalServices",
            };
            format!("It waits for {own}, which only its own end could end: nothing but BestEffort lets it go")
        }
        Deadlock::Cycle(names) => {
            let around: Vec<String> =
                names.iter().chain(names.first()).map(|name| format!("\"{name}\"")).collect();
            format!(
                "That is a cycle, in which each waits for the next ({}): nothing but BestEffort lets one go",
                around.join(", ")
            )
        }
    }
}

/// What was left behind, for a warning and an Event.
pub fn left_behind(about: &About, left: &LeftBehind) -> String {
    let LeftBehind { parting, needed, unknown, .. } = left;
    let why = match parting {
        Parting::BestEffort => format!("CriticalService \"{}\" is BestEffort", needed.service),
        Parting::Terminating => "its namespace is terminating".to_owned(),
    };
    let left: Vec<String> =
        needed.blockers.iter().map(blocker).chain(unknown.iter().map(not_known)).collect();
    format!("{} goes before what depends on it ({why}): {}", subject(about), left.join("; "))
}
