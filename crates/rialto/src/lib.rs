//! What the binary does: reads flags, configuration and environment, and assembles what they ask
//! for.

mod account;
mod admin_socket;
mod attach;
mod audit;
mod check;
mod cluster_key;
mod cluster_status;
pub mod config;
mod connect;
mod copy_self;
mod demo;
mod doctor;
pub mod flags;
mod hosts;
mod looking;
mod serve;
mod service;
mod shell;
mod sign_in;
mod telemetry;
mod terminal;
mod token;
mod traces;
mod trying;
mod user_files;

use std::io::Write as _;
use std::process::ExitCode;

use config::Environment;
use flags::{AuditCommand, ClusterCommand, Invocation};

/// Exit codes; 0 and clap's 2 aside.
mod exit {
    pub(crate) const FAILED: u8 = 1;
    pub(crate) const CONFIGURATION: u8 = 2;
    pub(crate) const CANNOT_LISTEN: u8 = 3;
    pub(crate) const NOTHING_STARTS: u8 = 4;
    pub(crate) const TOOL_ERROR: u8 = 5;
    pub(crate) const UNKNOWN_NAME: u8 = 12;
}

/// Runs the command that the arguments of this process name. Returns the exit code.
pub fn run() -> ExitCode {
    // It is started beside the first child, which is when a client waits, and needs nothing of what
    // follows.
    if std::env::args_os().nth(1).is_some_and(|word| word == "warden") {
        return warden();
    }
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == attach::DETACHED)
    {
        return attach::detached(std::env::args_os().skip(2));
    }
    let environment = Environment::of_this_process();
    let invocation = match flags::parse(std::env::args_os(), &environment) {
        Ok(invocation) => invocation,
        Err(error) => return error.report(),
    };
    match invocation {
        Invocation::Serve(flags) => serve::run(&flags, &environment, doctor::findings_of_hosts),
        Invocation::Connect(flags) => connect::run(&flags, &environment),
        Invocation::Check(flags) => check::run(&flags, &environment),
        Invocation::Audit(AuditCommand::Verify(flags)) => audit::verify(&flags, &environment),
        Invocation::DemoServer(flags) => demo_server(flags.era, &environment),
        Invocation::Login(flags) => account::login(&flags, &environment),
        Invocation::Logout(flags) => account::logout(&flags, &environment),
        Invocation::Status(flags) => account::status(&flags, &environment),
        Invocation::Token(flags) => token::run(&flags),
        Invocation::Cluster(ClusterCommand::Key(_)) => cluster_key::run(),
        Invocation::Cluster(ClusterCommand::Status(flags)) => cluster_status::run(&flags, &environment),
        Invocation::Import(flags) => hosts::import::run(&flags, &environment),
        Invocation::Adopt(flags) => hosts::adopt::run(&flags, &environment),
        Invocation::Install(flags) => hosts::install::install(&flags, &environment),
        Invocation::Uninstall(flags) => hosts::install::uninstall(&flags, &environment),
        Invocation::Config(flags) => hosts::config_for::run(&flags, &environment),
        Invocation::Ps(flags) => looking::ps(&flags, &environment),
        Invocation::Top(flags) => looking::top(&flags, &environment),
        Invocation::Tap(flags) => looking::tap(&flags, &environment),
        Invocation::Ui(flags) => looking::ui(&flags, &environment),
        Invocation::Tools(flags) => trying::tools(&flags, &environment),
        Invocation::Call(flags) => trying::call(&flags, &environment),
        Invocation::Attach(flags) => attach::run(&flags, &environment),
        Invocation::Service(command) => service::run(&command, &environment),
        Invocation::Doctor(flags) => doctor::run(&flags, &environment),
        Invocation::Completions(flags) => shell::completions(&flags),
        Invocation::Man(flags) => shell::man(&flags),
        Invocation::CopySelf(flags) => copy_self::run(&flags),
        Invocation::Warden(_) => warden(),
    }
}

fn warden() -> ExitCode {
    gateway::backend::process::warden::run();
    ExitCode::SUCCESS
}

fn demo_server(era: demo::DemoEra, environment: &Environment) -> ExitCode {
    let logs = telemetry::init(&config::LogSettings::human(
        environment.filled("RUST_LOG"),
        environment,
    ));
    match logs.and_then(|_logs| demo::run(era)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(exit::FAILED, &format!("{error:#}")),
    }
}

/// Prints on stderr what went wrong, and returns the code to exit with.
fn fail(code: u8, text: &str) -> ExitCode {
    // Names of files, hosts and servers stand in it. If stderr is closed it cannot be reported.
    let _ = writeln!(
        std::io::stderr().lock(),
        "rialto: {}",
        gateway::escape::lines(text)
    );
    ExitCode::from(code)
}
