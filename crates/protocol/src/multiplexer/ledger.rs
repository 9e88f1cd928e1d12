//! The ledger of one instance: its sessions, the calls that wait or are in flight, the questions
//! without an answer, what is to be sent and reported, and the limits for all of these.
//!
//! Every machine of the multiplexer works on the ledger through a `&mut Ledger` that its caller
//! lends it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::backend_face::WireId;
use crate::exchange::{Call, CallKey, Client, Failure, Principal, SessionKey, Tell};
use crate::message::{Message, quoted};
use crate::time::Moment;

use super::limits::{Counters, Limits};
use super::liveness::Liveness;
use super::open_questions::OpenQuestions;
use super::outputs::{Output, OutputQueue};
use super::send_queue::SendQueue;
use super::sessions::Sessions;
use super::state::{InFlight, Pending, PendingOpen};
use super::waiting::WaitingCalls;
use super::waits::Waits;

/// The state that every machine of the multiplexer reads and writes.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) limits: Limits,
    pub(super) sessions: Sessions,
    pub(super) pending_opens: VecDeque<PendingOpen>,
    pub(super) waiting: WaitingCalls,
    pub(super) waits: Waits,
    /// The requests that the server has not answered.
    pending: BTreeMap<WireId, Pending>,
    pub(super) questions: OpenQuestions,
    next_wire: u64,
    pub(super) outgoing: SendQueue,
    pub(super) outputs: OutputQueue,
    pub(super) counters: Counters,
    pub(super) liveness: Liveness,
}

