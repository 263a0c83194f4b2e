//! Numbers of the headers.

use std::ffi::c_int;

// Capabilities and flags.
pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_ATOMIC: u64 = 1 << 4;
pub const FI_MULTICAST: u64 = 1 << 5;
pub const FI_COLLECTIVE: u64 = 1 << 6;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_MORE: u64 = 1 << 18;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_TRIGGER: u64 = 1 << 20;
pub const FI_FENCE: u64 = 1 << 21;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
pub const FI_MR_DMABUF: u64 = 1 << 40;
pub const FI_MR_SINGLE_USE: u64 = 1 << 41;
pub const FI_HMEM_HOST_ALLOC: u64 = 1 << 45;
pub const FI_HMEM_DEVICE_ONLY: u64 = 1 << 46;
pub const FI_HMEM: u64 = 1 << 47;
pub const FI_RMA_PMEM: u64 = 1 << 49;
/// Of libfabric's own layers, and in no public header: the region is not to be cached.
pub const OFI_MR_NOCACHE: u64 = 1 << 60;
pub const FI_SOURCE_ERR: u64 = 1 << 50;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SHARED_AV: u64 = 1 << 53;
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
pub const FI_NUMERICHOST: u64 = 1 << 55;
pub const FI_RMA_EVENT: u64 = 1 << 56;
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_NAMED_RX_CTX: u64 = 1 << 58;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
pub const FI_CLAIM: u64 = 1 << 59;
pub const FI_DISCARD: u64 = 1 << 58;
pub const FI_REG_MR: u64 = 1 << 59;
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
pub const FI_FETCH_ATOMIC: u64 = 1 << 58;
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;
pub const FI_CONTEXT: u64 = 1 << 59;
pub const FI_MSG_PREFIX: u64 = 1 << 58;
pub const FI_LOCAL_MR: u64 = 1 << 55;
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
pub const FI_ASYNC_IOV: u64 = 1 << 57;
pub const FI_CONTEXT2: u64 = 1 << 52;
/// With numbers of authorization keys.
pub const FI_AUTH_KEY: u64 = 1 << 57;
pub const FI_AV_USER_ID: u64 = 1 << 41;
pub const FI_SYNC_ERR: u64 = 1 << 58;
pub const FI_UNIVERSE: u64 = 1 << 57;
/// `FI_BARRIER_SET` to `FI_GATHER_SET`: which operations an address vector set is for.
pub const FI_COLLECTIVE_SETS: u64 = 0x1ff << 40;
pub const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;

// Orders.
pub const FI_ORDER_RAR: u64 = 1 << 0;
pub const FI_ORDER_RAW: u64 = 1 << 1;
pub const FI_ORDER_RAS: u64 = 1 << 2;
pub const FI_ORDER_WAR: u64 = 1 << 3;
pub const FI_ORDER_WAW: u64 = 1 << 4;
pub const FI_ORDER_WAS: u64 = 1 << 5;
pub const FI_ORDER_SAR: u64 = 1 << 6;
pub const FI_ORDER_SAW: u64 = 1 << 7;
pub const FI_ORDER_SAS: u64 = 1 << 8;
pub const FI_ORDER_RMA_RAR: u64 = 1 << 32;
pub const FI_ORDER_RMA_RAW: u64 = 1 << 33;
pub const FI_ORDER_RMA_WAR: u64 = 1 << 34;
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;
pub const FI_ORDER_ATOMIC_RAR: u64 = 1 << 36;
pub const FI_ORDER_ATOMIC_RAW: u64 = 1 << 37;
pub const FI_ORDER_ATOMIC_WAR: u64 = 1 << 38;
pub const FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;

// Address formats.
pub const FI_FORMAT_UNSPEC: u32 = 0;
pub const FI_SOCKADDR: u32 = 1;
pub const FI_SOCKADDR_IN: u32 = 2;
pub const FI_SOCKADDR_IN6: u32 = 3;
pub const FI_ADDR_STR: u32 = 9;

// Kinds of registration.
pub const FI_MR_UNSPEC: c_int = 0;
pub const FI_MR_BASIC: c_int = 1 << 0;
pub const FI_MR_SCALABLE: c_int = 1 << 1;
pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_RAW: c_int = 1 << 3;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
pub const FI_MR_MMU_NOTIFY: c_int = 1 << 7;
pub const FI_MR_RMA_EVENT: c_int = 1 << 8;
pub const FI_MR_ENDPOINT: c_int = 1 << 9;
pub const FI_MR_HMEM: c_int = 1 << 10;
pub const FI_MR_COLLECTIVE: c_int = 1 << 11;

/// In `tx_ctx_cnt` and `rx_ctx_cnt`: the context is shared.
pub const FI_SHARED_CONTEXT: usize = usize::MAX;
/// In `auth_key_size`: the keys are in the address vector.
pub const FI_AV_AUTH_KEY: usize = usize::MAX;

