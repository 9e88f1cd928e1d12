//! Calls that cross from one era to the other, as the server reads them.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::exchange::Principal;

/// What makes a request modern.
const META: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}"#;

/// The line that a server of this era reads when a client of the other one calls with these params.
fn line_for(to: Era, params: &str) -> String {
    let text = format!(r#"{{"id":3,"params":{params},"method":"tools/call","jsonrpc":"2.0"}}"#);
    let client = Client::declaring(Principal::anonymous(), None, None);
    let message = Message::scan(Bytes::from(text)).unwrap();
    let line = OutgoingRequest {
        message: &message,
        era: match to {
            Era::Legacy => Era::Modern,
            Era::Modern => Era::Legacy,
        },
        id: WireId(7),
        client: &client,
        level: None,
        extra: &[],
    };
    let mut out = Outbox::default();
    Face::new(to, legacy::ClientHello::Newest).write_call(&mut out, &line);
    let out = out.into_whole();
    let line = out.strip_suffix(b"\n").unwrap();
    assert!(!line.contains(&b'\n') && !line.contains(&b'\r'), "{params}");
    String::from_utf8(line.to_vec()).unwrap()
}

/// The params that a server of this era reads when a client of the other one calls with these.
fn translated(to: Era, params: &str) -> Value {
    let mut read: Value = serde_json::from_str(&line_for(to, params)).unwrap();
    assert_eq!((&read["id"], &read["method"]), (&json!(7), &json!("tools/call")));
    read["params"].take()
}

#[test]
fn params_around_an_envelope_pass_byte_for_byte() {
    let params = format!(r#"{{ "name" : "t", "_meta":{{{META}}}, "arguments": {{ "a" : 1.0 }} }}"#);
    let line = line_for(Era::Legacy, &params);
    let wanted = r#""params":{ "name" : "t", "arguments": { "a" : 1.0 } }}"#;
    assert!(line.ends_with(wanted), "{line}");
}

#[test]
fn an_envelope_is_left_out_wherever_it_stands() {
    for (params, wanted) in [
        (format!(r#"{{"_meta":{{{META}}}}}"#), json!({})),
        (
            format!(r#"{{"_meta":{{{META}}},"name":"t"}}"#),
            json!({"name": "t"}),
        ),
        (
            format!(r#"{{"name":"t","_meta":{{{META}}}}}"#),
            json!({"name": "t"}),
        ),
        (
            format!("{{ \"name\" : \"t\" ,\n \"_meta\" : {{{META}}} \r\n, \"arguments\":{{\"a\":[\n1]}} }}"),
            json!({"name": "t", "arguments": {"a": [1]}}),
        ),
        (
            format!(r#"{{"name":"t","_meta":{{{META},"x":1,"progressToken":"p"}}}}"#),
            json!({"name": "t", "_meta": {"x": 1, "progressToken": 7}}),
        ),
        (
            format!(r#"{{"name":"task","t\u0061sk":{{}},"_meta":{{{META}}},"requestState":"s"}}"#),
            json!({"name": "task"}),
        ),
    ] {
        assert_eq!(translated(Era::Legacy, &params), wanted, "{params}");
    }
}

#[test]
fn an_envelope_is_added_to_any_params() {
    for (params, wanted) in [
        ("{}", json!({"_meta": {}})),
        ("{ }", json!({"_meta": {}})),
        (r#"{"name":"t"}"#, json!({"name": "t", "_meta": {}})),
        (
            "{ \"name\":\"t\",\n\"arguments\":{\r\n} }",
            json!({"name": "t", "arguments": {}, "_meta": {}}),
        ),
        (
            r#"{"name":"t","task":{"ttl":1}}"#,
            json!({"name": "t", "_meta": {}}),
        ),
        (
            r#"{"t\u0061sk":{},"name":"t"}"#,
            json!({"name": "t", "_meta": {}}),
        ),
        (r#"{"name":"task"}"#, json!({"name": "task", "_meta": {}})),
        (
            r#"{"_meta":{"x":1},"name":"t"}"#,
            json!({"name": "t", "_meta": {"x": 1}}),
        ),
    ] {
        let mut read = translated(Era::Modern, params);
        let meta = read["_meta"].as_object_mut().unwrap();
        for name in modern::ENVELOPE.iter().take(3) {
            assert!(meta.remove(*name).is_some(), "{name} in {params}");
        }
        assert_eq!(read, wanted, "{params}");
    }
}

#[test]
fn a_request_written_over_several_lines_is_one_line_for_every_server() {
    let call = "{\"jsonrpc\":\"2.0\",\n\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"x\",\"arguments\":[\r\n{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\"}\n]}}";
    let call = Message::scan(Bytes::from_static(call.as_bytes())).unwrap();
    let declared = Some(Bytes::from_static(b"{\n\"roots\":{\n}}"));
    let info = Some(Bytes::from_static(b"{\"name\":\n\"c\",\"version\":\"1\"}"));
    let client = Client::declaring(Principal::anonymous(), declared, info);
    let extra = [("inputResponses", Bytes::from_static(b"{\"k\":\n{}}"))];
    for (face, era) in Era::ALL
        .into_iter()
        .flat_map(|face| Era::ALL.map(|era| (face, era)))
    {
        for extra in [&[][..], &extra[..]] {
            let mut out = Outbox::default();
            let line = OutgoingRequest {
                message: &call,
                era,
                id: WireId(7),
                client: &client,
                level: None,
                extra,
            };
            Face::new(face, legacy::ClientHello::Newest).write_call(&mut out, &line);
            let out = out.into_whole();
            let line = out.strip_suffix(b"\n").unwrap();
            assert!(
                !line.contains(&b'\n') && !line.contains(&b'\r'),
                "{era:?} to {face:?}"
            );
        }
    }
}

/// A legacy client's call with nothing to be added.
fn plain<'a>(message: &'a Message, client: &'a Client) -> OutgoingRequest<'a> {
    OutgoingRequest {
        message,
        era: Era::Legacy,
        id: WireId(7),
        client,
        level: None,
        extra: &[],
    }
}

#[test]
fn invalid_declaration_declares_nothing() {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}"#;
    let call = Message::scan(Bytes::from_static(call.as_bytes())).unwrap();
    for declared in ["null", "[]", "7", r#""roots""#] {
        let declared = Some(Bytes::from_static(declared.as_bytes()));
        let client = Client::declaring(Principal::anonymous(), declared, None);
        let line = plain(&call, &client);
        let mut out = Outbox::default();
        Face::new(Era::Modern, legacy::ClientHello::Newest).write_call(&mut out, &line);
        let out = out.into_whole();
        let read: Value = serde_json::from_slice(&out).unwrap();
        let capabilities = &read["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(*capabilities, json!({}), "{client:?}");
    }
}

#[test]
fn a_large_call_within_its_era_is_written_around_its_id_and_token_and_not_copied() {
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{{"_meta":{{"progressToken":"a"}},"name":"x","arguments":{{"text":"{}"}}}}}}"#,
        "x".repeat(100_000)
    );
    let client = Client::declaring(Principal::anonymous(), None, None);
    let call = Message::scan(Bytes::from(text.clone())).unwrap();
    let line = plain(&call, &client);
    let mut out = Outbox::default();
    let face = Face::new(Era::Legacy, legacy::ClientHello::Newest);
    face.write_call(&mut out, &line);
    let small = bytes::Buf::chunk(&out).len();
    assert!(small < 100, "only what stands before the large part is copied");
    face.write_call(&mut out, &line);
    let expected = text.replace(r#""a""#, "7") + "\n";
    assert_eq!(out.into_whole(), expected.repeat(2));
}
