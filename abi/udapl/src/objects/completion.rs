//! Converts completions of the device into events.

use crate::objects::ep::Ep;
use crate::objects::requests::RequestKind;
use crate::sys::consts::*;
use crate::sys::{
    Context, IbAddrHandle, IbExtensionEventData, IbExtensionEventSubject, IbExtensionEventValue,
    IbImmedData,
};
use crate::values::event::{Queued, bind, dto, extended};
use rkey_device::engine::{Completion, CompletionFlags, CompletionOp, Status};

/// The status of a DTO (DA-I11, DA-I15).
#[must_use]
pub const fn status(status: Status) -> dat_dto_completion_status {
    match status {
        Status::Success => DTO_SUCCESS,
        Status::Flushed => DTO_ERR_FLUSHED,
        Status::LocalLength => DTO_ERR_LOCAL_LENGTH,
        Status::LocalQpOperation | Status::Fatal => DTO_ERR_LOCAL_EP,
        Status::LocalProtection | Status::LocalAccess => DTO_ERR_LOCAL_PROTECTION,
        Status::BadResponse => DTO_ERR_BAD_RESPONSE,
        Status::RemoteAccess => DTO_ERR_REMOTE_ACCESS,
        Status::RemoteInvalidRequest | Status::RemoteOperation => DTO_ERR_REMOTE_RESPONDER,
        Status::RetryExceeded => DTO_ERR_TRANSPORT,
        Status::RnrRetryExceeded => DTO_ERR_RECEIVER_NOT_READY,
        Status::RemoteAborted => DTO_ERR_PARTIAL_PACKET,
        Status::WindowBind => RMR_OPERATION_FAILED,
    }
}

/// The event for a completion; `None` if the program wants no event.
#[inline]
pub fn translate(ep: &Ep, completion: &Completion) -> Option<Queued> {
    if completion.opcode.is_recv() {
        return Some(received(ep, completion));
    }
    let done = status(completion.status);
    let posted = ep.sends.lock().take(completion.id)?;
    let length = match completion.status {
        Status::Success => completion.bytes,
        _ => 0,
    };
    let plain = |operation| dto(ep.handle, posted.cookie, done, length, operation);
    let event = match &posted.what {
        RequestKind::Send | RequestKind::Receive => plain(DTO_SEND),
        RequestKind::Write => plain(DTO_RDMA_WRITE),
        RequestKind::Read => plain(DTO_RDMA_READ),
        RequestKind::WriteImmediate => extended(
            plain(IB_DTO_RDMA_WRITE_IMMED),
            &extension(IB_RDMA_WRITE_IMMED, done, 0),
        ),
        RequestKind::FetchAdd => extended(
            plain(IB_DTO_FETCH_ADD),
            &extension(IB_FETCH_AND_ADD, done, 0),
        ),
        RequestKind::CompareSwap => {
            extended(plain(IB_DTO_CMP_SWAP), &extension(IB_CMP_AND_SWAP, done, 0))
        }
        RequestKind::Datagram => extended(plain(IB_DTO_SEND_UD), &extension(IB_UD_SEND, done, 0)),
        RequestKind::Bind(rmr, to) => {
            if completion.status.is_success() {
                rmr.set_bound(*to);
            }
            let done = match completion.status {
                Status::Success | Status::Flushed => done,
                _ => RMR_OPERATION_FAILED,
            };
            bind(rmr.handle, posted.cookie, done)
        }
    };
    // A failure always notifies.
    let notify = posted.notify || !completion.status.is_success();
    Some(Queued { event, notify })
}

/// The event for a receive.
fn received(ep: &Ep, completion: &Completion) -> Queued {
    let done = status(completion.status);
    let success = completion.status.is_success();
    let quiet = ep.quiet_receives();
    let (cookie, asked) = match quiet {
        true => match ep.recvs.lock().take(completion.id) {
            Some(posted) => (posted.cookie, posted.notify),
            None => (completion.id, true),
        },
        false => (completion.id, true),
    };
    let length = if success { completion.bytes } else { 0 };
    let plain = |operation| dto(ep.handle, cookie, done, length, operation);
    let immediate = success && completion.flags.contains(CompletionFlags::IMM);
    let event = if ep.is_datagram() {
        let mut data = extension(IB_UD_RECV, done, completion.imm);
        data.subject.remote_ah = ep.source_of(completion.src_qpn);
        let operation = match immediate {
            true => IB_DTO_RECV_UD_IMMED,
            false => IB_DTO_RECV_UD,
        };
        extended(plain(operation), &data)
    } else if immediate {
        let (operation, kind) = match completion.opcode {
            CompletionOp::RecvWriteImm => (IB_DTO_RECV_IMMED, IB_RDMA_WRITE_IMMED_DATA),
            _ => (IB_DTO_RECV_MSG_IMMED, IB_RECV_IMMED_DATA),
        };
        extended(plain(operation), &extension(kind, done, completion.imm))
    } else {
        plain(DTO_RECEIVE)
    };
    let solicited = completion.flags.contains(CompletionFlags::SOLICITED);
    let notify = !success || (asked && (solicited || !ep.waits_for_solicited()));
    Queued { event, notify }
}

/// The data of an extended event.
#[must_use]
pub fn extension(
    kind: dat_ib_ext_type,
    status: dat_dto_completion_status,
    data: u32,
) -> IbExtensionEventData {
    IbExtensionEventData {
        kind,
        status: match status {
            DTO_SUCCESS => OP_SUCCESS,
            _ => IB_OP_ERR,
        },
        val: IbExtensionEventValue {
            immed: IbImmedData { data },
        },
        subject: IbExtensionEventSubject {
            remote_ah: IbAddrHandle {
                ah: std::ptr::null_mut(),
                qpn: 0,
                ia_addr: libc::sockaddr_in6 {
                    sin6_family: 0,
                    sin6_port: 0,
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
                    sin6_scope_id: 0,
                },
            },
        },
        context: Context { as_64: 0 },
    }
}
