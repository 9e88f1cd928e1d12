//! Counts: calls, sessions and streams at once.

use std::collections::HashSet;
use std::time::Duration;

use cluster::allowance::{Admission, Answer, ENGINE_WAIT, Slots};
use cluster::memory::MemoryEngine;
use cluster::registry::{LEASE, RENEWAL};
use cluster::{Node, SlotDemand, SlotGrant};

use crate::engine::{COMMAND_TIMEOUT, Events, Manner, node};
use crate::random::Random;

#[derive(Debug, Clone, Copy)]
struct Options {
    limit: u32,
    replicas: usize,
    manner: Manner,
    has_deaths: bool,
    /// How long a call takes at most, and the pause between calls.
    takes: Duration,
    pause: Duration,
}

enum Event {
    Arrival,
    /// A call of this replica and life ends.
    End(usize, u64),
    Ask(usize, u64, SlotDemand),
    Answer(usize, u64, Option<SlotGrant>),
    Late(usize, u64, u64),
    Death,
    Renewal,
    Tick,
}

struct Replica {
    node: Node,
    machine: Slots,
    asked: Option<u64>,
    waiting: HashSet<u64>,
    life: u64,
    calls: u32,
}

struct World {
    options: Options,
    random: Random,
    events: Events<Event>,
    now: Duration,
    engine: MemoryEngine,
    replicas: Vec<Replica>,
    asks: u64,
    lives: u64,
    most: u32,
    admitted: u64,
    refused: u64,
    /// Refused while fewer than three quarters were in use.
    wrongly: u64,
    /// Slots in use, over time from the thirtieth second on.
    used: (Duration, f64),
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
            asks: 0,
            lives: 0,
            most: 0,
            admitted: 0,
            refused: 0,
            wrongly: 0,
            used: (Duration::ZERO, 0.0),
        };
        for _ in 0..options.replicas {
            let replica = world.newborn();
            world.replicas.push(replica);
        }
        world.events.add(Duration::ZERO, Event::Arrival);
        world.events.add(RENEWAL, Event::Renewal);
        world.events.add(Duration::from_secs(1), Event::Tick);
        if options.has_deaths {
            world.events.add(Duration::from_secs(20), Event::Death);
        }
        world
    }

    fn newborn(&mut self) -> Replica {
        self.lives += 1;
        let node = node("replica");
        self.engine.join(self.now, &node);
        Replica {
            node,
            machine: Slots::new(self.options.limit),
            asked: None,
            waiting: HashSet::new(),
            life: self.lives,
            calls: 0,
        }
    }

    fn in_use(&self) -> u32 {
        self.replicas.iter().map(|replica| replica.calls).sum()
    }

    fn nodes(&self) -> u32 {
        u32::try_from(self.replicas.len()).unwrap()
    }

    fn run(&mut self, until: Duration) {
        while let Some((at, event)) = self.events.next() {
            if at > until {
                return;
            }
            if self.now >= Duration::from_secs(30) {
                let passed = at - self.now;
                self.used.0 += passed;
                self.used.1 += passed.as_secs_f64() * f64::from(self.in_use());
            }
            self.now = at;
            self.step(event);
        }
    }

    fn step(&mut self, event: Event) {
        let (now, nodes) = (self.now, self.nodes());
        match event {
            Event::Arrival => {
                let at = self.random.below(self.replicas.len());
                match self.replicas[at].machine.handle_request(now, nodes) {
                    Answer::Now(admission) => self.judge(at, admission),
                    Answer::Later(id) => {
                        let life = self.replicas[at].life;
                        self.replicas[at].waiting.insert(id);
                        self.events.add(now + ENGINE_WAIT, Event::Late(at, life, id));
                    }
                }
                self.drive(at);
                let pause = self
                    .random
                    .time((self.options.pause / 2, self.options.pause * 3 / 2));
                self.events.add(now + pause, Event::Arrival);
            }
            Event::End(at, life) => {
                if self.replicas[at].life == life {
                    self.replicas[at].calls -= 1;
                    self.replicas[at].machine.handle_released(nodes);
                    self.drive(at);
                }
            }
            Event::Ask(at, number, demand) => {
                // The demand of a replica that died meanwhile has its effect all the same.
                let replica = &self.replicas[at];
                if replica.asked == Some(number) {
                    let id = replica.node.id.clone();
                    let grant = self.engine.lease_slots(now, "caller", &id, demand);
                    if let Some(way) = self.options.manner.way(now, &mut self.random) {
                        self.events.add(now + way, Event::Answer(at, number, Some(grant)));
                    }
                }
            }
            Event::Answer(at, number, grant) => {
                let replica = &mut self.replicas[at];
                if replica.asked != Some(number) {
                    return;
                }
                replica.asked = None;
                match grant {
                    Some(grant) => drop(replica.machine.handle_granted(now, grant)),
                    None => replica.machine.handle_away(now, nodes),
                }
                self.drive(at);
            }
            Event::Late(at, life, id) => {
                let replica = &mut self.replicas[at];
                if replica.life == life && replica.waiting.contains(&id) {
                    replica.machine.handle_late(now, nodes);
                    self.events.add(now + ENGINE_WAIT, Event::Late(at, life, id));
                    self.drive(at);
                }
            }
            Event::Death => {
                let at = self.random.below(self.replicas.len());
                self.replicas[at] = self.newborn();
                let next = self.random.time((LEASE, LEASE * 3));
                self.events.add(now + next, Event::Death);
            }
            Event::Renewal => {
                for replica in &self.replicas {
                    self.engine.renew(now, &replica.node.id);
                }
                self.events.add(now + RENEWAL, Event::Renewal);
            }
            Event::Tick => {
                for at in 0..self.replicas.len() {
                    self.replicas[at].machine.handle_tick(now);
                    self.drive(at);
                }
                self.events.add(now + Duration::from_secs(1), Event::Tick);
            }
        }
    }

    fn drive(&mut self, at: usize) {
        let (now, nodes) = (self.now, self.nodes());
        while let Some((id, admission)) = self.replicas[at].machine.poll_decision() {
            assert!(self.replicas[at].waiting.remove(&id), "decided twice");
            self.judge(at, admission);
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

    fn judge(&mut self, at: usize, admission: Admission) {
        match admission {
            Admission::Admitted => {
                self.admitted += 1;
                self.replicas[at].calls += 1;
                self.most = self.most.max(self.in_use());
                let takes = self.random.time((self.options.takes / 10, self.options.takes));
                let life = self.replicas[at].life;
                self.events.add(self.now + takes, Event::End(at, life));
            }
            Admission::Refused(_) => {
                self.refused += 1;
                self.wrongly += u64::from(self.in_use() * 4 < self.options.limit * 3);
            }
        }
    }
}

fn worlds(manners: &[Manner], has_deaths: &[bool], pause: impl Fn(u32) -> Duration) -> Vec<(u64, Options)> {
    let mut all = Vec::new();
    for limit in [1, 2, 16, 100, 300] {
        for replicas in [1, 2, 3, 5, 8] {
            for manner in manners {
                for has_deaths in has_deaths {
                    all.push(Options {
                        limit,
                        replicas,
                        manner: *manner,
                        has_deaths: *has_deaths,
                        takes: Duration::from_secs(4),
                        pause: pause(limit),
                    });
                }
            }
        }
    }
    (0_u64..).zip(all).collect()
}

/// Twice as many calls as there are slots.
fn full(limit: u32) -> Duration {
    Duration::from_millis(1100) / limit
}

#[test]
fn places_of_all_replicas_are_never_above_the_limit_and_are_used() {
    for (seed, options) in worlds(&[Manner::Fast, Manner::Slow], &[false, true], full) {
        let mut world = World::new(seed, options);
        world.run(Duration::from_secs(90));
        assert!(world.most <= options.limit, "{seed} {options:?}: {}", world.most);
        let used = world.used.1 / world.used.0.as_secs_f64() / f64::from(options.limit);
        // A slot stands empty between two calls; and the slots of a dead replica return when its
        // lease has ended.
        if options.manner == Manner::Fast && !options.has_deaths {
            assert!(used >= 0.9 || options.limit < 16, "{seed} {options:?}: {used}");
        }
        assert!(used >= 0.4, "{seed} {options:?}: {used}");
    }
}

#[test]
fn call_below_three_quarters_of_the_limit_is_never_refused() {
    // A third of the slots.
    let calm = |limit: u32| Duration::from_millis(6600) / limit;
    for (seed, options) in worlds(&[Manner::Fast, Manner::Slow], &[false], calm) {
        let mut world = World::new(seed, options);
        world.run(Duration::from_secs(90));
        if options.limit >= 16 {
            assert_eq!(world.wrongly, 0, "{seed} {options:?}: of {}", world.refused);
        }
        assert!(world.admitted > 0);
    }
}

#[test]
fn replica_without_an_engine_has_its_share_of_places() {
    for (seed, options) in worlds(&[Manner::Away, Manner::Late], &[false], full) {
        let mut world = World::new(seed, options);
        world.run(Duration::from_secs(90));
        // Each replica has what it had, or its share if that is more.
        let share = (options.limit / world.nodes()).max(1);
        let most = options.limit + share * world.nodes();
        assert!(world.most <= most, "{seed} {options:?}: {}", world.most);
        let used = world.used.1 / world.used.0.as_secs_f64() / f64::from(options.limit);
        assert!(used >= 0.4, "{seed} {options:?}: {used}");
    }
}

#[test]
fn most_calls_of_an_active_caller_need_no_round_trip() {
    let options = Options {
        limit: 100,
        replicas: 3,
        manner: Manner::Fast,
        has_deaths: false,
        takes: Duration::from_millis(40),
        pause: Duration::from_millis(2),
    };
    let mut world = World::new(1, options);
    world.run(Duration::from_secs(30));
    assert_eq!(world.refused, 0);
    assert!(
        world.asks * 10 <= world.admitted,
        "{} asks for {}",
        world.asks,
        world.admitted
    );
}
