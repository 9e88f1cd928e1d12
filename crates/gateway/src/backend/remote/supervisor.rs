//! The supervisor of an instance that is reached over HTTP. It takes what the multiplexer has
//! written, line by line, and sends each to the server: as a POST of its own (Streamable HTTP, both
//! eras), or to the endpoint of an event stream (HTTP+SSE of 2024-11-05). What comes back goes to
//! the multiplexer with its origin.
//!
//! It decides nothing about messages: `protocol::delivery` decides what becomes of one that could
//! not be delivered, and the multiplexer knows which call waits for it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::HeaderMap;
use protocol::delivery::{Backoff, MessageInfo, PostBatch, PostRequest, answered};
use protocol::exchange::{BackendError, Failure, Upstream, UpstreamFault};
use protocol::method::Method;
use protocol::multiplexer::Carrier;
use protocol::time::Moment;
use protocol::version::{CancelStyle, ChangeStyle};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::exchange::{End, News, StreamableRefusal};
use super::get_stream::StreamEnd;
use super::http_sse::NotOpened;
use super::remote_session::RemoteSession;
use super::sender_pool::{Returned, SendJob, SenderPool, WaitId};
use super::server::Server;
use super::{get_stream, http_sse};
use crate::clock::Alarm;
use crate::instance::Instance;
use crate::settings::{Outages, Transport};
use crate::status::Health;

/// A notification is delivered before the next message is sent, which keeps their order. This is
/// the longest time that the next message waits for it.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of a session may take.
const END_SESSION_TIMEOUT: Duration = Duration::from_secs(2);

type Writing = Pin<Box<dyn Future<Output = Result<(), Arc<BackendError>>> + Send>>;
type Listening = Pin<Box<dyn Future<Output = StreamEnd> + Send>>;

/// The supervisor of one remote instance.
#[derive(Debug)]
pub(crate) struct RemoteSupervisor {
    session: Arc<RemoteSession>,
    outages: Outages,
}

/// Why a link has ended.
enum LinkEnd {
    Stopped,
    /// The server cannot be reached.
    Out(Arc<BackendError>),
    /// It was reached, and the session has ended: the next call begins another one at once.
    Ended,
    /// The server refused Streamable HTTP, and may speak HTTP+SSE.
    TryOld {
        refused: StreamableRefusal,
    },
    /// The server was reached and refuses for good.
    Refused(Arc<Upstream>),
}

impl RemoteSupervisor {
    pub(crate) fn new(
        server: Arc<Server>,
        instance: Arc<Instance>,
        forwarded: HeaderMap,
        max_message_bytes: usize,
    ) -> Self {
        let outages = server.spec().outages;
        Self {
            session: Arc::new(RemoteSession::new(server, instance, forwarded, max_message_bytes)),
            outages,
        }
    }

    fn instance(&self) -> &Instance {
        &self.session.instance
    }

    /// Runs one link after another until the instance is stopped.
    pub(crate) async fn run(&self) {
        let mut backoff = Backoff::default();
        let mut backoff_until: Option<(Moment, Arc<BackendError>)> = None;
        while self.wait_until_wanted(backoff_until.take()).await {
            let left = match self.session.server.transport() {
                Transport::Auto | Transport::StreamableHttp => self.run_streamable_http(&mut backoff).await,
                Transport::Sse => self.run_http_sse(&mut backoff, None).await,
            };
            let left = match left {
                LinkEnd::TryOld { refused } => {
                    // The senders were aborted: a call whose message one of them was sending fails.
                    self.instance()
                        .link_down(&backend_error("the server does not speak Streamable HTTP"));
                    self.run_http_sse(&mut backoff, Some(refused)).await
                }
                left @ (LinkEnd::Stopped | LinkEnd::Out(_) | LinkEnd::Ended | LinkEnd::Refused(_)) => left,
            };
            match left {
                LinkEnd::Stopped | LinkEnd::TryOld { .. } => break,
                LinkEnd::Out(backend_error) => {
                    let pause = self.note_outage(&mut backoff, &backend_error);
                    self.instance().outage(Some(Arc::clone(&pause.1)));
                    backoff_until = Some(pause);
                }
                LinkEnd::Ended => {}
                LinkEnd::Refused(upstream) => self.report_refusal(upstream),
            }
        }
        self.end_session().await;
        self.instance().set_health(Health::Stopped);
        let backend_error = Arc::new(BackendError {
            what: "stopped".into(),
            ..BackendError::default()
        });
        self.instance().link_down(&backend_error);
        self.instance()
            .unavailable(&backend_error, Duration::from_secs(1));
    }

