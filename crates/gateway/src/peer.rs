//! Requests between replicas, over HTTP/2 with mutual TLS. A request for something that another
//! replica has (a session, a parked call, a task) is forwarded to it as it is, and answered as if
//! its client had reached that replica. Metrics call such requests *proxied*.
//!
//! A *peer* is another replica here. In `frontend`, `peer` is the address of a client.
//!
//! | Part | Module |
//! |---|---|
//! | what the sending replica vouches for: target, principal, client | [`forwarded`] |
//! | one connection per peer, remade when it broke, and one stream per request | [`client`] |
//! | one request: its body, its response, and what is known when it breaks | [`exchange`] |
//! | the listener that other replicas reach, and the trait of what answers there | [`listener`] |
//!
//! **Nothing runs twice.** Retry after a broken connection is decided by its [`Outcome`], of which
//! each way to break has its own. A request that the peer provably did not process may run
//! elsewhere; any other is never sent again.
//!
//! **Back-pressure.** Bodies pass as they come in both directions, in the windows of HTTP/2. The
//! window of a connection is the sum over all its streams, so a reader that stops stalls its own
//! stream and no other.
//!
//! Certificates come from the cluster key ([`cluster::key`]). Only replicas that hold that key can
//! connect, so the headers of [`forwarded`] are believed here, and on no other listener.

pub mod client;
pub mod exchange;
pub mod forwarded;
pub mod listener;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cluster::NodeId;
use cluster::key::{ClusterKey, KeyError, PeerIdentity};
use parking_lot::Mutex;
use tokio::sync::watch;

pub use client::PeerClient;
pub use exchange::{NotSent, Outcome, PeerBody, PeerBodyError, RequestBody};
pub use forwarded::{Forwarded, ForwardedError, Target};
pub use listener::{NotOwner, PeerHandler, PeerListener};

/// The limits of connections between replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLimits {
    /// Replicas that are connected at once, in each direction.
    pub peers: usize,
    /// Requests in flight at once to one peer. Each open event stream is one.
    pub streams: usize,
    /// Bytes of one body that may lie unread at the receiver.
    pub stream_window: u32,
    /// The longest head of a request.
    pub header_bytes: u32,
    /// How long a connection and its TLS handshake may take.
    pub connect_timeout: Duration,
    /// How often a peer receives a PING.
    pub ping_interval: Duration,
    /// How long a peer may take to answer it.
    pub ping_timeout: Duration,
    /// A connection without requests is closed after this time.
    pub idle_timeout: Duration,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            peers: 1024,
            streams: 4096,
            stream_window: 32 << 10,
            header_bytes: 64 << 10,
            connect_timeout: Duration::from_secs(2),
            ping_interval: Duration::from_secs(5),
            ping_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(300),
        }
    }
}

impl PeerLimits {
    /// Returns the window of a whole connection: that of all its streams, so that streams which are
    /// not read leave room for the others.
    fn connection_window(&self) -> u32 {
        const LARGEST: u32 = (1 << 31) - 1;
        let streams = u32::try_from(self.streams).unwrap_or(u32::MAX);
        streams.saturating_mul(self.stream_window).min(LARGEST)
    }
}

/// What one run of a replica needs to reach the others, and to be reached.
#[derive(Debug)]
pub struct Peers {
    client: PeerClient,
    identity: PeerIdentity,
    address: SocketAddr,
    /// The socket for other replicas, until it is served.
    listener: Mutex<Option<TcpListener>>,
    /// Requests that other replicas answer for clients of this one.
    proxied: Arc<watch::Sender<usize>>,
}

/// A request that another replica answers, until the last byte of its response.
#[derive(Debug)]
pub(crate) struct Proxied(Arc<watch::Sender<usize>>);

impl Drop for Proxied {
    fn drop(&mut self) {
        self.0.send_if_modified(|count| {
            *count -= 1;
            // Only the end of all is waited for.
            *count == 0
        });
    }
}

/// Why a replica cannot be part of a fleet.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    #[error("cluster.listen: {address} cannot be used; choose another address or port")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Peers {
    /// Binds the socket for other replicas (`cluster.listen`), and issues the certificate of this
    /// run.
    pub fn open(key: &ClusterKey, node: &NodeId, listen: SocketAddr) -> Result<Self, PeersError> {
        let unusable = |source| PeersError::Listen {
            address: listen,
            source,
        };
        let identity = key.issue(node, SystemTime::now())?;
        let listener = TcpListener::bind(listen).map_err(unusable)?;
        listener.set_nonblocking(true).map_err(unusable)?;
        let address = listener.local_addr().map_err(unusable)?;
        tracing::info!(peer_listening = %address, replica = %node, "socket for other replicas is bound");
        Ok(Self {
            client: PeerClient::new(node, &identity, PeerLimits::default()),
            address,
            identity,
            listener: Mutex::new(Some(listener)),
            proxied: Arc::new(watch::Sender::new(0)),
        })
    }

    /// Returns the address that was bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the connections to other replicas.
    #[must_use]
    pub fn client(&self) -> &PeerClient {
        &self.client
    }

    /// Counts a request that another replica answers, for as long as the returned value lives.
    pub(crate) fn count_proxied(&self) -> Proxied {
        self.proxied.send_if_modified(|count| {
            *count += 1;
            false
        });
        Proxied(Arc::clone(&self.proxied))
    }

    /// Waits until no request is answered by another replica.
    pub(crate) async fn proxied_ended(&self) {
        // The sender is here, so the channel is not closed.
        let _ = self.proxied.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Returns the listener for other replicas, once.
    pub fn listener(&self) -> Option<PeerListener> {
        let socket = self.listener.lock().take()?;
        let limits = PeerLimits::default();
        PeerListener::from_std(socket, &self.identity, limits)
            .inspect_err(|error| tracing::error!(%error, "cannot listen for other replicas"))
            .ok()
    }
}
