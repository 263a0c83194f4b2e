//! Messages out: with their payload when they are short, announced when they are long.

#![allow(unsafe_code)]
// UNSAFETY: reads and registers memory that the program hands over.

use super::deferred::Deferred;
use super::header::{Header, Kind, MAX_LEN};
use super::operation::{Hold, Operation, What};
use super::*;
use crate::cq::Entry;
use crate::info::offer::{IOV_LIMIT, MAX_DGRAM_SIZE, MAX_MSG_SIZE};
use crate::mr::local;
use libc::iovec;
use rkey_device::base::memory::Memory;
use rkey_device::base::range::VaRange;
use rkey_device::core::{Access, Addressing, LocalUse, Region, RegionSpec};
use rkey_device::engine::{SendFlags, Work};
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

/// The program's own calls to inject never report success.
pub(super) const QUIET: u64 = 1 << 63;

/// Bytes of a list of buffers.
pub(super) fn total(iov: &[iovec]) -> Result<usize> {
    iov.iter()
        .try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len))
        .filter(|&sum| sum <= MAX_MSG_SIZE)
        .ok_or(FiError::MSGSIZE)
}

/// The elements for a list of local buffers.
#[inline]
pub(super) fn elements(
    domain: &Domain,
    group: &Group,
    iov: &[iovec],
    desc: Descriptors<'_>,
    usage: LocalUse,
) -> Result<Vec<Sge>> {
    if iov.len() > IOV_LIMIT {
        return Err(FiError::INVAL);
    }
    let one = |(index, piece): (usize, &iovec)| {
        let at = piece.iov_base as u64;
        local::element(domain, group, at, piece.iov_len, desc.get(index), usage)
    };
    iov.iter().enumerate().map(one).collect()
}

impl Endpoint {
    /// Whether an operation with these flags reports its success.
    #[inline]
    pub(super) fn reports(side: Option<&Side>, flags: u64) -> bool {
        let selective = side.is_some_and(|side| side.selective);
        flags & QUIET == 0 && side.is_some() && (!selective || flags & FI_COMPLETION != 0)
    }

    /// The elements for a list of local buffers.
    #[inline]
    pub(super) fn elements(
        &self,
        iov: &[iovec],
        desc: Descriptors<'_>,
        usage: LocalUse,
    ) -> Result<Vec<Sge>> {
        elements(&self.domain, &self.group, iov, desc, usage)
    }

