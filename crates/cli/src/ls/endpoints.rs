//! The endpoints of a libfabric program, and the operations and peers that they wait for.

use crate::style;
use rkey_device::Inspection;
use rkey_device::describe::{EndpointView, PeerView, Traffic};
use std::fmt::Write;

/// All endpoints of a device, as text.
pub(super) fn text(device: &Inspection, colour: bool) -> String {
    let mut text = format!("Endpoints: {}\n", device.endpoint_count);
    for endpoint in &device.endpoints {
        add(&mut text, device, endpoint, colour);
    }
    let hidden = device.endpoint_count - device.endpoints.len().min(device.endpoint_count);
    if hidden > 0 {
        let _ = writeln!(text, "... and {hidden} more");
    }
    text.push('\n');
    text
}

fn add(text: &mut String, device: &Inspection, endpoint: &EndpointView, colour: bool) {
    let name = endpoint.name.as_deref().unwrap_or("an unknown address");
    let (number, ep_type) = (endpoint.number, &endpoint.ep_type);
    let _ = writeln!(text, "endpoint {number}, {ep_type} at {name}");
    let Some(traffic) = &endpoint.traffic else {
        text.push_str("  busy: the program is holding the endpoint's lock; try again\n");
        return;
    };
    let wanted = traffic
        .wanted_tags
        .iter()
        .map(|&(tag, ignore)| match ignore {
            0 => format!("{tag:#x}"),
            u64::MAX => "any".to_owned(),
            _ => format!("{tag:#x} (ignoring bits {ignore:#x})"),
        });
    let _ = write!(
        text,
        "  posted receives: {}{}{}\n  unexpected messages: {}{}{}\n",
        of_them(traffic.receives, traffic.tagged_receives),
        match traffic.shared_receives {
            true => ", shared with other endpoints",
            false => "",
        },
        tags(wanted, traffic.tagged_receives),
        of_them(traffic.unexpected, traffic.tagged_unexpected),
        match traffic.unexpected_from {
            0 => String::new(),
            peers => format!(", from {}", style::count(peers, "peer")),
        },
        tags(
            traffic
                .unexpected_tags
                .iter()
                .map(|tag| format!("{tag:#x}")),
            traffic.tagged_unexpected
        ),
    );
    let _ = writeln!(
        text,
        "  operations in progress: {}, collective: {}; unread completions: {}",
        traffic.operations, traffic.collectives, traffic.completions
    );
    if !traffic.listed.is_empty() {
        add_peers(text, device, traffic, colour);
    }
}

/// The first of `all` tags as text, followed by "..." if there are more.
fn tags(first: impl Iterator<Item = String>, all: usize) -> String {
    let mut tags: Vec<String> = first.collect();
    if tags.is_empty() {
        return String::new();
    }
    if all > tags.len() {
        tags.push("...".to_owned());
    }
    format!("; tags {}", tags.join(", "))
}

/// The total of `plain` and `tagged`, and how many of these have a tag.
fn of_them(plain: usize, tagged: usize) -> String {
    match tagged {
        0 => plain.to_string(),
        _ => format!("{} ({tagged} with a tag)", plain + tagged),
    }
}

fn add_peers(text: &mut String, device: &Inspection, traffic: &Traffic, colour: bool) {
    let header = [
        "fi_addr",
        "peer",
        "pid",
        "connection",
        "requests",
        "unanswered",
        "credit",
        "receives",
        "messages",
    ];
    let mut table = style::table(colour, header);
    for peer in &traffic.listed {
        let number = peer.number.map_or_else(String::new, |it| it.to_string());
        table.add_row([
            number,
            short(&peer.address).to_owned(),
            pid(device, peer),
            peer.connection.clone(),
            peer.outstanding.to_string(),
            peer.unanswered.to_string(),
            match peer.out_of_credit {
                true => "used up".to_owned(),
                false => String::new(),
            },
            peer.receives.to_string(),
            peer.unexpected.to_string(),
        ]);
    }
    let _ = writeln!(text, "{table}");
    let hidden = traffic.peers.saturating_sub(traffic.listed.len());
    if hidden > 0 {
        let _ = writeln!(text, "... and {hidden} more");
    }
}

/// An address without its format, which is the endpoint's.
fn short(address: &str) -> &str {
    address.split_once("://").map_or(address, |(_, rest)| rest)
}

/// The process of a peer, if a queue pair is connected to it.
fn pid(device: &Inspection, peer: &PeerView) -> String {
    let qp = device.qps.iter().find(|qp| Some(qp.qpn) == peer.qpn);
    let node = qp.and_then(|qp| qp.peer);
    node.map_or_else(String::new, |node| match super::departed(device, node) {
        Some(peer) => format!("{peer} has exited"),
        None => node.pid.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_list_shows_pending_work_and_counts_omitted_entries() {
        let mut device = rkey::Device::open().unwrap().inspect().unwrap();
        assert_eq!(text(&device, false), "Endpoints: 0\n\n");
        let peer = |number: u64| PeerView {
            address: format!("fi_sockaddr_in://127.0.0.1:{number}"),
            number: Some(number),
            connection: "open".to_owned(),
            out_of_credit: number == 7,
            unanswered: 31,
            ..PeerView::default()
        };
        let traffic = Traffic {
            receives: 1,
            tagged_receives: 4,
            unexpected: 2,
            unexpected_from: 1,
            wanted_tags: vec![(5, 0), (0x70, 0xf), (1, u64::MAX)],
            unexpected_tags: vec![99],
            peers: 12,
            listed: vec![peer(7), peer(8)],
            ..Traffic::default()
        };
        let endpoint = |number, traffic| EndpointView {
            number,
            ep_type: "FI_EP_RDM".to_owned(),
            name: None,
            traffic,
        };
        device.endpoints = vec![endpoint(0, Some(traffic)), endpoint(1, None)];
        device.endpoint_count = 5;
        let text = text(&device, false);
        for words in [
            "Endpoints: 5\nendpoint 0, FI_EP_RDM at an unknown address\n",
            "posted receives: 5 (4 with a tag); tags 0x5, 0x70 (ignoring bits 0xf), any, ...\n",
            "unexpected messages: 2, from 1 peer; tags 0x63\n",
            "127.0.0.1:7",
            "31",
            "... and 10 more\nendpoint 1",
            "  busy: ",
            "... and 3 more\n",
        ] {
            assert!(text.contains(words), "{words} is missing in {text}");
        }
        assert_eq!(text.matches("used up").count(), 1, "{text}");
    }
}
