//! The HTTP frontend for modern clients (2026-07-28): requests that describe themselves, one at a
//! time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use protocol::aggregate::ToolsMode;
use protocol::client_face::modern::{self, Classified, InvalidRequest};
use protocol::exchange::{Failure, Principal};
use protocol::message::{Kind, Member, Message};
use protocol::modern_request::Reading;
use protocol::session::Accepts;
use protocol::wire::header::{HeaderMismatch, MirroredHeaders};
use protocol::wire::sse;

use super::body::Body;
use super::head::Head;
use super::keep_alive::KeepAlive;
use crate::endpoint::{CallOptions, Endpoint, NoRoomToWait, ParkedCall};
use crate::frontend::respond;
use crate::guard::Caller;
use crate::guard::limits::Permit;
use crate::metrics::StreamKind;
use crate::modern_request_handle::{FirstOutcome, ModernRequestHandle, QuestionDebounce};
use crate::reply::{self, Refusal};
use crate::seal;
use crate::trace::Failed;

/// Answers a message that describes itself.
pub(super) async fn post(
    destination: &Arc<Endpoint>,
    caller: &Caller,
    headers: &HeaderMap,
    message: Message,
    (mut accepts, tools): (Accepts, Option<ToolsMode>),
    (mut permit, stream): (Option<Permit>, impl FnOnce() -> Result<Permit, Refusal>),
) -> Result<Response<Body>, Refusal> {
    let principal = caller.principal.clone();
    match message.kind() {
        Kind::Request => {}
        // A modern notification concerns no session. A client that closes a listen sends one.
        Kind::Notification => return Ok(respond::empty(StatusCode::ACCEPTED)),
        Kind::Result | Kind::Error => return Err(Refusal::Modern(InvalidRequest::NotJsonRpc)),
    }
    let mirrored = MirroredHeaders::read(
        headers
            .iter()
            .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())),
    );
    let classified = check_headers(&mirrored, &message).map_err(Refusal::Modern)?;
    if classified == Classified::Listen {
        // Its answer is a stream, so `*/*` allows it and JSON alone does not.
        Head::of(headers).check_accepts_events()?;
        accepts = Accepts::Events;
        // A listen counts as a stream and not as a call, since its client decides how long it stays
        // open.
        permit = Some(stream()?);
    }
    let handle = match retried(destination, &principal, &message, classified)? {
        Retried::Parked(handle, round) => {
            handle
                .check_mirrored(&message, &mirrored.kept_params())
                .map_err(|text| Refusal::Modern(InvalidRequest::Header(text)))?;
            handle
                .retry(message.clone(), round, accepts, permit)
                .map_err(|_| Refusal::Modern(unknown_state()))?;
            handle
        }
        Retried::New(message) => {
            let client = modern::client(&message, principal);
            let modern_request = destination
                .modern_request(
                    client,
                    headers,
                    message.clone(),
                    CallOptions {
                        classified,
                        accepts,
                        mirrored: Some(mirrored.kept_params()),
                        permit,
                        tools,
                    },
                )
                .await
                .map_err(|refusal| match refusal {
                    Refusal::Unreached(failure)
                        if classified != Classified::Discover || accepts.reads_events() =>
                    {
                        Refusal::CallUnreached(failure)
                    }
                    refusal => refusal,
                })?;
            // A destination that shows only its own era answers as a server of that era would.
            modern_request.ok_or(Refusal::Modern(InvalidRequest::NoSuchMethod))?
        }
    };
    loop {
        return Ok(match handle.answer().await {
            FirstOutcome::Complete { body, failure } => {
                let status = match &failure {
                    Some(failure) => reply::modern_failure_status(message.method(), accepts, failure),
                    None => StatusCode::from_u16(handle.answer_status()).unwrap_or(StatusCode::OK),
                };
                if destination.fleet().is_some() {
                    Box::pin(destination.note_task(&body, &caller.principal)).await;
                }
                complete(status, body, failure.as_ref())
            }
            FirstOutcome::Ask { round } => match answer_input_required(destination, &handle, round) {
                Some(body) => respond::json(StatusCode::OK, body),
                None => continue,
            },
            FirstOutcome::Stream => {
                // A call comes to its end; a listen must be ended.
                let time = (classified == Classified::Listen)
                    .then(|| caller.time_left(SystemTime::now()))
                    .flatten();
                let events = ModernRequestEvents::new(Arc::clone(destination), handle, time);
                respond::events(Body::modern_request(events))
            }
        });
    }
}

/// Parks a request, and returns its `input_required` answer with the server's questions. Where no
/// more calls can wait for their clients, it returns a failure. `None`: there are no questions any
/// more, and the request is to be polled again.
pub(super) fn answer_input_required(
    destination: &Endpoint,
    handle: &Arc<ModernRequestHandle>,
    round: u32,
) -> Option<Bytes> {
    destination.park(handle, round).unwrap_or_else(|NoRoomToWait| {
        let limit = "calls waiting for their clients";
        Some(handle.fail(Failure::Overloaded { limit }))
    })
}

