//! Encryption and authentication of datagrams between hosts that share a key (`RKEY_WIRE_KEY`).
//!
//! A sealed datagram has its sender's id and number, and the encrypted packet with its invariant checksum and a tag
//! ([`crate::cipher`]). The tag also covers both addresses and ports. The receiver takes each number of a sender once
//! ([`ReplayWindows`]).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rkey_cm::address::Gid;

use super::counters::Dropped;
use super::datagram;
use super::replay::ReplayWindows;
use crate::cipher::{Cipher, ID, SenderId, TAG};
use crate::cm::packet::Protection;
use crate::config::WireKey;

/// The length of the id and the number in front of the encrypted packet, in bytes.
const NUMBER: usize = ID + 8;
/// How many bytes a sealed datagram has more than the packet with its checksum.
pub(super) const OVERHEAD: usize = NUMBER + TAG;

/// How many bytes a datagram has more than its packet.
pub(super) fn overhead(is_sealed: bool) -> usize {
    if is_sealed { OVERHEAD } else { 0 }
}

/// Seals and opens the datagrams of a wire.
pub(super) struct Seal {
    cipher: Cipher,
    /// Tells other processes of this user which key a message was sealed with.
    fingerprint: [u8; 16],
    packets: Sequence,
    messages: Sequence,
    /// What arrived here.
    arrived: Mutex<ReplayWindows>,
    /// The messages that reached the connection manager of this process, often through another process.
    admitted: Mutex<ReplayWindows>,
}

/// What a datagram contains. Messages have an id and numbers of their own, because their receiver checks them later than packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Packet,
    Message,
}

/// The id and the numbers of one kind of datagrams.
struct Sequence {
    /// When the wire was opened, in nanoseconds since 1970, and 64 random bits.
    id: SenderId,
    /// The number of the next datagram.
    next: AtomicU64,
}

impl Sequence {
    fn new() -> io::Result<Self> {
        let mut id = SenderId::default();
        let (opened, random) = id.split_at_mut(8);
        let now = u64::try_from(crate::time::since_epoch().as_nanos());
        opened.copy_from_slice(&now.unwrap_or(u64::MAX).to_be_bytes());
        getrandom::fill(random).map_err(io::Error::other)?;
        Ok(Self {
            id,
            next: AtomicU64::new(0),
        })
    }
}

/// The number of a datagram among those of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    sender: SenderId,
    number: u64,
}

impl Seal {
    pub(super) fn new(key: &WireKey) -> io::Result<Self> {
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&key.derive("fingerprint")[..16]);
        Ok(Self {
            cipher: Cipher::new(key, "datagrams")?,
            fingerprint,
            packets: Sequence::new()?,
            messages: Sequence::new()?,
            arrived: Mutex::default(),
            admitted: Mutex::default(),
        })
    }

    /// Appends the sealed datagram to `to`; `false` in a forked child, which must not send it.
    #[must_use]
    pub(super) fn seal(
        &self,
        kind: Kind,
        from: SocketAddr,
        peer: SocketAddr,
        datagram: &[u8],
        to: &mut Vec<u8>,
    ) -> bool {
        let sequence = match kind {
            Kind::Packet => &self.packets,
            Kind::Message => &self.messages,
        };
        let number = sequence.next.fetch_add(1, Ordering::Relaxed);
        to.extend_from_slice(&sequence.id);
        to.extend_from_slice(&number.to_be_bytes());
        let covered = addresses(from, peer);
        self.cipher
            .seal(sequence.id, number, &covered, datagram, to)
    }

    /// Opens a datagram into `into`, replacing what it contains. Returns its number, which the receiver passes to [`Seal::is_new`]; `None` if
    /// no holder of the key has sent these bytes between these addresses.
    pub(super) fn open(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        sealed: &[u8],
        into: &mut Vec<u8>,
    ) -> Option<Number> {
        // Cheaper than to open it.
        if sealed.len() > datagram::MAX_LEN + OVERHEAD {
            return None;
        }
        let (sender, rest) = sealed.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = Number {
            sender: *sender,
            number: u64::from_be_bytes(*number),
        };
        let covered = addresses(from, to);
        (self.cipher)
            .open(number.sender, number.number, &covered, rest, into)
            .then_some(number)
    }

    /// The protection of a datagram with this number.
    pub(super) fn protection(&self, Number { sender, number }: Number) -> Protection {
        Protection {
            key: self.fingerprint,
            sender,
            number,
        }
    }

    /// Admits a message, which another process may have received, if it was sealed with our key and has not arrived before.
    pub(super) fn admit(&self, from: IpAddr, protection: &Protection) -> Result<(), Dropped> {
        let &Protection {
            key,
            sender,
            number,
        } = protection;
        if key != self.fingerprint {
            return Err(Dropped::Forged);
        }
        match self.admitted.lock().is_new(from, sender, number) {
            true => Ok(()),
            false => Err(Dropped::Replayed),
        }
    }

    /// Whether a datagram with this number has not arrived before, as far as the window remembers. Call it once for each.
    pub(super) fn is_new(&self, from: IpAddr, Number { sender, number }: Number) -> bool {
        let is_ours = [&self.packets, &self.messages].map(|it| it.id == sender);
        !is_ours.contains(&true) && self.arrived.lock().is_new(from, sender, number)
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").finish_non_exhaustive()
    }
}

