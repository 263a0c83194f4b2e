//! Protection domains. What a domain creates is in the file of what is created: each has an `impl Domain`.

use crate::device::handle::{Device, DomainInner};
use crate::error::Result;
use rkey_core::DomainId;
use std::sync::Arc;

/// A protection domain. Each region, window and queue pair belongs to one domain, and a queue pair reaches only the
/// memory of its own domain.
///
/// `Domain` is a handle; the domain itself ends when its last handle, region, window and queue pair have been dropped.
#[derive(Clone)]
pub struct Domain {
    /// One reference count for both: each region holds this Arc.
    handle: Arc<Handle>,
}

struct Handle {
    device: Device,
    inner: Arc<DomainInner>,
}

impl Domain {
    pub(crate) fn from_inner(device: Device, inner: Arc<DomainInner>) -> Self {
        let handle = Arc::new(Handle { device, inner });
        Self { handle }
    }

    pub(crate) fn id(&self) -> DomainId {
        self.handle.inner.id
    }

    /// The device that the domain belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.handle.device
    }
}

impl Device {
    /// The device's default domain, which [`Device::listen`] and [`Device::connect`] also use. Regions of one domain
    /// can be reached only through connections of the same domain.
    ///
    /// # Errors
    /// The limit of domains is reached.
    pub fn domain(&self) -> Result<Domain> {
        if let Some(inner) = self.inner.default_domain.get() {
            return Ok(Domain::from_inner(self.clone(), Arc::clone(inner)));
        }
        let fresh = Arc::new(DomainInner::create(&self.inner.raw)?);
        let inner = self.inner.default_domain.get_or_init(|| fresh);
        Ok(Domain::from_inner(self.clone(), Arc::clone(inner)))
    }

    /// Creates a protection domain: its regions cannot be reached through connections of any other domain, even by a peer that
    /// knows the key.
    ///
    /// # Errors
    /// The limit of domains is reached.
    pub fn new_domain(&self) -> Result<Domain> {
        let inner = Arc::new(DomainInner::create(&self.inner.raw)?);
        Ok(Domain::from_inner(self.clone(), inner))
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domain")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
