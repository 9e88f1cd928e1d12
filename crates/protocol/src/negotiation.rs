//! Version negotiation: which era a server speaks, learnt from what the server itself answers.
//!
//! There is one handshake for each link. The machine returns which of the two first messages is
//! due: `server/discover` of the modern era, or `initialize` of the legacy era. Only an answer
//! decides. Silence concludes nothing: after [`SILENCE`] without an answer to `server/discover`,
//! `initialize` is sent too, and the first success wins. A server that refuses both eras is
//! reported, and the next client starts the negotiation again. What a server refused before any
//! client was there turns no client away: it is asked once more.
//!
//! The machine sends nothing itself. [`crate::multiplexer`] asks it with [`Negotiation::due`],
//! sends, and reports with the `handle_*` methods.

use std::time::Duration;

use crate::error_code;
use crate::exchange::{Failure, UpstreamFault};
use crate::message::{Member, Message};
use crate::method::Method;
use crate::object::{Object, elements};
use crate::time::Moment;
use crate::version::{Era, Version};

/// How long `server/discover` may stay unanswered before `initialize` is sent beside it. A server
/// that starts slowly reads both and answers both.
pub const SILENCE: Duration = Duration::from_secs(8);

/// The eras that may be used towards a server, and the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraPlan {
    /// Configured: no other era is tried.
    Only(Era),
    /// The other era is tried if the server refuses this one.
    First(Era),
}

/// The setting `era` of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraChoice {
    /// What the server answers decides: the modern era where it has it, or the client's own for a
    /// session alone.
    Auto,
    /// The legacy era, and no other.
    Legacy,
    /// The modern era, and no other.
    Modern,
}

impl EraChoice {
    /// Returns the era used towards a server, as far as it is known before the handshake. Without
    /// knowledge it is the legacy one, which assumes less.
    pub fn expected_era(self, shown: ShownEras) -> Era {
        match self {
            Self::Legacy => Era::Legacy,
            Self::Modern => Era::Modern,
            Self::Auto if shown.speaks(Era::Modern) == Some(true) => Era::Modern,
            Self::Auto => Era::Legacy,
        }
    }
}

/// The clients that an instance of a server is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartedFor {
    /// One session: the handshake begins with the first message of its client.
    Session,
    /// Clients of any era.
    AnyClient,
}

/// Returns the era whose first message has this method, if one has.
pub fn era_of_first_message(method: Method) -> Option<Era> {
    if method == Method::Initialize {
        Some(Era::Legacy)
    } else {
        (method == Method::ServerDiscover).then_some(Era::Modern)
    }
}

impl Default for EraPlan {
    /// The era of every server that was not asked.
    fn default() -> Self {
        Self::Only(Era::Legacy)
    }
}

impl EraPlan {
    /// Returns the plan for an instance whose servers have shown this before.
    pub fn for_instance(choice: EraChoice, shown: ShownEras, started_for: StartedFor) -> Self {
        let preferred = match started_for {
            // Clients with a session are of the legacy era.
            StartedFor::Session => Era::Legacy,
            StartedFor::AnyClient => Era::Modern,
        };
        match choice {
            EraChoice::Legacy => Self::Only(Era::Legacy),
            EraChoice::Modern => Self::Only(Era::Modern),
            EraChoice::Auto => Self::First(shown.first(preferred)),
        }
    }

    /// Returns the plan for the old transport (HTTP with SSE), which is older than the modern era:
    /// nothing else is tried there, unless it is configured.
    pub const fn over_old_transport(self) -> Self {
        match self {
            Self::Only(era) => Self::Only(era),
            Self::First(_) => Self::Only(Era::Legacy),
        }
    }

    /// Returns whether a server that refuses `server/discover` is sent `initialize`.
    pub const fn falls_back(self) -> bool {
        match self {
            Self::Only(Era::Modern) => false,
            Self::Only(Era::Legacy) | Self::First(_) => true,
        }
    }

    /// Returns the era that is tried first.
    pub const fn first(self) -> Era {
        match self {
            Self::Only(era) | Self::First(era) => era,
        }
    }
}

/// What servers of one destination have shown of their eras. It chooses what is tried first, and
/// never what is concluded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShownEras {
    legacy: Option<bool>,
    modern: Option<bool>,
    exits_on_discover: bool,
}

