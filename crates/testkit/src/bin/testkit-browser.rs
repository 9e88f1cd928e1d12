//! A browser that signs in; see `testkit::authority::browser`.

fn main() -> std::process::ExitCode {
    testkit::authority::browser::main(std::env::args().skip(1))
}
