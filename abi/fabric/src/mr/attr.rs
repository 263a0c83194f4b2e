//! `fi_mr_reg`, `fi_mr_regv` and `fi_mr_regattr`: one request in three forms (FI-004).

#![allow(unsafe_code)]
// UNSAFETY: C functions that read structures of the program.

use super::region;
use crate::av::{AuthKey, Av, AvObject};
use crate::domain::{ADDRESSES, Domain, DomainObject};
use crate::errno::{FiError, Result};
use crate::identity::Identity;
use crate::info::offer::COLLECTIVE_SINCE;
use crate::lenient;
use crate::object::{find, input, list, status};
use crate::sys::*;
use libc::iovec;
use rkey_device::base::VaRange;
use rkey_device::base::page_size;
use smallvec::{SmallVec, smallvec};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The memory of a region: one range, almost always.
pub(crate) type Ranges = SmallVec<[VaRange; 1]>;

/// A request, checked as far as that needs no table.
pub(crate) struct Request<'a> {
    pub(crate) memory: Memory<'a>,
    pub(crate) access: u64,
    pub(crate) requested_key: u64,
    pub(crate) context: usize,
    pub(crate) auth_key: &'a [u8],
    /// Where the authorization keys of an `FI_AV_AUTH_KEY` domain are.
    pub(crate) keys: Option<AvKeys>,
    pub(crate) flags: u64,
}

/// What is to be registered.
pub(crate) enum Memory<'a> {
    /// Pieces of memory, not looked at yet.
    List(&'a [iovec]),
    /// A file whose pages are the memory.
    Dmabuf(Dmabuf),
}

/// A DMA-buf, as the program describes it.
#[derive(Clone, Copy)]
pub(crate) struct Dmabuf {
    pub(crate) fd: c_int,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) base: u64,
}

/// The authorization keys of an address vector.
pub(crate) struct AvKeys {
    pub(crate) av: Arc<Av>,
    /// This one only.
    pub(crate) only: Option<Arc<AuthKey>>,
    /// Of the peers that have them, this one only.
    pub(crate) peer: Option<Arc<Identity>>,
}

const ACCESS: u64 =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;
const HMEM_FLAGS: u64 = FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC | FI_MR_DMABUF;

pub(super) unsafe extern "C" fn reg(
    domain: *mut Fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    let iov = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    // SAFETY: one element of our own; the rest as the caller promises.
    unsafe {
        regv(
            domain,
            &iov,
            1,
            access,
            offset,
            requested_key,
            flags,
            mr,
            context,
        )
    }
}

pub(super) unsafe extern "C" fn regv(
    domain: *mut Fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let owner = unsafe { find::<DomainObject, _>(domain)? };
        if flags & FI_MR_DMABUF != 0 {
            tracing::warn!(
                "FI_MR_DMABUF needs fi_mr_regattr: the other calls have no place for its attributes"
            );
            return Err(FiError::BADFLAGS);
        }
        let attr = MrAttr {
            mr_iov: iov,
            iov_count: count,
            access,
            offset,
            requested_key,
            context,
            auth_key_size: 0,
            auth_key: std::ptr::null_mut(),
            iface: FI_HMEM_SYSTEM,
            device: 0,
        };
        // SAFETY: attributes of our own; what they point to is as the caller promises.
        unsafe { register(&owner.inner, &attr, None, flags, mr) }
    })
}

pub(super) unsafe extern "C" fn regattr(
    domain: *mut Fid,
    attr: *const MrAttr,
    flags: u64,
    mr: *mut *mut FidMr,
) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let owner = unsafe { find::<DomainObject, _>(domain)? };
        // SAFETY: attributes, as the caller promises.
        let known = unsafe { input(attr)? };
        let tail = Tail::read(attr, owner.inner.version);
        // SAFETY: attributes, and what they point to, as the caller promises.
        unsafe { register(&owner.inner, known, Some(tail), flags, mr) }
    })
}

/// The fields of the attributes that only newer programs have (FI-265, FI-I43).
struct Tail {
    hmem_data: usize,
    page_size: usize,
    base_mr: usize,
}

