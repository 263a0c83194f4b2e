//! Registered bytes that are borrowed, in a cache: a later lookup of the same bytes finds the registration.
//!
//! A registration stays in the cache when its guard is dropped, and the domain's queue pairs keep accepting its local
//! key. So the bytes must be borrowed for as long as the cache exists. Forgetting a guard changes nothing: the registrar
//! keeps a list of all registrations, and the scope that owns the cache closes them before the borrow ends.

use super::registered::{Registered, RegistrationRequest};
use crate::device::domain::Domain;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use rkey_cache::{
    Cache, Chosen, Follows, Guard, Kind, Options, Registrar, Request, Rights, Rounding, Stats,
};
use rkey_core::{Access, Addressing, CoreError, MemoryKind, RegionId};
use rkey_device::base::VaRange;
use rkey_device::{CacheDescription, CacheView, DeviceError};
use std::collections::HashMap;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The rights of a cached registration: it can be the source of our own sends and writes. Peers get none, because
/// their key would remain valid after the program has dropped its guard.
const SOURCE: Access = Access::LOCAL_READ;

/// The accessors around a registration.
pub(crate) trait Accessors: AsRef<Registered> + Send + Sync + 'static {}

impl<M: AsRef<Registered> + Send + Sync + 'static> Accessors for M {}

/// Registers bytes for a cache, and lists all registrations so that [`BorrowedCache::close`] can deregister them.
pub(crate) struct Lender<M: Accessors> {
    domain: Domain,
    wish: RegistrationRequest,
    wrap: fn(Registered, &RegistrationRequest) -> M,
    /// All registrations that are not closed.
    live: Mutex<HashMap<RegionId, Arc<M>>>,
}

impl<M: Accessors> Registrar for Lender<M> {
    type Registration = Arc<M>;
    type Error = Error;

    /// The device reads what is mapped at the time of the transfer.
    fn follows(&self) -> Follows {
        Follows::Addresses
    }

    fn register(&self, request: &Request) -> Result<Arc<M>> {
        let start = ptr::with_exposed_provenance_mut(request.range.start() as usize);
        let start = NonNull::new(start)
            .ok_or_else(|| Error::Rights("a slice cannot begin at address 0".into()))?;
        let place = (start, request.range.len() as usize);
        // SAFETY: the range is that of a slice which is borrowed until after `BorrowedCache::close`: only
        // `BorrowedCache::get` looks up ranges, and the cache does not round them. The registration is constant and has no right
        // by which a byte could change, so shared references to the bytes may be used.
        let mut registered = unsafe {
            Registered::register(&self.domain, &self.wish, place, MemoryKind::User, true)?
        };
        registered.borrowed = true;
        let id = registered.id();
        let memory = Arc::new((self.wrap)(registered, &self.wish));
        self.live.lock().insert(id, Arc::clone(&memory));
        Ok(memory)
    }

    fn deregister(&self, memory: Arc<M>) {
        let registered = (*memory).as_ref();
        if registered.close().is_ok() {
            self.live.lock().remove(&registered.id());
        }
    }

    fn is_exhausted(&self, error: &Error) -> bool {
        matches!(
            error,
            Error::Device(DeviceError::Core(CoreError::LimitReached { .. }))
        )
    }
}

/// A cache of registrations of borrowed bytes.
pub(crate) struct BorrowedCache<M: Accessors> {
    /// `None` after `close`. The description has a reference to the cache.
    description: Option<CacheDescription>,
    cache: Arc<Cache<Lender<M>>>,
}

impl<M: Accessors> BorrowedCache<M> {
    /// An empty cache in a domain. The device shows it in inspections.
    pub(crate) fn new(
        domain: &Domain,
        mut options: Options,
        chosen: &Chosen,
        wrap: fn(Registered, &RegistrationRequest) -> M,
    ) -> Result<Self> {
        // Other bytes of the same pages are not borrowed.
        options.rounding = Rounding::Exact;
        let lender = Lender {
            domain: domain.clone(),
            wish: RegistrationRequest {
                access: SOURCE,
                addressing: Addressing::Virtual,
                requested_key: None,
            },
            wrap,
            live: Mutex::default(),
        };
        let cache = Cache::new(lender, Arc::clone(&chosen.monitor), options)
            .map_err(|error| Error::Object(format!("cannot create a cache: {error}")))?;
        let cache = Arc::new(cache);
        let raw = domain.device().raw();
        let description = (!raw.is_forked()).then(|| {
            let (cache, domain) = (Arc::clone(&cache), domain.id().number());
            let chosen = CacheView {
                domain,
                monitor: chosen.monitor.name().to_owned(),
                monitor_reason: chosen.refused.clone(),
                ..CacheView::default()
            };
            let describe = move || view(&cache, chosen.clone());
            raw.describe_cache(describe)
        });
        Ok(Self { description, cache })
    }

    /// A registration that contains these bytes.
    ///
    /// # Safety
    /// The bytes are borrowed until after `close`.
    pub(super) unsafe fn get(&self, bytes: &[u8]) -> Result<Guard<'_, Lender<M>>> {
        let start = bytes.as_ptr().expose_provenance() as u64;
        let range = VaRange::new(start, bytes.len() as u64)
            .ok_or_else(|| Error::Rights("a slice cannot wrap around the address space".into()))?;
        let guard = self.cache.get(range, Rights(SOURCE.bits()), Kind::HOST)?;
        tracing::trace!("cache lookup of {range}: {}", guard.why());
        Ok(guard)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Deregisters everything. When this returns, the device does not access the bytes again; if that cannot be ensured, this
    /// aborts the process.
    pub(super) fn close(&mut self) {
        let lender = self.cache.registrar();
        // The device does not access a forked child's copy of the memory, and another thread of the parent may have had the lock.
        if lender.domain.device().raw().is_forked() {
            return;
        }
        // Once this has returned, no other thread uses the cache.
        self.description = None;
        let live = std::mem::take(&mut *lender.live.lock());
        for memory in live.values() {
            (**memory).as_ref().close_or_end();
        }
    }
}

/// Adds the current state of a cache to its constant description.
fn view<R: Registrar>(cache: &Cache<R>, constant: CacheView) -> CacheView {
    let stats = cache.stats();
    CacheView {
        off: cache.off().map(|off| off.to_string()),
        entries: stats.entries,
        bytes: stats.bytes,
        hits: stats.hits,
        misses: stats.misses,
        uncached: stats.uncached,
        evictions: stats.evictions,
        invalidations: stats.invalidations,
        ..constant
    }
}
