//! Requests that other replicas forward to this one, answered as if their clients had reached it.
//!
//! The guard of this replica authenticates a request again, with the address of its client. Origins
//! were checked where the client is, and requests and calls per caller are counted there.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::AbortHandle;

use super::body::Body;
use super::http::RequestSource;
use super::request_body::RequestBody;
use crate::gateway::Gateway;
use crate::peer::{Forwarded, NotOwner, PeerHandler};

impl RequestSource for Forwarded {
    fn peer(&self) -> SocketAddr {
        // An address of no network, so that no proxy is trusted for it.
        let unknown = || SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        self.client.unwrap_or_else(unknown)
    }

    fn handle_authenticated(&self) {}

    fn abort_handle(&self) -> Option<&AbortHandle> {
        None
    }

    fn forwarded(&self) -> Option<&Forwarded> {
        Some(self)
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
    ) -> Result<Response<PeerResponse>, NotOwner> {
        let (mut parts, body) = request.into_parts();
        let mut body = RequestBody::Unread(body);
        let config = self.0.config();
        let answering = self.0.route(&config, &mut parts, &mut body, &forwarded, false);
        let response = Box::pin(answering).await;
        // 421 is an answer between replicas: no client gets it.
        if response.status() == StatusCode::MISDIRECTED_REQUEST {
            return Err(NotOwner { epoch: None });
        }
        Ok(response.map(PeerResponse))
    }
}

/// The body of a response to another replica.
#[derive(Debug)]
pub(crate) struct PeerResponse(Body);

impl http_body::Body for PeerResponse {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.0).poll_frame(context);
        polled.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(|piece| piece.into_bytes()))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
