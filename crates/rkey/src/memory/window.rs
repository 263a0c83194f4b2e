//! Memory windows: a narrower key for a part of a region, which can be revoked at once.

use crate::device::domain::Domain;
use crate::error::{Error, Result};
use crate::memory::key::RemoteKey;
use rkey_core::{
    Access, BindRegion, BindRequest, Key, RKey, RegionId, Rules, WindowId, WindowKind,
};
use rkey_device::ReservedKey;
use rkey_device::base::VaRange;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two rules apply to binding: the region must allow windows (all regions of this crate do), and a window that peers
/// may write needs a region that we may write ourselves.
pub(crate) const BIND_RULES: Rules =
    Rules::WINDOW_NEEDS_BIND.union(Rules::WINDOW_WRITE_NEEDS_LOCAL_WRITE);

/// A memory window. A bound window is a key for a part of one region of the same domain. Rebinding it elsewhere,
/// unbinding it or dropping it revokes the key; the region is not affected.
///
/// Deregistering a region unbinds its windows.
pub struct Window {
    domain: Domain,
    id: WindowId,
    kind: WindowKind,
    /// The key after creation; type 2 binds derive their keys from it.
    first_key: Key,
    closed: AtomicBool,
}

impl Window {
    pub(crate) fn create(domain: &Domain, kind: WindowKind) -> Result<Self> {
        let window = domain.device().raw().create_window(domain.id(), kind)?;
        let closed = AtomicBool::new(false);
        Ok(Self {
            domain: domain.clone(),
            id: window.id,
            kind,
            first_key: window.key,
            closed,
        })
    }

    /// Binds the window to a range that the caller has checked, and returns the key.
    pub(crate) fn bind_to(
        &self,
        region: RegionId,
        start: u64,
        len: u64,
        access: Access,
    ) -> Result<RemoteKey> {
        let key = self.request(BindRegion::Id(region), start, len, access)?;
        RemoteKey::from_rkey(start, len, RKey::Device(key), access)
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Revokes the key of the window. When this returns, every access with it is refused, and none is in progress.
    /// Unbinding an unbound window has no effect.
    ///
    /// # Errors
    /// The window is of type 2 (see [`QueuePair::post_invalidate`](crate::QueuePair::post_invalidate)).
    pub fn unbind(&self) -> Result<()> {
        let nothing = BindRegion::Key(rkey_core::LKey(0));
        self.request(nothing, 0, 0, Access::empty()).map(|_| ())
    }

    fn request(&self, region: BindRegion, start: u64, len: u64, access: Access) -> Result<Key> {
        let range = VaRange::new(start, len)
            .ok_or_else(|| Error::Rights("the range wraps around the address space".into()))?;
        let request = BindRequest {
            window: self.id,
            region,
            range,
            access,
            zero_based: false,
            new_key: None,
            qp: None,
            domain: self.domain.id(),
            rules: BIND_RULES,
        };
        let bound = self.domain.device().raw().bind_window(&request);
        bound.map_err(|error| Error::Rights(error.to_string()))
    }

    /// Checks that the window belongs to the same device as `domain`, whose queue pairs can then refer to it.
    pub(crate) fn check_device(&self, domain: &Domain) -> Result<()> {
        if self.domain.device().raw().is(domain.device().raw()) {
            return Ok(());
        }
        Err(Error::Rights(
            "the window belongs to a different device than the queue pair".into(),
        ))
    }

    /// The window's handle, for posted binds.
    #[must_use]
    pub fn id(&self) -> WindowId {
        self.id
    }

    /// The type of the window.
    #[must_use]
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Reserves the key of a bind that is about to be posted. `None`: the program chooses the keys of a type 2 window.
    pub(crate) fn reserve_key(&self) -> Result<Option<ReservedKey<'_>>> {
        if self.kind.is_type2() {
            return Ok(None);
        }
        Ok(Some(
            self.domain.device().raw().reserve_window_key(self.id)?,
        ))
    }

    /// For a type 2 window, the key that a bind with these low 8 bits will have. Use different bits for each bind, so
    /// that earlier keys are refused.
    #[must_use]
    pub fn key_with(&self, bits: u8) -> Key {
        self.first_key.with_consumer_bits(bits)
    }

    /// Unbinds and deallocates the window, as dropping does, and reports errors.
    ///
    /// # Errors
    /// The device is broken.
    pub fn close(self) -> Result<()> {
        self.destroy()
    }

    fn destroy(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        Ok(self.domain.device().raw().deallocate_window(self.id)?)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Fails only in a forked child or on a broken device; nothing can be done about either.
        let _ = self.destroy();
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Domain {
    /// Creates an unbound window: a second, narrower key for a part of a region, which can be revoked without affecting the
    /// region. [`MemoryRegion::key`](crate::MemoryRegion::key) is simpler if that is all you need.
    ///
    /// # Errors
    /// The limit of windows is reached.
    pub fn window(&self) -> Result<Window> {
        Window::create(self, WindowKind::Type1)
    }

    /// Creates a window of the given type, for programs that bind and invalidate through a queue pair.
    ///
    /// # Errors
    /// Same as [`Domain::window`].
    pub fn window_of(&self, kind: WindowKind) -> Result<Window> {
        Window::create(self, kind)
    }
}
