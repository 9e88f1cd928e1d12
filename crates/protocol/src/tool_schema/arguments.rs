//! The arguments of a call, read only along the paths that a tool's annotations name.
//!
//! A path whose property stands twice has no one value: servers differ in which they take, so it is
//! refused.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;

use super::{ToolHeader, ToolHeaders};
use crate::message::{Member, Message, string};

/// Why the arguments of a call cannot be mirrored. It names the first header that is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ArgumentsError {
    /// An argument stands twice, so that readers may disagree about it.
    #[error("an argument on the way to `Mcp-Param-{header}` stands twice")]
    Repeated {
        /// What follows `Mcp-Param-`.
        header: String,
    },
    /// The arguments are no JSON object.
    #[error("the arguments mirrored in `Mcp-Param-{header}` are not JSON")]
    NotJson {
        /// What follows `Mcp-Param-`.
        header: String,
    },
}

/// The members of `params` that headers mirror and that [`Message::scan`] does not note.
#[derive(Debug, Default, Deserialize)]
struct Members<'a> {
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "taskId")]
    task_id: Option<&'a RawValue>,
}

/// Reads them. It fails if one of them stands twice.
fn members_of(message: &Message) -> Result<Members<'_>, serde_json::Error> {
    match message.raw(Member::Params) {
        // A list would be read as members in order, which no server does.
        Some(raw) if raw.starts_with(b"{") => serde_json::from_slice(raw),
        Some(_) | None => Ok(Members::default()),
    }
}

/// Returns the raw `params.arguments` of a call. It fails if they stand twice.
pub fn arguments_of(message: &Message) -> Result<Option<&[u8]>, serde_json::Error> {
    Ok(members_of(message)?.arguments.map(|raw| raw.get().as_bytes()))
}

/// Returns the raw `params.taskId`, likewise.
pub(crate) fn task_id_of(message: &Message) -> Result<Option<&[u8]>, serde_json::Error> {
    Ok(members_of(message)?.task_id.map(|raw| raw.get().as_bytes()))
}

/// The value of an annotated argument.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mirrored<'a> {
    /// The argument is absent or `null`: there is no header.
    Nothing,
    Text(Cow<'a, str>),
    /// A number as the sender wrote it.
    Number(&'a str),
    Boolean(bool),
    /// An object or a list, which no header can carry.
    Structure,
    /// A string that is no text, because it has half a surrogate pair.
    Broken,
}

impl<'a> Mirrored<'a> {
    fn of(raw: &'a str) -> Self {
        match raw.as_bytes().first() {
            None | Some(b'n') => Self::Nothing,
            Some(b't') => Self::Boolean(true),
            Some(b'f') => Self::Boolean(false),
            Some(b'"') => string(raw.as_bytes()).map_or(Self::Broken, Self::Text),
            Some(b'{' | b'[') => Self::Structure,
            Some(_) => Self::Number(raw),
        }
    }

    /// Returns its text in a header, before encoding.
    pub(super) fn into_text(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Nothing | Self::Structure | Self::Broken => None,
            Self::Text(text) => Some(text),
            Self::Number(number) => Some(Decimal::parse(number).map_or(Cow::Borrowed(number), |decimal| {
                decimal.text().map_or(Cow::Borrowed(number), Cow::Owned)
            })),
            Self::Boolean(true) => Some(Cow::Borrowed("true")),
            Self::Boolean(false) => Some(Cow::Borrowed("false")),
        }
    }
}

impl ToolHeaders {
    /// Returns the value of each annotated argument, in the order of the entries.
    pub(crate) fn mirrored<'a>(
        &self,
        arguments: Option<&'a [u8]>,
    ) -> Result<Vec<Mirrored<'a>>, ArgumentsError> {
        let mut search = Search {
            entries: &self.entries,
            found: vec![None; self.entries.len()],
            repeated: None,
        };
        if let (Some(arguments), Some(first)) = (arguments, self.entries.first()) {
            let all: Vec<usize> = (0..self.entries.len()).collect();
            let read = serde_json::from_slice::<&RawValue>(arguments)
                .and_then(|arguments| search.descend(arguments, 0, all));
            if read.is_err() {
                return Err(match search.repeated {
                    Some(header) => ArgumentsError::Repeated { header },
                    None => ArgumentsError::NotJson {
                        header: first.name.clone(),
                    },
                });
            }
        }
        let values = search.found.into_iter();
        Ok(values
            .map(|raw| raw.map_or(Mirrored::Nothing, |raw| Mirrored::of(raw.get())))
            .collect())
    }
}

/// The search for all annotated arguments at once.
struct Search<'t, 'a> {
    entries: &'t [ToolHeader],
    found: Vec<Option<&'a RawValue>>,
    /// The header whose path was met twice.
    repeated: Option<String>,
}

impl<'a> Search<'_, 'a> {
    /// Looks into one object for the entries whose paths have led to it. There are no more levels
    /// than [`super::MAX_STEPS`].
    fn descend(
        &mut self,
        object: &'a RawValue,
        depth: usize,
        live: Vec<usize>,
    ) -> Result<(), serde_json::Error> {
        if !object.get().starts_with('{') {
            return Ok(());
        }
        let mut json = serde_json::Deserializer::from_str(object.get());
        json.deserialize_map(Level {
            search: self,
            depth,
            live,
        })
    }
}

struct Level<'s, 't, 'a> {
    search: &'s mut Search<'t, 'a>,
    depth: usize,
    live: Vec<usize>,
}

