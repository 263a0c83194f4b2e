//! Memory windows, and the other objects of the protection table that a program changes directly.
//!
//! When a call that removes rights returns, no access that used them is in progress.

use rkey_core::{
    BindRequest, DomainId, Key, Limits, Protection, RegionId, Snapshot, Window, WindowId,
    WindowKind,
};

use rkey_engine::WarrantScope;

use crate::device::Device;
use crate::error::DeviceError;

/// A key of a type 1 window for a bind that is about to be posted. Dropping it frees the key.
#[derive(Debug)]
#[must_use = "dropping this without a bind frees the key"]
pub struct ReservedKey<'a> {
    device: &'a Device,
    window: WindowId,
    key: Key,
}

impl ReservedKey<'_> {
    /// The key that the window will have once the bind has executed.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// Hands the key over to the bind, which has been posted.
    pub fn posted(self) {
        std::mem::forget(self);
    }
}

impl Drop for ReservedKey<'_> {
    fn drop(&mut self) {
        if !self.device.is_forked() {
            self.device
                .table()
                .forfeit_window_key(self.window, self.key);
        }
    }
}

impl Device {
    /// The protection table itself.
    ///
    /// # Safety
    /// Registering or re-registering memory through it has the safety contract of [`Device::register`]. Deregistering through it
    /// does not wait as [`Device::deregister`] does.
    #[allow(unsafe_code)]
    // UNSAFETY: peers access the memory that is registered in the table.
    #[must_use]
    pub unsafe fn protection(&self) -> &Protection {
        self.table()
    }

    pub(crate) fn table(&self) -> &Protection {
        &self.shared().protection
    }

    /// The limits of regions, windows and domains.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.table().limits()
    }

    /// All domains, regions and windows, as they are now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.table().snapshot()
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::Core`]: the limit is reached.
    pub fn create_domain(&self) -> Result<DomainId, DeviceError> {
        self.check()?;
        let api = self.config().api;
        Ok(self.table().create_domain_for(api, false)?)
    }

    /// Creates a protection domain whose memory other APIs cannot access, regardless of [`Config::cross_api`].
    ///
    /// [`Config::cross_api`]: crate::Config::cross_api
    ///
    /// # Errors
    /// Same as [`Device::create_domain`].
    pub fn create_exclusive_domain(&self) -> Result<DomainId, DeviceError> {
        self.check()?;
        let api = self.config().api;
        Ok(self.table().create_domain_for(api, true)?)
    }

    /// Closes a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::Core`]: it still has regions, windows, queue pairs or shared receive queues, or is not open.
    pub fn close_domain(&self, domain: DomainId) -> Result<(), DeviceError> {
        self.check()?;
        Ok(self.table().close_domain(domain)?)
    }

    /// Enables a region that was registered disabled.
    ///
    /// # Errors
    /// [`DeviceError::Core`].
    pub fn enable_region(&self, region: RegionId) -> Result<(), DeviceError> {
        self.check()?;
        Ok(self.table().enable(region)?)
    }

    /// Binds a region to an endpoint ([`QpOptions`](crate::QpOptions)), or to a queue pair that is not part of one. A region that needs
    /// an endpoint serves only the one that it is bound to.
    ///
    /// # Errors
    /// [`DeviceError::Core`].
    pub fn bind_endpoint(&self, region: RegionId, qpn: u32) -> Result<(), DeviceError> {
        self.check()?;
        Ok(self.table().bind_endpoint(region, qpn)?)
    }

    /// Makes a counter count peers' accesses to a region ([`Device::counter`]).
    ///
    /// # Errors
    /// [`DeviceError::Core`].
    pub fn bind_counter(&self, region: RegionId, counter: u32) -> Result<(), DeviceError> {
        self.check()?;
        self.table().bind_counter(region, counter)?;
        // A write under a warrant is not counted, and a region with a counter gets no further warrants.
        self.drain();
        let shared = self.shared();
        let scope = WarrantScope::Region(region);
        shared.reclaim.end_warrants(&shared.driver, scope);
        Ok(())
    }

    /// Creates a memory window, unbound.
    ///
    /// # Errors
    /// [`DeviceError::Core`].
    pub fn create_window(&self, domain: DomainId, kind: WindowKind) -> Result<Window, DeviceError> {
        self.check()?;
        Ok(self.table().create_window(domain, kind)?)
    }

    /// Deallocates a memory window. When this returns, no access through it is in progress.
    ///
    /// # Errors
    /// [`DeviceError::Core`].
    pub fn deallocate_window(&self, window: WindowId) -> Result<(), DeviceError> {
        self.check()?;
        self.table().deallocate_window(window)?;
        self.drain();
        Ok(())
    }

    /// Binds a window now, without a queue pair. When this returns, no access through its previous binding is in
    /// progress.
    ///
    /// # Errors
    /// [`DeviceError::Bind`]: nothing changed.
    pub fn bind_window(&self, request: &BindRequest) -> Result<Key, DeviceError> {
        self.check()?;
        let key = self.table().bind_window(request)?;
        self.drain();
        Ok(key)
    }

    /// Reserves the key for a bind of a type 1 window that is about to be posted.
    ///
    /// # Errors
    /// The window has been deallocated, or no key is available.
    pub fn reserve_window_key(&self, window: WindowId) -> Result<ReservedKey<'_>, DeviceError> {
        self.check()?;
        let key = self.table().next_window_key(window)?;
        Ok(ReservedKey {
            device: self,
            window,
            key,
        })
    }

    /// The key of a bound window; `None` if the window is unbound or deallocated.
    #[must_use]
    pub fn bound_key(&self, window: WindowId) -> Option<Key> {
        self.table().bound_key(window)
    }

    /// Waits until accesses that were granted before this call have ended. The engine holds grants only under its lock,
    /// so taking the lock once is enough.
    fn drain(&self) {
        drop(self.shared().driver.lock());
    }
}
