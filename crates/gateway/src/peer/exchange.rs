//! One request to a peer: its body on the way there, its response on the way back, and what is
//! known about it when the connection breaks.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use http::header::{self, HeaderName};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use tokio::sync::OwnedSemaphorePermit;

use super::forwarded::{FORWARDED, PeerAnswer};

/// What became of a request that was for another replica.
#[derive(Debug)]
pub enum Outcome {
    /// The peer has not processed it. It may run elsewhere, once the owner's lease has ended.
    NotSent(NotSent),
    /// The peer does not own the session. It knows this epoch, if it knows the session.
    NotOwner(Option<u64>),
    /// The peer's response, with its body as it comes.
    Answered(Response<PeerBody>),
    /// The connection broke after the request was sent: it may have run, and is never sent again.
    Unknown(String),
}

/// Why a request provably did not run at a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    #[error("the replica cannot be reached: {0}")]
    Unreachable(String),
    #[error(
        "the replica has a certificate of another cluster key or of another run: {0}; mount the same cluster.key_file on all replicas"
    )]
    Untrusted(String),
    /// As many requests as the limits allow are in flight to it, or as many peers are connected.
    #[error("too many requests to other replicas are in flight")]
    Busy,
    /// The peer is ending, or it takes no more streams: it refused the stream unprocessed.
    #[error("the replica refused the request: {0}")]
    Refused(String),
    /// The listener of the peer refused it, so that its handler never saw it.
    #[error(
        "the replica does not accept requests of this one (status {0}): run the same Rialto on all replicas"
    )]
    Rejected(StatusCode),
    /// Another replica had forwarded it already.
    #[error("the request was sent on by another replica")]
    Loop,
}

