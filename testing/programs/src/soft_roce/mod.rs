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
    Case, JUMBO, LOSSY, MANAGED, MANAGED_PERFTEST, OPERATIONS, PERFTEST, PINGS, SIZES, STREAMS,
};
use guest::Guest;
use pair::{Family, Pair, Serves};
use rkey_harness::{Report, Session};

const BOTH: [Serves; 2] = [Serves::Host, Serves::Guest];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// The MTU of the network, and the path MTU of queue pairs.
const ETHERNET: (u32, &str) = (1500, "1024");
/// Also has room for the headers.
const LARGE: (u32, &str) = (4200, "4096");
/// The network loses one packet of so many, in each direction.
const LOSS: u32 = 100;
/// What rkey does to the packets that it sends to a guest without a lossy network.
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
    let boot = |(mtu, path_mtu)| -> Result<Pair<'_>> {
        Ok(Pair {
            guest: Guest::boot(&image, &folder, mtu)?,
            libraries: &libraries,
            path_mtu,
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
    for cases in [PINGS, MANAGED, STREAMS, OPERATIONS, PERFTEST] {
        play(&pair, cases, &BOTH, &FAMILIES, &mut report)?;
    }
    play(&pair, SIZES, &BOTH, &[Family::V4], &mut report)?;
    let host = [Serves::Host];
    play(&pair, MANAGED_PERFTEST, &host, &[Family::V4], &mut report)?;
    lossy(&pair, &mut report)?;
    drop(pair);
    faulty(boot(ETHERNET)?, &mut report)?;
    let pair = boot(LARGE)?;
    for cases in [JUMBO, SIZES] {
        play(&pair, cases, &BOTH, &[Family::V4], &mut report)?;
    }
    lossy(&pair, &mut report)?;
    drop(pair);
    faulty(boot(LARGE)?, &mut report)?;
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

/// Makes the network lose packets, and runs programs over it.
fn lossy(pair: &Pair<'_>, report: &mut Report) -> Result<()> {
    pair.guest.lose(LOSS)?;
    play(pair, LOSSY, &BOTH, &FAMILIES, report)?;
    let lost = pair.guest.lost()?;
    let is_lossy = lost.len() == 2 && !lost.contains(&0);
    report.add(is_lossy.then_some(()).ok_or_else(|| {
        format!("the network should have lost packets in both directions, but lost {lost:?}")
    }));
    Ok(())
}

/// Runs programs while rkey injects faults into the packets that it sends.
fn faulty(mut pair: Pair<'_>, report: &mut Report) -> Result<()> {
    pair.faults = FAULTS;
    play(&pair, LOSSY, &BOTH, &FAMILIES, report)?;
    report.add(pair.guest.saw_faults()?);
    Ok(())
}
