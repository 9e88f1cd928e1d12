//! What the tools do, written once for both eras. A tool never waits: it returns what should happen
//! next, and is resumed when that has happened, so that any number of calls run side by side in one
//! thread.
use std::time::Duration;

use protocol::method::LogLevel;
use protocol::version::Version;
use serde_json::{Value, json};

use super::effect::Effect;
use super::inquiry::Inquiry;
use super::message::{Object, Refusal, text};
use super::resources;
use arguments::Arguments;
pub(super) use catalogue::{Tool, list};

mod arguments;
mod catalogue;

/// What the tools can change.
#[derive(Debug, Default)]
pub(super) struct DemoState {
    pub(super) extra_tool: bool,
    pub(super) counter: u64,
    pub(super) cancelled_calls: u64,
}

/// On whose behalf a tool runs.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    pub(super) version: Version,
    pub(super) capabilities: &'a Value,
}

#[derive(Debug)]
pub(super) enum ToolStep {
    Done(Value),
    Wait(Duration, Pause),
    Ask(Inquiry),
}

/// A tool that waits for time to pass.
#[derive(Debug)]
pub(super) enum Pause {
    Count { done: u64, steps: u64, delay: Duration },
    Sleep { slept: Duration },
}

/// A `tools/call`, checked as far as the protocol goes: such a tool exists and its arguments are an
/// object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    pub(super) tool: Tool,
    pub(super) arguments: Object,
}

impl Call {
    pub(super) fn read(params: &Object, state: &DemoState) -> Result<Call, Refusal> {
        let name = text(params, "name")?;
        let tool =
            Tool::named(name, state).ok_or_else(|| Refusal::InvalidParams(format!("unknown tool {name}")))?;
        let arguments = match params.get("arguments") {
            None => Object::new(),
            Some(Value::Object(arguments)) => arguments.clone(),
            Some(_) => return Err(Refusal::InvalidParams("arguments must be an object".to_owned())),
        };
        Ok(Call { tool, arguments })
    }

    /// Runs the tool up to its first wait.
    pub(super) fn start(
        &self,
        caller: &Caller<'_>,
        state: &mut DemoState,
        effects: &mut Vec<Effect>,
    ) -> Result<ToolStep, Refusal> {
        match self.run(caller, state, effects) {
            Ok(next) => Ok(next),
            // Since 2025-11-25 wrong arguments are a result, so that the model reads why and tries
            // again; before, they were a protocol error ("Error Handling" of the tools page in both
            // revisions).
            Err(why) if caller.version >= Version::V2025_11_25 => Ok(ToolStep::Done(failure(&why))),
            Err(why) => Err(Refusal::InvalidParams(why)),
        }
    }

