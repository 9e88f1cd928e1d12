//! A browser that signs in; see `testkit::authorization_server::browser`.

fn main() -> std::process::ExitCode {
    testkit::authorization_server::browser::main(std::env::args().skip(1))
}
