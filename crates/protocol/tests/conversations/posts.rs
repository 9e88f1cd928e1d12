//! A server that is reached by POSTs: what its exchanges can do that a pipe cannot.

use std::sync::Arc;

use bytes::Bytes;
use protocol::backend_face::WireId;
use protocol::exchange::{Failure, Upstream};
use protocol::multiplexer::Carrier;

use crate::fixture::Fixture;

impl Fixture {
    pub(crate) fn use_posts(&mut self) {
        self.backend.set_carrier(Carrier::Posts);
    }

    pub(crate) fn server_sends_in(&mut self, id: u64, message: &str) {
        let message = Bytes::copy_from_slice(message.as_bytes());
        self.backend.handle_message(self.now, message, Some(WireId(id)));
        self.run_until_idle();
    }

    /// What becomes of the exchange of a request.
    pub(crate) fn post_ends(&mut self, id: u64, how: &str) -> Result<(), String> {
        match how.split_once(' ') {
            Some(("lost", what)) => {
                let failure = Failure::Upstream(Arc::new(Upstream::lost(what.trim_matches('"'))));
                self.backend.handle_undelivered(self.now, WireId(id), failure);
            }
            None if how == "returned" => self.backend.handle_returned(self.now, WireId(id)),
            None if how == "forgotten" => self.backend.handle_forgotten(self.now, WireId(id)),
            None if how == "begun" => self.backend.handle_begun(WireId(id)),
            None if how == "unanswered" || how == "answered" => {
                let found = self.backend.is_unanswered(WireId(id));
                if found != (how == "unanswered") {
                    return Err(format!("it is unanswered: {found}"));
                }
            }
            _ => return Err("begun, lost, returned, forgotten, answered or unanswered".into()),
        }
        self.run_until_idle();
        Ok(())
    }

    pub(crate) fn server_forgets(&mut self) {
        self.backend.handle_session_lost(self.now);
        self.run_until_idle();
    }

    pub(crate) fn outage(&mut self) {
        self.backend.handle_outage(None);
        self.run_until_idle();
    }
}
