//! Posting work requests.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and lists that C programs make.

use crate::ah::AhObject;
use crate::modify::Service;
use crate::mw::{self, MwObject};
use crate::object::find;
use crate::qp::QpObject;
use crate::srq::SrqObject;
use crate::sys::consts::*;
use crate::sys::{Ah, Qp, RecvWr, SendWr, Srq};
use crate::{errno, flags};
use rkey_device::core::{Key, LocalKey, WireKey};
use rkey_device::engine::{
    RecvRequest, Route, SendFlags, SendRequest, Sge, Target, UdAddress, Work,
};
use rkey_kit::{Errno, fence};
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// Scatter/gather elements that are translated without taking memory from the heap.
const FEW: usize = 4;
/// The most bytes of inline data that a device can be configured for.
pub const INLINE_MAX: usize = 4096;

/// Posts each request of a list; at the first that is not taken, tells which one it is.
#[inline]
fn post_list<W>(
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&W, bool) -> Result<(), Errno>,
) -> Result<c_int, Errno> {
    let mut at = first;
    // SAFETY: a request of the program's, or null at the end of the list.
    while let Some(request) = unsafe { at.as_ref() } {
        let following = next(request);
        if let Err(errno) = post(request, !following.is_null()) {
            tell_bad(bad, at);
            return Err(errno);
        }
        at = following;
    }
    Ok(0)
}

#[cold]
fn tell_bad<W>(bad: *mut *mut W, which: *mut W) {
    if !bad.is_null() {
        // SAFETY: not null; room for a pointer as the program promises.
        unsafe { *bad = which };
    }
}

/// `ibv_post_send`.
///
/// # Safety
/// A queue pair, a list of requests, and room for a pointer.
pub unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    fence(|| {
        // SAFETY: a queue pair as the caller promises, or something that is refused.
        let object = unsafe { find::<QpObject>(qp) }.inspect_err(|_| tell_bad(bad, wr))?;
        post_list(wr, bad, |wr| wr.next, |wr, more| post_one(object, wr, more))
    })
}

#[inline]
fn post_one(qp: &QpObject, wr: &SendWr, more: bool) -> Result<(), Errno> {
    let mut flags = flags::send_flags(wr.send_flags)?;
    flags.set(SendFlags::MORE, more);
    let work = work(wr)?;
    let ud = match qp.service {
        Service::Ud => {
            // SAFETY: requests for datagrams have this part.
            Some(unsafe { address(wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey)? })
        }
        // SAFETY: a plain number.
        Service::XrcSend => Some(shared_queue(unsafe { wr.qp_type.xrc.remote_srqn })),
        _ => None,
    };
    let request = SendRequest {
        id: wr.wr_id,
        work,
        sges: &[],
        inline: None,
        front: &[],
        flags,
        ud,
    };
    let mut count = elements(wr.num_sge, qp.granted.max_send_sge)?;
    if wr.opcode == WR_ATOMIC_WRITE {
        count = 0; // the value is in the request already
    } else if wr.send_flags & SEND_INLINE != 0 {
        return post_inline(qp, wr, count, &request);
    }
    with_sges(wr.sg_list, count, |sges| {
        post(qp, &SendRequest { sges, ..request })
    })
}

#[inline]
fn post(qp: &QpObject, request: &SendRequest<'_>) -> Result<(), Errno> {
    qp.qp.post_send(request).map_err(|error| {
        tracing::info!("ibv_post_send: {error}");
        errno::of(&error)
    })
}

/// How many elements a request has. A number that the queue cannot take is refused before anything looks
/// at the list, which may be shorter.
///
/// # Errors
/// `EINVAL`: below 0, or above the limit of the queue, which is 1 at least.
#[inline]
fn elements(given: c_int, limit: u32) -> Result<usize, Errno> {
    match u32::try_from(given) {
        Ok(count) if count <= 1 || count <= limit => Ok(count as usize),
        _ => Err(Errno::INVAL),
    }
}

