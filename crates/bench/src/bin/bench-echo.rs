//! The minimal stdio MCP server of the benchmarks: `bench-echo [--modern] [MILLISECONDS]`, the era
//! it speaks and the time it takes for what one read brings.

use std::time::Duration;

use bench::handler::Era;

fn main() -> std::io::Result<()> {
    let (mut era, mut delay) = (Era::Legacy, None);
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--modern" => era = Era::Modern,
            word => delay = word.parse().ok().map(Duration::from_millis),
        }
    }
    bench::echo::run(era, delay)
}