/// What the tag covers besides the bytes.
fn addresses(from: SocketAddr, to: SocketAddr) -> [u8; 36] {
    let mut covered = [0; 36];
    for (address, part) in [from, to].iter().zip(covered.chunks_exact_mut(18)) {
        part[..16].copy_from_slice(&Gid::from(address.ip()).0);
        part[16..].copy_from_slice(&address.port().to_be_bytes());
    }
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> (SocketAddr, SocketAddr) {
        let pair = ["10.0.0.1:4791", "10.0.0.2:4791"].map(|it| it.parse().unwrap());
        (pair[0], pair[1])
    }

    fn seal(secret: u8) -> Seal {
        Seal::new(&WireKey::new(&[secret; 32]).unwrap()).unwrap()
    }

    fn sealed(by: &Seal, datagram: &[u8]) -> Vec<u8> {
        let (from, to) = hosts();
        let mut bytes = Vec::new();
        assert!(by.seal(Kind::Packet, from, to, datagram, &mut bytes));
        bytes
    }

    fn open(by: &Seal, bytes: &[u8]) -> Option<(Number, Vec<u8>)> {
        let (from, to) = hosts();
        let mut into = b"older".to_vec();
        let number = by.open(from, to, bytes, &mut into)?;
        Some((number, into))
    }

    #[test]
    fn a_holder_of_the_key_opens_a_datagram_and_takes_it_once() {
        let (sender, receiver) = (seal(1), seal(1));
        for (number, datagram) in (0..).zip([&b"first"[..], b"", &[9; 4000]]) {
            let bytes = sealed(&sender, datagram);
            assert_eq!(bytes.len(), datagram.len() + OVERHEAD);
            let (found, opened) = open(&receiver, &bytes).unwrap();
            assert_eq!((found.number, &opened[..]), (number, datagram));
            assert!(receiver.is_new(hosts().0.ip(), found));
            assert!(!receiver.is_new(hosts().0.ip(), found));
        }
    }

    #[test]
    fn no_two_datagrams_are_alike_and_none_contains_the_packet() {
        let sender = seal(1);
        let packet = [0x5a; 64];
        let (one, other) = (sealed(&sender, &packet), sealed(&sender, &packet));
        let of_another_process = sealed(&seal(1), &packet);
        assert_ne!(one[NUMBER..], other[NUMBER..]);
        assert_ne!(one[..ID], of_another_process[..ID]);
        assert!(!one.windows(8).any(|part| part == [0x5a; 8]));
    }

    #[test]
    fn a_changed_datagram_is_refused() {
        let (sender, receiver) = (seal(1), seal(1));
        let bytes = sealed(&sender, b"a packet");
        for at in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert!(open(&receiver, &changed).is_none(), "bit {at}");
        }
        for length in 0..bytes.len() {
            assert!(open(&receiver, &bytes[..length]).is_none(), "{length}");
        }
        assert!(open(&receiver, &[&bytes[..], &[0]].concat()).is_none());
        assert!(open(&seal(2), &bytes).is_none(), "another key");
    }

    #[test]
    fn a_datagram_is_bound_to_its_addresses_and_ports() {
        let (sender, receiver) = (seal(1), seal(1));
        let bytes = sealed(&sender, b"a packet");
        let (from, to) = hosts();
        for (from, to) in [
            (to, from),
            (from, "10.0.0.3:4791".parse().unwrap()),
            ("10.0.0.3:4791".parse().unwrap(), to),
            ("10.0.0.1:4792".parse().unwrap(), to),
        ] {
            let mut into = Vec::new();
            assert!(receiver.open(from, to, &bytes, &mut into).is_none());
        }
    }

    #[test]
    fn a_child_seals_nothing_with_the_numbers_of_its_parent() {
        let sender = seal(1);
        let sealed_nothing = crate::cm::fork::tests::succeeds_in_child(|| {
            let (from, to) = hosts();
            !sender.seal(Kind::Packet, from, to, b"a packet", &mut Vec::new())
        });
        assert!(sealed_nothing);
    }

    #[test]
    fn a_message_is_admitted_once_and_only_with_our_key() {
        let (sender, receiver, other) = (seal(1), seal(1), seal(2));
        let (number, _) = open(&receiver, &sealed(&sender, b"a message")).unwrap();
        let protection = receiver.protection(number);
        let from = hosts().0.ip();
        let plain = Protection::default();
        assert_eq!(other.admit(from, &protection), Err(Dropped::Forged));
        assert_eq!(receiver.admit(from, &plain), Err(Dropped::Forged));
        assert_eq!(receiver.admit(from, &protection), Ok(()));
        assert_eq!(receiver.admit(from, &protection), Err(Dropped::Replayed));
    }

    #[test]
    fn a_datagram_that_returns_to_its_sender_is_refused() {
        let sender = seal(1);
        let (from, to) = hosts();
        let mut bytes = Vec::new();
        assert!(sender.seal(Kind::Packet, from, to, b"a packet", &mut bytes));
        let number = sender.open(from, to, &bytes, &mut Vec::new()).unwrap();
        assert!(!sender.is_new(hosts().0.ip(), number));
    }
}
