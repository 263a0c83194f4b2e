//! `fi_atomic`: operations on numbers in a peer's memory.
//!
//! An atomic travels as a message; the peer's endpoint checks its key in the protection table and carries
//! it out, one at a time for the whole process, so that atomics of all endpoints are indivisible towards
//! each other (fi_atomic(3)).

mod calls;
mod convert;

use super::deferred::Deferred;
use super::operation::{Hold, Operation, What};
use super::options::Limits;
use super::send::Descriptors;
use super::*;
use crate::cq::Entry;
use crate::mr::local;
pub(super) use calls::{OPS, of_message};
pub(crate) use convert::limits;
pub(super) use convert::{data_type, operation};
use rkey_device::base::memory::Memory;
use rkey_device::core::{Accessor, Key, LocalUse, Operation as Access, WireKey};
use rkey_device::engine::{SendFlags, Work};
use rkey_rdm::atomic::{Kind, Request};
use rkey_rdm::header::{self, Header, Kind as HeaderKind, MAX_LEN};
use std::ffi::c_void;

/// Atomics of this process, one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// An atomic, as the program asks for it.
pub(super) struct Asked<'a> {
    pub(super) kind: Kind,
    pub(super) operands: &'a [Ioc],
    pub(super) desc: Descriptors<'a>,
    pub(super) compare: &'a [Ioc],
    pub(super) compare_desc: Descriptors<'a>,
    pub(super) result: &'a [Ioc],
    pub(super) result_desc: Descriptors<'a>,
    pub(super) peer: u64,
    pub(super) addr: u64,
    pub(super) key: u64,
    /// Elements at the remote side.
    pub(super) count: usize,
    pub(super) datatype: c_int,
    pub(super) op: c_int,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) deferred: Option<&'a Deferred>,
}

/// Elements of a list.
pub(super) fn elements_of(list: &[Ioc]) -> usize {
    list.iter()
        .fold(0, |sum: usize, piece| sum.saturating_add(piece.count))
}

impl Endpoint {
    #[allow(unsafe_code)]
    // UNSAFETY: reads memory that the program hands over.
    fn gather_operands(
        &self,
        list: &[Ioc],
        desc: Descriptors<'_>,
        inject: bool,
        size: usize,
        into: &mut Vec<u8>,
    ) -> Result<()> {
        for (index, piece) in list.iter().enumerate() {
            let len = piece.count * size;
            let addr = piece.addr as u64;
            // Refused without a descriptor where one is needed, and without the right. What is copied here and now
            // needs no registration.
            let usage = LocalUse::WriteSource;
            if !inject {
                local::element(&self.domain, &self.group, addr, len, desc.get(index), usage)?;
            }
            let start = into.len();
            into.resize(start + len, 0);
            // SAFETY: operands that the program hands over: its own memory, or a fault.
            let memory = unsafe { self.domain.device.memory() };
            memory
                .load_bytes(&mut into[start..], addr)
                .map_err(|_| FiError::FAULT)?;
        }
        Ok(())
    }

    /// Starts an atomic.
    pub(super) fn atomic(&self, it: &Asked<'_>) -> Result<()> {
        let fetches = it.kind != Kind::Base;
        self.check_caps(FI_ATOMIC | if fetches { FI_READ } else { FI_WRITE })?;
        let live = self.live()?;
        let (most, size) = limits(it.kind, it.datatype, it.op)?;
        let reads_only = it.op == FI_ATOMIC_READ;
        let given = |list: &[Ioc]| elements_of(list) == it.count;
        if it.count == 0
            || it.count > most
            || !reads_only && !given(it.operands)
            || it.kind == Kind::Compare && !given(it.compare)
            || fetches && !given(it.result)
        {
            return Err(FiError::INVAL);
        }
        self.limits
            .check(Limits::ATOMIC, it.flags, it.count * size)?;
        let mut payload = Vec::new();
        let inject = it.flags & FI_INJECT != 0;
        if !reads_only {
            self.gather_operands(it.operands, it.desc, inject, size, &mut payload)?;
        }
        if it.kind == Kind::Compare {
            self.gather_operands(it.compare, it.compare_desc, inject, size, &mut payload)?;
        }
        let result = it
            .result
            .iter()
            .enumerate()
            .map(|(index, piece)| {
                let (at, desc) = (piece.addr as u64, it.result_desc.get(index));
                let len = piece.count * size;
                local::element(
                    &self.domain,
                    &self.group,
                    at,
                    len,
                    desc,
                    LocalUse::AtomicResult,
                )
            })
            .collect::<Result<Sges>>()?;
        let (mut state, connection) = self.connection_to(live, it.peer)?;
        let report = Self::reports(live.tx.as_ref(), it.flags);
        self.in_room(live, &mut state, connection, 1, report, |state| {
            let device_keys = state.connections[connection].device_keys;
            let (key, device_key) = match super::rma::wire_key(self, device_keys, it.key)? {
                WireKey::Device(key) => (u64::from(key.0), true),
                WireKey::Requested(key) => (key, false),
            };
            let atomic = header::Atomic {
                addr: it.addr,
                key,
                device_key,
                datatype: it.datatype as u8,
                op: it.op as u8,
                form: it.kind as u8,
                count: it.count as u32,
            };
            let place = if fetches { READ } else { WRITTEN };
            let operation = Operation {
                left: 2,
                error: None,
                what: if fetches {
                    What::AtomicFetch { result }
                } else {
                    What::Transmit
                },
                entry: Entry {
                    context: it.context as usize,
                    flags: FI_ATOMIC | if fetches { FI_READ } else { FI_WRITE },
                    ..Entry::default()
                },
                report: Self::reports(live.tx.as_ref(), it.flags),
                counts: deferred::counts(it.deferred, Some(place)),
                connection,
                answered: true,
                turn: None,
                hold: Hold::Nothing,
            };
            let id = self.begin(state, operation);
            let header = Header {
                id,
                ..Header::new(HeaderKind::Atomic(atomic))
            };
            let mut head = [0; MAX_LEN];
            let len = header.encode(&mut head);
            let mut bytes = head[..len].to_vec();
            bytes.append(&mut payload);
            let send = Work::Send {
                imm: None,
                invalidate: None,
            };
            let none = SendFlags::empty();
            let posted = if bytes.len() <= INLINE_MAX {
                self.post(state, connection, send, &[], Some(&bytes), none, id)
            } else {
                let bytes = bytes.into_boxed_slice();
                let sge = Sge {
                    addr: bytes.as_ptr() as u64,
                    len: bytes.len() as u32,
                    key: self.group.everything(),
                };
                if let Some(operation) = state.operations.get(id) {
                    operation.hold = Hold::Bytes(bytes);
                }
                self.post(state, connection, send, &[sge], None, none, id)
            };
            posted.inspect_err(|_| drop(state.forget(id)))
        })
    }

