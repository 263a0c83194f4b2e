//! Memory regions.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::context::ContextObject;
use crate::memory::dm::DmRef;
use crate::memory::pd::PdObject;
use crate::object::{Object, find, handle_of, insert, remove, remove_sparing, vacant};
use crate::sys::consts::*;
use crate::sys::{Context, Mr, Pd};
use crate::translate::{errno, flags};
use rkey_device::Device;
use rkey_device::base::VaRange;
use rkey_device::core::{Addressing, Region, RegionSpec, Rules};
use rkey_kinds::file::{self, FileMemory};
use rkey_kit::{Errno, Spares, c_call};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The size of a program's address space, which is the length of an implicit on-demand region.
const USER_SPACE: u64 = 1 << 47;
/// The size of a page, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// How many bytes a program registers: the whole address space, for an implicit on-demand region.
pub(crate) fn registered_bytes(addr: *mut c_void, length: usize, flags: u32) -> u64 {
    if flags & ACCESS_ON_DEMAND != 0 && addr.is_null() && length == usize::MAX {
        USER_SPACE
    } else {
        length as u64
    }
}

/// A region, as the program sees it.
#[repr(C)]
pub struct MrObject {
    c: UnsafeCell<Mr>,
    region: UnsafeCell<Region>,
    /// The first address that requests use for the region, and the program's flags.
    pub(crate) base: UnsafeCell<(u64, u32)>,
    /// The memory behind the region, if it is not the program's own.
    backing: OnceLock<Box<Backing>>,
    /// Whether this is the region of another context, imported under this handle.
    pub(crate) imported: bool,
}

// SAFETY: only `ibv_rereg_mr` writes the cells, and the program makes no other use of the region during
// that call.
unsafe impl Sync for MrObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for MrObject {}

rkey_kit::object!(MrObject, c: Mr, 1 << 20);

thread_local! {
    static SPARES: Spares<MrObject> = const { Spares::new(<MrObject as Object>::pool) };
}

impl MrObject {
    /// The device's region.
    #[inline]
    #[must_use]
    pub fn region(&self) -> Region {
        // SAFETY: written only while the program makes no other use of the region.
        unsafe { *self.region.get() }
    }

    /// The C structure that the program reads.
    #[inline]
    #[must_use]
    pub fn c(&self) -> *mut Mr {
        self.c.get()
    }

    /// Whether its memory belongs to the program: it is not our mapping, device memory, or a null region.
    pub(crate) fn is_of_program(&self) -> bool {
        self.backing.get().is_none()
    }

    /// Makes the mapping of a file writable if rights need it.
    ///
    /// # Errors
    /// `EACCES`: the descriptor was not open for writing.
    pub(crate) fn make_writable(&self, flags: u32) -> Result<(), Errno> {
        match self.backing.get().map(|backing| &**backing) {
            Some(Backing::File(memory)) if flags & WRITES != 0 => {
                memory.mapping.make_writable().map_err(of_file)
            }
            _ => Ok(()),
        }
    }

    /// Whether this is a null region.
    fn is_null(&self) -> bool {
        matches!(
            self.backing.get().map(|backing| &**backing),
            Some(Backing::Null)
        )
    }

    pub(crate) fn context(&self) -> Result<&ContextObject, Errno> {
        // SAFETY: a context outlives its regions.
        unsafe { find((*self.c()).context) }
    }
}

