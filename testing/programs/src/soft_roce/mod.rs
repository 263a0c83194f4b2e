//! Programs on this host, over our `libibverbs.so.1` and `librdmacm.so.1`, and the same programs in a virtual machine, over the
//! kernel's Soft-RoCE: ping-pongs, perftest, librdmacm's programs, and one of ours with windows and refused accesses, in both
//! directions, over IPv4 and IPv6. In the virtual machine, the stage also repeats the calls of the differential test of librdmacm.

mod cases;
mod guest;
mod image;
mod oracle;
mod pair;

use crate::folder::{open_up, verbs_into};
use anyhow::Result;
use cases::{
    Case, JUMBO, JUMBO_SIZES, LOSSY, MANAGED, MANAGED_PERFTEST, OPERATIONS, PERFTEST, PINGS, SIZES,
};
use guest::Guest;
use pair::{Family, Pair, Serves};
use rkey_harness::{Report, Session};

const BOTH: [Serves; 2] = [Serves::Host, Serves::Guest];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const ETHERNET: u32 = 1500;
/// Room for a path MTU of 4096 and the headers.
const LARGE: u32 = 4200;
/// The network loses one packet of so many, in each direction.
const LOSS: u32 = 100;
/// What rkey does to the packets that it sends in the last part.
const FAULTS: &str = "loss=1%,duplicate=2%,reorder=5%,corrupt=1%,seed=17";

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
    std::fs::copy(
        image.join(image::OPERATIONS),
        libraries.join(image::OPERATIONS),
    )?;
    let boot = |mtu| -> Result<Pair<'_>> {
        Ok(Pair {
            guest: Guest::boot(&image, &folder, mtu)?,
            libraries: &libraries,
            faults: "",
        })
    };
    let mut report = Report {
        passed: 0,
        failures: Vec::new(),
        note: String::new(),
        skipped: false,
    };
    let pair = boot(ETHERNET)?;
    report.add(oracle::compare(session, &pair.guest)?);
    for cases in [PINGS, MANAGED, OPERATIONS, PERFTEST] {
        play(&pair, cases, &BOTH, &FAMILIES, &mut report)?;
    }
    play(&pair, SIZES, &BOTH, &[Family::V4], &mut report)?;
    let host = [Serves::Host];
    play(&pair, MANAGED_PERFTEST, &host, &[Family::V4], &mut report)?;
    pair.guest.lose(LOSS)?;
    play(&pair, LOSSY, &BOTH, &[Family::V4], &mut report)?;
    let lost = pair.guest.lost()?;
    let is_lossy = lost.len() == 2 && !lost.contains(&0);
    report.add(is_lossy.then_some(()).ok_or_else(|| {
        format!("the network should have lost packets in both directions, but lost {lost:?}")
    }));
    drop(pair);
    let mut pair = boot(ETHERNET)?;
    pair.faults = FAULTS;
    play(&pair, LOSSY, &BOTH, &[Family::V4], &mut report)?;
    report.add(pair.guest.saw_faults()?);
    drop(pair);
    let pair = boot(LARGE)?;
    for cases in [JUMBO, JUMBO_SIZES] {
        play(&pair, cases, &BOTH, &[Family::V4], &mut report)?;
    }
    report.note = format!(
        "{} runs with the kernel's Soft-RoCE as the peer",
        report.passed
    );
    Ok(report)
}

/// Runs cases with the server on each of these sides, over each of these address families.
fn play(
    pair: &Pair<'_>,
    cases: &[Case],
    servers: &[Serves],
    families: &[Family],
    report: &mut Report,
) -> Result<()> {
    for case in cases {
        for &server in servers {
            for &family in families {
                report.add(pair.play(case, server, family)?);
            }
        }
    }
    Ok(())
}
