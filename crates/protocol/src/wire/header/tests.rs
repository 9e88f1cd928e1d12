use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::tool_schema::arguments_of;

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

fn message(text: &str) -> Message {
    Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

/// A request of revision 2026-07-28 with these members in its `params`.
fn request(method: &str, members: &str) -> Message {
    let comma = if members.is_empty() { "" } else { "," };
    message(&format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{members}{comma}"_meta":{{"{VERSION_KEY}":"2026-07-28"}}}}}}"#
    ))
}

fn headers<'a>(pairs: &[(&'a str, &'a str)]) -> MirroredHeaders<'a> {
    MirroredHeaders::read(
        pairs
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes())),
    )
}

/// What the gateway does with a request whose version it knows.
fn check(pairs: &[(&str, &str)], message: &Message) -> Result<(), String> {
    let headers = headers(pairs);
    headers
        .check_mismatch(message)
        .and_then(|()| headers.check_presence(message))
        .map_err(|mismatch| mismatch.to_string())
}

#[test]
fn values_are_plain_where_allowed_and_base64_elsewhere() {
    for (value, encoded) in [
        // The examples of the specification.
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        // Their neighbours.
        ("wetter_ü", "=?base64?d2V0dGVyX8O8?="),
        ("", ""),
        ("a b\tc~!", "a b\tc~!"),
        ("\ta", "=?base64?CWE=?="),
        ("a\t", "=?base64?YQk=?="),
        (" ", "=?base64?IA==?="),
        ("a\rb", "=?base64?YQ1i?="),
        ("a\0", "=?base64?YQA=?="),
        ("\u{7f}", "=?base64?fw==?="),
        ("=?base64??=", "=?base64?PT9iYXNlNjQ/Pz0=?="),
        ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
        ("=?BASE64?x?=", "=?base64?PT9CQVNFNjQ/eD89?="),
        ("=?base64?open", "=?base64?open"),
        ("closed?=", "closed?="),
        ("=?utf-8?x?=", "=?utf-8?x?="),
    ] {
        assert_eq!(encode(value), encoded, "{value:?}");
        assert_eq!(decode(encoded.as_bytes()).as_deref(), Ok(value), "{encoded:?}");
    }
}

#[test]
fn decoding_strips_blanks_and_takes_the_marks_exactly() {
    for (header, value) in [
        (" \t us-west1\t ", "us-west1"),
        (" =?base64?YQ==?= ", "a"),
        ("=?base64??=", ""),
        ("", ""),
        (" \t", ""),
        ("=?BASE64?YQ==?=", "=?BASE64?YQ==?="),
        ("=?Base64?YQ==?=", "=?Base64?YQ==?="),
        ("=?base64?YQ==", "=?base64?YQ=="),
        ("x=?base64?YQ==?=", "x=?base64?YQ==?="),
    ] {
        assert_eq!(decode(header.as_bytes()).as_deref(), Ok(value), "{header:?}");
    }
}

#[test]
fn illegal_values_are_refused() {
    for (header, error) in [
        (&b"=?base64?YQ?="[..], HeaderError::BadBase64),
        (b"=?base64?YQ=?=", HeaderError::BadBase64),
        (b"=?base64?YQ===?=", HeaderError::BadBase64),
        (b"=?base64?YR==?=", HeaderError::BadBase64),
        (b"=?base64?Y Q==?=", HeaderError::BadBase64),
        (b"=?base64?%%%?=", HeaderError::BadBase64),
        (b"=?base64?-_8=?=", HeaderError::BadBase64),
        (b"=?base64?=", HeaderError::BadBase64),
        (b"=?base64?YQ==?x?=", HeaderError::BadBase64),
        (b"=?base64?//4=?=", HeaderError::NotUtf8),
        (b"=?base64?7aCA?=", HeaderError::NotUtf8),
        ("wetter_ü".as_bytes(), HeaderError::IllegalByte),
        (b"a\xffb", HeaderError::IllegalByte),
        (b"a\nb", HeaderError::IllegalByte),
        (b"a\0", HeaderError::IllegalByte),
        (b"\x7f", HeaderError::IllegalByte),
    ] {
        assert_eq!(decode(header), Err(error), "{}", header.escape_ascii());
    }
}

