//! `rialto service`: `serve` as a service of the user, under systemd or launchd.

mod unit;

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use gateway::escape;

use crate::admin_socket::{self, Directory};
use crate::config::Environment;
use crate::flags::service::{
    LogsFlags, Manager, ManagerFlags, ServiceCommand, ServiceFlags, ServiceStatusFlags,
};
use crate::looking::print;
use crate::{exit, fail, user_files};
use unit::Unit;

/// How much of a log file is read.
const LOG_BYTES: u64 = 1 << 20;

type Done = Result<ExitCode, Problem>;

/// Why a command came to nothing, with its exit code.
struct Problem(u8, String);

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self(exit::FAILED, text)
    }
}

pub(crate) fn run(command: &ServiceCommand, environment: &Environment) -> ExitCode {
    let done = match command {
        ServiceCommand::Install(flags) => install(flags, environment),
        ServiceCommand::Uninstall(flags) => uninstall(flags, environment),
        ServiceCommand::Status(flags) => status(flags, environment),
        ServiceCommand::Logs(flags) => logs(flags, environment),
    };
    match done {
        Ok(code) => code,
        Err(Problem(code, text)) => fail(code, &text),
    }
}

fn install(flags: &ServiceFlags, environment: &Environment) -> Done {
    let service = Service::of(&flags.manager, environment)?;
    let config = config(flags.config.as_deref(), environment)?;
    let unit = Unit {
        program: program()?,
        config: config.clone(),
        // Services do not start from a login shell, so that its PATH is written down.
        path: environment.filled("PATH").map(str::to_owned),
        log: user_files::state_dir(environment).map(|directory| directory.join("service.log")),
    };
    let text = match service.manager {
        Manager::Systemd => unit.systemd(),
        Manager::Launchd => unit.launchd(),
    };
    if flags.print {
        print(&text);
        return Ok(ExitCode::SUCCESS);
    }
    if !config.exists() {
        let text = format!(
            "{} does not exist: `rialto adopt` makes it from what your hosts have, or name another with --config",
            config.display()
        );
        return Err(Problem(exit::CONFIGURATION, text));
    }
    service.check()?;
    write(&service.file, &text)
        .map_err(|error| format!("cannot write {}: {error}", service.file.display()))?;
    for command in service.starting() {
        service.must(&command)?;
    }
    print(&format!(
        "installed {}\n  it serves {}, now and at each login\n  rialto service status shows it, rialto ps what it does\n",
        service.file.display(),
        config.display()
    ));
    Ok(ExitCode::SUCCESS)
}

fn uninstall(flags: &ManagerFlags, environment: &Environment) -> Done {
    let service = Service::of(flags, environment)?;
    if !service.file.exists() {
        let file = service.file.display();
        return Err(Problem(
            exit::FAILED,
            format!("no service is installed: there is no {file}"),
        ));
    }
    service.check()?;
    for command in service.stopping() {
        service.must(&command)?;
    }
    fs::remove_file(&service.file)
        .map_err(|error| format!("cannot remove {}: {error}", service.file.display()))?;
    if service.manager == Manager::Systemd {
        service.must(&["--user", "daemon-reload"].map(str::to_owned))?;
    }
    print(&format!("removed {}\n", service.file.display()));
    Ok(ExitCode::SUCCESS)
}

fn status(flags: &ServiceStatusFlags, environment: &Environment) -> Done {
    let service = Service::of(&flags.manager, environment)?;
    let config = config(flags.config.as_deref(), environment)?;
    let mut lines = Vec::new();
    lines.push(match service.file.exists() {
        true => format!("installed  {}", service.file.display()),
        false => "installed  no: `rialto service install` does it".to_owned(),
    });
    lines.push(match service.check() {
        Ok(()) => format!("manager    {}", service.state()),
        Err(Problem(_, why)) => format!("manager    {why}"),
    });
    let socket = Directory::of(environment).socket_of(&config);
    let answer = {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
        runtime.block_on(admin_socket::snapshot(&socket))
    };
    let runs = answer.is_ok();
    lines.push(match answer {
        Ok(snapshot) => {
            let destinations = snapshot["destinations"].as_array().map_or(0, Vec::len);
            format!(
                "serves     {} as process {}, {destinations} destinations; rialto ps shows them",
                config.display(),
                snapshot["pid"]
            )
        }
        Err(_) => format!("serves     nothing: no gateway answers for {}", config.display()),
    });
    print(&(lines.join("\n") + "\n"));
    Ok(match runs {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(exit::FAILED),
    })
}

fn logs(flags: &LogsFlags, environment: &Environment) -> Done {
    let service = Service::of(&flags.manager, environment)?;
    let lines = flags.lines.to_string();
    if service.manager == Manager::Systemd && service.file.exists() {
        let mut command = Command::new("journalctl");
        command.args(["--user", "--unit", unit::SYSTEMD_NAME, "--lines", &lines]);
        if flags.follow {
            command.arg("--follow");
        }
        // Takes the place of this process; there is a result only if that fails.
        let error = command.exec();
        return Err(format!("cannot run journalctl: {error}").into());
    }
    let file = user_files::state_dir(environment)
        .map(|directory| directory.join("service.log"))
        .filter(|file| file.exists())
        .ok_or_else(|| "there is no log: no service has run yet".to_owned())?;
    if flags.follow {
        let error = Command::new("tail").args(["-n", &lines, "-F"]).arg(&file).exec();
        return Err(format!("cannot run tail: {error}").into());
    }
    let text =
        last_lines(&file, flags.lines).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    print(&text);
    Ok(ExitCode::SUCCESS)
}

