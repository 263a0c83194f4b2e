//! Reading completion queues.

#![allow(unsafe_code)]
// UNSAFETY: C functions that write entries to the program's memory.

use super::entry::{Entry, Failure, size_of_format};
use super::{Cq, CqObject};
use crate::eq::{write_error_data, write_string, write_text};
use crate::errno::{FiError, Result};
use crate::object::{count, find, status};
use crate::sys::*;
use crate::wait::Deadline;
use rkey_device::time;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::AsFd;
use std::time::Duration;

/// How long a waiting read spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long a call for zero entries pauses between checks while the queue has entries.
const PAUSE: Duration = Duration::from_micros(50);

/// Writes the first `len` bytes of an entry in the longest format. Each field is written by itself: to copy the entry as a whole,
/// the processor would have to wait until it has stored the fields.
///
/// # Safety
/// `place` is room for `len` bytes, the length of a format.
#[inline]
unsafe fn write(place: *mut CqTaggedEntry, entry: &Entry, len: usize) {
    let CqTaggedEntry {
        op_context,
        flags,
        len: length,
        buf,
        data,
        tag,
    } = entry.tagged();
    // SAFETY: every format is a prefix of the longest one, and `place` has room for this one (contract). It need not be aligned.
    unsafe {
        (&raw mut (*place).op_context).write_unaligned(op_context);
        if len >= size_of_format(FI_CQ_FORMAT_MSG) {
            (&raw mut (*place).flags).write_unaligned(flags);
            (&raw mut (*place).len).write_unaligned(length);
        }
        if len >= size_of_format(FI_CQ_FORMAT_DATA) {
            (&raw mut (*place).buf).write_unaligned(buf);
            (&raw mut (*place).data).write_unaligned(data);
        }
        if len >= size_of_format(FI_CQ_FORMAT_TAGGED) {
            (&raw mut (*place).tag).write_unaligned(tag);
        }
    }
}

/// Takes up to `max` entries. Returns `FI_EAGAIN` if there are none, or `FI_EAVAIL` if the next one is an error.
///
/// # Safety
/// `into` has room for `max` entries of the queue's format; `sources` is null or has room for as many
/// addresses.
#[inline]
unsafe fn take(cq: &Cq, into: *mut c_void, max: usize, sources: *mut u64) -> Result<usize> {
    let stride = size_of_format(cq.format);
    let mut queue = cq.queue.lock();
    let mut taken = 0;
    while taken < max {
        let Some(entry) = queue.entries.front() else {
            break;
        };
        if entry.failure.is_some() {
            if taken == 0 {
                return Err(FiError::AVAIL);
            }
            break;
        }
        // SAFETY: the caller guarantees room for `max` entries, and `taken` is below that.
        unsafe {
            let place = into.cast::<u8>().add(taken * stride);
            write(place.cast(), entry, stride);
            if !sources.is_null() {
                *sources.add(taken) = entry.source;
            }
        }
        queue.entries.pop_front();
        taken += 1;
    }
    let due = cq.has_read(&mut queue);
    drop(queue);
    if due {
        cq.send_owed_answers();
    }
    if taken == 0 {
        Err(FiError::AGAIN)
    } else {
        Ok(taken)
    }
}

