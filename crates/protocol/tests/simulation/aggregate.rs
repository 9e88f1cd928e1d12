//! An aggregate of a run: between its clients and the multiplexers of its members.
//!
//! Each client of it has a [`Conversation`], each member a reader, and all of them one catalogue, as
//! in the gateway. Members are backends of the run, which plain clients call too. Members are
//! removed and added by reloads, and instances of members are lost; names stay what they are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use protocol::aggregate::{
    AggregateLimits, Catalogue, CatalogueOutput, Conversation, ConversationOutput, MemberSpec, MemberState,
    NoCursors, Offer, OfferReader, Plan, PlanSpec, ReaderOutput, ToolsMode, View, WhenDown,
};
use protocol::exchange::{Ask, BackendError, Call, Client, Failure, Principal, SessionKey, Tell};
use protocol::time::{Moment, earliest};

use crate::dice::Dice;
use crate::history::{Fact, Home};
use crate::members::{name_of, of_name, title_of};
use crate::run::{BackendState, Event, Mutation, SimulationRun};

/// Where a client calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Backend(usize),
    Aggregate,
}

/// How long a client waits while nothing is known of any member.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// Readers of members have these numbers, in the order of their start.
pub(crate) const READERS: usize = 3_000_000;
/// How long after a failed reading the next one begins by itself.
const RETRY: Duration = Duration::from_secs(3);
/// How long after a failed reading clients cause no other one.
const READ_PAUSE: Duration = Duration::from_secs(1);
/// The pause before a member that gave no instance is opened again.
const PAUSE: Duration = Duration::from_secs(1);
/// Keys of a conversation's own calls have this bit.
const OWN: u64 = 1 << 63;

/// How a backend is configured as a member, which no reload changes.
#[derive(Debug)]
pub(crate) struct Configured {
    pub(crate) prefix: Option<String>,
    pub(crate) when_down: WhenDown,
    /// It is read when a client needs it, and not before.
    is_lazy: bool,
    /// Its reader stays, and learns of changes.
    stays: bool,
}

/// The reading of one member.
#[derive(Debug, Default)]
struct Reading {
    reader: Option<OfferReader>,
    is_read: bool,
    /// Something has changed while the reader was busy.
    again: bool,
    failed_at: Option<Moment>,
    read_at: Option<Moment>,
    tells: VecDeque<Tell>,
    tells_at: Moment,
}

#[derive(Debug)]
struct SimulatedConversation {
    machine: Conversation,
    /// The members at which it is a user.
    open: BTreeSet<usize>,
    asks: VecDeque<Ask>,
    asks_at: Moment,
    tells: VecDeque<(usize, Tell)>,
    tells_at: Moment,
}

#[derive(Debug)]
pub(crate) struct Aggregate {
    pub(crate) configured: Vec<Configured>,
    /// The members of the plan in their order.
    pub(crate) shown: Vec<usize>,
    /// What is known of members does not outlive a reload or a restart with another number.
    pub(crate) generation: u64,
    /// What members offered is kept on disk.
    keeps: bool,
    /// There was a plan with one member, which needs no name.
    pub(crate) was_single: bool,
    is_stopped: bool,
    catalogue: Catalogue,
    known: BTreeMap<usize, Arc<Offer>>,
    states: BTreeMap<usize, MemberState>,
    stored: BTreeMap<usize, String>,
    readings: BTreeMap<usize, Reading>,
    readers: u64,
    conversations: BTreeMap<SessionKey, SimulatedConversation>,
}

impl Aggregate {
    pub(crate) fn new(dice: &mut Dice, backends: usize) -> Self {
        let bare = dice.percent(30).then(|| dice.below(backends));
        let configured: Vec<Configured> = (0..backends)
            .map(|at| Configured {
                prefix: match bare == Some(at) {
                    true => Some(String::new()),
                    false => dice.percent(50).then(|| format!("p{at}")),
                },
                when_down: match dice.percent(20) {
                    true => WhenDown::Hide {
                        grace: Duration::from_secs(2),
                    },
                    false => WhenDown::Keep,
                },
                is_lazy: dice.percent(30),
                stays: dice.percent(50),
            })
            .collect();
        let shown = members(dice, backends);
        let plan = plan(&configured, &shown);
        Self {
            was_single: shown.len() == 1,
            keeps: dice.percent(50),
            configured,
            shown,
            generation: 0,
            is_stopped: false,
            catalogue: Catalogue::new(plan),
            known: BTreeMap::new(),
            states: BTreeMap::new(),
            stored: BTreeMap::new(),
            readings: BTreeMap::new(),
            readers: 0,
            conversations: BTreeMap::new(),
        }
    }

