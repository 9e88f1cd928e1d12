//! The legacy era: a session opened by `initialize`, questions as requests of the server's own, one
//! log level and one set of subscriptions per session. Refuses everything but `ping` before
//! `initialize`.
use std::collections::BTreeSet;
use std::time::Duration;

use protocol::method::{LogLevel, Method};
use protocol::version::{Era, Version};
use serde_json::{Value, json};

use super::effect::Effect;
use super::inquiry::Inquiry;
use super::lookup;
use super::machine::Scene;
use super::message::{self, Object, Refusal, Request, text};
use super::tools::{self, Caller, Pause, ToolStep};
use super::{MAX_CALLS, resources};

#[derive(Debug, Default)]
pub(super) struct Legacy {
    session: Option<Session>,
    calls: Vec<Call>,
    questions_asked: u64,
}

#[derive(Debug)]
struct Session {
    version: Version,
    capabilities: Value,
    level: LogLevel,
    subscriptions: BTreeSet<String>,
}

/// A tool call that has not ended yet.
#[derive(Debug)]
struct Call {
    id: Value,
    progress_token: Option<Value>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Waiting { until: Duration, pause: Pause },
    Asking { question: u64, inquiry: Inquiry },
}

impl Legacy {
    /// Arrays of messages were part of 2025-03-26 and of no other revision.
    pub(super) fn accepts_batches(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| session.version == Version::V2025_03_26)
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let deadlines = self.calls.iter().filter_map(|call| match call.stage {
            Stage::Waiting { until, .. } => Some(until),
            Stage::Asking { .. } => None,
        });
        deadlines.min()
    }

    pub(super) fn handle_request(&mut self, scene: &mut Scene<'_>, request: Request) {
        let id = request.id.clone();
        let answer = self.answer(scene, request);
        scene.respond(id, answer, Era::Legacy);
    }

    /// Returns the result, or nothing if the answer comes later or was put out already.
    fn answer(&mut self, scene: &mut Scene<'_>, request: Request) -> Result<Option<Value>, Refusal> {
        let Request { id, method, params } = request;
        let session = match (method.as_str(), &mut self.session) {
            ("ping", _) => return Ok(Some(json!({}))),
            // A client that looks for the modern era must learn at once that it is not spoken here.
            ("server/discover", _) => return Err(Refusal::UnknownMethod(method)),
            ("initialize", None) => return self.initialize(&params).map(Some),
            ("initialize", Some(_)) => return Err(Refusal::InvalidRequest("already initialized".to_owned())),
            (_, None) => {
                return Err(Refusal::InvalidRequest(format!(
                    "{method} came before initialize"
                )));
            }
            (_, Some(session)) => session,
        };
        let known = Method::parse(method.as_bytes());
        if let Some(answer) = lookup::answer(known, &params, scene.state) {
            return answer.map(Some);
        }
        match known {
            Method::ToolsCall => self.call(scene, id, &params).map(|()| None),
            Method::LoggingSetLevel => {
                let level = text(&params, "level")?;
                let unknown = || Refusal::InvalidParams(format!("{level:?} is no log level"));
                session.level = LogLevel::parse(level).ok_or_else(unknown)?;
                Ok(Some(json!({})))
            }
            Method::ResourcesSubscribe => {
                let uri = text(&params, "uri")?;
                if !resources::is_subscribable(uri) {
                    return Err(Refusal::UnknownResource(uri.to_owned()));
                }
                session.subscriptions.insert(uri.to_owned());
                Ok(Some(json!({})))
            }
            Method::ResourcesUnsubscribe => {
                session.subscriptions.remove(text(&params, "uri")?);
                Ok(Some(json!({})))
            }
            _ => Err(Refusal::UnknownMethod(method)),
        }
    }

    fn initialize(&mut self, params: &Object) -> Result<Value, Refusal> {
        let requested = text(params, "protocolVersion")?;
        let object = |name: &str| {
            let found = params.get(name).filter(|value| value.is_object());
            found.ok_or_else(|| Refusal::InvalidParams(format!("{name} must be an object")))
        };
        let capabilities = object("capabilities")?.clone();
        object("clientInfo")?;
        // A client that wants another revision is offered the newest one (all legacy revisions,
        // lifecycle).
        let version = Version::LEGACY
            .into_iter()
            .find(|version| version.as_str() == requested);
        let version = version.unwrap_or(Version::NEWEST_LEGACY);
        // The server chooses what to log until a level is set (all legacy revisions, logging).
        self.session = Some(Session {
            version,
            capabilities,
            level: LogLevel::Info,
            subscriptions: BTreeSet::new(),
        });
        Ok(
            json!({"protocolVersion": version.as_str(), "capabilities": lookup::capabilities(),
            "serverInfo": lookup::server_info(), "instructions": lookup::INSTRUCTIONS}),
        )
    }

    fn call(&mut self, scene: &mut Scene<'_>, id: Value, params: &Object) -> Result<(), Refusal> {
        let session = self
            .session
            .as_ref()
            .expect("calls are let in only after initialize");
        if self.calls.iter().any(|call| call.id == id) {
            return Err(Refusal::InvalidRequest(
                "a call with this id is still running".to_owned(),
            ));
        }
        if self.calls.len() >= MAX_CALLS {
            return Err(Refusal::Busy("calls"));
        }
        let call = tools::Call::read(params, scene.state)?;
        let progress_token = message::progress_token(params)?;
        let caller = Caller {
            version: session.version,
            capabilities: &session.capabilities,
        };
        let mut effects = Vec::new();
        let next = call.start(&caller, scene.state, &mut effects)?;
        self.advance(scene, id, progress_token, next, effects);
        Ok(())
    }

    /// Carries out what a call caused and what it wants next.
    fn advance(
        &mut self,
        scene: &mut Scene<'_>,
        id: Value,
        progress_token: Option<Value>,
        next: ToolStep,
        effects: Vec<Effect>,
    ) {
        let Some(session) = &self.session else { return };
        for effect in effects {
            scene
                .out
                .extend(session.notification(effect, progress_token.as_ref()));
        }
        let stage = match next {
            ToolStep::Done(result) => return scene.out.push_back(message::result(id, result)),
            ToolStep::Wait(pause, then) => Stage::Waiting {
                until: scene.now + pause,
                pause: then,
            },
            ToolStep::Ask(inquiry) if inquiry.is_allowed_by(&session.capabilities) => {
                self.questions_asked += 1;
                let question = self.questions_asked;
                scene
                    .out
                    .push_back(message::request(question, inquiry.method(), inquiry.params()));
                Stage::Asking { question, inquiry }
            }
            ToolStep::Ask(inquiry) => {
                let why = format!(
                    "This client did not declare the capability for {}.",
                    inquiry.method()
                );
                return scene.out.push_back(message::result(id, tools::failure(&why)));
            }
        };
        self.calls.push(Call {
            id,
            progress_token,
            stage,
        });
    }

    pub(super) fn handle_deadline(&mut self, scene: &mut Scene<'_>) {
        for call in std::mem::take(&mut self.calls) {
            match call.stage {
                Stage::Waiting { until, pause } if until <= scene.now => {
                    let mut effects = Vec::new();
                    let next = pause.resume(&mut effects);
                    self.advance(scene, call.id, call.progress_token, next, effects);
                }
                Stage::Waiting { .. } | Stage::Asking { .. } => self.calls.push(call),
            }
        }
    }

    pub(super) fn handle_response(
        &mut self,
        scene: &mut Scene<'_>,
        id: &Value,
        outcome: Result<Value, Value>,
    ) {
        let answered = |call: &Call| match call.stage {
            Stage::Asking { question, .. } => id.as_u64() == Some(question),
            Stage::Waiting { .. } => false,
        };
        let Some(position) = self.calls.iter().position(answered) else {
            tracing::debug!(rpc_id = %id, "response that matches no open question");
            return;
        };
        let call = self.calls.remove(position);
        let answer = outcome.map_err(|error| {
            format!(
                "the client refused: {}",
                error["message"].as_str().unwrap_or("no reason given")
            )
        });
        match call.stage {
            Stage::Asking { inquiry, .. } => {
                self.advance(
                    scene,
                    call.id,
                    call.progress_token,
                    inquiry.resume(answer),
                    Vec::new(),
                );
            }
            Stage::Waiting { .. } => {}
        }
    }

    pub(super) fn handle_notification(&mut self, scene: &mut Scene<'_>, method: &str, params: &Object) {
        if method != "notifications/cancelled" {
            return;
        }
        let Some(position) = self
            .calls
            .iter()
            .position(|call| Some(&call.id) == params.get("requestId"))
        else {
            return;
        };
        // A cancelled call is never answered; a question it had put to the client is moot as well.
        let call = self.calls.remove(position);
        scene.state.cancelled_calls += 1;
        tracing::info!(rpc_id = %call.id, "call cancelled by the client");
        match call.stage {
            Stage::Asking { question, .. } => scene.out.push_back(message::notification(
                "notifications/cancelled",
                json!({"requestId": question, "reason": "the call that asked was cancelled"}),
            )),
            Stage::Waiting { .. } => {}
        }
    }
}

impl Session {
    /// Returns the message an effect becomes, if this client wants to receive it.
    fn notification(&self, effect: Effect, progress_token: Option<&Value>) -> Option<Value> {
        let (method, params) = match effect {
            Effect::Progress { done, total } => (
                "notifications/progress",
                Effect::progress(progress_token?, done, total),
            ),
            Effect::Log { level, text } if level >= self.level => {
                ("notifications/message", Effect::log(level, &text))
            }
            Effect::Log { .. } => return None,
            Effect::ToolsChanged => ("notifications/tools/list_changed", json!({})),
            Effect::ResourceUpdated(uri) if self.subscriptions.contains(uri) => {
                ("notifications/resources/updated", json!({"uri": uri}))
            }
            Effect::ResourceUpdated(_) => return None,
        };
        Some(message::notification(method, params))
    }
}
