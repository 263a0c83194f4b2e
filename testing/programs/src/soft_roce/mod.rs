//! Programs on this host, over our `libibverbs.so.1` and `librdmacm.so.1`, and the same programs in a virtual machine, over the
//! kernel's Soft-RoCE: ping-pongs, perftest and librdmacm's programs, in both directions, over IPv4 and IPv6.

mod cases;
mod guest;
mod image;
mod pair;

use crate::folder::{open_up, verbs_into};
use anyhow::Result;
use cases::{Case, JUMBO, LOSSY, MANAGED, MANAGED_PERFTEST, PERFTEST, PINGS};
use guest::Guest;
use pair::{Family, Pair, Server};
use rkey_harness::{Report, Session};

const SERVERS: [Server; 2] = [Server::Host, Server::Guest];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const ETHERNET: u32 = 1500;
/// Room for a path MTU of 4096 and the headers.
const LARGE: u32 = 4200;
/// The network loses one packet of so many, in each direction.
const LOSS: u32 = 100;

/// The stage.
///
/// # Errors
/// The guest cannot be built or does not boot.
pub fn tests(session: &Session<'_>) -> Result<Report> {
    let image = image::image(session)?;
    let folder = session.scratch.join("soft-roce");
    let libraries = folder.join("lib");
    verbs_into(session, &libraries)?;
    open_up(&session.scratch)?;
    let boot = |mtu| -> Result<Pair<'_>> {
        Ok(Pair {
            guest: Guest::boot(&image, &folder, mtu)?,
            libraries: &libraries,
        })
    };
    let mut report = Report {
        passed: 0,
        failures: Vec::new(),
        note: String::new(),
        skipped: false,
    };
    let mut pair = boot(ETHERNET)?;
    for cases in [PINGS, MANAGED] {
        in_all_ways(&mut pair, cases, &FAMILIES, &mut report)?;
    }
    in_all_ways(&mut pair, PERFTEST, &[Family::V4], &mut report)?;
    in_all_ways(&mut pair, MANAGED_PERFTEST, &[Family::V4], &mut report)?;
    pair.guest.lose(LOSS)?;
    in_all_ways(&mut pair, LOSSY, &[Family::V4], &mut report)?;
    let lost = pair.guest.lost()?;
    let is_lossy = lost.len() == 2 && !lost.contains(&0);
    report.add(is_lossy.then_some(()).ok_or_else(|| {
        format!("the network should have lost packets in both directions, but lost {lost:?}")
    }));
    drop(pair);
    in_all_ways(&mut boot(LARGE)?, JUMBO, &[Family::V4], &mut report)?;
    report.note = format!(
        "{} runs with the kernel's Soft-RoCE as the peer",
        report.passed
    );
    Ok(report)
}

/// Runs cases with the server on either side, over each of these address families.
fn in_all_ways(
    pair: &mut Pair<'_>,
    cases: &[Case],
    families: &[Family],
    report: &mut Report,
) -> Result<()> {
    for case in cases {
        for server in SERVERS {
            for &family in families {
                report.add(pair.play(case, server, family)?);
            }
        }
    }
    Ok(())
}
