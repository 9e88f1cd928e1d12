//! Requests that other replicas forward to this one, answered as if their clients had reached it.
//!
//! The guard of this replica authenticates a request again, with the address of its client. Origins
//! were checked where the client is, and requests and calls per caller are counted there. Bytes that
//! wait to be read count here, where they are: beyond a limit the stream of the response is reset.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::AbortHandle;

use super::body::Body;
use super::http::RequestSource;
use super::request_body::RequestBody;
use crate::attachment::ATTACHED;
use crate::buffered::Piece;
use crate::gateway::Gateway;
use crate::guard::Caller;
use crate::peer::{Forwarded, NotOwner, PeerHandler};

/// The longest piece of a response that is given to HTTP/2 at once. What waits for the reader beyond
/// it stays here, where it is counted and can be dropped.
const PIECE: usize = 32 << 10;

/// A request on a stream between replicas.
struct FromReplica {
    forwarded: Forwarded,
    stream: AbortHandle,
}

impl RequestSource for FromReplica {
    fn peer(&self) -> SocketAddr {
        // An address of no network, so that no proxy is trusted for it.
        let unknown = || SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        self.forwarded.client.unwrap_or_else(unknown)
    }

    fn handle_authenticated(&self) {}

    fn abort_handle(&self) -> Option<&AbortHandle> {
        Some(&self.stream)
    }

    fn forwarded(&self) -> Option<&Forwarded> {
        Some(&self.forwarded)
    }

    fn admitted(&self) -> Option<&Arc<Caller>> {
        None
    }
}

/// Answers the requests of other replicas.
#[derive(Debug)]
pub(crate) struct PeerRequests(pub(crate) Arc<Gateway>);

impl PeerHandler for PeerRequests {
    type Body = PeerResponse;

    async fn handle(
        &self,
        request: Request<Incoming>,
        forwarded: Forwarded,
        stream: AbortHandle,
    ) -> Result<Response<PeerResponse>, NotOwner> {
        let source = FromReplica { forwarded, stream };
        let (mut parts, body) = request.into_parts();
        let mut body = RequestBody::Unread(body);
        // Directories and variables are those of another machine.
        parts.headers.remove(ATTACHED);
        let config = self.0.config();
        let answering = self.0.route(&config, &mut parts, &mut body, &source, false);
        let response = Box::pin(answering).await;
        // 421 is an answer between replicas: no client gets it.
        if response.status() == StatusCode::MISDIRECTED_REQUEST {
            return Err(NotOwner { epoch: None });
        }
        Ok(response.map(PeerResponse::new))
    }
}

/// The body of a response to another replica, in pieces as its reader takes them.
#[derive(Debug)]
pub(crate) struct PeerResponse {
    body: Body,
    /// What is left of the last frame of the body.
    rest: Bytes,
}

impl PeerResponse {
    fn new(body: Body) -> Self {
        Self {
            body,
            rest: Bytes::new(),
        }
    }

    /// Takes the next piece of a long frame.
    fn next_piece(&mut self) -> Bytes {
        if self.rest.len() > PIECE {
            return self.rest.split_to(PIECE);
        }
        // HTTP/2 takes a piece when the reader has room for all before it. So only the last one may
        // wait for long, and it must not keep the memory of the others.
        Bytes::copy_from_slice(&std::mem::take(&mut self.rest))
    }
}

impl http_body::Body for PeerResponse {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.next_piece()))));
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame.map_data(Piece::into_bytes),
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(data) if data.len() > PIECE => {
                self.rest = data;
                Frame::data(self.next_piece())
            }
            Ok(data) => Frame::data(data),
            Err(other) => other,
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // HTTP/2 asks before the first frame.
        match self.rest.is_empty() {
            true => self.body.size_hint(),
            false => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt as _;
    use protocol::message::Written;

    use super::*;

    #[tokio::test]
    async fn long_response_is_given_away_in_pieces_and_its_last_one_keeps_nothing_alive() {
        let bytes: Bytes = (0..3 * PIECE + 7).map(|at| at as u8).collect();
        let mut response = PeerResponse::new(Body::full(Written::Whole(bytes.clone())));
        assert_eq!(response.size_hint().exact(), Some(bytes.len() as u64));
        let mut pieces = Vec::new();
        while let Some(Ok(frame)) = response.frame().await {
            pieces.push(frame.into_data().expect("a body is data"));
            assert_eq!(response.is_end_stream(), pieces.len() == 4);
        }
        let lengths: Vec<_> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [PIECE, PIECE, PIECE, 7]);
        assert_eq!(pieces.concat(), bytes);
        pieces.drain(..3);
        assert!(bytes.is_unique(), "the last piece is a copy");
    }

    #[tokio::test]
    async fn small_response_passes_without_a_copy() {
        let bytes = Bytes::from(vec![7; PIECE]);
        let mut response = PeerResponse::new(Body::full(Written::Whole(bytes.clone())));
        let frame = response.frame().await.expect("one frame").expect("no error");
        assert_eq!(frame.into_data().expect("data").as_ptr(), bytes.as_ptr());
        assert!(response.is_end_stream() && response.frame().await.is_none());
    }
}