/// Memory that a region keeps, if it is not the program's own.
enum Backing {
    /// A mapping of a DMA-buf or another file.
    File(FileMemory),
    /// Device memory.
    Dm(#[allow(dead_code, reason = "released with the region")] DmRef),
    /// A null region, which has no memory.
    Null,
}

/// The access flags that require the mapping of a file to be writable.
const WRITES: u32 = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC;

/// What is registered, and how.
pub struct Registration {
    /// The address of the first byte.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The address by which requests access the memory, unless the flags contain `IBV_ACCESS_ZERO_BASED`.
    pub addressing: Addressing,
    /// The program's flags.
    pub flags: u32,
    /// The `addr` of the C structure.
    pub shown: *mut c_void,
}

/// Registers memory and creates its handle.
///
/// # Errors
/// `EINVAL`: invalid flags or range; `EOPNOTSUPP`: flags for flushes; `ENOMEM`: a limit is reached.
///
/// # Safety
/// The memory stays valid until the region is deregistered.
#[inline]
pub unsafe fn register(
    pd: &PdObject,
    pd_handle: *mut Pd,
    wanted: &Registration,
) -> Result<*mut Mr, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { register_with(pd, pd_handle, wanted, None) }
}

/// Like [`register`], for device memory.
///
/// # Errors
/// Same as [`register`].
///
/// # Safety
/// Same as [`register`].
pub unsafe fn register_dm(
    pd: &PdObject,
    pd_handle: *mut Pd,
    wanted: &Registration,
    dm: DmRef,
) -> Result<*mut Mr, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { register_with(pd, pd_handle, wanted, Some(Backing::Dm(dm))) }
}

unsafe fn register_with(
    pd: &PdObject,
    pd_handle: *mut Pd,
    wanted: &Registration,
    backing: Option<Backing>,
) -> Result<*mut Mr, Errno> {
    let device = pd.context()?.device();
    let asked = flags::region_flags(wanted.flags)?;
    // Device memory may be registered with length 0: a region that refuses every access.
    let nothing = wanted.len == 0 && matches!(backing, Some(Backing::Dm(_)));
    let len = if nothing { 1 } else { wanted.len };
    let ranges = [VaRange::new(wanted.start, len).ok_or(Errno::INVAL)?];
    let spec = RegionSpec {
        disabled: nothing,
        addressing: if asked.zero_based {
            Addressing::Zero
        } else {
            wanted.addressing
        },
        rules: Rules::VERBS,
        ..RegionSpec::new(pd.domain, &ranges, asked.access)
    };
    let vacant = vacant::<MrObject>(&SPARES)?;
    // SAFETY: the program that registers memory promises what `register` requires.
    let region = unsafe {
        match &backing {
            Some(Backing::File(FileMemory {
                copier: copier @ Some(_),
                ..
            })) => device.register_foreign(&spec, std::slice::from_ref(copier)),
            _ => device.register(&spec),
        }
    };
    let region = region.map_err(|error| errno::of_registration("ibv_reg_mr", &error))?;
    let shown = (wanted.shown, wanted.len as usize);
    let c = structure(pd, pd_handle, shown, &region);
    let base = match spec.addressing {
        Addressing::Virtual => wanted.start,
        Addressing::Zero => 0,
        Addressing::Iova(iova) => iova,
    };
    let object = vacant.fill(MrObject {
        c: UnsafeCell::new(c),
        region: UnsafeCell::new(region),
        base: UnsafeCell::new((base, wanted.flags)),
        backing: backing
            .map(Box::new)
            .map_or_else(OnceLock::new, OnceLock::from),
        imported: false,
    });
    Ok(handle_of(object))
}

/// Deregisters a region for which there is no handle.
#[cold]
fn close(device: &Device, region: &Region) {
    if let Err(error) = device.revoke_and_deregister(*region) {
        tracing::warn!(%error, "cannot deregister {}, whose handle could not be created", region.id);
    }
}

/// The C structure for this address and length.
#[inline]
fn structure(
    pd: &PdObject,
    handle: *mut Pd,
    (addr, length): (*mut c_void, usize),
    region: &Region,
) -> Mr {
    Mr {
        context: pd.context,
        pd: handle,
        addr,
        length,
        handle: region.local_key.0,
        lkey: region.local_key.0,
        rkey: region.key.0,
    }
}

