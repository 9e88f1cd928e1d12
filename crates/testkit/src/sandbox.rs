//! A sandbox for one Rialto: a test sets its wall clock and its resolver, also while it runs; what
//! it connects to is noted, and nothing beyond this machine is reached.
//!
//! Nothing in the product knows of it. A small library (`sandbox/sandbox.c`) is compiled with the C
//! compiler that Rust links with anyway, and loaded into the process by the dynamic linker; it
//! replaces three functions of the C library. Timers are not touched: a product that counted on the
//! wall clock for one of them would be found out.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::failure::{Failure, Result};

/// The library, and the files that control it.
#[derive(Debug)]
pub struct Sandbox {
    dir: TempDir,
}

impl Sandbox {
    /// Compiles the library.
    pub fn new() -> Result<Self> {
        let sandbox = Self {
            dir: tempfile::tempdir()?,
        };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/sandbox/sandbox.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(sandbox.library())
            .args([source, "-ldl"])
            .output()?;
        if !compiled.status.success() {
            let said = String::from_utf8_lossy(&compiled.stderr).into_owned();
            return Err(Failure::new(said).during("compiling sandbox.c"));
        }
        sandbox.set_clock(0)?;
        sandbox.set_names(&[])?;
        sandbox.forget_connections()?;
        Ok(sandbox)
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("sandbox.so")
    }

    /// What a process of this sandbox is started with.
    pub fn env(&self) -> [(&'static str, String); 4] {
        let path = |name: &str| self.dir.path().join(name).to_string_lossy().into_owned();
        [
            ("LD_PRELOAD", self.library().to_string_lossy().into_owned()),
            ("RIALTO_TEST_CLOCK", path("clock")),
            ("RIALTO_TEST_NAMES", path("names")),
            ("RIALTO_TEST_CONNECTIONS", path("connections")),
        ]
    }

    /// By how many seconds the wall clock is wrong from now on.
    pub fn set_clock(&self, seconds: i64) -> Result<()> {
        self.replace("clock", &seconds.to_string())
    }

    /// What names resolve to from now on; `-` means that the resolver does not answer.
    pub fn set_names(&self, names: &[(&str, &str)]) -> Result<()> {
        let lines: String = names
            .iter()
            .map(|(name, address)| format!("{name} {address}\n"))
            .collect();
        self.replace("names", &lines)
    }

    /// The addresses that were connected to, or would have been if they were not elsewhere.
    pub fn connections(&self) -> Result<Vec<String>> {
        let noted = std::fs::read_to_string(self.dir.path().join("connections"))?;
        Ok(noted.lines().map(str::to_owned).collect())
    }

    pub fn forget_connections(&self) -> Result<()> {
        self.replace("connections", "")
    }

    /// Replaces a file as a whole, so that no reader sees half of it.
    fn replace(&self, name: &str, text: &str) -> Result<()> {
        let (new, file) = (self.dir.path().join("new"), self.dir.path().join(name));
        std::fs::write(&new, text)?;
        std::fs::rename(new, file)?;
        Ok(())
    }
}
