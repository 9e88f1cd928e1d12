//! What one replica admits of a limit that holds for the whole fleet: machines without I/O. They
//! decide the rate limit of a fleet (429), and its limits of calls and sessions (503).
//!
//! # Which limits hold for the fleet
//!
//! A limit about a caller holds for the fleet, since a balancer spreads one caller over all
//! replicas: requests a minute, and, where they are configured, calls and sessions of one
//! principal. So does `max_sessions` of a destination. Limits that protect the memory, the files or
//! the children of a process stay with each replica: everything "in all", connections, bytes, and
//! streams, and what one session has. Wrong credentials stay with each replica too, so that guesses
//! from outside cost the engine nothing.
//!
//! # Two kinds of limits, one mechanism
//!
//! - **Rates** ([`Tokens`]). The engine has one bucket for each caller, which refills by its clock.
//!   A replica takes tokens in portions. A token is used within [`TOKEN_LIFETIME`] after the
//!   replica asked for it, or never. So any window of time has no more requests than the bucket
//!   gives in that time and [`TOKEN_LIFETIME`]: 5 % more than the limit over a minute.
//! - **Counts** ([`Slots`]). The engine notes how many slots each node has. Their sum is never
//!   above the limit. They end with the lease of the node, so the slots of a dead replica return.
//!
//! A portion follows the use on this replica. It is small where the engine has little left, and at
//! most a twentieth of a rate, or a quarter of a count, divided by the number of replicas. A
//! replica asks before its portion is used up, so most requests need no round trip. A request that
//! finds none waits for one round trip, or for two if a demand was under way: at most
//! [`ENGINE_WAIT`] each.
//!
//! # Engine away
//!
//! A replica that gets no answer within [`ENGINE_WAIT`] admits its share: the limit, divided by the
//! number of replicas that were known last. It asks again every [`PROBE_INTERVAL`], and reports
//! what it used.
//!
//! # Contract
//!
//! The driver reports facts with `handle_*`. After each of them it carries out
//! [`Tokens::poll_demand`], and gives waiting requests what `poll_decision` returns. Each demand is
//! answered by one `handle_granted` or `handle_away`. One demand is under way at a time. Time is
//! the replica's own monotonic clock. A machine stands for one caller and one limit; the driver
//! bounds how many there are.

use std::collections::VecDeque;
use std::time::Duration;

use crate::registry::{SlotDemand, SlotGrant, TokenDemand, TokenGrant};

/// How long after the demand a token may be used: a twentieth of a minute.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(3);

/// How long a request waits for the engine before the replica decides by its share.
pub const ENGINE_WAIT: Duration = Duration::from_millis(250);

/// How long a replica refuses, at least, after the engine had nothing left.
pub const MIN_REFUSAL: Duration = Duration::from_millis(50);

/// How often a replica asks an engine that does not answer.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long slots stay unused before they are given back.
pub const UNUSED_TIME: Duration = Duration::from_secs(1);

/// How often a replica repeats which slots it has. An engine that lost everything learns it again.
pub const REPEAT_INTERVAL: Duration = Duration::from_secs(120);

/// The most requests of one caller that wait for the engine.
const MAX_WAITING: usize = 1024;

const MINUTE: Duration = Duration::from_secs(60);

/// A request that waits, as the machine numbers it.
pub type WaitId = u64;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is admitted.
    Admitted,
    /// The limit is reached. There may be room after this time.
    Refused(Duration),
}

/// What a machine answers to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is decided at once.
    Now(Admission),
    /// It waits, and `poll_decision` returns its number later.
    Later(WaitId),
}

/// Requests that wait for the engine, in their order, and decisions about them.
#[derive(Debug, Default)]
struct Waiting {
    next: WaitId,
    waiting: VecDeque<WaitId>,
    decided: VecDeque<(WaitId, Admission)>,
}

