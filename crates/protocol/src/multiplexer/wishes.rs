//! Listening to a modern server: one `subscriptions/listen` for all sessions of the lane.

use std::collections::BTreeSet;

use super::{Multiplexer, Pending};
use crate::backend_face::modern::Wish;
use crate::backend_face::{WireId, legacy, modern};
use crate::exchange::{Failure, Request, SessionKey, Tell};
use crate::message::{Kind, Member, Message};
use crate::time::Moment;

/// How often a server that ends our listens is asked again on one link.
pub(super) const LISTENS: u32 = 3;
pub(super) const NO_UPDATES: &str = "the server does not send updates of this resource";

impl Multiplexer {
    /// Makes what is listened for what the sessions want to hear.
    pub(super) fn tune(&mut self) {
        if !self.face.listens() {
            return;
        }
        let wanted = self.hearing().next().is_some().then(|| {
            let resources = self.interests.uris().into_iter().map(Wish::Resource);
            resources.chain(self.tasks.wishes()).collect::<BTreeSet<Wish>>()
        });
        // A server that takes no more listens can still be told that one is not wanted any more.
        if !self.is_ready() || (self.listens_left == 0 && wanted.is_some()) {
            return;
        }
        let id = WireId(self.next_wire);
        let Some(discovery) = self.face.discovery_mut() else {
            return;
        };
        if !discovery.must_tune(wanted.as_ref()) {
            return;
        }
        let opens = wanted.is_some();
        for closed in discovery.tune(wanted, id, self.outgoing.end()) {
            self.pending.remove(&closed);
        }
        if opens {
            self.next_wire += 1;
            self.pending.insert(id, Pending::Listen);
        }
    }

    /// The server has acknowledged a listen: who waits for a subscription learns what became of it.
    pub(super) fn handle_listening(&mut self, now: Moment, id: Option<WireId>, message: &Message) {
        let Some(discovery) = self.face.discovery_mut() else {
            return;
        };
        let Some(modern::Listened {
            replaced: old,
            honoured,
            refused,
        }) = id.and_then(|id| discovery.handle_listening(id, message, self.outgoing.end()))
        else {
            self.counters.strays += 1;
            return;
        };
        if let Some(old) = old {
            self.pending.remove(&old);
        }
        self.settle_subscriptions(now, Some(&honoured));
        // What the server does not send any more is not wished for in vain with every later listen.
        for wish in refused {
            match wish {
                Wish::Resource(uri) => self.interests.drop(&uri),
                Wish::Task(id) => self.tasks.confirm(&id, false),
            }
        }
        for wish in &honoured {
            if let Wish::Task(id) = wish {
                self.tasks.confirm(id, true);
            }
        }
        if std::mem::replace(&mut self.missed, false) {
            self.tell_to_look_again(&honoured);
        }
    }

    /// Whether a notice came by the listen that counts. While one listen replaces another the server says
    /// everything twice, and a closed one may still say something.
    pub(super) fn is_listened_for(&self, message: &Message) -> bool {
        match (self.face.discovery(), message.number(Member::MetaSubscriptionId)) {
            (Some(discovery), Some(id)) => discovery.is_current(WireId(id)),
            (Some(_) | None, _) => true,
        }
    }

    /// Nobody knows what was not heard between two listens.
    fn tell_to_look_again(&mut self, honoured: &BTreeSet<Wish>) {
        let lists = self
            .face
            .welcome()
            .map(|welcome| welcome.changing_lists.clone())
            .unwrap_or_default();
        for list in lists {
            self.tell_all(&legacy::list_changed(list));
        }
        for wish in honoured {
            match wish {
                Wish::Resource(uri) => self.handle_updated(&legacy::updated(uri)),
                // Its client asks about a task by itself.
                Wish::Task(_) => {}
            }
        }
    }

    /// A listen has ended: refused, or closed by the server.
    pub(super) fn handle_listen_end(&mut self, now: Moment, id: WireId, message: &Message) {
        let Some(discovery) = self.face.discovery_mut() else {
            return;
        };
        if !discovery.handle_listen_end(id) {
            return;
        }
        let opening = discovery.is_opening();
        // Two may end at once: the one that counts, and the one that was to take its place.
        self.listens_left = self.listens_left.saturating_sub(1);
        self.missed = true;
        if !opening && (message.kind() == Kind::Error || self.listens_left == 0) {
            self.settle_subscriptions(now, None);
        }
        self.tune();
    }

    /// The exchange of a listen broke off. It is asked for again, as long as the server acknowledges now and then.
    pub(super) fn handle_listen_lost(&mut self, now: Moment, id: WireId) {
        let Some(discovery) = self.face.discovery_mut() else {
            return;
        };
        let acknowledged = discovery.is_acknowledged(id);
        if !discovery.handle_listen_end(id) {
            return;
        }
        if acknowledged {
            self.listens_left = LISTENS;
        } else {
            self.listens_left = self.listens_left.saturating_sub(1);
            self.settle_subscriptions(now, None);
        }
        self.missed = true;
        self.tune();
    }

    /// Answers the subscriptions that waited for a listen. `None` honours none of them.
    fn settle_subscriptions(&mut self, now: Moment, honoured: Option<&BTreeSet<Wish>>) {
        let subscribing: Vec<(WireId, SessionKey, Wish)> = self
            .pending
            .iter()
            .filter_map(|(id, pending)| match pending {
                Pending::Call(call) => {
                    let wish = match &call.request {
                        Request::Subscribe { uri } => Wish::Resource(uri.clone()),
                        Request::Watch { task } => Wish::Task(task.clone()),
                        Request::Plain | Request::Unsubscribe { .. } | Request::SetLevel { .. } => {
                            return None;
                        }
                    };
                    Some((*id, call.session, wish))
                }
                Pending::Handshake
                | Pending::Listen
                | Pending::Own { .. }
                | Pending::Step { .. }
                | Pending::Background { .. } => None,
            })
            .collect();
        for (id, session, wish) in subscribing {
            let Some(call) = self.settle(now, id).map(|call| call.call) else {
                continue;
            };
            let granted = honoured.is_some_and(|honoured| honoured.contains(&wish));
            if granted {
                if let Wish::Resource(uri) = &wish {
                    self.interests.confirm(uri);
                }
                self.tell(Tell::Done { session, call });
            } else {
                match &wish {
                    Wish::Resource(uri) => {
                        self.interests.unsubscribe(session, uri);
                    }
                    Wish::Task(id) => self.tasks.confirm(id, false),
                }
                let failure = Failure::Unsupported { what: NO_UPDATES };
                self.tell(Tell::Failed {
                    session,
                    call,
                    failure,
                });
            }
        }
    }
}
