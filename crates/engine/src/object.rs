//! What guards read of an object: its metadata, and the few spec fields that decide.
//!
//! Decoded in one pass that borrows from the request's body. `spec` and `status` are kept as the text
//! they came as, because what they hold is the object's own business (`spec.replicas` of somebody's custom
//! resource may be a sentence): a guard reads from them only for kinds whose shape it knows.

use std::borrow::Cow;
use std::fmt;

use palisade_api::marks;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::Deserialize;
use serde_json::value::RawValue;

/// An object as guards see it.
#[derive(Debug, Default, Deserialize)]
pub struct Object<'a> {
    #[serde(borrow, default, deserialize_with = "null_as_default")]
    pub metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

/// The part of `metadata` that guards read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata<'a> {
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub deletion_timestamp: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "null_as_default")]
    pub labels: Labels<'a>,
    #[serde(borrow, default, deserialize_with = "null_as_default")]
    pub annotations: Annotations<'a>,
}

/// Labels, in the order they came.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Labels<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// The annotations that guards read. The others are passed over: a `last-applied-configuration` can be
/// as large as the object itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Annotations<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

const ANNOTATIONS_READ: &[&str] = &[marks::DISABLE_CASCADING_DELETION];

impl<'a> Object<'a> {
    /// Reads an object from its JSON.
    pub fn parse(json: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// `spec.replicas` of a workload; unset means 1.
    pub(crate) fn replicas(&self) -> Result<i64, serde_json::Error> {
        #[derive(Deserialize)]
        struct Spec {
            replicas: Option<i64>,
        }
        let spec: Option<Spec> = self.spec.map_or(Ok(None), |raw| serde_json::from_str(raw.get()))?;
        Ok(spec.and_then(|spec| spec.replicas).unwrap_or(1))
    }

    /// The object read as a `CustomResourceDefinition`.
    pub(crate) fn definition(&self) -> Result<Definition, serde_json::Error> {
        let spec = self.spec.map_or("{}", RawValue::get);
        let DefinitionSpec { group, names, versions } = serde_json::from_str(spec)?;
        let status: Option<DefinitionStatus> =
            self.status.map_or(Ok(None), |raw| serde_json::from_str(raw.get()))?;
        let established = status
            .and_then(|status| status.conditions)
            .is_some_and(|conditions| conditions.iter().any(|c| c.r#type == "Established" && c.status == "True"));
        let (mut served, rest): (Vec<_>, Vec<_>) = versions.into_iter().partition(|v| v.served && v.storage);
        served.extend(rest.into_iter().filter(|v| v.served));
        Ok(Definition {
            group,
            plural: names.plural,
            served_versions: served.into_iter().map(|v| v.name).collect(),
            established,
        })
    }
}

/// What decides about a `CustomResourceDefinition`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub group: String,
    pub plural: String,
    /// The stored version first where it is served: reading it needs no conversion.
    pub served_versions: Vec<String>,
    /// Whether its custom resources have ever been served. Once true, it stays so.
    pub established: bool,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    group: String,
    names: DefinitionNames,
    #[serde(default)]
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionNames {
    plural: String,
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

impl Labels<'_> {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }
}

impl Annotations<'_> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Labels<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Pairs(|_: &str| true)).map(Self)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Annotations<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Pairs(|key: &str| ANNOTATIONS_READ.contains(&key))).map(Self)
    }
}

/// Reads the pairs of a map of strings whose keys are wanted.
struct Pairs<Wanted>(Wanted);

/// A string that borrows from the input where it holds no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, Wanted: Fn(&str) -> bool> Visitor<'de> for Pairs<Wanted> {
    type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut pairs = Vec::new();
        while let Some(Text(key)) = map.next_key()? {
            if (self.0)(&key) {
                let Text(value) = map.next_value()?;
                pairs.push((key, value));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(pairs)
    }
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn reads_metadata_and_passes_over_the_rest() {
        let object = Object::parse(
            r#"{"apiVersion":"v1","kind":"Odd","metadata":{"name":"a","namespace":"b","labels":{"x":"y","q":"\"z\""},
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
        let object =
            Object::parse(r#"{"metadata":{"name":"a","labels":null,"annotations":null,"deletionTimestamp":null}}"#)
                .unwrap();
        assert_eq!(object.metadata.labels, Labels::default());
        assert!(object.metadata.deletion_timestamp.is_none());
        assert_eq!(Object::parse(r#"{"metadata":null}"#).unwrap().metadata.name, "");
    }

    #[rstest]
    #[case(r#"{"spec":{"replicas":3}}"#, 3)]
    #[case(r#"{"spec":{"replicas":0}}"#, 0)]
    #[case(r#"{"spec":{"replicas":null}}"#, 1)]
    #[case(r#"{"spec":{}}"#, 1)]
    #[case(r#"{"spec":null}"#, 1)]
    #[case(r"{}", 1)]
    fn replicas(#[case] json: &str, #[case] expected: i64) {
        assert_eq!(Object::parse(json).unwrap().replicas().unwrap(), expected);
    }

    #[test]
    fn replicas_that_are_no_number_are_an_error() {
        assert!(Object::parse(r#"{"spec":{"replicas":"3"}}"#).unwrap().replicas().is_err());
    }

    #[test]
    fn a_definition_lists_its_served_versions_with_the_stored_one_first() {
        let json = r#"{"spec":{"group":"example.com","names":{"plural":"widgets","kind":"Widget"},"versions":[
            {"name":"v1alpha1","served":false,"storage":false},{"name":"v1beta1","served":true,"storage":false},
            {"name":"v1","served":true,"storage":true}]},
            "status":{"conditions":[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}]}}"#;
        assert_eq!(
            Object::parse(json).unwrap().definition().unwrap(),
            Definition {
                group: "example.com".into(),
                plural: "widgets".into(),
                served_versions: vec!["v1".into(), "v1beta1".into()],
                established: true,
            }
        );
    }
}
