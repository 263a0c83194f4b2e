//! `rkey info`.

use clap::Args;

/// Arguments of `rkey info`.
#[derive(Args, Debug, Clone)]
pub(crate) struct InfoArgs {
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs `rkey info`.
pub(crate) fn run(args: &InfoArgs) -> anyhow::Result<()> {
    anyhow::bail!("nothing to show yet (json: {})", args.json)
}
