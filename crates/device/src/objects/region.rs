//! Memory regions: registering and deregistering. After deregistering, no peer touches the memory.

use std::rc::Rc;

use rkey_base::foreign::Copier;
use rkey_core::{Change, Draining, MemoryKind, Region, RegionSpec};

use super::magazines::{ThreadMagazine, magazine};
use crate::device::Device;
use crate::error::DeviceError;
use crate::progress::Backoff;

/// How many times to check whether a region is drained before the first pause.
const SPINS: u32 = 1000;

impl Device {
    /// Registers memory.
    ///
    /// # Safety
    /// Until [`Device::deregister`] (or [`Device::revoke_and_deregister`], or [`Device::reregister`]) has returned for this region, peers
    /// and the device read and write the memory as the region's rights allow. No other code in the process may assume that
    /// the memory is not read or written: in Rust, no reference to it may be used, except shared references to bytes that no
    /// right of the region allows peers to write. Registering unmapped memory is safe: an access fails with an error.
    ///
    /// # Errors
    /// [`DeviceError::Core`]: a limit is reached, the rights break a rule, the range is empty or overflows, or the key
    /// is taken. [`DeviceError::Forked`], [`DeviceError::Failed`].
    #[allow(unsafe_code)]
    // UNSAFETY: the function lets peers access memory; its safety contract is above.
    #[inline]
    pub unsafe fn register(&self, spec: &RegionSpec<'_>) -> Result<Region, DeviceError> {
        self.check()?;
        let region = match self.magazine() {
            Some(magazine) => self.table().register_from(&magazine, spec),
            None => self.table().register(spec),
        }?;
        self.add_leasable(spec.memory, &region);
        Ok(region)
    }

    /// Registers memory whose ranges have copiers of their own, one for each; `None` is the processor. The device drops the copiers
    /// after the region has ended.
    ///
    /// # Safety
    /// Same as [`Device::register`].
    ///
    /// # Errors
    /// Same as [`Device::register`]; the numbers of ranges and copiers differ.
    #[allow(unsafe_code)]
    // UNSAFETY: as for `register`.
    pub unsafe fn register_foreign(
        &self,
        spec: &RegionSpec<'_>,
        copiers: &[Copier],
    ) -> Result<Region, DeviceError> {
        self.check()?;
        Ok(self.table().register_foreign(spec, copiers)?)
    }

    /// Changes the rights, domain or memory of a region, which gets a new handle and new keys. When this returns, the old keys
    /// are stale, and no peer touches the old memory.
    ///
    /// # Safety
    /// Same as [`Device::register`], for the new memory and rights.
    ///
    /// # Errors
    /// Same as [`Device::register`]; [`rkey_core::CoreError::RegionBusy`].
    #[allow(unsafe_code)]
    // UNSAFETY: as for `register`.
    pub unsafe fn reregister(
        &self,
        region: Region,
        change: &Change<'_>,
    ) -> Result<Region, DeviceError> {
        self.check()?;
        let (new, deregistering) = self.table().reregister(region.id, change)?;
        let leasable = deregistering.was_leasable();
        self.wait_until_unused(region, leasable, deregistering);
        self.add_leasable(self.table().region_memory(new.id)?, &new);
        Ok(new)
    }

    /// Changes the rights, domain or memory of a region, which keeps its handle and keys. While it changes, every access is
    /// refused. When this returns, no peer touches the old memory.
    ///
    /// # Safety
    /// Same as [`Device::register`], for the new memory and rights.
    ///
    /// # Errors
    /// Same as [`Device::register`]; [`rkey_core::CoreError::RegionBusy`].
    #[allow(unsafe_code)]
    // UNSAFETY: as for `register`.
    pub unsafe fn change_region(
        &self,
        region: Region,
        change: &Change<'_>,
    ) -> Result<Region, DeviceError> {
        self.check()?;
        let changing = self.table().change_region(region.id, change)?;
        let changed = self.wait_until_unused(region, true, changing);
        self.add_leasable(self.table().region_memory(changed.id)?, &changed);
        Ok(changed)
    }

