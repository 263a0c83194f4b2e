//! Packets to send. Consecutive packets of one length to one host leave in one system call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rkey_roce::icrc::{self, Flow};
use rkey_roce::packet::{Body, Packet, Request, only_acknowledges};
use rkey_roce::transport::{ATTACHED_LEN, attach};

use super::socket::{DatagramSent, MAX_SEGMENTS, Port};
use crate::capture::Capture;
use crate::ecn::Ecn;

/// How many bytes one system call may send: slightly fewer than the longest UDP datagram.
const MAX_BYTES: usize = 65_000;
/// A datagram of this length fits into the smallest path MTU, 256 bytes and headers.
const ALWAYS_FITS: usize = 256;
/// How many bytes to collect before sending.
const FULL: usize = 512 << 10;

/// Packets from this process to other hosts, in order, with room for their checksums.
#[derive(Debug, Default)]
pub(crate) struct OutgoingPackets {
    bytes: Vec<u8>,
    packets: Vec<OnePacket>,
}

#[derive(Clone, Copy, Debug)]
struct OnePacket {
    local: IpAddr,
    remote: IpAddr,
    /// The length of the packet with its checksum, in bytes.
    length: usize,
    ecn: Ecn,
}

impl OutgoingPackets {
    /// Adds a packet.
    pub(crate) fn push(&mut self, local: IpAddr, remote: IpAddr, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.bytes.extend_from_slice(&[0; icrc::LEN]);
        self.packets.push(OnePacket {
            local,
            remote,
            length: packet.len() + icrc::LEN,
            ecn: Ecn::of_packet(packet),
        });
    }

    /// Moves the packets of `others` behind these.
    pub(crate) fn append(&mut self, others: &mut Self) {
        self.bytes.append(&mut others.bytes);
        self.packets.append(&mut others.packets);
    }

    /// Whether all packets [only acknowledge](only_acknowledges).
    pub(crate) fn only_acknowledge(&self) -> bool {
        self.packets()
            .all(|(_, _, packet)| only_acknowledges(packet))
    }

    /// [Attaches](attach) the acknowledgement that is the only packet of `held` to the last of these packets, and removes it from `held`.
    /// Does nothing unless these packets leave in one system call, and none but the last ends a message.
    pub(crate) fn attach(&mut self, held: &mut Self) {
        let (&[acknowledgement], Some(&last)) = (&held.packets[..], self.packets.last()) else {
            return;
        };
        let (count, end) = (self.packets.len(), self.bytes.len());
        let most = match &self.packets[..] {
            [first, _, ..] => first.length,
            _ if self.packets().all(|(.., packet)| is_send(packet)) => usize::MAX,
            _ => ALWAYS_FITS,
        };
        let (all, overhead) = (self.packets.iter(), super::seal::overhead(true));
        let fits = (last.local, last.remote) == (acknowledgement.local, acknowledgement.remote)
            && last.length + ATTACHED_LEN <= most
            && end + ATTACHED_LEN + count * overhead <= MAX_BYTES
            && leading(all, MAX_SEGMENTS, overhead) == count
            && self.ends_at_most_one_message();
        if !fits {
            return;
        }
        let bytes = &held.bytes[..held.bytes.len() - icrc::LEN];
        self.bytes.truncate(end - icrc::LEN);
        if attach(&mut self.bytes, end - last.length, bytes) {
            self.packets[count - 1].length += ATTACHED_LEN;
            held.clear();
        }
        self.bytes.extend_from_slice(&[0; icrc::LEN]);
    }

    /// Whether no packet but the last ends a message.
    fn ends_at_most_one_message(&self) -> bool {
        let others = self.packets.len().saturating_sub(1);
        self.packets().take(others).all(|(_, _, packet)| {
            let body = Packet::decode(packet).map(|it| it.headers.body);
            matches!(body, Ok(Body::Request(_, request)) if !request.position().ends())
        })
    }