// Enumerations.
pub const FI_AV_UNSPEC: c_int = 0;
pub const FI_AV_MAP: c_int = 1;
pub const FI_AV_TABLE: c_int = 2;

pub const FI_PROGRESS_UNSPEC: c_int = 0;
pub const FI_PROGRESS_AUTO: c_int = 1;
pub const FI_PROGRESS_MANUAL: c_int = 2;
pub const FI_PROGRESS_CONTROL_UNIFIED: c_int = 3;

pub const FI_THREAD_UNSPEC: c_int = 0;
pub const FI_THREAD_SAFE: c_int = 1;

pub const FI_RM_UNSPEC: c_int = 0;
pub const FI_RM_DISABLED: c_int = 1;
pub const FI_RM_ENABLED: c_int = 2;

pub const FI_EP_UNSPEC: c_int = 0;
pub const FI_EP_MSG: c_int = 1;
pub const FI_EP_DGRAM: c_int = 2;
pub const FI_EP_RDM: c_int = 3;

pub const FI_WAIT_NONE: c_int = 0;
pub const FI_WAIT_UNSPEC: c_int = 1;
pub const FI_WAIT_SET: c_int = 2;
pub const FI_WAIT_FD: c_int = 3;
pub const FI_WAIT_MUTEX_COND: c_int = 4;
pub const FI_WAIT_YIELD: c_int = 5;
pub const FI_WAIT_POLLFD: c_int = 6;

pub const FI_CQ_FORMAT_UNSPEC: c_int = 0;
pub const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub const FI_CQ_FORMAT_MSG: c_int = 2;
pub const FI_CQ_FORMAT_DATA: c_int = 3;
pub const FI_CQ_FORMAT_TAGGED: c_int = 4;

pub const FI_CQ_COND_NONE: c_int = 0;
pub const FI_CQ_COND_THRESHOLD: c_int = 1;

pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;
pub const FI_OPT_CM_DATA_SIZE: c_int = 1;
pub const FI_OPT_BUFFERED_MIN: c_int = 2;
pub const FI_OPT_BUFFERED_LIMIT: c_int = 3;
pub const FI_OPT_SEND_BUF_SIZE: c_int = 4;
pub const FI_OPT_RECV_BUF_SIZE: c_int = 5;
pub const FI_OPT_TX_SIZE: c_int = 6;
pub const FI_OPT_RX_SIZE: c_int = 7;
pub const FI_OPT_FI_HMEM_P2P: c_int = 8;
pub const FI_OPT_XPU_TRIGGER: c_int = 9;
pub const FI_OPT_CUDA_API_PERMITTED: c_int = 10;
pub const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
pub const FI_OPT_MAX_MSG_SIZE: c_int = 12;
pub const FI_OPT_MAX_TAGGED_SIZE: c_int = 13;
pub const FI_OPT_MAX_RMA_SIZE: c_int = 14;
pub const FI_OPT_MAX_ATOMIC_SIZE: c_int = 15;
pub const FI_OPT_INJECT_MSG_SIZE: c_int = 16;
pub const FI_OPT_INJECT_TAGGED_SIZE: c_int = 17;
pub const FI_OPT_INJECT_RMA_SIZE: c_int = 18;
pub const FI_OPT_INJECT_ATOMIC_SIZE: c_int = 19;

pub const FI_HMEM_SYSTEM: c_int = 0;
pub const FI_HMEM_CUDA: c_int = 1;
pub const FI_HMEM_ROCR: c_int = 2;
pub const FI_HMEM_ZE: c_int = 3;
pub const FI_HMEM_NEURON: c_int = 4;
pub const FI_HMEM_SYNAPSEAI: c_int = 5;

pub const FI_HMEM_P2P_ENABLED: c_int = 0;
pub const FI_HMEM_P2P_REQUIRED: c_int = 1;
pub const FI_HMEM_P2P_PREFERRED: c_int = 2;
pub const FI_HMEM_P2P_DISABLED: c_int = 3;

// Control commands.
pub const FI_GETFIDFLAG: c_int = 0;
pub const FI_GETOPSFLAG: c_int = 2;
pub const FI_SETOPSFLAG: c_int = 3;
pub const FI_ALIAS: c_int = 4;
pub const FI_GETWAIT: c_int = 5;
pub const FI_ENABLE: c_int = 6;
pub const FI_GET_RAW_MR: c_int = 8;
pub const FI_MAP_RAW_MR: c_int = 9;
pub const FI_UNMAP_KEY: c_int = 10;
pub const FI_QUEUE_WORK: c_int = 11;
pub const FI_CANCEL_WORK: c_int = 12;
pub const FI_FLUSH_WORK: c_int = 13;
pub const FI_REFRESH: c_int = 14;
pub const FI_GETWAITOBJ: c_int = 16;

