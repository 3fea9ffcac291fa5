//! Who wrote a label or an annotation, as `metadata.managedFields` tell.
//!
//! The API server keeps them for every object: each entry names a manager and the fields that it wrote last. A label
//! that came with an object's creation stands in the same entry as its owner reference; one that was set later stands in
//! an entry of its own.

use palisade_api::marks::{Mark, Place};
use serde::Deserialize;
use serde_json::Value;

use crate::object::Metadata;

/// The manager of all controllers that come with Kubernetes, by the name of the program that they are part of.
const KUBERNETES: [&str; 3] = ["kube-controller-manager", "k3s", "kubelite"];

/// One that wrote a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MarkWriter {
    manager: String,
    /// The uids of the owner references that it wrote.
    owners: Vec<String>,
}

impl MarkWriter {
    /// Whether a controller of Kubernetes' own wrote it. None of them invents a protection: they copy.
    pub(crate) fn is_kubernetes(&self) -> bool {
        KUBERNETES.contains(&&*self.manager)
    }

    /// Whether it also made the object a dependent of this owner.
    pub(crate) fn wrote_owner(&self, uid: &str) -> bool {
        self.owners.iter().any(|owner| owner == uid)
    }
}

/// An entry of `managedFields`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    manager: String,
    #[serde(default)]
    fields_v1: Value,
}

/// Everybody who wrote a mark; nobody, where the fields are missing or can't be read.
pub(crate) fn mark_writers(metadata: &Metadata<'_>, mark: &Mark) -> Vec<MarkWriter> {
    let entries: Vec<Entry> =
        metadata.managed_fields.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
    let key = format!("f:{}", mark.key);
    let place = match mark.place {
        Place::Label => "f:labels",
        Place::Annotation => "f:annotations",
    };
    entries
        .into_iter()
        .filter(|entry| !entry.fields_v1["f:metadata"][place][&key].is_null())
        .map(|Entry { manager, fields_v1 }| MarkWriter {
            manager,
            owners: owner_uids(&fields_v1["f:metadata"]["f:ownerReferences"]),
        })
        .collect()
}

/// The uids of `{"k:{\"uid\":\"…\"}": {}}`.
fn owner_uids(references: &Value) -> Vec<String> {
    let keys = references.as_object().into_iter().flat_map(serde_json::Map::keys);
    keys.filter_map(|key| {
        let key: Value = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
        key["uid"].as_str().map(str::to_owned)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;

    const KEY: &str = "policy.kruise.io/delete-protection";

    fn writers(managed_fields: &str) -> Vec<MarkWriter> {
        let json = format!(r#"{{"metadata":{{"name":"a","managedFields":{managed_fields}}}}}"#);
        let mark = Mark::of_label(KEY, "Always").unwrap();
        mark_writers(&Object::parse(json.as_bytes()).unwrap().metadata, &mark)
    }

    #[test]
    fn a_label_is_told_with_the_owner_references_of_the_same_entry() {
        let found = writers(
            r#"[{"manager":"kube-controller-manager","operation":"Update","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":
                {"f:labels":{".":{},"f:policy.kruise.io/delete-protection":{}},
                 "f:ownerReferences":{".":{},"k:{\"uid\":\"u-1\"}":{}}}}},
                {"manager":"kubectl-label","fieldsV1":{"f:metadata":{"f:labels":{"f:app":{}}}}}]"#,
        );
        assert_eq!(found, [MarkWriter { manager: KUBERNETES[0].to_owned(), owners: vec!["u-1".to_owned()] }]);
        assert!(found[0].is_kubernetes() && found[0].wrote_owner("u-1") && !found[0].wrote_owner("u-2"));
    }

    #[test]
    fn what_can_not_be_read_tells_of_nobody() {
        for text in ["null", "[]", r#""text""#, "[{}]", r#"[{"fieldsV1":[1]}]"#, r#"[{"manager":1}]"#] {
            assert_eq!(writers(text), [], "{text}");
        }
    }
}
