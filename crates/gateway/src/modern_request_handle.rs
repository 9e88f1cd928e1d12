//! The handle of a modern request: its machine, the task that waits for it, and the instance it
//! uses.
//!
//! Like a session's ([`crate::session_handle`]), but for one modern request and the rounds that
//! follow from it.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::client_face::modern::{self, Classified};
use protocol::exchange::{Ask, Client, Failure, Principal, SessionKey, Tell};
use protocol::message::{Message, Written};
use protocol::modern_request::{
    self, Answer, Line, ModernRequest, ModernRequestRecord, Output, Reading, RetryRefusal,
};
use protocol::session::Accepts;
use protocol::time::Moment;
use protocol::version::QuestionStyle;
use protocol::wire::header::MirroredParams;
use tokio::time::Sleep;

use crate::buffered::{Buffered, KeepsEvents, KeptEvents, ReportedEvents};
use crate::clock::Clock;
use crate::conversation_handle::AskTarget;
use crate::driver::{Driver, Locked, Machine, Outputs};
use crate::guard::limits::Permit;
use crate::instance::InstanceUser;
use crate::metrics::{self, DestinationMetrics};
use crate::record::{Ending, Observed, Record, Recorder, Steps, Subject};
use crate::reply;
use crate::seal::state::StateSeal;
use crate::status::ClientName;

/// Wakes the task that waits for a request at the moment at which the questions of its server are
/// due.
#[derive(Default)]
pub(crate) struct QuestionDebounce(Option<(Moment, Pin<Box<Sleep>>)>);

impl QuestionDebounce {
    /// Is ready when this moment is reached.
    fn poll(&mut self, clock: Clock, due: Moment, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.0.take().filter(|(at, _)| *at == due);
        let (_, sleep) = self
            .0
            .insert(timer.unwrap_or_else(|| (due, Box::pin(clock.sleep_until(due)))));
        sleep.as_mut().poll(context)
    }
}

/// One modern request and its rounds.
pub(crate) struct ModernRequestHandle {
    key: SessionKey,
    /// Its name in sealed states.
    pub(crate) name: u128,
    destination: Arc<str>,
    principal: String,
    target: AskTarget,
    clock: Clock,
    recorder: Arc<Recorder>,
    pub(crate) metrics: Arc<DestinationMetrics>,
    states: Option<StateSeal>,
    /// The events that it keeps, as reported to the gateway's budget.
    events: ReportedEvents,
    driver: Driver<RequestState>,
}

struct RequestState {
    modern_request: ModernRequest,
    waker: Option<Waker>,
    /// The permit of the open HTTP request; none while it is parked.
    permit: Option<Permit>,
}

impl std::fmt::Debug for ModernRequestHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModernRequestHandle")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// What is to be done after the lock.
enum RequestOrder {
    Wake(Waker),
    Ask(Ask),
    /// A request has its answer, and returns its permit.
    Ended(Box<ModernRequestRecord>, Option<Permit>),
    /// The bytes of events that are kept have changed enough to be reported.
    Report(usize),
}

/// What a new modern request consists of.
pub(crate) struct RequestSpec {
    pub(crate) key: SessionKey,
    pub(crate) client: Arc<Client>,
    pub(crate) message: Message,
    pub(crate) classified: Classified,
    pub(crate) accepts: Accepts,
    pub(crate) permit: Option<Permit>,
    /// Seals the server's own states, where callers differ.
    pub(crate) states: Option<StateSeal>,
    /// The headers that mirror its arguments.
    pub(crate) mirrored: Option<MirroredParams>,
}

