//! Rate limit (429) and other limits: requests a minute, sessions, calls and streams at once, per
//! caller and in all.
//!
//! Everything is decided before a request's body is read, so that refusing costs next to nothing.
//! What is held (a session, a call, a stream) is held as a value that gives its place back when it
//! is dropped: nothing can be forgotten. A caller is a principal; for those without a name, the
//! address they come from. Callers are remembered only while they hold something or have used some
//! of their allowance, and no more than [`MAX_ACCOUNTS`] of them: those beyond share one place, so
//! that a flood of addresses costs no memory and gains nothing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};

use cluster::{NodeId, Registry};
use http::HeaderMap;
use parking_lot::Mutex;
use protocol::exchange::Principal;
use protocol::time::Moment;

use super::fleet_limits::{FleetAccount, FleetLimits, FleetSlots};
use super::rate::{Allowance, Rate};
use crate::clock::Clock;
use crate::reply::Refusal;
use crate::settings::{LimitSettings, Network};

/// Callers remembered at once.
const MAX_ACCOUNTS: usize = 65_536;
/// Hops of `X-Forwarded-For` that are looked at, from the nearest.
const MAX_HOPS: usize = 32;

/// What one caller holds and has used.
#[derive(Debug, Default)]
pub(crate) struct Account {
    requests: Allowance,
    sessions: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    streams: Arc<AtomicUsize>,
    /// What all replicas of a fleet count together.
    fleet: Option<Arc<FleetAccount>>,
}

impl Account {
    fn is_idle(&self, now: Moment) -> bool {
        let held = [&self.sessions, &self.calls, &self.streams];
        self.requests.is_whole(now)
            && held.iter().all(|places| places.load(Acquire) == 0)
            && self.fleet().is_none_or(|fleet| fleet.is_idle(now))
    }

    pub(super) fn fleet(&self) -> Option<&FleetAccount> {
        self.fleet.as_deref()
    }
}

/// A caller that takes a place which all callers share.
#[derive(Debug)]
pub(crate) struct Sharer {
    account: Arc<Account>,
    is_named: bool,
}

impl Sharer {
    /// Returns whose share a call, a session or a stream of this principal takes, if it is counted.
    pub(crate) fn of(account: Option<&Arc<Account>>, principal: &Principal) -> Option<Self> {
        let account = Arc::clone(account?);
        let is_named = !principal.is_anonymous();
        Some(Self { account, is_named })
    }

    /// Returns how many places it may have: as configured, else half of all if it has a name.
    fn limit(&self, configured: Option<usize>, in_all: usize) -> Option<usize> {
        configured.or_else(|| self.is_named.then(|| in_all.div_ceil(2)))
    }
}

/// The callers that are remembered. In two maps, so that a name is looked up as it is, and not
/// copied into a key first.
#[derive(Debug, Default)]
struct Callers {
    named: HashMap<Principal, Arc<Account>>,
    /// Those without a name; of IPv6 the network, since a host with one address of it has them all.
    unnamed: HashMap<IpAddr, Arc<Account>>,
}

impl Callers {
    fn len(&self) -> usize {
        self.named.len() + self.unnamed.len()
    }

    /// A caller that is in use at this moment is left: a permit it is about to take would be lost.
    fn forget_idle(&mut self, now: Moment) {
        let is_kept = |caller: &Arc<Account>| Arc::strong_count(caller) > 1 || !caller.is_idle(now);
        self.named.retain(|_, caller| is_kept(caller));
        self.unnamed.retain(|_, caller| is_kept(caller));
    }
}

/// Places taken, each of them given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    in_all: Arc<AtomicUsize>,
    of_caller: Option<Arc<AtomicUsize>>,
    /// Held for its effect at the end.
    fleet: Option<Box<FleetSlots>>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.in_all.fetch_sub(1, AcqRel);
        if let Some(places) = &self.of_caller {
            places.fetch_sub(1, AcqRel);
        }
    }
}