    /// Returns the members of which it is known what they offer, and which stay listed.
    pub(crate) fn known(&self) -> Vec<usize> {
        let is_certain = |at: &&usize| {
            let configured = self.configured.get(**at);
            self.known.contains_key(at) && configured.is_some_and(|one| one.when_down == WhenDown::Keep)
        };
        self.shown.iter().filter(is_certain).copied().collect()
    }

    /// Returns how many lines of Rialto's own a member may have got from readers: a listen, and its
    /// end.
    pub(crate) fn lines_of_readers(&self) -> usize {
        2 * self.readers as usize
    }

    pub(crate) fn home(&self) -> Home {
        Home::Members((0..self.configured.len()).collect())
    }

    fn conversation(&mut self, session: SessionKey) -> Option<&mut SimulatedConversation> {
        self.conversations.get_mut(&session)
    }

    /// Tells the catalogue what is known of members, and what is on disk.
    fn learn(&mut self, now: Moment) {
        if self.keeps {
            for at in &self.shown {
                let stored = self.stored.get(at).and_then(|text| Offer::from_json(text));
                if let Some(offer) = stored {
                    self.known.entry(*at).or_insert_with(|| Arc::new(offer));
                }
            }
        }
        for (at, offer) in &self.known {
            self.catalogue.handle_offer(now, &name_of(*at), Arc::clone(offer));
        }
    }
}

/// Returns some backends in some order, at least one.
fn members(dice: &mut Dice, backends: usize) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..backends).filter(|_| dice.percent(75)).collect();
    if shown.is_empty() {
        shown.push(dice.below(backends));
    }
    if dice.percent(30) {
        shown.reverse();
    }
    shown
}

fn plan(configured: &[Configured], shown: &[usize]) -> Arc<Plan> {
    let members = shown.iter().filter_map(|at| {
        let one = configured.get(*at)?;
        Some(MemberSpec {
            name: name_of(*at),
            title: Some(title_of(*at)),
            prefix: one.prefix.clone(),
            when_down: one.when_down,
            ..MemberSpec::default()
        })
    });
    let spec = PlanSpec {
        name: "all".into(),
        version: "1".into(),
        members: members.collect(),
        limits: AggregateLimits {
            ready_timeout: READY_TIMEOUT,
            ..AggregateLimits::default()
        },
        ..PlanSpec::default()
    };
    Arc::new(Plan::new(spec).expect("a plan that can work"))
}

fn no_instance() -> Failure {
    Failure::Unavailable {
        backend_error: Arc::new(BackendError {
            what: "no room for another instance".into(),
            ..BackendError::default()
        }),
        retry_after: PAUSE,
    }
}

impl SimulationRun {
    // From clients.

    pub(crate) fn ask_aggregate(&mut self, ask: Ask) {
        let session = ask.session();
        let at = self.now.after(self.delay());
        let is_new = {
            let Some(aggregate) = &mut self.aggregate else {
                return;
            };
            let is_new = !aggregate.conversations.contains_key(&session);
            if is_new {
                if !matches!(ask, Ask::Open { .. } | Ask::Restore { .. }) {
                    return;
                }
                let view = Arc::clone(aggregate.catalogue.view());
                let conversation = SimulatedConversation::new(view);
                aggregate.conversations.insert(session, conversation);
            }
            is_new
        };
        if is_new {
            self.refresh_members();
        }
        let Some(conversation) = self.aggregate.as_mut().and_then(|one| one.conversation(session)) else {
            return;
        };
        let at = at.max(conversation.asks_at);
        conversation.asks_at = at;
        conversation.asks.push_back(ask);
        self.plan_at(at, Event::ConversationAsk(session));
    }

    pub(crate) fn conversation_reads_ask(&mut self, session: SessionKey) {
        let now = self.now;
        let Some(conversation) = self.aggregate.as_mut().and_then(|one| one.conversation(session)) else {
            return;
        };
        let Some(ask) = conversation.asks.pop_front() else {
            return;
        };
        let closes = matches!(ask, Ask::Close { .. });
        conversation.machine.handle_ask(now, ask);
        self.serve_conversation(session);
        if !closes {
            return;
        }
        let gone = self
            .aggregate
            .as_mut()
            .and_then(|aggregate| aggregate.conversations.remove(&session));
        self.leave([(
            "members of a closed conversation",
            gone.map_or(0, |gone| gone.open.len()),
        )]);
    }

