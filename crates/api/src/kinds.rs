//! What `Cascading` looks at for each kind, and the kinds that no label protects.

/// What `Cascading` looks at before an object of a kind may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cascade {
    /// A Namespace: its active pods and bound claims.
    Namespace,
    /// A `CustomResourceDefinition`: its custom resources.
    Definition,
    /// A workload: the replicas that its spec asks for.
    Workload,
    /// A `DaemonSet`: the pods that it should run.
    DaemonSet,
    /// A Job: its active pods.
    Job,
    /// A `CronJob`: its active Jobs.
    CronJob,
    /// A `PersistentVolumeClaim`: its volume, and the pods that mount it.
    Claim,
    /// A `PersistentVolume`: its claim.
    Volume,
    /// A Service: its ready endpoints.
    Service,
    /// A Node: its pods that are not a `DaemonSet`'s.
    Node,
    /// Any other kind: its replicas, where it has a `scale` subresource; otherwise the objects that name it as owner.
    Other,
}

/// The kinds that have a row of their own, in any version of their group.
const CASCADING_KINDS: &[(&str, &str, Cascade)] = &[
    ("", "Namespace", Cascade::Namespace),
    ("apiextensions.k8s.io", "CustomResourceDefinition", Cascade::Definition),
    ("apps", "Deployment", Cascade::Workload),
    ("apps", "StatefulSet", Cascade::Workload),
    ("apps", "ReplicaSet", Cascade::Workload),
    ("", "ReplicationController", Cascade::Workload),
    ("apps.kruise.io", "CloneSet", Cascade::Workload),
    ("apps.kruise.io", "StatefulSet", Cascade::Workload),
    ("apps.kruise.io", "UnitedDeployment", Cascade::Workload),
    ("apps", "DaemonSet", Cascade::DaemonSet),
    ("apps.kruise.io", "DaemonSet", Cascade::DaemonSet),
    ("batch", "Job", Cascade::Job),
    ("batch", "CronJob", Cascade::CronJob),
    ("", "PersistentVolumeClaim", Cascade::Claim),
    ("", "PersistentVolume", Cascade::Volume),
    ("", "Service", Cascade::Service),
    ("", "Node", Cascade::Node),
];

/// What `Cascading` looks at for a kind.
pub fn cascade_of(group: &str, kind: &str) -> Cascade {
    let row = CASCADING_KINDS.iter().find(|(of, named, _)| *of == group && *named == kind);
    row.map_or(Cascade::Other, |(_, _, cascade)| *cascade)
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
