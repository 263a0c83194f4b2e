//! Remote keys: what a peer needs to access our memory, small enough to send in a message.
//!
//! A [`RemoteKey`] is a plain value: copy it, print it, serialise it, put it into a message or a file. Holding one
//! grants nothing: the owner of the memory checks every access against its own table, and a revoked key stays refused.

use crate::error::Error;
use rkey_core::{Access, Key, RKey};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// The length of [`RemoteKey::to_bytes`], in bytes.
pub const REMOTE_KEY_BYTES: usize = 40;

/// "rk", then the version of this layout.
const MAGIC: [u8; 4] = *b"rk\x00\x01";

/// Identifies memory that a peer registered: its address, its length, and the key that its owner checks.
///
/// The address is the owner's (or counts from 0 for a zero-based region) and is meaningless in the process that
/// received the key. The rights are those that the owner granted when the key was made. They are used only for messages
/// and early errors: the owner decides at each access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct RemoteKey {
    address: u64,
    length: u64,
    name: KeyName,
    access: Access,
}

/// The two kinds of keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum KeyName {
    /// A 32-bit key that the owner's device chose.
    Device(u32),
    /// A 64-bit requested key.
    Requested(u64),
}

/// The serialised form; every `RemoteKey` made from it has been checked.
#[derive(Serialize, Deserialize)]
struct Parts {
    address: u64,
    length: u64,
    requested: bool,
    key: u64,
    access: u32,
}

impl RemoteKey {
    /// Makes a key from its parts, as another system may have sent them: the owner's address, the length in bytes and a 32-bit
    /// key.
    ///
    /// Its rights are not known here, so it claims all remote rights; the owner decides at each access.
    ///
    /// # Errors
    /// [`Error::BadKey`] if the range is empty or overflows the address space.
    pub fn from_parts(address: u64, length: u64, key: u32) -> Result<Self, Error> {
        Self::checked(address, length, KeyName::Device(key), Access::REMOTE)
    }

    pub(crate) fn from_rkey(
        address: u64,
        length: u64,
        key: RKey,
        access: Access,
    ) -> Result<Self, Error> {
        let name = match key {
            RKey::Device(key) => KeyName::Device(key.0),
            RKey::Requested(key) => KeyName::Requested(key),
        };
        Self::checked(address, length, name, access)
    }

    fn checked(address: u64, length: u64, name: KeyName, access: Access) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::BadKey("it covers no bytes".into()));
        }
        // The last byte must have an address; the end itself may be 2^64.
        if address.checked_add(length - 1).is_none() {
            return Err(Error::BadKey(format!(
                "{length} bytes from {address:#x} wrap around the end of the address space"
            )));
        }
        Ok(Self {
            address,
            length,
            name,
            access: access & Access::REMOTE,
        })
    }

    /// The address of the memory in the owner's process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes the key covers.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a key covers at least one byte"
    )]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// The key itself: 32 bits if the owner's device chose it, up to 64 if its program did.
    #[must_use]
    pub fn key(&self) -> u64 {
        match self.name {
            KeyName::Device(key) => u64::from(key),
            KeyName::Requested(key) => key,
        }
    }

    /// The rights that the owner granted when it made the key: remote read, write, atomic.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The key as a request carries it.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        match self.name {
            KeyName::Device(key) => RKey::Device(Key(key)),
            KeyName::Requested(key) => RKey::Requested(key),
        }
    }

    /// Returns the address, in the owner's process, of `len` bytes at `offset`, if the key covers all of them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], which says how many bytes would fit.
    pub fn at(&self, offset: u64, len: u64) -> Result<u64, Error> {
        let fits = self.length.saturating_sub(offset);
        if offset > self.length || len > fits {
            return Err(Error::OutOfRange {
                what: "key",
                offset,
                len,
                available: self.length,
            });
        }
        Ok(self.address.wrapping_add(offset))
    }

    /// Returns the same key for a part of its bytes. This is a convenience for the holder of the key and removes no rights. The
    /// owner narrows rights with `MemoryRegion::key`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `range` goes past the end of the key, [`Error::BadKey`] if it is empty.
    pub fn part(&self, range: Range<u64>) -> Result<Self, Error> {
        let len = range.end.saturating_sub(range.start);
        let address = self.at(range.start, len)?;
        Self::checked(address, len, self.name, self.access)
    }

    /// Encodes the key as [`REMOTE_KEY_BYTES`] bytes, for programs that do not use serde.
    ///
    /// Little endian: magic and version (4), kind (1: 0 device, 1 requested), zero (1), rights (2),
    /// key (8), address (8), length (8), zero (4), checksum (4).
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REMOTE_KEY_BYTES] {
        let mut bytes = [0; REMOTE_KEY_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = u8::from(matches!(self.name, KeyName::Requested(_)));
        bytes[6..8].copy_from_slice(&pack_rights(self.access).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        let check = checksum(&bytes[..36]);
        bytes[36..40].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Parses the result of [`RemoteKey::to_bytes`].
    ///
    /// # Errors
    /// [`Error::BadKey`] for another length, magic, version or checksum, for unknown kinds and rights, and for an
    /// empty or wrapping range. No input makes this panic.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let Ok(bytes) = <&[u8; REMOTE_KEY_BYTES]>::try_from(bytes) else {
            return Err(Error::BadKey(format!(
                "it has {} bytes, not {REMOTE_KEY_BYTES}",
                bytes.len()
            )));
        };
        if bytes[0..4] != MAGIC {
            return Err(Error::BadKey(
                "it does not have the header of a key of this version".into(),
            ));
        }
        if u32_at(bytes, 36) != checksum(&bytes[..36]) {
            return Err(Error::BadKey(
                "its checksum is wrong: it was damaged in transit".into(),
            ));
        }
        let key = u64_at(bytes, 8);
        let name = match (bytes[4], u32::try_from(key)) {
            (0, Ok(key)) => KeyName::Device(key),
            (1, _) => KeyName::Requested(key),
            _ => return Err(Error::BadKey("its kind is unknown".into())),
        };
        if bytes[5] != 0 || u32_at(bytes, 32) != 0 {
            return Err(Error::BadKey(
                "it uses fields that are unknown to this version".into(),
            ));
        }
        let rights = unpack_rights(u16::from_le_bytes([bytes[6], bytes[7]]))?;
        Self::checked(u64_at(bytes, 16), u64_at(bytes, 24), name, rights)
    }
}

