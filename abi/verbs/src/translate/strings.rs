//! The texts for constants (`ibv_*_str`), and conversions of rates (`ibv_rate_to_*`).

use crate::sys::consts::*;
use std::ffi::{CStr, c_char};

/// The text for a number, or `unknown`.
fn text(list: &[(i32, &'static CStr)], number: i32, unknown: &'static CStr) -> *const c_char {
    list.iter()
        .find(|(n, _)| *n == number)
        .map_or(unknown, |(_, text)| *text)
        .as_ptr()
}

const NODE_TEXTS: &[(i32, &CStr)] = &[
    (NODE_CA, c"InfiniBand channel adapter"),
    (NODE_SWITCH, c"InfiniBand switch"),
    (NODE_ROUTER, c"InfiniBand router"),
    (NODE_RNIC, c"iWARP NIC"),
    (NODE_USNIC, c"usNIC"),
    (NODE_USNIC_UDP, c"usNIC UDP"),
    (NODE_UNSPECIFIED, c"unspecified"),
];

const PORT_TEXTS: &[(i32, &CStr)] = &[
    (PORT_NOP, c"no state change (NOP)"),
    (PORT_DOWN, c"down"),
    (PORT_INIT, c"init"),
    (PORT_ARMED, c"armed"),
    (PORT_ACTIVE, c"active"),
    (PORT_ACTIVE_DEFER, c"active defer"),
];

const EVENT_TEXTS: &[(i32, &CStr)] = &[
    (EVENT_CQ_ERR, c"CQ error"),
    (EVENT_QP_FATAL, c"local work queue catastrophic error"),
    (EVENT_QP_REQ_ERR, c"invalid request local work queue error"),
    (
        EVENT_QP_ACCESS_ERR,
        c"local access violation work queue error",
    ),
    (EVENT_COMM_EST, c"communication established"),
    (EVENT_SQ_DRAINED, c"send queue drained"),
    (EVENT_PATH_MIG, c"path migrated"),
    (EVENT_PATH_MIG_ERR, c"path migration request error"),
    (EVENT_DEVICE_FATAL, c"local catastrophic error"),
    (EVENT_PORT_ACTIVE, c"port active"),
    (EVENT_PORT_ERR, c"port error"),
    (EVENT_LID_CHANGE, c"LID change"),
    (EVENT_PKEY_CHANGE, c"P_Key change"),
    (EVENT_SM_CHANGE, c"SM change"),
    (EVENT_SRQ_ERR, c"SRQ catastrophic error"),
    (EVENT_SRQ_LIMIT_REACHED, c"SRQ limit reached"),
    (EVENT_QP_LAST_WQE_REACHED, c"last WQE reached"),
    (EVENT_CLIENT_REREGISTER, c"client reregistration"),
    (EVENT_GID_CHANGE, c"GID table change"),
    (EVENT_WQ_FATAL, c"WQ fatal"),
];

const STATUS_TEXTS: &[(i32, &CStr)] = &[
    (WC_SUCCESS, c"success"),
    (WC_LOC_LEN_ERR, c"local length error"),
    (WC_LOC_QP_OP_ERR, c"local QP operation error"),
    (WC_LOC_EEC_OP_ERR, c"local EE context operation error"),
    (WC_LOC_PROT_ERR, c"local protection error"),
    (WC_WR_FLUSH_ERR, c"Work Request Flushed Error"),
    (WC_MW_BIND_ERR, c"memory management operation error"),
    (WC_BAD_RESP_ERR, c"bad response error"),
    (WC_LOC_ACCESS_ERR, c"local access error"),
    (WC_REM_INV_REQ_ERR, c"remote invalid request error"),
    (WC_REM_ACCESS_ERR, c"remote access error"),
    (WC_REM_OP_ERR, c"remote operation error"),
    (WC_RETRY_EXC_ERR, c"transport retry counter exceeded"),
    (WC_RNR_RETRY_EXC_ERR, c"RNR retry counter exceeded"),
    (WC_LOC_RDD_VIOL_ERR, c"local RDD violation error"),
    (WC_REM_INV_RD_REQ_ERR, c"remote invalid RD request"),
    (WC_REM_ABORT_ERR, c"aborted error"),
    (WC_INV_EECN_ERR, c"invalid EE context number"),
    (WC_INV_EEC_STATE_ERR, c"invalid EE context state"),
    (WC_FATAL_ERR, c"fatal error"),
    (WC_RESP_TIMEOUT_ERR, c"response timeout error"),
    (WC_GENERAL_ERR, c"general error"),
    (WC_TM_ERR, c"TM error"),
    (WC_TM_RNDV_INCOMPLETE, c"TM software rendezvous"),
];

/// `ibv_node_type_str`.
pub extern "C" fn node_type_str(number: i32) -> *const c_char {
    text(NODE_TEXTS, number, c"unknown")
}

/// `ibv_port_state_str`.
pub extern "C" fn port_state_str(number: i32) -> *const c_char {
    text(PORT_TEXTS, number, c"unknown")
}

/// `ibv_event_type_str`.
pub extern "C" fn event_type_str(number: i32) -> *const c_char {
    text(EVENT_TEXTS, number, c"unknown")
}

/// `ibv_wc_status_str`.
pub extern "C" fn wc_status_str(number: i32) -> *const c_char {
    text(STATUS_TEXTS, number, c"unknown")
}

/// Each `enum ibv_rate`, as a multiple of 2.5 Gbit/s (-1: not a multiple) and in Mbit/s.
const RATES: &[(i32, i32, i32)] = &[
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10000),
    (6, 8, 20000),
    (4, 12, 30000),
    (7, 16, 40000),
    (8, 24, 60000),
    (9, 32, 80000),
    (10, 48, 120000),
    (11, -1, 14062),
    (12, -1, 56250),
    (13, -1, 112500),
    (14, -1, 168750),
    (15, -1, 25781),
    (16, -1, 103125),
    (17, -1, 206250),
    (18, -1, 309375),
    (19, 11, 28125),
    (20, 20, 53125),
    (21, 160, 425000),
    (22, 240, 637500),
    (23, 320, 850000),
    (24, 480, 1275000),
];

/// `ibv_rate_to_mult`: -1 for an unknown rate.
pub extern "C" fn rate_to_mult(rate: i32) -> i32 {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.1)
}