/// The body of a request to a peer.
#[derive(Debug)]
pub enum RequestBody {
    /// Everything that there is.
    Whole(Bytes),
    /// A body that is read as fast as the peer takes it.
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The slot that a request takes among those in flight to one peer.
pub(super) type StreamSlot = OwnedSemaphorePermit;

/// Sends one request on a connection and waits for the head of its response.
///
/// The future may be dropped at any time: the stream is reset, and the peer's handler is dropped.
pub(super) async fn exchange(
    sender: SendRequest<Bytes>,
    request: Request<RequestBody>,
    slot: StreamSlot,
) -> Result<Outcome, (NotSent, Request<RequestBody>)> {
    // Up to here a connection that is ending hands the request back.
    let mut sender = match sender.ready().await {
        Ok(sender) => sender,
        Err(error) => return Err((NotSent::Refused(error.to_string()), request)),
    };
    let (head, body) = request.into_parts();
    let is_empty = matches!(&body, RequestBody::Whole(bytes) if bytes.is_empty());
    let head = Request::from_parts(head, ());
    let (response, mut stream) = match sender.send_request(head, is_empty) {
        Ok(sent) => sent,
        Err(error) => return Ok(Outcome::NotSent(NotSent::Refused(error.to_string()))),
    };
    drop(sender);
    let mut upload = match body {
        RequestBody::Whole(_) if is_empty => None,
        RequestBody::Whole(bytes) => {
            // The bytes are in memory already, so they need no window to wait in.
            if let Err(error) = stream.send_data(bytes, true) {
                return Ok(broken(&error));
            }
            None
        }
        RequestBody::Stream(body) => Some(Upload::new(body, stream)),
    };
    let mut response = std::pin::pin!(response);
    let response = poll_fn(|context| {
        if let Poll::Ready(response) = response.as_mut().poll(context) {
            return Poll::Ready(Ok(response));
        }
        match upload.as_mut().map(|upload| upload.poll(context)) {
            Some(Poll::Ready(Uploaded::Broken(why))) => Poll::Ready(Err(why)),
            Some(Poll::Ready(Uploaded::Done)) => {
                upload = None;
                Poll::Pending
            }
            // The peer reads no more of it, and its response or its reset gives the reason.
            Some(Poll::Ready(Uploaded::Unwanted)) => {
                upload = None;
                Poll::Pending
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    })
    .await;
    let response = match response {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Ok(broken(&error)),
        Err(why) => return Ok(Outcome::Unknown(why)),
    };
    Ok(match PeerAnswer::of(response.headers()) {
        Some(PeerAnswer::NotOwner(epoch)) => Outcome::NotOwner(epoch),
        Some(PeerAnswer::Refused) if response.status() == StatusCode::LOOP_DETECTED => {
            Outcome::NotSent(NotSent::Loop)
        }
        Some(PeerAnswer::Refused) => Outcome::NotSent(NotSent::Rejected(response.status())),
        None => Outcome::Answered(response.map(|stream| PeerBody {
            stream,
            is_early: upload.is_some(),
            upload,
            _slot: slot,
        })),
    })
}

/// Returns what an error of a stream means for its request.
///
/// A peer that ends names the last stream that it processes, and h2 fails the later ones with its
/// GOAWAY. REFUSED_STREAM too means that nothing was processed (RFC 9113, section 8.7).
fn broken(error: &h2::Error) -> Outcome {
    let is_unprocessed = error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM);
    if error.is_remote() && is_unprocessed {
        Outcome::NotSent(NotSent::Refused(error.to_string()))
    } else {
        Outcome::Unknown(error.to_string())
    }
}

/// Addresses a request to a peer: the client's host as authority, and no header that HTTP/1 has for
/// one connection only (RFC 9113, section 8.2.2).
pub(super) fn address<B>(request: &mut Request<B>) {
    let headers = request.headers_mut();
    remove_connection_headers(headers);
    let named = headers.remove(header::HOST);
    let named = named.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(
        named
            .or(parts.authority)
            .unwrap_or_else(|| Authority::from_static("localhost")),
    );
    let path = parts.path_and_query.take();
    parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path are there");
    *request.version_mut() = Version::HTTP_2;
}

/// Removes the headers that are for one connection, and those that `Connection` names.
fn remove_connection_headers(headers: &mut HeaderMap) {
    const OF_A_CONNECTION: [HeaderName; 6] = [
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    if let Some(connection) = headers.remove(header::CONNECTION) {
        let names = connection.to_str().unwrap_or_default().split(',');
        for name in names.filter_map(|name| HeaderName::try_from(name.trim()).ok()) {
            // A client must not switch off what a replica vouches for.
            if name != FORWARDED {
                headers.remove(name);
            }
        }
    }
    for name in OF_A_CONNECTION {
        headers.remove(name);
    }
}

/// A request body on its way to a peer, at the speed of the peer.
struct Upload {
    body: UnsyncBoxBody<Bytes, BoxError>,
    stream: SendStream<Bytes>,
    /// What was read of the body and not yet sent.
    rest: Bytes,
}

enum Uploaded {
    Done,
    /// The peer does not want the rest.
    Unwanted,
    /// The client did not send all of it. The stream is reset.
    Broken(String),
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Upload")
            .field("rest", &self.rest.len())
            .finish()
    }
}

impl Upload {
    fn new(body: UnsyncBoxBody<Bytes, BoxError>, stream: SendStream<Bytes>) -> Self {
        Self {
            body,
            stream,
            rest: Bytes::new(),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Uploaded> {
        loop {
            while !self.rest.is_empty() {
                self.stream.reserve_capacity(self.rest.len());
                let mut room = self.stream.capacity();
                if room == 0 {
                    match ready!(self.stream.poll_capacity(context)) {
                        Some(Ok(capacity)) => room = capacity,
                        Some(Err(_)) | None => return Poll::Ready(Uploaded::Unwanted),
                    }
                }
                let next = self.rest.split_to(room.min(self.rest.len()));
                if !next.is_empty() && self.stream.send_data(next, false).is_err() {
                    return Poll::Ready(Uploaded::Unwanted);
                }
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    self.stream.send_reset(Reason::CANCEL);
                    return Poll::Ready(Uploaded::Broken(format!("the request broke off: {error}")));
                }
                None => {
                    return Poll::Ready(match self.stream.send_data(Bytes::new(), true) {
                        Ok(()) => Uploaded::Done,
                        Err(_) => Uploaded::Unwanted,
                    });
                }
            }
        }
    }
}

/// The body of a peer's response. If it is dropped before its end, the stream is reset.
#[derive(Debug)]
pub struct PeerBody {
    stream: RecvStream,
    /// What is left of the request body: a peer may answer before it has read everything.
    upload: Option<Upload>,
    /// It began before the request had ended.
    is_early: bool,
    _slot: StreamSlot,
}

/// The connection to the peer, or the request, broke before the end of the response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the response of the replica broke off: {0}")]
pub struct PeerBodyError(String);

impl Body for PeerBody {
    type Data = Bytes;
    type Error = PeerBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PeerBodyError>>> {
        if let Some(upload) = &mut self.upload {
            match upload.poll(context) {
                Poll::Pending => {}
                Poll::Ready(Uploaded::Done | Uploaded::Unwanted) => self.upload = None,
                Poll::Ready(Uploaded::Broken(why)) => return Poll::Ready(Some(Err(PeerBodyError(why)))),
            }
        }
        loop {
            return Poll::Ready(match ready!(self.stream.poll_data(context)) {
                // The frame that ends a stream may be empty.
                Some(Ok(data)) if data.is_empty() => continue,
                Some(Ok(data)) => {
                    // The peer may send as much again as soon as the reader has taken this.
                    let released = self.stream.flow_control().release_capacity(data.len());
                    released.expect("no more is released than was received");
                    Some(Ok(Frame::data(data)))
                }
                // A peer that has sent its whole response stops the rest of the request so (RFC
                // 9113, section 8.1).
                Some(Err(error))
                    if self.is_early && error.is_remote() && error.reason() == Some(Reason::NO_ERROR) =>
                {
                    None
                }
                Some(Err(error)) => Some(Err(PeerBodyError(error.to_string()))),
                None => None,
            });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.stream.is_end_stream() {
            SizeHint::with_exact(0)
        } else {
            SizeHint::default()
        }
    }
}