/// `ibv_reg_mr_iova2`.
///
/// # Safety
/// The memory stays valid until the region is deregistered.
pub unsafe extern "C" fn reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<PdObject>(pd)? };
        let wanted = Registration {
            start: addr as u64,
            len: registered_bytes(addr, length, access),
            addressing: if iova == addr as u64 {
                Addressing::Virtual
            } else {
                Addressing::Iova(iova)
            },
            flags: access,
            shown: addr,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { register(object, pd, &wanted) }
    })
}

/// `ibv_reg_mr`.
///
/// # Safety
/// The memory stays valid until the region is deregistered.
pub unsafe extern "C" fn reg_mr(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    // SAFETY: guaranteed by the caller.
    unsafe { reg_mr_iova2(pd, addr, length, addr as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// The memory stays valid until the region is deregistered.
pub unsafe extern "C" fn reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    // SAFETY: guaranteed by the caller.
    unsafe { reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// `ibv_reg_dmabuf_mr`: for files that support `mmap`. The driver of a DMA-buf is notified of each access.
///
/// # Safety
/// The memory stays valid until the region is deregistered.
pub unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<PdObject>(pd)? };
        if length == 0 || offset.checked_add(length as u64).is_none() {
            return Err(Errno::INVAL);
        }
        let writable = access as u32 & WRITES != 0;
        let memory = file::map(fd, offset, length, writable).map_err(of_file)?;
        let wanted = Registration {
            start: memory.range.start(),
            len: length as u64,
            addressing: Addressing::Iova(iova),
            flags: access as u32,
            shown: offset as *mut c_void,
        };
        // SAFETY: the mapping lives as long as the region.
        unsafe { register_with(object, pd, &wanted, Some(Backing::File(memory))) }
    })
}

/// The error of a file that cannot be mapped.
fn of_file(error: std::io::Error) -> Errno {
    match Errno::from(&error) {
        // Only the exporter of the DMA-buf can reach its memory.
        Errno::NODEV => Errno::OPNOTSUPP,
        errno => errno,
    }
}

/// `ibv_dereg_mr`. When it returns 0, no access to the memory is in progress, and none will begin.
///
/// # Safety
/// No other thread may use the region.
pub unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<MrObject>(mr)? };
        if object.imported {
            return Err(Errno::INVAL);
        }
        object
            .context()?
            .device()
            .deregister(object.region())
            .map_err(errno::from)?;
        // SAFETY: unused, as the caller guarantees.
        drop(unsafe { remove_sparing(&SPARES, mr)? });
        Ok(0)
    })
}

/// A region that `ibv_advise_mr` names.
pub(crate) struct Advised {
    /// The first address that requests use for it, and the one past its end.
    pub(crate) base: u64,
    pub(crate) end: u64,
    /// Where the region's memory begins, if its pages can be prefetched.
    pub(crate) memory: Option<u64>,
    pub(crate) writable: bool,
}

/// The region with this local key in a domain.
pub(crate) fn find_by_key(pd: &PdObject, lkey: u32) -> Result<Advised, Errno> {
    let same = |mr: &MrObject| {
        // SAFETY: the region is live; `find` validates its protection domain.
        !mr.is_null()
            && unsafe {
                let c = &*mr.c();
                c.lkey == lkey && find::<PdObject>(c.pd).is_ok_and(|of| of.domain == pd.domain)
            }
    };
    let found = MrObject::pool().find_map(|mr| {
        same(mr).then(|| {
            // SAFETY: the region is live.
            let ((base, flags), c) = unsafe { (*mr.base.get(), &*mr.c()) };
            let memory = match mr.backing.get().map(|backing| &**backing) {
                None => Some(c.addr as u64),
                Some(Backing::File(memory)) => Some(memory.range.start()),
                Some(Backing::Dm(_) | Backing::Null) => None,
            };
            Advised {
                base,
                end: base.saturating_add(c.length as u64),
                memory,
                writable: flags & ACCESS_LOCAL_WRITE != 0,
            }
        })
    });
    found.ok_or(Errno::NOENT)
}

