//! A pool of worker tasks that send messages to a remote server, one message at a time each.
//!
//! The caller hands each message to an idle worker, which saves waking the supervisor. A worker
//! that is done waits for the next message, which saves spawning a task. The supervisor is woken
//! only for outcomes that it must handle; a plain delivery is none.
//!
//! Workers decide nothing: neither what may be sent now, nor what becomes of a message that could
//! not be delivered.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::{Mutex, MutexGuard};
use protocol::backend_face::WireId;
use protocol::delivery::{MessageInfo, PostRequest};
use protocol::exchange::{Failure, Upstream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::exchange::{self, End, News};
use super::remote_session::RemoteSession;
use crate::fault_injection;
use crate::instance::MessageInlet;
use crate::tasks;

/// The largest number of idle workers. More are left only after a burst, which spawns them quickly
/// again.
const MAX_IDLE: usize = 64;
/// How long `initialized` waits for the GET stream to open. The server may send messages as soon as
/// it receives `initialized`, so the stream is opened first.
const STREAM_OPEN_TIMEOUT: Duration = Duration::from_millis(300);

/// One message for a worker.
#[derive(Debug)]
pub(super) struct SendJob {
    pub(super) post: PostRequest,
    /// The worker waits for this before it sends, though not for long.
    pub(super) after: Option<oneshot::Receiver<()>>,
    /// The supervisor waits for the outcome, even if it is a plain delivery.
    pub(super) wait_id: Option<WaitId>,
}

/// Identifies a message whose outcome the supervisor waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitId(pub(super) u64);

/// An outcome that the supervisor must handle.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) end: End,
    pub(super) wait_id: Option<WaitId>,
}

/// All workers of one instance.
#[derive(Debug)]
pub(crate) struct SenderPool {
    session: Arc<RemoteSession>,
    state: Mutex<PoolState>,
    /// Notified when `returned` has an outcome.
    news: Notify,
    /// The runtime of the supervisor. Callers may be on other threads.
    runtime: Handle,
}

#[derive(Debug, Default)]
struct PoolState {
    workers: Vec<(Arc<Worker>, AbortHandle)>,
    idle: Vec<Arc<Worker>>,
    returned: Vec<Returned>,
    /// Success is reported too: the server was unreachable before.
    wants_success: bool,
    closed: bool,
}

