//! A home directory with programs, servers and files of hosts, and what `rialto doctor` reports of
//! it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A tool that every host takes.
pub(crate) const TOOL: &str = r#"{"name":"echo","description":"repeats","inputSchema":{"type":"object"}}"#;

/// A home directory that is removed at the end.
pub(crate) struct Home {
    folder: tempfile::TempDir,
}

/// What the program printed.
pub(crate) struct Diagnosis {
    pub(crate) code: i32,
    pub(crate) json: Value,
}

impl Home {
    /// Returns a home with a login shell that has the same programs as Rialto.
    pub(crate) fn new() -> Self {
        let home = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for folder in ["bin", "run", "work"] {
            fs::create_dir(home.path(folder)).unwrap();
        }
        fs::set_permissions(home.path("run"), Permissions::from_mode(0o700)).unwrap();
        home.login_shell("bin");
        home
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Writes a file that is closed to others; `{home}` in it stands for the home.
    pub(crate) fn put(&self, path: &str, text: &str) -> PathBuf {
        let text = text.replace("{home}", self.folder.path().to_str().unwrap());
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    pub(crate) fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.path(path)).unwrap().permissions().mode() & 0o777
    }

    pub(crate) fn set_mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), Permissions::from_mode(mode)).unwrap();
    }

    /// Writes a program of the shell.
    pub(crate) fn program(&self, path: &str, script: &str) -> PathBuf {
        let path = self.put(path, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Makes a login shell whose `PATH` is one folder of the home.
    pub(crate) fn login_shell(&self, folder: &str) {
        let path = self.path(folder);
        self.program(
            "login-shell",
            &format!("echo Welcome; echo PATH={}", path.display()),
        );
    }

    /// Writes a server that answers in the legacy era and lists these tools.
    pub(crate) fn server(&self, path: &str, tools: &str) -> PathBuf {
        self.server_with(path, tools, "", "")
    }

    /// The same, with lines of the shell before the first message and after the last one.
    pub(crate) fn server_with(&self, path: &str, tools: &str, before: &str, after: &str) -> PathBuf {
        let script = r#"
BEFORE
while read -r line; do
  case $line in
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}}';;
    *'"tools/list"'*) echo '{"jsonrpc":"2.0","id":2,"result":{"tools":[TOOLS]}}';;
    *'"server/discover"'*) echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"unknown"}}';;
  esac
done
AFTER"#;
        let script = script.replace("TOOLS", tools);
        self.program(path, &script.replace("BEFORE", before).replace("AFTER", after))
    }

    /// Writes `destinations.yml` where the commands of this user look for it. The port is free.
    pub(crate) fn configure(&self, rest: &str) {
        let text = format!("listen: 127.0.0.1:0\n{rest}");
        self.put(".config/rialto/destinations.yml", &text);
    }

    /// Returns the command, ready to be started with nothing but this home.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rialto"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.folder.path())
            .env("PATH", self.path("bin"))
            .env("SHELL", self.path("login-shell"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("RIALTO_KEYRING", "off")
            .current_dir(self.path("work"))
            .stdin(Stdio::null());
        command
    }

    /// Runs `rialto doctor` with more arguments.
    pub(crate) fn doctor(&self, args: &[&str]) -> Diagnosis {
        self.doctor_with(args, &[])
    }

    /// The same, with more variables.
    pub(crate) fn doctor_with(&self, args: &[&str], variables: &[(&str, &str)]) -> Diagnosis {
        let hold: &[&str] = match args.contains(&"--hold") {
            true => &[],
            false => &["--hold", "0s"],
        };
        let all: Vec<&str> = [&["doctor", "--json"], hold, args].concat();
        let output = self
            .command(&all)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        Diagnosis::of(&output)
    }
}

impl Diagnosis {
    pub(crate) fn of(output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{errors}"));
        Self {
            code: output.status.code().unwrap(),
            json,
        }
    }

    pub(crate) fn findings(&self) -> &[Value] {
        self.json["findings"].as_array().unwrap()
    }

    fn ids(&self) -> Vec<&str> {
        let findings = self.findings().iter();
        findings.map(|finding| finding["id"].as_str().unwrap()).collect()
    }

    /// Checks that these findings and no others were reported.
    #[track_caller]
    pub(crate) fn assert_ids(&self, expected: &[&str]) -> &Self {
        assert_eq!(self.ids(), expected, "{:#}", self.json);
        self
    }

    #[track_caller]
    pub(crate) fn assert_code(&self, expected: i32) -> &Self {
        assert_eq!(self.code, expected, "{:#}", self.json);
        assert_eq!(self.json["exit_code"], expected);
        self
    }

    /// Checks that the finding names what was observed and what helps.
    #[track_caller]
    pub(crate) fn assert_found(&self, id: &str, what: &str, cure: &str) -> &Self {
        let found = self.findings().iter().find(|finding| finding["id"] == id);
        let found = found.unwrap_or_else(|| panic!("no {id}: {:#}", self.json));
        let observed = format!("{} {}", text(&found["subject"]), text(&found["what"]));
        assert!(observed.contains(what), "{what} in {observed}");
        let line = text(&found["cure"]["line"]);
        assert!(line.contains(cure), "{cure} in {line}");
        assert!(!text(&found["why"]).is_empty(), "{found}");
        self
    }

    /// Checks that a fact has this text.
    #[track_caller]
    pub(crate) fn assert_fact(&self, part: &str) -> &Self {
        let facts = self.json["facts"].as_array().unwrap().iter();
        let mut texts = facts.map(|fact| format!("{} {}", text(&fact["subject"]), text(&fact["text"])));
        assert!(texts.any(|text| text.contains(part)), "{part}: {:#}", self.json);
        self
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
