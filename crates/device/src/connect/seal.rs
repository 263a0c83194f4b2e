//! Encryption and authentication of the packets of a handshake between hosts that share a key (`RKEY_WIRE_KEY`).
//!
//! A sealed packet has the sender's random id, and the encrypted packet with a tag ([`crate::cipher`]); packets are numbered in
//! order. The tag also covers the addresses of both hosts, the listener's port, the sender's role, and the receiver's id, which the
//! sender knows from the receiver's first packet; only the first packet of the initiator comes before that. So an attacker can repeat
//! that packet in another connection, but nothing that follows: the connection is not made.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rkey_cm::address::Gid;

use crate::cipher::{Cipher, ID, SenderId, TAG};
use crate::config::WireKey;

/// How many bytes a sealed packet has more than the packet.
pub(super) const OVERHEAD: usize = ID + TAG;

/// The side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Makes the connection, and sends first.
    Initiator,
    Acceptor,
}

/// The ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) initiator: IpAddr,
    pub(super) acceptor: SocketAddr,
}

impl Ends {
    const LEN: usize = 16 + 16 + 2;

    fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&Gid::from(self.initiator).0);
        bytes[16..32].copy_from_slice(&Gid::from(self.acceptor.ip()).0);
        bytes[32..].copy_from_slice(&self.acceptor.port().to_be_bytes());
        bytes
    }
}

/// Seals and opens the packets of one connection.
pub(super) struct HandshakeSeal {
    cipher: Cipher,
    role: Role,
    ends: Ends,
    id: SenderId,
    /// The peer's id, from its first packet.
    peer: Option<SenderId>,
    /// How many packets were sent, and how many arrived.
    counts: (u64, u64),
}

/// The packet was not sent by a holder of the key, or not as the next one of this connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forged;

