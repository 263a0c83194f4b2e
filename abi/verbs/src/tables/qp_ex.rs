//! The extended interface for work requests: programs build them call by call between `ibv_wr_start` and `ibv_wr_complete`, which
//! posts either all of them or none.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::memory::mw::{self, MwObject};
use crate::object::{find, input};
use crate::queues::builder::{Batch, Builder, Pending};
use crate::queues::post::{self, INLINE_MAX, address, target};
use crate::queues::qp::QpObject;
use crate::sys::consts::*;
use crate::sys::{Ah, DataBuf, Mw, MwBindInfo, Qp, QpCap, QpEx};
use crate::translate::flags;
use rkey_device::core::{Key, LKey};
use rkey_device::engine::{Sge, Work};
use rkey_kit::{Errno, c_call};
use std::borrow::Cow;
use std::ffi::{c_int, c_void};

/// The C structure for a new queue pair.
#[must_use]
pub fn structure(head: Qp) -> QpEx {
    QpEx {
        qp_base: head,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(atomic_cmp_swp),
        wr_atomic_fetch_add: Some(atomic_fetch_add),
        wr_bind_mw: Some(bind_mw),
        wr_local_inv: Some(local_inv),
        wr_rdma_read: Some(rdma_read),
        wr_rdma_write: Some(rdma_write),
        wr_rdma_write_imm: Some(rdma_write_imm),
        wr_send: Some(send),
        wr_send_imm: Some(send_imm),
        wr_send_inv: Some(send_inv),
        wr_send_tso: Some(send_tso),
        wr_set_ud_addr: Some(set_ud_addr),
        wr_set_xrc_srqn: Some(set_xrc_srqn),
        wr_set_inline_data: Some(set_inline_data),
        wr_set_inline_data_list: Some(set_inline_data_list),
        wr_set_sge: Some(set_sge),
        wr_set_sge_list: Some(set_sge_list),
        wr_start: Some(start),
        wr_complete: Some(complete),
        wr_abort: Some(abort),
        wr_atomic_write: Some(atomic_write),
        wr_flush: Some(flush),
    }
}

/// The queue pair behind an extended handle, and its builder.
///
/// # Safety
/// Same as for [`find`].
#[inline]
unsafe fn object<'a>(qp: *mut QpEx) -> Option<(&'a QpObject, &'a Builder)> {
    // SAFETY: guaranteed by the caller.
    let object = unsafe { find::<QpObject>(qp.cast()) }.ok()?;
    Some((object, object.builder.as_deref()?))
}

/// Calls `body` with the batch of a queue pair, between `ibv_wr_start` and `ibv_wr_complete`, which returns the first
/// error of the batch.
///
/// # Safety
/// Called between start and complete, by the thread that called start.
#[inline]
unsafe fn with_batch(qp: *mut QpEx, body: impl FnOnce(&mut Batch) -> Result<(), Errno>) {
    // SAFETY: guaranteed by the caller.
    let Some((_, builder)) = (unsafe { object(qp) }) else {
        return;
    };
    if !builder.lock.is_locked() {
        return; // ibv_wr_start was not called
    }
    // SAFETY: the caller holds the lock.
    let batch = unsafe { &mut *builder.batch.get() };
    let code: c_int = c_call(|| body(batch).map(|()| 0));
    if code != 0 && batch.failed.is_none() {
        batch.failed = Some(Errno::from_raw(code));
    }
}

/// Begins a request.
///
/// # Safety
/// Same as for [`with_batch`].
#[inline]
unsafe fn begin(qp: *mut QpEx, work: impl FnOnce() -> Result<Work, Errno>) {
    // SAFETY: guaranteed by the caller; the program owns id and flags and has set them.
    unsafe {
        with_batch(qp, |batch| {
            let (id, raw) = ((*qp).wr_id, (*qp).wr_flags);
            let sges = batch.sges.len();
            batch.requests.push(Pending {
                id,
                work: work()?,
                flags: flags::send_flags(raw)?,
                wants_inline: raw & SEND_INLINE != 0,
                ud: None,
                sges: sges..sges,
                inline: None,
            });
            Ok(())
        });
    }
}