impl ShownEras {
    /// Returns whether the server has accepted (`true`) or refused (`false`) this era.
    pub const fn speaks(self, era: Era) -> Option<bool> {
        match era {
            Era::Legacy => self.legacy,
            Era::Modern => self.modern,
        }
    }

    /// Returns whether a server that was renewed since may show more: it has not welcomed the
    /// newest era.
    pub fn may_be_outdated(self) -> bool {
        self.modern != Some(true)
    }

    /// Takes what a server has shown since. What it did not show stays.
    pub fn learn(&mut self, newer: Self) {
        self.legacy = newer.legacy.or(self.legacy);
        self.modern = newer.modern.or(self.modern);
        self.exits_on_discover = match newer.modern {
            // An answer to `server/discover` contradicts the exit.
            Some(_) => newer.exits_on_discover,
            None => self.exits_on_discover || newer.exits_on_discover,
        };
    }

    /// Returns the era to try first, where this one is preferred.
    pub const fn first(self, preferred: Era) -> Era {
        match (self.speaks(preferred), self.speaks(preferred.other())) {
            (Some(false), Some(true)) => preferred.other(),
            (Some(_) | None, Some(_) | None) => match preferred {
                Era::Modern if self.exits_on_discover => Era::Legacy,
                Era::Modern | Era::Legacy => preferred,
            },
        }
    }
}

/// Why a server refused an era.
#[derive(Debug, Clone)]
pub(crate) enum HandshakeRefusal {
    /// The server's own answer.
    Answer(Message),
    /// An answer that is no message.
    Failure(Failure),
}

impl HandshakeRefusal {
    /// Takes the failure of an era's first message for a refusal of the era, or gives it back. A
    /// legacy server may answer `server/discover` with anything, so every answer to it counts; one
    /// to `initialize` must be a message.
    pub(crate) fn by_failure(era: Era, failure: Failure) -> Result<Self, Failure> {
        match era {
            Era::Modern if is_answer(&failure) => Ok(Self::Failure(failure)),
            Era::Modern | Era::Legacy => Err(failure),
        }
    }

    /// Returns whether the server refused the revision of `server/discover` and named one of ours
    /// as supported (2026-07-28, versioning: the client retries with a revision from that list).
    fn names_our_revision(&self) -> bool {
        let Self::Answer(message) = self else {
            return false;
        };
        let Some(error) = message.raw(Member::Error).and_then(Object::parse) else {
            return false;
        };
        let code = error.get("code").and_then(|code| code.parse().ok());
        let data = error.get("data").and_then(|data| Object::parse(data.as_bytes()));
        let supported = data.as_ref().and_then(|data| data.get("supported"));
        code == Some(error_code::UNSUPPORTED_VERSION)
            && supported.and_then(elements).is_some_and(|versions| {
                let ours = Version::NEWEST_MODERN.as_str();
                versions.iter().any(|version| version.trim_matches('"') == ours)
            })
    }
}

/// Returns whether a failed `server/discover` was answered by the server: a legacy server may
/// answer a method that it does not know with anything. A server that was not reached, or refuses
/// every credential, has not answered.
fn is_answer(failure: &Failure) -> bool {
    match failure {
        Failure::TooLarge { .. } | Failure::Invalid(_) => true,
        Failure::Upstream(upstream) => match upstream.fault {
            UpstreamFault::Invalid | UpstreamFault::Refused => true,
            UpstreamFault::Lost | UpstreamFault::Unauthorized | UpstreamFault::Unsafe => false,
        },
        Failure::Timeout { .. }
        | Failure::StartTimeout { .. }
        | Failure::Exited(_)
        | Failure::Unavailable { .. }
        | Failure::Retired
        | Failure::HandshakeRefused
        | Failure::Overloaded { .. }
        | Failure::Occupied
        | Failure::Unsupported { .. }
        | Failure::Unanswered { .. }
        | Failure::Cancelled
        | Failure::SessionEnded
        | Failure::OwnerLost => false,
    }
}

/// What follows from a refusal.
#[derive(Debug)]
pub(crate) enum AfterRefusal {
    /// The other era is due, or this one once more, or an answer is awaited.
    GoOn,
    /// Every era of the plan was refused. The clients that wait get this one.
    GiveUp {
        era: Era,
        refusal: HandshakeRefusal,
        shown: ShownEras,
    },
}

