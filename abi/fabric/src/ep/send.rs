//! Messages out: with their payload when they are short, by rendezvous when they are long.

#![allow(unsafe_code)]
// UNSAFETY: reads and registers memory that the program hands over.

use super::deferred::Deferred;
use super::elements::elements;
use super::operation::{Hold, Operation, What};
use super::options::Limits;
use super::*;
use crate::cq::Entry;
use crate::info::offer::MAX_MSG_SIZE;
use libc::iovec;
use rkey_device::base::memory::Memory;
use rkey_device::core::LocalUse;
use rkey_device::engine::{SendFlags, SendRequest, Work};
use rkey_rdm::header::{Header, Kind, MAX_LEN};
use rkey_rdm::operation::{Form, Plain};
use smallvec::smallvec;
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

pub(super) const SEND: Work = Work::Send {
    imm: None,
    invalidate: None,
};

/// A message of this length fits behind any header into what is copied when a request is posted.
const SHORT: usize = INLINE_MAX - MAX_LEN;

/// A send of a header and the memory behind it.
#[inline]
fn with_front<'a>(id: u64, front: &'a [u8], sges: &'a [Sge]) -> SendRequest<'a> {
    SendRequest {
        front,
        ..SendRequest::new(id, SEND, sges)
    }
}

/// Bytes of a list of buffers.
pub(super) fn total(iov: &[iovec]) -> Result<usize> {
    iov.iter()
        .try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len))
        .filter(|&sum| sum <= MAX_MSG_SIZE)
        .ok_or_else(|| too_long("a message", MAX_MSG_SIZE))
}

#[cold]
fn too_long(what: &str, most: usize) -> FiError {
    FiError::MSGSIZE.because(format_args!("{what} has {most} B at most"))
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
    ) -> Result<Sges> {
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
        let (kind, limit) = match message.tag {
            Some(_) => (FI_TAGGED, Limits::TAGGED),
            None => (FI_MSG, Limits::MESSAGE),
        };
        self.limits.check(limit, message.flags, len)?;
        let inject = message.flags & FI_INJECT != 0;
        // What is copied here and now needs no registration (fi_msg(3)); with descriptors it is checked anyway.
        let sges = match inject {
            true => Sges::new(),
            false => self.elements(message.iov, message.desc, LocalUse::Send)?,
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
        let report = Self::reports(live.tx.as_ref(), message.flags);
        let (mut state, connection) = self.connection_to(live, message.to)?;
        self.in_room(live, &mut state, connection, 1, report, |state| {
            let credit = &mut state.connections[connection].credit;
            let eager =
                len <= EAGER_MAX && (self.ep_type == FI_EP_DGRAM || credit.take(header.len));
            let operation = || Operation {
                left: 1,
                error: None,
                what: What::Transmit,
                entry: Entry {
                    context: message.context as usize,
                    flags: FI_SEND | kind,
                    ..Entry::default()
                },
                report,
                counts: deferred::counts(message.deferred, Some(SENT)),
                connection,
                answered: false,
                turn: None,
                hold: Hold::Nothing,
            };
            if eager {
                // Most messages amount to a plain operation, and need none to be made: what says otherwise is known here.
                let remembered = self.ep_type == FI_EP_MSG
                    || header.confirm
                    || message.deferred.is_some()
                    || inject && len > SHORT;
                let plain = Plain {
                    context: message.context as usize,
                    form: match message.tag {
                        Some(_) => Form::Tagged,
                        None => Form::Message,
                    },
                    report,
                };
                let iov = message.iov;
                let sent = match plain.number().filter(|_| !remembered) {
                    Some(id) => {
                        self.post_message(state, connection, iov, &sges, &header, inject, id)
                    }
                    None => self.send_with_payload(state, iov, sges, header, operation(), inject),
                };
                return sent
                    .inspect_err(|_| state.connections[connection].credit.add(1, header.len));
            }
            let operation = operation();
            if inject {
                let mut bytes = vec![0; len].into_boxed_slice();
                self.gather(message.iov, &mut bytes)?;
                let copy = [iovec {
                    iov_base: bytes.as_mut_ptr().cast(),
                    iov_len: len,
                }];
                return self.rendezvous(state, &copy, &[], bytes, header, operation);
            }
            let iov = message.iov;
            self.rendezvous(state, iov, &sges, Box::default(), header, operation)
        })
    }

    pub(super) fn send_with_payload(
        &self,
        state: &mut State,
        iov: &[iovec],
        mut sges: Sges,
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
        if inject && len > SHORT {
            let mut bytes = vec![0; len].into_boxed_slice();
            self.gather(iov, &mut bytes)?;
            sges = smallvec![Sge {
                addr: bytes.as_ptr() as u64,
                len: len as u32,
                key: self.group.everything(),
            }];
            operation.hold = Hold::Bytes(bytes);
        }
        let id = self.begin(state, operation);
        header.id = if confirm { id } else { 0 };
        self.post_message(state, connection, iov, &sges, &header, inject, id)
            .inspect_err(|_| drop(state.forget(id)))
    }

    /// Posts a message with its header in front. With `inject` a short one is copied now.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn post_message(
        &self,
        state: &mut State,
        connection: usize,
        iov: &[iovec],
        sges: &[Sge],
        header: &Header,
        inject: bool,
        id: u64,
    ) -> Result<()> {
        let len = header.len as usize;
        let mut head = [0; MAX_LEN];
        let head_len = header.encode(&mut head);
        let head = &head[..head_len];
        if inject && len <= SHORT {
            self.post_copied(state, connection, iov, head, len, id)
        } else {
            Self::post_request(state, connection, &with_front(id, head, sges))
        }
    }

    /// Posts a short message that is copied now.
    fn post_copied(
        &self,
        state: &mut State,
        connection: usize,
        iov: &[iovec],
        head: &[u8],
        len: usize,
        id: u64,
    ) -> Result<()> {
        let mut bytes = [0; INLINE_MAX];
        let (front, rest) = bytes.split_at_mut(head.len());
        front.copy_from_slice(head);
        self.gather(iov, &mut rest[..len])?;
        let bytes = Some(&bytes[..head.len() + len]);
        let none = SendFlags::empty();
        self.post(state, connection, SEND, &[], bytes, none, id)
    }
}
