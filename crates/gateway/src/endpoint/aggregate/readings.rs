//! The readings of members: when each begins, what becomes of its end, and when it is tried again.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use http::HeaderMap;
use protocol::aggregate::{Member, MemberName, Offer, ReadFailure};
use protocol::exchange::{Failure, Principal, SessionKey, UpstreamFault};

use super::reader::{self, ReaderHandle};
use super::{
    Aggregate, Known, Members, READ_PAUSE, RETRY, Reading, Scope, is_lazy, is_remote, runs, shares_instances,
};
use crate::conversation_handle::Presence;
use crate::endpoint::Endpoint;
use crate::tasks;

/// Why a member is not shown that leads back to its aggregate.
const LOOP: &str = "it leads back to this aggregate, so that each name would stand in the list again and \
                    again: name the destinations behind it as members instead";

impl Aggregate {
    /// Reads a member for a client, unless it could not be read a moment ago.
    pub(super) fn read_wanted(&self, scope: &Scope, member: &str) {
        let now = self.shared.clock.now();
        let has_just_failed = {
            let readings = self.readings.lock();
            let mut of_member = of_member(&readings, scope, member);
            of_member.any(|reading| reading.failed_at.is_some_and(|at| now.since(at) < READ_PAUSE))
        };
        if !has_just_failed {
            self.read(scope, member);
        }
    }

    /// A list of a member has changed: its server has notified a client. A reader that stays there is
    /// notified itself, and one more reading would keep the server from telling whose its log lines
    /// are.
    pub(super) fn handle_list_changed(&self, scope: &Scope, member: &str) {
        let is_notified = {
            let readings = self.readings.lock();
            let mut of_member = of_member(&readings, scope, member);
            of_member.any(|reading| reading.reader.is_some() && reading.is_read)
        };
        if !is_notified {
            self.read_after_pause(scope, member);
        }
    }

    /// Reads a member, but not sooner than a pause after the last reading began: its server may
    /// announce a change at each reading.
    fn read_after_pause(&self, scope: &Scope, member: &str) {
        let (now, members) = (self.shared.clock.now(), self.members());
        let Some(plan) = members.plan.member(member) else {
            return;
        };
        let scope = scope.clone().filter(|_| plan.is_per_caller());
        let due = {
            let mut readings = self.readings.lock();
            let reading = readings.entry((scope.clone(), plan.name().clone())).or_default();
            let pause = members.plan.limits().coalesce;
            let due = reading
                .begun_at
                .map(|at| at.after(pause))
                .filter(|due| *due > now);
            if due.is_some() && std::mem::replace(&mut reading.is_planned, true) {
                return;
            }
            due
        };
        let Some(due) = due else {
            return self.read_wanted(&scope, member);
        };
        let (this, clock, name) = (Weak::clone(&self.this), self.shared.clock, plan.name().clone());
        tasks::spawn("reading", async move {
            clock.sleep_until(due).await;
            let Some(aggregate) = this.upgrade() else { return };
            let key = (scope, name);
            if let Some(reading) = aggregate.readings.lock().get_mut(&key) {
                reading.is_planned = false;
            }
            aggregate.read_wanted(&key.0, &key.1);
        });
    }

    /// Begins to read the members of this scope that were never read: a client has come,
    /// and its next list has what they offer.
    pub(super) fn read_unread(&self, scope: &Scope, members: &Members) {
        let is_of_scope = |member: &&Member| member.is_per_caller() == scope.is_some();
        for member in members.plan.members().iter().filter(is_of_scope) {
            let key = (scope.clone(), member.name().clone());
            // Those that all callers share are tried again after a while in any case.
            let is_tried = |reading: &Reading| scope.is_none() || reading.reader.is_some() || reading.is_read;
            let is_tried = self.readings.lock().get(&key).is_some_and(is_tried);
            let is_known = || scope.is_none() && self.known_offer(member.name()).is_some();
            if !is_tried && !is_known() {
                self.read_wanted(scope, member.name());
            }
        }
    }

    /// Returns the offer of a member that all callers share, if it is known.
    pub(super) fn known_offer(&self, member: &str) -> Option<Arc<Offer>> {
        self.known.lock().get(member)?.offer.clone()
    }

    /// Looks by a reading whether a remote server is there: nothing else tells. How a child is doing
    /// is known.
    pub(super) fn look(&self, scope: &Scope, member: &str, seen: Presence) {
        let members = self.members();
        if members
            .endpoint(member)
            .is_some_and(|endpoint| is_remote(endpoint))
        {
            match seen {
                Presence::Missed => self.read_wanted(scope, member),
                Presence::Back => self.read(scope, member),
            }
        }
    }

