//! The file of sessions against SIGKILL, a second process, a full disk and foreign files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use cluster::file::{FILE, OpenError};
use cluster::{
    Created, FileRegistry, Hello, Node, NodeId, Owner, Registry, RegistryError, SessionRecord, State,
    TakeOver, WallTime,
};
use uuid::Uuid;

/// How often the writing process is killed.
const KILLS: u64 = 15;

fn start(directory: &Path, seed: u64) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cluster-test-process"))
        .arg(directory)
        .arg(seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    (child, BufReader::new(stdout))
}

fn record(node: &NodeId) -> SessionRecord {
    SessionRecord {
        session: Uuid::new_v4(),
        destination: "files".to_owned(),
        principal: "alice".to_owned(),
        owner: Some(node.clone()),
        epoch: 1,
        hello: Hello::Implicit("2025-06-18".to_owned()),
        state: State::default(),
        created: WallTime::from_unix(1_800_000_000),
        last_active: WallTime::from_unix(1_800_000_000),
    }
}

fn node(name: &str) -> Node {
    Node {
        id: NodeId::generate(name).unwrap(),
        address: None,
        program: "0.1.0".to_owned(),
        is_draining: false,
    }
}

/// What the journal of the killed process allows for one session.
#[derive(Debug, Default, Clone)]
struct Known {
    /// The epoch that was acknowledged last; `None` before creation and after removal.
    epoch: Option<u64>,
    level: Option<String>,
    /// An operation that was begun and not acknowledged may have happened.
    begun: Option<(String, u64)>,
}

impl Known {
    fn note(&mut self, when: &str, operation: &str, epoch: u64) {
        if when == "try" {
            self.begun = Some((operation.to_owned(), epoch));
            return;
        }
        self.apply(operation, epoch);
        self.begun = None;
    }

    fn apply(&mut self, operation: &str, epoch: u64) {
        match operation.strip_prefix("state:") {
            Some(level) => self.level = Some(level.replace('_', " ")),
            None => self.epoch = (operation != "remove").then_some(epoch),
        }
    }

    fn allows(&self, found: Option<&SessionRecord>) -> bool {
        let is_as = |known: &Known| match found {
            None => known.epoch.is_none(),
            Some(found) => known.epoch == Some(found.epoch) && known.level == found.state.log_level,
        };
        let mut after = self.clone();
        if let Some((operation, epoch)) = self.begun.clone() {
            after.apply(&operation, epoch);
        }
        is_as(self) || is_as(&after)
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let directory = tempfile::tempdir().unwrap();
    let mut sessions: HashMap<Uuid, Known> = HashMap::new();
    let mut acknowledged = 0;
    for kill in 0..KILLS {
        let (mut child, mut lines) = start(directory.path(), kill);
        // The process writes on while its lines are read, so the kill meets it anywhere.
        let read = 20 + (kill * 37) % 120;
        let mut line = String::new();
        for _ in 0..read {
            line.clear();
            lines.read_line(&mut line).unwrap();
            note(&mut sessions, &line, &mut acknowledged);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it printed before it died counts as well; the last line may be cut.
        loop {
            line.clear();
            if lines.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
                break;
            }
            note(&mut sessions, &line, &mut acknowledged);
        }
        let registry = FileRegistry::open(directory.path()).expect("the file opens after every kill");
        for (session, known) in &mut sessions {
            let found = registry.look_up(*session).await.unwrap();
            let found = found.map(|located| {
                assert_eq!(located.owner, Owner::Gone, "the process is dead");
                located.record
            });
            assert!(
                known.allows(found.as_ref()),
                "kill {kill}: {known:?}, found {found:?}"
            );
            // From now on this is known.
            known.epoch = found.as_ref().map(|record| record.epoch);
            known.level = found.and_then(|record| record.state.log_level);
            known.begun = None;
        }
    }
    assert!(acknowledged > KILLS * 10, "{acknowledged} operations");
}

fn note(sessions: &mut HashMap<Uuid, Known>, line: &str, acknowledged: &mut u64) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [when, operation, session, epoch] = words[..] else {
        panic!("the process printed {line:?}");
    };
    let known = sessions.entry(session.parse().unwrap()).or_default();
    known.note(when, operation, epoch.parse().unwrap());
    *acknowledged += u64::from(when == "done");
}

#[tokio::test]
async fn second_process_with_the_same_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (mut child, mut lines) = start(directory.path(), 1);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let error = FileRegistry::open(directory.path()).unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&directory.path().join(FILE).display().to_string()),
        "{text}"
    );
    assert!(text.contains("another process"), "{text}");
    drop(FileRegistry::open(directory.path()).expect("the lock ended with the process"));
}

#[tokio::test]
async fn second_registry_in_the_same_process_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = FileRegistry::open(directory.path()).unwrap();
    let error = FileRegistry::open(directory.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    drop(first);
    drop(FileRegistry::open(directory.path()).unwrap());
}

