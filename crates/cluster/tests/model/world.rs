//! Replicas, their messages and their faults, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::time::Duration;

use cluster::ownership::{Away, Binding, Decision, Limits, Output, Ownership, Unavailable};
use cluster::{Claim, Created, Hello, Node, NodeId, SessionRecord, State, WallTime};
use uuid::Uuid;

use crate::engine::{Command, Engine, Mutation, Reply};
use crate::judge::Judge;

const REPLICAS: usize = 4;
const SESSIONS: u64 = 8;
/// How long faults happen, and how long the world is quiet after them.
const CHAOS: Duration = Duration::from_secs(90);
const QUIET: Duration = Duration::from_secs(60);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a replica touches the sessions that were used.
const TOUCH_INTERVAL: Duration = Duration::from_secs(20);

/// What kind of world it is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) mutation: Mutation,
    pub(crate) loses_everything: bool,
    pub(crate) prints: bool,
}

struct Replica {
    node: Node,
    machine: Ownership,
    records: BTreeMap<Uuid, SessionRecord>,
    is_alive: bool,
    is_paused: bool,
    is_cut: bool,
    is_draining: bool,
    backlog: Vec<Fact>,
    /// Commands under way: since when, and whether a session is being opened.
    commands: HashMap<u64, (Command, Option<Duration>)>,
    undecided: HashSet<u64>,
    /// How far its clock is ahead.
    skew: Duration,
}

#[derive(Debug, Clone)]
enum Fact {
    Reply(u64, Reply),
    Timeout(u64),
    Wake,
    Open(Uuid),
    Request(u64),
    Peer {
        request: u64,
        epoch: u64,
        from: (usize, NodeId),
    },
    NotOwner(u64),
    NotSent(u64, NodeId),
    Release(Uuid),
    TouchAll,
}

#[derive(Debug, Clone)]
enum Event {
    Engine {
        replica: usize,
        node: NodeId,
        number: u64,
        command: Command,
    },
    Replica {
        replica: usize,
        node: NodeId,
        fact: Fact,
    },
    Request,
    Fault,
    Resume(usize),
    Mend(usize),
    Start(usize),
    Stop(usize),
    Peace,
    LastRequests,
}

struct Request {
    session: Uuid,
    attempts: u32,
    is_last: bool,
    /// Whether another principal sent it.
    is_foreign: bool,
}

impl Request {
    fn binding(&self) -> Binding {
        Binding::new("files", if self.is_foreign { "mallory" } else { "alice" })
    }
}

pub(crate) struct World {
    options: Options,
    random: Random,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64)>>,
    waiting: HashMap<u64, Event>,
    number: u64,
    engine: Engine,
    replicas: Vec<Replica>,
    /// Sessions, and whether the registry acknowledged them.
    sessions: BTreeMap<Uuid, bool>,
    requests: HashMap<u64, Request>,
    proxied: HashMap<(usize, u64), (usize, NodeId)>,
    is_quiet: bool,
    pub(crate) judge: Judge,
}

impl World {
    pub(crate) fn new(seed: u64, options: Options) -> Self {
        let mut random = Random(seed);
        let replicas = (0..REPLICAS)
            .map(|at| replica(at, &mut random, Duration::ZERO))
            .collect();
        let mut world = Self {
            options,
            random,
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            waiting: HashMap::new(),
            number: 0,
            engine: Engine::default(),
            replicas,
            sessions: BTreeMap::new(),
            requests: HashMap::new(),
            proxied: HashMap::new(),
            is_quiet: false,
            judge: Judge::default(),
        };
        world.engine.mutation = options.mutation;
        world
    }