    /// Waits until a call wants the server, and longer if it is known to be out of reach. Returns
    /// `false` if the instance is to stop instead.
    async fn wait_until_wanted(&self, backoff: Option<(Moment, Arc<BackendError>)>) -> bool {
        let instance = self.instance();
        let clock = instance.clock();
        loop {
            if instance.is_stopping() {
                return false;
            }
            if instance.take_restart() {
                return true;
            }
            let until = backoff.as_ref().map(|(until, _)| *until);
            let over = until.is_none_or(|until| until <= clock.now());
            match (&backoff, over) {
                (_, true) if instance.take_link_wanted() => return true,
                (_, true) => {}
                (Some((until, backend_error)), false) if self.outages == Outages::Refuse => {
                    // No call waits for a server that is known to be out of reach.
                    instance.take_link_wanted();
                    instance.unavailable(backend_error, until.since(clock.now()));
                }
                (_, false) => {}
            }
            tokio::select! {
                () = instance.supervisor_wake.notified() => {}
                _ = clock.reach(until), if !over => {}
                now = clock.reach(instance.next_deadline()) => instance.reach_deadline(now),
            }
        }
    }

    /// Runs a link over Streamable HTTP, until it ends.
    async fn run_streamable_http(&self, backoff: &mut Backoff) -> LinkEnd {
        let instance = self.instance();
        let clock = instance.clock();
        instance.set_carrier(Carrier::Posts);
        instance.mirror_arguments();
        instance.link_up(None);
        let senders = Arc::new(SenderPool::new(Arc::clone(&self.session)));
        let mut under_way = UnderWay::new(instance, &senders);
        let mut get_stream: Option<Listening> = None;
        let mut out: Option<(Moment, Arc<BackendError>)> = None;
        let mut alarm = Alarm::new(clock);
        loop {
            if instance.is_stopping() {
                return LinkEnd::Stopped;
            }
            if instance.take_restart() {
                self.lose_session();
                get_stream = None;
                if out.take().is_some() {
                    instance.link_up(None);
                }
            }
            self.check_outage(&mut out);
            if let Some(listening) = under_way.send_waiting(&self.session) {
                get_stream = Some(listening);
            }
            senders.report_success(backoff.failures() > 0);
            let deadline = instance.next_deadline();
            let retry = out
                .as_ref()
                .map(|(until, _)| *until)
                .filter(|until| *until > clock.now());
            tokio::select! {
                // Polled in this order, which costs less than a random one. None of them is ready
                // all the time.
                biased;
                () = instance.outgoing_ready.notified(), if under_way.first.is_none() => {}
                () = senders.any_news() => {
                    let mut old = None;
                    for Returned { end: End { message_info, news }, wait_id } in senders.take_news() {
                        under_way.note_return(wait_id);
                        match news {
                            News::Delivered => backoff.handle_success(),
                            // The call has failed; nothing is left to do.
                            News::Failed => {}
                            News::SessionLost { first } => {
                                if first {
                                    self.lose_session();
                                    get_stream = None;
                                }
                                match message_info {
                                    MessageInfo::Request { id, .. } => instance.forgotten(id),
                                    MessageInfo::Note { .. } => {}
                                }
                            }
                            // The exchange that noticed the loss has caused a new session, or is
                            // about to.
                            News::Withheld => give_back(instance, message_info),
                            News::Unreachable(backend_error) => {
                                instance.outage(Some(Arc::clone(&backend_error)));
                                give_back(instance, message_info);
                                // Other exchanges have connections of their own, and continue.
                                if out.is_none() {
                                    out = Some(self.note_outage(backoff, &backend_error));
                                }
                            }
                            News::NotStreamable { refused } => {
                                instance.outage(None);
                                give_back(instance, message_info);
                                old = Some(refused);
                            }
                        }
                    }
                    if let Some(refused) = old {
                        return LinkEnd::TryOld { refused };
                    }
                }
                () = under_way.order_timeout() => {}
                ended = async { get_stream.as_mut().expect("only polled if there is one").await }, if get_stream.is_some() => {
                    get_stream = None;
                    match ended {
                        StreamEnd::NotOffered => {}
                        StreamEnd::SessionLost { first: true } => self.lose_session(),
                        StreamEnd::SessionLost { first: false } => {}
                    }
                }
                _ = clock.reach(retry) => {}
                () = instance.supervisor_wake.notified() => {}
                now = alarm.ring(deadline) => instance.reach_deadline(now),
            }
        }
    }