/// Calls `then` with the elements of a list in the engine's form. The queue takes so many.
#[inline]
fn with_sges<R>(
    list: *const crate::sys::Sge,
    count: usize,
    then: impl FnOnce(&[Sge]) -> Result<R, Errno>,
) -> Result<R, Errno> {
    if count == 0 {
        return then(&[]);
    }
    if list.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null; the program says that there are so many.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    if count > FEW {
        let sges: Vec<Sge> = list.iter().map(sge).collect();
        return then(&sges);
    }
    let mut few = [Sge {
        addr: 0,
        len: 0,
        key: LocalKey(0),
    }; FEW];
    for (place, element) in few.iter_mut().zip(list) {
        *place = sge(element);
    }
    then(&few[..count])
}

#[inline]
fn sge(element: &crate::sys::Sge) -> Sge {
    Sge {
        addr: element.addr,
        len: element.length,
        key: LocalKey(element.lkey),
    }
}

/// Gathers the payload, which the program may change as soon as the call returns.
#[inline(never)]
fn post_inline(
    qp: &QpObject,
    wr: &SendWr,
    count: usize,
    request: &SendRequest<'_>,
) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); INLINE_MAX];
    let start = buffer.as_mut_ptr().cast::<u8>();
    let mut len = 0;
    if count > 0 && wr.sg_list.is_null() {
        return Err(Errno::INVAL);
    }
    for index in 0..count {
        // SAFETY: not null; the program says that there are so many.
        let element = unsafe { &*wr.sg_list.add(index) };
        let more = element.length as usize;
        if more > INLINE_MAX - len {
            return Err(Errno::INVAL);
        }
        // SAFETY: the target has room; a source that cannot be read is an error.
        unsafe { rkey_device::base::copy::copy(start.add(len), element.addr as *const u8, more) }
            .map_err(|_| Errno::FAULT)?;
        len += more;
    }
    // SAFETY: these bytes were written above.
    let payload = unsafe { std::slice::from_raw_parts(start, len) };
    post(
        qp,
        &SendRequest {
            inline: Some(payload),
            ..*request
        },
    )
}

/// Where a datagram goes.
///
/// # Errors
/// `EINVAL`: no address handle.
///
/// # Safety
/// An address handle, or anything else.
#[inline]
pub unsafe fn address(ah: *mut Ah, qpn: u32, qkey: u32) -> Result<UdAddress, Errno> {
    // SAFETY: an address handle as the caller promises, or something that is refused.
    let object = unsafe { find::<AhObject>(ah)? };
    Ok(UdAddress {
        link: None,
        qpn: qpn & 0xff_ffff,
        qkey,
        route: object.route,
    })
}

/// Which shared receive queue of the peer a request of an extended reliable connection is for.
#[must_use]
pub const fn shared_queue(number: u32) -> UdAddress {
    UdAddress {
        link: None,
        qpn: number & 0xff_ffff,
        qkey: 0,
        route: Route {
            source: [0; 16],
            target: [0; 16],
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 0,
        },
    }
}

/// A place in the peer's memory.
#[inline]
#[must_use]
pub const fn target(addr: u64, rkey: u32) -> Target {
    Target {
        addr,
        key: WireKey::Device(Key(rkey)),
    }
}

/// What a request asks for.
#[inline]
fn work(wr: &SendWr) -> Result<Work, Errno> {
    let imm = u32::from_be(wr.imm_data);
    // SAFETY: plain numbers; each operation has its part of the union.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    Ok(match wr.opcode {
        WR_RDMA_WRITE => Work::Write {
            remote: target(rdma.remote_addr, rdma.rkey),
            imm: None,
        },
        WR_RDMA_WRITE_WITH_IMM => Work::Write {
            remote: target(rdma.remote_addr, rdma.rkey),
            imm: Some(imm),
        },
        WR_SEND => Work::Send {
            imm: None,
            invalidate: None,
        },
        WR_SEND_WITH_IMM => Work::Send {
            imm: Some(imm),
            invalidate: None,
        },
        WR_SEND_WITH_INV => Work::Send {
            imm: None,
            invalidate: Some(Key(wr.imm_data)),
        },
        WR_RDMA_READ => Work::Read {
            remote: target(rdma.remote_addr, rdma.rkey),
        },
        WR_ATOMIC_CMP_AND_SWP => Work::CompareSwap {
            remote: target(atomic.remote_addr, atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        WR_ATOMIC_FETCH_AND_ADD => Work::FetchAdd {
            remote: target(atomic.remote_addr, atomic.rkey),
            add: atomic.compare_add,
        },
        WR_LOCAL_INV => Work::Invalidate {
            key: Key(wr.imm_data),
        },
        WR_BIND_MW => return bind(wr),
        WR_ATOMIC_WRITE => return atomic_write(wr),
        _ => return Err(Errno::INVAL),
    })
}

