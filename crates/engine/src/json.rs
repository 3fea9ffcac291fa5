//! A reader of JSON that passes over what nobody asked for at many bytes a step.
//!
//! A review is mostly what no guard reads: managed fields, containers, status. [`Cursor::skip`] finds the end
//! of such a value by its brackets and quotes alone, 64 bytes at a time, without looking at what is in it; so it
//! takes some text for JSON that is not. What is read is checked, and an object that is read names no member twice.

mod unique;

use std::borrow::Cow;
use std::fmt;

use serde::de::DeserializeOwned;
use wide::u8x16;

use unique::Keys;
pub use unique::UniqueMembers;

/// Where a text stops being what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    expected: Cow<'static, str>,
    at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {} at byte {}", self.expected, self.at)
    }
}

impl std::error::Error for Malformed {}

/// A place in a text.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Fails if anything but white space is left.
    pub fn end(&mut self) -> Result<(), Malformed> {
        if self.peek().is_none() { Ok(()) } else { Err(self.expected("the end")) }
    }

    /// Reads an object. `member` is given each key, and must read or skip its value. A key that comes twice is an error.
    pub fn object(
        &mut self,
        mut member: impl FnMut(Cow<'a, str>, &mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let mut keys = Keys::of(self.clone());
        self.members(|key, value| {
            if !keys.insert(&key, matches!(key, Cow::Borrowed(_))) {
                return Err(value.expected("no member that is named twice before"));
            }
            member(key, value)
        })
    }

    /// Reads an object whose members may be named twice: `member` is given each.
    pub fn members(
        &mut self,
        mut member: impl FnMut(Cow<'a, str>, &mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if self.peek() != Some(b'{') {
            return Err(self.expected("an object"));
        }
        self.at += 1;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.string()?;
            if self.peek() != Some(b':') {
                return Err(self.expected("a colon"));
            }
            self.at += 1;
            member(key, self)?;
            let next = self.peek();
            if !matches!(next, Some(b',' | b'}')) {
                return Err(self.expected("a comma or the object's end"));
            }
            self.at += 1;
            if next == Some(b'}') {
                return Ok(());
            }
        }
    }

    /// Reads a list, or `null` for an empty one. `item` must read or skip each item.
    pub fn list(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if self.null() {
            return Ok(());
        }
        if self.peek() != Some(b'[') {
            return Err(self.expected("a list"));
        }
        self.at += 1;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            let next = self.peek();
            if !matches!(next, Some(b',' | b']')) {
                return Err(self.expected("a comma or the list's end"));
            }
            self.at += 1;
            if next == Some(b']') {
                return Ok(());
            }
        }
    }

    /// Reads an object, or `null` for none.
    pub fn object_or_null(
        &mut self,
        member: impl FnMut(Cow<'a, str>, &mut Self) -> Result<(), Malformed>,
    ) -> Result<bool, Malformed> {
        Ok(self.optional(|cursor| cursor.object(member))?.is_some())
    }

    /// Reads what `read` reads, or `null` for none.
    pub fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.null() { Ok(None) } else { read(self).map(Some) }
    }

    /// Reads a string. It borrows from the text unless it holds escapes.
    pub fn string(&mut self) -> Result<Cow<'a, str>, Malformed> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("a string"));
        }
        let start = self.at + 1;
        let text = match quote_or_backslash(self.bytes, start) {
            Some((end, b'"')) => {
                self.at = end + 1;
                std::str::from_utf8(&self.bytes[start..end]).ok().map(Cow::Borrowed)
            }
            _ => serde_json::from_slice(self.raw_bytes()?).ok().map(Cow::Owned),
        };
        text.ok_or_else(|| self.expected("a string without errors before"))
    }

    /// Reads a string, or `null` for none.
    pub fn string_or_null(&mut self) -> Result<Option<Cow<'a, str>>, Malformed> {
        self.optional(Self::string)
    }

    /// Reads a small value into a type. For a value of any shape there is [`UniqueMembers`].
    pub fn value<T: DeserializeOwned>(&mut self) -> Result<T, Malformed> {
        let raw = self.raw_bytes()?;
        let start = self.at - raw.len();
        serde_json::from_slice(raw)
            .map_err(|error| Malformed { expected: format!("something else ({error})").into(), at: start })
    }

    /// The text of the next value, read by nobody yet; `None` for `null`.
    pub fn raw_or_null(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        self.optional(Self::raw_bytes)
    }

    /// Passes over the next value.
    pub fn skip(&mut self) -> Result<(), Malformed> {
        match self.peek() {
            Some(b'"') => self.skip_string(),
            Some(b'{' | b'[') => self.skip_container(),
            Some(b',' | b':' | b'}' | b']') | None => Err(self.expected("a value")),
            Some(_) => {
                let rest = &self.bytes[self.at..];
                let ends = |byte: &u8| {
                    matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' | b':' | b'"')
                };
                self.at += rest.iter().position(ends).unwrap_or(rest.len());
                Ok(())
            }
        }
    }

    fn raw_bytes(&mut self) -> Result<&'a [u8], Malformed> {
        self.peek();
        let start = self.at;
        self.skip()?;
        Ok(&self.bytes[start..self.at])
    }

    fn null(&mut self) -> bool {
        self.peek();
        let found = self.bytes[self.at..].starts_with(b"null");
        if found {
            self.at += 4;
        }
        found
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    fn expected(&self, expected: &'static str) -> Malformed {
        Malformed { expected: expected.into(), at: self.at }
    }

    fn skip_string(&mut self) -> Result<(), Malformed> {
        self.at += 1;
        let mut carry = 0;
        let (blocks, rest) = self.bytes[self.at..].as_chunks::<64>();
        for block in blocks.iter().chain([&padded(rest)]) {
            let Masks { quotes, backslashes, .. } = Masks::of(block);
            let quotes = quotes & !escaped(backslashes, &mut carry);
            if quotes != 0 {
                self.at += quotes.trailing_zeros() as usize + 1;
                return Ok(());
            }
            self.at += 64;
        }
        self.at = self.bytes.len();
        Err(self.expected("a closing quote"))
    }

    fn skip_container(&mut self) -> Result<(), Malformed> {
        let mut depth = 0;
        let mut carry = Carry::default();
        let (blocks, rest) = self.bytes[self.at..].as_chunks::<64>();
        for block in blocks.iter().chain([&padded(rest)]) {
            let (opening, closing) = brackets(block, &mut carry);
            let (opened, closed) = (opening.count_ones(), closing.count_ones());
            // However they are ordered, this many cannot close the outermost.
            if closed < depth {
                depth = depth + opened - closed;
                self.at += 64;
                continue;
            }
            let mut either = opening | closing;
            while either != 0 {
                let bit = either & either.wrapping_neg();
                if opening & bit != 0 {
                    depth += 1;
                } else {
                    depth -= 1;
                    if depth == 0 {
                        self.at += bit.trailing_zeros() as usize + 1;
                        return Ok(());
                    }
                }
                either ^= bit;
            }
            self.at += 64;
        }
        self.at = self.bytes.len();
        Err(self.expected("a closing bracket"))
    }
}

