//! A bundle: datagrams from one sender, for one block of queue pair numbers, that one process forwards to another in one message.

use std::net::SocketAddr;

use rkey_cm::address::Gid;

use super::datagram::Incoming;
use crate::ecn::Ecn;

/// The first bytes of a message: the protocol version.
const MAGIC: [u8; 4] = *b"rwf2";
/// The length of what precedes the datagrams: [`MAGIC`], the sender's address and port, and our address.
const HEADER: usize = 4 + 16 + 2 + 16;
/// The length of the longest message, in bytes.
pub(super) const MAX_LEN: usize = 1 << 16;

/// Datagrams from one sender, for one block, to be forwarded to the process that owns it.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    pub(super) block: u16,
    flow: Option<(SocketAddr, SocketAddr)>,
    pub(super) bytes: Vec<u8>,
    pub(super) count: u64,
}

impl Bundle {
    /// Adds one of the datagrams that have arrived together; `false` if it must go into another bundle.
    pub(super) fn add(&mut self, block: u16, incoming: &Incoming<'_>, datagram: &[u8]) -> bool {
        let flow = (incoming.from, incoming.to);
        let Ok(length) = u16::try_from(datagram.len()) else {
            return false;
        };
        if self.flow.is_none() {
            self.bytes.extend_from_slice(&MAGIC);
            self.bytes.extend_from_slice(&Gid::from(flow.0.ip()).0);
            self.bytes.extend_from_slice(&flow.0.port().to_be_bytes());
            self.bytes.extend_from_slice(&Gid::from(flow.1.ip()).0);
            (self.block, self.flow) = (block, Some(flow));
        }
        let has_room = self.bytes.len() + 3 + datagram.len() <= MAX_LEN;
        if (self.block, self.flow) != (block, Some(flow)) || !has_room {
            return false;
        }
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.push(incoming.ecn.bits());
        self.bytes.extend_from_slice(datagram);
        self.count += 1;
        true
    }

    /// Empties the bundle.
    pub(super) fn clear(&mut self) {
        self.flow = None;
        self.bytes.clear();
        self.count = 0;
    }
}

/// Decodes a message. `None` if the bytes are not one.
pub(super) fn unpack(bytes: &[u8]) -> Option<Vec<Incoming<'_>>> {
    let (header, mut rest) = bytes.split_at_checked(HEADER)?;
    if header[..4] != MAGIC {
        return None;
    }
    let ip = |at: usize| {
        let octets: [u8; 16] = header[at..at + 16].try_into().ok()?;
        Some(Gid(octets).address())
    };
    let from = SocketAddr::new(ip(4)?, u16::from_be_bytes([header[20], header[21]]));
    let to = SocketAddr::new(ip(22)?, rkey_roce::icrc::PORT);
    let mut datagrams = Vec::new();
    while let Some((length, more)) = rest.split_first_chunk() {
        let (ecn, more) = more.split_first()?;
        let (bytes, more) = more.split_at_checked(u16::from_be_bytes(*length).into())?;
        let ecn = Ecn::from_bits(*ecn);
        datagrams.push(Incoming {
            from,
            to,
            ecn,
            bytes,
            each: bytes.len(),
        });
        rest = more;
    }
    rest.is_empty().then_some(datagrams)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> (SocketAddr, SocketAddr) {
        let pair = ["10.0.0.2:50000", "10.0.0.1:4791"].map(|it| it.parse().unwrap());
        (pair[0], pair[1])
    }

    fn incoming((from, to): (SocketAddr, SocketAddr), bytes: &[u8]) -> Incoming<'_> {
        Incoming {
            from,
            to,
            ecn: Ecn::CONGESTED,
            bytes,
            each: bytes.len(),
        }
    }

    fn add(bundle: &mut Bundle, block: u16, flow: (SocketAddr, SocketAddr), bytes: &[u8]) -> bool {
        bundle.add(block, &incoming(flow, bytes), bytes)
    }

    #[test]
    fn datagrams_of_one_block_and_flow_are_bundled_while_there_is_room() {
        let mut bundle = Bundle::default();
        assert!(add(&mut bundle, 7, flow(), b"first") && add(&mut bundle, 7, flow(), b""));
        assert!(!add(&mut bundle, 8, flow(), b"another block"));
        let (from, to) = flow();
        assert!(!add(&mut bundle, 7, (to, from), b"another sender"));
        assert!(!add(&mut bundle, 7, flow(), &[0; MAX_LEN - HEADER]));
        let wanted = [&b"first"[..], b""].map(|it| incoming((from, to), it));
        assert_eq!(unpack(&bundle.bytes).unwrap(), wanted);
        bundle.clear();
        assert!(add(&mut bundle, 8, (to, from), b"x"));
        let mut full = Bundle::default();
        let mut count = 0;
        while add(&mut full, 1, flow(), &[1; 4000]) {
            count += 1;
        }
        assert_eq!(unpack(&full.bytes).unwrap().len(), count);
        assert!(full.bytes.len() <= MAX_LEN && count > 10);
    }

    #[test]
    fn malformed_bundles_are_refused() {
        let mut bundle = Bundle::default();
        assert!(add(&mut bundle, 7, flow(), b"datagram"));
        let bytes = bundle.bytes;
        for length in 0..bytes.len() {
            // A header alone is a message without datagrams.
            assert_eq!(unpack(&bytes[..length]).is_some(), length == HEADER);
        }
        let mut other = bytes.clone();
        other[0] ^= 1;
        assert!(unpack(&other).is_none());
        assert!(unpack(&[&bytes[..], &[0]].concat()).is_none());
    }
}
