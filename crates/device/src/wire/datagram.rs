//! Classifies a datagram as a packet for a queue pair, a message of the connection manager, or neither. The result depends only
//! on the bytes and the two addresses.

use std::net::{IpAddr, SocketAddr};

use rkey_cm::address::is_unicast;
use rkey_cm::wire::MAD;
use rkey_roce::icrc::{self, Flow};
use rkey_roce::packet::{Body, Bth, Deth, Headers, Packet, Psn, Request, Service, Tail};

use super::counters::Dropped;
use crate::ecn::Ecn;

/// The queue pair of the connection manager (GSI).
const MANAGEMENT: u32 = 1;
/// The Q_Key of the management queue pair.
const MANAGEMENT_QKEY: u32 = 0x8001_0000;
/// The default partition key: without its top bit, the sender is a limited member.
const PKEY: u16 = 0x7fff;

/// Datagrams that have arrived one after the other, and that the kernel has coalesced: they differ only in their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Incoming<'a> {
    /// The sender's address.
    pub(super) from: SocketAddr,
    /// Our address.
    pub(super) to: SocketAddr,
    pub(super) ecn: Ecn,
    /// The bytes of all datagrams.
    pub(super) bytes: &'a [u8],
    /// The length of each datagram, except the last, which may be shorter.
    pub(super) each: usize,
}

impl<'a> Incoming<'a> {
    /// How many datagrams these are.
    pub(super) fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.each.max(1)).max(1)
    }

    /// The datagrams: a single empty one if there are no bytes.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let empty = self.bytes.is_empty().then_some(self.bytes);
        empty.into_iter().chain(self.bytes.chunks(self.each.max(1)))
    }
}

/// A datagram that is ready to be sent: with its checksum, and sealed if the wire has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    /// Our address.
    pub(super) from: IpAddr,
    pub(super) to: SocketAddr,
    pub(super) ecn: Ecn,
    pub(super) bytes: Vec<u8>,
}

/// A valid datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content<'a> {
    /// A message of the connection manager.
    Management(Box<[u8; MAD]>),
    /// A packet for a queue pair.
    Packet(Packet<'a>),
}

/// Decodes datagrams that arrive one after the other between two addresses.
pub(super) struct Reader {
    /// `None` if these addresses cannot be those of a packet.
    flow: Option<Flow>,
    /// The expected identification of the next IPv4 header: senders count the datagrams that they send in one call.
    next: u16,
}

impl Reader {
    pub(super) fn new(from: SocketAddr, to: SocketAddr) -> Self {
        let is_unicast = is_unicast(from.ip().to_canonical());
        let flow = is_unicast.then(|| Flow::new(from, to)).flatten();
        Self { flow, next: 0 }
    }

    /// Decodes the next datagram.
    #[inline]
    pub(super) fn read<'a>(&mut self, datagram: &'a [u8]) -> Result<Content<'a>, Dropped> {
        let flow = self.flow.as_ref().ok_or(Dropped::Source)?;
        if datagram.len() < Bth::LEN + icrc::LEN || datagram.len() > MAX_LEN {
            return Err(Dropped::Malformed);
        }
        let opened = flow
            .open_expecting(datagram, self.next)
            .map_err(|_| Dropped::Checksum)?;
        self.next = opened.identification.unwrap_or(0).wrapping_add(1);
        let packet = Packet::decode(opened.packet).map_err(|_| Dropped::Malformed)?;
        if packet.headers.pkey & PKEY != PKEY {
            return Err(Dropped::Partition);
        }
        if packet.headers.destination != MANAGEMENT {
            return Ok(Content::Packet(packet));
        }
        message_of(&packet)
    }
}

