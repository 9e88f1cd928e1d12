//! How tests read an event stream. The unit tests, the properties and the fuzz target share this
//! file, so it names nothing by the crate it is part of: the including module has the parser in
//! scope.

use bytes::Bytes;

use super::{SseError, SseEvent, SseParser};

/// Everything a caller can see: the events, then the error or what the parser remembers.
pub(super) type Seen = (Vec<SseEvent>, Result<(Option<Bytes>, Option<u64>), SseError>);

/// Reads a stream that comes in these chunks.
pub(super) fn read<'a>(max_event: usize, chunks: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let mut parser = SseParser::new(max_event);
    let mut events = Vec::new();
    for chunk in chunks {
        parser.push(chunk);
        loop {
            match parser.next() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Err(error)),
            }
        }
    }
    (events, Ok((parser.last_event_id().cloned(), parser.retry())))
}
