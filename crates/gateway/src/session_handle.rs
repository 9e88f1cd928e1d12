//! The handle of a session: its machine, the tasks that wait for it, and the instance it uses.
//!
//! There is no task behind a session. The connection of a client and the reader of a child call its
//! machine directly, through its [`Driver`].

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cluster::registry::Touch;
use parking_lot::Mutex;
use protocol::client_face::legacy;
use protocol::eviction::Usage;
use protocol::exchange::{Ask, CallKey, Client, Failure, Principal, SessionKey, Tell};
use protocol::message::{Message, Written};
use protocol::session::replay::StreamKey;
use protocol::session::{
    self, Accepted, Accepts, Answer, CallRecord, OutgoingLine, Output, Reader, Reading, Rejection, Session,
    StreamRefusal, TOKEN_MARK,
};
use protocol::time::Moment;
use protocol::vec_map::VecMap;
use protocol::version::Era;

use crate::audit::SessionHash;
use crate::buffered::{Buffered, KeepsEvents, KeptEvents, ReportedEvents};
use crate::clock::Clock;
use crate::conversation_handle::AskTarget;
use crate::driver::{Driver, Locked, Machine, Outputs};
use crate::guard::limits::Permit;
use crate::guard::rate::Allowance;
use crate::instance::{Instance, InstanceUser, Reservation};
use crate::metrics::{self, DestinationMetrics};
use crate::record::{self, Ending, Observed, Record, Recorder, Steps, Subject};
use crate::reply;
use crate::session_store::RecordHandle;
use crate::status::{ClientName, SessionStatus};

/// A client that reads lines. It is given everything that its session has for it.
pub(crate) trait LineListener: Send + Sync {
    fn receive(self: Arc<Self>, line: OutgoingLine);
}

/// One client's session.
pub(crate) struct SessionHandle {
    key: SessionKey,
    id: String,
    hash: SessionHash,
    principal: String,
    /// The common beginning of its audit records, where there is an audit log.
    composed: Option<Box<str>>,
    /// What the session was opened on.
    target: AskTarget,
    /// The instance that it has moved to since. A session moves at most once: the second one is its
    /// principal's own.
    moved_to: OnceLock<Arc<Instance>>,
    is_moving: AtomicBool,
    clock: Clock,
    opened: Moment,
    recorder: Arc<Recorder>,
    pub(crate) metrics: Arc<DestinationMetrics>,
    /// What the session has used of its rate limit.
    pub(crate) requests: Allowance,
    /// The session's permit, until it ends.
    permit: Mutex<Option<Permit>>,
    /// The client on stdio, which receives all messages of the session.
    listener: Option<Arc<dyn LineListener>>,
    /// The events that it keeps, as reported to the gateway's budget.
    events: ReportedEvents,
    /// Its record, if the session is to outlive this process.
    record: OnceLock<Box<RecordHandle>>,
    driver: Driver<SessionState>,
}

struct SessionState {
    session: Session,
    wakers: VecMap<StreamKey, Waiting>,
    /// The permits of open calls.
    permits: VecMap<CallKey, Permit>,
}

/// A task that waits for more of a stream.
struct Waiting {
    /// None while the answer may still be no stream.
    reader: Option<Reader>,
    waker: Waker,
}

impl std::fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionHandle")
            .field("session", &self.hash)
            .finish_non_exhaustive()
    }
}

/// What is to be done after the lock.
enum SessionOrder {
    Wake(Waker),
    Ask(Ask),
    /// Something for a client that reads lines.
    SendLine(OutgoingLine),
    /// A call has ended, and returns its permit.
    Ended(Box<CallRecord>, Option<Permit>),
    /// The client has set something that its record must have.
    WriteState(Box<protocol::exchange::SessionState>),
    /// The events that are kept have changed enough to be reported.
    Report(KeptEvents),
}

