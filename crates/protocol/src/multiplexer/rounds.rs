//! Rounds: a server asks by answering `input_required`, and its client is asked by requests.
//!
//! The server keeps nothing. What it must be given back, and what the client answered so far, is
//! kept here with the call; when everything has been answered the call is sent again, under a new
//! id.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::message::quoted;
use crate::time::Moment;

/// How often a server may ask in one call.
pub(super) const MAX_ROUNDS: u32 = 16;
/// How long to wait before a call is sent again for which the server returned a state but no
/// question.
const PAUSE: Duration = Duration::from_millis(250);

/// What a server wants to know, and what the client has answered so far.
#[derive(Debug)]
pub(super) struct Round {
    state: Option<Bytes>,
    /// Raw results by key; `None` while the client thinks.
    answers: BTreeMap<String, Option<Bytes>>,
    /// When to go on, if there is nothing to ask.
    resume_at: Option<Moment>,
}

impl Round {
    /// Begins a round with the keys of its questions. `state` is what the server must be given
    /// back.
    pub(super) fn new<'a>(
        now: Moment,
        state: Option<Bytes>,
        questions: impl Iterator<Item = &'a String>,
    ) -> Self {
        let answers: BTreeMap<String, Option<Bytes>> = questions.map(|key| (key.clone(), None)).collect();
        Self {
            state,
            resume_at: answers.is_empty().then(|| now.after(PAUSE)),
            answers,
        }
    }

    /// Returns when the call is sent again, if there was nothing to ask.
    pub(super) const fn next_deadline(&self) -> Option<Moment> {
        self.resume_at
    }

    /// Notes the raw result of an answer. Returns whether everything has been answered.
    pub(super) fn answer(&mut self, key: &str, result: Bytes) -> bool {
        self.answers.insert(key.to_owned(), Some(result));
        self.answers.values().all(Option::is_some)
    }

    /// Returns the params that the call is sent again with.
    pub(super) fn into_params(self) -> Vec<(&'static str, Bytes)> {
        let mut params = Vec::new();
        if !self.answers.is_empty() {
            let answers = self.answers.iter().map(|(key, raw)| {
                let raw = raw.as_deref().unwrap_or(b"null");
                format!("{}:{}", quoted(key), String::from_utf8_lossy(raw))
            });
            let answers: Vec<String> = answers.collect();
            let answers = Bytes::from(format!("{{{}}}", answers.join(",")));
            params.push(("inputResponses", answers));
        }
        if let Some(state) = self.state {
            params.push(("requestState", state));
        }
        params
    }
}