impl Tail {
    fn read(attr: *const MrAttr, asked: u32) -> Self {
        let long = attr.cast::<LongMrAttr>();
        // SAFETY: a program of this version passes attributes that have the field.
        let field = |since: u32, read: &dyn Fn() -> usize| if asked >= since { read() } else { 0 };
        Self {
            // SAFETY: read only when the field is there.
            hmem_data: field(version(1, 19), &|| unsafe { (*long).hmem_data as usize }),
            // SAFETY: as above.
            page_size: field(version(1, 22), &|| unsafe { (*long).page_size }),
            // SAFETY: as above.
            base_mr: field(version(2, 0), &|| unsafe { (*long).base_mr as usize }),
        }
    }

    fn check(&self) -> Result<()> {
        if self.hmem_data != 0 {
            tracing::warn!("fi_mr_attr.hmem_data is reserved and has to be NULL");
            return Err(FiError::INVAL);
        }
        if self.base_mr != 0 {
            return Err(FiError::NOSYS);
        }
        // FI-138: only sizes of pages that there are. The region is paged as its memory is (FI-140).
        if self.page_size != 0 && !is_page_size(self.page_size) {
            lenient::unless_strict(&lenient::PAGE_SIZE, FiError::INVAL)?;
        }
        Ok(())
    }
}

/// Whether the system has pages of this size: the ordinary one, and huge pages that the kernel knows.
fn is_page_size(size: usize) -> bool {
    // SAFETY: the call has no precondition.
    let ordinary = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let huge = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", size / 1024);
    i64::try_from(size) == Ok(ordinary)
        || size.is_power_of_two() && size >= 1024 && std::path::Path::new(&huge).exists()
}

/// Checks a request and makes the region.
///
/// # Safety
/// The attributes are what the program passed, and `mr` is null or room for a handle.
unsafe fn register(
    domain: &Arc<Domain>,
    attr: &MrAttr,
    tail: Option<Tail>,
    flags: u64,
    mr: *mut *mut FidMr,
) -> Result<()> {
    if mr.is_null() {
        return Err(FiError::INVAL);
    }
    check_flags(domain, flags)?;
    // FI-269: before 1.9 there were no collective operations.
    let later = match domain.version < COLLECTIVE_SINCE {
        true => FI_COLLECTIVE,
        false => 0,
    };
    let access = attr.access & ACCESS & !later;
    if access != attr.access {
        lenient::unless_strict(&lenient::OTHER_RIGHTS, FiError::INVAL)?;
    }
    if attr.offset != 0 {
        lenient::unless_strict(&lenient::OFFSET, FiError::INVAL)?;
    }
    let by_attributes = tail.is_some();
    if let Some(tail) = tail {
        tail.check()?;
    }
    check_interface(domain, attr)?;
    let memory = if flags & FI_MR_DMABUF != 0 {
        // SAFETY: with this flag the field points to a DMA-buf's description, as the caller promises.
        Memory::Dmabuf(unsafe { dmabuf(attr)? })
    } else {
        // SAFETY: a list of this length, as the caller promises.
        Memory::List(unsafe { list(attr.mr_iov, attr.iov_count)? })
    };
    // FI-118: keys that tie a region to endpoints exist from 1.5 on.
    let (mut keys, mut auth_key): (_, &[u8]) = (None, &[]);
    if domain.av_keys {
        // SAFETY: in such a domain the key is a structure, as the caller promises.
        keys = Some(unsafe { av_keys(domain, attr, by_attributes, flags)? });
    } else if domain.version >= version(1, 5) {
        // SAFETY: null or so many bytes, as the caller promises.
        auth_key = unsafe { list(attr.auth_key, attr.auth_key_size)? };
    }
    let request = Request {
        memory,
        access,
        requested_key: attr.requested_key,
        context: attr.context as usize,
        auth_key,
        keys,
        flags,
    };
    // SAFETY: room for a handle: not null, and the caller promises the rest.
    unsafe { region::make(domain, request, mr) }
}

fn check_flags(domain: &Domain, flags: u64) -> Result<()> {
    // Libfabric's own layers over a provider (ofi_rxm with FI_MR_LOCAL) say that they cache by themselves.
    let mut known = FI_RMA_EVENT | FI_RMA_PMEM | OFI_MR_NOCACHE;
    if domain.hmem {
        known |= HMEM_FLAGS;
    }
    // FI-150.
    if domain.av_keys {
        known |= FI_AUTH_KEY;
    }
    if flags & !known == 0 {
        return Ok(());
    }
    if flags & HMEM_FLAGS != 0 && !domain.hmem {
        tracing::warn!(
            "FI_HMEM_DEVICE_ONLY, FI_HMEM_HOST_ALLOC and FI_MR_DMABUF need a domain that was opened with FI_HMEM"
        );
    }
    Err(FiError::BADFLAGS)
}

