//! One client on stdio: the machine that connects its lines with its session and its modern
//! requests, and the machine's outputs.
//!
//! The reader of lines, the session and the modern requests call the machine through its
//! [`Driver`].

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http::HeaderMap;
use protocol::client_face::stdio::{Counters, Limits, LineClient, ModernRequestKey, Output};
use protocol::exchange::Principal;
use protocol::message::{Kind, Member, Message};
use protocol::method::Method;
use protocol::session::{Accepts, OutgoingLine};
use protocol::time::Moment;
use protocol::version::Version;
use protocol::wire::line::Frame;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::busy_poll::BusyPoll;
use crate::clock::Clock;
use crate::driver::{Driver, Locked, Machine};
use crate::endpoint::{Endpoint, SessionOpen};
use crate::fault_injection;
use crate::frontend::http::refuse_message;
use crate::reply::Refusal;
use crate::session_handle::{Acceptance, LineListener, SessionHandle};
use crate::tasks;

/// How often the health of the server is checked, while a client waits only to learn its era.
const LOOK: Duration = Duration::from_millis(50);

/// One client on a stream of lines.
pub(crate) struct StdioClient {
    pub(super) destination: Arc<Endpoint>,
    clock: Clock,
    driver: Driver<ClientState>,
    /// There is something to write, or nothing will come any more.
    outgoing_ready: Notify,
    /// There may be room for another line, or no request may be open any more.
    capacity: Notify,
    /// The next deadline may be another one.
    deadline_changed: Notify,
    /// The next message is expected at once.
    awake: Notify,
}

struct ClientState {
    client: LineClient,
    busy_poll: BusyPoll,
    session: Option<Arc<SessionHandle>>,
    modern_requests: HashMap<ModernRequestKey, AbortHandle>,
    ended: bool,
}

impl Machine for ClientState {
    type Output = Output;

    fn poll_output(&mut self) -> Option<Output> {
        self.client.poll_output()
    }
}

impl LineListener for StdioClient {
    fn receive(self: Arc<Self>, line: OutgoingLine) {
        self.with(|client, now| client.handle_session_line(now, line));
    }
}

impl std::fmt::Debug for StdioClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StdioClient")
            .field("destination", &self.destination.name)
            .finish_non_exhaustive()
    }
}

