use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::wire::pieces::cut;
use reading::read;

#[path = "reading.rs"]
mod reading;

fn events(input: &str) -> Vec<SseEvent> {
    let bytes = input.as_bytes().chunks(1);
    let whole = read(1000, [input.as_bytes()]);
    assert_eq!(read(1000, bytes), whole);
    whole.0
}

fn data(input: &str) -> Vec<String> {
    events(input)
        .iter()
        .map(|event| String::from_utf8(event.data.to_vec()).unwrap())
        .collect()
}

fn event(event: Option<&str>, data: &str, id: Option<&str>, retry: Option<u64>) -> SseEvent {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    SseEvent {
        event: event.map(bytes),
        data: bytes(data),
        id: id.map(bytes),
        retry,
    }
}

fn written(write: impl FnOnce(&mut BytesMut)) -> String {
    let mut out = BytesMut::new();
    write(&mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn message_is_written_with_id_and_type() {
    let text = written(|out| write_message(out, Some(&["s1-", "7"]), b"{\"a\":1}"));
    assert_eq!(text, "id: s1-7\nevent: message\ndata: {\"a\":1}\n\n");
    let text = written(|out| write_event(out, None, None, b"{}"));
    assert_eq!(text, "data: {}\n\n");
}

#[test]
fn line_breaks_between_tokens_become_spaces() {
    let text = written(|out| write_event(out, None, None, b"{\n\"a\":\r\n1\r}\n"));
    assert_eq!(text, "data: { \"a\":  1 } \n\n");
}

#[test]
fn priming_and_comment_have_their_own_blocks() {
    assert_eq!(
        written(|out| write_priming(out, &["12"], Duration::from_millis(200))),
        "id: 12\nretry: 200\ndata: \n\n"
    );
    assert_eq!(
        written(|out| write_comment(out, "still here")),
        ": still here\n\n"
    );
}

#[test]
fn no_value_can_begin_another_field() {
    let text = written(|out| write_event(out, Some(&["1\ndata: x"]), Some("a\r\n\nb\0"), b"{}"));
    assert_eq!(text, "id: 1data: x\nevent: ab\ndata: {}\n\n");
    assert_eq!(
        written(|out| write_comment(out, "a\n\ndata: x")),
        ": adata: x\n\n"
    );
}

#[test]
fn examples_of_the_standard() {
    assert_eq!(data("data: YHOO\ndata: +2\ndata: 10\n\n"), ["YHOO\n+2\n10"]);
    let input = ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n";
    let first = event(None, "first event", Some("1"), None);
    assert_eq!(events(input), [first, event(None, "second event", None, None)]);
    assert_eq!(data("data\n\ndata\ndata\n\ndata:"), ["", "\n"]);
    assert_eq!(data("data:test\n\ndata: test\n\n"), ["test", "test"]);
}

#[test]
fn every_line_end_counts_once() {
    assert_eq!(
        data("data: a\rdata: b\r\rdata: c\r\n\r\ndata: d\n\n"),
        ["a\nb", "c", "d"]
    );
    assert_eq!(data("data: a\r\n\rdata: b\n\r\n"), ["a", "b"]);
}

#[test]
fn carriage_return_at_the_end_of_a_chunk_dispatches_at_once() {
    let mut parser = SseParser::new(100);
    parser.push(b"data: a\r\r");
    assert_eq!(parser.next().unwrap().unwrap().data, "a");
    parser.push(b"\ndata: b\n\n");
    assert_eq!(parser.next().unwrap().unwrap().data, "b");
}

#[test]
fn byte_order_mark_is_skipped_only_at_the_start() {
    assert_eq!(data("\u{feff}data: a\n\n\u{feff}data: b\n\n"), ["a"]);
    assert_eq!(data("\u{feff}\u{feff}data: a\n\n"), [""; 0]);
}

#[test]
fn type_lasts_for_one_event_and_the_id_for_all() {
    let input =
        "event: error\nid: 1\ndata: a\n\ndata: b\n\nevent:\nid: x\0y\ndata: c\n\nevent: message\ndata: d\n\n";
    let seen = events(input);
    assert_eq!(
        seen,
        [
            event(Some("error"), "a", Some("1"), None),
            event(None, "b", Some("1"), None),
            event(None, "c", Some("1"), None),
            event(Some("message"), "d", Some("1"), None),
        ]
    );
    let messages: Vec<bool> = seen.iter().map(SseEvent::is_message).collect();
    assert_eq!(messages, [false, true, true, true]);
}

#[test]
fn event_without_data_is_not_dispatched_but_its_id_and_delay_count() {
    let (seen, rest) = read(100, [&b"id: 5\nevent: x\n\nretry: 200\n\n"[..]]);
    assert_eq!(
        (seen, rest),
        (vec![], Ok((Some(Bytes::from_static(b"5")), Some(200))))
    );
    assert_eq!(events("id: 5\ndata:\n\n"), [event(None, "", Some("5"), None)]);
}

#[test]
fn id_of_an_unfinished_event_does_not_count() {
    let (seen, rest) = read(100, [&b"id: 1\ndata: a\n\nid: 2\ndata: b\n"[..]]);
    assert_eq!(seen.len(), 1);
    assert_eq!(rest, Ok((Some(Bytes::from_static(b"1")), None)));
}

#[test]
fn id_that_is_too_long_to_keep_takes_the_last_one_back() {
    for (length, kept) in [(MAX_ID, true), (MAX_ID + 1, false), (MAX_ID + 9, false)] {
        let id = "x".repeat(length);
        let text = format!("id: 1\ndata: a\n\nid: {id}\ndata: b\n\n");
        let (_, rest) = read(10_000, [text.as_bytes()]);
        assert_eq!(rest, Ok((kept.then(|| Bytes::from(id)), None)), "{length}");
    }
}

#[test]
fn retry_takes_digits_only() {
    for value in ["", "-1", "1.5", "10 ", "+7", "1e3", "99999999999999999999"] {
        let input = format!("retry: {value}\ndata: a\n\n");
        assert_eq!(events(&input), [event(None, "a", None, None)], "{value}");
    }
    assert_eq!(
        events("retry: 007\ndata: a\n\n"),
        [event(None, "a", None, Some(7))]
    );
}

#[test]
fn unknown_fields_and_odd_names_are_ignored() {
    assert_eq!(
        data("Data: a\n data: b\ndata : c\nfoo: d\n:data: e\ndata: f\n\n"),
        ["f"]
    );
}

#[test]
fn single_data_line_is_not_copied() {
    let mut parser = SseParser::new(100);
    parser.push(b"data: abc\n\n");
    let start = parser.buffer.as_ptr() as usize;
    assert_eq!(parser.next().unwrap().unwrap().data.as_ptr() as usize, start + 6);
}

#[test]
fn event_of_exactly_the_limit_passes_and_a_larger_one_ends_the_stream() {
    let limit = Err(SseError::TooLarge { limit: 8 });
    assert_eq!(read(8, [&b"data: 12345678\n\n"[..]]).0.len(), 1);
    assert_eq!(read(8, [&b"data: 1234\ndata: 567\n\n"[..]]).0.len(), 1);
    assert_eq!(read(8, [&b"data: 123456789\n\n"[..]]).1, limit);
    assert_eq!(read(8, [&b"data:123456789\n\n"[..]]).1, limit);
    assert_eq!(read(8, [&b"data: 1234\ndata: 5678\n\n"[..]]).1, limit);
    assert_eq!(read(8, [&b": a comment without end"[..]]).1, limit);
    assert_eq!(read(8, [&b"data: a\n\ndata: 123456789\n\n"[..]]).0.len(), 1);
}

#[test]
fn after_the_error_there_is_only_the_error_and_no_memory() {
    let mut parser = SseParser::new(8);
    parser.push(b"data: 123456789\n\ndata: b\n\n");
    for _ in 0..3 {
        assert_eq!(parser.next(), Err(SseError::TooLarge { limit: 8 }));
        parser.push(b"data: c\n\n");
        assert_eq!(parser.buffer.capacity(), 0);
    }
}

#[test]
fn endless_line_and_endless_event_are_cut_at_the_limit() {
    let limit = 1024 * 1024;
    for chunk in [vec![b'x'; 10_000], b"data: xxxxxxxxxxxxxxxxx\n".repeat(400)] {
        let mut parser = SseParser::new(limit);
        let mut pushed = 0;
        while parser.next().is_ok() {
            parser.push(&chunk);
            pushed += chunk.len();
            assert!(pushed <= 2 * limit);
            assert!(parser.buffer.capacity() <= 2 * (limit + chunk.len()));
        }
    }
}

#[test]
fn million_empty_events_leave_nothing_behind() {
    let mut parser = SseParser::new(100);
    let chunk = b":\n\n\n\nevent: x\n\n".repeat(100);
    for _ in 0..2_500 {
        parser.push(&chunk);
        assert_eq!(parser.next(), Ok(None));
        assert!(parser.buffer.is_empty() && parser.buffer.capacity() <= KEEP);
    }
}

#[test]
fn buffer_shrinks_after_a_large_event() {
    let mut parser = SseParser::new(8 * 1024 * 1024);
    parser.push(b"data: ");
    for _ in 0..50 {
        parser.push(&[b'x'; 100_000]);
        assert_eq!(parser.next(), Ok(None));
    }
    parser.push(b"\n\ndata: ha");
    assert_eq!(parser.next().unwrap().unwrap().data.len(), 5_000_000);
    assert_eq!(parser.next(), Ok(None));
    parser.push(b"lf\n\n");
    assert!(parser.buffer.capacity() <= KEEP);
    assert_eq!(parser.next().unwrap().unwrap().data, "half");
}

fn streams() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        "(data|id|event|retry|other|)(:| :|: |:  )[a0-9\0:é ]{0,12}".prop_map(String::into_bytes),
        Just(b"\xef\xbb\xbf".to_vec()),
        Just(Vec::new()),
        vec(any::<u8>(), 0..12),
    ];
    let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r"), Just("\n\n"), Just("")];
    vec((line, end), 0..16).prop_map(|lines| {
        lines
            .into_iter()
            .flat_map(|(line, end)| [line, end.as_bytes().to_vec()].concat())
            .collect()
    })
}

