//! The catalogue of an aggregate, or of one caller of it: its machine, and the conversations that
//! show its views.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use http::HeaderMap;
use protocol::aggregate::{Catalogue, CatalogueOutput, MemberName, Offer, Plan, View};
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
    /// The newest change of each member that it has learned.
    learned: FxHashMap<MemberName, u64>,
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
                learned: FxHashMap::default(),
                conversations: FxHashMap::default(),
                armed: None,
            }),
        })
    }

    /// Takes what is known of members that all callers share. What is older than what it has learned
    /// changes nothing.
    pub(super) fn learn(&self, known: &BTreeMap<MemberName, Known>) {
        let now = self.clock.now();
        self.act(|state| {
            for (name, known) in known {
                if !state.is_news(name, known.version) {
                    continue;
                }
                let catalogue = &mut state.catalogue;
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

    fn act(&self, act: impl FnOnce(&mut CatalogueState)) {
        let due = self.driver.act(
            |state, _| {
                act(state);
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
        self.act(|state| state.catalogue.handle_deadline(now));
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

    /// Takes what a member offers to the caller of this catalogue alone.
    pub(super) fn handle_offer(&self, member: &str, offer: &Arc<Offer>) {
        let now = self.clock.now();
        self.act(|state| state.catalogue.handle_offer(now, member, Arc::clone(offer)));
    }

    /// Takes another plan.
    pub(super) fn replan(&self, plan: &Arc<Plan>) {
        self.act(|state| {
            state.catalogue.handle_plan(Arc::clone(plan));
            state.learned.retain(|member, _| plan.member(member).is_some());
        });
    }

    /// Has its clients leave the instances that a reload has taken out of service.
    pub(super) fn leave_ended_instances(&self) {
        let now = self.clock.now();
        for conversation in self.conversations() {
            conversation.leave_ended_instances(now);
        }
    }
}

impl CatalogueState {
    /// Notes a change of a member. Returns whether it is later than what was learned of it.
    fn is_news(&mut self, member: &MemberName, version: u64) -> bool {
        if self.catalogue.view().plan().member(member).is_none() {
            return false;
        }
        let learned = self.learned.entry(member.clone()).or_default();
        let is_news = version > *learned;
        *learned = version.max(*learned);
        is_news
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::aggregate::{ListKind, MemberSpec, MemberState, PlanSpec};

    fn offer(tool: &str) -> Arc<Offer> {
        let empty = r#"{"items":[],"ttl":0,"public":false,"withheld":null}"#;
        let text = format!(
            r#"{{"format":1,"era":"legacy","server":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}}}},"tools":{{"items":[{{"name":"{tool}"}}],"ttl":0,"public":false,"withheld":null}},"prompts":{empty},"resources":{empty},"resourceTemplates":{empty}}}"#
        );
        Arc::new(Offer::from_json(&text).expect("an offer"))
    }

    fn plan(members: &[&str]) -> Arc<Plan> {
        let members = members.iter().map(|name| MemberSpec {
            name: (*name).to_owned(),
            ..MemberSpec::default()
        });
        let spec = PlanSpec {
            members: members.collect(),
            ..PlanSpec::default()
        };
        Arc::new(Plan::new(spec).expect("a plan"))
    }

    #[tokio::test]
    async fn change_that_is_learned_late_does_not_undo_a_later_one() {
        let clock = Clock::new();
        let scope = None;
        let catalogue = CatalogueHandle::new(Weak::new(), scope, HeaderMap::new(), clock, plan(&["a"]));
        let member = MemberName::from("a");
        let learn = |version, state, tool| {
            let known = Known {
                offer: Some(offer(tool)),
                state,
                since: 1,
                version,
                ..Known::default()
            };
            catalogue.learn(&BTreeMap::from([(member.clone(), known)]));
            catalogue.reach(clock.now().after(plan(&["a"]).limits().coalesce));
            let view = catalogue.view();
            assert_eq!(view.count(ListKind::Tools), 1);
            view.tool("a__new").is_some()
        };
        assert!(!learn(1, MemberState::Ok, "old"));
        assert!(learn(3, MemberState::Ok, "new"));
        assert!(learn(2, MemberState::Down, "old"), "it is an earlier one");
        // What was learned of a member that was not in the plan, it has not learned.
        let late = MemberName::from("b");
        let known = BTreeMap::from([(
            late,
            Known {
                offer: Some(offer("x")),
                version: 4,
                ..Known::default()
            },
        )]);
        catalogue.learn(&known);
        catalogue.replan(&plan(&["a", "b"]));
        catalogue.learn(&known);
        assert!(catalogue.view().tool("b__x").is_some());
    }
}
