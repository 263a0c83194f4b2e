//! `rkey ls`.

use clap::Args;

/// Arguments of `rkey ls`.
#[derive(Args, Debug, Clone)]
pub(crate) struct LsArgs {
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs `rkey ls`.
pub(crate) fn run(args: &LsArgs) -> anyhow::Result<()> {
    anyhow::bail!("nothing to show yet (json: {})", args.json)
}
