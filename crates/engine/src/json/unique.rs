//! Objects that name no member twice.
//!
//! JSON with a member that is named twice means one thing to one reader and another to the next, so that what was
//! admitted need not be what was checked. It is taken for malformed.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Objects with more members than this are rare: their keys are hashed.
const FEW: usize = 32;

/// The keys of one object that were read so far.
pub(super) struct Keys<'a> {
    few: [&'a str; FEW],
    count: usize,
    /// A bit for each of `few`, by [`fingerprint`]. Only keys that share one are compared.
    fingerprints: u64,
    /// All keys, once there are more than a few or one is spelled with escapes.
    many: Option<HashSet<Cow<'a, str>>>,
}

impl<'a> Keys<'a> {
    pub(super) fn new() -> Self {
        Self { few: [""; FEW], count: 0, fingerprints: 0, many: None }
    }

    /// Adds a key, and returns whether it is new.
    pub(super) fn insert(&mut self, key: Cow<'a, str>) -> bool {
        match (key, &mut self.many) {
            (Cow::Borrowed(key), None) if self.count < FEW => {
                let bit = fingerprint(key);
                if self.fingerprints & bit != 0 && self.few[..self.count].contains(&key) {
                    return false;
                }
                self.fingerprints |= bit;
                self.few[self.count] = key;
                self.count += 1;
                true
            }
            (key, many) => {
                let few = &self.few[..self.count];
                let all = many.get_or_insert_with(|| few.iter().copied().map(Cow::Borrowed).collect());
                all.insert(key)
            }
        }
    }
}

/// One of 64 bits, by what is cheap to know of a key.
fn fingerprint(key: &str) -> u64 {
    let bytes = key.as_bytes();
    let byte = |at: usize| bytes.get(at).copied().map_or(0, usize::from);
    let mixed = bytes.len() + byte(0) * 7 + byte(bytes.len() / 2) * 3 + byte(bytes.len().saturating_sub(1));
    1 << (mixed % 64)
}

/// A value of which no object names a member twice, at any depth.
pub struct UniqueMembers(pub Value);

impl<'de> Deserialize<'de> for UniqueMembers {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Self)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueMembers(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, UniqueMembers(value))) = members.next_entry::<String, _>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("\"{key}\" is named twice")));
            }
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(all: &[Cow<'static, str>]) -> Vec<bool> {
        let mut keys = Keys::new();
        all.iter().map(|key| keys.insert(key.clone())).collect()
    }

    #[test]
    fn a_key_is_new_once_however_it_is_spelled() {
        let plain: Cow<'static, str> = Cow::Borrowed("oldObject");
        let escaped: Cow<'static, str> = Cow::Owned("oldObject".to_owned());
        assert_eq!(keys(&[plain.clone(), plain.clone()]), [true, false]);
        assert_eq!(keys(&[plain.clone(), escaped.clone()]), [true, false]);
        assert_eq!(keys(&[escaped, plain]), [true, false]);
        assert_eq!(
            keys(&["oldobject".into(), "oldObject".into(), "".into(), "".into()]),
            [true, true, true, false]
        );
    }

    proptest! {
        #[test]
        fn it_is_what_a_set_says(numbers in prop::collection::vec((0_u8..60, any::<bool>()), 0..200)) {
            let texts: Vec<String> = (0..60).map(|number| format!("key-{number}")).collect();
            let (mut keys, mut set) = (Keys::new(), HashSet::new());
            for (number, owned) in numbers {
                let text = &texts[usize::from(number)];
                let key = if owned { Cow::Owned(text.clone()) } else { Cow::Borrowed(text.as_str()) };
                prop_assert_eq!(keys.insert(key), set.insert(text.clone()));
            }
        }
    }

    #[test]
    fn values_are_those_that_serde_reads_unless_a_member_is_named_twice() {
        let text = r#"{"a":[1,-2,3.5,"x",null,true,{"b":{"c":"\u00e9"}}],"d":18446744073709551615}"#;
        let UniqueMembers(value) = serde_json::from_str(text).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        for text in [r#"{"a":1,"a":1}"#, r#"[{"a":{"b":1,"\u0062":2}}]"#] {
            assert!(serde_json::from_str::<UniqueMembers>(text).is_err(), "{text}");
        }
    }
}
