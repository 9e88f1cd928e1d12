//! Simulates a fleet that no test machine has: the machines of all replicas and the registry, in
//! virtual time, with an engine of bounded speed.
//!
//! `cargo xtask simulate-fleet [--replicas N] [--sessions N] [--calls N] [--keep-alive PERCENT]
//! [--engine N]` prints, for each phase, what the engine does and what clients see. `--calls` and
//! `--engine` are calls and operations per second. `--keep-alive` is the share of calls that come over
//! a connection which stays at one replica; the others go to any. At 25 s a tenth of the replicas dies.
//! At 50 s the engine fails for 5 s, and comes back empty.

use std::collections::{HashMap, VecDeque};
use std::io::{Error, Result, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::memory::MemoryEngine;
use cluster::ownership::{Away, Binding, Decision, Limits, Output, Ownership, Unavailable};
use cluster::registry::Claim;
use cluster::{Change, Hello, Node, NodeId, SessionRecord, State, TakeOver, Updated, WallTime};
use uuid::Uuid;

const TICK: Duration = Duration::from_millis(10);
const IDLE: Duration = Duration::from_secs(3600);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
const DEATHS: Duration = Duration::from_secs(25);
const FAILS: Duration = Duration::from_secs(50);
const BACK: Duration = Duration::from_secs(55);
const END: Duration = Duration::from_secs(110);
/// A touch inside a batch costs the engine this part of another operation.
const TOUCHES_PER_OPERATION: f64 = 4.0;

#[derive(Debug, Clone, Copy)]
struct Settings {
    replicas: usize,
    sessions: usize,
    calls: usize,
    keep_alive: usize,
    engine: usize,
}

impl Settings {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut settings = Self {
            replicas: 1000,
            sessions: 1_000_000,
            calls: 100_000,
            keep_alive: 90,
            engine: 50_000,
        };
        while let Some(flag) = words.next() {
            let slot = match flag.as_str() {
                "--replicas" => &mut settings.replicas,
                "--sessions" => &mut settings.sessions,
                "--calls" => &mut settings.calls,
                "--keep-alive" => &mut settings.keep_alive,
                "--engine" => &mut settings.engine,
                other => return Err(Error::other(format!("there is no flag {other}"))),
            };
            let value = words.next().and_then(|value| value.parse().ok());
            *slot = value.ok_or_else(|| Error::other(format!("{flag} needs a number")))?;
        }
        Ok(settings)
    }
}

#[derive(Debug, Clone)]
enum Command {
    Join,
    Renew,
    LookUp(Uuid),
    TakeOver { session: Uuid, seen: u64 },
    Write { session: Uuid, epoch: u64 },
    Touch(Vec<Uuid>),
}

struct Queued {
    replica: usize,
    command: Command,
    issued: Duration,
    is_late: bool,
}

struct Replica {
    node: Node,
    machine: Ownership,
    is_alive: bool,
    used: Vec<Uuid>,
}

/// What happened in one phase.
#[derive(Debug, Default, Clone)]
struct Phase {
    seconds: f64,
    calls: u64,
    served: u64,
    proxied: u64,
    unknown: u64,
    refused: HashMap<&'static str, u64>,
    operations: HashMap<&'static str, u64>,
    /// The most operations that were issued in one second.
    peak: u64,
    longest_wait: Duration,
    late: u64,
}

struct Fleet {
    settings: Settings,
    random: Random,
    now: Duration,
    registry: MemoryEngine,
    queue: VecDeque<Queued>,
    /// How many entries at the front are past their time limit.
    late: usize,
    credit: f64,
    is_away: bool,
    replicas: Vec<Replica>,
    by_id: HashMap<NodeId, usize>,
    connections: Vec<u32>,
    requests: HashMap<u64, (Uuid, u32)>,
    senders: HashMap<(usize, u64), usize>,
    number: u64,
    this_second: u64,
    phase: Phase,
}

