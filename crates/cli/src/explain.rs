//! `rkey explain`.

use clap::Args;

/// Arguments of `rkey explain`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ExplainArgs {
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs `rkey explain`.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    anyhow::bail!("nothing to show yet (json: {})", args.json)
}