/// The three remote rights as three bits, independent of their internal values.
fn pack_rights(access: Access) -> u16 {
    let bit = |right, value| if access.contains(right) { value } else { 0 };
    bit(Access::REMOTE_READ, 1) | bit(Access::REMOTE_WRITE, 2) | bit(Access::REMOTE_ATOMIC, 4)
}

fn unpack_rights(bits: u16) -> Result<Access, Error> {
    if bits > 7 {
        return Err(Error::BadKey(
            "it names rights that are unknown to this version".into(),
        ));
    }
    let right = |value, right| {
        if bits & value != 0 {
            right
        } else {
            Access::empty()
        }
    };
    Ok(right(1, Access::REMOTE_READ)
        | right(2, Access::REMOTE_WRITE)
        | right(4, Access::REMOTE_ATOMIC))
}

/// FNV-1a: detects a key that was truncated or mistyped. The checksum does not protect against forgery, and need not: the owner
/// checks the key.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

fn u32_at(bytes: &[u8; REMOTE_KEY_BYTES], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8; REMOTE_KEY_BYTES], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

impl TryFrom<Parts> for RemoteKey {
    type Error = Error;

    fn try_from(parts: Parts) -> Result<Self, Error> {
        let name = match (parts.requested, u32::try_from(parts.key)) {
            (true, _) => KeyName::Requested(parts.key),
            (false, Ok(key)) => KeyName::Device(key),
            (false, Err(_)) => {
                return Err(Error::BadKey(
                    "a device's key has 32 bits, but this one has more".into(),
                ));
            }
        };
        let rights = u16::try_from(parts.access).unwrap_or(u16::MAX);
        Self::checked(parts.address, parts.length, name, unpack_rights(rights)?)
    }
}

impl From<RemoteKey> for Parts {
    fn from(key: RemoteKey) -> Self {
        Self {
            address: key.address,
            length: key.length,
            requested: matches!(key.name, KeyName::Requested(_)),
            key: key.key(),
            access: u32::from(pack_rights(key.access)),
        }
    }
}

impl fmt::Display for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "key {:#x} for {} B at {:#x} ({})",
            self.key(),
            self.length,
            self.address,
            rights_in_words(self.access)
        )
    }
}

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteKey({self})")
    }
}

/// The remote rights in words, for messages.
pub(crate) fn rights_in_words(access: Access) -> String {
    let names = [
        (Access::REMOTE_READ, "remote read"),
        (Access::REMOTE_WRITE, "remote write"),
        (Access::REMOTE_ATOMIC, "remote atomic"),
    ];
    let words: Vec<&str> = names
        .iter()
        .filter(|(right, _)| access.contains(*right))
        .map(|(_, word)| *word)
        .collect();
    if words.is_empty() {
        "no remote rights".into()
    } else {
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> RemoteKey {
        RemoteKey::from_parts(0x7f12_a000, 4096, 0x005a_03c1).unwrap()
    }

    #[test]
    fn keys_round_trip_as_bytes_and_through_serde() {
        let key = key();
        assert_eq!(RemoteKey::from_bytes(&key.to_bytes()).unwrap(), key);
        let bytes = postcard::to_allocvec(&key).unwrap();
        assert_eq!(postcard::from_bytes::<RemoteKey>(&bytes).unwrap(), key);
        assert!(bytes.len() <= REMOTE_KEY_BYTES);
    }

    #[test]
    fn every_damaged_bit_is_detected() {
        let bytes = key().to_bytes();
        for bit in 0..REMOTE_KEY_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(RemoteKey::from_bytes(&damaged).is_err(), "bit {bit}");
        }
        assert!(RemoteKey::from_bytes(&bytes[..39]).is_err());
        assert!(RemoteKey::from_bytes(&[]).is_err());
    }

    #[test]
    fn a_key_never_wraps_and_is_never_empty() {
        assert!(RemoteKey::from_parts(0, 0, 1).is_err());
        assert!(RemoteKey::from_parts(u64::MAX, 2, 1).is_err());
        let last = RemoteKey::from_parts(u64::MAX, 1, 1).unwrap();
        assert_eq!(last.at(0, 1).unwrap(), u64::MAX);
        assert!(last.at(1, 1).is_err());
        let hostile = Parts {
            address: u64::MAX,
            length: 9,
            requested: false,
            key: 1,
            access: 0,
        };
        assert!(RemoteKey::try_from(hostile).is_err());
    }

    #[test]
    fn offsets_are_checked_to_the_byte() {
        let key = key();
        assert_eq!(key.at(4095, 1).unwrap(), 0x7f12_afff);
        assert!(key.at(4095, 2).is_err());
        assert!(key.at(u64::MAX, 2).is_err());
        assert_eq!(key.part(8..16).unwrap().len(), 8);
        assert!(key.part(Range { start: 16, end: 8 }).is_err());
    }
}