    // From members.

    /// Hands on what a multiplexer has for a client of the aggregate.
    pub(crate) fn tell_conversation(&mut self, backend: usize, tell: Tell) {
        let session = tell.session();
        let at = self.now.after(self.delay());
        let conversation = self.aggregate.as_mut().and_then(|one| one.conversation(session));
        let Some(conversation) = conversation.filter(|one| one.open.contains(&backend)) else {
            return;
        };
        let at = at.max(conversation.tells_at);
        conversation.tells_at = at;
        conversation.tells.push_back((backend, tell));
        self.plan_at(at, Event::ConversationTell(session));
    }

    pub(crate) fn conversation_reads_tell(&mut self, session: SessionKey) {
        let Some(conversation) = self.aggregate.as_mut().and_then(|one| one.conversation(session)) else {
            return;
        };
        let Some((backend, tell)) = conversation.tells.pop_front() else {
            return;
        };
        // A reader that stays is notified itself.
        let changes = matches!(&tell, Tell::Notice { message, .. } if is_list_changed(message.bytes()))
            && !self.has_reader_that_stays(backend);
        let Some(conversation) = self.aggregate.as_mut().and_then(|one| one.conversation(session)) else {
            return;
        };
        conversation.machine.handle_tell(&name_of(backend), tell);
        self.serve_conversation(session);
        if changes {
            self.read_wanted(backend);
        }
    }

    /// Carries out what a conversation orders.
    fn serve_conversation(&mut self, session: SessionKey) {
        loop {
            let conversation = self.aggregate.as_mut().and_then(|one| one.conversation(session));
            let Some(output) = conversation.and_then(|one| one.machine.poll_output()) else {
                return;
            };
            match output {
                ConversationOutput::Tell(tell) => self.tell_client(tell),
                ConversationOutput::Ask { member, ask } => {
                    for (backend, ask) in self.mutate_ask(session, of_name(&member), ask) {
                        self.ask_member(session, backend, ask);
                    }
                }
                ConversationOutput::Read(member) => self.read_wanted(of_name(&member)),
                ConversationOutput::Routed(routed) => self.note(Fact::Routed {
                    session: session.0 as usize,
                    call: routed.call.0,
                    backend: of_name(&routed.member),
                }),
            }
        }
    }

    fn tell_client(&mut self, tell: Tell) {
        if let Tell::Failed { session, call, .. } = &tell {
            self.note(Fact::GivenUp {
                session: session.0 as usize,
                backend: None,
                call: call.0,
                timed_out: false,
            });
        }
        let tell = self.mutate_list(tell);
        self.deliver(tell);
    }

    fn ask_member(&mut self, session: SessionKey, backend: usize, ask: Ask) {
        let number = session.0 as usize;
        let is_open = self
            .aggregate
            .as_mut()
            .and_then(|one| one.conversation(session))
            .is_some_and(|one| one.open.contains(&backend));
        match &ask {
            // Its server has refused the handshake, and the instance is the same.
            Ask::Open { .. } | Ask::Restore { .. } if is_open => {}
            Ask::Open { .. } | Ask::Restore { .. } => {
                let is_member = self
                    .aggregate
                    .as_ref()
                    .is_some_and(|one| one.shown.contains(&backend));
                let fails = !is_member || (!self.draining && self.dice.percent(3));
                match (&ask, fails) {
                    (_, false) => {}
                    (Ask::Restore { .. }, true) => {
                        return self.plan(PAUSE, Event::LoseMember(session, backend));
                    }
                    (_, true) => return self.lose_member(session, backend, &no_instance()),
                }
                let conversation = self.aggregate.as_mut().and_then(|one| one.conversation(session));
                let Some(conversation) = conversation else { return };
                conversation.open.insert(backend);
                self.send_ask(Target::Backend(backend), ask);
                if !self.is_confirmed(backend) {
                    self.read_wanted(backend);
                }
                return;
            }
            Ask::Close { .. } => return self.leave_member(session, backend),
            Ask::Call(Call { call, .. }) if call.0 & OWN == 0 => self.note(Fact::GivenCall {
                session: number,
                call: call.0,
                backend,
            }),
            Ask::Cancel { call, .. } if call.0 & OWN == 0 => self.note(Fact::GivenCancel {
                session: number,
                call: call.0,
                backend,
            }),
            Ask::Call(_)
            | Ask::Cancel { .. }
            | Ask::Ready { .. }
            | Ask::Answer { .. }
            | Ask::Unanswerable { .. }
            | Ask::Notice { .. } => {}
        }
        if is_open {
            self.send_ask(Target::Backend(backend), ask);
        }
    }

