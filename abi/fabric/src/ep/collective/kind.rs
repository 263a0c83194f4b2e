//! Collective operations, and what each is like.

use std::ffi::c_int;

/// A collective operation, numbered as in `enum fi_collective_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Barrier,
    Broadcast,
    AllToAll,
    AllReduce,
    AllGather,
    ReduceScatter,
    Reduce,
    Scatter,
    Gather,
}

/// All of them, by number.
const KINDS: [Kind; 9] = [
    Kind::Barrier,
    Kind::Broadcast,
    Kind::AllToAll,
    Kind::AllReduce,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::Reduce,
    Kind::Scatter,
    Kind::Gather,
];

impl Kind {
    pub(crate) fn of(number: c_int) -> Option<Self> {
        usize::try_from(number)
            .ok()
            .and_then(|number| KINDS.get(number))
            .copied()
    }

    /// Whether values of members become one.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether one member is the source or the target.
    pub(crate) fn has_root(self) -> bool {
        matches!(
            self,
            Self::Broadcast | Self::Reduce | Self::Scatter | Self::Gather
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_the_numbers_of_the_headers() {
        assert_eq!(Kind::of(0), Some(Kind::Barrier));
        assert_eq!(Kind::of(8), Some(Kind::Gather));
        assert_eq!((Kind::of(9), Kind::of(-1)), (None, None));
    }
}