impl ModernRequestHandle {
    /// Starts a modern request: attaches it to its instance and sends its asks there.
    pub(crate) fn start(
        spec: RequestSpec,
        destination: Arc<str>,
        target: AskTarget,
        clock: Clock,
        recorder: Arc<Recorder>,
        metrics: Arc<DestinationMetrics>,
    ) -> Arc<Self> {
        let RequestSpec {
            key,
            client,
            message,
            classified,
            accepts,
            permit,
            states,
            mirrored,
        } = spec;
        let principal = client.principal.as_str().to_owned();
        let now = clock.now();
        let (modern_request, asks) = ModernRequest::new(key, client, now, message, classified, accepts);
        let handle = Arc::new(Self {
            key,
            name: uuid::Uuid::new_v4().as_u128(),
            destination,
            principal,
            target,
            clock,
            recorder,
            metrics,
            states,
            events: ReportedEvents::default(),
            driver: Driver::new(RequestState {
                modern_request,
                waker: None,
                permit,
            }),
        });
        handle.target.attach(key, Arc::<Self>::clone(&handle));
        handle.act(|_, orders| {
            orders.extend(asks.into_iter().map(|mut ask| {
                if let Ask::Call(call) = &mut ask {
                    call.mirrored.clone_from(&mirrored);
                }
                RequestOrder::Ask(ask)
            }));
        });
        handle
    }

    /// Checks that the headers of a retry match its arguments, as far as its tool is known.
    pub(crate) fn check_mirrored(&self, message: &Message, params: &MirroredParams) -> Result<(), String> {
        self.target.check_mirrored(message, params)
    }

    /// Counts the events of this request in the gateway's budget.
    pub(crate) fn count_events(self: &Arc<Self>, buffered: &Arc<Buffered>) {
        let keeper: Weak<dyn KeepsEvents> = Arc::downgrade(self) as _;
        self.events.count(keeper, buffered);
    }

