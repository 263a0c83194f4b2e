//! The object of a registration: creating, enabling and closing it, and its key.

#![allow(unsafe_code)]
// UNSAFETY: C functions; registers memory that the program keeps valid.

use super::attr::{Memory, Ranges, Request, ranges};
use super::cached::{Cached, LocalCache};
use super::hmem::{self, Foreign};
use super::keyed::Copies;
use super::{bind, persistent, raw, refresh};
use crate::cntr::Counter;
use crate::domain::{Domain, DomainRef, ProtectionDomain};
use crate::errno::{FiError, Result};
use crate::object::{Object, end, find, object, status, vacant};
use crate::sys::*;
use parking_lot::Mutex;
use rkey_device::base::VaRange;
use rkey_device::core::{Access, Addressing, DomainId, Region, RegionSpec, Rules};
use rkey_kit::Spares;
use smallvec::smallvec;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct MrObject {
    pub(super) fid: UnsafeCell<FidMr>,
    pub(crate) inner: Mr,
}
object!(MrObject, FidMr, 2_000_000);

thread_local! {
    static SPARES: Spares<MrObject> = const { Spares::new(<MrObject as Object>::pool) };
}

/// A registered region.
pub(crate) struct Mr {
    pub(crate) domain: DomainRef,
    /// The protection domain of its authorization key.
    pub(crate) pd: DomainId,
    /// Registered in `pd`.
    pub(crate) region: Region,
    /// The cache entry of `region`, if it comes from the domain's cache; contains `None` while the region is being closed.
    pub(super) cached: Option<Box<Mutex<Option<Cached>>>>,
    pub(super) copies: Option<Box<Copies>>,
    /// Registered with `FI_RMA_PMEM`.
    pub(super) durable: bool,
    /// The segments in this process, in order.
    pub(crate) ranges: Ranges,
    /// The address by which peers access its first byte.
    pub(crate) base: u64,
    pub(crate) access: Access,
    /// Registered with `FI_RMA_EVENT`.
    pub(super) rma_event: bool,
    pub(super) state: Mutex<State>,
    /// Whether the region may be among the domain's watched regions. Never cleared.
    pub(super) watched: AtomicBool,
    /// What copies the region's memory, if the processor does not copy all of it. Released after the region.
    pub(super) foreign: Option<Box<Foreign>>,
    /// Released after the region.
    _pd: Option<Arc<ProtectionDomain>>,
}

/// The properties that all regions of a registration share.
pub(super) struct Shape {
    addressing: Addressing,
    /// `None` if the provider chooses.
    pub(super) requested_key: Option<u64>,
    needs_endpoint: bool,
    access: Access,
}

impl Shape {
    #[inline]
    pub(super) fn spec<'a>(
        &self,
        domain: DomainId,
        ranges: &'a [VaRange],
        disabled: bool,
    ) -> RegionSpec<'a> {
        RegionSpec {
            addressing: self.addressing,
            disabled,
            requested_key: self.requested_key,
            needs_endpoint: self.needs_endpoint,
            rules: Rules::LIBFABRIC,
            ..RegionSpec::new(domain, ranges, self.access)
        }
    }
}

/// The changeable state of a region.
pub(super) struct State {
    /// Set while `fi_mr_enable` is required and has not been called.
    pub(super) unconfigured: bool,
    /// Set while pages of the region are absent and no refresh has reported them (`FI_MR_MMU_NOTIFY`).
    pub(super) unbacked: bool,
    /// Set once nothing more can be bound to it.
    pub(super) sealed: bool,
    pub(super) counter: Option<Arc<Counter>>,
    /// Set if it has no counter and its accesses are counted for endpoints.
    pub(super) counted: bool,
    /// The number of the endpoint that it is bound to.
    pub(super) endpoint: Option<u32>,
}

/// The rights of `access` for the protection table.
pub(crate) fn rights(access: u64) -> Access {
    let mut rights = Access::empty();
    for (flag, right) in [
        (FI_SEND, Access::SEND),
        (FI_RECV, Access::RECV),
        (FI_READ, Access::READ),
        (FI_WRITE, Access::WRITE),
        (FI_REMOTE_READ, Access::REMOTE_READ),
        (FI_REMOTE_WRITE, Access::REMOTE_WRITE),
        (FI_COLLECTIVE, Access::COLLECTIVE),
    ] {
        rights.set(right, access & flag != 0);
    }
    rights
}