/// The service manager of the user, and the file of the service there.
struct Service {
    manager: Manager,
    file: PathBuf,
}

impl Service {
    fn of(flags: &ManagerFlags, environment: &Environment) -> Result<Self, Problem> {
        let usual = match cfg!(target_os = "macos") {
            true => Manager::Launchd,
            false => Manager::Systemd,
        };
        let manager = flags.manager.unwrap_or(usual);
        let home = environment.filled("HOME").map(PathBuf::from);
        let no_home = || {
            Problem(
                exit::CONFIGURATION,
                "there is no home directory: set HOME".to_owned(),
            )
        };
        let file = match manager {
            Manager::Systemd => {
                let directory = environment.filled("XDG_CONFIG_HOME").map(PathBuf::from);
                let directory = directory.or_else(|| home.map(|home| home.join(".config")));
                directory
                    .ok_or_else(no_home)?
                    .join("systemd/user")
                    .join(unit::SYSTEMD_NAME)
            }
            Manager::Launchd => home
                .ok_or_else(no_home)?
                .join("Library/LaunchAgents")
                .join(format!("{}.plist", unit::LAUNCHD_LABEL)),
        };
        Ok(Self { manager, file })
    }

    fn program(&self) -> &'static str {
        match self.manager {
            Manager::Systemd => "systemctl",
            Manager::Launchd => "launchctl",
        }
    }

    /// Checks that the manager runs for this user.
    fn check(&self) -> Result<(), Problem> {
        let asked: &[&str] = match self.manager {
            Manager::Systemd => &["--user", "show-environment"],
            Manager::Launchd => &["managername"],
        };
        let asked: Vec<String> = asked.iter().map(|word| (*word).to_owned()).collect();
        let why = match self.ask(&asked) {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => escape::one_line(&String::from_utf8_lossy(&output.stderr), 300),
            Err(error) => error.to_string(),
        };
        let name = match self.manager {
            Manager::Systemd => "systemd --user",
            Manager::Launchd => "launchd",
        };
        Err(format!(
            "{name} does not run for this user ({}). No service is needed for hosts: `rialto attach` starts one \
             by itself. `rialto service install --print` prints the unit for another manager",
            why.trim()
        )
        .into())
    }

    fn starting(&self) -> Vec<Vec<String>> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match self.manager {
            Manager::Systemd => vec![
                words(&["--user", "daemon-reload"]),
                words(&["--user", "enable", unit::SYSTEMD_NAME]),
                words(&["--user", "restart", unit::SYSTEMD_NAME]),
            ],
            Manager::Launchd => vec![words(&["load", "-w", &self.file.to_string_lossy()])],
        }
    }

    fn stopping(&self) -> Vec<Vec<String>> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match self.manager {
            Manager::Systemd => vec![words(&["--user", "disable", "--now", unit::SYSTEMD_NAME])],
            Manager::Launchd => vec![words(&["unload", "-w", &self.file.to_string_lossy()])],
        }
    }

    /// Returns the state of the service, in the words of the manager.
    fn state(&self) -> String {
        let asked: Vec<String> = match self.manager {
            Manager::Systemd => vec!["--user".into(), "is-active".into(), unit::SYSTEMD_NAME.into()],
            Manager::Launchd => vec!["list".into(), unit::LAUNCHD_LABEL.into()],
        };
        match self.ask(&asked) {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout);
                let first = said.lines().next().unwrap_or("unknown");
                escape::one_line(first, 200)
            }
            Err(error) => error.to_string(),
        }
    }

    fn ask(&self, arguments: &[String]) -> io::Result<Output> {
        Command::new(self.program()).args(arguments).output()
    }

    fn must(&self, arguments: &[String]) -> Result<(), Problem> {
        let line = format!("{} {}", self.program(), arguments.join(" "));
        let output = self
            .ask(arguments)
            .map_err(|error| format!("cannot run `{line}`: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let why = escape::one_line(&String::from_utf8_lossy(&output.stderr), 500);
                Err(format!("`{line}` failed: {why}").into())
            }
        }
    }
}

/// Returns the configuration that is served, as an absolute path.
fn config(named: Option<&str>, environment: &Environment) -> Result<PathBuf, Problem> {
    let file = named
        .map(PathBuf::from)
        .or_else(|| user_files::destinations(environment));
    let file = file.ok_or_else(|| {
        Problem(
            exit::CONFIGURATION,
            "there is no home directory: name the file with --config".to_owned(),
        )
    })?;
    std::path::absolute(&file).map_err(|error| Problem::from(error.to_string()))
}

/// Returns the path of this program, which the unit names.
fn program() -> Result<PathBuf, Problem> {
    std::env::current_exe()
        .map_err(|error| Problem::from(format!("the path of this program is not known: {error}")))
}

/// Writes a file as a whole.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let new = file.with_extension("new");
    let mut opened = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o644)
        .open(&new)?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()?;
    fs::rename(&new, file)
}

/// Returns the last lines of a file.
fn last_lines(file: &Path, lines: usize) -> io::Result<String> {
    let mut opened = fs::File::open(file)?;
    let length = opened.metadata()?.len();
    opened.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    opened.take(LOG_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let kept = all.get(all.len().saturating_sub(lines)..).unwrap_or_default();
    Ok(kept.iter().flat_map(|line| [*line, "\n"]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_log_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("log");
        fs::write(&file, "one\ntwo\nthree\n").expect("written");
        assert_eq!(last_lines(&file, 2).expect("read"), "two\nthree\n");
        assert_eq!(last_lines(&file, 9).expect("read"), "one\ntwo\nthree\n");
    }
}
