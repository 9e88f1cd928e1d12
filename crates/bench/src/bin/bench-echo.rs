//! The minimal stdio MCP server of the benchmarks.

fn main() -> std::io::Result<()> {
    bench::echo::run()
}
