//! Changes at the server that are about no call: changed lists, updated resources, tasks. What is
//! listened for, and which sessions are notified.

use std::collections::BTreeSet;

use super::Multiplexer;
use super::listen::ListenEnd;
use crate::backend_face::modern::ListenFilter;
use crate::backend_face::{WireId, legacy};
use crate::exchange::{Failure, Request, SessionKey, Tell};
use crate::message::{Kind, Member, Message};
use crate::time::Moment;
use crate::version::ChangeStyle;

pub(super) const NO_UPDATES: &str = "the server does not send updates of this resource";

impl Multiplexer {
    /// Makes what is listened for what the sessions want.
    pub(super) fn sync_listen(&mut self) {
        match self.link.face().changes() {
            ChangeStyle::Unasked => return,
            ChangeStyle::Listen => {}
        }
        let wanted = self.ledger.sessions.notified().next().is_some().then(|| {
            let resources = self.subscriptions.uris().into_iter().map(ListenFilter::Resource);
            resources.chain(self.tasks.watched()).collect()
        });
        self.listen.sync(wanted, &mut self.ledger, &self.link);
    }

    /// The server has acknowledged a listen: clients that wait for a subscription learn what became
    /// of it.
    pub(super) fn handle_listening(&mut self, now: Moment, id: Option<WireId>, message: &Message) {
        let acknowledged = id.and_then(|id| self.listen.handle_acknowledged(id, message, &mut self.ledger));
        let Some(acknowledged) = acknowledged else {
            self.ledger.counters.strays += 1;
            return;
        };
        self.answer_subscriptions(now, Some(&acknowledged.honoured));
        // Later listens do not ask again for what the server does not send.
        for filter in acknowledged.refused {
            match filter {
                ListenFilter::Resource(uri) => self.subscriptions.drop(&uri),
                ListenFilter::Task(id) => self.tasks.confirm(&id, false),
            }
        }
        for filter in &acknowledged.honoured {
            if let ListenFilter::Task(id) = filter {
                self.tasks.confirm(id, true);
            }
        }
        if acknowledged.missed {
            self.tell_to_look_again(&acknowledged.honoured);
        }
    }

    /// Returns whether a notification came by the listen that counts, where listens are needed.
    pub(super) fn is_listened_for(&self, message: &Message) -> bool {
        match (
            self.link.face().changes(),
            message.number(Member::MetaSubscriptionId),
        ) {
            (ChangeStyle::Listen, Some(id)) => self.listen.is_current(WireId(id)),
            (ChangeStyle::Listen, None) | (ChangeStyle::Unasked, _) => true,
        }
    }

    /// Tells the sessions of every change that may have been missed between two listens.
    fn tell_to_look_again(&mut self, honoured: &BTreeSet<ListenFilter>) {
        let sessions: Vec<SessionKey> = self.ledger.sessions.notified().collect();
        self.tell_lists_changed(&sessions);
        for filter in honoured {
            match filter {
                ListenFilter::Resource(uri) => self.handle_updated(&legacy::updated(uri)),
                // Its client asks about a task by itself.
                ListenFilter::Task(_) => {}
            }
        }
    }

    /// Reports to these sessions that each list which may change has changed.
    pub(super) fn tell_lists_changed(&mut self, sessions: &[SessionKey]) {
        let server_info = self.link.server_info();
        let lists = server_info.map(|server_info| server_info.changing_lists.clone());
        for list in lists.unwrap_or_default() {
            let message = legacy::list_changed(list);
            for &session in sessions {
                let message = message.clone();
                self.ledger.tell(Tell::Notice { session, message });
            }
        }
    }

    /// A listen has ended: refused, or closed by the server.
    pub(super) fn handle_listen_end(&mut self, now: Moment, id: WireId, message: &Message) {
        let end = self.listen.handle_end(id, message.kind() == Kind::Error);
        self.follow_listen_end(now, end);
    }

    /// The exchange of a listen broke off.
    pub(super) fn handle_listen_lost(&mut self, now: Moment, id: WireId) {
        let end = self.listen.handle_lost(id);
        self.follow_listen_end(now, end);
    }

