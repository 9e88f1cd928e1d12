//! The errands of a destination: modern requests on their way, listening, or parked until their client comes back.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::HeaderMap;
use parking_lot::MutexGuard;
use protocol::client_face::modern::Meaning;
use protocol::exchange::{Client, Failure, Principal, SessionKey};
use protocol::message::Message;
use protocol::session::Accepts;
use protocol::shares::Shares;
use protocol::time::Moment;
use protocol::version::{Era, Version};
use protocol::wire::header::MirroredParams;

use super::Destination;
use crate::errand_port::{Came, Departure, ErrandPort};
use crate::guard::limits::Permit;
use crate::lane::Lane;
use crate::reply::Refusal;
use crate::seal::Ticket;
use crate::seal::state::StateSeal;
use crate::settings::Show;

/// How long a call waits for its client to come back with answers.
const PARKED_FOR: Duration = Duration::from_secs(600);
/// How a modern request sets out.
#[derive(Debug)]
pub(crate) struct Journey {
    pub(crate) meaning: Meaning,
    pub(crate) accepts: Accepts,
    /// The headers that mirror its arguments.
    pub(crate) mirrored: Option<MirroredParams>,
    /// Its place among the calls that may be in flight.
    pub(crate) permit: Option<Permit>,
}

impl Destination {
    pub(super) fn departure(
        &self,
        client: Arc<Client>,
        message: Message,
        meaning: Meaning,
        accepts: Accepts,
    ) -> Departure {
        let key = SessionKey(self.around.session_numbers.fetch_add(1, Ordering::Relaxed));
        Departure {
            key,
            states: self.state_seal(&client.principal),
            client,
            message,
            meaning,
            accepts,
            mirrored: None,
            permit: None,
        }
    }

    pub(super) fn depart(&self, lane: &Arc<Lane>, departure: Departure) -> Arc<ErrandPort> {
        let (clock, recorder) = (self.around.clock, Arc::clone(&self.around.recorder));
        let traffic = Arc::clone(&self.traffic);
        let port = ErrandPort::depart(
            departure,
            Arc::clone(&self.name),
            Arc::clone(lane),
            clock,
            recorder,
            traffic,
        );
        port.count_events(&self.around.buffered);
        port
    }

    /// Sets out on a modern request. `None`: this destination does not show itself to modern clients.
    pub(crate) async fn errand(
        &self,
        client: Client,
        headers: &HeaderMap,
        message: Message,
        journey: Journey,
    ) -> Result<Option<Arc<ErrandPort>>, Refusal> {
        self.check_open()?;
        let client = Arc::new(client);
        let lane = self.lane_for(None, &client, headers)?;
        if self.settings.show == Show::Native {
            if self.introduced_era(&lane, &client).await? == Some(Era::Legacy) {
                return Ok(None);
            }
            // Waiting may have taken long enough for a reload.
            self.check_open()?;
        }
        let Journey {
            meaning,
            accepts,
            mirrored,
            permit,
        } = journey;
        let listening = meaning == Meaning::Listen;
        let mut departure = self.departure(client, message, meaning, accepts);
        departure.mirrored = mirrored;
        departure.permit = permit;
        let port = self.depart(&lane, departure);
        if listening && let Err(refusal) = self.register_listen(&port) {
            port.give_up();
            return Err(refusal);
        }
        Ok(Some(port))
    }

    /// Adds a listen to those that are open, if need be in the place of one of a principal over its share.
    fn register_listen(&self, port: &Arc<ErrandPort>) -> Result<(), Refusal> {
        let limit = self.around.limits.listens;
        let evicted = {
            let mut listens = self.listens.lock();
            listens.retain(|_, listen| listen.strong_count() > 0);
            let mut evicted = None;
            if listens.len() >= limit {
                let open: Vec<Arc<ErrandPort>> = listens.values().filter_map(Weak::upgrade).collect();
                let shares: Shares<'_> = open.iter().map(|listen| listen.principal()).collect();
                let principal = shares.over_share(port.principal());
                let theirs = open.iter().filter(|listen| Some(listen.principal()) == principal);
                let newest = theirs.max_by_key(|listen| listen.key());
                let newest = newest.ok_or(Refusal::TooManyListens { limit })?;
                listens.remove(&newest.key());
                evicted = Some(Arc::clone(newest));
            }
            listens.insert(port.key(), Arc::downgrade(port));
            evicted
        };
        if let Some(evicted) = evicted {
            self.around.limit_hits.count("listens");
            evicted.dismiss();
        }
        Ok(())
    }