proptest! {
    #[test]
    fn any_text_survives_a_header(value in any::<String>()) {
        let encoded = encode(&value);
        let decoded = decode(encoded.as_bytes());
        prop_assert_eq!(decoded.as_deref(), Ok(value.as_str()));
    }

    #[test]
    fn texts_like_the_encoded_form_survive_a_header(value in r"[ \t]?=\?[bB]ase64\?[YQ=?ü]{0,6}(\?=)?[ \t]?") {
        let encoded = encode(&value);
        let decoded = decode(encoded.as_bytes());
        prop_assert_eq!(decoded.as_deref(), Ok(value.as_str()));
    }

    #[test]
    fn encoded_values_are_legal_in_a_header(value in any::<String>()) {
        let encoded = encode(&value);
        prop_assert!(encoded.bytes().all(|byte| matches!(byte, 0x20..=0x7e | b'\t')));
        prop_assert_eq!(encoded.trim_matches([' ', '\t']), &*encoded);
    }

    #[test]
    fn decoding_any_bytes_ends_well(value in any::<Vec<u8>>()) {
        let _ = decode(&value);
    }

    #[test]
    fn decoding_anything_between_the_marks_ends_well(inner in "[A-Za-z0-9+/=?]{0,12}") {
        let header = format!("=?base64?{inner}?=");
        // What can be read has one spelling only, so it is written the same way again.
        if let Ok(value) = decode(header.as_bytes()) {
            prop_assert_eq!(STANDARD.encode(value.as_bytes()), inner);
        }
    }

    #[test]
    fn any_headers_are_judged_without_panic(
        pairs in prop::collection::vec(("(?i)(mcp-name|mcp-method|mcp-param-(a|n)|mcp-param-)", any::<Vec<u8>>()), 0..6),
        arguments in r#"(\{("[anb]":("x"|42|true|null|\{"b":1\}),?){0,3}\}|[\[\]{}a":1]{0,6})"#,
    ) {
        let headers = MirroredHeaders::read(pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())));
        let call = request("tools/call", r#""name":"t""#);
        let _ = headers.check_mismatch(&call);
        let _ = headers.check_presence(&call);
        let _ = headers.check_params(&tool(), Some(arguments.as_bytes()));
    }
}

