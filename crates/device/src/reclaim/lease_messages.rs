//! The messages between devices about leases and warrants, over the control socket of a link.

use rkey_core::{Key, RKey};
use serde::{Deserialize, Serialize};

/// A message about leases or warrants.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// The requester requests a lease.
    Ask(LeaseRequest),
    /// The owner grants the lease; the message carries the descriptor.
    Granted { id: u64, grant: Vec<u8> },
    /// The key does not allow it. `report` is the id of the owner's record of the denial, or 0 if the peer must not learn
    /// the reason.
    Denied {
        id: u64,
        denial: Vec<u8>,
        report: u32,
    },
    /// Another reason prevents the lease: for example, the memory cannot be leased.
    Refused { id: u64, why: String },
    /// The requester asks for a warrant. There is no answer if the owner issues none.
    AskWarrant(WarrantAsk),
    /// The owner issues a warrant; the message carries the descriptor.
    Warrant(IssuedWarrant),
}

/// The fields of a request for a warrant: those of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WarrantAsk {
    /// The owner's queue pair.
    pub(super) qpn: u32,
    /// The requester's queue pair.
    pub(super) src_qpn: u32,
    /// Whether the key is a requested key.
    pub(super) requested: bool,
    pub(super) key: u64,
    pub(super) addr: u64,
    pub(super) len: u64,
}

/// What a warrant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IssuedWarrant {
    /// The warrant's number on its link.
    pub(super) number: u64,
    /// The requester's queue pair.
    pub(super) qpn: u32,
    /// The owner's queue pair.
    pub(super) src_qpn: u32,
    /// Whether the key is a requested key.
    pub(super) requested: bool,
    pub(super) key: u64,
    /// The address that requests use for the first byte of the region.
    pub(super) base: u64,
    /// The address of that byte in the owner's process.
    pub(super) start: u64,
    /// The length of the region in bytes.
    pub(super) len: u64,
    /// The address of the canary in the owner's process.
    pub(super) canary: u64,
}

/// The fields of a request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaseRequest {
    /// The request's id, which the answer carries.
    pub(super) id: u64,
    /// The owner's queue pair; the key must belong to its domain.
    pub(super) qpn: u32,
    /// The requester's queue pair.
    pub(super) src_qpn: u32,
    /// Whether the key is a requested key.
    pub(super) requested: bool,
    pub(super) key: u64,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) write: bool,
}

impl LeaseRequest {
    pub(super) fn key(&self) -> RKey {
        key_of(self.requested, self.key)
    }
}

/// The key with this number.
pub(super) fn key_of(requested: bool, number: u64) -> RKey {
    if requested {
        RKey::Requested(number)
    } else {
        RKey::Device(Key(number as u32))
    }
}

/// Whether a key is a requested key, and its number.
pub(super) fn number_of(key: RKey) -> (bool, u64) {
    match key {
        RKey::Device(key) => (false, key.0.into()),
        RKey::Requested(key) => (true, key),
    }
}

pub(super) fn encode(message: &Message) -> Vec<u8> {
    // Writing plain data into a Vec cannot fail.
    postcard::to_stdvec(message).unwrap_or_default()
}

pub(super) fn decode(bytes: &[u8]) -> Option<Message> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

/// Whether bytes are a message about leases or warrants; for fuzzing.
pub(crate) fn decodes(bytes: &[u8]) -> bool {
    decode(bytes).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_core::DENIAL_LEN;

    #[test]
    fn lease_messages_round_trip_and_malformed_ones_are_refused() {
        for message in [
            Message::Ask(LeaseRequest {
                id: 1,
                qpn: 2,
                src_qpn: 3,
                requested: true,
                key: u64::MAX,
                addr: 5,
                len: 6,
                write: true,
            }),
            Message::Granted {
                id: 1,
                grant: vec![1; 27],
            },
            Message::Denied {
                id: 1,
                denial: vec![2; DENIAL_LEN],
                report: 7,
            },
            Message::Refused {
                id: 1,
                why: "no".into(),
            },
            Message::AskWarrant(WarrantAsk {
                qpn: 1,
                src_qpn: 2,
                requested: false,
                key: 3,
                addr: u64::MAX,
                len: 4,
            }),
            Message::Warrant(IssuedWarrant {
                number: 1,
                qpn: 2,
                src_qpn: 3,
                requested: true,
                key: u64::MAX,
                base: 4,
                start: 5,
                len: 6,
                canary: u64::MAX,
            }),
        ] {
            let mut bytes = encode(&message);
            assert_eq!(decode(&bytes), Some(message));
            bytes.push(0);
            assert_eq!(decode(&bytes), None);
        }
        let ask = Message::Ask(LeaseRequest {
            id: 1,
            qpn: 2,
            src_qpn: 3,
            requested: true,
            key: 4,
            addr: 5,
            len: 6,
            write: false,
        });
        assert_eq!(encode(&ask), [0, 1, 2, 3, 1, 4, 5, 6, 0], "the wire format");
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&[9]), None);
    }
}
