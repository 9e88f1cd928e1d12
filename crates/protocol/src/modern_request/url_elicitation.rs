//! URLs first: a legacy server ends a call with an error that names URLs to open (2025-11-25, URL
//! elicitation required), and its client is to call again afterwards. A modern client is asked to
//! open them by a round, and its retry is that call.

use super::{Addressee, ModernRequest, Outcome};
use crate::client_face::{legacy, modern};
use crate::error_code;
use crate::exchange::{Ask, Failure};
use crate::message::{Member, Message, quoted};
use crate::method::Method;
use crate::time::Moment;
use crate::version::Era;

const DECLINED: &str = "the client did not visit what the server wants visited first";

impl ModernRequest {
    /// Begins a round of URL questions, if the answer requires it and the client can be asked.
    pub(super) fn begin_url_elicitation(&mut self, now: Moment, message: &Message, era: Era) -> bool {
        if !self.may_be_asked() {
            return false;
        }
        let Some(urls) = modern::urls_first(message, era) else {
            return false;
        };
        if !urls
            .iter()
            .all(|url| self.client.capabilities.can_answer_in_kind(url))
        {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":0,"error":{{"code":{},"message":"the server wants a URL visited first","data":{{"requiredCapabilities":{{"elicitation":{{"url":{{}}}}}}}}}}}}"#,
                error_code::MISSING_CAPABILITY
            );
            let (message, era) = (Message::own(text), modern::ERA);
            self.conclude(Outcome::Reply { message, era });
            return true;
        }
        // The call is over, and with it what else was asked for it.
        self.rounds.clear();
        for message in urls {
            self.rounds.ask(now, Addressee::UrlElicitation, message);
        }
        self.wake();
        true
    }

    /// The client has answered about URLs: when all have been visited the call is sent anew, and
    /// never when not.
    pub(super) fn end_url_elicitation(&mut self, visited: bool) -> Option<Ask> {
        if !visited {
            self.conclude(if self.original.method() == Method::ToolsCall {
                let text = format!(
                    r#"{{"jsonrpc":"2.0","id":0,"result":{{"content":[{{"type":"text","text":{}}}],"isError":true}}}}"#,
                    quoted(DECLINED)
                );
                Outcome::Reply { message: Message::own(text), era: legacy::ERA }
            } else {
                Outcome::Failed(Failure::Unanswered { why: DECLINED })
            });
            return None;
        }
        if self.rounds.is_open() {
            return None;
        }
        self.call.0 += 1;
        let request = without_answers(self.response.request());
        Some(self.call_with(request))
    }
}

/// Returns a request as it was before the round: the answers and the state are those to a question
/// that no server has asked.
fn without_answers(request: &Message) -> Message {
    let mut params = request.object(Member::Params);
    params.remove("inputResponses");
    params.remove("requestState");
    let params = params.to_string();
    let spliced = request.spliced(&[(Member::Params, params.as_bytes())]);
    Message::scan(spliced).unwrap_or_else(|_| request.clone())
}
