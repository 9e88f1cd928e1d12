//! Rates: requests a minute.

use std::time::Duration;

use cluster::allowance::{Admission, Answer, ENGINE_WAIT, TOKEN_LIFETIME, Tokens};
use cluster::memory::MemoryEngine;
use cluster::{TokenDemand, TokenGrant};

use crate::engine::{COMMAND_TIMEOUT, Events, Manner};
use crate::random::Random;

const MINUTE: Duration = Duration::from_secs(60);
/// How often a replica learns how many there are.
const CENSUS: Duration = Duration::from_secs(5);

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// Three times the limit, spread over all replicas.
    Full,
    /// Bursts and pauses, on a few replicas at a time.
    Random,
}

#[derive(Debug, Clone, Copy)]
struct Options {
    per_minute: u32,
    replicas: usize,
    demand: Demand,
    manner: Manner,
    has_deaths: bool,
}

enum Event {
    Arrival,
    /// The demand of a replica reaches the engine.
    Ask(usize, u64, TokenDemand),
    /// The answer reaches the replica, or does not.
    Answer(usize, u64, Option<TokenGrant>),
    /// A request of this replica and life has waited for long.
    Late(usize, u64, u64),
    Death,
    Census,
}

struct Replica {
    machine: Tokens,
    asked: Option<u64>,
    waiting: std::collections::HashSet<u64>,
    /// Distinguishes a replica from the one that it replaced.
    life: u64,
}

struct World {
    options: Options,
    random: Random,
    events: Events<Event>,
    now: Duration,
    engine: MemoryEngine,
    replicas: Vec<Replica>,
    nodes: u32,
    asks: u64,
    lives: u64,
    /// The replicas that requests reach at the moment, and the pause between them.
    reached: usize,
    pause: Duration,
    admitted: Vec<Duration>,
    refused: u64,
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let mut world = Self {
            options,
            random: Random(seed),
            events: Events::new(),
            now: Duration::ZERO,
            engine: MemoryEngine::default(),
            replicas: Vec::new(),
            nodes: u32::try_from(options.replicas).unwrap(),
            asks: 0,
            lives: 0,
            reached: options.replicas,
            pause: MINUTE / options.per_minute / 3,
            admitted: Vec::new(),
            refused: 0,
        };
        for _ in 0..options.replicas {
            let replica = world.newborn();
            world.replicas.push(replica);
        }
        world.events.add(Duration::ZERO, Event::Arrival);
        world.events.add(CENSUS, Event::Census);
        if options.has_deaths {
            world.events.add(Duration::from_secs(7), Event::Death);
        }
        world
    }

    fn newborn(&mut self) -> Replica {
        self.lives += 1;
        Replica {
            machine: Tokens::new(self.options.per_minute),
            asked: None,
            waiting: std::collections::HashSet::new(),
            life: self.lives,
        }
    }

    fn run(&mut self, until: Duration) {
        while let Some((at, event)) = self.events.next() {
            if at > until {
                return;
            }
            self.now = at;
            self.step(event);
        }
    }

    fn step(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Arrival => {
                let at = self.random.below(self.reached.min(self.replicas.len()));
                let nodes = self.nodes;
                match self.replicas[at].machine.handle_request(now, nodes) {
                    Answer::Now(admission) => self.judge(admission),
                    Answer::Later(id) => {
                        self.replicas[at].waiting.insert(id);
                        let life = self.replicas[at].life;
                        self.events.add(now + ENGINE_WAIT, Event::Late(at, life, id));
                    }
                }
                self.drive(at);
                if self.options.demand == Demand::Random && self.random.chance(2) {
                    self.reached = 1 + self.random.below(self.replicas.len());
                    let even = MINUTE / self.options.per_minute;
                    self.pause = self.random.time((even / 10, even * 3));
                    if self.random.chance(10) {
                        self.events.add(now + MINUTE.mul_f64(0.7), Event::Arrival);
                        return;
                    }
                }
                let pause = self.random.time((self.pause / 2, self.pause * 3 / 2));
                self.events.add(now + pause, Event::Arrival);
            }
            Event::Ask(at, number, demand) => {
                let grant = self.engine.lease_tokens(now, "caller", demand);
                let way = self.options.manner.way(now, &mut self.random);
                if let Some(way) = way {
                    self.events.add(now + way, Event::Answer(at, number, Some(grant)));
                }
            }
            Event::Answer(at, number, grant) => {
                let replica = &mut self.replicas[at];
                if replica.asked != Some(number) {
                    return;
                }
                replica.asked = None;
                match grant {
                    Some(grant) => replica.machine.handle_granted(now, grant),
                    None => replica.machine.handle_away(now, self.nodes),
                }
                self.drive(at);
            }
            Event::Late(at, life, id) => {
                if self.replicas[at].life == life && self.replicas[at].waiting.contains(&id) {
                    self.replicas[at].machine.handle_late(now, self.nodes);
                    self.events.add(now + ENGINE_WAIT, Event::Late(at, life, id));
                    self.drive(at);
                }
            }
            Event::Death => {
                let at = self.random.below(self.replicas.len());
                // Its tokens are gone, and its answers reach no machine. Waiting requests end.
                self.replicas[at] = self.newborn();
                let next = self
                    .random
                    .time((Duration::from_secs(3), Duration::from_secs(20)));
                self.events.add(now + next, Event::Death);
            }
            Event::Census => {
                self.nodes = u32::try_from(self.replicas.len()).unwrap();
                self.events.add(now + CENSUS, Event::Census);
            }
        }
    }

    /// Carries out what the machine of a replica wants.
    fn drive(&mut self, at: usize) {
        let (now, nodes) = (self.now, self.nodes);
        while let Some((id, admission)) = self.replicas[at].machine.poll_decision() {
            assert!(self.replicas[at].waiting.remove(&id), "decided twice");
            self.judge(admission);
        }
        if let Some(demand) = self.replicas[at].machine.poll_demand(now, nodes) {
            assert_eq!(self.replicas[at].asked, None, "two asks at once");
            self.asks += 1;
            let number = self.asks;
            self.replicas[at].asked = Some(number);
            if let Some(way) = self.options.manner.way(now, &mut self.random) {
                self.events.add(now + way, Event::Ask(at, number, demand));
            }
            self.events
                .add(now + COMMAND_TIMEOUT, Event::Answer(at, number, None));
        }
    }

    fn judge(&mut self, admission: Admission) {
        match admission {
            Admission::Admitted => self.admitted.push(self.now),
            Admission::Refused(wait) => {
                assert!(wait > Duration::ZERO);
                self.refused += 1;
            }
        }
    }

    /// Returns how far the requests of all windows are above what one process would admit: a burst
    /// of a minute's worth, and then the rate. In parts of the limit.
    fn excess(&self) -> f64 {
        let limit = f64::from(self.options.per_minute);
        let (mut level, mut last, mut worst) = (0.0_f64, Duration::ZERO, 0.0_f64);
        for at in &self.admitted {
            let passed = (*at - last).as_secs_f64() / 60.0;
            level = (level - passed * limit).max(0.0) + 1.0;
            last = *at;
            worst = worst.max(level);
        }
        (worst - limit) / limit
    }

    /// Returns the fewest and the most requests of any minute from the second one on, in which no
    /// burst is left.
    fn minutes(&self) -> (usize, usize) {
        let (mut fewest, mut most) = (usize::MAX, 0);
        let end = self.admitted.last().copied().unwrap_or_default();
        let mut to = 0;
        for (from, at) in self.admitted.iter().enumerate() {
            if *at < MINUTE {
                continue;
            }
            if *at + MINUTE > end {
                break;
            }
            while self.admitted[to] < *at + MINUTE {
                to += 1;
            }
            fewest = fewest.min(to - from);
            most = most.max(to - from);
        }
        (fewest.min(most), most)
    }
}

