//! A round-robin balancer without affinity: each request goes to the next replica.
//!
//! It looks at no header and no body. A replica that refuses the connection is passed over, since
//! nothing was sent to it. A request that was sent is never sent again: if its replica breaks off
//! before it answers, the client gets 502. Bodies pass in both directions as they come.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::service::Service;
use crate::failure::Result;

/// The body of the 502 for a request whose replica broke off.
pub const LOST: &str = "balancer: the replica broke off";
/// The body of the 503 when no replica is ready.
pub const NONE_READY: &str = "balancer: no replica is ready";

const HEALTH_INTERVAL: Duration = Duration::from_millis(100);
/// A replica that does not answer `/ready` for this long is not used.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

type Body = BoxBody<Bytes, hyper::Error>;

/// A running balancer. It ends with this value.
#[derive(Debug)]
pub struct Balancer {
    service: Service,
    shared: Arc<Mutex<Replicas>>,
}

#[derive(Debug, Default)]
struct Replicas {
    /// By address whether the replica is ready.
    known: BTreeMap<SocketAddr, bool>,
    requests: usize,
}

impl Replicas {
    /// Returns the replicas that are ready, beginning with the one whose turn it is.
    fn in_turn(&mut self) -> Vec<SocketAddr> {
        let ready = self.known.iter().filter(|(_, is_ready)| **is_ready);
        let mut ready: Vec<SocketAddr> = ready.map(|(address, _)| *address).collect();
        if let Some(first) = self.requests.checked_rem(ready.len()) {
            ready.rotate_left(first);
        }
        self.requests += 1;
        ready
    }
}

impl Balancer {
    /// Starts a balancer without replicas.
    pub fn start() -> Result<Self> {
        let shared: Arc<Mutex<Replicas>> = Arc::default();
        let mine = Arc::clone(&shared);
        let service = Service::start(async move |listener| {
            tokio::join!(accept_loop(listener, Arc::clone(&mine)), watch_health(mine));
        })?;
        Ok(Self { service, shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.service.address()
    }

    /// Adds a replica, which is used as soon as it is ready.
    pub fn add(&self, replica: SocketAddr) {
        locked(&self.shared).known.entry(replica).or_insert(false);
    }

    /// Forgets a replica. Its open connections stay.
    pub fn remove(&self, replica: SocketAddr) {
        locked(&self.shared).known.remove(&replica);
    }

    /// Returns whether requests are sent to this replica.
    pub fn uses(&self, replica: SocketAddr) -> bool {
        locked(&self.shared).known.get(&replica) == Some(&true)
    }
}

fn locked(shared: &Mutex<Replicas>) -> MutexGuard<'_, Replicas> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch_health(shared: Arc<Mutex<Replicas>>) {
    let mut rounds = tokio::time::interval(HEALTH_INTERVAL);
    let mut looks = JoinSet::new();
    loop {
        rounds.tick().await;
        let known: Vec<SocketAddr> = locked(&shared).known.keys().copied().collect();
        for address in known {
            looks.spawn(async move {
                let look = tokio::time::timeout(HEALTH_TIMEOUT, is_ready(address));
                (address, look.await.unwrap_or(false))
            });
        }
        while let Some(looked) = looks.join_next().await {
            let Ok((address, is_ready)) = looked else { continue };
            // A replica that was removed meanwhile stays away.
            if let Some(known) = locked(&shared).known.get_mut(&address) {
                *known = is_ready;
            }
        }
    }
}

async fn is_ready(replica: SocketAddr) -> bool {
    let Some(mut connection) = dial::<Empty<Bytes>>(replica).await else {
        return false;
    };
    let request = Request::get("/ready").header(HOST, replica.to_string());
    let Ok(request) = request.body(Empty::new()) else {
        return false;
    };
    let answered = connection.send_request(request).await;
    // Without a credential the answer may be 401, which a replica that drains does not give.
    answered.is_ok_and(|answer| answer.status() != StatusCode::SERVICE_UNAVAILABLE)
}

async fn accept_loop(listener: TcpListener, shared: Arc<Mutex<Replicas>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let _ = stream.set_nodelay(true);
                connections.spawn(serve_connection(stream, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(stream: TcpStream, shared: Arc<Mutex<Replicas>>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(pass(request, &shared).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off is no fault of the balancer.
    let _ = served.await;
}

async fn pass(mut request: Request<Incoming>, shared: &Mutex<Replicas>) -> Response<Body> {
    let replicas = locked(shared).in_turn();
    for replica in replicas {
        let Some(mut connection) = dial::<Incoming>(replica).await else {
            continue;
        };
        // Each connection carries one request, so that an idle one is never mistaken for a living
        // replica.
        request
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
        return match connection.send_request(request).await {
            Ok(mut answer) => {
                answer.headers_mut().remove(CONNECTION);
                answer.map(http_body_util::BodyExt::boxed)
            }
            Err(_) => plain(StatusCode::BAD_GATEWAY, LOST),
        };
    }
    plain(StatusCode::SERVICE_UNAVAILABLE, NONE_READY)
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let body = Full::new(Bytes::from_static(text.as_bytes()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response
}

/// Returns a connection; `None` if the replica refuses it.
async fn dial<B>(replica: SocketAddr) -> Option<SendRequest<B>>
where
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = TcpStream::connect(replica).await.ok()?;
    stream.set_nodelay(true).ok()?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (connection, driver) = handshake.await.ok()?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the testkit may not use the product's tasks"
    )]
    tokio::spawn(async move {
        // The request that waits gets the error too.
        let _ = driver.await;
    });
    Some(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_round_the_replicas_that_are_ready() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut replicas = Replicas::default();
        assert!(replicas.in_turn().is_empty());
        replicas.known = BTreeMap::from([(address(1), true), (address(2), false), (address(3), true)]);
        let first: Vec<_> = (0..4)
            .filter_map(|_| replicas.in_turn().first().copied())
            .collect();
        assert_eq!(first, [address(3), address(1), address(3), address(1)]);
        assert_eq!(replicas.in_turn().len(), 2, "the other one is tried next");
    }
}