impl Waiting {
    fn len(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn add(&mut self) -> Answer {
        if self.waiting.len() >= MAX_WAITING {
            return Answer::Now(Admission::Refused(ENGINE_WAIT));
        }
        self.next += 1;
        self.waiting.push_back(self.next);
        Answer::Later(self.next)
    }

    /// Decides about the first request that waits. Returns whether there was one.
    fn decide(&mut self, admission: Admission) -> bool {
        let first = self.waiting.pop_front();
        self.decided.extend(first.map(|id| (id, admission)));
        first.is_some()
    }
}

/// Tokens of one demand, and until when they may be used.
#[derive(Debug, Clone, Copy, Default)]
struct Lot {
    tokens: u32,
    ends: Duration,
}

impl Lot {
    fn expire(&mut self, now: Duration) {
        if self.ends <= now {
            self.tokens = 0;
        }
    }
}

/// How many requests were admitted in about a second.
#[derive(Debug, Default)]
struct Meter {
    began: Duration,
    current: u32,
    previous: u32,
}

impl Meter {
    const WINDOW: Duration = Duration::from_secs(1);

    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.began);
        if passed < Self::WINDOW {
            return;
        }
        self.previous = match passed < 2 * Self::WINDOW {
            true => self.current,
            false => 0,
        };
        (self.began, self.current) = (now, 0);
    }

    fn count(&mut self, now: Duration) {
        self.advance(now);
        self.current = self.current.saturating_add(1);
    }

    fn rate(&mut self, now: Duration) -> u32 {
        self.advance(now);
        self.current.max(self.previous)
    }
}

/// The bucket of one replica, while the engine does not answer.
#[derive(Debug, Clone, Copy)]
struct Share {
    level: f64,
    filled: Duration,
    /// When to ask the engine again.
    probe: Duration,
}

/// How the machine decides.
#[derive(Debug, Clone, Copy)]
enum Mode {
    /// By tokens from the engine.
    Leased,
    /// By the share, since the engine does not answer in time.
    Share(Share),
}

/// A demand under way.
#[derive(Debug, Clone, Copy)]
struct PendingDemand {
    sent: Duration,
    spent: u32,
}

/// The requests a minute of one caller, on one replica. See the [module](self).
#[derive(Debug)]
pub struct Tokens {
    per_minute: u32,
    /// The older one is used first. There are two, because a portion is asked for before the last
    /// one is used up.
    lots: [Lot; 2],
    pending: Option<PendingDemand>,
    /// The engine has nothing before this time.
    empty_until: Duration,
    /// What the engine had left, and when.
    left: Option<(Duration, u32)>,
    mode: Mode,
    /// Requests that were admitted by the share, and that the engine has not learned of.
    spent: u32,
    meter: Meter,
    waiting: Waiting,
    /// Another portion shall be asked for.
    wants_more: bool,
    last_use: Duration,
}

impl Tokens {
    /// Returns the machine of a caller that has used nothing. A limit below 1 counts as 1.
    #[must_use]
    pub fn new(per_minute: u32) -> Self {
        Self {
            per_minute: per_minute.max(1),
            lots: [Lot::default(); 2],
            pending: None,
            empty_until: Duration::ZERO,
            left: None,
            mode: Mode::Leased,
            spent: 0,
            meter: Meter::default(),
            waiting: Waiting::default(),
            wants_more: false,
            last_use: Duration::ZERO,
        }
    }

    /// Takes a request. `nodes` is the number of replicas that live.
    pub fn handle_request(&mut self, now: Duration, nodes: u32) -> Answer {
        self.last_use = now;
        if let Mode::Share(share) = self.mode {
            self.wants_more |= now >= share.probe;
            return Answer::Now(self.by_share(now, nodes));
        }
        if self.waiting.is_empty() && self.use_token(now) {
            let portion = self.portion(now, nodes);
            self.wants_more |= portion > 0 && self.tokens() <= portion / 2 && now >= self.empty_until;
            return Answer::Now(Admission::Admitted);
        }
        if now < self.empty_until && self.pending.is_none() {
            return Answer::Now(Admission::Refused(self.empty_until - now));
        }
        self.wants_more = true;
        self.waiting.add()
    }

    /// Returns what to ask the engine for, if anything. The driver sends it now.
    pub fn poll_demand(&mut self, now: Duration, nodes: u32) -> Option<TokenDemand> {
        if !self.wants_more || self.pending.is_some() {
            return None;
        }
        self.wants_more = false;
        let want = match self.mode {
            Mode::Leased => {
                let portion = self.portion(now, nodes).saturating_sub(self.tokens());
                self.waiting.len().saturating_add(portion)
            }
            // Nothing is taken beside the share.
            Mode::Share(_) => 0,
        };
        let spent = self.spent;
        self.pending = Some(PendingDemand { sent: now, spent });
        Some(TokenDemand {
            per_minute: self.per_minute,
            want,
            spent,
        })
    }