impl<'a> Visitor<'a> for Level<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        let mut met = Vec::new();
        while let Some(matching) = map.next_key_seed(Key {
            entries: self.search.entries,
            depth: self.depth,
            live: &self.live,
        })? {
            let Some(first) = matching.first() else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            // Entries that share one step share it always, so the first stands for all.
            if met.contains(first) {
                self.search.repeated = self.search.entries.get(*first).map(|entry| entry.name.clone());
                return Err(M::Error::custom("an argument stands twice"));
            }
            met.extend_from_slice(&matching);
            let value: &'a RawValue = map.next_value()?;
            let mut deeper = Vec::new();
            for index in matching {
                let ends = self
                    .search
                    .entries
                    .get(index)
                    .is_some_and(|entry| entry.path.len() == self.depth + 1);
                if !ends {
                    deeper.push(index);
                } else if let Some(found) = self.search.found.get_mut(index) {
                    *found = Some(value);
                }
            }
            if !deeper.is_empty() {
                self.search
                    .descend(value, self.depth + 1, deeper)
                    .map_err(M::Error::custom)?;
            }
        }
        Ok(())
    }
}

/// Reads a key and finds the live entries whose path continues through it.
struct Key<'s> {
    entries: &'s [ToolHeader],
    depth: usize,
    live: &'s [usize],
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Vec<usize>;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<Vec<usize>, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Vec<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Vec<usize>, E> {
        let goes_on = |index: &usize| {
            let path = self.entries.get(*index).map(|entry| &entry.path);
            path.and_then(|path| path.get(self.depth))
                .is_some_and(|step| step == key)
        };
        Ok(self.live.iter().copied().filter(goes_on).collect())
    }
}

/// Returns whether two numbers in JSON's spelling are equal, to the last digit: `42`, `42.0` and
/// `4.2e1` are.
pub(crate) fn same_number(left: &str, right: &str) -> bool {
    match (Decimal::parse(left), Decimal::parse(right)) {
        (Some(left), Some(right)) => left == right,
        // Too large an exponent to reckon with: such numbers are equal only if they look it.
        (Some(_) | None, Some(_) | None) => left == right,
    }
}

/// A number as `digits` times ten to the `exponent`, with neither leading nor trailing zeros.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
            None => (rest, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) if is_digits(fraction) => (whole, fraction),
            Some(_) => return None,
            None => (mantissa, ""),
        };
        if !is_digits(whole) || (whole.len() > 1 && whole.starts_with('0')) {
            return None;
        }
        let exponent = i64::from(exponent) - i64::try_from(fraction.len()).ok()?;
        let digits = [whole, fraction].concat();
        let digits = digits.trim_start_matches('0');
        let significant = digits.trim_end_matches('0');
        if significant.is_empty() {
            return Some(Self {
                negative: false,
                digits: String::new(),
                exponent: 0,
            });
        }
        Some(Self {
            negative,
            digits: significant.to_owned(),
            exponent: exponent + i64::try_from(digits.len() - significant.len()).ok()?,
        })
    }

    /// Returns the number without an exponent, unless it would be longer than people write numbers.
    fn text(&self) -> Option<String> {
        const LONGEST: usize = 40;
        if self.digits.is_empty() {
            return Some("0".to_owned());
        }
        let sign = if self.negative { "-" } else { "" };
        let places = usize::try_from(self.exponent.unsigned_abs()).ok()?;
        if places > LONGEST || self.digits.len() > LONGEST {
            return None;
        }
        Some(if self.exponent >= 0 {
            format!("{sign}{}{}", self.digits, "0".repeat(places))
        } else {
            let padded = format!("{:0>width$}", self.digits, width = places + 1);
            let (whole, fraction) = padded.split_at(padded.len() - places);
            format!("{sign}{whole}.{fraction}")
        })
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_exponent(text: &str) -> Option<i32> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    is_digits(digits).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_by_value() {
        for (left, right) in [
            ("42", "42.0"),
            ("42", "42"),
            ("42", "4.2e1"),
            ("42", "4200E-2"),
            ("0", "-0"),
            ("0", "0.000e9"),
            ("-7", "-7.00"),
            ("1000", "1e+3"),
            ("0.5", "5e-1"),
            ("9007199254740993", "9007199254740993.0"),
            ("1e99999999999", "1e99999999999"),
        ] {
            assert!(same_number(left, right), "{left} {right}");
            assert!(same_number(right, left), "{right} {left}");
        }
        for (left, right) in [
            ("42", "43"),
            ("42", "-42"),
            ("42", "420"),
            ("9007199254740993", "9007199254740992"),
            ("42", "042"),
            ("42", "+42"),
            ("42", " 42"),
            ("42", "42."),
            ("42", ".42e2"),
            ("42", "0x2a"),
            ("42", "42e"),
            ("42", "42e+"),
            ("42", ""),
            ("0", "-"),
            ("42", "٤٢"),
            ("1e99999999999", "10e99999999998"),
        ] {
            assert!(!same_number(left, right), "{left} {right}");
        }
    }

    #[test]
    fn numbers_are_written_without_exponents() {
        for (number, text) in [
            ("42", "42"),
            ("42.0", "42"),
            ("-7", "-7"),
            ("-0", "0"),
            ("1e3", "1000"),
            ("1.50", "1.5"),
            ("-5e-3", "-0.005"),
            ("9007199254740993", "9007199254740993"),
            ("1e40", "10000000000000000000000000000000000000000"),
            ("1e41", "1e41"),
            ("1e-41", "1e-41"),
            (
                "12345678901234567890123456789012345678901.0",
                "12345678901234567890123456789012345678901.0",
            ),
            ("1e400", "1e400"),
            ("1e99999999999", "1e99999999999"),
        ] {
            assert_eq!(
                Mirrored::of(number).into_text().as_deref(),
                Some(text),
                "{number}"
            );
        }
    }
}
