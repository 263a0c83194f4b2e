//! Memory regions.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::context::ContextObject;
use crate::dm::Hold;
use crate::object::{Object, find, place, remove};
use crate::pd::PdObject;
use crate::sys::consts::*;
use crate::sys::{Context, Mr, Pd};
use crate::{errno, flags};
use rkey_device::Device;
use rkey_device::base::range::VaRange;
use rkey_device::core::{Addressing, Region, RegionSpec, Rules};
use rkey_kit::{Errno, Pool, fence};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The end of the address space of a program: the length of an implicit on-demand region.
const USER_SPACE: u64 = 1 << 47;
/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// How many bytes a program means: all there are, for an implicit on-demand region.
pub(crate) fn bytes_meant(addr: *mut c_void, length: usize, flags: u32) -> u64 {
    if flags & ACCESS_ON_DEMAND != 0 && addr.is_null() && length == usize::MAX {
        USER_SPACE
    } else {
        length as u64
    }
}

/// A region, as a program sees it.
#[repr(C)]
pub struct MrObject {
    c: UnsafeCell<Mr>,
    region: UnsafeCell<Region>,
    /// First address by which requests name it, and the program's flags.
    pub(crate) base: UnsafeCell<(u64, u32)>,
    /// What has to stay as long as the region, if anything.
    keep: OnceLock<Box<Keep>>,
    /// Only a name for the region of another context.
    pub(crate) imported: bool,
}

// SAFETY: the cells are written by `ibv_rereg_mr` only, which the program does not call while it uses the
// region otherwise.
unsafe impl Sync for MrObject {}
// SAFETY: holds addresses of objects, which are checked before use.
unsafe impl Send for MrObject {}

static MRS: Pool<MrObject> = Pool::new(1 << 20);

// SAFETY: the structure is at the start.
unsafe impl Object for MrObject {
    type C = Mr;
    fn pool() -> &'static Pool<Self> {
        &MRS
    }
}

impl MrObject {
    /// The region of the device.
    #[inline]
    #[must_use]
    pub fn region(&self) -> Region {
        // SAFETY: written only while nobody uses the region.
        unsafe { *self.region.get() }
    }

    /// The structure that programs read.
    #[inline]
    #[must_use]
    pub fn c(&self) -> *mut Mr {
        self.c.get()
    }

    /// Whether its memory is the program's own, and not a mapping or device memory that goes with it, or none.
    pub(crate) fn is_of_program(&self) -> bool {
        self.keep.get().is_none()
    }

    /// Whether it stands for no memory.
    fn is_null(&self) -> bool {
        matches!(self.keep.get().map(|keep| &**keep), Some(Keep::Null))
    }

    pub(crate) fn context(&self) -> Result<&ContextObject, Errno> {
        // SAFETY: regions go with their context.
        unsafe { find((*self.c()).context) }
    }
}

