//! The binary. What it does is in the library beside it, so that tests and fuzz targets can use the
//! configuration.

use std::process::ExitCode;

fn main() -> ExitCode {
    rialto::run()
}
