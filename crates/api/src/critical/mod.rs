//! `CriticalService`: a provider goes after what depends on it.
//!
//! ```yaml
//! apiVersion: palisade.dev/v1alpha1
//! kind: CriticalService
//! metadata: {name: for-finalizer-deployment}
//! spec:
//!   provider: {group: apps, resource: deployments, namespace: finalizer-namespace, name: finalizer-deployment}
//!   criteria:
//!   - type: Finalizer
//!     finalizer: {group: my.crd.group, resource: coolresources, finalizerName: my.crd.group/super-important}
//!   - type: SpecificResource
//!     specificResource: {group: apiextensions.k8s.io, resource: CustomResourceDefinition, name: coolresources.my.crd.group}
//! ```

mod resource;
mod schema;
mod status;

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

pub use resource::Resource;
pub use schema::definition;
pub use status::{CriterionStatus, State, Status};

pub use crate::protection::{GROUP, VERSION};

pub const KIND: &str = "CriticalService";
pub const PLURAL: &str = "criticalservices";

const MOST_CRITERIA: usize = 64;

/// What a `CriticalService` asks for, in a form that can't be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub provider: Provider,
    /// There is at least one.
    pub criteria: Vec<Criterion>,
    pub mode: DeletionMode,
}

/// What goes last. It has a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
}

/// What must be over before the provider may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// No object of a resource, wherever it is, carries a finalizer.
    Finalizer { resource: Resource, finalizer: String },
    /// An object is gone.
    Object(Target),
}

/// One object. Where its resource has namespaces and none is given, it is that name in any of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub resource: Resource,
    pub namespace: Option<String>,
    pub name: String,
}

/// What becomes of a provider whose criteria are not met.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub enum DeletionMode {
    /// It stays.
    #[default]
    Ordered,
    /// It goes, and what it leaves behind is told.
    BestEffort,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    #[serde(default)]
    provider: WrittenObject,
    #[serde(default)]
    criteria: Vec<WrittenCriterion>,
    #[serde(default)]
    deletion_mode: DeletionMode,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenCriterion {
    r#type: String,
    finalizer: Option<WrittenFinalizer>,
    specific_resource: Option<WrittenObject>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenObject {
    group: String,
    resource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenFinalizer {
    group: String,
    resource: String,
    finalizer_name: String,
}

impl Service {
    /// Reads `spec`, or says what is wrong with it.
    pub fn read(spec: &Value) -> Result<Self, String> {
        let Written { provider, criteria, deletion_mode } =
            Written::deserialize(spec).map_err(|error| format!("spec: {error}"))?;
        let provider = Provider {
            resource: Resource::read("spec.provider", &provider.group, &provider.resource)?,
            namespace: given("spec.provider.namespace", provider.namespace)?,
            name: given("spec.provider.name", provider.name)?,
        };
        if criteria.is_empty() || criteria.len() > MOST_CRITERIA {
            let count = if criteria.is_empty() {
                "there are none".to_owned()
            } else {
                format!("there are more than {MOST_CRITERIA}")
            };
            return Err(format!("spec.criteria: {count}"));
        }
        let criteria = criteria.into_iter().enumerate().map(|(number, criterion)| {
            Criterion::read(criterion).map_err(|why| format!("spec.criteria[{number}]{why}"))
        });
        Ok(Self { provider, criteria: criteria.collect::<Result<_, _>>()?, mode: deletion_mode })
    }
}

impl Criterion {
    fn read(
        WrittenCriterion { r#type, finalizer, specific_resource }: WrittenCriterion,
    ) -> Result<Self, String> {
        match (&*r#type, finalizer, specific_resource) {
            ("Finalizer", Some(WrittenFinalizer { group, resource, finalizer_name }), None) => {
                Ok(Self::Finalizer {
                    resource: Resource::read(".finalizer", &group, &resource)?,
                    finalizer: given(".finalizer.finalizerName", finalizer_name)?,
                })
            }
            ("SpecificResource", None, Some(WrittenObject { group, resource, namespace, name })) => {
                Ok(Self::Object(Target {
                    resource: Resource::read(".specificResource", &group, &resource)?,
                    namespace: Some(namespace).filter(|namespace| !namespace.is_empty()),
                    name: given(".specificResource.name", name)?,
                }))
            }
            ("Finalizer", ..) => Err(": type Finalizer needs finalizer, and nothing else".to_owned()),
            ("SpecificResource", ..) => {
                Err(": type SpecificResource needs specificResource, and nothing else".to_owned())
            }
            (other, ..) => {
                Err(format!(".type: \"{other}\" is not known; known are Finalizer and SpecificResource"))
            }
        }
    }

    /// The one object that it is about, if it is one.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::Finalizer { .. } => None,
            Self::Object(target) => Some(target),
        }
    }

    pub fn resource(&self) -> &Resource {
        match self {
            Self::Finalizer { resource, .. } => resource,
            Self::Object(target) => &target.resource,
        }
    }
}

impl Provider {
    /// As one of the objects that a criterion may name.
    pub fn target(&self) -> Target {
        let Self { resource, namespace, name } = self;
        Target { resource: resource.clone(), namespace: Some(namespace.clone()), name: name.clone() }
    }
}

/// `deployments.apps "shop/web"`
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} \"{namespace}/{}\"", self.resource, self.name),
            None => write!(f, "{} \"{}\"", self.resource, self.name),
        }
    }
}

