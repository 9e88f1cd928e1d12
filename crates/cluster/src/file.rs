//! The registry of one machine, in one file: what a restart finds again.
//!
//! The file `sessions.redb` in the given folder belongs to one process at a time, so there are
//! no leases: an owner lives if it joined in this process. After a restart the incarnation is
//! another, and every session can be taken over.
//!
//! # What is on disk when
//!
//! An operation that creates, takes over, changes the state of, releases or removes a session is on
//! disk (`fsync`) before its answer. A touch may wait for the next such operation, at most
//! [`TOUCH_DELAY`]. A lost touch shortens the life of a session; nothing else is lost by SIGKILL or
//! a power failure.
//!
//! One thread does all operations, in their order. Everything that waits for it is one transaction,
//! so that sessions that open at once share one `fsync`. An operation ends after [`TIME_LIMIT`]
//! even if the disk does not. `docs/performance.md` has what an operation costs.
//!
//! # Time
//!
//! Records expire by the wall clock, which alone goes on over a restart. A clock that is set
//! forward ends sessions early.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use redb::{Database, DatabaseError, Durability, ReadableTable as _, StorageError, Table, TableDefinition};
use thiserror::Error;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::error::RegistryError;
use crate::names::Names;
use crate::pools::Pools;
use crate::record::{Node, NodeId, SessionRecord};
use crate::registry::{
    Change, Claim, Created, LEASE, Located, NameLease, NodeStatus, Operation, Owner, Registry, Renewed,
    SlotDemand, SlotGrant, TakeOver, TokenDemand, TokenGrant, Touch, Updated,
};
use crate::rules::{self, Standing};

/// The name of the file.
pub const FILE: &str = "sessions.redb";

/// How long an operation waits for the disk. A busy disk may need seconds for one `fsync`.
pub const TIME_LIMIT: Duration = Duration::from_secs(10);

/// How long a touch may stay in memory alone.
pub const TOUCH_DELAY: Duration = Duration::from_secs(30);

/// How often records that have expired are deleted.
const PURGE_INTERVAL: Duration = Duration::from_secs(3600);

/// The most operations that wait. More of them means that the disk stands still.
const QUEUE: usize = 4096;

/// The most operations of one transaction.
const BATCH: usize = 512;

/// What redb keeps in memory: the records of some ten thousand sessions.
const CACHE_BYTES: usize = 16 * 1024 * 1024;

/// The records: the time of expiry in milliseconds since the epoch of Unix, eight bytes, then JSON.
const SESSIONS: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("sessions");

/// Why the file cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "{} is in use by another process: stop that one, or give each Rialto a directory of its own",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The directory or the file cannot be made, read or written.
    #[error("cannot open {}", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the operating system reported.
        source: io::Error,
    },
    /// The file is none that this program wrote, or is damaged.
    #[error(
        "{} cannot be read as the records of sessions ({reason}): move it away to start without the earlier sessions",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The registry of sessions in a file. Clones share it; the last one closes the file.
#[derive(Debug, Clone)]
pub struct FileRegistry {
    worker: Arc<Worker>,
}

/// One operation, done inside a transaction. It returns how to answer once the transaction has
/// ended. Without a transaction the job does nothing, and its answer is the error.
type Job = Box<dyn FnOnce(Option<&mut Batch<'_, '_>>) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), RegistryError>) + Send>;

/// The thread that has the file.
#[derive(Debug)]
struct Worker {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl FileRegistry {
    /// Opens the file in a directory, and makes both where they are missing: the directory with
    /// mode 0700, the file with mode 0600. Deletes records that have expired. Blocks on the disk.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let (jobs, queue) = sync_channel(QUEUE);
        let mut store = Store::open(directory)?;
        let spawned = std::thread::Builder::new()
            .name("sessions".to_owned())
            .spawn(move || store.work(&queue));
        let thread = spawned.map_err(|source| OpenError::Io {
            path: directory.to_owned(),
            source,
        })?;
        let worker = Worker {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        Ok(Self {
            worker: Arc::new(worker),
        })
    }

