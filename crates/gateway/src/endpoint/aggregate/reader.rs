//! The reader of one member: its machine, and the instance that it reads from.

use std::sync::{Arc, Weak};

use http::HeaderMap;
use parking_lot::Mutex;
use protocol::aggregate::{AggregateLimits, MemberName, Offer, OfferReader, ReaderOutput};
use protocol::exchange::{Ask, Client, Failure, Principal, SessionKey, Tell};
use protocol::time::Moment;

use super::{Aggregate, Scope, failure_of, may_stay};
use crate::clock::Clock;
use crate::driver::{Driver, Machine};
use crate::endpoint::Endpoint;
use crate::instance::{Instance, InstanceUser};
use crate::tasks;
use crate::upstream::WantedFor;
use crate::wake_up::WakeUp;

/// What the reader calls itself to servers.
const CLIENT_INFO: &str = concat!(
    r#"{"name":"rialto","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#
);

/// What is read, and for which caller.
pub(super) struct Subject {
    pub(super) aggregate: Weak<Aggregate>,
    pub(super) scope: Scope,
    pub(super) member: MemberName,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) headers: HeaderMap,
}

/// One reader. To the member's instance it is a user like any client.
pub(super) struct ReaderHandle {
    this: Weak<Self>,
    subject: Subject,
    session: SessionKey,
    client: Arc<Client>,
    clock: Clock,
    instance: Mutex<Option<Arc<Instance>>>,
    driver: Driver<ReaderState>,
}

struct ReaderState {
    reader: OfferReader,
    wake_up: WakeUp,
}

impl Machine for ReaderState {
    type Output = ReaderOutput;

    fn poll_output(&mut self) -> Option<ReaderOutput> {
        self.reader.poll_output()
    }
}

impl ReaderHandle {
    pub(super) fn new(
        subject: Subject,
        session: SessionKey,
        principal: Principal,
        clock: Clock,
        limits: &AggregateLimits,
        known: Option<&Offer>,
    ) -> Arc<Self> {
        let info = bytes::Bytes::from_static(CLIENT_INFO.as_bytes());
        let client = Arc::new(Client::declaring(principal, None, Some(info)));
        let reader = OfferReader::new(session, Arc::clone(&client), limits, known);
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            subject,
            session,
            client,
            clock,
            instance: Mutex::default(),
            driver: Driver::new(ReaderState {
                reader,
                wake_up: WakeUp::default(),
            }),
        })
    }

    /// Returns the key under which its instance knows it.
    pub(super) fn session(&self) -> SessionKey {
        self.session
    }

    /// Carries out what the reader wants first.
    pub(super) fn begin(&self) {
        self.act(|_| {});
    }

    /// Reads every list again.
    pub(super) fn read_again(&self) {
        self.act(|reader| reader.handle_changed(None));
    }

    /// Returns whether the reader stays with the server, to learn of changes.
    pub(super) fn stays(&self) -> bool {
        let endpoint = &self.subject.endpoint;
        self.subject.scope.is_none() && may_stay(endpoint, endpoint.shared.tells_callers_apart)
    }

    /// Leaves the server.
    pub(super) fn close(&self) {
        let close = self.driver.lock().reader.close();
        let instance = self.instance.lock().take();
        if let Some(instance) = instance {
            instance.ask(self.clock.now(), close);
            self.subject.endpoint.upstream.end_session(self.session);
        }
    }

    fn act(&self, act: impl FnOnce(&mut OfferReader)) {
        let due = self.driver.act(
            |state, _| {
                act(&mut state.reader);
                state.wake_up.set(state.reader.next_deadline())
            },
            |output| self.carry_out(output),
        );
        if let Some(due) = due {
            self.wake_at(due);
        }
    }

    fn wake_at(&self, due: Moment) {
        let (this, clock) = (Weak::clone(&self.this), self.clock);
        tasks::spawn("offer reader", async move {
            clock.sleep_until(due).await;
            if let Some(handle) = this.upgrade() {
                handle.driver.lock().wake_up.done();
                let now = clock.now().max(due);
                handle.act(|reader| reader.handle_deadline(now));
            }
        });
    }

    fn carry_out(&self, output: ReaderOutput) {
        let Subject {
            aggregate,
            scope,
            member,
            ..
        } = &self.subject;
        match output {
            ReaderOutput::Ask(ask) => self.ask(ask),
            ReaderOutput::Offered(offer) => {
                if let Some(aggregate) = aggregate.upgrade() {
                    aggregate.handle_offer(scope, member, self.session, &offer);
                }
            }
            ReaderOutput::Failed(failure) => {
                if let Some(aggregate) = aggregate.upgrade() {
                    aggregate.handle_read_failure(scope, member, self.session, &failure);
                }
            }
        }
    }

    fn ask(&self, ask: Ask) {
        let now = self.clock.now();
        if !matches!(ask, Ask::Open { .. }) {
            let instance = self.instance.lock().clone();
            if let Some(instance) = instance {
                instance.ask(now, ask);
            }
            return;
        }
        let Some(this) = self.this.upgrade() else { return };
        let endpoint = &self.subject.endpoint;
        let wanted_for = WantedFor::Reading(self.session);
        let found = endpoint
            .check_open()
            .and_then(|()| endpoint.instance_for(wanted_for, &self.client, &self.subject.headers));
        match found {
            Ok(instance) => {
                instance.attach(self.session, this);
                let left = self.instance.lock().replace(Arc::clone(&instance));
                if let Some(left) = left.filter(|left| !Arc::ptr_eq(left, &instance)) {
                    left.ask(
                        now,
                        Ask::Close {
                            session: self.session,
                        },
                    );
                }
                instance.ask(now, ask);
            }
            Err(refusal) => {
                let failure = failure_of(&refusal);
                self.act(|reader| reader.handle_lost_instance(&failure));
            }
        }
    }
}

impl InstanceUser for ReaderHandle {
    fn deliver(&self, now: Moment, tell: Tell) {
        self.act(|reader| reader.handle_tell(now, tell));
    }

    fn lose_instance(&self, _now: Moment, failure: &Failure) {
        self.act(|reader| reader.handle_lost_instance(failure));
    }
}
