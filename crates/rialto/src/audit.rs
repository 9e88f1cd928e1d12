//! `rialto audit verify`: is the chain of audit records whole?

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gateway::audit::Verifier;

use crate::{exit, fail};

/// No record is longer; what is longer is none.
const LONGEST_LINE: u64 = 1 << 20;
/// Flaws that are shown one by one.
const SHOWN: u64 = 20;

/// Verifies files that follow each other. What is wrong goes to stderr, the verdict to stdout.
pub(crate) fn verify(files: &[PathBuf]) -> ExitCode {
    let mut verifier = Verifier::default();
    let mut flaws = 0;
    for file in files {
        if let Err(error) = read(file, &mut verifier, &mut flaws) {
            return fail(exit::FAILED, &format!("{}: {error}", file.display()));
        }
    }
    if flaws > SHOWN {
        let _ = writeln!(io::stderr().lock(), "and {} more", flaws - SHOWN);
    }
    let Some(verified) = verifier.finish() else {
        return fail(
            exit::FAILED,
            "there is no chained record here: `audit.chain` writes them",
        );
    };
    if flaws > 0 {
        return fail(
            exit::FAILED,
            &format!(
                "the chain is broken: {flaws} flaws in {} records",
                verified.records
            ),
        );
    }
    let mut notes = String::new();
    if verified.unchained > 0 {
        notes = format!(
            "{} records from before the chain began are not verified\n",
            verified.unchained
        );
    }
    if verified.first > 1 {
        notes += &format!(
            "the first record here is {}: it is verified only together with the file before\n",
            verified.first
        );
    }
    // If stdout is closed nobody reads this; the exit code tells the same.
    let _ = write!(
        io::stdout().lock(),
        "{notes}{} records, {} to {}: the chain is whole\nlast hash {}\n",
        verified.records,
        verified.first,
        verified.last,
        verified.hash
    );
    ExitCode::SUCCESS
}

fn read(path: &Path, verifier: &mut Verifier, flaws: &mut u64) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        if reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if let Err(flaw) = verifier.handle_line(&line) {
            *flaws += 1;
            if *flaws <= SHOWN {
                let _ = writeln!(io::stderr().lock(), "{}:{number}: {flaw}", path.display());
            }
        }
    }
    Ok(())
}
