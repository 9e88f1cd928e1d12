//! A tool's question to the client, and what the tool does with the answer. How the question
//! travels (a request of the server's own, or an `input_required` result) is the era's business.
use serde_json::{Value, json};

use super::tools::{ToolStep, failure, text_result};

#[derive(Debug)]
pub(super) enum Inquiry {
    Answer { question: String },
    First,
    Second { first: String },
    Completion { prompt: String },
    Roots,
}

impl Inquiry {
    /// Returns the name of this question among the `inputRequests` of the modern era.
    pub(super) fn key(&self) -> &'static str {
        match self {
            Inquiry::Answer { .. } => "answer",
            Inquiry::First => "first",
            Inquiry::Second { .. } => "second",
            Inquiry::Completion { .. } => "completion",
            Inquiry::Roots => "roots",
        }
    }

    pub(super) fn method(&self) -> &'static str {
        match self {
            Inquiry::Answer { .. } | Inquiry::First | Inquiry::Second { .. } => "elicitation/create",
            Inquiry::Completion { .. } => "sampling/createMessage",
            Inquiry::Roots => "roots/list",
        }
    }

    pub(super) fn params(&self) -> Option<Value> {
        match self {
            Inquiry::Answer { question } => Some(form(question)),
            Inquiry::First => Some(form("First question: where does the bridge begin?")),
            Inquiry::Second { .. } => Some(form("Second question: where does it end?")),
            Inquiry::Completion { prompt } => Some(json!({"maxTokens": 200,
                "messages": [{"role": "user", "content": {"type": "text", "text": prompt}}]})),
            Inquiry::Roots => None,
        }
    }

    /// Returns what the client must have declared for this question to be allowed.
    pub(super) fn required_capability(&self) -> Value {
        match self {
            Inquiry::Answer { .. } | Inquiry::First | Inquiry::Second { .. } => {
                json!({"elicitation": {"form": {}}})
            }
            Inquiry::Completion { .. } => json!({"sampling": {}}),
            Inquiry::Roots => json!({"roots": {}}),
        }
    }

    pub(super) fn is_allowed_by(&self, capabilities: &Value) -> bool {
        match self {
            Inquiry::Answer { .. } | Inquiry::First | Inquiry::Second { .. } => {
                // An empty `elicitation` means forms, as it did before there were modes
                // (2025-11-25, elicitation).
                let declared = capabilities.get("elicitation").and_then(Value::as_object);
                declared.is_some_and(|modes| modes.contains_key("form") || !modes.contains_key("url"))
            }
            Inquiry::Completion { .. } => capabilities.get("sampling").is_some_and(Value::is_object),
            Inquiry::Roots => capabilities.get("roots").is_some_and(Value::is_object),
        }
    }

    /// Checks whether the answer has the shape its method prescribes.
    pub(super) fn check(&self, answer: &Value) -> Result<(), String> {
        let fits = match self {
            Inquiry::Answer { .. } | Inquiry::First | Inquiry::Second { .. } => {
                match answer["action"].as_str() {
                    Some("accept") => answer["content"]["answer"].is_string(),
                    Some("decline" | "cancel") => true,
                    Some(_) | None => false,
                }
            }
            Inquiry::Completion { .. } => {
                let content = &answer["content"];
                answer["role"].is_string()
                    && answer["model"].is_string()
                    && (content.is_object() || content.is_array())
            }
            Inquiry::Roots => answer["roots"].is_array(),
        };
        if fits {
            Ok(())
        } else {
            Err(format!("malformed answer to {}", self.method()))
        }
    }

    /// Goes on with a checked answer, or with the reason why there is none.
    pub(super) fn resume(self, answer: Result<Value, String>) -> ToolStep {
        let answer = match answer.and_then(|answer| self.check(&answer).map(|()| answer)) {
            Ok(answer) => answer,
            Err(why) => return ToolStep::Done(failure(&format!("{}: {why}", self.method()))),
        };
        let words = answer["content"]["answer"].as_str().unwrap_or_default();
        let accepted = answer["action"] == "accept";
        match self {
            Inquiry::Answer { .. } if accepted => {
                ToolStep::Done(text_result(&format!("The answer was: {words}")))
            }
            Inquiry::First if accepted => ToolStep::Ask(Inquiry::Second {
                first: words.to_owned(),
            }),
            Inquiry::Second { first } if accepted => {
                ToolStep::Done(text_result(&format!("From {first} to {words}.")))
            }
            Inquiry::Answer { .. } | Inquiry::First | Inquiry::Second { .. } => {
                ToolStep::Done(text_result(if answer["action"] == "decline" {
                    "The user declined to answer."
                } else {
                    "The user cancelled the question."
                }))
            }
            Inquiry::Completion { .. } => {
                let model = answer["model"].as_str().unwrap_or_default();
                ToolStep::Done(text_result(&format!(
                    "{model} said: {}",
                    spoken(&answer["content"])
                )))
            }
            Inquiry::Roots => {
                let roots = answer["roots"].as_array().map(Vec::as_slice).unwrap_or_default();
                let uris: Vec<&str> = roots.iter().filter_map(|root| root["uri"].as_str()).collect();
                let mut result = text_result(&format!("{} roots: {}", uris.len(), uris.join(", ")));
                result["structuredContent"] = json!({"roots": roots});
                ToolStep::Done(result)
            }
        }
    }
}

fn form(message: &str) -> Value {
    json!({"message": message, "requestedSchema": {"type": "object", "required": ["answer"],
        "properties": {"answer": {"type": "string", "title": "Answer", "description": "Anything you like"}}}})
}

/// Returns the text of a sampled message: one block, or several since 2025-11-25.
fn spoken(content: &Value) -> String {
    let blocks = content
        .as_array()
        .map_or(std::slice::from_ref(content), Vec::as_slice);
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    if texts.is_empty() {
        "(no text)".to_owned()
    } else {
        texts.join("\n")
    }
}