impl StdioClient {
    pub(super) fn new(destination: Arc<Endpoint>, clock: Clock, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            destination,
            clock,
            driver: Driver::new(ClientState {
                client: LineClient::new(limits),
                busy_poll: BusyPoll::new(),
                session: None,
                modern_requests: HashMap::new(),
                ended: false,
            }),
            outgoing_ready: Notify::new(),
            capacity: Notify::new(),
            deadline_changed: Notify::new(),
            awake: Notify::new(),
        })
    }

    fn lock(&self) -> Locked<'_, ClientState> {
        self.driver.lock()
    }

    pub(super) fn counters(&self) -> Counters {
        self.lock().client.counters()
    }

    // For the tasks that read and write the lines.

    pub(super) fn take(self: &Arc<Self>, frame: Frame) {
        self.with(|client, now| client.handle_frame(now, frame));
    }

    /// Waits until there is room for another line.
    pub(super) async fn capacity(&self) {
        while !self.lock().client.wants_lines() {
            self.capacity.notified().await;
        }
    }

    /// Waits until no request is open.
    pub(super) async fn all_answered(&self) {
        while self.lock().client.open_requests() > 0 {
            self.capacity.notified().await;
        }
    }

    /// Waits for something to write; `None` when nothing will come any more.
    pub(super) async fn take_outgoing(&self, empty: BytesMut) -> Option<BytesMut> {
        // What was taken before has been written, which may make room.
        let mut empty = self.lock().client.take_outgoing(empty);
        loop {
            self.capacity.notify_one();
            if !empty.is_empty() {
                return Some(empty);
            }
            if self.lock().ended {
                return None;
            }
            self.outgoing_ready.notified().await;
            empty = self.lock().client.take_outgoing(empty);
        }
    }

    /// Reaches the machine's deadlines, for ever.
    pub(super) async fn watch_time(self: &Arc<Self>) {
        loop {
            let Some(deadline) = self.lock().client.next_deadline() else {
                self.deadline_changed.notified().await;
                continue;
            };
            if self.destination.upstream.is_away() {
                self.with(|client, _| client.handle_absence());
                continue;
            }
            let soon = self.clock.now().after(LOOK);
            let now = self.clock.reach(Some(deadline.min(soon))).await;
            self.with(|client, _| client.handle_deadline(now));
        }
    }

    /// Keeps the process awake when that is worth it, for ever.
    pub(super) async fn run_busy_poll(&self) {
        loop {
            self.awake.notified().await;
            while !self.lock().busy_poll.is_over(self.clock.now()) {
                // The process that is to answer may need this processor; then the runtime polls for
                // new lines.
                std::thread::yield_now();
                tokio::task::yield_now().await;
            }
        }
    }

    /// The client has gone. What waits to be written still may be.
    pub(super) fn end(self: &Arc<Self>) {
        self.with(|client, _| client.handle_end());
        self.lock().ended = true;
        self.outgoing_ready.notify_one();
    }

    // For the session and the modern requests.

    pub(super) fn with(self: &Arc<Self>, act: impl FnOnce(&mut LineClient, Moment)) {
        let (is_expecting, has_outgoing, has_deadline) = self.driver.act(
            |state, _| {
                let now = self.clock.now();
                act(&mut state.client, now);
                let calls = state.client.open_requests();
                (
                    state.busy_poll.handle_message(now, calls),
                    state.client.has_outgoing(),
                    state.client.next_deadline().is_some(),
                )
            },
            |output| {
                // The client still receives everything else.
                if catch_unwind(AssertUnwindSafe(|| self.carry_out(output))).is_err() {
                    tracing::error!("panic while serving the client on stdio");
                }
            },
        );
        if is_expecting {
            self.awake.notify_one();
        }
        if has_outgoing {
            self.outgoing_ready.notify_one();
        }
        if has_deadline {
            self.deadline_changed.notify_one();
        }
        self.capacity.notify_one();
    }

    fn carry_out(self: &Arc<Self>, output: Output) {
        match output {
            Output::Open(message) => {
                self.destination.upstream.wake();
                self.open(message);
            }
            Output::Take(message) => self.pass_on(message),
            Output::Close => {
                let session = self.lock().session.take();
                if let Some(handle) = session {
                    self.destination.close(&handle);
                }
            }
            Output::Start {
                modern_request,
                message,
                classified,
            } => {
                // Hosts start a copy only to ask this, and kill it a moment later.
                if message.method() != Method::ServerDiscover {
                    self.destination.upstream.wake();
                }
                let client = Arc::clone(self);
                let task = tasks::spawn("modern request", async move {
                    client
                        .run_modern_request(modern_request, message, classified)
                        .await;
                    client.lock().modern_requests.remove(&modern_request);
                });
                self.lock()
                    .modern_requests
                    .insert(modern_request, task.abort_handle());
            }
            Output::Abandon(modern_request) => {
                let task = self.lock().modern_requests.remove(&modern_request);
                if let Some(task) = task {
                    task.abort();
                }
            }
        }
    }

    fn open(self: &Arc<Self>, message: Message) {
        let is_initialize = message.method() == Method::Initialize;
        let opening = match is_initialize {
            true => SessionOpen::Initialize(message.clone(), Accepts::Both),
            false => SessionOpen::Implicit(Version::ASSUMED),
        };
        let opened = self.destination.open_on_lines(
            Principal::anonymous(),
            &HeaderMap::new(),
            opening,
            Arc::<Self>::clone(self),
        );
        match opened {
            Ok((handle, _)) => {
                self.lock().session = Some(handle);
                if !is_initialize {
                    self.pass_on(message);
                }
            }
            Err(refusal) => {
                let (code, text, data) = refusal.words();
                self.with(|client, now| client.handle_not_opened(now, code, &text, data.as_deref()));
            }
        }
    }

    /// Passes a message to the session, and the immediate answer to the client.
    fn pass_on(self: &Arc<Self>, message: Message) {
        let session = self.lock().session.clone();
        let bytes = message.len();
        let is_request = message.kind() == Kind::Request;
        let id = message.raw_copy(Member::Id);
        let open = self.lock().client.open_requests();
        let take = || match session {
            Some(handle) => {
                fault_injection::maybe_panic(fault_injection::Site::Frontend, message.bytes());
                handle.take(message, Accepts::Both, None).map_err(refuse_message)
            }
            None => Err(Refusal::UnknownSession),
        };
        let taken = match catch_unwind(AssertUnwindSafe(take)) {
            Ok(taken) => taken,
            // The code that contained the panic may have answered already.
            Err(_) if self.lock().client.open_requests() < open => return,
            Err(_) => {
                tracing::error!("a call ended in a panic");
                Err(Refusal::Panicked)
            }
        };
        match taken {
            Ok(Acceptance::Noted | Acceptance::Call(_)) => {}
            Ok(Acceptance::Answered(line)) => {
                self.with(|client, now| client.handle_answered_at_once(now, bytes, &line));
            }
            Err(refusal) if is_request => {
                let line = refusal.body(id.as_deref());
                self.with(|client, now| client.handle_answered_at_once(now, bytes, &line));
            }
            Err(refusal) => tracing::debug!(why = %refusal.text(), "a message of the client was ignored"),
        }
    }
}
