//! The lingering close (nginx: `lingering_close`) of a connection whose peer is still sending, so
//! that the peer reads the last answer.
//!
//! A request that is refused by its head is answered before its body has come, and the connection
//! ends with that. If it were closed while the peer still writes, the kernel would reset the
//! connection and discard the answer: the peer would see a broken pipe instead of 413 or 401. So
//! after the answer Rialto reads and drops what still comes, for a limited time.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

/// How long a peer may take to read the answer.
const LINGER_TIME: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 32 << 20;
/// How many unwanted bytes are read at once.
const PIECE: usize = 16 << 10;

/// Whether something of the last request was left unread when it was answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadFlag(Arc<AtomicBool>);

impl UnreadFlag {
    pub(crate) fn set(&self, unread: bool) {
        self.0.store(unread, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The lingering close of one connection (nginx: `lingering_close`).
#[derive(Debug)]
pub(super) struct Lingering {
    unread: UnreadFlag,
    /// `Some` once the last byte was sent.
    rest: Option<Rest>,
}

#[derive(Debug)]
struct Rest {
    over: Pin<Box<Sleep>>,
    bytes: usize,
}

impl Lingering {
    pub(super) fn new(unread: UnreadFlag) -> Self {
        Self { unread, rest: None }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.rest.is_some()
    }

    /// Returns whether the peer may still be sending.
    pub(super) fn is_wanted(&self) -> bool {
        self.unread.is_set()
    }

    /// Reads and forgets, until the peer has ended too, or its time is up.
    pub(super) fn poll<S: AsyncRead + Unpin>(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let rest = self.rest.get_or_insert_with(|| Rest {
            over: Box::pin(tokio::time::sleep(LINGER_TIME)),
            bytes: LINGER_BYTES,
        });
        if rest.over.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut piece = [MaybeUninit::uninit(); PIECE];
        while rest.bytes > 0 {
            let mut buffer = ReadBuf::uninit(&mut piece);
            let read = ready!(Pin::new(&mut *socket).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            rest.bytes = rest.bytes.saturating_sub(buffer.filled().len());
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::client_stream::ClientStream;
    use super::super::header_timer::HeaderTimer;
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn the_rest_is_read_until_the_peer_has_ended_too() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 10);
        let unread = UnreadFlag::default();
        unread.set(true);
        let mut connection = ClientStream::new(ours, HeaderTimer::default(), unread);
        let began = Instant::now();
        let peer = async {
            theirs.write_all(&[0; 100 << 10]).await.unwrap();
            tokio::time::sleep(LINGER_TIME / 2).await;
            theirs.shutdown().await.unwrap();
            let mut heard = String::new();
            theirs.read_to_string(&mut heard).await.unwrap();
            heard
        };
        let saying = async {
            connection.write_all(b"too large").await.unwrap();
            connection.shutdown().await.unwrap();
        };
        let (heard, ()) = tokio::join!(peer, saying);
        assert_eq!(heard, "too large");
        assert_eq!(began.elapsed(), LINGER_TIME / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_end_is_left_after_its_time_or_its_bytes() {
        for says in [0, 2 * LINGER_BYTES] {
            let (ours, mut theirs) = tokio::io::duplex(64 << 10);
            let unread = UnreadFlag::default();
            unread.set(true);
            let mut connection = ClientStream::new(ours, HeaderTimer::default(), unread);
            let began = Instant::now();
            let closing = async {
                connection.shutdown().await.unwrap();
                drop(connection);
            };
            let words = vec![0; says];
            let peer = theirs.write_all(&words);
            // Held until the end: a duplex that is dropped has ended.
            let (_, written) = tokio::join!(closing, peer);
            match says {
                0 => assert_eq!(began.elapsed(), LINGER_TIME),
                _ => assert!(written.is_err() && began.elapsed() < LINGER_TIME),
            }
            drop(theirs);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_read_to_its_end_is_closed_at_once() {
        let (ours, _theirs) = tokio::io::duplex(64);
        let began = Instant::now();
        let mut connection = ClientStream::new(ours, HeaderTimer::default(), UnreadFlag::default());
        connection.shutdown().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
