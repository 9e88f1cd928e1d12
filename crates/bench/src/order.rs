//! Writes a linker script that lays together the functions which a start and plain calls run, as
//! valgrind sees them.
//!
//! The kernel maps a program in steps of 64 KiB. Functions that lie scattered among those that
//! never run cost as much memory, and as many faults, as if all of the program ran.
//! `crates/rialto/build.rs` passes the script to the linker. It is for GNU ld: lld, with which zig
//! links, refuses it.
//!
//! Names are written without what changes from one build to the next: linking by another script
//! changes hashes, too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::connect;
use crate::instructions;
use crate::load::{self, Until};
use crate::request::Call;
use crate::system::{Programs, Setup, System};

/// So many calls run everything that plain calls run.
const CALLS: u64 = 640;
const IN_FLIGHT: usize = 16;

/// Runs Rialto both ways and writes the linker script.
pub async fn write(programs: &Programs, file: &Path) -> anyhow::Result<()> {
    instructions::require_valgrind()?;
    let folder = tempfile::tempdir().context("cannot make a folder for temporary files")?;
    let profile = folder.path().join("callgrind");
    let watched = instructions::under_valgrind(programs, &profile, &["--demangle=no"]);

    let running = System::Rialto.start(Setup::Plain, &watched)?;
    let sessions = load::open_sessions(&running.target, IN_FLIGHT).await?;
    let plain = Call::Echo { padding: 0 };
    load::closed_loop(&running.target, &sessions, IN_FLIGHT, plain, Until::Calls(CALLS)).await?;
    running.stop().await?;
    let serve = functions_run(&read(&profile)?, "/rialto");

    connect::calls(1, CALLS, &watched).await?;
    let connect = functions_run(&read(&profile)?, "/rialto");

    let symbols = Command::new("nm")
        .args(["--defined-only", "--print-size"])
        .arg(programs.ours.join("rialto"))
        .output()
        .context("nm does not run; it comes with the linker, in binutils")?;
    if !symbols.status.success() {
        bail!("nm cannot read the program");
    }
    let sizes = sizes(&String::from_utf8_lossy(&symbols.stdout));
    let names = ordered(&serve, &connect, &sizes);
    std::fs::write(file, linker_script(&names)).context("cannot write the linker script")
}

/// Returns a script that adds to what the linker does anyway (`INSERT`), instead of replacing it.
/// The functions stay in the section that all others are in, since valgrind knows the names of no
/// other.
fn linker_script(names: &[String]) -> String {
    let mut script = String::from("SECTIONS\n{\n  .text :\n  {\n");
    for name in names {
        // What the compiler takes for unlikely it puts into a section of another name; much of it
        // runs at the start. Writing to a `String` cannot fail.
        let _ = writeln!(script, "    *(.text.{name} .text.unlikely.{name})");
    }
    script.push_str("  }\n}\nINSERT BEFORE .init;\n");
    script
}

fn read(profile: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(profile).context("callgrind wrote nothing")
}

/// The functions of one object that callgrind saw running. A name is spelled out once and has a
/// number from then on.
fn functions_run(profile: &str, object: &str) -> BTreeSet<String> {
    let mut objects = HashMap::new();
    let mut names = HashMap::new();
    let mut run = BTreeSet::new();
    let mut is_ours = false;
    for line in profile.lines() {
        let Some((key, value)) = line.split_once("=(") else {
            continue;
        };
        let Some((number, name)) = value.split_once(')') else {
            continue;
        };
        let known = match key {
            "ob" | "cob" => &mut objects,
            "fn" | "cfn" => &mut names,
            _ => continue,
        };
        if !name.is_empty() {
            known.insert(number, name.trim_start());
        }
        let Some(name) = known.get(number) else {
            continue;
        };
        match key {
            "ob" => is_ours = name.ends_with(object),
            // A function that calls itself appears as `name'2`, too.
            "fn" if is_ours => {
                run.insert(name.split('\'').next().unwrap_or(name).to_owned());
            }
            _ => {}
        }
    }
    run
}

/// Sizes of functions, as `nm` prints them: address, size, kind, name.
fn sizes(symbols: &str) -> BTreeMap<String, u64> {
    let one = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let size = u64::from_str_radix(words.next()?, 16).ok()?;
        let kind = words.next()?;
        let name = words.next()?;
        matches!(kind, "t" | "T" | "w" | "W").then(|| (name.to_owned(), size))
    };
    symbols.lines().filter_map(one).collect()
}

