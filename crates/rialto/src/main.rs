//! The binary: reads flags and starts what they name.
#[allow(dead_code, reason = "wired when serve is")]
mod config;
mod demo;
#[allow(dead_code, reason = "wired when serve is")]
mod flags;
#[expect(dead_code, reason = "wired when serve is")]
mod telemetry;

use clap::Parser;

#[derive(Debug, Parser)]
enum Command {
    /// The demo MCP server, over stdio.
    DemoServer {
        #[arg(long, value_enum, default_value_t)]
        era: demo::DemoEra,
    },
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match Command::parse() {
        Command::DemoServer { era } => demo::run(era),
    }
}
