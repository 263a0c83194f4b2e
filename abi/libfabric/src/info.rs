//! `fi_getinfo`, `fi_dupinfo` and `fi_freeinfo`. Programs may change the returned lists, and may free and replace their parts with
//! the C library's functions.

#![allow(unsafe_code)]
// UNSAFETY: copies and frees structures of C programs.

use crate::layout::{self, Lengths};
use crate::provider::{entries, is_wanted};
use crate::status::{Failed, Result, passed, status};
use rkey_fi::FI_VERSION;
use rkey_fi::sys::{
    DomainAttr, EpAttr, FI_AV_AUTH_KEY, FI_DUP, FI_PROV_ATTR_ONLY, FabricAttr, Fid, Info,
    LongDomainAttr, LongEpAttr, RxAttr, TxAttr,
};
use rkey_kit::caught;
use std::ffi::{CStr, c_char, c_int, c_void};

/// A zeroed allocation that starts with a copy of `len` bytes.
///
/// # Safety
/// If `from` is not null, it has `len` bytes.
unsafe fn copied(from: *const c_void, len: usize, room: usize) -> Result<*mut c_void> {
    // SAFETY: `calloc` has no precondition.
    let into = unsafe { libc::calloc(1, room.max(len).max(1)) };
    if into.is_null() {
        return Err(Failed::NOMEM);
    }
    if !from.is_null() {
        // SAFETY: the caller promises the source; the allocation is new and at least as long.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), into.cast(), len) };
    }
    Ok(into)
}

/// Copies a structure, which has `len` bytes in the program's version. Returns null for null.
///
/// # Safety
/// If `from` is not null, it has `len` bytes.
unsafe fn structure<T>(from: *const T, len: usize) -> Result<*mut T> {
    if from.is_null() {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { copied(from.cast(), len, size_of::<T>())? }.cast())
}

/// Copies a list of bytes. Returns null for null.
///
/// # Safety
/// If `from` is not null, it has `len` bytes.
unsafe fn bytes<T>(from: *const T, len: usize) -> Result<*mut T> {
    if from.is_null() {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { copied(from.cast(), len, len)? }.cast())
}