/// The families of what was run: first those that are needed both ways, then those of one way.
/// Instances of a generic function cannot be distinguished by their names; families of which most
/// is not needed come last, so that the others lie close together.
fn ordered(
    serve: &BTreeSet<String>,
    connect: &BTreeSet<String>,
    sizes: &BTreeMap<String, u64>,
) -> Vec<String> {
    #[derive(Default)]
    struct Family {
        size: u64,
        needed: u64,
        by_serve: bool,
        by_connect: bool,
    }
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for (name, size) in sizes {
        let family = families.entry(family(name)).or_default();
        let (by_serve, by_connect) = (serve.contains(name), connect.contains(name));
        family.size += size;
        family.needed += if by_serve || by_connect { *size } else { 0 };
        family.by_serve |= by_serve;
        family.by_connect |= by_connect;
    }
    families.retain(|_, family| family.by_serve || family.by_connect);
    let mut lines: Vec<_> = families.into_iter().collect();
    // Names have an order already, which keeps what belongs together near each other and changes of
    // the list small.
    lines.sort_by_key(|(_, family)| {
        let is_mixed = family.needed * 2 < family.size;
        (
            is_mixed,
            !(family.by_serve && family.by_connect),
            family.by_connect,
        )
    });
    lines.into_iter().map(|(name, _)| name).collect()
}

/// A linker's name with `*` in place of hashes and versions.
fn family(name: &str) -> String {
    const HASH: usize = 16;
    // Of equal names that are private to their parts of the program, all but one get a number.
    if let Some((name, number)) = name.rsplit_once('.')
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        return format!("{}.*", family(name));
    }
    if let Some(rest) = name.strip_prefix("aws_lc_") {
        let without_version =
            rest.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '_');
        return format!("aws_lc_*_{without_version}");
    }
    if name.starts_with("_R") {
        // `Cs` and a number of base 62 stand in front of the name of a crate.
        let mut parts = name.split("Cs");
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            out.push_str("Cs");
            match part.split_once('_') {
                Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                    out.push_str("*_");
                    out.push_str(rest);
                }
                Some(_) | None => out.push_str(part),
            }
        }
        return out;
    }
    match name.rsplit_once("17h") {
        Some((path, hash)) if hash.len() == HASH + 1 && hash.ends_with('E') => format!("{path}17h*E"),
        Some(_) | None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_build_to_build_is_left_open() {
        assert_eq!(
            family("_ZN5tokio4task4wake17h0123456789abcdefE"),
            "_ZN5tokio4task4wake17h*E"
        );
        assert_eq!(
            family("_RNvXsZ_NtCsjrHSEGnQ3l9_5alloc6stringNtB5_3fmt"),
            "_RNvXsZ_NtCs*_5alloc6stringNtB5_3fmt"
        );
        assert_eq!(family("aws_lc_0_47_0_SHA256"), "aws_lc_*_SHA256");
        assert_eq!(
            family("static_clone17h0123456789abcdefE.6814"),
            "static_clone17h*E.*"
        );
        assert_eq!(family("main"), "main");
    }

    #[test]
    fn only_functions_of_the_program_itself_count_and_only_those_that_ran() {
        let profile = "ob=(1) /usr/lib/libc.so\nfn=(1) malloc\n10 5\nob=(2) /x/rialto\nfn=(2) start\n1 2\ncfn=(3) never\ncob=(1)\nfn=(4) again'2\n";
        let run: Vec<_> = functions_run(profile, "/rialto").into_iter().collect();
        assert_eq!(run, ["again", "start"]);
    }

    #[test]
    fn what_everyone_needs_comes_first_and_what_hardly_anyone_needs_last() {
        let set = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<BTreeSet<_>>()
        };
        let generic = "generic17h0000000000000001E";
        let sizes = sizes(&format!(
            "0 10 t both\n0 10 t one\n0 10 T other\n0 10 t unused\n0 1 t {generic}\n0 ff t generic17h0000000000000002E\n0 4 d data\n"
        ));
        let lines = ordered(&set(&["both", "one", generic]), &set(&["both", "other"]), &sizes);
        assert_eq!(lines, ["both", "one", "other", "generic17h*E"]);
    }
}
