//! `rkey ls`: the live processes of this user that have a device open.

mod endpoints;
mod process;

use crate::failure::hinted;
use crate::style;
use anyhow::Context;
use clap::Args;
use rkey_device::link::NodeId;
use rkey_device::{Departed, Inspection, list_all};

/// Arguments of `rkey ls`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Keys are not shown: a process that has one could use it. Which memory a denied key names, `rkey explain` says."
)]
pub(crate) struct LsArgs {
    /// Show all that one process has: domains, regions, windows, queue pairs, links, counters, and for libfabric endpoints who waits for whom.
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Bytes that a process can address on x86-64, with or without the last pages.
const ADDRESS_SPACE: std::ops::RangeInclusive<u64> = (1 << 47) - (1 << 16)..=1 << 47;

/// Runs `rkey ls`.
pub(crate) fn run(args: &LsArgs) -> anyhow::Result<()> {
    let devices = find(args.pid)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&devices)?);
        return Ok(());
    }
    let (unused, shown): (Vec<_>, Vec<_>) = devices.iter().partition(|it| is_aside(it, &devices));
    match args.pid {
        Some(_) => shown.into_iter().for_each(process::print),
        None => print_all(&shown),
    }
    if !unused.is_empty() {
        println!(
            "Not shown: {} with nothing in it, beside the one that its process uses (libfabric opens one to look at it).",
            style::count(unused.len(), "device")
        );
    }
    Ok(())
}

/// Whether a device has nothing in it, and its process has another one that has.
fn is_aside(device: &Inspection, all: &[Inspection]) -> bool {
    let is_empty = |it: &Inspection| it.protection.domains.is_empty() && it.qps.is_empty();
    let beside = |it: &Inspection| it.pid == device.pid && it.node != device.node && !is_empty(it);
    is_empty(device) && all.iter().any(beside)
}

/// The devices of this user, or of one process. Processes whose devices are of another version of rkey are named on
/// standard error.
pub(crate) fn find(pid: Option<u32>) -> anyhow::Result<Vec<Inspection>> {
    let config = rkey::Config::from_env()?;
    let listing = list_all(&config).context("the devices of this host cannot be listed")?;
    let (mut devices, others) = (listing.devices, listing.other_versions);
    for other in others.iter().filter(|_| pid.is_none()) {
        eprintln!("{other}. The `rkey` command of that version can show it.");
    }
    if let Some(pid) = pid {
        devices.retain(|device| device.pid == pid);
        if let Some(other) = others.iter().find(|other| other.pid == Some(pid))
            && devices.is_empty()
        {
            anyhow::bail!("{other}");
        }
        if devices.is_empty() {
            let error = anyhow::anyhow!("process {pid} has no device open, or does not answer");
            return Err(hinted(
                error,
                "`rkey ls` without a number lists those that do",
            ));
        }
    }
    Ok(devices)
}

fn print_all(devices: &[&Inspection]) {
    if devices.is_empty() {
        println!(
            "No process of this user has a device open that this version of rkey can show (in this network namespace)."
        );
        println!("Try `rkey demo` in another terminal.");
        return;
    }
    let header = [
        "pid",
        "command",
        "domains",
        "regions",
        "bytes",
        "windows",
        "queue pairs",
        "peers",
        "counters",
        "denied",
    ];
    let mut table = style::table(style::colour(), header);
    for &device in devices {
        table.add_row([
            device.pid.to_string(),
            device.command.clone(),
            device.protection.domains.len().to_string(),
            device.regions.to_string(),
            style::bytes(registered(device)),
            device.windows.to_string(),
            device.qps.len().to_string(),
            peers(device).to_string(),
            device.counters.len().to_string(),
            device.denied.to_string(),
        ]);
    }
    println!("{table}");
    println!(
        "`rkey ls PID` shows one of them in detail, `rkey explain PID` why accesses were denied."
    );
}

/// Bytes of the regions that the program made.
fn registered(device: &Inspection) -> u64 {
    let regions = &device.protection.regions;
    let everything = regions.iter().filter(|r| is_everything(r.base, r.len));
    let total = device.protection.total_bytes;
    total.saturating_sub(everything.map(|r| r.len).sum())
}

/// How many other devices a device is linked with.
fn peers(device: &Inspection) -> usize {
    let mut nodes: Vec<_> = device
        .links
        .iter()
        .filter(|l| l.role != "loopback")
        .map(|l| l.node)
        .collect();
    nodes.sort();
    nodes.dedup();
    nodes.len()
}

/// The process of a device, if it has exited.
fn departed(device: &Inspection, node: NodeId) -> Option<&Departed> {
    device.departed.iter().find(|peer| peer.node == node)
}

fn is_everything(base: u64, len: u64) -> bool {
    base == 0 && ADDRESS_SPACE.contains(&len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_device_is_left_out_beside_a_used_one() {
        let (one, other) = (rkey::Device::open().unwrap(), rkey::Device::open().unwrap());
        let _domain = one.domain().unwrap();
        let all = [one.inspect().unwrap(), other.inspect().unwrap()];
        assert!(!is_aside(&all[0], &all) && is_aside(&all[1], &all));
        assert!(!is_aside(&all[1], &all[1..]), "it is the only one");
    }
}