/// The limits and what is held of them.
#[derive(Debug)]
pub(crate) struct Limiter {
    settings: LimitSettings,
    requests: Option<Rate>,
    session_requests: Option<Rate>,
    callers: Mutex<Callers>,
    /// All callers for which the map has no room.
    others: Arc<Account>,
    refused_credentials: Rate,
    /// What addresses have used of their wrong guesses. Apart from callers, which no flood of
    /// guesses shall crowd out.
    strangers: Mutex<HashMap<IpAddr, Allowance>>,
    other_strangers: Allowance,
    sessions: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    streams: Arc<AtomicUsize>,
    /// Where the replicas of a fleet count together.
    fleet: Option<FleetLimits>,
}

impl Limiter {
    pub(crate) fn new(settings: LimitSettings) -> Self {
        Self {
            requests: settings.requests_per_minute.map(Rate::per_minute),
            session_requests: settings.session_requests_per_minute.map(Rate::per_minute),
            callers: Mutex::default(),
            others: Arc::default(),
            refused_credentials: Rate::per_minute(settings.refused_credentials_per_minute),
            strangers: Mutex::default(),
            other_strangers: Allowance::default(),
            settings,
            sessions: Arc::default(),
            calls: Arc::default(),
            streams: Arc::default(),
            fleet: None,
        }
    }

    /// Counts together with the other replicas: requests a minute, calls and sessions of a caller
    /// where they are configured, and the sessions of each destination.
    #[must_use]
    pub(crate) fn with_fleet(mut self, registry: Arc<dyn Registry>, node: NodeId, clock: Clock) -> Self {
        let fleet = FleetLimits::new(registry, node, clock, &self.settings);
        // A request that the fleet refuses must not use up an allowance of this replica.
        self.requests = None;
        self.others = Arc::new(Account {
            fleet: Some(Arc::new(fleet.account("others"))),
            ..Account::default()
        });
        self.fleet = Some(fleet);
        self
    }

    /// Returns whether replicas count together. Then each request, call and session is counted by
    /// [`Self::request_in_fleet`] and its siblings too.
    pub(crate) fn is_in_fleet(&self) -> bool {
        self.fleet.is_some()
    }

    /// Returns how often the engine of the fleet did not answer about a limit.
    pub(crate) fn unanswered_in_fleet(&self) -> u64 {
        self.fleet.as_ref().map_or(0, FleetLimits::unanswered)
    }

