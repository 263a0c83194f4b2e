//! The objects of one device, in tables.

use crate::style;
use comfy_table::Table;
use rkey_device::Inspection;
use rkey_device::core::{Access, Api, DomainId, Words};
use rkey_device::inspect::WireDrops;
use rkey_device::wire::WireDescription;

use super::{departed, endpoints, is_everything, peers};

/// The maximum number of rows in a table; JSON has all rows of the inspection.
const SHOWN: usize = 50;

/// Prints the tables.
pub(super) fn print(device: &Inspection) {
    println!(
        "process {} (user {}): {}",
        device.pid, device.uid, device.command
    );
    println!("device {}, {}\n", device.node, driver(&device.driver));
    let colour = style::colour();
    let words = device.api.words();
    domains(device, words, colour);
    regions(device, words, colour);
    windows(device, words, colour);
    queue_pairs(device, words, colour);
    if device.qps.iter().any(|qp| qp.network.is_some()) {
        network(device, words, colour);
    }
    if let Some(wire) = &device.wire {
        println!("{}\n", dropped_packets(wire, &device.wire_drops));
    }
    shared_receive_queues(device, words, colour);
    links(device, colour);
    counters(device, colour);
    if !device.caches.is_empty() {
        caches(device, words, colour);
    }
    if device.endpoint_count > 0 {
        print!("{}", endpoints::text(device, colour));
    }
    if device.object_count > 0 {
        objects(device, colour);
    }
    println!(
        "Denied accesses: {} (`rkey explain {}`)\n",
        device.denied, device.pid
    );
}

/// What drives the device, in words.
fn driver(name: &str) -> String {
    match name {
        "program" => "driven by the program, which polls".to_owned(),
        "thread" => "driven by its own thread, because the program does not poll".to_owned(),
        _ => "idle".to_owned(),
    }
}

fn domains(device: &Inspection, words: &Words, colour: bool) {
    let columns = [words.region, words.window, words.queue_pair, words.srq];
    let [regions, windows, queue_pairs, srqs] = columns.map(plural);
    let header = [words.domain, &regions, &windows, &queue_pairs, &srqs];
    let mut table = style::table(colour, header);
    let domains = &device.protection.domains;
    add(&mut table, domains, |domain| {
        let id = domain.id.number();
        let qps = device.qps.iter().filter(|qp| qp.domain == id).count();
        let srqs = device.srqs.iter().filter(|srq| srq.domain == id).count();
        let children = &domain.children;
        vec![
            name_of(device, domain.id),
            children.regions.to_string(),
            children.windows.to_string(),
            qps.to_string(),
            srqs.to_string(),
        ]
    });
    show(&title(words.domain), &table, domains.len());
}

fn regions(device: &Inspection, words: &Words, colour: bool) {
    let windows = plural(words.window);
    let header = [
        words.region,
        words.domain,
        "address",
        "bytes",
        "rights",
        "state",
        &windows,
    ];
    let mut table = style::table(colour, header);
    add(&mut table, &device.protection.regions, |region| {
        vec![
            format!("{:#x}", region.id),
            region.domain.number().to_string(),
            format!("{:#x}", region.base),
            extent(region.base, region.len),
            rights(region.domain, region.access),
            region.state.clone(),
            region.windows.to_string(),
        ]
    });
    show(&title(words.region), &table, device.regions);
}

fn windows(device: &Inspection, words: &Words, colour: bool) {
    let mut table = style::table(colour, [words.window, words.domain, "kind", "bound to"]);
    add(&mut table, &device.protection.windows, |window| {
        let bound = window.binding.as_ref().map_or_else(
            || "nothing".to_owned(),
            |b| {
                format!(
                    "{} at {:#x} of {} {:#x}: {}",
                    style::bytes(b.len),
                    b.base,
                    words.region,
                    b.region,
                    rights(window.domain, b.access)
                )
            },
        );
        vec![
            format!("{:#x}", window.id),
            window.domain.number().to_string(),
            window.kind.to_string(),
            bound,
        ]
    });
    show(&title(words.window), &table, device.windows);
}

