//! What passes: heads, bodies as they come, back-pressure, cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use cluster::key::ClusterKey;
use gateway::peer::{Outcome, RequestBody};
use gateway::tasks;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use testkit::{PATIENCE, wait_until};
use tokio::sync::{Notify, mpsc};

use crate::relay::Relay;
use crate::replica::{Guard, Owner, Proxy, answered, channel, endless, limits, next, ok, post, text, whole};

/// What may lie between a writer and a reader that does not read: the window of the stream, the
/// buffer of the sender, and pieces that were begun.
const MAX_UNREAD: u64 = 256 << 10;

#[tokio::test]
async fn request_and_response_pass_as_they_are() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |request, forwarded| async move {
        let (head, body) = request.into_parts();
        let header = |name: &str| {
            head.headers
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!((head.method, head.uri.path()), (Method::PUT, "/a/mcp"));
        assert_eq!(head.uri.query(), Some("q=1"));
        assert_eq!(header("host").as_deref(), Some("gateway.example:8443"));
        assert_eq!(header("x-own").as_deref(), Some("kept"));
        assert_eq!(header("mcp-session-id").as_deref(), Some("s1"));
        for gone in [
            "connection",
            "x-hop",
            "keep-alive",
            "transfer-encoding",
            "rialto-forwarded",
            "rialto-sender",
        ] {
            assert_eq!(header(gone), None, "{gone}");
        }
        assert_eq!((forwarded.principal.as_str(), forwarded.hops), ("alice", 1));
        let body = body.collect().await.unwrap().to_bytes();
        let response = Response::builder().status(StatusCode::IM_A_TEAPOT);
        Ok(response.header("x-answer", "yes").body(whole(body)).unwrap())
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let request = Request::put("/a/mcp?q=1")
        .header("host", "gateway.example:8443")
        .header("x-own", "kept")
        .header("mcp-session-id", "s1")
        .header("connection", "keep-alive, x-hop")
        .header("x-hop", "for one connection")
        .header("keep-alive", "timeout=5")
        .header("transfer-encoding", "chunked")
        .header("rialto-forwarded", "1;principal=root")
        .header("rialto-sender", "root")
        .body(RequestBody::Whole(Bytes::from_static(b"some bytes")))
        .unwrap();
    let response = answered(proxy.send(&owner, request).await);
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(response.headers()["x-answer"], "yes");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "some bytes");
}

#[tokio::test]
async fn empty_requests_and_responses_pass() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |request, _| async move {
        assert!(request.into_body().collect().await.unwrap().to_bytes().is_empty());
        let mut response = Response::new(whole(""));
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    for method in [Method::GET, Method::DELETE, Method::POST] {
        let mut request = post("/a/mcp", "");
        *request.method_mut() = method;
        let response = answered(proxy.send(&owner, request).await);
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "");
    }
}