/// What has to stay as long as a region.
enum Keep {
    /// A mapping of a dma-buf.
    Mapping(#[allow(dead_code, reason = "kept for its end")] Mapping),
    /// Device memory.
    Dm(#[allow(dead_code, reason = "kept for its end")] Hold),
    /// Nothing: there is no memory.
    Null,
}

/// A mapping of ours that is taken away with the region.
struct Mapping {
    start: *mut c_void,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a mapping that was made for one region, which is closed.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// What is to be registered.
pub struct Wanted {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// How requests name it; `Virtual` unless the flags say "zero-based".
    pub addressing: Addressing,
    /// Flags of the program.
    pub flags: u32,
    /// The address that the structure shows.
    pub shown: *mut c_void,
}

/// Registers memory and makes the structure for it.
///
/// # Errors
/// `EINVAL`: flags, range; `ENOMEM`: a limit.
///
/// # Safety
/// The program owns the memory until the region is closed.
#[inline]
pub unsafe fn register(
    pd: &PdObject,
    pd_handle: *mut Pd,
    wanted: &Wanted,
) -> Result<*mut Mr, Errno> {
    // SAFETY: as promised by the caller.
    unsafe { register_with(pd, pd_handle, wanted, None) }
}

/// As [`register`], on device memory.
///
/// # Errors
/// As [`register`].
///
/// # Safety
/// As [`register`].
pub unsafe fn register_dm(
    pd: &PdObject,
    pd_handle: *mut Pd,
    wanted: &Wanted,
    hold: Hold,
) -> Result<*mut Mr, Errno> {
    // SAFETY: as promised by the caller.
    unsafe { register_with(pd, pd_handle, wanted, Some(Keep::Dm(hold))) }
}

unsafe fn register_with(
    pd: &PdObject,
    pd_handle: *mut Pd,
    wanted: &Wanted,
    keep: Option<Keep>,
) -> Result<*mut Mr, Errno> {
    let device = pd.context()?.device();
    let asked = flags::region_flags(wanted.flags)?;
    // Device memory may be registered with a length of 0: a region that refuses everything.
    let nothing = wanted.len == 0 && matches!(keep, Some(Keep::Dm(_)));
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
    // SAFETY: the program that registers memory promises what `register` asks for.
    let region = unsafe { device.register(&spec) }
        .map_err(|error| errno::of_registration("ibv_reg_mr", &error))?;
    let shown = (wanted.shown, wanted.len as usize);
    let c = structure(pd, pd_handle, shown, &region);
    let base = match spec.addressing {
        Addressing::Virtual => wanted.start,
        Addressing::Zero => 0,
        Addressing::Iova(iova) => iova,
    };
    let object = MrObject {
        c: UnsafeCell::new(c),
        region: UnsafeCell::new(region),
        base: UnsafeCell::new((base, wanted.flags)),
        keep: OnceLock::new(),
        imported: false,
    };
    let handle = place(object).inspect_err(|_| close(device, &region))?;
    if let Some(keep) = keep {
        // Only now: without a place the region has to end before what it stands for does.
        // SAFETY: a live region.
        let _empty = unsafe { find::<MrObject>(handle)? }
            .keep
            .set(Box::new(keep));
    }
    Ok(handle)
}

/// Ends a region that got no handle.
#[cold]
fn close(device: &Device, region: &Region) {
    if let Err(error) = device.revoke_region(*region) {
        tracing::warn!(%error, "closing a region that there is no room for");
    }
}

/// What a program sees of a region with this address and length.
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
/// The program owns the memory until the region is closed.
pub unsafe extern "C" fn reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    fence(|| {
        // SAFETY: a protection domain as the caller promises, or something that is refused.
        let object = unsafe { find::<PdObject>(pd)? };
        let wanted = Wanted {
            start: addr as u64,
            len: bytes_meant(addr, length, access),
            addressing: if iova == addr as u64 {
                Addressing::Virtual
            } else {
                Addressing::Iova(iova)
            },
            flags: access,
            shown: addr,
        };
        // SAFETY: as promised by the caller.
        unsafe { register(object, pd, &wanted) }
    })
}

/// `ibv_reg_mr`.
///
/// # Safety
/// The program owns the memory until the region is closed.
pub unsafe extern "C" fn reg_mr(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    // SAFETY: as promised by the caller.
    unsafe { reg_mr_iova2(pd, addr, length, addr as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// The program owns the memory until the region is closed.
pub unsafe extern "C" fn reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    // SAFETY: as promised by the caller.
    unsafe { reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// `ibv_reg_dmabuf_mr`: works with files that can be mapped.
///
/// # Safety
/// The program owns the memory until the region is closed.
pub unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    fence(|| {
        // SAFETY: a protection domain as the caller promises, or something that is refused.
        let object = unsafe { find::<PdObject>(pd)? };
        if length == 0 || offset.checked_add(length as u64).is_none() {
            return Err(Errno::INVAL);
        }
        let writes = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC;
        let writable = access as u32 & writes != 0;
        let inside = (offset % PAGE) as usize;
        let mapping = map(fd, offset - inside as u64, inside + length, writable)?;
        let wanted = Wanted {
            start: mapping.start as u64 + inside as u64,
            len: length as u64,
            addressing: Addressing::Iova(iova),
            flags: access as u32,
            shown: offset as *mut c_void,
        };
        // SAFETY: as promised by the caller; the mapping lives as long as the region.
        unsafe { register_with(object, pd, &wanted, Some(Keep::Mapping(mapping))) }
    })
}

fn map(fd: c_int, offset: u64, len: usize, writable: bool) -> Result<Mapping, Errno> {
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: a new mapping where the kernel likes; it replaces nothing.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            protection,
            libc::MAP_SHARED,
            fd,
            offset,
        )
    };
    if start == libc::MAP_FAILED {
        let errno = Errno::last();
        // A file without a mapping is a dma-buf that only its exporter reaches.
        return Err(if errno == Errno::NODEV {
            Errno::OPNOTSUPP
        } else {
            errno
        });
    }
    Ok(Mapping { start, len })
}

/// `ibv_dereg_mr`. When it returns 0, nobody touches the memory any more.
///
/// # Safety
/// No other thread uses the region.
pub unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    fence(|| {
        // SAFETY: a region as the caller promises, or something that is refused.
        let object = unsafe { find::<MrObject>(mr)? };
        if object.imported {
            return Err(Errno::INVAL);
        }
        object
            .context()?
            .device()
            .close_region(object.region())
            .map_err(errno::from)?;
        // SAFETY: nobody uses it.
        drop(unsafe { remove::<MrObject>(mr)? });
        Ok(0)
    })
}

/// A region that advice is about.
pub(crate) struct Advised {
    /// First address by which requests name it, and the one after the last.
    pub(crate) base: u64,
    pub(crate) end: u64,
    /// Where the memory begins, if pages of it can be brought in.
    pub(crate) memory: Option<u64>,
    pub(crate) writable: bool,
}

/// The region of a domain with this local key.
pub(crate) fn find_by_key(pd: &PdObject, lkey: u32) -> Result<Advised, Errno> {
    let same = |mr: &MrObject| {
        // SAFETY: a live region; its protection domain is live or refused.
        !mr.is_null()
            && unsafe {
                let c = &*mr.c();
                c.lkey == lkey && find::<PdObject>(c.pd).is_ok_and(|of| of.domain == pd.domain)
            }
    };
    let found = MRS.find_map(|mr| {
        same(mr).then(|| {
            // SAFETY: a live region.
            let ((base, flags), c) = unsafe { (*mr.base.get(), &*mr.c()) };
            let memory = match mr.keep.get().map(|keep| &**keep) {
                None => Some(c.addr as u64),
                // It begins in its first page where the structure says it begins in the file.
                Some(Keep::Mapping(mapping)) => Some(mapping.start as u64 + c.addr as u64 % PAGE),
                Some(Keep::Dm(_) | Keep::Null) => None,
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

/// `ibv_alloc_null_mr`: its local key gives zeros and takes what nobody wants, at any address. Its remote key is refused.
///
/// # Safety
/// A protection domain, or anything else.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut Pd) -> *mut Mr {
    fence(|| {
        // SAFETY: a protection domain as the caller promises, or something that is refused.
        let object = unsafe { find::<PdObject>(pd)? };
        let device = object.context()?.device();
        let region = device.register_null(object.domain).map_err(errno::from)?;
        let shown = (std::ptr::null_mut(), usize::MAX);
        let null = MrObject {
            c: UnsafeCell::new(structure(object, pd, shown, &region)),
            region: UnsafeCell::new(region),
            base: UnsafeCell::new((0, ACCESS_LOCAL_WRITE)),
            keep: OnceLock::from(Box::new(Keep::Null)),
            imported: false,
        };
        place(null).inspect_err(|_| close(device, &region))
    })
}

/// `ibv_import_mr`: the same region under another context of the device.
///
/// # Safety
/// A protection domain, or anything else.
pub unsafe extern "C" fn import_mr(pd: *mut Pd, handle: u32) -> *mut Mr {
    fence(|| {
        // SAFETY: a protection domain as the caller promises, or something that is refused.
        let object = unsafe { find::<PdObject>(pd)? };
        let device = object.context()?.device();
        let same = |mr: &MrObject| {
            !mr.imported
                // SAFETY: a live region.
                && unsafe { (*mr.c()).handle } == handle
                && mr.context().is_ok_and(|c| c.device().is(device))
        };
        let region = MRS
            .find_map(|mr| same(mr).then(|| mr.region()))
            .ok_or(Errno::NOENT)?;
        let c = Mr {
            context: object.context,
            pd,
            // The importer does not learn where the memory is.
            addr: std::ptr::null_mut(),
            length: 0,
            handle,
            lkey: region.local_key.0,
            rkey: region.key.0,
        };
        place(MrObject {
            c: UnsafeCell::new(c),
            region: UnsafeCell::new(region),
            base: UnsafeCell::new((0, 0)),
            keep: OnceLock::new(),
            imported: true,
        })
    })
}

/// `ibv_unimport_mr`.
///
/// # Safety
/// No other thread uses it.
pub unsafe extern "C" fn unimport_mr(mr: *mut Mr) {
    fence(|| {
        // SAFETY: a region as the caller promises, or something that is refused.
        if unsafe { find::<MrObject>(mr)? }.imported {
            // SAFETY: nobody uses it.
            drop(unsafe { remove::<MrObject>(mr)? });
        }
        Ok(())
    });
}

/// Ends what a context that is closed leaves.
///
/// # Safety
/// Nobody uses anything of the context.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: nobody uses the objects, as the caller promises.
    unsafe {
        for object in MRS.live(|mr| (*mr.c()).context == context) {
            if let Ok(mr) = remove::<MrObject>(object.cast())
                && !mr.imported
                && let Ok(context) = mr.context()
                && let Err(error) = context.device().revoke_region(mr.region())
            {
                tracing::debug!(%error, "closing a region with its context");
            }
        }
    }
}

// A place of the pool is a power of two; a region should not need more than 128 bytes.
const _: () = assert!(size_of::<MrObject>() <= 120);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::context;
    use crate::{device, pd};

    #[test]
    fn a_region_without_a_place_is_closed() {
        let mut memory = [0u64; 8];
        let start = memory.as_mut_ptr().cast();
        // SAFETY: the device is ours, and each object is live when it is used; a region of zeroes is of no context.
        unsafe {
            let context = context::open_device(device::the_device());
            let pd = pd::alloc_pd(context);
            let last = reg_mr(pd, start, 64, 0);
            assert!(!last.is_null());
            let region = find::<MrObject>(last).unwrap().region();
            let fake = || MrObject {
                c: UnsafeCell::new(std::mem::zeroed()),
                region: UnsafeCell::new(region),
                base: UnsafeCell::new((0, 0)),
                keep: OnceLock::new(),
                imported: true,
            };
            while MRS.put(fake()).is_some() {}
            assert!(reg_mr(pd, start, 64, 0).is_null());
            assert_eq!(Errno::last(), Errno::NOMEM);
            assert!(alloc_null_mr(pd).is_null());
            assert_eq!(Errno::last(), Errno::NOMEM);
            assert_eq!(dereg_mr(last), 0);
            assert_eq!(pd::dealloc_pd(pd), 0, "nothing of it is left");
        }
    }
}
