//! `rkey capture`: runs a program whose device captures what it sends and receives.

use crate::failure::hinted;
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `rkey capture`.
#[derive(Args, Debug, Clone)]
#[command(after_help = HELP)]
pub(crate) struct CaptureArgs {
    /// The file to write; an existing file is overwritten. `%p` in the name stands for the process ID, so that each
    /// process writes its own file.
    file: PathBuf,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    words: Vec<OsString>,
}

const HELP: &str = "\
Examples (put `--` before a program that has options of its own):
  rkey capture pings.pcap -- ibv_rc_pingpong localhost; wireshark pings.pcap
  rkey capture %p.pcap -- mpirun -n 2 ./program
  RKEY_WIRE=auto rkey capture pings.pcap -- rping -c -a 10.0.0.1 -C 5

The program gets RKEY_CAPTURE and the variables of `rkey run`. Processes of one host exchange no packets; what passes between them is
shown as packets of RoCEv2. Without %p, only the first process that sends a packet is captured.";

/// Runs `rkey capture`. Returns the program's exit status.
pub(crate) fn run(args: &CaptureArgs) -> anyhow::Result<ExitCode> {
    let file = absolute(&args.file)?;
    crate::run::run_words(&args.words, &[("RKEY_CAPTURE", &file)])
}

/// The absolute path of a file that can be created, as a value of `RKEY_CAPTURE`.
fn absolute(file: &Path) -> anyhow::Result<String> {
    let shown = file.display();
    let path = std::path::absolute(file)
        .map_err(|error| anyhow::anyhow!("cannot capture to {shown}: {error}"))?;
    let why = match path.parent() {
        Some(folder) if folder.is_dir() => path.is_dir().then_some("it is a directory"),
        _ => Some("its directory does not exist"),
    };
    if let Some(why) = why {
        return Err(hinted(
            anyhow::anyhow!("cannot capture to {shown}: {why}"),
            "rkey capture FILE [--] PROGRAM [ARGUMENTS]",
        ));
    }
    path.into_os_string().into_string().map_err(|_| {
        hinted(
            anyhow::anyhow!("cannot capture to {shown}: the name is not UTF-8"),
            "choose a name that is valid UTF-8",
        )
    })
}
