//! Collective operations and their properties.

/// A collective operation, numbered as in `enum fi_collective_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No member continues before all have arrived.
    Barrier,
    /// All members get the root's data.
    Broadcast,
    /// Each member sends a block to every member, including itself.
    AllToAll,
    /// The reduction of all members' values, for every member.
    AllReduce,
    /// All members' blocks, for every member.
    AllGather,
    /// Reduces all members' values; each member gets its own block of the result.
    ReduceScatter,
    /// The reduction of all members' values, for the root.
    Reduce,
    /// Each member gets its block from the root.
    Scatter,
    /// All members' blocks, for the root.
    Gather,
}

/// All operations, by number.
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
    /// The operation with this number.
    #[must_use]
    pub fn of(number: i32) -> Option<Self> {
        usize::try_from(number)
            .ok()
            .and_then(|number| KINDS.get(number))
            .copied()
    }

    /// Whether the operation combines members' values.
    #[must_use]
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// How many blocks are in the source and in the result of a member. The call's count is the number of elements in a
    /// block.
    #[must_use]
    pub fn blocks(self, n: usize, at_root: bool) -> (usize, usize) {
        let only = |yes: bool, blocks: usize| if yes { blocks } else { 0 };
        match self {
            Self::Barrier => (0, 0),
            Self::Broadcast => (only(at_root, 1), only(!at_root, 1)),
            Self::AllToAll => (n, n),
            Self::AllReduce => (1, 1),
            Self::AllGather => (1, n),
            Self::ReduceScatter => (n, 1),
            Self::Reduce => (1, only(at_root, 1)),
            Self::Scatter => (only(at_root, n), 1),
            Self::Gather => (1, only(at_root, n)),
        }
    }

    /// Whether one member is the source or the target.
    #[must_use]
    pub fn has_root(self) -> bool {
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
    fn collective_operations_have_the_numbers_of_libfabric() {
        assert_eq!(Kind::of(0), Some(Kind::Barrier));
        assert_eq!(Kind::of(8), Some(Kind::Gather));
        assert_eq!((Kind::of(9), Kind::of(-1)), (None, None));
    }
}
