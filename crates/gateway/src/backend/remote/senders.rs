//! Sends messages to a remote server, each in a task of its own.
//!
//! The caller starts the task, which saves waking the supervisor. The supervisor is woken only for
//! outcomes that it must handle; a plain delivery is none.
//!
//! The tasks decide nothing: neither what may be sent now, nor what becomes of a message that could
//! not be delivered.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::{Mutex, MutexGuard};
use protocol::backend_face::WireId;
use protocol::delivery::{MessageInfo, PostRequest};
use protocol::exchange::{Failure, Upstream};
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::exchange::{self, End, News};
use super::remote_session::RemoteSession;
use crate::fault_injection;
use crate::instance::MessageInlet;
use crate::tasks;

/// How long `initialized` waits for the GET stream to open. The server may send messages as soon as
/// it receives `initialized`, so the stream is opened first.
const STREAM_OPEN_TIMEOUT: Duration = Duration::from_millis(300);

/// One message to send.
#[derive(Debug)]
pub(super) struct SendJob {
    pub(super) post: PostRequest,
    /// The task waits for this before it sends, though not for long.
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

/// The messages of one instance that are being sent.
#[derive(Debug)]
pub(crate) struct Senders {
    session: Arc<RemoteSession>,
    state: Mutex<State>,
    /// Notified when `returned` has an outcome.
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By number, in the order of their start.
    sending: FxHashMap<u64, Sending>,
    started: u64,
    returned: Vec<Returned>,
    /// Success is reported too: the server was unreachable before.
    wants_success: bool,
    closed: bool,
}

/// A message that is being sent.
#[derive(Debug)]
struct Sending {
    request_id: Option<WireId>,
    task: AbortHandle,
}

impl Senders {
    pub(super) fn new(session: Arc<RemoteSession>) -> Self {
        Self {
            session,
            state: Mutex::default(),
            news: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
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
        let request_id = match job.post.message_info {
            MessageInfo::Request { id, .. } => Some(id),
            MessageInfo::Note { .. } => None,
        };
        // Held until the task is noted, so that its end finds it.
        let mut state = self.state();
        if state.closed {
            // The code that closed it has failed its call.
            return;
        }
        let number = state.started;
        state.started += 1;
        let senders = Arc::clone(self);
        let task = tasks::spawn("sender", async move {
            let wait_id = job.wait_id;
            let end = senders.run_job(job).await;
            senders.receive(number, end, wait_id);
        });
        let task = task.abort_handle();
        state.sending.insert(number, Sending { request_id, task });
    }

    /// Aborts the task that sends this request. Returns whether there was one.
    pub(super) fn abort_request(&self, id: WireId) -> bool {
        let mut state = self.state();
        let is_wanted = |_: &u64, sending: &mut Sending| sending.request_id == Some(id);
        let mut aborted = false;
        for (_, sending) in state.sending.extract_if(is_wanted) {
            sending.task.abort();
            aborted = true;
        }
        aborted
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

    /// Aborts everything that is being sent.
    pub(super) fn shut_down(&self) {
        let mut state = self.state();
        state.closed = true;
        for (_, sending) in state.sending.drain() {
            sending.task.abort();
        }
    }

    /// Notes the end of a job.
    fn receive(&self, number: u64, end: End, wait_id: Option<WaitId>) {
        let mut state = self.state();
        state.sending.remove(&number);
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
    }

    async fn run_job(&self, job: SendJob) -> End {
        if let Some(after) = job.after {
            // Boxed, since it is rare: no task keeps memory for it.
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

    /// A task has panicked: it is unknown how much was sent.
    fn note_panic(&self, message_info: MessageInfo) {
        let instance = &self.session.instance;
        tracing::error!(destination = %instance.destination(), ?message_info, "a message was lost in a panic");
        if let MessageInfo::Request { id, .. } = message_info {
            let what = "internal error of the gateway; its log has the details";
            instance.undelivered(id, Failure::Upstream(Arc::new(Upstream::lost(what))));
        }
    }
}

impl MessageInlet for Senders {
    fn send(self: Arc<Self>, post: PostRequest) {
        self.send_post(post);
    }
}
