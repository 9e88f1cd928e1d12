//! The modern era (2026-07-28): every request describes itself, questions travel in
//! `input_required` results, and notifications flow only to requests that asked for them. Sends no
//! request of its own, ever.
use std::time::Duration;

use protocol::method::Method;
use protocol::version::{Era, Version};
use serde_json::{Value, json};

use super::MAX_CALLS;
use super::effect::Effect;
use super::lookup;
use super::machine::Scene;
use super::message::{self, Object, Refusal, Request, text};
use super::resources;
use super::tools::{self, Caller, Pause, ToolStep};
use envelope::Envelope;
use listening::Listen;
use parked::Parked;

mod envelope;
mod listening;
mod parked;

const MAX_LISTENS: usize = 16;

#[derive(Debug)]
pub(super) struct Modern {
    calls: Vec<Running>,
    listens: Vec<Listen>,
    parked: Parked,
}

/// A tool call that waits for time to pass.
#[derive(Debug)]
struct Running {
    asked: Asked,
    until: Duration,
    pause: Pause,
}

/// A `tools/call` as it was asked, which is all there is to know about its client.
#[derive(Debug)]
struct Asked {
    id: Value,
    envelope: Envelope,
    call: tools::Call,
}

/// Returns whether a request carries the key that only the modern era has.
pub(super) fn is_spoken_in(params: &Object) -> bool {
    envelope::version(params).is_some()
}

/// Returns whether a request is one this era accepts, so that a conversation in two eras can settle
/// on this one.
pub(super) fn accepts(params: &Object) -> bool {
    Envelope::read(params).is_ok()
}

/// Answers `server/discover`, which needs no state: a client may ask it before it has chosen an
/// era.
pub(super) fn discover(request: Request) -> Value {
    let result = Envelope::read(&request.params).map(|_| {
        cached(
            json!({"supportedVersions": [Version::NEWEST_MODERN.as_str()], "capabilities": lookup::capabilities(),
                "instructions": lookup::INSTRUCTIONS}),
            60_000,
        )
    });
    match result {
        Ok(result) => message::result(request.id, result),
        Err(refusal) => message::refusal(Some(request.id), &refusal, Era::Modern),
    }
}