fn main() -> Result<()> {
    let settings = Settings::parse(std::env::args().skip(1))?;
    let started = Instant::now();
    let out = &mut std::io::stdout();
    writeln!(out, "{settings:?}")?;
    // Before the process has memory that it freed.
    let (own, route) = (own_bytes()?, route_bytes()?);
    writeln!(
        out,
        "a replica's own session: {own} bytes; a route: {route} bytes"
    )?;
    let mut fleet = Fleet::new(settings);
    let phases = [
        ("start", Duration::from_secs(10)),
        ("steady", DEATHS),
        (
            "a tenth died: until the leases end",
            DEATHS + Duration::from_secs(11),
        ),
        ("a tenth died: afterwards", FAILS),
        ("the engine is away", BACK),
        ("back and empty: 10 s", BACK + Duration::from_secs(10)),
        ("back and empty: 30 s", BACK + Duration::from_secs(30)),
        ("at last", END),
    ];
    for (name, until) in phases {
        fleet.run_until(until);
        let phase = std::mem::take(&mut fleet.phase);
        print(out, name, &phase)?;
    }
    let held: usize = fleet
        .living()
        .map(|replica| replica.machine.sessions().count())
        .sum();
    let routes: usize = fleet.living().map(|replica| replica.machine.routes()).sum();
    writeln!(
        out,
        "sessions with an owner: {held}; in the registry: {}",
        fleet.registry.sessions()
    )?;
    writeln!(out, "routes remembered: {routes}")?;
    writeln!(out, "{} s of real time", started.elapsed().as_secs())
}

fn print(out: &mut impl std::io::Write, name: &str, phase: &Phase) -> Result<()> {
    let rate = |count: u64| (count as f64 / phase.seconds.max(0.01)) as u64;
    writeln!(out, "\n{name} ({} s)", phase.seconds.round())?;
    writeln!(
        out,
        "  calls/s {}: served here {}, proxied {}, unknown {}, refused {:?}",
        rate(phase.calls),
        rate(phase.served),
        rate(phase.proxied),
        rate(phase.unknown),
        phase
            .refused
            .iter()
            .map(|(why, count)| (*why, rate(*count)))
            .collect::<Vec<_>>(),
    )?;
    let mut operations: Vec<(&str, u64)> = phase
        .operations
        .iter()
        .map(|(kind, count)| (*kind, rate(*count)))
        .collect();
    operations.sort_unstable();
    writeln!(
        out,
        "  engine/s {operations:?}; at most {} in a second; longest wait {:?}; late {}",
        phase.peak, phase.longest_wait, phase.late
    )
}

impl Fleet {
    fn new(settings: Settings) -> Self {
        let mut random = Random(1);
        let mut registry = MemoryEngine::default();
        let mut replicas = Vec::new();
        for at in 0..settings.replicas {
            let id = NodeId::new(&format!("replica-{at}"), Uuid::from_u64_pair(random.next(), 1));
            let node = Node {
                id: id.unwrap_or_else(|error| panic!("{error}")),
                address: None,
                program: String::new(),
                is_draining: false,
            };
            // Replicas do not start at one moment.
            let start = Duration::from_millis(random.below(3_000) as u64);
            registry.join(start, &node);
            replicas.push(Replica {
                machine: member(&node.id, start),
                node,
                is_alive: true,
                used: Vec::new(),
            });
        }
        let mut connections = Vec::with_capacity(settings.sessions);
        let binding = Binding::new("", "");
        for at in 0..settings.sessions {
            let owner = random.below(settings.replicas);
            let session = session(at);
            registry.create(
                Duration::ZERO,
                &record(session, &replicas[owner].node.id, 1),
                IDLE,
            );
            replicas[owner]
                .machine
                .handle_opened(session, 1, binding.clone(), Duration::MAX, Ok(()));
            connections.push(u32::try_from(owner).unwrap_or(0));
        }
        let by_id = replicas
            .iter()
            .enumerate()
            .map(|(at, replica)| (replica.node.id.clone(), at))
            .collect();
        Self {
            settings,
            random,
            now: Duration::ZERO,
            registry,
            queue: VecDeque::new(),
            late: 0,
            credit: 0.0,
            is_away: false,
            replicas,
            by_id,
            connections,
            requests: HashMap::new(),
            senders: HashMap::new(),
            number: 0,
            this_second: 0,
            phase: Phase::default(),
        }
    }

