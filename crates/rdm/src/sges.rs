//! The local memory of an operation: usually one scatter/gather entry, which is stored without a
//! list.

use rkey_engine::Sge;
use smallvec::SmallVec;

/// Scatter/gather entries of local memory, in order.
pub type Sges = SmallVec<[Sge; 1]>;

/// The list of one entry, which is left out if it is empty.
#[must_use]
pub fn of(sge: Sge) -> Sges {
    Some(sge).into_iter().filter(|sge| sge.len > 0).collect()
}

/// `len` bytes of some local memory, from byte `skip` on.
#[must_use]
pub fn part(sges: &[Sge], mut skip: usize, mut len: usize) -> Sges {
    let part = |sge: &Sge| {
        let before = skip.min(sge.len as usize);
        skip -= before;
        let take = (sge.len as usize - before).min(len);
        len -= take;
        (take > 0).then(|| Sge {
            addr: sge.addr.wrapping_add(before as u64),
            len: take as u32,
            key: sge.key,
        })
    };
    sges.iter().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_core::LKey;

    #[test]
    fn a_part_of_a_scatter_list_may_begin_and_end_inside_an_entry() {
        let key = LKey(7);
        let sge = |addr, len| Sge { addr, len, key };
        let all = [sge(100, 10), sge(200, 0), sge(300, 5)];
        assert_eq!(part(&all, 0, 10).as_slice(), [sge(100, 10)]);
        assert_eq!(part(&all, 8, 4).as_slice(), [sge(108, 2), sge(300, 2)]);
        assert_eq!(part(&all, 12, 99).as_slice(), [sge(302, 3)]);
        assert!(part(&all, 15, 1).is_empty() && part(&all, 3, 0).is_empty());
    }
}
