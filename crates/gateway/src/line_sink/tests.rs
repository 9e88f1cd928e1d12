use super::*;
use std::fs;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

const SOON: Duration = Duration::from_secs(20);
const NOW: Duration = Duration::ZERO;

/// Keeps what is written. Before each write it reports that it began, and waits for its result.
struct Gate {
    began: SyncSender<()>,
    verdicts: Receiver<io::Result<usize>>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.began.send(()).unwrap();
        let count = self.verdicts.recv().unwrap()?.min(bytes.len());
        self.written.lock().extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Keeper {
    began: Receiver<()>,
    verdicts: SyncSender<io::Result<usize>>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Keeper {
    fn text(&self) -> String {
        String::from_utf8(self.written.lock().clone()).unwrap()
    }

    fn let_pass(&self) {
        self.verdicts.send(Ok(usize::MAX)).unwrap();
    }
}

fn gate() -> (Box<Gate>, Keeper) {
    let (began, has_begun) = sync_channel(100);
    let (verdicts, verdict) = sync_channel(100);
    let written = Arc::new(Mutex::new(Vec::new()));
    let gate = Gate {
        began,
        verdicts: verdict,
        written: Arc::clone(&written),
    };
    let keeper = Keeper {
        began: has_begun,
        verdicts,
        written,
    };
    (Box::new(gate), keeper)
}

fn options() -> Options {
    Options {
        on_problem: Box::new(|_| {}),
        ..Options::named("test-sink")
    }
}

#[test]
fn stuck_writer_blocks_no_caller_and_losses_are_counted() {
    let (gate, keeper) = gate();
    let sink = LineSink::over(
        gate,
        Options {
            max_lines: 4,
            ..options()
        },
    )
    .unwrap();
    assert!(sink.push(b"0"));
    keeper.began.recv().unwrap();
    let accepted = (1..100)
        .filter(|number| sink.push(number.to_string().as_bytes()))
        .count();
    assert_eq!(accepted, 3, "the line in the writer's hand counts too");
    assert_eq!(sink.lost(), 96);
    assert!(!sink.flush(NOW), "nothing is written yet");
    keeper.let_pass();
    keeper.let_pass();
    assert!(sink.flush(SOON));
    assert_eq!(keeper.text(), "0\n1\n2\n3\n");
    assert!(sink.push(b"again"), "there is room again");
    keeper.let_pass();
    assert!(sink.flush(SOON));
}

#[test]
fn waiting_bytes_are_bounded() {
    let (gate, keeper) = gate();
    let sink = LineSink::over(
        gate,
        Options {
            max_bytes: 20,
            ..options()
        },
    )
    .unwrap();
    assert!(!sink.push(&[b'x'; 20]), "a line that can never fit is refused");
    assert!(sink.push(b"123456789"));
    keeper.began.recv().unwrap();
    assert!(sink.push(b"123456789"));
    assert!(!sink.push(b""));
    assert_eq!(sink.lost(), 2);
    keeper.let_pass();
    keeper.let_pass();
    assert!(sink.flush(SOON));
}

#[test]
fn lines_gathered_during_a_write_go_out_in_one_write_and_in_order() {
    let (gate, keeper) = gate();
    let sink = LineSink::over(gate, options()).unwrap();
    sink.push(b"first\n");
    keeper.began.recv().unwrap();
    let mut expected = String::from("first\n");
    for number in 0..1000 {
        assert!(sink.push(format!("{number}").as_bytes()));
        expected += &format!("{number}\n");
    }
    keeper.let_pass();
    keeper.let_pass();
    assert!(sink.flush(SOON));
    assert_eq!(keeper.text(), expected);
    assert_eq!(
        keeper.began.try_iter().count(),
        1,
        "a thousand lines, one more write"
    );
}

#[test]
fn every_line_of_many_threads_arrives_once_and_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    let sink = LineSink::file(&path, options()).unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let sink = sink.clone();
            scope.spawn(move || {
                for number in 0..1000 {
                    assert!(sink.push(format!("{thread} {number}").as_bytes()));
                }
            });
        }
    });
    assert!(sink.flush(SOON));
    let text = fs::read_to_string(&path).unwrap();
    for thread in 0..4 {
        let of_thread = text
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("{thread} ")));
        assert!(of_thread.map(|number| number.parse::<u32>().unwrap()).eq(0..1000));
    }
    assert_eq!(text.lines().count(), 4000);
}