/// Runs the checks that need no knowledge of the server, in the order that the revision's
/// conformance suite wants.
fn check_headers(mirrored: &MirroredHeaders<'_>, message: &Message) -> Result<Classified, InvalidRequest> {
    modern::check_envelope(message)?;
    mirrored.check_mismatch(message).map_err(mismatch)?;
    modern::check_version(message)?;
    mirrored.check_presence(message).map_err(mismatch)?;
    modern::lift(message)
}

fn mismatch(error: HeaderMismatch) -> InvalidRequest {
    InvalidRequest::Header(error.to_string())
}

/// Whether a request continues a parked one.
pub(super) enum Retried {
    /// A parked modern request that waits for it, in this round.
    Parked(Arc<ModernRequestHandle>, u32),
    /// It is a new request, or its state is the server's own. The message is the one to send to the
    /// server.
    New(Message),
}

pub(super) fn retried(
    destination: &Endpoint,
    principal: &Principal,
    message: &Message,
    classified: Classified,
) -> Result<Retried, Refusal> {
    if classified != (Classified::Call { retry: true }) {
        return Ok(Retried::New(message.clone()));
    }
    let params = message.object(Member::Params);
    let Some(state) = params.text("requestState") else {
        return Ok(Retried::New(message.clone()));
    };
    let unknown = || Refusal::Modern(unknown_state());
    if seal::is_ours(&state) {
        match destination.parked(&state, principal) {
            ParkedCall::Waiting(handle, round) => return Ok(Retried::Parked(handle, round)),
            // Another replica that lives has answered it before (`forwarding`).
            ParkedCall::Elsewhere(_) => return Err(Refusal::CallUnreached(Failure::OwnerLost)),
            // The state is the server's own: it may be another Rialto.
            ParkedCall::Unknown if destination.upstream.asks_by_results() => {}
            // A retry that names a state never starts a call of its own: the tool would run twice.
            ParkedCall::Unknown => return Err(unknown()),
        }
    }
    match destination.state_seal(principal) {
        Some(seal) => seal
            .open_request(message, &state)
            .map(Retried::New)
            .map_err(|_| unknown()),
        None => Ok(Retried::New(message.clone())),
    }
}

pub(super) fn unknown_state() -> InvalidRequest {
    InvalidRequest::BadParams(
        "the interactive call is unknown or has expired; call again without requestState",
    )
}

fn complete(status: StatusCode, body: Bytes, failure: Option<&Failure>) -> Response<Body> {
    let mut response = respond::json(status, body);
    if let Some(failure) = failure {
        response.extensions_mut().insert(Failed(failure.reason()));
    }
    response
}

/// The events of a modern request, for as long as its connection lasts. Dropped early, it cancels
/// the modern request.
pub(crate) struct ModernRequestEvents {
    destination: Arc<Endpoint>,
    handle: Arc<ModernRequestHandle>,
    ended: bool,
    debounce: QuestionDebounce,
    time: KeepAlive,
    /// The last events, which give a task. They are shown when the other replicas can find it.
    noting: Option<(NotingTask, Bytes)>,
}

/// Writes down which replica knows a task.
type NotingTask = Pin<Box<dyn Future<Output = ()> + Send>>;

impl std::fmt::Debug for ModernRequestEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModernRequestEvents")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