    /// Begins to read a member, unless that goes on.
    pub(super) fn read(&self, scope: &Scope, member: &str) {
        let members = self.members();
        let Some((plan, endpoint)) = members.plan.member(member).zip(members.endpoint(member)) else {
            return;
        };
        if self.is_stopped.load(Ordering::Acquire) {
            return;
        }
        let scope = scope.clone().filter(|_| plan.is_per_caller());
        if plan.is_per_caller() != scope.is_some() {
            // What a caller's own server offers is read for that caller alone.
            return;
        }
        let (headers, known) = match &scope {
            Some(_) => {
                let catalogue = self.catalogue(&scope);
                let known = catalogue.view().offered(member).cloned();
                (catalogue.headers().clone(), known)
            }
            None => (HeaderMap::new(), self.known_offer(member)),
        };
        let key = (scope.clone(), plan.name().clone());
        let mut readings = self.readings.lock();
        let reading = readings.entry(key).or_default();
        match &reading.reader {
            Some(reader) if reading.is_read => {
                let reader = Arc::clone(reader);
                drop(readings);
                reader.read_again();
            }
            Some(_) => reading.again = true,
            None => {
                let principal = match &scope {
                    Some(caller) => caller.principal.clone(),
                    None => Principal::anonymous(),
                };
                let session = SessionKey(self.shared.session_numbers.fetch_add(1, Ordering::Relaxed));
                let reader = ReaderHandle::new(
                    reader::Subject {
                        aggregate: Weak::clone(&self.this),
                        scope,
                        member: plan.name().clone(),
                        endpoint: Arc::clone(endpoint),
                        headers,
                    },
                    session,
                    principal,
                    self.shared.clock,
                    members.plan.limits(),
                    known.as_deref(),
                );
                reading.reader = Some(Arc::clone(&reader));
                (reading.is_read, reading.again) = (false, false);
                reading.begun_at = Some(self.shared.clock.now());
                drop(readings);
                reader.begin();
            }
        }
    }

    /// Takes what a member offers, as this reader has read it.
    pub(super) fn handle_offer(
        &self,
        scope: &Scope,
        member: &MemberName,
        by: SessionKey,
        offer: &Arc<Offer>,
    ) {
        let now = self.shared.clock.now();
        let id = self.plan().id().to_owned();
        if !id.is_empty() && offer.has_come_through(&id) {
            return self.handle_failure((scope, member, by), LOOP.to_owned(), false);
        }
        let (closed, again) = {
            let mut readings = self.readings.lock();
            let Some(reading) = readings.get_mut(&(scope.clone(), member.clone())) else {
                return;
            };
            // After a reload, a late offer of the server before is none of this one's.
            let Some(reader) = reading.reader.clone().filter(|reader| reader.session() == by) else {
                return;
            };
            (reading.is_read, reading.failed_at, reading.needs_sign_in) = (true, None, false);
            reading.read_at = Some(now);
            let again = std::mem::take(&mut reading.again);
            match reader.stays() {
                true => (None, again),
                false => (reading.reader.take(), again),
            }
        };
        if let Some(reader) = closed {
            reader.close();
        }
        match scope {
            None => {
                let (before, known) = {
                    let mut known = self.known.lock();
                    let mut before = None;
                    let known = known.change(member, |known| {
                        before = known.offer.replace(Arc::clone(offer));
                    });
                    (before, known)
                };
                let is_new = before.is_none_or(|before| before.fingerprint() != offer.fingerprint());
                let members = self.members();
                if let (true, Some(store), Some(endpoint)) =
                    (is_new, &self.shared.offers, members.endpoint(member))
                {
                    store.keep(member, &endpoint.settings.backend, offer);
                }
                self.tell_catalogues(member, known);
            }
            Some(_) => self.catalogue(scope).handle_offer(member, offer),
        }
        self.note_states();
        self.progress.notify_waiters();
        if again {
            self.read_after_pause(scope, member);
        }
    }

    /// Has every catalogue learn what is known of a member.
    pub(super) fn tell_catalogues(&self, member: &MemberName, known: Known) {
        let known = BTreeMap::from([(member.clone(), known)]);
        for catalogue in self.catalogues() {
            catalogue.learn(&known);
        }
    }

    /// Returns whether a member was found to be the aggregate itself.
    pub(super) fn leads_back(&self, member: &MemberName) -> bool {
        let readings = self.readings.lock();
        let reading = readings.get(&(None, member.clone()));
        reading.is_some_and(|reading| reading.failed_at.is_some() && reading.why.as_deref() == Some(LOOP))
    }

