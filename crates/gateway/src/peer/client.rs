//! Connections to other replicas: one per peer, made when the first request needs it, remade after
//! it broke, closed when it was idle.
//!
//! One task per connection makes it, drives it, pings the peer and ends it. Requests to a peer that
//! is not connected yet wait for that task; if it fails, all of them fail with its error. Nothing
//! here retries a request that was handed to a connection.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::NodeId;
use cluster::key::{PeerIdentity, server_name};
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use http::{HeaderValue, Request};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::PeerLimits;
use super::exchange::{self, NotSent, Outcome, RequestBody};
use super::forwarded::{self, Forwarded, MAX_HOPS, SENDER};
use crate::tasks;

/// How many connections a request may find ending before it fails.
const MAX_HANDED_BACK: usize = 2;

/// The connections of this replica to all others. Clones share them.
#[derive(Debug, Clone)]
pub struct PeerClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    tls: Arc<ClientConfig>,
    /// How this replica names itself in each request.
    sender: HeaderValue,
    limits: PeerLimits,
    /// A peer is here from the start of its connection to the end of it.
    peers: Mutex<HashMap<NodeId, Arc<Peer>>>,
}

/// One peer that is connected, or will be.
#[derive(Debug)]
struct Peer {
    address: String,
    /// Slots for requests in flight, including those that wait for the connection.
    streams: Arc<Semaphore>,
    link: watch::Receiver<Link>,
}

#[derive(Debug, Clone)]
enum Link {
    Connecting,
    Open(SendRequest<Bytes>),
    /// There was no connection.
    Failed(NotSent),
    /// There was one.
    Ended,
}

impl PeerClient {
    /// Returns a client without connections, for the replica `node` with the certificate of
    /// `identity`.
    #[must_use]
    pub fn new(node: &NodeId, identity: &PeerIdentity, limits: PeerLimits) -> Self {
        Self {
            shared: Arc::new(Shared {
                tls: identity.client(),
                sender: forwarded::sender(node),
                limits,
                peers: Mutex::default(),
            }),
        }
    }

    /// Returns how many peers are connected, or being connected to.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.shared.peers.lock().len()
    }

    /// Sends a request to the replica `node`, which the registry has at `address`, and returns the
    /// head of its response.
    ///
    /// Method, path, headers and body pass as they are. The future may be dropped at any time: the
    /// peer then drops what it does for the request.
    pub async fn send(
        &self,
        node: &NodeId,
        address: &str,
        forwarded: &Forwarded,
        mut request: Request<RequestBody>,
    ) -> Outcome {
        if forwarded.hops >= MAX_HOPS {
            return Outcome::NotSent(NotSent::Loop);
        }
        exchange::address(&mut request);
        forwarded.write_into(request.headers_mut());
        request.headers_mut().insert(SENDER, self.shared.sender.clone());
        let mut handed_back = 0;
        loop {
            let peer = match self.shared.peer(node, address) {
                Some(peer) => peer,
                None => return Outcome::NotSent(NotSent::Busy),
            };
            let Ok(slot) = Arc::clone(&peer.streams).try_acquire_owned() else {
                return Outcome::NotSent(NotSent::Busy);
            };
            let refused = match peer.sender().await {
                Ok(Some(sender)) => match exchange::exchange(sender, request, slot).await {
                    Ok(outcome) => return outcome,
                    Err((refused, same)) => {
                        request = same;
                        refused
                    }
                },
                Ok(None) => NotSent::Unreachable("the connection has ended".to_owned()),
                Err(lost) => return Outcome::NotSent(lost),
            };
            // The connection is ending, and its task may not have noticed yet.
            self.shared.forget(node, &peer);
            handed_back += 1;
            if handed_back > MAX_HANDED_BACK {
                return Outcome::NotSent(refused);
            }
        }
    }
}

impl Shared {
    /// Returns the entry of a peer. If there is none, a task begins to connect. `None`: the limit
    /// of peers is reached.
    fn peer(self: &Arc<Self>, node: &NodeId, address: &str) -> Option<Arc<Peer>> {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(node)
            && peer.address == address
        {
            return Some(Arc::clone(peer));
        }
        if peers.len() >= self.limits.peers && !peers.contains_key(node) {
            return None;
        }
        let (report, link) = watch::channel(Link::Connecting);
        let peer = Arc::new(Peer {
            address: address.to_owned(),
            streams: Arc::new(Semaphore::new(self.limits.streams)),
            link,
        });
        peers.insert(node.clone(), Arc::clone(&peer));
        let (shared, node, own) = (Arc::clone(self), node.clone(), Arc::clone(&peer));
        tasks::spawn("peer connection", async move {
            shared.run(&node, &own, &report).await;
            shared.forget(&node, &own);
        });
        Some(peer)
    }

    /// Removes a peer, unless a newer entry has taken its place. Requests in flight go on.
    fn forget(&self, node: &NodeId, peer: &Arc<Peer>) {
        let mut peers = self.peers.lock();
        if peers.get(node).is_some_and(|found| Arc::ptr_eq(found, peer)) {
            peers.remove(node);
        }
    }

    /// Removes a peer whose requests have all ended. Returns whether it is removed: no request can
    /// take its connection after that.
    fn forget_idle(&self, node: &NodeId, peer: &Arc<Peer>) -> bool {
        let mut peers = self.peers.lock();
        // Slots are taken by requests that have found the peer, which may be now: then the entry
        // and its connection stay for another round.
        let is_idle = peer.streams.available_permits() == self.limits.streams && Arc::strong_count(peer) <= 2;
        if is_idle && peers.get(node).is_some_and(|found| Arc::ptr_eq(found, peer)) {
            peers.remove(node);
        }
        is_idle
    }

