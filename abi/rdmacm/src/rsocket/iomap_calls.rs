//! `riomap`, `riounmap`, `riowrite`: memory that a peer addresses by an offset.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::connection::RESET;
use super::iomap::Mapped;
use super::memory::{Access, Buffers, Registration};
use super::table;
use super::transfer::{count_or_minus_one, single};
use super::waiting::Progress;
use rkey_kit::{Errno, c_call_or_minus_one, contained};
use std::ffi::{c_int, c_void};

unsafe fn map(
    number: c_int,
    at: *mut c_void,
    len: usize,
    prot: c_int,
    offset: i64,
) -> Result<i64, Errno> {
    let socket = table::stream(number)?;
    if prot & !libc::PROT_WRITE != 0 {
        return Err(Errno::INVAL);
    }
    let short = u32::try_from(len).map_err(|_| Errno::INVAL)?;
    let mut state = socket.state.lock();
    state.progress();
    let room = state.connection()?.stream().iomaps_of_peer();
    let (_, pd) = crate::queues::verbs::device()?;
    let (index, access) = match prot {
        libc::PROT_NONE => (None, Access::Local),
        _ => (Some(state.iomaps.free_index(room)?), Access::Remote),
    };
    let addr = at.expose_provenance() as u64;
    let offset = if offset == -1 { addr as i64 } else { offset };
    state.iomaps.areas.push(Mapped {
        // SAFETY: the caller guarantees that the memory stays valid until `riounmap` or `rclose`.
        registration: unsafe { Registration::new(pd, at, len, access) }?,
        offset: offset as u64,
        addr,
        len: short,
        index,
        is_sent: false,
    });
    state.progress();
    Ok(offset)
}

/// `riomap`.
///
/// # Safety
/// `at` points to `len` bytes, which stay valid until `riounmap` or `rclose`.
pub unsafe extern "C" fn riomap(
    number: c_int,
    at: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: i64,
) -> i64 {
    // SAFETY: guaranteed by the caller.
    match contained(|| unsafe { map(number, at, len, prot, offset) }) {
        Ok(offset) => offset,
        Err(error) => {
            error.set();
            -1
        }
    }
}

/// `riounmap`.
pub extern "C" fn riounmap(number: c_int, at: *mut c_void, len: usize) -> c_int {
    c_call_or_minus_one(|| {
        let socket = table::stream(number)?;
        let addr = at.expose_provenance() as u64;
        let mut state = socket.state.lock();
        let areas = &mut state.iomaps.areas;
        let found = areas
            .iter()
            .position(|area| area.addr == addr && area.len as usize == len);
        let area = areas.swap_remove(found.ok_or(Errno::INVAL)?);
        if area.is_sent {
            state.iomaps.stale.extend(area.index);
        }
        state.progress();
        drop(state);
        drop(area);
        Ok(0)
    })
}

/// `riowrite`.
///
/// # Safety
/// `data` points to `len` readable bytes.
pub unsafe extern "C" fn riowrite(
    number: c_int,
    data: *const c_void,
    len: usize,
    offset: i64,
    flags: c_int,
) -> usize {
    let buffers = single(data.cast_mut(), len);
    let written = count_or_minus_one(|| {
        let socket = table::stream(number)?;
        // SAFETY: guaranteed by the caller.
        let mut from = unsafe { Buffers::new(&buffers) }?;
        let blocks = socket.blocks(flags);
        let deadline = socket.deadline(|options| options.send_timeout);
        let mut done = 0;
        let result = socket.wait(blocks, deadline, |state| {
            let connection = match state.connection() {
                Ok(connection) => connection,
                Err(error) => return Some(Err(error)),
            };
            while !from.is_empty() {
                if !connection.stream().is_writable() {
                    return Some(Err(connection.error.take().unwrap_or(RESET)));
                }
                let Some(mut to) = connection.mapped((offset as u64).wrapping_add(done as u64))
                else {
                    return Some(Err(Errno::INVAL));
                };
                to.len = to.len.min(u32::try_from(from.len()).unwrap_or(u32::MAX));
                let before = done;
                if let Err(error) = connection.send_to(&mut from, to, &mut done) {
                    return Some(Err(error));
                }
                if done == before {
                    return None;
                }
            }
            Some(Ok(()))
        });
        match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    });
    written as usize
}
