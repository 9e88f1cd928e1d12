//! Servers that are reached over HTTP. A lane's supervisor here takes what the multiplexer has written, line by
//! line, and carries each to the server: as a POST of its own (Streamable HTTP, both eras), or to the endpoint of an
//! event stream (HTTP+SSE of 2024-11-05). What comes back goes to the multiplexer with its origin.
//!
//! It decides nothing about messages; what becomes of one that could not be delivered is decided by
//! `protocol::delivery`, and who waits for what by the multiplexer.

mod beside;
mod couriers;
mod exchange;
mod link;
mod mirror;
mod notices;
mod old_sse;
mod server;
mod signature;
mod wire;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::HeaderMap;
use protocol::delivery::{Bundle, Outage, Parcel, Post, answered};
use protocol::exchange::{Failure, Trouble, Upstream, UpstreamFault};
use protocol::method::Method;
use protocol::multiplexer::Carrier;
use protocol::time::Moment;
use protocol::version::Era;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub(crate) use self::couriers::Couriers;
use self::couriers::{Job, Returned, Ticket};
use self::exchange::{End, News, Refused};
use self::link::Link;
use self::notices::Silence;
use self::old_sse::NotOpened;
pub(crate) use self::server::Server;
pub(crate) use self::wire::certificates;
use crate::clock::Alarm;
use crate::lane::Lane;
use crate::settings::{Outages, Transport};
use crate::status::Health;

/// A notification is taken before the next message is sent, so that the server hears them in order; but
/// nobody waits longer than this for a server that does not take it.
const ORDER_PATIENCE: Duration = Duration::from_secs(5);
/// How long the end of a session may take.
const GOODBYE: Duration = Duration::from_secs(2);

type Writing = Pin<Box<dyn Future<Output = Result<(), Arc<Trouble>>> + Send>>;
type Listening = Pin<Box<dyn Future<Output = Silence> + Send>>;

/// What the supervisor needs to know.
#[derive(Debug)]
pub(crate) struct RemoteLane {
    link: Arc<Link>,
    outages: Outages,
}

/// Why the server is no longer spoken with in this way.
enum Left {
    Stopped,
    /// It cannot be reached.
    Out(Arc<Trouble>),
    /// It was reached, and the conversation has ended: whoever wants it begins another one at once.
    Ended,
    /// It may speak the old transport.
    TryOld {
        refused: Refused,
    },
    /// It was reached, and there is nothing to wait for.
    Refused(Arc<Upstream>),
}

impl RemoteLane {
    pub(crate) fn new(
        server: Arc<Server>,
        lane: Arc<Lane>,
        forwarded: HeaderMap,
        max_message_bytes: usize,
    ) -> Self {
        let outages = server.spec().outages;
        Self {
            link: Arc::new(Link::new(server, lane, forwarded, max_message_bytes)),
            outages,
        }
    }

    fn lane(&self) -> &Lane {
        &self.link.lane
    }

    /// Speaks with the server until the lane is stopped.
    pub(crate) async fn run(&self) {
        let mut outage = Outage::default();
        let mut resting: Option<(Moment, Arc<Trouble>)> = None;
        while self.rest(resting.take()).await {
            let left = match self.link.server.transport() {
                Transport::Auto | Transport::StreamableHttp => self.speak(&mut outage).await,
                Transport::Sse => self.speak_old(&mut outage, None).await,
            };
            let left = match left {
                Left::TryOld { refused } => {
                    // The couriers were sent home: if one of them still carried something, its sender hears of it.
                    self.lane()
                        .link_down(&trouble("the server does not speak Streamable HTTP"));
                    self.speak_old(&mut outage, Some(refused)).await
                }
                left @ (Left::Stopped | Left::Out(_) | Left::Ended | Left::Refused(_)) => left,
            };
            match left {
                Left::Stopped | Left::TryOld { .. } => break,
                Left::Out(trouble) => {
                    let pause = self.note_outage(&mut outage, &trouble);
                    self.lane().outage(Some(Arc::clone(&pause.1)));
                    resting = Some(pause);
                }
                Left::Ended => {}
                Left::Refused(upstream) => self.give_up(upstream),
            }
        }
        self.goodbye().await;
        self.lane().set_health(Health::Stopped);
        let trouble = Arc::new(Trouble {
            what: "stopped".into(),
            ..Trouble::default()
        });
        self.lane().link_down(&trouble);
        self.lane().unavailable(&trouble, Duration::from_secs(1));
    }

