//! How the body of a request is read.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming};

use crate::reply::Refusal;

/// How long a client may be silent in the middle of a body, and how long the whole of it may take:
/// a connection costs us something, so that none is held for nothing.
const BODY_SILENCE: Duration = Duration::from_secs(10);
const BODY_TIME: Duration = Duration::from_secs(120);

/// The body of a request, which is read once or never.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Unread(Incoming),
    Read,
    /// It was refused, or given up, before its end.
    BrokenOff,
}

impl RequestBody {
    /// Returns whether bytes may still come that are not read.
    pub(crate) fn is_left(&self) -> bool {
        match self {
            Self::Unread(body) => !body.is_end_stream(),
            Self::Read => false,
            Self::BrokenOff => true,
        }
    }

    /// Returns the whole body, never more than `limit` bytes of it.
    pub(crate) async fn read(&mut self, limit: usize) -> Result<Bytes, Refusal> {
        // Until it has come to its end.
        let Self::Unread(body) = std::mem::replace(self, Self::BrokenOff) else {
            return Err(Refusal::BodyBroken);
        };
        let whole = read_body(body, limit).await?;
        *self = Self::Read;
        Ok(whole)
    }
}

/// Waits for a body no longer than for a head.
async fn read_body(mut body: Incoming, limit: usize) -> Result<Bytes, Refusal> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(Refusal::BodyTooLarge { limit });
    }
    let mut whole = BodyBuffer::Nothing;
    // Most bodies came together with their heads: no clock is set for what is there already.
    while !body.is_end_stream() {
        match body.frame().now_or_never() {
            Some(Some(frame)) => whole = whole.with(frame, announced, limit)?,
            Some(None) => break,
            None => {
                let rest = tokio::time::timeout(BODY_TIME, read_rest(body, whole, announced, limit));
                // Boxed, since it is rare: each call would carry the room for two timers.
                whole = Box::pin(rest).await.unwrap_or(Err(Refusal::BodySlow))?;
                break;
            }
        }
    }
    Ok(whole.into_bytes())
}

async fn read_rest(
    mut body: Incoming,
    mut whole: BodyBuffer,
    announced: usize,
    limit: usize,
) -> Result<BodyBuffer, Refusal> {
    loop {
        match tokio::time::timeout(BODY_SILENCE, body.frame()).await {
            Ok(Some(frame)) => whole = whole.with(frame, announced, limit)?,
            Ok(None) => return Ok(whole),
            Err(_) => return Err(Refusal::BodySlow),
        }
    }
}

/// Up to this size a body in one piece is copied.
const COPIED: usize = 2 << 10;

/// A body as far as it has come. Most arrive in one piece; a large one is then not copied.
enum BodyBuffer {
    Nothing,
    OnePiece(Bytes),
    Pieces(BytesMut),
}

impl BodyBuffer {
    /// Returns the body with another frame of it; `announced` is how long it will be, as far as
    /// that is known.
    fn with(
        self,
        frame: hyper::Result<Frame<Bytes>>,
        announced: usize,
        limit: usize,
    ) -> Result<Self, Refusal> {
        let Ok(data) = frame.map_err(|_| Refusal::BodyBroken)?.into_data() else {
            return Ok(self);
        };
        if self.len() + data.len() > limit {
            return Err(Refusal::BodyTooLarge { limit });
        }
        Ok(match self {
            Self::Nothing => Self::OnePiece(data),
            Self::OnePiece(first) => {
                let mut pieces = BytesMut::with_capacity(announced.max(first.len() + data.len()));
                pieces.extend_from_slice(&first);
                pieces.extend_from_slice(&data);
                Self::Pieces(pieces)
            }
            Self::Pieces(mut pieces) => {
                pieces.extend_from_slice(&data);
                Self::Pieces(pieces)
            }
        })
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            // A small one would hold the whole buffer that its connection was read into, for as
            // long as its call runs.
            Self::OnePiece(bytes) if bytes.len() <= COPIED => Bytes::copy_from_slice(&bytes),
            Self::OnePiece(bytes) => bytes,
            Self::Pieces(pieces) => pieces.freeze(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::OnePiece(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.len(),
        }
    }
}
