//! Which eras a simulated server speaks, what it makes of the first message of each, and the last
//! clients, which must be served by every server after any history.

use std::sync::Arc;
use std::time::Duration;

use protocol::exchange::{Ask, Call, CallKey, Client, Principal, Request, SessionKey, Tell};
use protocol::negotiation::{EraPlan, ShownEras};
use protocol::version::Era;

use crate::aggregate::Target;
use crate::dice::Dice;
use crate::history::Fact;
use crate::run::{SimulationRun, message, value_of};

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

/// A client that comes when all is calm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastClient {
    pub(crate) target: Target,
    era: Era,
    /// It was welcomed.
    is_welcome: bool,
    /// It has read a whole list (of an aggregate).
    has_listed: bool,
}

/// The calls by which a last client of an aggregate lists tools.
const FIRST_LIST: CallKey = CallKey(1);
const LIST: CallKey = CallKey(2);

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

    /// A client of each era comes to each server when all is calm, and to the aggregate: it must be
    /// welcomed, and shown every member's tools.
    pub(crate) fn serve_last_clients(&mut self) {
        let mut targets: Vec<Target> = (0..self.backends.len()).map(Target::Backend).collect();
        targets.extend(self.aggregate.as_ref().map(|_| Target::Aggregate));
        if self.aggregate.is_some() {
            self.come_before_the_last();
        }
        let mut sessions = Vec::new();
        for target in targets {
            for era in Era::ALL {
                let session = SessionKey(LAST + sessions.len() as u64);
                sessions.push(session);
                let last = LastClient {
                    target,
                    era,
                    is_welcome: false,
                    has_listed: target != Target::Aggregate,
                };
                self.last_clients.insert(session, last);
                let client = Client::declaring(Principal::named("last"), None, None);
                let open = Ask::Open {
                    session,
                    call: CallKey(0),
                    client: Arc::new(client),
                    initialize: None,
                    era,
                    wants_notifications: false,
                };
                self.send_ask(target, open);
                // Members that nothing has started are read for a list.
                self.ask_for_the_last_list(session, FIRST_LIST);
            }
        }
        self.run_until(self.now.after(SERVED_WITHIN));
        // By now each member must be known.
        for session in &sessions {
            self.ask_for_the_last_list(*session, LIST);
        }
        self.run_until(self.now.after(Duration::from_secs(1)));
        for session in sessions {
            let Some(last) = self.last_clients.get(&session).copied() else {
                continue;
            };
            if !last.is_welcome || !last.has_listed {
                let speaks = match last.target {
                    Target::Backend(backend) => format!("{:?}", self.backends[backend].speaks),
                    Target::Aggregate => format!("welcome: {}", last.is_welcome),
                };
                let what = format!(
                    "a {} client was not served by {:?} ({speaks})",
                    last.era.as_str(),
                    last.target
                );
                self.note(Fact::Wrong { what });
            }
            self.send_ask(last.target, Ask::Close { session });
        }
        // A request of Rialto's own that the server lost, sent because a session closed, has its
        // whole time.
        self.run_until(self.now.after(SERVED_WITHIN + SERVED_WITHIN));
    }

    /// A client comes before the last ones. It may be turned away, if nothing is known of members
    /// that were away; but then they are read.
    fn come_before_the_last(&mut self) {
        let session = SessionKey(LAST - 1);
        let target = Target::Aggregate;
        let last = LastClient {
            target,
            era: Era::Modern,
            is_welcome: false,
            has_listed: false,
        };
        self.last_clients.insert(session, last);
        let open = Ask::Open {
            session,
            call: CallKey(0),
            client: Arc::new(Client::declaring(Principal::named("last"), None, None)),
            initialize: None,
            era: Era::Modern,
            wants_notifications: false,
        };
        self.send_ask(target, open);
        self.ask_for_the_last_list(session, FIRST_LIST);
        self.run_until(self.now.after(SERVED_WITHIN));
        self.send_ask(target, Ask::Close { session });
    }

    fn ask_for_the_last_list(&mut self, session: SessionKey, call: CallKey) {
        let last = self.last_clients.get(&session).copied();
        let Some(last) = last.filter(|last| last.target == Target::Aggregate) else {
            return;
        };
        let call = Call {
            session,
            call,
            request: Request::Plain,
            message: message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#),
            era: last.era,
            mirrored: None,
            reads_events: true,
        };
        self.send_ask(last.target, Ask::Call(call));
    }

    /// Whether a tell is for one of the last clients.
    pub(crate) fn is_for_last_client(&mut self, tell: &Tell) -> bool {
        let Some(last) = self.last_clients.get_mut(&tell.session()) else {
            return false;
        };
        last.is_welcome |= matches!(tell, Tell::Opened { .. });
        if let Tell::Reply {
            call: LIST, message, ..
        } = tell
            && last.target == Target::Aggregate
        {
            last.has_listed = true;
            let value = value_of(message.bytes());
            if let Some(to) = self.aggregate.as_ref().map(|one| one.addressed_by_all()) {
                let read = self.read_own_answer(&to, &value);
                if read.as_deref() != Some("listed") {
                    let what = format!("the last client was not given a list: {value}");
                    self.note(Fact::Wrong { what });
                }
            }
        }
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
