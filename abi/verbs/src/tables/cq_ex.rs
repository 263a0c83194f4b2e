//! Extended completion queues: a program reads one completion at a time, field by field.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::completion::cq::{self, CqConfig, CqObject};
use crate::completion::cq_cursor::{Current, is_stamped};
use crate::completion::status;
use crate::device::clock::{clock, timestamp};
use crate::object::{find, input};
use crate::sys::consts::*;
use crate::sys::{Context, Cq, CqEx, CqInitAttrEx, ModifyCqAttr, PollCqAttr, TmInfo};
use rkey_device::engine::Stamped;
use rkey_kit::{Errno, c_call};
use std::ffi::{c_int, c_uint};

/// The fields that a program may request.
const READABLE: u64 = WC_EX_WITH_BYTE_LEN
    | WC_EX_WITH_IMM
    | WC_EX_WITH_QP_NUM
    | WC_EX_WITH_SRC_QP
    | WC_EX_WITH_SLID
    | WC_EX_WITH_SL
    | WC_EX_WITH_DLID_PATH_BITS
    | WC_EX_WITH_COMPLETION_TIMESTAMP
    | WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// The C structure for a new completion queue. It has all readers, even those that the program did not request.
#[must_use]
pub fn structure(head: Cq, wc_flags: u64) -> CqEx {
    let stamped = is_stamped(wc_flags);
    CqEx {
        context: head.context,
        channel: head.channel,
        cq_context: head.cq_context,
        handle: head.handle,
        cqe: head.cqe,
        mutex: head.mutex,
        cond: head.cond,
        comp_events_completed: head.comp_events_completed,
        async_events_completed: head.async_events_completed,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(if stamped {
            start_poll_stamped
        } else {
            start_poll
        }),
        next_poll: Some(if stamped {
            next_poll_stamped
        } else {
            next_poll
        }),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_byte_zero),
        read_completion_ts: Some(read_completion_ts),
        read_cvlan: Some(read_cvlan),
        read_flow_tag: Some(read_slid),
        read_tm_info: Some(read_tm_info),
        read_completion_wallclock_ns: Some(read_completion_wallclock_ns),
    }
}

/// `ibv_create_cq_ex`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn create_cq_ex(context: *mut Context, attr: *mut CqInitAttrEx) -> *mut CqEx {
    c_call(|| {
        // SAFETY: `input` refuses null; the caller guarantees the rest.
        let attr = unsafe { input(attr)? };
        let known = CQ_INIT_ATTR_MASK_FLAGS | CQ_INIT_ATTR_MASK_PD;
        if attr.comp_mask & !known != 0 || attr.wc_flags & !READABLE != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let flags = if attr.comp_mask & CQ_INIT_ATTR_MASK_FLAGS != 0 {
            attr.flags
        } else {
            0
        };
        // With `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`, an overrun would lose completions, so this device refuses the flag.
        if flags & !CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let with_pd = attr.comp_mask & CQ_INIT_ATTR_MASK_PD != 0;
        let wanted = CqConfig {
            depth: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            vector: attr.comp_vector,
            parent: if with_pd {
                attr.parent_domain
            } else {
                std::ptr::null_mut()
            },
            wc_flags: attr.wc_flags,
            single_threaded: flags & CREATE_CQ_ATTR_SINGLE_THREADED != 0,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { cq::create(context, &wanted) }.map(<*mut Cq>::cast)
    })
}

/// `ibv_modify_cq`: not supported because this device never moderates events.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn modify_cq(cq: *mut Cq, attr: *mut ModifyCqAttr) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        unsafe {
            find::<CqObject>(cq)?;
            input(attr)?;
        }
        Err(Errno::OPNOTSUPP)
    })
}

/// The completion queue behind an extended handle.
///
/// # Safety
/// Same as for [`find`].
#[inline]
unsafe fn object<'a>(cq: *mut CqEx) -> Option<&'a CqObject> {
    // SAFETY: guaranteed by the caller.
    unsafe { find::<CqObject>(cq.cast()) }.ok()
}

/// Takes the next completion.
///
/// # Safety
/// The caller holds the queue's polling lock.
unsafe fn take(object: &CqObject, stamped: bool) -> c_int {
    // SAFETY: the lock is held.
    let current = unsafe { &mut *object.cursor.current.get() };
    let taken = if stamped {
        take_stamped(object, current)
    } else {
        cq::poll(object, std::slice::from_mut(&mut current.completion))
    };
    match taken {
        Ok(0) => Errno::NOENT.raw(),
        Ok(_) => {
            // SAFETY: the lock is held, and the program reads only between start and end.
            unsafe {
                (*object.ex()).wr_id = current.completion.id;
                (*object.ex()).status = status::wc_status(current.completion.status);
            }
            0
        }
        Err(errno) => errno.raw(),
    }
}