// Triggers and deferred operations.
pub const FI_TRIGGER_THRESHOLD: c_int = 0;
pub const FI_OP_RECV: c_int = 0;
pub const FI_OP_SEND: c_int = 1;
pub const FI_OP_TRECV: c_int = 2;
pub const FI_OP_TSEND: c_int = 3;
pub const FI_OP_READ: c_int = 4;
pub const FI_OP_WRITE: c_int = 5;
pub const FI_OP_ATOMIC: c_int = 6;
pub const FI_OP_FETCH_ATOMIC: c_int = 7;
pub const FI_OP_COMPARE_ATOMIC: c_int = 8;
pub const FI_OP_CNTR_SET: c_int = 9;
pub const FI_OP_CNTR_ADD: c_int = 10;

// Classes of objects.
pub const FI_CLASS_FABRIC: usize = 1;
pub const FI_CLASS_DOMAIN: usize = 2;
pub const FI_CLASS_EP: usize = 3;
pub const FI_CLASS_SRX_CTX: usize = 6;
pub const FI_CLASS_STX_CTX: usize = 8;
pub const FI_CLASS_PEP: usize = 9;
pub const FI_CLASS_AV: usize = 11;
pub const FI_CLASS_MR: usize = 12;
pub const FI_CLASS_EQ: usize = 13;
pub const FI_CLASS_CQ: usize = 14;
pub const FI_CLASS_CNTR: usize = 15;
pub const FI_CLASS_CONNREQ: usize = 18;
pub const FI_CLASS_MC: usize = 19;
pub const FI_CLASS_AV_SET: usize = 21;

// Events.
pub const FI_NOTIFY: u32 = 0;
pub const FI_CONNREQ: u32 = 1;
pub const FI_CONNECTED: u32 = 2;
pub const FI_SHUTDOWN: u32 = 3;
pub const FI_MR_COMPLETE: u32 = 4;
pub const FI_AV_COMPLETE: u32 = 5;
pub const FI_JOIN_COMPLETE: u32 = 6;

// Data types and operations of atomics.
pub const FI_INT8: c_int = 0;
pub const FI_UINT8: c_int = 1;
pub const FI_INT16: c_int = 2;
pub const FI_UINT16: c_int = 3;
pub const FI_INT32: c_int = 4;
pub const FI_UINT32: c_int = 5;
pub const FI_INT64: c_int = 6;
pub const FI_UINT64: c_int = 7;
pub const FI_FLOAT: c_int = 8;
pub const FI_DOUBLE: c_int = 9;
pub const FI_FLOAT_COMPLEX: c_int = 10;
pub const FI_DOUBLE_COMPLEX: c_int = 11;
pub const FI_LONG_DOUBLE: c_int = 12;
pub const FI_LONG_DOUBLE_COMPLEX: c_int = 13;
pub const FI_INT128: c_int = 14;
pub const FI_UINT128: c_int = 15;
/// Of collective operations without data.
pub const FI_VOID: c_int = 256;

pub const FI_MIN: c_int = 0;
pub const FI_MAX: c_int = 1;
pub const FI_SUM: c_int = 2;
pub const FI_PROD: c_int = 3;
pub const FI_LOR: c_int = 4;
pub const FI_LAND: c_int = 5;
pub const FI_BOR: c_int = 6;
pub const FI_BAND: c_int = 7;
pub const FI_LXOR: c_int = 8;
pub const FI_BXOR: c_int = 9;
pub const FI_ATOMIC_READ: c_int = 10;
pub const FI_ATOMIC_WRITE: c_int = 11;
pub const FI_CSWAP: c_int = 12;
pub const FI_CSWAP_NE: c_int = 13;
pub const FI_CSWAP_LE: c_int = 14;
pub const FI_CSWAP_LT: c_int = 15;
pub const FI_CSWAP_GE: c_int = 16;
pub const FI_CSWAP_GT: c_int = 17;
pub const FI_MSWAP: c_int = 18;
/// Of collective operations that reduce nothing.
pub const FI_NOOP: c_int = 256;

// Collective operations.
pub const FI_BARRIER: c_int = 0;
pub const FI_BROADCAST: c_int = 1;
pub const FI_ALLTOALL: c_int = 2;
pub const FI_ALLREDUCE: c_int = 3;
pub const FI_ALLGATHER: c_int = 4;
pub const FI_REDUCE_SCATTER: c_int = 5;
pub const FI_REDUCE: c_int = 6;
pub const FI_SCATTER: c_int = 7;
pub const FI_GATHER: c_int = 8;

/// The protocol number of this provider: outside of the range that libfabric gives out.
pub const PROTO_RKEY: u32 = 1 << 31 | 0x726b;