fn queue_pairs(device: &Inspection, words: &Words, colour: bool) {
    let header = [
        words.queue_pair,
        "type",
        "state",
        words.domain,
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
            (Some(qpn), None) => match qp.host {
                Some(host) => format!("{qpn:#x} of host {host}"),
                None => format!("{qpn:#x}"),
            },
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
    show(&title(words.queue_pair), &table, device.qps.len());
}

/// What has happened to the packets between queue pairs and their peers on other hosts.
fn network(device: &Inspection, words: &Words, colour: bool) {
    let header = [
        words.queue_pair,
        "sent again",
        "timeouts",
        "sequence NAKs",
        "implied NAKs",
        "RNR NAKs",
        "RNR NAKs sent",
        "refused",
        "duplicates",
        "gaps",
        "marked",
        "CNPs sent",
        "CNPs received",
        "slowed",
    ];
    let mut table = style::table(colour, header);
    let all = device.qps.iter();
    let all: Vec<_> = all
        .filter_map(|qp| qp.network.map(|it| (qp.qpn, it)))
        .collect();
    add(&mut table, &all, |(qpn, it)| {
        vec![
            format!("{qpn:#x}"),
            it.retransmitted.to_string(),
            it.timeouts.to_string(),
            it.sequence_naks.to_string(),
            it.implied_naks.to_string(),
            it.rnr_naks.to_string(),
            it.rnr_naks_sent.to_string(),
            it.refused.to_string(),
            it.duplicates.to_string(),
            it.out_of_sequence.to_string(),
            it.marked.to_string(),
            it.cnps_sent.to_string(),
            it.cnps_received.to_string(),
            it.slowed.to_string(),
        ]
    });
    let title = format!("{} with peers on other hosts", title(words.queue_pair));
    show(&title, &table, all.len());
}

/// How many packets from other hosts were dropped, by reason.
fn dropped_packets(wire: &WireDescription, engine: &WireDrops) -> String {
    let by_socket = wire.counts.dropped.iter();
    // The names of the reasons as in JSON.
    let by_socket = by_socket.map(|(why, count)| {
        let name = serde_json::to_value(why).unwrap_or_default();
        (name.as_str().unwrap_or_default().to_owned(), *count)
    });
    let by_engine = [
        ("unknown queue pair", engine.unknown),
        ("wrong address", engine.wrong_address),
        ("not ready", engine.not_ready),
        ("paused for guessing keys", engine.paused),
    ];
    let by_engine = by_engine.map(|(why, count)| (why.to_owned(), count));
    let all: Vec<String> = by_socket
        .chain(by_engine)
        .filter(|(_, count)| *count > 0)
        .map(|(why, count)| format!("{why} {count}"))
        .collect();
    let counts = &wire.counts;
    let dropped = match all.is_empty() {
        true => "none".to_owned(),
        false => all.join(", "),
    };
    format!(
        "Packets of other hosts: {} sent, {} received, {} forwarded; dropped: {dropped}",
        counts.sent, counts.received, counts.forwarded
    )
}

fn shared_receive_queues(device: &Inspection, words: &Words, colour: bool) {
    let queue_pairs = plural(words.queue_pair);
    let header = [words.srq, words.domain, "receives", &queue_pairs];
    let mut table = style::table(colour, header);
    add(&mut table, &device.srqs, |srq| {
        vec![
            srq.number.to_string(),
            srq.domain.to_string(),
            format!("{} of {}", srq.used, srq.depth),
            srq.users.to_string(),
        ]
    });
    show(&title(words.srq), &table, device.srqs.len());
}

fn links(device: &Inspection, colour: bool) {
    let header = [
        "link to",
        "role",
        "up",
        "remote iovec",
        "warrants",
        "pushed writes",
    ];
    let mut table = style::table(colour, header);
    add(&mut table, &device.links, |link| {
        let yes = |value| if value { "yes" } else { "no" }.to_owned();
        vec![
            format!("pid {}", link.node.pid),
            link.role.clone(),
            yes(link.up),
            yes(link.remote_iovec),
            link.warrants.to_string(),
            link.pushed.to_string(),
        ]
    });
    let title = format!(
        "Links (to {}, and to itself)",
        style::count(peers(device), "peer")
    );
    show(&title, &table, device.links.len());
}

fn counters(device: &Inspection, colour: bool) {
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
}

/// Objects that front ends describe: EVDs, for example.
fn objects(device: &Inspection, colour: bool) {
    let mut table = style::table(colour, ["object", "handle", "state"]);
    add(&mut table, &device.objects, |object| {
        vec![
            object.kind.clone(),
            object.name.clone(),
            object.state.clone(),
        ]
    });
    show("Other objects", &table, device.object_count);
}

fn caches(device: &Inspection, words: &Words, colour: bool) {
    let regions = plural(words.region);
    let header = [
        words.domain,
        &regions,
        "bytes",
        "hits",
        "misses",
        "not cached",
        "evicted",
        "ended",
        "monitor",
    ];
    let mut table = style::table(colour, header);
    add(&mut table, &device.caches, |cache| {
        let counts = [
            cache.hits,
            cache.misses,
            cache.uncached,
            cache.evictions,
            cache.invalidations,
        ];
        let mut row = vec![
            cache.domain.to_string(),
            cache.entries.to_string(),
            style::bytes(cache.bytes),
        ];
        row.extend(counts.iter().map(ToString::to_string));
        row.push(match &cache.off {
            Some(off) => format!("off: {off}"),
            None => cache.monitor.clone(),
        });
        row
    });
    show("Registration caches", &table, device.caches.len());
}

/// The number of a domain, and its API if the device serves several.
fn name_of(device: &Inspection, domain: DomainId) -> String {
    let (number, api) = (domain.number(), domain.api());
    match api == device.api {
        true => number.to_string(),
        false => format!("{number} ({})", api.name()),
    }
}

/// Access rights in a domain, in the terms of its API: a DAT program sees the names of its flags.
fn rights(domain: DomainId, access: Access) -> String {
    match domain.api() {
        Api::Udapl => domain.api().names(access).to_string(),
        Api::Native | Api::Verbs | Api::Libfabric => access.to_string(),
    }
}

fn plural(noun: &str) -> String {
    format!("{noun}s")
}

/// A noun as a title: "Regions".
fn title(noun: &str) -> String {
    let mut letters = noun.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['s']).collect()
}

/// The size of a region. Front ends that let programs use unregistered local buffers have one region over all
/// memory.
fn extent(base: u64, len: u64) -> String {
    if is_everything(base, len) {
        "all memory, for local buffers that need no region".to_owned()
    } else {
        style::bytes(len)
    }
}

/// Adds the first rows.
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
        println!("... and {hidden} more (--json shows all)");
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_device::wire::{Counts, Dropped};

    #[test]
    fn dropped_packets_are_listed_by_reason() {
        let mut wire = WireDescription::default();
        let none = dropped_packets(&wire, &WireDrops::default());
        assert!(none.ends_with("0 forwarded; dropped: none"), "{none}");
        wire.counts = Counts {
            received: 7,
            dropped: vec![(Dropped::NoReceiver, 2), (Dropped::Forged, 1)],
            ..Counts::default()
        };
        let engine = WireDrops {
            wrong_address: 3,
            ..WireDrops::default()
        };
        let some = dropped_packets(&wire, &engine);
        assert!(some.contains("7 received"), "{some}");
        assert!(
            some.ends_with("dropped: no-receiver 2, forged 1, wrong address 3"),
            "{some}"
        );
    }
}
