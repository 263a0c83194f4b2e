//! `fi_rma`: reads and writes of a peer's memory.
//!
//! They are work requests of the connection; the peer's device carries them out. Remote completion data
//! follows as a message on the same connection, so that it is read after the bytes are there.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read lists of the program.

use super::connection::NOBODY;
use super::header::{Header, Kind, MAX_LEN};
use super::msg::{descriptors, single};
use super::object::EpObject;
use super::operation::{Hold, Operation, What};
use super::receive::part;
use super::send::{Descriptors, QUIET, total};
use super::*;
use crate::cq::Entry;
use crate::info::offer::RMA_IOV_LIMIT;
use crate::mr::raw;
use crate::object::{find, input, list, transfer};
use libc::iovec;
use rkey_device::core::{LocalUse, WireKey};
use rkey_device::engine::{SendFlags, Target, Work};
use std::ffi::c_void;

pub(super) static OPS: OpsRma = OpsRma {
    size: size_of::<OpsRma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

const READ_FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_FENCE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_INJECT_COMPLETE;
const WRITE_FLAGS: u64 = READ_FLAGS | FI_INJECT | FI_REMOTE_CQ_DATA;

/// A transfer between local and remote memory.
struct Transfer<'a> {
    iov: &'a [iovec],
    desc: Descriptors<'a>,
    peer: u64,
    remote: &'a [RmaIov],
    data: Option<u64>,
    context: *mut c_void,
    flags: u64,
}

/// What a key of the program's names at the peer of a connection.
pub(super) fn wire_key(ep: &Endpoint, device_keys: bool, key: u64) -> Result<WireKey> {
    raw::resolve(&ep.domain, key, device_keys).ok_or_else(|| {
        tracing::warn!(
            "key {key:#x} was not mapped with fi_mr_map_raw, as the domain's FI_MR_RAW asks for"
        );
        FiError::NOKEY
    })
}

impl Endpoint {
    fn transfer(&self, it: &Transfer<'_>, reads: bool) -> Result<()> {
        self.check_caps(FI_RMA | if reads { FI_READ } else { FI_WRITE })?;
        let live = self.live()?;
        let len = total(it.iov)?;
        let there = it
            .remote
            .iter()
            .try_fold(0usize, |sum, piece| sum.checked_add(piece.len));
        if it.remote.is_empty() || it.remote.len() > RMA_IOV_LIMIT || there != Some(len) {
            return Err(FiError::INVAL);
        }
        let inject = it.flags & FI_INJECT != 0;
        if inject && len > crate::info::offer::INJECT_SIZE {
            return Err(FiError::MSGSIZE);
        }
        let usage = if reads {
            LocalUse::ReadSink
        } else {
            LocalUse::WriteSource
        };
        let (mut sges, hold) = if inject {
            let mut bytes = vec![0; len].into_boxed_slice();
            self.gather(it.iov, &mut bytes)?;
            let key = self.group.everything();
            let sge = Sge {
                addr: bytes.as_ptr() as u64,
                len: len as u32,
                key,
            };
            (vec![sge], Hold::Bytes(bytes))
        } else {
            (self.elements(it.iov, it.desc, usage)?, Hold::Nothing)
        };
        sges.retain(|sge| sge.len > 0);
        let posts = it.remote.len() as u32 + u32::from(it.data.is_some());
        let (mut state, connection) = self.connection_to(live, it.peer)?;
        if Self::check_room(&state, connection, posts).is_err() {
            self.advance(live, &mut state);
            Self::check_room(&state, connection, posts)?;
        }
        let device_keys = state.connections[connection].device_keys;
        let keys = it
            .remote
            .iter()
            .map(|piece| wire_key(self, device_keys, piece.key))
            .collect::<Result<Vec<_>>>()?;
        let place = if reads { READ } else { WRITTEN };
        let id = state.operations.add(Operation {
            left: posts,
            error: None,
            what: What::Transmit,
            entry: Entry {
                context: it.context as usize,
                flags: FI_RMA | if reads { FI_READ } else { FI_WRITE },
                ..Entry::default()
            },
            report: Self::reports(live.tx.as_ref(), it.flags),
            counts: Some(place),
            connection,
            answered: false,
            hold,
        });
        let mut skip = 0;
        for (index, (piece, key)) in it.remote.iter().zip(keys).enumerate() {
            let remote = Target {
                addr: piece.addr,
                key,
            };
            let work = match reads {
                true => Work::Read { remote },
                false => Work::Write { remote, imm: None },
            };
            let local = if it.remote.len() == 1 {
                sges.clone()
            } else {
                part(&sges, skip, piece.len)
            };
            skip += piece.len;
            let fence = it.flags & FI_FENCE != 0 && index == 0;
            let flags = if fence {
                SendFlags::FENCE
            } else {
                SendFlags::empty()
            };
            if let Err(error) = self.post(&mut state, connection, work, &local, None, flags, id) {
                return self.cut_short(live, &mut state, id, index as u32, error);
            }
        }
        if let Some(data) = it.data {
            let header = Header {
                data,
                len: len as u32,
                ..Header::new(Kind::WriteData)
            };
            let mut head = [0; MAX_LEN];
            let head_len = header.encode(&mut head);
            let send = Work::Send {
                imm: None,
                invalidate: None,
            };
            let (head, none) = (&head[..head_len], SendFlags::empty());
            let posted = self.post(&mut state, connection, send, &[], Some(head), none, id);
            if let Err(error) = posted {
                return self.cut_short(live, &mut state, id, posts - 1, error);
            }
        }
        Ok(())
    }

