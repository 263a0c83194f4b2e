//! The registration caches of a domain.
//!
//! * Regions without remote rights: a program that registers a buffer for each transfer, and then closes the region, gets the
//!   same registration the next time. Peers have no keys of such regions, so no key outlives its region. A domain has such a cache
//!   if the program had imported a memory monitor when it opened the domain, and the domain's regions need no further calls.
//! * Buffers of transfers, where the provider [registers them itself](super::buffers).

#![allow(unsafe_code)]
// UNSAFETY: registers memory of the program; a guard refers to the cache that is stored with it.

use super::exposed::ExposedMessages;
use super::imported::Use;
use super::{monitor, runtimes};
use crate::errno::{FiError, Result};
use parking_lot::Mutex;
use rkey_cache::{
    Cache, Chosen, Follows, Guard, Kind, MonitorName, NotMade, Registrar, Request, Rights,
    Rounding, Unneeded,
};
use rkey_device::base::{Copier, VaRange};
use rkey_device::core::{Access, Addressing, CoreError, DomainId, Region, RegionSpec, Rules};
use rkey_device::{CacheDescription, CacheView, Device, DeviceError};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The domain that a cache registers in.
#[derive(Clone)]
pub(crate) struct RegistrationScope {
    pub(crate) device: Device,
    pub(crate) pd: DomainId,
    /// Keeps `pd` open.
    pub(crate) _keeper: Arc<dyn Any + Send + Sync>,
    pub(crate) exposed: Arc<ExposedMessages>,
}

/// Registers memory for a cache.
pub(crate) struct Local {
    scope: RegistrationScope,
    follows: Follows,
    /// Whether registrations may end while the engine delivers a message. Deregistering waits for the engine, so it is deferred in that
    /// case.
    defers: bool,
    /// Registrations that have ended, and to which no request refers.
    ended: Mutex<Vec<Region>>,
}

impl Local {
    /// Deregisters what has ended. Must not be called from the engine.
    fn deregister_ended(&self) {
        // Most calls find nothing, and none waits for another.
        let ended = self.ended.try_lock().map(|mut it| std::mem::take(&mut *it));
        for region in ended.into_iter().flatten() {
            self.end(region);
        }
    }

    fn end(&self, region: Region) {
        if let Err(error) = self.scope.device.deregister(region) {
            tracing::debug!(%error, "cannot deregister the cached {}", region.id);
        }
        self.scope.exposed.end(region.local_key, &self.scope.device);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.deregister_ended();
    }
}

/// A registration, and the copier of its memory.
pub(crate) struct Registered {
    region: Region,
    copier: Copier,
}

/// Why memory was not registered.
pub(crate) enum Refused {
    /// The device refused the registration.
    Device(DeviceError),
    /// The memory is not within one allocation of a runtime.
    Memory(FiError),
}

impl From<Refused> for FiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Device(error) => error.into(),
            Refused::Memory(error) => error,
        }
    }
}

impl Registrar for Local {
    type Registration = Registered;
    type Error = Refused;

    /// The device reads what is mapped at the time of the transfer. Accelerator memory is known by the id of its allocation.
    fn follows(&self) -> Follows {
        self.follows
    }

    fn register(&self, request: &Request) -> std::result::Result<Registered, Refused> {
        let ranges = [request.range];
        let rights = Access::from_bits_truncate(request.rights.0);
        let spec = RegionSpec {
            addressing: Addressing::Virtual,
            // The domain counts the program's regions itself: entries outlive them.
            internal: true,
            rules: Rules::LIBFABRIC,
            ..RegionSpec::new(self.scope.pd, &ranges, rights)
        };
        // The device may have reached its limit of regions.
        self.deregister_ended();
        let copier = match self.follows {
            Follows::Allocation => runtimes::hold_found(request.range).map_err(Refused::Memory)?,
            _ => None,
        };
        let device = &self.scope.device;
        // SAFETY: registering means that the program keeps the memory valid until it closes the region (fi_mr(3)), or until its
        // transfer is complete. Afterwards no request names the entry, and peers never reach it, because it has no remote right.
        let region = unsafe {
            match &copier {
                Some(_) => device.register_foreign(&spec, std::slice::from_ref(&copier)),
                None => device.register(&spec),
            }
        };
        let region = region.map_err(Refused::Device)?;
        Ok(Registered { region, copier })
    }

    fn deregister(&self, Registered { region, .. }: Registered) {
        match self.defers {
            true => self.ended.lock().push(region),
            false => self.end(region),
        }
    }

    fn is_current(&self, registered: &Registered, range: &VaRange) -> bool {
        let copier = registered.copier.as_ref();
        copier.is_some_and(|it| it.is_current(range.start()))
    }

    fn is_exhausted(&self, error: &Refused) -> bool {
        matches!(
            error,
            Refused::Device(DeviceError::Core(CoreError::LimitReached { .. }))
        )
    }
}