/// `mult_to_ibv_rate`: `IBV_RATE_MAX` (0) if no rate matches.
pub extern "C" fn mult_to_rate(mult: i32) -> i32 {
    RATES
        .iter()
        .find(|r| r.1 == mult && mult > 0)
        .map_or(0, |r| r.0)
}

/// `ibv_rate_to_mbps`: -1 for an unknown rate.
pub extern "C" fn rate_to_mbps(rate: i32) -> i32 {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

/// `mbps_to_ibv_rate`: `IBV_RATE_MAX` (0) if no rate matches.
pub extern "C" fn mbps_to_rate(mbps: i32) -> i32 {
    RATES.iter().find(|r| r.2 == mbps).map_or(0, |r| r.0)
}

const OPCODE_TEXTS: &[(i32, &CStr)] = &[
    (WR_RDMA_WRITE, c"RDMA write"),
    (WR_RDMA_WRITE_WITH_IMM, c"RDMA write with immediate"),
    (WR_SEND, c"send"),
    (WR_SEND_WITH_IMM, c"send with immediate"),
    (WR_RDMA_READ, c"RDMA read"),
    (WR_ATOMIC_CMP_AND_SWP, c"compare and swap"),
    (WR_ATOMIC_FETCH_AND_ADD, c"fetch and add"),
    (WR_LOCAL_INV, c"local invalidate"),
    (WR_BIND_MW, c"bind memory window"),
    (WR_SEND_WITH_INV, c"send with invalidate"),
    (WR_TSO, c"TSO"),
    (WR_DRIVER1, c"driver 1"),
    (WR_ATOMIC_WRITE, c"atomic write"),
];

/// `ibv_wr_opcode_str`, which only some versions' headers declare. The symbol version that a program expects depends on
/// the library that it was linked with; a symbol without a version satisfies all of them.
#[allow(unsafe_code)] // UNSAFETY: exports a name of verbs.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wr_opcode_str(opcode: i32) -> *const c_char {
    text(OPCODE_TEXTS, opcode, c"unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_event_and_opcode_has_a_text() {
        assert_eq!(NODE_TEXTS.len() + 1, NODE_TYPES.len());
        assert_eq!(PORT_TEXTS.len(), PORT_STATES.len());
        assert_eq!(EVENT_TEXTS.len(), EVENT_TYPES.len());
        assert_eq!(STATUS_TEXTS.len(), WC_STATUSES.len());
        assert_eq!(OPCODE_TEXTS.len(), WR_OPCODES.len());
        for number in [-5, 99, i32::MAX, i32::MIN] {
            assert!(!wc_status_str(number).is_null() && !event_type_str(number).is_null());
        }
    }

    #[test]
    fn rates_are_translated_both_ways() {
        for &(rate, mult, mbps) in RATES {
            assert_eq!(rate_to_mbps(rate), mbps);
            assert_eq!(mbps_to_rate(mbps), rate);
            assert_eq!(rate_to_mult(rate), mult);
            if mult > 0 {
                assert_eq!(mult_to_rate(mult), rate);
            }
        }
        assert_eq!(
            (mult_to_rate(-1), mbps_to_rate(1), rate_to_mbps(77)),
            (0, 0, -1)
        );
    }
}