    /// Counts a request of the whole fleet against its caller's minute.
    pub(crate) async fn request_in_fleet(&self, caller: Option<&Arc<Account>>) -> Result<(), Refusal> {
        match (&self.fleet, caller.and_then(|caller| caller.fleet())) {
            (Some(fleet), Some(caller)) => fleet.request(caller).await,
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// Takes a place of the whole fleet for a call that has a place here.
    pub(crate) async fn call_in_fleet(
        &self,
        caller: Option<&Arc<Account>>,
        permit: &mut Permit,
    ) -> Result<(), Refusal> {
        if let (Some(fleet), Some(caller)) = (&self.fleet, caller.and_then(|caller| caller.fleet())) {
            permit.fleet = Some(Box::new(fleet.call(caller).await?));
        }
        Ok(())
    }

    /// Takes places of the whole fleet for a session that has a place here: one of its caller, and
    /// one of its destination.
    pub(crate) async fn session_in_fleet(
        &self,
        caller: Option<&Arc<Account>>,
        destination: (&str, usize),
        permit: &mut Permit,
    ) -> Result<(), Refusal> {
        if let Some(fleet) = &self.fleet {
            let caller = caller.and_then(|caller| caller.fleet());
            permit.fleet = Some(Box::new(fleet.session(caller, destination).await?));
        }
        Ok(())
    }

    /// Returns the account that this request is counted in; none, if no limit is about its caller.
    pub(crate) fn account(
        &self,
        now: Moment,
        principal: &Principal,
        peer: IpAddr,
        headers: &HeaderMap,
    ) -> Option<Arc<Account>> {
        // Callers with a name have a share of everything, even if nothing else is counted.
        let concerned = !principal.is_anonymous()
            || self.settings.requests_per_minute.is_some()
            || self.settings.sessions_per_principal.is_some()
            || self.settings.streams_per_principal.is_some()
            || self.settings.calls_per_principal.is_some();
        if !concerned {
            return None;
        }
        let address = principal
            .is_anonymous()
            .then(|| self.network_of_client(peer, headers));
        Some(self.find_account(now, principal, address))
    }

    fn find_account(&self, now: Moment, principal: &Principal, address: Option<IpAddr>) -> Arc<Account> {
        let mut callers = self.callers.lock();
        let known = match &address {
            Some(address) => callers.unnamed.get(address),
            None => callers.named.get(principal),
        };
        if let Some(caller) = known {
            return Arc::clone(caller);
        }
        if callers.len() >= MAX_ACCOUNTS {
            callers.forget_idle(now);
            if callers.len() >= MAX_ACCOUNTS {
                return Arc::clone(&self.others);
            }
        }
        let fleet = self.fleet.as_ref().map(|fleet| {
            let name = match &address {
                Some(address) => format!("address {address}"),
                None => format!("principal {}", principal.as_str()),
            };
            Arc::new(fleet.account(&name))
        });
        let caller = Arc::new(Account {
            fleet,
            ..Account::default()
        });
        match address {
            Some(address) => callers.unnamed.insert(address, Arc::clone(&caller)),
            None => callers.named.insert(principal.clone(), Arc::clone(&caller)),
        };
        caller
    }

    /// Returns the address, or of IPv6 the network, that a request comes from.
    fn network_of_client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let hops = headers
            .get_all("x-forwarded-for")
            .iter()
            // What cannot be read is a hop that is not known, and not one that may be passed over.
            .map(|value| value.to_str().unwrap_or_default());
        network_of(client_address(peer, hops, &self.settings.trusted_proxies))
    }

    /// Counts unknown credentials against the minute of their address. Other requests of that
    /// address are not affected: many callers may share it, and a valid token stays valid.
    pub(crate) fn refused_credentials(
        &self,
        now: Moment,
        peer: IpAddr,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let address = self.network_of_client(peer, headers);
        let mut strangers = self.strangers.lock();
        if strangers.len() >= MAX_ACCOUNTS && !strangers.contains_key(&address) {
            strangers.retain(|_, used| !used.is_whole(now));
        }
        let used = if strangers.len() < MAX_ACCOUNTS || strangers.contains_key(&address) {
            strangers.entry(address).or_default()
        } else {
            &self.other_strangers
        };
        self.refused_credentials
            .admit(used, now)
            .map_err(|retry_after| Refusal::TooManyRequests {
                retry_after,
                limit: "refused_credentials_per_minute",
            })
    }

    /// Counts a request against its caller's minute.
    pub(crate) fn request(&self, now: Moment, caller: Option<&Arc<Account>>) -> Result<(), Refusal> {
        match (self.requests, caller) {
            (Some(rate), Some(caller)) => {
                rate.admit(&caller.requests, now)
                    .map_err(|retry_after| Refusal::TooManyRequests {
                        retry_after,
                        limit: "requests_per_minute",
                    })
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// Returns whether sessions have a minute of their own.
    pub(crate) fn counts_sessions_requests(&self) -> bool {
        self.session_requests.is_some()
    }

    /// Counts a request against its session's minute.
    pub(crate) fn session_request(&self, now: Moment, used: &Allowance) -> Result<(), Refusal> {
        match self.session_requests {
            Some(rate) => rate
                .admit(used, now)
                .map_err(|retry_after| Refusal::TooManyRequests {
                    retry_after,
                    limit: "session_requests_per_minute",
                }),
            None => Ok(()),
        }
    }

    /// Returns a place for a call, taken before its body is read.
    pub(crate) fn call(&self, sharer: Option<&Sharer>) -> Result<Permit, Refusal> {
        let of_caller = sharer.and_then(|sharer| {
            let limit = sharer.limit(self.settings.calls_per_principal, self.settings.calls)?;
            Some((&sharer.account.calls, limit))
        });
        take((&self.calls, self.settings.calls), of_caller).map_err(|full| match full {
            LimitScope::InAll => Refusal::TooManyCallsInAll {
                limit: self.settings.calls,
            },
            LimitScope::OfCaller(limit) => Refusal::TooManyCallsOfCaller { limit },
        })
    }

    pub(crate) fn session(&self, sharer: Option<&Sharer>) -> Result<Permit, Refusal> {
        let of_caller = sharer.and_then(|sharer| {
            let limit = sharer.limit(self.settings.sessions_per_principal, self.settings.sessions)?;
            Some((&sharer.account.sessions, limit))
        });
        take((&self.sessions, self.settings.sessions), of_caller).map_err(|full| match full {
            LimitScope::InAll => Refusal::TooManySessionsInAll {
                limit: self.settings.sessions,
            },
            LimitScope::OfCaller(limit) => Refusal::TooManySessionsOfCaller { limit },
        })
    }

    /// Returns a place for a stream that stays open as long as its client likes.
    pub(crate) fn stream(&self, sharer: Option<&Sharer>) -> Result<Permit, Refusal> {
        let of_caller = sharer.and_then(|sharer| {
            let limit = sharer.limit(self.settings.streams_per_principal, self.settings.streams)?;
            Some((&sharer.account.streams, limit))
        });
        take((&self.streams, self.settings.streams), of_caller).map_err(|full| match full {
            LimitScope::InAll => Refusal::TooManyStreams,
            LimitScope::OfCaller(limit) => Refusal::TooManyStreamsOfCaller { limit },
        })
    }

    /// Forgets callers that have nothing left to count.
    pub(crate) fn tick(&self, now: Moment) {
        if let Some(fleet) = &self.fleet {
            let callers = self.callers.lock();
            let named = callers.named.values();
            let all = named.chain(callers.unnamed.values()).chain([&self.others]);
            let counted: Vec<Arc<FleetAccount>> = all.filter_map(|caller| caller.fleet.clone()).collect();
            drop(callers);
            fleet.tick(now, &counted);
        }
        let mut callers = self.callers.lock();
        callers.forget_idle(now);
        tidy(&mut callers.named);
        tidy(&mut callers.unnamed);
        drop(callers);
        let mut strangers = self.strangers.lock();
        strangers.retain(|_, used| !used.is_whole(now));
        tidy(&mut strangers);
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Acquire)
    }

    pub(crate) fn callers(&self) -> usize {
        self.callers.lock().len()
    }
}

/// Shrinks the table after a flood.
fn tidy<K: Eq + std::hash::Hash, V>(table: &mut HashMap<K, V>) {
    if table.capacity() > 4 * table.len().max(256) {
        table.shrink_to_fit();
    }
}

/// Which limit is reached.
enum LimitScope {
    InAll,
    OfCaller(usize),
}

fn take(
    (in_all, limit): (&Arc<AtomicUsize>, usize),
    of_caller: Option<(&Arc<AtomicUsize>, usize)>,
) -> Result<Permit, LimitScope> {
    let one_more = |places: &AtomicUsize, limit: usize| {
        places
            .fetch_update(AcqRel, Acquire, |taken| (taken < limit).then_some(taken + 1))
            .is_ok()
    };
    if let Some((places, limit)) = of_caller
        && !one_more(places, limit)
    {
        return Err(LimitScope::OfCaller(limit));
    }
    if !one_more(in_all, limit) {
        if let Some((places, _)) = of_caller {
            places.fetch_sub(1, AcqRel);
        }
        return Err(LimitScope::InAll);
    }
    Ok(Permit {
        in_all: Arc::clone(in_all),
        of_caller: of_caller.map(|(places, _)| Arc::clone(places)),
        fleet: None,
    })
}

/// Returns the address a request comes from: the peer's own, unless that is a trusted proxy. Then
/// the nearest hop that is no trusted proxy; any client may have written what stands before it.
fn client_address<'a>(peer: IpAddr, forwarded: impl Iterator<Item = &'a str>, trusted: &[Network]) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(address));
    let mut nearest = peer.to_canonical();
    if trusted.is_empty() || !is_trusted(nearest) {
        return nearest;
    }
    let lines: Vec<&str> = forwarded.collect();
    let hops = lines.iter().rev().flat_map(|line| line.rsplit(','));
    for hop in hops.take(MAX_HOPS) {
        let Some(address) = address_of(hop.trim()) else {
            return nearest;
        };
        nearest = address;
        if !is_trusted(address) {
            return nearest;
        }
    }
    nearest
}