    /// Waits until somebody wants the server, and longer if it is known to be out of reach. `false`: the lane is
    /// to stop instead.
    async fn rest(&self, outage: Option<(Moment, Arc<Trouble>)>) -> bool {
        let lane = self.lane();
        let clock = lane.clock();
        loop {
            if lane.is_stopping() {
                return false;
            }
            let until = outage.as_ref().map(|(until, _)| *until);
            let over = until.is_none_or(|until| until <= clock.now());
            match (&outage, over) {
                (_, true) if lane.take_link_wanted() => return true,
                (_, true) => {}
                (Some((until, trouble)), false) if self.outages == Outages::Refuse => {
                    // Nobody waits for what is known not to work.
                    lane.take_link_wanted();
                    lane.unavailable(trouble, until.since(clock.now()));
                }
                (_, false) => {}
            }
            tokio::select! {
                () = lane.look.notified() => {}
                _ = clock.reach(until), if !over => {}
                now = clock.reach(lane.next_deadline()) => lane.reach_deadline(now),
            }
        }
    }

    /// Speaks Streamable HTTP.
    async fn speak(&self, outage: &mut Outage) -> Left {
        let lane = self.lane();
        let clock = lane.clock();
        lane.set_carrier(Carrier::Posts);
        lane.mirror_arguments();
        lane.link_up(None);
        let couriers = Arc::new(Couriers::new(Arc::clone(&self.link)));
        let mut under_way = UnderWay::new(lane, &couriers);
        let mut notices: Option<Listening> = None;
        let mut out: Option<(Moment, Arc<Trouble>)> = None;
        let mut alarm = Alarm::new(clock);
        loop {
            if lane.is_stopping() {
                return Left::Stopped;
            }
            self.heed(&mut out);
            if let Some(listening) = under_way.send_waiting(&self.link) {
                notices = Some(listening);
            }
            couriers.want_success(outage.failures() > 0);
            let deadline = lane.next_deadline();
            let retry = out
                .as_ref()
                .map(|(until, _)| *until)
                .filter(|until| *until > clock.now());
            tokio::select! {
                // In this order, which costs less than a fair one: none of them is ready for ever.
                biased;
                () = lane.write.notified(), if under_way.first.is_none() => {}
                () = couriers.any_news() => {
                    let mut old = None;
                    for Returned { end: End { parcel, news }, ticket } in couriers.take_news() {
                        under_way.note_return(ticket);
                        match news {
                            News::Delivered => outage.handle_success(),
                            // Nobody has to see to it.
                            News::Failed => {}
                            News::SessionLost { first } => {
                                if first {
                                    self.lose_session();
                                    notices = None;
                                }
                                match parcel {
                                    Parcel::Request { id, .. } => lane.forgotten(id),
                                    Parcel::Note { .. } => {}
                                }
                            }
                            // Whoever noticed the loss has seen to a new session, or is about to.
                            News::Withheld => give_back(lane, parcel),
                            News::Unreachable(trouble) => {
                                lane.outage(Some(Arc::clone(&trouble)));
                                give_back(lane, parcel);
                                // What is still under way has connections of its own, and goes on.
                                if out.is_none() {
                                    out = Some(self.note_outage(outage, &trouble));
                                }
                            }
                            News::NotStreamable { refused } => {
                                lane.outage(None);
                                give_back(lane, parcel);
                                old = Some(refused);
                            }
                        }
                    }
                    if let Some(refused) = old {
                        return Left::TryOld { refused };
                    }
                }
                () = under_way.lose_patience() => {}
                silence = async { notices.as_mut().expect("only polled if there is one").await }, if notices.is_some() => {
                    notices = None;
                    match silence {
                        Silence::NotOffered => {}
                        Silence::SessionLost { first: true } => self.lose_session(),
                        Silence::SessionLost { first: false } => {}
                    }
                }
                _ = clock.reach(retry) => {}
                () = lane.look.notified() => {}
                now = alarm.ring(deadline) => lane.reach_deadline(now),
            }
        }
    }

    fn lose_session(&self) {
        tracing::info!(destination = %self.lane().destination(), "the server has forgotten the session; handshake repeated");
        self.lane().session_lost();
    }

    /// While the server is out of reach nobody is kept waiting in vain; when it was left alone long enough, whoever
    /// wants it tries it.
    fn heed(&self, out: &mut Option<(Moment, Arc<Trouble>)>) {
        let lane = self.lane();
        let Some((until, trouble)) = &*out else { return };
        let left = until.since(lane.clock().now());
        if left.is_zero() {
            if lane.take_link_wanted() {
                *out = None;
                lane.link_up(None);
            }
        } else if self.outages == Outages::Refuse && lane.take_link_wanted() {
            lane.unavailable(trouble, left);
        }
    }