    /// Has the thread do some work when the operation is polled first.
    fn act<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Batch<'_, '_>) -> Result<T, RegistryError> + Send + 'static,
    ) -> Operation<T> {
        let worker = Arc::clone(&self.worker);
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            worker.send(Box::new(move |batch| {
                let result = batch.map(work);
                Box::new(move |ended| {
                    let result = ended.and_then(|()| result.unwrap_or_else(|| Err(thread_ended())));
                    // The caller may have gone; the operation has its effect all the same.
                    drop(answer.send(result));
                })
            }))?;
            match tokio::time::timeout(TIME_LIMIT, answered).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(thread_ended()),
                Err(_) => Err(RegistryError::Unreachable(format!(
                    "the disk did not answer in {} s",
                    TIME_LIMIT.as_secs()
                ))),
            }
        })
    }
}

impl Worker {
    fn send(&self, job: Job) -> Result<(), RegistryError> {
        let jobs = self.jobs.as_ref();
        let sent = jobs.map(|jobs| jobs.try_send(job));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_))) => Err(RegistryError::Unreachable(format!(
                "{QUEUE} operations wait for the disk"
            ))),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(thread_ended()),
        }
    }
}

impl Drop for Worker {
    /// Waits until everything is on disk, so that the file can be opened again at once.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            // The panic was reported by the thread itself.
        }
    }
}

/// The file, as its thread has it.
struct Store {
    path: PathBuf,
    /// `None` after an error of the disk: redb repairs what such an error leaves when it opens.
    database: Option<Database>,
    nodes: BTreeMap<NodeId, Node>,
    /// In memory alone: what was taken of a limit ends with the process.
    pools: Pools,
    names: Names,
    /// Since when touches are in memory alone.
    touched: Option<Instant>,
    purged: Instant,
}

impl Store {
    fn open(directory: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io {
            path: directory.to_owned(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed)?;
        let path = directory.join(FILE);
        let mut store = Self {
            database: Some(open_database(&path)?),
            path,
            nodes: BTreeMap::new(),
            pools: Pools::default(),
            names: Names::default(),
            touched: None,
            purged: Instant::now(),
        };
        // The name of a new file has to be on disk as well.
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed)?;
        match store.purge() {
            Ok(()) => Ok(store),
            Err(error) => Err(OpenError::Damaged {
                path: store.path,
                reason: error.to_string(),
            }),
        }
    }

    /// Does the jobs of the queue until no handle is left.
    fn work(&mut self, queue: &Receiver<Job>) {
        loop {
            let job = match queue.recv_timeout(self.next_deadline()) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => {
                    self.maintain();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut jobs = vec![job];
            jobs.extend(queue.try_iter().take(BATCH - 1));
            self.run(jobs);
        }
        if self.touched.is_some() {
            self.run(Vec::new());
        }
    }

    /// Returns how long the thread may wait for a job.
    fn next_deadline(&self) -> Duration {
        let left = |since: Instant, interval: Duration| interval.saturating_sub(since.elapsed());
        let purge = left(self.purged, PURGE_INTERVAL);
        self.touched
            .map_or(purge, |since| purge.min(left(since, TOUCH_DELAY)))
    }

    fn maintain(&mut self) {
        if self.purged.elapsed() >= PURGE_INTERVAL {
            self.purged = Instant::now();
            // An error is met again by the next operation, whose caller reports it.
            drop(self.purge());
        } else {
            // Without a job, what is in memory alone goes to the disk.
            self.run(Vec::new());
        }
    }

    /// Deletes what has expired.
    fn purge(&mut self) -> Result<(), RegistryError> {
        let now = unix_millis();
        self.transaction(Vec::new(), |batch| {
            let is_live = |_, value: &[u8]| expiry(value).is_some_and(|expires| expires > now);
            batch.needs_sync = true;
            batch.table.retain(is_live).map_err(storage)
        })
    }

    /// Does the jobs in one transaction, and answers them when it is on disk.
    fn run(&mut self, jobs: Vec<Job>) {
        let is_flush = jobs.is_empty();
        let ended = self.transaction(jobs, |batch| {
            batch.needs_sync |= is_flush;
            Ok(())
        });
        // The jobs of a failed transaction were answered with its error.
        drop(ended);
    }

    fn transaction(
        &mut self,
        mut jobs: Vec<Job>,
        and: impl FnOnce(&mut Batch<'_, '_>) -> Result<(), RegistryError>,
    ) -> Result<(), RegistryError> {
        let mut answers = Vec::with_capacity(jobs.len());
        let ended = self.attempt(&mut jobs, &mut answers, and);
        if ended.is_err() {
            self.database = None;
        }
        answers.extend(jobs.into_iter().map(|job| job(None)));
        for answer in answers {
            answer(ended.clone());
        }
        ended
    }

    fn attempt(
        &mut self,
        jobs: &mut Vec<Job>,
        answers: &mut Vec<Answer>,
        and: impl FnOnce(&mut Batch<'_, '_>) -> Result<(), RegistryError>,
    ) -> Result<(), RegistryError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => open_database(&self.path).map_err(|error| unopened(&error))?,
        };
        let database = self.database.insert(database);
        let mut transaction = database.begin_write().map_err(storage)?;
        let (wrote, needs_sync) = {
            let mut batch = Batch {
                table: transaction.open_table(SESSIONS).map_err(storage)?,
                nodes: &mut self.nodes,
                pools: &mut self.pools,
                names: &mut self.names,
                now: unix_millis(),
                wrote: false,
                needs_sync: false,
                failed: None,
            };
            answers.extend(jobs.drain(..).map(|job| job(Some(&mut batch))));
            and(&mut batch)?;
            if let Some(error) = batch.failed {
                return Err(error);
            }
            (batch.wrote, batch.needs_sync)
        };
        if !wrote && !needs_sync {
            return transaction.abort().map_err(storage);
        }
        if !needs_sync {
            transaction.set_durability(Durability::None).map_err(storage)?;
        }
        transaction.commit().map_err(storage)?;
        self.touched = match needs_sync {
            true => None,
            false => self.touched.or_else(|| Some(Instant::now())),
        };
        Ok(())
    }
}