    fn lock(&self) -> Locked<'_, RequestState> {
        self.driver.lock()
    }

    pub(crate) fn key(&self) -> SessionKey {
        self.key
    }

    pub(crate) fn principal(&self) -> &str {
        &self.principal
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().modern_request.is_over()
    }

    /// Returns the HTTP status of the final answer, if it is no failure.
    pub(crate) fn answer_status(&self) -> u16 {
        self.lock().modern_request.answer_status()
    }

    /// Returns until when the request waits for its client, if it does.
    pub(crate) fn waits_until(&self) -> Option<Moment> {
        self.lock().modern_request.waits_until()
    }

    pub(crate) fn tick(&self, now: Moment) {
        self.act(|state, _| state.modern_request.handle_tick(now));
    }

    /// Returns the answer with the server's questions under a sealed state; `None` if there are
    /// none any more, so that the request is to be polled again.
    pub(crate) fn park(&self, sealed: &str, until: Moment) -> Option<Bytes> {
        self.act(|state, _| state.modern_request.park(sealed, until))
    }

    pub(crate) fn retry(
        &self,
        message: Message,
        round: u32,
        accepts: Accepts,
        permit: Option<Permit>,
    ) -> Result<(), RetryRefusal> {
        let now = self.clock.now();
        self.act(|state, orders| {
            let asks = state.modern_request.retry(now, message, round, accepts)?;
            state.poll_outputs(orders);
            state.permit = permit;
            orders.extend(asks.into_iter().map(RequestOrder::Ask));
            Ok(())
        })
    }

    pub(crate) fn abandon(&self) {
        self.act(|state, _| state.modern_request.abandon());
    }

    /// Abandons the request if it still waits for its client. Returns whether it did.
    pub(crate) fn abandon_if_parked(&self) -> bool {
        self.act(|state, _| {
            let is_parked = state.modern_request.is_parked();
            if is_parked {
                state.modern_request.abandon();
            }
            is_parked
        })
    }

    /// Ends the request with a failure instead of the server's questions. Returns the answer for
    /// the client.
    pub(crate) fn fail(&self, failure: Failure) -> Bytes {
        self.act(|state, _| state.modern_request.fail(failure))
    }

    /// Ends a listen with its closing result.
    pub(crate) fn dismiss(&self) {
        self.act(|state, _| state.modern_request.end_listen());
    }

    pub(crate) fn handle_disconnect(&self) {
        self.act(|state, _| state.modern_request.handle_disconnect());
    }

    /// Writes what is new into `out` as events. If there is nothing, the task is woken when there
    /// is.
    pub(crate) fn read(
        &self,
        out: &mut BytesMut,
        debounce: &mut QuestionDebounce,
        context: &mut Context<'_>,
    ) -> Reading {
        self.poll(debounce, context, |modern_request, now| {
            let reading = modern_request.read(now, out);
            (reading, out.is_empty() && reading == Reading::Open)
        })
    }

    /// Returns the next thing for a client that reads lines. If it has to wait, the task is woken
    /// when there is more.
    pub(crate) fn poll_line(&self, debounce: &mut QuestionDebounce, context: &mut Context<'_>) -> Line {
        self.poll(debounce, context, |modern_request, now| {
            let line = modern_request.poll_line(now);
            let waits = matches!(line, Line::Waiting);
            (line, waits)
        })
    }

    /// Polls the machine, which also returns whether the task has to wait; and again if its
    /// deadline has come.
    fn poll<T>(
        &self,
        debounce: &mut QuestionDebounce,
        context: &mut Context<'_>,
        mut poll: impl FnMut(&mut ModernRequest, Moment) -> (T, bool),
    ) -> T {
        let mut now = self.clock.now();
        loop {
            let (polled, due) = self.act(|state, orders| {
                let (polled, waits) = poll(&mut state.modern_request, now);
                state.poll_outputs_but_wakes(orders);
                if !waits {
                    return (polled, None);
                }
                state.waker = Some(context.waker().clone());
                (polled, state.modern_request.next_deadline())
            });
            match due {
                Some(due) if debounce.poll(self.clock, due, context).is_ready() => now = now.max(due),
                Some(_) | None => return polled,
            }
        }
    }

    /// Waits for the answer to the attached request.
    pub(crate) fn answer(self: &Arc<Self>) -> AwaitModernRequest {
        AwaitModernRequest {
            handle: Arc::clone(self),
            debounce: QuestionDebounce::default(),
            done: false,
        }
    }

    /// Calls the machine, and carries out what comes of it.
    fn act<T>(&self, act: impl FnOnce(&mut RequestState, &mut Outputs<RequestOrder>) -> T) -> T {
        let acted = self.driver.act(
            |state, orders| {
                let acted = act(state, orders);
                let kept = state.modern_request.kept_bytes();
                if self.events.is_due(kept) {
                    state.poll_outputs(orders);
                    orders.push(RequestOrder::Report(kept));
                }
                acted
            },
            |order| self.carry_out(order),
        );
        self.metrics.idle.note_change();
        acted
    }

    fn carry_out(&self, order: RequestOrder) {
        match order {
            RequestOrder::Wake(waker) => waker.wake(),
            RequestOrder::Ask(ask) => self.target.ask(self.clock.now(), ask),
            RequestOrder::Ended(record, permit) => {
                drop(permit);
                self.record(&record);
            }
            RequestOrder::Report(bytes) => {
                let since = self.clock.now();
                self.events
                    .report(&Principal::named(&self.principal), KeptEvents { bytes, since });
            }
        }
    }

    fn record(&self, ended: &ModernRequestRecord) {
        let (status, ending) = match &ended.ending {
            modern_request::Ending::Result | modern_request::Ending::InputRequired => (200, Ending::Done),
            modern_request::Ending::Error => (ended.status, Ending::Error),
            modern_request::Ending::Failed(failure) if ended.streamed => (200, Ending::Failed(failure)),
            modern_request::Ending::Failed(failure) => {
                let status = reply::modern_failure_status(ended.message.method(), ended.accepts, failure);
                (status.as_u16(), Ending::Failed(failure))
            }
        };
        let latency = self.clock.now().since(ended.started);
        let observed = EndedRequest {
            handle: self,
            ended,
            latency,
        };
        let subject = Subject {
            destination: &self.destination,
            session: None,
            principal: &self.principal,
            composed: None,
            era: Some(modern::ERA),
            metrics: &*self.metrics,
            observed: Some(&observed),
        };
        let response = Written::from(ended.response.clone());
        let route = self.target.take_route(None);
        let record = Record::of_message(&ended.message, status, ending, latency, Some(&response));
        self.recorder.record(&subject, &record.routed(route.as_ref()));
    }
}

/// A modern request that has ended.
struct EndedRequest<'a> {
    handle: &'a ModernRequestHandle,
    ended: &'a ModernRequestRecord,
    latency: Duration,
}

