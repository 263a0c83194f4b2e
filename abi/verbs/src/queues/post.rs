//! Posting work requests.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and lists that C programs pass.

use crate::memory::mw::{self, MwObject};
use crate::object::find;
use crate::queues::ah::AhObject;
use crate::queues::modify::Service;
use crate::queues::qp::QpObject;
use crate::queues::srq::SrqObject;
use crate::sys::consts::*;
use crate::sys::{Ah, Qp, RecvWr, SendWr, Srq};
use crate::translate::{errno, flags};
use rkey_device::core::{Key, LKey, RKey};
use rkey_device::engine::{
    RecvRequest, Route, SendFlags, SendRequest, Sge, Target, UdAddress, Work,
};
use rkey_kit::{Errno, c_call};
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// The number of scatter/gather entries that can be translated without a heap allocation.
const FEW: usize = 4;
/// The maximum inline data that a device can be configured for, in bytes.
pub const INLINE_MAX: usize = 4096;

/// Posts each request of a list. At the first failure, stores that request in `bad`.
#[inline]
fn post_list<W>(
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&W, bool) -> Result<(), Errno>,
) -> Result<c_int, Errno> {
    let mut at = first;
    // SAFETY: a request of the program, or null at the end of the list.
    while let Some(request) = unsafe { at.as_ref() } {
        let following = next(request);
        if let Err(errno) = post(request, !following.is_null()) {
            store_bad(bad, at);
            return Err(errno);
        }
        at = following;
    }
    Ok(0)
}

#[cold]
fn store_bad<W>(bad: *mut *mut W, which: *mut W) {
    if !bad.is_null() {
        // SAFETY: not null, and the caller guarantees that it is writable.
        unsafe { *bad = which };
    }
}

/// `ibv_post_send`.
///
/// # Safety
/// `wr` is null or a list of valid work requests; `bad` is null or writable.
pub unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<QpObject>(qp) }.inspect_err(|_| store_bad(bad, wr))?;
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
            // SAFETY: requests for datagrams set this part of the union.
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
        prefix: &[],
        flags,
        ud,
    };
    let mut count = elements(wr.num_sge, qp.granted.max_send_sge)?;
    if wr.opcode == WR_ATOMIC_WRITE {
        count = 0; // the request carries the value itself
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

/// Checks the number of entries of a request before the list is read, as the list may be shorter.
///
/// # Errors
/// `EINVAL`: negative, or above the limit of the queue, which is at least 1.
#[inline]
fn elements(given: c_int, limit: u32) -> Result<usize, Errno> {
    match u32::try_from(given) {
        Ok(count) if count <= 1 || count <= limit => Ok(count as usize),
        _ => Err(Errno::INVAL),
    }
}

/// Calls `then` with the entries of a list in the engine's form. `count` is within the limit of the queue. The list may be unaligned:
/// libiscsi has it in a packed structure.
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
    // SAFETY: not null, and the program promises `count` entries.
    let entry = |index| sge(unsafe { list.add(index).read_unaligned() });
    if count > FEW {
        let sges: Vec<Sge> = (0..count).map(entry).collect();
        return then(&sges);
    }
    let mut few = [Sge {
        addr: 0,
        len: 0,
        key: LKey(0),
    }; FEW];
    for (index, place) in few.iter_mut().enumerate().take(count) {
        *place = entry(index);
    }
    then(&few[..count])
}

#[inline]
fn sge(element: crate::sys::Sge) -> Sge {
    Sge {
        addr: element.addr,
        len: element.length,
        key: LKey(element.lkey),
    }
}

/// Posts a request with inline data. Copies the payload, so the program may reuse its buffers as soon as the call returns.
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
        // SAFETY: not null, and the program promises `count` entries.
        let element = unsafe { wr.sg_list.add(index).read_unaligned() };
        let more = element.length as usize;
        if more > INLINE_MAX - len {
            return Err(Errno::INVAL);
        }
        // SAFETY: the target has room; `copy` reports an unreadable source.
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

/// The destination of a datagram.
///
/// # Errors
/// `EINVAL`: not an address handle.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
#[inline]
pub unsafe fn address(ah: *mut Ah, qpn: u32, qkey: u32) -> Result<UdAddress, Errno> {
    // SAFETY: `find` validates the handle.
    let object = unsafe { find::<AhObject>(ah)? };
    Ok(UdAddress {
        link: None,
        wire: object.wire,
        qpn: qpn & 0xff_ffff,
        qkey,
        route: object.route,
    })
}

/// The address of a shared receive queue of the peer, for a request of an extended reliable connection.
#[must_use]
pub const fn shared_queue(number: u32) -> UdAddress {
    UdAddress {
        link: None,
        wire: false,
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

/// An address in the peer's memory, with its remote key.
#[inline]
#[must_use]
pub const fn target(addr: u64, rkey: u32) -> Target {
    Target {
        addr,
        key: RKey::Device(Key(rkey)),
    }
}

/// The operation of a request.
#[inline]
fn work(wr: &SendWr) -> Result<Work, Errno> {
    let imm = u32::from_be(wr.imm_data);
    // SAFETY: plain numbers; each operation sets its part of the union.
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

/// An atomic write reads its 8 bytes from the request's buffer when it is posted.
#[cold]
fn atomic_write(wr: &SendWr) -> Result<Work, Errno> {
    if wr.num_sge != 1 || wr.sg_list.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the program promises one entry.
    let element = unsafe { &*wr.sg_list };
    if element.length != 8 {
        return Err(Errno::INVAL);
    }
    let mut value = 0u64;
    // SAFETY: room for 8 bytes; `copy` reports an unreadable source.
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
    // SAFETY: pointers and numbers, for which every bit pattern is valid.
    let bind = unsafe { &wr.extra.bind_mw };
    // SAFETY: `find` validates window and region.
    unsafe {
        let window = find::<MwObject>(bind.mw)?;
        // Only `ibv_bind_mw` binds windows of type 1.
        if (*window.c()).mw_type != MW_TYPE_2 {
            return Err(Errno::INVAL);
        }
        mw::bind_work(window, &bind.bind_info, Some(bind.rkey))
    }
}

/// `ibv_post_recv`.
///
/// # Safety
/// `wr` is null or a list of valid work requests; `bad` is null or writable.
pub unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<QpObject>(qp) }.inspect_err(|_| store_bad(bad, wr))?;
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
/// `wr` is null or a list of valid work requests; `bad` is null or writable.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<SrqObject>(srq) }.inspect_err(|_| store_bad(bad, wr))?;
        post_recvs(&object.srq, object.max_sge, wr, bad)
    })
}

/// Posts a list of receives to a queue that takes up to `max_sge` entries in each receive.
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
