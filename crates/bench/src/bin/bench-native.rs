//! The ceiling of the benchmarks: the handler as its own HTTP server. `bench-native PORT`

use anyhow::Context as _;

fn main() -> anyhow::Result<()> {
    let port = std::env::args()
        .nth(1)
        .and_then(|port| port.parse().ok())
        .context("usage: bench-native PORT")?;
    bench::native::run(port)
}
