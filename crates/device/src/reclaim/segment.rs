//! Memory that can be leased.
//!
//! A lease passes the descriptor of the whole allocation, not only of the leased bytes, and the owner cannot control what a peer does
//! with a descriptor. So the allocation itself is sealed: its first lease decides whether it can be mapped only read-only or also
//! writable. A seal restricts every process, even one of the same user, which could otherwise reopen a read-only descriptor for
//! writing.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Weak};

use rkey_base::segment::{Arena, Sharing};
use rkey_engine::LinkId;

/// Memory that can be leased.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) arena: Weak<Arena>,
    /// Detached bytes, which can no longer be leased.
    pub(crate) detached: Vec<Range<u64>>,
    /// The links whose peers got a descriptor for writing.
    writers: HashSet<LinkId>,
}

impl Segment {
    pub(crate) fn new(arena: &Arc<Arena>) -> Self {
        Self {
            arena: Arc::downgrade(arena),
            detached: Vec::new(),
            writers: HashSet::new(),
        }
    }

    /// Forgets a detached link; its id is not reused.
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.writers.remove(&link);
    }

    /// Applies the rule that the first lease fixes whether peers can write; later leases that conflict with it are
    /// refused. A peer that has, or had, a write lease may also get a read lease, which adds nothing to its access.
    pub(crate) fn fix_sharing(
        &mut self,
        arena: &Arena,
        link: LinkId,
        write: bool,
    ) -> Result<(), &'static str> {
        let wanted = if write {
            Sharing::ReadWrite
        } else {
            Sharing::ReadOnly
        };
        let fixed = arena
            .fix_sharing(wanted)
            .map_err(|_| "the owner's kernel cannot share memory read-only")?;
        match (fixed, write) {
            (Sharing::ReadOnly, true) => Err(
                "the memory was allocated or first leased read-only: no peer can map it for writing",
            ),
            (Sharing::ReadWrite, false) if !self.writers.contains(&link) => Err(
                "another peer has mapped the memory for writing, so this peer could also write through a read-only lease",
            ),
            (Sharing::ReadWrite, true) => {
                self.writers.insert(link);
                Ok(())
            }
            (Sharing::ReadOnly | Sharing::ReadWrite, false) => Ok(()),
        }
    }
}