impl SessionHandle {
    pub(crate) fn new(
        id: String,
        destination: Arc<str>,
        session: Session,
        target: AskTarget,
        clock: Clock,
        recorder: Arc<Recorder>,
        listener: Option<Arc<dyn LineListener>>,
    ) -> Self {
        let hash = SessionHash::of(&id);
        let principal = session.client().principal.as_str().to_owned();
        let composed = recorder
            .is_audited()
            .then(|| record::compose(&destination, hash, &principal));
        Self {
            key: session.key(),
            hash,
            principal,
            composed,
            id,
            metrics: Arc::clone(target.metrics()),
            target,
            moved_to: OnceLock::new(),
            is_moving: AtomicBool::new(false),
            clock,
            opened: clock.now(),
            recorder,
            requests: Allowance::default(),
            permit: Mutex::default(),
            listener,
            events: ReportedEvents::default(),
            record: OnceLock::new(),
            driver: Driver::new(SessionState {
                session,
                wakers: VecMap::default(),
                permits: VecMap::default(),
            }),
        }
    }

    /// Counts the events of this session in the gateway's budget.
    pub(crate) fn count_events(self: &Arc<Self>, buffered: &Arc<Buffered>) {
        let keeper: Weak<dyn KeepsEvents> = Arc::downgrade(self) as _;
        self.events.count(keeper, buffered);
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Sets the record of the session, so that it outlives this process.
    pub(crate) fn keep(&self, record: RecordHandle) {
        self.lock().session.keep_state();
        // A session has one record.
        let _ = self.record.set(Box::new(record));
    }

    /// Returns the handle of the session's record; `None` for a session that ends with this
    /// process.
    pub(crate) fn kept(&self) -> Option<&RecordHandle> {
        self.record.get().map(|record| &**record)
    }

    /// Returns the note of the session's use, if it is kept and one is due.
    pub(crate) fn due_touch(&self, now: Moment) -> Option<Touch> {
        let record = self.kept()?;
        let idle_since = self.lock().session.idle_since();
        record.due_touch(idle_since.map_or(Duration::ZERO, |since| now.since(since)))
    }

    pub(crate) fn hash(&self) -> SessionHash {
        self.hash
    }

    pub(crate) fn principal(&self) -> &str {
        &self.principal
    }

    fn lock(&self) -> Locked<'_, SessionState> {
        self.driver.lock()
    }

    /// Calls the machine, and carries out what comes of it.
    fn act<T>(&self, now: Moment, act: impl FnOnce(&mut SessionState, &mut Outputs<SessionOrder>) -> T) -> T {
        let acted = self.driver.act(
            |state, orders| {
                let acted = act(state, orders);
                if self.events.is_due(state.session.kept_bytes()) {
                    state.poll_outputs(orders);
                    orders.push(SessionOrder::Report(state.kept_events()));
                }
                acted
            },
            |order| self.carry_out(now, order),
        );
        self.metrics.idle.note_change();
        acted
    }

    pub(crate) fn key(&self) -> SessionKey {
        self.key
    }

    fn ask(&self, now: Moment, ask: Ask) {
        match self.moved_to.get() {
            Some(instance) => instance.ask(now, ask),
            None => self.target.ask(now, ask),
        }
    }

    /// Returns whether an instance that it uses is one principal's, so that it may have to leave.
    pub(crate) fn uses_owned_instance(&self) -> bool {
        match (self.moved_to.get(), &self.target) {
            (Some(instance), _) | (None, AskTarget::Instance(instance)) => instance.is_owned(),
            (None, AskTarget::Conversation(conversation)) => conversation.is_owned(),
        }
    }

    /// Returns whether a call waits to be sent.
    pub(crate) fn keeps_waiting(&self) -> bool {
        match (self.moved_to.get(), &self.target) {
            (Some(instance), _) | (None, AskTarget::Instance(instance)) => instance.keeps_waiting(self.key),
            (None, AskTarget::Conversation(conversation)) => conversation.keeps_waiting(),
        }
    }

    /// Moves the session from an instance that is another principal's to one that `find` returns,
    /// unless it has something left where it is. The members of an aggregate find their own.
    pub(crate) fn leave_instance(self: &Arc<Self>, find: impl FnOnce(&Client) -> Option<Reservation>) {
        let instance = match (self.moved_to.get(), &self.target) {
            (Some(instance), _) | (None, AskTarget::Instance(instance)) => instance,
            (None, AskTarget::Conversation(conversation)) => return conversation.leave_owned_instances(),
        };
        let Some(leaving) = instance.leaving_client(self.key) else {
            return;
        };
        // One thread moves it, while others go on to use the instance that it leaves.
        if self.is_moving.swap(true, AcqRel) {
            return;
        }
        if self.moved_to.get().is_none()
            && let Some(next) = find(&leaving.client)
            && !Arc::ptr_eq(instance, &next)
            && instance.hand_over(self.key, Arc::clone(self) as _, leaving, &next)
        {
            // It was not set before, and no other thread sets it.
            let _ = self.moved_to.set(Arc::clone(&next));
            // If the session has ended before that, its end did not know of the move.
            if self.is_ended() {
                instance.forget_moved(self.key);
            }
        }
        self.is_moving.store(false, Release);
    }

