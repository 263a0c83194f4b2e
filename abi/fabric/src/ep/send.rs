//! Sending messages: checking the program's requests, and exposing its memory to peers.

#![allow(unsafe_code)]
// UNSAFETY: registers memory that the program passes.

use super::options::Limits;
use super::payload::{gather, load, sges};
use super::report::{self, Deferred, Posted};
use super::*;
use crate::info::offer::MAX_MSG_SIZE;
use crate::mr::buffers::Held;
use libc::iovec;
use rkey_device::base::{Copier, VaRange};
use rkey_device::core::{Access, Addressing, LocalUse, Region, RegionSpec};
use rkey_rdm::endpoint::{Outgoing, PayloadSource};
use rkey_rdm::error::Result as RdmResult;
use rkey_rdm::header::{Header, Kind};
use rkey_rdm::operation_id::{Form, Plain};
use std::ffi::c_void;

/// A message to be sent.
pub(super) struct Message<'a> {
    pub(super) iov: &'a [iovec],
    pub(super) desc: Descriptors<'a>,
    pub(super) to: u64,
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) deferred: Option<&'a Deferred>,
}

/// The descriptors of a list of buffers.
#[derive(Clone, Copy)]
pub(super) enum Descriptors<'a> {
    None,
    One(*mut c_void),
    Many(&'a [*mut c_void]),
}

impl Descriptors<'_> {
    #[inline]
    pub(super) fn get(&self, index: usize) -> *mut c_void {
        match self {
            Self::None => std::ptr::null_mut(),
            Self::One(desc) => *desc,
            Self::Many(list) => list.get(index).copied().unwrap_or(std::ptr::null_mut()),
        }
    }
}

/// Set for the program's inject calls, and for deferred work without `FI_COMPLETION`: they never report success.
pub(super) const QUIET: u64 = 1 << 63;
/// Set for operations that the work queue starts. The queue retries them itself, so a thread that happens to start one
/// must not be told to retry its own call.
pub(super) const QUEUED: u64 = 1 << 62;

/// A payload that a peer reads, under a key of its own.
pub(crate) struct Exposed {
    region: Region,
    /// The scatter/gather entries of the payload whose memory is in regions of the program.
    named: Sges,
    /// The payload, if it is a copy of the program's.
    _copy: Box<[u8]>,
}

impl Exposed {
    /// Registers the bytes of `iov`. The key is valid until the peer has read them, or a region that `sges` names is
    /// closed.
    fn new(
        domain: &Domain,
        pd: &ProtectionDomain,
        iov: &[iovec],
        sges: &[Sge],
        copy: Box<[u8]>,
    ) -> Result<Self> {
        let mut copiers = Vec::new();
        let ranges = match domain.hmem && !sges.is_empty() {
            true => ranges_of(domain, pd, sges, &mut copiers)?,
            false => iov
                .iter()
                .filter(|buffer| buffer.iov_len > 0)
                .map(|buffer| VaRange::new(buffer.iov_base as u64, buffer.iov_len as u64))
                .collect::<Option<Vec<_>>>()
                .ok_or(FiError::FAULT)?,
        };
        let spec = RegionSpec {
            addressing: Addressing::Zero,
            internal: true,
            ..RegionSpec::new(pd.id, &ranges, Access::REMOTE_READ)
        };
        // SAFETY: the program does not change or free the buffers until the send is complete, and a copy lives as long; peers
        // only read them.
        let region = unsafe {
            match copiers.iter().any(Option::is_some) {
                true => domain.device.register_foreign(&spec, &copiers)?,
                false => domain.device.register(&spec)?,
            }
        };
        let named = sges.iter().copied();
        let named = named.filter(|sge| !pd.is_unregistered(sge.key));
        let exposed = Self {
            region,
            named: named.collect(),
            _copy: copy,
        };
        for sge in &exposed.named {
            domain.exposed.add(sge.key, region);
        }
        Ok(exposed)
    }

    /// Registers bytes that are a copy of the program's; also returns their key.
    pub(super) fn of_copy(
        domain: &Domain,
        pd: &ProtectionDomain,
        mut bytes: Box<[u8]>,
    ) -> Result<(Self, u32)> {
        let iov = [iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }];
        let exposed = Self::new(domain, pd, &iov, &[], bytes)?;
        let key = exposed.region.key.0;
        Ok((exposed, key))
    }

    /// Must be called after the RTS with the key has been posted, as [`ExposedMessages::add`] requires: an earlier check could miss
    /// a region that is closed in between. If a region of the program no longer allows sends, revokes the key, so that the peer's
    /// read fails.
    ///
    /// [`ExposedMessages::add`]: crate::mr::exposed::ExposedMessages::add
    pub(super) fn recheck(&self, domain: &Domain, pd: &ProtectionDomain) {
        // SAFETY: nothing is registered or closed through the table here.
        let table = unsafe { domain.device.protection() };
        let may_send = |sge: &Sge| {
            let (addr, len) = (sge.addr, u64::from(sge.len));
            let allowed = table.check_local(pd.id, sge.key, addr, len, LocalUse::Send);
            allowed.is_ok()
        };
        if !self.named.iter().all(may_send) {
            let _ = domain.device.deregister(self.region);
        }
    }

    /// Revokes the key if no peer is using it. Never waits; returns whether the key is revoked.
    pub(super) fn try_withdraw(&self, domain: &Domain) -> bool {
        match domain.device.try_deregister(self.region) {
            Ok(false) => return false,
            Ok(true) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot deregister {} of a message", self.region.id);
            }
        }
        self.forget(domain);
        true
    }

    /// Revokes the key, and waits until no peer uses it.
    pub(super) fn withdraw(&self, domain: &Domain) {
        self.forget(domain);
        let _ = domain.device.deregister(self.region);
    }

    fn forget(&self, domain: &Domain) {
        for sge in &self.named {
            domain.exposed.remove(sge.key, self.region);
        }
    }
}

