//! Communication ids, transaction ids and GUIDs that others cannot guess.
//!
//! Communication ids are issued in the order of a keyed permutation of their space: known ids reveal nothing about the next
//! one, and no id is reissued before all others have been issued. So a late message of an ended connection does not reach a
//! new one.

use crate::address::{Gid, Guid, ServiceId};
use core::hash::Hasher;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use siphasher::sip::SipHasher13;

/// The communication ids that a manager may issue. Processes that share an address partition the ids, so an id identifies
/// its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSpace {
    prefix: u32,
    bits: u32,
}

impl IdSpace {
    /// All 32-bit ids.
    pub const ALL: Self = Self {
        prefix: 0,
        bits: 32,
    };

    /// The ids whose upper 16 bits are `block`.
    #[must_use]
    pub const fn block(block: u16) -> Self {
        Self {
            prefix: (block as u32) << 16,
            bits: 16,
        }
    }

    /// The ids in this space.
    #[must_use]
    pub const fn range(self) -> RangeInclusive<u32> {
        self.prefix..=self.prefix | ((1_u64 << self.bits) - 1) as u32
    }

    const fn len(self) -> u64 {
        1 << self.bits
    }
}

const ROUNDS: u8 = 8;
/// In place of a round number: keeps transaction ids independent of the permutation.
const TRANSACTION: u8 = 0xff;
/// In place of a round number: keeps GUIDs independent of transaction ids and of the permutation.
const GUID: u8 = 0xfe;

#[derive(Debug)]
pub(crate) struct Ids {
    space: IdSpace,
    key: (u64, u64),
    next: u64,
    next_transaction: u64,
}

impl Ids {
    pub(crate) fn new(space: IdSpace, secret: u128) -> Self {
        Self {
            space,
            key: ((secret >> 64) as u64, secret as u64),
            next: 0,
            next_transaction: 0,
        }
    }

    fn random(&self, domain: u8, value: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write_u8(domain);
        hasher.write_u64(value);
        hasher.finish()
    }

    /// A Feistel network over two halves of the space.
    fn permute(&self, index: u64) -> u32 {
        let half = self.space.bits / 2;
        let mask = (1_u64 << half) - 1;
        let (mut left, mut right) = (index >> half & mask, index & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.random(round, right) & mask);
        }
        self.space.prefix | (left << half | right) as u32
    }

    /// Issues the next communication id that is not in use; `None` if all are in use. Never 0, which means "none" in a REJ.
    /// `used` is the number of ids in use.
    ///
    /// Ids of long-lived connections may be adjacent in the order, so one call may take as many steps as there are
    /// connections; the next call then takes few.
    pub(crate) fn communication(
        &mut self,
        used: usize,
        in_use: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        // The ids in use, 0, and a free one.
        let tries = (used as u64).saturating_add(2).min(self.space.len());
        for _ in 0..tries {
            let id = self.permute(self.next);
            self.next = (self.next + 1) % self.space.len();
            if id != 0 && !in_use(id) {
                return Some(id);
            }
        }
        None
    }

    /// The GUID of a device instance for one service of one peer address. Other peers cannot guess it, so they cannot claim
    /// our queue pairs to that peer.
    pub(crate) fn guid(&self, own: Guid, peer: IpAddr, service: ServiceId) -> Guid {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write_u8(GUID);
        hasher.write(&own.0);
        hasher.write(&Gid::from(peer).0);
        hasher.write_u64(service.0);
        Guid::selective(hasher.finish().to_be_bytes())
    }

    pub(crate) fn transaction(&mut self) -> u64 {
        self.next_transaction += 1;
        self.random(TRANSACTION, self.next_transaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_id_of_a_block_is_issued_before_any_is_reissued() {
        let mut ids = Ids::new(IdSpace::block(0x1234), 7);
        let issued: Vec<u32> = (0..65_536)
            .map(|_| ids.communication(0, |_| false).unwrap())
            .collect();
        let different: BTreeSet<u32> = issued.iter().copied().collect();
        assert_eq!(different.len(), 65_536);
        assert!(
            different
                .iter()
                .all(|id| IdSpace::block(0x1234).range().contains(id))
        );
        assert_eq!(ids.communication(0, |_| false), Some(issued[0]));
        assert_eq!(IdSpace::block(0x1234).range(), 0x1234_0000..=0x1234_ffff);
        assert_eq!(IdSpace::ALL.range(), 0..=u32::MAX);
    }

    #[test]
    fn ids_in_use_and_zero_are_not_issued() {
        let mut ids = Ids::new(IdSpace::block(0), 7);
        let issued: BTreeSet<u32> = (0..65_535)
            .map(|_| ids.communication(0, |_| false).unwrap())
            .collect();
        assert!(!issued.contains(&0) && issued.len() == 65_535);
        let first = Ids::new(IdSpace::ALL, 7)
            .communication(0, |_| false)
            .unwrap();
        let mut ids = Ids::new(IdSpace::ALL, 7);
        assert_ne!(ids.communication(1, |id| id == first), Some(first));
        assert_eq!(ids.communication(5000, |_| true), None);
    }

    /// Long-lived connections have adjacent ids when all others have been issued once.
    #[test]
    fn a_free_id_is_found_after_any_number_of_ids_in_use() {
        let space = IdSpace {
            prefix: 0x9_1200,
            bits: 8,
        };
        let mut ids = Ids::new(space, 7);
        let mut issue =
            |used: &BTreeSet<u32>| ids.communication(used.len(), |id| used.contains(&id));
        let mut used = BTreeSet::new();
        while let Some(id) = issue(&used) {
            assert!(used.insert(id));
        }
        assert_eq!(used.len(), 256);
        for free in [0x9_1234, 0x9_1200] {
            used.remove(&free);
            assert_eq!(issue(&used), Some(free));
            used.insert(free);
            assert_eq!(issue(&used), None);
        }
    }

    #[test]
    fn each_service_of_each_peer_sees_a_different_guid() {
        let ids = Ids::new(IdSpace::ALL, 7);
        let guid = |peer: [u8; 4], service| ids.guid(Guid([1; 8]), peer.into(), ServiceId(service));
        let all = [
            guid([10, 0, 0, 1], 1),
            guid([10, 0, 0, 1], 2),
            guid([10, 0, 0, 2], 1),
        ];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 3);
        assert_eq!(all[0], guid([10, 0, 0, 1], 1));
        assert!(all.iter().all(|it| it.0[0] & 3 == 2));
        assert!(all.iter().all(|it| it.is_selective()));
        let changed =
            |it: &Guid, bit: u32| Guid((u64::from_be_bytes(it.0) ^ 1_u64 << bit).to_be_bytes());
        assert!((0..64).all(|bit| !changed(&all[0], bit).is_selective()));
        let other = Ids::new(IdSpace::ALL, 8);
        assert_ne!(
            all[0],
            other.guid(Guid([1; 8]), [10, 0, 0, 1].into(), ServiceId(1))
        );
    }

    #[test]
    fn a_different_secret_yields_different_ids() {
        let first = |secret| {
            let mut ids = Ids::new(IdSpace::ALL, secret);
            (ids.communication(0, |_| false), ids.transaction())
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1).0, first(2).0);
        assert_ne!(first(1).1, first(1 << 64).1);
    }
}