    /// Ends the use of a member's instance, at once and with everything that was on its way.
    fn leave_member(&mut self, session: SessionKey, backend: usize) {
        let conversation = self.aggregate.as_mut().and_then(|one| one.conversation(session));
        if !conversation.is_some_and(|one| one.open.remove(&backend)) {
            return;
        }
        self.close_at(backend, session);
        if let Some(conversation) = self.aggregate.as_mut().and_then(|one| one.conversation(session)) {
            conversation.tells.retain(|(from, _)| *from != backend);
        }
    }

    /// The instance of a member is lost for one client.
    pub(crate) fn lose_member(&mut self, session: SessionKey, backend: usize, failure: &Failure) {
        self.leave_member(session, backend);
        if let Some(conversation) = self.aggregate.as_mut().and_then(|one| one.conversation(session)) {
            conversation
                .machine
                .handle_lost_member(&name_of(backend), failure);
            self.serve_conversation(session);
        }
    }

    pub(crate) fn lose_member_again(&mut self, session: SessionKey, backend: usize) {
        self.lose_member(session, backend, &no_instance());
    }

    fn lose_some_member(&mut self) {
        let Some(aggregate) = &self.aggregate else { return };
        let open: Vec<(SessionKey, usize)> = aggregate
            .conversations
            .iter()
            .flat_map(|(session, one)| one.open.iter().map(|at| (*session, *at)))
            .collect();
        if let Some((session, backend)) = self.dice.pick(&open).copied() {
            self.lose_member(session, backend, &Failure::Retired);
        }
    }

    // What members offer.

    /// Reads a member for a client, unless it could not be read a moment ago.
    fn read_wanted(&mut self, backend: usize) {
        let now = self.now;
        let reading = self.aggregate.as_ref().and_then(|one| one.readings.get(&backend));
        let failed_at = reading.and_then(|reading| reading.failed_at);
        if failed_at.is_none_or(|at| now.since(at) >= READ_PAUSE) {
            self.read(backend);
        }
    }

    /// Begins to read a member, unless that goes on.
    fn read(&mut self, backend: usize) {
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        if aggregate.is_stopped || !aggregate.shown.contains(&backend) {
            return;
        }
        let limits = AggregateLimits::default();
        let reading = aggregate.readings.entry(backend).or_default();
        match &mut reading.reader {
            Some(reader) if reading.is_read => reader.handle_changed(None),
            Some(_) => reading.again = true,
            None => {
                let session = SessionKey(READERS as u64 + aggregate.readers);
                aggregate.readers += 1;
                let client = Client::declaring(Principal::anonymous(), None, None);
                let known = aggregate.known.get(&backend).map(|offer| &**offer);
                reading.reader = Some(OfferReader::new(session, Arc::new(client), &limits, known));
                (reading.is_read, reading.again) = (false, false);
                reading.tells.clear();
            }
        }
        self.serve_reader(backend);
    }

    fn serve_reader(&mut self, backend: usize) {
        loop {
            let reading = self
                .aggregate
                .as_mut()
                .and_then(|one| one.readings.get_mut(&backend));
            let reader = reading.and_then(|reading| reading.reader.as_mut());
            let Some(output) = reader.and_then(OfferReader::poll_output) else {
                return;
            };
            match output {
                ReaderOutput::Ask(ask) => self.send_ask(Target::Backend(backend), ask),
                ReaderOutput::Offered(offer) => self.handle_offer(backend, &offer),
                ReaderOutput::Failed(_) => {
                    let now = self.now;
                    self.close_reader(backend);
                    let aggregate = self.aggregate.as_mut();
                    if let Some(reading) = aggregate.and_then(|one| one.readings.get_mut(&backend)) {
                        reading.failed_at = Some(now);
                        reading.again = false;
                    }
                    self.note_states();
                }
            }
        }
    }

