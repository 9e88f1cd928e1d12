//! Sessions that go on here after the process that had them has ended.
//!
//! To the server such a session is one that a restarted server finds: the handshake, the log level
//! and the subscriptions are sent again, and its client is notified to look again at every list.

use super::Multiplexer;
use super::sessions::SessionEntry;
use super::state::Opening;
use crate::exchange::{CallKey, SessionKey, SessionState};
use crate::message::Message;
use crate::method::Method;
use crate::time::Moment;

impl Multiplexer {
    /// Attaches a session of an earlier process. Its calls wait until the server is ready.
    pub(super) fn restore(
        &mut self,
        now: Moment,
        session: SessionKey,
        call: CallKey,
        entry: SessionEntry,
        initialize: Option<&Message>,
        state: SessionState,
    ) {
        self.attach(now, session, entry, initialize);
        if !self.tell_opened_at_once(session, call) {
            self.take_state(now, session, state);
            // The state of all such sessions is sent after the handshake.
            self.link.expect_sessions();
            return self.wait_for_opening(now, session, call, Opening::Restored);
        }
        // Its client has sent `notifications/initialized` long ago, and does not send it again.
        self.link.confirm(None, &mut self.ledger);
        self.take_state(now, session, state);
        self.tell_lists_changed(&[session]);
        self.sync_listen();
    }

    /// Enters what a client has set elsewhere. A server that is ready receives at once what it does
    /// not have.
    pub(super) fn take_state(&mut self, now: Moment, session: SessionKey, state: SessionState) {
        let SessionState {
            log_level,
            subscriptions,
        } = state;
        let is_ready = self.is_ready();
        if let Some(level) = log_level {
            self.subscriptions.choose_level(session, level);
            self.tell_level(now);
        }
        for uri in subscriptions.iter().take(self.ledger.limits.subscriptions) {
            let is_known = self.subscriptions.subscribe(session, uri);
            if is_ready && !is_known {
                self.send_subscription(now, Method::ResourcesSubscribe, uri);
            }
        }
    }
}
