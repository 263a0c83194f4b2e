//! The description of a lease that the owner sends with the descriptor.

use crate::Malformed;
use crate::ring::LEASES;
use serde::{Deserialize, Serialize};

/// The identity of a lease, unique on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    pub(crate) index: u16,
    pub(crate) generation: u64,
}

impl LeaseId {
    /// The index of the lease's words in the link.
    pub fn index(self) -> usize {
        usize::from(self.index)
    }
}

/// A lease offer. Send it with [`to_bytes`](Self::to_bytes) over the control socket, together with
/// the descriptor of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseOffer {
    /// The lease.
    pub id: LeaseId,
    /// The offset of the leased bytes in the segment.
    pub offset: u64,
    /// The number of leased bytes.
    pub len: u64,
    /// Whether the bytes may be written (and used for atomics); they may always be read.
    pub writable: bool,
}

impl LeaseOffer {
    /// The offer as bytes, for a control message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(27);
        bytes.extend_from_slice(&self.id.index.to_le_bytes());
        bytes.push(u8::from(self.writable));
        for word in [self.id.generation, self.offset, self.len] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Parses the bytes of a peer's control message.
    ///
    /// # Errors
    /// The bytes are not a lease offer, or the offer is impossible.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; 27] = bytes
            .try_into()
            .map_err(|_| Malformed::new("not a lease offer"))?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let index = u16::from_le_bytes([bytes[0], bytes[1]]);
        let (generation, offset, len) = (word(3), word(11), word(19));
        if usize::from(index) >= LEASES || generation == 0 || bytes[2] > 1 {
            return Err(Malformed::new("a lease offer with an invalid index"));
        }
        if len == 0 || offset.checked_add(len).is_none() {
            return Err(Malformed::new("a lease offer with an invalid range"));
        }
        let id = LeaseId { index, generation };
        Ok(Self {
            id,
            offset,
            len,
            writable: bytes[2] == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_offers_round_trip_and_other_bytes_are_refused() {
        let id = LeaseId {
            index: 255,
            generation: 77,
        };
        let grant = LeaseOffer {
            id,
            offset: 4096,
            len: 1 << 40,
            writable: true,
        };
        assert_eq!(LeaseOffer::from_bytes(&grant.to_bytes()), Ok(grant));
        let broken = |change: &dyn Fn(&mut LeaseOffer)| {
            let mut grant = grant;
            change(&mut grant);
            LeaseOffer::from_bytes(&grant.to_bytes()).is_err()
        };
        assert!(broken(&|g| g.len = 0));
        assert!(broken(&|g| g.offset = u64::MAX));
        assert!(broken(&|g| g.id.index = 256));
        assert!(broken(&|g| g.id.generation = 0));
        assert!(LeaseOffer::from_bytes(&[0; 26]).is_err());
        assert!(LeaseOffer::from_bytes(&[0; 27]).is_err());
    }
}