#[derive(Debug, Default)]
enum Attempt {
    #[default]
    Unsent,
    Sent,
    Refused(HandshakeRefusal),
    /// Refused while there was no client. It decides nothing for clients that come later.
    RefusedToNoClient,
}

/// The machine, for one instance and all its links.
#[derive(Debug)]
pub(crate) struct Negotiation {
    plan: EraPlan,
    /// The era that was agreed on last. It is tried first on the next link.
    agreed: Option<Era>,
    legacy: Attempt,
    modern: Attempt,
    /// The server has answered something on this link.
    answered: bool,
    /// When `initialize` is sent beside an unanswered `server/discover`.
    other_at: Option<Moment>,
    /// `server/discover` was sent once more on this link, to a server that named a revision of
    /// ours.
    discovered_again: bool,
    exit: Exit,
    /// A link that ended at `server/discover` was reported since the last success.
    is_exit_reported: bool,
}

/// What is known of a server whose link ended at `server/discover`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    None,
    /// The last link ended while `server/discover` was unanswered: this one tries `initialize`
    /// first.
    Suspected,
    /// A handshake has succeeded after that.
    Confirmed,
}

impl Negotiation {
    pub(crate) fn new(plan: EraPlan) -> Self {
        Self {
            plan,
            agreed: None,
            legacy: Attempt::Unsent,
            modern: Attempt::Unsent,
            answered: false,
            other_at: None,
            discovered_again: false,
            exit: Exit::None,
            is_exit_reported: false,
        }
    }

    pub(crate) fn plan(&self) -> EraPlan {
        self.plan
    }

    /// Changes the plan. What was learnt from earlier links stays.
    pub(crate) fn set_plan(&mut self, plan: EraPlan) {
        self.plan = plan;
    }

    fn attempt(&self, era: Era) -> &Attempt {
        match era {
            Era::Legacy => &self.legacy,
            Era::Modern => &self.modern,
        }
    }

    fn attempt_mut(&mut self, era: Era) -> &mut Attempt {
        match era {
            Era::Legacy => &mut self.legacy,
            Era::Modern => &mut self.modern,
        }
    }

    /// Returns the era that is tried first on this link.
    fn first(&self) -> Era {
        match self.plan {
            EraPlan::Only(era) => era,
            EraPlan::First(_) if self.exit == Exit::Suspected => Era::Legacy,
            EraPlan::First(era) => self.agreed.unwrap_or(era),
        }
    }

    /// Returns the era whose first message is to be sent now, if one is.
    pub(crate) fn due(&self, now: Moment) -> Option<Era> {
        let first = self.first();
        let other = match self.plan {
            EraPlan::Only(_) => None,
            EraPlan::First(_) => Some(first.other()),
        };
        let other = other.filter(|other| matches!(self.attempt(*other), Attempt::Unsent));
        match self.attempt(first) {
            Attempt::Unsent => Some(first),
            Attempt::Sent => other.filter(|_| self.other_at.is_some_and(|at| at <= now)),
            Attempt::Refused(_) | Attempt::RefusedToNoClient => other,
        }
    }

