//! Why a key, a slot or a right is refused: the reasons of denials.

use crate::denials::denial::Request;
use crate::keys::key::Named;
use crate::protection::entry::{Entry, flag};
use crate::protection::table::Protection;
use crate::sync::Ordering;
use crate::{Access, Denial, Reason, SlotNow};
use rkey_base::slab::{Slab, State};

impl Protection {
    /// Whether a slot of regions is in use under this generation.
    #[inline]
    fn is_used(&self, index: u32, generation: u32) -> bool {
        matches!(self.slots.peek(index), Some((now, state)) if now == generation && state != State::Free)
    }

    /// What a number names as a key, for denials and invalidations.
    #[cold]
    pub(crate) fn name(&self, key: u32) -> Named {
        let named = self
            .keys
            .open(key, |index, generation| self.is_used(index, generation));
        match named {
            Named::Remote { index, generation }
                if self.slots.peek(index) == Some((generation, State::Claimed))
                    && self.keys.remote.find(key) == Some((index, generation)) =>
            {
                // The key was drawn in advance: no region has had it yet.
                Named::Nothing
            }
            named => named,
        }
    }

    /// A refusal in the words of the request's API.
    #[cold]
    pub(crate) fn refuse(&self, request: &Request, reason: Reason) -> Box<Denial> {
        request.refuse(reason, request.domain.api())
    }

    /// Why a key that names this is refused, in a peer's request (`remote`) or in one of this side.
    #[cold]
    pub(crate) fn why_key_is_refused(&self, named: Named, remote: bool) -> Reason {
        let (slab, index, generation, misused) = match named {
            Named::Remote { index, generation } => (&self.slots, index, generation, !remote),
            Named::Local { index, generation } => (&self.slots, index, generation, remote),
            Named::Type2 { index, generation } => (&self.type2, index, generation, !remote),
            Named::Ended => {
                return Reason::StaleKey { now: SlotNow::Free };
            }
            Named::Nothing => return Reason::UnknownKey,
        };
        match slab.peek(index) {
            Some((now, State::Live)) if now == generation && misused => {
                let window = slab
                    .get(index)
                    .is_some_and(|entry| entry.rights() & flag::WINDOW != 0);
                match (remote, window) {
                    (true, false) => Reason::LocalKeyUsedRemotely,
                    (true, true) => Reason::UnknownKey, // a window has no local key
                    (false, _) => Reason::RemoteKeyUsedLocally,
                }
            }
            _ => match (slot_reason(slab, index, generation), named) {
                (Reason::StaleKey { now }, Named::Remote { .. }) => {
                    let window = self.window_since(index, generation);
                    Reason::StaleKey {
                        now: window.unwrap_or(now),
                    }
                }
                // The key was issued, so the slot's generations have wrapped since.
                (Reason::UnknownKey, Named::Remote { .. } | Named::Type2 { .. }) => {
                    Reason::StaleKey {
                        now: SlotNow::Reused,
                    }
                }
                (reason, _) => reason,
            },
        }
    }

    /// What happened to the window that recently had this key. `None` if no window had it, or if another thread has
    /// locked the registry: this is only a hint for the message, so it does not wait.
    fn window_since(&self, index: u32, generation: u32) -> Option<SlotNow> {
        let registry = self.registry.try_lock()?;
        let entry = self.slots.get(index)?;
        let record = registry.windows.at(entry.window.load(Ordering::Relaxed))?;
        let is_recent = record.recent.contains(&Some((index, generation)));
        let now = match record.open {
            true => SlotNow::Rebound,
            false => SlotNow::Deallocated,
        };
        is_recent.then_some(now)
    }
}

/// A refusal in the words of the API whose program can fix it: that of the request if the memory is in another domain,
/// otherwise that of the memory.
#[cold]
pub(crate) fn refuse_entry(entry: &Entry, request: &Request, reason: Reason) -> Box<Denial> {
    let api = match reason {
        Reason::OtherDomain { .. } => request.domain.api(),
        _ => entry.domain().api(),
    };
    request.refuse(reason, api)
}

/// Checks that no right that the access needs is missing.
pub(crate) fn has_right(granted: Access, needs: Access) -> Result<(), Reason> {
    let missing = needs.difference(granted);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Reason::Right { granted, missing })
    }
}

/// Why a generation of a slot could not be pinned. If that generation is live now, it was being changed at the time.
pub(crate) fn slot_reason(slab: &Slab<Entry>, index: u32, generation: u32) -> Reason {
    let Some((current, state)) = slab.peek(index) else {
        return Reason::UnknownKey;
    };
    let gone = match state {
        State::Free | State::Claimed => SlotNow::Free,
        State::Live | State::Retired => SlotNow::Reused,
    };
    match generation.cmp(&current) {
        std::cmp::Ordering::Less => Reason::StaleKey { now: gone },
        std::cmp::Ordering::Equal if matches!(state, State::Live | State::Retired) => {
            Reason::Deregistering
        }
        _ => Reason::UnknownKey,
    }
}
