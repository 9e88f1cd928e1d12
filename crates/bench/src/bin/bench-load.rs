//! The load generator and the run. `cargo xtask bench` builds everything and calls it.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use bench::row::{self, Effort, Row};
use bench::runner::{Run, print_line};
use bench::system::{self, Programs};
use bench::{instructions, order, report};

const HELP: &str = "\
bench-load [FLAGS]

  --help             this text
  --quick            Rialto and native only, one short round
  --instructions     only instructions per call, under valgrind
  --works TEXT       … of works whose names hold this, and where the instructions go
  --order FILE       only write a linker script there, for what a start and plain calls run
  --only ROW         only this row; may be repeated
  --rounds N         rounds per row
  --seconds S        length of one measurement
  --peers DIR        where the peers are installed
  --write FILE       write the page there
";

struct Flags {
    quick: bool,
    instructions: bool,
    works: Option<String>,
    order: Option<PathBuf>,
    rows: Vec<Row>,
    rounds: Option<usize>,
    seconds: Option<f64>,
    peers: Option<PathBuf>,
    write: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    if std::env::args()
        .skip(1)
        .any(|word| matches!(word.as_str(), "--help" | "-h"))
    {
        return std::io::stdout()
            .lock()
            .write_all(HELP.as_bytes())
            .context("stdout");
    }
    let flags = flags(std::env::args().skip(1))?;
    let own = std::env::current_exe().context("where am I?")?;
    let programs = Programs {
        ours: own.parent().context("a program is in a folder")?.to_owned(),
        peers: flags.peers.clone(),
        prefix: Vec::new(),
    };
    // One thread: the load must not compete with itself.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run(flags, programs))
}

async fn run(flags: Flags, programs: Programs) -> anyhow::Result<()> {
    if let Some(file) = &flags.order {
        return order::write(&programs, file).await;
    }
    let mut out = String::new();
    if flags.instructions {
        let counts = instructions::count(&programs, flags.works.as_deref()).await?;
        out.push_str(&report::instructions(&counts));
    } else {
        let systems = match flags.quick {
            true => system::QUICK.to_vec(),
            false => system::ALL.to_vec(),
        };
        let rows = match flags.rows.is_empty() {
            true => row::ALL.to_vec(),
            false => flags.rows,
        };
        let default_seconds = if flags.quick { 0.8 } else { 2.0 };
        let run = Run {
            rows: rows.clone(),
            systems: systems.clone(),
            rounds: flags.rounds.unwrap_or(if flags.quick { 1 } else { 3 }),
            effort: Effort {
                time: Duration::from_secs_f64(flags.seconds.unwrap_or(default_seconds)),
                full: !flags.quick,
            },
            programs,
        };
        let results = run.carry_out().await;
        out.push_str(&report::table(&results, &rows, &systems));
        out.push('\n');
        out.push_str(&report::targets(&results));
        if let Some(file) = flags.write {
            let counts = match instructions::is_possible() {
                true => Some(instructions::count(&run.programs, None).await?),
                false => {
                    print_line("no valgrind here: instructions are not counted");
                    None
                }
            };
            let page = report::page(&results, &rows, &systems, counts.as_deref());
            if let Some(folder) = file.parent() {
                std::fs::create_dir_all(folder).context("cannot make the folder of the page")?;
            }
            std::fs::write(&file, page).context("cannot write the page")?;
            print_line(&format!("written: {}", file.display()));
        }
    }
    std::io::stdout()
        .lock()
        .write_all(out.as_bytes())
        .context("stdout")
}

fn flags(mut words: impl Iterator<Item = String>) -> anyhow::Result<Flags> {
    let mut flags = Flags {
        quick: false,
        instructions: false,
        works: None,
        order: None,
        rows: Vec::new(),
        rounds: None,
        seconds: None,
        peers: None,
        write: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--quick" => flags.quick = true,
            "--instructions" => flags.instructions = true,
            "--works" => flags.works = Some(value()?),
            "--order" => flags.order = Some(value()?.into()),
            "--only" => flags.rows.push(row_named(&value()?)?),
            "--rounds" => flags.rounds = Some(value()?.parse().context("--rounds N")?),
            "--seconds" => flags.seconds = Some(value()?.parse().context("--seconds S")?),
            "--peers" => flags.peers = Some(value()?.into()),
            "--write" => flags.write = Some(value()?.into()),
            _ => bail!("`{word}` is not known\n\n{HELP}"),
        }
    }
    Ok(flags)
}

fn row_named(word: &str) -> anyhow::Result<Row> {
    let words: Vec<_> = row::ALL.iter().map(|row| row.word()).collect();
    let found = row::ALL.into_iter().find(|row| row.word() == word);
    found.with_context(|| format!("there is no row `{word}`; there are {}", words.join(", ")))
}