/// # Safety
/// If `from` is not null, it is a C string.
unsafe fn string(from: *const c_char) -> Result<*mut c_char> {
    if from.is_null() {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: guaranteed by the caller.
    let len = unsafe { CStr::from_ptr(from) }.to_bytes_with_nul().len();
    // SAFETY: the string has this length.
    unsafe { bytes(from, len) }
}

/// A list under construction, freed unless it is returned to the program.
struct Owned(*mut Info);

impl Owned {
    fn pass(self) -> *mut Info {
        let info = self.0;
        std::mem::forget(self);
        info
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made here, and no program has it.
        unsafe { release(self.0) };
    }
}

/// An `fi_info` with empty attributes.
fn empty() -> Result<Owned> {
    // SAFETY: nothing is copied.
    let new = |len| unsafe { copied(std::ptr::null(), 0, len) };
    let owned = Owned(new(size_of::<Info>())?.cast());
    // SAFETY: our own zeroed structure.
    let info = unsafe { &mut *owned.0 };
    info.tx_attr = new(size_of::<TxAttr>())?.cast();
    info.rx_attr = new(size_of::<RxAttr>())?.cast();
    info.ep_attr = new(size_of::<LongEpAttr>())?.cast();
    info.domain_attr = new(size_of::<LongDomainAttr>())?.cast();
    info.fabric_attr = new(size_of::<FabricAttr>())?.cast();
    Ok(owned)
}

/// Copies one entry of a list. The structures of the copy have their full length.
///
/// # Safety
/// The entry and what it points to are valid as described in fi_getinfo(3), with these lengths.
unsafe fn copy(from: *const Info, lengths: &Lengths) -> Result<Owned> {
    // SAFETY: not null, as the caller promises with the rest.
    let owned = Owned(unsafe { structure(from, lengths.info)? });
    // SAFETY: our own structure. Its pointers are the program's until each is replaced; until then it must not be freed.
    let info = unsafe { &mut *owned.0 };
    let program = *info;
    info.next = std::ptr::null_mut();
    for pointer in [&mut info.src_addr, &mut info.dest_addr, &mut info.nic] {
        *pointer = std::ptr::null_mut();
    }
    (info.tx_attr, info.rx_attr) = (std::ptr::null_mut(), std::ptr::null_mut());
    (info.ep_attr, info.domain_attr) = (std::ptr::null_mut(), std::ptr::null_mut());
    info.fabric_attr = std::ptr::null_mut();
    // SAFETY: the caller promises these structures.
    unsafe {
        info.src_addr = bytes(program.src_addr, program.src_addrlen)?;
        info.dest_addr = bytes(program.dest_addr, program.dest_addrlen)?;
        info.tx_attr = structure(program.tx_attr, lengths.tx)?;
        info.rx_attr = structure(program.rx_attr, lengths.rx)?;
        info.ep_attr = endpoint(program.ep_attr, lengths.ep)?;
        info.domain_attr = domain(program.domain_attr, lengths.domain)?;
        info.fabric_attr = fabric(program.fabric_attr, lengths.fabric)?;
        info.nic = interface(program.nic)?;
    }
    Ok(owned)
}

/// # Safety
/// Same as for [`copy`].
unsafe fn endpoint(from: *const EpAttr, len: usize) -> Result<*mut EpAttr> {
    // SAFETY: guaranteed by the caller.
    let new: *mut LongEpAttr = unsafe { structure(from.cast(), len)? };
    // SAFETY: null, or our own structure.
    if let Some(ep) = unsafe { new.cast::<EpAttr>().as_mut() } {
        // SAFETY: guaranteed by the caller; older structures have no key, so it is null.
        match unsafe { bytes(ep.auth_key, ep.auth_key_size) } {
            Ok(key) => ep.auth_key = key,
            Err(error) => {
                // SAFETY: the allocation is ours, and the key in it the program's.
                unsafe { libc::free(new.cast()) };
                return Err(error);
            }
        }
    }
    Ok(new.cast())
}

/// # Safety
/// Same as for [`copy`].
unsafe fn domain(from: *const DomainAttr, len: usize) -> Result<*mut DomainAttr> {
    // SAFETY: guaranteed by the caller.
    let new: *mut LongDomainAttr = unsafe { structure(from.cast(), len)? };
    // SAFETY: null, or our own structure.
    if let Some(domain) = unsafe { new.cast::<DomainAttr>().as_mut() } {
        // A number, not a length: the keys are in address vectors.
        let key_len = match domain.auth_key_size {
            FI_AV_AUTH_KEY => 0,
            len => len,
        };
        // SAFETY: guaranteed by the caller; older structures have no key, so it is null.
        let parts = unsafe { (string(domain.name), bytes(domain.auth_key, key_len)) };
        let failed = parts.0.is_err() || parts.1.is_err();
        domain.name = parts.0.unwrap_or(std::ptr::null_mut());
        domain.auth_key = parts.1.unwrap_or(std::ptr::null_mut());
        if failed {
            // SAFETY: ours: two copies and their structure.
            unsafe {
                libc::free(domain.name.cast());
                libc::free(domain.auth_key.cast());
                libc::free(new.cast());
            }
            return Err(Failed::NOMEM);
        }
    }
    Ok(new.cast())
}

/// # Safety
/// Same as for [`copy`].
unsafe fn fabric(from: *const FabricAttr, len: usize) -> Result<*mut FabricAttr> {
    // SAFETY: guaranteed by the caller.
    let new = unsafe { structure(from, len)? };
    // SAFETY: null, or our own structure.
    if let Some(fabric) = unsafe { new.as_mut() } {
        // SAFETY: guaranteed by the caller.
        let parts = unsafe { (string(fabric.name), string(fabric.prov_name)) };
        let failed = parts.0.is_err() || parts.1.is_err();
        fabric.name = parts.0.unwrap_or(std::ptr::null_mut());
        fabric.prov_name = parts.1.unwrap_or(std::ptr::null_mut());
        if failed {
            // SAFETY: ours: two copies and their structure.
            unsafe {
                libc::free(fabric.name.cast());
                libc::free(fabric.prov_name.cast());
                libc::free(new.cast());
            }
            return Err(Failed::NOMEM);
        }
    }
    Ok(new)
}

/// Copies the object that describes a network interface (fi_nic(3)) by calling its provider. Our provider has no such objects.
///
/// # Safety
/// If it is not null, it begins with a `fid`.
unsafe fn interface(nic: *mut c_void) -> Result<*mut c_void> {
    let mut copy: *mut c_void = std::ptr::null_mut();
    // SAFETY: guaranteed by the caller.
    if let Some(fid) = unsafe { nic.cast::<Fid>().as_ref() } {
        // SAFETY: every object has operations; this one stores the copy in the variable that it is given.
        passed(unsafe { ((*fid.ops).control)(nic.cast(), FI_DUP, (&raw mut copy).cast()) })?;
    }
    Ok(copy)
}

/// Frees a list.
///
/// # Safety
/// The list came from this library or its provider, or the program made it as fi_getinfo(3) describes. Nothing uses it afterwards.
unsafe fn release(mut list: *mut Info) {
    // SAFETY: guaranteed by the caller, for this entry and its successors.
    while let Some(info) = unsafe { list.as_mut() } {
        let next = info.next;
        // SAFETY: as above: attributes are null or valid, and all of it is from the C library's allocator.
        unsafe {
            if let Some(nic) = info.nic.cast::<Fid>().as_ref() {
                ((*nic.ops).close)(info.nic.cast());
            }
            if let Some(domain) = info.domain_attr.as_ref() {
                libc::free(domain.name.cast());
                libc::free(domain.auth_key.cast());
            }
            if let Some(fabric) = info.fabric_attr.as_ref() {
                libc::free(fabric.name.cast());
                libc::free(fabric.prov_name.cast());
            }
            if let Some(ep) = info.ep_attr.as_ref() {
                libc::free(ep.auth_key.cast());
            }
            for part in [
                info.src_addr,
                info.dest_addr,
                info.tx_attr.cast(),
                info.rx_attr.cast(),
                info.ep_attr.cast(),
                info.domain_attr.cast(),
                info.fabric_attr.cast(),
                list.cast(),
            ] {
                libc::free(part);
            }
        }
        list = next;
    }
}

/// `fi_freeinfo`.
///
/// # Safety
/// The argument must be valid as described in fi_getinfo(3).
pub unsafe extern "C" fn free(info: *mut Info) {
    // SAFETY: guaranteed by the caller.
    let _ = caught(|| unsafe { release(info) });
}

/// Names the provider in each entry of its list, as the core of libfabric does.
///
/// # Safety
/// The list is the provider's, and only we have it.
unsafe fn name(mut list: *mut Info, version: u32) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    while let Some(info) = unsafe { list.as_mut() } {
        // SAFETY: the provider gives every entry its attributes.
        if let Some(fabric) = unsafe { info.fabric_attr.as_mut() } {
            if fabric.prov_name.is_null() {
                // SAFETY: a C string.
                fabric.prov_name = unsafe { string(rkey_fi::NAME.as_ptr())? };
            }
            fabric.prov_version = version;
        }
        list = info.next;
    }
    Ok(())
}