    /// A transfer of several requests of which only some could be posted: it fails when these are complete.
    #[cold]
    fn cut_short(
        &self,
        live: &Live,
        state: &mut State,
        id: u64,
        posted: u32,
        error: FiError,
    ) -> Result<()> {
        if posted == 0 {
            state.operations.take(id);
            return Err(error);
        }
        if let Some(operation) = state.operations.get(id) {
            operation.error.get_or_insert((error, Vec::new()));
            operation.left = posted;
        }
        debug_assert_ne!(id, NOBODY);
        self.advance(live, state);
        Ok(())
    }
}

/// The remote side of a transfer to one place.
fn place(addr: u64, len: usize, key: u64) -> [RmaIov; 1] {
    [RmaIov { addr, len, key }]
}

/// The bytes of a list, for the calls that have only one remote place.
fn sum(iov: &[iovec]) -> usize {
    iov.iter()
        .fold(0, |sum: usize, piece| sum.saturating_add(piece.iov_len))
}

unsafe extern "C" fn read(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        let (iov, desc, remote) = (
            &single(buf, len),
            Descriptors::One(desc),
            &place(addr, len, key),
        );
        let flags = ep.tx_flags;
        ep.transfer(
            &Transfer {
                iov,
                desc,
                peer,
                remote,
                data: None,
                context,
                flags,
            },
            true,
        )
    })
}

unsafe extern "C" fn readv(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; lists as the caller promises.
        let (ep, iov, desc) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                list(iov, count)?,
                descriptors(desc, count)?,
            )
        };
        let (remote, flags) = (&place(addr, sum(iov), key), ep.tx_flags);
        ep.transfer(
            &Transfer {
                iov,
                desc,
                peer,
                remote,
                data: None,
                context,
                flags,
            },
            true,
        )
    })
}

/// # Safety
/// A message and its lists, as fi_rma(3) asks for them.
unsafe fn message(ep: *mut FidEp, msg: *const MsgRma, flags: u64, reads: bool) -> Result<()> {
    // SAFETY: a handle, or something that is refused; the rest as the caller promises.
    let (ep, msg) = unsafe { (&find::<EpObject, _>(ep)?.inner, input(msg)?) };
    if flags & !(if reads { READ_FLAGS } else { WRITE_FLAGS }) != 0 {
        return Err(FiError::BADFLAGS);
    }
    // SAFETY: as above.
    let (iov, desc, remote) = unsafe {
        (
            list(msg.msg_iov, msg.iov_count)?,
            descriptors(msg.desc, msg.iov_count)?,
            list(msg.rma_iov, msg.rma_iov_count)?,
        )
    };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    let (peer, context) = (msg.addr, msg.context);
    ep.transfer(
        &Transfer {
            iov,
            desc,
            peer,
            remote,
            data,
            context,
            flags,
        },
        reads,
    )
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: arguments as the caller promises.
    transfer(|| unsafe { message(ep, msg, flags, true) })
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: arguments as the caller promises.
    transfer(|| unsafe { message(ep, msg, flags, false) })
}

/// A write of one buffer.
///
/// # Safety
/// A handle, or something that is refused.
#[allow(clippy::too_many_arguments)]
unsafe fn write_one(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: Option<u64>,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
    flags: Option<u64>,
) -> isize {
    transfer(|| {
        // SAFETY: as the caller promises.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        let (iov, desc, remote) = (
            &single(buf, len),
            Descriptors::One(desc),
            &place(addr, len, key),
        );
        let flags = flags.unwrap_or(ep.tx_flags);
        ep.transfer(
            &Transfer {
                iov,
                desc,
                peer,
                remote,
                data,
                context,
                flags,
            },
            false,
        )
    })
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: arguments as the caller promises.
    unsafe { write_one(ep, buf, len, desc, None, peer, addr, key, context, None) }
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused; lists as the caller promises.
        let (ep, iov, desc) = unsafe {
            (
                &find::<EpObject, _>(ep)?.inner,
                list(iov, count)?,
                descriptors(desc, count)?,
            )
        };
        let (remote, flags) = (&place(addr, sum(iov), key), ep.tx_flags);
        ep.transfer(
            &Transfer {
                iov,
                desc,
                peer,
                remote,
                data: None,
                context,
                flags,
            },
            false,
        )
    })
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    peer: u64,
    addr: u64,
    key: u64,
) -> isize {
    let (none, flags) = (std::ptr::null_mut(), Some(FI_INJECT | QUIET));
    // SAFETY: arguments as the caller promises.
    unsafe { write_one(ep, buf, len, none, None, peer, addr, key, none, flags) }
}

unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: arguments as the caller promises.
    unsafe {
        write_one(
            ep,
            buf,
            len,
            desc,
            Some(data),
            peer,
            addr,
            key,
            context,
            None,
        )
    }
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: u64,
    addr: u64,
    key: u64,
) -> isize {
    let (none, flags) = (std::ptr::null_mut(), Some(FI_INJECT | QUIET));
    // SAFETY: arguments as the caller promises.
    unsafe { write_one(ep, buf, len, none, Some(data), peer, addr, key, none, flags) }
}
