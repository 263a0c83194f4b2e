//! The `rkey` command: inspects, demonstrates and measures the software RDMA device of this machine.
//!
//! Each subcommand is a module of that name, except `bench`, which is a crate. This file reads the command line and turns
//! errors into a line with a hint.

#![cfg_attr(not(test), warn(clippy::disallowed_types, clippy::unwrap_used))]

#[macro_use]
mod output;

mod capture;
mod demo;
mod environment;
mod explain;
mod failure;
mod info;
mod ls;
mod reasons;
mod registration_cache;
mod run;
mod similar;
mod style;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// A software RDMA device: register memory, hand out keys, move data. No NIC, no root.
#[derive(Parser, Debug)]
#[command(name = "rkey", version, about, arg_required_else_help = true)]
#[command(
    after_help = "RKEY_LOG=off|error|warn|info|debug|trace sets the log level of this command and of programs started by `rkey run`. `rkey info` lists all variables."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Demonstrate the device in two processes: register, write, read, update, and be refused.
    Demo(demo::DemoArgs),
    /// Show what the device offers on this machine, its limits and its settings.
    Info(info::InfoArgs),
    /// List the programs of this user that have a device open.
    Ls(ls::LsArgs),
    /// Explain why accesses were denied, and what to do about it.
    Explain(explain::ExplainArgs),
    /// Run an unmodified program that uses verbs, libfabric or uDAPL on the device.
    Run(run::RunArgs),
    /// Run a program as `rkey run` does, and capture what it sends and receives in a file for Wireshark.
    Capture(capture::CaptureArgs),
    /// Measure latency, message rate, bandwidth and the cost of registration.
    Bench(Box<rkey_bench::BenchArgs>),
}

fn main() -> ExitCode {
    let code = match Cli::try_parse() {
        Ok(cli) => start(&cli),
        // A usage error, or the output of --help.
        Err(error) => {
            let printed = error.print().and_then(|()| std::io::stdout().flush());
            if let (Err(failure), false) = (printed, error.use_stderr()) {
                output::note(failure);
            }
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX))
        }
    };
    output::finish(code)
}

fn start(cli: &Cli) -> ExitCode {
    failure::start_logging();
    if matches!(
        cli.command,
        Command::Info(_) | Command::Ls(_) | Command::Explain(_)
    ) {
        // These commands only print, so SIGPIPE may end them, as in `rkey ls | head`.
        sigpipe::reset();
    }
    match environment::check().and_then(|()| run(&cli.command)) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::run(args),
        Command::Info(args) => info::run(args).map(|()| ExitCode::SUCCESS),
        Command::Ls(args) => ls::run(args).map(|()| ExitCode::SUCCESS),
        Command::Explain(args) => explain::run(args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::run(args),
        Command::Capture(args) => capture::run(args),
        Command::Bench(args) => benchmark(args),
    }
}

/// Runs `rkey bench`.
fn benchmark(args: &rkey_bench::BenchArgs) -> anyhow::Result<ExitCode> {
    let mut host = rkey_bench::Host {
        results: &mut output::Output,
        front_ends: run::front_ends,
    };
    rkey_bench::run(args, &mut host).map_err(|error| {
        match error.downcast::<rkey_bench::UnknownWord>() {
            Ok(unknown) => {
                let advice = format!("choose one of: {}", unknown.known.join(", "));
                failure::hinted(unknown, advice)
            }
            Err(error) => error,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