    pub(crate) fn run(&mut self) {
        for at in 0..REPLICAS {
            self.carry_out(at);
            self.tell_after(TOUCH_INTERVAL, at, Fact::TouchAll);
        }
        for session in 0..SESSIONS {
            let after = self.millis(1_000 + 10 * session, 3_000 + 1_000 * session);
            let at = self.random.below(REPLICAS);
            let session = Uuid::from_u128(u128::from(session) + 1);
            self.tell_after(after, at, Fact::Open(session));
        }
        self.after(Duration::from_secs(5), Event::Request);
        self.after(Duration::from_secs(6), Event::Fault);
        self.after(CHAOS, Event::Peace);
        self.after(CHAOS + QUIET, Event::LastRequests);
        while let Some(Reverse((time, number))) = self.events.pop() {
            if time > CHAOS + QUIET + Duration::from_secs(20) {
                break;
            }
            self.now = time;
            if let Some(event) = self.waiting.remove(&number) {
                self.happen(event);
            }
        }
    }

    /// Returns what was wrong, the state at the end included.
    pub(crate) fn violations(&mut self) -> Vec<String> {
        let mut violations = std::mem::take(&mut self.judge.violations);
        for (session, is_acknowledged) in &self.sessions {
            let holders: Vec<&NodeId> = self
                .replicas
                .iter()
                .filter(|replica| replica.records.contains_key(session))
                .map(|replica| &replica.node.id)
                .collect();
            let located = self.engine.look_up(self.now, *session);
            let owner = located.and_then(|located| located.record.owner);
            for holder in &holders {
                if owner.as_ref() != Some(holder) {
                    violations.push(format!(
                        "{holder} has a copy of {session}, which belongs to {owner:?}"
                    ));
                }
            }
            if holders.is_empty() && *is_acknowledged && !self.judge.is_lenient {
                violations.push(format!("no replica has {session}, which belongs to {owner:?}"));
            }
        }
        for replica in &self.replicas {
            for request in &replica.undecided {
                violations.push(format!(
                    "request {request} waits for ever at {:?}",
                    replica.node.id
                ));
            }
        }
        violations
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Engine {
                replica,
                node,
                number,
                command,
            } => self.execute(replica, node, number, &command),
            Event::Replica { replica, node, fact } => {
                if self.replicas[replica].is_alive && self.replicas[replica].node.id == node {
                    match self.replicas[replica].is_paused {
                        true => self.keep(replica, fact),
                        false => self.learn(replica, fact),
                    }
                }
            }
            Event::Request => {
                self.request(false);
                if self.now < CHAOS {
                    let after = self.millis(20, 200);
                    self.after(after, Event::Request);
                }
            }
            Event::Fault => {
                if self.now < CHAOS {
                    self.fault();
                    let after = self.millis(500, 6_000);
                    self.after(after, Event::Fault);
                }
            }
            Event::Resume(at) => {
                self.replicas[at].is_paused = false;
                for fact in std::mem::take(&mut self.replicas[at].backlog) {
                    if self.replicas[at].is_alive {
                        self.learn(at, fact);
                    }
                }
            }
            Event::Mend(at) => self.replicas[at].is_cut = false,
            Event::Start(at) => {
                if !self.replicas[at].is_alive {
                    self.replicas[at] = replica(at, &mut self.random, self.now);
                    self.print(format!("{at} starts as {}", self.replicas[at].node.id));
                    self.carry_out(at);
                    self.tell_after(TOUCH_INTERVAL, at, Fact::TouchAll);
                }
            }
            Event::Stop(at) => {
                if self.replicas[at].is_draining {
                    self.kill(at);
                    self.after(Duration::from_secs(1), Event::Start(at));
                }
            }
            Event::Peace => {
                self.is_quiet = true;
                for at in 0..REPLICAS {
                    self.replicas[at].is_cut = false;
                    self.happen(Event::Resume(at));
                    self.happen(Event::Start(at));
                }
            }
            Event::LastRequests => {
                for _ in 0..3 {
                    self.request(true);
                }
            }
        }
    }

    /// A client sends a request, or the last ones for every session.
    fn request(&mut self, is_last: bool) {
        let sessions: Vec<Uuid> = self.sessions.keys().copied().collect();
        let chosen = match is_last {
            true => sessions,
            false => sessions
                .get(self.random.below(sessions.len()))
                .copied()
                .into_iter()
                .collect(),
        };
        for session in chosen {
            let at = self.random.below(REPLICAS);
            if self.replicas[at].is_alive {
                self.number += 1;
                let request = self.number;
                let known = Request {
                    session,
                    attempts: 0,
                    is_last,
                    is_foreign: !is_last && self.random.below(10) == 0,
                };
                self.requests.insert(request, known);
                self.tell_after(Duration::ZERO, at, Fact::Request(request));
            }
        }
    }

    fn fault(&mut self) {
        let at = self.random.below(REPLICAS);
        if !self.replicas[at].is_alive || self.replicas[at].is_draining {
            return;
        }
        let short = self.millis(500, 30_000);
        match self
            .random
            .below(if self.options.loses_everything { 5 } else { 4 })
        {
            0 => {
                self.print(format!("{at} is killed"));
                self.kill(at);
                self.after(short, Event::Start(at));
            }
            1 => {
                self.print(format!("{at} is paused for {short:?}"));
                self.replicas[at].is_paused = true;
                self.after(short, Event::Resume(at));
            }
            2 => {
                self.print(format!("{at} is cut off for {short:?}"));
                self.replicas[at].is_cut = true;
                self.after(short, Event::Mend(at));
            }
            3 => {
                self.print(format!("{at} drains"));
                self.replicas[at].is_draining = true;
                self.replicas[at].machine.handle_drain();
                let held: Vec<Uuid> = self.replicas[at].records.keys().copied().collect();
                for session in held {
                    let after = self.millis(0, 2_000);
                    self.tell_after(after, at, Fact::Release(session));
                }
                self.after(Duration::from_secs(6), Event::Stop(at));
            }
            _ => {
                self.print("the registry loses everything".to_owned());
                self.engine.lose_everything();
                self.judge.handle_loss();
            }
        }
    }

    fn kill(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        replica.is_alive = false;
        replica.is_paused = false;
        replica.is_cut = false;
        replica.is_draining = false;
        replica.records.clear();
        replica.backlog.clear();
        replica.undecided.clear();
        self.proxied.retain(|(replica, _), _| *replica != at);
    }

    /// A fact waits for a paused replica. A request among them has an uncertain end for its sender.
    fn keep(&mut self, at: usize, fact: Fact) {
        if let (Fact::Peer { request, from, .. }, Mutation::SendsAgain) = (&fact, self.options.mutation) {
            let node = self.replicas[at].node.id.clone();
            let (sender, incarnation) = from.clone();
            let event = Event::Replica {
                replica: sender,
                node: incarnation,
                fact: Fact::NotSent(*request, node),
            };
            self.after(Duration::from_secs(12), event);
        }
        self.replicas[at].backlog.push(fact);
    }

    /// A replica learns something.
    fn learn(&mut self, at: usize, fact: Fact) {
        let replica = &mut self.replicas[at];
        let now = self.now + replica.skew;
        match fact {
            Fact::Wake => replica.machine.handle_timeout(now),
            Fact::Reply(number, reply) => {
                if let Some((command, opening)) = replica.commands.remove(&number) {
                    self.answered(at, command, opening, Ok(reply));
                }
            }
            Fact::Timeout(number) => {
                if let Some((command, opening)) = replica.commands.remove(&number) {
                    self.answered(at, command, opening, Err(Away));
                }
            }
            Fact::Open(session) => {
                let record = record(session, &replica.node.id);
                self.send(at, Command::Create(record), true);
            }
            Fact::Request(request) => {
                replica.undecided.insert(request);
                let known = &self.requests[&request];
                replica
                    .machine
                    .handle_request(request, known.session, known.binding());
            }
            Fact::Peer { request, epoch, from } => {
                replica.undecided.insert(request);
                let known = &self.requests[&request];
                self.proxied.insert((at, request), from);
                replica
                    .machine
                    .handle_peer_request(request, known.session, epoch, known.binding());
            }
            Fact::NotOwner(request) => {
                let known = self.requests.get_mut(&request).unwrap();
                known.attempts += 1;
                replica.undecided.insert(request);
                replica
                    .machine
                    .handle_not_owner(request, known.session, known.binding(), known.attempts);
            }
            Fact::NotSent(request, node) => {
                let known = self.requests.get_mut(&request).unwrap();
                known.attempts += 1;
                replica.undecided.insert(request);
                let binding = known.binding();
                replica
                    .machine
                    .handle_not_sent(request, known.session, binding, &node, known.attempts);
            }
            Fact::Release(session) => {
                if let Some(record) = replica.records.remove(&session) {
                    replica.machine.handle_hand_over(session, record.epoch);
                }
            }
            Fact::TouchAll => {
                let claims = replica.records.values().filter_map(SessionRecord::claim);
                for claim in claims.collect::<Vec<_>>() {
                    self.send(at, Command::Touch(claim), false);
                }
                self.tell_after(TOUCH_INTERVAL, at, Fact::TouchAll);
            }
        }
        self.carry_out(at);
    }

    /// A command of a replica has its answer, or has none in time.
    fn answered(
        &mut self,
        at: usize,
        command: Command,
        opening: Option<Duration>,
        reply: Result<Reply, Away>,
    ) {
        let replica = &mut self.replicas[at];
        let now = self.now + replica.skew;
        match command {
            Command::Join(_) => replica.machine.handle_joined(reply.map(drop), now),
            Command::Renew(_) => {
                let renewed = reply.map(|reply| match reply {
                    Reply::Renewed(renewed) => renewed,
                    other => panic!("{other:?}"),
                });
                replica.machine.handle_renewed(renewed, now);
            }
            Command::LookUp(session) => {
                let located = reply.map(|reply| match reply {
                    Reply::Located(located) => located.map(|located| *located),
                    other => panic!("{other:?}"),
                });
                replica.machine.handle_located(session, located, now);
            }
            Command::TakeOver { session, .. } => {
                let taken = reply.map(|reply| match reply {
                    Reply::TakeOver(taken) => taken,
                    other => panic!("{other:?}"),
                });
                replica.machine.handle_take_over(session, taken, now);
            }
            Command::Create(record) => {
                let created = reply.map(|reply| match reply {
                    Reply::Created(created) => created,
                    other => panic!("{other:?}"),
                });
                if let Some(began) = opening {
                    let written = created.map(drop);
                    let is_acknowledged = self.sessions.entry(record.session).or_default();
                    *is_acknowledged |= written.is_ok();
                    let binding = Binding::new(&record.destination, &record.principal);
                    replica
                        .machine
                        .handle_opened(record.session, record.epoch, binding, began, written);
                    replica.records.insert(record.session, record);
                } else {
                    let written = created;
                    if let Ok(Created::Created) = written {
                        self.sessions.insert(record.session, true);
                    }
                    replica
                        .machine
                        .handle_written(record.session, record.epoch, written);
                }
            }
            Command::Touch(claim) => {
                if let Ok(Reply::Touched(updated)) = reply {
                    replica
                        .machine
                        .handle_updated(claim.session, claim.epoch, updated);
                }
            }
            Command::Release(claim) => {
                replica
                    .machine
                    .handle_ended(claim.session, claim.epoch, reply.map(drop));
            }
        }
    }

    /// Does what a replica's machine returns.
    fn carry_out(&mut self, at: usize) {
        while let Some(output) = self.replicas[at].machine.poll_output() {
            self.print(format!("{at}: {output:?}"));
            let replica = &mut self.replicas[at];
            let node = replica.node.clone();
            match output {
                Output::Join => self.send(at, Command::Join(node), false),
                Output::Renew => self.send(at, Command::Renew(node.id), false),
                Output::LookUp(session) => self.send(at, Command::LookUp(session), false),
                Output::TakeOver { session, seen, .. } => {
                    let by = node.id;
                    self.send(at, Command::TakeOver { session, seen, by }, false);
                }
                Output::Write { session, epoch } => {
                    let record = replica.records[&session].clone();
                    assert_eq!(record.epoch, epoch, "the record is that of the claim");
                    self.send(at, Command::Create(record), false);
                }
                Output::Release { session, epoch } => {
                    let owner = node.id;
                    let claim = Claim {
                        session,
                        owner,
                        epoch,
                    };
                    self.send(at, Command::Release(claim), false);
                }
                Output::Remove { session, .. } => panic!("no client ends {session}"),
                Output::Restore(record) => {
                    replica.records.insert(record.session, *record);
                }
                Output::Drop { session, .. } => {
                    if self.options.mutation != Mutation::KeepsCopy {
                        replica.records.remove(&session);
                    }
                }
                Output::Answer { request, decision } => self.decided(at, request, decision),
            }
        }
        let replica = &self.replicas[at];
        if let Some(deadline) = replica.machine.next_deadline() {
            let after = deadline.saturating_sub(self.now + replica.skew);
            self.tell_after(after, at, Fact::Wake);
        }
    }

    fn decided(&mut self, at: usize, request: u64, decision: Decision) {
        let replica = &mut self.replicas[at];
        if !replica.undecided.remove(&request) {
            self.judge
                .violations
                .push(format!("request {request} has two decisions at {at}"));
        }
        let id = replica.node.id.clone();
        let sender = self.proxied.remove(&(at, request));
        let session = self.requests[&request].session;
        let is_last = self.requests[&request].is_last;
        match decision {
            Decision::Serve(_) if self.requests[&request].is_foreign => self
                .judge
                .violations
                .push(format!("{at} serves {session} for another principal")),
            Decision::Serve(epoch) => {
                if !self.replicas[at].records.contains_key(&session) {
                    self.judge
                        .violations
                        .push(format!("{at} serves {session} without a copy"));
                }
                self.judge.handle_served(request, session, epoch, &id);
            }
            Decision::Proxy { node, epoch } => {
                assert!(sender.is_none(), "a request is proxied twice");
                let owner = self
                    .replicas
                    .iter()
                    .position(|replica| replica.node.id == node.id);
                let owner = owner.filter(|owner| self.replicas[*owner].is_alive);
                let after = self.millis(1, 20);
                match owner {
                    Some(owner) => {
                        let from = (at, id);
                        self.tell_after(after, owner, Fact::Peer { request, epoch, from });
                    }
                    None => self.tell_after(after, at, Fact::NotSent(request, node.id)),
                }
            }
            Decision::NotOwner => {
                let (sender, incarnation) = sender.expect("a peer sent the request");
                let event = Event::Replica {
                    replica: sender,
                    node: incarnation,
                    fact: Fact::NotOwner(request),
                };
                let after = self.millis(1, 20);
                self.after(after, event);
            }
            Decision::Unknown | Decision::Refuse(_) if is_last => {
                let is_lost = self.judge.is_lenient || !self.sessions[&session];
                let is_away = decision == Decision::Refuse(Unavailable::Away);
                if !is_lost || is_away {
                    let violation =
                        format!("the last request for {session} is answered {decision:?} by {at}");
                    self.judge.violations.push(violation);
                }
            }
            Decision::Unknown | Decision::Refuse(_) => {}
        }
    }

    /// A replica sends a command. It or its answer may be late or lost.
    fn send(&mut self, at: usize, command: Command, is_open: bool) {
        self.number += 1;
        let number = self.number;
        let node = self.replicas[at].node.id.clone();
        let opening = is_open.then_some(self.now + self.replicas[at].skew);
        self.replicas[at]
            .commands
            .insert(number, (command.clone(), opening));
        self.tell_after(COMMAND_TIMEOUT, at, Fact::Timeout(number));
        if let Some(after) = self.passage(at) {
            let event = Event::Engine {
                replica: at,
                node,
                number,
                command,
            };
            self.after(after, event);
        }
    }

    fn execute(&mut self, at: usize, node: NodeId, number: u64, command: &Command) {
        let mut reply = self.engine.execute(self.now, command);
        let is_ended = matches!(reply, Reply::Renewed(cluster::Renewed::Unknown));
        if is_ended && self.options.mutation == Mutation::RenewsEnded && self.replicas[at].node.id == node {
            reply = self.engine.renew_ended(self.now, &self.replicas[at].node);
        }
        self.print(format!("the registry: {command:?} -> {reply:?}"));
        self.judge.handle_command(self.now, command, &reply);
        if let Some(after) = self.passage(at) {
            let fact = Fact::Reply(number, reply);
            let event = Event::Replica {
                replica: at,
                node,
                fact,
            };
            self.after(after, event);
        }
    }

    /// Returns how long a message takes between a replica and the registry; `None` if it is lost.
    fn passage(&mut self, at: usize) -> Option<Duration> {
        if self.replicas[at].is_cut {
            return None;
        }
        match self.random.below(40) {
            0 | 1 if !self.is_quiet => None,
            // Later than the time limit: the effect comes after the replica gave up.
            2 if !self.is_quiet => Some(self.millis(1_500, 5_000)),
            _ => Some(self.millis(0, 50)),
        }
    }

    fn tell_after(&mut self, after: Duration, at: usize, fact: Fact) {
        let node = self.replicas[at].node.id.clone();
        self.after(
            after,
            Event::Replica {
                replica: at,
                node,
                fact,
            },
        );
    }

    fn after(&mut self, after: Duration, event: Event) {
        self.number += 1;
        self.events.push(Reverse((self.now + after, self.number)));
        self.waiting.insert(self.number, event);
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        let span = usize::try_from(most - least).unwrap();
        Duration::from_millis(least + self.random.below(span) as u64)
    }

    #[expect(clippy::print_stderr, reason = "the history of one world, on request")]
    fn print(&self, text: String) {
        if self.options.prints {
            eprintln!("{:>9.3} {text}", self.now.as_secs_f64());
        }
    }
}

