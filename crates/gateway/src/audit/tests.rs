use super::*;
use crate::settings::OnAuditFailure;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

const SOON: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl io::Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn audit(bodies: bool) -> (Audit, Kept) {
    let kept = Kept::default();
    let finisher = Finisher {
        bodies,
        ..Finisher::default()
    };
    let audit = over(Box::new(kept.clone()), finisher, |_| {});
    (audit, kept)
}

fn over(writer: Box<dyn io::Write + Send>, finisher: Finisher, change: impl FnOnce(&mut Options)) -> Audit {
    let mut options = Options::named("audit-test");
    change(&mut options);
    let open = |options| LineSink::over(writer, options).map(Some);
    Audit::over(open, options, finisher, OnAuditFailure::Count).unwrap()
}

/// Returns the lines that `records` make, each checked to be one JSON value.
fn written(bodies: bool, records: &[AuditRecord<'_>]) -> Vec<Value> {
    let (audit, kept) = audit(bodies);
    for record in records {
        assert!(audit.record(record));
    }
    assert!(audit.flush(SOON));
    let bytes = kept.0.lock().unwrap();
    let text = str::from_utf8(&bytes).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn call() -> AuditRecord<'static> {
    AuditRecord {
        whose: RecordSubject::Fields {
            destination: "context7",
            session: Some(SessionHash::of("3f0c8e5a-6a53-4d11-9d51-0d7a5c1f2b34")),
            principal: "anonymous",
        },
        http_method: "POST",
        mcp_method: Some("tools/call"),
        tool: Some("echo"),
        member: None,
        own_name: None,
        rpc_id: Some(b"7"),
        status_code: 200,
        outcome: Outcome::Ok,
        reason: None,
        latency: Duration::from_micros(12_034),
        request_bytes: 148,
        response_bytes: 97,
        request_body: Some(br#"{"method":"tools/call","params":{"token":"hunter2"}}"#),
        response_body: Some(br#"{"result":{}}"#),
    }
}

#[test]
fn a_record_is_one_line_with_every_key_in_order() {
    let mut line = String::new();
    compose(
        &mut line,
        &call(),
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_500),
    )
    .unwrap();
    let session = SessionHash::of("3f0c8e5a-6a53-4d11-9d51-0d7a5c1f2b34");
    assert_eq!(
        line,
        format!(
            "{{\"ts\":\"1970-01-01T00:00:01.500Z\",\"destination\":\"context7\",\"session\":\"{session}\",\
             \"principal\":\"anonymous\",\"http_method\":\"POST\",\"mcp_method\":\"tools/call\",\"tool\":\"echo\",\
             \"rpc_id\":7,\"status_code\":200,\"outcome\":\"ok\",\"reason\":null,\"latency_ms\":12.034,\"request_bytes\":148,\
             \"response_bytes\":97"
        )
    );
}

#[test]
fn every_record_is_exactly_one_line_and_they_keep_their_order() {
    let ids: Vec<String> = (0..500).map(|id| id.to_string()).collect();
    let records: Vec<_> = ids
        .iter()
        .map(|id| AuditRecord {
            rpc_id: Some(id.as_bytes()),
            ..call()
        })
        .collect();
    let lines = written(false, &records);
    assert!(
        lines
            .iter()
            .map(|line| line["rpc_id"].as_u64().unwrap())
            .eq(0..500)
    );
}

#[test]
fn unknown_values_are_null() {
    let lines = written(
        true,
        &[AuditRecord {
            whose: RecordSubject::Fields {
                destination: "context7",
                session: None,
                principal: "anonymous",
            },
            mcp_method: None,
            tool: None,
            rpc_id: None,
            request_body: None,
            response_body: None,
            ..call()
        }],
    );
    for key in [
        "session",
        "mcp_method",
        "tool",
        "rpc_id",
        "request_body",
        "response_body",
    ] {
        assert_eq!(lines[0].get(key), Some(&Value::Null), "{key}");
    }
}

#[test]
fn bodies_are_written_only_when_asked_for_and_without_secrets() {
    let plain = &written(false, &[call()])[0];
    assert_eq!(
        (plain.get("request_body"), plain.get("response_body")),
        (None, None)
    );
    let full = &written(true, &[call()])[0];
    assert_eq!(
        full["request_body"],
        r#"{"method":"tools/call","params":{"token":"[redacted]"}}"#
    );
    assert_eq!(full["response_body"], r#"{"result":{}}"#);
}

#[test]
fn long_values_and_bodies_are_cut_and_marked() {
    let long = "x".repeat(1_000_000);
    let lines = written(
        true,
        &[AuditRecord {
            tool: Some(&long),
            rpc_id: Some(format!("\"{long}\"").as_bytes()),
            request_body: Some(long.as_bytes()),
            ..call()
        }],
    );
    for (key, limit) in [("tool", 4096), ("rpc_id", 4096), ("request_body", 16 * 1024)] {
        let value = lines[0][key].as_str().unwrap();
        assert!(value.ends_with("x…truncated"), "{key}");
        assert_eq!(value.len(), limit + "…truncated".len(), "{key}");
    }
}

#[test]
fn a_forged_record_in_a_tool_name_stays_inside_its_own() {
    let forged = "echo\"}\r\n{\"ts\":\"\u{1b}[2J\u{202e}\u{2028}";
    let lines = written(
        false,
        &[AuditRecord {
            tool: Some(forged),
            ..call()
        }],
    );
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["tool"], forged);
}

#[test]
fn an_id_is_written_as_it_came_and_never_breaks_the_line() {
    for (raw, expected) in [
        (&br#"1"#[..], json!(1)),
        (br#"-1.5e3"#, json!(-1500.0)),
        (br#""a\"b""#, json!("a\"b")),
        ("\"a\u{202e}b\"".as_bytes(), json!("a\u{202e}b")),
        (b"null", Value::Null),
        (b"{\"no\":\n1}", json!("{\"no\":\n1}")),
        (b"\"a\nb\"", json!("\"a\nb\"")),
        (b"", json!("")),
    ] {
        let lines = written(
            false,
            &[AuditRecord {
                rpc_id: Some(raw),
                ..call()
            }],
        );
        assert_eq!(lines[0]["rpc_id"], expected);
    }
}

#[test]
fn a_session_has_a_short_stable_name_that_is_not_its_id() {
    let hash = SessionHash::of("3f0c8e5a-6a53-4d11-9d51-0d7a5c1f2b34");
    assert_eq!(hash, SessionHash::of("3f0c8e5a-6a53-4d11-9d51-0d7a5c1f2b34"));
    assert_ne!(hash, SessionHash::of("3f0c8e5a-6a53-4d11-9d51-0d7a5c1f2b35"));
    assert!(hash.as_str().len() == 12 && hash.as_str().bytes().all(|digit| digit.is_ascii_hexdigit()));
}

#[test]
fn an_audit_that_is_off_takes_everything_and_writes_nothing() {
    let audit = Audit::off();
    assert!(audit.record(&call()) && audit.flush(Duration::ZERO));
    assert_eq!(audit.lost(), 0);
    assert!(!audit.is_on() && !audit.wants_bodies());
}

#[test]
fn the_settings_choose_the_sink() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let audit = Audit::open(&AuditSettings {
        sink: AuditSink::File(path.clone()),
        bodies: true,
        on_failure: OnAuditFailure::Count,
        chain: false,
        chain_key: None,
    })
    .unwrap();
    assert!(audit.wants_bodies() && audit.record(&call()) && audit.flush(SOON));
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 1);
    let off = Audit::open(&AuditSettings {
        sink: AuditSink::Off,
        bodies: true,
        on_failure: OnAuditFailure::Count,
        chain: false,
        chain_key: None,
    });
    assert!(!off.unwrap().is_on());
}

#[test]
fn the_time_of_a_record_is_now() {
    let before = SystemTime::now() - Duration::from_millis(1);
    let lines = written(false, &[call()]);
    let time = humantime::parse_rfc3339(lines[0]["ts"].as_str().unwrap()).unwrap();
    assert!(before <= time && time <= SystemTime::now());
}

proptest! {
    #[test]
    fn any_strings_make_one_valid_line_and_come_back(
        is_composed in any::<bool>(), destination in any::<String>(), principal in any::<String>(), method in any::<String>(), tool in any::<String>(),
        id in any::<String>(), request in any::<Vec<u8>>(), response in any::<Vec<u8>>(),
    ) {
        let raw_id = serde_json::to_string(&id).unwrap();
        let whose = RecordSubject::Fields { destination: &destination, session: None, principal: &principal };
        let composed = whose.composed();
        let whose = if is_composed { RecordSubject::Composed(&composed) } else { whose };
        let record = AuditRecord {
            whose,
            http_method: &method,
            mcp_method: Some(&method),
            tool: Some(&tool),
            rpc_id: Some(raw_id.as_bytes()),
            request_body: Some(&request),
            response_body: Some(&response),
            ..call()
        };
        let mut line = String::new();
        compose(&mut line, &record, SystemTime::now()).unwrap();
        let frame = Frame { line: line.as_bytes(), request: Some(&request), response: Some(&response), lost: 0 };
        let batch = [&frame.head()[..], frame.line, &request, &response].concat();
        let mut finisher = Finisher { bodies: true, ..Finisher::default() };
        let mut lines = Vec::new();
        prop_assert_eq!(finisher.finish(&batch, &mut lines), 0);
        let line = String::from_utf8(lines).unwrap();
        let one_line = line.strip_suffix('\n').unwrap();
        prop_assert!(!one_line.chars().any(escape::is_hazard));
        let value: Value = serde_json::from_str(one_line).unwrap();
        for (key, expected) in [("destination", &destination), ("principal", &principal), ("http_method", &method),
                                ("mcp_method", &method), ("tool", &tool), ("rpc_id", &id)] {
            prop_assert_eq!(value[key].as_str(), Some(expected.as_str()));
        }
    }
}

#[test]
fn numbers_are_written_digit_by_digit() {
    for number_of in [0, 7, 10, 99, 100, 999, 1_000, 1_002_030, u64::MAX] {
        let mut line = String::new();
        number(&mut line, "=", number_of);
        assert_eq!(line, format!("={number_of}"));
    }
    let record = AuditRecord {
        latency: Duration::from_micros(7_650),
        ..call()
    };
    assert_eq!(written(false, &[record])[0]["latency_ms"], json!(7.65));
}

/// Redacting a body and computing a hash take time that other clients would wait for.
#[test]
fn bodies_are_redacted_by_the_thread_of_the_sink_and_not_by_the_caller() {
    let before = redact::REDACTED_HERE.get();
    let lines = written(true, &[call()]);
    assert_eq!(lines[0]["response_body"], r#"{"result":{}}"#);
    assert_eq!(redact::REDACTED_HERE.get(), before);
}

#[test]
fn a_chain_with_bodies_keeps_the_order_of_the_records() {
    let kept = Kept::default();
    let finisher = Finisher {
        bodies: true,
        chain: Some(Chain::default()),
        ..Finisher::default()
    };
    let audit = over(Box::new(kept.clone()), finisher, |_| {});
    let ids: Vec<String> = (0..200).map(|id| id.to_string()).collect();
    for id in &ids {
        let record = AuditRecord {
            rpc_id: Some(id.as_bytes()),
            ..call()
        };
        assert!(audit.record(&record));
    }
    assert!(audit.flush(SOON));
    let bytes = kept.0.lock().unwrap();
    let mut verifier = Verifier::default();
    let mut found = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        assert_eq!(verifier.handle_line(line), Ok(()));
        let value: Value = serde_json::from_slice(line).unwrap();
        found.push(value["rpc_id"].to_string());
    }
    assert_eq!(found, ids);
}

/// Writes nothing before it is let.
struct Held(std::sync::mpsc::Receiver<()>, Kept);

impl io::Write for Held {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Without a sender it is let for good.
        let _ = self.0.recv();
        self.1.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_record_that_found_no_room_leaves_no_gap_in_the_chain_and_is_counted_in_the_next() {
    let kept = Kept::default();
    let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
    let finisher = Finisher {
        chain: Some(Chain::default()),
        ..Finisher::default()
    };
    let writer = Box::new(Held(held, kept.clone()));
    let audit = over(writer, finisher, |options| options.max_lines = 2);
    let taken: Vec<bool> = (0..5).map(|_| audit.record(&call())).collect();
    assert_eq!(taken, [true, true, false, false, false]);
    drop(release);
    assert!(audit.flush(SOON) && audit.record(&call()) && audit.flush(SOON));
    let bytes = kept.0.lock().unwrap();
    let mut verifier = Verifier::default();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    assert!(lines.iter().all(|line| verifier.handle_line(line).is_ok()));
    let last: Value = serde_json::from_slice(lines[2]).unwrap();
    assert_eq!((&last["lost"], &last["seq"]), (&json!(3), &json!(3)));
}
