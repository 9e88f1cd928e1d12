use proptest::prelude::*;

use super::*;

fn scan_text(text: impl AsRef<[u8]>) -> Result<Message, ScanError> {
    scan(Bytes::copy_from_slice(text.as_ref()))
}

#[test]
fn kinds_of_messages_are_distinguished() {
    let kind = |text: &str| scan_text(text).map(|message| message.kind());
    assert_eq!(
        kind(r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#),
        Ok(Kind::Request)
    );
    assert_eq!(kind(r#"{"jsonrpc":"2.0","method":"x"}"#), Ok(Kind::Notification));
    assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), Ok(Kind::Result));
    assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1,"error":{}}"#), Ok(Kind::Error));
    assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1}"#), Err(ScanError::NotJsonRpc));
    assert_eq!(
        kind(r#"{"id":1,"method":"x","result":1}"#),
        Err(ScanError::NotJsonRpc)
    );
    assert_eq!(kind(r#"{"id":1,"method":7}"#), Err(ScanError::NotJsonRpc));
    assert_eq!(kind("[]"), Err(ScanError::Batch));
    assert_eq!(kind("null"), Err(ScanError::NotObject));
}

#[test]
fn broken_json_is_refused() {
    for text in [
        "",
        "{",
        r#"{"jsonrpc":"#,
        r#"{"id":01,"method":"x"}"#,
        r#"{"id":1,}"#,
        r#"{"a" 1}"#,
        r#"{"a":1 "b":2}"#,
        "{\"a\":\"\n\"}",
        "{\"a\":\"\u{0}\"}",
        r#"{"a":"\x"}"#,
        r#"{"a":"\u12g4"}"#,
        r#"{"a":tru}"#,
        r#"{"a":1}}"#,
        r#"{"a":[1,]}"#,
        r#"{"a":[}"#,
        r#"{"a":-}"#,
        r#"{"a":1.}"#,
        r#"{"a":1e}"#,
        "\u{feff}{}",
    ] {
        assert!(
            matches!(scan_text(text), Err(ScanError::NotJson { .. })),
            "{text:?}"
        );
    }
    assert_eq!(scan_text(b"{\"a\":\"\xff\xfe\"}").err(), Some(ScanError::NotUtf8));
}

/// Strings are read in words and in blocks: a byte that ends them or must not be in them is seen at
/// any position.
#[test]
fn each_byte_of_a_string_is_looked_at() {
    let with = |length: usize, at: usize, bytes: &[u8]| {
        let (before, after) = ("a".repeat(at), "b".repeat(length - at));
        let text = [
            br#"{"method":"x","a":""#,
            before.as_bytes(),
            bytes,
            after.as_bytes(),
            b"\"}",
        ]
        .concat();
        scan_text(text).map(|message| message.kind())
    };
    for length in 0..100 {
        for at in 0..=length {
            for good in [
                "",
                "\u{e9}",
                "\u{10348}",
                "\u{7f}",
                " ",
                "!",
                "#",
                "[",
                "]",
                r#"\""#,
                r"\\",
                r"\n",
                r"\u00e9",
            ] {
                assert_eq!(
                    with(length, at, good.as_bytes()),
                    Ok(Kind::Notification),
                    "{good} at {at}"
                );
            }
            for bad in [&b"\xff"[..], b"\xc3", b"\x80", b"\xed\xa0\x80", b"\xc0\x80"] {
                assert_eq!(with(length, at, bad), Err(ScanError::NotUtf8), "{bad:?} at {at}");
            }
            for bad in [&b"\x00"[..], b"\x1f", b"\n", b"\"", br"\x"] {
                let error = with(length, at, bad);
                assert!(
                    matches!(error, Err(ScanError::NotJson { .. })),
                    "{bad:?} at {at}: {error:?}"
                );
            }
        }
    }
}

#[test]
fn doubled_members_are_refused_however_they_are_spelt() {
    for (text, member) in [
        (r#"{"id":1,"id":2,"method":"x"}"#, "id"),
        (r#"{"id":1,"method":"x","\u006dethod":"y"}"#, "method"),
        (
            r#"{"id":1,"method":"x","params":{"name":"a","name":"b"}}"#,
            "name",
        ),
        (
            r#"{"id":1,"method":"x","params":{"uri":"a","u\u0072i":"b"}}"#,
            "uri",
        ),
        (
            r#"{"id":1,"method":"x","params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
            "progressToken",
        ),
    ] {
        assert_eq!(
            scan_text(text).err(),
            Some(ScanError::Duplicate(member)),
            "{text}"
        );
    }
}

#[test]
fn look_alike_keys_are_not_taken_for_the_real_ones() {
    let message =
        scan_text(r#"{"id":1,"method":"x","Method":"y","ID":3,"id\u0000":4,"params":{"Name":"n"}}"#).unwrap();
    assert_eq!(message.raw(Member::Id), Some(&b"1"[..]));
    assert_eq!(message.raw(Member::Name), None);
}

#[test]
fn nesting_is_limited_without_recursion() {
    let nested = |levels: usize| {
        format!(
            r#"{{"id":1,"method":"x","params":{}{}}}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    assert!(scan_text(nested(MAX_DEPTH - 1)).is_ok());
    assert_eq!(scan_text(nested(MAX_DEPTH)).err(), Some(ScanError::TooDeep));
    assert_eq!(scan_text(nested(400_000)).err(), Some(ScanError::TooDeep));
    let objects = format!(
        r#"{{"id":1,"method":"x","params":{}1{}}}"#,
        r#"{"a":"#.repeat(200),
        "}".repeat(200)
    );
    assert_eq!(scan_text(objects).err(), Some(ScanError::TooDeep));
}

/// The same at the borders of the blocks that long strings are searched in.
#[test]
fn each_byte_of_a_long_string_is_looked_at() {
    const LENGTH: usize = 20_000;
    for plain in ["x", "\u{e9}"] {
        for at in [
            0,
            31,
            32,
            33,
            8_190,
            8_223,
            8_224,
            8_225,
            16_416,
            LENGTH - 1,
            LENGTH,
        ] {
            let with = |bytes: &[u8]| {
                let (before, after) = (plain.repeat(at), plain.repeat(LENGTH - at));
                let parts = [
                    br#"{"method":"x","a":""#,
                    before.as_bytes(),
                    bytes,
                    after.as_bytes(),
                    b"\"}",
                ];
                scan_text(parts.concat()).map(|message| message.kind())
            };
            for good in ["", "\u{e9}", r#"\""#, r"\\", r"\u00e9"] {
                assert_eq!(with(good.as_bytes()), Ok(Kind::Notification), "{good} at {at}");
            }
            assert_eq!(with(b"\xff"), Err(ScanError::NotUtf8), "at {at}");
            for bad in [&b"\x00"[..], b"\n", b"\"", br"\x"] {
                let error = with(bad);
                assert!(
                    matches!(error, Err(ScanError::NotJson { .. })),
                    "{bad:?} at {at}: {error:?}"
                );
            }
        }
    }
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".*".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
            prop::collection::btree_map("id|method|name|_meta|params|.{0,4}", inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn agrees_with_serde_json_on_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let ours = !matches!(scan_text(&bytes), Err(ScanError::NotJson { .. } | ScanError::NotUtf8));
        let theirs = serde_json::from_slice::<&serde_json::value::RawValue>(&bytes).is_ok();
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn agrees_with_serde_json_on_nearly_valid_json(value in json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = value.to_string().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        let ours = !matches!(scan_text(&text), Err(ScanError::NotJson { .. } | ScanError::NotUtf8));
        let theirs = std::str::from_utf8(&text).is_ok()
            && serde_json::from_slice::<&serde_json::value::RawValue>(&text).is_ok();
        prop_assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn finds_the_members_that_serde_json_finds(params in json(), id in any::<i64>(), result in json()) {
        let request = serde_json::json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let message = scan_text(request.to_string()).unwrap();
        let read = |member| message.raw(member).map(|raw| String::from_utf8(raw.to_vec()).unwrap());
        prop_assert_eq!(read(Member::Id), Some(request["id"].to_string()));
        prop_assert_eq!(read(Member::Name), request["params"].get("name").map(ToString::to_string));
        prop_assert_eq!(read(Member::Meta), request["params"].get("_meta").map(ToString::to_string));
        let response = serde_json::json!({"jsonrpc": "2.0", "id": id, "result": result});
        let spliced = scan_text(response.to_string()).unwrap().spliced(&[(Member::Id, b"\"x\"")]);
        let back = scan_text(&spliced).unwrap();
        // Compared as texts: reading a float may change its last digit.
        let text = response["result"].to_string();
        prop_assert_eq!(back.raw(Member::Result), Some(text.as_bytes()));
        prop_assert_eq!(back.raw(Member::Id), Some(&b"\"x\""[..]));
    }
}

#[test]
fn nesting_counts_alike_wherever_it_stands() {
    let deepest = |before: &str, after: &str| {
        (1..=MAX_DEPTH + 1)
            .take_while(|depth| {
                let (open, close) = ("[".repeat(*depth), "]".repeat(*depth));
                let text = format!(r#"{{"jsonrpc":"2.0","method":"x",{before}{open}{close}{after}}}"#);
                Message::scan(Bytes::from(text)).is_ok()
            })
            .count()
    };
    let outside = deepest(r#""other":"#, "");
    assert!(outside < MAX_DEPTH + 1);
    assert_eq!(deepest(r#""params":"#, ""), outside);
    assert_eq!(deepest(r#""params":{"a":"#, "}"), outside - 1);
    assert_eq!(deepest(r#""params":{"_meta":{"a":"#, "}}"), outside - 2);
}
