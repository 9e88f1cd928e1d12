//! Modern clients on the fixture: every POST is a modern request of its own, and a retry finds the
//! one that is parked.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use protocol::client_face::modern::{self, Classified, InvalidRequest};
use protocol::exchange::{Ask, Principal, SessionKey};
use protocol::message::{Member, Message};
use protocol::modern_request::{self, Answer, ModernRequest, Reading, WAITING_TIME};
use protocol::object::Object;
use serde_json::{Value, json};

use crate::fixture::{Fixture, Received, events};

/// How a state of the fixture's own begins. A real one is sealed; what is in it is the gateway's
/// business.
pub(crate) const SEAL: &str = "sealed ";

/// One modern request and its rounds.
#[derive(Debug)]
pub(crate) struct Trip {
    name: String,
    principal: String,
    /// The POST that is attached, or was last.
    label: String,
    post: Post,
    pub(crate) modern_request: ModernRequest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Post {
    Waiting,
    Reading,
    Gone,
}

impl Fixture {
    /// A modern client POSTs a request.
    pub(crate) fn post_modern(&mut self, name: &str, label: &str, sent: &Value) -> Result<(), String> {
        let character = self.character(name);
        let mut sent = sent.clone();
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": character.capabilities,
            "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"},
        });
        for (key, value) in meta.as_object().into_iter().flatten() {
            if sent["params"]["_meta"].get(key).is_none() {
                sent["params"]["_meta"][key] = value.clone();
            }
        }
        let message = Message::scan(Bytes::from(sent.to_string())).map_err(|error| error.to_string())?;
        let principal = Principal::named(&character.principal);
        let asks = match self.set_out(name, label, message.clone(), principal) {
            Ok(asks) => asks,
            Err(invalid) => {
                let body = invalid.body(message.raw(Member::Id));
                let body = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                self.receive(name, label, Received::Json(body));
                return Ok(());
            }
        };
        for ask in asks {
            self.backend.handle_ask(self.now, ask);
        }
        let visited: Vec<SessionKey> = self.trips.keys().copied().collect();
        for key in visited {
            self.poll_modern_request(key);
        }
        self.run_until_idle();
        Ok(())
    }

    fn set_out(
        &mut self,
        name: &str,
        label: &str,
        message: Message,
        principal: Principal,
    ) -> Result<Vec<Ask>, InvalidRequest> {
        modern::check_envelope(&message)?;
        modern::check_version(&message)?;
        let classified = modern::lift(&message)?;
        let accepts = self.character(name).accepts;
        let now = self.now;
        if classified == (Classified::Call { retry: true })
            && let Some(state) = state_of(&message)
        {
            let unknown = InvalidRequest::BadParams("unknown state");
            let (key, round) = self.sealed.get(&state).copied().ok_or(unknown.clone())?;
            let trip = self.trips.get_mut(&key).ok_or(unknown.clone())?;
            if trip.principal != principal.as_str() {
                return Err(unknown);
            }
            let asks = trip
                .modern_request
                .retry(now, message, round, accepts)
                .map_err(|_| unknown)?;
            trip.post = Post::Waiting;
            label.clone_into(&mut trip.label);
            return Ok(asks);
        }
        let key = self.new_key();
        let client = Arc::new(modern::client(&message, principal.clone()));
        let (modern_request, asks) = ModernRequest::new(key, client, now, message, classified, accepts);
        let trip = Trip {
            name: name.into(),
            principal: principal.as_str().into(),
            label: label.into(),
            post: Post::Waiting,
            modern_request,
        };
        self.trips.insert(key, trip);
        Ok(asks)
    }

    /// A modern client closes the connection of a POST.
    pub(crate) fn hang_up_modern(&mut self, name: &str, label: &str) -> Result<(), String> {
        let trip = self
            .trips
            .values_mut()
            .find(|trip| trip.name == name && trip.label == label && trip.post != Post::Gone)
            .ok_or_else(|| format!("{name}.{label} is not connected"))?;
        trip.post = Post::Gone;
        trip.modern_request.handle_disconnect();
        self.run_until_idle();
        Ok(())
    }

    /// Ends the listens politely, as a gateway does that is shut down.
    pub(crate) fn dismiss_listens(&mut self) {
        for trip in self.trips.values_mut() {
            trip.modern_request.end_listen();
        }
        self.run_until_idle();
    }

    /// Abandons the modern requests whose clients did not come back.
    pub(crate) fn expire_modern_requests(&mut self) {
        for trip in self.trips.values_mut() {
            trip.modern_request.handle_tick(self.now);
        }
    }

    /// Carries out the orders of modern requests. Returns the asks for the backend, and whether
    /// there was anything to do.
    pub(crate) fn run_modern_requests(&mut self) -> (Vec<Ask>, bool) {
        let mut asks = Vec::new();
        let mut busy = false;
        let keys: Vec<SessionKey> = self.trips.keys().copied().collect();
        for key in keys {
            // Questions are given out as soon as they are due; a script need not wait for that.
            let due = self
                .trips
                .get(&key)
                .and_then(|trip| trip.modern_request.next_deadline());
            let mut woken = due.is_some();
            self.now = self.now.max(due.unwrap_or(self.now));
            while let Some(output) = self
                .trips
                .get_mut(&key)
                .and_then(|trip| trip.modern_request.poll_output())
            {
                busy = true;
                match output {
                    modern_request::Output::Wake => woken = true,
                    modern_request::Output::Ask(ask) => asks.push(ask),
                    modern_request::Output::Ended(_) => {}
                }
            }
            if woken {
                self.poll_modern_request(key);
            }
        }
        self.trips
            .retain(|_, trip| !(trip.modern_request.is_over() && trip.post == Post::Gone));
        (asks, busy)
    }

    /// Looks whether there is something to read of a modern request.
    fn poll_modern_request(&mut self, key: SessionKey) {
        let Some(trip) = self.trips.get_mut(&key) else {
            return;
        };
        let read = |body: &[u8]| serde_json::from_slice(body).expect("answers are JSON");
        let mut received = Vec::new();
        let mut asked = None;
        if trip.post == Post::Waiting {
            match trip.modern_request.poll_answer(self.now) {
                Answer::Waiting => return,
                Answer::Complete { body, .. } => {
                    trip.post = Post::Gone;
                    received.push(Received::Json(read(&body)));
                }
                Answer::Ask { round } => asked = Some(round),
                Answer::Stream => trip.post = Post::Reading,
            }
        }
        let streamed = trip.post == Post::Reading;
        if streamed {
            let mut out = BytesMut::new();
            let reading = trip.modern_request.read(self.now, &mut out);
            received.extend(events(&out));
            match reading {
                Reading::Open => {}
                Reading::Ended => {
                    trip.post = Post::Gone;
                    received.push(Received::End);
                }
                Reading::Ask { round } => asked = Some(round),
            }
        }
        if let Some(round) = asked {
            let state = format!("{SEAL}{} {round}", key.0);
            let until = self.now.after(WAITING_TIME);
            let asked = trip.modern_request.park(&state, until);
            let body = read(&asked.expect("the questions are due"));
            self.sealed.insert(state, (key, round));
            trip.post = Post::Gone;
            if streamed {
                received.extend([Received::Event(String::new(), body), Received::End]);
            } else {
                received.push(Received::Json(body));
            }
        }
        let (name, label) = (trip.name.clone(), trip.label.clone());
        for received in received {
            self.receive(&name, &label, received);
        }
    }
}

/// The state of a retry, if it is one of the fixture's own.
fn state_of(message: &Message) -> Option<String> {
    let params = message.raw(Member::Params).and_then(Object::parse)?;
    params
        .text("requestState")
        .filter(|state| state.starts_with(SEAL))
}