proptest! {
    #[test]
    fn any_split_gives_the_same_events(
        input in streams(), places in vec(any::<Index>(), 0..8), max_event in 0_usize..40,
    ) {
        let whole = read(max_event, [&input[..]]);
        prop_assert_eq!(&read(max_event, cut(&input, &places)), &whole);
        prop_assert_eq!(&read(max_event, input.chunks(1)), &whole);
    }

    #[test]
    fn what_is_written_is_read_again(
        messages in vec((option::of("[ -~é]{1,12}"), option::of("[ -~é]{1,12}"), "[ -~é\r\n]{0,40}"), 0..6),
        places in vec(any::<Index>(), 0..6),
    ) {
        let mut out = BytesMut::new();
        let mut expected = Vec::new();
        let mut last: Option<&str> = None;
        for (id, name, json) in &messages {
            write_comment(&mut out, "keep-alive");
            write_event(&mut out, id.as_deref().as_ref().map(std::slice::from_ref), name.as_deref(), json.as_bytes());
            last = id.as_deref().or(last);
            expected.push(event(name.as_deref(), &json.replace(['\r', '\n'], " "), last, None));
        }
        write_priming(&mut out, &["77"], Duration::from_secs(3));
        expected.push(event(None, "", Some("77"), Some(3000)));
        let (seen, rest) = read(1000, cut(&out, &places));
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(rest, Ok((Some(Bytes::from_static(b"77")), Some(3000))));
    }

    #[test]
    fn arbitrary_bytes_never_panic(input in vec(any::<u8>(), 0..300), max_event in 0_usize..30) {
        let _ = read(max_event, [&input[..]]);
    }
}

#[test]
fn stream_that_takes_up_another_goes_on_from_its_last_event() {
    let id = Some(Bytes::from_static(b"7"));
    let mut parser = SseParser::resuming(10, id.clone(), Some(250));
    assert_eq!((parser.last_event_id(), parser.retry()), (id.as_ref(), Some(250)));
    parser.push(b"data: x\n\n");
    assert_eq!(parser.next(), Ok(Some(event(None, "x", Some("7"), None))));
    parser.push(b"data: longer than ten bytes\n\n");
    assert!(parser.next().is_err());
}
