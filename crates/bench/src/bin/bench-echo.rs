//! The minimal stdio MCP server of the benchmarks: `bench-echo [MILLISECONDS]`, the time it takes for what one read brings.

use std::time::Duration;

fn main() -> std::io::Result<()> {
    let delay = std::env::args().nth(1).and_then(|delay| delay.parse().ok());
    bench::echo::run(delay.map(Duration::from_millis))
}
