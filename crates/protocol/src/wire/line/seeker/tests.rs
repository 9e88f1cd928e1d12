use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::value::RawValue;

use super::*;
use crate::wire::pieces::cut;

fn sought(chunks: &[&[u8]]) -> (Option<String>, bool) {
    let mut seeker = EnvelopeSeeker::default();
    for chunk in chunks {
        seeker.feed(chunk);
    }
    let (id, method) = seeker.finish();
    (id.map(|id| String::from_utf8(id.to_vec()).unwrap()), method)
}

fn id_in(text: &str) -> Option<String> {
    sought(&[text.as_bytes()]).0
}

#[test]
fn id_that_is_no_json_is_not_remembered() {
    for id in ["1x", "01", "-", "1.", "\"\\q\"", "\"\t\"", "\"\\u12g4\""] {
        let text = format!(r#"{{"id":{id},"method":"x"}}"#);
        assert_eq!(sought(&[text.as_bytes()]), (None, true), "{id}");
    }
    let mut seeker = EnvelopeSeeker::default();
    seeker.feed(b"{\"id\":\"\xff\"}");
    assert_eq!(seeker.finish(), (None, false));
}

#[test]
fn nested_and_quoted_ids_are_not_the_envelopes() {
    assert_eq!(
        id_in(r#"{"result":{"id":1},"list":[{"id":2}],"text":"\"id\":3"}"#),
        None
    );
    assert_eq!(id_in(r#"{"a":"id","b":"id","id":4}"#).as_deref(), Some("4"));
    assert_eq!(id_in(r#"{"a":"\\","id":5}"#).as_deref(), Some("5"));
}

#[test]
fn escaped_keys_count() {
    assert_eq!(id_in(r#"{"\u0069d":7}"#).as_deref(), Some("7"));
    assert_eq!(id_in(r#"{"\u0069\u0064":"a\"b"}"#).as_deref(), Some(r#""a\"b""#));
    let method = r#"{"\u006D\u0065\u0074\u0068\u006f\u0064":"x"}"#;
    assert_eq!(sought(&[method.as_bytes()]), (None, true));
    for other in [
        r#""id\u0000""#,
        r#""ID""#,
        r#""i""#,
        r#""idd""#,
        r#""\u0169d""#,
        r#""\id""#,
        r#""""#,
    ] {
        assert_eq!(id_in(&format!("{{{other}:1}}")), None, "{other}");
    }
}

#[test]
fn ids_that_are_no_number_or_string_or_too_long_or_doubled_are_none() {
    for value in ["null", "true", "{}", "[1]", &format!("\"{}\"", "i".repeat(255))] {
        assert_eq!(id_in(&format!("{{\"id\":{value}}}")), None, "{value}");
    }
    let longest = format!("\"{}\"", "i".repeat(254));
    assert_eq!(id_in(&format!("{{\"id\":{longest}}}")), Some(longest));
    assert_eq!(id_in(r#"{"id":1,"id":2}"#), None);
    assert_eq!(id_in(r#"{"id":1,"id":{}}"#), None);
}

#[test]
fn incomplete_object_has_no_id() {
    for text in [
        "",
        "[]",
        "null",
        r#"["id",1]"#,
        r#"{"id":1"#,
        r#"{"id":1,"a":"b"#,
        r#"{"id":1} x"#,
        r#"{"id":1}{"id":2}"#,
        r#"{"id":1 2}"#,
        r#"{"id" 1}"#,
        r#"{"id":1,}"#,
        r#"{"a":1"id":2}"#,
        r#"x{"id":1}"#,
        r#"{id:1}"#,
        r#"{"a":]"id":1}"#,
    ] {
        assert_eq!(sought(&[text.as_bytes()]), (None, false), "{text}");
    }
}

#[test]
fn very_deep_nesting_needs_no_stack() {
    let text = format!(r#"{{"a":{}{},"id":9}}"#, "[".repeat(400_000), "]".repeat(400_000));
    assert_eq!(id_in(&text).as_deref(), Some("9"));
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,12}".prop_map(Into::into),
        r#"["\\{}\[\]:,id]{0,12}"#.prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(serde_json::Value::Array),
            vec((key(), inner), 0..4).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("id".to_owned()),
        Just("method".to_owned()),
        Just("result".to_owned()),
        ".{0,8}"
    ]
}

/// A key as a JSON string, with some of its characters escaped although they need not be.
fn spelled(key: &str, escape: u8) -> String {
    if !key.chars().all(|letter| letter.is_ascii_alphanumeric()) {
        return serde_json::to_string(key).unwrap();
    }
    let letters = key
        .bytes()
        .enumerate()
        .map(|(at, letter)| match (escape >> (at % 8)) & 1 {
            0 => char::from(letter).to_string(),
            _ if at % 2 == 0 => format!("\\u{letter:04x}"),
            _ => format!("\\u{letter:04X}"),
        });
    format!("\"{}\"", letters.collect::<String>())
}

/// The text of an object whose keys differ, in any order and with any white space.
pub(in crate::wire) fn object() -> impl Strategy<Value = String> {
    let space = || "[ \t\r\n]{0,2}";
    let member = (key(), json(), any::<u8>(), space(), space());
    (vec(member, 0..6), space()).prop_map(|(members, end)| {
        let mut seen = std::collections::BTreeSet::new();
        let members: Vec<String> = members
            .into_iter()
            .filter(|(key, ..)| seen.insert(key.clone()))
            .map(|(key, value, escape, before, after)| {
                format!("{before}{}{after}:{before}{value}{after}", spelled(&key, escape))
            })
            .collect();
        format!("{end}{{{end}{}}}{end}", members.join(","))
    })
}

proptest! {
    #[test]
    fn seeker_agrees_with_serde(text in object(), places in vec(any::<Index>(), 0..6)) {
        let members: BTreeMap<String, &RawValue> = serde_json::from_str(&text).unwrap();
        let id = members
            .get("id")
            .map(|raw| raw.get())
            .filter(|raw| raw.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9')))
            .filter(|raw| raw.len() <= MAX_ID)
            .map(str::to_owned);
        let expected = (id, members.contains_key("method"));
        prop_assert_eq!(&sought(&[text.as_bytes()]), &expected);
        prop_assert_eq!(&sought(&cut(text.as_bytes(), &places)), &expected);
    }

    #[test]
    fn arbitrary_bytes_never_panic(input in vec(any::<u8>(), 0..300)) {
        let mut seeker = EnvelopeSeeker::default();
        seeker.feed(b"{\"a\":");
        seeker.feed(&input);
        seeker.finish();
    }
}
