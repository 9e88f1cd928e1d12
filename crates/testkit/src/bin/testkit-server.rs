//! A stdio MCP server that behaves, and that misbehaves on request; see `testkit::stub`.

fn main() -> std::process::ExitCode {
    testkit::stub::main(std::env::args_os().skip(1))
}
