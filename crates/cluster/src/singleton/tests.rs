//! The machine alone, and several of them on one registry in random worlds.

use std::collections::BTreeMap;

use super::*;
use crate::memory::MemoryEngine;

const NOW: Duration = Duration::from_secs(100);

fn id(name: &str) -> NodeId {
    NodeId::generate(name).unwrap()
}

fn outputs(machine: &mut Singleton) -> Vec<Output> {
    std::iter::from_fn(|| machine.poll_output()).collect()
}

fn answer(request: RequestId, decision: Decision) -> Output {
    Output::Answer { request, decision }
}

fn held(node: &NodeId) -> Result<NameLease, Away> {
    Ok(NameLease::Held(node.clone()))
}

const ASK: Output = Output::Lease { has_it: false };
const RENEW: Output = Output::Lease { has_it: true };

/// Returns a machine that has the server since [`NOW`].
fn holder() -> (Singleton, NodeId) {
    let me = id("me");
    let mut machine = Singleton::new(me.clone());
    machine.handle_request(1, NOW);
    machine.handle_leased(held(&me), NOW);
    assert_eq!(outputs(&mut machine), [ASK, answer(1, Decision::Here)]);
    (machine, me)
}

#[test]
fn replica_that_has_the_name_serves_and_renews_it() {
    let (mut machine, me) = holder();
    machine.handle_request(2, NOW);
    machine.handle_peer_request(3, NOW);
    let here = |request| answer(request, Decision::Here);
    assert_eq!(outputs(&mut machine), [here(2), here(3)]);
    assert_eq!(machine.next_deadline(), Some(NOW + RENEWAL));
    machine.handle_timeout(NOW + RENEWAL);
    assert_eq!(outputs(&mut machine), [RENEW]);
    // The lease counts from when it was asked for.
    machine.handle_leased(held(&me), NOW + RENEWAL + Duration::from_secs(1));
    assert_eq!(machine.certain_until(), NOW + RENEWAL + CERTAIN);
    assert_eq!(machine.next_deadline(), Some(NOW + RENEWAL + RENEWAL));
}

#[test]
fn other_replicas_send_their_requests_to_it() {
    let (mut machine, other) = (Singleton::new(id("me")), id("other"));
    machine.handle_request(1, NOW);
    machine.handle_request(2, NOW);
    machine.handle_peer_request(3, NOW);
    machine.handle_leased(held(&other), NOW);
    machine.handle_request(4, NOW);
    let there = |request| answer(request, Decision::There(other.clone()));
    let expected = [ASK, there(1), there(2), answer(3, Decision::NotHere), there(4)];
    assert_eq!(outputs(&mut machine), expected);
    assert_eq!(machine.next_deadline(), None, "the other one renews it");
    // A peer that sends its request here may know better.
    machine.handle_peer_request(5, NOW);
    machine.handle_leased(held(&other), NOW);
    assert_eq!(outputs(&mut machine), [ASK, answer(5, Decision::NotHere)]);
}

#[test]
fn server_ends_before_the_lease_does() {
    let (mut machine, me) = holder();
    machine.handle_timeout(NOW + RENEWAL);
    machine.handle_leased(Err(Away), NOW + RENEWAL);
    assert_eq!(machine.next_deadline(), Some(NOW + RENEWAL + RETRY));
    machine.handle_timeout(NOW + RENEWAL + RETRY);
    assert_eq!(outputs(&mut machine), [RENEW, RENEW]);
    assert!(NOW + CERTAIN + END_TIME < NOW + LEASE);
    assert_eq!(machine.next_deadline(), Some(NOW + CERTAIN));
    assert!(machine.is_here(NOW + CERTAIN - Duration::from_millis(1)));
    machine.handle_timeout(NOW + CERTAIN);
    assert_eq!(outputs(&mut machine), [Output::End]);
    assert!(!machine.is_here(NOW + CERTAIN));
    // Neither a late answer nor a request starts it before it has ended.
    machine.handle_request(2, NOW + CERTAIN);
    machine.handle_leased(held(&me), NOW + CERTAIN);
    assert_eq!(outputs(&mut machine), []);
    machine.handle_ended(NOW + CERTAIN + END_TIME);
    assert_eq!(outputs(&mut machine), [ASK]);
    machine.handle_leased(Err(Away), NOW + LEASE);
    assert_eq!(
        outputs(&mut machine),
        [answer(2, Decision::Refuse(Unavailable::Away))]
    );
}