    /// Returns when [`Self::due`] may have something new.
    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.other_at
    }

    /// Returns whether the server has answered anything on this link.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered
    }

    /// Returns whether an answer of the server is awaited.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.legacy, Attempt::Sent) || matches!(self.modern, Attempt::Sent)
    }

    /// The first message of this era was sent.
    pub(crate) fn handle_sent(&mut self, now: Moment, era: Era) {
        *self.attempt_mut(era) = Attempt::Sent;
        // A server that is silent after `initialize` is only waited for: a legacy server may exit
        // at a method that it does not know, and a modern one answers `initialize` with an error.
        let also = era == Era::Modern
            && self.plan == EraPlan::First(self.plan.first())
            && matches!(self.legacy, Attempt::Unsent);
        self.other_at = also.then(|| now.after(SILENCE));
    }

    /// The first message of this era did not reach the server, or will have no answer.
    pub(crate) fn handle_unsent(&mut self, era: Era) {
        *self.attempt_mut(era) = Attempt::Unsent;
        self.other_at = None;
    }

    /// What is due cannot be sent, since no client is there whose `initialize` it would be.
    pub(crate) fn handle_no_client(&mut self) {
        for era in Era::ALL {
            let attempt = self.attempt_mut(era);
            if matches!(attempt, Attempt::Refused(_)) {
                *attempt = Attempt::RefusedToNoClient;
            }
        }
    }

    /// The server has accepted this era. Returns what it has shown.
    pub(crate) fn handle_success(&mut self, era: Era) -> ShownEras {
        self.answered = true;
        self.agreed = Some(era);
        self.is_exit_reported = false;
        if self.exit == Exit::Suspected {
            self.exit = Exit::Confirmed;
        }
        let mut shown = self.refused();
        match era {
            Era::Legacy => shown.legacy = Some(true),
            Era::Modern => shown.modern = Some(true),
        }
        self.end_attempts();
        shown
    }

    /// The server has answered this era with a refusal.
    pub(crate) fn handle_refusal(&mut self, era: Era, refusal: HandshakeRefusal) -> AfterRefusal {
        self.answered = true;
        self.other_at = None;
        if era == Era::Modern && !self.discovered_again && refusal.names_our_revision() {
            self.discovered_again = true;
            self.modern = Attempt::Unsent;
            return AfterRefusal::GoOn;
        }
        *self.attempt_mut(era) = Attempt::Refused(refusal);
        let plan = self.plan;
        let other = self.attempt_mut(era.other());
        match (plan, &other) {
            (_, Attempt::Sent) | (EraPlan::First(_), Attempt::Unsent) => return AfterRefusal::GoOn,
            (EraPlan::First(_), Attempt::RefusedToNoClient) => {
                *other = Attempt::Unsent;
                return AfterRefusal::GoOn;
            }
            (EraPlan::Only(_), Attempt::Unsent | Attempt::RefusedToNoClient) | (_, Attempt::Refused(_)) => {}
        }
        let shown = self.refused();
        let refusals = [
            (Era::Legacy, std::mem::take(&mut self.legacy)),
            (Era::Modern, std::mem::take(&mut self.modern)),
        ];
        self.agreed = None;
        self.end_attempts();
        // The error of a legacy server for `initialize` helps an operator more than its error for
        // `server/discover`.
        let refused = refusals.into_iter().find_map(|(era, attempt)| match attempt {
            Attempt::Refused(refusal) => Some((era, refusal)),
            Attempt::Unsent | Attempt::Sent | Attempt::RefusedToNoClient => None,
        });
        let (era, refusal) = refused.expect("this era was refused");
        AfterRefusal::GiveUp { era, refusal, shown }
    }

    /// Returns what the server has refused on this link so far.
    fn refused(&self) -> ShownEras {
        let refused = |attempt: &Attempt| match attempt {
            Attempt::Refused(_) | Attempt::RefusedToNoClient => Some(false),
            Attempt::Unsent | Attempt::Sent => None,
        };
        ShownEras {
            legacy: refused(&self.legacy),
            modern: refused(&self.modern),
            exits_on_discover: self.exit == Exit::Confirmed,
        }
    }

    fn end_attempts(&mut self) {
        self.legacy = Attempt::Unsent;
        self.modern = Attempt::Unsent;
        self.other_at = None;
        self.discovered_again = false;
    }

    /// The conversation begins anew, on a link of which nothing is known.
    pub(crate) fn restart(&mut self) {
        self.end_attempts();
        self.answered = false;
    }

    /// The link has ended. Returns whether `server/discover` may be why: the server was asked that
    /// and answered nothing. It is returned once, until a handshake succeeds.
    pub(crate) fn handle_link_end(&mut self) -> bool {
        let asked = matches!(self.modern, Attempt::Sent) && !self.answered;
        let suspects = asked && matches!(self.plan, EraPlan::First(_));
        if suspects {
            self.exit = Exit::Suspected;
            self.agreed = None;
        } else if self.exit == Exit::Suspected && !self.answered {
            // Without that question it ended too.
            self.exit = Exit::None;
        }
        self.restart();
        suspects && !std::mem::replace(&mut self.is_exit_reported, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::START;

    fn first(era: Era) -> Negotiation {
        Negotiation::new(EraPlan::First(era))
    }

    fn refusal() -> HandshakeRefusal {
        let text = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#;
        HandshakeRefusal::Answer(Message::own(text.to_owned()))
    }

    /// Returns a negotiation in which `server/discover` was refused when no client was there.
    fn refused_to_no_client() -> Negotiation {
        let mut negotiation = first(Era::Modern);
        send(&mut negotiation, NOW, Era::Modern);
        let after = negotiation.handle_refusal(Era::Modern, refusal());
        assert!(matches!(after, AfterRefusal::GoOn));
        negotiation.handle_no_client();
        negotiation
    }

    /// Sends what is due, and expects it to be of this era.
    fn send(negotiation: &mut Negotiation, now: Moment, era: Era) {
        assert_eq!(negotiation.due(now), Some(era));
        negotiation.handle_sent(now, era);
    }

    fn shown(legacy: Option<bool>, modern: Option<bool>) -> ShownEras {
        ShownEras {
            legacy,
            modern,
            exits_on_discover: false,
        }
    }

    #[test]
    fn handshake_is_tried_in_the_configured_era_or_in_that_of_its_clients() {
        let plan = |choice, shown, started_for| EraPlan::for_instance(choice, shown, started_for);
        let unknown = ShownEras::default();
        for started_for in [StartedFor::Session, StartedFor::AnyClient] {
            let both = shown(Some(true), Some(true));
            let legacy = plan(EraChoice::Legacy, both, started_for);
            assert_eq!(legacy, EraPlan::Only(Era::Legacy));
            let modern = plan(EraChoice::Modern, both, started_for);
            assert_eq!(modern, EraPlan::Only(Era::Modern));
            let refused = shown(Some(true), Some(false));
            let refused = plan(EraChoice::Auto, refused, started_for);
            assert_eq!(refused, EraPlan::First(Era::Legacy));
        }
        let session = plan(EraChoice::Auto, unknown, StartedFor::Session);
        assert_eq!(session, EraPlan::First(Era::Legacy));
        let any = plan(EraChoice::Auto, unknown, StartedFor::AnyClient);
        assert_eq!(any, EraPlan::First(Era::Modern));
    }

    #[test]
    fn old_transport_tries_the_legacy_era_unless_another_is_configured() {
        for era in Era::ALL {
            assert_eq!(
                EraPlan::First(era).over_old_transport(),
                EraPlan::Only(Era::Legacy)
            );
            assert_eq!(EraPlan::Only(era).over_old_transport(), EraPlan::Only(era));
            assert!(EraPlan::First(era).falls_back());
        }
        assert!(EraPlan::Only(Era::Legacy).falls_back());
        assert!(!EraPlan::Only(Era::Modern).falls_back());
    }

    #[test]
    fn modern_era_is_expected_where_it_is_configured_or_was_shown() {
        let expected = |choice: EraChoice, modern| choice.expected_era(shown(None, modern));
        for modern in [None, Some(false), Some(true)] {
            assert_eq!(expected(EraChoice::Legacy, modern), Era::Legacy);
            assert_eq!(expected(EraChoice::Modern, modern), Era::Modern);
        }
        assert_eq!(expected(EraChoice::Auto, None), Era::Legacy);
        assert_eq!(expected(EraChoice::Auto, Some(false)), Era::Legacy);
        assert_eq!(expected(EraChoice::Auto, Some(true)), Era::Modern);
        assert!(shown(Some(true), None).may_be_outdated());
        assert!(shown(Some(true), Some(false)).may_be_outdated());
        assert!(!shown(Some(true), Some(true)).may_be_outdated());
    }

    #[test]
    fn first_messages_name_their_eras() {
        assert_eq!(era_of_first_message(Method::Initialize), Some(Era::Legacy));
        assert_eq!(era_of_first_message(Method::ServerDiscover), Some(Era::Modern));
        assert_eq!(era_of_first_message(Method::ToolsCall), None);
    }

    #[test]
    fn slow_start_is_no_verdict_about_the_era() {
        for accepted in Era::ALL {
            let mut negotiation = first(Era::Modern);
            send(&mut negotiation, NOW, Era::Modern);
            assert_eq!(negotiation.due(NOW), None);
            let late = NOW.after(SILENCE);
            assert_eq!(negotiation.next_deadline(), Some(late));
            send(&mut negotiation, late, Era::Legacy);
            assert_eq!(
                negotiation.due(late.after(SILENCE * 100)),
                None,
                "nothing is concluded"
            );
            let other = negotiation.handle_refusal(accepted.other(), refusal());
            assert!(matches!(other, AfterRefusal::GoOn));
            let shown = negotiation.handle_success(accepted);
            assert_eq!(shown.speaks(accepted), Some(true));
            assert_eq!(shown.speaks(accepted.other()), Some(false));
        }
    }

    #[test]
    fn silence_after_initialize_is_only_waited_for() {
        let mut negotiation = first(Era::Legacy);
        send(&mut negotiation, NOW, Era::Legacy);
        assert_eq!(negotiation.next_deadline(), None);
        assert_eq!(negotiation.due(NOW.after(SILENCE * 100)), None);
    }

    #[test]
    fn refused_era_leads_to_the_other_and_both_refused_to_a_new_start() {
        for era in Era::ALL {
            let mut negotiation = first(era);
            for _ in 0..2 {
                send(&mut negotiation, NOW, era);
                assert!(matches!(
                    negotiation.handle_refusal(era, refusal()),
                    AfterRefusal::GoOn
                ));
                send(&mut negotiation, NOW, era.other());
                let AfterRefusal::GiveUp {
                    era: refused_era,
                    shown,
                    ..
                } = negotiation.handle_refusal(era.other(), refusal())
                else {
                    panic!("no era is left");
                };
                assert_eq!(refused_era, Era::Legacy, "its error for `initialize` is reported");
                assert_eq!(shown.first(era), era, "nothing is concluded from a contradiction");
            }
        }
    }

    #[test]
    fn era_refused_to_no_client_is_tried_once_more_for_the_first_one() {
        for later in [EraPlan::First(Era::Modern), EraPlan::First(Era::Legacy)] {
            let mut negotiation = refused_to_no_client();
            negotiation.set_plan(later);
            send(&mut negotiation, NOW, Era::Legacy);
            let after = negotiation.handle_refusal(Era::Legacy, refusal());
            assert!(matches!(after, AfterRefusal::GoOn));
            send(&mut negotiation, NOW, Era::Modern);
            assert_eq!(negotiation.due(NOW.after(SILENCE)), None);
            let AfterRefusal::GiveUp { era, shown, .. } = negotiation.handle_refusal(Era::Modern, refusal())
            else {
                panic!("both eras were refused to a client");
            };
            assert_eq!(era, Era::Legacy);
            assert_eq!(shown.speaks(Era::Modern), Some(false));
        }
    }

    #[test]
    fn era_refused_to_no_client_is_not_tried_for_one_that_the_other_suits() {
        let mut negotiation = refused_to_no_client();
        send(&mut negotiation, NOW, Era::Legacy);
        let shown = negotiation.handle_success(Era::Legacy);
        assert_eq!(shown.first(Era::Modern), Era::Legacy, "it is remembered");

        let mut negotiation = refused_to_no_client();
        negotiation.set_plan(EraPlan::Only(Era::Legacy));
        send(&mut negotiation, NOW, Era::Legacy);
        let after = negotiation.handle_refusal(Era::Legacy, refusal());
        assert!(
            matches!(after, AfterRefusal::GiveUp { .. }),
            "it may not be tried"
        );
    }

    #[test]
    fn discover_is_sent_once_more_to_a_server_that_names_our_revision() {
        let unsupported = |supported: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32022,"message":"no","data":{{"supported":{supported}}}}}}}"#
            );
            HandshakeRefusal::Answer(Message::own(text))
        };
        for plan in [EraPlan::First(Era::Modern), EraPlan::Only(Era::Modern)] {
            let mut negotiation = Negotiation::new(plan);
            send(&mut negotiation, NOW, Era::Modern);
            let named = unsupported(r#"["2025-11-25","2026-07-28"]"#);
            let after = negotiation.handle_refusal(Era::Modern, named);
            assert!(matches!(after, AfterRefusal::GoOn));
            send(&mut negotiation, NOW, Era::Modern);
            negotiation.handle_success(Era::Modern);
        }
        let mut negotiation = first(Era::Modern);
        send(&mut negotiation, NOW, Era::Modern);
        negotiation.handle_refusal(Era::Modern, unsupported(r#"["2026-07-28"]"#));
        send(&mut negotiation, NOW, Era::Modern);
        negotiation.handle_refusal(Era::Modern, unsupported(r#"["2026-07-28"]"#));
        send(&mut negotiation, NOW, Era::Legacy);

        let mut negotiation = first(Era::Modern);
        send(&mut negotiation, NOW, Era::Modern);
        negotiation.handle_refusal(Era::Modern, unsupported(r#"["2025-11-25"]"#));
        send(&mut negotiation, NOW, Era::Legacy);
    }

    #[test]
    fn configured_era_is_the_only_one() {
        for era in Era::ALL {
            let mut negotiation = Negotiation::new(EraPlan::Only(era));
            send(&mut negotiation, NOW, era);
            assert_eq!(negotiation.due(NOW.after(SILENCE)), None);
            let refused = negotiation.handle_refusal(era, refusal());
            assert!(matches!(refused, AfterRefusal::GiveUp { era: refused_era, .. } if refused_era == era));
        }
    }

    #[test]
    fn server_that_exits_at_discover_is_reported_once_and_asked_otherwise() {
        let mut negotiation = first(Era::Modern);
        send(&mut negotiation, NOW, Era::Modern);
        assert!(negotiation.handle_link_end());
        send(&mut negotiation, NOW, Era::Legacy);
        let shown = negotiation.handle_success(Era::Legacy);
        assert_eq!(shown.first(Era::Modern), Era::Legacy, "it is remembered");
        assert!(!negotiation.handle_link_end(), "a crash is a crash");
        send(&mut negotiation, NOW, Era::Legacy);
    }

    #[test]
    fn server_that_exits_in_every_era_is_reported_once_and_tried_in_turn() {
        let mut negotiation = first(Era::Modern);
        for round in 0..3 {
            send(&mut negotiation, NOW, Era::Modern);
            assert_eq!(negotiation.handle_link_end(), round == 0);
            send(&mut negotiation, NOW, Era::Legacy);
            assert!(!negotiation.handle_link_end());
        }
    }

    #[test]
    fn agreed_era_is_tried_first_on_the_next_link() {
        let mut negotiation = first(Era::Modern);
        send(&mut negotiation, NOW, Era::Modern);
        negotiation.handle_refusal(Era::Modern, refusal());
        send(&mut negotiation, NOW, Era::Legacy);
        negotiation.handle_success(Era::Legacy);
        negotiation.handle_link_end();
        send(&mut negotiation, NOW, Era::Legacy);
    }

    #[test]
    fn newer_answers_replace_older_ones() {
        let mut known = ShownEras::default();
        assert_eq!(known.first(Era::Modern), Era::Modern);
        let legacy_only = ShownEras {
            legacy: Some(true),
            modern: Some(false),
            exits_on_discover: false,
        };
        known.learn(legacy_only);
        assert_eq!(known.first(Era::Modern), Era::Legacy);
        assert_eq!(known.first(Era::Legacy), Era::Legacy);
        known.learn(ShownEras {
            modern: Some(true),
            ..ShownEras::default()
        });
        assert_eq!(known.first(Era::Modern), Era::Modern);
    }

    #[test]
    fn first_message_is_awaited_until_it_is_answered() {
        let mut negotiation = first(Era::Legacy);
        assert!(!negotiation.is_open() && !negotiation.is_answered());
        send(&mut negotiation, NOW, Era::Legacy);
        assert!(negotiation.is_open() && !negotiation.is_answered());
        negotiation.handle_success(Era::Legacy);
        assert!(!negotiation.is_open() && negotiation.is_answered());
        assert_eq!(negotiation.plan(), EraPlan::First(Era::Legacy));
        negotiation.set_plan(EraPlan::Only(Era::Modern));
        assert_eq!(negotiation.plan(), EraPlan::Only(Era::Modern));
    }

    #[test]
    fn only_an_answer_to_discover_refuses_an_era() {
        let refused = || Failure::TooLarge { length: 9, limit: 1 };
        let lost = || Failure::SessionEnded;
        assert!(HandshakeRefusal::by_failure(Era::Modern, refused()).is_ok());
        assert!(HandshakeRefusal::by_failure(Era::Modern, lost()).is_err());
        assert!(HandshakeRefusal::by_failure(Era::Legacy, refused()).is_err());
    }

    #[test]
    fn exit_at_discover_is_remembered_through_later_crashes() {
        let mut negotiation = first(Era::Modern);
        send(&mut negotiation, NOW, Era::Modern);
        negotiation.handle_link_end();
        send(&mut negotiation, NOW, Era::Legacy);
        negotiation.handle_success(Era::Legacy);
        negotiation.handle_link_end();
        send(&mut negotiation, NOW, Era::Legacy);
        assert!(
            !negotiation.handle_link_end(),
            "a crash at `initialize` is a crash"
        );
        send(&mut negotiation, NOW, Era::Legacy);
        let shown = negotiation.handle_success(Era::Legacy);
        assert_eq!(shown.first(Era::Modern), Era::Legacy);
    }
}
