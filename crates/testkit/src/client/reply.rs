//! An answer read to its end, and the questions tests ask about it.

use bytes::Bytes;
use hyper::http::HeaderMap;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::failure::{Failure, Result};
use crate::sse::Event;

/// One body, or the events of one stream.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    /// Empty when the answer was a stream.
    pub body: Bytes,
    /// Empty when the answer was one body.
    pub events: Vec<Event>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Fails, showing the whole reply, unless it has that status.
    pub fn expect_status(&self, status: u16) -> Result<&Self> {
        if self.status == status {
            return Ok(self);
        }
        let events: Vec<&str> = self.events.iter().map(|event| event.data.as_str()).collect();
        Err(Failure::new(format!(
            "expected status {status}, got {}: {} {events:?}",
            self.status,
            self.body_text()
        )))
    }

    /// Fails unless it has that status and a JSON-RPC error with that code.
    pub fn expect_error(&self, status: u16, code: i64) -> Result<&Self> {
        self.expect_status(status)?;
        let text = self.body_text();
        let found = serde_json::from_str::<Value>(&text).map(|body| body["error"]["code"].as_i64());
        match found {
            Ok(Some(found)) if found == code => Ok(self),
            Ok(_) | Err(_) => Err(Failure::new(format!(
                "expected the JSON-RPC error {code}, got {text:?}"
            ))),
        }
    }

    /// Fails unless an accepted call failed in band, with HTTP 200, for a reason that has this
    /// status for clients that take JSON only.
    pub fn expect_failed(&self, status: u16) -> Result<&Self> {
        self.expect_status(200)?;
        if self.failure_status() == Some(status) {
            return Ok(self);
        }
        Err(Failure::new(format!(
            "expected a failure that has status {status}, got {}",
            self.answer_text()
        )))
    }

    /// The status that a client which takes JSON only gets for the failure in this answer; `None`
    /// if it is no failure of Rialto's.
    pub fn failure_status(&self) -> Option<u16> {
        let reason = self.reason()?;
        let statuses: &[(u16, &[&str])] = &[
            (404, &["session_ended"]),
            (
                502,
                &[
                    "response_too_large",
                    "invalid_response",
                    "upstream_lost",
                    "upstream_invalid_response",
                    "upstream_refused",
                    "upstream_unauthorized",
                    "upstream_unsafe",
                    "owner_lost",
                ],
            ),
            (
                503,
                &[
                    "upstream_exited",
                    "upstream_unavailable",
                    "reloaded",
                    "handshake_refused",
                    "overloaded",
                    "occupied",
                ],
            ),
            (504, &["timeout", "start_timeout"]),
        ];
        let found = statuses.iter().find(|(_, reasons)| reasons.contains(&&*reason));
        found.map(|(status, _)| *status)
    }

    /// The status of the answer, or the one that stands for the failure in it.
    pub fn outcome_status(&self) -> u16 {
        match self.status {
            200 => self.failure_status().unwrap_or(200),
            status => status,
        }
    }

    /// `error.data.reason` of the answer.
    pub fn reason(&self) -> Option<String> {
        let reason = &self.answer()["error"]["data"]["reason"];
        reason.as_str().map(str::to_owned)
    }

    /// The JSON-RPC answer as it was sent, whether as the body or as the last message of the
    /// stream.
    ///
    /// # Panics
    /// When there is none.
    pub fn answer_text(&self) -> String {
        let last = self.events.iter().rev().find(|event| !event.data.is_empty());
        let text = last.map_or_else(|| self.body_text(), |event| event.data.clone());
        assert!(!text.is_empty(), "no answer in {self:?}");
        text
    }

    /// The same, parsed.
    ///
    /// # Panics
    /// When there is no answer, or none in JSON.
    pub fn answer(&self) -> Value {
        let text = self.answer_text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// One member of the answer, byte for byte: `raw("id")`.
    pub fn raw(&self, member: &str) -> Option<String> {
        let text = self.answer_text();
        let members: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(&text).ok()?;
        members.get(member).map(|value| value.get().to_owned())
    }

    /// The text of a tool's result.
    ///
    /// # Panics
    /// When the answer is something else.
    pub fn text(&self) -> String {
        let text = self.answer()["result"]["content"][0]["text"]
            .as_str()
            .map(str::to_owned);
        text.unwrap_or_else(|| panic!("no tool result in {} {}", self.status, self.answer_text()))
    }

    /// The code of a JSON-RPC error.
    pub fn error_code(&self) -> Option<i64> {
        self.answer()["error"]["code"].as_i64()
    }

    /// What came on the stream, without events that carry no data.
    pub fn messages(&self) -> Vec<Value> {
        self.events
            .iter()
            .filter(|event| !event.data.is_empty())
            .map(Event::json)
            .collect()
    }
}
