//! Captures of links between the processes of one host, which have no packets: shows what passes as packets of RoCEv2.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use rkey_engine::QpType;
use rkey_engine::groups::{GROUP_QPN, RAW_FRAMES_KEY};
use rkey_link::observed::{Direction, Observer};
use rkey_link::{AnyLink, Header, Link, LinkRole, NodeId, Ticket};
use rkey_roce::icrc::{Flow, PORT};
use rkey_roce::packet::{Headers, Packet};

use super::Capture;
use super::packets::{Packets, Sink};
use crate::objects::QpTable;

/// `fe80::/64`, which no route leads to.
const LINK_LOCAL: u128 = 0xfe80 << 112;
/// The first port that programs get from the system.
const FIRST_PORT: u16 = 0xc000;

/// Captures the links of a device.
#[derive(Debug)]
pub(crate) struct LinkCapture {
    capture: Arc<Capture>,
    qps: Arc<QpTable>,
    node: NodeId,
}

impl LinkCapture {
    pub(crate) fn new(capture: Arc<Capture>, qps: &Arc<QpTable>, node: NodeId) -> Self {
        let qps = Arc::clone(qps);
        Self { capture, qps, node }
    }

    /// Captures what passes the link from now on.
    pub(crate) fn observe(&self, link: AnyLink) -> AnyLink {
        let (ours, theirs) = (self.node, link.node());
        let observer = LinkObserver {
            packets: Packets::default(),
            is_loopback: link.role() == LinkRole::Both,
            output: Output {
                sent: (from_port(ours), to_port(theirs)),
                received: (from_port(theirs), to_port(ours)),
                capture: Arc::clone(&self.capture),
                datagram: Vec::new(),
            },
            qps: Arc::clone(&self.qps),
        };
        link.observed(Box::new(observer))
    }

    /// Waits, for a limited time, until everything is in the file.
    pub(crate) fn flush(&self) {
        self.capture.flush();
    }
}

/// The observer of one link.
#[derive(Debug)]
struct LinkObserver {
    packets: Packets,
    /// Whether both ends of the link are ours. Then each packet is shown once.
    is_loopback: bool,
    output: Output,
    qps: Arc<QpTable>,
}

impl Observer for LinkObserver {
    fn fragment(&mut self, direction: Direction, header: &Header, payload: &[u8]) {
        // A request when it arrives, and a response when it is sent.
        if self.is_loopback && (direction == Direction::Sent) != header.op.is_response() {
            return;
        }
        let qp_type = match direction {
            Direction::Sent => self.qps.type_of(header.src_qp),
            Direction::Received if header.dst_qp != GROUP_QPN => self.qps.type_of(header.dst_qp),
            // For a multicast group, or for everything that receives frames.
            Direction::Received if header.key == RAW_FRAMES_KEY => Some(QpType::Raw),
            Direction::Received => Some(QpType::Ud),
        };
        self.packets
            .fragment(direction, qp_type, header, payload, &mut self.output);
    }

    fn acknowledged(&mut self, direction: Direction, ticket: Ticket) {
        if self.is_loopback && direction == Direction::Received {
            return;
        }
        self.packets
            .acknowledged(direction, ticket, &mut self.output);
    }
}

/// Where the packets go.
#[derive(Debug)]
struct Output {
    sent: (SocketAddr, SocketAddr),
    received: (SocketAddr, SocketAddr),
    capture: Arc<Capture>,
    datagram: Vec<u8>,
}

impl Sink for Output {
    fn packet(&mut self, direction: Direction, headers: &Headers, payload: &[u8]) {
        let addresses = match direction {
            Direction::Sent => self.sent,
            Direction::Received => self.received,
        };
        self.datagram.clear();
        let packet = Packet {
            headers: *headers,
            payload,
        };
        let Some(flow) = Flow::new(addresses.0, addresses.1) else {
            return;
        };
        // A combination that RoCEv2 lacks has no packet.
        if packet.encode(&mut self.datagram).is_ok() {
            flow.seal(&mut self.datagram, 0);
            self.capture.add(addresses, [(0, &self.datagram[..])]);
        }
    }
}

/// The address of a sending device. The port tells the devices of a process apart.
fn from_port(node: NodeId) -> SocketAddr {
    let port = FIRST_PORT | node.nonce as u16 & !FIRST_PORT;
    SocketAddrV6::new(address(node), port, 0, 0).into()
}

fn to_port(node: NodeId) -> SocketAddr {
    SocketAddrV6::new(address(node), PORT, 0, 0).into()
}

/// An address that shows the process ID: its hexadecimal digits are the decimal digits of the number.
fn address(node: NodeId) -> Ipv6Addr {
    let (mut rest, mut digits, mut shift) = (node.pid, 0, 0);
    while rest > 0 {
        digits |= u128::from(rest % 10) << shift;
        rest /= 10;
        shift += 4;
    }
    Ipv6Addr::from_bits(LINK_LOCAL | digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_shows_the_process_id() {
        let text = |pid| address(NodeId { pid, nonce: 0 }).to_string();
        assert_eq!(text(1), "fe80::1");
        assert_eq!(text(4321), "fe80::4321");
        assert_eq!(text(4_194_304), "fe80::419:4304");
        assert_eq!(text(u32::MAX), "fe80::42:9496:7295");
    }
}