impl SenderPool {
    /// Makes a pool whose workers run on the current runtime.
    pub(super) fn new(session: Arc<RemoteSession>) -> Self {
        Self {
            session,
            state: Mutex::default(),
            news: Notify::new(),
            runtime: Handle::current(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }

    /// Sends a message that only its call waits for.
    pub(super) fn send_post(self: &Arc<Self>, post: PostRequest) {
        self.start(SendJob {
            post,
            after: None,
            wait_id: None,
        });
    }

    pub(super) fn start(self: &Arc<Self>, job: SendJob) {
        let mut state = self.state();
        if state.closed {
            // The code that closed the pool has failed its call.
            return;
        }
        if let Some(worker) = state.idle.pop() {
            worker.assign(job);
            return;
        }
        let worker = Arc::new(Worker::default());
        worker.assign(job);
        let working = work(Arc::clone(self), Arc::clone(&worker));
        let task = tasks::spawn_on(Some(&self.runtime), "sender", working);
        state.workers.push((worker, task.abort_handle()));
    }

    /// Aborts the worker that sends this request. Returns whether there was one.
    pub(super) fn abort_request(&self, id: WireId) -> bool {
        let mut state = self.state();
        let found = state
            .workers
            .iter()
            .position(|(worker, _)| worker.abort_request(id));
        // The worker is lost; that happens rarely enough.
        found.map(|at| state.workers.swap_remove(at).1.abort()).is_some()
    }

    /// Waits until an exchange may have ended that the supervisor must know of.
    pub(super) async fn any_news(&self) {
        self.news.notified().await;
    }

    pub(super) fn take_news(&self) -> Vec<Returned> {
        std::mem::take(&mut self.state().returned)
    }

    /// Sets whether success is reported.
    pub(super) fn report_success(&self, wanted: bool) {
        self.state().wants_success = wanted;
    }

    /// Aborts all workers, with what they send.
    pub(super) fn shut_down(&self) {
        let mut state = self.state();
        state.closed = true;
        state.idle.clear();
        for (_, task) in state.workers.drain(..) {
            task.abort();
        }
    }

    /// Notes the end of a job. Returns whether the worker stays.
    fn receive(&self, worker: &Arc<Worker>, end: End, wait_id: Option<WaitId>) -> bool {
        let mut state = self.state();
        let is_aborted = worker.handle_done();
        let is_news = wait_id.is_some()
            || match end.news {
                News::Delivered => state.wants_success,
                // The waiting call has failed.
                News::Failed => false,
                News::Unreachable(_)
                | News::SessionLost { .. }
                | News::Withheld
                | News::NotStreamable { .. } => true,
            };
        if is_news {
            state.returned.push(Returned { end, wait_id });
            self.news.notify_one();
        }
        // Another thread may abort a worker in its last steps: it must get no further message.
        let stays = !is_aborted && !state.closed && state.idle.len() < MAX_IDLE;
        match stays {
            true => state.idle.push(Arc::clone(worker)),
            false => state.workers.retain(|(known, _)| !Arc::ptr_eq(known, worker)),
        }
        stays
    }

    async fn run_job(&self, job: SendJob) -> End {
        if let Some(after) = job.after {
            // Boxed, since it is rare: no worker keeps memory for it.
            let _ = Box::pin(tokio::time::timeout(STREAM_OPEN_TIMEOUT, after)).await;
        }
        let message_info = job.post.message_info;
        let sending = async {
            fault_injection::maybe_panic(fault_injection::Site::Sender, &job.post.line);
            exchange::send(&self.session, job.post).await
        };
        match AssertUnwindSafe(sending).catch_unwind().await {
            Ok(end) => end,
            Err(_) => {
                self.note_panic(message_info);
                End {
                    message_info,
                    news: News::Failed,
                }
            }
        }
    }

    /// A worker has panicked: it is unknown how much was sent.
    fn note_panic(&self, message_info: MessageInfo) {
        let instance = &self.session.instance;
        tracing::error!(destination = %instance.destination(), ?message_info, "a message was lost in a panic");
        if let MessageInfo::Request { id, .. } = message_info {
            let what = "internal error of the gateway; its log has the details";
            instance.undelivered(id, Failure::Upstream(Arc::new(Upstream::lost(what))));
        }
    }
}

impl MessageInlet for SenderPool {
    fn send(self: Arc<Self>, post: PostRequest) {
        self.send_post(post);
    }
}

async fn work(senders: Arc<SenderPool>, me: Arc<Worker>) {
    loop {
        let job = me.next_job().await;
        let wait_id = job.wait_id;
        let end = senders.run_job(job).await;
        if !senders.receive(&me, end, wait_id) {
            return;
        }
    }
}

/// One worker.
#[derive(Debug, Default)]
struct Worker {
    slot: Mutex<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    job: Option<SendJob>,
    /// The request that is assigned or being sent.
    request_id: Option<WireId>,
    is_aborted: bool,
    waker: Option<Waker>,
}

impl Worker {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock()
    }

    fn assign(&self, job: SendJob) {
        let mut slot = self.slot();
        slot.request_id = match job.post.message_info {
            MessageInfo::Request { id, .. } => Some(id),
            MessageInfo::Note { .. } => None,
        };
        slot.job = Some(job);
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn next_job(&self) -> SendJob {
        poll_fn(|context| {
            let mut slot = self.slot();
            match slot.job.take() {
                Some(job) => Poll::Ready(job),
                None => {
                    slot.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Notes that the worker is aborted, if it has this request. Returns whether it has.
    fn abort_request(&self, id: WireId) -> bool {
        let mut slot = self.slot();
        let has_it = slot.request_id == Some(id);
        slot.is_aborted |= has_it;
        has_it
    }

    /// Notes that the request has ended. Returns whether the worker is aborted.
    fn handle_done(&self) -> bool {
        let mut slot = self.slot();
        slot.request_id = None;
        slot.is_aborted
    }
}