    fn lose_session(&self) {
        tracing::info!(destination = %self.instance().destination(), "the server has forgotten the session; handshake repeated");
        self.instance().session_lost();
    }

    /// Refuses calls while the server is out of reach. After the backoff the next call tries it
    /// again.
    fn check_outage(&self, out: &mut Option<(Moment, Arc<BackendError>)>) {
        let instance = self.instance();
        let Some((until, backend_error)) = &*out else {
            return;
        };
        let left = until.since(instance.clock().now());
        if left.is_zero() {
            if instance.take_link_wanted() {
                *out = None;
                instance.link_up(None);
            }
        } else if self.outages == Outages::Refuse && instance.take_link_wanted() {
            instance.unavailable(backend_error, left);
        }
    }

    /// Notes that the server could not be reached. Returns until when it is left alone.
    fn note_outage(
        &self,
        backoff: &mut Backoff,
        backend_error: &BackendError,
    ) -> (Moment, Arc<BackendError>) {
        let pause = backoff.handle_failure();
        let backend_error = Arc::new(BackendError {
            restarts: backoff.failures(),
            ..backend_error.clone()
        });
        tracing::warn!(
            destination = %self.instance().destination(),
            what = %backend_error.what,
            wait_ms = pause.as_millis() as u64,
            "the server is out of reach"
        );
        self.instance()
            .set_health(Health::BackingOff(Arc::clone(&backend_error)));
        (self.instance().clock().now().after(pause), backend_error)
    }

    /// Fails the waiting calls because the server definitely refuses; none of them is retried.
    fn report_refusal(&self, upstream: Arc<Upstream>) {
        let instance = self.instance();
        tracing::warn!(destination = %instance.destination(), what = %upstream.what, "the remote server refused the request");
        instance.set_health(Health::BackingOff(backend_error(&upstream.what)));
        instance.take_link_wanted();
        instance.refused(&Failure::Upstream(upstream));
    }

    /// Returns the error of a server that refused both transports.
    async fn refused_twice(&self, refused: Option<StreamableRefusal>, old: Upstream) -> Arc<Upstream> {
        let server = &self.session.server;
        let (fault, what, looks_wrong) = match (refused, old.fault) {
            // A missing sign-in or an unsafe address is the error that the operator must fix first.
            (_, UpstreamFault::Unauthorized | UpstreamFault::Unsafe) => (old.fault, old.what, false),
            (None, _) => (old.fault, old.what, true),
            (Some(StreamableRefusal { status, text }), _) => {
                let what = format!(
                    "{}; nor is there an event stream of HTTP+SSE",
                    answered(status, text.as_deref())
                );
                (UpstreamFault::Refused, what, true)
            }
        };
        Arc::new(Upstream::new(fault, server.located(&what, looks_wrong).await))
    }