/// The message of the connection manager in a packet to its queue pair.
#[cold]
fn message_of<'a>(packet: &Packet<'a>) -> Result<Content<'a>, Dropped> {
    let Body::Request(Service::Ud(deth), Request::SendOnly(_)) = packet.headers.body else {
        return Err(Dropped::Management);
    };
    if deth.qkey != MANAGEMENT_QKEY {
        return Err(Dropped::Management);
    }
    let mad = packet.payload.try_into().map_err(|_| Dropped::Management)?;
    Ok(Content::Management(Box::new(mad)))
}

/// The length of the longest valid datagram, in bytes.
pub(super) const MAX_LEN: usize = Headers::MAX + rkey_roce::packet::MAX_PAYLOAD + icrc::LEN;

/// Builds the datagram of a message of the connection manager, with its checksum. `psn` counts the messages.
pub(super) fn write(flow: &Flow, mad: &[u8; MAD], psn: u32) -> Vec<u8> {
    let deth = Deth {
        qkey: MANAGEMENT_QKEY,
        source: MANAGEMENT,
    };
    let body = Body::Request(Service::Ud(deth), Request::SendOnly(Tail::None));
    let packet = Packet {
        headers: Headers::new(MANAGEMENT, Psn::new(psn), body),
        payload: mad,
    };
    let mut datagram = Vec::with_capacity(LONGEST_MANAGEMENT);
    // Cannot fail: a datagram queue pair has this operation, and a message fits.
    if packet.encode(&mut datagram).is_ok() {
        flow.seal(&mut datagram, 0);
    }
    datagram
}