    pub(crate) fn tell_reader(&mut self, backend: usize, tell: Tell) {
        let at = self.now.after(self.delay());
        let reading = self
            .aggregate
            .as_mut()
            .and_then(|one| one.readings.get_mut(&backend));
        let Some(reading) = reading else { return };
        let session = reading.reader.as_ref().map(OfferReader::session);
        if session != Some(tell.session()) {
            return;
        }
        let at = at.max(reading.tells_at);
        reading.tells_at = at;
        reading.tells.push_back(tell);
        self.plan_at(at, Event::ReaderTell(backend));
    }

    pub(crate) fn reader_reads_tell(&mut self, backend: usize) {
        let now = self.now;
        let reading = self
            .aggregate
            .as_mut()
            .and_then(|one| one.readings.get_mut(&backend));
        let Some(reading) = reading else { return };
        if let (Some(reader), Some(tell)) = (&mut reading.reader, reading.tells.pop_front()) {
            reader.handle_tell(now, tell);
        }
        self.serve_reader(backend);
    }

    fn close_reader(&mut self, backend: usize) {
        let reading = self
            .aggregate
            .as_mut()
            .and_then(|one| one.readings.get_mut(&backend));
        let Some(reading) = reading else { return };
        reading.tells.clear();
        if let Some(mut reader) = reading.reader.take() {
            let close = reader.close();
            self.send_ask(Target::Backend(backend), close);
        }
    }

    fn handle_offer(&mut self, backend: usize, offer: &Arc<Offer>) {
        let now = self.now;
        let stored = offer.to_json();
        if Offer::from_json(&stored).as_ref() != Some(&**offer) {
            self.note(Fact::Wrong {
                what: format!("an offer is not what was stored of it: {stored}"),
            });
        }
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        let stays = aggregate.configured.get(backend).is_some_and(|one| one.stays);
        let Some(reading) = aggregate.readings.get_mut(&backend) else {
            return;
        };
        (reading.is_read, reading.failed_at, reading.read_at) = (true, None, Some(now));
        let again = std::mem::take(&mut reading.again);
        aggregate.known.insert(backend, Arc::clone(offer));
        aggregate.stored.insert(backend, stored);
        aggregate
            .catalogue
            .handle_offer(now, &name_of(backend), Arc::clone(offer));
        if !stays {
            self.close_reader(backend);
        }
        self.show_views();
        self.note_states();
        if again {
            self.read(backend);
        }
    }

    fn has_reader_that_stays(&self, backend: usize) -> bool {
        let reading = self.aggregate.as_ref().and_then(|one| one.readings.get(&backend));
        reading.is_some_and(|reading| reading.reader.is_some() && reading.is_read)
    }

    fn is_confirmed(&self, backend: usize) -> bool {
        let reading = self.aggregate.as_ref().and_then(|one| one.readings.get(&backend));
        reading.is_some_and(|reading| reading.read_at.is_some() || reading.reader.is_some())
    }

    /// Reads members again whose servers run, where no reader stays that would learn of changes.
    fn refresh_members(&mut self) {
        let Some(aggregate) = &self.aggregate else { return };
        let now = self.now;
        let is_old = |at: &&usize| {
            let runs = self
                .backends
                .get(**at)
                .is_some_and(|one| one.machine.is_answered());
            let reading = aggregate.readings.get(at);
            let read_at = reading
                .filter(|reading| reading.reader.is_none())
                .and_then(|reading| reading.read_at);
            runs && read_at.is_some_and(|at| now.since(at) >= RETRY)
        };
        let old: Vec<usize> = aggregate.shown.iter().filter(is_old).copied().collect();
        let is_unread =
            |at: &&usize| !aggregate.readings.contains_key(at) && !aggregate.known.contains_key(at);
        let unread: Vec<usize> = aggregate.shown.iter().filter(is_unread).copied().collect();
        for at in old {
            self.read(at);
        }
        // The client's next list has what they offer.
        for at in unread {
            self.read_wanted(at);
        }
    }

    /// Begins to read members that need not wait for a client.
    pub(crate) fn start_readers(&mut self) {
        let Some(aggregate) = &self.aggregate else { return };
        let is_eager = |at: &&usize| aggregate.configured.get(**at).is_some_and(|one| !one.is_lazy);
        let eager: Vec<usize> = aggregate.shown.iter().filter(is_eager).copied().collect();
        self.note_states();
        for at in eager {
            self.read(at);
        }
    }