#[tokio::test]
async fn directory_and_file_are_closed_to_others() {
    let outer = tempfile::tempdir().unwrap();
    let directory = outer.path().join("a/b");
    drop(FileRegistry::open(&directory).unwrap());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    let file = directory.join(FILE);
    assert_eq!(mode(&file), 0o600);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    drop(FileRegistry::open(&directory).unwrap());
    assert_eq!(mode(&file), 0o600);
}

#[tokio::test]
async fn foreign_file_is_named_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let text = "no database at all, but long enough to be read as one. ".repeat(100);
    std::fs::write(&file, &text).unwrap();
    let error = FileRegistry::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    assert!(error.to_string().contains("move it away"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test]
async fn directory_that_is_a_file_is_an_error_that_names_it() {
    let outer = tempfile::NamedTempFile::new().unwrap();
    let error = FileRegistry::open(outer.path()).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    assert!(
        error.to_string().contains(&outer.path().display().to_string()),
        "{error}"
    );
}

#[tokio::test]
async fn restart_finds_sessions_and_takes_them_over() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (node("host"), node("host"));
    let lasting = record(&first.id);
    let short = record(&first.id);
    let registry = FileRegistry::open(directory.path()).unwrap();
    registry.join(&first).await.unwrap();
    for (record, idle) in [(&lasting, 3_600_000), (&short, 1)] {
        let created = registry.create(record, Duration::from_millis(idle)).await;
        assert_eq!(created.unwrap(), Created::Created);
    }
    drop(registry);
    let registry = FileRegistry::open(directory.path()).unwrap();
    registry.join(&second).await.unwrap();
    assert_eq!(registry.look_up(short.session).await.unwrap(), None);
    let located = registry.look_up(lasting.session).await.unwrap().unwrap();
    assert_eq!((located.record, located.owner), (lasting.clone(), Owner::Gone));
    let idle = Duration::from_secs(60);
    let taken = registry
        .take_over(lasting.session, 1, &second.id, idle)
        .await
        .unwrap();
    let TakeOver::Won(taken) = taken else {
        panic!("{taken:?}");
    };
    assert_eq!((taken.epoch, taken.owner.as_ref()), (2, Some(&second.id)));
}

#[tokio::test]
async fn full_disk_is_an_error_and_what_was_stored_stays() {
    let directory = tempfile::tempdir().unwrap();
    // A limit on the size of files stands for a full disk; the signal that it sends is ignored.
    let script = "trap '' XFSZ; ulimit -f 4000; exec \"$0\" \"$1\" 1 100000 20000";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(env!("CARGO_BIN_EXE_cluster-test-process"))
        .arg(directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("Full("), "{errors}");
    let created = String::from_utf8_lossy(&output.stdout).lines().count();
    assert!(created > 10, "{created}: {errors}");
    // With room again, the file opens and takes on.
    let registry = FileRegistry::open(directory.path()).unwrap();
    let node = node("host");
    registry.join(&node).await.unwrap();
    let record = record(&node.id);
    let created = registry.create(&record, Duration::from_secs(60)).await;
    assert_eq!(created, Ok(Created::Created));
}

#[tokio::test]
async fn record_of_another_version_is_reported_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let node = node("host");
    let record = record(&node.id);
    let table: redb::TableDefinition<'_, u128, &[u8]> = redb::TableDefinition::new("sessions");
    drop(FileRegistry::open(directory.path()).unwrap());
    let text = record.encode().unwrap().replace("\"version\":1", "\"version\":2");
    let mut value = u64::MAX.to_be_bytes().to_vec();
    value.extend_from_slice(text.as_bytes());
    {
        let database = redb::Database::create(directory.path().join(FILE)).unwrap();
        let transaction = database.begin_write().unwrap();
        let mut open = transaction.open_table(table).unwrap();
        open.insert(record.session.as_u128(), value.as_slice()).unwrap();
        drop(open);
        transaction.commit().unwrap();
    }
    let registry = FileRegistry::open(directory.path()).unwrap();
    registry.join(&node).await.unwrap();
    let other = RegistryError::OtherVersion { found: 2, known: 1 };
    let idle = Duration::from_secs(60);
    assert_eq!(registry.look_up(record.session).await, Err(other.clone()));
    let taken = registry.take_over(record.session, 1, &node.id, idle).await;
    assert_eq!(taken, Err(other.clone()));
    assert_eq!(registry.create(&record, idle).await, Err(other.clone()));
    // A record that cannot be read does not stop the others.
    let mine = self::record(&node.id);
    assert_eq!(registry.create(&mine, idle).await, Ok(Created::Created));
    assert_eq!(registry.look_up(record.session).await, Err(other));
}