    fn living(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| replica.is_alive)
    }

    fn run_until(&mut self, until: Duration) {
        while self.now < until {
            self.now += TICK;
            self.phase.seconds += TICK.as_secs_f64();
            if self.now.subsec_nanos() == 0 {
                self.phase.peak = self.phase.peak.max(self.this_second);
                self.this_second = 0;
                self.touch();
            }
            if self.now == DEATHS {
                for at in 0..self.settings.replicas / 10 {
                    self.replicas[at].is_alive = false;
                }
            }
            self.is_away = self.now >= FAILS && self.now < BACK;
            if self.now == FAILS {
                self.registry = MemoryEngine::default();
            }
            for at in 0..self.replicas.len() {
                let replica = &mut self.replicas[at];
                let is_due = replica
                    .machine
                    .next_deadline()
                    .is_some_and(|deadline| deadline <= self.now);
                if replica.is_alive && is_due {
                    replica.machine.handle_timeout(self.now);
                }
                if replica.is_alive {
                    self.carry_out(at);
                }
            }
            for _ in 0..self.settings.calls / 100 {
                self.call();
            }
            self.serve();
            self.give_up();
        }
    }

    /// Each second a sixtieth of the sessions that were used is touched.
    fn touch(&mut self) {
        for at in 0..self.replicas.len() {
            let replica = &mut self.replicas[at];
            let share = replica.machine.sessions().count() / 60;
            let mut used = std::mem::take(&mut replica.used);
            used.truncate(share.max(1));
            if replica.is_alive && !used.is_empty() {
                self.issue(at, Command::Touch(used));
            }
        }
    }

    fn call(&mut self) {
        self.phase.calls += 1;
        let index = self.random.below(self.settings.sessions);
        let is_kept = self.random.below(100) < self.settings.keep_alive;
        let mut at = self.connections[index] as usize;
        if !is_kept || !self.replicas[at].is_alive {
            at = self.random.below(self.settings.replicas);
            while !self.replicas[at].is_alive {
                at = self.random.below(self.settings.replicas);
            }
            // A connection that broke is made anew, and stays where it is.
            if is_kept {
                self.connections[index] = u32::try_from(at).unwrap_or(0);
            }
        }
        self.number += 1;
        self.requests.insert(self.number, (session(index), 0));
        self.replicas[at]
            .machine
            .handle_request(self.number, session(index), Binding::new("", ""));
        self.carry_out(at);
    }

    fn issue(&mut self, replica: usize, command: Command) {
        let (kind, count) = match &command {
            Command::Join => ("join", 1),
            Command::Renew => ("renew", 1),
            Command::LookUp(_) => ("look up", 1),
            Command::TakeOver { .. } => ("take over", 1),
            Command::Write { .. } => ("write", 1),
            Command::Touch(sessions) => ("touch", sessions.len() as u64),
        };
        *self.phase.operations.entry(kind).or_default() += count;
        self.this_second += count;
        self.queue.push_back(Queued {
            replica,
            command,
            issued: self.now,
            is_late: false,
        });
    }

    /// The engine does what it can in one tick.
    fn serve(&mut self) {
        if self.is_away {
            return;
        }
        let each_tick = self.settings.engine as f64 * TICK.as_secs_f64();
        self.credit = (self.credit + each_tick).min(each_tick);
        while self.credit > 0.0 {
            let Some(queued) = self.queue.pop_front() else {
                break;
            };
            self.late = self.late.saturating_sub(1);
            self.credit -= match &queued.command {
                Command::Touch(sessions) => sessions.len() as f64 / TOUCHES_PER_OPERATION,
                _ => 1.0,
            };
            self.phase.longest_wait = self.phase.longest_wait.max(self.now - queued.issued);
            self.execute(&queued);
        }
    }

    /// Replicas give up what has waited too long. The engine still does it when its turn comes.
    fn give_up(&mut self) {
        while let Some(queued) = self.queue.get_mut(self.late) {
            if self.now - queued.issued < COMMAND_TIMEOUT {
                break;
            }
            queued.is_late = true;
            self.late += 1;
            self.phase.late += 1;
            let (at, command) = (queued.replica, queued.command.clone());
            if self.replicas[at].is_alive {
                let machine = &mut self.replicas[at].machine;
                match command {
                    Command::Join => machine.handle_joined(Err(Away), self.now),
                    Command::Renew => machine.handle_renewed(Err(Away), self.now),
                    Command::LookUp(session) => machine.handle_located(session, Err(Away), self.now),
                    Command::TakeOver { session, .. } => {
                        machine.handle_take_over(session, Err(Away), self.now)
                    }
                    Command::Write { session, epoch } => machine.handle_written(session, epoch, Err(Away)),
                    Command::Touch(_) => {}
                }
                self.carry_out(at);
            }
        }
        // An engine that is away forgets what its clients no longer wait for.
        if self.is_away {
            self.queue.drain(..self.late);
            self.late = 0;
        }
    }

    fn execute(&mut self, queued: &Queued) {
        let (at, now, registry) = (queued.replica, self.now, &mut self.registry);
        let replica = &mut self.replicas[at];
        let (node, machine) = (&replica.node, &mut replica.machine);
        let is_heard = replica.is_alive && !queued.is_late;
        match &queued.command {
            Command::Join => {
                registry.join(now, node);
                if is_heard {
                    machine.handle_joined(Ok(()), now);
                }
            }
            Command::Renew => {
                let renewed = registry.renew(now, &node.id);
                if is_heard {
                    machine.handle_renewed(Ok(renewed), now);
                }
            }
            Command::LookUp(session) => {
                let located = registry.look_up(now, *session);
                if is_heard {
                    machine.handle_located(*session, Ok(located), now);
                }
            }
            Command::TakeOver { session, seen } => {
                let taken = registry.take_over(now, *session, *seen, &node.id, IDLE);
                if let TakeOver::Won(_) = taken {
                    *self.phase.operations.entry("won").or_default() += 1;
                }
                if is_heard {
                    machine.handle_take_over(*session, Ok(taken), now);
                }
            }
            Command::Write { session, epoch } => {
                let written = registry.create(now, &record(*session, &node.id, *epoch), IDLE);
                if is_heard {
                    machine.handle_written(*session, *epoch, Ok(written));
                }
            }
            Command::Touch(sessions) => {
                for session in sessions {
                    let Some(epoch) = machine.held(*session) else {
                        continue;
                    };
                    let claim = Claim {
                        session: *session,
                        owner: node.id.clone(),
                        epoch,
                    };
                    let touch = Change::Touch(WallTime::from_unix(now.as_secs()));
                    let updated: Updated = registry.update(now, &claim, touch, IDLE);
                    if is_heard {
                        machine.handle_updated(*session, epoch, updated);
                    }
                }
            }
        }
        if self.replicas[at].is_alive {
            self.carry_out(at);
        }
    }

    fn carry_out(&mut self, first: usize) {
        // A decision of one machine is a fact for another, within one moment.
        let mut work = VecDeque::from([first]);
        while let Some(at) = work.pop_front() {
            while let Some(output) = self.replicas[at].machine.poll_output() {
                match output {
                    Output::Join => self.issue(at, Command::Join),
                    Output::Renew => self.issue(at, Command::Renew),
                    Output::LookUp(session) => self.issue(at, Command::LookUp(session)),
                    Output::TakeOver { session, seen, .. } => {
                        self.issue(at, Command::TakeOver { session, seen });
                    }
                    Output::Write { session, epoch } => self.issue(at, Command::Write { session, epoch }),
                    Output::Release { .. }
                    | Output::Remove { .. }
                    | Output::Restore(_)
                    | Output::Drop { .. } => {}
                    Output::Answer { request, decision } => {
                        if let Some(next) = self.decided(at, request, decision) {
                            work.push_back(next);
                        }
                    }
                }
            }
        }
    }

    /// Returns the replica that has something to do now.
    fn decided(&mut self, at: usize, request: u64, decision: Decision) -> Option<usize> {
        let (session, attempts) = *self.requests.get(&request)?;
        let sender = self.senders.remove(&(at, request));
        match decision {
            Decision::Serve(_) => {
                match sender {
                    Some(_) => self.phase.proxied += 1,
                    None => self.phase.served += 1,
                }
                let replica = &mut self.replicas[at];
                if replica.used.len() < 10_000 {
                    replica.used.push(session);
                }
            }
            Decision::Proxy { node, epoch } => {
                let owner = self.by_id[&node.id];
                if self.replicas[owner].is_alive {
                    self.senders.insert((owner, request), at);
                    self.replicas[owner].machine.handle_peer_request(
                        request,
                        session,
                        epoch,
                        Binding::new("", ""),
                    );
                    return Some(owner);
                }
                self.requests.insert(request, (session, attempts + 1));
                let binding = Binding::new("", "");
                self.replicas[at]
                    .machine
                    .handle_not_sent(request, session, binding, &node.id, attempts + 1);
                return Some(at);
            }
            Decision::NotOwner => {
                let sender = sender?;
                self.requests.insert(request, (session, attempts + 1));
                self.replicas[sender].machine.handle_not_owner(
                    request,
                    session,
                    Binding::new("", ""),
                    attempts + 1,
                );
                return Some(sender);
            }
            Decision::Unknown => self.phase.unknown += 1,
            Decision::Refuse(refusal) => {
                let why = match refusal {
                    Unavailable::Away => "away",
                    Unavailable::Settling => "settling",
                    Unavailable::OwnerUnreached => "owner unreached",
                    Unavailable::Draining => "draining",
                    Unavailable::Busy => "busy",
                };
                *self.phase.refused.entry(why).or_default() += 1;
            }
        }
        self.requests.remove(&request);
        None
    }
}

