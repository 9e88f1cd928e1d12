//! `rialto audit verify`: is the chain of audit records whole?

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use gateway::audit::{ChainKey, Verifier};
use gateway::settings::Secret;

use crate::config::Environment;
use crate::flags::VerifyFlags;
use crate::{exit, fail};

/// No record is longer; what is longer is none.
const LONGEST_LINE: u64 = 1 << 20;
/// Flaws that are shown one by one.
const SHOWN: u64 = 20;

/// A key that is shorter could be guessed.
const SHORTEST_KEY: usize = 16;

/// Reads the key of a chain.
pub(crate) fn chain_key(text: &str) -> Result<Secret, String> {
    let text = text.trim_end_matches(['\r', '\n']);
    if text.len() < SHORTEST_KEY {
        return Err(format!(
            "must have at least {SHORTEST_KEY} characters, and must not be guessable"
        ));
    }
    Ok(Secret::new(text))
}

/// Returns the key that the flags name, if they name one.
fn key_of(flags: &VerifyFlags, environment: &Environment) -> Result<Option<ChainKey>, String> {
    let (source, text) = match (&flags.key_env, &flags.key_file) {
        (Some(variable), _) => {
            let text = environment.filled(variable);
            let text = text.ok_or_else(|| format!("the variable {variable} is not set"))?;
            (variable.clone(), text.to_owned())
        }
        (None, Some(file)) => {
            let name = file.display().to_string();
            let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
            (name, text)
        }
        (None, None) => return Ok(None),
    };
    let key = chain_key(&text).map_err(|error| format!("{source}: the key {error}"))?;
    Ok(Some(ChainKey::new(&key)))
}

/// Verifies files that follow each other. What is wrong goes to stderr, the verdict to stdout.
pub(crate) fn verify(flags: &VerifyFlags, environment: &Environment) -> ExitCode {
    let key = match key_of(flags, environment) {
        Ok(key) => key,
        Err(error) => return fail(exit::CONFIGURATION, &error),
    };
    let has_key = key.is_some();
    let mut verifier = Verifier::with_key(key);
    let mut flaws = 0;
    for file in &flags.files {
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
        let hint = if has_key {
            "; records from before the key was set are verified without it"
        } else {
            "; a chain with a key (audit.chain_key) is verified with --key-env or --key-file"
        };
        return fail(
            exit::FAILED,
            &format!(
                "the chain is broken: {flaws} flaws in {} records{hint}",
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
    // If stdout is closed, the exit code tells the same.
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
