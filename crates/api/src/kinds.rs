//! The kinds for which `Cascading` has a meaning of its own, and those that no label protects.

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

/// A kind that comes and goes by itself, in any version of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransientKind {
    pub group: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
}

const fn transient(group: &'static str, kind: &'static str, plural: &'static str) -> TransientKind {
    TransientKind { group, kind, plural }
}

/// The kinds that Kubernetes itself makes and deletes all the time. To keep one of them would send traffic to pods that
/// are gone, or take a lock that nobody holds, so neither a label nor a rule for every kind protects them.
pub const TRANSIENT_KINDS: [TransientKind; 5] = [
    transient("", "Endpoints", "endpoints"),
    transient("discovery.k8s.io", "EndpointSlice", "endpointslices"),
    transient("", "Event", "events"),
    transient("events.k8s.io", "Event", "events"),
    transient("coordination.k8s.io", "Lease", "leases"),
];

/// Whether a kind is one of [`TRANSIENT_KINDS`].
pub fn is_transient(group: &str, kind: &str) -> bool {
    TRANSIENT_KINDS.iter().any(|transient| transient.group == group && transient.kind == kind)
}