    /// Runs a link over HTTP+SSE. `tried` is the refusal of Streamable HTTP, if that was tried
    /// before.
    async fn run_http_sse(&self, backoff: &mut Backoff, tried: Option<StreamableRefusal>) -> LinkEnd {
        let instance = self.instance();
        let clock = instance.clock();
        let mut stream = tokio::select! {
            opened = http_sse::open(&self.session) => match opened {
                Ok(stream) => stream,
                Err(NotOpened::Out(backend_error)) => return LinkEnd::Out(backend_error),
                Err(NotOpened::Refused(old)) => {
                    return LinkEnd::Refused(Box::pin(self.refused_twice(tried, old)).await);
                }
            },
            () = stopped(instance) => return LinkEnd::Stopped,
        };
        backoff.handle_success();
        self.session.server.learn_transport(Transport::Sse);
        instance.set_carrier(Carrier::Pipe);
        instance.plan_for_old_transport();
        instance.link_up(None);
        let endpoint = Arc::clone(stream.endpoint());
        let mut posts = PostBatch::default();
        let mut writing: Option<Writing> = None;
        // When the next message is sent even if the server has not accepted this one.
        let mut overlap_at: Option<Instant> = None;
        // Messages whose response the server has not begun.
        let mut left_open: FuturesUnordered<Writing> = FuturesUnordered::new();
        let backend_error = loop {
            if instance.is_stopping() {
                return LinkEnd::Stopped;
            }
            if instance.take_restart() {
                break backend_error("restarted by its operator");
            }
            if instance.take_replacement().is_some() {
                break backend_error("the server gave no sign of life");
            }
            if writing.is_none() {
                let post = posts.next().or_else(|| {
                    posts = instance.take_posts();
                    posts.next()
                });
                if let Some(post) = post {
                    let (session, endpoint) = (Arc::clone(&self.session), Arc::clone(&endpoint));
                    overlap_at =
                        http_sse::overlaps_after(post.message_info).map(|wait| Instant::now() + wait);
                    writing = Some(Box::pin(async move {
                        http_sse::write(&session, &endpoint, &post).await
                    }));
                }
            }
            let deadline = instance.next_deadline();
            let overlap = overlap_at.filter(|_| writing.is_some());
            tokio::select! {
                said = stream.next() => match said {
                    Some(message) => {
                        instance.receive(message, None);
                        instance.delivered().await;
                    }
                    None => break backend_error("the server ended its event stream"),
                },
                written = async { writing.as_mut().expect("only polled if there is one").await }, if writing.is_some() => {
                    writing = None;
                    if let Err(backend_error) = written {
                        break backend_error;
                    }
                }
                // Some servers respond to the POST only after their answer, which may need the next
                // message.
                () = async { tokio::time::sleep_until(overlap.expect("only polled if there is one")).await }, if overlap.is_some() => {
                    left_open.extend(writing.take());
                }
                Some(written) = left_open.next(), if !left_open.is_empty() => {
                    if let Err(backend_error) = written {
                        break backend_error;
                    }
                }
                () = instance.outgoing_ready.notified(), if writing.is_none() => {}
                () = instance.supervisor_wake.notified() => {}
                now = clock.reach(deadline) => instance.reach_deadline(now),
            }
        };
        instance.link_down(&backend_error);
        LinkEnd::Ended
    }

    /// Ends the session at the server, if there is one.
    async fn end_session(&self) {
        let negotiated = self.session.negotiated();
        if negotiated.has_session() {
            let outbound = self.session.delete(&negotiated);
            let _ = tokio::time::timeout(END_SESSION_TIMEOUT, self.session.server.send(&outbound)).await;
        }
    }
}

fn backend_error(what: &str) -> Arc<BackendError> {
    Arc::new(BackendError {
        what: what.to_owned(),
        ..BackendError::default()
    })
}

