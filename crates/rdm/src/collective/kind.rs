//! Collective operations, and what each is like.

/// A collective operation, numbered as in `enum fi_collective_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No member goes on before all have come.
    Barrier,
    /// What the root has goes to all.
    Broadcast,
    /// Each member has a block for each member.
    AllToAll,
    /// One value of all, for each.
    AllReduce,
    /// The blocks of all, for each.
    AllGather,
    /// One value of all for each member, which gets its own.
    ReduceScatter,
    /// One value of all, for the root.
    Reduce,
    /// The root has a block for each member.
    Scatter,
    /// The blocks of all, for the root.
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
    /// The operation with this number.
    #[must_use]
    pub fn of(number: i32) -> Option<Self> {
        usize::try_from(number)
            .ok()
            .and_then(|number| KINDS.get(number))
            .copied()
    }

    /// Whether values of members become one.
    #[must_use]
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Blocks that the source and the result have, each as many elements as the call counts.
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
    fn operations_have_the_numbers_of_the_headers() {
        assert_eq!(Kind::of(0), Some(Kind::Barrier));
        assert_eq!(Kind::of(8), Some(Kind::Gather));
        assert_eq!((Kind::of(9), Kind::of(-1)), (None, None));
    }
}