    /// Waits until the server has answered its introduction. Returns the era that was agreed on, if one was.
    async fn introduced_era(&self, lane: &Arc<Lane>, client: &Arc<Client>) -> Result<Option<Era>, Refusal> {
        if let Some(era) = lane.agreed_era() {
            return Ok(Some(era));
        }
        let departure = self.departure(Arc::clone(client), discovery(), Meaning::Discover, Accepts::Json);
        match self.depart(lane, departure).answer().await {
            Came::Complete {
                failure: Some(failure),
                ..
            } if failure != Failure::NotWelcomed => Err(Refusal::Unreached(failure)),
            Came::Complete { .. } | Came::Ask { .. } | Came::Stream => Ok(lane.agreed_era()),
        }
    }

    /// What a state is bound to.
    fn binding(&self, principal: &str) -> String {
        format!("{}/{principal}", self.name)
    }

    /// What seals the server's own states for a caller, where callers differ.
    pub(crate) fn state_seal(&self, principal: &Principal) -> Option<StateSeal> {
        self.around
            .tells_callers_apart
            .then(|| StateSeal::new(Arc::clone(&self.around.sealer), &self.binding(principal.as_str())))
    }

    /// Parks an errand whose server has asked. Gives the answer that asks the client.
    pub(crate) fn park(&self, port: &Arc<ErrandPort>, round: u32) -> Option<bytes::Bytes> {
        let expires = self.around.clock.now().after(PARKED_FOR);
        self.make_room_to_wait(port)?;
        let ticket = Ticket {
            errand: port.name,
            round,
            expires,
        };
        let state = self.around.sealer.seal(ticket, &self.binding(port.principal()))?;
        self.parked_map().insert(port.name, Arc::clone(port));
        Some(port.park(&state, expires))
    }

    fn parked_map(&self) -> MutexGuard<'_, HashMap<u128, Arc<ErrandPort>>> {
        self.parked.lock()
    }

    /// Returns the errands that were parked and are not over. Those that are over are forgotten.
    fn waiting_errands(&self) -> Vec<Arc<ErrandPort>> {
        let mut waiting: Vec<Arc<ErrandPort>> = self.parked_map().values().cloned().collect();
        let over = waiting.extract_if(.., |port| port.is_over());
        let over: Vec<Arc<ErrandPort>> = over.collect();
        if !over.is_empty() {
            let mut parked = self.parked_map();
            for port in &over {
                parked.remove(&port.name);
            }
        }
        waiting
    }

    /// Sees to it that a call can wait for its client, if need be by giving up the oldest of a principal over its share.
    fn make_room_to_wait(&self, port: &ErrandPort) -> Option<()> {
        let limit = self.around.limits.waiting_calls;
        {
            let parked = self.parked_map();
            if parked.len() < limit || parked.contains_key(&port.name) {
                return Some(());
            }
        }
        self.around.limit_hits.count("waiting_calls");
        let waiting = self.waiting_errands();
        if waiting.len() < limit {
            return Some(());
        }
        let shares: Shares<'_> = waiting.iter().map(|waiting| waiting.principal()).collect();
        let principal = shares.over_share(port.principal())?;
        let theirs = waiting.iter().filter(|waiting| waiting.principal() == principal);
        let oldest = theirs.min_by_key(|waiting| waiting.parked_until())?;
        self.parked_map().remove(&oldest.name);
        oldest.give_up();
        Some(())
    }

    /// The parked errand that a state names, and the round it is for: here, or where this destination's name led before a
    /// reload. A call in flight may wait for its client, whom a reload must not keep from answering.
    pub(crate) fn parked(&self, state: &str, principal: &Principal) -> Option<(Arc<ErrandPort>, u32)> {
        self.parked_here(state, principal).or_else(|| {
            let draining = self.draining_namesakes();
            draining
                .iter()
                .find_map(|namesake| namesake.parked_here(state, principal))
        })
    }

    fn parked_here(&self, state: &str, principal: &Principal) -> Option<(Arc<ErrandPort>, u32)> {
        let ticket = self
            .around
            .sealer
            .open(state, &self.binding(principal.as_str()))?;
        if ticket.expires <= self.around.clock.now() {
            return None;
        }
        let parked = self.parked_map();
        let port = parked
            .get(&ticket.errand)
            .filter(|port| port.principal() == principal.as_str())?;
        Some((Arc::clone(port), ticket.round))
    }

    /// How many wait for their client, or were last seen to.
    pub(crate) fn parked_calls(&self) -> usize {
        self.waiting_errands().len()
    }

    /// Gives up on clients that did not come back in time.
    pub(super) fn forget_errands(&self, now: Moment) {
        for port in self.waiting_errands() {
            if port.parked_until().is_some_and(|until| until <= now) {
                port.give_up();
            }
        }
    }
}

/// A `server/discover` of our own: answered from what the server said when it was introduced to.
fn discovery() -> Message {
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{}","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#,
        Version::NEWEST_MODERN.as_str(),
    );
    Message::scan(bytes::Bytes::from(text)).expect("our own words are a message")
}
