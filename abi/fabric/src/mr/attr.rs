//! `fi_mr_reg`, `fi_mr_regv` and `fi_mr_regattr`: three forms of one request (FI-004).

#![allow(unsafe_code)]
// UNSAFETY: reads structures of the program.

use super::hmem::Interface;
use super::region;
use crate::av::{AuthKey, Av, AvObject};
use crate::domain::{ADDRESSES, Domain};
use crate::errno::{FiError, Result};
use crate::identity::Identity;
use crate::info::offer::COLLECTIVE_SINCE;
use crate::lenient;
use crate::object::{find, input, list};
use crate::sys::*;
use libc::iovec;
use rkey_device::base::VaRange;
use rkey_device::base::page_size;
use smallvec::{SmallVec, smallvec};
use std::ffi::c_int;
use std::sync::Arc;

/// The memory of a region: usually one range.
pub(crate) type Ranges = SmallVec<[VaRange; 1]>;

/// A request, checked as far as possible without the protection table.
pub(crate) struct Request<'a> {
    pub(crate) memory: Memory<'a>,
    pub(crate) interface: Interface,
    pub(crate) access: u64,
    pub(crate) requested_key: u64,
    pub(crate) context: usize,
    pub(crate) auth_key: &'a [u8],
    /// The authorization keys, in an `FI_AV_AUTH_KEY` domain.
    pub(crate) keys: Option<AvKeys>,
    pub(crate) flags: u64,
}

/// The memory to register.
pub(crate) enum Memory<'a> {
    /// Unchecked segments.
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
    /// The one key that the program chose; `None`: all keys of the vector.
    pub(crate) only: Option<Arc<AuthKey>>,
    /// The one peer that may use the region; `None`: all peers.
    pub(crate) peer: Option<Arc<Identity>>,
}

const ACCESS: u64 =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;
const HMEM_FLAGS: u64 = FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC | FI_MR_DMABUF;

/// Attributes that only newer programs have (FI-265, FI-I43).
pub(crate) struct Tail {
    hmem_data: usize,
    page_size: usize,
    base_mr: usize,
}

impl Tail {
    pub(crate) fn read(attr: *const MrAttr, asked: u32) -> Self {
        let long = attr.cast::<LongMrAttr>();
        // SAFETY: programs of this version pass attributes that include the field.
        let field = |since: u32, read: &dyn Fn() -> usize| if asked >= since { read() } else { 0 };
        Self {
            // SAFETY: read only if the field exists.
            hmem_data: field(version(1, 19), &|| unsafe { (*long).hmem_data as usize }),
            // SAFETY: as above.
            page_size: field(version(1, 22), &|| unsafe { (*long).page_size }),
            // SAFETY: as above.
            base_mr: field(version(2, 0), &|| unsafe { (*long).base_mr as usize }),
        }
    }

    fn check(&self) -> Result<()> {
        if self.hmem_data != 0 {
            tracing::warn!("fi_mr_attr.hmem_data is reserved: set it to NULL");
            return Err(FiError::INVAL);
        }
        if self.base_mr != 0 {
            return Err(FiError::NOSYS);
        }
        // FI-138: only page sizes that the system has are allowed. The region uses the pages of its memory in any case
        // (FI-140).
        if self.page_size != 0 && !is_page_size(self.page_size) {
            lenient::unless_strict(&lenient::PAGE_SIZE, FiError::INVAL)?;
        }
        Ok(())
    }
}

/// Whether the system has pages of this size: the base size, or huge pages that the kernel supports.
fn is_page_size(size: usize) -> bool {
    // SAFETY: the call has no precondition.
    let ordinary = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let huge = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", size / 1024);
    i64::try_from(size) == Ok(ordinary)
        || size.is_power_of_two() && size >= 1024 && std::path::Path::new(&huge).exists()
}

/// [`register`] for calls that need not be fast.
///
/// # Safety
/// Same as [`register`].
#[inline(never)]
pub(crate) unsafe fn register_with(
    domain: &Arc<Domain>,
    attr: &MrAttr,
    tail: Option<Tail>,
    flags: u64,
    ops: &'static Ops,
    mr: *mut *mut FidMr,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { register(domain, attr, tail, flags, ops, mr) }
}