    /// Copies the bytes of buffers behind each other; `FI_EFAULT` if they are not there.
    #[inline]
    pub(super) fn gather(&self, iov: &[iovec], mut into: &mut [u8]) -> Result<()> {
        // SAFETY: buffers that the program hands over to be sent: they are its own, and readable or a fault.
        let memory = unsafe { self.domain.device.memory() };
        for piece in iov {
            let Some((place, rest)) = into.split_at_mut_checked(piece.iov_len) else {
                return Err(FiError::MSGSIZE);
            };
            memory
                .load_bytes(place, piece.iov_base as u64)
                .map_err(|_| FiError::FAULT)?;
            into = rest;
        }
        Ok(())
    }

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
        if self.ep_type == FI_EP_DGRAM && len > MAX_DGRAM_SIZE {
            return Err(FiError::MSGSIZE);
        }
        let inject = message.flags & FI_INJECT != 0;
        if inject && len > crate::info::offer::INJECT_SIZE {
            return Err(FiError::MSGSIZE);
        }
        // What is copied here and now needs no registration (fi_msg(3)); with descriptors it is checked anyway.
        let sges = match inject {
            true => Vec::new(),
            false => self.elements(message.iov, message.desc, LocalUse::Send)?,
        };
        let kind = match message.tag {
            Some(_) => FI_TAGGED,
            None => FI_MSG,
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
        let operation = Operation {
            left: 1,
            error: None,
            what: What::Transmit,
            entry: Entry {
                context: message.context as usize,
                flags: FI_SEND | kind,
                ..Entry::default()
            },
            report: Self::reports(live.tx.as_ref(), message.flags),
            counts: deferred::counts(
                message.deferred,
                (message.flags & QUIET == 0 || live.counters[SENT].is_some()).then_some(SENT),
            ),
            connection: 0,
            answered: false,
            turn: None,
            hold: Hold::Nothing,
        };
        let (mut state, connection) = self.connection_to(live, message.to)?;
        self.make_room(live, &mut state, connection, 1, operation.report)?;
        let operation = Operation {
            connection,
            ..operation
        };
        let credit = &mut state.connections[connection].credit;
        if len <= EAGER_MAX && (self.ep_type == FI_EP_DGRAM || credit.take(header.len)) {
            let sent =
                self.send_with_payload(&mut state, message.iov, sges, header, operation, inject);
            return sent.inspect_err(|_| state.connections[connection].credit.add(1, header.len));
        }
        if inject {
            let mut bytes = vec![0; len].into_boxed_slice();
            self.gather(message.iov, &mut bytes)?;
            let copy = [iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: len,
            }];
            return self.announce(&mut state, &copy, bytes, header, operation);
        }
        self.announce(&mut state, message.iov, Box::default(), header, operation)
    }

    pub(super) fn send_with_payload(
        &self,
        state: &mut State,
        iov: &[iovec],
        mut sges: Vec<Sge>,
        mut header: Header,
        mut operation: Operation,
        inject: bool,
    ) -> Result<()> {
        let len = header.len as usize;
        let connection = operation.connection;
        let confirm = header.confirm;
        if confirm {
            operation.left += 1;
            operation.answered = true;
        }
        let id = self.begin(state, operation);
        header.id = if confirm { id } else { 0 };
        let mut head = [0; MAX_LEN];
        let head_len = header.encode(&mut head);
        let send = Work::Send {
            imm: None,
            invalidate: None,
        };
        let none = SendFlags::empty();
        let posted = if head_len + len <= INLINE_MAX {
            let mut bytes = [0; INLINE_MAX];
            bytes[..head_len].copy_from_slice(&head[..head_len]);
            self.gather(iov, &mut bytes[head_len..head_len + len])
                .and_then(|()| {
                    let bytes = &bytes[..head_len + len];
                    self.post(state, connection, send, &[], Some(bytes), none, id)
                })
        } else {
            let mut bytes = head[..head_len].to_vec();
            let gathered = if inject {
                bytes.resize(head_len + len, 0);
                self.gather(iov, &mut bytes[head_len..])
            } else {
                Ok(())
            };
            let bytes = bytes.into_boxed_slice();
            sges.insert(
                0,
                Sge {
                    addr: bytes.as_ptr() as u64,
                    len: bytes.len() as u32,
                    key: self.group.everything(),
                },
            );
            if let Some(operation) = state.operations.get(id) {
                operation.hold = Hold::Bytes(bytes);
            }
            gathered.and_then(|()| self.post(state, connection, send, &sges, None, none, id))
        };
        posted.inspect_err(|_| drop(state.forget(id)))
    }

    /// Tells the peer where it can read the payload. The key is good until the peer has it.
    pub(super) fn announce(
        &self,
        state: &mut State,
        iov: &[iovec],
        copy: Box<[u8]>,
        mut header: Header,
        mut operation: Operation,
    ) -> Result<()> {
        let ranges: Option<Vec<VaRange>> = iov
            .iter()
            .filter(|piece| piece.iov_len > 0)
            .map(|piece| VaRange::new(piece.iov_base as u64, piece.iov_len as u64))
            .collect();
        let ranges = ranges.ok_or(FiError::FAULT)?;
        operation.left += 1;
        operation.answered = true;
        if ranges.is_empty() {
            header.kind = header.kind.announced(0);
            return self.post_announced(state, header, operation, None);
        }
        let spec = RegionSpec {
            addressing: Addressing::Zero,
            internal: true,
            ..RegionSpec::new(self.group.id, &ranges, Access::REMOTE_READ)
        };
        // SAFETY: the program hands the buffers over until the send is complete; peers only read them.
        let region = unsafe { self.domain.device.register(&spec)? };
        operation.hold = Hold::Region(region, copy);
        header.kind = header.kind.announced(region.key.0);
        self.post_announced(state, header, operation, Some(region))
    }

    fn post_announced(
        &self,
        state: &mut State,
        mut header: Header,
        operation: Operation,
        region: Option<Region>,
    ) -> Result<()> {
        let connection = operation.connection;
        let id = self.begin(state, operation);
        header.id = id;
        let mut head = [0; MAX_LEN];
        let len = header.encode(&mut head);
        let send = Work::Send {
            imm: None,
            invalidate: None,
        };
        let none = SendFlags::empty();
        self.post(state, connection, send, &[], Some(&head[..len]), none, id)
            .inspect_err(|_| {
                state.forget(id);
                if let Some(region) = region {
                    let _ = self.domain.device.close_region(region);
                }
            })
    }
}
