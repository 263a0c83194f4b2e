//! Names of flags and of enumerated values, as libfabric's headers write them. Those of libfabric 1.17 are in its order; later ones
//! follow.

/// The number of a bit, and its name.
pub(super) type Flags = &'static [(u32, &'static str)];
/// A value, and its name.
pub(super) type Values = &'static [(u32, &'static str)];

/// The names of the flags that are set, separated by commas.
pub(super) fn flags(set: u64, names: Flags) -> String {
    let set = names.iter().filter(|(bit, _)| set >> bit & 1 != 0);
    let words: Vec<&str> = set.map(|(_, name)| *name).collect();
    words.join(", ")
}

/// The name of a value.
pub(super) fn value(value: u32, names: Values) -> &'static str {
    let found = names.iter().find(|(known, _)| *known == value);
    found.map_or("Unknown", |(_, name)| name)
}

/// The name of a value in a range that providers may extend.
pub(super) fn extensible(number: u32, names: Values) -> &'static str {
    const PROVIDER_SPECIFIC: u32 = 1 << 31;
    match number & PROVIDER_SPECIFIC {
        0 => value(number, names),
        _ => "Provider specific",
    }
}

/// Capabilities.
pub(super) const CAPS: Flags = &[
    (1, "FI_MSG"),
    (2, "FI_RMA"),
    (3, "FI_TAGGED"),
    (4, "FI_ATOMIC"),
    (5, "FI_MULTICAST"),
    (6, "FI_COLLECTIVE"),
    (8, "FI_READ"),
    (9, "FI_WRITE"),
    (10, "FI_RECV"),
    (11, "FI_SEND"),
    (12, "FI_REMOTE_READ"),
    (13, "FI_REMOTE_WRITE"),
    (16, "FI_MULTI_RECV"),
    (17, "FI_REMOTE_CQ_DATA"),
    (20, "FI_TRIGGER"),
    (21, "FI_FENCE"),
    (48, "FI_VARIABLE_MSG"),
    (49, "FI_RMA_PMEM"),
    (50, "FI_SOURCE_ERR"),
    (51, "FI_LOCAL_COMM"),
    (52, "FI_REMOTE_COMM"),
    (53, "FI_SHARED_AV"),
    (56, "FI_RMA_EVENT"),
    (57, "FI_SOURCE"),
    (58, "FI_NAMED_RX_CTX"),
    (59, "FI_DIRECTED_RECV"),
    (41, "FI_AV_USER_ID"),
    (43, "FI_PEER"),
    (47, "FI_HMEM"),
];
/// Flags of operations.
pub(super) const OP_FLAGS: Flags = &[
    (5, "FI_MULTICAST"),
    (16, "FI_MULTI_RECV"),
    (17, "FI_REMOTE_CQ_DATA"),
    (18, "FI_MORE"),
    (19, "FI_PEEK"),
    (20, "FI_TRIGGER"),
    (21, "FI_FENCE"),
    (24, "FI_COMPLETION"),
    (25, "FI_INJECT"),
    (26, "FI_INJECT_COMPLETE"),
    (27, "FI_TRANSMIT_COMPLETE"),
    (28, "FI_DELIVERY_COMPLETE"),
    (30, "FI_COMMIT_COMPLETE"),
    (31, "FI_MATCH_COMPLETE"),
    (29, "FI_AFFINITY"),
    (59, "FI_CLAIM"),
    (58, "FI_DISCARD"),
];
/// Message order.
pub(super) const ORDER: Flags = &[
    (0, "FI_ORDER_RAR"),
    (1, "FI_ORDER_RAW"),
    (2, "FI_ORDER_RAS"),
    (3, "FI_ORDER_WAR"),
    (4, "FI_ORDER_WAW"),
    (5, "FI_ORDER_WAS"),
    (6, "FI_ORDER_SAR"),
    (7, "FI_ORDER_SAW"),
    (8, "FI_ORDER_SAS"),
    (32, "FI_ORDER_RMA_RAR"),
    (33, "FI_ORDER_RMA_RAW"),
    (34, "FI_ORDER_RMA_WAR"),
    (35, "FI_ORDER_RMA_WAW"),
    (36, "FI_ORDER_ATOMIC_RAR"),
    (37, "FI_ORDER_ATOMIC_RAW"),
    (38, "FI_ORDER_ATOMIC_WAR"),
    (39, "FI_ORDER_ATOMIC_WAW"),
];
/// Mode bits.
pub(super) const MODE: Flags = &[
    (59, "FI_CONTEXT"),
    (58, "FI_MSG_PREFIX"),
    (57, "FI_ASYNC_IOV"),
    (56, "FI_RX_CQ_DATA"),
    (55, "FI_LOCAL_MR"),
    (54, "FI_NOTIFY_FLAGS_ONLY"),
    (53, "FI_RESTRICTED_COMP"),
    (52, "FI_CONTEXT2"),
    (51, "FI_BUFFERED_RECV"),
];
/// Flags of completions.
pub(super) const CQ_FLAGS: Flags = &[
    (11, "FI_SEND"),
    (10, "FI_RECV"),
    (2, "FI_RMA"),
    (4, "FI_ATOMIC"),
    (1, "FI_MSG"),
    (3, "FI_TAGGED"),
    (8, "FI_READ"),
    (9, "FI_WRITE"),
    (12, "FI_REMOTE_READ"),
    (13, "FI_REMOTE_WRITE"),
    (17, "FI_REMOTE_CQ_DATA"),
    (16, "FI_MULTI_RECV"),
    (18, "FI_MORE"),
    (59, "FI_CLAIM"),
];
/// Registration modes.
pub(super) const MR_MODE: Flags = &[
    (0, "FI_MR_BASIC"),
    (1, "FI_MR_SCALABLE"),
    (2, "FI_MR_LOCAL"),
    (3, "FI_MR_RAW"),
    (4, "FI_MR_VIRT_ADDR"),
    (5, "FI_MR_ALLOCATED"),
    (6, "FI_MR_PROV_KEY"),
    (7, "FI_MR_MMU_NOTIFY"),
    (8, "FI_MR_RMA_EVENT"),
    (9, "FI_MR_ENDPOINT"),
    (10, "FI_MR_HMEM"),
    (11, "FI_MR_COLLECTIVE"),
];
/// Types of endpoints.
pub(super) const EP_TYPE: Values = &[
    (0, "FI_EP_UNSPEC"),
    (1, "FI_EP_MSG"),
    (2, "FI_EP_DGRAM"),
    (3, "FI_EP_RDM"),
    (4, "FI_EP_SOCK_STREAM"),
    (5, "FI_EP_SOCK_DGRAM"),
];
/// Formats of addresses.
pub(super) const ADDR_FORMAT: Values = &[
    (0, "FI_FORMAT_UNSPEC"),
    (1, "FI_SOCKADDR"),
    (2, "FI_SOCKADDR_IN"),
    (3, "FI_SOCKADDR_IN6"),
    (4, "FI_SOCKADDR_IB"),
    (5, "FI_ADDR_PSMX"),
    (6, "FI_ADDR_GNI"),
    (7, "FI_ADDR_BGQ"),
    (8, "FI_ADDR_MLX"),
    (9, "FI_ADDR_STR"),
    (10, "FI_ADDR_PSMX2"),
    (11, "FI_ADDR_IB_UD"),
    (12, "FI_ADDR_EFA"),
    (13, "FI_ADDR_PSMX3"),
    (14, "FI_ADDR_OPX"),
    (15, "FI_ADDR_CXI"),
    (16, "FI_ADDR_UCX"),
    (17, "FI_SOCKADDR_IP"),
];
/// Levels of thread safety.
pub(super) const THREADING: Values = &[
    (0, "FI_THREAD_UNSPEC"),
    (1, "FI_THREAD_SAFE"),
    (2, "FI_THREAD_FID"),
    (3, "FI_THREAD_DOMAIN"),
    (4, "FI_THREAD_COMPLETION"),
    (5, "FI_THREAD_ENDPOINT"),
];
/// Progress models.
pub(super) const PROGRESS: Values = &[
    (0, "FI_PROGRESS_UNSPEC"),
    (1, "FI_PROGRESS_AUTO"),
    (2, "FI_PROGRESS_MANUAL"),
    (3, "FI_PROGRESS_CONTROL_UNIFIED"),
];
/// Resource management.
pub(super) const RESOURCE_MGMT: Values = &[
    (0, "FI_RM_UNSPEC"),
    (1, "FI_RM_DISABLED"),
    (2, "FI_RM_ENABLED"),
];
/// Protocols of endpoints.
pub(super) const PROTOCOL: Values = &[
    (0, "FI_PROTO_UNSPEC"),
    (1, "FI_PROTO_RDMA_CM_IB_RC"),
    (2, "FI_PROTO_IWARP"),
    (3, "FI_PROTO_IB_UD"),
    (4, "FI_PROTO_PSMX"),
    (5, "FI_PROTO_UDP"),
    (6, "FI_PROTO_SOCK_TCP"),
    (8, "FI_PROTO_IWARP_RDM"),
    (9, "FI_PROTO_IB_RDM"),
    (10, "FI_PROTO_GNI"),
    (11, "FI_PROTO_RXM"),
    (12, "FI_PROTO_RXD"),
    (13, "FI_PROTO_MLX"),
    (14, "FI_PROTO_NETWORKDIRECT"),
    (15, "FI_PROTO_PSMX2"),
    (16, "FI_PROTO_SHM"),
    (18, "FI_PROTO_RSTREAM"),
    (19, "FI_PROTO_RDMA_CM_IB_XRC"),
    (20, "FI_PROTO_EFA"),
    (21, "FI_PROTO_PSMX3"),
    (22, "FI_PROTO_RXM_TCP"),
    (23, "FI_PROTO_OPX"),
    (24, "FI_PROTO_CXI"),
    (25, "FI_PROTO_XNET"),
    (27, "FI_PROTO_UCX"),
    (28, "FI_PROTO_SM2"),
    (29, "FI_PROTO_CXI_RNR"),
    (30, "FI_PROTO_LPP"),
    (31, "FI_PROTO_LNX"),
];
/// Types of address vectors.
pub(super) const AV_TYPE: Values = &[(0, "FI_AV_UNSPEC"), (1, "FI_AV_MAP"), (2, "FI_AV_TABLE")];
/// Types of operands.
pub(super) const ATOMIC_TYPE: Values = &[
    (0, "FI_INT8"),
    (1, "FI_UINT8"),
    (2, "FI_INT16"),
    (3, "FI_UINT16"),
    (4, "FI_INT32"),
    (5, "FI_UINT32"),
    (6, "FI_INT64"),
    (7, "FI_UINT64"),
    (8, "FI_FLOAT"),
    (9, "FI_DOUBLE"),
    (10, "FI_FLOAT_COMPLEX"),
    (11, "FI_DOUBLE_COMPLEX"),
    (12, "FI_LONG_DOUBLE"),
    (13, "FI_LONG_DOUBLE_COMPLEX"),
    (14, "FI_INT128"),
    (15, "FI_UINT128"),
];
/// Atomic operations.
pub(super) const ATOMIC_OP: Values = &[
    (0, "FI_MIN"),
    (1, "FI_MAX"),
    (2, "FI_SUM"),
    (3, "FI_PROD"),
    (4, "FI_LOR"),
    (5, "FI_LAND"),
    (6, "FI_BOR"),
    (7, "FI_BAND"),
    (8, "FI_LXOR"),
    (9, "FI_BXOR"),
    (10, "FI_ATOMIC_READ"),
    (11, "FI_ATOMIC_WRITE"),
    (12, "FI_CSWAP"),
    (13, "FI_CSWAP_NE"),
    (14, "FI_CSWAP_LE"),
    (15, "FI_CSWAP_LT"),
    (16, "FI_CSWAP_GE"),
    (17, "FI_CSWAP_GT"),
    (18, "FI_MSWAP"),
];
/// Events.
pub(super) const EQ_EVENT: Values = &[
    (0, "FI_NOTIFY"),
    (1, "FI_CONNREQ"),
    (2, "FI_CONNECTED"),
    (3, "FI_SHUTDOWN"),
    (4, "FI_MR_COMPLETE"),
    (5, "FI_AV_COMPLETE"),
    (6, "FI_JOIN_COMPLETE"),
];
/// Deferred operations.
pub(super) const OP_TYPE: Values = &[
    (0, "FI_OP_RECV"),
    (1, "FI_OP_SEND"),
    (2, "FI_OP_TRECV"),
    (3, "FI_OP_TSEND"),
    (4, "FI_OP_READ"),
    (5, "FI_OP_WRITE"),
    (6, "FI_OP_ATOMIC"),
    (7, "FI_OP_FETCH_ATOMIC"),
    (8, "FI_OP_COMPARE_ATOMIC"),
    (9, "FI_OP_CNTR_SET"),
    (10, "FI_OP_CNTR_ADD"),
];
/// Collective operations.
pub(super) const COLLECTIVE_OP: Values = &[
    (0, "FI_BARRIER"),
    (1, "FI_BROADCAST"),
    (2, "FI_ALLTOALL"),
    (3, "FI_ALLREDUCE"),
    (4, "FI_ALLGATHER"),
    (5, "FI_REDUCE_SCATTER"),
    (6, "FI_REDUCE"),
    (7, "FI_SCATTER"),
    (8, "FI_GATHER"),
];
/// Kinds of memory.
pub(super) const HMEM_IFACE: Values = &[
    (0, "FI_HMEM_SYSTEM"),
    (1, "FI_HMEM_CUDA"),
    (2, "FI_HMEM_ROCR"),
    (3, "FI_HMEM_ZE"),
    (4, "FI_HMEM_NEURON"),
    (5, "FI_HMEM_SYNAPSEAI"),
];
/// Formats of completions.
pub(super) const CQ_FORMAT: Values = &[
    (0, "FI_CQ_FORMAT_UNSPEC"),
    (1, "FI_CQ_FORMAT_CONTEXT"),
    (2, "FI_CQ_FORMAT_MSG"),
    (3, "FI_CQ_FORMAT_DATA"),
    (4, "FI_CQ_FORMAT_TAGGED"),
];