#[test]
fn failed_write_is_retried_from_where_it_stopped_and_reported_once() {
    let (gate, keeper) = gate();
    let (reporter, reports) = sync_channel(100);
    let sink = LineSink::over(
        gate,
        Options {
            retry: Duration::ZERO,
            on_problem: Box::new(move |problem| reporter.send(problem.error.map(io::Error::kind)).unwrap()),
            ..options()
        },
    )
    .unwrap();
    keeper.verdicts.send(Ok(3)).unwrap();
    keeper
        .verdicts
        .send(Err(io::ErrorKind::StorageFull.into()))
        .unwrap();
    keeper
        .verdicts
        .send(Err(io::ErrorKind::StorageFull.into()))
        .unwrap();
    keeper
        .verdicts
        .send(Err(io::ErrorKind::Interrupted.into()))
        .unwrap();
    keeper.let_pass();
    sink.push(b"whole line");
    assert!(sink.flush(SOON));
    assert_eq!(keeper.text(), "whole line\n");
    assert_eq!((sink.errors(), sink.lost()), (2, 0));
    assert_eq!(
        reports.try_iter().collect::<Vec<_>>(),
        [Some(io::ErrorKind::StorageFull)]
    );
}

#[test]
fn a_flush_tries_again_without_waiting_for_the_pause_to_end() {
    let (gate, keeper) = gate();
    let sink = LineSink::over(
        gate,
        Options {
            retry: Duration::from_secs(3600),
            ..options()
        },
    )
    .unwrap();
    sink.push(b"line");
    keeper.began.recv().unwrap();
    keeper
        .verdicts
        .send(Err(io::ErrorKind::StorageFull.into()))
        .unwrap();
    keeper.let_pass();
    assert!(sink.flush(SOON));
    assert_eq!(keeper.text(), "line\n");
}

#[test]
fn lines_for_a_reader_that_has_gone_are_counted_as_lost() {
    let (gate, keeper) = gate();
    let sink = LineSink::over(gate, options()).unwrap();
    keeper
        .verdicts
        .send(Err(io::ErrorKind::BrokenPipe.into()))
        .unwrap();
    sink.push(b"line");
    assert!(sink.flush(SOON));
    assert_eq!((sink.errors(), sink.lost()), (1, 1));
}

#[test]
fn losses_are_reported_when_the_writer_moves_again() {
    let (gate, keeper) = gate();
    let (reporter, reports) = sync_channel(100);
    let sink = LineSink::over(
        gate,
        Options {
            max_lines: 1,
            on_problem: Box::new(move |problem| reporter.send(problem.lost).unwrap()),
            ..options()
        },
    )
    .unwrap();
    sink.push(b"kept");
    keeper.began.recv().unwrap();
    sink.push(b"lost");
    keeper.let_pass();
    assert_eq!(reports.recv_timeout(SOON), Ok(1));
}

#[test]
fn a_file_that_was_moved_away_is_opened_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("now"), directory.path().join("before"));
    let sink = LineSink::file(&path, options()).unwrap();
    sink.push(b"old");
    assert!(sink.flush(SOON));
    fs::rename(&path, &moved).unwrap();
    assert!(sink.reopen());
    assert!(sink.flush(SOON));
    sink.push(b"new");
    assert!(sink.flush(SOON));
    assert_eq!(fs::read_to_string(&moved).unwrap(), "old\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
}

#[test]
fn a_file_is_appended_to_and_closed_to_strangers() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    for line in ["one", "two"] {
        let sink = LineSink::file(&path, options()).unwrap();
        sink.push(line.as_bytes());
        assert!(sink.flush(SOON));
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o027, 0);
}

#[test]
fn pushed_lines_are_written_after_the_last_handle_is_dropped() {
    let (gate, keeper) = gate();
    let sink = LineSink::over(gate, options()).unwrap();
    sink.push(b"first");
    keeper.began.recv().unwrap();
    sink.push(b"last");
    drop(sink);
    keeper.let_pass();
    keeper.let_pass();
    // The gate, and with it this sender, is dropped when the thread ends.
    while keeper.began.recv().is_ok() {}
    assert_eq!(keeper.text(), "first\nlast\n");
}

#[test]
fn only_a_file_can_be_reopened() {
    let sink = LineSink::over(Box::new(io::sink()), options()).unwrap();
    assert!(!sink.reopen());
}