    fn note_states(&mut self) {
        let now = self.now;
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        for at in &aggregate.shown {
            let Some(backend) = self.backends.get(*at) else {
                continue;
            };
            let reading = aggregate.readings.get(at);
            let has_failed = reading.is_some_and(|reading| reading.failed_at.is_some());
            let state = match backend.state() {
                BackendState::Up if backend.machine.is_answered() => MemberState::Ok,
                BackendState::Unavailable => MemberState::Down,
                BackendState::Up | BackendState::Starting | BackendState::Stopped if has_failed => {
                    MemberState::Down
                }
                BackendState::Up | BackendState::Starting => MemberState::Starting,
                BackendState::Stopped => MemberState::Idle,
            };
            if aggregate.states.insert(*at, state) != Some(state) {
                let since = now.elapsed().as_secs() + 1;
                aggregate.catalogue.handle_state(now, &name_of(*at), state, since);
            }
        }
        self.show_views();
    }

    fn show_views(&mut self) {
        loop {
            let Some(aggregate) = &mut self.aggregate else {
                return;
            };
            let Some(CatalogueOutput::Show(view)) = aggregate.catalogue.poll_output() else {
                return;
            };
            let now = self.now;
            let sessions: Vec<SessionKey> = aggregate.conversations.keys().copied().collect();
            for session in sessions {
                let conversation = self.aggregate.as_mut().and_then(|one| one.conversation(session));
                if let Some(conversation) = conversation {
                    conversation.machine.handle_view(now, Arc::clone(&view));
                    self.serve_conversation(session);
                }
            }
        }
    }

    // Time, reloads, restarts and the end.

    pub(crate) fn aggregate_deadline(&self) -> Option<Moment> {
        let aggregate = self.aggregate.as_ref()?;
        let conversations = aggregate.conversations.values();
        let readers = aggregate.readings.values().filter_map(|one| one.reader.as_ref());
        conversations
            .map(|one| one.machine.next_deadline())
            .chain(readers.map(OfferReader::next_deadline))
            .fold(aggregate.catalogue.next_deadline(), earliest)
    }

    pub(crate) fn handle_aggregate_deadline(&mut self) {
        let now = self.now;
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        if aggregate.catalogue.next_deadline().is_some_and(|at| at <= now) {
            aggregate.catalogue.handle_deadline(now);
            self.show_views();
        }
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        let mut read = Vec::new();
        for (backend, reading) in &mut aggregate.readings {
            if let Some(reader) = &mut reading.reader {
                reader.handle_deadline(now);
                read.push(*backend);
            }
        }
        for backend in read {
            self.serve_reader(backend);
        }
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        let due = aggregate.conversations.iter();
        let due = due.filter(|(_, one)| one.machine.next_deadline().is_some_and(|at| at <= now));
        let due: Vec<SessionKey> = due.map(|(session, _)| *session).collect();
        for session in due {
            if let Some(one) = self.aggregate.as_mut().and_then(|one| one.conversation(session)) {
                one.machine.handle_deadline(now);
                self.serve_conversation(session);
            }
        }
    }

    /// Once a second.
    pub(crate) fn tick_aggregate(&mut self) {
        let now = self.now;
        self.note_states();
        let Some(aggregate) = &self.aggregate else { return };
        let is_due = |at: &&usize| {
            let reading = aggregate.readings.get(at);
            let failed_at = reading
                .filter(|reading| reading.reader.is_none())
                .and_then(|reading| reading.failed_at);
            failed_at.is_some_and(|at| now.since(at) >= RETRY)
        };
        let due: Vec<usize> = aggregate.shown.iter().filter(is_due).copied().collect();
        for at in due {
            self.read(at);
        }
        if !self.draining && self.dice.percent(10) {
            self.lose_some_member();
        }
    }

    /// The configuration names other members, or the same in another order.
    pub(crate) fn reload(&mut self) {
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        if self.draining {
            return;
        }
        let now = self.now;
        let shown = members(&mut self.dice, aggregate.configured.len());
        let gone: Vec<usize> = aggregate
            .shown
            .iter()
            .copied()
            .filter(|at| !shown.contains(at))
            .collect();
        for at in &gone {
            self.close_reader(*at);
        }
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        aggregate.readings.retain(|at, _| !gone.contains(at));
        aggregate.known.retain(|at, _| !gone.contains(at));
        aggregate.states.retain(|at, _| !gone.contains(at));
        aggregate.was_single |= shown.len() == 1;
        aggregate.generation += 1;
        let plan = plan(&aggregate.configured, &shown);
        aggregate.shown.clone_from(&shown);
        aggregate.catalogue.handle_plan(plan);
        aggregate.learn(now);
        self.note(Fact::Reloaded { members: shown });
        self.show_views();
        self.start_readers();
        let after = self.dice.millis(1_000, 8_000);
        self.plan(after, Event::Reload);
    }