/// An atomic write takes its 8 bytes from the memory that the request names, when it is posted.
#[cold]
fn atomic_write(wr: &SendWr) -> Result<Work, Errno> {
    if wr.num_sge != 1 || wr.sg_list.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: one element, as the program says.
    let element = unsafe { &*wr.sg_list };
    if element.length != 8 {
        return Err(Errno::INVAL);
    }
    let mut value = 0u64;
    // SAFETY: room for 8 bytes; a source that cannot be read is an error.
    unsafe {
        rkey_device::base::copy::copy((&raw mut value).cast(), element.addr as *const u8, 8)
            .map_err(|_| Errno::FAULT)?;
    }
    // SAFETY: plain numbers.
    let rdma = unsafe { wr.wr.rdma };
    Ok(Work::AtomicWrite {
        remote: target(rdma.remote_addr, rdma.rkey),
        value,
    })
}

#[cold]
fn bind(wr: &SendWr) -> Result<Work, Errno> {
    // SAFETY: pointers and numbers, of which any is a value.
    let bind = unsafe { &wr.extra.bind_mw };
    // SAFETY: a window and a region as the program says, or something that is refused.
    unsafe {
        let window = find::<MwObject>(bind.mw)?;
        // Windows of type 1 are bound by ibv_bind_mw only.
        if (*window.c()).mw_type != MW_TYPE_2 {
            return Err(Errno::INVAL);
        }
        mw::bind_work(window, &bind.bind_info, Some(bind.rkey))
    }
}

/// `ibv_post_recv`.
///
/// # Safety
/// A queue pair, a list of requests, and room for a pointer.
pub unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    fence(|| {
        // SAFETY: a queue pair as the caller promises, or something that is refused.
        let object = unsafe { find::<QpObject>(qp) }.inspect_err(|_| tell_bad(bad, wr))?;
        post_list(
            wr,
            bad,
            |wr| wr.next,
            |wr, _| {
                let count = elements(wr.num_sge, object.granted.max_recv_sge)?;
                with_sges(wr.sg_list, count, |sges| {
                    let request = RecvRequest { id: wr.wr_id, sges };
                    object.qp.post_recv(&request).map_err(errno::from)
                })
            },
        )
    })
}

/// `ibv_post_srq_recv`.
///
/// # Safety
/// A shared receive queue, a list of requests, and room for a pointer.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    fence(|| {
        // SAFETY: a shared receive queue as the caller promises, or something that is refused.
        let object = unsafe { find::<SrqObject>(srq) }.inspect_err(|_| tell_bad(bad, wr))?;
        post_recvs(&object.srq, object.max_sge, wr, bad)
    })
}

/// Posts a list of receives to a queue of the device that takes so many elements in each.
#[inline]
pub(crate) fn post_recvs(
    queue: &rkey_device::Srq,
    max_sge: u32,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> Result<c_int, Errno> {
    post_list(
        wr,
        bad,
        |wr| wr.next,
        |wr, _| {
            let count = elements(wr.num_sge, max_sge)?;
            with_sges(wr.sg_list, count, |sges| {
                let request = RecvRequest { id: wr.wr_id, sges };
                queue.post_recv(&request).map_err(errno::from)
            })
        },
    )
}
