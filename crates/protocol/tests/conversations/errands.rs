//! Modern clients on the stage: every POST is an errand of its own, and a retry finds the one that is parked.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::client_face::modern::{self, Meaning, Objection};
use protocol::errand::{self, Answer, Errand, Reading};
use protocol::exchange::{Ask, Principal, SessionKey};
use protocol::message::{Member, Message};
use protocol::object::Object;
use protocol::time::Moment;
use serde_json::{Value, json};

use crate::stage::{Heard, Stage, events};

/// How a state of the stage's own begins. A real one is sealed; what is in it is the gateway's business.
pub(crate) const SEAL: &str = "sealed ";

/// One modern request and its rounds.
#[derive(Debug)]
pub(crate) struct Trip {
    name: String,
    principal: String,
    /// The POST that is attached, or was last.
    label: String,
    post: Post,
    parked_until: Option<Moment>,
    pub(crate) errand: Errand,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Post {
    Waiting,
    Reading,
    Gone,
}

impl Stage {
    /// A modern client POSTs a request.
    pub(crate) fn post_modern(&mut self, name: &str, label: &str, said: &Value) -> Result<(), String> {
        let character = self.character(name);
        let mut said = said.clone();
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": character.capabilities,
            "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"},
        });
        for (key, value) in meta.as_object().into_iter().flatten() {
            if said["params"]["_meta"].get(key).is_none() {
                said["params"]["_meta"][key] = value.clone();
            }
        }
        let message = Message::scan(Bytes::from(said.to_string())).map_err(|error| error.to_string())?;
        let principal = Principal::named(&character.principal);
        let asks = match self.set_out(name, label, message.clone(), principal) {
            Ok(asks) => asks,
            Err(objection) => {
                let body = objection.body(message.raw(Member::Id));
                let body = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                self.hear(name, label, Heard::Json(body));
                return Ok(());
            }
        };
        for ask in asks {
            self.backend.handle_ask(self.now, ask);
        }
        let visited: Vec<SessionKey> = self.trips.keys().copied().collect();
        for key in visited {
            self.visit_errand(key);
        }
        self.settle();
        Ok(())
    }

    fn set_out(
        &mut self,
        name: &str,
        label: &str,
        message: Message,
        principal: Principal,
    ) -> Result<Vec<Ask>, Objection> {
        modern::check_envelope(&message)?;
        modern::check_version(&message)?;
        let meaning = modern::lift(&message)?;
        let accepts = self.character(name).accepts;
        let now = self.now;
        if meaning == (Meaning::Call { retry: true })
            && let Some(state) = state_of(&message)
        {
            let unknown = Objection::BadParams("unknown state");
            let (key, round) = self.sealed.get(&state).copied().ok_or(unknown.clone())?;
            let trip = self.trips.get_mut(&key).ok_or(unknown.clone())?;
            if trip.principal != principal.as_str() {
                return Err(unknown);
            }
            let asks = trip
                .errand
                .retry(now, message, round, accepts)
                .map_err(|_| unknown)?;
            trip.post = Post::Waiting;
            label.clone_into(&mut trip.label);
            return Ok(asks);
        }
        let key = self.new_key();
        let client = Arc::new(modern::client(&message, principal.clone()));
        let (errand, asks) = Errand::new(key, client, now, message, meaning, accepts);
        let trip = Trip {
            name: name.into(),
            principal: principal.as_str().into(),
            label: label.into(),
            post: Post::Waiting,
            parked_until: None,
            errand,
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
        trip.errand.hang_up();
        self.settle();
        Ok(())
    }

    /// Ends the listens politely, as a gateway does that is shut down.
    pub(crate) fn dismiss_listens(&mut self) {
        for trip in self.trips.values_mut() {
            trip.errand.dismiss();
        }
        self.settle();
    }

    /// Gives up the errands whose clients did not come back.
    pub(crate) fn expire_errands(&mut self) {
        for trip in self.trips.values_mut() {
            if trip.errand.is_parked() && trip.parked_until.is_some_and(|until| until <= self.now) {
                trip.errand.give_up();
            }
        }
    }

    /// Carries out the orders of errands. Gives the asks for the backend, and whether there was anything to do.
    pub(crate) fn settle_errands(&mut self) -> (Vec<Ask>, bool) {
        let mut asks = Vec::new();
        let mut busy = false;
        let keys: Vec<SessionKey> = self.trips.keys().copied().collect();
        for key in keys {
            let mut woken = false;
            while let Some(output) = self
                .trips
                .get_mut(&key)
                .and_then(|trip| trip.errand.poll_output())
            {
                busy = true;
                match output {
                    errand::Output::Wake => woken = true,
                    errand::Output::Ask(ask) => asks.push(ask),
                    errand::Output::Ended(_) => {}
                }
            }
            if woken {
                self.visit_errand(key);
            }
        }
        self.trips
            .retain(|_, trip| !(trip.errand.is_over() && trip.post == Post::Gone));
        (asks, busy)
    }

    /// Looks whether there is something to read of an errand.
    fn visit_errand(&mut self, key: SessionKey) {
        let Some(trip) = self.trips.get_mut(&key) else {
            return;
        };
        let read = |body: &[u8]| serde_json::from_slice(body).expect("answers are JSON");
        let mut heard = Vec::new();
        let mut asked = None;
        if trip.post == Post::Waiting {
            match trip.errand.poll_answer() {
                Answer::Waiting => return,
                Answer::Complete { body, .. } => {
                    trip.post = Post::Gone;
                    heard.push(Heard::Json(read(&body)));
                }
                Answer::Ask { round } => asked = Some(round),
                Answer::Stream => trip.post = Post::Reading,
            }
        }
        let streamed = trip.post == Post::Reading;
        if streamed {
            let mut out = BytesMut::new();
            let reading = trip.errand.read(&mut out);
            heard.extend(events(&out));
            match reading {
                Reading::Open => {}
                Reading::Ended => {
                    trip.post = Post::Gone;
                    heard.push(Heard::End);
                }
                Reading::Ask { round } => asked = Some(round),
            }
        }
        if let Some(round) = asked {
            let state = format!("{SEAL}{} {round}", key.0);
            let body = read(&trip.errand.park(&state));
            self.sealed.insert(state, (key, round));
            trip.parked_until = Some(self.now.after(PARKED_FOR));
            trip.post = Post::Gone;
            if streamed {
                heard.extend([Heard::Event(String::new(), body), Heard::End]);
            } else {
                heard.push(Heard::Json(body));
            }
        }
        let (name, label) = (trip.name.clone(), trip.label.clone());
        for heard in heard {
            self.hear(&name, &label, heard);
        }
    }
}

/// How long an errand waits for its client, as in the gateway.
const PARKED_FOR: Duration = Duration::from_secs(600);

/// The state of a retry, if it is one of the stage's own.
fn state_of(message: &Message) -> Option<String> {
    let params = message.raw(Member::Params).and_then(Object::parse)?;
    params
        .text("requestState")
        .filter(|state| state.starts_with(SEAL))
}