    /// Takes the answer of the engine.
    pub fn handle_granted(&mut self, now: Duration, grant: TokenGrant) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        self.left = Some((now, grant.left));
        if grant.left == 0 {
            self.empty_until = now + grant.wait.max(MIN_REFUSAL);
        }
        self.spent = self.spent.saturating_sub(pending.spent);
        if let Mode::Share(share) = &mut self.mode {
            if now.saturating_sub(pending.sent) > ENGINE_WAIT {
                share.probe = now + PROBE_INTERVAL;
                return;
            }
            self.mode = Mode::Leased;
            self.wants_more = self.spent > 0;
        }
        self.add(now, grant.granted, pending.sent + TOKEN_LIFETIME);
        while !self.waiting.is_empty() && self.use_token(now) {
            self.waiting.decide(Admission::Admitted);
        }
        if self.waiting.is_empty() {
            return;
        }
        if grant.left > 0 {
            // Requests came after the demand, and there may be tokens for them.
            self.wants_more = true;
            return;
        }
        let wait = self.empty_until - now;
        while self.waiting.decide(Admission::Refused(wait)) {}
    }

    /// Notes that the engine did not answer the demand.
    pub fn handle_away(&mut self, now: Duration, nodes: u32) {
        self.pending = None;
        self.enter_share(now, nodes);
        if let Mode::Share(share) = &mut self.mode {
            share.probe = now + PROBE_INTERVAL;
        }
    }

    /// Notes that a request has waited for [`ENGINE_WAIT`], or for that long again. It is decided
    /// by the share if the engine is late. It waits on if the demand that wants its token was sent
    /// since.
    pub fn handle_late(&mut self, now: Duration, nodes: u32) {
        let is_late = self
            .pending
            .is_some_and(|pending| now.saturating_sub(pending.sent) >= ENGINE_WAIT);
        if is_late && !self.waiting.is_empty() {
            self.enter_share(now, nodes);
        }
    }

    /// Returns a request that is decided after it waited.
    pub fn poll_decision(&mut self) -> Option<(WaitId, Admission)> {
        self.waiting.decided.pop_front()
    }

    /// Returns the time from which on the machine knows nothing that a new one would not, if there
    /// is no further request.
    #[must_use]
    pub fn idle_from(&self) -> Option<Duration> {
        // After a minute the engine's bucket is full again, even if much was spent.
        let quiet = match (self.mode, self.spent) {
            (Mode::Leased, 0) => TOKEN_LIFETIME,
            (Mode::Leased | Mode::Share(_), _) => MINUTE,
        };
        let is_busy = self.pending.is_some() || !self.waiting.is_empty();
        // A share begins with what the engine had left, so that is known until the bucket is full.
        let full = self.left.map_or(Duration::ZERO, |(at, left)| {
            let taken = f64::from(self.per_minute.saturating_sub(left));
            at + MINUTE.mul_f64(taken / f64::from(self.per_minute))
        });
        (!is_busy).then(|| (self.last_use + quiet).max(self.empty_until).max(full))
    }

    fn tokens(&self) -> u32 {
        self.lots.iter().map(|lot| lot.tokens).sum()
    }

    fn use_token(&mut self, now: Duration) -> bool {
        for lot in &mut self.lots {
            lot.expire(now);
            if lot.tokens > 0 {
                lot.tokens -= 1;
                self.meter.count(now);
                return true;
            }
        }
        false
    }

    fn add(&mut self, now: Duration, tokens: u32, ends: Duration) {
        let [older, newer] = &mut self.lots;
        older.expire(now);
        newer.expire(now);
        if newer.tokens > 0 {
            // Both may be used until the first of them ends.
            let ends = match older.tokens {
                0 => newer.ends,
                _ => older.ends.min(newer.ends),
            };
            let tokens = older.tokens + newer.tokens;
            *older = Lot { tokens, ends };
        }
        *newer = Lot { tokens, ends };
    }

    /// Returns how many tokens to have at hand.
    fn portion(&mut self, now: Duration, nodes: u32) -> u32 {
        let used = self.meter.rate(now);
        // What all replicas together have at hand is at most a twentieth of the limit.
        let most = self.per_minute / 20 / nodes.max(1);
        let is_scarce = self.left.is_some_and(|(_, left)| left < self.per_minute / 2);
        match is_scarce {
            true => (used / 8).min(most),
            false => used.max(1).min(most),
        }
    }

    /// Decides by the share from now on, also about the requests that wait.
    fn enter_share(&mut self, now: Duration, nodes: u32) {
        if let Mode::Leased = self.mode {
            // The engine's bucket as it was seen last, and filled since, belongs to all replicas.
            let full = f64::from(self.per_minute);
            let level = self.left.map_or(full, |(at, left)| {
                let filled = now.saturating_sub(at).as_secs_f64() / MINUTE.as_secs_f64() * full;
                (f64::from(left) + filled).min(full)
            });
            self.mode = Mode::Share(Share {
                level: level / f64::from(nodes.max(1)),
                filled: now,
                probe: now,
            });
        }
        while !self.waiting.is_empty() {
            let admission = self.by_share(now, nodes);
            self.waiting.decide(admission);
        }
    }

    /// Decides by the share of this replica.
    fn by_share(&mut self, now: Duration, nodes: u32) -> Admission {
        let Mode::Share(share) = &mut self.mode else {
            return Admission::Refused(MIN_REFUSAL);
        };
        let limit = f64::from(self.per_minute) / f64::from(nodes.max(1));
        let passed = now.saturating_sub(share.filled).as_secs_f64() / MINUTE.as_secs_f64();
        // A share below one request a minute collects one all the same.
        share.level = (share.level + passed * limit).min(limit.max(1.0));
        share.filled = now;
        if share.level < 1.0 {
            let minutes = ((1.0 - share.level) / limit).clamp(0.0, 60.0);
            return Admission::Refused(MINUTE.mul_f64(minutes).max(MIN_REFUSAL));
        }
        share.level -= 1.0;
        // Of what was used longer ago than a minute, the engine's bucket has refilled all.
        let most = self.per_minute.div_ceil(nodes.max(1));
        self.spent = (self.spent + 1).min(most);
        Admission::Admitted
    }
}

