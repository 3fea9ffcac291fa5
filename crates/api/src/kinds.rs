//! The kinds for which `Cascading` has a meaning of its own.

/// What `Cascading` looks at before an object of a kind may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cascade {
    /// A Namespace: its active pods and bound claims.
    Namespace,
    /// A `CustomResourceDefinition`: its custom resources.
    Definition,
    /// A workload: the replicas that its spec asks for.
    Workload,
}

/// A kind for which `Cascading` is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CascadingKind {
    pub group: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub cascade: Cascade,
}

const fn kind(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    cascade: Cascade,
) -> CascadingKind {
    CascadingKind { group, kind, plural, cascade }
}

/// Every kind for which `Cascading` is known; any version of its group.
pub const CASCADING_KINDS: &[CascadingKind] = &[
    kind("", "Namespace", "namespaces", Cascade::Namespace),
    kind(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        Cascade::Definition,
    ),
    kind("apps", "Deployment", "deployments", Cascade::Workload),
    kind("apps", "StatefulSet", "statefulsets", Cascade::Workload),
    kind("apps", "ReplicaSet", "replicasets", Cascade::Workload),
    kind("apps.kruise.io", "CloneSet", "clonesets", Cascade::Workload),
    kind("apps.kruise.io", "StatefulSet", "statefulsets", Cascade::Workload),
    kind("apps.kruise.io", "UnitedDeployment", "uniteddeployments", Cascade::Workload),
];

/// What `Cascading` means for a kind, if it is known.
pub fn cascade_of(group: &str, kind: &str) -> Option<Cascade> {
    CASCADING_KINDS.iter().find(|k| k.group == group && k.kind == kind).map(|k| k.cascade)
}
