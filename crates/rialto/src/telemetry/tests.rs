use super::*;
use serde_json::{Value, json};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use tracing::{debug, debug_span, error, info, info_span, warn};

const SOON: Duration = Duration::from_secs(20);
const FORGED: &str = "a\r\nb \x1b[2J \u{202e} \u{2028} \u{85}";

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

/// Returns what `events` write, line by line.
fn logged(format: LogFormat, directives: &str, has_colour: bool, events: impl FnOnce()) -> Vec<String> {
    let kept = Kept::default();
    let sink = LineSink::over(Box::new(kept.clone()), Options::named("log-test")).unwrap();
    let lines = Lines { sink: sink.clone() };
    let subscriber = subscriber(format, filter(Some(directives)).unwrap(), has_colour, lines);
    tracing::subscriber::with_default(subscriber, events);
    assert!(sink.flush(SOON));
    let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.split_terminator('\n').map(str::to_owned).collect()
}

fn human(events: impl FnOnce()) -> Vec<String> {
    // The time, of fixed length, is of no interest here.
    let lines = logged(LogFormat::Human, "info", false, events);
    lines
        .iter()
        .map(|line| line["2026-11-15T10:00:00.000Z ".len()..].to_owned())
        .collect()
}

fn json(events: impl FnOnce()) -> Vec<Value> {
    let lines = logged(LogFormat::Json, "info", false, events);
    lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_human_line_has_level_target_message_and_fields() {
    let lines = human(|| {
        info!(target: "t", pid = 7, name = "e x", state = ?Some(1), "child started");
        warn!(target: "t", "second");
    });
    assert_eq!(
        lines,
        [
            " INFO t: child started pid=7 name=\"e x\" state=Some(1)",
            " WARN t: second"
        ]
    );
}

#[test]
fn a_human_line_names_its_spans() {
    let lines = human(|| {
        let call = info_span!("call", id = %"1\n2", late = tracing::field::Empty);
        call.record("late", 3);
        call.in_scope(|| info_span!("inner").in_scope(|| info!(target: "t", "hello")));
    });
    assert_eq!(lines, [" INFO call{id=1\\n2 late=3}: inner: t: hello"]);
}

#[test]
fn a_json_line_is_one_object_with_typed_fields() {
    let mut lines = json(|| {
        let span = info_span!("call", id = 1, late = tracing::field::Empty);
        span.record("late", "x");
        span.in_scope(|| error!(target: "t", pid = 7, ok = true, load = 0.5, none = f64::NAN, name = "e", shown = %"s", "gone"));
    });
    let line = lines[0].as_object_mut().unwrap();
    assert!(humantime::parse_rfc3339(line.remove("ts").unwrap().as_str().unwrap()).is_ok());
    assert_eq!(
        Value::Object(line.clone()),
        json!({"level": "ERROR", "target": "t", "message": "gone", "pid": 7, "ok": true, "load": 0.5, "none": null,
               "name": "e", "shown": "s", "spans": [{"span": "call", "id": 1, "late": "x"}]})
    );
}

#[test]
fn a_forged_line_in_any_field_stays_one_line_without_control_characters() {
    let events = || {
        info!(target: "t", shown = %FORGED, debugged = ?FORGED, text = FORGED, "{FORGED}");
        info_span!("span", shown = %FORGED).in_scope(|| info!(target: "t", "inside"));
    };
    for format in [LogFormat::Human, LogFormat::Json] {
        let lines = logged(format, "info", false, events);
        assert_eq!(lines.len(), 2);
        assert!(!lines.concat().chars().any(escape::is_hazard), "{lines:?}");
    }
    assert_eq!(json(events)[0]["message"], FORGED);
    assert!(human(events)[0].contains("shown=a\\r\\nb \\u{1b}[2J \\u{202e} \\u{2028} \\u{85}"));
}

#[test]
fn a_long_value_is_cut() {
    let long = "x".repeat(1_000_000);
    for format in [LogFormat::Human, LogFormat::Json] {
        let lines = logged(
            format,
            "info",
            false,
            || info!(shown = %long, text = long.as_str(), "{long}"),
        );
        assert!(lines[0].len() < 3 * 4200, "{}", lines[0].len());
        assert_eq!(lines[0].matches("x…truncated").count(), 3);
    }
}

#[test]
fn colour_is_used_only_where_it_is_wanted() {
    let events = || info!("hello");
    assert!(logged(LogFormat::Human, "info", true, events)[0].contains("\x1b[32m INFO\x1b[0m"));
    assert!(!logged(LogFormat::Human, "info", false, events)[0].contains('\x1b'));
}

#[test]
fn directives_choose_what_is_logged_and_info_is_usual() {
    let events = || {
        debug!("quiet");
        info!("loud");
        debug_span!("unseen").in_scope(|| info!("third"));
    };
    assert_eq!(logged(LogFormat::Human, "", false, events).len(), 2);
    assert_eq!(logged(LogFormat::Human, "debug", false, events).len(), 3);
    assert_eq!(logged(LogFormat::Human, "off", false, events).len(), 0);
    assert!(filter(Some("rialto=loudly")).is_err());
}

#[test]
fn stuck_reader_of_the_log_delays_no_call() {
    struct Stuck(std::sync::mpsc::Receiver<()>);
    impl io::Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Returns when the test drops its end.
            let _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (release, stuck) = sync_channel(1);
    let options = Options {
        max_bytes: 10_000,
        ..Options::named("log-test")
    };
    let sink = LineSink::over(Box::new(Stuck(stuck)), options).unwrap();
    let lines = Lines { sink: sink.clone() };
    let subscriber = subscriber(LogFormat::Json, filter(None).unwrap(), false, lines);
    tracing::subscriber::with_default(subscriber, || {
        for number in 0..10_000 {
            info!(number, "line");
        }
    });
    assert!(sink.lost() > 9_000);
    drop(release);
    assert!(sink.flush(SOON));
}

#[test]
fn a_panic_is_logged_by_its_place_and_without_what_callers_sent() {
    // The hook belongs to the whole process, in which other tests may panic: this one answers for
    // its thread only.
    let this_thread = std::thread::current().id();
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() == this_thread {
            log_panic(info);
        } else {
            usual(info);
        }
    }));
    let token = String::from("hunter2");
    let lines = json(|| {
        assert!(panic::catch_unwind(|| panic!("bad token {token}")).is_err());
        assert!(panic::catch_unwind(|| panic!("an invariant")).is_err());
    });
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (lines[0].get("reason"), lines[1]["reason"].as_str()),
        (None, Some("an invariant"))
    );
    for line in &lines {
        assert_eq!(line["message"], "panic");
        assert!(line["place"].as_str().unwrap().contains("tests.rs"));
        assert!(!line.to_string().contains("hunter2"));
    }
}