#[test]
fn paused_replica_serves_nothing_after_its_time() {
    let (mut machine, other) = (holder().0, id("other"));
    let late = NOW + LEASE * 3;
    // The request is handled before the timer rings.
    machine.handle_peer_request(2, late);
    assert_eq!(outputs(&mut machine), [Output::End]);
    machine.handle_ended(late);
    machine.handle_leased(held(&other), late);
    assert_eq!(outputs(&mut machine), [ASK, answer(2, Decision::NotHere)]);
}

#[test]
fn replica_whose_name_another_one_has_ends_its_server() {
    let (mut machine, other) = (holder().0, id("other"));
    machine.handle_timeout(NOW + RENEWAL);
    machine.handle_leased(held(&other), NOW + RENEWAL);
    assert_eq!(outputs(&mut machine), [RENEW, Output::End]);
    assert!(!machine.is_here(NOW + RENEWAL));
}

#[test]
fn new_directory_is_no_reason_to_end_the_server_and_none_to_start_one() {
    let (mut machine, me) = holder();
    machine.handle_timeout(NOW + RENEWAL);
    machine.handle_leased(held(&me), NOW + RENEWAL);
    assert_eq!(outputs(&mut machine), [RENEW]);
    let mut newcomer = Singleton::new(id("newcomer"));
    newcomer.handle_request(1, NOW);
    newcomer.handle_leased(Ok(NameLease::Unsettled(LEASE)), NOW);
    let settling = answer(1, Decision::Refuse(Unavailable::Settling));
    assert_eq!(outputs(&mut newcomer), [ASK, settling]);
    assert!(!newcomer.is_here(NOW));
}

#[test]
fn replica_that_cannot_be_reached_keeps_the_server_while_its_lease_lasts() {
    let (me, other) = (id("me"), id("other"));
    let mut machine = Singleton::new(me.clone());
    machine.handle_not_sent(1, &other, NOW);
    machine.handle_leased(held(&other), NOW);
    let unreached = answer(1, Decision::Refuse(Unavailable::OwnerUnreached));
    assert_eq!(outputs(&mut machine), [ASK, unreached]);
    machine.handle_not_sent(2, &other, NOW);
    machine.handle_leased(held(&me), NOW);
    assert_eq!(outputs(&mut machine), [ASK, answer(2, Decision::Here)]);
}

#[test]
fn requests_are_bounded() {
    let (me, other) = (id("me"), id("other"));
    let mut machine = Singleton::new(me);
    for request in 0..=MAX_WAITING as u64 {
        machine.handle_request(request, NOW);
    }
    let busy = |request| answer(request, Decision::Refuse(Unavailable::Busy));
    assert_eq!(outputs(&mut machine), [ASK, busy(MAX_WAITING as u64)]);
    machine.handle_leased(held(&other), NOW);
    assert_eq!(outputs(&mut machine).len(), MAX_WAITING);
    machine.handle_not_here(1, &other, MAX_ATTEMPTS, NOW);
    assert_eq!(outputs(&mut machine), [busy(1)]);
    machine.handle_not_here(2, &other, 1, NOW);
    assert_eq!(outputs(&mut machine), [ASK]);
}

#[test]
fn draining_replica_gives_the_server_up_when_nothing_is_open() {
    let (mut machine, other) = (holder().0, id("other"));
    machine.handle_served();
    assert_eq!(outputs(&mut machine), [], "it does not drain");
    machine.handle_drain();
    assert!(machine.is_here(NOW), "what is open goes on");
    machine.handle_request(2, NOW);
    machine.handle_peer_request(3, NOW);
    machine.handle_served();
    machine.handle_ended(NOW);
    assert_eq!(outputs(&mut machine), [Output::End, Output::LetGo]);
    machine.handle_let_go(NOW);
    machine.handle_looked_up(Ok(None));
    let expected = [
        Output::LookUp,
        answer(2, Decision::Vacant),
        answer(3, Decision::NotHere),
    ];
    assert_eq!(outputs(&mut machine), expected);
    // It starts no other one.
    machine.handle_request(4, NOW);
    machine.handle_looked_up(Ok(Some(other.clone())));
    let expected = [Output::LookUp, answer(4, Decision::There(other))];
    assert_eq!(outputs(&mut machine), expected);
}

