//! What the stock librdmacm does on the kernel's Soft-RoCE. The differential test (`abi/rdmacm/tests/programs/oracle.rs`) compares our
//! library with the recording; this compares the recording with the guest, or records it again.

use super::guest::{GUEST, Guest};
use anyhow::{Context, Result, ensure};
use rkey_harness::Session;
use std::fs;
use std::time::Duration;

/// The recording, in the repository.
const RECORDED: &str = "abi/rdmacm/tests/oracle/recorded.txt";
/// The probe's ports.
const PORTS: &str = "7000 7100 7200 80";
/// How long the probe may run. It takes a quarter of a minute, most of which is timeouts of the calls.
const LIMIT: Duration = Duration::from_secs(300);
/// The ports that the kernel assigns.
const ASSIGNED: std::ops::RangeInclusive<u32> = 32_768..=60_999;

/// Runs the probe in the guest. Compares its output with the recording; with `--record`, stores it.
///
/// # Errors
/// The guest does not answer, or the probe fails.
pub(super) fn compare(session: &Session<'_>, guest: &Guest) -> Result<Result<(), String>> {
    let [own, own6] = GUEST;
    // Other networks seem to be reachable, but no host of them answers.
    let line = format!(
        "debian-ip route add default dev eth0 && probe {own} {own6} {PORTS} && debian-ip route del default"
    );
    let said = guest.run(&line, LIMIT)?;
    ensure!(said.succeeded, "the probe fails:\n{}", said.output);
    let path = session.root.join(RECORDED);
    if session.record {
        fs::write(&path, said.output)?;
        return Ok(Ok(()));
    }
    let recorded = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(judge(&recorded, &said.output))
}

/// Says which line differs first, except for the ports that the kernel assigns.
fn judge(recorded: &str, said: &str) -> Result<(), String> {
    let [mut before, mut now] = [recorded, said].map(|text| text.lines().map(masked));
    for number in 1.. {
        match (before.next(), now.next()) {
            (None, None) => break,
            (before, now) if before == now => {}
            (before, now) => {
                return Err(format!(
                    "line {number} of {RECORDED} is {before:?}, but the guest says {now:?}; to record it: cargo xtask test \
                     --only soft-roce --record"
                ));
            }
        }
    }
    Ok(())
}

/// A line, with "PORT" for each port that the kernel assigns.
fn masked(line: &str) -> String {
    let mut result = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let end = from.find(|c: char| !c.is_ascii_digit());
        let (number, after) = from.split_at(end.unwrap_or(from.len()));
        result.push_str(before);
        let is_assigned = number.parse().is_ok_and(|it| ASSIGNED.contains(&it));
        result.push_str(if is_assigned { "PORT" } else { number });
        rest = after;
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_assigned_ports_may_differ() {
        let recorded = "call = 0\n  src=10.77.0.2:7100 dst=10.77.0.2:40000 status=0\n";
        assert_eq!(judge(recorded, &recorded.replace("40000", "50123")), Ok(()));
        for (old, new) in [
            ("7100", "7200"),
            ("status=0", "status=1"),
            ("call", "calls"),
        ] {
            assert!(judge(recorded, &recorded.replace(old, new)).is_err());
        }
        assert!(judge(recorded, "call = 0\n").is_err());
        assert!(judge("call = 0\n", recorded).is_err());
    }
}
