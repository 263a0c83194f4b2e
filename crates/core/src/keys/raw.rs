//! Raw keys: everything a peer needs to access a region, as bytes, and the peer's table that maps them to numbers.
//!
//! The module serves libfabric's raw keys (FI-008 to FI-010), but works for any key: mapping a raw key returns a 64-bit
//! number that the program's requests name instead of the key itself.

use crate::{Key, RKey};
use rkey_base::lock::SpinLock;
use std::fmt;

/// A key, and what a peer needs to use it.
///
/// As bytes, little endian: a magic number (2 bytes), version 1, the kind of key (0 device, 1 requested), reserved (4), the
/// key (8), base (8), length (8), node (8).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct RawKey {
    /// The remote key.
    pub key: RKey,
    /// The first address that requests use for the region.
    pub base: u64,
    /// Length of the region, in bytes.
    pub len: u64,
    /// The owning device's random number.
    pub node: u64,
}

impl RawKey {
    /// The length of a raw key, in bytes.
    pub const LEN: usize = 40;

    const MARK: [u8; 3] = [b'r', b'k', 1];

    /// The bytes to send to a peer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let (kind, key) = match self.key {
            RKey::Device(key) => (0, u64::from(key.0)),
            RKey::Requested(key) => (1, key),
        };
        let mut bytes = [0; Self::LEN];
        bytes[..3].copy_from_slice(&Self::MARK);
        bytes[3] = kind;
        let numbers = [key, self.base, self.len, self.node];
        for (chunk, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Parses bytes from a peer. Accepts any bytes; returns `None` if they are not a raw key, or its region would
    /// overflow the address space.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let mut numbers = [0; 4];
        for (number, chunk) in numbers.iter_mut().zip(bytes[8..].chunks_exact(8)) {
            *number = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        let [key, base, len, node] = numbers;
        let key = match bytes[3] {
            0 => RKey::Device(Key(u32::try_from(key).ok()?)),
            1 => RKey::Requested(key),
            _ => return None,
        };
        base.checked_add(len)?;
        let reserved = bytes[4..8] == [0; 4];
        (bytes[..3] == Self::MARK && reserved).then_some(Self {
            key,
            base,
            len,
            node,
        })
    }
}

/// Raw keys from peers, mapped to numbers that requests can name. A number is reused only after its slot has had 2^32
/// others.
#[derive(Default)]
pub struct RawKeyMap {
    mappings: SpinLock<Mappings>,
}

#[derive(Default)]
struct Mappings {
    entries: Vec<(u32, Option<RawKey>)>,
    free: Vec<u32>,
}

impl RawKeyMap {
    /// Maps a key; the same key may be mapped several times, to different numbers.
    #[must_use]
    pub fn map(&self, key: RawKey) -> u64 {
        let mut it = self.mappings.lock();
        let index = it.free.pop().unwrap_or(it.entries.len() as u32);
        if index as usize == it.entries.len() {
            it.entries.push((0, None));
        }
        let (generation, kept) = &mut it.entries[index as usize];
        *kept = Some(key);
        u64::from(*generation) << 32 | u64::from(index)
    }

    /// The key for a number.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<RawKey> {
        let it = self.mappings.lock();
        let (generation, kept) = it.entries.get(number as u32 as usize)?;
        kept.filter(|_| u64::from(*generation) == number >> 32)
    }

    /// Unmaps a number; returns its key, or `None` if it was not mapped (FI-174).
    pub fn unmap(&self, number: u64) -> Option<RawKey> {
        let mut it = self.mappings.lock();
        let index = number as u32;
        let (generation, kept) = it.entries.get_mut(index as usize)?;
        if u64::from(*generation) != number >> 32 {
            return None;
        }
        let key = kept.take()?;
        *generation = generation.wrapping_add(1);
        it.free.push(index);
        Some(key)
    }

    /// How many keys are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        let it = self.mappings.lock();
        it.entries.len() - it.free.len()
    }

    /// Whether no key is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for RawKeyMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RawKeyMap({} keys)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: RawKey = RawKey {
        key: RKey::Requested(u64::MAX - 7),
        base: 4096,
        len: 10,
        node: 99,
    };

    #[test]
    fn raw_keys_round_trip() {
        let device = RawKey {
            key: RKey::Device(Key(0xdead_beef)),
            ..RAW
        };
        for key in [RAW, device] {
            assert_eq!(RawKey::from_bytes(&key.to_bytes()), Some(key));
        }
    }

    #[test]
    fn bytes_that_are_not_a_raw_key_are_refused() {
        let good = RAW.to_bytes();
        assert_eq!(RawKey::from_bytes(&good[..39]), None);
        assert_eq!(RawKey::from_bytes(&[]), None);
        for index in 0..8 {
            let mut bytes = good;
            bytes[index] ^= 0x80;
            assert_eq!(RawKey::from_bytes(&bytes), None, "byte {index}");
        }
        let wrapping = RawKey {
            base: u64::MAX,
            len: 2,
            ..RAW
        };
        assert_eq!(RawKey::from_bytes(&wrapping.to_bytes()), None);
    }

    /// A number names its key until it is unmapped, and never again. A second unmap returns `None`. Mapping and
    /// unmapping repeatedly does not grow the table.
    #[test]
    fn the_number_of_an_unmapped_raw_key_is_never_reused() {
        let map = RawKeyMap::default();
        let first = map.map(RAW);
        let second = map.map(RAW);
        assert_ne!(first, second);
        assert_eq!(map.get(first), Some(RAW));
        assert_eq!(map.unmap(first), Some(RAW));
        assert_eq!(map.unmap(first), None);
        assert_eq!(map.get(first), None);
        for _ in 0..if cfg!(miri) { 20 } else { 1_000 } {
            let number = map.map(RAW);
            assert_ne!(number, first);
            assert_eq!(map.unmap(number), Some(RAW));
        }
        assert_eq!((map.len(), map.mappings.lock().entries.len()), (1, 2));
    }
}