fn take_stamped(object: &CqObject, current: &mut Current) -> Result<usize, Errno> {
    let mut entry = [Stamped::default()];
    let taken = cq::poll_stamped(object, &mut entry)?;
    if taken == 0 {
        return Ok(0);
    }
    let [Stamped { completion, time }] = entry;
    let ago = timestamp().saturating_sub(time);
    *current = Current {
        completion,
        time,
        wallclock: clock(libc::CLOCK_REALTIME).saturating_sub(ago),
    };
    Ok(taken)
}

/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
unsafe fn start(cq: *mut CqEx, attr: *mut PollCqAttr, stamped: bool) -> c_int {
    // SAFETY: `object` validates the handle.
    let Some(object) = (unsafe { object(cq) }) else {
        return Errno::INVAL.raw();
    };
    // SAFETY: the caller guarantees attributes, or null.
    if unsafe { input(attr) }.is_ok_and(|attr| attr.comp_mask != 0) {
        return Errno::INVAL.raw();
    }
    object.cursor.lock();
    // SAFETY: locked above.
    let code = unsafe { take(object, stamped) };
    if code != 0 {
        object.cursor.unlock();
    }
    code
}

/// `ibv_start_poll`.
unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *mut PollCqAttr) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { start(cq, attr, false) }
}

/// `ibv_start_poll` for queues with timestamps.
unsafe extern "C" fn start_poll_stamped(cq: *mut CqEx, attr: *mut PollCqAttr) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { start(cq, attr, true) }
}

/// `ibv_next_poll`.
unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    // SAFETY: called between start and end, so the lock is held.
    unsafe { object(cq).map_or(Errno::INVAL.raw(), |object| take(object, false)) }
}

/// `ibv_next_poll` for queues with timestamps.
unsafe extern "C" fn next_poll_stamped(cq: *mut CqEx) -> c_int {
    // SAFETY: called between start and end, so the lock is held.
    unsafe { object(cq).map_or(Errno::INVAL.raw(), |object| take(object, true)) }
}

/// `ibv_end_poll`.
unsafe extern "C" fn end_poll(cq: *mut CqEx) {
    // SAFETY: `object` validates the handle.
    if let Some(object) = unsafe { object(cq) } {
        object.cursor.unlock();
    }
}

/// The completion under the cursor.
///
/// # Safety
/// Called between start and end.
#[inline]
unsafe fn current(cq: *mut CqEx) -> Current {
    // SAFETY: called between start and end, so the lock is held.
    unsafe { object(cq).map_or_else(Current::default, |object| *object.cursor.current.get()) }
}

/// Readers: name, type, and the field of the current completion. `read_opcode` is `ibv_wc_read_opcode`, and so on.
macro_rules! readers {
    ($($name:ident -> $type:ty { |$current:ident| $value:expr })*) => {$(
        unsafe extern "C" fn $name(cq: *mut CqEx) -> $type {
            // SAFETY: the program calls readers between start and end.
            let $current = unsafe { current(cq) };
            $value
        }
    )*};
}

readers! {
    read_opcode -> c_int { |c| status::wc_opcode(c.completion.opcode) }
    read_vendor_err -> u32 { |c| c.completion.vendor }
    read_byte_len -> u32 { |c| c.completion.bytes }
    read_imm_data -> u32 { |c| status::wc_imm(&c.completion) }
    read_qp_num -> u32 { |c| c.completion.qpn }
    read_src_qp -> u32 { |c| c.completion.src_qpn }
    read_wc_flags -> c_uint { |c| status::wc_flags(c.completion.flags) }
    read_completion_ts -> u64 { |c| c.time }
    read_completion_wallclock_ns -> u64 { |c| c.wallclock }
    read_slid -> u32 { |_c| 0 }
    read_sl -> u8 { |c| status::wc_sl(c.completion.flags) }
    read_byte_zero -> u8 { |_c| 0 }
    read_cvlan -> u16 { |_c| 0 }
}

/// `ibv_wc_read_tm_info`: returns zeros, as the device does not support tag matching.
unsafe extern "C" fn read_tm_info(_cq: *mut CqEx, info: *mut TmInfo) {
    if !info.is_null() {
        // SAFETY: the caller guarantees that it is writable.
        unsafe { info.write(TmInfo { tag: 0, priv_: 0 }) };
    }
}