impl Modern {
    /// `tokens` makes the unguessable part of `requestState`.
    pub(super) fn new(tokens: fn() -> String) -> Modern {
        Modern {
            calls: Vec::new(),
            listens: Vec::new(),
            parked: Parked::new(tokens),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.calls.iter().map(|call| call.until).min()
    }

    pub(super) fn handle_request(&mut self, scene: &mut Scene<'_>, request: Request) {
        if request.method == "server/discover" {
            return scene.out.push_back(discover(request));
        }
        let id = request.id.clone();
        let answer = self.answer(scene, request);
        scene.respond(id, answer, Era::Modern);
    }

    /// Returns the result, or nothing if the answer comes later or was put out already.
    fn answer(&mut self, scene: &mut Scene<'_>, request: Request) -> Result<Option<Value>, Refusal> {
        let Request { id, method, params } = request;
        if method == "initialize" && !is_spoken_in(&params) {
            // A legacy client learns from this error which revisions are spoken here.
            let requested = params.get("protocolVersion").cloned().unwrap_or(Value::Null);
            return Err(Refusal::UnsupportedVersion { requested });
        }
        let envelope = Envelope::read(&params)?;
        let known = Method::parse(method.as_bytes());
        if let Some(answer) = lookup::answer(known, &params, scene.state) {
            let result = answer?;
            return Ok(Some(match known {
                Method::PromptsGet | Method::CompletionComplete => complete(result),
                Method::ToolsList => cached(result, 0),
                Method::ResourcesRead if text(&params, "uri")? == resources::COUNTER => cached(result, 0),
                _ => cached(result, 300_000),
            }));
        }
        match known {
            Method::ToolsCall => {
                self.admit(&id)?;
                let asked = Asked {
                    id,
                    envelope,
                    call: tools::Call::read(&params, scene.state)?,
                };
                self.call(scene, asked, &params)?;
            }
            Method::SubscriptionsListen => {
                self.admit(&id)?;
                if self.listens.len() >= MAX_LISTENS {
                    return Err(Refusal::Busy("subscriptions"));
                }
                let listen = Listen::read(id, &params)?;
                scene.out.push_back(listen.acknowledgement());
                self.listens.push(listen);
            }
            _ => return Err(Refusal::UnknownMethod(method)),
        }
        Ok(None)
    }

    fn admit(&self, id: &Value) -> Result<(), Refusal> {
        let running = self.calls.iter().map(|call| &call.asked.id);
        if running
            .chain(self.listens.iter().map(Listen::id))
            .any(|used| used == id)
        {
            return Err(Refusal::InvalidRequest(
                "a request with this id is still running".to_owned(),
            ));
        }
        if self.calls.len() >= MAX_CALLS {
            Err(Refusal::Busy("calls"))
        } else {
            Ok(())
        }
    }

    fn call(&mut self, scene: &mut Scene<'_>, asked: Asked, params: &Object) -> Result<(), Refusal> {
        let mut effects = Vec::new();
        let next = match params.get("requestState") {
            Some(state) => {
                match self
                    .parked
                    .resume(scene.now, state, &asked.call, params.get("inputResponses"))?
                {
                    parked::Resumed::With(next) => next,
                    parked::Resumed::AskAgain(result) => {
                        scene.out.push_back(message::result(asked.id, introduced(result)));
                        return Ok(());
                    }
                }
            }
            None => {
                let capabilities = &asked.envelope.capabilities;
                let caller = Caller {
                    version: Version::NEWEST_MODERN,
                    capabilities,
                };
                asked.call.start(&caller, scene.state, &mut effects)?
            }
        };
        self.advance(scene, asked, next, effects)
    }

    /// Carries out what a call caused and what it wants next.
    fn advance(
        &mut self,
        scene: &mut Scene<'_>,
        asked: Asked,
        next: ToolStep,
        effects: Vec<Effect>,
    ) -> Result<(), Refusal> {
        for effect in effects {
            self.publish(scene, effect, &asked.envelope);
        }
        match next {
            ToolStep::Done(result) => scene.out.push_back(message::result(asked.id, complete(result))),
            ToolStep::Wait(pause, then) => self.calls.push(Running {
                asked,
                until: scene.now + pause,
                pause: then,
            }),
            ToolStep::Ask(inquiry) if inquiry.is_allowed_by(&asked.envelope.capabilities) => {
                let result = self.parked.park(scene.now, asked.call, inquiry);
                scene.out.push_back(message::result(asked.id, introduced(result)));
            }
            ToolStep::Ask(inquiry) => return Err(Refusal::MissingCapability(inquiry.required_capability())),
        }
        Ok(())
    }

    /// Sends an effect to the requests that asked for it: the request itself, or the listens.
    fn publish(&self, scene: &mut Scene<'_>, effect: Effect, envelope: &Envelope) {
        match effect {
            Effect::Progress { done, total } => {
                let token = envelope.progress_token.as_ref();
                scene.out.extend(token.map(|token| {
                    message::notification("notifications/progress", Effect::progress(token, done, total))
                }));
            }
            Effect::Log { level, text } => {
                if envelope.log_level.is_some_and(|wanted| level >= wanted) {
                    scene.out.push_back(message::notification(
                        "notifications/message",
                        Effect::log(level, &text),
                    ));
                }
            }
            Effect::ToolsChanged => scene
                .out
                .extend(self.listens.iter().filter_map(Listen::tools_changed)),
            Effect::ResourceUpdated(uri) => {
                scene.out.extend(
                    self.listens
                        .iter()
                        .filter_map(|listen| listen.resource_updated(uri)),
                );
            }
        }
    }

    pub(super) fn handle_deadline(&mut self, scene: &mut Scene<'_>) {
        for call in std::mem::take(&mut self.calls) {
            if call.until > scene.now {
                self.calls.push(call);
                continue;
            }
            let mut effects = Vec::new();
            let next = call.pause.resume(&mut effects);
            let id = call.asked.id.clone();
            if let Err(refusal) = self.advance(scene, call.asked, next, effects) {
                scene
                    .out
                    .push_back(message::refusal(Some(id), &refusal, Era::Modern));
            }
        }
    }

    pub(super) fn handle_notification(&mut self, scene: &mut Scene<'_>, method: &str, params: &Object) {
        let Some(id) = params
            .get("requestId")
            .filter(|_| method == "notifications/cancelled")
        else {
            return;
        };
        // On stdio this is how a client ends a listen as well; neither is answered any more.
        self.listens.retain(|listen| listen.id() != id);
        if let Some(position) = self.calls.iter().position(|call| call.asked.id == *id) {
            self.calls.remove(position);
            scene.state.cancelled_calls += 1;
            tracing::info!(rpc_id = %id, "call cancelled by the client");
        }
    }

    /// Ends the listens in an orderly way before the server goes.
    pub(super) fn handle_end(&mut self) -> impl Iterator<Item = Value> {
        self.listens.drain(..).map(Listen::farewell)
    }
}

/// Stamps the sender's name on a result.
fn introduced(mut result: Value) -> Value {
    result["_meta"]["io.modelcontextprotocol/serverInfo"] = lookup::server_info();
    result
}

fn complete(mut result: Value) -> Value {
    result["resultType"] = json!("complete");
    introduced(result)
}

/// Returns a complete result with how long it stays good. Nothing here depends on the caller.
fn cached(mut result: Value, ttl_ms: u64) -> Value {
    result["ttlMs"] = json!(ttl_ms);
    result["cacheScope"] = json!("public");
    complete(result)
}
