//! `fi_domain`: the parent of endpoints, regions, queues and counters.
//!
//! A domain has one protection domain of the device for each authorization key in use. An endpoint reaches only
//! regions with its own key, because only they are in its protection domain (FI-119).

#![allow(unsafe_code)]
// UNSAFETY: reads attributes of the program; registers all memory of the process for local use.

use crate::address::Format;
use crate::eq::Eq;
use crate::errno::{FiError, Result};
use crate::fabric::{Fabric, FabricObject};
use crate::identity::Identities;
use crate::info::filter::Hints;
use crate::lenient;
use crate::mode;
use crate::mr::buffers::Buffers;
use crate::mr::cached::{Described, LocalCache, RegistrationScope};
use crate::mr::exposed::ExposedMessages;
use crate::mr::imported;
use crate::object::{Users, object};
use crate::sys::*;
use crate::watched::WatchedRegions;
use crate::work::{Counting, Queue};
use parking_lot::Mutex;
use rkey_device::Device;
use rkey_device::base::{ForeignMemory, VaRange};
use rkey_device::core::{Access, DomainId, LKey, RawKeyMap, Region, RegionId, RegionSpec};
use std::cell::UnsafeCell;
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct DomainObject {
    fid: UnsafeCell<FidDomain>,
    pub(crate) inner: Arc<Domain>,
}
object!(DomainObject, FidDomain, 4096);

impl DomainObject {
    pub(crate) fn new(fid: FidDomain, inner: Domain) -> Self {
        Self {
            fid: UnsafeCell::new(fid),
            inner: Arc::new(inner),
        }
    }
}

/// A domain.
pub(crate) struct Domain {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) device: Device,
    /// The API version that the program requested.
    pub(crate) version: u32,
    /// The `mr_mode` bits in force, with basic and scalable expanded.
    pub(crate) mr_mode: c_int,
    /// Whether the program requested `FI_HMEM`.
    pub(crate) hmem: bool,
    /// Whether buffers need neither a descriptor nor a registration, and the processor copies them (neither `FI_MR_LOCAL` nor `FI_HMEM`).
    pub(crate) plain: bool,
    /// Whether the program requested `FI_RMA_EVENT`.
    pub(crate) rma_events: bool,
    /// Whether authorization keys are in address vectors.
    pub(crate) av_keys: bool,
    /// Whether the program requested `FI_AV_USER_ID`.
    pub(crate) user_ids: bool,
    /// Whether the program requested `FI_DIRECTED_RECV`.
    pub(crate) directed: bool,
    /// The peers that regions can be limited to.
    pub(crate) identities: Identities,
    /// Whether messages make progress while the program does something else (`FI_PROGRESS_AUTO`).
    pub(crate) auto_progress: bool,
    pub(crate) default_av: c_int,
    pub(crate) format: Format,
    /// The authorization key of endpoints and regions that have none of their own.
    auth_key: Vec<u8>,
    pds: Mutex<HashMap<Vec<u8>, Weak<ProtectionDomain>>>,
    default_pd: OnceLock<Arc<ProtectionDomain>>,
    /// Raw keys of peers that the program mapped.
    pub(crate) raw_keys: RawKeyMap,
    /// In a domain without `FI_MR_RAW`, where a mapped key is the raw key itself: how many times the program mapped each key.
    pub(crate) plain_keys: Mutex<HashMap<u64, usize>>,
    /// The domain's event queue, and whether registrations are reported there.
    pub(crate) eq: OnceLock<(Arc<Eq>, bool)>,
    /// Counters that can be bound to regions, by the numbers under which the device counts for them.
    pub(crate) counters: Mutex<HashMap<u32, Weak<dyn Counting>>>,
    /// Messages that peers may read from regions.
    pub(crate) exposed: Arc<ExposedMessages>,
    /// The cache of registrations, which outlive regions without remote rights. The description refers to the cache.
    pub(crate) cache: Option<Described>,
    /// Registers the buffers of transfers, if the provider must do so.
    pub(crate) buffers: Option<Box<Buffers>>,
    /// Regions registered with `FI_RMA_PMEM`.
    pub(crate) persistent: Mutex<HashSet<RegionId>>,
    /// Regions bound to a counter or an endpoint, and those with remote rights where remote accesses can be
    /// counted (`FI_RMA_EVENT`).
    pub(crate) watched: WatchedRegions,
    /// The number by which the device counts remote accesses to regions without their own counter. Set once an endpoint
    /// has a counter for such accesses.
    pub(crate) remote_counted: OnceLock<u32>,
    /// Work that waits for counters.
    pub(crate) work: Arc<Queue>,
    /// The domain's children, except for regions, which the device counts.
    pub(crate) users: Users,
}

