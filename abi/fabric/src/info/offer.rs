//! The attributes that the provider offers for each kind of endpoint.

use crate::sys::*;
use std::ffi::{CString, c_int};

/// The maximum number of scatter/gather entries of a transfer.
pub(crate) const IOV_LIMIT: usize = 8;
/// The maximum number of remote entries of a transfer.
pub(crate) const RMA_IOV_LIMIT: usize = 8;
/// The maximum size of an injected message, in bytes.
pub(crate) const INJECT_SIZE: usize = 4096;
/// The capacity of an endpoint's transmit and receive contexts.
pub(crate) const TX_SIZE: usize = 1024;
pub(crate) const RX_SIZE: usize = 4096;
/// The maximum message size: that of one work request.
pub(crate) const MAX_MSG_SIZE: usize = 1 << 31;
/// The maximum datagram size.
pub(crate) const MAX_DGRAM_SIZE: usize = 4096;
/// The maximum number of endpoints that share a context.
pub(crate) const MAX_SHARING: usize = 65_536;
/// The maximum number of transmit contexts, and of receive contexts, of a scalable endpoint. A peer names a receive context in
/// one byte.
pub(crate) const MAX_CONTEXTS: usize = 64;
/// The size of remote completion data, in bytes.
pub(crate) const CQ_DATA_SIZE: usize = 8;
/// The maximum number of segments of a region.
pub(crate) const MR_IOV_LIMIT: usize = 1024;
/// The maximum size of connection data, in bytes.
pub(crate) const CM_DATA_SIZE: usize = 256;

/// The reported attributes of one kind of endpoint, narrowed down to the hints.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) ep_type: c_int,
    pub(crate) version: u32,
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) mr_mode: c_int,
    pub(crate) tx_caps: u64,
    pub(crate) rx_caps: u64,
    pub(crate) tx_op_flags: u64,
    pub(crate) rx_op_flags: u64,
    pub(crate) msg_order: u64,
    /// How many transmit contexts an endpoint has, or [`FI_SHARED_CONTEXT`].
    pub(crate) tx_contexts: usize,
    /// How many receive contexts an endpoint has, or [`FI_SHARED_CONTEXT`].
    pub(crate) rx_contexts: usize,
    pub(crate) inject_size: usize,
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    pub(crate) threading: c_int,
    pub(crate) control_progress: c_int,
    pub(crate) data_progress: c_int,
    pub(crate) resource_mgmt: c_int,
    pub(crate) av_type: c_int,
    pub(crate) auth_key: Vec<u8>,
    pub(crate) domain_auth_key: Vec<u8>,
    /// Authorization keys are in address vectors.
    pub(crate) av_keys: bool,
    /// The name of the provider with its layers, if libfabric's core does not write it.
    pub(crate) prov_name: Option<CString>,
}

/// Collective operations have existed since this version.
pub(crate) const COLLECTIVE_SINCE: u32 = version(1, 9);

/// Primary capabilities, which say what an endpoint is for.
pub(crate) const fn primary(ep_type: c_int) -> u64 {
    match ep_type {
        FI_EP_DGRAM => FI_MSG | SIDES_MSG,
        _ => FI_MSG | FI_RMA | FI_TAGGED | FI_ATOMIC | SIDES_MSG | SIDES_RMA,
    }
}

/// Secondary capabilities, reported when requested, or when nothing is requested.
pub(crate) const fn secondary(ep_type: c_int) -> u64 {
    match ep_type {
        FI_EP_DGRAM => ANYWHERE | FI_SOURCE,
        FI_EP_MSG => ANYWHERE | FI_RMA_EVENT | FI_RMA_PMEM,
        _ => ANYWHERE | FI_SOURCE | FI_DIRECTED_RECV | FI_RMA_EVENT | FI_RMA_PMEM,
    }
}

/// Capabilities that are reported only when requested.
pub(crate) const fn on_demand(ep_type: c_int) -> u64 {
    match ep_type {
        FI_EP_DGRAM => FI_AV_USER_ID | FI_NAMED_RX_CTX,
        FI_EP_MSG => FI_HMEM,
        _ => FI_HMEM | FI_COLLECTIVE | FI_AV_USER_ID | FI_NAMED_RX_CTX,
    }
}

/// How many transmit contexts, and how many receive contexts, an endpoint can have.
pub(crate) const fn contexts(ep_type: c_int) -> usize {
    match ep_type {
        FI_EP_MSG => 1,
        _ => MAX_CONTEXTS,
    }
}

/// Capabilities of every kind of endpoint.
const ANYWHERE: u64 = FI_MULTI_RECV | FI_TRIGGER | COMM;
/// Local and remote communication: peers on this host, and on others with a wire.
pub(crate) const COMM: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
pub(crate) const SIDES_MSG: u64 = FI_SEND | FI_RECV;
pub(crate) const SIDES_RMA: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// The order between two endpoints: messages match in the order in which they were sent, and after earlier RMA writes; RMA
/// writes and reads execute after earlier RMA writes; atomics execute in order among themselves.
pub(crate) const MSG_ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_SAW
    | FI_ORDER_RMA_WAW
    | FI_ORDER_RMA_RAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

/// Flags that transmissions can have by default.
pub(crate) const TX_OP_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_COMMIT_COMPLETE;
/// Flags that receives can have by default.
pub(crate) const RX_OP_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;
