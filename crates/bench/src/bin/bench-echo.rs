//! The minimal stdio MCP server of the benchmarks: `bench-echo [--modern] [--tools N]
//! [MILLISECONDS]`, the era it speaks, how many more tools it lists, and the time it takes for what
//! one read brings.

use std::time::Duration;

use bench::echo::Habits;
use bench::handler::Era;

fn main() -> std::io::Result<()> {
    let (mut era, mut habits) = (Era::Legacy, Habits::default());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--modern" => era = Era::Modern,
            "--tools" => habits.tools = words.next().and_then(|count| count.parse().ok()),
            word => habits.delay = word.parse().ok().map(Duration::from_millis),
        }
    }
    bench::echo::run(era, habits)
}
