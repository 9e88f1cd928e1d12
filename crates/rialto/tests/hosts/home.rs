//! A home directory with the files of hosts, and the binary in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where each host has its file on Linux, and its file in `golden/`.
pub(crate) const FILES: [(&str, &str); 31] = [
    ("claude-desktop", ".config/Claude/claude_desktop_config.json"),
    ("claude-code", ".claude.json"),
    ("cursor", ".cursor/mcp.json"),
    ("vscode", ".config/Code/User/mcp.json"),
    ("vscode-insiders", ".config/Code - Insiders/User/mcp.json"),
    ("copilot-cli", ".copilot/mcp-config.json"),
    ("codex", ".codex/config.toml"),
    ("gemini-cli", ".gemini/settings.json"),
    ("windsurf", ".codeium/windsurf/mcp_config.json"),
    ("antigravity", ".gemini/config/mcp_config.json"),
    ("zed", ".config/zed/settings.json"),
    ("opencode", ".config/opencode/opencode.jsonc"),
    ("kilo", ".config/kilo/kilo.jsonc"),
    ("goose", ".config/goose/config.yaml"),
    (
        "cline",
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
    ),
    ("cline-cli", ".cline/data/settings/cline_mcp_settings.json"),
    ("kiro", ".kiro/settings/mcp.json"),
    ("kimi", ".kimi-code/mcp.json"),
    ("grok", ".grok/config.toml"),
    ("mastra", ".mastracode/mcp.json"),
    ("pi", ".pi/agent/mcp.json"),
    ("fx", ".fx/mcp.json"),
    ("mcporter", ".mcporter/mcporter.json"),
    ("lm-studio", ".lmstudio/mcp.json"),
    (
        "roo",
        ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
    ),
    ("trae", ".config/Trae/User/mcp.json"),
    ("continue", ".continue/config.yaml"),
    ("amp", ".config/amp/settings.json"),
    ("factory", ".factory/mcp.json"),
    ("qoder", ".qoder/mcp.json"),
    ("vibe", ".vibe/config.toml"),
];

/// The program, and what stands for its path in golden files.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_rialto");
pub(crate) const PLACEHOLDER: &str = "{rialto}";

/// A home directory that is removed at the end.
pub(crate) struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn empty() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Returns a home with the golden file of every host.
    pub(crate) fn with_all_hosts() -> Self {
        let home = Self::empty();
        for (host, path) in FILES {
            home.put(path, &golden(host, "before", path));
        }
        home
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn put(&self, path: &str, text: &[u8]) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn text(&self, path: &str) -> String {
        String::from_utf8(fs::read(self.path(path)).unwrap()).unwrap()
    }

    /// Returns the command, ready to be started with nothing but this home.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(args)
            .env_clear()
            .env("HOME", self.folder.path())
            .env("PATH", self.path("bin"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that succeeds, and returns its stdout.
    pub(crate) fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let both = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {both}");
        text(&output.stdout)
    }

    /// Runs a command that fails, and returns all that it prints.
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let both = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(!output.status.success(), "{args:?}: {both}");
        both
    }

    /// Returns every file of the hosts with its content.
    pub(crate) fn host_files(&self) -> BTreeMap<String, Vec<u8>> {
        let found = FILES.iter().filter_map(|(_, path)| {
            let bytes = fs::read(self.path(path)).ok()?;
            Some(((*path).to_owned(), bytes))
        });
        found.collect()
    }

    /// Returns all files below the home, without those of Rialto's journal.
    pub(crate) fn all_files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(self.folder.path(), &mut files);
        files.retain(|path, _| !path.starts_with(self.path(".local/state")));
        files
    }
}

fn collect(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => collect(&path, files),
            false => {
                files.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns where a golden file is.
pub(crate) fn golden_path(host: &str, name: &str, path: &str) -> PathBuf {
    let ending = match Path::new(path).extension().and_then(|ending| ending.to_str()) {
        Some("toml") => "toml",
        Some("yaml") => "yaml",
        _ => "json",
    };
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/hosts/golden/{host}/{name}.{ending}"))
}

pub(crate) fn golden(host: &str, name: &str, path: &str) -> Vec<u8> {
    let path = golden_path(host, name, path);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
