//! `rkey explain`: why accesses were refused, and what to do about it.

use crate::ls::find;
use clap::Args;
use rkey::{Access, Denial, Key, Reason, WindowKind};
use rkey_device::base::range::VaRange;
use rkey_device::core::{Attempt, DomainId, NamedKey, Operation, SlotNow, WireKey};
use serde::Serialize;

/// Arguments of `rkey explain`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ExplainArgs {
    /// Only the refusals that this process noted.
    #[arg(value_name = "PID", conflicts_with = "reasons")]
    pid: Option<u32>,
    /// Explain every reason that there is, by example.
    #[arg(long)]
    reasons: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// The refusals of one process.
#[derive(Serialize)]
struct Refusals {
    pid: u32,
    command: String,
    total: u64,
    last: Vec<String>,
}

/// Runs `rkey explain`.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    if args.reasons {
        return reasons(args.json);
    }
    let refusals: Vec<Refusals> = find(args.pid)?
        .into_iter()
        .map(|device| Refusals {
            pid: device.pid,
            command: device.command,
            total: device.denied,
            last: device.denials,
        })
        .collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&refusals)?);
        return Ok(());
    }
    let mut silent = true;
    for process in refusals.iter().filter(|process| process.total > 0) {
        silent = false;
        println!(
            "process {} ({}): {} refused",
            process.pid, process.command, process.total
        );
        let left_out = process.total.saturating_sub(process.last.len() as u64);
        if left_out > 0 {
            println!("  ({left_out} older ones are forgotten)");
        }
        for sentence in &process.last {
            println!("  {sentence}");
        }
    }
    if silent {
        println!(
            "No live device of this user has refused anything. For a program that ends: `rkey run --explain -- PROGRAM`."
        );
    }
    println!(
        "`rkey explain --reasons` explains each reason by example. Both sides of an access note its refusal."
    );
    Ok(())
}

/// One refusal for each reason that there is.
fn reasons(json: bool) -> anyhow::Result<()> {
    let examples = examples();
    if json {
        println!("{}", serde_json::to_string_pretty(&examples)?);
        return Ok(());
    }
    for example in examples {
        println!("{}\n", example.explain());
    }
    Ok(())
}

fn examples() -> Vec<Denial> {
    let memory = VaRange::new(0x7f12_a000, 4096);
    let mut reasons = vec![
        Reason::UnknownKey,
        Reason::StaleKey { now: SlotNow::Free },
        Reason::StaleKey {
            now: SlotNow::Rebound,
        },
        Reason::LocalKeyUsedRemotely,
        Reason::OtherDomain { owner: DomainId(3) },
        Reason::Disabled,
        Reason::Unbound,
        Reason::Closing,
        Reason::Right {
            granted: Access::REMOTE_READ,
            missing: Access::REMOTE_WRITE,
        },
        Reason::NotInOnePiece,
        Reason::ZeroBased {
            len: 4096,
            offset: 0xff8,
        },
        Reason::Wraps,
        Reason::WrongEndpoint { bound: Some(0x12) },
        Reason::OtherPeer,
        Reason::Misaligned,
        Reason::NotAWindow,
        Reason::WindowKind(WindowKind::Type1),
    ];
    reasons.extend(memory.map(|memory| Reason::OutOfRange {
        memory,
        before: 0,
        after: 8,
    }));
    reasons.extend(memory.map(|memory| Reason::NotZeroBased { memory }));
    reasons
        .into_iter()
        .map(|reason| Denial {
            attempt: Attempt::Remote(Operation::Write),
            key: NamedKey::Remote(WireKey::Device(Key(0x005a_03c1))),
            addr: 0x7f12_aff8,
            len: 16,
            domain: Some(DomainId(1)),
            qp: Some(0x12),
            reason,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_gives_advice() {
        for example in examples() {
            assert!(
                example.explain().lines().count() >= 2,
                "{}",
                example.explain()
            );
        }
    }
}