/// A last block, filled up with what does not matter.
fn padded(rest: &[u8]) -> [u8; 64] {
    let mut block = [b' '; 64];
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// The next quote or backslash, and which.
fn quote_or_backslash(bytes: &[u8], from: usize) -> Option<(usize, u8)> {
    let rest = bytes.get(from..)?;
    let (lanes, tail) = rest.as_chunks::<16>();
    let matters = |byte: &u8| matches!(byte, b'"' | b'\\');
    for (number, &lane) in lanes.iter().enumerate() {
        let lane = u8x16::new(lane);
        let found = (lane.simd_eq(u8x16::splat(b'"')) | lane.simd_eq(u8x16::splat(b'\\'))).to_bitmask();
        if found != 0 {
            let at = from + 16 * number + found.trailing_zeros() as usize;
            return Some((at, bytes[at]));
        }
    }
    let at = from + 16 * lanes.len() + tail.iter().position(matters)?;
    Some((at, bytes[at]))
}

/// What one block leaves to the next.
#[derive(Default)]
struct Carry {
    /// All ones inside of a string.
    in_string: u64,
    /// 1 if the block ended in a backslash that escapes.
    escape: u64,
}

/// The opening and closing brackets of a block that are not in strings, a bit for each byte.
fn brackets(block: &[u8; 64], carry: &mut Carry) -> (u64, u64) {
    let Masks { quotes, backslashes, opening, closing } = Masks::of(block);
    let quotes = quotes & !escaped(backslashes, &mut carry.escape);
    // Each bit is then the parity of the quotes up to it: set from an opening quote to before its closing one.
    let mut inside = quotes;
    for shift in [1, 2, 4, 8, 16, 32] {
        inside ^= inside << shift;
    }
    inside ^= carry.in_string;
    carry.in_string = 0_u64.wrapping_sub(inside >> 63);
    (opening & !inside, closing & !inside)
}

/// The bytes of a block that a backslash escapes. A run of backslashes escapes every second byte from its
/// start on; subtracting the runs from alternating bits carries along each of them at once.
fn escaped(backslashes: u64, carry: &mut u64) -> u64 {
    const ALTERNATING: u64 = 0xAAAA_AAAA_AAAA_AAAA;
    if backslashes == 0 {
        return std::mem::take(carry);
    }
    let may_escape = backslashes & !*carry;
    let runs = ((may_escape << 1) | ALTERNATING).wrapping_sub(may_escape) ^ ALTERNATING;
    let escaped = runs ^ (backslashes | *carry);
    *carry = (runs & backslashes) >> 63;
    escaped
}

/// Where the bytes are that matter, a bit for each of 64.
struct Masks {
    quotes: u64,
    backslashes: u64,
    opening: u64,
    closing: u64,
}

/// Turns `[` into `{` and `]` into `}`, and no other byte into either.
const BRACKET_TO_BRACE: u8 = b'[' ^ b'{';

impl Masks {
    fn of(block: &[u8; 64]) -> Self {
        let mut masks = Self { quotes: 0, backslashes: 0, opening: 0, closing: 0 };
        let (lanes, _) = block.as_chunks::<16>();
        for (number, &lane) in lanes.iter().enumerate() {
            let lane = u8x16::new(lane);
            let folded = lane | u8x16::splat(BRACKET_TO_BRACE);
            let place =
                |lane: u8x16, byte| u64::from(lane.simd_eq(u8x16::splat(byte)).to_bitmask()) << (16 * number);
            masks.quotes |= place(lane, b'"');
            masks.backslashes |= place(lane, b'\\');
            masks.opening |= place(folded, b'{');
            masks.closing |= place(folded, b'}');
        }
        masks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn skipped(text: &str) -> Result<usize, Malformed> {
        let mut cursor = Cursor::new(text.as_bytes());
        cursor.skip().map(|()| cursor.at)
    }

    #[test]
    fn brackets_and_quotes_in_strings_do_not_count() {
        for text in [
            r#"{"a":"}"}"#,
            r#"["\"]"]"#,
            r#"{"a":"\\"}"#,
            r#"{"a":"\\\"}"}"#,
            r#"[[],[[]],{"b":[{}]}]"#,
            r#""a \" b""#,
            "12.5e3",
            "null",
        ] {
            assert_eq!(skipped(&format!("{text}, and more")).unwrap(), text.len(), "{text}");
        }
    }

    #[test]
    fn what_does_not_end_is_an_error() {
        for text in ["", "  ", "{", "[1,2", r#"{"a":"}"#, r#""abc"#, r#""abc\"#, "}", ",", ":"] {
            assert!(skipped(text).is_err(), "{text}");
        }
    }

    #[test]
    fn objects_are_read_member_by_member() {
        let mut cursor = Cursor::new(br#" { "a" : "x\u00e9" , "b":{"c":[1,{}]}, "d":null,"e":7 } "#);
        let mut seen = Vec::new();
        cursor
            .object(|key, value| {
                match &*key {
                    "a" => seen.push(format!("a={}", value.string()?)),
                    "d" => seen.push(format!("d={:?}", value.string_or_null()?)),
                    "e" => seen.push(format!("e={}", value.value::<u8>()?)),
                    _ => value.skip()?,
                }
                Ok(())
            })
            .unwrap();
        cursor.end().unwrap();
        assert_eq!(seen, ["a=xé", "d=None", "e=7"]);
    }

    #[test]
    fn a_member_that_is_named_twice_is_an_error() {
        for text in
            [r#"{"a":1,"a":1}"#, r#"{"a":1,"b":{},"\u0061":1}"#, r#"{"\u0061":1,"a":1}"#, r#"{"":1,"":1}"#]
        {
            let error = Cursor::new(text.as_bytes()).object(|_, value| value.skip()).unwrap_err();
            assert!(error.to_string().contains("named twice"), "{text}: {error}");
        }
        let many: Vec<String> = (0..1_000).map(|number| format!("\"k{number}\":0")).collect();
        let many = many.join(",");
        let once = format!("{{{many},\"last\":0}}");
        Cursor::new(once.as_bytes()).object(|_, value| value.skip()).unwrap();
        let twice = format!("{{{many},\"k500\":0}}");
        Cursor::new(twice.as_bytes()).object(|_, value| value.skip()).unwrap_err();
        Cursor::new(br#"{"a":1,"A":1}"#).object(|_, value| value.skip()).unwrap();
    }

    #[test]
    fn errors_say_where() {
        let mut cursor = Cursor::new(br#"{"a":1 "b":2}"#);
        let error = cursor.object(|_, value| value.skip()).unwrap_err();
        assert_eq!(error.to_string(), "expected a comma or the object's end at byte 7");
        let error = Cursor::new(b"[]").object(|_, value| value.skip()).unwrap_err();
        assert_eq!(error.to_string(), "expected an object at byte 0");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let text = prop_oneof!["[a-z{}\\[\\]\"\\\\,: ]{0,90}", any::<String>()];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 200, 8, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::hash_map(text.clone(), inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_is_skipped_to_its_end(value in any_json(), pretty in any::<bool>(), after in ".{0,70}") {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let followed = format!("{text},{after}");
            prop_assert_eq!(skipped(&followed).unwrap(), text.len());
        }

        #[test]
        fn members_are_those_that_serde_finds(value in any_json()) {
            let object = serde_json::json!({"x": value, "y": 1});
            let text = object.to_string();
            let mut found = serde_json::Map::new();
            Cursor::new(text.as_bytes())
                .object(|key, value| {
                    found.insert(key.into_owned(), value.value()?);
                    Ok(())
                })
                .unwrap();
            prop_assert_eq!(Value::Object(found), object);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[{}\\[\\]\"\\\\,:a1 ]{0,200}") {
            let _ = skipped(&text);
            let _ = Cursor::new(text.as_bytes()).object(|_, value| value.skip());
        }
    }
}
