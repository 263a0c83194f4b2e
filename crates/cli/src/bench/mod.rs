//! `rkey bench`: what an operation costs here, beside libfabric and UCX in the same run.
//!
//! A benchmark is two pinned processes: this one initiates, a second copy of this program is the
//! target. Every figure carries its condition (static or touched buffers), because a copy between
//! buffers that nobody touches measures the cache, not the device.

use clap::Args;

/// What to measure and how to show it.
#[derive(Args, Debug, Clone)]
pub(crate) struct BenchArgs {
    /// Operations to measure; all of them when none is named.
    #[arg(value_name = "OPERATION")]
    pub(crate) operations: Vec<String>,
}

/// Runs the benchmark that `args` describe.
///
/// # Errors
/// An unknown operation, a device that does not open, a peer process that fails.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    anyhow::bail!("nothing to measure yet for {:?}", args.operations)
}