/// A region's reference to its domain.
pub(crate) struct DomainRef(NonNull<Domain>);

// SAFETY: stands for a reference, and threads share domains.
unsafe impl Send for DomainRef {}
// SAFETY: as above.
unsafe impl Sync for DomainRef {}

impl DomainRef {
    /// Does not count references, so it is cheap.
    ///
    /// # Safety
    /// The reference may be used only while a region of the program is registered in a protection domain of the domain, or during a call
    /// on such a region: the domain cannot be closed during that time.
    pub(crate) unsafe fn new(domain: &Domain) -> Self {
        Self(NonNull::from(domain))
    }
}

impl std::ops::Deref for DomainRef {
    type Target = Domain;

    #[inline]
    fn deref(&self) -> &Domain {
        // SAFETY: `new` requires that the domain exists.
        unsafe { self.0.as_ref() }
    }
}

/// Greater than all queue pair numbers, which have 24 bits.
pub(crate) const FIRST_NUMBER: u32 = 1 << 24;

/// A number that no other endpoint or counter of the process has.
pub(crate) fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(FIRST_NUMBER);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Domain {
    /// Creates a domain from `info`.
    ///
    /// # Safety
    /// `info` was read from an `fi_info` of the program that is still valid.
    pub(crate) unsafe fn new(owner: &FabricObject, info: &Hints<'_>) -> Result<Self> {
        let attr = info.domain.ok_or(FiError::INVAL)?;
        let version = owner.api_version();
        // FI-118, FI-I20: authorization keys have existed since 1.5.
        let auth_key = if version < crate::sys::version(1, 5) {
            Vec::new()
        } else if attr.auth_key_size == FI_AV_AUTH_KEY {
            // FI-I20, FI-I43: since 1.20, keys may come from the address vector; then the domain has none of its own.
            if !attr.auth_key.is_null() || version < crate::sys::version(1, 20) {
                return Err(FiError::INVAL);
            }
            Vec::new()
        } else {
            // SAFETY: null, or as long as the program says.
            unsafe { crate::object::list(attr.auth_key, attr.auth_key_size)? }.to_vec()
        };
        let mr_mode = mode::effective(attr.mr_mode, info.mode);
        let hmem = info.caps & FI_HMEM != 0;
        if hmem {
            rkey_kinds::discover::load_all();
        }
        let mut domain = Self {
            fabric: Arc::clone(&owner.inner),
            device: owner.inner.device()?,
            version,
            mr_mode,
            hmem,
            plain: !hmem && mr_mode & FI_MR_LOCAL == 0,
            rma_events: info.caps & FI_RMA_EVENT != 0,
            av_keys: version >= crate::sys::version(1, 20) && attr.auth_key_size == FI_AV_AUTH_KEY,
            user_ids: (info.caps | attr.caps) & FI_AV_USER_ID != 0,
            directed: info.caps & FI_DIRECTED_RECV != 0,
            identities: Identities::default(),
            auto_progress: attr.data_progress == FI_PROGRESS_AUTO,
            default_av: attr.av_type,
            format: Format::of(info.addr_format).ok_or(FiError::INVAL)?,
            auth_key,
            pds: Mutex::default(),
            default_pd: OnceLock::new(),
            raw_keys: RawKeyMap::default(),
            plain_keys: Mutex::default(),
            eq: OnceLock::new(),
            counters: Mutex::default(),
            exposed: Arc::default(),
            cache: None,
            buffers: None,
            persistent: Mutex::default(),
            watched: WatchedRegions::default(),
            remote_counted: OnceLock::new(),
            work: Arc::default(),
            users: Users::default(),
        };
        domain.open_cache()?;
        domain.open_buffers()?;
        Ok(domain)
    }

    /// Opens the registration cache, if the program has imported a memory monitor. Several regions share a cached registration,
    /// so a domain has no cache if the state of its regions can change.
    fn open_cache(&mut self) -> Result<()> {
        const STATES: c_int = FI_MR_RAW | FI_MR_ENDPOINT | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT;
        if !self.has(STATES) && !self.av_keys && imported::exists() {
            self.cache = LocalCache::of_regions(&self.registration_scope()?);
        }
        Ok(())
    }

    /// Opens the caches for buffers, if the mode requires `FI_MR_LOCAL` and the program did not offer it. With keys in address vectors,
    /// a buffer is not in one protection domain.
    fn open_buffers(&mut self) -> Result<()> {
        if mode::is_hidden(self.mr_mode) && !self.av_keys {
            lenient::unless_strict(&lenient::HIDDEN_LOCAL, FiError::NODATA)?;
            self.buffers = Some(Box::new(Buffers::open(
                &self.registration_scope()?,
                self.hmem,
            )?));
            self.plain = false;
        }
        Ok(())
    }

    /// The domain in which caches register memory.
    fn registration_scope(&self) -> Result<RegistrationScope> {
        let pd = Arc::clone(self.own_pd()?);
        Ok(RegistrationScope {
            device: self.device.clone(),
            pd: pd.id,
            _keeper: pd,
            exposed: Arc::clone(&self.exposed),
        })
    }

    pub(crate) fn has(&self, bit: c_int) -> bool {
        self.mr_mode & bit != 0
    }

    /// The protection domain for an authorization key; an empty key means the domain's.
    pub(crate) fn pd(&self, key: &[u8]) -> Result<Arc<ProtectionDomain>> {
        if self.is_own(key) {
            return self.own_pd().map(Arc::clone);
        }
        self.find_pd(key)
    }

    /// The id of the protection domain for an authorization key, and a reference that keeps it open; `None` for the
    /// domain's own, which needs none.
    #[inline]
    pub(crate) fn pd_with_owner(
        &self,
        key: &[u8],
    ) -> Result<(DomainId, Option<Arc<ProtectionDomain>>)> {
        if self.is_own(key) {
            return Ok((self.own_pd()?.id, None));
        }
        let pd = self.find_pd(key)?;
        Ok((pd.id, Some(pd)))
    }

    #[inline]
    fn is_own(&self, key: &[u8]) -> bool {
        // Shortcut for empty keys: comparing them reads from a dangling address, which is slow.
        key.is_empty() || !self.auth_key.is_empty() && *key == self.auth_key
    }

    /// The protection domain for the domain's own key. It lives as long as the domain, so that occasional registrations
    /// create it only once.
    #[inline]
    fn own_pd(&self) -> Result<&Arc<ProtectionDomain>> {
        if let Some(pd) = self.default_pd.get() {
            return Ok(pd);
        }
        let pd = self.find_pd(&self.auth_key)?;
        Ok(self.default_pd.get_or_init(|| pd))
    }

    /// The number of the program's open regions in the domain.
    pub(crate) fn regions(&self) -> usize {
        // SAFETY: registers and deregisters nothing.
        let table = unsafe { self.device.protection() };
        let pds = self.pds.lock();
        pds.values()
            .filter_map(Weak::upgrade)
            .filter_map(|pd| table.regions_of_program(pd.id).ok())
            .map(|regions| regions as usize)
            .sum::<usize>()
            + self
                .cache
                .as_ref()
                .map_or(0, |(_, cache)| cache.open_regions())
    }

    fn find_pd(&self, key: &[u8]) -> Result<Arc<ProtectionDomain>> {
        let mut pds = self.pds.lock();
        if let Some(pd) = pds.get(key).and_then(Weak::upgrade) {
            return Ok(pd);
        }
        let pd = Arc::new(ProtectionDomain::new(&self.device, key)?);
        pds.retain(|_, pd| pd.strong_count() > 0);
        pds.insert(key.to_vec(), Arc::downgrade(&pd));
        Ok(pd)
    }
}