/// Calls `body` with the batch and a list of `count` entries. Refuses a list that is longer than `limit` (or than 1, if
/// that is more) before anything reads it.
///
/// # Safety
/// Same as for [`with_batch`]; the list has `count` entries.
unsafe fn with_list<T: Copy>(
    qp: *mut QpEx,
    (list, count): (*const T, usize),
    limit: impl FnOnce(&QpCap) -> u32,
    body: impl FnOnce(&mut Batch, &[T]) -> Result<(), Errno>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let Some((queue, _)) = object(qp) else { return };
        with_batch(qp, |batch| {
            if count > limit(&queue.granted).max(1) as usize {
                return Err(Errno::INVAL);
            }
            if count > 0 && list.is_null() {
                return Err(Errno::INVAL);
            }
            let list = match (count, list.is_aligned()) {
                (0, _) => Cow::Borrowed(&[][..]),
                (_, true) => Cow::Borrowed(std::slice::from_raw_parts(list, count)),
                (_, false) => {
                    Cow::Owned((0..count).map(|at| list.add(at).read_unaligned()).collect())
                }
            };
            body(batch, &list)
        });
    }
}

/// Functions that begin a request: name, further arguments, and the work. `rdma_write` is `ibv_wr_rdma_write`, and so on.
macro_rules! requests {
    ($($name:ident($($arg:ident: $type:ty),*) { $work:expr })*) => {$(
        unsafe extern "C" fn $name(qp: *mut QpEx $(, $arg: $type)*) {
            // SAFETY: called between start and complete, as ibv_wr_start(3) requires.
            unsafe { begin(qp, || $work) };
        }
    )*};
}

requests! {
    atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) {
        Ok(Work::CompareSwap { remote: target(addr, rkey), compare, swap })
    }
    atomic_fetch_add(rkey: u32, addr: u64, add: u64) {
        Ok(Work::FetchAdd { remote: target(addr, rkey), add })
    }
    bind_mw(window: *mut Mw, rkey: u32, info: *const MwBindInfo) { bind(window, rkey, info) }
    local_inv(rkey: u32) { Ok(Work::Invalidate { key: Key(rkey) }) }
    rdma_read(rkey: u32, addr: u64) { Ok(Work::Read { remote: target(addr, rkey) }) }
    rdma_write(rkey: u32, addr: u64) { Ok(Work::Write { remote: target(addr, rkey), imm: None }) }
    rdma_write_imm(rkey: u32, addr: u64, imm: u32) {
        Ok(Work::Write { remote: target(addr, rkey), imm: Some(u32::from_be(imm)) })
    }
    send() { Ok(Work::Send { imm: None, invalidate: None }) }
    send_imm(imm: u32) { Ok(Work::Send { imm: Some(u32::from_be(imm)), invalidate: None }) }
    send_inv(rkey: u32) { Ok(Work::Send { imm: None, invalidate: Some(Key(rkey)) }) }
    send_tso(_header: *mut c_void, _len: u16, _mss: u16) { Err(Errno::OPNOTSUPP) }
    atomic_write(rkey: u32, addr: u64, value: *const c_void) { write_atomically(rkey, addr, value) }
    flush(_rkey: u32, _addr: u64, _len: usize, _kind: u8, _level: u8) { Err(Errno::OPNOTSUPP) }
}

fn write_atomically(rkey: u32, addr: u64, value: *const c_void) -> Result<Work, Errno> {
    if value.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the program passes the address of 8 bytes at any alignment.
    let value = unsafe { value.cast::<u64>().read_unaligned() };
    Ok(Work::AtomicWrite {
        remote: target(addr, rkey),
        value,
    })
}

fn bind(window: *mut Mw, rkey: u32, info: *const MwBindInfo) -> Result<Work, Errno> {
    // SAFETY: `find` validates the window; `input` refuses null; `bind_work` validates the region.
    unsafe {
        let window = find::<MwObject>(window)?;
        if (*window.c()).mw_type != MW_TYPE_2 {
            return Err(Errno::INVAL);
        }
        mw::bind_work(window, input(info)?, Some(rkey))
    }
}

/// `ibv_wr_set_ud_addr`.
unsafe extern "C" fn set_ud_addr(qp: *mut QpEx, ah: *mut Ah, qpn: u32, qkey: u32) {
    // SAFETY: called between start and complete.
    unsafe {
        with_batch(qp, |batch| {
            let ud = address(ah, qpn, qkey)?;
            batch.requests.last_mut().ok_or(Errno::INVAL)?.ud = Some(ud);
            Ok(())
        });
    }
}

