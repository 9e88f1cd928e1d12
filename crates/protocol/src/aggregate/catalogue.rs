//! The catalogue of an aggregate: what each member offered last and how it is, made into views.
//!
//! Changes are collected for a short time, so that a member that comes and goes does not make
//! clients read lists again and again. A view is given out only if it differs from the last.

use std::collections::VecDeque;
use std::sync::Arc;

use super::offer::Offer;
use super::plan::{Plan, WhenDown};
use super::view::{MemberFacts, MemberState, View};
use crate::time::{Moment, earliest};

/// What the machine wants done.
#[derive(Debug)]
pub enum CatalogueOutput {
    /// Every conversation is to show this view from now on.
    Show(Arc<View>),
}

/// What has changed since the last view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    None,
    /// The states of members alone.
    States,
    /// What is shown.
    Shown,
}

/// The catalogue of one aggregate, or of one caller of it.
///
/// `handle_*` take what is known of members; [`Self::poll_output`] returns the views that follow.
/// The driver calls [`Self::handle_deadline`] at [`Self::next_deadline`].
#[derive(Debug)]
pub struct Catalogue {
    plan: Arc<Plan>,
    facts: Vec<MemberFacts>,
    /// Since when each member is down.
    down: Vec<Option<Moment>>,
    view: Arc<View>,
    change: Change,
    /// When the next view is given out.
    due: Option<Moment>,
    outputs: VecDeque<CatalogueOutput>,
}

impl Catalogue {
    /// Returns a catalogue in which nothing is known of any member.
    pub fn new(plan: Arc<Plan>) -> Self {
        let facts = vec![MemberFacts::default(); plan.members().len()];
        Self {
            view: Arc::new(View::new(Arc::clone(&plan), facts.clone())),
            down: vec![None; facts.len()],
            facts,
            plan,
            change: Change::None,
            due: None,
            outputs: VecDeque::new(),
        }
    }

    /// Returns the view that was given out last.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Returns what is to be done next.
    pub fn poll_output(&mut self) -> Option<CatalogueOutput> {
        self.outputs.pop_front()
    }

    /// Returns when [`Self::handle_deadline`] is to be called.
    pub fn next_deadline(&self) -> Option<Moment> {
        let members = self.plan.members().iter().zip(&self.facts).zip(&self.down);
        let hidings = members.filter_map(|((member, facts), down)| match member.when_down() {
            WhenDown::Hide { grace } if !facts.is_hidden => down.map(|since| since.after(grace)),
            WhenDown::Hide { .. } | WhenDown::Keep => None,
        });
        earliest(self.due, hidings.min())
    }

    /// Takes what a member offers. What is first known of a member is shown at once.
    pub fn handle_offer(&mut self, now: Moment, member: &str, offer: Arc<Offer>) {
        let Some(facts) = self.position(member).and_then(|at| self.facts.get_mut(at)) else {
            return;
        };
        let known = facts.offer.as_ref().map(|known| known.fingerprint());
        if known == Some(offer.fingerprint()) {
            return;
        }
        facts.offer = Some(offer);
        self.note(now, Change::Shown);
        if known.is_none() {
            self.show();
        }
    }

    /// Takes the state of a member, and since when it holds in seconds of Unix time.
    pub fn handle_state(&mut self, now: Moment, member: &str, state: MemberState, since: u64) {
        let Some(at) = self.position(member) else { return };
        let (Some(facts), Some(down)) = (self.facts.get_mut(at), self.down.get_mut(at)) else {
            return;
        };
        if (facts.state, facts.since) == (state, since) {
            return;
        }
        (facts.state, facts.since) = (state, since);
        match state {
            MemberState::Down => {
                down.get_or_insert(now);
                self.note(now, Change::States);
            }
            // A start that may fail again does not make a member known as running.
            MemberState::Starting => self.note(now, Change::States),
            MemberState::Ok | MemberState::Idle | MemberState::SignInNeeded => {
                *down = None;
                let was_hidden = std::mem::take(&mut facts.is_hidden);
                self.note(now, if was_hidden { Change::Shown } else { Change::States });
            }
        }
    }

    /// Takes the page at which the user of a member can sign in; `None` if there is none.
    pub fn handle_sign_in(&mut self, now: Moment, member: &str, page: Option<Arc<str>>) {
        let facts = self.position(member).and_then(|at| self.facts.get_mut(at));
        if let Some(facts) = facts.filter(|facts| facts.sign_in != page) {
            facts.sign_in = page;
            self.note(now, Change::States);
        }
    }

    /// Takes another plan. What is known of members that stay is kept.
    pub fn handle_plan(&mut self, plan: Arc<Plan>) {
        let known = |name: &str| {
            let at = self.position(name)?;
            Some((self.facts.get(at)?.clone(), *self.down.get(at)?))
        };
        let kept = plan
            .members()
            .iter()
            .map(|member| known(member.name()).unwrap_or_default());
        let (facts, down) = kept.unzip();
        (self.facts, self.down, self.plan) = (facts, down, plan);
        self.change = Change::Shown;
        self.show();
    }

