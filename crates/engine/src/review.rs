//! What is asked of us.

use std::borrow::Cow;
use std::fmt;

use crate::object::Object;
use crate::pod::Part;

/// One question: may this happen?
#[derive(Debug)]
pub struct Review<'a> {
    pub action: Action<'a>,
    pub user: User<'a>,
    /// What is to become of dependents, where the asker said so.
    pub propagation: Option<Propagation>,
    /// Whether something protected is known to be owned by the subject, so that it is worth a search.
    pub is_owner: bool,
    pub expects: Expects,
    /// Nothing will really happen, so nothing may be written; the verdict is the same.
    pub dry_run: bool,
}

/// What the API server was told that there is for an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a word of a path")]
pub struct Expects {
    pub budgets: bool,
    pub flow: bool,
    /// It is a provider of a `CriticalService`, or takes one with it.
    pub critical: bool,
    /// It is a component of something that an operator manages.
    pub components: bool,
    /// It has no namespace, and owns objects in namespaces that nothing but labels protects.
    pub labelled_dependents: bool,
    /// It is a budget, and whoever writes it may write budgets in all namespaces.
    pub administrator: bool,
}

/// What becomes of dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    /// They are collected, before or after their owner.
    Collect,
}

/// Who asks.
#[derive(Clone, Debug, Default)]
pub struct User<'a> {
    pub name: Cow<'a, str>,
    pub groups: Vec<Cow<'a, str>>,
}

/// What is about to happen.
#[derive(Debug)]
pub enum Action<'a> {
    /// An object is deleted.
    Delete(Subject<'a>),
    /// An object is created. It can take nothing away; only [`crate::advise`] looks at it.
    Create(Subject<'a>),
    /// A pod is evicted. The request carries its name only.
    Evict { namespace: Cow<'a, str>, name: Cow<'a, str> },
    /// A pod is changed, in place.
    Update { pod: Subject<'a>, new: Object<'a>, part: Part },
    /// Something else is changed.
    Change { subject: Subject<'a>, new: Object<'a>, part: Portion },
    /// A workload is scaled. The request carries its name only.
    Scale { group: Cow<'a, str>, plural: Cow<'a, str>, namespace: Cow<'a, str>, name: Cow<'a, str> },
    /// A policy of ours is written: a new one, or in place of an old. Its text is read once it is known to matter.
    Declare { subject: Subject<'a>, old: Option<Subject<'a>> },
    /// Something that no guard cares about.
    Other,
}

/// Which part of an object is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    Whole,
    /// Its status, or what another subresource lets change.
    Status,
}

/// The kind of an object, as the API server names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind<'a> {
    pub group: Cow<'a, str>,
    pub kind: Cow<'a, str>,
    pub plural: Cow<'a, str>,
}

/// The object that an action would remove.
#[derive(Debug)]
pub struct Subject<'a> {
    pub kind: Kind<'a>,
    /// As stored; its name, namespace and uid are the identity, because a `deletecollection` names no object.
    pub object: Object<'a>,
}

impl User<'_> {
    /// Whether a program asks, and not a person.
    pub(crate) fn is_automation(&self) -> bool {
        self.name.starts_with("system:serviceaccount:") || self.is_kubernetes()
    }

    /// Whether Kubernetes itself asks. Its controllers must not be told to wait: they would do so with a whole queue
    /// behind them.
    pub(crate) fn is_kubernetes(&self) -> bool {
        const COMPONENTS: &[&str] =
            &["system:kube-controller-manager", "system:kube-scheduler", "system:cloud-controller-manager"];
        // This one waits with one pod at a time, and gives a pod up after five tries.
        let waits_alone = self.name == "system:serviceaccount:kube-system:taint-eviction-controller";
        let of_kube_system = self.name.starts_with("system:serviceaccount:kube-system:") && !waits_alone;
        of_kube_system || COMPONENTS.contains(&&*self.name) || self.is_node()
    }

    /// Whether the cloud's node controller asks, which removes Nodes whose machines are gone. Each name is one that a
    /// tenant cannot have.
    pub(crate) fn is_cloud_node_controller(&self) -> bool {
        const USERS: &[&str] = &[
            "system:cloud-controller-manager",
            "k3s-cloud-controller-manager",
            "system:serviceaccount:openshift-cloud-controller-manager:cloud-controller-manager",
        ];
        let of_kube_system = |account: &str| {
            matches!(account, "node-controller" | "cloud-node-controller" | "cloud-node-lifecycle-controller")
                || account.ends_with("cloud-controller-manager")
        };
        USERS.contains(&&*self.name)
            || self.name.strip_prefix("system:serviceaccount:kube-system:").is_some_and(of_kube_system)
    }

    /// Whether a kubelet asks.
    pub(crate) fn is_node(&self) -> bool {
        self.groups.iter().any(|group| group == "system:nodes")
    }
}

