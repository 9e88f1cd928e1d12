//! Names of events and the logs they point into.

use std::time::Duration;

use bytes::Bytes;
use protocol::session::replay::{Audience, EventId, EventLog, Retention, StreamKey};
use protocol::time::Moment;

/// # Panics
/// If a name does not come back, or if a log repeats, reorders or outgrows its limits.
pub(crate) fn holds(data: &[u8]) {
    name(&String::from_utf8_lossy(data));
    log(data);
}

fn name(text: &str) {
    let Some(id) = EventId::parse(text) else { return };
    assert_eq!(EventId::parse(&id.to_string()), Some(id));
    let (stream, number) = text.split_once('-').expect("a name has a dash");
    assert_eq!(stream.parse(), Ok(id.stream.0));
    assert_eq!(number.parse(), Ok(id.number));
}

/// Two bytes are one thing that happens to the log.
fn log(data: &[u8]) {
    let keep = Retention {
        events: 5,
        bytes: 40,
        age: Duration::from_secs(20),
    };
    let mut log = EventLog::default();
    let mut now = Moment::START;
    let mut pushed: Vec<Bytes> = Vec::new();
    let mut lost = 0;
    let mut cursors = [0_u64; 3];
    for pair in data.chunks_exact(2) {
        let value = usize::from(pair[1]);
        match pair[0] % 6 {
            0 | 1 => {
                let event = Bytes::from(format!("{:0>1$}", pushed.len(), value % 60));
                let audience = match value % 4 {
                    0 => Audience::One(None),
                    1 => Audience::One(Some(StreamKey(1))),
                    _ => Audience::All,
                };
                pushed.push(event.clone());
                lost += log.push(now, event, audience, &keep);
            }
            2 => now = now.after(Duration::from_secs(value as u64 % 30)),
            3 => lost += log.forget_old(now, &keep),
            4 => log.retract(value as u64),
            _ => {
                let reader = value % cursors.len();
                let cursor = &mut cursors[reader];
                if let Some((number, event)) = log.read(*cursor, StreamKey(reader as u64)) {
                    assert!(number > *cursor, "event {number} was read again after {cursor}");
                    assert!(number > lost, "event {number} is lost");
                    assert_eq!(pushed.get(number as usize - 1), Some(event));
                    *cursor = number;
                }
                let _ = log.claim(value as u64);
            }
        }
        assert_eq!(log.newest(), pushed.len() as u64);
        let kept = log.newest() - lost;
        assert!(kept <= 5 && (log.bytes() <= 40 || kept == 1));
    }
}
