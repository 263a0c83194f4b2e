//! Payload into its place: copied out of a message, or read from the sender's memory when it was announced.

#![allow(unsafe_code)]
// UNSAFETY: writes to memory that the program handed over to receive into.

use super::connection::Later;
use super::header::Header;
use super::operation::{Hold, Operation, What};
use super::*;
use crate::cq::Entry;
use rkey_device::base::memory::Memory;
use rkey_device::core::{Key, LocalUse, WireKey};
use rkey_device::engine::{SendFlags, Target, Work};

impl Endpoint {
    /// Copies a payload to where it goes, and completes the receive.
    #[inline]
    pub(super) fn place(
        &self,
        live: &Live,
        state: &mut State,
        mut landing: Landing,
        payload: &[u8],
    ) {
        landing.turn = self.turn(state, false);
        let fits = payload.len().min(landing.room);
        landing.entry.len = fits;
        let error = match self.scatter(&landing.sges, &payload[..fits]) {
            Err(error) => Some(error),
            Ok(()) if fits < payload.len() => {
                landing.entry.overflow = payload.len() - fits;
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
            // The region may have been closed since the receive was posted.
            let lease = table
                .check_local(self.group.id, sge.key, sge.addr, len, usage)
                .map_err(|denial| {
                    tracing::warn!("{}", denial.in_one_line());
                    FiError::ACCES
                })?;
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

    /// Starts to read an announced payload from its sender.
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
            landing.entry.overflow = len - fits;
        }
        landing.sges = part(&landing.sges, 0, fits);
        if fits == 0 || state.connections[connection].lost {
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
        if it.outstanding < SENDS && it.waiting.is_empty() {
            self.fetch_now(state, connection, id);
        } else {
            it.waiting.push_back(Later::Fetch(id));
        }
    }

    /// Posts the read of an announced payload.
    pub(super) fn fetch_now(&self, state: &mut State, connection: usize, id: u64) {
        let Some(operation) = state.operations.get(id) else {
            return;
        };
        let What::Fetch { landing, .. } = &operation.what else {
            return;
        };
        let key = WireKey::Device(Key(operation.entry.data as u32));
        // A receive's buffer need not have the right of a read's result: it is reached as memory of the process, after
        // its own right was checked when it was posted.
        let sges: Vec<Sge> = landing
            .sges
            .iter()
            .filter(|sge| sge.len > 0)
            .copied()
            .collect();
        let read = Work::Read {
            remote: Target { addr: 0, key },
        };
        let sges = self.as_results(&sges);
        if self
            .post(state, connection, read, &sges, None, SendFlags::empty(), id)
            .is_err()
            && let Some(operation) = state.operations.take(id)
            && let What::Fetch { landing, .. } = operation.what
            && let Some(live) = self.live.get()
        {
            self.received(live, state, *landing, Some(FiError::CONNRESET));
        }
    }

    /// The same memory, named so that results can be put there.
    fn as_results(&self, sges: &[Sge]) -> Vec<Sge> {
        // SAFETY: nothing is registered or closed through the table here.
        let table = unsafe { self.domain.device.protection() };
        let mut results = Vec::with_capacity(sges.len());
        for sge in sges {
            let len = u64::from(sge.len);
            if sge.key == self.group.everything() {
                results.push(*sge);
                continue;
            }
            if let Ok(lease) =
                table.check_local(self.group.id, sge.key, sge.addr, len, LocalUse::Recv)
            {
                let key = self.group.everything();
                results.extend(lease.spans().map(|span| Sge {
                    addr: span.start(),
                    len: span.len() as u32,
                    key,
                }));
            }
        }
        results
    }
}

/// A part of some local memory.
pub(super) fn part(sges: &[Sge], mut skip: usize, mut len: usize) -> Vec<Sge> {
    let mut part = Vec::with_capacity(sges.len());
    for sge in sges {
        let before = skip.min(sge.len as usize);
        skip -= before;
        let take = (sge.len as usize - before).min(len);
        len -= take;
        if take > 0 {
            part.push(Sge {
                addr: sge.addr.wrapping_add(before as u64),
                len: take as u32,
                key: sge.key,
            });
        }
    }
    part
}