/// What invalidates the entries of a cache.
pub(super) enum Watch {
    /// The monitor that the program imported.
    Imported(Use),
    /// The monitor that the environment chooses.
    Chosen(&'static Chosen),
    /// Nothing is cached.
    Off,
    /// The buffer ids of accelerator memory.
    Allocations,
}

/// A cache of a domain.
pub(crate) struct LocalCache {
    cache: Cache<Local>,
    /// The program's regions that use it.
    open: AtomicUsize,
    /// Dropped after the cache.
    watch: Watch,
}

/// A cache, and its description for `rkey ls`, which refers to it.
pub(crate) type Described = (CacheDescription, Arc<LocalCache>);

impl LocalCache {
    /// A cache for the program's regions. `None`: the program has imported no monitor, or the environment turns caches off.
    pub(crate) fn of_regions(scope: &RegistrationScope) -> Option<Described> {
        let settings = monitor::settings();
        if settings.monitor == Some(MonitorName::Disabled) || settings.max_count == Some(0) {
            return None;
        }
        Self::open(scope, Watch::Imported(Use::begin()?), false)
            .inspect_err(|error| tracing::warn!("cannot create a registration cache: {error}"))
            .ok()
    }

    /// A cache in this domain. `defers`: see [`Local`].
    pub(super) fn open(
        scope: &RegistrationScope,
        watch: Watch,
        defers: bool,
    ) -> std::result::Result<Described, NotMade> {
        let mut options = monitor::settings().options();
        options.exact_rights = true;
        // Do not round to pages: the functions of an imported monitor get the program's buffers as they are, and the memory of a
        // runtime has no pages of this process.
        options.rounding = Rounding::Exact;
        let mut follows = Follows::Addresses;
        let monitor: Arc<dyn rkey_cache::Monitor> = match &watch {
            Watch::Imported(it) => it.monitor(),
            Watch::Chosen(chosen) => {
                options.rounding = Rounding::Pages;
                // No change makes an entry stale, so memory is watched only if the environment names a monitor.
                options.watch = monitor::settings().monitor.is_some();
                Arc::clone(&chosen.monitor)
            }
            Watch::Off => Arc::new(rkey_cache::Disabled),
            Watch::Allocations => {
                follows = Follows::Allocation;
                Arc::new(Unneeded)
            }
        };
        let registrar = Local {
            scope: scope.clone(),
            follows,
            defers,
            ended: Mutex::default(),
        };
        let cache = Arc::new(Self {
            cache: Cache::new(registrar, monitor, options)?,
            open: AtomicUsize::new(0),
            watch,
        });
        let described = Arc::clone(&cache);
        let description = scope.device.describe_cache(move || described.view());
        Ok((description, cache))
    }

    /// A registration of this memory with exactly these rights, for a region of the program.
    pub(crate) fn register(self: &Arc<Self>, range: VaRange, access: Access) -> Result<Cached> {
        let kept = self.find(range, access, Kind::HOST, false)?;
        self.open.fetch_add(1, Ordering::AcqRel);
        Ok(Cached(kept))
    }

    /// A registration of this memory with exactly these rights. With `once`, it is not an entry of the cache, and does not become one.
    /// Must not be called from the engine.
    pub(super) fn find(
        self: &Arc<Self>,
        range: VaRange,
        access: Access,
        kind: Kind,
        once: bool,
    ) -> Result<CachedRegion> {
        let cache = Arc::clone(self);
        cache.cache.registrar().deregister_ended();
        let rights = Rights(access.bits());
        let guard = match once {
            false => cache.cache.get(range, rights, kind),
            true => cache.cache.register_once(range, rights, kind),
        };
        let guard = guard.map_err(FiError::from)?;
        tracing::trace!(
            "domain {}: cache lookup of {range}, {access}, {kind}: {}",
            self.pd().number(),
            guard.why()
        );
        // SAFETY: the guard refers to the cache behind the reference count, which does not move. `CachedRegion` has a reference, and
        // drops the guard before it.
        let guard =
            unsafe { std::mem::transmute::<Guard<'_, Local>, Guard<'static, Local>>(guard) };
        Ok(CachedRegion { guard, cache })
    }

    /// The number of the program's regions that use it.
    pub(crate) fn open_regions(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// The protection domain of its regions.
    pub(super) fn pd(&self) -> DomainId {
        self.cache.registrar().scope.pd
    }

    fn view(&self) -> CacheView {
        let stats = self.cache.stats();
        let (monitor, monitor_reason) = match &self.watch {
            Watch::Allocations => ("buffer ids", None),
            Watch::Chosen(chosen) => (chosen.monitor.name(), chosen.refused.clone()),
            Watch::Imported(_) | Watch::Off => (self.cache.monitor().name(), None),
        };
        CacheView {
            domain: self.pd().number(),
            monitor: monitor.to_owned(),
            monitor_reason,
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

impl Drop for LocalCache {
    fn drop(&mut self) {
        let it = self.view();
        tracing::info!(
            "registration cache closed: {} hits, {} misses, {} uncached, {} evictions, {} invalidations",
            it.hits,
            it.misses,
            it.uncached,
            it.evictions,
            it.invalidations
        );
    }
}

/// A registration that a cache keeps.
pub(super) struct CachedRegion {
    /// Refers to `cache`, so it comes first: fields are dropped in order.
    guard: Guard<'static, Local>,
    cache: Arc<LocalCache>,
}

impl CachedRegion {
    /// The registration. Its memory may begin before the range that was looked up, and end after it.
    pub(super) fn region(&self) -> Region {
        self.guard.region
    }
}

/// A region's registration in the cache, which stays there for the next region.
pub(crate) struct Cached(CachedRegion);

impl Cached {
    /// The registration. Its memory may begin before the region's and end after it.
    pub(crate) fn region(&self) -> Region {
        self.0.region()
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        self.0.cache.open.fetch_sub(1, Ordering::AcqRel);
    }
}
