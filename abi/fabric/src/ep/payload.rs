//! Payload into its place: copied out of a message, or read from the sender's memory when it comes by rendezvous.

#![allow(unsafe_code)]
// UNSAFETY: writes to memory that the program handed over to receive into.

use super::elements::part;
use super::operation::{Hold, Operation, What};
use super::*;
use crate::cq::Entry;
use rkey_device::base::memory::Memory;
use rkey_device::core::{Denial, Key, LocalUse, WireKey};
use rkey_device::engine::{SendFlags, Target, Work};
use rkey_rdm::backlog::Later;
use rkey_rdm::header::Header;

/// Memory of the program's may not be written: its region may have been closed since the receive was posted.
#[cold]
fn not_allowed(denial: &Denial) -> FiError {
    rkey_device::denials::refused(&denial.in_one_line());
    FiError::ACCES
}

impl Endpoint {
    /// Copies a payload to where it goes, and completes the receive.
    pub(super) fn place(&self, live: &Live, state: &mut State, landing: Landing, payload: &[u8]) {
        self.place_with(live, state, landing, payload.len(), |sges, fits| {
            self.scatter(sges, &payload[..fits])
        });
    }

    /// The same for a payload of this length, of which `copy` brings as much as fits.
    #[inline]
    pub(super) fn place_with(
        &self,
        live: &Live,
        state: &mut State,
        mut landing: Landing,
        len: usize,
        copy: impl FnOnce(&[Sge], usize) -> Result<()>,
    ) {
        landing.turn = self.turn(state, false);
        let fits = len.min(landing.room);
        landing.entry.len = fits;
        let error = match copy(&landing.sges, fits) {
            Err(error) => Some(error),
            Ok(()) if fits < len => {
                landing.overflow = len - fits;
                Some(FiError::TRUNC)
            }
            Ok(()) => None,
        };
        self.received(live, state, landing, error);
    }

    /// Copies a message to local memory.
    fn scatter(&self, sges: &[Sge], bytes: &[u8]) -> Result<()> {
        self.scatter_for(sges, bytes, LocalUse::Recv)
    }

    /// Copies bytes to local memory that has the right for this use.
    pub(super) fn scatter_for(
        &self,
        sges: &[Sge],
        mut bytes: &[u8],
        usage: LocalUse,
    ) -> Result<()> {
        // SAFETY: the program handed the memory over to receive into; it is writable, or a fault.
        let memory = unsafe { self.domain.device.memory() };
        for sge in sges {
            let (now, rest) = bytes.split_at(bytes.len().min(sge.len as usize));
            bytes = rest;
            if now.is_empty() {
                continue;
            }
            if sge.key == self.group.everything() {
                memory
                    .store_bytes(sge.addr, now)
                    .map_err(|_| FiError::FAULT)?;
                continue;
            }
            // SAFETY: nothing is registered or closed through the table here.
            let table = unsafe { self.domain.device.protection() };
            let len = now.len() as u64;
            let lease = table
                .check_local(self.group.id, sge.key, sge.addr, len, usage)
                .map_err(|denial| not_allowed(&denial))?;
            let mut left = now;
            for span in lease.spans() {
                let (now, rest) = left.split_at(left.len().min(span.len() as usize));
                memory
                    .store_bytes(span.start(), now)
                    .map_err(|_| FiError::FAULT)?;
                left = rest;
            }
        }
        Ok(())
    }

    /// Starts to read the payload of an RTS from its sender.
    pub(super) fn fetch(
        &self,
        live: &Live,
        state: &mut State,
        mut landing: Landing,
        header: &Header,
        key: u32,
        connection: usize,
    ) {
        landing.turn = self.turn(state, true);
        let len = header.len as usize;
        let fits = len.min(landing.room);
        landing.entry.len = fits;
        if fits < len {
            // What does not fit is not read; the sender is done with it.
            landing.overflow = len - fits;
        }
        landing.sges = part(&landing.sges, 0, fits);
        if fits == 0 || state.connections[connection].state().is_lost() {
            let error = match len {
                0 => None,
                _ if fits == 0 => Some(FiError::TRUNC),
                _ => Some(FiError::CONNRESET),
            };
            self.confirm(live, state, connection, header);
            self.received(live, state, landing, error);
            return;
        }
        let id = state.operations.add(Operation {
            left: 1,
            error: None,
            what: What::Fetch {
                landing: Box::new(landing),
                id: header.id,
            },
            // The key rides along until the read is posted.
            entry: Entry {
                data: u64::from(key),
                ..Entry::default()
            },
            report: false,
            counts: None,
            connection,
            answered: false,
            turn: None,
            hold: Hold::Nothing,
        });
        let it = &mut state.connections[connection];
        if it.takes_answers() {
            self.fetch_now(state, connection, id);
        } else {
            it.backlog.push_back(Later::Read(id));
        }
    }

    /// Posts the read of the payload of an RTS.
    pub(super) fn fetch_now(&self, state: &mut State, connection: usize, id: u64) {
        let Some(operation) = state.operations.get(id) else {
            return;
        };
        let What::Fetch { landing, .. } = &operation.what else {
            return;
        };
        let key = WireKey::Device(Key(operation.entry.data as u32));
        let sges: Sges = landing
            .sges
            .iter()
            .copied()
            .filter(|sge| sge.len > 0)
            .collect();
        let read = Work::Read {
            remote: Target { addr: 0, key },
        };
        // Until the last byte is there the region is checked as that of a receive: it may be closed meanwhile.
        let flags = SendFlags::RECEIVES;
        if let Err(error) = self.post(state, connection, read, &sges, None, flags, id) {
            self.fail_fetch(state, id, error);
        }
    }

    /// The payload of an RTS is not read. Its sender is told.
    #[cold]
    fn fail_fetch(&self, state: &mut State, id: u64, error: FiError) {
        if let Some(mut operation) = state.operations.take(id)
            && let Some(live) = self.live.get()
        {
            operation.fail(error);
            self.finish(live, state, operation);
        }
    }
}