/// How a machine of slots decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotMode {
    Leased,
    /// By the share. The engine is asked again at this time.
    Share(Duration),
}

/// The slots of one pool, on one replica: calls or sessions of one caller, or sessions of one
/// destination. See the [module](self).
#[derive(Debug)]
pub struct Slots {
    limit: u32,
    /// What this replica may use: what the engine granted, less what is being given back.
    granted: u32,
    /// What the engine noted last.
    noted: u32,
    in_use: u32,
    /// When the demand under way was sent.
    pending: Option<Duration>,
    full_until: Duration,
    /// What the engine had left for all replicas.
    free: Option<u32>,
    mode: SlotMode,
    waiting: Waiting,
    is_demand_due: bool,
    /// When the engine noted the slots last.
    noted_at: Duration,
    /// When a slot was taken last.
    last_use: Duration,
}

impl Slots {
    /// Returns the machine of a pool of which this replica has nothing.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            granted: 0,
            noted: 0,
            in_use: 0,
            pending: None,
            full_until: Duration::ZERO,
            free: None,
            mode: SlotMode::Leased,
            waiting: Waiting::default(),
            is_demand_due: false,
            noted_at: Duration::ZERO,
            last_use: Duration::ZERO,
        }
    }

    /// Sets another limit. What is in use stays, also above it.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.full_until = Duration::ZERO;
    }

    /// Takes a slot for a request, or lets it wait.
    pub fn handle_request(&mut self, now: Duration, nodes: u32) -> Answer {
        self.last_use = now;
        if let SlotMode::Share(probe) = self.mode {
            self.is_demand_due |= now >= probe;
            return Answer::Now(self.by_share(nodes));
        }
        if self.waiting.is_empty() && self.in_use < self.granted {
            self.in_use += 1;
            let is_last = self.in_use == self.granted;
            self.is_demand_due |= is_last && self.spare(nodes) > 0 && now >= self.full_until;
            return Answer::Now(Admission::Admitted);
        }
        if now < self.full_until && self.pending.is_none() {
            return Answer::Now(Admission::Refused(self.full_until - now));
        }
        self.is_demand_due = true;
        self.waiting.add()
    }

    /// Takes a slot back that was in use.
    pub fn handle_released(&mut self, nodes: u32) {
        self.in_use = self.in_use.saturating_sub(1);
        if self.mode == SlotMode::Leased
            && self.in_use < self.granted
            && self.waiting.decide(Admission::Admitted)
        {
            self.in_use += 1;
            return;
        }
        // Where another replica may need it, an unused slot goes back at once.
        let unused = self.granted.saturating_sub(self.in_use);
        self.is_demand_due |= unused > self.most_spare(nodes);
    }

    /// Looks for slots that stay unused and for a note that is old. The driver calls it about once
    /// a second.
    pub fn handle_tick(&mut self, now: Duration) {
        let is_unused = self.granted > self.in_use && now.saturating_sub(self.last_use) >= UNUSED_TIME;
        let is_old = self.granted > 0 && now.saturating_sub(self.noted_at) >= REPEAT_INTERVAL;
        let is_due = match self.mode {
            SlotMode::Leased => false,
            SlotMode::Share(probe) => now >= probe,
        };
        self.is_demand_due |= is_unused || is_old || is_due;
    }

    /// Repeats which slots this replica has, because the engine lost them.
    pub fn handle_lost(&mut self) {
        self.is_demand_due |= self.granted > 0;
    }

    /// Returns what to ask the engine for, if anything. The driver sends it now.
    pub fn poll_demand(&mut self, now: Duration, nodes: u32) -> Option<SlotDemand> {
        if !self.is_demand_due || self.pending.is_some() {
            return None;
        }
        self.is_demand_due = false;
        let needed = self.in_use.saturating_add(self.waiting.len());
        let is_used = now.saturating_sub(self.last_use) < UNUSED_TIME;
        let want = match self.mode {
            SlotMode::Leased if is_used => {
                let most = needed.saturating_add(self.most_spare(nodes));
                let kept = self.granted.min(most);
                needed.saturating_add(self.spare(nodes)).max(kept)
            }
            SlotMode::Leased | SlotMode::Share(_) => needed,
        };
        // What is given back is not used from now on, even if the answer takes a while.
        self.granted = self.granted.min(want).max(self.in_use);
        self.pending = Some(now);
        Some(SlotDemand {
            limit: self.limit,
            held: self.granted,
            want,
        })
    }

    /// Takes the answer of the engine. Returns whether the engine had lost slots of this replica.
    pub fn handle_granted(&mut self, now: Duration, grant: SlotGrant) -> bool {
        let Some(sent) = self.pending.take() else {
            return false;
        };
        let is_lost = grant.before < self.noted;
        if let SlotMode::Share(_) = self.mode {
            self.mode = match now.saturating_sub(sent) > ENGINE_WAIT {
                true => SlotMode::Share(now + PROBE_INTERVAL),
                false => SlotMode::Leased,
            };
        }
        self.granted = grant.granted.max(self.in_use);
        self.free = Some(grant.free);
        (self.noted, self.noted_at) = (grant.granted, now);
        // By its share the replica may have taken more since the demand.
        self.is_demand_due |= self.in_use > grant.granted;
        while self.in_use < self.granted && self.waiting.decide(Admission::Admitted) {
            self.in_use += 1;
        }
        if grant.free == 0 {
            self.full_until = now + MIN_REFUSAL;
            while self.waiting.decide(Admission::Refused(MIN_REFUSAL)) {}
        }
        self.is_demand_due |= !self.waiting.is_empty();
        is_lost
    }

    /// Notes that the engine did not answer the demand.
    pub fn handle_away(&mut self, now: Duration, nodes: u32) {
        self.pending = None;
        self.enter_share(now + PROBE_INTERVAL, nodes);
    }

    /// Notes that a request has waited for [`ENGINE_WAIT`], or for that long again. It is decided
    /// by the share if the engine is late. It waits on if the demand that wants its slot was sent
    /// since.
    pub fn handle_late(&mut self, now: Duration, nodes: u32) {
        let is_late = self
            .pending
            .is_some_and(|sent| now.saturating_sub(sent) >= ENGINE_WAIT);
        if is_late && !self.waiting.is_empty() {
            self.enter_share(now, nodes);
        }
    }

    /// Returns a request that is decided after it waited. One that is admitted has its slot.
    pub fn poll_decision(&mut self) -> Option<(WaitId, Admission)> {
        self.waiting.decided.pop_front()
    }

    /// Returns how many slots are in use here.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Returns whether this replica has nothing of the pool.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.in_use == 0 && self.granted == 0 && self.pending.is_none() && self.waiting.is_empty()
    }

    /// Returns how many unused slots may be at hand: none where the pool is three quarters full,
    /// and a quarter of it over all replicas.
    fn most_spare(&self, nodes: u32) -> u32 {
        let quarter = self.limit / 4;
        match self.free {
            Some(free) if free >= quarter => quarter / nodes.max(1),
            Some(_) | None => 0,
        }
    }

    /// Returns how many unused slots to ask for.
    fn spare(&self, nodes: u32) -> u32 {
        (self.in_use / 2).max(1).min(self.most_spare(nodes))
    }

    fn by_share(&mut self, nodes: u32) -> Admission {
        let share = (self.limit / nodes.max(1)).max(1).min(self.limit);
        if self.in_use >= share {
            return Admission::Refused(PROBE_INTERVAL);
        }
        self.in_use += 1;
        self.granted = self.granted.max(self.in_use);
        Admission::Admitted
    }

    fn enter_share(&mut self, probe: Duration, nodes: u32) {
        self.mode = SlotMode::Share(probe);
        while !self.waiting.is_empty() {
            let admission = self.by_share(nodes);
            self.waiting.decide(admission);
        }
    }
}
