//! `rkey demo`: the main job, end to end, in two processes.

use clap::Args;
use std::process::ExitCode;

/// Arguments of `rkey demo`.
#[derive(Args, Debug, Clone)]
pub(crate) struct DemoArgs {
    /// Print only the table at the end.
    #[arg(long)]
    quiet: bool,
}

/// Runs `rkey demo`.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("nothing to show yet (quiet: {})", args.quiet)
}