    pub(crate) fn is_opened(&self) -> bool {
        self.lock().session.is_opened()
    }

    fn is_ended(&self) -> bool {
        self.lock().session.is_ended()
    }

    /// Returns whether the session has been idle for longer than it may.
    pub(crate) fn is_expired(&self, now: Moment, limit: Duration) -> bool {
        self.lock().session.is_expired(now, limit)
    }

    /// Returns how far the client still uses its session.
    pub(crate) fn usage(&self) -> Usage {
        self.lock().session.usage()
    }

    /// Returns whether a stream has an answer that its client has not read.
    pub(crate) fn has_unread_answers(&self) -> bool {
        self.lock().session.has_unread_answers()
    }

    /// Holds the session's permit until it ends.
    pub(crate) fn hold(&self, permit: Permit) {
        *self.permit.lock() = Some(permit);
    }

    /// Returns the number of events that were dropped unread.
    pub(crate) fn events_lost(&self) -> u64 {
        self.lock().session.events_lost()
    }

    /// Returns the state of the session, for a snapshot.
    pub(crate) fn status(&self, now: Moment) -> SessionStatus {
        let server = match (self.moved_to.get(), &self.target) {
            (Some(instance), _) | (None, AskTarget::Instance(instance)) => instance.health().pid(),
            (None, AskTarget::Conversation(_)) => None,
        };
        let state = self.lock();
        let session = &state.session;
        let client = session.client();
        SessionStatus {
            hash: self.hash.as_str().to_owned(),
            client: client.info.as_deref().and_then(ClientName::of),
            caller: self.principal.clone(),
            version: session.version().as_str(),
            era: legacy::ERA,
            is_implicit: session.is_implicit(),
            age: now.since(self.opened),
            idle: session.idle_since().map(|since| now.since(since)),
            calls: session.open_calls(),
            streams: session.listening_streams(),
            queued_bytes: session.kept_bytes(),
            server,
        }
    }

    /// Returns the era used towards the session's server, if there is one server.
    pub(crate) fn server_era(&self) -> Option<Era> {
        self.target.era()
    }

    /// Takes a message of the client; what it asks for is passed on to the instance. A call keeps
    /// its permit to its end.
    pub(crate) fn take(
        &self,
        message: Message,
        accepts: Accepts,
        permit: Option<Permit>,
    ) -> Result<Acceptance, Rejection> {
        let now = self.clock.now();
        self.act(now, |state, orders| {
            let taken = state.session.handle_message(now, message, accepts)?;
            state.poll_outputs(orders);
            let (acceptance, ask) = match taken {
                Accepted::Noted(ask) => (Acceptance::Noted, ask),
                Accepted::Call { call, ask } => {
                    if let Some(permit) = permit {
                        state.permits.insert(call, permit);
                    }
                    (Acceptance::Call(call), Some(ask))
                }
                Accepted::Answered(body) => (Acceptance::Answered(body), None),
            };
            orders.extend(ask.map(SessionOrder::Ask));
            Ok(acceptance)
        })
    }

    /// Waits for a call's answer, or for it to become a stream.
    pub(crate) fn answer(self: &Arc<Self>, call: CallKey) -> AwaitAnswer {
        AwaitAnswer {
            handle: Arc::clone(self),
            call,
            done: false,
        }
    }

    pub(crate) fn tick(&self, now: Moment) {
        self.act(now, |state, _| state.session.handle_tick(now));
    }

    /// Ends the session: its calls are cancelled, its streams end.
    pub(crate) fn end(&self) {
        self.end_if(|_| true);
    }

    /// Ends the session at this replica, where it is not known what became of the calls that are
    /// open: they fail so.
    pub(crate) fn end_lost(&self) {
        let now = self.clock.now();
        // Under one lock, so that no call comes between.
        self.end_if(|session| {
            session.handle_lost_instance(now, &Failure::OwnerLost);
            true
        });
    }