impl Kind<'static> {
    pub const POD: Self =
        Self { group: Cow::Borrowed(""), kind: Cow::Borrowed("Pod"), plural: Cow::Borrowed("pods") };
}

impl Kind<'_> {
    pub(crate) fn is_pod(&self) -> bool {
        self.group.is_empty() && self.kind == "Pod"
    }

    pub(crate) fn is_namespace(&self) -> bool {
        self.group.is_empty() && self.kind == "Namespace"
    }

    pub(crate) fn is_claim(&self) -> bool {
        self.group.is_empty() && self.kind == "PersistentVolumeClaim"
    }

    pub(crate) fn is_node(&self) -> bool {
        self.group.is_empty() && self.kind == "Node"
    }

    pub(crate) fn to_owned(&self) -> Kind<'static> {
        Kind {
            group: self.group.to_string().into(),
            kind: self.kind.to_string().into(),
            plural: self.plural.to_string().into(),
        }
    }

    pub(crate) fn is_definition(&self) -> bool {
        self.group == "apiextensions.k8s.io" && self.kind == "CustomResourceDefinition"
    }

    /// A word for `kubectl` that resolves to this very kind, whatever else is installed.
    pub fn kubectl_name(&self) -> String {
        if self.group.is_empty() {
            self.kind.to_lowercase()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }
}

/// For people: `deployment`, but `statefulset.apps.kruise.io` where the group is not Kubernetes' own.
impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.to_lowercase();
        if self.group.contains('.') && !self.group.ends_with(".k8s.io") {
            write!(f, "{kind}.{}", self.group)
        } else {
            f.write_str(&kind)
        }
    }
}

impl Subject<'_> {
    pub fn name(&self) -> &str {
        &self.object.metadata.name
    }

    pub fn namespace(&self) -> Option<&str> {
        self.object.metadata.namespace()
    }

    pub fn is_already_going(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }
}

impl<'a> Subject<'a> {
    /// One of which nothing but the name is known.
    pub(crate) fn named(kind: Kind<'a>, namespace: &'a str, name: &'a str) -> Self {
        let mut object = Object::default();
        object.metadata.name = Cow::Borrowed(name);
        object.metadata.namespace = Some(Cow::Borrowed(namespace));
        Self { kind, object }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", "Namespace", "namespaces", "namespace", "namespace")]
    #[case("apps", "Deployment", "deployments", "deployments.apps", "deployment")]
    #[case(
        "apps.kruise.io",
        "StatefulSet",
        "statefulsets",
        "statefulsets.apps.kruise.io",
        "statefulset.apps.kruise.io"
    )]
    #[case(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "customresourcedefinitions.apiextensions.k8s.io",
        "customresourcedefinition"
    )]
    fn names(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] plural: &str,
        #[case] kubectl: &str,
        #[case] people: &str,
    ) {
        let kind = Kind { group: group.into(), kind: kind.into(), plural: plural.into() };
        assert_eq!((kind.kubectl_name().as_str(), kind.to_string().as_str()), (kubectl, people));
    }
}