/// One transaction under way.
struct Batch<'transaction, 'store> {
    table: Table<'transaction, u128, &'static [u8]>,
    nodes: &'store mut BTreeMap<NodeId, Node>,
    pools: &'store mut Pools,
    names: &'store mut Names,
    /// Milliseconds since the epoch of Unix.
    now: u64,
    wrote: bool,
    /// Whether an operation may be answered only when it is on disk.
    needs_sync: bool,
    /// An error of the disk, which ends the whole transaction.
    failed: Option<RegistryError>,
}

impl Batch<'_, '_> {
    /// Returns what is stored of a session and has not expired.
    fn stored(&mut self, session: Uuid) -> Result<Option<SessionRecord>, RegistryError> {
        Ok(self.entry(session)?.map(|(_, record)| record))
    }

    /// Returns the same, with how long it stays if it is not used.
    fn entry(&mut self, session: Uuid) -> Result<Option<(Duration, SessionRecord)>, RegistryError> {
        let found = match self.table.get(session.as_u128()) {
            Ok(found) => found,
            Err(error) => {
                let error = storage(error);
                self.failed = Some(error.clone());
                return Err(error);
            }
        };
        let Some(value) = found else {
            return Ok(None);
        };
        let Some((expires, record)) = value.value().split_first_chunk() else {
            return Err(RegistryError::Unreadable("it has no time of expiry".to_owned()));
        };
        let left = u64::from_be_bytes(*expires).saturating_sub(self.now);
        if left == 0 {
            return Ok(None);
        }
        Ok(Some((
            Duration::from_millis(left),
            SessionRecord::decode(record)?,
        )))
    }

    fn put(&mut self, record: &SessionRecord, idle: Duration) -> Result<(), RegistryError> {
        let text = record.encode()?;
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut value = self.now.saturating_add(idle).to_be_bytes().to_vec();
        value.extend_from_slice(text.as_bytes());
        let done = self.table.insert(record.session.as_u128(), value.as_slice());
        let done = done.map(drop).map_err(storage);
        self.note(done)
    }

    fn delete(&mut self, session: Uuid) -> Result<(), RegistryError> {
        let done = self.table.remove(session.as_u128()).map(drop).map_err(storage);
        self.note(done)
    }

    fn note(&mut self, done: Result<(), RegistryError>) -> Result<(), RegistryError> {
        self.wrote = true;
        if let Err(error) = &done {
            self.failed = Some(error.clone());
        }
        done
    }

    fn locate(&self, record: SessionRecord) -> Located {
        let node = record.owner.as_ref().and_then(|owner| self.nodes.get(owner));
        let owner = node.map_or(Owner::Gone, |node| Owner::Living(node.clone()));
        Located { record, owner }
    }

    fn create(&mut self, record: &SessionRecord, idle: Duration) -> Result<Created, RegistryError> {
        let stored = self.stored(record.session)?;
        match stored {
            Some(stored) if !rules::may_replace(Some(&stored), record) => {
                Ok(Created::Exists(Box::new(self.locate(stored))))
            }
            Some(_) | None => {
                self.put(record, idle)?;
                self.needs_sync = true;
                Ok(Created::Created)
            }
        }
    }

