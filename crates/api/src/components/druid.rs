//! etcd-druid's components: a protection that flags switch on.

use super::{
    Chosen, ComponentKind, Components, FreeUpdates, GroupKind, OtherParent, Path, ReleasedKinds, StateRule,
    UserTemplate,
};
use crate::exempt::{Exempt, Exemptions};
use crate::labels::{LabelRule, LabelSelector};

/// What messages call the protection.
pub const NAME: &str = "etcd-druid";
pub const RECONCILER: &str = "system:serviceaccount:default:etcd-druid";
pub const EXEMPT: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "etcd-druid");
const PART_OF: &str = "app.kubernetes.io/part-of";
/// etcd-druid's group.
pub const GROUP: &str = "druid.gardener.cloud";
const DISABLE: &str = "druid.gardener.cloud/disable-etcd-component-protection";
/// On an Etcd whose members run elsewhere, as static pods: etcd-druid makes only its `ConfigMap` and its `StatefulSet`.
const DISABLE_RUNTIME: &str = "druid.gardener.cloud/disable-etcd-runtime-component-creation";

/// The protection of all components of all Etcds.
pub fn components(reconciler: &str, exempt_accounts: &[String], exempt_groups: &[String]) -> Components {
    let changes =
        |group: &str, kind: &str| ComponentKind { of: GroupKind::new(group, kind), deletions_only: false };
    let selector = LabelSelector {
        match_labels: [(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into(),
        ..LabelSelector::default()
    };
    // Nothing else keeps them from being read.
    let state = |path: &str, values: &[&str]| {
        Path::read(path)
            .ok()
            .map(|path| StateRule { path, values: values.iter().map(|&value| value.to_owned()).collect() })
    };
    let operation = |kind: &str| {
        let in_progress = state(".status.lastOperation.state", &["Processing", "Error", "Requeue"]);
        [state(".status.lastOperation.type", &[kind]), in_progress].into_iter().flatten().collect()
    };
    let rbac = "rbac.authorization.k8s.io";
    let job = || changes("batch", "Job");
    Components {
        parent: GroupKind::new(GROUP, "Etcd"),
        kinds: vec![
            changes("", "ServiceAccount"),
            changes("", "Service"),
            changes("", "ConfigMap"),
            changes(rbac, "Role"),
            changes(rbac, "RoleBinding"),
            changes("apps", "StatefulSet"),
            changes("policy", "PodDisruptionBudget"),
            changes("coordination.k8s.io", "Lease"),
            // Compactions of backups, copies of backups, and maintenance tasks.
            job(),
            ComponentKind { of: GroupKind::new("", "PersistentVolumeClaim"), deletions_only: true },
        ],
        chosen: Chosen::Labelled(LabelRule::of(&selector)),
        parent_label: Some(PART_OF.to_owned()),
        operators: [reconciler.to_owned()].into(),
        exempt: Exemptions::of(Some(&Exempt {
            users: exempt_accounts.to_vec(),
            groups: exempt_groups.to_vec(),
            service_accounts: Vec::new(),
        })),
        disable_annotation: Some(DISABLE.to_owned()),
        reconciling: operation("Reconcile"),
        deleting: operation("Delete"),
        free_updates: vec![FreeUpdates {
            kinds: vec![GroupKind::new("coordination.k8s.io", "Lease")],
            users: UserTemplate::read("system:serviceaccount:{namespace}:{parent}").into_iter().collect(),
        }],
        released: vec![ReleasedKinds {
            annotation: DISABLE_RUNTIME.to_owned(),
            kinds: vec![
                GroupKind::new("", "ServiceAccount"),
                GroupKind::new("", "Service"),
                GroupKind::new(rbac, "Role"),
                GroupKind::new(rbac, "RoleBinding"),
                GroupKind::new("policy", "PodDisruptionBudget"),
                GroupKind::new("coordination.k8s.io", "Lease"),
            ],
        }],
        // The Job that copies backups names its task where others name their Etcd.
        other_parents: vec![OtherParent {
            of: job().of,
            parent: GroupKind::new(GROUP, "EtcdCopyBackupsTask"),
        }],
        // The list that is given is all there is.
        collects: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_it_can_be_read() {
        let druid = components(RECONCILER, &[EXEMPT.to_owned()], &[]);
        assert_eq!(
            (druid.reconciling.len(), druid.deleting.len(), druid.free_updates[0].users.len()),
            (2, 2, 1)
        );
    }
}
