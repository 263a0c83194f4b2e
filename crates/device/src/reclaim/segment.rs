//! Memory that can be leased, and what the peers that have it can do with it.
//!
//! With a lease comes the descriptor of all the memory that was allocated in one piece, not of the bytes of the lease,
//! and what a peer does with a descriptor is its own affair. So the memory itself is sealed: it is leased either for
//! reading or for writing, as its first lease was. A seal holds against everybody, also against processes of the
//! same user, which could open a descriptor for reading once more, for writing.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Weak};

use rkey_base::segment::{Arena, Sharing};
use rkey_engine::LinkId;

/// Memory that can be leased.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) arena: Weak<Arena>,
    /// Bytes of it that cannot be leased any more: pages that peers have are not ours.
    pub(crate) detached: Vec<Range<u64>>,
    /// Who was given a descriptor by which it can be written.
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

    /// A link has gone; its number does not come again.
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.writers.remove(&link);
    }

    /// Settles with the first lease what peers can do, and refuses what does not go with that. A peer that has, or had,
    /// the memory for writing may have it for reading as well: it learns nothing new.
    pub(crate) fn settle(
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
        let settled = arena
            .settle(wanted)
            .map_err(|_| "this kernel cannot share memory for reading only")?;
        match (settled, write) {
            (Sharing::ReadOnly, true) => Err(
                "the memory was allocated, or first leased, for reading: no peer can map it for writing",
            ),
            (Sharing::ReadWrite, false) if !self.writers.contains(&link) => Err(
                "another peer has mapped the memory for writing: a lease for reading could be used to write it as well",
            ),
            (Sharing::ReadWrite, true) => {
                self.writers.insert(link);
                Ok(())
            }
            (Sharing::ReadOnly | Sharing::ReadWrite, false) => Ok(()),
        }
    }
}