    fn take_over(
        &mut self,
        session: Uuid,
        seen: u64,
        by: &NodeId,
        idle: Duration,
    ) -> Result<TakeOver, RegistryError> {
        let Some(mut record) = self.stored(session)? else {
            return Ok(TakeOver::Unknown);
        };
        let owner_lives = record
            .owner
            .as_ref()
            .is_some_and(|owner| self.nodes.contains_key(owner));
        if !rules::may_take_over(&record, seen, by, owner_lives) {
            return Ok(TakeOver::Lost(Box::new(self.locate(record))));
        }
        record.owner = Some(by.clone());
        record.epoch += 1;
        self.put(&record, idle)?;
        self.needs_sync = true;
        Ok(TakeOver::Won(Box::new(record)))
    }

    fn update(&mut self, claim: &Claim, change: Change, idle: Duration) -> Result<Updated, RegistryError> {
        let stored = self.stored(claim.session)?;
        let mut record = match held(stored, claim) {
            Ok(record) => record,
            Err(updated) => return Ok(updated),
        };
        match change {
            Change::Touch(at) => record.last_active = at,
            Change::State(state) => {
                record.state = state;
                self.needs_sync = true;
            }
        }
        self.put(&record, idle)?;
        Ok(Updated::Done)
    }

    fn release(&mut self, claim: &Claim) -> Result<Updated, RegistryError> {
        let (left, stored) = self.entry(claim.session)?.unzip();
        if rules::standing(stored.as_ref(), claim) == Standing::Released {
            return Ok(Updated::Done);
        }
        let mut record = match held(stored, claim) {
            Ok(record) => record,
            Err(updated) => return Ok(updated),
        };
        record.owner = None;
        self.put(&record, left.unwrap_or_default())?;
        self.needs_sync = true;
        Ok(Updated::Done)
    }

    fn remove(&mut self, claim: &Claim) -> Result<Updated, RegistryError> {
        let stored = self.stored(claim.session)?;
        match held(stored, claim) {
            Ok(_) => {
                self.delete(claim.session)?;
                self.needs_sync = true;
                Ok(Updated::Done)
            }
            Err(updated) => Ok(updated),
        }
    }
}

/// Returns the record of a claim that holds, or what holds instead.
fn held(stored: Option<SessionRecord>, claim: &Claim) -> Result<SessionRecord, Updated> {
    match rules::standing(stored.as_ref(), claim) {
        Standing::Holds => stored.ok_or(Updated::Unknown),
        Standing::Released => Err(Updated::Superseded(claim.epoch)),
        Standing::Superseded(epoch) => Err(Updated::Superseded(epoch)),
        Standing::Unknown => Err(Updated::Unknown),
    }
}

fn open_database(path: &Path) -> Result<Database, OpenError> {
    let failed = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    // redb would make the file with the mode that the umask leaves.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    file.set_permissions(Permissions::from_mode(0o600))
        .map_err(failed)?;
    let opened = Database::builder().set_cache_size(CACHE_BYTES).create_file(file);
    opened.map_err(|error| {
        let path = path.to_owned();
        if let DatabaseError::DatabaseAlreadyOpen = error {
            return OpenError::InUse { path };
        }
        let reason = error.to_string();
        if let DatabaseError::Storage(StorageError::Io(source)) = error
            && source.kind() != ErrorKind::InvalidData
        {
            return OpenError::Io { path, source };
        }
        OpenError::Damaged { path, reason }
    })
}

/// Returns the time of expiry that a value begins with.
fn expiry(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn thread_ended() -> RegistryError {
    RegistryError::Unreachable("its thread has ended".to_owned())
}

fn unopened(error: &OpenError) -> RegistryError {
    match error {
        OpenError::Io { source, .. } => disk(source),
        OpenError::InUse { .. } | OpenError::Damaged { .. } => RegistryError::Unreachable(error.to_string()),
    }
}

/// Returns what an error of redb means to the caller.
fn storage(error: impl Into<redb::Error>) -> RegistryError {
    let error = error.into();
    if let redb::Error::Io(error) = error {
        return disk(&error);
    }
    RegistryError::Unreachable(error.to_string())
}

fn disk(error: &io::Error) -> RegistryError {
    let is_full = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    );
    match is_full {
        true => RegistryError::Full(error.to_string()),
        false => RegistryError::Unreachable(error.to_string()),
    }
}