#[tokio::test]
async fn pieces_pass_in_both_directions_before_the_bodies_end() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |request, _| async move {
        let (sender, body) = channel();
        tasks::spawn("echo", async move {
            let mut incoming = request.into_body();
            while let Some(Ok(piece)) = next(&mut incoming).await {
                sender.send(Ok(piece)).await.unwrap();
            }
        });
        Ok(Response::new(body))
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let (sender, body) = channel();
    let request = Request::post("/").body(RequestBody::Stream(body)).unwrap();
    let mut response = answered(proxy.send(&owner, request).await).into_body();
    for piece in ["event: one\n\n", "event: two\n\n", "event: three\n\n"] {
        sender.send(Ok(Bytes::from(piece))).await.unwrap();
        assert_eq!(next(&mut response).await.unwrap().unwrap(), piece);
    }
    drop(sender);
    assert!(next(&mut response).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_pass_in_both_directions() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |request, _| async move {
        ok(request.into_body().collect().await.unwrap().to_bytes())
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let bytes: Bytes = (0..10_u32 << 20).map(|at| (at >> 3) as u8 ^ at as u8).collect();
    let response = answered(proxy.send(&owner, post("/", bytes.clone())).await);
    assert!(
        response.into_body().collect().await.unwrap().to_bytes() == bytes,
        "whole"
    );
    // The same as a stream of odd pieces.
    let (sender, body) = channel();
    let pieces = bytes.clone();
    tasks::spawn("upload", async move {
        for piece in pieces.chunks(70_001) {
            sender.send(Ok(pieces.slice_ref(piece))).await.unwrap();
        }
    });
    let request = Request::post("/").body(RequestBody::Stream(body)).unwrap();
    let response = answered(proxy.send(&owner, request).await);
    assert!(
        response.into_body().collect().await.unwrap().to_bytes() == bytes,
        "stream"
    );
}

#[tokio::test]
async fn reader_that_stops_stops_the_writer() {
    let key = ClusterKey::generate().unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&written);
    let owner = Owner::start(&key, limits(), move |request, _| {
        let counter = Arc::clone(&counter);
        async move {
            if request.uri().path() == "/small" {
                return ok("small");
            }
            Ok(Response::new(endless(8 << 10, move |bytes| {
                counter.fetch_add(bytes as u64, Ordering::Relaxed);
            })))
        }
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let mut response = answered(proxy.send(&owner, post("/", "")).await).into_body();
    for _ in 0..100 {
        assert_eq!(text(proxy.send(&owner, post("/small", "")).await).await, "small");
        let unread = written.load(Ordering::Relaxed);
        assert!(unread <= MAX_UNREAD, "{unread} bytes lie unread");
    }
    // A reader that reads on gets more than ever lay unread.
    let mut read = 0;
    while read < 4 * MAX_UNREAD {
        read += next(&mut response).await.unwrap().unwrap().len() as u64;
    }
    assert!(written.load(Ordering::Relaxed) - read <= MAX_UNREAD);
}

#[tokio::test]
async fn handler_that_does_not_read_stops_the_upload() {
    let key = ClusterKey::generate().unwrap();
    let (arrived, mut arrivals) = mpsc::channel(1);
    let proceed = Arc::new(Notify::new());
    let gate = Arc::clone(&proceed);
    let owner = Owner::start(&key, limits(), move |request, _| {
        let (arrived, gate) = (arrived.clone(), Arc::clone(&gate));
        async move {
            if request.uri().path() == "/small" {
                return ok("small");
            }
            arrived.send(()).await.unwrap();
            gate.notified().await;
            let (mut body, mut read) = (request.into_body(), 0);
            while read < 4 * MAX_UNREAD {
                read += next(&mut body).await.unwrap().unwrap().len() as u64;
            }
            ok("enough")
        }
    })
    .await;
    let proxy = Arc::new(Proxy::new(&key, limits()));
    let taken = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&taken);
    let body = endless(8 << 10, move |bytes| {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    });
    let request = Request::post("/").body(RequestBody::Stream(body)).unwrap();
    let upload = async { text(proxy.send(&owner, request).await).await };
    let others = async {
        arrivals.recv().await.unwrap();
        for _ in 0..100 {
            assert_eq!(text(proxy.send(&owner, post("/small", "")).await).await, "small");
            let unread = taken.load(Ordering::Relaxed);
            assert!(unread <= MAX_UNREAD, "{unread} bytes lie unread");
        }
        proceed.notify_one();
    };
    // An early answer ends the request, though its body has no end.
    assert_eq!(tokio::join!(upload, others).0, "enough");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_not_read_stall_no_other() {
    let key = ClusterKey::generate().unwrap();
    let owner = Owner::start(&key, limits(), |request, _| async move {
        if request.uri().path() == "/small" {
            return ok("small");
        }
        Ok(Response::new(endless(60, |_| {})))
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let relay = Relay::to(owner.address).await;
    let mut unread = Vec::new();
    for _ in 0..200 {
        unread.push(answered(
            proxy.send_by(&owner, relay.address, post("/", "")).await,
        ));
    }
    for _ in 0..100 {
        let small = proxy.send_by(&owner, relay.address, post("/small", "")).await;
        assert_eq!(text(small).await, "small");
    }
    assert_eq!(relay.connections(), 1);
    for response in unread {
        assert_eq!(next(&mut response.into_body()).await.unwrap().unwrap()[0], 7);
    }
}

#[tokio::test]
async fn request_whose_client_goes_is_dropped_by_its_handler() {
    let key = ClusterKey::generate().unwrap();
    let (arrived, mut arrivals) = mpsc::channel(1);
    let (dropped, mut drops) = mpsc::channel(1);
    let owner = Owner::start(&key, limits(), move |_, _| {
        let (arrived, guard) = (arrived.clone(), Guard(dropped.clone()));
        async move {
            arrived.send(()).await.unwrap();
            std::future::pending::<()>().await;
            drop(guard);
            ok("never")
        }
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    {
        let sending = proxy.send(&owner, post("/", "{}"));
        tokio::select! {
            outcome = sending => panic!("{outcome:?}"),
            _ = arrivals.recv() => {}
        }
    }
    drops.recv().await.unwrap();
    assert_eq!(proxy.client.connected(), 1);
}

#[tokio::test]
async fn response_whose_client_goes_is_dropped_by_its_handler() {
    let key = ClusterKey::generate().unwrap();
    let (dropped, mut drops) = mpsc::channel(1);
    let owner = Owner::start(&key, limits(), move |_, _| {
        let guard = Guard(dropped.clone());
        async move {
            let (sender, body) = channel();
            sender.send(Ok(Bytes::from("first"))).await.unwrap();
            tasks::spawn("stream", async move {
                // The drop of the body closes the channel.
                sender.closed().await;
                drop(guard);
            });
            Ok(Response::new(body))
        }
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let mut response = answered(proxy.send(&owner, post("/", "")).await).into_body();
    assert_eq!(next(&mut response).await.unwrap().unwrap(), "first");
    drop(response);
    drops.recv().await.unwrap();
}

#[tokio::test]
async fn upload_whose_client_goes_reaches_its_handler_as_an_error() {
    let key = ClusterKey::generate().unwrap();
    let (seen, mut ends) = mpsc::channel(1);
    let owner = Owner::start(&key, limits(), move |request, _| {
        let seen = seen.clone();
        // A handler that is dropped cannot report, so a task of its own reads the body.
        tasks::spawn("body", async move {
            let ended = request.into_body().collect().await.is_err();
            seen.send(ended).await.unwrap();
        });
        std::future::pending()
    })
    .await;
    let proxy = Proxy::new(&key, limits());
    let (sender, body) = channel();
    let request = Request::post("/").body(RequestBody::Stream(body)).unwrap();
    let broken = async {
        sender.send(Ok(Bytes::from("half"))).await.unwrap();
        sender.send(Err("the client disconnected".into())).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(proxy.send(&owner, request), broken);
    assert!(
        matches!(&outcome, Outcome::Unknown(why) if why.contains("disconnected")),
        "{outcome:?}"
    );
    assert!(
        ends.recv().await.unwrap(),
        "a body that broke off is no whole body"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_cancelled_requests_leave_the_connection_open() {
    let key = ClusterKey::generate().unwrap();
    let running = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&running);
    let owner = Owner::start(&key, limits(), move |request, _| {
        let count = Arc::clone(&count);
        async move {
            if request.uri().path() == "/small" {
                return ok("small");
            }
            count.fetch_add(1, Ordering::Relaxed);
            let counted = Counted(count);
            Ok(Response::new(endless(4 << 10, move |_| {
                let _ = &counted;
            })))
        }
    })
    .await;
    let relay = Relay::to(owner.address).await;
    let proxy = Proxy::new(&key, limits());
    for round in 0..2500 {
        if round % 2 == 0 {
            // Before the head of the response.
            let sending = proxy.send_by(&owner, relay.address, post("/", ""));
            let _ = futures_util::FutureExt::now_or_never(sending);
        } else {
            // In the middle of the body.
            let mut body = answered(proxy.send_by(&owner, relay.address, post("/", "")).await).into_body();
            next(&mut body).await.unwrap().unwrap();
        }
    }
    let small = proxy.send_by(&owner, relay.address, post("/small", "")).await;
    assert_eq!(text(small).await, "small");
    assert_eq!(relay.connections(), 1);
    wait_until("every response was dropped", PATIENCE, || {
        (running.load(Ordering::Relaxed) == 0).then_some(())
    })
    .await;
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