/// `ibv_alloc_null_mr`: through its local key, reads return zeros and writes are dropped, at any address. Its remote
/// key is refused.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut Pd) -> *mut Mr {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<PdObject>(pd)? };
        let device = object.context()?.device();
        let region = device.register_null(object.domain).map_err(errno::from)?;
        let shown = (std::ptr::null_mut(), usize::MAX);
        let null = MrObject {
            c: UnsafeCell::new(structure(object, pd, shown, &region)),
            region: UnsafeCell::new(region),
            base: UnsafeCell::new((0, ACCESS_LOCAL_WRITE)),
            backing: OnceLock::from(Box::new(Backing::Null)),
            imported: false,
        };
        insert(null).inspect_err(|_| close(device, &region))
    })
}

/// `ibv_import_mr`: makes the region available in another context of the device.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn import_mr(pd: *mut Pd, handle: u32) -> *mut Mr {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<PdObject>(pd)? };
        let device = object.context()?.device();
        let same = |mr: &MrObject| {
            !mr.imported
                // SAFETY: the region is live.
                && unsafe { (*mr.c()).handle } == handle
                && mr.context().is_ok_and(|c| c.device().is(device))
        };
        let region = MrObject::pool()
            .find_map(|mr| same(mr).then(|| mr.region()))
            .ok_or(Errno::NOENT)?;
        let c = Mr {
            context: object.context,
            pd,
            // The importer does not get the address.
            addr: std::ptr::null_mut(),
            length: 0,
            handle,
            lkey: region.local_key.0,
            rkey: region.key.0,
        };
        insert(MrObject {
            c: UnsafeCell::new(c),
            region: UnsafeCell::new(region),
            base: UnsafeCell::new((0, 0)),
            backing: OnceLock::new(),
            imported: true,
        })
    })
}

/// `ibv_unimport_mr`.
///
/// # Safety
/// No other thread may use the handle.
pub unsafe extern "C" fn unimport_mr(mr: *mut Mr) {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        if unsafe { find::<MrObject>(mr)? }.imported {
            // SAFETY: unused, as the caller guarantees.
            drop(unsafe { remove::<MrObject>(mr)? });
        }
        Ok(())
    });
}

/// Destroys the remaining regions of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in MrObject::pool().live(|mr| (*mr.c()).context == context) {
            if let Ok(mr) = remove::<MrObject>(object.cast())
                && !mr.imported
                && let Ok(context) = mr.context()
                && let Err(error) = context.device().revoke_and_deregister(mr.region())
            {
                tracing::debug!(%error, "cannot deregister {} of a closing context", mr.region().id);
            }
        }
    }
}

// Pool slots are powers of two; a region should fit one of 128 bytes.
const _: () = assert!(size_of::<MrObject>() <= 120);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::devices;
    use crate::memory::pd;
    use crate::tables::context;

    #[test]
    fn a_region_that_gets_no_handle_is_deregistered() {
        let mut memory = [0u64; 8];
        let start = memory.as_mut_ptr().cast();
        // SAFETY: the device is ours, and every object is live while it is used; the zeroed region has no
        // context.
        unsafe {
            let context = context::open_device(devices::the_device());
            let pd = pd::alloc_pd(context);
            let last = reg_mr(pd, start, 64, 0);
            assert!(!last.is_null());
            let region = find::<MrObject>(last).unwrap().region();
            let fake = || MrObject {
                c: UnsafeCell::new(std::mem::zeroed()),
                region: UnsafeCell::new(region),
                base: UnsafeCell::new((0, 0)),
                backing: OnceLock::new(),
                imported: true,
            };
            while MrObject::pool().put(fake()).is_some() {}
            assert!(reg_mr(pd, start, 64, 0).is_null());
            assert_eq!(Errno::last(), Errno::NOMEM);
            assert!(alloc_null_mr(pd).is_null());
            assert_eq!(Errno::last(), Errno::NOMEM);
            assert_eq!(dereg_mr(last), 0);
            assert_eq!(pd::dealloc_pd(pd), 0, "the domain has no region left");
        }
    }
}
