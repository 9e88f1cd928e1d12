#[allow(dead_code, reason = "the commands that use it are assembled by the lead")]
mod config;
#[allow(dead_code, reason = "the commands that use it are assembled by the lead")]
mod flags;

fn main() {}