/// Like [`take`], but first makes progress if the queue is empty or no entries are requested.
///
/// # Safety
/// Same as for [`take`].
#[inline]
unsafe fn poll(cq: &Cq, into: *mut c_void, max: usize, sources: *mut u64) -> Result<usize> {
    if into.is_null() && max > 0 {
        return Err(FiError::INVAL);
    }
    // A program may request zero entries just to make progress.
    if cq.is_empty() || max == 0 {
        cq.progress();
        if cq.is_empty() {
            return Err(FiError::AGAIN);
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe { take(cq, into, max, sources) }
}

/// `fi_cq_read`.
pub(super) unsafe extern "C" fn read(cq: *mut FidCq, buf: *mut c_void, max: usize) -> isize {
    // SAFETY: the caller guarantees valid arguments.
    unsafe { readfrom(cq, buf, max, std::ptr::null_mut()) }
}

/// `fi_cq_readfrom`.
pub(super) unsafe extern "C" fn readfrom(
    cq: *mut FidCq,
    buf: *mut c_void,
    max: usize,
    sources: *mut u64,
) -> isize {
    count(|| {
        // SAFETY: `find` validates the handle; the caller guarantees the room.
        unsafe { poll(&find::<CqObject, _>(cq)?.inner, buf, max, sources) }
    })
}

/// `fi_cq_sread`.
pub(super) unsafe extern "C" fn sread(
    cq: *mut FidCq,
    buf: *mut c_void,
    max: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the caller guarantees valid arguments.
    unsafe { sreadfrom(cq, buf, max, std::ptr::null_mut(), cond, timeout) }
}

/// `fi_cq_sreadfrom`.
pub(super) unsafe extern "C" fn sreadfrom(
    cq: *mut FidCq,
    buf: *mut c_void,
    max: usize,
    sources: *mut u64,
    _threshold: *const c_void,
    timeout: c_int,
) -> isize {
    count(|| {
        // SAFETY: `find` validates the handle.
        let cq = &unsafe { find::<CqObject, _>(cq)? }.inner;
        let wait = cq.wait.as_ref().ok_or(FiError::INVAL)?;
        let waiting = wait.begin();
        let deadline = Deadline::of(timeout);
        let begun = time::now();
        let mut sleeper = None;
        loop {
            // SAFETY: the caller guarantees room for the entries.
            match unsafe { poll(cq, buf, max, sources) } {
                Err(FiError::AGAIN) => {}
                result => {
                    wait.spin.waited(time::since(begun), SPIN);
                    return result;
                }
            }
            if waiting.is_woken() || deadline.passed() {
                wait.spin.waited(Duration::MAX, SPIN);
                return Err(FiError::AGAIN);
            }
            let (sleeper, spins) = sleeper.get_or_insert_with(|| {
                let sleeper = cq.domain.device.sleeper();
                // Without packets, a sleeping thread is woken by another one, which takes longer than most waits.
                let spins = !sleeper.receives_packets() || wait.spin.pays();
                (sleeper, spins)
            });
            if *spins && time::since(begun) < SPIN {
                std::hint::spin_loop();
                continue;
            }
            match cq.arm() {
                Ok(true) => return Err(FiError::AGAIN),
                Ok(false) => {
                    sleeper.wait(wait.set.as_fd(), deadline.instant())?;
                }
                Err(FiError::AGAIN) if max > 0 => {}
                Err(FiError::AGAIN) => time::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
    })
}

/// `fi_cq_signal`.
pub(super) unsafe extern "C" fn signal(cq: *mut FidCq) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let cq = &unsafe { find::<CqObject, _>(cq)? }.inner;
        let wait = cq.wait.as_ref().ok_or(FiError::INVAL)?;
        wait.wake();
        Ok(())
    })
}

/// `fi_cq_readerr`.
pub(super) unsafe extern "C" fn readerr(
    cq: *mut FidCq,
    into: *mut CqErrEntry,
    flags: u64,
) -> isize {
    count(|| {
        // SAFETY: `find` validates the handle.
        let cq = &unsafe { find::<CqObject, _>(cq)? }.inner;
        if into.is_null() {
            return Err(FiError::INVAL);
        }
        let mut queue = cq.queue.lock();
        if queue
            .entries
            .front()
            .is_none_or(|entry| entry.failure.is_none())
        {
            return Err(FiError::AGAIN);
        }
        let entry = match flags & FI_PEEK {
            0 => queue.entries.pop_front(),
            _ => queue.entries.front().cloned(),
        }
        .ok_or(FiError::AGAIN)?;
        let due = cq.has_read(&mut queue);
        let tagged = entry.tagged();
        let source = entry.source;
        let Failure {
            error,
            overflow,
            detail,
        } = *entry.failure.unwrap_or_default();
        queue.error_data = detail;
        // SAFETY: the program's entry; `err_data_size` exists since 1.5, and `src_addr` since 1.20.
        unsafe {
            (*into).op_context = tagged.op_context;
            (*into).flags = tagged.flags;
            (*into).len = tagged.len;
            (*into).buf = tagged.buf;
            (*into).data = tagged.data;
            (*into).tag = tagged.tag;
            (*into).olen = overflow;
            (*into).err = error;
            (*into).prov_errno = error;
            if cq.domain.version >= version(1, 5) {
                let (mut room, mut size) = ((*into).err_data, (*into).err_data_size);
                write_error_data(&queue.error_data, &mut room, &mut size);
                (*into).err_data = room;
                (*into).err_data_size = size;
                queue.given = (room as usize, size);
            } else {
                (*into).err_data = queue.error_data.as_ptr().cast_mut().cast();
                queue.given = ((*into).err_data as usize, queue.error_data.len());
            }
            if cq.domain.version >= version(1, 20) {
                (*into.cast::<LongCqErrEntry>()).src_addr = source;
            }
        }
        drop(queue);
        if due {
            cq.send_owed_answers();
        }
        Ok(1)
    })
}

/// `fi_cq_strerror`.
pub(super) unsafe extern "C" fn strerror(
    cq: *mut FidCq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: `find` validates the handle.
    let sentence = unsafe { find::<CqObject, _>(cq) }.ok().and_then(|cq| {
        let queue = cq.inner.queue.lock();
        let (at, len) = queue.given;
        // The length of other data is unknown.
        let ours = !err_data.is_null() && err_data as usize == at && len > 0;
        let bytes = queue.error_data.get(..len).filter(|_| ours)?;
        CString::new(bytes).ok()
    });
    // SAFETY: the caller guarantees null, or room of this length.
    unsafe {
        match sentence {
            Some(sentence) => write_string(sentence, buf, len),
            None => write_text(prov_errno, buf, len),
        }
    }
}