    /// Whether all these packets, followed by `last`, can leave in one system call.
    pub(crate) fn share_a_call_with(&self, last: &Self) -> bool {
        let all = self.packets.iter().chain(&last.packets);
        let count = self.packets.len() + last.packets.len();
        leading(all, MAX_SEGMENTS, super::seal::overhead(true)) == count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether to send before adding more packets.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }

    /// Sends all packets through the sockets of their source addresses, and captures them. Returns how many were sent, and how many
    /// were lost.
    pub(super) fn send(&mut self, ports: &[Port], capture: Option<&Arc<Capture>>) -> (u64, u64) {
        let (mut sent, mut lost) = (0, 0);
        let mut bytes = &mut self.bytes[..];
        let mut packets = &self.packets[..];
        while let Some(first) = packets.first() {
            let port = ports.iter().find(|it| it.address.ip() == first.local);
            let most = port.map_or(1, Port::max_datagrams);
            let count = leading(packets.iter(), most, port.map_or(0, Port::overhead));
            let (group, more) = packets.split_at(count);
            let length = group.iter().map(|it| it.length).sum();
            let (datagrams, rest) = std::mem::take(&mut bytes).split_at_mut(length);
            let to = SocketAddr::new(first.remote, icrc::PORT);
            let done = port.is_some_and(|port| {
                if !seal(port.address, to, datagrams, first.length) {
                    return false;
                }
                if let Some(capture) = capture {
                    let each = (0..).zip(datagrams.chunks(first.length));
                    capture.add((port.address, to), each);
                }
                send_or_wait(port, || port.send(to, datagrams, first.length))
            });
            *(if done { &mut sent } else { &mut lost }) += count as u64;
            (packets, bytes) = (more, rest);
        }
        self.clear();
        (sent, lost)
    }

    /// The packets in order, without their checksums: source, destination, bytes.
    pub(crate) fn packets(&self) -> impl Iterator<Item = (IpAddr, IpAddr, &[u8])> {
        let mut rest = &self.bytes[..];
        self.packets.iter().map(move |it| {
            let (bytes, more) = rest.split_at(it.length);
            rest = more;
            (it.local, it.remote, &bytes[..it.length - icrc::LEN])
        })
    }

    /// Removes all packets.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }
}

/// The number of packets at the start of the list that can leave in one system call: all go to one host and have the same congestion
/// bits and one length, except that the last may be shorter. A datagram has `overhead` more bytes than its packet.
fn leading<'a>(
    mut packets: impl Iterator<Item = &'a OnePacket>,
    most: usize,
    overhead: usize,
) -> usize {
    let Some(first) = packets.next() else {
        return 0;
    };
    let mut count = 1;
    let mut bytes = first.length + overhead;
    for packet in packets {
        bytes += packet.length + overhead;
        let is_alike =
            (packet.local, packet.remote, packet.ecn) == (first.local, first.remote, first.ecn);
        if !is_alike || packet.length > first.length || count >= most || bytes > MAX_BYTES {
            break;
        }
        count += 1;
        if packet.length < first.length {
            break;
        }
    }
    count
}

/// Whether a packet is a send. With an acknowledgement, it is no longer than a write with as much data and immediate data, for
/// which every path MTU has room ([`fitting`](super::addresses::fitting)).
fn is_send(packet: &[u8]) -> bool {
    let body = Packet::decode(packet).map(|it| it.headers.body);
    matches!(body, Ok(Body::Request(_, Request::SendOnly(_))))
}

/// Writes the checksums. The kernel numbers the datagrams of a call 0, 1, 2 and so on.
fn seal(from: SocketAddr, to: SocketAddr, datagrams: &mut [u8], each: usize) -> bool {
    let Some(flow) = Flow::new(from, to) else {
        return false;
    };
    for (identification, datagram) in (0..).zip(datagrams.chunks_mut(each)) {
        if let Some((packet, checksum)) = datagram.split_last_chunk_mut() {
            *checksum = flow.checksum(packet, identification);
        }
    }
    true
}