/// A copier for buffers that the program passes: each copy determines which runtime owns the memory.
pub(crate) fn anywhere() -> Arc<dyn ForeignMemory> {
    // SAFETY: used for memory that the program passes to be sent from or received into.
    unsafe { rkey_kinds::discover::Anywhere::copier() }
}

/// The end of user memory, unless a program requests mappings beyond it from the kernel (48-bit addresses).
pub(crate) const ADDRESSES: u64 = 1 << 47;

/// The protection domain of the endpoints and regions with one authorization key.
pub(crate) struct ProtectionDomain {
    device: Device,
    pub(crate) id: DomainId,
    pub(crate) key: Vec<u8>,
    /// A region of all memory of the process, for local use only. Requests use it for memory that needs no
    /// registration.
    everything: Region,
    /// Like `everything`, for memory that the processor must not access, in domains with `FI_HMEM`.
    foreign: OnceLock<Region>,
}

impl ProtectionDomain {
    fn new(device: &Device, key: &[u8]) -> Result<Self> {
        // FI-119: only endpoints with the same key reach the memory.
        let id = match key.is_empty() {
            true => device.create_domain()?,
            false => device.create_exclusive_domain()?,
        };
        let all = [VaRange::new(0, ADDRESSES).ok_or(FiError::INVAL)?];
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let spec = RegionSpec {
            internal: true,
            ..RegionSpec::new(id, &all, local)
        };
        // SAFETY: peers cannot reach the region, which has no remote right; this process's requests use it only
        // for memory that the program passes for that purpose (to send from or receive into).
        match unsafe { device.register(&spec) } {
            Ok(everything) => Ok(Self {
                device: device.clone(),
                id,
                key: key.to_vec(),
                everything,
                foreign: OnceLock::new(),
            }),
            Err(error) => {
                let _ = device.close_domain(id);
                tracing::warn!("cannot set up access to unregistered memory: {error}");
                Err(crate::errno::of_device(&error))
            }
        }
    }

