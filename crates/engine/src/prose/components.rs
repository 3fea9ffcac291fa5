//! What is said of components.

use super::{not_known, subject};
use crate::verdict::{About, Change, Managed, Reason, State, Verdict};

/// The whole refusal, where nothing but component protection is in the way; without what lifts it.
pub(super) fn refusal(verdict: &Verdict, about: &About) -> Option<String> {
    let mut because = Vec::new();
    let mut managed = false;
    for finding in &verdict.findings {
        match &finding.reason {
            Reason::Managed(each) => {
                managed = true;
                because.push(self::because(each));
            }
            Reason::Unreadable(unknown) if managed => because.push(not_known(unknown)),
            _ => return None,
        }
    }
    let unlifted = verdict.findings.iter().find_map(|finding| match (&finding.reason, &finding.lift) {
        (Reason::Managed(Managed { protection: Some(name), .. }), None) => Some(name),
        _ => None,
    });
    let ask =
        unlifted.map(|name| format!(" kubectl get cprot {name} -o yaml shows who may.")).unwrap_or_default();
    managed.then(|| format!("{} is managed by an operator: {}.{ask}", subject(about), because.join("; ")))
}

/// `it is a component of etcd.druid.gardener.cloud "shop/main", which is being reconciled, and only etcd-druid may delete it`
pub(super) fn because(managed: &Managed) -> String {
    let Managed { protection, parent, change, state } = managed;
    let state = match state {
        State::AtRest => "",
        State::Reconciling => ", which is being reconciled",
        State::Deleting => ", which is being deleted",
    };
    let change = match change {
        Change::Update => "change it",
        Change::Delete => "delete it",
        Change::Scale => "scale it",
        Change::Strip => "change the labels and owners that it is known by",
    };
    let who = match protection {
        Some(name) => format!("the operators of ComponentProtection \"{name}\""),
        None => "etcd-druid".to_owned(),
    };
    format!("it is a component of {}{state}, and only {who} may {change}", subject(parent))
}