    fn follow_listen_end(&mut self, now: Moment, end: ListenEnd) {
        match end {
            ListenEnd::Ignored => return,
            ListenEnd::Retry => {}
            ListenEnd::Refuse => self.answer_subscriptions(now, None),
        }
        self.sync_listen();
    }

    /// Answers the subscriptions that waited for a listen. `None` honours none of them.
    fn answer_subscriptions(&mut self, now: Moment, honoured: Option<&BTreeSet<ListenFilter>>) {
        let subscribing: Vec<(WireId, SessionKey, ListenFilter)> = self
            .ledger
            .calls()
            .filter_map(|(id, call)| {
                let filter = match &call.request {
                    Request::Subscribe { uri } => ListenFilter::Resource(uri.clone()),
                    Request::Watch { task } => ListenFilter::Task(task.clone()),
                    Request::Plain | Request::Unsubscribe { .. } | Request::SetLevel { .. } => {
                        return None;
                    }
                };
                Some((id, call.session, filter))
            })
            .collect();
        for (id, session, filter) in subscribing {
            let Some(call) = self.finish_call(now, id).map(|call| call.call) else {
                continue;
            };
            let granted = honoured.is_some_and(|honoured| honoured.contains(&filter));
            if granted {
                if let ListenFilter::Resource(uri) = &filter {
                    self.subscriptions.confirm(uri);
                }
                self.ledger.tell(Tell::Done { session, call });
            } else {
                match &filter {
                    ListenFilter::Resource(uri) => {
                        self.subscriptions.unsubscribe(session, uri);
                    }
                    ListenFilter::Task(id) => self.tasks.confirm(id, false),
                }
                self.ledger
                    .fail(session, call, Failure::Unsupported { what: NO_UPDATES });
            }
        }
    }

    /// Tells an update to the sessions that subscribed to its resource, or to the only session if
    /// no other principal has used the link.
    pub(super) fn handle_updated(&mut self, message: &Message) {
        if self.attribution.sole_notified(&self.ledger).is_some() {
            return self.tell_all(message);
        }
        let Some(uri) = message.text(Member::Uri) else {
            return;
        };
        let subscribers = self.subscriptions.subscribers(&uri);
        if subscribers.is_empty() {
            self.ledger.counters.unattributed += 1;
        }
        for session in subscribers {
            let message = message.clone();
            self.ledger.tell(Tell::Notice { session, message });
        }
    }

    pub(super) fn tell_all(&mut self, message: &Message) {
        let sessions: Vec<SessionKey> = self.ledger.sessions.notified().collect();
        for session in sessions {
            let message = message.clone();
            self.ledger.tell(Tell::Notice { session, message });
        }
    }

    /// Sends a log line to the session whose call it is about. If that cannot be known it goes to
    /// every session while no call runs and all are one principal's, and otherwise to none.
    pub(super) fn handle_log(&mut self, now: Moment, message: &Message, origin: Option<WireId>) {
        if self.task_log(now, message) {
            return;
        }
        let level = message.level();
        let found = match origin.map(|origin| self.origin_of(origin)) {
            Some(None) => {
                self.ledger.counters.unattributed += 1;
                return;
            }
            Some(found) => found,
            None => self.attribution.of_log(&self.ledger),
        };
        if let Some((session, wire)) = found {
            if let Some(id) = wire {
                self.ledger.note_activity(now, id);
            }
            if self.subscriptions.accepts_level(session, level) {
                let message = message.clone();
                let call = wire.and_then(|id| self.ledger.call(id));
                let tell = match call.map(|call| call.call) {
                    Some(call) => Tell::Related {
                        session,
                        call,
                        message,
                    },
                    None => Tell::Notice { session, message },
                };
                self.ledger.tell(tell);
            }
            return;
        }
        if !self.attribution.may_log_to_all(&self.ledger) {
            self.ledger.counters.unattributed += 1;
            return;
        }
        let sessions: Vec<SessionKey> = self.ledger.sessions.notified().collect();
        for session in sessions {
            if self.subscriptions.accepts_level(session, level) {
                let message = message.clone();
                self.ledger.tell(Tell::Notice { session, message });
            }
        }
    }
}
