//! A sink for lines that never makes its callers wait.
//!
//! Callers append to one bounded buffer; a thread of its own takes everything that has gathered and
//! writes it at once, so a full disk or a reader that stopped reading stalls that thread and
//! nothing else. What does not fit is refused and counted. The caller makes sure that each is one
//! line. `flush` returns whether all lines were written within a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// A buffer that grew beyond this in a burst is given back once the burst is written.
const KEPT_CAPACITY: usize = 256 * 1024;

/// How long an output that would block (a non-blocking terminal) is left alone.
const NOT_NOW: Duration = Duration::from_millis(10);

/// What went wrong with a sink since the last report.
#[derive(Debug)]
pub struct WriteProblem<'a> {
    /// The failure of the last write, or none when lines were lost because the destination was
    /// slow.
    pub error: Option<&'a io::Error>,
    /// Lines lost since the sink began.
    pub lost: u64,
}

/// How a sink behaves; the defaults suit logs and audit.
pub struct Options {
    /// The name of the thread.
    pub name: &'static str,
    /// Bytes and lines that may wait, those being written included.
    pub max_bytes: usize,
    pub max_lines: usize,
    /// After a write, the thread gathers for this long before the next: under steady load callers
    /// then wake no thread. A line after a quiet time is written at once.
    pub gather: Duration,
    /// The pause after a failed write.
    pub retry: Duration,
    /// A problem is reported once in this time at most.
    pub report_every: Duration,
    /// Called on the sink's own thread.
    pub on_problem: Box<dyn FnMut(WriteProblem<'_>) + Send>,
    /// Makes the lines of what was pushed, where that is work which callers are to be spared.
    pub finish: Option<Finish>,
}

/// Appends the lines of a batch, made from the parts that were pushed, and returns how many lines
/// could not be made. Called on the sink's own thread, once for each batch, in the order of the
/// pushes.
pub type Finish = Box<dyn FnMut(&[u8], &mut Vec<u8>) -> u64 + Send>;

impl Options {
    pub fn named(name: &'static str) -> Self {
        Self {
            name,
            max_bytes: 8 * 1024 * 1024,
            max_lines: 64 * 1024,
            gather: Duration::from_millis(5),
            retry: Duration::from_secs(1),
            report_every: Duration::from_secs(60),
            on_problem: Box::new(move |problem| match problem.error {
                Some(error) => {
                    tracing::warn!(sink = name, %error, lost = problem.lost, "lines cannot be written")
                }
                None => tracing::warn!(
                    sink = name,
                    lost = problem.lost,
                    "lines were lost, the reader is too slow"
                ),
            }),
            finish: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The callers' end of a sink. Clones share the sink; when the last is dropped, the thread writes
/// what it has and ends. Dropping does not wait: `flush` first where it matters.
#[derive(Debug, Clone)]
pub struct LineSink {
    owner: Arc<Owner>,
}

/// Closes the sink when the last caller has gone; the thread holds only `SinkShared`.
#[derive(Debug)]
struct Owner {
    shared: Arc<SinkShared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        self.shared.hurry(&mut state);
    }
}

impl LineSink {
    /// Appends to a file, which is created readable for owner and group only.
    pub fn file(path: &Path, options: Options) -> io::Result<Self> {
        let file = append_to(path)?;
        Self::start(
            SinkOutput::File {
                path: path.to_owned(),
                file,
            },
            options,
        )
    }

    /// Writes to stdout by a descriptor of its own: a stuck reader then holds no lock that other
    /// code needs.
    pub fn stdout(options: Options) -> io::Result<Self> {
        let own = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Self::over(Box::new(own), options)
    }

    /// Writes to stderr, likewise.
    pub fn stderr(options: Options) -> io::Result<Self> {
        let own = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        Self::over(Box::new(own), options)
    }

    pub fn over(writer: Box<dyn Write + Send>, options: Options) -> io::Result<Self> {
        Self::start(SinkOutput::Stream(writer), options)
    }

    fn start(output: SinkOutput, options: Options) -> io::Result<Self> {
        let shared = Arc::new(SinkShared {
            state: Mutex::new(SinkState::default()),
            work: Condvar::new(),
            progress: Condvar::new(),
            max_bytes: options.max_bytes,
            max_lines: options.max_lines,
            lost: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            can_reopen: matches!(output, SinkOutput::File { .. }),
        });
        let thread = WriterThread {
            shared: Arc::clone(&shared),
            output,
            options,
            reported_lost: 0,
            reported_at: None,
        };
        thread::Builder::new()
            .name(thread.options.name.to_owned())
            .spawn(move || thread.run())?;
        Ok(Self {
            owner: Arc::new(Owner { shared }),
        })
    }

    /// Takes one line; its line break is added where it is missing. False: there was no room, and
    /// the line is lost.
    pub fn push(&self, line: &[u8]) -> bool {
        let line_break: &[u8] = if line.last() == Some(&b'\n') { b"" } else { b"\n" };
        self.push_parts(&[line, line_break])
    }

    /// Takes what one line is made of, for a sink that finishes its lines; see [`Options::finish`].
    /// False: there was no room, and the line is lost.
    pub fn push_parts(&self, parts: &[&[u8]]) -> bool {
        let shared = &*self.owner.shared;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut state = shared.lock();
        let bytes = state.waiting_bytes() + length;
        if bytes > shared.max_bytes || state.lines + state.lines_in_hand >= shared.max_lines {
            drop(state);
            shared.lost.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        for part in parts {
            state.buffer.extend_from_slice(part);
        }
        state.lines += 1;
        state.pushed += 1;
        let is_half_full = bytes > shared.max_bytes / 2 || state.lines > shared.max_lines / 2;
        match state.thread {
            Thread::Asleep => shared.hurry(&mut state),
            Thread::Gathering if is_half_full => shared.hurry(&mut state),
            Thread::Gathering | Thread::Awake => {}
        }
        true
    }

    /// Waits until everything pushed so far (and a reopening asked for) is done. False: not within
    /// `timeout`.
    pub fn flush(&self, timeout: Duration) -> bool {
        let shared = &*self.owner.shared;
        let mut state = shared.lock();
        let (target, reopens) = (state.pushed, state.reopens_asked);
        let is_done = |state: &SinkState| state.finished >= target && state.reopens_done >= reopens;
        if is_done(&state) {
            return true;
        }
        shared.hurry(&mut state);
        shared
            .progress
            .wait_while_for(&mut state, |state| !is_done(state), timeout);
        is_done(&state)
    }

    /// Opens the file anew before the next write, after an operator has moved it away. Returns
    /// false if this is no file.
    pub fn reopen(&self) -> bool {
        let shared = &*self.owner.shared;
        if shared.can_reopen {
            let mut state = shared.lock();
            state.reopens_asked += 1;
            shared.hurry(&mut state);
        }
        shared.can_reopen
    }

    /// Returns the number of lines that were lost: the buffer was full, or the output is closed.
    pub fn lost(&self) -> u64 {
        self.owner.shared.lost.load(Ordering::Relaxed)
    }

    /// Returns whether lines cannot be written at the moment: the last write failed, or half of the
    /// buffer is in use.
    pub fn is_blocked(&self) -> bool {
        let shared = &*self.owner.shared;
        if shared.is_failing.load(Ordering::Relaxed) {
            return true;
        }
        let state = shared.lock();
        state.waiting_bytes() > shared.max_bytes / 2
            || state.lines + state.lines_in_hand > shared.max_lines / 2
    }

    /// Returns the number of writes that failed.
    pub fn errors(&self) -> u64 {
        self.owner.shared.errors.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct SinkShared {
    state: Mutex<SinkState>,
    /// The thread waits here.
    work: Condvar,
    /// Callers of `flush` wait here.
    progress: Condvar,
    max_bytes: usize,
    max_lines: usize,
    lost: AtomicU64,
    errors: AtomicU64,
    /// The last write failed.
    is_failing: AtomicBool,
    can_reopen: bool,
}

#[derive(Debug, Default)]
struct SinkState {
    buffer: Vec<u8>,
    lines: usize,
    /// What the thread has taken and not finished.
    bytes_in_hand: usize,
    lines_in_hand: usize,
    /// Lines taken in, and lines written or given up, ever.
    pushed: u64,
    finished: u64,
    thread: Thread,
    /// Ends a pause of the thread early.
    is_urgent: bool,
    reopens_asked: u64,
    reopens_done: u64,
    is_closed: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// Waits for a first line, and must be woken.
    Asleep,
    /// Lets lines gather, and comes back by itself.
    Gathering,
    #[default]
    Awake,
}

impl SinkState {
    fn waiting_bytes(&self) -> usize {
        self.buffer.len() + self.bytes_in_hand
    }

    fn wants_reopen(&self) -> bool {
        self.reopens_done < self.reopens_asked
    }
}

impl SinkShared {
    /// Nothing under the lock can be left half done, so a panic elsewhere does not spoil the state.
    fn lock(&self) -> MutexGuard<'_, SinkState> {
        self.state.lock()
    }

    fn hurry(&self, state: &mut SinkState) {
        state.is_urgent = true;
        state.thread = Thread::Awake;
        self.work.notify_one();
    }
}

enum SinkOutput {
    File { path: PathBuf, file: File },
    Stream(Box<dyn Write + Send>),
}

impl SinkOutput {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::File { file, .. } => file,
            Self::Stream(writer) => writer,
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        match self {
            Self::File { path, file } => {
                *file = append_to(path)?;
                Ok(())
            }
            Self::Stream(_) => Ok(()),
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)
}

/// The state of the writer thread.
struct WriterThread {
    shared: Arc<SinkShared>,
    output: SinkOutput,
    options: Options,
    reported_lost: u64,
    reported_at: Option<Instant>,
}

impl WriterThread {
    fn run(mut self) {
        let (mut batch, mut lines) = (Vec::new(), Vec::new());
        while self.take(&mut batch) {
            match &mut self.options.finish {
                None => mem::swap(&mut batch, &mut lines),
                Some(finish) => {
                    let failed = finish(&batch, &mut lines);
                    self.shared.lost.fetch_add(failed, Ordering::Relaxed);
                    self.shared.lock().bytes_in_hand = batch.len().max(lines.len());
                }
            }
            self.write_out(&lines);
            for buffer in [&mut batch, &mut lines] {
                buffer.clear();
                buffer.shrink_to(KEPT_CAPACITY);
            }
            self.finish_batch();
            self.report(None);
            self.pause(self.options.gather);
        }
    }

    /// Waits for work and takes all of it. False: the sink is closed and empty.
    fn take(&mut self, batch: &mut Vec<u8>) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        while state.buffer.is_empty() && !state.wants_reopen() {
            if state.is_closed {
                return false;
            }
            state.thread = Thread::Asleep;
            shared.work.wait(&mut state);
        }
        state.thread = Thread::Awake;
        state.is_urgent = false;
        mem::swap(&mut state.buffer, batch);
        state.bytes_in_hand = batch.len();
        state.lines_in_hand = mem::take(&mut state.lines);
        true
    }

    /// Wakes callers of `flush`: the batch is done with.
    fn finish_batch(&self) {
        let mut state = self.shared.lock();
        state.finished += state.lines_in_hand as u64;
        state.lines_in_hand = 0;
        state.bytes_in_hand = 0;
        self.shared.progress.notify_all();
    }

    /// Writes the batch, however long it takes; gives up only when the output is closed or all
    /// handles are gone.
    fn write_out(&mut self, batch: &[u8]) {
        let mut written = 0;
        loop {
            if self.reopen_if_asked() {
                // A line that was begun in the old file is written whole in the new one.
                written = memchr::memrchr(b'\n', &batch[..written]).map_or(0, |at| at + 1);
            }
            let Err(error) = self.write_some(batch, &mut written) else {
                self.shared.is_failing.store(false, Ordering::Relaxed);
                return;
            };
            if error.kind() == io::ErrorKind::WouldBlock {
                if self.pause(NOT_NOW) {
                    continue;
                }
            } else {
                self.shared.is_failing.store(true, Ordering::Relaxed);
                self.shared.errors.fetch_add(1, Ordering::Relaxed);
                self.report(Some(&error));
                // The reader of a broken pipe never comes back, so keeping the lines would only
                // cost memory.
                if error.kind() != io::ErrorKind::BrokenPipe && self.pause(self.options.retry) {
                    continue;
                }
            }
            let lost = memchr::memchr_iter(b'\n', &batch[written..]).count();
            self.shared.lost.fetch_add(lost as u64, Ordering::Relaxed);
            return;
        }
    }

    fn write_some(&mut self, batch: &[u8], written: &mut usize) -> io::Result<()> {
        let writer = self.output.writer();
        while *written < batch.len() {
            match writer.write(&batch[*written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => *written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        writer.flush()
    }

    fn reopen_if_asked(&mut self) -> bool {
        let asked = {
            let state = self.shared.lock();
            if !state.wants_reopen() {
                return false;
            }
            state.reopens_asked
        };
        let outcome = self.output.reopen();
        self.shared.lock().reopens_done = asked;
        match outcome {
            Ok(()) => true,
            Err(error) => {
                // The old file is still open: lines in a file that was moved away beat lines
                // nowhere.
                self.shared.errors.fetch_add(1, Ordering::Relaxed);
                self.report(Some(&error));
                false
            }
        }
    }

    /// Waits, unless a caller is in a hurry. Returns false if the sink is closed.
    fn pause(&self, time: Duration) -> bool {
        let mut state = self.shared.lock();
        if !state.is_urgent && !state.is_closed {
            state.thread = Thread::Gathering;
            self.shared
                .work
                .wait_while_for(&mut state, |state| !state.is_urgent, time);
            state.thread = Thread::Awake;
        }
        state.is_urgent = false;
        !state.is_closed
    }

    fn report(&mut self, error: Option<&io::Error>) {
        let lost = self.shared.lost.load(Ordering::Relaxed);
        if error.is_none() && lost == self.reported_lost {
            return;
        }
        let now = Instant::now();
        if self
            .reported_at
            .is_some_and(|last| now.duration_since(last) < self.options.report_every)
        {
            return;
        }
        self.reported_at = Some(now);
        self.reported_lost = lost;
        (self.options.on_problem)(WriteProblem { error, lost });
    }
}

#[cfg(test)]
mod tests;