    /// Ends the session, unless its client has begun to use it since this usage was seen. Returns
    /// whether it has ended.
    pub(crate) fn end_if_still(&self, seen: Usage) -> bool {
        self.end_if(|session| session.usage() == seen)
    }

    /// Ends the session, unless a call is open or its client may come back for an answer. Returns
    /// whether it has ended.
    pub(crate) fn end_if_served(&self) -> bool {
        self.end_if(|session| session.open_calls() == 0 && !session.has_unread_answers())
    }

    fn end_if(&self, may_end: impl FnOnce(&mut Session) -> bool) -> bool {
        let now = self.clock.now();
        let has_ended = self.act(now, |state, orders| {
            if !may_end(&mut state.session) {
                return false;
            }
            let Some(ask) = state.session.end() else {
                return false;
            };
            state.poll_outputs(orders);
            orders.push(SessionOrder::Ask(ask));
            true
        });
        if has_ended {
            self.let_go();
        }
        has_ended
    }

    /// Returns what an ended session held: its permit, and its place at the instance that it left.
    fn let_go(&self) {
        if let (Some(_), AskTarget::Instance(first)) = (self.moved_to.get(), &self.target) {
            first.forget_moved(self.key);
        }
        *self.permit.lock() = None;
        self.metrics.events_lost.fetch_add(self.events_lost(), Relaxed);
    }

    pub(crate) fn listen(&self) -> Result<Reader, StreamRefusal> {
        self.lock().session.listen(self.clock.now())
    }

    /// Opens the one stream of the old transport.
    pub(crate) fn listen_to_all(&self) -> Result<Reader, StreamRefusal> {
        self.lock().session.listen_to_all(self.clock.now())
    }

    /// Sends a message on that stream.
    pub(crate) fn send(&self, data: &Bytes) {
        let now = self.clock.now();
        self.act(now, |state, _| state.session.announce(now, data));
    }

    pub(crate) fn resume(&self, last: &str) -> Result<Reader, StreamRefusal> {
        let now = self.clock.now();
        match self.act(now, |state, _| state.session.resume(now, last)) {
            Err(StreamRefusal::Lost) => self.resume_lost(now, last),
            resumed => resumed,
        }
    }

    /// Returns what the tokens of its event ids are bound to.
    fn token_binding(&self) -> String {
        let destination = self.target.destination();
        format!("{destination}\n{}\n{}", self.principal, self.id)
    }

    /// Answers a call of an earlier process, which the token of the event id names.
    fn resume_lost(&self, now: Moment, last: &str) -> Result<Reader, StreamRefusal> {
        let token = last.split_once(TOKEN_MARK).map_or("", |(_, token)| token);
        let id = self
            .kept()
            .and_then(|record| record.call_of(token, &self.token_binding()));
        let id = id.ok_or(StreamRefusal::UnknownEvent)?;
        Ok(self.act(now, |state, _| state.session.resume_lost(now, &id)))
    }

    /// Reads a stream; the waker is called when there is more.
    pub(crate) fn read(&self, reader: Reader, out: &mut BytesMut, waker: &Waker) -> Reading {
        let mut state = self.lock();
        let reading = state.session.read(self.clock.now(), reader, out);
        if out.is_empty() && reading == Reading::Open {
            state.wait(reader.stream, Some(reader), waker);
        }
        drop(state);
        // The client may have read the last answer that was kept for it.
        self.metrics.idle.note_change();
        reading
    }

    pub(crate) fn handle_disconnect(&self, reader: Reader) {
        let mut state = self.lock();
        state.session.handle_disconnect(self.clock.now(), reader);
        // A newer reader of the same stream may wait by now.
        if let Some(waiting) = state.wakers.get(&reader.stream)
            && waiting.reader == Some(reader)
        {
            state.wakers.remove(&reader.stream);
        }
    }

    fn carry_out(&self, now: Moment, order: SessionOrder) {
        match order {
            SessionOrder::Wake(waker) => waker.wake(),
            SessionOrder::Ask(ask) => self.ask(now, ask),
            SessionOrder::SendLine(line) => {
                if let Some(listener) = &self.listener {
                    Arc::clone(listener).receive(line);
                }
            }
            SessionOrder::Ended(record, permit) => {
                drop(permit);
                self.record_call(now, &record);
            }
            SessionOrder::WriteState(state) => {
                if let Some(record) = self.kept() {
                    record.set_state(&state);
                }
            }
            SessionOrder::Report(kept) => self.events.report(&Principal::named(&self.principal), kept),
        }
    }