/// The ranges of a request's memory, who copies them, and how peers address them.
#[inline(always)]
fn memory(
    domain: &Domain,
    request: &Request<'_>,
    access: Access,
) -> Result<(Ranges, Option<Box<Foreign>>, Addressing)> {
    match &request.memory {
        Memory::List(segments) => {
            let addressing = match domain.has(FI_MR_VIRT_ADDR) {
                true => Addressing::Virtual,
                false => Addressing::Zero,
            };
            let ranges = ranges(segments)?;
            let foreign = match domain.hmem {
                false => None,
                true => hmem::copiers(domain, request.interface, request.flags, &ranges, access)?,
            };
            Ok((ranges, foreign, addressing))
        }
        Memory::Dmabuf(buf) => {
            let (range, foreign) = hmem::dma_buf(buf, request.interface, request.flags, access)?;
            // FI-056, FI-155: addresses start at base address plus offset, mapped or not.
            let addressing = match domain.has(FI_MR_VIRT_ADDR) {
                true => Addressing::Iova(buf.base + buf.offset),
                false => Addressing::Zero,
            };
            Ok((smallvec![range], foreign, addressing))
        }
    }
}

/// The first address of a region, as peers address it.
fn base(addressing: Addressing, ranges: &Ranges) -> u64 {
    match addressing {
        Addressing::Virtual => ranges.first().map_or(0, VaRange::start),
        Addressing::Zero => 0,
        Addressing::Iova(base) => base,
    }
}

/// A registration that a region uses.
struct Registered {
    region: Region,
    /// Its first address, as peers address it.
    base: u64,
    cached: Option<Box<Mutex<Option<Cached>>>>,
}

/// A request that the domain accepts, before it is registered.
struct Accepted {
    ranges: Ranges,
    foreign: Option<Box<Foreign>>,
    shape: Shape,
    pd: DomainId,
    /// Keeps the protection domain of the authorization key.
    keeper: Option<Arc<ProtectionDomain>>,
    durable: bool,
    rma_event: bool,
    /// Set if the program must configure the region before it is enabled.
    unconfigured: bool,
    /// Whether all pages of the region are present.
    backed: bool,
}

impl Accepted {
    /// Checks a request, without effect on the domain.
    #[inline(always)]
    fn new(domain: &Domain, request: &Request<'_>) -> Result<Self> {
        let access = rights(request.access);
        let (ranges, foreign, addressing) = memory(domain, request, access)?;
        let copied = foreign.as_ref().is_some_and(|it| it.has_copiers());
        let (pd, keeper) = domain.pd_with_owner(request.auth_key)?;
        let durable = request.flags & FI_RMA_PMEM != 0;
        if durable {
            persistent::check(&ranges, copied)?;
        }
        // Memory that a runtime or driver copies has no pages of ours to check.
        let backed = match &foreign {
            None => refresh::check_backed(domain, &ranges)?,
            Some(foreign) => refresh::check_backed(domain, &foreign.of_processor(&ranges))?,
        };
        let rma_event = request.flags & FI_RMA_EVENT != 0;
        let needs_endpoint = domain.has(FI_MR_ENDPOINT);
        Ok(Self {
            ranges,
            foreign,
            shape: Shape {
                addressing,
                // FI-018, FI-057: a requested key is ignored if the provider chooses keys.
                requested_key: (!domain.has(FI_MR_PROV_KEY)).then_some(request.requested_key),
                needs_endpoint,
                access,
            },
            pd,
            keeper,
            durable,
            rma_event,
            // FI-072, FI-077: a region that must be configured first starts disabled.
            unconfigured: needs_endpoint || rma_event && domain.has(FI_MR_RMA_EVENT),
            backed,
        })
    }

    /// Registers the memory, or takes a registration from the domain's cache.
    #[inline(always)]
    fn register(&self, domain: &Domain, request: &Request<'_>) -> Result<Registered> {
        let Shape {
            addressing, access, ..
        } = self.shape;
        let cached = match &domain.cache {
            None => None,
            Some(_) if self.keeper.is_some() || self.foreign.is_some() => None,
            Some((_, cache)) => from_cache(cache, request, &self.ranges, access)?,
        };
        let (region, base) = match &cached {
            Some(cached) => (cached.region(), base(Addressing::Virtual, &self.ranges)),
            None => {
                let disabled = self.unconfigured || !self.backed;
                let spec = self.shape.spec(self.pd, &self.ranges, disabled);
                // SAFETY: registering means that the program keeps the memory valid until it closes the region (fi_mr(3)).
                // Copies survive faults.
                let region =
                    unsafe { hmem::register(&domain.device, &spec, self.foreign.as_deref())? };
                (region, base(addressing, &self.ranges))
            }
        };
        Ok(Registered {
            region,
            base,
            cached: cached.map(|cached| Box::new(Mutex::new(Some(cached)))),
        })
    }