#[test]
fn replica_that_gets_the_name_while_it_drains_lets_it_go() {
    let me = id("me");
    let mut machine = Singleton::new(me.clone());
    machine.handle_request(1, NOW);
    machine.handle_drain();
    machine.handle_leased(held(&me), NOW);
    machine.handle_let_go(NOW);
    machine.handle_looked_up(Ok(None));
    let expected = [ASK, Output::LetGo, Output::LookUp, answer(1, Decision::Vacant)];
    assert_eq!(outputs(&mut machine), expected);
}

/// A number from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn time(&mut self, limit: Duration) -> Duration {
        Duration::from_millis(self.below(limit.as_millis() as u64 + 1))
    }
}

/// One replica of a random world.
struct Replica {
    id: NodeId,
    machine: Singleton,
    /// What its clock shows more than the engine's.
    ahead: Duration,
    is_cut: bool,
    is_paused: bool,
    /// Its server, and when that ends if it is being ended.
    server: Option<Option<Duration>>,
    rings: Option<Duration>,
}

/// What is under way between a replica and the registry.
enum Event {
    /// The registry acts; the answer is lost or comes later.
    Act {
        output: Output,
        is_lost: bool,
    },
    Leased(Result<NameLease, Away>),
    LookedUp(Result<Option<NodeId>, Away>),
    LetGo,
}

const TICK: Duration = Duration::from_millis(50);
/// The time limit of the engine's client.
const LIMIT: Duration = Duration::from_secs(2);