async fn stopped(instance: &Instance) {
    while !instance.is_stopping() {
        instance.supervisor_wake.notified().await;
    }
}

/// Returns a request that was not begun to the queue; a notification is dropped.
fn give_back(instance: &Instance, message_info: MessageInfo) {
    match message_info {
        MessageInfo::Request { id, .. } => instance.returned(id),
        MessageInfo::Note { .. } => {}
    }
}

/// The messages in flight, and those that wait for one of them. As long as none has to wait, the
/// instance hands each client's call to a sender by itself.
struct UnderWay<'a> {
    instance: &'a Instance,
    senders: &'a Arc<SenderPool>,
    /// A notification that the next messages wait for, and for how long.
    first: Option<(WaitId, Pin<Box<tokio::time::Sleep>>)>,
    last_wait_id: u64,
    /// What was written, in its order.
    waiting: PostBatch,
}

impl<'a> UnderWay<'a> {
    fn new(instance: &'a Instance, senders: &'a Arc<SenderPool>) -> Self {
        Self {
            instance,
            senders,
            first: None,
            last_wait_id: 0,
            waiting: PostBatch::default(),
        }
    }

    /// Sends what the multiplexer has written, unless a notification must be delivered first.
    /// Returns the GET stream to read, if a session begins with it.
    fn send_waiting(&mut self, session: &Arc<RemoteSession>) -> Option<Listening> {
        let mut listening = None;
        while self.first.is_none() {
            let Some(post) = self.next_post() else { break };
            let ready = MessageInfo::Note {
                method: Method::Initialized,
            };
            if post.message_info == ready && self.instance.era().changes() == ChangeStyle::Unasked {
                // The GET stream opens first; then `initialized` is sent.
                let (opened, is_open) = oneshot::channel();
                listening = Some(Box::pin(get_stream::listen(Arc::clone(session), opened)) as Listening);
                self.send_first(post, Some(is_open));
            } else {
                self.send(post);
            }
        }
        listening
    }

    fn next_post(&mut self) -> Option<PostRequest> {
        loop {
            if let Some(post) = self.waiting.next() {
                return Some(post);
            }
            self.waiting = self.instance.take_posts_or_lend(self.senders)?;
        }
    }

    fn send(&mut self, post: PostRequest) {
        if let Some(id) = post.cancels {
            if self.senders.abort_request(id) {
                self.instance.undelivered(id, Failure::Cancelled);
            }
            match self.instance.era().cancellation() {
                CancelStyle::Notification => {}
                CancelStyle::EndOfExchange => return,
            }
        }
        match post.message_info {
            MessageInfo::Request { .. }
            // No later message waits for the answer to a question.
            | MessageInfo::Note {
                method: Method::Other,
            } => self.senders.send_post(post),
            MessageInfo::Note { .. } => self.send_first(post, None),
        }
    }

    /// Sends a message that the server must accept before the next one is sent.
    fn send_first(&mut self, post: PostRequest, after: Option<oneshot::Receiver<()>>) {
        self.last_wait_id += 1;
        let wait_id = WaitId(self.last_wait_id);
        self.first = Some((wait_id, Box::pin(tokio::time::sleep(ORDER_TIMEOUT))));
        self.senders.start(SendJob {
            post,
            after,
            wait_id: Some(wait_id),
        });
    }

    /// Notes the end of a delivery; the next messages may have waited for it.
    fn note_return(&mut self, wait_id: Option<WaitId>) {
        self.first.take_if(|(first, _)| Some(*first) == wait_id);
    }

    /// Waits until the next messages have waited long enough.
    async fn order_timeout(&mut self) {
        match &mut self.first {
            Some((_, timeout)) => timeout.as_mut().await,
            None => std::future::pending().await,
        }
        self.first = None;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.instance.close_inlet();
        self.senders.shut_down();
    }
}