/// Sends, and waits once for room. Packets that still do not fit are lost; like packets that the network loses, they
/// are sent again.
pub(super) fn send_or_wait(port: &Port, send: impl Fn() -> DatagramSent) -> bool {
    match send() {
        DatagramSent::Busy => {
            port.wait_for_room();
            send() == DatagramSent::Yes
        }
        sent => sent == DatagramSent::Yes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WireConfig;
    use crate::wire::Wire;
    use crate::wire::tests::{PATIENCE, address, wait_until};
    use rkey_roce::packet::{
        Aeth, Credits, Headers, Psn, Reliable, Response, Reth, Service, Syndrome, Tail,
    };
    use std::io;

    fn packet(remote: u8, length: usize) -> OnePacket {
        OnePacket {
            local: [10, 0, 0, 1].into(),
            remote: [10, 0, 0, remote].into(),
            length,
            ecn: Ecn::default(),
        }
    }

    #[test]
    fn packets_of_one_length_to_one_host_share_a_system_call() {
        let lengths = |all: &[(u8, usize)]| {
            let packets: Vec<_> = all
                .iter()
                .map(|(to, length)| packet(*to, *length))
                .collect();
            leading(packets.iter(), 64, 0)
        };
        assert_eq!(lengths(&[]), 0);
        assert_eq!(lengths(&[(2, 100)]), 1);
        assert_eq!(lengths(&[(2, 100), (2, 100), (2, 40), (2, 40)]), 3);
        assert_eq!(lengths(&[(2, 100), (2, 104)]), 1);
        assert_eq!(lengths(&[(2, 100), (3, 100)]), 1);
        assert_eq!(lengths(&[(2, 4000); 20]), 16);
        assert_eq!(leading([packet(2, 10); 20].iter(), 7, 0), 7);
        assert_eq!(leading([packet(2, 4000); 20].iter(), 64, 100), 15);
        let mut marked = [packet(2, 10); 4];
        marked[2].ecn = Ecn::CONGESTED;
        assert_eq!(leading(marked.iter(), 64, 0), 2);
    }

    fn encoded(body: Body, length: usize, psn: u32, reserved: u16) -> Vec<u8> {
        let mut headers = Headers::new(7, Psn::new(psn), body);
        (headers.migrated, headers.reserved) = (true, reserved);
        let payload = &vec![5; length];
        let mut bytes = Vec::new();
        let packet = Packet { headers, payload };
        packet.encode(&mut bytes).unwrap();
        bytes
    }

    /// Answers, by the lengths of their packets' payloads, and the lengths of all packets when an acknowledgement leaves with
    /// them.
    #[test]
    fn an_acknowledgement_is_attached_to_an_answer_that_leaves_in_one_call() {
        let [here, there, elsewhere] = [1, 2, 3].map(|it| IpAddr::from([10, 0, 0, it]));
        let only = [Request::SendOnly(Tail::None)];
        let long = [
            Request::SendFirst,
            Request::SendMiddle,
            Request::SendLast(Tail::None),
        ];
        let aeth = Aeth {
            syndrome: Syndrome::Ack(Credits::UNLIMITED),
            msn: 0,
        };
        let body = Body::Response(Reliable::Rc, Response::Acknowledge(aeth));
        let acknowledgement = encoded(body, 0, 9, 1);
        let lengths = |requests: &[Request], payloads: &[usize], to: IpAddr| -> Vec<usize> {
            let mut outgoing = OutgoingPackets::default();
            outgoing.push(here, elsewhere, b"of another call");
            outgoing.clear();
            for (request, length) in requests.iter().zip(payloads) {
                let body = Body::Request(Service::Rc, *request);
                outgoing.push(here, there, &encoded(body, *length, 1, 0));
            }
            let mut held = OutgoingPackets::default();
            held.push(here, to, &acknowledgement);
            outgoing.attach(&mut held);
            let all = outgoing.packets().chain(held.packets());
            all.map(|(.., packet)| packet.len()).collect()
        };
        assert_eq!(lengths(&only, &[8], there), [12 + 8 + 16]);
        assert_eq!(lengths(&only, &[8], elsewhere), [20, 16]);
        assert_eq!(lengths(&only, &[1024], there), [12 + 1024 + 16]);
        let reth = Reth {
            address: 0,
            rkey: 1,
            length: 4,
        };
        let write = [Request::WriteOnly(reth, None)];
        assert_eq!(lengths(&write, &[208], there), [28 + 208 + 16]);
        assert_eq!(lengths(&write, &[209], there), [28 + 212, 16], "too long");
        let payloads = [1024, 1024, 1008];
        assert_eq!(lengths(&long, &payloads, there), [1036; 3]);
        let payloads = [1024, 1024, 1009];
        assert_eq!(lengths(&long, &payloads, there), [1036, 1036, 1024, 16]);
        let two = [only[0]; 2];
        assert_eq!(lengths(&two, &[100, 20], there), [112, 32, 16]);
        assert_eq!(lengths(&long[1..], &[20, 100], there), [32, 112, 16]);
        assert_eq!(lengths(&[], &[], there), [16]);
        assert_eq!(lengths(&[Request::SendFirst], &[20], there), [12 + 20 + 16]);
    }

    #[test]
    fn the_checksum_covers_the_identification_of_each_datagram() {
        let (from, to) = (
            "10.0.0.1:4791".parse().unwrap(),
            "10.0.0.2:4791".parse().unwrap(),
        );
        let mut datagrams = vec![7; 3 * 32];
        assert!(seal(from, to, &mut datagrams, 32));
        let flow = Flow::new(from, to).unwrap();
        for (number, datagram) in datagrams.chunks(32).enumerate() {
            let opened = flow.open(datagram).unwrap();
            assert_eq!(opened.identification, Some(number as u16));
        }
        assert!(!seal(
            from,
            "[fd00::1]:4791".parse().unwrap(),
            &mut datagrams,
            32
        ));
    }

    /// Routers may mark packets of reliable connections, because their sender reacts; but not others.
    #[test]
    fn packets_leave_with_the_congestion_bits_of_their_service() {
        let mut config = crate::Config::default();
        config.set("RKEY_FAULT", "duplicate=1%").unwrap();
        let faulty = config.wire;
        let sealed = WireConfig {
            key: crate::config::WireKey::new(&[1; 32]),
            ..faulty.clone()
        };
        for setting in [WireConfig::OFF, faulty, sealed] {
            let bits = |service| congestion_bits(&setting, service);
            assert_eq!(bits(Service::Rc), Some(quinn_udp::EcnCodepoint::Ect0));
            let datagram = Service::Ud(rkey_roce::packet::Deth { qkey: 1, source: 2 });
            assert_eq!([Service::Uc, datagram].map(bits), [None; 2]);
        }
    }

    /// The congestion bits of a packet with this service that a wire sends.
    fn congestion_bits(setting: &WireConfig, service: Service) -> Option<quinn_udp::EcnCodepoint> {
        let (ip, receiver) = (address(), address());
        let wire = Wire::open(&[ip], setting).unwrap();
        let to = SocketAddr::new(receiver, icrc::PORT);
        let socket = std::net::UdpSocket::bind(to).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let state = quinn_udp::UdpSocketState::new((&socket).into()).unwrap();
        let body = Body::Request(service, Request::SendOnly(Tail::None));
        let headers = Headers::new(7, Psn::new(1), body);
        let mut bytes = Vec::new();
        let packet = Packet {
            headers,
            payload: b"data",
        };
        packet.encode(&mut bytes).unwrap();
        let mut outgoing = OutgoingPackets::default();
        outgoing.push(ip, receiver, &bytes);
        wire.send(&mut outgoing);
        let (mut buffer, mut meta) = ([0; 2000], [quinn_udp::RecvMeta::default()]);
        wait_until(|| {
            let mut slices = [io::IoSliceMut::new(&mut buffer)];
            let received = state.recv((&socket).into(), &mut slices, &mut meta);
            received.is_ok_and(|count| count == 1)
        });
        meta[0].ecn
    }
}