/// The keys that a registration in an `FI_AV_AUTH_KEY` domain names (FI-121, FI-122, FI-207 to FI-212).
///
/// # Safety
/// `auth_key` is null or a `fi_mr_auth_key` if its size says so.
unsafe fn av_keys(
    domain: &Arc<Domain>,
    attr: &MrAttr,
    by_attributes: bool,
    flags: u64,
) -> Result<AvKeys> {
    if !by_attributes {
        tracing::warn!("regions of an FI_AV_AUTH_KEY domain are registered with fi_mr_regattr");
        return Err(FiError::NOSYS);
    }
    if attr.auth_key_size != size_of::<MrAuthKey>() {
        return Err(FiError::INVAL);
    }
    // SAFETY: as the caller promises; an address vector, or something that is refused.
    let (key, av) = unsafe {
        let key = input(attr.auth_key.cast::<MrAuthKey>())?;
        (key, &find::<AvObject, _>(key.av)?.inner)
    };
    if !Arc::ptr_eq(&av.domain, domain) {
        return Err(FiError::INVAL);
    }
    let (only, peer) = match key.src_addr {
        _ if !domain.directed => (None, None),
        FI_ADDR_UNSPEC => (None, None),
        number if flags & FI_AUTH_KEY != 0 => {
            (Some(av.auth_key(number).ok_or(FiError::INVAL)?), None)
        }
        number => {
            let address = av.get(number).ok_or(FiError::INVAL)?;
            let peer = domain.identities.of(address);
            (av.key_of_address(number), Some(peer))
        }
    };
    Ok(AvKeys {
        av: Arc::clone(av),
        only,
        peer,
    })
}

/// Memory of devices is not there; without `FI_HMEM` nobody looks at the field (FI-123).
fn check_interface(domain: &Domain, attr: &MrAttr) -> Result<()> {
    if !domain.hmem {
        return Ok(());
    }
    match attr.iface {
        FI_HMEM_SYSTEM => Ok(()),
        FI_HMEM_CUDA..=FI_HMEM_SYNAPSEAI => Err(FiError::NOSYS),
        _ => Err(FiError::INVAL),
    }
}

/// The ranges of a list. None may be empty or pass the end of the address space (FI-015, FI-I34).
///
/// Programs register all that they have, now and later, as `UINTPTR_MAX` bytes from 0 on (the dynamic windows of MPI):
/// a range ends where their memory ends.
#[inline]
pub(super) fn ranges(iov: &[iovec]) -> Result<Ranges> {
    let range = |piece: &iovec| {
        VaRange::new(piece.iov_base as u64, piece.iov_len as u64)
            .filter(|range| !range.is_empty())
            .and_then(|range| match range.start() < ADDRESSES {
                true => VaRange::new(range.start(), range.len().min(ADDRESSES - range.start())),
                false => Some(range),
            })
            .ok_or_else(|| no_range(piece))
    };
    match iov {
        [] => Err(FiError::INVAL),
        [one] => Ok(smallvec![range(one)?]),
        many => many.iter().map(range).collect(),
    }
}

#[cold]
fn no_range(piece: &iovec) -> FiError {
    FiError::INVAL.because(format_args!(
        "{} B from {:p} on cannot be registered: there has to be a byte at least, and none behind the last address",
        piece.iov_len, piece.iov_base
    ))
}

/// The description of a DMA-buf.
///
/// # Safety
/// `mr_iov` is null or points to one.
unsafe fn dmabuf(attr: &MrAttr) -> Result<Dmabuf> {
    if attr.iov_count != 1 {
        return Err(FiError::INVAL);
    }
    // SAFETY: as the caller promises.
    let buf = unsafe { input(attr.mr_iov.cast::<MrDmabuf>())? };
    let page = page_size() as u64;
    if buf.fd < 0 || buf.len == 0 || !(buf.base_addr as u64).is_multiple_of(page) {
        return Err(FiError::INVAL);
    }
    let base = buf.base_addr as u64;
    let start = base.checked_add(buf.offset).ok_or(FiError::INVAL)?;
    VaRange::new(start, buf.len as u64).ok_or(FiError::INVAL)?;
    Ok(Dmabuf {
        fd: buf.fd,
        offset: buf.offset,
        len: buf.len,
        base,
    })
}