    /// The key for memory that needs no registration.
    pub(crate) fn everything(&self) -> LKey {
        self.everything.local_key
    }

    /// The key for memory that needs no registration, and that the processor must not access.
    pub(crate) fn everything_foreign(&self) -> Result<LKey> {
        if let Some(region) = self.foreign.get() {
            return Ok(region.local_key);
        }
        let all = [VaRange::new(0, ADDRESSES).ok_or(FiError::INVAL)?];
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let spec = RegionSpec {
            internal: true,
            ..RegionSpec::new(self.id, &all, local)
        };
        // SAFETY: as for `everything`.
        let made = unsafe { self.device.register_foreign(&spec, &[Some(anywhere())])? };
        if self.foreign.set(made).is_err() {
            self.deregister(made);
        }
        self.foreign.get().map(|it| it.local_key).ok_or(FiError::IO)
    }

    /// Whether this is the key of `everything` or `foreign`.
    pub(crate) fn is_unregistered(&self, key: LKey) -> bool {
        key == self.everything() || self.foreign.get().is_some_and(|it| it.local_key == key)
    }

    fn deregister(&self, region: Region) {
        if let Err(error) = self.device.deregister(region) {
            tracing::debug!(%error, "cannot deregister {}, which covers all memory", region.id);
        }
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        self.deregister(self.everything);
        if let Some(region) = self.foreign.take() {
            self.deregister(region);
        }
        if let Err(error) = self.device.close_domain(self.id) {
            tracing::debug!(%error, "cannot close {}", self.id);
        }
    }
}
