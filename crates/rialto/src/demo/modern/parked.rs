//! Calls that wait for an answer between two requests. `requestState` is only a random key into
//! this table, so a forged, altered or used one finds nothing; the table is bounded by number and
//! by age.
use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use crate::demo::inquiry::Inquiry;
use crate::demo::message::Refusal;
use crate::demo::tools::{Call, ToolStep};

const MAX_PARKED: usize = 64;
const MAX_AGE: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Parked {
    tokens: fn() -> String,
    /// Oldest first.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    state: String,
    expires: Duration,
    call: Call,
    inquiry: Inquiry,
}

#[derive(Debug)]
pub(super) enum Resumed {
    With(ToolStep),
    /// The answer was not there yet: the same question once more.
    AskAgain(Value),
}

impl Parked {
    pub(super) fn new(tokens: fn() -> String) -> Parked {
        Parked {
            tokens,
            waiting: VecDeque::new(),
        }
    }

    /// Keeps the call until its answer comes. When full, the call that has waited longest is
    /// dropped: modern clients never announce that they will not come back.
    pub(super) fn park(&mut self, now: Duration, call: Call, inquiry: Inquiry) -> Value {
        if self.waiting.len() >= MAX_PARKED {
            tracing::warn!(
                limit = MAX_PARKED,
                "too many unanswered questions, the oldest is given up"
            );
            self.waiting.pop_front();
        }
        let waiting = Waiting {
            state: (self.tokens)(),
            expires: now + MAX_AGE,
            call,
            inquiry,
        };
        let result = waiting.question();
        self.waiting.push_back(waiting);
        result
    }

    /// Takes up a call again. A malformed answer is refused without using the state up.
    pub(super) fn resume(
        &mut self,
        now: Duration,
        state: &Value,
        call: &Call,
        responses: Option<&Value>,
    ) -> Result<Resumed, Refusal> {
        self.waiting.retain(|waiting| waiting.expires > now);
        let found = self
            .waiting
            .iter()
            .position(|waiting| *state == waiting.state && waiting.call == *call);
        let waiting =
            found.and_then(|position| self.waiting.get(position).map(|waiting| (position, waiting)));
        let Some((position, waiting)) = waiting else {
            let why = "requestState is unknown, expired, used, or of another call; call again without it";
            return Err(Refusal::InvalidParams(why.to_owned()));
        };
        let answer = match responses {
            None => None,
            Some(Value::Object(responses)) => responses.get(waiting.inquiry.key()),
            Some(_) => {
                return Err(Refusal::InvalidParams(
                    "inputResponses must be an object".to_owned(),
                ));
            }
        };
        let Some(answer) = answer else {
            return Ok(Resumed::AskAgain(waiting.question()));
        };
        waiting.inquiry.check(answer).map_err(Refusal::InvalidParams)?;
        let waiting = self
            .waiting
            .remove(position)
            .expect("the position was found just above");
        Ok(Resumed::With(waiting.inquiry.resume(Ok(answer.clone()))))
    }
}

impl Waiting {
    fn question(&self) -> Value {
        let mut request = json!({"method": self.inquiry.method()});
        if let Some(params) = self.inquiry.params() {
            request["params"] = params;
        }
        json!({"resultType": "input_required", "inputRequests": {self.inquiry.key(): request},
            "requestState": self.state})
    }
}
