//! Access rights: what a region or window allows, and which right each kind of access needs.
//!
//! Local rights are split the way libfabric splits them, because the other APIs' rights are unions of these:
//! verbs' "local write" is `RECV | READ`, and the local read that it always allows is `SEND | WRITE`. Rights are
//! independent: none implies another (VB-018). [`crate::Rules`] says which combinations an API refuses.

use bitflags::bitflags;
use std::fmt;

bitflags! {
    /// What a region or window allows. The empty set is legal: it allows no access at all.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// Source of a message this side sends (FI_SEND).
        const SEND = 1 << 0;
        /// Target of a message this side receives (FI_RECV).
        const RECV = 1 << 1;
        /// Destination of this side's own RDMA reads and atomic results (FI_READ).
        const READ = 1 << 2;
        /// Source of this side's own RDMA write or atomic operand (FI_WRITE).
        const WRITE = 1 << 3;
        /// A peer may read the memory.
        const REMOTE_READ = 1 << 4;
        /// A peer may write the memory.
        const REMOTE_WRITE = 1 << 5;
        /// A peer may perform atomic operations on the memory.
        const REMOTE_ATOMIC = 1 << 6;
        /// Memory windows may be bound to the region.
        const BIND = 1 << 7;
        /// Source or target of collective operations (FI_COLLECTIVE).
        const COLLECTIVE = 1 << 8;

        /// The device may read the memory for this side's own requests: local read, which verbs always allows.
        const LOCAL_READ = Self::SEND.bits() | Self::WRITE.bits();
        /// The device may write the memory for this side's own requests: local write in verbs.
        const LOCAL_WRITE = Self::RECV.bits() | Self::READ.bits();
        /// Every remote right.
        const REMOTE = Self::REMOTE_READ.bits() | Self::REMOTE_WRITE.bits() | Self::REMOTE_ATOMIC.bits();
    }
}

/// Each right and its name, in the order in which they are printed.
const NAMES: [(Access, &str); 9] = [
    (Access::REMOTE_READ, "remote read"),
    (Access::REMOTE_WRITE, "remote write"),
    (Access::REMOTE_ATOMIC, "remote atomic"),
    (Access::SEND, "send"),
    (Access::RECV, "receive"),
    (Access::READ, "read result"),
    (Access::WRITE, "write source"),
    (Access::BIND, "window bind"),
    (Access::COLLECTIVE, "collective"),
];

impl Access {
    /// Whether at least one remote right is in the set.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        self.intersects(Self::REMOTE)
    }
}

/// The names of the rights, separated by commas; "no access" for the empty set.
impl fmt::Display for Access {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (right, name) in NAMES {
            if self.contains(right) {
                out.write_str(if first { "" } else { ", " })?;
                out.write_str(name)?;
                first = false;
            }
        }
        if first {
            out.write_str("no access")
        } else {
            Ok(())
        }
    }
}

impl serde::Serialize for Access {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Access {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = String::deserialize(input)?;
        let mut access = Self::empty();
        for word in text.split(", ").filter(|word| *word != "no access") {
            match NAMES.iter().find(|(_, name)| *name == word) {
                Some((right, _)) => access |= *right,
                None => return Err(serde::de::Error::custom(format!("unknown right: {word}"))),
            }
        }
        Ok(access)
    }
}

/// What a peer does with memory that it names by a remote key.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub enum Operation {
    /// RDMA write.
    Write,
    /// RDMA read.
    Read,
    /// Compare-and-swap or fetch-and-add.
    Atomic,
}

impl Operation {
    /// The right this operation needs.
    #[inline]
    #[must_use]
    pub const fn needs(self) -> Access {
        match self {
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::Atomic => Access::REMOTE_ATOMIC,
        }
    }

    /// The bits of the address that must be zero for this operation.
    #[inline]
    pub(crate) const fn alignment(self) -> u64 {
        match self {
            Self::Write | Self::Read => 0,
            Self::Atomic => 7,
        }
    }
}

/// How this side's own request uses local memory.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub enum LocalUse {
    /// Source of a send.
    Send,
    /// Target of a receive.
    Recv,
    /// Source of an RDMA write.
    WriteSource,
    /// Destination of an RDMA read.
    ReadSink,
    /// Destination of the old value of an atomic operation.
    AtomicResult,
    /// Source or target of a collective operation.
    Collective,
}

impl LocalUse {
    /// The right this use needs.
    #[inline]
    #[must_use]
    pub const fn needs(self) -> Access {
        match self {
            Self::Send => Access::SEND,
            Self::Recv => Access::RECV,
            Self::WriteSource => Access::WRITE,
            Self::ReadSink | Self::AtomicResult => Access::READ,
            Self::Collective => Access::COLLECTIVE,
        }
    }
}