fn replica(at: usize, random: &mut Random, now: Duration) -> Replica {
    let incarnation = Uuid::from_u64_pair(random.next(), random.next());
    let name = format!("replica-{at}");
    let node = Node {
        id: NodeId::new(&name, incarnation).unwrap(),
        address: Some(format!("{name}:3001")),
        program: "0.1.0".to_owned(),
        is_draining: false,
    };
    // Clocks differ by minutes, and nothing may depend on it.
    let skew = Duration::from_secs(60 * at as u64);
    Replica {
        machine: Ownership::new(node.id.clone(), Limits::default(), now + skew),
        node,
        records: BTreeMap::new(),
        is_alive: true,
        is_paused: false,
        is_cut: false,
        is_draining: false,
        backlog: Vec::new(),
        commands: HashMap::new(),
        undecided: HashSet::new(),
        skew,
    }
}

fn record(session: Uuid, owner: &NodeId) -> SessionRecord {
    SessionRecord {
        session,
        destination: "files".to_owned(),
        principal: "alice".to_owned(),
        owner: Some(owner.clone()),
        epoch: 1,
        hello: Hello::Implicit("2025-06-18".to_owned()),
        state: State::default(),
        created: WallTime::from_unix(0),
        last_active: WallTime::from_unix(0),
    }
}

/// SplitMix64: a seed is a world.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }
}
