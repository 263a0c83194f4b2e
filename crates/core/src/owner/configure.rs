//! What an owner sets on a registered region: an endpoint, a counter, and that it is enabled.

use crate::objects::state::RegionEvent;
use crate::owner::registration::state;
use crate::protection::entry::{Entry, NONE, flag};
use crate::protection::table::Protection;
use crate::sync::{AtomicU32, Ordering};
use crate::{CoreError, RegionId};

impl Protection {
    /// Enables a region that was created disabled. Afterwards, no endpoint or counter can be bound to it.
    ///
    /// # Errors
    /// [`CoreError::NoSuchRegion`]; [`CoreError::AlreadyEnabled`]; [`CoreError::NeedsEndpoint`] if it needs an endpoint
    /// and none is bound to it.
    pub fn enable(&self, region: RegionId) -> Result<(), CoreError> {
        let _registry = self.registry.lock();
        let entry = self.hold(region)?;
        if state(&entry).step(RegionEvent::Enable).is_none() {
            return Err(CoreError::AlreadyEnabled(region));
        }
        if entry.rights() & flag::ENDPOINT != 0 && Entry::bound(&entry.endpoint).is_none() {
            return Err(CoreError::NeedsEndpoint(region));
        }
        entry.change_flags(flag::ENABLED, flag::DISABLED);
        Ok(())
    }

    /// Binds a region to an endpoint, by queue pair number. A region registered with `needs_endpoint` serves only that
    /// one.
    ///
    /// # Errors
    /// [`CoreError::NoSuchRegion`]; [`CoreError::AlreadyEnabled`] after `enable`; [`CoreError::AlreadyBound`] if it is
    /// bound to another endpoint.
    pub fn bind_endpoint(&self, region: RegionId, endpoint: u32) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        bind(
            region,
            &*self.hold(region)?,
            |entry| &entry.endpoint,
            endpoint,
        )?;
        registry.endpoints.insert(region, endpoint);
        Ok(())
    }

    /// Unbinds the endpoint, even from an enabled region. A region that needs an endpoint is then unreachable.
    ///
    /// # Errors
    /// [`CoreError::NoSuchRegion`].
    pub fn unbind_endpoint(&self, region: RegionId) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        self.hold(region)?.endpoint.store(NONE, Ordering::Release);
        registry.endpoints.remove(&region);
        Ok(())
    }

    /// Binds a region to a counter of accesses, which its grants name.
    ///
    /// # Errors
    /// Same as [`Self::bind_endpoint`].
    pub fn bind_counter(&self, region: RegionId, counter: u32) -> Result<(), CoreError> {
        let _registry = self.registry.lock();
        bind(
            region,
            &*self.hold(region)?,
            |entry| &entry.counter,
            counter,
        )
    }

    /// Unbinds the counter.
    ///
    /// # Errors
    /// [`CoreError::NoSuchRegion`].
    pub fn unbind_counter(&self, region: RegionId) -> Result<(), CoreError> {
        let _registry = self.registry.lock();
        self.hold(region)?.counter.store(NONE, Ordering::Release);
        Ok(())
    }
}

/// Binds a region to an endpoint or a counter, whose number `field` stores.
fn bind(
    region: RegionId,
    entry: &Entry,
    field: impl Fn(&Entry) -> &AtomicU32,
    to: u32,
) -> Result<(), CoreError> {
    if state(entry).step(RegionEvent::Bind).is_none() {
        return Err(CoreError::AlreadyEnabled(region));
    }
    match Entry::bound(field(entry)) {
        Some(other) if other != to => Err(CoreError::AlreadyBound { region, to: other }),
        _ => {
            field(entry).store(to, Ordering::Release);
            Ok(())
        }
    }
}