const LONGEST_MANAGEMENT: usize = Bth::LEN + Deth::LEN + MAD + icrc::LEN;

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_cm::wire::{Drep, Mad, Message, PrivateData};

    fn addresses() -> (SocketAddr, SocketAddr) {
        let pair = ["10.77.0.2:49332", "10.77.0.1:4791"].map(|it| it.parse().unwrap());
        (pair[0], pair[1])
    }

    fn flow() -> Flow {
        let (from, to) = addresses();
        Flow::new(from, to).unwrap()
    }

    fn mad() -> [u8; MAD] {
        let drep = Drep {
            local: 1,
            remote: 2,
            data: PrivateData::default(),
        };
        Mad::new(3, Message::Drep(drep)).encode()
    }

    fn arrive(datagram: &[u8]) -> Result<Content<'_>, Dropped> {
        let (from, to) = addresses();
        read(from, to, datagram)
    }

    /// Decodes a datagram that arrives alone.
    fn read(from: SocketAddr, to: SocketAddr, datagram: &[u8]) -> Result<Content<'_>, Dropped> {
        Reader::new(from, to).read(datagram)
    }

    /// A packet with these headers and this payload.
    fn sealed(change: impl FnOnce(&mut Headers), payload: &[u8]) -> Vec<u8> {
        let deth = Deth {
            qkey: MANAGEMENT_QKEY,
            source: 1,
        };
        let body = Body::Request(Service::Ud(deth), Request::SendOnly(Tail::None));
        let mut headers = Headers::new(MANAGEMENT, Psn::new(0), body);
        change(&mut headers);
        let mut datagram = Vec::new();
        let packet = Packet { headers, payload };
        packet.encode(&mut datagram).unwrap();
        flow().seal(&mut datagram, 7);
        datagram
    }

    #[test]
    fn a_message_round_trips_through_its_datagram() {
        let datagram = write(&flow(), &mad(), 5);
        assert_eq!(datagram.len(), LONGEST_MANAGEMENT);
        let arrived = arrive(&datagram);
        assert_eq!(arrived, Ok(Content::Management(Box::new(mad()))));
    }

    #[test]
    fn a_damaged_byte_is_detected() {
        let datagram = write(&flow(), &mad(), 5);
        for at in 0..datagram.len() {
            let mut damaged = datagram.clone();
            damaged[at] ^= 0x10;
            // Byte 4 contains the congestion bits, which routers change.
            let is_covered = at != 4;
            assert_eq!(arrive(&damaged).is_err(), is_covered, "byte {at}");
        }
        let (from, to) = addresses();
        assert_eq!(read(to, from, &datagram), Err(Dropped::Checksum));
        let group = "239.1.1.1:4791".parse().unwrap();
        assert_eq!(read(group, to, &datagram), Err(Dropped::Source));
        let v6 = "[fd00::1]:4791".parse().unwrap();
        assert_eq!(read(v6, to, &datagram), Err(Dropped::Source));
    }

    #[test]
    fn packets_that_the_connection_manager_does_not_accept_are_dropped() {
        let wrong_key = |headers: &mut Headers| {
            let deth = Deth { qkey: 1, source: 1 };
            headers.body = Body::Request(Service::Ud(deth), Request::SendOnly(Tail::None));
        };
        let reliable = |headers: &mut Headers| {
            headers.body = Body::Request(Service::Rc, Request::SendOnly(Tail::None));
        };
        for datagram in [
            sealed(wrong_key, &mad()),
            sealed(reliable, &mad()),
            // Soft-RoCE's own queue pair 1 fails permanently when it receives a 300-byte message.
            sealed(|_| {}, &[0; 300]),
            sealed(|_| {}, &[0; 200]),
            sealed(|_| {}, &[]),
            sealed(|_| {}, &[0; 4096]),
        ] {
            assert_eq!(arrive(&datagram), Err(Dropped::Management));
        }
        let other = sealed(|headers| headers.pkey = 0x1234, &mad());
        assert_eq!(arrive(&other), Err(Dropped::Partition));
        let limited = sealed(|headers| headers.pkey = 0x7fff, &mad());
        assert!(arrive(&limited).is_ok());
    }

    /// Whatever their identifications are.
    #[test]
    fn datagrams_that_arrive_together_are_read_one_after_the_other() {
        let (from, to) = addresses();
        let mut bytes = Vec::new();
        let identifications = [0, 1, 2, 7, 8, 0, 0xffff, 0, 5];
        for identification in identifications {
            let datagram = write(&flow(), &mad(), identification.into());
            bytes.extend_from_slice(&datagram[..LONGEST_MANAGEMENT - icrc::LEN]);
            let packet = &bytes[bytes.len() + icrc::LEN - LONGEST_MANAGEMENT..];
            let checksum = flow().checksum(packet, identification);
            bytes.extend(checksum);
        }
        // The last one is shorter.
        bytes.extend([0; 9]);
        let incoming = Incoming {
            from,
            to,
            ecn: Ecn::default(),
            bytes: &bytes,
            each: LONGEST_MANAGEMENT,
        };
        let mut reader = Reader::new(from, to);
        let read: Vec<_> = incoming.datagrams().map(|it| reader.read(it)).collect();
        assert_eq!(read.len(), incoming.count());
        let (last, others) = read.split_last().unwrap();
        assert_eq!((others.len(), last), (9, &Err(Dropped::Malformed)));
        assert!(others.iter().all(Result::is_ok), "{others:?}");
        let nothing = Incoming {
            bytes: b"",
            each: 0,
            ..incoming
        };
        assert_eq!(nothing.datagrams().collect::<Vec<_>>(), [b""]);
        assert_eq!(nothing.count(), 1);
    }

    #[test]
    fn datagrams_to_queue_pairs_other_than_1_are_read_as_packets() {
        let datagram = sealed(|headers| headers.destination = 0xab_cd12, &[1, 2, 3]);
        let Ok(Content::Packet(packet)) = arrive(&datagram) else {
            panic!("not a packet");
        };
        assert_eq!(packet.headers.destination, 0xab_cd12);
        assert_eq!(packet.payload, [1, 2, 3]);
    }

    #[test]
    fn too_short_and_too_long_datagrams_are_malformed() {
        for length in [0, 1, 11, 15, MAX_LEN + 1, 65_507] {
            assert_eq!(arrive(&vec![0; length]), Err(Dropped::Malformed));
        }
    }
}
