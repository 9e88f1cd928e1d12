//! The terminal of `serve`: what happens, shown to a person as it happens.
//!
//! Tasks and log events send what happened to a thread, which shows it through the [`View`]. A
//! terminal that is slow or stopped holds up that thread alone; what does not fit its queue is
//! dropped and counted. Without a terminal none of this exists.

mod events;
pub(crate) mod text;
mod view;

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use events::Events;
pub(crate) use view::{Banner, Destination, Happening, Look, State, Wanted};

use view::View;

/// How many happenings may wait for the terminal.
const WAITING: usize = 4096;
/// How many are shown at once.
const AT_ONCE: usize = 256;
/// How often a region that moves is written anew.
const FRAME: Duration = Duration::from_millis(100);
/// How long the end of the program waits for a slow terminal.
const LAST_LINES: Duration = Duration::from_secs(2);
/// The width where the terminal does not tell its own.
const USUAL_COLUMNS: usize = 80;

enum Message {
    Happened(Happening),
    /// All lines so far are wanted, and no more will come.
    End(SyncSender<()>),
}

/// The terminal, for those that have something to show.
#[derive(Debug, Clone)]
pub(crate) struct Terminal {
    queue: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl Terminal {
    /// Starts the thread that writes to stderr.
    pub(crate) fn start(look: Look, wanted: Wanted) -> io::Result<Self> {
        let (queue, messages) = sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        thread::Builder::new()
            .name("terminal".to_owned())
            .spawn(move || run(View::new(look, wanted), &messages, &counted))?;
        Ok(Self { queue, dropped })
    }

    /// Shows what happened, if there is room for it.
    pub(crate) fn show(&self, happening: Happening) {
        if self.queue.try_send(Message::Happened(happening)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything is written. Returns `false` if the terminal does not take it.
    pub(crate) fn finish(&self) -> bool {
        let (done, finished) = sync_channel(1);
        match self.queue.try_send(Message::End(done)) {
            Ok(()) => finished.recv_timeout(LAST_LINES).is_ok(),
            // The thread has written everything and ended, or its queue is full.
            Err(TrySendError::Disconnected(_)) => true,
            Err(TrySendError::Full(_)) => false,
        }
    }
}

/// Shows what comes until the end comes.
fn run(mut view: View, messages: &Receiver<Message>, dropped: &AtomicU64) {
    let began = Instant::now();
    let mut reported = 0;
    loop {
        let first = match view.is_moving() {
            true => messages.recv_timeout(FRAME),
            false => messages.recv().map_err(RecvTimeoutError::from),
        };
        let columns = columns();
        let clock = clock();
        let mut ended = None;
        match first {
            Ok(first) => {
                let more = messages.try_iter().take(AT_ONCE);
                for message in std::iter::once(first).chain(more) {
                    match message {
                        Message::Happened(happening) => {
                            view.handle(happening, began.elapsed(), &clock, columns);
                        }
                        Message::End(done) => ended = Some(done),
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let lost = dropped.load(Ordering::Relaxed);
        if lost > reported {
            let lines = Happening::Lost(lost - reported);
            view.handle(lines, began.elapsed(), &clock, columns);
            reported = lost;
        }
        view.handle_time(began.elapsed(), &clock, columns);
        let text = match ended {
            Some(_) => view.finish(columns),
            None => view.take_output(columns),
        };
        // A terminal that is gone has no reader.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        if let Some(done) = ended {
            let _ = done.send(());
            return;
        }
    }
}

/// Returns the width of the terminal, which may change at any time.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok();
    let columns = size
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0);
    columns.unwrap_or(USUAL_COLUMNS)
}

/// Returns the local time of day.
fn clock() -> String {
    chrono::Local::now().format("%H:%M:%S").to_string()
}