/// The memory of scatter/gather entries, range by range, and the copier of each range.
fn ranges_of(
    domain: &Domain,
    pd: &ProtectionDomain,
    sges: &[Sge],
    copiers: &mut Vec<Copier>,
) -> Result<Vec<VaRange>> {
    // SAFETY: nothing is registered or closed through the table here.
    let table = unsafe { domain.device.protection() };
    let mut ranges = Vec::new();
    for sge in sges {
        let (addr, len) = (sge.addr, u64::from(sge.len));
        let grant = table
            .check_local(pd.id, sge.key, addr, len, LocalUse::Send)
            .map_err(|denial| super::payload::not_allowed(&denial))?;
        for span in grant.spans() {
            ranges.push(span.range());
            copiers.push(span.copier());
        }
    }
    Ok(ranges)
}

/// The bytes of a message in the program's memory.
struct Bytes<'a> {
    ep: &'a Endpoint,
    iov: &'a [iovec],
    sges: Sges,
}

impl PayloadSource<EpHost> for Bytes<'_> {
    #[inline]
    fn sges(&self) -> &[Sge] {
        &self.sges
    }

    fn copy(&self, into: &mut [u8]) -> RdmResult<()> {
        let ep = self.ep;
        match ep.domain.hmem && !self.sges.is_empty() {
            true => Ok(load(&ep.domain, &ep.pd, &self.sges, into, LocalUse::Send)?),
            false => Ok(gather(&ep.domain, self.iov, into)?),
        }
    }

    fn expose(&self) -> RdmResult<(Exposed, u32)> {
        let (domain, pd) = (&self.ep.domain, &self.ep.pd);
        let exposed = Exposed::new(domain, pd, self.iov, &self.sges, Box::default())?;
        let key = exposed.region.key.0;
        Ok((exposed, key))
    }
}

/// The total length of a list of buffers, in bytes.
pub(super) fn total(iov: &[iovec]) -> Result<usize> {
    iov.iter()
        .try_fold(0usize, |sum, buffer| sum.checked_add(buffer.iov_len))
        .filter(|&sum| sum <= MAX_MSG_SIZE)
        .ok_or_else(|| too_long("a message", MAX_MSG_SIZE))
}

#[cold]
fn too_long(what: &str, most: usize) -> FiError {
    FiError::MSGSIZE.because(format_args!("{what} may have at most {most} B"))
}

impl BoundCq {
    /// Whether an operation with these flags reports its success.
    #[inline]
    pub(super) fn reports(side: Option<&Self>, flags: u64) -> bool {
        let selective = side.is_some_and(|side| side.selective);
        flags & QUIET == 0 && side.is_some() && (!selective || flags & FI_COMPLETION != 0)
    }
}

impl Endpoint {
    /// Sends a message.
    pub(super) fn send(&self, message: &Message<'_>) -> Result<()> {
        self.check_caps(
            FI_SEND
                | if message.tag.is_some() {
                    FI_TAGGED
                } else {
                    FI_MSG
                },
        )?;
        let live = self.live()?;
        let len = total(message.iov)?;
        let (kind, form, limit) = match message.tag {
            Some(_) => (FI_TAGGED, Form::Tagged, Limits::TAGGED),
            None => (FI_MSG, Form::Message, Limits::MESSAGE),
        };
        self.limits.check(limit, message.flags, len)?;
        let inject = message.flags & FI_INJECT != 0;
        // Bytes that are copied at once need no registration (fi_msg(3)), so their descriptors are ignored.
        let (iov, desc) = (message.iov, message.desc);
        let mut held = Held::default();
        let sges = match inject {
            true => Sges::new(),
            false => sges(&self.domain, &self.pd, iov, desc, LocalUse::Send, &mut held)?,
        };
        let body = Bytes {
            ep: self,
            iov,
            sges,
        };
        let header = Header {
            tagged: message.tag.is_some(),
            has_data: message.data.is_some(),
            confirm: message.flags & FI_DELIVERY_COMPLETE != 0,
            tag: message.tag.unwrap_or(0),
            data: message.data.unwrap_or(0),
            len: len as u32,
            ..Header::new(Kind::Message)
        };
        let context = message.context as usize;
        let report = BoundCq::reports(live.host.tx.as_ref(), message.flags);
        let plain = Plain {
            context,
            form,
            report,
        };
        let (mut state, connection) = self.connection_to(live, message.to, message.flags)?;
        self.with_room(live, &mut state, connection, 1, report, |state| {
            let it = Outgoing {
                connection,
                header,
                inject,
                plain: (message.deferred.is_none() && held.is_empty()).then_some(plain),
            };
            let posted = || Posted {
                context,
                flags: FI_SEND | kind,
                report,
                counts: report::counts(message.deferred, SENT),
                held: held.clone(),
            };
            Ok(state.rdm.send(&live.host, &it, &body, posted)?)
        })
    }
}