    /// The server could not be reached. Gives how long to leave it alone.
    fn note_outage(&self, outage: &mut Outage, trouble: &Trouble) -> (Moment, Arc<Trouble>) {
        let pause = outage.handle_failure();
        let trouble = Arc::new(Trouble {
            restarts: outage.failures(),
            ..trouble.clone()
        });
        tracing::warn!(
            destination = %self.lane().destination(),
            what = %trouble.what,
            wait_ms = pause.as_millis() as u64,
            "the server is out of reach"
        );
        self.lane().set_health(Health::BackingOff(Arc::clone(&trouble)));
        (self.lane().clock().now().after(pause), trouble)
    }

    /// Tells those who wait that the server definitely refuses; none of them is tried for again.
    fn give_up(&self, upstream: Arc<Upstream>) {
        let lane = self.lane();
        tracing::warn!(destination = %lane.destination(), what = %upstream.what, "the server refuses");
        lane.set_health(Health::BackingOff(trouble(&upstream.what)));
        lane.take_link_wanted();
        lane.refused(&Failure::Upstream(upstream));
    }

    /// Returns why neither transport is to be had.
    async fn refused_twice(&self, refused: Option<Refused>, old: Upstream) -> Arc<Upstream> {
        let server = &self.link.server;
        let (fault, what, looks_wrong) = match (refused, old.fault) {
            // Signing in, or a way that is not safe: that is what has to be seen to.
            (_, UpstreamFault::Unauthorized | UpstreamFault::Unsafe) => (old.fault, old.what, false),
            (None, _) => (old.fault, old.what, true),
            (Some(Refused { status, text }), _) => {
                let what = format!(
                    "{}; nor is there an event stream of HTTP+SSE",
                    answered(status, text.as_deref())
                );
                (UpstreamFault::Refused, what, true)
            }
        };
        Arc::new(Upstream::new(fault, server.located(&what, looks_wrong).await))
    }

    /// Speaks HTTP+SSE. `tried`: Streamable HTTP was refused in this way.
    async fn speak_old(&self, outage: &mut Outage, tried: Option<Refused>) -> Left {
        let lane = self.lane();
        let clock = lane.clock();
        let mut stream = tokio::select! {
            opened = old_sse::open(&self.link) => match opened {
                Ok(stream) => stream,
                Err(NotOpened::Out(trouble)) => return Left::Out(trouble),
                Err(NotOpened::Refused(old)) => {
                    return Left::Refused(Box::pin(self.refused_twice(tried, old)).await);
                }
            },
            () = stopped(lane) => return Left::Stopped,
        };
        outage.handle_success();
        self.link.server.settle(Transport::Sse);
        lane.set_carrier(Carrier::Pipe);
        lane.plan_for_old_transport();
        lane.link_up(None);
        let endpoint = Arc::clone(stream.endpoint());
        let mut posts = Bundle::default();
        let mut writing: Option<Writing> = None;
        // When the next message is sent though this one is not taken yet.
        let mut overlap_at: Option<Instant> = None;
        // Messages whose response the server has not begun.
        let mut left_open: FuturesUnordered<Writing> = FuturesUnordered::new();
        let trouble = loop {
            if lane.is_stopping() {
                return Left::Stopped;
            }
            if lane.take_replacement().is_some() {
                break trouble("the server gave no sign of life");
            }
            if writing.is_none() {
                let post = posts.next().or_else(|| {
                    posts = lane.take_posts();
                    posts.next()
                });
                if let Some(post) = post {
                    let (link, endpoint) = (Arc::clone(&self.link), Arc::clone(&endpoint));
                    overlap_at = old_sse::overlaps_after(post.parcel).map(|wait| Instant::now() + wait);
                    writing = Some(Box::pin(
                        async move { old_sse::write(&link, &endpoint, &post).await },
                    ));
                }
            }
            let deadline = lane.next_deadline();
            let overlap = overlap_at.filter(|_| writing.is_some());
            tokio::select! {
                said = stream.next() => match said {
                    Some(message) => lane.hear(message, None),
                    None => break trouble("the server ended its event stream"),
                },
                written = async { writing.as_mut().expect("only polled if there is one").await }, if writing.is_some() => {
                    writing = None;
                    if let Err(trouble) = written {
                        break trouble;
                    }
                }
                // Without it a server that responds when it has answered could be sent nothing meanwhile.
                () = async { tokio::time::sleep_until(overlap.expect("only polled if there is one")).await }, if overlap.is_some() => {
                    left_open.extend(writing.take());
                }
                Some(written) = left_open.next(), if !left_open.is_empty() => {
                    if let Err(trouble) = written {
                        break trouble;
                    }
                }
                () = lane.write.notified(), if writing.is_none() => {}
                () = lane.look.notified() => {}
                now = clock.reach(deadline) => lane.reach_deadline(now),
            }
        };
        lane.link_down(&trouble);
        Left::Ended
    }