/// Returns an address as proxies write it, with or without a port.
fn address_of(text: &str) -> Option<IpAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<IpAddr>().ok().or_else(|| {
        text.parse::<std::net::SocketAddr>()
            .ok()
            .map(|address| address.ip())
    })?;
    Some(address.to_canonical())
}

/// Of IPv6 the network: a host with one address of it has them all.
pub(super) fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn networks(texts: &[&str]) -> Vec<Network> {
        texts.iter().map(|text| Network::parse(text).unwrap()).collect()
    }

    fn sharer(limiter: &Limiter, name: &str) -> Option<Sharer> {
        let principal = Principal::named(name);
        let account = limiter.account(Moment::START, &principal, address("::1"), &HeaderMap::new());
        Sharer::of(account.as_ref(), &principal)
    }

    fn limiter(change: impl FnOnce(&mut LimitSettings)) -> Limiter {
        let mut settings = LimitSettings::default();
        change(&mut settings);
        Limiter::new(settings)
    }

    #[test]
    fn g17_forwarded_addresses_count_only_from_trusted_hops() {
        let trusted = networks(&["127.0.0.1", "10.0.0.0/8"]);
        let client = |peer: &str, forwarded: &[&str]| {
            client_address(address(peer), forwarded.iter().copied(), &trusted).to_string()
        };
        assert_eq!(client("127.0.0.1", &["203.0.113.7"]), "203.0.113.7");
        assert_eq!(
            client("127.0.0.1", &["6.6.6.6, 203.0.113.7, 10.1.2.3"]),
            "203.0.113.7"
        );
        assert_eq!(client("127.0.0.1", &["6.6.6.6", "203.0.113.7"]), "203.0.113.7");
        assert_eq!(client("127.0.0.1", &["203.0.113.7:4711"]), "203.0.113.7");
        assert_eq!(client("127.0.0.1", &["[2001:db8::1]:4711"]), "2001:db8::1");
        assert_eq!(client("::ffff:127.0.0.1", &["203.0.113.7"]), "203.0.113.7");
        // A stranger may write any address.
        assert_eq!(client("198.51.100.1", &["203.0.113.7"]), "198.51.100.1");
        // What cannot be read ends the search at what is known.
        assert_eq!(client("127.0.0.1", &["203.0.113.7, unknown"]), "127.0.0.1");
        assert_eq!(client("127.0.0.1", &[]), "127.0.0.1");
        assert_eq!(
            client_address(address("127.0.0.1"), ["6.6.6.6"].into_iter(), &[]),
            address("127.0.0.1")
        );
    }

    #[test]
    fn g17_many_sessions_and_spoofed_headers_share_one_minute() {
        let limiter = limiter(|settings| settings.requests_per_minute = Some(3));
        let now = Moment::START.after(Duration::from_secs(1));
        let ask = |peer: &str, forwarded: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", forwarded.parse().unwrap());
            let caller = limiter.account(now, &Principal::anonymous(), address(peer), &headers);
            limiter.request(now, caller.as_ref())
        };
        for spoofed in ["1.1.1.1", "2.2.2.2", "3.3.3.3"] {
            assert_eq!(ask("198.51.100.1", spoofed), Ok(()));
        }
        assert!(matches!(
            ask("198.51.100.1", "4.4.4.4"),
            Err(Refusal::TooManyRequests { .. })
        ));
        assert_eq!(ask("198.51.100.2", "1.1.1.1"), Ok(()), "another address");
        // With IPv6 every host has a whole network.
        for host in ["2001:db8::1", "2001:db8::2", "2001:db8::3"] {
            assert_eq!(ask(host, ""), Ok(()));
        }
        assert!(ask("2001:db8::4", "").is_err());
    }

    #[test]
    fn wrong_credentials_are_counted_by_address_and_forgotten_after_a_minute() {
        let limiter = limiter(|settings| {
            settings.refused_credentials_per_minute = 2;
            settings.trusted_proxies = networks(&["127.0.0.1"]);
        });
        let now = Moment::START.after(Duration::from_secs(1));
        let guess = |peer: &str, forwarded: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", forwarded.parse().unwrap());
            limiter.refused_credentials(now, address(peer), &headers)
        };
        for spoofed in ["1.1.1.1", "2.2.2.2"] {
            assert_eq!(guess("198.51.100.1", spoofed), Ok(()));
        }
        let refused = guess("198.51.100.1", "3.3.3.3");
        assert!(matches!(
            refused,
            Err(Refusal::TooManyRequests {
                limit: "refused_credentials_per_minute",
                ..
            })
        ));
        assert_eq!(guess("198.51.100.2", "1.1.1.1"), Ok(()), "another address");
        assert_eq!(
            guess("127.0.0.1", "198.51.100.3"),
            Ok(()),
            "the address that the proxy names"
        );
        assert!(
            guess("127.0.0.1", "198.51.100.1").is_err(),
            "the same by another road"
        );
        limiter.tick(now.after(Duration::from_secs(61)));
        assert!(limiter.strangers.lock().is_empty());
    }

    #[test]
    fn a_flood_of_guessing_addresses_is_counted_together() {
        let limiter = limiter(|settings| settings.refused_credentials_per_minute = 1);
        let now = Moment::START.after(Duration::from_secs(1));
        let guess = |host: u32| {
            let host = IpAddr::from(host.to_be_bytes());
            limiter.refused_credentials(now, host, &HeaderMap::new())
        };
        for host in 0..MAX_ACCOUNTS as u32 {
            assert!(guess(host).is_ok());
        }
        assert!(guess(1 << 30).is_ok(), "the place of all others");
        assert!(guess((1 << 30) + 1).is_err());
        assert_eq!(limiter.strangers.lock().len(), MAX_ACCOUNTS);
    }

    #[test]
    fn g17_unreadable_hop_does_not_expose_values_that_clients_may_have_written() {
        let limiter = limiter(|settings| {
            settings.requests_per_minute = Some(1);
            settings.trusted_proxies = networks(&["127.0.0.1"]);
        });
        let now = Moment::START.after(Duration::from_secs(1));
        let ask = |spoofed: &str| {
            let mut headers = HeaderMap::new();
            headers.append("x-forwarded-for", spoofed.parse().unwrap());
            let unreadable = http::HeaderValue::from_bytes(b"\xff, 203.0.113.7").unwrap();
            headers.append("x-forwarded-for", unreadable);
            let caller = limiter.account(now, &Principal::anonymous(), address("127.0.0.1"), &headers);
            limiter.request(now, caller.as_ref())
        };
        assert_eq!(ask("6.6.6.6"), Ok(()));
        assert!(ask("6.6.6.7").is_err());
    }

    #[test]
    fn a_principal_is_counted_wherever_it_comes_from() {
        let limiter = limiter(|settings| settings.requests_per_minute = Some(1));
        let (now, headers) = (Moment::START, HeaderMap::new());
        let ask = |name: &str, peer: &str| {
            let caller = limiter.account(now, &Principal::named(name), address(peer), &headers);
            limiter.request(now, caller.as_ref())
        };
        assert!(ask("alice", "192.0.2.1").is_ok());
        assert!(ask("alice", "192.0.2.2").is_err());
        assert!(ask("bob", "192.0.2.2").is_ok());
    }

    #[test]
    fn places_are_given_back_when_they_are_dropped() {
        let limiter = limiter(|settings| {
            settings.calls = 2;
            settings.calls_per_principal = Some(1);
        });
        let caller = |name: &str| sharer(&limiter, name);
        let (alice, bob, carol) = (caller("alice"), caller("bob"), caller("carol"));
        let first = limiter.call(alice.as_ref()).unwrap();
        assert_eq!(
            limiter.call(alice.as_ref()).unwrap_err(),
            Refusal::TooManyCallsOfCaller { limit: 1 }
        );
        let _second = limiter.call(bob.as_ref()).unwrap();
        assert_eq!(
            limiter.call(carol.as_ref()).unwrap_err(),
            Refusal::TooManyCallsInAll { limit: 2 }
        );
        assert_eq!(limiter.calls(), 2, "a refused call holds nothing");
        drop(first);
        assert!(limiter.call(carol.as_ref()).is_ok());
    }

    #[test]
    fn a_caller_with_a_name_takes_at_most_half_of_the_calls_unless_configured() {
        let limiter = limiter(|settings| settings.calls = 4);
        let (alice, bob) = (sharer(&limiter, "alice"), sharer(&limiter, "bob"));
        let _held: Vec<Permit> = (0..2).map(|_| limiter.call(alice.as_ref()).unwrap()).collect();
        assert_eq!(
            limiter.call(alice.as_ref()).unwrap_err(),
            Refusal::TooManyCallsOfCaller { limit: 2 }
        );
        assert!(limiter.call(bob.as_ref()).is_ok());
        let _rest: Vec<Permit> = (0..2).map(|_| limiter.call(None).unwrap()).collect();
        assert_eq!(
            limiter.call(None).unwrap_err(),
            Refusal::TooManyCallsInAll { limit: 4 },
            "callers without a name have no share, where nothing is configured"
        );
    }

    #[test]
    fn callers_without_state_are_forgotten() {
        let limiter = limiter(|settings| settings.requests_per_minute = Some(60));
        let now = Moment::START.after(Duration::from_secs(1));
        for host in 0..100_u8 {
            let caller = limiter.account(
                now,
                &Principal::anonymous(),
                IpAddr::from([192, 0, 2, host]),
                &HeaderMap::new(),
            );
            assert!(limiter.request(now, caller.as_ref()).is_ok());
        }
        limiter.tick(now);
        assert_eq!(limiter.callers(), 100);
        limiter.tick(now.after(Duration::from_secs(2)));
        assert_eq!(limiter.callers(), 0);
    }

    #[test]
    fn beyond_the_last_place_callers_share_one() {
        let limiter = limiter(|settings| settings.requests_per_minute = Some(1));
        let now = Moment::START.after(Duration::from_secs(1));
        let ask = |host: u32| {
            let caller = limiter.account(
                now,
                &Principal::anonymous(),
                IpAddr::from(host.to_be_bytes()),
                &HeaderMap::new(),
            );
            limiter.request(now, caller.as_ref())
        };
        for host in 0..MAX_ACCOUNTS as u32 {
            assert!(ask(host).is_ok());
        }
        assert!(ask(1 << 30).is_ok(), "the place of all others");
        assert!(ask((1 << 30) + 1).is_err());
        assert_eq!(limiter.callers(), MAX_ACCOUNTS);
    }

    #[test]
    fn no_caller_is_remembered_without_a_limit_about_callers() {
        let limiter = limiter(|_| {});
        assert!(
            limiter
                .account(
                    Moment::START,
                    &Principal::anonymous(),
                    address("::1"),
                    &HeaderMap::new()
                )
                .is_none()
        );
        assert_eq!(limiter.callers(), 0);
    }
}
