//! Limits: streams, peers, hops, idle connections, and heads that no listener accepts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::NodeId;
use cluster::key::{ClusterKey, server_name};
use gateway::peer::{Forwarded, NotSent, Outcome, PeerLimits};
use gateway::tasks;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use testkit::{PATIENCE, wait_until};
use tokio::net::TcpStream;
use tokio::sync::{Barrier, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::relay::Relay;
use crate::replica::{Owner, Proxy, answered, channel, issue, limits, node, ok, post, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_requests_are_in_flight_at_once_on_one_connection() {
    const REQUESTS: usize = 1000;
    let key = ClusterKey::generate().unwrap();
    let barrier = Arc::new(Barrier::new(REQUESTS));
    let owner = Owner::start(&key, limits(), move |request, _| {
        let barrier = Arc::clone(&barrier);
        async move {
            // None is answered before all have arrived.
            barrier.wait().await;
            ok(request.uri().path().to_owned())
        }
    })
    .await;
    let relay = Relay::to(owner.address).await;
    let proxy = Arc::new(Proxy::new(&key, limits()));
    let owner = Arc::new(owner);
    let mut requests = JoinSet::new();
    for number in 0..REQUESTS {
        let (proxy, owner, address) = (Arc::clone(&proxy), Arc::clone(&owner), relay.address);
        requests.spawn(async move {
            let path = format!("/{number}");
            let sent = proxy.send_by(&owner, address, post(&path, "{}")).await;
            assert_eq!(text(sent).await, path);
        });
    }
    while let Some(ended) = requests.join_next().await {
        ended.unwrap();
    }
    assert_eq!(relay.connections(), 1);
}

#[tokio::test]
async fn request_beyond_the_limit_of_streams_is_not_sent() {
    let key = ClusterKey::generate().unwrap();
    let (opened, mut bodies) = mpsc::channel(4);
    let owner = Owner::start(&key, limits(), move |_, _| {
        let opened = opened.clone();
        async move {
            let (sender, body) = channel();
            opened.send(sender).await.unwrap();
            Ok(http::Response::new(body))
        }
    })
    .await;
    let two = PeerLimits {
        streams: 2,
        ..limits()
    };
    let proxy = Proxy::new(&key, two);
    let first = answered(proxy.send(&owner, post("/", "{}")).await);
    let _second = answered(proxy.send(&owner, post("/", "{}")).await);
    let third = proxy.send(&owner, post("/", "{}")).await;
    assert!(matches!(third, Outcome::NotSent(NotSent::Busy)), "{third:?}");
    drop(first);
    let _third = answered(proxy.send(&owner, post("/", "{}")).await);
    for _ in 0..3 {
        bodies.recv().await.unwrap();
    }
    assert!(bodies.try_recv().is_err());
}

#[tokio::test]
async fn owner_with_a_smaller_limit_lets_requests_wait() {
    let key = ClusterKey::generate().unwrap();
    let small = PeerLimits {
        streams: 3,
        ..limits()
    };
    let owner = Owner::start(&key, small, |_, _| async { ok("done") }).await;
    let proxy = Arc::new(Proxy::new(&key, limits()));
    // The first request brings the settings of the owner.
    assert_eq!(text(proxy.send(&owner, post("/", "{}")).await).await, "done");
    let owner = Arc::new(owner);
    let mut requests = JoinSet::new();
    for _ in 0..50 {
        let (proxy, owner) = (Arc::clone(&proxy), Arc::clone(&owner));
        requests.spawn(async move { text(proxy.send(&owner, post("/", "{}")).await).await });
    }
    while let Some(ended) = requests.join_next().await {
        assert_eq!(ended.unwrap(), "done");
    }
}

#[tokio::test]
async fn peer_beyond_the_limit_of_peers_is_not_connected() {
    let key = ClusterKey::generate().unwrap();
    let first = Owner::start(&key, limits(), |_, _| async { ok("first") }).await;
    let second = Owner::start(&key, limits(), |_, _| async { ok("second") }).await;
    let one = PeerLimits { peers: 1, ..limits() };
    let proxy = Proxy::new(&key, one);
    assert_eq!(text(proxy.send(&first, post("/", "{}")).await).await, "first");
    let refused = proxy.send(&second, post("/", "{}")).await;
    assert!(matches!(refused, Outcome::NotSent(NotSent::Busy)), "{refused:?}");
    first.kill().await;
    wait_until("the first connection has ended", PATIENCE, || {
        (proxy.client.connected() == 0).then_some(())
    })
    .await;
    assert_eq!(text(proxy.send(&second, post("/", "{}")).await).await, "second");
}

#[tokio::test]
async fn connection_without_requests_is_closed_and_made_again() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |_, _| async { ok("alive") }).await;
    let relay = Relay::to(owner.address).await;
    let short = PeerLimits {
        ping_interval: Duration::from_millis(10),
        idle_timeout: Duration::from_millis(30),
        ..limits()
    };
    let proxy = Proxy::new(&key, short);
    for connections in 1..3 {
        let sent = proxy.send_by(&owner, relay.address, post("/", "{}")).await;
        assert_eq!(text(sent).await, "alive");
        assert_eq!(relay.connections(), connections);
        wait_until("the idle connection is closed", PATIENCE, || {
            (proxy.client.connected() == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn request_that_came_from_a_peer_is_not_sent_on() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |_, _| async { ok("never") }).await;
    let proxy = Proxy::new(&key, limits());
    let mut forwarded = proxy.forwarded();
    forwarded.hops = 1;
    let address = owner.address.to_string();
    let sent = proxy
        .client
        .send(&owner.node, &address, &forwarded, post("/", "{}"));
    let outcome = sent.await;
    assert!(matches!(outcome, Outcome::NotSent(NotSent::Loop)), "{outcome:?}");
    assert_eq!(proxy.client.connected(), 0);
}

/// Sends a request with these headers to a listener, without the client under test.
async fn raw_request(
    key: &ClusterKey,
    from: &NodeId,
    owner: &Owner,
    headers: HeaderMap,
) -> http::Response<()> {
    let stream = TcpStream::connect(owner.address).await.unwrap();
    let stream = TlsConnector::from(issue(key, from).client())
        .connect(server_name(&owner.node), stream)
        .await
        .unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tasks::spawn("raw connection", async move {
        let _ = connection.await;
    });
    let mut sender: h2::client::SendRequest<Bytes> = sender.ready().await.unwrap();
    let mut request = Request::post("https://localhost/").body(()).unwrap();
    *request.headers_mut() = headers;
    let (response, _) = sender.send_request(request, true).unwrap();
    response.await.unwrap().map(drop)
}

#[tokio::test]
async fn listener_refuses_requests_without_a_valid_header_before_its_handler() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |_, _| async { ok("reached") }).await;
    let from = node("raw");
    let forwarded = Proxy::new(&key, limits()).forwarded();
    let of_sender = |sender: &NodeId| {
        let mut headers = HeaderMap::new();
        headers.insert("rialto-sender", sender.as_str().try_into().unwrap());
        headers
    };
    let headers = |forwarded: &Forwarded| {
        let mut headers = of_sender(&from);
        forwarded.write_into(&mut headers);
        headers
    };
    let mut twice = headers(&forwarded);
    let copy = twice["rialto-forwarded"].clone();
    twice.append("rialto-forwarded", copy);
    let mut other_version = of_sender(&from);
    other_version.insert("rialto-forwarded", HeaderValue::from_static("2;from=here"));
    let sent_on_before = Forwarded {
        hops: 1,
        ..forwarded.clone()
    };
    let mut of_another = of_sender(&node("raw"));
    forwarded.write_into(&mut of_another);
    let mut of_none = headers(&forwarded);
    of_none.remove("rialto-sender");
    for (headers, status) in [
        (headers(&forwarded), StatusCode::OK),
        (of_sender(&from), StatusCode::BAD_REQUEST),
        (twice, StatusCode::BAD_REQUEST),
        (other_version, StatusCode::BAD_REQUEST),
        (headers(&sent_on_before), StatusCode::LOOP_DETECTED),
        (of_another, StatusCode::FORBIDDEN),
        (of_none, StatusCode::FORBIDDEN),
    ] {
        let response = raw_request(&key, &from, &owner, headers).await;
        assert_eq!(response.status(), status);
        let marked = response.headers().get("rialto-forwarded");
        assert_eq!(marked.is_some(), status != StatusCode::OK);
    }
}
