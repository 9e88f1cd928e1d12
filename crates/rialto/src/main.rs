#[expect(dead_code, reason = "main sets up logs once it assembles something")]
mod telemetry;

fn main() {}