/// Checks a request and creates the region, with `ops` as the table of its handle.
///
/// # Safety
/// The attributes are the program's; `mr` is null or has room for a handle.
#[inline(always)]
pub(crate) unsafe fn register(
    domain: &Arc<Domain>,
    attr: &MrAttr,
    tail: Option<Tail>,
    flags: u64,
    ops: &'static Ops,
    mr: *mut *mut FidMr,
) -> Result<()> {
    if mr.is_null() {
        return Err(FiError::INVAL);
    }
    check_flags(domain, flags)?;
    // FI-269: collective operations have existed since 1.9.
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
    let memory = if flags & FI_MR_DMABUF != 0 {
        // SAFETY: with this flag, the caller guarantees the description of a DMA-buf.
        Memory::Dmabuf(unsafe { dmabuf(attr)? })
    } else {
        // SAFETY: the caller guarantees a list of this length.
        Memory::List(unsafe { list(attr.mr_iov, attr.iov_count)? })
    };
    // FI-118: authorization keys have existed since 1.5.
    let (mut keys, mut auth_key): (_, &[u8]) = (None, &[]);
    if domain.av_keys {
        // SAFETY: in such a domain, the caller guarantees that the key is a structure.
        keys = Some(unsafe { av_keys(domain, attr, by_attributes, flags)? });
    } else if domain.version >= version(1, 5) {
        // SAFETY: the caller guarantees null or this length.
        auth_key = unsafe { list(attr.auth_key, attr.auth_key_size)? };
    }
    let request = Request {
        memory,
        interface: Interface {
            iface: attr.iface,
            device: attr.device,
        },
        access,
        requested_key: attr.requested_key,
        context: attr.context as usize,
        auth_key,
        keys,
        flags,
    };
    // SAFETY: not null, and the caller guarantees room for a handle.
    unsafe { region::make(domain, request, ops, mr) }
}

fn check_flags(domain: &Domain, flags: u64) -> Result<()> {
    // Libfabric's own layers over a provider (ofi_rxm with FI_MR_LOCAL) pass OFI_MR_NOCACHE.
    let mut known = FI_RMA_EVENT | FI_RMA_PMEM | OFI_MR_NOCACHE;
    if domain.hmem {
        known |= HMEM_FLAGS;
    }
    // FI-150: the flag FI_AUTH_KEY is valid only in FI_AV_AUTH_KEY domains.
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

/// The authorization keys of a registration in an `FI_AV_AUTH_KEY` domain (FI-121, FI-122, FI-207 to FI-212).
///
/// # Safety
/// `attr.auth_key` is null, or a `fi_mr_auth_key` if its size says so.
unsafe fn av_keys(
    domain: &Arc<Domain>,
    attr: &MrAttr,
    by_attributes: bool,
    flags: u64,
) -> Result<AvKeys> {
    if !by_attributes {
        tracing::warn!(
            "in an FI_AV_AUTH_KEY domain, register regions with fi_mr_regattr: the other calls cannot pass an address vector"
        );
        return Err(FiError::NOSYS);
    }
    if attr.auth_key_size != size_of::<MrAuthKey>() {
        return Err(FiError::INVAL);
    }
    // SAFETY: `input` refuses null; `find` validates the address vector; the caller guarantees the rest.
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

/// The ranges of a list. None may be empty or extend past the end of the address space (FI-015, FI-I34).
///
/// Programs register all present and future memory as `UINTPTR_MAX` bytes from 0 (dynamic windows of MPI): such
/// a range ends at the end of user memory.
#[inline]
pub(super) fn ranges(iov: &[iovec]) -> Result<Ranges> {
    let range = |segment: &iovec| {
        VaRange::new(segment.iov_base as u64, segment.iov_len as u64)
            .filter(|range| !range.is_empty())
            .and_then(|range| match range.start() < ADDRESSES {
                true => VaRange::new(range.start(), range.len().min(ADDRESSES - range.start())),
                false => Some(range),
            })
            .ok_or_else(|| no_range(segment))
    };
    match iov {
        [] => Err(FiError::INVAL),
        [one] => Ok(smallvec![range(one)?]),
        many => many.iter().map(range).collect(),
    }
}

#[cold]
fn no_range(segment: &iovec) -> FiError {
    FiError::INVAL.because(format_args!(
        "cannot register {} B from {:p}: the range must not be empty or wrap past the last address",
        segment.iov_len, segment.iov_base
    ))
}

/// The description of a DMA-buf.
///
/// # Safety
/// If `iov_count` is 1, `mr_iov` is null or points to a description.
unsafe fn dmabuf(attr: &MrAttr) -> Result<Dmabuf> {
    if attr.iov_count != 1 {
        return Err(FiError::INVAL);
    }
    // SAFETY: the caller guarantees a description.
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
