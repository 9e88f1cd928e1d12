//! Three replicas behind a balancer; see `testkit::fleet::program`.

fn main() -> std::process::ExitCode {
    testkit::fleet::program::main(std::env::args().skip(1))
}
