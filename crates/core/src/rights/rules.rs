//! Rules that only some APIs have. The core applies a rule only if the caller asks for it.
//!
//! The three APIs disagree about which rights need which. Each rule is written
//! once, here. A front end passes the set that its API requires with every registration and every
//! bind.

use crate::Access;
use bitflags::bitflags;

bitflags! {
    /// Optional rules for a registration or a bind.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Rules: u32 {
        /// A region with remote write or remote atomic also needs local write (VB-014, VB-015).
        const REMOTE_WRITE_NEEDS_LOCAL_WRITE = 1 << 0;
        /// Every region may be read locally, requested or not (VB-016).
        const LOCAL_READ_ALWAYS = 1 << 1;
        /// A window binds only to a region with the right to bind (VB-013).
        const WINDOW_NEEDS_BIND = 1 << 2;
        /// A window with remote write or atomic needs a region with local write (VB-I13, DA-030).
        const WINDOW_WRITE_NEEDS_LOCAL_WRITE = 1 << 3;
        /// A window with remote read needs a region with local read (DA-029).
        const WINDOW_READ_NEEDS_LOCAL_READ = 1 << 4;
        /// Remote write includes remote atomic (FI-098).
        const REMOTE_WRITE_GIVES_ATOMIC = 1 << 5;
        /// Windows cannot be bound to zero-based regions.
        const NO_WINDOW_ON_ZERO_BASED = 1 << 6;

        /// The rules of verbs.
        const VERBS = Self::REMOTE_WRITE_NEEDS_LOCAL_WRITE.bits() | Self::LOCAL_READ_ALWAYS.bits()
            | Self::WINDOW_NEEDS_BIND.bits() | Self::WINDOW_WRITE_NEEDS_LOCAL_WRITE.bits()
            | Self::NO_WINDOW_ON_ZERO_BASED.bits();
        /// The rules of libfabric.
        const LIBFABRIC = Self::REMOTE_WRITE_GIVES_ATOMIC.bits();
        /// The rules of uDAPL.
        const UDAPL = Self::WINDOW_WRITE_NEEDS_LOCAL_WRITE.bits() | Self::WINDOW_READ_NEEDS_LOCAL_READ.bits();
    }
}

impl Rules {
    /// The rights of a region that requests `asked`.
    ///
    /// # Errors
    /// The missing right, if a rule requires one that was not requested.
    pub(crate) fn apply(self, asked: Access) -> Result<Access, Access> {
        let mut access = asked;
        if self.contains(Self::LOCAL_READ_ALWAYS) {
            access |= Access::LOCAL_READ;
        }
        if self.contains(Self::REMOTE_WRITE_GIVES_ATOMIC) && access.contains(Access::REMOTE_WRITE) {
            access |= Access::REMOTE_ATOMIC;
        }
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if self.contains(Self::REMOTE_WRITE_NEEDS_LOCAL_WRITE) && writes {
            missing(access, Access::LOCAL_WRITE)?;
        }
        Ok(access)
    }

    /// Checks a window with `window` rights against the rights of its region.
    ///
    /// # Errors
    /// The right that the region lacks.
    pub(crate) fn check_window(self, window: Access, region: Access) -> Result<(), Access> {
        if self.contains(Self::WINDOW_NEEDS_BIND) {
            missing(region, Access::BIND)?;
        }
        if self.contains(Self::WINDOW_WRITE_NEEDS_LOCAL_WRITE)
            && window.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        {
            missing(region, Access::LOCAL_WRITE)?;
        }
        if self.contains(Self::WINDOW_READ_NEEDS_LOCAL_READ) && window.contains(Access::REMOTE_READ)
        {
            missing(region, Access::LOCAL_READ)?;
        }
        Ok(())
    }
}

fn missing(granted: Access, needed: Access) -> Result<(), Access> {
    let missing = needed.difference(granted);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(missing)
    }
}
