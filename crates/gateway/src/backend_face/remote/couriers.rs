//! Couriers: the tasks that carry messages to a remote server, one message at a time each.
//!
//! Whoever brings a message gives it to a courier himself, so that nobody else has to be woken for it, and a courier that
//! has come back waits for the next message, so that none has to be hired for it. The supervisor hears of those
//! that came back with something to see to; what was simply delivered, nearly all, is no news.
//!
//! They decide nothing: neither what may be sent now, nor what becomes of what could not be delivered.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::{Mutex, MutexGuard};
use protocol::backend_face::WireId;
use protocol::delivery::{Parcel, Post};
use protocol::exchange::{Failure, Upstream};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::exchange::{self, End, News};
use super::link::Link;
use crate::lane::MessageInlet;
use crate::mishap;
use crate::tasks;

/// More than this wait for work only after a burst, which hires new ones faster than anyone could count.
const MAX_IDLE: usize = 64;
/// The server may have something to say as soon as it is told that the client is ready, so the stream for that is
/// opened first; but a server that is slow to open it is not waited for.
const STREAM_PATIENCE: Duration = Duration::from_millis(300);

/// What a courier is given.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) post: Post,
    /// What it waits for before it leaves, though not for long.
    pub(super) after: Option<oneshot::Receiver<()>>,
    /// Somebody waits for its return, whatever it brings.
    pub(super) ticket: Option<Ticket>,
}

/// Tells those apart who are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(pub(super) u64);

/// A courier that came back with news.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) end: End,
    pub(super) ticket: Option<Ticket>,
}

/// All couriers of one lane.
#[derive(Debug)]
pub(crate) struct Couriers {
    link: Arc<Link>,
    office: Mutex<Office>,
    /// Somebody has come back with news.
    news: Notify,
}

#[derive(Debug, Default)]
struct Office {
    staff: Vec<(Arc<Courier>, AbortHandle)>,
    idle: Vec<Arc<Courier>>,
    returned: Vec<Returned>,
    /// The server was out of reach: that something was delivered is news again.
    wants_success: bool,
    closed: bool,
}

impl Couriers {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            office: Mutex::default(),
            news: Notify::new(),
        }
    }

    fn office(&self) -> MutexGuard<'_, Office> {
        self.office.lock()
    }

    /// Has a message carried that nobody waits for but its sender.
    pub(super) fn carry(self: &Arc<Self>, post: Post) {
        self.start(Job {
            post,
            after: None,
            ticket: None,
        });
    }

    pub(super) fn start(self: &Arc<Self>, job: Job) {
        let mut office = self.office();
        if office.closed {
            // Its sender hears from whoever closed the office.
            return;
        }
        if let Some(courier) = office.idle.pop() {
            courier.give(job);
            return;
        }
        let courier = Arc::new(Courier::default());
        courier.give(job);
        let task = tasks::spawn("courier", work(Arc::clone(self), Arc::clone(&courier)));
        office.staff.push((courier, task.abort_handle()));
    }

    /// Calls back whoever carries this request, and with him the request. Gives whether somebody did.
    pub(super) fn call_back(&self, id: WireId) -> bool {
        let mut office = self.office();
        let found = office
            .staff
            .iter()
            .position(|(courier, _)| courier.carries() == Some(id));
        // He does not come back; that happens rarely enough.
        found.map(|at| office.staff.swap_remove(at).1.abort()).is_some()
    }

    /// Comes back when there may be news.
    pub(super) async fn any_news(&self) {
        self.news.notified().await;
    }

    pub(super) fn take_news(&self) -> Vec<Returned> {
        std::mem::take(&mut self.office().returned)
    }

    /// Whether it is news that something was delivered.
    pub(super) fn want_success(&self, wanted: bool) {
        self.office().wants_success = wanted;
    }

    /// Everyone goes home, whatever they carry.
    pub(super) fn dismiss(&self) {
        let mut office = self.office();
        office.closed = true;
        office.idle.clear();
        for (_, task) in office.staff.drain(..) {
            task.abort();
        }
    }

    /// Takes back a courier. Gives whether he stays.
    fn receive(&self, courier: &Arc<Courier>, end: End, ticket: Option<Ticket>) -> bool {
        let mut office = self.office();
        courier.set_down();
        let is_news = ticket.is_some()
            || match end.news {
                News::Delivered => office.wants_success,
                // Whoever waited knows.
                News::Failed => false,
                News::Unreachable(_)
                | News::SessionLost { .. }
                | News::Withheld
                | News::NotStreamable { .. } => true,
            };
        if is_news {
            office.returned.push(Returned { end, ticket });
            self.news.notify_one();
        }
        let stays = !office.closed && office.idle.len() < MAX_IDLE;
        match stays {
            true => office.idle.push(Arc::clone(courier)),
            false => office.staff.retain(|(known, _)| !Arc::ptr_eq(known, courier)),
        }
        stays
    }

    async fn bring(&self, job: Job) -> End {
        if let Some(after) = job.after {
            // Rare, so that no courier has room for it.
            let _ = Box::pin(tokio::time::timeout(STREAM_PATIENCE, after)).await;
        }
        let parcel = job.post.parcel;
        let carrying = async {
            mishap::perhaps(mishap::Place::Courier, &job.post.line);
            exchange::carry(&self.link, job.post).await
        };
        match AssertUnwindSafe(carrying).catch_unwind().await {
            Ok(end) => end,
            Err(_) => {
                self.note_panic(parcel);
                End {
                    parcel,
                    news: News::Failed,
                }
            }
        }
    }

    /// A courier has panicked on his way: nobody knows how far he came.
    fn note_panic(&self, parcel: Parcel) {
        let lane = &self.link.lane;
        tracing::error!(destination = %lane.destination(), ?parcel, "a message was lost in a panic");
        if let Parcel::Request { id, .. } = parcel {
            let what = "internal error of the gateway; its log has the details";
            lane.undelivered(id, Failure::Upstream(Arc::new(Upstream::lost(what))));
        }
    }
}

impl MessageInlet for Couriers {
    fn send(self: Arc<Self>, post: Post) {
        self.carry(post);
    }
}

async fn work(couriers: Arc<Couriers>, me: Arc<Courier>) {
    loop {
        let job = me.next_job().await;
        let ticket = job.ticket;
        let end = couriers.bring(job).await;
        if !couriers.receive(&me, end, ticket) {
            return;
        }
    }
}

/// One of them.
#[derive(Debug, Default)]
struct Courier {
    bag: Mutex<Bag>,
}

#[derive(Debug, Default)]
struct Bag {
    job: Option<Job>,
    /// The request that is in his hands or his bag.
    carries: Option<WireId>,
    waker: Option<Waker>,
}

impl Courier {
    fn bag(&self) -> MutexGuard<'_, Bag> {
        self.bag.lock()
    }

    fn give(&self, job: Job) {
        let mut bag = self.bag();
        bag.carries = match job.post.parcel {
            Parcel::Request { id, .. } => Some(id),
            Parcel::Note { .. } => None,
        };
        bag.job = Some(job);
        let waker = bag.waker.take();
        drop(bag);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn next_job(&self) -> Job {
        poll_fn(|context| {
            let mut bag = self.bag();
            match bag.job.take() {
                Some(job) => Poll::Ready(job),
                None => {
                    bag.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn carries(&self) -> Option<WireId> {
        self.bag().carries
    }

    fn set_down(&self) {
        self.bag().carries = None;
    }
}
