//! Development only: the process that `crates/cluster/tests/crash` kills while it writes.
//!
//! `cluster-test-process DIRECTORY SEED [SESSIONS LENGTH]` opens the registry of sessions there
//! and writes to it, as several tasks at once, until it is killed. It prints `try OPERATION SESSION
//! EPOCH` before each operation and `done OPERATION SESSION EPOCH` when the operation was answered.
//! With a number of sessions it creates so many, one after the other, with an `initialize` of that
//! length, and prints the microseconds that each took.

use std::io::{Error, Result, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cluster::{
    Change, Created, FileRegistry, Hello, Node, NodeId, Registry, SessionRecord, State, TakeOver, Updated,
    WallTime,
};
use uuid::Uuid;

const IDLE: Duration = Duration::from_secs(3600);
/// Tasks that write at once, so that transactions with several operations are killed too.
const TASKS: u64 = 8;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or_else(|| Error::other("no directory"))?);
    let seed = arguments.next().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.ok_or_else(|| Error::other("no seed"))?;
    let sessions = arguments.next().map(|sessions| sessions.parse());
    let sessions: Option<u32> = sessions.transpose().map_err(Error::other)?;
    let length = arguments.next().map_or(Ok(300), |length| length.parse());
    let length: usize = length.map_err(Error::other)?;
    let registry = FileRegistry::open(&directory).map_err(Error::other)?;
    let node = Node {
        id: NodeId::generate("process").map_err(Error::other)?,
        address: None,
        program: "test".to_owned(),
        is_draining: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        registry.join(&node).await.map_err(Error::other)?;
        match sessions {
            Some(sessions) => measure(&registry, &node.id, sessions, length).await,
            None => {
                let mut tasks = tokio::task::JoinSet::new();
                for task in 0..TASKS {
                    let random = Random(seed.wrapping_mul(TASKS).wrapping_add(task));
                    tasks.spawn(write(registry.clone(), node.id.clone(), random));
                }
                tasks.join_all().await.into_iter().collect()
            }
        }
    })
}

/// Writes until the process is killed.
async fn write(registry: FileRegistry, node: NodeId, mut random: Random) -> Result<()> {
    let mut records: Vec<SessionRecord> = Vec::new();
    loop {
        let choice = random.below(10);
        let at = random.below(records.len().max(1));
        match records.get_mut(at) {
            Some(record) if choice < 3 => {
                note("try", "take_over", record.session, record.epoch + 1)?;
                let taken = registry
                    .take_over(record.session, record.epoch, &node, IDLE)
                    .await;
                match taken.map_err(Error::other)? {
                    TakeOver::Won(won) => *record = *won,
                    other => return Err(Error::other(format!("{other:?}"))),
                }
                note("done", "take_over", record.session, record.epoch)?;
            }
            Some(record) if choice < 5 => {
                let level = format!("level {}", random.below(1000));
                record.state.log_level = Some(level.clone());
                let change = Change::State(record.state.clone());
                note(
                    "try",
                    &format!("state:{}", level.replace(' ', "_")),
                    record.session,
                    record.epoch,
                )?;
                let claim = record.claim().ok_or_else(|| Error::other("no owner"))?;
                match registry
                    .update(&claim, change, IDLE)
                    .await
                    .map_err(Error::other)?
                {
                    Updated::Done => {}
                    other => return Err(Error::other(format!("{other:?}"))),
                }
                note(
                    "done",
                    &format!("state:{}", level.replace(' ', "_")),
                    record.session,
                    record.epoch,
                )?;
            }
            Some(_) if choice < 7 => {
                let record = records.swap_remove(at);
                note("try", "remove", record.session, record.epoch)?;
                let claim = record.claim().ok_or_else(|| Error::other("no owner"))?;
                match registry.remove(&claim).await.map_err(Error::other)? {
                    Updated::Done => {}
                    other => return Err(Error::other(format!("{other:?}"))),
                }
                note("done", "remove", record.session, record.epoch)?;
            }
            Some(_) | None => {
                let record = record(&node, random.below(4000));
                note("try", "create", record.session, record.epoch)?;
                match registry.create(&record, IDLE).await.map_err(Error::other)? {
                    Created::Created => {}
                    other => return Err(Error::other(format!("{other:?}"))),
                }
                note("done", "create", record.session, record.epoch)?;
                records.push(record);
            }
        }
    }
}

/// Creates sessions one after the other, and prints what each took in microseconds.
async fn measure(registry: &FileRegistry, node: &NodeId, sessions: u32, length: usize) -> Result<()> {
    for _ in 0..sessions {
        let record = record(node, length);
        let started = Instant::now();
        registry.create(&record, IDLE).await.map_err(Error::other)?;
        let elapsed = started.elapsed();
        writeln!(std::io::stdout(), "create {}", elapsed.as_micros())?;
    }
    Ok(())
}

fn note(when: &str, operation: &str, session: Uuid, epoch: u64) -> Result<()> {
    let line = format!("{when} {operation} {session} {epoch}\n");
    std::io::stdout().write_all(line.as_bytes())
}

fn record(node: &NodeId, length: usize) -> SessionRecord {
    SessionRecord {
        session: Uuid::new_v4(),
        destination: "files".to_owned(),
        principal: "alice".to_owned(),
        owner: Some(node.clone()),
        epoch: 1,
        hello: Hello::Initialize("x".repeat(length)),
        state: State::default(),
        created: WallTime::from_unix(1_800_000_000),
        last_active: WallTime::from_unix(1_800_000_000),
    }
}

/// SplitMix64: the same seed writes the same.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit.max(1) as u64).unwrap_or(0)
    }
}
