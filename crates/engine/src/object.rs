//! What guards read of an object: its metadata, and the few spec fields that decide.
//!
//! Read in one pass that borrows from the request's body. `spec` and `status` are kept as the text
//! they came as, because what they hold is the object's own business (`spec.replicas` of somebody's custom
//! resource may be a sentence): a guard reads from them only for kinds whose shape it knows.

use std::borrow::Cow;

use palisade_api::{budget, generate, marks};
use serde::Deserialize;

use crate::json::{Cursor, Malformed, UniqueMembers};

/// An object as guards see it.
#[derive(Debug, Default)]
pub struct Object<'a> {
    /// Empty where a list does not say it for each item.
    pub api_version: Cow<'a, str>,
    pub metadata: Metadata<'a>,
    spec: Option<&'a [u8]>,
    status: Option<&'a [u8]>,
}

/// The part of `metadata` that guards read.
#[derive(Debug, Default)]
pub struct Metadata<'a> {
    pub name: Cow<'a, str>,
    pub uid: Cow<'a, str>,
    pub resource_version: Cow<'a, str>,
    /// How often what was asked for has changed.
    pub generation: Option<i64>,
    pub namespace: Option<Cow<'a, str>>,
    pub deletion_timestamp: Option<Cow<'a, str>>,
    /// How long it may take to go, once it is going.
    pub deletion_grace_seconds: Option<i64>,
    pub owners: Vec<Owner<'a>>,
    pub finalizers: Vec<Cow<'a, str>>,
    pub labels: Pairs<'a>,
    /// Those that guards read. The others are passed over: a `last-applied-configuration` can be as large as
    /// the object itself.
    pub annotations: Pairs<'a>,
    /// The text of `managedFields`, read only where it matters who wrote a field.
    pub managed_fields: Option<&'a [u8]>,
}

/// An entry of `ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner<'a> {
    pub api_version: Cow<'a, str>,
    pub kind: Cow<'a, str>,
    pub name: Cow<'a, str>,
    pub uid: Cow<'a, str>,
    pub controller: bool,
}

/// Labels or annotations, in the order they came.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// Whether a guard or a controller reads an annotation.
fn is_read(annotation: &str) -> bool {
    matches!(
        annotation,
        marks::DISABLE_CASCADING_DELETION
            | marks::IGNORE_UNREADABLE_KINDS
            | budget::NO_PROTECT
            | budget::MIN_UNAVAILABLE
            | budget::APPROVED
            | generate::GENERATED_FOR
    ) || generate::KEYS.contains(&annotation)
}

impl<'a> Object<'a> {
    /// Reads an object from its JSON.
    pub fn parse(json: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(json);
        let object = Self::read(&mut cursor)?;
        cursor.end()?;
        Ok(object)
    }