    fn record_call(&self, now: Moment, call: &CallRecord) {
        let (status, ending) = match &call.ending {
            session::Ending::Result => (200, Ending::Done),
            session::Ending::Error => (200, Ending::Error),
            session::Ending::Failed(failure) if call.in_band => (200, Ending::Failed(failure)),
            session::Ending::Failed(failure) => {
                (reply::failure_status(failure).as_u16(), Ending::Failed(failure))
            }
        };
        let latency = now.since(call.started);
        let response = Some(&call.response);
        let route = self.target.take_route(Some(call.call));
        let record = Record::of_message(&call.message, status, ending, latency, response);
        let observed = EndedCall {
            handle: self,
            call,
            latency,
        };
        self.record_observed(&record.routed(route.as_ref()), &observed);
    }

    /// Records what ended in this session.
    pub(crate) fn record(&self, record: &Record<'_>) {
        self.record_observed(record, self);
    }

    fn record_observed(&self, record: &Record<'_>, observed: &dyn Observed) {
        let subject = Subject {
            destination: self.target.destination(),
            session: Some(self.hash),
            principal: &self.principal,
            composed: self.composed.as_deref(),
            era: Some(legacy::ERA),
            metrics: &*self.metrics,
            observed: Some(observed),
        };
        self.recorder.record(&subject, record);
    }
}

impl Observed for SessionHandle {
    fn client_name(&self) -> Option<String> {
        let info = self.lock().session.client().info.clone();
        ClientName::of(info.as_deref()?).map(|client| client.to_string())
    }
}

/// A call of a session that has ended.
struct EndedCall<'a> {
    handle: &'a SessionHandle,
    call: &'a CallRecord,
    latency: Duration,
}

impl Observed for EndedCall<'_> {
    fn client_name(&self) -> Option<String> {
        self.handle.client_name()
    }

    fn steps(&self) -> Steps {
        let (handle, call) = (self.handle, self.call);
        let instance = match (handle.moved_to.get(), &handle.target) {
            (Some(instance), _) | (None, AskTarget::Instance(instance)) => instance,
            // Which member had it, and what it waited for there, is not known here.
            (None, AskTarget::Conversation(_)) => return Steps::default(),
        };
        if !metrics::is_work(call.message.method()) {
            return Steps::default();
        }
        let wait = instance.wait_of(handle.key, call.call, call.started);
        wait.map(|wait| Steps::of(self.latency, wait, call.streamed))
            .unwrap_or_default()
    }
}

impl InstanceUser for SessionHandle {
    fn deliver(&self, now: Moment, tell: Tell) {
        self.act(now, |state, _| state.session.handle_tell(now, tell));
    }

    fn lose_instance(&self, now: Moment, failure: &Failure) {
        self.act(now, |state, _| state.session.handle_lost_instance(now, failure));
    }
}

impl KeepsEvents for SessionHandle {
    fn drop_events(&self, bytes: usize) -> KeptEvents {
        let kept = {
            let mut state = self.lock();
            state.session.drop_events(bytes);
            state.kept_events()
        };
        self.events.dropped(kept);
        kept
    }
}

/// What became of a client's message.
#[derive(Debug)]
pub(crate) enum Acceptance {
    Noted,
    Call(CallKey),
    Answered(Bytes),
}

impl SessionState {
    fn kept_events(&self) -> KeptEvents {
        KeptEvents {
            bytes: self.session.kept_bytes(),
            since: self.session.oldest_event().unwrap_or_default(),
        }
    }

    fn wait(&mut self, stream: StreamKey, reader: Option<Reader>, waker: &Waker) {
        match self.wakers.get_mut(&stream) {
            Some(known) => {
                known.reader = reader;
                known.waker.clone_from(waker);
            }
            None => {
                let waker = waker.clone();
                self.wakers.insert(stream, Waiting { reader, waker });
            }
        }
    }
}

impl Machine for SessionState {
    type Output = SessionOrder;

