//! A raw JSON object that can be edited member by member: what is not touched stays to the byte.
//!
//! Only translation between eras needs this. Messages that pass within one era are spliced in place
//! ([`crate::message::Message::splice`]) and never taken apart.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::message::{needs_escapes, quoted};

/// The members of an object, in the order they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object<'a> {
    members: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Object<'a> {
    /// Takes an object apart; `None` if the bytes are anything else.
    pub fn parse(raw: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(raw).ok()
    }

    /// Returns a member's raw value; the last one, if it stands there several times, as most
    /// readers have it.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.members
            .iter()
            .rev()
            .find(|(name, _)| name == key)
            .map(|(_, value)| &**value)
    }

    /// Returns a member that is a string, decoded.
    pub fn text(&self, key: &str) -> Option<String> {
        serde_json::from_str(self.get(key)?).ok()
    }

    /// Returns whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the names of its members, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|(name, _)| &**name)
    }

    /// Returns its members with their raw values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns its members with their raw values as they stand in the text that was taken apart; a
    /// value that was set since is left out.
    pub(crate) fn into_borrowed(self) -> Vec<(Cow<'a, str>, &'a str)> {
        let members = self.members.into_iter();
        let borrowed = members.filter_map(|(name, value)| match value {
            Cow::Borrowed(value) => Some((name, value)),
            Cow::Owned(_) => None,
        });
        borrowed.collect()
    }

    /// Puts a raw value in place of a member's, or at the end if there was none. If it stood there
    /// several times it does so no more: whichever of them a reader believes, it must be this one.
    pub fn set(&mut self, key: &str, raw: impl Into<Cow<'a, str>>) {
        let raw = raw.into();
        let found = self
            .members
            .iter_mut()
            .enumerate()
            .find(|(_, (name, _))| name == key);
        let Some((first, (_, value))) = found else {
            return self.members.push((Cow::Owned(key.to_owned()), raw));
        };
        *value = raw;
        let mut at = 0;
        self.members.retain(|(name, _)| {
            at += 1;
            at <= first + 1 || name != key
        });
    }

    /// Removes a member, however often it stands there.
    pub fn remove(&mut self, key: &str) {
        self.members.retain(|(name, _)| name != key);
    }

    /// Keeps the members whose names pass.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.members.retain(|(name, _)| keep(name));
    }
}

/// Returns whether an object may have one of these members, at any depth: looked at before it is
/// taken apart, which nearly no message needs. A name may be spelt with escapes. Names are ASCII, so
/// that the escapes of other characters, with which some servers write all text, spell none.
pub(crate) fn may_have(raw: &[u8], names: &[&str]) -> bool {
    names
        .iter()
        .any(|name| memchr::memmem::find(raw, name.as_bytes()).is_some())
        || memchr::memmem::find_iter(raw, br"\u00").any(|at| matches!(raw.get(at + 4), Some(b'2'..=b'7')))
}

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        // Piece by piece, without the machinery of formats: translation writes little else.
        for (at, (name, value)) in self.members.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            if needs_escapes(name) {
                f.write_str(&quoted(name))?;
            } else {
                f.write_str("\"")?;
                f.write_str(name)?;
                f.write_str("\"")?;
            }
            f.write_str(":")?;
            f.write_str(value)?;
        }
        f.write_str("}")
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((Key(name), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    members.push((name, Cow::Borrowed(value.get())));
                }
                Ok(Object { members })
            }
        }

        deserializer.deserialize_map(Members)
    }
}

/// A key that is borrowed where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// Returns the raw elements of an array; `None` if the text is anything else.
pub fn elements(raw: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untouched_members_stay_to_the_byte() {
        let mut object = Object::parse(br#"{ "a": 1.50, "b" : {"c": [ 1 ] }, "\u0064":"\u0041" }"#).unwrap();
        object.set("b", "null");
        object.set("e", "2");
        assert_eq!(object.to_string(), r#"{"a":1.50,"b":null,"d":"\u0041","e":2}"#);
        assert_eq!(object.text("d").as_deref(), Some("A"));
        object.remove("a");
        assert_eq!(object.keys().collect::<Vec<_>>(), ["b", "d", "e"]);
    }

    #[test]
    fn set_members_are_found_by_every_reader() {
        let mut object = Object::parse(br#"{"a":1,"b":2,"a":3}"#).unwrap();
        assert_eq!(object.get("a"), Some("3"));
        object.set("a", "4");
        assert_eq!(object.get("a"), Some("4"));
        assert_eq!(object.to_string(), r#"{"a":4,"b":2}"#);
    }

    #[test]
    fn name_that_is_spelt_with_escapes_is_seen_and_escaped_text_is_none() {
        let names = ["uri\""];
        for raw in [r#"{"uri":1}"#, r#"{"\u0075ri":1}"#, r#"{"u\u0072\u0069":1}"#] {
            assert!(may_have(raw.as_bytes(), &names), "{raw}");
        }
        for raw in [r#"{"text":"gr\u00fc\u00df\u4e2d\u000a"}"#, r#"{"ur":"\u00"#] {
            assert!(!may_have(raw.as_bytes(), &names), "{raw}");
        }
    }

    #[test]
    fn only_objects_are_objects() {
        for raw in ["[]", "1", "\"x\"", "null", "{", ""] {
            assert_eq!(Object::parse(raw.as_bytes()), None, "{raw}");
        }
        assert!(Object::parse(b"{}").unwrap().is_empty());
        assert_eq!(elements("[1, {\"a\" :2}]"), Some(vec!["1", "{\"a\" :2}"]));
        assert_eq!(elements("{}"), None);
    }
}
