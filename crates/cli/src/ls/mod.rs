//! `rkey ls`: the live processes of this user that have a device open.

mod endpoints;

use crate::failure::hinted;
use crate::style;
use anyhow::Context;
use clap::Args;
use comfy_table::Table;
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

/// Rows of one kind that are printed at most; JSON has them all.
const SHOWN: usize = 50;

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
        Some(_) => shown.into_iter().for_each(print_one),
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

/// Who does the device's work, in words.
fn driver(name: &str) -> String {
    match name {
        "program" => "driven by the program, which polls".to_owned(),
        "thread" => "driven by its own thread, as the program does not poll".to_owned(),
        _ => "at rest: it has nothing to do".to_owned(),
    }
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

fn print_one(device: &Inspection) {
    println!(
        "process {} (user {}): {}",
        device.pid, device.uid, device.command
    );
    println!("device {}, {}\n", device.node, driver(&device.driver));
    let colour = style::colour();

    let mut table = style::table(
        colour,
        [
            "domain",
            "regions",
            "windows",
            "queue pairs",
            "shared receive queues",
        ],
    );
    let domains = &device.protection.domains;
    add(&mut table, domains, |domain| {
        let id = domain.id.0;
        let qps = device.qps.iter().filter(|qp| qp.domain == id).count();
        let srqs = device.srqs.iter().filter(|srq| srq.domain == id).count();
        let children = &domain.children;
        vec![
            id.to_string(),
            children.regions.to_string(),
            children.windows.to_string(),
            qps.to_string(),
            srqs.to_string(),
        ]
    });
    show("Domains", &table, domains.len());

    let header = [
        "region", "domain", "address", "bytes", "rights", "state", "windows",
    ];
    let mut table = style::table(colour, header);
    let regions = &device.protection.regions;
    add(&mut table, regions, |region| {
        vec![
            format!("{:#x}", region.id),
            region.domain.0.to_string(),
            format!("{:#x}", region.base),
            extent(region.base, region.len),
            region.access.to_string(),
            region.state.clone(),
            region.windows.to_string(),
        ]
    });
    show("Regions", &table, device.regions);

    let mut table = style::table(colour, ["window", "domain", "kind", "bound to"]);
    let windows = &device.protection.windows;
    add(&mut table, windows, |window| {
        let bound = window.binding.as_ref().map_or_else(
            || "nothing".to_owned(),
            |b| {
                format!(
                    "{} at {:#x} of region {:#x}: {}",
                    style::bytes(b.len),
                    b.base,
                    b.region,
                    b.access
                )
            },
        );
        vec![
            format!("{:#x}", window.id),
            window.domain.0.to_string(),
            window.kind.to_string(),
            bound,
        ]
    });
    show("Windows", &table, device.windows);

    let header = [
        "queue pair",
        "type",
        "state",
        "domain",
        "peer",
        "sends",
        "receives",
    ];
    let mut table = style::table(colour, header);
    add(&mut table, &device.qps, |qp| {
        let peer = match (qp.peer_qpn, qp.peer) {
            (Some(qpn), Some(node)) => match departed(device, node) {
                Some(peer) => format!("{qpn:#x} of {peer}, which has exited"),
                None => format!("{qpn:#x} of pid {}", node.pid),
            },
            (Some(qpn), None) => format!("{qpn:#x}"),
            (None, _) => "none".to_owned(),
        };
        vec![
            format!("{:#x}", qp.qpn),
            qp.qp_type.clone(),
            qp.state.clone(),
            qp.domain.to_string(),
            peer,
            qp.sends.to_string(),
            qp.receives.to_string(),
        ]
    });
    show("Queue pairs", &table, device.qps.len());

    let header = ["shared receive queue", "domain", "receives", "queue pairs"];
    let mut table = style::table(colour, header);
    add(&mut table, &device.srqs, |srq| {
        vec![
            srq.number.to_string(),
            srq.domain.to_string(),
            format!("{} of {}", srq.used, srq.depth),
            srq.users.to_string(),
        ]
    });
    show("Shared receive queues", &table, device.srqs.len());

    let mut table = style::table(colour, ["link to", "role", "works", "copies straight"]);
    add(&mut table, &device.links, |link| {
        let yes = |value| if value { "yes" } else { "no" }.to_owned();
        vec![
            format!("pid {}", link.node.pid),
            link.role.clone(),
            yes(link.up),
            yes(link.by_reference),
        ]
    });
    let title = format!(
        "Links (to {}, and to itself)",
        style::count(peers(device), "peer")
    );
    show(&title, &table, device.links.len());

    let mut table = style::table(colour, ["counter", "writes", "reads", "bytes"]);
    add(&mut table, &device.counters, |counter| {
        [
            u64::from(counter.number),
            counter.writes,
            counter.reads,
            counter.bytes,
        ]
        .iter()
        .map(ToString::to_string)
        .collect()
    });
    show("Counters", &table, device.counters.len());
    if device.endpoint_count > 0 {
        print!("{}", endpoints::text(device, colour));
    }
    println!(
        "Denied accesses: {} (`rkey explain {}`)\n",
        device.denied, device.pid
    );
}

/// The process of a device, if it has exited.
fn departed(device: &Inspection, node: NodeId) -> Option<&Departed> {
    device.departed.iter().find(|peer| peer.node == node)
}

fn is_everything(base: u64, len: u64) -> bool {
    base == 0 && ADDRESS_SPACE.contains(&len)
}

/// The bytes of a region. Front ends whose programs need not register local buffers have one over everything.
fn extent(base: u64, len: u64) -> String {
    if is_everything(base, len) {
        "all memory, for local buffers that need no region".to_owned()
    } else {
        style::bytes(len)
    }
}

/// Adds the first rows of a kind.
fn add<T>(table: &mut Table, things: &[T], row: impl Fn(&T) -> Vec<String>) {
    for thing in things.iter().take(SHOWN) {
        table.add_row(row(thing));
    }
}

fn show(title: &str, table: &Table, total: usize) {
    if total == 0 {
        println!("{title}: none\n");
        return;
    }
    println!("{title}: {total}");
    println!("{table}");
    let hidden = total.saturating_sub(table.row_iter().count());
    if hidden > 0 {
        println!("... and {hidden} more (--json has them)");
    }
    println!();
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