impl Registry for FileRegistry {
    fn join(&self, node: &Node) -> Operation<()> {
        let node = node.clone();
        self.act(move |batch| {
            batch.nodes.insert(node.id.clone(), node);
            Ok(())
        })
    }

    fn renew(&self, node: &NodeId) -> Operation<Renewed> {
        let node = node.clone();
        self.act(move |batch| match batch.nodes.contains_key(&node) {
            true => Ok(Renewed::Renewed),
            false => Ok(Renewed::Unknown),
        })
    }

    fn leave(&self, node: &NodeId) -> Operation<()> {
        let node = node.clone();
        self.act(move |batch| {
            batch.nodes.remove(&node);
            Ok(())
        })
    }

    fn nodes(&self) -> Operation<Vec<NodeStatus>> {
        self.act(|batch| {
            let nodes = batch.nodes.values().map(|node| NodeStatus {
                node: node.clone(),
                lease: LEASE,
            });
            Ok(nodes.collect())
        })
    }

    fn create(&self, record: &SessionRecord, idle: Duration) -> Operation<Created> {
        let record = record.clone();
        self.act(move |batch| batch.create(&record, idle))
    }

    fn look_up(&self, session: Uuid) -> Operation<Option<Located>> {
        self.act(move |batch| Ok(batch.stored(session)?.map(|record| batch.locate(record))))
    }

    fn take_over(&self, session: Uuid, seen: u64, by: &NodeId, idle: Duration) -> Operation<TakeOver> {
        let by = by.clone();
        self.act(move |batch| batch.take_over(session, seen, &by, idle))
    }

    fn update(&self, claim: &Claim, change: Change, idle: Duration) -> Operation<Updated> {
        let claim = claim.clone();
        self.act(move |batch| batch.update(&claim, change, idle))
    }

    fn touch_many(&self, touches: Vec<Touch>) -> Operation<Vec<Updated>> {
        self.act(move |batch| {
            let touched = touches
                .iter()
                .map(|touch| batch.update(&touch.claim, Change::Touch(touch.at), touch.idle));
            touched.collect()
        })
    }

    fn release(&self, claim: &Claim) -> Operation<Updated> {
        let claim = claim.clone();
        self.act(move |batch| batch.release(&claim))
    }

    fn remove(&self, claim: &Claim) -> Operation<Updated> {
        let claim = claim.clone();
        self.act(move |batch| batch.remove(&claim))
    }

    fn lease_tokens(&self, bucket: &str, demand: TokenDemand) -> Operation<TokenGrant> {
        let bucket = bucket.to_owned();
        self.act(move |batch| Ok(batch.pools.take_tokens(batch.now * 1000, &bucket, demand)))
    }

    fn lease_slots(&self, pool: &str, node: &NodeId, demand: SlotDemand) -> Operation<SlotGrant> {
        let (pool, node) = (pool.to_owned(), node.clone());
        self.act(move |batch| {
            let Batch { pools, nodes, .. } = batch;
            Ok(pools.set_slots(&pool, &node, |node| nodes.contains_key(node), demand))
        })
    }

    fn hold(&self, name: &str, node: &NodeId, ttl: Duration) -> Operation<NodeId> {
        let (name, node) = (name.to_owned(), node.clone());
        self.act(move |batch| {
            let Batch {
                names, nodes, now, ..
            } = batch;
            let expires = now.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            Ok(names.hold(*now, &name, &node, expires, |node| nodes.contains_key(node)))
        })
    }

    /// One process at a time uses a file, so that no lease of an earlier one lasts.
    fn lease_name(&self, name: &str, node: &NodeId, _has_it: bool) -> Operation<NameLease> {
        let (name, node) = (name.to_owned(), node.clone());
        self.act(move |batch| {
            let expires = batch.now.saturating_add(LEASE.as_millis() as u64);
            Ok(NameLease::Held(
                batch.names.lease(batch.now, &name, &node, expires),
            ))
        })
    }

    fn holder(&self, name: &str) -> Operation<Option<NodeId>> {
        let name = name.to_owned();
        self.act(move |batch| Ok(batch.names.holder(batch.now, &name)))
    }

    fn let_go(&self, name: &str, node: &NodeId) -> Operation<()> {
        let (name, node) = (name.to_owned(), node.clone());
        self.act(move |batch| {
            batch.names.let_go(&name, &node);
            Ok(())
        })
    }
}
