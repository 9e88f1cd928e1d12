//! What is known about a request after each way to break. A request that may have run is never
//! sent again, so each handler here counts its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cluster::key::ClusterKey;
use gateway::peer::{NotOwner, NotSent, Outcome, PeerLimits, Target};
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use testkit::{PATIENCE, wait_until};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

use crate::fake_peer::{Break, FakePeer};
use crate::relay::Relay;
use crate::replica::{Owner, Proxy, answered, channel, limits, next, node, ok, post, text, whole};

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;

/// An owner that reports each request and never answers it.
async fn silent_owner(key: &ClusterKey) -> (Owner, mpsc::Receiver<()>) {
    let (arrived, arrivals) = mpsc::channel(16);
    let owner = Owner::start(key, limits(), move |_, _| {
        let arrived = arrived.clone();
        async move {
            arrived.send(()).await.unwrap();
            std::future::pending().await
        }
    })
    .await;
    (owner, arrivals)
}

#[track_caller]
fn assert_unreachable(outcome: &Outcome) {
    assert!(
        matches!(outcome, Outcome::NotSent(NotSent::Unreachable(_))),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn refused_port_means_not_sent() {
    let key = ClusterKey::generate().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap().to_string();
    drop(closed);
    let proxy = Proxy::new(&key, limits());
    for _ in 0..3 {
        assert_unreachable(&proxy.send_to(&node("gone"), &address).await);
        assert_eq!(proxy.client.connected(), 0);
    }
}

#[tokio::test]
async fn invalid_address_means_not_sent() {
    let key = ClusterKey::generate().unwrap();
    let proxy = Proxy::new(&key, limits());
    for address in ["", "no port", "127.0.0.1:99999"] {
        assert_unreachable(&proxy.send_to(&node("gone"), address).await);
    }
}

#[tokio::test]
async fn peer_that_accepts_and_never_shakes_hands_means_not_sent() {
    let key = ClusterKey::generate().unwrap();
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = mute.local_addr().unwrap().to_string();
    let impatient = PeerLimits {
        connect_timeout: Duration::from_millis(50),
        ..limits()
    };
    let proxy = Proxy::new(&key, impatient);
    // Both requests wait for the same attempt.
    let to = node("mute");
    let (first, second) = tokio::join!(proxy.send_to(&to, &address), proxy.send_to(&to, &address));
    assert_unreachable(&first);
    assert_unreachable(&second);
}

#[tokio::test]
async fn owner_killed_before_the_request_means_not_sent() {
    let key = ClusterKey::generate().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let owner = Owner::start(&key, limits(), move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        async { ok("alive") }
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    assert_eq!(text(proxy.send(&owner, post("/", "{}")).await).await, "alive");
    let (to, address) = (owner.node.clone(), owner.address.to_string());
    owner.kill().await;
    wait_until("the end of the connection is noticed", PATIENCE, || {
        (proxy.client.connected() == 0).then_some(())
    })
    .await;
    assert_unreachable(&proxy.send_to(&to, &address).await);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn owner_killed_after_the_request_means_unknown() {
    let key = ClusterKey::generate().unwrap();
    let (owner, mut arrivals) = silent_owner(&key).await;
    let proxy = Proxy::new(&key, limits());
    let (to, address) = (owner.node.clone(), owner.address.to_string());
    let sending = proxy.send_to(&to, &address);
    let killing = async {
        arrivals.recv().await.unwrap();
        owner.kill().await;
    };
    let (outcome, ()) = tokio::join!(sending, killing);
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    assert!(arrivals.try_recv().is_err(), "it was sent once");
}

#[tokio::test]
async fn owner_killed_during_its_response_breaks_the_body() {
    let key = ClusterKey::generate().unwrap();
    let (pieces, mut bodies) = mpsc::channel(1);
    let owner = Owner::start(&key, limits(), move |_, _| {
        let pieces = pieces.clone();
        async move {
            let (sender, body) = channel();
            pieces.send(sender).await.unwrap();
            Ok(Response::new(body))
        }
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let mut response = answered(proxy.send(&owner, post("/", "{}")).await).into_body();
    let sender = bodies.recv().await.unwrap();
    sender.send(Ok(Bytes::from("data: 1\n\n"))).await.unwrap();
    assert_eq!(next(&mut response).await.unwrap().unwrap(), "data: 1\n\n");
    owner.kill().await;
    let error = next(&mut response).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("broke off"), "{error}");
}

#[tokio::test]
async fn response_that_its_handler_breaks_off_is_no_whole_response() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |_, _| async {
        let (sender, body) = channel();
        gateway::tasks::spawn("broken body", async move {
            sender.send(Ok(Bytes::from("half"))).await.unwrap();
            sender.send(Err("the server has exited".into())).await.unwrap();
        });
        Ok(Response::new(body))
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let response = answered(proxy.send(&owner, post("/", "{}")).await);
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn connection_that_was_cut_is_made_again() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |_, _| async { ok("alive") }).await;
    let relay = Relay::to(owner.address).await;
    let proxy = Proxy::new(&key, limits());
    for connections in 1..4 {
        for _ in 0..3 {
            let sent = proxy.send_by(&owner, relay.address, post("/", "{}")).await;
            assert_eq!(text(sent).await, "alive");
        }
        assert_eq!(relay.connections(), connections);
        relay.cut();
        wait_until("the end of the connection is noticed", PATIENCE, || {
            (proxy.client.connected() == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn drain_lets_requests_end_and_takes_no_new_ones() {
    let key = ClusterKey::generate().unwrap();
    let (arrived, mut arrivals) = mpsc::channel(1);
    let proceed = Arc::new(Notify::new());
    let gate = Arc::clone(&proceed);
    let owner = Owner::start(&key, limits(), move |_, _| {
        let (arrived, gate) = (arrived.clone(), Arc::clone(&gate));
        async move {
            arrived.send(()).await.unwrap();
            gate.notified().await;
            ok("finished")
        }
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let (to, address) = (owner.node.clone(), owner.address.to_string());
    let send = || proxy.send_to(&to, &address);
    let draining = async {
        arrivals.recv().await.unwrap();
        owner.drain();
        // Until GOAWAY has arrived, a request still reaches the owner, which answers it too.
        let refused = loop {
            let sending = send();
            tokio::select! {
                outcome = sending => break outcome,
                _ = arrivals.recv() => {}
            }
        };
        proceed.notify_one();
        refused
    };
    let (finished, refused) = tokio::join!(send(), draining);
    assert!(matches!(refused, Outcome::NotSent(_)), "{refused:?}");
    assert_eq!(text(finished).await, "finished");
    owner.drained().await;
}

#[tokio::test]
async fn go_away_before_the_stream_means_not_sent_and_after_it_unknown() {
    let key = ClusterKey::generate().unwrap();
    let proxy = Proxy::new(&key, limits());
    let outcome = async |how: Break| {
        let peer = FakePeer::start(&key, how).await;
        proxy.send_to(&peer.node, &peer.address.to_string()).await
    };
    for reason in [NO_ERROR, INTERNAL_ERROR] {
        let before = outcome(Break::GoAway { last: 0, reason }).await;
        assert!(
            matches!(before, Outcome::NotSent(NotSent::Refused(_))),
            "{before:?}"
        );
        let after = outcome(Break::GoAway { last: 1, reason }).await;
        assert!(matches!(after, Outcome::Unknown(_)), "{after:?}");
        // The first GOAWAY of a drain excludes no stream.
        let last = (1 << 31) - 1;
        let open = outcome(Break::GoAway { last, reason }).await;
        assert!(matches!(open, Outcome::Unknown(_)), "{open:?}");
    }
    let refused = outcome(Break::Reset {
        reason: REFUSED_STREAM,
    })
    .await;
    assert!(
        matches!(refused, Outcome::NotSent(NotSent::Refused(_))),
        "{refused:?}"
    );
    for how in [
        Break::Reset { reason: NO_ERROR },
        Break::Reset {
            reason: INTERNAL_ERROR,
        },
        Break::Close,
    ] {
        let unknown = outcome(how).await;
        assert!(matches!(unknown, Outcome::Unknown(_)), "{how:?}: {unknown:?}");
    }
}

#[tokio::test]
async fn peer_that_answers_no_ping_means_unknown() {
    let key = ClusterKey::generate().unwrap();
    let (owner, mut arrivals) = silent_owner(&key).await;
    let relay = Relay::to(owner.address).await;
    let pinging = PeerLimits {
        ping_interval: Duration::from_millis(20),
        ping_timeout: Duration::from_millis(500),
        ..limits()
    };
    let proxy = Proxy::new(&key, pinging);
    let silence = async {
        arrivals.recv().await.unwrap();
        relay.fall_silent();
    };
    let (outcome, ()) = tokio::join!(proxy.send_by(&owner, relay.address, post("/", "{}")), silence);
    assert!(matches!(&outcome, Outcome::Unknown(_)), "{outcome:?}");
    assert_eq!(proxy.client.connected(), 0);
}

#[tokio::test]
async fn peer_that_answers_pings_may_be_silent_for_long() {
    let key = ClusterKey::generate().unwrap();
    let (arrived, mut arrivals) = mpsc::channel(1);
    let proceed = Arc::new(Notify::new());
    let gate = Arc::clone(&proceed);
    let owner = Owner::start(&key, limits(), move |_, _| {
        let (arrived, gate) = (arrived.clone(), Arc::clone(&gate));
        async move {
            arrived.send(()).await.unwrap();
            gate.notified().await;
            ok("late")
        }
    })
    .await;
    let relay = Relay::to(owner.address).await;
    let pinging = PeerLimits {
        ping_interval: Duration::from_millis(10),
        ..limits()
    };
    let proxy = Proxy::new(&key, pinging);
    let waiting = async {
        arrivals.recv().await.unwrap();
        let before = relay.passed();
        wait_until("several pings and their answers have passed", PATIENCE, || {
            (relay.passed() >= before + 10).then_some(())
        })
        .await;
        proceed.notify_one();
    };
    let (outcome, ()) = tokio::join!(proxy.send_by(&owner, relay.address, post("/", "{}")), waiting);
    assert_eq!(text(outcome).await, "late");
}

#[tokio::test]
async fn peer_that_does_not_own_the_session_names_its_epoch() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |_, forwarded| async move {
        let Target::Session { epoch } = forwarded.target else {
            return ok("no session");
        };
        let epoch = (epoch > 1).then_some(epoch);
        Err(NotOwner { epoch })
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let address = owner.address.to_string();
    for (sent, known) in [(1, None), (u64::MAX, Some(u64::MAX))] {
        let mut forwarded = proxy.forwarded();
        forwarded.target = Target::Session { epoch: sent };
        let outcome = proxy
            .client
            .send(&owner.node, &address, &forwarded, post("/", "{}"))
            .await;
        assert!(
            matches!(outcome, Outcome::NotOwner(epoch) if epoch == known),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn response_with_status_421_of_a_handler_is_a_response() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |_, _| async {
        let response = Response::builder().status(StatusCode::MISDIRECTED_REQUEST);
        // A server cannot imitate the answer of a peer.
        Ok(response
            .header("rialto-forwarded", "not-owner; epoch=9")
            .body(whole(""))
            .unwrap())
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let response = answered(proxy.send(&owner, post("/", "{}")).await);
    assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
}
