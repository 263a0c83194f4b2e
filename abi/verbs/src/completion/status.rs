//! Completions of the engine as `struct ibv_wc`.

use crate::sys::Wc;
use crate::sys::consts::*;
use rkey_device::engine::{Completion, CompletionFlags, CompletionOp, Status};

/// The status of a completion.
#[inline]
#[must_use]
pub const fn wc_status(status: Status) -> i32 {
    match status {
        Status::Success => WC_SUCCESS,
        Status::LocalLength => WC_LOC_LEN_ERR,
        Status::LocalQpOperation => WC_LOC_QP_OP_ERR,
        Status::LocalProtection => WC_LOC_PROT_ERR,
        Status::Flushed => WC_WR_FLUSH_ERR,
        Status::WindowBind => WC_MW_BIND_ERR,
        Status::BadResponse => WC_BAD_RESP_ERR,
        Status::LocalAccess => WC_LOC_ACCESS_ERR,
        Status::RemoteInvalidRequest => WC_REM_INV_REQ_ERR,
        Status::RemoteAccess => WC_REM_ACCESS_ERR,
        Status::RemoteOperation => WC_REM_OP_ERR,
        Status::RetryExceeded => WC_RETRY_EXC_ERR,
        Status::RnrRetryExceeded => WC_RNR_RETRY_EXC_ERR,
        Status::RemoteAborted => WC_REM_ABORT_ERR,
        Status::Fatal => WC_FATAL_ERR,
    }
}

/// The kind of work request that completed.
#[inline]
#[must_use]
pub const fn wc_opcode(opcode: CompletionOp) -> i32 {
    match opcode {
        CompletionOp::Send => WC_SEND,
        CompletionOp::Write => WC_RDMA_WRITE,
        CompletionOp::Read => WC_RDMA_READ,
        CompletionOp::CompareSwap => WC_COMP_SWAP,
        CompletionOp::FetchAdd => WC_FETCH_ADD,
        CompletionOp::AtomicWrite => WC_ATOMIC_WRITE,
        CompletionOp::Bind => WC_BIND_MW,
        CompletionOp::Invalidate => WC_LOCAL_INV,
        CompletionOp::Recv => WC_RECV,
        CompletionOp::RecvWriteImm => WC_RECV_RDMA_WITH_IMM,
    }
}

/// The flags of a completion.
#[inline]
#[must_use]
pub fn wc_flags(flags: CompletionFlags) -> u32 {
    let mut out = 0;
    if flags.contains(CompletionFlags::GRH) {
        out |= WC_GRH;
    }
    if flags.contains(CompletionFlags::IMM) {
        out |= WC_WITH_IMM;
    }
    if flags.contains(CompletionFlags::INVALIDATED) {
        out |= WC_WITH_INV;
    }
    out
}

/// The service level. RoCE has none; for datagrams from other hosts, ConnectX devices report the kind of the packet here instead (bit
/// 3: UDP; bits 0 to 2: 1 for IPv6, 2 for IPv4), and UCX relies on it to find the addresses in the route header.
#[inline]
#[must_use]
pub fn wc_sl(flags: CompletionFlags) -> u8 {
    const UDP: u8 = 1 << 3;
    if flags.contains(CompletionFlags::IPV4) {
        UDP | 2
    } else if flags.contains(CompletionFlags::IPV6) {
        UDP | 1
    } else {
        0
    }
}

/// Immediate data in network byte order, or the invalidated key in host byte order.
#[inline]
#[must_use]
pub const fn wc_imm(completion: &Completion) -> u32 {
    if completion.flags.contains(CompletionFlags::INVALIDATED) {
        completion.imm
    } else {
        completion.imm.to_be()
    }
}

/// A whole completion.
#[inline]
#[must_use]
pub fn wc(completion: &Completion) -> Wc {
    Wc {
        wr_id: completion.id,
        status: wc_status(completion.status),
        opcode: wc_opcode(completion.opcode),
        vendor_err: completion.vendor,
        byte_len: completion.bytes,
        imm_data: wc_imm(completion),
        qp_num: completion.qpn,
        src_qp: completion.src_qpn,
        wc_flags: wc_flags(completion.flags),
        sl: wc_sl(completion.flags),
        ..Wc::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUSES: [Status; 15] = [
        Status::Success,
        Status::LocalLength,
        Status::LocalQpOperation,
        Status::LocalProtection,
        Status::Flushed,
        Status::WindowBind,
        Status::BadResponse,
        Status::LocalAccess,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::RnrRetryExceeded,
        Status::RemoteAborted,
        Status::Fatal,
    ];

    #[test]
    fn each_completion_status_has_its_own_number() {
        let mut numbers: Vec<_> = STATUSES.iter().map(|&s| wc_status(s)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), STATUSES.len());
        assert_eq!(wc_status(Status::Success), 0);
    }

    #[test]
    fn only_opcodes_of_receives_have_the_receive_bit() {
        for (opcode, recv) in [
            (CompletionOp::Send, false),
            (CompletionOp::Write, false),
            (CompletionOp::Read, false),
            (CompletionOp::CompareSwap, false),
            (CompletionOp::FetchAdd, false),
            (CompletionOp::AtomicWrite, false),
            (CompletionOp::Bind, false),
            (CompletionOp::Invalidate, false),
            (CompletionOp::Recv, true),
            (CompletionOp::RecvWriteImm, true),
        ] {
            assert_eq!(wc_opcode(opcode) & WC_RECV != 0, recv);
        }
    }

    #[test]
    fn the_service_level_tells_ipv4_from_ipv6() {
        let sl = |flags| {
            let flags = CompletionFlags::GRH | flags;
            wc(&Completion {
                flags,
                ..Completion::default()
            })
            .sl
        };
        let of = [CompletionFlags::IPV4, CompletionFlags::IPV6];
        assert_eq!(of.map(sl), [0b1010, 0b1001]);
        assert_eq!(sl(CompletionFlags::empty()), 0);
    }

    #[test]
    fn immediate_data_is_in_network_order_and_invalidated_keys_are_not() {
        let mut completion = Completion {
            imm: 0x0102_0304,
            flags: CompletionFlags::IMM,
            ..Completion::default()
        };
        assert_eq!(wc(&completion).imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        completion.flags = CompletionFlags::INVALIDATED | CompletionFlags::GRH;
        let out = wc(&completion);
        assert_eq!(
            (out.imm_data, out.wc_flags),
            (0x0102_0304, WC_WITH_INV | WC_GRH)
        );
    }
}