    /// Notes that this reader could not read a member.
    pub(super) fn handle_read_failure(
        &self,
        scope: &Scope,
        member: &MemberName,
        by: SessionKey,
        failure: &ReadFailure,
    ) {
        let why = match failure {
            ReadFailure::Failed(failure) => failure.reason().to_owned(),
            ReadFailure::Refused(message) => format!("its server refused the handshake: {message}"),
        };
        let needs_sign_in = matches!(
            failure,
            ReadFailure::Failed(Failure::Upstream(upstream)) if upstream.fault == UpstreamFault::Unauthorized
        );
        self.handle_failure((scope, member, by), why, needs_sign_in);
    }

    fn handle_failure(
        &self,
        (scope, member, by): (&Scope, &MemberName, SessionKey),
        why: String,
        needs_sign_in: bool,
    ) {
        let now = self.shared.clock.now();
        let closed = {
            let mut readings = self.readings.lock();
            let Some(reading) = readings.get_mut(&(scope.clone(), member.clone())) else {
                return;
            };
            let is_its_own = |reader: &Arc<ReaderHandle>| reader.session() == by;
            if !reading.reader.as_ref().is_some_and(is_its_own) {
                return;
            }
            tracing::warn!(destination = %self.name, member = %member, why, "a member cannot be read");
            reading.failed_at = Some(now);
            reading.needs_sign_in = needs_sign_in;
            reading.why = Some(why);
            reading.again = false;
            reading.reader.take()
        };
        if let Some(reader) = closed {
            reader.close();
        }
        self.note_states();
        self.progress.notify_waiters();
    }

    /// Reads members again whose servers run, where no reader stays that would learn of changes.
    pub(super) fn refresh(&self, members: &Members) {
        let now = self.shared.clock.now();
        for (name, endpoint) in members.shared() {
            let is_old = {
                let readings = self.readings.lock();
                let reading = readings.get(&(None, name.clone()));
                reading.is_some_and(|reading| {
                    reading.reader.is_none() && reading.read_at.is_some_and(|at| now.since(at) >= RETRY)
                })
            };
            if is_old
                && shares_instances(endpoint)
                && endpoint
                    .upstream
                    .one()
                    .is_some_and(|upstream| runs(&upstream.health()))
            {
                self.read(&None, name);
            }
        }
    }

    /// Waits until every member that all callers share was read, or could not be. Returns those
    /// that could not be, with the reason. `starts_lazy` is whether servers are started that wait
    /// for a call.
    pub(crate) async fn read_all(&self, starts_lazy: bool) -> Vec<(MemberName, String)> {
        let members = self.members();
        let is_read = |endpoint: &Endpoint| starts_lazy || !is_lazy(endpoint);
        let read = members.shared().filter(|(_, endpoint)| is_read(endpoint));
        let read: Vec<&MemberName> = read.map(|(name, _)| name).collect();
        for name in &read {
            let is_reading = self.readings.lock().get(&(None, (*name).clone())).is_some();
            if !is_reading {
                self.read(&None, name);
            }
        }
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            let (mut unread, mut failed) = (0, Vec::new());
            for name in &read {
                let readings = self.readings.lock();
                match readings.get(&(None, (*name).clone())) {
                    Some(reading) if reading.is_read => {}
                    Some(reading) if reading.failed_at.is_some() => {
                        let why = match (reading.needs_sign_in, &reading.why) {
                            (true, _) => "it needs a sign-in".to_owned(),
                            (false, Some(why)) => why.clone(),
                            (false, None) => "it could not be read".to_owned(),
                        };
                        failed.push(((*name).clone(), why));
                    }
                    Some(_) | None => unread += 1,
                }
            }
            if unread == 0 {
                // What was read last may still wait to be shown.
                self.show_now();
                return failed;
            }
            progress.await;
        }
    }

    fn show_now(&self) {
        let due = self.shared.clock.now().after(self.plan().limits().coalesce);
        for catalogue in self.catalogues() {
            catalogue.reach(due);
        }
    }

    pub(super) fn is_confirmed(&self, scope: &Scope, member: &MemberName) -> bool {
        let readings = self.readings.lock();
        let mut of_member = of_member(&readings, scope, member);
        of_member.any(|reading| reading.read_at.is_some() || reading.reader.is_some())
    }
}

/// Returns the readings of a member as this caller sees it.
fn of_member<'r>(
    readings: &'r BTreeMap<(Scope, MemberName), Reading>,
    scope: &Scope,
    member: &str,
) -> impl Iterator<Item = &'r Reading> {
    let member = MemberName::from(member);
    let own = scope.clone().map(|caller| (Some(caller), member.clone()));
    let own = own.and_then(|key| readings.get(&key));
    readings.get(&(None, member)).into_iter().chain(own)
}