    /// The process that had the aggregate has ended, and another begins.
    pub(crate) fn restart_aggregate(&mut self) {
        let now = self.now;
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        aggregate.conversations.clear();
        aggregate.readings.clear();
        aggregate.known.clear();
        aggregate.states.clear();
        aggregate.generation += 1;
        aggregate.catalogue = Catalogue::new(plan(&aggregate.configured, &aggregate.shown));
        aggregate.learn(now);
        // No client is there yet.
        while aggregate.catalogue.poll_output().is_some() {}
        self.start_readers();
    }

    pub(crate) fn look_for_leftovers_of_conversations(&mut self) {
        let Some(aggregate) = &self.aggregate else { return };
        let all = aggregate.conversations.values();
        let (calls, questions) = all.fold((0, 0), |(calls, questions), one| {
            (
                calls + one.machine.open_calls(),
                questions + one.machine.open_questions(),
            )
        });
        self.leave([
            ("calls in conversations", calls),
            ("questions in conversations", questions),
        ]);
    }

    /// Ends every reader, and begins no other one.
    pub(crate) fn stop_readers(&mut self) {
        let Some(aggregate) = &mut self.aggregate else {
            return;
        };
        aggregate.is_stopped = true;
        let reading: Vec<usize> = aggregate.readings.keys().copied().collect();
        for at in reading {
            self.close_reader(at);
        }
    }

    pub(crate) fn look_for_left_conversations(&mut self) {
        let left = self.aggregate.as_ref().map(|one| one.conversations.len());
        self.leave([("conversations of no client", left.unwrap_or_default())]);
    }

    // Breaking things on purpose.

    fn mutate_ask(&mut self, session: SessionKey, backend: usize, ask: Ask) -> Vec<(usize, Ask)> {
        let Some(mutation) = self.mutation else {
            return vec![(backend, ask)];
        };
        let conversation = self.aggregate.as_mut().and_then(|one| one.conversation(session));
        let open = conversation.map(|one| one.open.clone()).unwrap_or_default();
        let others: Vec<usize> = open.into_iter().filter(|at| *at != backend).collect();
        match (mutation, &ask) {
            (Mutation::CallAnother, Ask::Call(_)) | (Mutation::AnswerAnother, Ask::Answer { .. }) => {
                let another = self.dice.pick(&others).copied();
                vec![(another.unwrap_or(backend), ask)]
            }
            (Mutation::CancelEverywhere, Ask::Cancel { .. }) => {
                let all = others.into_iter().chain([backend]);
                all.map(|at| (at, ask.clone())).collect()
            }
            _ => vec![(backend, ask)],
        }
    }

    /// For the mutation that numbers names as soon as there is a second member.
    fn mutate_list(&self, tell: Tell) -> Tell {
        let members = self.aggregate.as_ref().map_or(0, |one| one.shown.len());
        match (self.mutation, tell) {
            (
                Some(Mutation::NumberNames),
                Tell::Reply {
                    session,
                    call,
                    message,
                    era,
                },
            ) if members > 1 => {
                let text = String::from_utf8_lossy(message.bytes()).replace("__t\"", "__t_2\"");
                Tell::Reply {
                    session,
                    call,
                    message: crate::run::message(&text),
                    era,
                }
            }
            (_, tell) => tell,
        }
    }
}

impl SimulatedConversation {
    fn new(view: Arc<View>) -> Self {
        Self {
            machine: Conversation::new(view, ToolsMode::All, Arc::new(NoCursors)),
            open: BTreeSet::new(),
            asks: VecDeque::new(),
            asks_at: Moment::START,
            tells: VecDeque::new(),
            tells_at: Moment::START,
        }
    }
}

fn is_list_changed(message: &[u8]) -> bool {
    let value = crate::run::value_of(message);
    value["method"]
        .as_str()
        .is_some_and(|method| method.ends_with("/list_changed"))
}
