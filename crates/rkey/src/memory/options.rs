//! The options of a region.

use crate::error::{Error, Result};
use rkey_core::{Access, Addressing};

/// The local rights, which determine what our own queue pairs may use a region for.
const LOCAL: Access = Access::LOCAL_READ.union(Access::LOCAL_WRITE);

/// How a region is registered. It is made from an [`Access`], which further options refine.
///
/// The remote rights say what peers may do. The local rights limit our own operations: whether the region can be the
/// source of sends and writes, and the destination of receives and reads. If the access names no local right, the owner
/// gets all of them because the memory is the owner's; if it names some, the owner gets only those.
#[derive(Clone, Copy, Debug)]
pub struct RegionOptions {
    pub(crate) access: Access,
    pub(crate) addressing: Addressing,
    pub(crate) requested_key: Option<u64>,
}

impl RegionOptions {
    /// Options with these rights. [`RegionOptions`] explains what the absence of local rights means.
    #[must_use]
    pub fn new(access: Access) -> Self {
        let local = if access.intersects(LOCAL) {
            Access::empty()
        } else {
            LOCAL
        };
        Self {
            access: access | local,
            addressing: Addressing::Virtual,
            requested_key: None,
        }
    }

    /// Peers address the region from 0 instead of using our addresses, so keys disclose nothing about our address
    /// space.
    #[must_use]
    pub fn zero_based(mut self) -> Self {
        self.addressing = Addressing::Zero;
        self
    }

    /// Peers address the region from `iova` instead of using our addresses.
    #[must_use]
    pub fn iova(mut self, iova: u64) -> Self {
        self.addressing = Addressing::Iova(iova);
        self
    }

    /// The program chooses the key (64 bits, unique among the live regions of the domain). Peers can guess a chosen
    /// key; leave the choice to the device unless a protocol requires it.
    #[must_use]
    pub fn requested_key(mut self, key: u64) -> Self {
        self.requested_key = Some(key);
        self
    }

    /// The rights of the region as it will be registered.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The rights to register, or why they cannot be granted.
    pub(crate) fn checked_access(&self) -> Result<Access> {
        let unknown = self.access.difference(Access::all());
        if !unknown.is_empty() {
            return Err(Error::Rights(format!(
                "bits {:#x} are not rights",
                unknown.bits()
            )));
        }
        // Only a window has a key for a part of the region, and only a region with the right `BIND` can have windows.
        Ok(self.access | Access::BIND)
    }
}

impl From<Access> for RegionOptions {
    fn from(access: Access) -> Self {
        Self::new(access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_gets_all_local_rights_unless_some_are_named() {
        let open = RegionOptions::from(Access::REMOTE_READ).access();
        assert!(open.contains(LOCAL | Access::REMOTE_READ));
        let exact = RegionOptions::from(Access::REMOTE_READ | Access::SEND).access();
        assert!(!exact.intersects(Access::LOCAL_WRITE) && exact.contains(Access::SEND));
    }

    #[test]
    fn unknown_access_bits_are_refused() {
        let odd = RegionOptions::new(Access::from_bits_retain(1 << 30));
        assert!(matches!(odd.checked_access(), Err(Error::Rights(_))));
    }
}
