//! `rkey ls`: the live processes of this user that have a device open.

mod connections;
mod endpoints;
mod process;

use crate::failure::hinted;
use crate::style;
use anyhow::Context;
use clap::Args;
use rkey_device::cm::CmView;
use rkey_device::link::NodeId;
use rkey_device::{Departed, Inspection, SilentProcess, list_all};
use serde::Serialize;

/// Arguments of `rkey ls`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Keys are not shown, because a process that knows a key could use it. `rkey explain` shows the memory of a denied key."
)]
pub(crate) struct LsArgs {
    /// Show everything about one process: domains, regions, windows, queue pairs, links, counters, what libfabric endpoints wait for,
    /// uDAPL's EPs, EVDs and service points with their states, and identifiers of the connection manager.
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// The possible lengths, in bytes, of a region that covers the whole address space of x86-64: 2^47, or up to 64 KiB less if the
/// last pages are left out.
const ADDRESS_SPACE: std::ops::RangeInclusive<u64> = (1 << 47) - (1 << 16)..=1 << 47;

/// Runs `rkey ls`.
pub(crate) fn run(args: &LsArgs) -> anyhow::Result<()> {
    let managers = connection_managers(args.pid)?;
    let Found { devices, silent } = find_all(args.pid, !managers.is_empty())?;
    if args.json {
        let entries = entries(devices, managers);
        println!("{}", serde_json::to_string_pretty(&entries)?);
        return Ok(());
    }
    let (unused, shown): (Vec<_>, Vec<_>) = devices.iter().partition(|it| is_unused(it, &devices));
    match args.pid {
        Some(_) => shown.into_iter().for_each(process::print),
        None if shown.is_empty() && silent.is_empty() && !managers.is_empty() => {}
        None => print_all(&shown, &silent),
    }
    print!("{}", connections::text(&managers, style::colour()));
    if !unused.is_empty() {
        println!(
            "Not shown: {} without objects, in processes that use another device (libfabric opens one just to query it).",
            style::count(unused.len(), "device")
        );
    }
    Ok(())
}

/// An element of `--json`.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    /// A device. The first one of a process also has its connection managers.
    Device {
        #[serde(flatten)]
        device: Box<Inspection>,
        connection_managers: Vec<CmView>,
    },
    /// A process without a device.
    Process {
        pid: u32,
        uid: u32,
        command: String,
        connection_managers: Vec<CmView>,
    },
}

fn entries(devices: Vec<Inspection>, mut managers: Vec<CmView>) -> Vec<Entry> {
    let mut take = |pid: u32| -> Vec<CmView> {
        let (its, others) = std::mem::take(&mut managers)
            .into_iter()
            .partition(|it| it.pid == pid);
        managers = others;
        its
    };
    let mut all: Vec<Entry> = Vec::new();
    for device in devices {
        let connection_managers = take(device.pid);
        let device = Box::new(device);
        all.push(Entry::Device {
            device,
            connection_managers,
        });
    }
    while let Some(first) = managers.first().cloned() {
        let (its, others) = managers.into_iter().partition(|it| it.pid == first.pid);
        managers = others;
        all.push(Entry::Process {
            pid: first.pid,
            uid: first.uid,
            command: first.command,
            connection_managers: its,
        });
    }
    all
}

/// The connection managers of this user, or of one process.
pub(crate) fn connection_managers(pid: Option<u32>) -> anyhow::Result<Vec<CmView>> {
    let config = rkey::Config::from_env()?;
    let listing = rkey_device::cm::list(&config)
        .context("cannot list the connection managers of this host")?;
    let mut managers = listing.managers;
    managers.retain(|it| pid.is_none_or(|pid| it.pid == pid));
    Ok(managers)
}

/// Whether a device has no objects, and its process uses another one.
fn is_unused(device: &Inspection, all: &[Inspection]) -> bool {
    let is_empty = |it: &Inspection| it.protection.domains.is_empty() && it.qps.is_empty();
    let beside = |it: &Inspection| it.pid == device.pid && it.node != device.node && !is_empty(it);
    is_empty(device) && all.iter().any(beside)
}

/// The devices of this user, or of one process. Without `pid`, names the processes whose devices run another version of rkey
/// on standard error; with it, such a process is an error. So is one without a device, unless it `is_known` otherwise.
pub(crate) fn find(pid: Option<u32>, is_known: bool) -> anyhow::Result<Vec<Inspection>> {
    find_all(pid, is_known).map(|found| found.devices)
}

/// The devices that respond, and the processes that do not.
struct Found {
    devices: Vec<Inspection>,
    silent: Vec<SilentProcess>,
}

/// Like [`find`], but also returns the processes that do not respond.
fn find_all(pid: Option<u32>, is_known: bool) -> anyhow::Result<Found> {
    let config = rkey::Config::from_env()?;
    let listing = list_all(&config).context("cannot list the devices of this host")?;
    let (mut devices, others) = (listing.devices, listing.other_versions);
    for other in others.iter().filter(|_| pid.is_none()) {
        eprintln!("{other}. Use the `rkey` command of that version.");
    }
    if let Some(pid) = pid {
        devices.retain(|device| device.pid == pid);
        if let Some(other) = others.iter().find(|other| other.pid == Some(pid))
            && devices.is_empty()
        {
            anyhow::bail!("{other}");
        }
        if let Some(silent) = listing.silent.iter().find(|it| it.pid == pid)
            && devices.is_empty()
        {
            let error = anyhow::anyhow!("process {pid} has a device open, but {}", state(silent));
            let advice = match silent.stopped {
                true => "resume the process with `kill -CONT PID`, or in its debugger",
                false => "wait until the process is less busy, or attach a debugger to it",
            };
            return Err(hinted(error, advice));
        }
        if devices.is_empty() && !is_known {
            let error = anyhow::anyhow!("process {pid} has no device open, or does not respond");
            return Err(hinted(error, "`rkey ls` lists all processes with a device"));
        }
    }
    let silent = listing.silent;
    Ok(Found { devices, silent })
}

/// Why a process does not respond.
fn state(silent: &SilentProcess) -> &'static str {
    match silent.stopped {
        true => "is stopped",
        false => "does not respond",
    }
}

fn print_all(devices: &[&Inspection], silent: &[SilentProcess]) {
    if devices.is_empty() && silent.is_empty() {
        println!(
            "No process of this user in this network namespace has a device of this version of rkey open."
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
    for process in silent {
        let program = process.program.as_deref().unwrap_or("?");
        let command = format!("{program} ({})", state(process));
        table.add_row([process.pid.to_string(), command]);
    }
    println!("{table}");
    println!(
        "`rkey ls PID` shows details of one process, `rkey explain PID` why accesses were denied."
    );
}

/// The total size of the regions in bytes, without those that cover the whole address space.
fn registered(device: &Inspection) -> u64 {
    let regions = &device.protection.regions;
    let everything = regions.iter().filter(|r| is_everything(r.base, r.len));
    let total = device.protection.total_bytes;
    total.saturating_sub(everything.map(|r| r.len).sum())
}

/// How many other devices a device has links to.
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
    fn a_device_without_objects_is_omitted_next_to_a_used_one() {
        let (one, other) = (rkey::Device::open().unwrap(), rkey::Device::open().unwrap());
        let _domain = one.domain().unwrap();
        let all = [one.inspect().unwrap(), other.inspect().unwrap()];
        assert!(!is_unused(&all[0], &all) && is_unused(&all[1], &all));
        assert!(!is_unused(&all[1], &all[1..]), "it is the only one");
    }
}