fn session(index: usize) -> Uuid {
    Uuid::from_u128(index as u128 + 1)
}

fn record(session: Uuid, owner: &NodeId, epoch: u64) -> SessionRecord {
    SessionRecord {
        session,
        destination: String::new(),
        principal: String::new(),
        owner: Some(owner.clone()),
        epoch,
        hello: Hello::Implicit(String::new()),
        state: State::default(),
        created: WallTime::from_unix(0),
        last_active: WallTime::from_unix(0),
    }
}

/// Returns the machine of a replica that has joined.
fn member(node: &NodeId, now: Duration) -> Ownership {
    let mut machine = Ownership::new(node.clone(), Limits::default(), now);
    while machine.poll_output().is_some() {}
    machine.handle_joined(Ok(()), now);
    machine
}

/// Returns what the machine of a replica keeps for one of its own sessions.
fn own_bytes() -> Result<usize> {
    const MANY: usize = 200_000;
    let node = NodeId::generate("measured").map_err(Error::other)?;
    let mut machine = member(&node, Duration::ZERO);
    let destination: Arc<str> = "files".into();
    let before = resident()?;
    for index in 0..MANY {
        let destination = Arc::clone(&destination);
        let principal = format!("principal-{}", index / 10).into();
        let binding = Binding {
            destination,
            principal,
        };
        machine.handle_opened(session(index), 1, binding, Duration::MAX, Ok(()));
    }
    Ok(resident()?.saturating_sub(before) / machine.sessions().count().max(1))
}

/// Returns what it keeps for the owner of another session.
fn route_bytes() -> Result<usize> {
    const MANY: usize = 100_000;
    let node = NodeId::generate("measured").map_err(Error::other)?;
    let owner = Node {
        id: NodeId::generate("owner").map_err(Error::other)?,
        address: None,
        program: String::new(),
        is_draining: false,
    };
    let mut machine = Ownership::new(node, Limits::default(), Duration::ZERO);
    let before = resident()?;
    for index in 0..MANY {
        machine.handle_request(index as u64, session(index), Binding::new("", ""));
        let located = cluster::Located {
            record: record(session(index), &owner.id, 1),
            owner: cluster::Owner::Living(owner.clone()),
        };
        machine.handle_located(session(index), Ok(Some(located)), Duration::ZERO);
        while machine.poll_output().is_some() {}
    }
    Ok(resident()?.saturating_sub(before) / machine.routes().max(1))
}

/// Returns the bytes of memory that this process has.
fn resident() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    Ok(pages.ok_or_else(|| Error::other("statm has no second number"))? * 4096)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap_or(0)
    }
}