/// Refuses what this version of libfabric does not support.
fn check_version(version: u32) -> Result<()> {
    if version > FI_VERSION {
        rkey_kit::log::start();
        let numbers = |version: u32| format!("{}.{}", version >> 16, version & 0xffff);
        tracing::warn!(
            "the program requests version {} of libfabric's API, but this libfabric.so.1 supports only versions up to {}",
            numbers(version),
            numbers(FI_VERSION)
        );
        return Err(Failed::NOSYS);
    }
    Ok(())
}

/// # Safety
/// The arguments must be valid as described in fi_getinfo(3); the hints have these lengths.
unsafe fn find(
    lengths: &Lengths,
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> Result<()> {
    // SAFETY: the caller promises null or room for a pointer.
    unsafe { rkey_kit::argument::store(info, std::ptr::null_mut())? };
    check_version(version)?;
    let provider = entries().ok_or(Failed::NODATA)?.provider;
    if flags == FI_PROV_ATTR_ONLY {
        let list = empty()?;
        // SAFETY: our own list.
        unsafe { name(list.0, provider.version)? };
        // SAFETY: checked above.
        unsafe { *info = list.pass() };
        return Ok(());
    }
    let hints = match hints.is_null() {
        true => None,
        // SAFETY: guaranteed by the caller.
        false => Some(unsafe { copy(hints, lengths)? }),
    };
    let hints = hints.as_ref().map_or(std::ptr::null_mut(), |hints| hints.0);
    // SAFETY: null, or our own copy, whose attributes are null or copies.
    let asked = unsafe { hints.as_ref().and_then(|hints| hints.fabric_attr.as_ref()) };
    let asked = asked.map_or(std::ptr::null_mut(), |fabric| fabric.prov_name);
    // SAFETY: null or a C string.
    if !is_wanted((!asked.is_null()).then(|| unsafe { CStr::from_ptr(asked) })) {
        return Err(Failed::NODATA);
    }
    let mut list = std::ptr::null_mut();
    // SAFETY: guaranteed by the caller; the hints have full length.
    passed(unsafe { (provider.getinfo)(version, node, service, flags, hints, &raw mut list) })?;
    let list = Owned(list);
    // SAFETY: the provider's list.
    unsafe { name(list.0, provider.version)? };
    // SAFETY: checked above.
    unsafe { *info = list.pass() };
    Ok(())
}

/// Copies one entry, or creates an empty one for null. Returns null if there is no memory.
///
/// # Safety
/// The argument must be valid as described in fi_getinfo(3), with these lengths.
unsafe fn duplicate(lengths: &Lengths, info: *const Info) -> *mut Info {
    let made = caught(|| match info.is_null() {
        true => empty(),
        // SAFETY: guaranteed by the caller.
        false => unsafe { copy(info, lengths) },
    });
    match made {
        Some(Ok(made)) => made.pass(),
        _ => std::ptr::null_mut(),
    }
}

/// `fi_getinfo` and `fi_dupinfo` of each version.
macro_rules! versions {
    ($($lengths:ident: $getinfo:ident, $dupinfo:ident;)*) => {$(
        #[doc = concat!("`fi_getinfo` of `", stringify!($lengths), "`.")]
        ///
        /// # Safety
        /// The arguments must be valid as described in fi_getinfo(3).
        pub unsafe extern "C" fn $getinfo(
            version: u32,
            node: *const c_char,
            service: *const c_char,
            flags: u64,
            hints: *const Info,
            info: *mut *mut Info,
        ) -> c_int {
            // SAFETY: guaranteed by the caller.
            status(|| unsafe { find(&layout::$lengths, version, node, service, flags, hints, info) })
        }

        #[doc = concat!("`fi_dupinfo` of `", stringify!($lengths), "`.")]
        ///
        /// # Safety
        /// The argument must be valid as described in fi_getinfo(3).
        pub unsafe extern "C" fn $dupinfo(info: *const Info) -> *mut Info {
            // SAFETY: guaranteed by the caller.
            unsafe { duplicate(&layout::$lengths, info) }
        }
    )*};
}

versions! {
    FABRIC_1_0: getinfo_1_0, dupinfo_1_0;
    FABRIC_1_1: getinfo_1_1, dupinfo_1_1;
    FABRIC_1_2: getinfo_1_2, dupinfo_1_2;
    FABRIC_1_3: getinfo_1_3, dupinfo_1_3;
    FABRIC_1_7: getinfo_1_7, dupinfo_1_7;
    FABRIC_1_8: getinfo_1_8, dupinfo_1_8;
    FABRIC_1_9: getinfo_1_9, dupinfo_1_9;
    FABRIC_1_10: getinfo_1_10, dupinfo_1_10;
}