/// `ibv_wr_set_xrc_srqn`.
unsafe extern "C" fn set_xrc_srqn(qp: *mut QpEx, srqn: u32) {
    // SAFETY: called between start and complete.
    unsafe {
        with_batch(qp, |batch| {
            batch.requests.last_mut().ok_or(Errno::INVAL)?.ud = Some(post::shared_queue(srqn));
            Ok(())
        });
    }
}

/// `ibv_wr_set_sge`.
unsafe extern "C" fn set_sge(qp: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: called between start and complete.
    unsafe {
        with_batch(qp, |batch| {
            let start = batch.sges.len();
            batch.sges.push(Sge {
                addr,
                len: length,
                key: LKey(lkey),
            });
            batch.requests.last_mut().ok_or(Errno::INVAL)?.sges = start..start + 1;
            Ok(())
        });
    }
}

/// `ibv_wr_set_sge_list`.
unsafe extern "C" fn set_sge_list(qp: *mut QpEx, count: usize, list: *const crate::sys::Sge) {
    let limit = |granted: &QpCap| granted.max_send_sge;
    // SAFETY: called between start and complete, with a list of `count` entries.
    unsafe {
        with_list(qp, (list, count), limit, |batch, list| {
            let start = batch.sges.len();
            batch.sges.extend(list.iter().map(|element| Sge {
                addr: element.addr,
                len: element.length,
                key: LKey(element.lkey),
            }));
            batch.requests.last_mut().ok_or(Errno::INVAL)?.sges = start..start + count;
            Ok(())
        });
    }
}

/// Appends payload to the batch.
fn add_inline(batch: &mut Batch, buffers: &[DataBuf]) -> Result<(), Errno> {
    let start = batch.inline.len();
    for buffer in buffers {
        let at = batch.inline.len();
        if buffer.length > INLINE_MAX - (at - start) {
            return Err(Errno::INVAL);
        }
        batch.inline.resize(at + buffer.length, 0);
        let target = batch.inline[at..].as_mut_ptr();
        // SAFETY: the target has room; `copy` reports an unreadable source.
        unsafe { rkey_device::base::copy::copy(target, buffer.addr.cast(), buffer.length) }
            .map_err(|_| Errno::FAULT)?;
    }
    let end = batch.inline.len();
    batch.requests.last_mut().ok_or(Errno::INVAL)?.inline = Some(start..end);
    Ok(())
}

/// `ibv_wr_set_inline_data`.
unsafe extern "C" fn set_inline_data(qp: *mut QpEx, addr: *mut c_void, length: usize) {
    // SAFETY: called between start and complete.
    unsafe { with_batch(qp, |batch| add_inline(batch, &[DataBuf { addr, length }])) };
}

/// `ibv_wr_set_inline_data_list`.
unsafe extern "C" fn set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    // Refuses a list that has more buffers than the payload may have bytes.
    let limit = |granted: &QpCap| granted.max_inline_data;
    // SAFETY: called between start and complete, with a list of `count` entries.
    unsafe { with_list(qp, (list, count), limit, add_inline) };
}

/// `ibv_wr_start`.
unsafe extern "C" fn start(qp: *mut QpEx) {
    // SAFETY: `object` validates the handle.
    if let Some((_, builder)) = unsafe { object(qp) } {
        builder.lock.lock();
        // SAFETY: locked above.
        unsafe { (*builder.batch.get()).clear() };
    }
}

/// `ibv_wr_abort`.
unsafe extern "C" fn abort(qp: *mut QpEx) {
    // SAFETY: `object` validates the handle.
    if let Some((_, builder)) = unsafe { object(qp) } {
        builder.lock.unlock();
    }
}

/// `ibv_wr_complete`.
unsafe extern "C" fn complete(qp: *mut QpEx) -> c_int {
    // SAFETY: `object` validates the handle.
    let Some((object, builder)) = (unsafe { object(qp) }) else {
        return Errno::INVAL.raw();
    };
    if !builder.lock.is_locked() {
        return Errno::INVAL.raw();
    }
    let code = c_call(|| {
        // SAFETY: locked since start.
        unsafe { (*builder.batch.get()).post(&object.qp) }.map(|()| 0)
    });
    builder.lock.unlock();
    code
}
