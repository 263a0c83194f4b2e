//! `rdma_getaddrinfo` and `rdma_freeaddrinfo`.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and structures that C code frees.

use crate::lookup::address;
use crate::sys::*;
use ibverbs::sys::{QPT_RC, QPT_UC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND};
use parking_lot::Mutex;
use rkey_kit::argument::store;
use rkey_kit::{Errno, c_call};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int};
use std::net::SocketAddr;
use std::ptr::{null, null_mut};

/// A result, with the addresses that it points to.
#[repr(C)]
struct Found {
    c: Addrinfo,
    source: libc::sockaddr_storage,
    destination: libc::sockaddr_storage,
}

/// The addresses of results that programs have not freed yet.
static RESULTS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Why a lookup failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// An error code of `getaddrinfo(3)`.
    Lookup(c_int),
    /// A system error.
    System(Errno),
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    space: c_int,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
}

impl From<Errno> for Failed {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

/// The hints that a program passes.
#[derive(Clone, Copy, Default)]
pub struct Wanted {
    /// The program's flags (`RAI_PASSIVE` and others).
    pub flags: c_int,
    family: c_int,
    qp_type: c_int,
    space: c_int,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
}

/// Reads the hints of a program.
///
/// # Errors
/// `EINVAL`: an address is neither IPv4 nor IPv6.
///
/// # Safety
/// `hints` is null or valid.
pub unsafe fn wanted(hints: *const Addrinfo) -> Result<Wanted, Errno> {
    // SAFETY: null or valid, as the caller guarantees.
    let Some(hints) = (unsafe { hints.as_ref() }) else {
        return Ok(Wanted::default());
    };
    let address = |at: *mut libc::sockaddr, len: libc::socklen_t| match len {
        0 => Ok(None),
        // SAFETY: guaranteed by the caller.
        _ => unsafe { address::read_or_null(at) },
    };
    Ok(Wanted {
        flags: hints.ai_flags,
        family: hints.ai_family,
        qp_type: hints.ai_qp_type,
        space: hints.ai_port_space,
        source: address(hints.ai_src_addr, hints.ai_src_len)?,
        destination: address(hints.ai_dst_addr, hints.ai_dst_len)?,
    })
}

/// Looks up a name with `getaddrinfo(3)`; returns the first result and its family.
fn look_up(
    node: Option<&CStr>,
    service: Option<&CStr>,
    wanted: &Wanted,
) -> Result<(SocketAddr, c_int), Failed> {
    // SAFETY: all fields are numbers or pointers, which may be all zeros.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    let flag = |ours, theirs| if wanted.flags & ours != 0 { theirs } else { 0 };
    hints.ai_flags =
        flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST);
    hints.ai_family = wanted.family;
    // `getaddrinfo` refuses a type of queue pair that does not belong to the port space.
    hints.ai_socktype = match wanted.qp_type as ibv_qp_type {
        QPT_UD => libc::SOCK_DGRAM,
        QPT_RC | QPT_UC | QPT_XRC_SEND | QPT_XRC_RECV => libc::SOCK_STREAM,
        _ => 0,
    };
    hints.ai_protocol = match wanted.space as rdma_port_space {
        PS_TCP => libc::IPPROTO_TCP,
        PS_UDP | PS_IPOIB => libc::IPPROTO_UDP,
        _ => 0,
    };
    let mut list = null_mut();
    let [node, service] = [node, service].map(|text| text.map_or(null(), CStr::as_ptr));
    // SAFETY: valid strings from the caller, and our own hints and result.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const hints, &raw mut list) };
    if code != 0 {
        return Err(Failed::Lookup(code));
    }
    // SAFETY: a list of at least one element, which is freed once and not used afterwards.
    unsafe {
        let found = address::read((*list).ai_addr);
        let family = (*list).ai_family;
        libc::freeaddrinfo(list);
        Ok((found?, family))
    }
}

/// The queue pair type of a port space.
///
/// # Errors
/// `EINVAL`: no such port space.
pub fn qp_type_of(space: rdma_port_space) -> Result<ibv_qp_type, Errno> {
    match space {
        PS_IPOIB | PS_UDP => Ok(QPT_UD),
        PS_TCP | PS_IB => Ok(QPT_RC),
        _ => Err(Errno::INVAL),
    }
}