fn given(field: &str, value: String) -> Result<String, String> {
    match &*value {
        "" => Err(format!("{field}: it is missing")),
        // Neither is a name of anything, and a path would lead elsewhere.
        "." | ".." => Err(format!("{field}: \"{value}\" is no name")),
        _ if value.contains('/') && !field.ends_with("finalizerName") => {
            Err(format!("{field}: \"{value}\" holds a slash"))
        }
        _ => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn provider() -> Value {
        json!({"group": "apps", "resource": "deployments", "namespace": "finalizer-namespace", "name": "finalizer-deployment"})
    }

    fn with(criterion: &Value) -> Value {
        json!({"provider": provider(), "criteria": [criterion]})
    }

    #[test]
    fn the_seeds_example() {
        let service = Service::read(&json!({
            "provider": provider(),
            "criteria": [
                {"type": "Finalizer", "finalizer": {"group": "my.crd.group", "resource": "coolresources",
                    "finalizerName": "my.crd.group/super-important"}},
                {"type": "SpecificResource", "specificResource": {"group": "apiextensions.k8s.io",
                    "resource": "CustomResourceDefinition", "name": "coolresources.my.crd.group"}},
            ],
        }))
        .unwrap();
        let resource = |group: &str, word: &str| Resource::read("", group, word).unwrap();
        assert_eq!(
            service,
            Service {
                provider: Provider {
                    resource: resource("apps", "deployments"),
                    namespace: "finalizer-namespace".into(),
                    name: "finalizer-deployment".into(),
                },
                criteria: vec![
                    Criterion::Finalizer {
                        resource: resource("my.crd.group", "coolresources"),
                        finalizer: "my.crd.group/super-important".into(),
                    },
                    Criterion::Object(Target {
                        resource: resource("apiextensions.k8s.io", "CustomResourceDefinition"),
                        namespace: None,
                        name: "coolresources.my.crd.group".into(),
                    }),
                ],
                mode: DeletionMode::Ordered,
            }
        );
    }

    #[rstest]
    #[case(json!({}), "spec.provider.resource: it is missing")]
    #[case(json!({"provider": {}}), "spec.provider.resource: it is missing")]
    #[case(json!({"provider": {"group": "apps", "resource": "deployments"}}), "spec.provider.namespace: it is missing")]
    #[case(
        json!({"provider": {"group": "apps", "resource": "deployments", "namespace": "a"}}),
        "spec.provider.name: it is missing"
    )]
    #[case(
        json!({"provider": {"group": "apps/v1", "resource": "deployments", "namespace": "a", "name": "b"}}),
        "spec.provider.group: \"apps/v1\" is no group: write it without a version"
    )]
    #[case(
        json!({"provider": {"group": "apps", "resource": "deployments/scale", "namespace": "a", "name": "b"}}),
        "spec.provider.resource: \"deployments/scale\" is no resource: write its plural or its kind"
    )]
    #[case(
        json!({"provider": {"group": "apps", "resource": "deployments", "namespace": "..", "name": "b"}}),
        "spec.provider.namespace: \"..\" is no name"
    )]
    #[case(
        json!({"provider": {"group": "apps", "resource": "deployments", "namespace": "a", "name": "b/c"}}),
        "spec.provider.name: \"b/c\" holds a slash"
    )]
    #[case(json!({"provider": provider()}), "spec.criteria: there are none")]
    #[case(json!({"provider": provider(), "criteria": []}), "spec.criteria: there are none")]
    #[case(with(&json!({"type": "Finalizer"})), "spec.criteria[0]: type Finalizer needs finalizer, and nothing else")]
    #[case(
        with(&json!({"type": "Finalizer", "specificResource": {"resource": "nodes", "name": "a"}})),
        "spec.criteria[0]: type Finalizer needs finalizer, and nothing else"
    )]
    #[case(
        with(&json!({"type": "SpecificResource", "finalizer": {"resource": "nodes", "finalizerName": "a"},
            "specificResource": {"resource": "nodes", "name": "a"}})),
        "spec.criteria[0]: type SpecificResource needs specificResource, and nothing else"
    )]
    #[case(
        with(&json!({"type": "Label"})),
        "spec.criteria[0].type: \"Label\" is not known; known are Finalizer and SpecificResource"
    )]
    #[case(
        with(&json!({"type": "Finalizer", "finalizer": {"resource": "nodes"}})),
        "spec.criteria[0].finalizer.finalizerName: it is missing"
    )]
    #[case(
        with(&json!({"type": "SpecificResource", "specificResource": {"resource": "nodes"}})),
        "spec.criteria[0].specificResource.name: it is missing"
    )]
    #[case(
        with(&json!({"type": "SpecificResource", "specificResource": {"name": "a"}})),
        "spec.criteria[0].specificResource.resource: it is missing"
    )]
    #[case(
        json!({"provider": provider(), "criteria": [], "deletionMode": "Never"}),
        "spec: unknown variant `Never`, expected `Ordered` or `BestEffort`"
    )]
    fn what_is_wrong_is_told(#[case] spec: Value, #[case] why: &str) {
        assert_eq!(Service::read(&spec).unwrap_err(), why);
    }
}