    /// Deregisters a region: its keys are refused at once, and when this returns no peer touches its memory.
    ///
    /// Deregistering takes microseconds if no peer is using the memory, and usually at most a second otherwise, even if a peer is
    /// stopped in the middle of a copy. A peer that does not respond for a second to a request that names the memory loses its
    /// link to this device; see [`crate::SharedMemory`] for leased memory. If a peer has lost its link and is not known, within
    /// two seconds, to have left our memory (its side of the copy may be on a file system that does not respond), the device
    /// gives up on it and logs an error that names the process. Only regions whose addresses this peer received wait for it. The same
    /// holds for a peer that is writing under a warrant for the region; such a peer then loses its link.
    ///
    /// # Errors
    /// [`rkey_core::CoreError::RegionBusy`] (the region has windows or bindings: nothing changed), or the region does not exist.
    /// [`DeviceError::Forked`].
    #[inline]
    pub fn deregister(&self, region: Region) -> Result<(), DeviceError> {
        if self.is_forked() {
            return Err(DeviceError::Forked);
        }
        let deregistering = match self.magazine() {
            Some(magazine) => self.table().deregister_into(&magazine, region.id),
            None => self.table().deregister(region.id),
        }?;
        let leasable = deregistering.was_leasable();
        self.wait_until_unused(region, leasable, deregistering);
        Ok(())
    }

    /// Deregisters a region like [`Device::deregister`], but only if no request that names the memory is outstanding, and no
    /// peer of a lost link can touch the memory. If one can, nothing changes, and the result is `false`. Leases and warrants are not
    /// checked: the call may wait until copies of peers that have them have ended, as [`Device::deregister`] does.
    ///
    /// # Errors
    /// Same as [`Device::deregister`].
    pub fn try_deregister(&self, region: Region) -> Result<bool, DeviceError> {
        let shared = self.shared();
        if shared.lifecycle().is_usable()
            && !shared
                .reclaim
                .is_region_quiet(&shared.driver, region.local_key)
        {
            return Ok(false);
        }
        self.deregister(region).map(|()| true)
    }

    /// Like [`Device::deregister`], but first unbinds the windows and removes the bindings of the region.
    ///
    /// # Errors
    /// The region does not exist. [`DeviceError::Forked`].
    pub fn revoke_and_deregister(&self, region: Region) -> Result<(), DeviceError> {
        if self.is_forked() {
            return Err(DeviceError::Forked);
        }
        let deregistering = match self.magazine() {
            Some(magazine) => self
                .table()
                .revoke_and_deregister_into(&magazine, region.id),
            None => self.table().revoke_and_deregister(region.id),
        }?;
        let leasable = deregistering.was_leasable();
        self.wait_until_unused(region, leasable, deregistering);
        Ok(())
    }

    /// This thread's magazine, unless the thread is ending.
    #[inline]
    fn magazine(&self) -> Option<Rc<ThreadMagazine>> {
        let shared = self.shared();
        magazine(&shared.protection, shared.lifecycle().fork_mark())
    }

    #[inline]
    fn add_leasable(&self, memory: MemoryKind, region: &Region) {
        if memory != MemoryKind::User {
            self.shared().reclaim.leases.add_region(region);
        }
    }

    /// Waits until neither a peer nor the engine accesses the memory of a region whose keys are already refused. `leasable` means
    /// that peers may have leases on it.
    #[inline(always)]
    fn wait_until_unused<P: Draining>(
        &self,
        region: Region,
        leasable: bool,
        mut pending: P,
    ) -> P::Done {
        let shared = self.shared();
        shared
            .reclaim
            .wait_for_region(&shared.driver, region, leasable, &mut pending);
        pending.finish().unwrap_or_else(wait_until_drained)
    }
}

/// Waits until the last access has ended. An access lasts as long as one copy (a step of the engine copies 256 KiB at most;
/// its thread may have been descheduled) and never waits for another thread, so this ends. Callers outside this crate never hold
/// the engine's lock, whose guards never leave the crate.
#[cold]
fn wait_until_drained<P: Draining>(mut pending: P) -> P::Done {
    for _ in 0..SPINS {
        match pending.finish() {
            Ok(done) => return done,
            Err(still) => pending = still,
        }
        rkey_base::hint::pause();
    }
    let mut backoff = Backoff::new();
    loop {
        match pending.finish() {
            Ok(done) => return done,
            Err(still) => pending = still,
        }
        backoff.sleep();
    }
}