/// The port space and the queue pair type of a result. Those that the program asks for remain, even if there is no such port space.
fn kinds(wanted: &Wanted) -> (c_int, c_int) {
    match (wanted.space, wanted.qp_type) {
        (0, 0) => (PS_TCP as c_int, QPT_RC as c_int),
        (0, qp_type) if qp_type == QPT_UD as c_int => (PS_UDP as c_int, qp_type),
        (0, qp_type) => (PS_TCP as c_int, qp_type),
        (space, 0) => {
            let qp_type = qp_type_of(space as rdma_port_space).unwrap_or(QPT_RC);
            (space, qp_type as c_int)
        }
        kinds => kinds,
    }
}

/// A string that a program may omit.
///
/// # Safety
/// `text` is null, or a valid C string that lives as long as the result.
#[must_use]
pub unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: guaranteed by the caller.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Looks up addresses. Blocks while it waits for a name server.
///
/// # Errors
/// The errors of `getaddrinfo(3)`.
pub fn find(node: Option<&CStr>, service: Option<&CStr>, wanted: &Wanted) -> Result<Info, Failed> {
    let mut info = Info {
        flags: wanted.flags,
        family: wanted.family,
        qp_type: wanted.qp_type,
        space: wanted.space,
        source: wanted.source,
        destination: wanted.destination,
    };
    if node.is_none() && service.is_none() {
        return Ok(info);
    }
    let (found, family) = look_up(node, service, wanted)?;
    info.family = family;
    (info.space, info.qp_type) = kinds(wanted);
    // As in the stock library, a result has no other flag.
    info.flags &= RAI_PASSIVE;
    match info.flags {
        0 => info.destination = Some(found),
        _ => info.source = Some(found),
    }
    Ok(info)
}

/// Allocates the C structure. `rdma_freeaddrinfo` frees it.
#[must_use]
pub fn to_c(info: &Info) -> *mut Addrinfo {
    // SAFETY: all fields are numbers, pointers or addresses, which may be all zeros.
    let mut result: Box<Found> = Box::new(unsafe { std::mem::zeroed() });
    result.c.ai_flags = info.flags;
    result.c.ai_family = info.family;
    result.c.ai_qp_type = info.qp_type;
    result.c.ai_port_space = info.space;
    let result = Box::into_raw(result);
    // SAFETY: just created; the addresses are part of it, so they live as long as it does.
    unsafe {
        if let Some(source) = info.source {
            (*result).source = address::storage(source);
            (*result).c.ai_src_addr = (&raw mut (*result).source).cast();
            (*result).c.ai_src_len = address::length(source) as libc::socklen_t;
        }
        if let Some(destination) = info.destination {
            (*result).destination = address::storage(destination);
            (*result).c.ai_dst_addr = (&raw mut (*result).destination).cast();
            (*result).c.ai_dst_len = address::length(destination) as libc::socklen_t;
        }
    }
    RESULTS.lock().insert(result.expose_provenance());
    result.cast()
}

/// `rdma_getaddrinfo`. Returns the error code of `getaddrinfo(3)` if the lookup fails; for other errors -1, with `errno` set.
///
/// # Safety
/// The strings and hints are null or valid; `result` is null or valid for writes.
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const Addrinfo,
    result: *mut *mut Addrinfo,
) -> c_int {
    let found = rkey_kit::caught(|| {
        if result.is_null() {
            return Err(Errno::INVAL.into());
        }
        if node.is_null() && service.is_null() && hints.is_null() {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let wanted = wanted(hints)?;
            store(result, to_c(&find(text(node), text(service), &wanted)?))?;
        }
        Ok(())
    });
    match found.unwrap_or(Err(Failed::System(Errno::IO))) {
        Ok(()) => 0,
        Err(Failed::Lookup(code)) => code,
        Err(Failed::System(error)) => {
            error.set();
            -1
        }
    }
}

/// `rdma_freeaddrinfo`.
///
/// # Safety
/// The result must not be used afterwards.
pub unsafe extern "C" fn freeaddrinfo(result: *mut Addrinfo) {
    c_call(|| {
        if RESULTS.lock().remove(&result.addr()) {
            // SAFETY: `to_c` made it from a box, and it was in the set, so it is freed only once.
            drop(unsafe { Box::from_raw(result.cast::<Found>()) });
        }
        Ok(())
    });
}