    /// Reads the object that comes next.
    pub fn read(cursor: &mut Cursor<'a>) -> Result<Self, Malformed> {
        let mut object = Self::default();
        cursor.object(|key, value| {
            match &*key {
                "apiVersion" => object.api_version = value.string_or_null()?.unwrap_or_default(),
                "metadata" => object.metadata = Metadata::read(value)?,
                "spec" => object.spec = value.raw_or_null()?,
                "status" => object.status = value.raw_or_null()?,
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(object)
    }

    /// The text of `spec`.
    pub fn spec(&self) -> Option<&'a [u8]> {
        self.spec
    }

    /// `spec` as JSON, whatever it holds.
    pub fn spec_json(&self) -> Result<serde_json::Value, String> {
        let read = serde_json::from_slice(self.spec.unwrap_or(b"{}"));
        read.map(|UniqueMembers(spec)| spec).map_err(|error| error.to_string())
    }

    /// `status` as JSON, whatever it holds.
    pub(crate) fn status_json(&self) -> Result<serde_json::Value, String> {
        let read = serde_json::from_slice(self.status.unwrap_or(b"{}"));
        read.map(|UniqueMembers(status)| status).map_err(|error| error.to_string())
    }

    /// The version of its group that it is written in.
    pub(crate) fn version(&self) -> &str {
        self.api_version.rsplit('/').next().unwrap_or_default()
    }

    /// The text of `status`.
    pub fn status(&self) -> Option<&'a [u8]> {
        self.status
    }

    /// `spec.replicas` of a workload; unset means 1.
    pub(crate) fn replicas(&self) -> Result<i64, Malformed> {
        let mut replicas = None;
        if let Some(spec) = self.spec {
            Cursor::new(spec).object(|key, value| {
                if key == "replicas" {
                    replicas = value.value()?;
                    Ok(())
                } else {
                    value.skip()
                }
            })?;
        }
        Ok(replicas.unwrap_or(1))
    }

    /// The object read as a `CustomResourceDefinition`.
    pub fn definition(&self) -> Result<Definition, serde_json::Error> {
        let DefinitionSpec { group, scope, names, versions } =
            serde_json::from_slice(self.spec.unwrap_or(b"{}"))?;
        let status: Option<DefinitionStatus> =
            self.status.map_or(Ok(None), |status| serde_json::from_slice(status).map(Some))?;
        let established = status.and_then(|status| status.conditions).is_some_and(|conditions| {
            conditions.iter().any(|c| c.r#type == "Established" && c.status == "True")
        });
        let (mut served, rest): (Vec<_>, Vec<_>) = versions.into_iter().partition(|v| v.served && v.storage);
        served.extend(rest.into_iter().filter(|v| v.served));
        Ok(Definition {
            group,
            plural: names.plural,
            kind: names.kind,
            namespaced: scope != "Cluster",
            served_versions: served.into_iter().map(|v| v.name).collect(),
            established,
        })
    }
}

impl<'a> Metadata<'a> {
    /// The namespace that it is in, if it is in one.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|namespace| !namespace.is_empty())
    }

    /// The owner that manages it.
    pub fn controller(&self) -> Option<&Owner<'a>> {
        self.owners.iter().find(|owner| owner.controller)
    }

