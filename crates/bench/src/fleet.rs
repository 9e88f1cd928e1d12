//! What a fleet costs, and what records of sessions cost: against the same calls without them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, anyhow, bail};
use tempfile::TempDir;
use testkit::redis::Redis;

use crate::load::{self, Outcome, Until};
use crate::meter;
use crate::request::Call;
use crate::row::Effort;
use crate::runner::print_line;
use crate::system::{Programs, Running, Setup, System};

const PLAIN: Call = Call::Echo { padding: 0 };
const SESSIONS: usize = 16;
const IN_FLIGHT: usize = 64;
/// Sessions that are opened at a time.
const OPENED_AT_ONCE: usize = 8;
/// Many short turns: other work of the machine then disturbs some of them, and not their median.
const TURNS: usize = 9;

/// An engine and a key: all that replicas share.
#[derive(Debug)]
pub(crate) struct Fleet {
    engine: Redis,
    key: PathBuf,
    folder: TempDir,
}

impl Fleet {
    pub(crate) fn start(programs: &Programs) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for temporary files")?;
        let engine = Redis::start().map_err(|error| anyhow!("{error}"))?;
        let made = Command::new(programs.ours.join("rialto"))
            .args(["cluster", "key"])
            .output()
            .context("rialto does not start")?;
        if !made.status.success() {
            bail!("rialto cluster key: {}", String::from_utf8_lossy(&made.stderr));
        }
        let key = folder.path().join("cluster.key");
        write_closed(&key, &made.stdout)?;
        Ok(Self { engine, key, folder })
    }

    /// The programs, with a replica of this name in the place of Rialto.
    pub(crate) fn replica(&self, name: &str, programs: &Programs) -> Programs {
        with_variables(
            programs,
            &[
                ("RIALTO_CLUSTER_URL", &self.engine.url()),
                ("RIALTO_CLUSTER_KEY_FILE", &self.key.to_string_lossy()),
                ("RIALTO_CLUSTER_LISTEN", "127.0.0.1:0"),
                ("RIALTO_CLUSTER_NAME", name),
            ],
        )
    }

    /// The programs, with a Rialto that keeps records in a file.
    fn keeper(&self, programs: &Programs) -> Programs {
        let state = self.folder.path().join("state");
        with_variables(programs, &[("RIALTO_STATE_DIR", &state.to_string_lossy())])
    }
}

/// `env` becomes the program that it starts, so the number of the process is that of Rialto.
fn with_variables(programs: &Programs, variables: &[(&str, &str)]) -> Programs {
    let mut prefix = vec!["env".to_owned()];
    prefix.extend(variables.iter().map(|(name, value)| format!("{name}={value}")));
    prefix.extend(programs.prefix.iter().cloned());
    Programs {
        prefix,
        ..programs.clone()
    }
}

fn write_closed(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, bytes).context("cannot write the key")?;
    let closed = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, closed).context("cannot close the key to others")
}

/// Compares a call at its owner, a forwarded call, and a session opened, with those of a Rialto that
/// is in no fleet; then a call and a session with `state_dir`. Factors of processor time.
pub async fn measure(programs: &Programs, effort: Effort) -> anyhow::Result<Vec<f64>> {
    let fleet = Fleet::start(programs)?;
    let start = |programs: &Programs| System::Rialto.start(Setup::Plain, programs);
    let plain = start(programs)?;
    let owner = start(&fleet.replica("owner", programs))?;
    let entry = start(&fleet.replica("entry", programs))?;
    let keeper = start(&fleet.keeper(programs))?;
    let measured = compare(&plain, &owner, &entry, &keeper, effort).await;
    for running in [plain, entry, owner, keeper] {
        running.stop().await?;
    }
    measured
}

async fn compare(
    plain: &Running,
    owner: &Running,
    entry: &Running,
    keeper: &Running,
    effort: Effort,
) -> anyhow::Result<Vec<f64>> {
    let until = Until::Passed(effort.time / 5);
    let mut local = [(plain, Vec::new()), (owner, Vec::new()), (keeper, Vec::new())];
    let mut forwarded = Vec::new();
    let mut sessions = Vec::new();
    for (running, _) in &local {
        sessions.push(load::open_sessions(&running.target, SESSIONS).await?);
    }
    // The sessions are the owner's, and the connections lead to the other replica.
    let (of_owner, entrance) = (&sessions[1], &entry.target);
    for turn in 0..=TURNS {
        for ((running, costs), sessions) in local.iter_mut().zip(&sessions) {
            let outcome = load::closed_loop(&running.target, sessions, IN_FLIGHT, PLAIN, until).await?;
            note(turn, costs, &outcome, 0.0);
        }
        let before = meter::cpu(owner.target.pid)?;
        let outcome = load::closed_loop(entrance, of_owner, IN_FLIGHT, PLAIN, until).await?;
        let spent = meter::cpu(owner.target.pid)?.saturating_sub(before);
        let at_owner = spent.as_secs_f64() * 1e6 / outcome.calls.max(1) as f64;
        note(turn, &mut forwarded, &outcome, at_owner);
    }
    let [call, call_at_owner, call_kept] = local.map(|(_, costs)| median(costs));
    let forwarded = median(forwarded);

    let mut opened = [(plain, Vec::new()), (owner, Vec::new()), (keeper, Vec::new())];
    for turn in 0..=TURNS {
        for (running, costs) in &mut opened {
            let outcome = load::churn(&running.target, OPENED_AT_ONCE, until).await?;
            note(turn, costs, &outcome, 0.0);
        }
    }
    let [session, session_in_fleet, session_kept] = opened.map(|(_, costs)| median(costs));
    print_line(&format!(
        "  µs of processor: call {call:.1}, at its owner {call_at_owner:.1}, forwarded {forwarded:.1}, with state_dir {call_kept:.1}; \
         session {session:.1}, in a fleet {session_in_fleet:.1}, with state_dir {session_kept:.1}"
    ));
    Ok(vec![
        call_at_owner / call,
        forwarded / call_at_owner,
        session_in_fleet / session,
        call_kept / call,
        session_kept / session,
    ])
}

/// Notes what a call cost in one turn. The first turn warms up.
fn note(turn: usize, costs: &mut Vec<f64>, outcome: &Outcome, elsewhere: f64) {
    if turn > 0 {
        costs.push(outcome.cpu_per_call() + elsewhere);
    }
}

fn median(mut costs: Vec<f64>) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}
