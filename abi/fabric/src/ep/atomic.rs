//! `fi_atomic`: operations on numbers in a peer's memory.
//!
//! An atomic is sent as a message. The peer's endpoint checks the key in the protection table and executes the atomic. A
//! process executes one atomic at a time, so the atomics of all endpoints are atomic with respect to each other
//! (fi_atomic(3)).

use super::datatype::limits;
use super::host::{EpHost, identity_of, refuse};
use super::options::Limits;
use super::payload::load;
use super::report::{Deferred, Posted};
use super::send::Descriptors;
use super::*;
use crate::mr::buffers::Held;
use crate::mr::{hmem, local};
use rkey_device::base::Memory;
use rkey_device::core::{Accessor, Key, LocalUse, Operation as Access, RKey};
use rkey_rdm::atomic::{Kind, Request};
use rkey_rdm::endpoint::AtomicCall;
use rkey_rdm::header;
use std::ffi::c_void;

/// Held while an atomic executes: one at a time in this process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// An atomic, as the program requests it.
pub(super) struct AtomicArgs<'a> {
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
    /// The number of elements in the peer's memory.
    pub(super) count: usize,
    pub(super) datatype: c_int,
    pub(super) op: c_int,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) deferred: Option<&'a Deferred>,
}

/// The number of elements in a list.
pub(super) fn elements_of(list: &[Ioc]) -> usize {
    list.iter()
        .fold(0, |sum: usize, buffer| sum.saturating_add(buffer.count))
}

impl Endpoint {
    #[allow(unsafe_code)]
    // UNSAFETY: reads memory that the program passes.
    fn gather_operands(
        &self,
        list: &[Ioc],
        desc: Descriptors<'_>,
        inject: bool,
        size: usize,
        into: &mut Vec<u8>,
    ) -> Result<()> {
        for (index, buffer) in list.iter().enumerate() {
            let len = buffer.count * size;
            let addr = buffer.addr as u64;
            // Refuses buffers without a required descriptor, or without the right. Memory that is copied at once
            // needs no registration.
            let usage = LocalUse::WriteSource;
            let start = into.len();
            into.resize(start + len, 0);
            let place = &mut into[start..];
            let domain = &self.domain;
            if !inject {
                let desc = desc.get(index);
                // The bytes are copied before this function returns, so the registrations may end with it.
                let mut held = Held::default();
                let sge = local::sge(domain, &self.pd, (addr, len), desc, usage, &mut held)?;
                if domain.hmem {
                    load(domain, &self.pd, &[sge], place, usage)?;
                    continue;
                }
            } else if domain.hmem {
                hmem::load_injected(domain, place, addr)?;
                continue;
            }
            // SAFETY: operands that the program passes: its own memory, or a fault.
            let memory = unsafe { domain.device.memory() };
            memory.load_bytes(place, addr).map_err(|_| FiError::FAULT)?;
        }
        Ok(())
    }

    /// Starts an atomic.
    pub(super) fn atomic(&self, it: &AtomicArgs<'_>) -> Result<()> {
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
        let mut held = Held::default();
        let result = it
            .result
            .iter()
            .enumerate()
            .map(|(index, buffer)| {
                let (at, desc) = (buffer.addr as u64, it.result_desc.get(index));
                let len = buffer.count * size;
                local::sge(
                    &self.domain,
                    &self.pd,
                    (at, len),
                    desc,
                    LocalUse::AtomicResult,
                    &mut held,
                )
            })
            .collect::<Result<Sges>>()?;
        let (mut state, connection) = self.connection_to(live, it.peer, it.flags)?;
        let report = BoundCq::reports(live.host.tx.as_ref(), it.flags);
        self.with_room(live, &mut state, connection, 1, report, |state| {
            let device_keys = state.rdm.connections()[connection].device_keys;
            let (key, device_key) = match super::rma::rkey(self, device_keys, it.key)? {
                RKey::Device(key) => (u64::from(key.0), true),
                RKey::Requested(key) => (key, false),
            };
            let what = header::Atomic {
                addr: it.addr,
                key,
                device_key,
                datatype: it.datatype as u8,
                op: it.op as u8,
                form: it.kind as u8,
                count: it.count as u32,
            };
            let call = AtomicCall {
                connection,
                what,
                operands: payload,
                result: fetches.then_some(result),
            };
            let posted =
                Posted::one_sided(FI_ATOMIC, fetches, it.context, report, it.deferred, held);
            Ok(state.rdm.atomic(&live.host, call, posted)?)
        })
    }
}

/// Executes a peer's atomic; returns the old values, if it requests them.
#[allow(unsafe_code)]
// UNSAFETY: accesses registered memory by address, under grants of the protection table.
pub(super) fn execute(
    host: &EpHost,
    from: &Connection,
    it: &header::Atomic,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let request = Request::read(it, payload)?;
    let reads_only = request.reads_only();
    let key = match it.device_key {
        true => RKey::Device(Key(u32::try_from(it.key).map_err(|_| FiError::NOKEY)?)),
        false => RKey::Requested(it.key),
    };
    let who = Accessor {
        domain: host.pd.id,
        qp: host.regions,
        peer: identity_of(from),
    };
    let len = request.len() as u64;
    // SAFETY: nothing is registered or closed through the table here.
    let table = unsafe { host.domain.device.protection() };
    let check = |want| {
        table
            .check_remote(&who, key, it.addr, len, want)
            .map_err(|denial| refuse(from, denial))
    };
    // FI-I49: changing memory requires the right to write, and returning values the right to read.
    let reading = request.fetches().then(|| check(Access::Read)).transpose()?;
    let grant = match reads_only {
        true => None,
        false => Some(check(Access::Write)?),
    };
    let spans = || {
        grant
            .iter()
            .chain(reading.iter())
            .take(1)
            .flat_map(|grant| grant.spans())
    };
    // SAFETY: only addresses of spans that the grant covers.
    let memory = unsafe { host.domain.device.memory() };
    let mut values = vec![0; request.len()];
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let mut at = 0;
    for span in spans() {
        let end = at + span.len() as usize;
        span.load_bytes(&memory, &mut values[at..end])
            .map_err(|_| FiError::FAULT)?;
        at = end;
    }
    let before = values.clone();
    if !reads_only {
        request.apply(&mut values)?;
        at = 0;
        for span in spans() {
            let end = at + span.len() as usize;
            span.store_bytes(&memory, &values[at..end])
                .map_err(|_| FiError::FAULT)?;
            at = end;
        }
        if let Some(number) = grant.as_ref().and_then(|grant| grant.counter())
            && let Some(counter) = host
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