fn worlds(manners: &[Manner], demand: Demand) -> impl Iterator<Item = (u64, Options)> {
    let mut all = Vec::new();
    for per_minute in [1, 7, 60, 600, 3000] {
        for replicas in [1, 2, 3, 5, 8] {
            for manner in manners {
                for has_deaths in [false, true] {
                    all.push(Options {
                        per_minute,
                        replicas,
                        demand,
                        manner: *manner,
                        has_deaths,
                    });
                }
            }
        }
    }
    (0_u64..).zip(all)
}

#[test]
fn fleet_admits_what_one_process_would_and_a_twentieth_more_at_most() {
    for demand in [Demand::Full, Demand::Random] {
        for (seed, options) in worlds(&[Manner::Fast, Manner::Slow], demand) {
            let mut world = World::new(seed, options);
            world.run(3 * MINUTE);
            // What is whole rounds up.
            let one = 1.0 / f64::from(options.per_minute);
            let excess = world.excess();
            assert!(excess <= 0.05 + one, "{seed} {options:?}: {excess} over");
        }
    }
}

#[test]
fn any_minute_of_full_demand_has_the_limit_within_a_twentieth() {
    for (seed, options) in worlds(&[Manner::Fast, Manner::Slow], Demand::Full) {
        let mut world = World::new(seed, options);
        world.run(3 * MINUTE);
        let limit = f64::from(options.per_minute);
        let (fewest, most) = world.minutes();
        assert!(most as f64 <= limit * 1.05 + 1.0, "{seed} {options:?}: {most}");
        assert!(fewest as f64 >= limit * 0.9 - 1.0, "{seed} {options:?}: {fewest}");
    }
}

#[test]
fn engine_that_answers_late_or_not_leaves_each_replica_its_share() {
    for (seed, options) in worlds(&[Manner::Late, Manner::Away], Demand::Full) {
        if options.has_deaths {
            continue;
        }
        let mut world = World::new(seed, options);
        world.run(3 * MINUTE);
        let limit = f64::from(options.per_minute);
        let nodes = options.replicas as f64;
        let (fewest, most) = world.minutes();
        assert!(most as f64 <= limit * 1.05 + nodes, "{seed} {options:?}: {most}");
        assert!(
            fewest as f64 >= limit * 0.8 - nodes,
            "{seed} {options:?}: {fewest}"
        );
    }
}

#[test]
fn most_requests_of_an_active_caller_need_no_round_trip() {
    let options = Options {
        per_minute: 60_000,
        replicas: 3,
        demand: Demand::Random,
        manner: Manner::Fast,
        has_deaths: false,
    };
    let mut world = World::new(1, options);
    world.run(MINUTE);
    let admitted = world.admitted.len() as u64;
    assert!(
        world.asks * 10 <= admitted,
        "{} asks for {admitted} requests",
        world.asks
    );
    // Tokens that are not used end.
    assert!(TOKEN_LIFETIME * 20 <= MINUTE);
}
