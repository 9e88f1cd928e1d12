//! The catalogue of an aggregate, or of one caller of it: its machine, and the conversations that
//! show its views.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use http::HeaderMap;
use protocol::aggregate::{Catalogue, CatalogueOutput, MemberName, MemberState, Offer, Plan, View};
use protocol::exchange::{Client, Failure, SessionKey};
use protocol::time::Moment;
use rustc_hash::FxHashMap;

use super::{Aggregate, Known, Scope};
use crate::clock::Clock;
use crate::conversation_handle::{ConversationHandle, ConversationSpec, MemberServer, Members, Presence};
use crate::driver::{Driver, Locked, Machine};
use crate::instance::Reservation;
use crate::tasks;
use crate::upstream::WantedFor;

/// One catalogue and the conversations that it is shown in.
pub(super) struct CatalogueHandle {
    this: Weak<Self>,
    aggregate: Weak<Aggregate>,
    scope: Scope,
    /// What servers are given to read them for this caller.
    headers: HeaderMap,
    clock: Clock,
    driver: Driver<CatalogueState>,
}

struct CatalogueState {
    catalogue: Catalogue,
    conversations: FxHashMap<SessionKey, Weak<ConversationHandle>>,
    armed: Option<Moment>,
}

/// What is to be done after the lock.
struct Show {
    view: Arc<View>,
    conversations: Vec<Arc<ConversationHandle>>,
}

impl Machine for CatalogueState {
    type Output = Show;

    fn poll_output(&mut self) -> Option<Show> {
        let CatalogueOutput::Show(view) = self.catalogue.poll_output()?;
        let conversations = self.conversations.values().filter_map(Weak::upgrade).collect();
        Some(Show { view, conversations })
    }
}

impl CatalogueHandle {
    pub(super) fn new(
        aggregate: Weak<Aggregate>,
        scope: Scope,
        headers: HeaderMap,
        clock: Clock,
        plan: Arc<Plan>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            aggregate,
            scope,
            headers,
            clock,
            driver: Driver::new(CatalogueState {
                catalogue: Catalogue::new(plan),
                conversations: FxHashMap::default(),
                armed: None,
            }),
        })
    }

    /// Takes what is known of members that all callers share.
    pub(super) fn learn(&self, known: &BTreeMap<MemberName, Known>) {
        let now = self.clock.now();
        self.act(|catalogue| {
            for (name, known) in known {
                if let Some(offer) = &known.offer {
                    catalogue.handle_offer(now, name, Arc::clone(offer));
                }
                catalogue.handle_sign_in(now, name, known.sign_in.clone());
                if known.since > 0 {
                    catalogue.handle_state(now, name, known.state, known.since);
                }
            }
        });
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    fn lock(&self) -> Locked<'_, CatalogueState> {
        self.driver.lock()
    }

    fn act(&self, act: impl FnOnce(&mut Catalogue)) {
        let due = self.driver.act(
            |state, _| {
                act(&mut state.catalogue);
                state.deadline_to_arm()
            },
            |show| {
                let now = self.clock.now();
                if let Some(aggregate) = self.aggregate.upgrade() {
                    aggregate.report_withheld(&show.view);
                }
                for conversation in show.conversations {
                    conversation.show(now, Arc::clone(&show.view));
                }
            },
        );
        if let Some(due) = due {
            self.wake_at(due);
        }
    }

    fn wake_at(&self, due: Moment) {
        let (this, clock) = (Weak::clone(&self.this), self.clock);
        tasks::spawn("catalogue", async move {
            clock.sleep_until(due).await;
            if let Some(handle) = this.upgrade() {
                handle.lock().armed = None;
                handle.reach(clock.now().max(due));
            }
        });
    }

    /// Shows what is due at this moment.
    pub(super) fn reach(&self, now: Moment) {
        self.act(|catalogue| catalogue.handle_deadline(now));
    }

    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(self.lock().catalogue.view())
    }

    /// Opens a conversation, which is shown every view from this one on.
    pub(super) fn open_conversation(
        &self,
        spec: impl FnOnce(Arc<View>) -> ConversationSpec,
    ) -> Arc<ConversationHandle> {
        let mut state = self.lock();
        // Under one lock, so that no view is missed.
        let conversation = ConversationHandle::new(spec(Arc::clone(state.catalogue.view())));
        let entry = Arc::downgrade(&conversation);
        state.conversations.insert(conversation.key(), entry);
        conversation
    }

    pub(super) fn conversations(&self) -> Vec<Arc<ConversationHandle>> {
        self.lock()
            .conversations
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(super) fn handle_offer(&self, member: &str, offer: &Arc<Offer>) {
        let now = self.clock.now();
        self.act(|catalogue| catalogue.handle_offer(now, member, Arc::clone(offer)));
    }

    pub(super) fn handle_state(&self, now: Moment, member: &str, state: MemberState, since: u64) {
        self.act(|catalogue| catalogue.handle_state(now, member, state, since));
    }

    /// Takes another plan, in which these members have other servers or are gone.
    pub(super) fn replan(&self, plan: &Arc<Plan>, gone: &[MemberName], known: &BTreeMap<MemberName, Known>) {
        self.act(|catalogue| catalogue.handle_plan(Arc::clone(plan)));
        self.learn(known);
        let now = self.clock.now();
        if !gone.is_empty() {
            for conversation in self.conversations() {
                conversation.leave_ended_instances(now);
            }
        }
    }
}

impl CatalogueState {
    /// Returns the deadline for which a task is to be started, if there is one.
    fn deadline_to_arm(&mut self) -> Option<Moment> {
        let due = self.catalogue.next_deadline()?;
        if self.armed.is_some_and(|armed| armed <= due) {
            return None;
        }
        self.armed = Some(due);
        Some(due)
    }
}

impl Members for CatalogueHandle {
    fn instance_for(
        &self,
        member: &str,
        wanted_for: WantedFor,
        client: &Client,
        headers: &HeaderMap,
    ) -> Result<(Reservation, Arc<dyn MemberServer>), Failure> {
        let aggregate = self.aggregate.upgrade().ok_or(Failure::Retired)?;
        let found = aggregate.instance_for(&self.scope, member, wanted_for, client, headers);
        found.map(|(instance, server)| (instance, server as Arc<dyn MemberServer>))
    }

    fn read(&self, member: &str) {
        if let Some(aggregate) = self.aggregate.upgrade() {
            aggregate.read_wanted(&self.scope, member);
        }
    }

    fn look(&self, member: &str, seen: Presence) {
        if let Some(aggregate) = self.aggregate.upgrade() {
            aggregate.look(&self.scope, member, seen);
        }
    }

    fn handle_list_changed(&self, member: &str) {
        if let Some(aggregate) = self.aggregate.upgrade() {
            aggregate.handle_list_changed(&self.scope, member);
        }
    }

    fn forget(&self, session: SessionKey) {
        self.lock().conversations.remove(&session);
    }
}
