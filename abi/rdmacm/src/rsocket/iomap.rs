//! `riomap`, `riounmap`, `riowrite`: memory that a peer writes by offset.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::connection::{Connection, RESET};
use super::memory::{Access, Buffers, Registration};
use super::table;
use super::transfer::{counted, one};
use super::waiting::Progress;
use super::wire::{Iomap, Piece};
use rkey_kit::{Errno, contained, fence_or_minus_one};
use std::ffi::{c_int, c_void};

/// An area that this side has mapped.
#[derive(Debug)]
struct Mapped {
    registration: Registration,
    offset: u64,
    addr: u64,
    len: u32,
    /// Its record at the peer. An area that the peer may not write has none.
    index: Option<u16>,
    is_announced: bool,
}

/// The areas of a socket.
#[derive(Debug, Default)]
pub struct Iomaps {
    areas: Vec<Mapped>,
    /// Records that the peer still has, of areas that are gone.
    gone: Vec<u16>,
}

impl Iomaps {
    /// Tells the peer what it does not know yet, as far as there is room.
    pub fn announce(&mut self, connection: &mut Connection) {
        while let Some(index) = self.gone.last() {
            if !connection.map(*index, Iomap::default()) {
                return;
            }
            self.gone.pop();
        }
        for area in self.areas.iter_mut().filter(|area| !area.is_announced) {
            let record = Iomap {
                offset: area.offset,
                piece: Piece {
                    addr: area.addr,
                    key: area.registration.keys().1,
                    len: area.len,
                },
            };
            let Some(index) = area.index else {
                continue;
            };
            if !connection.map(index, record) {
                return;
            }
            area.is_announced = true;
        }
    }

    /// A record that nothing uses.
    fn free_index(&self, count: u16) -> Result<u16, Errno> {
        let used = |index: &u16| {
            let mut areas = self.areas.iter();
            self.gone.contains(index) || areas.any(|area| area.index == Some(*index))
        };
        (0..count)
            .find(|index| !used(index))
            .ok_or(Errno::from_raw(libc::ENOBUFS))
    }
}

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
    let (_, pd) = crate::verbs::device()?;
    let (index, access) = match prot {
        libc::PROT_NONE => (None, Access::Local),
        _ => (Some(state.iomaps.free_index(room)?), Access::Remote),
    };
    let addr = at.expose_provenance() as u64;
    let offset = if offset == -1 { addr as i64 } else { offset };
    state.iomaps.areas.push(Mapped {
        // SAFETY: the program keeps the memory until `riounmap` or `rclose`.
        registration: unsafe { Registration::new(pd, at, len, access) }?,
        offset: offset as u64,
        addr,
        len: short,
        index,
        is_announced: false,
    });
    state.progress();
    Ok(offset)
}

/// `riomap`.
///
/// # Safety
/// There are `len` bytes at `at`, until `riounmap` or `rclose`.
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
    fence_or_minus_one(|| {
        let socket = table::stream(number)?;
        let addr = at.expose_provenance() as u64;
        let mut state = socket.state.lock();
        let areas = &mut state.iomaps.areas;
        let found = areas
            .iter()
            .position(|area| area.addr == addr && area.len as usize == len);
        let area = areas.swap_remove(found.ok_or(Errno::INVAL)?);
        if area.is_announced {
            state.iomaps.gone.extend(area.index);
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
/// There are `len` readable bytes at `data`.
pub unsafe extern "C" fn riowrite(
    number: c_int,
    data: *const c_void,
    len: usize,
    offset: i64,
    flags: c_int,
) -> usize {
    let buffers = one(data.cast_mut(), len);
    let written = counted(|| {
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
