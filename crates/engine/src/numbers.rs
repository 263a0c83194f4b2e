//! Finds queue pairs by number: two array lookups, no hashing.

use crate::id::Table;
use crate::qp::pair::Qp;

const NONE: u32 = u32::MAX;

/// Maps 24-bit queue pair numbers to indices. Numbers come in blocks of 256, and only blocks that
/// are in use have a table.
pub(crate) struct Numbers {
    /// Maps a block to its table's index plus 1; 0 means no table. Pages of this array that are never touched cost
    /// nothing.
    blocks: Vec<u16>,
    tables: Vec<[u32; 256]>,
}

impl Numbers {
    pub(crate) fn new() -> Self {
        Self {
            blocks: vec![0; 1 << 16],
            tables: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, qpn: u32) -> Option<u32> {
        let table = *self.blocks.get((qpn >> 8) as usize)?;
        let table = self.tables.get((table as usize).checked_sub(1)?)?;
        let index = table[(qpn & 0xff) as usize];
        (index != NONE).then_some(index)
    }

    /// Finds a queue pair by number. `last` caches the previous result (number, index), because consecutive fragments
    /// on a link are mostly for the same queue pair.
    #[inline]
    pub(crate) fn find<'a>(
        &self,
        qps: &'a mut Table<Qp>,
        last: &mut (u32, u32),
        qpn: u32,
    ) -> Option<&'a mut Qp> {
        let cached = last.0 == qpn && qps.at(last.1).is_some_and(|qp| qp.qpn == qpn);
        if !cached {
            *last = (qpn, self.get(qpn)?);
        }
        qps.at_mut(last.1)
    }

    /// Returns `false` if the number is taken or has more than 24 bits.
    pub(crate) fn insert(&mut self, qpn: u32, index: u32) -> bool {
        let Some(block) = self.blocks.get_mut((qpn >> 8) as usize) else {
            return false;
        };
        if *block == 0 {
            self.tables.push([NONE; 256]);
            let Ok(table) = u16::try_from(self.tables.len()) else {
                return false;
            };
            *block = table;
        }
        let entry = &mut self.tables[*block as usize - 1][(qpn & 0xff) as usize];
        if *entry != NONE {
            return false;
        }
        *entry = index;
        true
    }

    pub(crate) fn remove(&mut self, qpn: u32) {
        if let Some(&table @ 1..) = self.blocks.get((qpn >> 8) as usize) {
            self.tables[table as usize - 1][(qpn & 0xff) as usize] = NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pair_numbers_are_found_until_removed() {
        let mut numbers = Numbers::new();
        for qpn in [0, 1, 0x1234, 0xff_ffff] {
            assert!(numbers.insert(qpn, qpn ^ 5));
            assert!(!numbers.insert(qpn, 9));
        }
        assert!(!numbers.insert(1 << 24, 0));
        assert_eq!(numbers.get(0x1234), Some(0x1234 ^ 5));
        assert_eq!((numbers.get(0x1235), numbers.get(1 << 24)), (None, None));
        numbers.remove(0x1234);
        assert_eq!(numbers.get(0x1234), None);
        assert!(numbers.insert(0x1234, 7));
    }
}