impl ModernRequestEvents {
    fn new(destination: Arc<Endpoint>, handle: Arc<ModernRequestHandle>, time: Option<Duration>) -> Self {
        handle.metrics.stream_opened(StreamKind::Modern);
        Self {
            destination,
            handle,
            ended: false,
            debounce: QuestionDebounce::default(),
            time: KeepAlive::at_most(time),
            noting: None,
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended && self.noting.is_none()
    }

    pub(super) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some((noting, _)) = &mut self.noting {
            std::task::ready!(noting.as_mut().poll(context));
            return Poll::Ready(self.noting.take().map(|(_, events)| self.sent(events)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        if self.time.is_up(context) {
            self.handle.dismiss();
        }
        let mut out = BytesMut::new();
        loop {
            match self.handle.read(&mut out, &mut self.debounce, context) {
                Reading::Open => {}
                Reading::Ended => self.ended = true,
                Reading::Ask { round } => {
                    let Some(body) = answer_input_required(&self.destination, &self.handle, round) else {
                        continue;
                    };
                    sse::write_message(&mut out, None, &body);
                    self.ended = true;
                }
            }
            break;
        }
        if !out.is_empty() {
            let events = out.freeze();
            if self.ended
                && let Some(noting) = self.note_task(&events)
            {
                self.noting = Some((noting, events));
                return self.poll_chunk(context);
            }
            return Poll::Ready(Some(self.sent(events)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        self.time.poll_keep_alive(context).map(Some)
    }

    fn sent(&mut self, events: Bytes) -> Bytes {
        self.time.note_sent();
        let sent = events.len() as u64;
        self.handle.metrics.bytes_sent.fetch_add(sent, Relaxed);
        events
    }

    /// Returns what notes the task that the last of these events may give, where replicas share tasks.
    fn note_task(&self, events: &Bytes) -> Option<NotingTask> {
        self.destination.fleet().filter(|fleet| fleet.has_peers())?;
        memchr::memmem::find(events, b"taskId")?;
        let mut lines = events.rsplit(|byte| *byte == b'\n');
        let answer = events.slice_ref(lines.find_map(|line| line.strip_prefix(b"data: "))?);
        let destination = Arc::clone(&self.destination);
        let principal = Principal::named(self.handle.principal());
        Some(Box::pin(async move {
            destination.note_task(&answer, &principal).await;
        }))
    }
}

impl Drop for ModernRequestEvents {
    fn drop(&mut self) {
        self.handle.metrics.stream_closed(StreamKind::Modern);
        if !self.ended {
            self.handle.handle_disconnect();
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::exchange::{QuestionKey, Tell};
    use protocol::method::Method;
    use protocol::time::Moment;

    use super::*;
    use crate::audit::Outcome;
    use crate::fixture;
    use crate::instance::InstanceUser as _;

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).expect("a message")
    }

    #[tokio::test]
    async fn task_at_the_end_of_a_stream_is_noted_before_it_is_shown() {
        let registry = cluster::MemoryRegistry::new();
        let settings = fixture::settings();
        let endpoint = |name| {
            let gateway = fixture::replica(&settings, &registry, name);
            let config = gateway.config();
            let endpoint = config.destinations.values().next().cloned();
            (gateway, endpoint.expect("a destination"))
        };
        let ((_one, one), (_other, other)) = (endpoint("one"), endpoint("other"));
        let call = message(
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#,
        );
        let options = CallOptions {
            classified: Classified::Call { retry: false },
            accepts: Accepts::Events,
            mirrored: None,
            permit: None,
            tools: None,
        };
        let client = modern::client(&call, Principal::anonymous());
        let handle = one.modern_request(client, &HeaderMap::new(), call, options).await;
        let handle = handle.expect("it is taken").expect("modern clients are served");
        let result = r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"t","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttlMs":60000}}"#;
        handle.deliver(
            Moment::START,
            Tell::Reply {
                session: handle.key(),
                call: protocol::exchange::CallKey(1),
                message: message(result),
                era: modern::ERA,
            },
        );
        let mut events = ModernRequestEvents::new(Arc::clone(&one), handle, None);
        let asked = message(r#"{"jsonrpc":"2.0","id":8,"method":"tasks/get","params":{"taskId":"t"}}"#);
        let anonymous = Principal::anonymous();
        let shown = std::future::poll_fn(|context| events.poll_chunk(context)).await;
        let shown = String::from_utf8(shown.expect("an event").to_vec()).expect("text");
        assert!(shown.contains("taskId"), "{shown}");
        let owner = other.other_task_owner(&asked, &anonymous).await;
        let expected = one.fleet().map(|fleet| fleet.node().id.clone());
        assert_eq!(owner, Ok(expected));
        assert!(events.is_ended());
    }

    #[tokio::test]
    async fn call_that_finds_no_room_to_wait_is_recorded_as_refused() {
        let mut settings = fixture::settings();
        settings.limits.waiting_calls = 0;
        let destination = fixture::destination(&settings);
        let text = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}"#;
        let message = Message::scan(Bytes::from(text)).expect("a message");
        let options = CallOptions {
            classified: Classified::Call { retry: false },
            accepts: Accepts::Json,
            mirrored: None,
            permit: None,
            tools: None,
        };
        let client = modern::client(&message, Principal::anonymous());
        let handle = destination
            .modern_request(client, &HeaderMap::new(), message, options)
            .await;
        let handle = handle
            .expect("the request is taken")
            .expect("modern clients are served");
        let question = r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}}"#;
        handle.deliver(
            Moment::START,
            Tell::Question {
                session: handle.key(),
                call: None,
                question: QuestionKey(1),
                message: Message::scan(Bytes::from(question)).expect("a message"),
            },
        );
        let answer = answer_input_required(&destination, &handle, 0).expect("there is a question");
        assert!(
            answer.starts_with(br#"{"jsonrpc":"2.0","id":7,"error""#),
            "{answer:?}"
        );
        let recorded: Vec<_> = destination
            .metrics
            .calls()
            .map(|(_, method, outcome, count)| (method, outcome, count))
            .collect();
        assert_eq!(recorded, [(Method::ToolsCall, Outcome::Refused, 1)]);
        assert!(handle.is_over());
    }
}
