//! `rialto cluster key`: makes the secret that all replicas of a fleet share, and prints it.

use std::io::Write as _;
use std::process::ExitCode;

use cluster::ClusterKey;

use crate::{exit, fail};

pub(crate) fn run() -> ExitCode {
    let key = match ClusterKey::generate() {
        Ok(key) => key,
        Err(error) => return fail(exit::FAILED, &error.to_string()),
    };
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(key.to_text().as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(exit::FAILED, &format!("cannot write the key: {error}")),
    }
}