    /// Carries out an atomic of a peer: the error, if any, and the old values, if it asked for them.
    pub(super) fn execute(
        &self,
        from: &Connection,
        it: &header::Atomic,
        payload: &[u8],
    ) -> (Option<FiError>, Vec<u8>) {
        match self.try_execute(from, it, payload) {
            Ok(result) => (None, result),
            Err(error) => (Some(error), Vec::new()),
        }
    }

    #[allow(unsafe_code)]
    // UNSAFETY: reaches registered memory by address, under leases of the protection table.
    fn try_execute(
        &self,
        from: &Connection,
        it: &header::Atomic,
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        let request = Request::read(it, payload)?;
        let reads_only = request.reads_only();
        let key = match it.device_key {
            true => WireKey::Device(Key(u32::try_from(it.key).map_err(|_| FiError::NOKEY)?)),
            false => WireKey::Requested(it.key),
        };
        let who = Accessor {
            domain: self.group.id,
            qp: self.number,
            peer: connection::identity_of(from),
        };
        let len = request.len() as u64;
        // SAFETY: nothing is registered or closed through the table here.
        let table = unsafe { self.domain.device.protection() };
        let check = |want| {
            table
                .check_remote(&who, key, it.addr, len, want)
                .map_err(|denial| connection::refuse(from, denial))
        };
        // FI-I49: what changes memory needs the right to write, what gives values back the right to read.
        let reading = request.fetches().then(|| check(Access::Read)).transpose()?;
        let lease = match reads_only {
            true => None,
            false => Some(check(Access::Write)?),
        };
        let spans = || {
            lease
                .iter()
                .chain(reading.iter())
                .take(1)
                .flat_map(|lease| lease.spans())
        };
        // SAFETY: only addresses of spans that the lease covers.
        let memory = unsafe { self.domain.device.memory() };
        let mut values = vec![0; request.len()];
        let _alone = ONE_AT_A_TIME.lock();
        let mut at = 0;
        for span in spans() {
            let end = at + span.len() as usize;
            memory
                .load_bytes(&mut values[at..end], span.start())
                .map_err(|_| FiError::FAULT)?;
            at = end;
        }
        let before = values.clone();
        if !reads_only {
            request.apply(&mut values)?;
            at = 0;
            for span in spans() {
                let end = at + span.len() as usize;
                memory
                    .store_bytes(span.start(), &values[at..end])
                    .map_err(|_| FiError::FAULT)?;
                at = end;
            }
            if let Some(number) = lease.as_ref().and_then(|lease| lease.counter())
                && let Some(counter) = self
                    .domain
                    .counters
                    .lock()
                    .get(&number)
                    .and_then(std::sync::Weak::upgrade)
            {
                counter.count();
            }
        }
        Ok(if request.fetches() {
            before
        } else {
            Vec::new()
        })
    }

    /// Puts old values where the program wants them.
    pub(super) fn scatter_result(&self, result: &[Sge], bytes: &[u8]) -> Result<()> {
        if result.iter().map(|sge| sge.len as usize).sum::<usize>() != bytes.len() {
            return Err(FiError(libc::EREMOTEIO));
        }
        self.scatter_for(result, bytes, LocalUse::AtomicResult)
    }
}
