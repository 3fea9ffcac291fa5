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

use super::Cursor;

/// Objects with more members than this are rare: their keys are hashed.
const FEW: usize = 16;

/// The keys of one object that were read so far.
pub(super) struct Keys<'a> {
    /// Before the object.
    start: Cursor<'a>,
    count: usize,
    /// What is cheap to know of the first few. Keys whose fingerprints differ differ.
    fingerprints: [u32; FEW],
    /// All keys, once there are more than a few, or two look alike, or one is spelled with escapes.
    all: Option<HashSet<Cow<'a, str>>>,
}

impl<'a> Keys<'a> {
    /// For the object that comes next.
    pub(super) fn of(start: Cursor<'a>) -> Self {
        Self { start, count: 0, fingerprints: [0; FEW], all: None }
    }

    /// Adds a key, and returns whether it is new.
    #[inline]
    pub(super) fn insert(&mut self, key: &str, borrowed: bool) -> bool {
        let count = self.count;
        self.count += 1;
        if self.all.is_none() && borrowed && count < FEW {
            let own = fingerprint(key);
            // All of them, which takes a few instructions; those that are not there yet are 0.
            if !self.fingerprints.contains(&own) {
                self.fingerprints[count] = own;
                return true;
            }
        }
        self.insert_exactly(key, count)
    }

    #[cold]
    fn insert_exactly(&mut self, key: &str, count: usize) -> bool {
        let start = &self.start;
        self.all.get_or_insert_with(|| first_keys(start.clone(), count)).insert(Cow::Owned(key.to_owned()))
    }
}

/// The length of a key, and its first, middle and last byte; 0 for an empty one.
fn fingerprint(key: &str) -> u32 {
    let bytes = key.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else { return 0 };
    let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    u32::from_ne_bytes([length, first, bytes[bytes.len() / 2], last])
}

/// The first keys of an object, which are different.
fn first_keys(mut object: Cursor<'_>, count: usize) -> HashSet<Cow<'_, str>> {
    let mut keys = HashSet::with_capacity(count + 1);
    // They were read before, without an error; the one that ends this is our own.
    let _ = object.members(|key, value| {
        if keys.len() == count {
            return Err(value.expected("no more"));
        }
        keys.insert(key);
        value.skip()
    });
    keys
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

    /// Whether each key of an object is new.
    fn keys(object: &str) -> Vec<bool> {
        let mut keys = Keys::of(Cursor::new(object.as_bytes()));
        let mut new = Vec::new();
        let mut cursor = Cursor::new(object.as_bytes());
        cursor
            .members(|key, value| {
                new.push(keys.insert(&key, matches!(key, Cow::Borrowed(_))));
                value.skip()
            })
            .unwrap();
        new
    }

    #[test]
    fn a_key_is_new_once_however_it_is_spelled() {
        assert_eq!(keys(r#"{"oldObject":{},"oldObject":1}"#), [true, false]);
        assert_eq!(keys(r#"{"oldObject":{},"oldObj\u0065ct":1}"#), [true, false]);
        assert_eq!(keys(r#"{"oldObj\u0065ct":{},"oldObject":1}"#), [true, false]);
        assert_eq!(keys(r#"{"oldobject":1,"oldObject":1,"":1,"":1}"#), [true, true, true, false]);
        assert_eq!(
            keys(r#"{"abc-1-wxyz":1,"abc-2-wxyz":1,"abc-1-wxyz":1}"#),
            [true, true, false],
            "lookalikes"
        );
    }

    proptest! {
        #[test]
        fn it_is_what_a_set_says(numbers in prop::collection::vec((0_u8..60, any::<bool>()), 0..200)) {
            let spelled = |(number, escaped): (u8, bool)| {
                if escaped { format!("\"\\u006bey-{number}-same\":{number}") } else { format!("\"key-{number}-same\":{number}") }
            };
            let members: Vec<String> = numbers.iter().copied().map(spelled).collect();
            let mut set = HashSet::new();
            let expected: Vec<bool> = numbers.iter().map(|(number, _)| set.insert(*number)).collect();
            prop_assert_eq!(keys(&format!("{{{}}}", members.join(","))), expected);
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