    /// Whether its dependents are to be left alone when it goes.
    pub fn orphans(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == "orphan")
    }

    fn read(cursor: &mut Cursor<'a>) -> Result<Self, Malformed> {
        let mut metadata = Self::default();
        cursor.object_or_null(|key, value| {
            match &*key {
                "name" => metadata.name = value.string()?,
                "uid" => metadata.uid = value.string()?,
                "resourceVersion" => metadata.resource_version = value.string()?,
                "generation" => metadata.generation = value.value()?,
                "namespace" => metadata.namespace = value.string_or_null()?,
                "deletionGracePeriodSeconds" => metadata.deletion_grace_seconds = value.value()?,
                "deletionTimestamp" => {
                    metadata.deletion_timestamp = value.string_or_null()?.filter(|time| !time.is_empty());
                }
                "ownerReferences" => value.list(|owner| {
                    metadata.owners.push(Owner::read(owner)?);
                    Ok(())
                })?,
                "finalizers" => value.list(|finalizer| {
                    metadata.finalizers.push(finalizer.string()?);
                    Ok(())
                })?,
                "labels" => metadata.labels = Pairs::read(value, |_| true)?,
                "annotations" => {
                    metadata.annotations = Pairs::read(value, is_read)?;
                }
                "managedFields" => metadata.managed_fields = value.raw_or_null()?,
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(metadata)
    }
}

impl<'a> Owner<'a> {
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    fn read(cursor: &mut Cursor<'a>) -> Result<Self, Malformed> {
        let mut owner = Self::default();
        cursor.object(|key, value| {
            match &*key {
                "apiVersion" => owner.api_version = value.string()?,
                "kind" => owner.kind = value.string()?,
                "name" => owner.name = value.string()?,
                "uid" => owner.uid = value.string()?,
                "controller" => owner.controller = value.value::<Option<bool>>()?.unwrap_or(false),
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(owner)
    }
}

impl<'a> Pairs<'a> {
    fn read(cursor: &mut Cursor<'a>, wanted: impl Fn(&str) -> bool) -> Result<Self, Malformed> {
        let mut pairs = Vec::new();
        cursor.object_or_null(|key, value| {
            if wanted(&key) {
                pairs.push((key, value.string()?));
            } else {
                value.skip()?;
            }
            Ok(())
        })?;
        Ok(Self(pairs))
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(each, _)| each == key).map(|(_, value)| value.as_ref())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }
}

/// What decides about a `CustomResourceDefinition`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub group: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    /// The stored version first where it is served: reading it needs no conversion.
    pub served_versions: Vec<String>,
    /// Whether it says that its custom resources have been served. Until then the API server does not know their
    /// resource, and there is nothing of it.
    pub established: bool,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    group: String,
    #[serde(default)]
    scope: String,
    names: DefinitionNames,
    #[serde(default)]
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionNames {
    plural: String,
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct DefinitionVersion {
    name: String,
    #[serde(default)]
    served: bool,
    #[serde(default)]
    storage: bool,
}

#[derive(Deserialize)]
struct DefinitionStatus {
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn reads_metadata_and_passes_over_the_rest() {
        let object = Object::parse(br#"{"apiVersion":"v1","kind":"Odd","metadata":{"name":"a","namespace":"b","labels":{"x":"y","q":"\"z\""},
                "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"a\":1}",
                "policy.kruise.io/disable-cascading-deletion":"true"},"managedFields":[{"a":[1,2,{}]}]},
                "spec":"a sentence","status":[1,2]}"#,
        )
        .unwrap();
        assert_eq!(object.metadata.name, "a");
        assert_eq!(object.metadata.namespace.as_deref(), Some("b"));
        assert_eq!(object.metadata.labels.iter().collect::<Vec<_>>(), [("x", "y"), ("q", "\"z\"")]);
        assert_eq!(
            object.metadata.annotations.iter().collect::<Vec<_>>(),
            [("policy.kruise.io/disable-cascading-deletion", "true")]
        );
        assert!(matches!(object.metadata.labels.0[0].1, Cow::Borrowed(_)));
    }

    #[test]
    fn nulls_are_absent() {
        let object = Object::parse(
            br#"{"metadata":{"name":"a","labels":null,"annotations":null,"deletionTimestamp":null}}"#,
        )
        .unwrap();
        assert_eq!(object.metadata.labels, Pairs::default());
        assert!(object.metadata.deletion_timestamp.is_none());
        assert_eq!(Object::parse(br#"{"metadata":null}"#).unwrap().metadata.name, "");
    }

    #[rstest]
    #[case(r#"{"spec":{"replicas":3}}"#, 3)]
    #[case(r#"{"spec":{"replicas":0}}"#, 0)]
    #[case(r#"{"spec":{"replicas":null}}"#, 1)]
    #[case(r#"{"spec":{}}"#, 1)]
    #[case(r#"{"spec":null}"#, 1)]
    #[case(r"{}", 1)]
    fn replicas(#[case] json: &str, #[case] expected: i64) {
        assert_eq!(Object::parse(json.as_bytes()).unwrap().replicas().unwrap(), expected);
    }

    #[test]
    fn replicas_that_are_no_number_are_an_error() {
        assert!(Object::parse(br#"{"spec":{"replicas":"3"}}"#).unwrap().replicas().is_err());
    }

    #[test]
    fn a_definition_lists_its_served_versions_with_the_stored_one_first() {
        let json = r#"{"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},"versions":[
            {"name":"v1alpha1","served":false,"storage":false},{"name":"v1beta1","served":true,"storage":false},
            {"name":"v1","served":true,"storage":true}]},
            "status":{"conditions":[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}]}}"#;
        assert_eq!(
            Object::parse(json.as_bytes()).unwrap().definition().unwrap(),
            Definition {
                group: "example.com".into(),
                plural: "widgets".into(),
                kind: "Widget".into(),
                namespaced: true,
                served_versions: vec!["v1".into(), "v1beta1".into()],
                established: true,
            }
        );
    }
}