struct World {
    random: Random,
    now: Duration,
    registry: MemoryEngine,
    replicas: BTreeMap<usize, Replica>,
    events: Vec<(Duration, NodeId, Event)>,
    last_request: RequestId,
    answered: RequestId,
    served: u64,
    starts: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            random: Random(seed),
            now: Duration::from_secs(1000),
            registry: MemoryEngine::default(),
            replicas: BTreeMap::new(),
            events: Vec::new(),
            last_request: 0,
            answered: 0,
            served: 0,
            starts: 0,
        };
        for place in 0..3 {
            world.start(place);
        }
        world
    }

    fn start(&mut self, place: usize) {
        let id = id("replica");
        let replica = Replica {
            machine: Singleton::new(id.clone()),
            id,
            ahead: self.random.time(Duration::from_secs(600)),
            is_cut: false,
            is_paused: false,
            server: None,
            rings: None,
        };
        self.replicas.insert(place, replica);
    }

    fn act(&mut self, place: usize, act: impl FnOnce(&mut Singleton, Duration)) {
        let now = self.now;
        let Some(replica) = self.replicas.get_mut(&place) else {
            return;
        };
        let local = now + replica.ahead;
        act(&mut replica.machine, local);
        while let Some(output) = replica.machine.poll_output() {
            match output {
                Output::Lease { .. } | Output::LookUp | Output::LetGo => {
                    let at = now + self.random.time(LIMIT);
                    let is_lost = replica.is_cut || self.random.below(20) == 0;
                    let reaches = !replica.is_cut || self.random.below(8) == 0;
                    let away = match &output {
                        Output::Lease { .. } => Event::Leased(Err(Away)),
                        Output::LookUp => Event::LookedUp(Err(Away)),
                        Output::LetGo | Output::End | Output::Answer { .. } => Event::LetGo,
                    };
                    if reaches {
                        let event = Event::Act { output, is_lost };
                        self.events.push((at, replica.id.clone(), event));
                    }
                    if is_lost {
                        self.events.push((now + LIMIT, replica.id.clone(), away));
                    }
                }
                Output::End => {
                    let ends = now + self.random.time(END_TIME);
                    replica.server = replica.server.map(|_| Some(ends));
                    if replica.server.is_none() {
                        replica.server = Some(Some(now));
                    }
                }
                Output::Answer { decision, .. } => {
                    self.answered += 1;
                    if decision == Decision::Here {
                        self.served += 1;
                        if replica.server.is_none() {
                            self.starts += 1;
                            replica.server = Some(None);
                        }
                    }
                }
            }
        }
        let deadline = replica.machine.next_deadline();
        let late = self.random.time(Duration::from_millis(500));
        replica.rings = deadline.map(|deadline| deadline.saturating_sub(replica.ahead) + late);
    }

    /// Carries out what is due, and checks that one server runs at most. A paused replica can do
    /// nothing about its own.
    fn step(&mut self) {
        self.now += TICK;
        let now = self.now;
        self.registry.expire(now);
        let is_due = |(at, node, _): &mut (Duration, NodeId, Event)| {
            let replica = self.replicas.values().find(|replica| replica.id == *node);
            *at <= now && !replica.is_some_and(|replica| replica.is_paused)
        };
        let due: Vec<_> = self.events.extract_if(.., is_due).collect();
        for (_, node, event) in due {
            let place = self.replicas.iter().find(|(_, replica)| replica.id == node);
            let place = place.map(|(place, _)| *place);
            match event {
                Event::Act { output, is_lost } => {
                    let answer = match output {
                        Output::Lease { has_it } => {
                            Event::Leased(Ok(self.registry.lease_name(now, "one", &node, has_it)))
                        }
                        Output::LookUp => Event::LookedUp(Ok(self.registry.holder(now, "one"))),
                        Output::LetGo | Output::End | Output::Answer { .. } => {
                            self.registry.let_go("one", &node);
                            Event::LetGo
                        }
                    };
                    if !is_lost {
                        let back = self.random.time(Duration::from_millis(200));
                        self.events.push((now + back, node, answer));
                    }
                }
                Event::Leased(leased) => {
                    if let Some(place) = place {
                        self.act(place, |machine, now| machine.handle_leased(leased, now));
                    }
                }
                Event::LookedUp(found) => {
                    if let Some(place) = place {
                        self.act(place, |machine, _| machine.handle_looked_up(found));
                    }
                }
                Event::LetGo => {
                    if let Some(place) = place {
                        self.act(place, Singleton::handle_let_go);
                    }
                }
            }
        }
        let places: Vec<usize> = self.replicas.keys().copied().collect();
        for place in places {
            let Some(replica) = self.replicas.get_mut(&place) else {
                continue;
            };
            if replica.is_paused {
                continue;
            }
            if replica.server.flatten().is_some_and(|ends| ends <= now) {
                replica.server = None;
                self.act(place, Singleton::handle_ended);
            }
            let rings = self.replicas.get(&place).and_then(|replica| replica.rings);
            if rings.is_some_and(|rings| rings <= now) {
                self.act(place, Singleton::handle_timeout);
            }
        }
        let running = self.replicas.values().filter(|replica| !replica.is_paused);
        let running = running.filter(|replica| replica.server.is_some()).count();
        assert!(running <= 1, "{running} servers run at {now:?}");
    }

    fn befall(&mut self) {
        let place = self.random.below(3) as usize;
        match self.random.below(400) {
            0 => self.start(place),
            1 => self.registry = MemoryEngine::default(),
            2 => {
                // A pause that ends.
                let pause = self.random.below(400);
                if let Some(replica) = self.replicas.get_mut(&place) {
                    replica.is_paused = true;
                }
                for _ in 0..pause {
                    self.step();
                }
                // What it had ends at once: the next thing that it does shows its time.
                if let Some(replica) = self.replicas.get_mut(&place) {
                    let is_over = !replica.machine.is_here(self.now + replica.ahead);
                    if is_over && replica.server.is_some() {
                        replica.server = None;
                        replica.is_paused = false;
                        self.act(place, Singleton::handle_timeout);
                        if let Some(replica) = self.replicas.get_mut(&place) {
                            replica.server = None;
                        }
                        self.act(place, Singleton::handle_ended);
                    } else {
                        replica.is_paused = false;
                    }
                }
            }
            3 | 4 => {
                if let Some(replica) = self.replicas.get_mut(&place) {
                    replica.is_cut = !replica.is_cut;
                }
            }
            5 => {
                self.act(place, |machine, _| {
                    machine.handle_drain();
                    machine.handle_served();
                });
            }
            6..100 => {
                let request = self.last_request;
                self.last_request += 1;
                let node = self.replicas.get(&place).map(|replica| replica.id.clone());
                match (self.random.below(4), node) {
                    (0, _) => self.act(place, |machine, now| machine.handle_peer_request(request, now)),
                    (1, Some(node)) => {
                        self.act(place, |machine, now| machine.handle_not_sent(request, &node, now));
                    }
                    _ => self.act(place, |machine, now| machine.handle_request(request, now)),
                }
            }
            _ => {}
        }
    }
}

fn play(seed: u64) -> (u64, u64) {
    let mut world = World::new(seed);
    for _ in 0..4000 {
        world.befall();
        world.step();
    }
    assert!(world.answered <= world.last_request);
    (world.served, world.starts)
}

#[test]
fn one_server_runs_at_most_in_random_worlds() {
    let (mut served, mut starts) = (0, 0);
    for seed in 0..60 {
        let (more_served, more_starts) = play(seed);
        served += more_served;
        starts += more_starts;
    }
    assert!(served > 1000 && starts > 100, "{served} {starts}");
}