    fn poll_output(&mut self) -> Option<SessionOrder> {
        loop {
            return Some(match self.session.poll_output()? {
                Output::Wake(stream) => match self.wakers.remove(&stream) {
                    Some(waiting) => SessionOrder::Wake(waiting.waker),
                    None => continue,
                },
                Output::Ask(ask) => SessionOrder::Ask(*ask),
                Output::Line(line) => SessionOrder::SendLine(line),
                Output::StateChanged(state) => SessionOrder::WriteState(state),
                Output::Ended(record) => {
                    let permit = self.permits.remove(&record.call);
                    SessionOrder::Ended(record, permit)
                }
            });
        }
    }
}

/// A call's answer, or the right to read it as a stream.
#[derive(Debug)]
pub(crate) enum Answered {
    Complete { body: Written, failure: Option<Failure> },
    Stream(Reader),
}

/// Waits for a call. Dropped early, it abandons the call in its session.
pub(crate) struct AwaitAnswer {
    handle: Arc<SessionHandle>,
    call: CallKey,
    done: bool,
}

impl Future for AwaitAnswer {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let call = self.call;
        let answered = {
            let mut state = self.handle.lock();
            match state.session.poll_answer(call) {
                Answer::Waiting => {
                    state.wait(StreamKey(call.0), None, context.waker());
                    return Poll::Pending;
                }
                Answer::Complete { body, failure } => Answered::Complete { body, failure },
                Answer::Stream(reader) => {
                    if let Some(record) = self.handle.kept() {
                        let token = |id: &[u8]| record.token(id, &self.handle.token_binding());
                        state.session.set_stream_token(reader, token);
                    }
                    Answered::Stream(reader)
                }
            }
        };
        self.done = true;
        Poll::Ready(answered)
    }
}

impl Drop for AwaitAnswer {
    fn drop(&mut self) {
        if !self.done {
            let mut state = self.handle.lock();
            state.session.abandon(self.call);
            state.wakers.remove(&StreamKey(self.call.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Audit;
    use protocol::backend_face::legacy::ClientHello;
    use protocol::exchange::{Client, Principal};
    use protocol::multiplexer::{self, Multiplexer};
    use protocol::session::Limits;
    use protocol::version::Version;

    fn handle() -> SessionHandle {
        let clock = Clock::new();
        let destination: Arc<str> = "demo".into();
        let client = Arc::new(Client::declaring(Principal::anonymous(), None, None));
        let multiplexer = Multiplexer::new(multiplexer::Limits::default(), ClientHello::Newest);
        let instance = Instance::new(
            Arc::clone(&destination),
            clock,
            Arc::default(),
            Arc::default(),
            multiplexer,
        );
        let (session, _) = Session::open_implicit(
            SessionKey(1),
            client,
            Limits::default(),
            clock.now(),
            Version::NEWEST_LEGACY,
        );
        let ended_calls = Arc::new(crate::ended_calls::EndedCalls::new(Clock::new(), 0));
        let recorder = Arc::new(Recorder::new(Arc::new(Audit::off()), Vec::new(), ended_calls));
        SessionHandle::new(
            "id".to_owned(),
            destination,
            session,
            AskTarget::Instance(Arc::new(instance)),
            clock,
            recorder,
            None,
        )
    }

    /// Reads what there is, and waits for more. Returns what was read.
    fn wait_for_more(handle: &SessionHandle, reader: Reader) -> String {
        let mut read = BytesMut::new();
        loop {
            let mut out = BytesMut::new();
            assert_eq!(handle.read(reader, &mut out, Waker::noop()), Reading::Open);
            if out.is_empty() {
                return String::from_utf8_lossy(&read).into_owned();
            }
            read.extend_from_slice(&out);
        }
    }

    #[test]
    fn c09_streams_that_come_and_go_leave_nothing_behind() {
        let handle = handle();
        for _ in 0..1000 {
            let reader = handle.listen().expect("there is room again");
            wait_for_more(&handle, reader);
            handle.handle_disconnect(reader);
        }
        assert_eq!(handle.lock().wakers.len(), 0);
    }

    #[test]
    fn c12_replaced_reader_does_not_remove_the_newer_one() {
        let handle = handle();
        let older = handle.listen().expect("there is room");
        let primed = wait_for_more(&handle, older);
        let id = primed
            .lines()
            .find_map(|line| line.strip_prefix("id: "))
            .expect("the stream is primed");
        let newer = handle.resume(id).expect("the stream is known");
        wait_for_more(&handle, newer);
        handle.handle_disconnect(older);
        assert_eq!(
            handle.lock().wakers.len(),
            1,
            "the newer one is still to be woken"
        );
    }
}
