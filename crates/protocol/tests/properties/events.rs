//! Event streams, both ways: any cut gives the same events, and what is written is read again.

use bytes::{Bytes, BytesMut};
use protocol::wire::sse::{SseError, SseEvent, SseParser, write_comment, write_event, write_message};

#[path = "../../src/wire/sse/reading.rs"]
mod reading;

use reading::read;

/// The first byte is the limit, the second the size of a chunk.
///
/// # Panics
/// If two ways of reading disagree, or if something written comes back changed.
pub(crate) fn holds(data: &[u8]) {
    let [limit, chunk, input @ ..] = data else { return };
    let limit = usize::from(*limit) * 4;
    let whole = read(limit, std::iter::once(input));
    assert_eq!(read(limit, input.chunks(1)), whole);
    assert_eq!(read(limit, input.chunks(usize::from(*chunk).max(1))), whole);
    for event in &whole.0 {
        assert!(event.data.len() <= limit);
        write_again(event);
    }
    write_as_message(input);
}

fn on_one_line(data: &[u8]) -> Vec<u8> {
    data.iter()
        .map(|byte| {
            if matches!(byte, b'\n' | b'\r') {
                b' '
            } else {
                *byte
            }
        })
        .collect()
}

fn write_again(event: &SseEvent) {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).ok();
    let (id, name) = match (event.id.as_ref().map(text), event.event.as_ref().map(text)) {
        // Rialto writes texts; what is none it would never write.
        (Some(None), _) | (_, Some(None)) => return,
        (id, name) => (id.flatten(), name.flatten()),
    };
    let mut out = BytesMut::new();
    write_event(
        &mut out,
        id.as_deref().as_ref().map(std::slice::from_ref),
        name.as_deref(),
        &event.data,
    );
    let (again, _) = read(1 << 20, std::iter::once(&out[..]));
    let [again] = again.as_slice() else {
        panic!("one event was written, {} were read", again.len());
    };
    assert_eq!(again.id, event.id);
    // NUL is no character of a type that peers send, and the writer leaves it out.
    let plain = event.event.as_ref().is_none_or(|name| !name.contains(&0));
    assert!(!plain || again.event == event.event, "the type changed");
    assert_eq!(again.data, on_one_line(&event.data));
}

fn write_as_message(json: &[u8]) {
    let mut out = BytesMut::new();
    write_comment(&mut out, &String::from_utf8_lossy(json));
    write_message(&mut out, Some(&["1-2"]), json);
    let (events, rest) = read(1 << 20, out.chunks(5));
    let [event] = events.as_slice() else {
        panic!("one event was written, {} were read", events.len());
    };
    assert!(event.is_message());
    assert_eq!(event.data, on_one_line(json));
    assert_eq!(rest, Ok((Some(Bytes::from_static(b"1-2")), None)));
}