    /// Shows the view that is due, and hides members that were down for too long.
    pub fn handle_deadline(&mut self, now: Moment) {
        let members = self.plan.members().iter().zip(&mut self.facts).zip(&self.down);
        for ((member, facts), down) in members {
            let WhenDown::Hide { grace } = member.when_down() else {
                continue;
            };
            if !facts.is_hidden && down.is_some_and(|since| since.after(grace) <= now) {
                facts.is_hidden = true;
                self.change = Change::Shown;
                // There was time enough.
                self.due = Some(now);
            }
        }
        if self.due.is_some_and(|due| due <= now) {
            self.show();
        }
    }

    fn position(&self, member: &str) -> Option<usize> {
        let mut members = self.plan.members().iter();
        members.position(|known| &**known.name() == member)
    }

    fn note(&mut self, now: Moment, change: Change) {
        self.change = self.change.max(change);
        self.due.get_or_insert(now.after(self.plan.limits().coalesce));
    }

    fn show(&mut self) {
        self.due = None;
        let view = match std::mem::replace(&mut self.change, Change::None) {
            Change::None => return,
            Change::States => self.view.with_members(self.facts.clone()),
            Change::Shown => View::new(Arc::clone(&self.plan), self.facts.clone()),
        };
        self.view = Arc::new(view);
        // Only the newest is of interest.
        self.outputs.clear();
        self.outputs
            .push_back(CatalogueOutput::Show(Arc::clone(&self.view)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::offer::ListKind;
    use crate::aggregate::offer::tests::offer;
    use crate::aggregate::plan::tests::{member, spec};
    use crate::aggregate::view::tests::DECLARED;
    use crate::version::Era;
    use std::time::Duration;

    const START: Moment = Moment::START;

    fn after(milliseconds: u64) -> Moment {
        START.after(Duration::from_millis(milliseconds))
    }

    fn catalogue(when_down: WhenDown) -> Catalogue {
        let mut first = member("a", None);
        first.when_down = when_down;
        Catalogue::new(Arc::new(Plan::new(spec(vec![first, member("b", None)])).unwrap()))
    }

    fn tools(raw: &[&str]) -> Arc<Offer> {
        offer(Era::Legacy, DECLARED, [raw, &[], &[], &[]])
    }

    fn shown(catalogue: &mut Catalogue) -> Option<usize> {
        let CatalogueOutput::Show(view) = catalogue.poll_output()?;
        Some(view.count(ListKind::Tools))
    }

    #[test]
    fn first_offer_is_shown_at_once_and_changes_are_collected() {
        let mut catalogue = catalogue(WhenDown::Keep);
        assert!(!catalogue.view().is_known());
        catalogue.handle_offer(START, "a", tools(&[r#"{"name":"x"}"#]));
        assert_eq!(shown(&mut catalogue), Some(1));
        catalogue.handle_offer(START, "a", tools(&[]));
        catalogue.handle_offer(after(200), "a", tools(&[r#"{"name":"x"}"#, r#"{"name":"y"}"#]));
        catalogue.handle_deadline(after(249));
        assert_eq!(shown(&mut catalogue), None);
        assert_eq!(catalogue.next_deadline(), Some(after(250)));
        catalogue.handle_deadline(after(250));
        assert_eq!((shown(&mut catalogue), shown(&mut catalogue)), (Some(2), None));
        catalogue.handle_offer(after(300), "a", tools(&[r#"{"name":"x"}"#, r#"{"name":"y"}"#]));
        catalogue.handle_offer(after(300), "none", tools(&[]));
        assert_eq!(catalogue.next_deadline(), None, "nothing has changed");
    }

    #[test]
    fn tools_of_a_member_that_is_down_stay_or_are_hidden_after_the_grace() {
        let grace = Duration::from_secs(60);
        for (when_down, then) in [(WhenDown::Keep, None), (WhenDown::Hide { grace }, Some(0))] {
            let mut catalogue = catalogue(when_down);
            catalogue.handle_offer(START, "a", tools(&[r#"{"name":"x"}"#]));
            shown(&mut catalogue);
            catalogue.handle_state(START, "a", MemberState::Down, 1);
            catalogue.handle_deadline(after(250));
            assert_eq!(shown(&mut catalogue), Some(1), "the state is shown");
            // A start that fails again is no reason to begin anew.
            catalogue.handle_state(after(30_000), "a", MemberState::Starting, 2);
            catalogue.handle_state(after(31_000), "a", MemberState::Down, 3);
            catalogue.handle_deadline(after(59_999));
            shown(&mut catalogue);
            catalogue.handle_deadline(after(60_000));
            assert_eq!(shown(&mut catalogue), then, "{when_down:?}");
            catalogue.handle_state(after(70_000), "a", MemberState::Ok, 4);
            catalogue.handle_deadline(after(70_250));
            assert_eq!(shown(&mut catalogue), Some(1));
        }
    }

    #[test]
    fn reload_keeps_what_is_known_of_members_that_stay() {
        let mut catalogue = catalogue(WhenDown::Keep);
        catalogue.handle_offer(START, "b", tools(&[r#"{"name":"x"}"#]));
        shown(&mut catalogue);
        let plan = Plan::new(spec(vec![member("b", Some("new")), member("c", None)])).unwrap();
        catalogue.handle_plan(Arc::new(plan));
        assert_eq!(shown(&mut catalogue), Some(1));
        assert!(catalogue.view().tool("new__x").is_some());
        assert_eq!(catalogue.view().unknown_members().count(), 1);
    }
}
