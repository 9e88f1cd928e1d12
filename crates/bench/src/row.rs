//! The rows of the table: what each measures, in which figures, and how.

use std::rc::Rc;
use std::time::Duration;

use anyhow::bail;
use tokio::process::Command;

use crate::aggregate;
use crate::connect::{self, Measure, Measured};
use crate::fan_out::{self, Plan};
use crate::fleet;
use crate::handler::Era;
use crate::hosts;
use crate::load::{self, Outcome, Pace, Target, Until};
use crate::meter;
use crate::overload;
use crate::page;
use crate::pipe::Pipe;
use crate::request::{Call, ECHO, Session};
use crate::sdk;
use crate::system::{Credentials, Programs, Running, Setup, System};
use crate::threads::{self, Tokens};

/// One kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    Flight64,
    Flight16,
    Flight1,
    Paced,
    Payload10K,
    Payload1M,
    Payload10M,
    Progress,
    Churn,
    FanOut,
    Start,
    Idle,
    IdleSession,
    Sessions,
    Destinations,
    Audit,
    Everything,
    Translation,
    Overload,
    Threads,
    Fleet,
    Aggregate,
    Catalogue,
    Page,
    Hosts,
    Remote,
    Remote1M,
    RemoteProgress,
    ConnectFlight64,
    ConnectFlight1,
    ConnectSdk,
    ConnectStart,
    ConnectIdle,
}

pub const ALL: [Row; 33] = [
    Row::Flight64,
    Row::Flight16,
    Row::Flight1,
    Row::Paced,
    Row::Payload10K,
    Row::Payload1M,
    Row::Payload10M,
    Row::Progress,
    Row::Churn,
    Row::FanOut,
    Row::Start,
    Row::Idle,
    Row::IdleSession,
    Row::Sessions,
    Row::Destinations,
    Row::Audit,
    Row::Everything,
    Row::Translation,
    Row::Overload,
    Row::Threads,
    Row::Fleet,
    Row::Aggregate,
    Row::Catalogue,
    Row::Page,
    Row::Hosts,
    Row::Remote,
    Row::Remote1M,
    Row::RemoteProgress,
    Row::ConnectFlight64,
    Row::ConnectFlight1,
    Row::ConnectSdk,
    Row::ConnectStart,
    Row::ConnectIdle,
];