impl Ledger {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            sessions: Sessions::default(),
            pending_opens: VecDeque::new(),
            waiting: WaitingCalls::default(),
            waits: Waits::default(),
            pending: BTreeMap::new(),
            questions: OpenQuestions::default(),
            next_wire: 1,
            outgoing: SendQueue::default(),
            outputs: OutputQueue::default(),
            counters: Counters::default(),
            liveness: Liveness::default(),
        }
    }

    // Outputs.

    pub(super) fn tell(&mut self, tell: Tell) {
        self.outputs.push(Output::Tell(tell));
    }

    /// Reports that a call gets no answer of its server.
    pub(super) fn fail(&mut self, session: SessionKey, call: CallKey, failure: Failure) {
        self.tell(Tell::Failed {
            session,
            call,
            failure,
        });
    }

    /// Answers a call with an error of Rialto's own, in the caller's era.
    pub(super) fn reply_error(&mut self, call: &Call, code: i32, text: &str, data: Option<&str>) {
        let data = data.map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
        let message = Message::own(format!(
            r#"{{"jsonrpc":"2.0","id":0,"error":{{"code":{code},"message":{}{data}}}}}"#,
            quoted(text)
        ));
        self.tell(Tell::Reply {
            session: call.session,
            call: call.call,
            message,
            era: call.era,
        });
    }

    /// Refuses a call because of one of Rialto's limits.
    pub(super) fn overload(&mut self, session: SessionKey, call: CallKey, limit: &'static str) {
        self.counters.overloads += 1;
        self.fail(session, call, Failure::Overloaded { limit });
    }

    pub(super) fn wake_by(&mut self, moment: Moment) {
        self.outputs.wake_by(moment);
    }

    // Requests to the server.

    /// Returns the id for a request that is about to be sent, and uses it up.
    pub(super) fn next_wire(&mut self) -> WireId {
        let id = self.upcoming_wire();
        self.next_wire += 1;
        id
    }

    /// Returns the id that the next request will have.
    pub(super) const fn upcoming_wire(&self) -> WireId {
        WireId(self.next_wire)
    }

    /// The server has a reason to be silent: it was given an answer, or has written to stderr.
    pub(super) fn note_work(&mut self) {
        self.liveness.handle_work(self.upcoming_wire());
    }

    /// Enters a request of Rialto's own whose answer no client waits for.
    pub(super) fn own_request(&mut self, now: Moment) -> WireId {
        let id = self.next_wire();
        self.enter_own(id, now.after(self.limits.own_timeout()));
        id
    }

    /// Enters a request of Rialto's own that is given up at this moment.
    pub(super) fn enter_own(&mut self, id: WireId, until: Moment) {
        self.enter(id, Pending::Own { until });
        self.wake_by(until);
    }

    /// Enters a request that is sent.
    pub(super) fn enter(&mut self, id: WireId, pending: Pending) {
        self.pending.insert(id, pending);
    }

    /// Removes a request.
    pub(super) fn remove(&mut self, id: WireId) -> Option<Pending> {
        self.pending.remove(&id)
    }

    /// Removes a call, and returns it.
    pub(super) fn take_call(&mut self, id: WireId) -> Option<Box<InFlight>> {
        match self.pending.remove(&id)? {
            Pending::Call(call) => Some(call),
            Pending::Handshake(_)
            | Pending::Listen
            | Pending::Own { .. }
            | Pending::TaskPoll { .. }
            | Pending::Background { .. } => None,
        }
    }

    /// Removes a request of Rialto's own that ends with its first answer, or with the loss of it.
    pub(super) fn take_internal(&mut self, id: WireId) -> Option<Pending> {
        let is_internal = match self.pending.get(&id)? {
            Pending::Handshake(_)
            | Pending::Listen
            | Pending::TaskPoll { .. }
            | Pending::Background { .. } => true,
            Pending::Call(_) | Pending::Own { .. } => false,
        };
        is_internal.then(|| self.pending.remove(&id))?
    }

    /// Removes all requests, and returns them.
    pub(super) fn take_pending(&mut self) -> BTreeMap<WireId, Pending> {
        std::mem::take(&mut self.pending)
    }

    pub(super) fn pending(&self, id: WireId) -> Option<&Pending> {
        self.pending.get(&id)
    }

    pub(super) fn all_pending(&mut self) -> impl Iterator<Item = (WireId, &mut Pending)> {
        self.pending.iter_mut().map(|(id, pending)| (*id, pending))
    }

    /// Returns how many requests the server has not answered.
    pub(super) fn in_flight(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn count(&self, counts: impl Fn(&Pending) -> bool) -> usize {
        self.pending.values().filter(|pending| counts(pending)).count()
    }

    /// Returns whether this much more may wait for the server to read it. One message always may.
    pub(super) fn has_room(&self, length: usize) -> bool {
        self.outgoing.has_room(length, self.limits.outgoing_bytes)
    }

    // Calls in flight.

    pub(super) fn call(&self, id: WireId) -> Option<&InFlight> {
        self.pending.get(&id).and_then(Pending::as_call)
    }

    pub(super) fn call_mut(&mut self, id: WireId) -> Option<&mut InFlight> {
        self.pending.get_mut(&id).and_then(Pending::as_call_mut)
    }

    /// Returns the calls in flight, oldest first.
    pub(super) fn calls(&self) -> impl DoubleEndedIterator<Item = (WireId, &InFlight)> {
        self.pending
            .iter()
            .filter_map(|(id, pending)| Some((*id, pending.as_call()?)))
    }

    /// Returns the requests that are steps of polling a call's task.
    pub(super) fn steps(&self, call: WireId) -> Vec<WireId> {
        let is_step = |pending: &Pending| matches!(pending, Pending::TaskPoll { of } if *of == call);
        let pending = self.pending.iter().filter(|(_, pending)| is_step(pending));
        pending.map(|(step, _)| *step).collect()
    }

    /// Forgets the handshakes that are under way.
    pub(super) fn forget_handshakes(&mut self) {
        self.pending
            .retain(|_, pending| !matches!(pending, Pending::Handshake(_)));
    }

    /// The server has sent something about this call.
    pub(super) fn note_activity(&mut self, now: Moment, id: WireId) {
        if let Some(Pending::Call(call)) = self.pending.get_mut(&id) {
            call.note_activity(now, &self.limits);
        }
    }

    /// The server works on this call. Returns its new deadline.
    pub(super) fn extend(&mut self, now: Moment, id: WireId) -> Option<Moment> {
        let call = self.pending.get_mut(&id)?.as_call_mut()?;
        call.timer.extend(now, &self.limits);
        Some(call.timer.deadline())
    }

    pub(super) fn calls_mut(&mut self) -> impl Iterator<Item = &mut InFlight> {
        self.pending.values_mut().filter_map(Pending::as_call_mut)
    }

    /// A question is put to a call's client, which has until `deadline` to answer. Returns the
    /// client's key of the call.
    pub(super) fn open_question(&mut self, deadline: Moment, id: WireId) -> Option<CallKey> {
        let call = self.pending.get_mut(&id)?.as_call_mut()?;
        call.asking.open();
        call.timer.wait_for_client(deadline, &self.limits);
        Some(call.call)
    }

    /// A question of a call is answered or withdrawn. Returns whether it was the last: the call's
    /// time begins anew.
    pub(super) fn close_question(&mut self, now: Moment, id: WireId) -> bool {
        let Some(call) = self.pending.get_mut(&id).and_then(Pending::as_call_mut) else {
            return false;
        };
        let is_last = call.asking.close();
        if is_last {
            call.timer.restart(now, &self.limits);
            let deadline = call.timer.deadline();
            self.wake_by(deadline);
        }
        is_last
    }

    pub(super) fn find_call(&self, session: SessionKey, call: CallKey) -> Option<WireId> {
        let mut newest_first = self.calls().rev();
        newest_first
            .find(|(_, open)| open.session == session && open.call == call)
            .map(|(id, _)| id)
    }

    pub(super) fn bytes_in_flight(&self) -> usize {
        self.calls().map(|(_, call)| call.message.len()).sum()
    }

    // Sessions.

    pub(super) fn client(&self, session: SessionKey) -> Option<&Arc<Client>> {
        self.sessions.get(session).map(|entry| &entry.client)
    }

    pub(super) fn principal(&self, session: SessionKey) -> Option<&Principal> {
        self.client(session).map(|client| &client.principal)
    }
}