    /// The region. It is built where it stays, because moving it would copy all its fields.
    #[inline(always)]
    fn into_mr(self, domain: &Domain, request: Request<'_>, registered: Registered) -> Mr {
        let access = self.shape.access;
        Mr {
            // SAFETY: the region is registered in a protection domain of the domain until it is closed, and the program
            // makes no call about it afterwards.
            domain: unsafe { DomainRef::new(domain) },
            pd: self.pd,
            region: registered.region,
            cached: registered.cached,
            copies: request.keys.map(|keys| Copies::new(keys, self.shape)),
            durable: self.durable,
            ranges: self.ranges,
            base: registered.base,
            access,
            rma_event: self.rma_event,
            state: Mutex::new(State {
                unconfigured: self.unconfigured,
                unbacked: !self.backed,
                sealed: false,
                counter: None,
                counted: false,
                endpoint: None,
            }),
            watched: AtomicBool::new(false),
            foreign: self.foreign,
            _pd: self.keeper,
        }
    }
}

/// Creates the region for a request and passes its handle, with the table `ops`, to the program. Also reports asynchronous
/// registration to the event queue (FI-200 to FI-206).
///
/// # Safety
/// `mr` has room for a handle.
#[inline(always)]
pub(super) unsafe fn make(
    domain: &Domain,
    request: Request<'_>,
    ops: &'static Ops,
    mr: *mut *mut FidMr,
) -> Result<()> {
    let context = request.context;
    let accepted = Accepted::new(domain, &request)?;
    let unconfigured = accepted.unconfigured;
    let vacant = vacant::<MrObject>(&SPARES)?;
    let registered = accepted.register(domain, &request)?;
    let handle: *mut FidMr = vacant.address().as_ptr().cast();
    let object = vacant.fill(MrObject {
        fid: UnsafeCell::new(FidMr {
            fid: Fid::new(FI_CLASS_MR, context as *mut c_void, ops),
            // The descriptor is the handle, whose validity can be checked.
            mem_desc: handle.cast(),
            key: FI_KEY_NOTAVAIL,
        }),
        inner: accepted.into_mr(domain, request, registered),
    });
    if let Err(error) = object.inner.begin(unconfigured) {
        withdraw(&object.inner);
        // SAFETY: no caller has the handle yet.
        let _ = unsafe { end::<MrObject, _>(&SPARES, handle) };
        return Err(error);
    }
    if !unconfigured {
        // SAFETY: the object was created just now, and the program does not run in between.
        unsafe { (*object.fid.get()).key = object.inner.key() };
    }
    // SAFETY: the caller guarantees room for a handle.
    unsafe { *mr = handle };
    if let Some((eq, true)) = domain.eq.get() {
        // The handle is already written: the program finds it when it reads the event (FI-202).
        eq.completed(FI_MR_COMPLETE, handle as usize, context, 0);
    }
    Ok(())
}

/// Takes a registration from the domain's cache, if the request is for one range without remote rights, and has no other properties.
/// Registrations with remote rights are not cached, because peers would keep their keys.
#[cold]
fn from_cache(
    cache: &Arc<LocalCache>,
    request: &Request<'_>,
    ranges: &Ranges,
    access: Access,
) -> Result<Option<Cached>> {
    let simple = request.flags == 0 && request.keys.is_none();
    match &ranges[..] {
        [range] if simple && !access.is_empty() && !access.is_remote() => {
            cache.register(*range, access).map(Some)
        }
        _ => Ok(None),
    }
}

/// Deregisters a region that is not passed to the program, and its copies.
fn withdraw(mr: &Mr) {
    bind::unwatch(mr);
    for region in mr.everywhere() {
        let _ = mr.domain.device.revoke_and_deregister(region);
        mr.forget_persistent(region);
    }
}

impl Mr {
    /// Makes a new region known to the rest of the domain. Unless it must be enabled first, also makes its copies.
    #[inline]
    fn begin(&self, unconfigured: bool) -> Result<()> {
        if self.durable {
            self.domain.persistent.lock().insert(self.region.id);
        }
        if self.domain.rma_events && self.access.is_remote() {
            bind::watch(self);
        }
        if unconfigured || self.copies.is_none() && !self.is_known_elsewhere() {
            return Ok(());
        }
        let mut state = self.state.lock();
        bind::count(self, &mut state);
        self.take_keys(&state)
    }

