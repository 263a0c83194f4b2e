//! The memory of a socket that its peer addresses by an offset.

use super::connection::Connection;
use super::memory::Registration;
use super::wire::{Iomap, RemoteSge};
use rkey_kit::Errno;

/// An area that this side has mapped.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) registration: Registration,
    pub(super) offset: u64,
    pub(super) addr: u64,
    pub(super) len: u32,
    /// The index of its record at the peer. `None` if the peer may not write to the area.
    pub(super) index: Option<u16>,
    pub(super) is_sent: bool,
}

/// The areas of a socket.
#[derive(Debug, Default)]
pub struct Iomaps {
    pub(super) areas: Vec<Mapped>,
    /// The indexes of records that the peer still has, but whose areas are unmapped.
    pub(super) stale: Vec<u16>,
}

impl Iomaps {
    /// Sends changed records to the peer, as far as there is room.
    pub fn send_records(&mut self, connection: &mut Connection) {
        while let Some(index) = self.stale.last() {
            if !connection.map(*index, Iomap::default()) {
                return;
            }
            self.stale.pop();
        }
        for area in self.areas.iter_mut().filter(|area| !area.is_sent) {
            let record = Iomap {
                offset: area.offset,
                memory: RemoteSge {
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
            area.is_sent = true;
        }
    }

    /// Finds an unused index.
    pub(super) fn free_index(&self, count: u16) -> Result<u16, Errno> {
        let used = |index: &u16| {
            let mut areas = self.areas.iter();
            self.stale.contains(index) || areas.any(|area| area.index == Some(*index))
        };
        (0..count)
            .find(|index| !used(index))
            .ok_or(Errno::from_raw(libc::ENOBUFS))
    }
}
