//! Which eras a simulated server speaks, what it makes of the first message of each, and the last
//! clients, which must be served by every server after any history.

use std::sync::Arc;
use std::time::Duration;

use protocol::exchange::{Ask, CallKey, Client, Principal, SessionKey, Tell};
use protocol::negotiation::{EraPlan, ShownEras};
use protocol::version::Era;

use crate::dice::Dice;
use crate::history::Fact;
use crate::run::SimulationRun;

/// The first messages that a server understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    One(Era),
    /// Either; it stays with the one that it read first.
    Both,
    /// `initialize`; it ends at `server/discover`, as servers of early SDKs do.
    ExitsOnDiscover,
}

/// What a server makes of a first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaction {
    Accept,
    Refuse,
    Exit,
}

impl Speaks {
    pub(crate) fn thrown(dice: &mut Dice) -> Self {
        match dice.below(10) {
            0..5 => Self::One(Era::Legacy),
            5..8 => Self::One(Era::Modern),
            8 => Self::Both,
            _ => Self::ExitsOnDiscover,
        }
    }

    /// Returns its era, if that is known before it received a message.
    pub(crate) fn only(self) -> Option<Era> {
        match self {
            Self::One(era) => Some(era),
            Self::Both => None,
            Self::ExitsOnDiscover => Some(Era::Legacy),
        }
    }

    fn has(self, era: Era) -> bool {
        self.only().is_none_or(|only| only == era)
    }

    /// A plan that can work.
    pub(crate) fn plan(self, dice: &mut Dice) -> EraPlan {
        match (self, dice.below(10)) {
            (Self::One(era), 0..3) => EraPlan::Only(era),
            (_, 0..7) => EraPlan::First(Era::Modern),
            (_, _) => EraPlan::First(Era::Legacy),
        }
    }

    pub(crate) fn reaction(self, settled: Option<Era>, era: Era) -> Reaction {
        match (self, era) {
            (Self::ExitsOnDiscover, Era::Modern) => Reaction::Exit,
            _ if settled.or(self.only()).is_none_or(|only| only == era) => Reaction::Accept,
            _ => Reaction::Refuse,
        }
    }
}

/// The last clients have these numbers.
const LAST: u64 = 2_000_000;
/// Longer than any server takes to come back, which then does no more mischief.
const SERVED_WITHIN: Duration = Duration::from_secs(60);

impl SimulationRun {
    /// No verdict may name an era that the server does not speak.
    pub(crate) fn judge_shown(&mut self, backend: usize, shown: ShownEras) {
        let speaks = self.backends[backend].speaks;
        for era in Era::ALL {
            if shown.speaks(era) == Some(true) && !speaks.has(era) {
                let what = format!(
                    "backend {backend} ({speaks:?}) was taken for a {} one",
                    era.as_str()
                );
                self.note(Fact::Wrong { what });
            }
        }
    }

    /// A client of each era comes to each server when all is calm: it must be welcomed.
    pub(crate) fn serve_last_clients(&mut self) {
        let mut clients = Vec::new();
        for backend in 0..self.backends.len() {
            for era in Era::ALL {
                let session = SessionKey(LAST + clients.len() as u64);
                clients.push((backend, era, session));
                self.last_clients.insert(session, false);
                let client = Client::declaring(Principal::named("last"), None, None);
                let open = Ask::Open {
                    session,
                    call: CallKey(0),
                    client: Arc::new(client),
                    initialize: None,
                    era,
                    wants_notifications: false,
                };
                self.send_ask(backend, open);
            }
        }
        self.run_until(self.now.after(SERVED_WITHIN));
        for (backend, era, session) in clients {
            if self.last_clients.get(&session) != Some(&true) {
                let speaks = self.backends[backend].speaks;
                let what = format!(
                    "a {} client was not served by backend {backend} ({speaks:?})",
                    era.as_str()
                );
                self.note(Fact::Wrong { what });
            }
            self.send_ask(backend, Ask::Close { session });
        }
        // A request of Rialto's own that the server lost, sent because a session closed, has its
        // whole time.
        self.run_until(self.now.after(SERVED_WITHIN + SERVED_WITHIN));
    }

    /// Whether a tell is for one of the last clients.
    pub(crate) fn is_for_last_client(&mut self, tell: &Tell) -> bool {
        let Some(served) = self.last_clients.get_mut(&tell.session()) else {
            return false;
        };
        *served |= matches!(tell, Tell::Opened { .. });
        true
    }

    /// The old faults: an era is concluded from silence, or from a translated answer. Messages of
    /// the other era are lost from then on.
    pub(crate) fn is_lost_to_a_verdict(&self, backend: usize, line: &str) -> bool {
        let first_of = |line: &str, method: &str| line.contains(&format!(r#""method":"{method}""#));
        match self.backends[backend].verdict {
            None => false,
            Some(Era::Legacy) => first_of(line, "server/discover") || line.contains("supportedVersions"),
            Some(Era::Modern) => first_of(line, "initialize") || line.contains("protocolVersion\":\"2025"),
        }
    }
}