    /// Connects to a peer, and drives the connection to its end.
    async fn run(&self, node: &NodeId, peer: &Arc<Peer>, report: &watch::Sender<Link>) {
        let connecting = self.connect(node, &peer.address);
        let connected = match tokio::time::timeout(self.limits.connect_timeout, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(NotSent::Unreachable("connecting took too long".to_owned())),
        };
        let Connected {
            sender,
            connection,
            pings,
        } = match connected {
            Ok(connected) => connected,
            Err(lost) => {
                tracing::debug!(%node, error = %lost, "no connection to a replica");
                // The entry goes first, so that the next request tries again.
                self.forget(node, peer);
                report.send_replace(Link::Failed(lost));
                return;
            }
        };
        report.send_replace(Link::Open(sender));
        let ended = tokio::select! {
            ended = connection => ended.map_err(|error| error.to_string()),
            why = self.watch_over(pings, node, peer) => why.map_or(Ok(()), Err),
        };
        self.forget(node, peer);
        let why = ended.err();
        tracing::debug!(%node, why, "connection to a replica ended");
        report.send_replace(Link::Ended);
    }

    /// Connects to a peer, and returns when it has answered for the first time.
    async fn connect(&self, node: &NodeId, address: &str) -> Result<Connected, NotSent> {
        let unreachable = |error: &dyn std::error::Error| NotSent::Unreachable(error.to_string());
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| unreachable(&error))?;
        // A small request must not wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let stream = TlsConnector::from(Arc::clone(&self.tls))
            .connect(server_name(node), stream)
            .await
            .map_err(tls_error)?;
        let streams = u32::try_from(self.limits.streams).unwrap_or(u32::MAX);
        let window = self.limits.connection_window();
        let (sender, mut connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_max_send_streams(self.limits.streams)
            .max_concurrent_streams(streams)
            .initial_window_size(self.limits.stream_window)
            .initial_connection_window_size(window)
            .max_header_list_size(self.limits.header_bytes)
            // An event is a small frame, and each frame costs more than its bytes. What lies unread
            // is bounded by the windows.
            .data_frame_budget(window as usize * 4)
            // Clients disconnect as often as they like, which resets streams here.
            .max_local_error_reset_streams(None)
            .handshake(stream)
            .await
            .map_err(|error| unreachable(&error))?;
        let mut pings = connection.ping_pong().expect("taken once");
        // In TLS 1.3 the peer checks our certificate after our side of the handshake has ended. Its
        // first PONG proves that it accepted it: a request that is sent earlier would break off
        // without a known outcome.
        let first = tokio::select! {
            ended = &mut connection => ended.and_then(|()| Err(h2::Reason::NO_ERROR.into())),
            pong = pings.ping(Ping::opaque()) => pong.map(drop),
        };
        match first {
            Ok(()) => Ok(Connected {
                sender,
                connection,
                pings,
            }),
            Err(error) => Err(match error.get_io() {
                // TLS reports the peer's alert as invalid data.
                Some(io) if io.kind() == io::ErrorKind::InvalidData => NotSent::Untrusted(io.to_string()),
                Some(_) | None => unreachable(&error),
            }),
        }
    }

    /// Pings a peer as long as it answers. Returns the reason to end the connection; `None`: it was
    /// idle.
    async fn watch_over(&self, mut pings: PingPong, node: &NodeId, peer: &Arc<Peer>) -> Option<String> {
        let mut idle = Duration::ZERO;
        loop {
            tokio::time::sleep(self.limits.ping_interval).await;
            let is_unused = peer.streams.available_permits() == self.limits.streams;
            idle = if is_unused {
                idle + self.limits.ping_interval
            } else {
                Duration::ZERO
            };
            if idle >= self.limits.idle_timeout && self.forget_idle(node, peer) {
                return None;
            }
            match tokio::time::timeout(self.limits.ping_timeout, pings.ping(Ping::opaque())).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Some(error.to_string()),
                Err(_) => return Some("the replica does not answer pings".to_owned()),
            }
        }
    }
}

/// A connection whose peer has accepted it.
struct Connected {
    sender: SendRequest<Bytes>,
    connection: h2::client::Connection<TlsStream<TcpStream>, Bytes>,
    pings: PingPong,
}

impl Peer {
    /// Returns the means to send requests, as soon as there is a connection. `None`: it has ended.
    async fn sender(&self) -> Result<Option<SendRequest<Bytes>>, NotSent> {
        let mut link = self.link.clone();
        let settled = link.wait_for(|link| !matches!(link, Link::Connecting)).await;
        match settled.as_deref() {
            Ok(Link::Open(sender)) => Ok(Some(sender.clone())),
            Ok(Link::Failed(lost)) => Err(lost.clone()),
            Ok(Link::Connecting | Link::Ended) | Err(_) => Ok(None),
        }
    }
}

/// Returns what a failed handshake means: a certificate that was not accepted has another remedy
/// than a connection that broke.
fn tls_error(error: io::Error) -> NotSent {
    let reason = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match reason {
        Some(reason) => NotSent::Untrusted(reason.to_string()),
        None => NotSent::Unreachable(error.to_string()),
    }
}
