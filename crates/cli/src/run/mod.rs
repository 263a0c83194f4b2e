//! `rkey run`: runs an unmodified program on the device instead of on hardware, without root.
//!
//! The program finds the front ends of the device through its environment. The program replaces this process (`exec`), so `rkey` is
//! not between it and its caller. Only with `--explain` does `rkey` stay, to print at the end what was refused and why.

mod folder;
mod program;
mod sockets;
mod tidy;
mod watch;

use crate::failure::{hinted, report};
use clap::Args;
use rkey_kit::delivery::{self, FRONT_ENDS, FrontEnd, OWN_LIBFABRIC};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Arguments of `rkey run`.
#[derive(Args, Debug, Clone)]
#[command(after_help = HELP)]
pub(crate) struct RunArgs {
    /// When the program exits, print the accesses and connections that were refused in it and its children, and why.
    #[arg(long)]
    explain: bool,
    /// Give the program a libfabric.so.1 that has only rkey's provider, instead of the system's.
    #[arg(long)]
    own_libfabric: bool,
    /// Move the program's TCP and UDP sockets onto RDMA, with rdma-core's librspreload.so. Its peers need this option, too.
    #[arg(long)]
    sockets: bool,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    words: Vec<OsString>,
}

/// Examples, and the variables that the program gets.
const HELP: &str = "\
Examples (put `--` before a program that has options of its own):
  rkey run -- ib_write_bw & sleep 1; rkey run -- ib_write_bw 127.0.0.1
  rkey run -- fi_info -p rkey
  rkey run --own-libfabric -- fi_info                                        (where no libfabric is installed)
  rkey run -- dtest -P rkey-lo -s -b 64 & sleep 1; rkey run -- dtest -P rkey-lo -h 127.0.0.1 -b 64
  rkey run --sockets -- iperf3 -s & sleep 1; rkey run --sockets -- iperf3 -c 127.0.0.1
  rkey run --explain -- mpirun --mca pml cm --mca mtl ofi -n 4 ./program     (Open MPI)
  rkey run --explain -- mpiexec -n 4 ./program                               (MPICH with ch4:ofi)

The program and its children get these variables:
  LD_PRELOAD, LD_LIBRARY_PATH   the front ends for verbs and the connection manager: libibverbs.so.1 and librdmacm.so.1
  FI_PROVIDER_PATH              the provider for libfabric, librkey-fi.so
  FI_PROVIDER=rkey,ofi_rxm      unless it is set: libfabric offers only these
  FI_OFI_RXM_SAR_LIMIT=0        unless it is set: prevents ofi_rxm of libfabric 1.17 from hanging in matched probes
  DAT_OVERRIDE                  unless it is set: the file with uDAPL's adapters, rkey-lo and one for each interface

RKEY_LOG=info also shows why calls failed; RKEY_LOG=off silences refusals. `rkey info` lists more variables.";

/// The exit codes that a shell returns if a program does not exist, and if it cannot be started.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

/// A directory with all front ends, for programs that `rkey` itself starts.
pub(crate) fn front_ends() -> anyhow::Result<PathBuf> {
    folder::make(FRONT_ENDS)
}

/// Runs `rkey run`. Returns the program's exit status.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    run_with(args, &[])
}

/// Runs a program with these variables, without the options of `rkey run`. Returns its exit status.
pub(crate) fn run_words(words: &[OsString], set: &[(&str, &str)]) -> anyhow::Result<ExitCode> {
    let args = RunArgs {
        explain: false,
        own_libfabric: false,
        sockets: false,
        words: words.to_vec(),
    };
    run_with(&args, set)
}

fn run_with(args: &RunArgs, set: &[(&str, &str)]) -> anyhow::Result<ExitCode> {
    let (program, words) = args.words.split_first().ok_or_else(|| {
        hinted(
            anyhow::anyhow!("no program to run"),
            "rkey run [--] PROGRAM [ARGUMENTS]",
        )
    })?;
    let own: &[FrontEnd] = match args.own_libfabric {
        true => &[OWN_LIBFABRIC],
        false => &[],
    };
    let folder = folder::make(&[FRONT_ENDS, own].concat())?;
    if let Some(obstacle) = program::find(program).and_then(|path| program::obstacle(&path)) {
        eprintln!(
            "rkey: warning: {obstacle}. It cannot use the device; programs that it starts may."
        );
    }
    let mut command = Command::new(program);
    command.args(words);
    let mut variables = delivery::environment(&folder, |name| std::env::var_os(name));
    if args.sockets {
        sockets::add(&mut variables)?;
    }
    command.envs(variables);
    command.envs(set.iter().copied());
    let error = if args.explain {
        match watch::run(&mut command)? {
            Ok(code) => return Ok(code),
            Err(error) => error,
        }
    } else {
        command.exec()
    };
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_STARTED,
    };
    let (what, advice) = program::why_not(program, &error);
    let what = anyhow::Error::msg(what);
    report(&match advice {
        Some(advice) => hinted(what, advice),
        None => what,
    });
    Ok(ExitCode::from(code))
}