#[test]
fn headers_that_agree_with_the_body_pass() {
    for (pairs, message) in [
        (
            &[
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "tools/call"),
                ("Mcp-Name", "=?base64?d2V0dGVyX8O8?="),
            ][..],
            request("tools/call", r#""name":"wetter_ü""#),
        ),
        (
            &[
                ("mcp-protocol-version", " 2026-07-28\t"),
                ("MCP-METHOD", "prompts/get "),
                ("mCP-nAME", "\tgreet"),
            ],
            request(r"prompts\/get", r#""name":"gr\u0065et""#),
        ),
        (
            &[
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "resources/read"),
                ("Mcp-Name", "file:///a b"),
            ],
            request("resources/read", r#""uri":"file:///a b","name":"other""#),
        ),
        // A name may be encoded though it need not be.
        (
            &[
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "tasks/get"),
                ("Mcp-Name", "=?base64?dA==?="),
            ],
            request("tasks/get", r#""taskId":"t","name":"other""#),
        ),
        // Both ways to write an empty name.
        (
            &[
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "tools/call"),
                ("Mcp-Name", ""),
            ],
            request("tools/call", r#""name":"""#),
        ),
        (
            &[
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "tools/call"),
                ("Mcp-Name", "=?base64??="),
            ],
            request("tools/call", r#""name":"""#),
        ),
        // A method that mirrors no name needs none, and may have one that Rialto knows nothing of.
        (
            &[
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "tools/list"),
            ],
            request("tools/list", ""),
        ),
        (
            &[
                ("MCP-Protocol-Version", "2026-07-28"),
                ("Mcp-Method", "acme/do"),
                ("Mcp-Name", "x"),
            ],
            request("acme/do", r#""name":"y""#),
        ),
    ] {
        assert_eq!(check(pairs, &message), Ok(()), "{pairs:?}");
    }
}

#[test]
fn headers_that_disagree_with_the_body_are_refused() {
    const VERSION_HEADER: (&str, &str) = (VERSION, "2026-07-28");
    const CALL: (&str, &str) = (METHOD, "tools/call");
    for (pairs, members, said) in [
        // Header and body disagree; games with versions.
        (
            &[VERSION_HEADER, CALL, (NAME, "b")][..],
            r#""name":"a""#,
            "Mcp-Name does not match params.name",
        ),
        (
            &[VERSION_HEADER, CALL, (NAME, "A")],
            r#""name":"a""#,
            "Mcp-Name does not match params.name",
        ),
        (
            &[VERSION_HEADER, (NAME, "a")],
            r#""name":"a""#,
            "Mcp-Method is missing",
        ),
        (&[VERSION_HEADER, CALL], r#""name":"a""#, "Mcp-Name is missing"),
        (
            &[CALL, (NAME, "a")],
            r#""name":"a""#,
            "MCP-Protocol-Version is missing",
        ),
        (
            &[VERSION_HEADER, CALL, (NAME, "=?base64?Yg==?=")],
            r#""name":"a""#,
            "Mcp-Name does not match params.name",
        ),
        (
            &[VERSION_HEADER, CALL, (NAME, "=?BASE64?YQ==?=")],
            r#""name":"a""#,
            "Mcp-Name does not match params.name",
        ),
        (
            &[VERSION_HEADER, CALL, (NAME, "=?base64?YQ?=")],
            r#""name":"a""#,
            "Mcp-Name cannot be read: its base64 is malformed",
        ),
        (
            &[VERSION_HEADER, CALL, (NAME, "ü")],
            r#""name":"ü""#,
            "Mcp-Name cannot be read: it contains characters that must be sent as base64",
        ),
        (
            &[(VERSION, "2025-11-25"), CALL, (NAME, "a")],
            r#""name":"a""#,
            "MCP-Protocol-Version does not match _meta.io.modelcontextprotocol/protocolVersion",
        ),
        (
            &[VERSION_HEADER, (METHOD, "tools/list"), (NAME, "a")],
            r#""name":"a""#,
            "Mcp-Method does not match method",
        ),
        (
            &[VERSION_HEADER, (METHOD, "Tools/Call"), (NAME, "a")],
            r#""name":"a""#,
            "Mcp-Method does not match method",
        ),
        // Only `Mcp-Name` and `Mcp-Param-*` have an encoded form.
        (
            &[
                VERSION_HEADER,
                (METHOD, "=?base64?dG9vbHMvY2FsbA==?="),
                (NAME, "a"),
            ],
            r#""name":"a""#,
            "Mcp-Method does not match method",
        ),
        // A body without a name has nothing that a header could mirror.
        (
            &[VERSION_HEADER, CALL, (NAME, "a")],
            "",
            "Mcp-Name is given, but params.name has no value",
        ),
        (
            &[VERSION_HEADER, CALL, (NAME, "5")],
            r#""name":5"#,
            "Mcp-Name is given, but params.name has no value",
        ),
        (
            &[VERSION_HEADER, CALL, (NAME, "a")],
            r#""name":"\ud800""#,
            "Mcp-Name is given, but params.name has no value",
        ),
        (
            &[VERSION_HEADER, CALL],
            r#""name":"\ud800""#,
            "Mcp-Name is missing",
        ),
        (
            &[VERSION_HEADER, CALL, (NAME, "")],
            r#""name":"a""#,
            "Mcp-Name does not match params.name",
        ),
        (
            &[VERSION_HEADER, CALL, (NAME, "a, a")],
            r#""name":"a""#,
            "Mcp-Name does not match params.name",
        ),
    ] {
        let said_now = check(pairs, &request("tools/call", members));
        assert_eq!(said_now, Err(said.to_owned()), "{pairs:?} {members}");
    }
}

#[test]
fn name_is_looked_for_where_the_method_has_it() {
    for (method, members, said) in [
        ("resources/read", r#""uri":"b","name":"a""#, "params.uri"),
        ("prompts/get", r#""name":"b","uri":"a""#, "params.name"),
        ("tasks/get", r#""taskId":"b","name":"a""#, "params.taskId"),
        ("tasks/update", r#""taskId":"b","name":"a""#, "params.taskId"),
        ("tasks/cancel", r#""taskId":"b","name":"a""#, "params.taskId"),
    ] {
        let pairs = [(VERSION, "2026-07-28"), (METHOD, method), (NAME, "a")];
        let message = request(method, members);
        assert_eq!(
            check(&pairs, &message),
            Err(format!("Mcp-Name does not match {said}"))
        );
        assert_eq!(
            check(&pairs[..2], &message),
            Err("Mcp-Name is missing".to_owned())
        );
    }
    let twice = request("tasks/get", r#""taskId":"a","taskId":"b""#);
    let pairs = [(VERSION, "2026-07-28"), (METHOD, "tasks/get"), (NAME, "a")];
    assert_eq!(
        check(&pairs, &twice),
        Err("Mcp-Name cannot be compared: params.taskId is ambiguous".to_owned())
    );
}

#[test]
fn doubled_headers_are_refused_even_if_equal() {
    let call = request("tools/call", r#""name":"a""#);
    let list = request("tools/list", "");
    let once = [(VERSION, "2026-07-28"), (METHOD, "tools/call"), (NAME, "a")];
    for twice in once {
        let mut pairs = once.to_vec();
        pairs.push(twice);
        let said = format!("{} is given more than once", twice.0);
        assert_eq!(check(&pairs, &call), Err(said));
    }
    let pairs = [(NAME, "a"), ("mcp-name", "a")];
    assert_eq!(
        check(&pairs, &list),
        Err("Mcp-Name is given more than once".to_owned())
    );
}

#[test]
fn mismatch_is_reported_before_the_version_and_absence_after_it() {
    // An unknown version passes the first check, also without headers, and then gets its own error.
    let future = message(&format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{{"{VERSION_KEY}":"2030-01-01"}}}}}}"#
    ));
    assert_eq!(headers(&[]).check_mismatch(&future), Ok(()));
    assert_eq!(
        headers(&[(VERSION, "2030-01-01")]).check_mismatch(&future),
        Ok(())
    );
    assert!(
        headers(&[(VERSION, "2026-07-28")])
            .check_mismatch(&future)
            .is_err()
    );
    assert!(headers(&[]).check_presence(&future).is_err());
}

#[test]
fn request_without_envelope_does_not_pass_under_a_modern_header() {
    let initialize = message(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#);
    let mismatch = headers(&[(VERSION, "2026-07-28")])
        .check_mismatch(&initialize)
        .unwrap_err();
    assert_eq!(mismatch.header, MirroringHeader::Version);
    assert_eq!(HeaderMismatch::CODE, -32020);
}

#[test]
fn of_a_notification_only_the_version_is_checked() {
    let bare = message(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    assert_eq!(
        check(&[(VERSION, "2026-07-28"), (METHOD, "x"), (NAME, "y")], &bare),
        Ok(())
    );
    assert_eq!(check(&[], &bare), Ok(()));
    assert!(check(&[(VERSION, "2026-07-28"), (VERSION, "2026-07-28")], &bare).is_err());
    let enveloped = message(&format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"_meta":{{"{VERSION_KEY}":"2026-07-28"}}}}}}"#
    ));
    assert_eq!(check(&[], &enveloped), Ok(()));
    assert!(check(&[(VERSION, "2025-11-25")], &enveloped).is_err());
}

fn tool() -> ToolHeaders {
    ToolHeaders::read(&json!({
        "type": "object",
        "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "n": { "type": "integer", "x-mcp-header": "N" },
            "a": { "type": "object", "properties": {
                "b": { "type": "boolean", "x-mcp-header": "Deep" },
                "f": { "type": "number", "x-mcp-header": "Float" },
            } },
        },
    }))
    .unwrap()
}