    fn run(
        &self,
        caller: &Caller<'_>,
        state: &mut DemoState,
        effects: &mut Vec<Effect>,
    ) -> Result<ToolStep, String> {
        let arguments = Arguments(&self.arguments);
        Ok(ToolStep::Done(match self.tool {
            Tool::Echo => text_result(arguments.text("text")?),
            Tool::Add => sum(arguments.number("a")?, arguments.number("b")?)?,
            Tool::Count => {
                let steps = arguments.integer("steps", 1..=1000, 5)?;
                let delay = Duration::from_millis(arguments.integer("delay_ms", 0..=60_000, 100)?);
                return Ok(ToolStep::Wait(
                    delay,
                    Pause::Count {
                        done: 0,
                        steps,
                        delay,
                    },
                ));
            }
            Tool::Sleep => {
                let slept = Duration::from_millis(arguments.integer("ms", 0..=600_000, 1000)?);
                return Ok(ToolStep::Wait(slept, Pause::Sleep { slept }));
            }
            Tool::Ask => {
                let question = arguments
                    .optional_text("question")?
                    .unwrap_or("What is your favourite bridge?");
                return Ok(ToolStep::Ask(Inquiry::Answer {
                    question: question.to_owned(),
                }));
            }
            Tool::AskTwice => return Ok(ToolStep::Ask(Inquiry::First)),
            Tool::Sample => {
                return Ok(ToolStep::Ask(Inquiry::Completion {
                    prompt: arguments.text("prompt")?.to_owned(),
                }));
            }
            Tool::Roots => return Ok(ToolStep::Ask(Inquiry::Roots)),
            Tool::Log => {
                let name = arguments.optional_text("level")?.unwrap_or("info");
                let level = LogLevel::parse(name).ok_or_else(|| format!("{name:?} is no log level"))?;
                let text = arguments.text("message")?.to_owned();
                effects.push(Effect::Log { level, text });
                text_result(&format!("Logged at level {name}."))
            }
            Tool::Image => {
                json!({"content": [{"type": "image", "data": resources::LOGO_PNG, "mimeType": "image/png"}]})
            }
            Tool::Link => link(caller.version),
            Tool::Fail => failure("This tool always fails."),
            Tool::Toggle => {
                state.extra_tool = !state.extra_tool;
                effects.push(Effect::ToolsChanged);
                text_result(if state.extra_tool {
                    "The tool extra is there now."
                } else {
                    "The tool extra is gone."
                })
            }
            Tool::Touch => {
                state.counter = state.counter.saturating_add(1);
                effects.push(Effect::ResourceUpdated(resources::COUNTER));
                text_result(&format!("{} is now {}.", resources::COUNTER, state.counter))
            }
            Tool::Whoami => structured(
                json!({"pid": std::process::id(), "era": caller.version.era().as_str(), "version": caller.version.as_str(),
                "clientCapabilities": caller.capabilities, "cancelledCalls": state.cancelled_calls}),
            ),
            Tool::Extra => text_result("You found the extra tool."),
        }))
    }
}

impl Pause {
    /// Goes on after the wait.
    pub(super) fn resume(self, effects: &mut Vec<Effect>) -> ToolStep {
        match self {
            Pause::Sleep { slept } => {
                ToolStep::Done(text_result(&format!("Slept for {} ms.", slept.as_millis())))
            }
            Pause::Count { done, steps, delay } => {
                let done = done + 1;
                effects.push(Effect::Progress { done, total: steps });
                if done < steps {
                    ToolStep::Wait(delay, Pause::Count { done, steps, delay })
                } else {
                    ToolStep::Done(text_result(&format!("Counted to {steps}.")))
                }
            }
        }
    }
}

/// Returns a result of one text.
pub(super) fn text_result(words: &str) -> Value {
    json!({"content": [{"type": "text", "text": words}]})
}

/// Returns a result that tells the model what went wrong.
pub(super) fn failure(words: &str) -> Value {
    json!({"content": [{"type": "text", "text": words}], "isError": true})
}

/// Returns a structured result, with the same as text for clients that read only that.
fn structured(value: Value) -> Value {
    json!({"content": [{"type": "text", "text": value.to_string()}], "structuredContent": value})
}

/// Whole numbers stay whole as long as they fit.
fn sum(a: &Value, b: &Value) -> Result<Value, String> {
    if let (Some(a), Some(b)) = (a.as_i64(), b.as_i64())
        && let Some(sum) = a.checked_add(b)
    {
        return Ok(structured(json!({"sum": sum})));
    }
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) if (a + b).is_finite() => Ok(structured(json!({"sum": a + b}))),
        _ => Err("the sum is too large for a number in JSON".to_owned()),
    }
}

/// Links came with 2025-06-18; an older client gets the resource itself.
fn link(version: Version) -> Value {
    let content = if version >= Version::V2025_06_18 {
        json!({"type": "resource_link", "uri": resources::README, "name": "readme", "title": "Read me",
            "description": "What this server is for", "mimeType": "text/markdown"})
    } else {
        json!({"type": "resource", "resource": {"uri": resources::README, "mimeType": "text/markdown",
            "text": resources::README_TEXT}})
    };
    json!({"content": [content]})
}
