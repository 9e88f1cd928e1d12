//! `rialto top`: the table of `ps`, again and again. On a terminal it stays in place.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

use super::table::{Shape, Table};
use super::{NOTHING_RUNS, columns, has_colour, print};
use crate::admin_socket::{Directory, Running};
use crate::config::{self, Environment};
use crate::flags::looking::TopFlags;
use crate::terminal::text;
use crate::{exit, fail};

/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// How often to look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    interval: Duration,
    count: Option<u64>,
    sessions: bool,
}

impl Plan {
    pub(super) fn of(flags: &TopFlags) -> Result<Self, String> {
        let interval =
            config::some_time(&flags.interval).map_err(|message| format!("flag --interval: {message}"))?;
        Ok(Self {
            interval,
            count: flags.count,
            sessions: flags.sessions,
        })
    }
}

pub(super) async fn run(plan: Plan, environment: &Environment) -> ExitCode {
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
        return fail(exit::FAILED, "cannot catch signals");
    };
    let is_live = io::stdout().is_terminal() && environment.get("TERM") != Some("dumb");
    if is_live {
        print(ENTER);
    }
    let was_seen = tokio::select! {
        was_seen = look_again(plan, is_live, environment) => was_seen,
        _ = interrupt.recv() => true,
        _ = terminate.recv() => true,
    };
    if is_live {
        print(LEAVE);
    }
    match was_seen {
        true => ExitCode::SUCCESS,
        false => fail(exit::FAILED, NOTHING_RUNS),
    }
}

/// Looks as often as is wanted. Returns whether the last look has found a gateway.
async fn look_again(plan: Plan, is_live: bool, environment: &Environment) -> bool {
    let directory = Directory::of(environment);
    let mut earlier: Option<(Vec<Running>, Instant)> = None;
    let mut looks = 0;
    loop {
        let (running, _) = directory.running().await;
        let now = Instant::now();
        let shape = Shape {
            columns: columns(),
            sessions: plan.sessions,
            has_colour: has_colour(environment),
        };
        let table = Table::of(&running);
        let table = match &earlier {
            Some((before, at)) => table.since(before, now - *at),
            None => table,
        };
        let text = match running.is_empty() {
            true => format!("{NOTHING_RUNS}\n"),
            false => table.text(shape),
        };
        let clock = chrono::Local::now().format("%H:%M:%S").to_string();
        print(&match is_live {
            true => screen(&text, &clock, shape.columns, rows()),
            false => format!("{clock}\n{text}\n"),
        });
        looks += 1;
        if plan.count.is_some_and(|count| looks >= count) {
            return !running.is_empty();
        }
        earlier = Some((running, now));
        tokio::time::sleep(plan.interval).await;
    }
}

/// Returns a whole screen: lines that do not fit are left out, and counted in the first one.
fn screen(text: &str, clock: &str, columns: usize, rows: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let room = rows.saturating_sub(2).max(1);
    let left_out = lines.len().saturating_sub(room);
    let mut screen = String::from("\x1b[H");
    let head = match left_out {
        0 => format!("{clock}  Ctrl-C ends"),
        left_out => format!("{clock}  Ctrl-C ends  {left_out} more lines do not fit"),
    };
    let shown = lines.iter().take(room).copied();
    for line in std::iter::once(text::cut(&head, columns).as_str()).chain(shown) {
        screen.push_str(line);
        screen.push_str("\x1b[K\r\n");
    }
    screen.push_str("\x1b[J");
    screen
}

fn rows() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let rows = size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0);
    rows.unwrap_or(24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screen_is_no_higher_than_the_terminal() {
        let text = "line\n".repeat(30);
        let drawn = screen(&text, "10:00:00", 80, 10);
        assert_eq!(drawn.matches("\r\n").count(), 9);
        assert!(drawn.contains("22 more lines do not fit"), "{drawn:?}");
        let drawn = screen("one\n", "10:00:00", 80, 10);
        assert!(
            drawn.starts_with("\x1b[H10:00:00  Ctrl-C ends\x1b[K"),
            "{drawn:?}"
        );
        assert!(!drawn.contains("more lines"), "{drawn:?}");
    }
}