fn check_arguments(pairs: &[(&str, &str)], arguments: &str) -> Result<(), String> {
    let call = request("tools/call", &format!(r#""name":"t","arguments":{arguments}"#));
    headers(pairs)
        .check_params(&tool(), arguments_of(&call).unwrap())
        .map_err(|mismatch| mismatch.to_string())
}

#[test]
fn mirrored_arguments_that_agree_pass() {
    for (pairs, arguments) in [
        (
            &[("Mcp-Param-Region", "us-west1")][..],
            r#"{"region":"us-west1"}"#,
        ),
        (
            &[("mcp-param-REGION", " us-west1 ")],
            r#"{"region":"us-\u0077est1"}"#,
        ),
        (&[("Mcp-Param-Region", "=?base64?w7w=?=")], r#"{"region":"ü"}"#),
        (&[("Mcp-Param-Region", "")], r#"{"region":""}"#),
        (&[("Mcp-Param-Region", "=?base64??=")], r#"{"region":""}"#),
        (&[("Mcp-Param-N", "42")], r#"{"n":42}"#),
        (&[("Mcp-Param-N", "42.0")], r#"{"n":42}"#),
        (&[("Mcp-Param-N", "42")], r#"{"n":42.0}"#),
        (
            &[("Mcp-Param-N", "-9007199254740991")],
            r#"{"n":-9007199254740991}"#,
        ),
        (&[("Mcp-Param-N", "=?base64?NDI=?=")], r#"{"n":4.2e1}"#),
        (&[("Mcp-Param-Deep", "true")], r#"{"a":{"b":true}}"#),
        (&[("Mcp-Param-Float", "1.5")], r#"{"a":{"f":1.50}}"#),
        (
            &[("Mcp-Param-Deep", "false"), ("Mcp-Param-N", "0")],
            r#"{"n":-0,"a":{"x":[1],"b":false},"x":{"b":true}}"#,
        ),
        // Without a value there is no header.
        (&[], "{}"),
        (&[], "null"),
        (&[], r#"{"region":null,"n":null,"a":null}"#),
        (&[], r#"{"a":{"b":null}}"#),
        (&[], r#"{"a":[{"b":true}]}"#),
        (&[], r#"{"x":{"a":{"b":true}}}"#),
        // What no header can carry is for the server to refuse.
        (&[], r#"{"region":["x"]}"#),
        (&[], r#"["region"]"#),
        // Headers that the tool does not ask for are none of our business, even doubled or broken.
        (
            &[
                ("Mcp-Param-Other", "x"),
                ("Mcp-Param-Other", "=?base64?%?="),
                ("Mcp-Param-", "x"),
            ],
            "{}",
        ),
        // Members that no path goes through may stand twice.
        (
            &[("Mcp-Param-N", "1")],
            r#"{"x":1,"x":2,"n":1,"y":{"n":3,"n":4}}"#,
        ),
    ] {
        assert_eq!(check_arguments(pairs, arguments), Ok(()), "{pairs:?} {arguments}");
    }
}

#[test]
fn mirrored_arguments_that_disagree_are_refused() {
    const DIFFERS: &str = "does not match the argument it mirrors";
    const WITHOUT: &str = "is given, but the argument it mirrors has no value";
    for (pairs, arguments, said) in [
        (&[("Mcp-Param-Region", "a")][..], r#"{"region":"b"}"#, DIFFERS),
        (&[("Mcp-Param-Region", "A")], r#"{"region":"a"}"#, DIFFERS),
        (
            &[("Mcp-Param-Region", "=?base64?Yg==?=")],
            r#"{"region":"a"}"#,
            DIFFERS,
        ),
        (
            &[("Mcp-Param-Region", "=?base64?Yg=?=")],
            r#"{"region":"b"}"#,
            "cannot be read: its base64 is malformed",
        ),
        (
            &[("Mcp-Param-Region", "ü")],
            r#"{"region":"ü"}"#,
            "cannot be read: it contains characters that must be sent as base64",
        ),
        (&[], r#"{"region":"b"}"#, "is missing"),
        (&[], r#"{"region":""}"#, "is missing"),
        (&[], r#"{"region":"\ud800"}"#, "is missing"),
        (&[("Mcp-Param-Region", "")], r#"{"region":"\ud800"}"#, DIFFERS),
        (&[("Mcp-Param-Region", "a")], "{}", WITHOUT),
        (&[("Mcp-Param-Region", "")], "{}", WITHOUT),
        (&[("Mcp-Param-Region", "null")], r#"{"region":null}"#, WITHOUT),
        (&[("Mcp-Param-Region", "a")], "null", WITHOUT),
        (&[("Mcp-Param-Region", "[]")], r#"{"region":[]}"#, DIFFERS),
        (
            &[("Mcp-Param-Region", "a"), ("mcp-param-region", "a")],
            r#"{"region":"a"}"#,
            "is given more than once",
        ),
        (&[("Mcp-Param-N", "43")], r#"{"n":42}"#, DIFFERS),
        (&[("Mcp-Param-N", "042")], r#"{"n":42}"#, DIFFERS),
        (&[("Mcp-Param-N", "42")], r#"{"n":"42.0"}"#, DIFFERS),
        (
            &[("Mcp-Param-N", "9007199254740992")],
            r#"{"n":9007199254740993}"#,
            DIFFERS,
        ),
        (&[("Mcp-Param-Deep", "True")], r#"{"a":{"b":true}}"#, DIFFERS),
        (&[("Mcp-Param-Deep", "1")], r#"{"a":{"b":true}}"#, DIFFERS),
        (&[], r#"{"a":{"b":false}}"#, "is missing"),
        // Servers differ in which of two equal members they take.
        (
            &[("Mcp-Param-Region", "a")],
            r#"{"region":"a","region":"b"}"#,
            "cannot be compared: the argument it mirrors is ambiguous",
        ),
        (
            &[("Mcp-Param-Deep", "true")],
            r#"{"a":{"b":true},"\u0061":{"b":false}}"#,
            "cannot be compared: the argument it mirrors is ambiguous",
        ),
    ] {
        let refused = check_arguments(pairs, arguments).expect_err(arguments);
        assert!(
            refused.starts_with("Mcp-Param-") && refused.ends_with(said),
            "{pairs:?} {arguments}: {refused}"
        );
    }
}

#[test]
fn arguments_that_stand_twice_are_an_error() {
    let call = request("tools/call", r#""name":"t","arguments":{},"arguments":{"n":1}"#);
    assert!(arguments_of(&call).is_err());
}

#[test]
fn headers_of_a_client_are_accepted_by_a_server() {
    let arguments = r#"{"region":" ü","n":42.0,"a":{"b":false,"f":-0.50}}"#;
    let sent = tool().values_of_raw(Some(arguments.as_bytes())).unwrap();
    let pairs: Vec<_> = sent
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(pairs.len(), 4);
    assert_eq!(check_arguments(&pairs, arguments), Ok(()));
}

#[test]
fn neither_errors_nor_debug_output_repeat_a_value() {
    let headers = headers(&[(NAME, "secret"), ("Mcp-Param-Region", "secret")]);
    let shown = format!("{headers:?}");
    assert!(shown.contains("region") && !shown.contains("secret"), "{shown}");
    let mismatch = headers
        .check_params(&tool(), Some(br#"{"region":"hidden"}"#))
        .unwrap_err();
    assert!(!format!("{mismatch:?} {mismatch}").contains("secret"));
    assert!(!format!("{mismatch:?} {mismatch}").contains("hidden"));
}

#[test]
fn kept_headers_of_arguments_show_their_names_and_not_their_values() {
    let none = headers(&[(NAME, "x")]).kept_params();
    assert!(none.is_empty());
    let kept = headers(&[("Mcp-Param-Region", "secret")]).kept_params();
    assert!(!kept.is_empty());
    let shown = format!("{kept:?}").to_lowercase();
    assert!(shown.contains("region") && !shown.contains("secret"), "{shown}");
    assert!(kept.check(&tool(), Some(br#"{"region":"secret"}"#)).is_ok());
    assert!(kept.check(&tool(), Some(br#"{"region":"other"}"#)).is_err());
}