    /// Ends the session at the server, if there is one.
    async fn goodbye(&self) {
        let agreed = self.link.agreed();
        if agreed.has_session() {
            let outbound = self.link.delete(&agreed);
            let _ = tokio::time::timeout(GOODBYE, self.link.server.send(&outbound)).await;
        }
    }
}

fn trouble(what: &str) -> Arc<Trouble> {
    Arc::new(Trouble {
        what: what.to_owned(),
        ..Trouble::default()
    })
}

async fn stopped(lane: &Lane) {
    while !lane.is_stopping() {
        lane.look.notified().await;
    }
}

/// A message that was not begun waits once more; what nobody waits for is gone.
fn give_back(lane: &Lane, parcel: Parcel) {
    match parcel {
        Parcel::Request { id, .. } => lane.returned(id),
        Parcel::Note { .. } => {}
    }
}

/// The messages that are on their way, and those that wait for one of them. As long as none has to wait, the lane gives
/// each client's call to a courier without asking here.
struct UnderWay<'a> {
    lane: &'a Lane,
    couriers: &'a Arc<Couriers>,
    /// A notification that the next messages wait for, and for how long.
    first: Option<(Ticket, Pin<Box<tokio::time::Sleep>>)>,
    tickets: u64,
    /// What was written, in its order.
    waiting: Bundle,
}

impl<'a> UnderWay<'a> {
    fn new(lane: &'a Lane, couriers: &'a Arc<Couriers>) -> Self {
        Self {
            lane,
            couriers,
            first: None,
            tickets: 0,
            waiting: Bundle::default(),
        }
    }

    /// Sends what the multiplexer has written, unless something has to be taken first. Gives what is to be listened
    /// to, if a session begins with it.
    fn send_waiting(&mut self, link: &Arc<Link>) -> Option<Listening> {
        let mut listening = None;
        while self.first.is_none() {
            let Some(post) = self.next_post() else { break };
            let ready = Parcel::Note {
                method: Method::Initialized,
            };
            if post.parcel == ready && self.lane.era() == Era::Legacy {
                // It listens first, and then says that the client is ready.
                let (opened, is_open) = oneshot::channel();
                listening = Some(Box::pin(notices::listen(Arc::clone(link), opened)) as Listening);
                self.send_first(post, Some(is_open));
            } else {
                self.send(post);
            }
        }
        listening
    }

    fn next_post(&mut self) -> Option<Post> {
        loop {
            if let Some(post) = self.waiting.next() {
                return Some(post);
            }
            self.waiting = self.lane.take_posts_or_lend(self.couriers)?;
        }
    }

    fn send(&mut self, post: Post) {
        if let Some(id) = post.cancels {
            if self.couriers.call_back(id) {
                self.lane.undelivered(id, Failure::Cancelled);
            }
            if self.lane.era() == Era::Modern {
                // The end of the exchange is the cancellation.
                return;
            }
        }
        match post.parcel {
            Parcel::Request { .. }
            // The answer to a question is waited for by nobody who speaks after it.
            | Parcel::Note {
                method: Method::Other,
            } => self.couriers.carry(post),
            Parcel::Note { .. } => self.send_first(post, None),
        }
    }

    /// Sends something that is to be taken before what follows.
    fn send_first(&mut self, post: Post, after: Option<oneshot::Receiver<()>>) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.first = Some((ticket, Box::pin(tokio::time::sleep(ORDER_PATIENCE))));
        self.couriers.start(Job {
            post,
            after,
            ticket: Some(ticket),
        });
    }

    /// Somebody who was waited for has come back, or somebody else.
    fn note_return(&mut self, ticket: Option<Ticket>) {
        self.first.take_if(|(first, _)| Some(*first) == ticket);
    }

    /// Comes back when what follows has waited long enough.
    async fn lose_patience(&mut self) {
        match &mut self.first {
            Some((_, patience)) => patience.as_mut().await,
            None => std::future::pending().await,
        }
        self.first = None;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.lane.close_inlet();
        self.couriers.dismiss();
    }
}