impl Observed for EndedRequest<'_> {
    fn client_name(&self) -> Option<String> {
        // The client of a modern request names itself in each message.
        let client = modern::client(&self.ended.message, Principal::anonymous());
        ClientName::of(client.info.as_deref()?).map(|client| client.to_string())
    }

    fn steps(&self) -> Steps {
        let AskTarget::Instance(instance) = &self.handle.target else {
            return Steps::default();
        };
        if !metrics::is_work(self.ended.message.method()) {
            return Steps::default();
        }
        let wait = instance.wait_of_request(self.handle.key(), self.ended.started);
        wait.map(|wait| Steps::of(self.latency, wait, self.ended.streamed))
            .unwrap_or_default()
    }
}

impl InstanceUser for ModernRequestHandle {
    fn deliver(&self, now: Moment, mut tell: Tell) {
        if let (Some(states), Tell::Reply { message, era, .. }) = (&self.states, &mut tell)
            && era.questions() == QuestionStyle::Results
            && let Some(sealed) = states.seal_answer(message)
        {
            *message = sealed;
        }
        self.act(|state, _| state.modern_request.handle_tell(now, tell));
    }

    fn lose_instance(&self, _now: Moment, failure: &Failure) {
        self.act(|state, _| state.modern_request.handle_lost_instance(failure));
    }
}

impl KeepsEvents for ModernRequestHandle {
    fn drop_events(&self, bytes: usize) -> KeptEvents {
        let kept = {
            let mut state = self.lock();
            state.modern_request.drop_events(bytes);
            KeptEvents {
                bytes: state.modern_request.kept_bytes(),
                since: self.clock.now(),
            }
        };
        self.events.dropped(kept);
        kept
    }
}

impl RequestState {
    /// Moves the outputs to the end of `orders`, for a caller that runs because it was woken and
    /// needs no waking.
    fn poll_outputs_but_wakes(&mut self, orders: &mut Outputs<RequestOrder>) {
        while let Some(output) = self.modern_request.poll_output() {
            match output {
                Output::Wake => {}
                Output::Ask(ask) => orders.push(RequestOrder::Ask(ask)),
                Output::Ended(record) => orders.push(self.ended(record)),
            }
        }
    }

    fn ended(&mut self, record: ModernRequestRecord) -> RequestOrder {
        RequestOrder::Ended(Box::new(record), self.permit.take())
    }
}

impl Machine for RequestState {
    type Output = RequestOrder;

    fn poll_output(&mut self) -> Option<RequestOrder> {
        loop {
            return Some(match self.modern_request.poll_output()? {
                Output::Wake => match self.waker.take() {
                    Some(waker) => RequestOrder::Wake(waker),
                    None => continue,
                },
                Output::Ask(ask) => RequestOrder::Ask(ask),
                Output::Ended(record) => self.ended(record),
            });
        }
    }
}

/// What a waiting request received first.
#[derive(Debug)]
pub(crate) enum FirstOutcome {
    Complete { body: Bytes, failure: Option<Failure> },
    Ask { round: u32 },
    Stream,
}

/// Waits for a modern request. Dropped early, it cancels the request: in this era a disconnection
/// does.
pub(crate) struct AwaitModernRequest {
    handle: Arc<ModernRequestHandle>,
    debounce: QuestionDebounce,
    done: bool,
}

impl Future for AwaitModernRequest {
    type Output = FirstOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FirstOutcome> {
        let Self { handle, debounce, .. } = &mut *self;
        let answer = handle.poll(debounce, context, |modern_request, now| {
            let answer = modern_request.poll_answer(now);
            let waits = matches!(answer, Answer::Waiting);
            (answer, waits)
        });
        let outcome = match answer {
            Answer::Waiting => return Poll::Pending,
            Answer::Complete { body, failure } => FirstOutcome::Complete { body, failure },
            Answer::Ask { round } => FirstOutcome::Ask { round },
            Answer::Stream => FirstOutcome::Stream,
        };
        self.done = true;
        Poll::Ready(outcome)
    }
}

impl Drop for AwaitModernRequest {
    fn drop(&mut self) {
        if !self.done {
            self.handle.handle_disconnect();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn questions_are_given_out_when_they_are_due() {
        let (mut debounce, clock) = (QuestionDebounce::default(), Clock::new());
        let started = tokio::time::Instant::now();
        let due = clock.now().after(Duration::from_secs(1));
        std::future::poll_fn(|context| debounce.poll(clock, due, context)).await;
        assert_eq!(started.elapsed().as_secs(), 1);
    }
}
