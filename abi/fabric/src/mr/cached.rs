//! The registration cache of a domain, for regions without remote rights.
//!
//! A program that registers a buffer for each transfer and then closes the region finds the registration again the next time. Peers have
//! no key of such a region, so none outlives it. A domain has a cache if the program had imported a memory monitor when it opened the
//! domain, and the domain's regions need no further calls.

#![allow(unsafe_code)]
// UNSAFETY: registers memory of the program; a guard refers to the cache that is stored with it.

use super::exposed::ExposedMessages;
use super::imported::Use;
use crate::errno::{FiError, Result};
use rkey_cache::{
    Cache, Follows, Guard, Kind, MonitorName, Registrar, Request, Rights, Rounding, Settings,
};
use rkey_device::base::VaRange;
use rkey_device::core::{Access, Addressing, CoreError, DomainId, Region, RegionSpec, Rules};
use rkey_device::{CacheDescription, CacheView, Device, DeviceError};
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Registers memory for the cache.
pub(crate) struct Local {
    device: Device,
    pd: DomainId,
    /// Keeps the protection domain open.
    _pd: Arc<dyn Any + Send + Sync>,
    exposed: Arc<ExposedMessages>,
}

impl Registrar for Local {
    type Registration = Region;
    type Error = DeviceError;

    /// The device reads what is mapped at the time of the transfer.
    fn follows(&self) -> Follows {
        Follows::Addresses
    }

    fn register(&self, request: &Request) -> std::result::Result<Region, DeviceError> {
        let ranges = [request.range];
        let rights = Access::from_bits_truncate(request.rights.0);
        let spec = RegionSpec {
            addressing: Addressing::Virtual,
            // The domain counts the program's regions itself: entries outlive them.
            internal: true,
            rules: Rules::LIBFABRIC,
            ..RegionSpec::new(self.pd, &ranges, rights)
        };
        // SAFETY: registering means that the program keeps the memory valid until it closes the region (fi_mr(3)). Afterwards
        // no descriptor leads to the entry, and peers never reach it, because it has no remote right.
        unsafe { self.device.register(&spec) }
    }

    fn deregister(&self, region: Region) {
        if let Err(error) = self.device.deregister(region) {
            tracing::debug!(%error, "cannot deregister a cached region");
        }
        self.exposed.end(region.local_key, &self.device);
    }

    fn is_exhausted(&self, error: &DeviceError) -> bool {
        matches!(error, DeviceError::Core(CoreError::LimitReached { .. }))
    }
}

/// The variables of fi_mr(3), which are read once.
fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
        let settings = Settings::read(|name| std::env::var(name).ok());
        for ignored in &settings.ignored {
            tracing::warn!("{ignored}");
        }
        settings
    });
    &SETTINGS
}

/// The cache of a domain.
pub(crate) struct LocalCache {
    cache: Cache<Local>,
    /// The program's regions that use it.
    open: AtomicUsize,
    /// Dropped after the cache.
    _monitor: Use,
}

impl LocalCache {
    /// A cache for the domain `pd`, which `keeper` keeps open. `None`: the program has imported no monitor, or the environment
    /// turns caches off.
    pub(crate) fn new(
        device: &Device,
        pd: DomainId,
        keeper: Arc<dyn Any + Send + Sync>,
        exposed: &Arc<ExposedMessages>,
    ) -> Option<(CacheDescription, Arc<Self>)> {
        let settings = settings();
        if settings.monitor == Some(MonitorName::Disabled) || settings.max_count == Some(0) {
            return None;
        }
        let monitor = Use::begin()?;
        let mut options = settings.options();
        // The monitor's functions get the program's buffers as they are.
        options.rounding = Rounding::Exact;
        options.exact_rights = true;
        let registrar = Local {
            device: device.clone(),
            pd,
            _pd: keeper,
            exposed: Arc::clone(exposed),
        };
        let cache = Cache::new(registrar, monitor.monitor(), options)
            .inspect_err(|error| tracing::warn!("no registration cache: {error}"))
            .ok()?;
        let cache = Arc::new(Self {
            cache,
            open: AtomicUsize::new(0),
            _monitor: monitor,
        });
        let described = Arc::clone(&cache);
        let description = device.describe_cache(move || described.view());
        Some((description, cache))
    }

    /// A registration of this memory, with exactly these rights.
    pub(crate) fn register(self: &Arc<Self>, range: VaRange, access: Access) -> Result<Cached> {
        let cache = Arc::clone(self);
        let guard = cache
            .cache
            .get(range, Rights(access.bits()), Kind::HOST)
            .map_err(FiError::from)?;
        // SAFETY: the guard refers to the cache behind the reference count, which does not move. `Cached` has a reference, and
        // drops the guard before it.
        let guard =
            unsafe { std::mem::transmute::<Guard<'_, Local>, Guard<'static, Local>>(guard) };
        cache.open.fetch_add(1, Ordering::AcqRel);
        Ok(Cached { guard, cache })
    }

    /// How many regions of the program use it.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn view(&self) -> CacheView {
        let stats = self.cache.stats();
        CacheView {
            domain: self.cache.registrar().pd.number(),
            monitor: self.cache.monitor().name().to_owned(),
            monitor_reason: None,
            off: self.cache.off().map(|off| off.to_string()),
            entries: stats.entries,
            bytes: stats.bytes,
            hits: stats.hits,
            misses: stats.misses,
            uncached: stats.uncached,
            evictions: stats.evictions,
            invalidations: stats.invalidations,
        }
    }
}

/// A region's registration in the cache, which stays there for the next region.
pub(crate) struct Cached {
    /// Refers to `cache`, so it comes first: fields are dropped in order.
    guard: Guard<'static, Local>,
    cache: Arc<LocalCache>,
}

impl Cached {
    /// The registration. Its memory may begin before the region's and end after it.
    pub(crate) fn region(&self) -> Region {
        *self.guard
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        self.cache.open.fetch_sub(1, Ordering::AcqRel);
    }
}
