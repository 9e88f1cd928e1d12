//! Two replicas of one fleet in this process: one that owns sessions, one that sends requests on.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cluster::NodeId;
use cluster::key::{ClusterKey, PeerIdentity};
use futures_util::stream;
use gateway::peer::{
    Forwarded, NotOwner, Outcome, PeerBody, PeerClient, PeerHandler, PeerLimits, PeerListener, RequestBody,
    Target,
};
use gateway::tasks;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type TestBody = UnsyncBoxBody<Bytes, BoxError>;
type Answer = Result<Response<TestBody>, NotOwner>;

/// Limits whose times no test reaches, however slow the machine is.
pub(crate) fn limits() -> PeerLimits {
    PeerLimits {
        connect_timeout: Duration::from_secs(60),
        ping_interval: Duration::from_secs(60),
        ping_timeout: Duration::from_secs(60),
        ..PeerLimits::default()
    }
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::generate(name).unwrap()
}

pub(crate) fn issue(key: &ClusterKey, node: &NodeId) -> PeerIdentity {
    key.issue(node, SystemTime::now()).unwrap()
}

/// A function that answers requests.
pub(crate) struct Handler<F>(pub(crate) F);

impl<F, R> PeerHandler for Handler<F>
where
    F: Fn(Request<Incoming>, Forwarded) -> R + Send + Sync + 'static,
    R: Future<Output = Answer> + Send + 'static,
{
    type Body = TestBody;

    fn handle(
        &self,
        request: Request<Incoming>,
        forwarded: Forwarded,
        _stream: AbortHandle,
    ) -> impl Future<Output = Answer> + Send {
        (self.0)(request, forwarded)
    }
}

/// A replica that owns sessions.
pub(crate) struct Owner {
    pub(crate) node: NodeId,
    pub(crate) address: SocketAddr,
    closing: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Owner {
    pub(crate) async fn start<F, R>(key: &ClusterKey, limits: PeerLimits, answer: F) -> Self
    where
        F: Fn(Request<Incoming>, Forwarded) -> R + Send + Sync + 'static,
        R: Future<Output = Answer> + Send + 'static,
    {
        let node = node("owner");
        let identity = issue(key, &node);
        let listener = PeerListener::bind("127.0.0.1:0".parse().unwrap(), &identity, limits)
            .await
            .unwrap();
        let address = listener.address().unwrap();
        let (closing, watched) = watch::channel(false);
        let serving = tasks::spawn("test owner", listener.serve(Arc::new(Handler(answer)), watched));
        Self {
            node,
            address,
            closing,
            serving,
        }
    }

    /// Closes all sockets at once, as the system does for a killed process.
    pub(crate) async fn kill(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }

    /// Begins to drain: no more requests, those in flight end.
    pub(crate) fn drain(&self) {
        self.closing.send_replace(true);
    }

    pub(crate) async fn drained(self) {
        self.serving.await.unwrap();
    }
}

/// A replica that clients reach and that owns nothing.
pub(crate) struct Proxy {
    pub(crate) node: NodeId,
    pub(crate) client: PeerClient,
}

impl Proxy {
    pub(crate) fn new(key: &ClusterKey, limits: PeerLimits) -> Self {
        let node = node("proxy");
        let client = PeerClient::new(&node, &issue(key, &node), limits);
        Self { node, client }
    }

    pub(crate) fn forwarded(&self) -> Forwarded {
        Forwarded {
            hops: 0,
            target: Target::Session { epoch: 1 },
            principal: "alice".to_owned(),
            client: None,
            deadline: None,
        }
    }

    pub(crate) async fn send(&self, owner: &Owner, request: Request<RequestBody>) -> Outcome {
        self.send_by(owner, owner.address, request).await
    }

    /// Sends a small request to a replica.
    pub(crate) async fn send_to(&self, node: &NodeId, address: &str) -> Outcome {
        self.client
            .send(node, address, &self.forwarded(), post("/", "{}"))
            .await
    }

    /// Sends a request to an owner by another address, that of a relay for instance.
    pub(crate) async fn send_by(
        &self,
        owner: &Owner,
        address: SocketAddr,
        request: Request<RequestBody>,
    ) -> Outcome {
        let address = address.to_string();
        self.client
            .send(&owner.node, &address, &self.forwarded(), request)
            .await
    }
}

/// A POST with a whole body.
pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Request<RequestBody> {
    Request::post(path).body(RequestBody::Whole(body.into())).unwrap()
}

pub(crate) fn whole(body: impl Into<Bytes>) -> TestBody {
    Full::new(body.into())
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

pub(crate) fn ok(body: impl Into<Bytes>) -> Answer {
    Ok(Response::new(whole(body)))
}

/// Returns the response of a peer that answered.
#[track_caller]
pub(crate) fn answered(outcome: Outcome) -> Response<PeerBody> {
    match outcome {
        Outcome::Answered(response) => response,
        other => panic!("{other:?}"),
    }
}

/// Returns the whole body of a peer that answered with 200.
pub(crate) async fn text(outcome: Outcome) -> String {
    let response = answered(outcome);
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the next piece of a body.
pub(crate) async fn next<B>(body: &mut B) -> Option<Result<Bytes, B::Error>>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let frame = body.frame().await?;
    Some(frame.map(|frame| frame.into_data().unwrap()))
}

/// A body whose pieces a test sends one by one.
pub(crate) fn channel() -> (mpsc::Sender<Result<Bytes, BoxError>>, TestBody) {
    let (sender, receiver) = mpsc::channel(1);
    let pieces = stream::unfold(receiver, |mut receiver: mpsc::Receiver<_>| async move {
        let piece: Result<Bytes, BoxError> = receiver.recv().await?;
        Some((piece.map(Frame::data), receiver))
    });
    (sender, StreamBody::new(pieces).boxed_unsync())
}

/// A body without end, which reports each piece that is taken from it.
pub(crate) fn endless(piece: usize, taken: impl Fn(usize) + Send + 'static) -> TestBody {
    let bytes = Bytes::from(vec![7; piece]);
    let pieces = stream::unfold((), move |()| {
        taken(bytes.len());
        let piece: Result<_, BoxError> = Ok(Frame::data(bytes.clone()));
        let piece: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(async move { Some((piece, ())) });
        piece
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Reports its drop.
pub(crate) struct Guard(pub(crate) mpsc::Sender<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}