/// A figure of a row and how it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Per second; shown as a ratio to native.
    Rate(&'static str),
    /// Microseconds of processor time; shown as they are and as a ratio to native.
    Cpu(&'static str),
    /// A time; shown as a ratio to native.
    Time(&'static str),
    /// Bytes; shown as they are.
    Bytes(&'static str),
    /// A factor; shown as it is.
    Factor(&'static str),
    /// A share; shown in per cent.
    Share(&'static str),
    /// Milliseconds; shown as they are.
    Millis(&'static str),
    /// A number of things; shown as it is.
    Count(&'static str),
}

/// How long rows are measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// How long one measurement lasts.
    pub time: Duration,
    /// Whether numbers of things are those of the targets, or smaller.
    pub full: bool,
}

const PLAIN: Call = Call::Echo { padding: 0 };
const MEGABYTE: usize = 1_000_000;
/// Few calls, so that each finds the system idle.
const GENTLE: Pace = Pace {
    call: PLAIN,
    per_second: 100,
    connections: 16,
};

impl Row {
    /// The word for `--only`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Flight64 => "flight64",
            Self::Flight16 => "flight16",
            Self::Flight1 => "flight1",
            Self::Paced => "paced",
            Self::Payload10K => "10kb",
            Self::Payload1M => "1mb",
            Self::Payload10M => "10mb",
            Self::Progress => "progress",
            Self::Churn => "churn",
            Self::FanOut => "fan-out",
            Self::Start => "start",
            Self::Idle => "idle",
            Self::IdleSession => "idle-session",
            Self::Sessions => "sessions",
            Self::Destinations => "destinations",
            Self::Audit => "audit",
            Self::Everything => "everything",
            Self::Translation => "translation",
            Self::Overload => "overload",
            Self::Threads => "threads",
            Self::Fleet => "fleet",
            Self::Aggregate => "aggregate",
            Self::Catalogue => "catalogue",
            Self::Page => "page",
            Self::Hosts => "hosts",
            Self::Remote => "remote",
            Self::Remote1M => "remote-1mb",
            Self::RemoteProgress => "remote-progress",
            Self::ConnectFlight64 => "connect64",
            Self::ConnectFlight1 => "connect1",
            Self::ConnectSdk => "connect-sdk",
            Self::ConnectStart => "connect-start",
            Self::ConnectIdle => "connect-idle",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Flight64 => "64 calls in flight, 16 sessions",
            Self::Flight16 => "16 in flight, 4 sessions",
            Self::Flight1 => "1 in flight",
            Self::Paced => "100 calls per second",
            Self::Payload10K => "10 KB payload, 16 in flight",
            Self::Payload1M => "1 MB payload, 4 in flight",
            Self::Payload10M => "10 MB payload, 1 in flight, limits raised",
            Self::Progress => "call with 10 progress messages, 16 in flight",
            Self::Churn => "sessions opened, used, deleted, 8 at a time",
            Self::FanOut => "2,000 notifications to 10 sessions with 50 streams each",
            Self::Start => "start to first initialize answer",
            Self::Idle => "idle memory (PSS)",
            Self::IdleSession => "an idle session with an open stream",
            Self::Sessions => "64 in flight over 1,000 sessions, against 10",
            Self::Destinations => "64 in flight with 50 destinations, against 1",
            Self::Audit => "64 in flight with an audit log, against none",
            Self::Everything => {
                "64 in flight with authentication, audit, limits and a tool policy, against none"
            }
            Self::Translation => "64 in flight between the eras, against the same client within its era",
            Self::Overload => "ten times as many calls as can be done",
            Self::Threads => "one thread against two",
            Self::Fleet => "a replica of a fleet, and `state_dir`, against neither",
            Self::Aggregate => "64 in flight through an aggregate, against its member",
            Self::Catalogue => "tools of 100 members with 50 each, listed while no child runs",
            Self::Page => "10,000 calls per second with ten open pages, against none",
            Self::Hosts => "5 sessions of hosts with 6 servers each, against `rialto attach` in their place",
            Self::Remote => "64 in flight, 16 sessions, in front of native",
            Self::Remote1M => "1 MB payload, 4 in flight, in front of native",
            Self::RemoteProgress => "call with 10 progress messages, 16 in flight, in front of native",
            Self::ConnectFlight64 => "stdio in front of native: 64 in flight",
            Self::ConnectFlight1 => "stdio in front of native: 1 in flight",
            Self::ConnectSdk => "the same, called by the TypeScript SDK 1.32",
            Self::ConnectStart => "stdio in front of native: start to first initialize answer",
            Self::ConnectIdle => "stdio in front of native: idle memory (PSS)",
        }
    }

    pub fn figures(self) -> &'static [Figure] {
        use Figure::{Bytes, Count, Cpu, Factor, Millis, Rate, Share, Time};
        match self {
            Self::Flight64
            | Self::Flight16
            | Self::Payload10K
            | Self::Progress
            | Self::Remote
            | Self::RemoteProgress
            | Self::ConnectFlight64 => &[Rate("calls/s"), Cpu("CPU per call")],
            Self::Flight1 | Self::ConnectFlight1 => &[Time("p50"), Cpu("CPU per call")],
            Self::Paced => &[Time("p50"), Time("p99")],
            Self::Payload1M | Self::Payload10M | Self::Remote1M => &[
                Rate("calls/s"),
                Cpu("CPU per call"),
                Factor("peak memory, × the message, per call in flight"),
            ],
            Self::Churn => &[Rate("sessions/s"), Cpu("CPU per session")],
            Self::FanOut => &[
                Rate("deliveries/s"),
                Cpu("CPU per delivery"),
                Share("delivered, in order"),
            ],
            Self::ConnectSdk => &[Time("p50")],
            Self::Start | Self::ConnectStart => &[Time("time")],
            Self::Idle | Self::IdleSession | Self::ConnectIdle => &[Bytes("memory")],
            Self::Sessions | Self::Audit => &[Factor("CPU per call, ×")],
            Self::Everything => &[
                Factor("CPU per call with static tokens, ×"),
                Factor("CPU per call with signed tokens, ×"),
            ],
            Self::Translation => &[
                Factor("CPU per call of a modern client at a legacy server, ×"),
                Factor("CPU per call of a legacy client at a modern server, ×"),
            ],
            Self::Overload => &[
                Share("calls done, of the peak"),
                Millis("refusals, p99"),
                Bytes("memory growth after the first sixth"),
                Millis("until all is normal again"),
            ],
            Self::Threads => &[
                Millis("p99 of small calls beside 10 MB messages, one thread"),
                Millis("the same, two threads"),
                Millis("the same, small calls and large messages in two processes of Rialto"),
                Factor("calls/s with TLS, signed tokens and audit of bodies, two threads against one, ×"),
                Factor("the same, where each call has a token that is not remembered, ×"),
            ],
            Self::Fleet => &[
                Factor("CPU per call at the owner of its session, ×"),
                Factor("CPU per forwarded call, both replicas together, against one at its owner, ×"),
                Factor("CPU per session opened, used, deleted in a fleet, ×"),
                Factor("CPU per call with `state_dir`, ×"),
                Factor("CPU per session opened, used, deleted with `state_dir`, ×"),
            ],
            Self::Aggregate => &[
                Factor("CPU per call of a legacy client, ×"),
                Factor("CPU per call of a modern client, ×"),
            ],
            Self::Catalogue => &[
                Millis("a list, p50"),
                Bytes("length of a list"),
                Cpu("CPU per list"),
                Bytes("memory (PSS)"),
            ],
            Self::Page => &[Factor("CPU, ×"), Share("what the pages add, of one processor")],
            Self::Hosts => &[
                Count("servers, where each session starts its own"),
                Bytes("their memory (PSS)"),
                Count("servers with Rialto, before a host sends a message"),
                Count("servers with Rialto, after each session has listed all tools"),
                Bytes("their memory (PSS)"),
                Count("processes of Rialto: the service, and one for each entry of each session"),
                Bytes("their memory (PSS)"),
                Factor("first answer through `attach`, against a start of the server, ×"),
            ],
            Self::Destinations => &[
                Factor("CPU per call with one in use, ×"),
                Factor("CPU per call with all in use, ×"),
            ],
        }
    }

    /// Why a system has no figures in a row, where that lies in its nature.
    fn objection(self, system: System) -> Option<&'static str> {
        let possible = match self {
            // The native server is what the same calls would be without a program in between.
            Self::ConnectFlight64
            | Self::ConnectFlight1
            | Self::ConnectSdk
            | Self::ConnectStart
            | Self::ConnectIdle => system == System::Native || connect::is_possible(system),
            Self::Destinations
            | Self::Audit
            | Self::Everything
            | Self::Translation
            | Self::Overload
            | Self::Threads
            | Self::Fleet
            | Self::Aggregate
            | Self::Catalogue
            | Self::Page
            | Self::Hosts => system == System::Rialto,
            Self::Sessions | Self::Remote | Self::Remote1M | Self::RemoteProgress => {
                matches!(system, System::Native | System::Rialto)
            }
            Self::Paced | Self::Churn | Self::FanOut | Self::Start | Self::Idle | Self::IdleSession => {
                !matches!(system, System::Pipe | System::McpRemote)
            }
            Self::Flight64
            | Self::Flight16
            | Self::Flight1
            | Self::Payload10K
            | Self::Payload1M
            | Self::Payload10M
            | Self::Progress => system != System::McpRemote,
        };
        (!possible).then_some("–")
    }

    /// Measures a system, freshly started: one number per figure.
    pub async fn measure(
        self,
        system: System,
        programs: &Programs,
        effort: Effort,
    ) -> anyhow::Result<Vec<f64>> {
        if let Some(objection) = self.objection(system) {
            bail!("{objection}");
        }
        if let Some(what) = self.of_programs().filter(|_| system != System::Native) {
            return Ok(match connect::measure(what, system, programs, effort).await? {
                Measured::Calls(outcome) => self.shown(&outcome, 0),
                Measured::Number(number) => vec![number],
            });
        }
        if system == System::Pipe {
            return self.measure_pipe(programs, effort).await;
        }
        match self {
            Self::ConnectSdk => measure_directly(programs, effort).await,
            Self::Start | Self::ConnectStart => first_answer(system, programs).await,
            Self::Sessions => measure_growth(Growth::Sessions, system, programs, effort).await,
            Self::Destinations => measure_growth(Growth::Destinations, system, programs, effort).await,
            Self::Audit => measure_growth(Growth::Audit, system, programs, effort).await,
            Self::Everything => {
                let mut figures = Vec::new();
                for credentials in [Credentials::Token, Credentials::Jwt] {
                    let growth = Growth::Everything(credentials);
                    figures.extend(measure_growth(growth, system, programs, effort).await?);
                }
                Ok(figures)
            }
            Self::Translation => measure_translation(system, programs, effort).await,
            Self::Overload => measure_overload(system, programs, effort).await,
            Self::Fleet => fleet::measure(programs, effort).await,
            Self::Aggregate => measure_aggregate(system, programs, effort).await,
            Self::Catalogue => {
                let listing = aggregate::listing(programs, effort).await?;
                Ok(vec![listing.time, listing.bytes, listing.cpu, listing.memory])
            }
            Self::Page => {
                let cost = page::measure(programs, effort).await?;
                Ok(vec![cost.factor, cost.share])
            }
            Self::Hosts => {
                let sharing = hosts::measure(programs)?;
                Ok(vec![
                    sharing.processes_before,
                    sharing.memory_before,
                    sharing.servers_at_first,
                    sharing.servers_after,
                    sharing.server_memory_after,
                    sharing.own_processes,
                    sharing.own_memory,
                    sharing.first_answer,
                ])
            }
            Self::Threads => {
                let latency = threads::beside_large_messages(programs, effort).await?;
                let rate = threads::heavy_calls(programs, effort, Tokens::Remembered).await?;
                let checked = threads::heavy_calls(programs, effort, Tokens::Checked).await?;
                Ok(vec![
                    latency.one_thread,
                    latency.two_threads,
                    latency.another_process,
                    rate.gain(),
                    checked.gain(),
                ])
            }
            Self::Payload10M
            | Self::Flight64
            | Self::Flight16
            | Self::Flight1
            | Self::Paced
            | Self::Payload10K
            | Self::Payload1M
            | Self::Progress
            | Self::Churn
            | Self::FanOut
            | Self::Idle
            | Self::IdleSession
            | Self::Remote
            | Self::Remote1M
            | Self::RemoteProgress
            | Self::ConnectFlight64
            | Self::ConnectFlight1
            | Self::ConnectIdle => {
                let setup = match self {
                    Self::Payload10M => Setup::LargeMessages,
                    Self::Remote | Self::Remote1M | Self::RemoteProgress => Setup::Remote,
                    _ => Setup::Plain,
                };
                let running = system.start(setup, programs)?;
                let figures = self.measure_running(system, &running, effort).await;
                running.stop().await?;
                figures
            }
        }
    }

    /// What is measured of a program that hosts start.
    fn of_programs(self) -> Option<Measure> {
        match self {
            Self::ConnectFlight64 => Some(Measure::Calls(64)),
            Self::ConnectFlight1 => Some(Measure::Calls(1)),
            Self::ConnectSdk => Some(Measure::Sdk),
            Self::ConnectStart => Some(Measure::Start),
            Self::ConnectIdle => Some(Measure::Idle),
            _ => None,
        }
    }

    /// How many sessions, how many calls in flight, and what calls.
    fn shape(self) -> (usize, usize, Call) {
        match self {
            Self::Flight64
            | Self::Sessions
            | Self::Destinations
            | Self::Audit
            | Self::Everything
            | Self::Translation
            | Self::Overload
            | Self::Threads
            | Self::Fleet
            | Self::Aggregate
            | Self::Catalogue
            | Self::Page
            | Self::Hosts
            | Self::Remote => (16, 64, PLAIN),
            Self::ConnectFlight64 => (1, 64, PLAIN),
            Self::Flight16 => (4, 16, PLAIN),
            Self::Payload10K => (4, 16, Call::Echo { padding: 10_000 }),
            Self::Payload1M | Self::Remote1M => (4, 4, Call::Echo { padding: MEGABYTE }),
            Self::Payload10M => (
                1,
                1,
                Call::Echo {
                    padding: 10 * MEGABYTE,
                },
            ),
            Self::Progress | Self::RemoteProgress => (4, 16, Call::Progress { count: 10 }),
            Self::Flight1 | Self::Paced | Self::Churn | Self::FanOut => (1, 1, PLAIN),
            Self::Start | Self::Idle | Self::IdleSession => (1, 1, PLAIN),
            Self::ConnectFlight1 | Self::ConnectSdk | Self::ConnectStart | Self::ConnectIdle => (1, 1, PLAIN),
        }
    }

    async fn measure_running(
        self,
        system: System,
        running: &Running,
        effort: Effort,
    ) -> anyhow::Result<Vec<f64>> {
        let target = &running.target;
        let warm = Until::Passed(effort.time / 5);
        let until = Until::Passed(effort.time);
        match self {
            Self::Start | Self::Idle | Self::ConnectStart | Self::ConnectIdle => {
                warmed(target, PLAIN, effort).await?;
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok(vec![meter::proportional_memory(target.pid)? as f64])
            }
            Self::IdleSession => {
                let count = match (system.is_peer(), effort.full) {
                    (true, _) => 50,
                    (false, false) => 200,
                    (false, true) => 500,
                };
                idle_session(target, count).await
            }
            Self::Churn => {
                load::churn(target, 8, warm).await?;
                let outcome = load::churn(target, 8, until).await?;
                Ok(vec![outcome.rate(), outcome.cpu_per_call()])
            }
            Self::FanOut => {
                let plan = Plan {
                    notices: 2000,
                    sessions: 10,
                    streams_per_session: 50,
                };
                let delivery = fan_out::run(target, plan).await?;
                Ok(vec![
                    delivery.delivered as f64 / delivery.elapsed.as_secs_f64(),
                    delivery.cpu.as_secs_f64() * 1e6 / delivery.delivered as f64,
                    delivery.delivered as f64 / delivery.wanted as f64,
                ])
            }
            Self::Paced => {
                let sessions = warmed(target, PLAIN, effort).await?;
                let outcome = load::paced(target, &sessions, GENTLE, effort.time).await?;
                Ok(vec![outcome.latency(0.5), outcome.latency(0.99)])
            }
            Self::Flight64
            | Self::Flight16
            | Self::Flight1
            | Self::Payload10K
            | Self::Payload1M
            | Self::Payload10M
            | Self::Progress
            | Self::Sessions
            | Self::Destinations
            | Self::Audit
            | Self::Everything
            | Self::Translation
            | Self::Overload
            | Self::Threads
            | Self::Fleet
            | Self::Aggregate
            | Self::Catalogue
            | Self::Page
            | Self::Hosts
            | Self::Remote
            | Self::Remote1M
            | Self::RemoteProgress
            | Self::ConnectFlight64
            | Self::ConnectSdk
            | Self::ConnectFlight1 => {
                let (sessions, in_flight, call) = self.shape();
                let sessions = load::open_sessions(target, sessions).await?;
                let resident = meter::resident_memory(target.pid)?;
                load::closed_loop(target, &sessions, in_flight, call, warm).await?;
                meter::reset_peak(target.pid)?;
                let outcome = load::closed_loop(target, &sessions, in_flight, call, until).await?;
                let growth = meter::peak_memory(target.pid)?.saturating_sub(resident);
                Ok(self.shown(&outcome, growth))
            }
        }
    }

    async fn measure_pipe(self, programs: &Programs, effort: Effort) -> anyhow::Result<Vec<f64>> {
        let mut pipe = Pipe::start(&mut Command::new(programs.ours.join("bench-echo"))).await?;
        let (_, in_flight, call) = self.shape();
        let resident = meter::resident_memory(pipe.pid)?;
        pipe.closed_loop(in_flight, call, Until::Passed(effort.time / 5))
            .await?;
        meter::reset_peak(pipe.pid)?;
        let outcome = pipe
            .closed_loop(in_flight, call, Until::Passed(effort.time))
            .await?;
        let growth = meter::peak_memory(pipe.pid)?.saturating_sub(resident);
        pipe.stop().await?;
        Ok(self.shown(&outcome, growth))
    }

    fn shown(self, outcome: &Outcome, growth: u64) -> Vec<f64> {
        let (_, in_flight, call) = self.shape();
        let payload = match call {
            Call::Echo { padding } => padding,
            Call::Progress { .. } | Call::Notify { .. } => 0,
        };
        let mut numbers = vec![outcome.rate(), outcome.cpu_per_call()];
        if matches!(self, Self::Flight1 | Self::ConnectFlight1) {
            numbers[0] = outcome.latency(0.5);
        }
        if payload >= MEGABYTE {
            numbers.push(growth as f64 / (payload * in_flight) as f64);
        }
        numbers
    }
}

/// What grows in a row that compares a set-up with a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Sessions,
    Destinations,
    Audit,
    Everything(Credentials),
}

/// Compares the cost of a call in two or three set-ups that run side by side and take turns.
async fn measure_growth(
    growth: Growth,
    system: System,
    programs: &Programs,
    effort: Effort,
) -> anyhow::Result<Vec<f64>> {
    let (setup, few, many) = match growth {
        Growth::Sessions => (Setup::Plain, 10, 1000),
        Growth::Destinations => (Setup::Destinations(50), 50, 50),
        Growth::Audit => (Setup::Audit, 16, 16),
        Growth::Everything(credentials) => (Setup::Everything(credentials), 16, 16),
    };
    let small = system.start(Setup::Plain, programs)?;
    let large = system.start(setup, programs)?;
    let mut targets = vec![(small.target.clone(), few)];
    if growth == Growth::Destinations {
        // The same process, but only one of its destinations is in use.
        let mut one = large.target.clone();
        one.paths.truncate(1);
        targets.push((one, many));
    }
    targets.push((large.target.clone(), many));
    let costs = costs(targets, effort).await?;
    small.stop().await?;
    large.stop().await?;
    Ok(costs.iter().skip(1).map(|cost| cost / costs[0]).collect())
}

/// Compares calls that are translated with those of the same client at a server of its own era.
async fn measure_translation(
    system: System,
    programs: &Programs,
    effort: Effort,
) -> anyhow::Result<Vec<f64>> {
    let legacy = system.start(Setup::Plain, programs)?;
    let modern = system.start(Setup::ModernServer, programs)?;
    let sites = [
        (&legacy, Era::Modern),
        (&modern, Era::Modern),
        (&modern, Era::Legacy),
        (&legacy, Era::Legacy),
    ];
    let targets = sites.map(|(server, words)| {
        let target = Target {
            words,
            ..server.target.clone()
        };
        (target, 16)
    });
    let costs = costs(targets.into(), effort).await?;
    legacy.stop().await?;
    modern.stop().await?;
    Ok(costs.chunks(2).map(|pair| pair[0] / pair[1]).collect())
}

/// Compares calls through an aggregate with those of the same client to the member that has them.
async fn measure_aggregate(system: System, programs: &Programs, effort: Effort) -> anyhow::Result<Vec<f64>> {
    let running = system.start(Setup::Aggregate, programs)?;
    let through = &running.target;
    let member = Target {
        paths: vec!["/echo/mcp".to_owned()],
        tool: ECHO,
        ..through.clone()
    };
    let targets = [Era::Legacy, Era::Modern].into_iter().flat_map(|words| {
        [through, &member].map(|target| {
            let target = Target {
                words,
                ..target.clone()
            };
            (target, 16)
        })
    });
    let costs = costs(targets.collect(), effort).await;
    running.stop().await?;
    Ok(costs?.chunks(2).map(|pair| pair[0] / pair[1]).collect())
}

/// What a call costs at each of several targets that take turns, with so many sessions each.
async fn costs(targets: Vec<(Target, usize)>, effort: Effort) -> anyhow::Result<Vec<f64>> {
    let mut sites = Vec::new();
    for (target, count) in targets {
        let sessions = load::open_sessions(&target, count).await?;
        sites.push((target, sessions));
    }
    // Many short turns: other work of the machine then disturbs some of them, and not their
    // median.
    const TURNS: usize = 9;
    let mut costs = vec![Vec::new(); sites.len()];
    for turn in 0..=TURNS {
        for (costs, (target, sessions)) in costs.iter_mut().zip(&sites) {
            let until = Until::Passed(effort.time / 5);
            let outcome = load::closed_loop(target, sessions, 64, PLAIN, until).await?;
            // The first turn warms up.
            if turn > 0 {
                costs.push(outcome.cpu_per_call());
            }
        }
    }
    let median = |mut costs: Vec<f64>| {
        costs.sort_by(f64::total_cmp);
        costs[TURNS / 2]
    };
    Ok(costs.into_iter().map(median).collect())
}

/// A minute of it, or a few seconds in a short run.
async fn measure_overload(system: System, programs: &Programs, effort: Effort) -> anyhow::Result<Vec<f64>> {
    let storm = if effort.full {
        Duration::from_secs(60)
    } else {
        Duration::from_secs(6)
    };
    let setup = Setup::Narrow {
        calls: overload::PLACES,
    };
    let running = system.start(setup, programs)?;
    let measured = overload::run(&running.target, effort.time.max(Duration::from_secs(2)), storm).await;
    running.stop().await?;
    let measured = measured?;
    Ok(vec![
        measured.goodput,
        measured.refusal,
        measured.growth,
        measured.recovery,
    ])
}

/// The official client, straight to the native server.
async fn measure_directly(programs: &Programs, effort: Effort) -> anyhow::Result<Vec<f64>> {
    let native = System::Native.start(Setup::Plain, programs)?;
    let url = format!("http://{}/mcp", native.target.address);
    let median = sdk::over_http(programs, &url, effort.time).await;
    native.stop().await?;
    Ok(vec![median?])
}

/// The median of several starts: one alone depends on other work of the machine.
async fn first_answer(system: System, programs: &Programs) -> anyhow::Result<Vec<f64>> {
    let starts = if system.is_peer() { 3 } else { 15 };
    let mut times = Vec::new();
    for _ in 0..starts {
        let running = system.start(Setup::Plain, programs)?;
        times.push(running.first_answer.as_secs_f64());
        running.stop().await?;
    }
    times.sort_by(f64::total_cmp);
    Ok(vec![times[times.len() / 2]])
}

/// A session that has been used for a little while.
async fn warmed(target: &Target, call: Call, effort: Effort) -> anyhow::Result<Rc<Vec<Session>>> {
    let sessions = load::open_sessions(target, 1).await?;
    load::closed_loop(target, &sessions, 1, call, Until::Passed(effort.time / 5)).await?;
    Ok(sessions)
}

async fn idle_session(target: &Target, count: usize) -> anyhow::Result<Vec<f64>> {
    // A few first, so that what is made once is there already.
    let first = load::open_sessions(target, 5).await?;
    let _first = fan_out::open_streams(target, &first, 1).await?;
    let before = meter::proportional_memory(target.pid)?;
    let sessions = load::open_sessions(target, count).await?;
    let streams = fan_out::open_streams(target, &sessions, 1).await?;
    let after = meter::proportional_memory(target.pid)?;
    drop(streams);
    Ok(vec![after.saturating_sub(before) as f64 / count as f64])
}