impl HandshakeSeal {
    pub(super) fn new(key: &WireKey, role: Role, ends: Ends) -> io::Result<Self> {
        let mut id = SenderId::default();
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        Ok(Self {
            cipher: Cipher::new(key, "handshakes")?,
            role,
            ends,
            id,
            peer: None,
            counts: (0, 0),
        })
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// Seals the next packet. `None` in a forked child.
    pub(super) fn seal(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let covered = self.covered(self.role, self.peer.unwrap_or_default());
        let number = self.counts.0;
        self.counts.0 += 1;
        let mut sealed = self.id.to_vec();
        (self.cipher)
            .seal(self.id, number, &covered, packet, &mut sealed)
            .then_some(sealed)
    }

    /// Opens the next packet.
    ///
    /// # Errors
    /// Someone else has sent or changed it, or it belongs to another place or connection.
    pub(super) fn open(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Forged> {
        let (id, rest) = sealed.split_first_chunk::<ID>().ok_or(Forged)?;
        let (theirs, is_first) = match self.role {
            Role::Initiator => (Role::Acceptor, false),
            Role::Acceptor => (Role::Initiator, self.counts.1 == 0),
        };
        let to = if is_first {
            SenderId::default()
        } else {
            self.id
        };
        let covered = self.covered(theirs, to);
        let mut packet = Vec::new();
        if !(self.cipher).open(*id, self.counts.1, &covered, rest, &mut packet) {
            return Err(Forged);
        }
        if *self.peer.get_or_insert(*id) != *id {
            return Err(Forged);
        }
        self.counts.1 += 1;
        Ok(packet)
    }

    /// What the tag of a packet from a side covers besides the packet.
    fn covered(&self, from: Role, to: SenderId) -> [u8; 1 + ID + Ends::LEN] {
        let mut covered = [0; 1 + ID + Ends::LEN];
        covered[0] = u8::from(from == Role::Initiator);
        covered[1..=ID].copy_from_slice(&to);
        covered[1 + ID..].copy_from_slice(&self.ends.encode());
        covered
    }
}

impl std::fmt::Debug for HandshakeSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandshakeSeal")
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(secret: u8, role: Role) -> HandshakeSeal {
        let ends = Ends {
            initiator: [10, 0, 0, 1].into(),
            acceptor: "10.0.0.2:7471".parse().unwrap(),
        };
        HandshakeSeal::new(&WireKey::new(&[secret; 32]).unwrap(), role, ends).unwrap()
    }

    fn pair() -> (HandshakeSeal, HandshakeSeal) {
        (seal(1, Role::Initiator), seal(1, Role::Acceptor))
    }

    #[test]
    fn both_sides_open_what_the_other_has_sealed() {
        let (mut ours, mut theirs) = pair();
        for round in 0..3u8 {
            let request = ours.seal(&[round; 100]).unwrap();
            assert_eq!(request.len(), 100 + OVERHEAD);
            assert_eq!(theirs.open(&request), Ok(vec![round; 100]));
            for answer in [&b"one"[..], b""] {
                assert_eq!(
                    ours.open(&theirs.seal(answer).unwrap()),
                    Ok(answer.to_vec())
                );
            }
        }
    }

    #[test]
    fn a_changed_packet_or_another_key_is_refused() {
        let (mut ours, _) = pair();
        let request = ours.seal(b"request").unwrap();
        for at in 0..request.len() * 8 {
            let mut changed = request.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert_eq!(seal(1, Role::Acceptor).open(&changed), Err(Forged), "{at}");
        }
        for length in 0..request.len() {
            let part = &request[..length];
            assert_eq!(seal(1, Role::Acceptor).open(part), Err(Forged));
        }
        assert_eq!(seal(2, Role::Acceptor).open(&request), Err(Forged));
    }

    #[test]
    fn a_repeated_packet_is_refused_in_its_connection() {
        let (mut ours, mut theirs) = pair();
        let request = ours.seal(b"request").unwrap();
        assert!(theirs.open(&request).is_ok());
        assert_eq!(theirs.open(&request), Err(Forged));
        let answer = theirs.seal(b"answer").unwrap();
        assert!(ours.open(&answer).is_ok());
        assert_eq!(ours.open(&answer), Err(Forged));
    }

    /// The attacker repeats everything that an initiator has sent, in a connection of its own.
    #[test]
    fn a_repeated_connection_is_not_made() {
        let (mut ours, mut theirs) = pair();
        let request = ours.seal(b"request").unwrap();
        theirs.open(&request).unwrap();
        ours.open(&theirs.seal(b"accepted").unwrap()).unwrap();
        let ready = ours.seal(b"ready").unwrap();
        assert!(theirs.open(&ready).is_ok());
        let mut another = seal(1, Role::Acceptor);
        assert!(another.open(&request).is_ok(), "the first packet only");
        another.seal(b"accepted").unwrap();
        assert_eq!(another.open(&ready), Err(Forged));
    }

    #[test]
    fn packets_that_return_to_their_sender_are_refused() {
        let (mut ours, _) = pair();
        let request = ours.seal(b"request").unwrap();
        assert_eq!(ours.open(&request), Err(Forged));
    }

    #[test]
    fn a_packet_is_bound_to_the_addresses_and_the_port() {
        let (mut ours, _) = pair();
        let request = ours.seal(b"request").unwrap();
        let changes: [fn(&mut Ends); 3] = [
            |it| it.initiator = [10, 0, 0, 3].into(),
            |it| it.acceptor.set_ip([10, 0, 0, 3].into()),
            |it| it.acceptor.set_port(7472),
        ];
        for change in changes {
            let mut theirs = seal(1, Role::Acceptor);
            change(&mut theirs.ends);
            assert_eq!(theirs.open(&request), Err(Forged));
        }
    }

    #[test]
    fn a_second_peer_cannot_continue_a_connection() {
        let (mut ours, mut theirs) = pair();
        theirs.open(&ours.seal(b"request").unwrap()).unwrap();
        let mut second = seal(1, Role::Initiator);
        second.seal(b"request").unwrap();
        second.peer = Some(theirs.id);
        assert_eq!(theirs.open(&second.seal(b"ready").unwrap()), Err(Forged));
    }
}
