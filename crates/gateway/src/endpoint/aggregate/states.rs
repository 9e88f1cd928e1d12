//! How the members are, for clients, `/ready` and `rialto check`.

use std::time::UNIX_EPOCH;

use protocol::aggregate::{ListKind, MemberName, MemberState, View};

use super::{Aggregate, is_remote};
use crate::endpoint::Endpoint;
use crate::status::{Health, HealthKind, MemberStatus, MembersStatus};

/// The state of an aggregate at one moment.
pub(crate) struct Summary {
    pub(crate) state: HealthKind,
    pub(crate) is_ready: bool,
    pub(crate) error: Option<String>,
    pub(crate) tools: Option<usize>,
    pub(crate) members: MembersStatus,
}

impl Aggregate {
    /// Looks how the members are, and shows what has changed.
    pub(super) fn note_states(&self) {
        let members = self.members();
        let wall = self
            .shared
            .clock
            .wall()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        for (name, endpoint) in &members.endpoints {
            let state = self.state_of(name, endpoint);
            let changed = {
                let mut known = self.known.lock();
                let is_same = known
                    .get(name)
                    .is_some_and(|known| known.state == state && known.since > 0);
                (!is_same).then(|| known.change(name, |known| (known.state, known.since) = (state, wall)))
            };
            if let Some(known) = changed {
                self.tell_catalogues(name, known);
            }
        }
    }

    fn state_of(&self, name: &MemberName, endpoint: &Endpoint) -> MemberState {
        let Some(upstream) = endpoint
            .upstream
            .one()
            .filter(|upstream| upstream.broken().is_none())
        else {
            return MemberState::Down;
        };
        let health = upstream.health();
        let is_any = |is: fn(&Health) -> bool| health.iter().any(is);
        if self.leads_back(name) {
            return MemberState::Down;
        }
        let readings = self.readings.lock();
        let reading = readings.get(&(None, name.clone()));
        let has_failed = reading.is_some_and(|reading| reading.failed_at.is_some());
        let is_ready = is_any(|health| matches!(health, Health::Ready { .. }));
        // Whether a remote server answers is known only from the last time it was asked.
        if is_ready && !(has_failed && is_remote(endpoint)) {
            return MemberState::Ok;
        }
        if reading.is_some_and(|reading| reading.needs_sign_in) {
            return MemberState::SignInNeeded;
        }
        let is_down = is_any(|health| matches!(health, Health::BackingOff(_) | Health::Failed(_)));
        if is_down || has_failed {
            return MemberState::Down;
        }
        match is_any(|health| matches!(health, Health::Starting | Health::Running { .. })) {
            true => MemberState::Starting,
            false => MemberState::Idle,
        }
    }

    /// Returns its state, from the catalogue of all callers.
    pub(crate) fn summary(&self) -> Summary {
        let members = self.members();
        let known = self.known.lock().by_name.clone();
        let members: Vec<MemberStatus> = members
            .plan
            .members()
            .iter()
            .map(|member| {
                let known = known.get(member.name()).cloned().unwrap_or_default();
                MemberStatus {
                    name: member.name().clone(),
                    state: known.state,
                    since: known.since,
                }
            })
            .collect();
        let view = self.view();
        let is_usable = |member: &MemberStatus| matches!(member.state, MemberState::Ok | MemberState::Idle);
        let down: Vec<&str> = members
            .iter()
            .filter(|member| !is_usable(member) && member.state != MemberState::Starting)
            .map(|member| &*member.name)
            .collect();
        let is_ready = view.is_known() && members.iter().any(is_usable);
        Summary {
            state: match (is_ready, down.len() == members.len()) {
                (true, _) => HealthKind::Ready,
                (false, true) => HealthKind::Failed,
                (false, false) => HealthKind::Starting,
            },
            is_ready,
            error: (!down.is_empty()).then(|| format!("members cannot be used: {}", down.join(", "))),
            tools: view.is_known().then(|| view.count(ListKind::Tools)),
            members: MembersStatus {
                withheld: withheld(&view),
                members,
            },
        }
    }
}

/// Returns what is not shown though a member offers it, with the reasons.
pub(crate) fn withheld(view: &View) -> Vec<String> {
    let withheld = view.withheld().iter();
    let texts = withheld.map(|withheld| {
        let kind = withheld.kind.member();
        match withheld.name.as_str() {
            "" => format!("{kind} of `{}`: {}", withheld.member, withheld.reason),
            name => format!("`{name}` of `{}` ({kind}): {}", withheld.member, withheld.reason),
        }
    });
    texts.collect()
}

/// Returns whether a server has answered.
pub(super) fn runs(health: &[Health]) -> bool {
    health.iter().any(|health| matches!(health, Health::Ready { .. }))
}