    /// Whether the region may be bound or counted.
    #[inline]
    fn is_known_elsewhere(&self) -> bool {
        self.watched.load(Ordering::Relaxed) || self.domain.remote_counted.get().is_some()
    }

    /// Whether this is a region of `domain`.
    pub(crate) fn is_of(&self, domain: &Domain) -> bool {
        std::ptr::eq(&raw const *self.domain, domain)
    }

    /// Removes a closed region from the domain's persistent regions.
    pub(super) fn forget_persistent(&self, region: Region) {
        if self.durable {
            self.domain.persistent.lock().remove(&region.id);
        }
    }

    /// The remote key, for `fi_mr_key` (FI-165, FI-106).
    pub(super) fn key(&self) -> u64 {
        if self.domain.has(FI_MR_RAW) || !self.access.is_remote() {
            return FI_KEY_NOTAVAIL;
        }
        let region = self.for_peers();
        region.requested.unwrap_or(u64::from(region.key.0))
    }
}

/// `fi_close` of a region. In strict mode it returns `-FI_EBUSY` while an endpoint or a counter is bound to the region
/// (FI-161); since 2.0, programs may close a region before its endpoint (FI-I07). When the call returns, no access to the
/// memory is in progress.
pub(crate) unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let mr = &unsafe { find::<MrObject, _>(fid)? }.inner;
        let known = mr.is_known_elsewhere();
        if known {
            bind::release(mr)?;
        }
        match (&mr.copies, &mr.cached) {
            (None, None) => end_region(mr, mr.region, known)?,
            (_, Some(cached)) => give_back(cached)?,
            (Some(_), None) => mr
                .everywhere()
                .try_for_each(|region| end_region(mr, region, known))?,
        }
        if known {
            bind::unwatch(mr);
        }
        if let Some((eq, _)) = mr.domain.eq.get() {
            eq.forget(fid as usize);
        }
        // SAFETY: the program no longer uses the region; of several threads that close it, only the one whose
        // close the device accepted gets here; and nothing iterates over the pool of regions.
        unsafe { end::<MrObject, _>(&SPARES, fid) }
    })
}

/// Returns a registration to the domain's cache.
#[cold]
fn give_back(cached: &Mutex<Option<Cached>>) -> Result<()> {
    // Of several threads that close the region, one gets the registration.
    let registration = cached.lock().take();
    registration.map(drop).ok_or(FiError::INVAL)
}

/// Closes one of the regions that a registration has in the protection table. If that fails, and the region is `known` in the
/// domain's lists, its accesses are counted again for endpoints.
#[inline]
fn end_region(mr: &Mr, region: Region, known: bool) -> Result<()> {
    if let Err(error) = mr.domain.device.deregister(region) {
        if known {
            bind::count(mr, &mut mr.state.lock());
        }
        return Err(error.into());
    }
    mr.domain.exposed.end(region.local_key, &mr.domain.device);
    mr.forget_persistent(region);
    Ok(())
}

/// `fi_control` of a region: enable, refresh, raw attributes.
pub(crate) unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<MrObject, _>(fid)? };
        match command {
            FI_ENABLE => enable(object),
            // SAFETY: the program promises the argument of the command.
            FI_REFRESH => unsafe { refresh::refresh(object, arg.cast()) },
            // SAFETY: as above.
            FI_GET_RAW_MR => unsafe { raw::get(&object.inner, arg.cast()) },
            _ => Err(FiError::NOSYS),
        }
    })
}

/// `fi_mr_enable` (FI-074, FI-077, FI-197). It has no effect on a region that was never disabled: only some modes
/// require the call.
fn enable(object: &MrObject) -> Result<()> {
    let mr = &object.inner;
    let mut state = mr.state.lock();
    if !state.unconfigured {
        return if state.sealed {
            Err(FiError::OPBADSTATE)
        } else {
            Ok(())
        };
    }
    if mr.domain.has(FI_MR_ENDPOINT) && state.endpoint.is_none() {
        rkey_device::denials::refused(
            "bind a region of an FI_MR_ENDPOINT domain to an endpoint before enabling it",
        );
        return Err(FiError::OPBADSTATE);
    }
    bind::count(mr, &mut state);
    mr.take_keys(&state)?;
    if !state.unbacked {
        mr.domain.device.enable_region(mr.region.id)?;
    }
    state.unconfigured = false;
    state.sealed = true;
    // SAFETY: programs read the key after the call that enables the region, or race with themselves.
    unsafe { (*object.fid.get()).key = mr.key() };
    Ok(())
}
