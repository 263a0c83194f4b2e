//! The numbers of the enumerations, under the names of the header without `IBV_`.

#![allow(missing_docs)] // the names are the documentation: infiniband/verbs.h

/// Constants of one enumeration, with a list of them for tests and for names.
macro_rules! numbers {
    ($($(#[$doc:meta])* $list:ident: $type:ty { $($name:ident = $value:expr,)* })*) => {$(
        $(pub const $name: $type = $value;)*
        $(#[$doc])*
        pub const $list: &[($type, &str)] = &[$(($name, stringify!($name))),*];
    )*};
}

numbers! {
    /// `enum ibv_node_type`.
    NODE_TYPES: i32 {
        NODE_UNKNOWN = -1,
        NODE_CA = 1,
        NODE_SWITCH = 2,
        NODE_ROUTER = 3,
        NODE_RNIC = 4,
        NODE_USNIC = 5,
        NODE_USNIC_UDP = 6,
        NODE_UNSPECIFIED = 7,
    }
    /// `enum ibv_access_flags`.
    ACCESS_FLAGS: u32 {
        ACCESS_LOCAL_WRITE = 1,
        ACCESS_REMOTE_WRITE = 1 << 1,
        ACCESS_REMOTE_READ = 1 << 2,
        ACCESS_REMOTE_ATOMIC = 1 << 3,
        ACCESS_MW_BIND = 1 << 4,
        ACCESS_ZERO_BASED = 1 << 5,
        ACCESS_ON_DEMAND = 1 << 6,
        ACCESS_HUGETLB = 1 << 7,
        ACCESS_FLUSH_GLOBAL = 1 << 8,
        ACCESS_FLUSH_PERSISTENT = 1 << 9,
        ACCESS_RELAXED_ORDERING = 1 << 20,
    }
    /// `enum ibv_mr_init_attr_mask`.
    REG_MR_MASK: u64 {
        REG_MR_MASK_IOVA = 1,
        REG_MR_MASK_ADDR = 1 << 1,
        REG_MR_MASK_FD = 1 << 2,
        REG_MR_MASK_FD_OFFSET = 1 << 3,
        REG_MR_MASK_DMAH = 1 << 4,
        REG_MR_MASK_BUF = 1 << 5,
    }
    /// `enum ibv_device_cap_flags`.
    DEVICE_CAP_FLAGS: u32 {
        DEVICE_RESIZE_MAX_WR = 1,
        DEVICE_BAD_PKEY_CNTR = 1 << 1,
        DEVICE_BAD_QKEY_CNTR = 1 << 2,
        DEVICE_RAW_MULTI = 1 << 3,
        DEVICE_AUTO_PATH_MIG = 1 << 4,
        DEVICE_CHANGE_PHY_PORT = 1 << 5,
        DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
        DEVICE_CURR_QP_STATE_MOD = 1 << 7,
        DEVICE_SHUTDOWN_PORT = 1 << 8,
        DEVICE_INIT_TYPE = 1 << 9,
        DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
        DEVICE_SYS_IMAGE_GUID = 1 << 11,
        DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        DEVICE_SRQ_RESIZE = 1 << 13,
        DEVICE_N_NOTIFY_CQ = 1 << 14,
        DEVICE_MEM_WINDOW = 1 << 17,
        DEVICE_UD_IP_CSUM = 1 << 18,
        DEVICE_XRC = 1 << 20,
        DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
    }
    /// `enum ibv_atomic_cap`.
    ATOMIC_CAPS: i32 {
        ATOMIC_NONE = 0,
        ATOMIC_HCA = 1,
        ATOMIC_GLOB = 2,
    }
    /// `enum ibv_port_state`.
    PORT_STATES: i32 {
        PORT_NOP = 0,
        PORT_DOWN = 1,
        PORT_INIT = 2,
        PORT_ARMED = 3,
        PORT_ACTIVE = 4,
        PORT_ACTIVE_DEFER = 5,
    }
    /// `enum ibv_mtu`.
    MTUS: i32 {
        MTU_256 = 1,
        MTU_512 = 2,
        MTU_1024 = 3,
        MTU_2048 = 4,
        MTU_4096 = 5,
    }
    /// Link layers.
    LINK_LAYERS: u8 {
        LINK_LAYER_UNSPECIFIED = 0,
        LINK_LAYER_INFINIBAND = 1,
        LINK_LAYER_ETHERNET = 2,
    }
    /// `enum ibv_gid_type`.
    GID_TYPES: u32 {
        GID_TYPE_IB = 0,
        GID_TYPE_ROCE_V1 = 1,
        GID_TYPE_ROCE_V2 = 2,
    }
    /// `enum ibv_event_type`.
    EVENT_TYPES: i32 {
        EVENT_CQ_ERR = 0,
        EVENT_QP_FATAL = 1,
        EVENT_QP_REQ_ERR = 2,
        EVENT_QP_ACCESS_ERR = 3,
        EVENT_COMM_EST = 4,
        EVENT_SQ_DRAINED = 5,
        EVENT_PATH_MIG = 6,
        EVENT_PATH_MIG_ERR = 7,
        EVENT_DEVICE_FATAL = 8,
        EVENT_PORT_ACTIVE = 9,
        EVENT_PORT_ERR = 10,
        EVENT_LID_CHANGE = 11,
        EVENT_PKEY_CHANGE = 12,
        EVENT_SM_CHANGE = 13,
        EVENT_SRQ_ERR = 14,
        EVENT_SRQ_LIMIT_REACHED = 15,
        EVENT_QP_LAST_WQE_REACHED = 16,
        EVENT_CLIENT_REREGISTER = 17,
        EVENT_GID_CHANGE = 18,
        EVENT_WQ_FATAL = 19,
    }
    /// `enum ibv_wc_status`.
    WC_STATUSES: i32 {
        WC_SUCCESS = 0,
        WC_LOC_LEN_ERR = 1,
        WC_LOC_QP_OP_ERR = 2,
        WC_LOC_EEC_OP_ERR = 3,
        WC_LOC_PROT_ERR = 4,
        WC_WR_FLUSH_ERR = 5,
        WC_MW_BIND_ERR = 6,
        WC_BAD_RESP_ERR = 7,
        WC_LOC_ACCESS_ERR = 8,
        WC_REM_INV_REQ_ERR = 9,
        WC_REM_ACCESS_ERR = 10,
        WC_REM_OP_ERR = 11,
        WC_RETRY_EXC_ERR = 12,
        WC_RNR_RETRY_EXC_ERR = 13,
        WC_LOC_RDD_VIOL_ERR = 14,
        WC_REM_INV_RD_REQ_ERR = 15,
        WC_REM_ABORT_ERR = 16,
        WC_INV_EECN_ERR = 17,
        WC_INV_EEC_STATE_ERR = 18,
        WC_FATAL_ERR = 19,
        WC_RESP_TIMEOUT_ERR = 20,
        WC_GENERAL_ERR = 21,
        WC_TM_ERR = 22,
        WC_TM_RNDV_INCOMPLETE = 23,
    }
    /// `enum ibv_wc_opcode`.
    WC_OPCODES: i32 {
        WC_SEND = 0,
        WC_RDMA_WRITE = 1,
        WC_RDMA_READ = 2,
        WC_COMP_SWAP = 3,
        WC_FETCH_ADD = 4,
        WC_BIND_MW = 5,
        WC_LOCAL_INV = 6,
        WC_TSO = 7,
        WC_ATOMIC_WRITE = 9,
        WC_RECV = 128,
        WC_RECV_RDMA_WITH_IMM = 129,
    }
    /// `enum ibv_wc_flags`.
    WC_FLAGS: u32 {
        WC_GRH = 1,
        WC_WITH_IMM = 1 << 1,
        WC_IP_CSUM_OK = 1 << 2,
        WC_WITH_INV = 1 << 3,
    }
    /// `enum ibv_create_cq_wc_flags`.
    WC_EX_FLAGS: u64 {
        WC_EX_WITH_BYTE_LEN = 1,
        WC_EX_WITH_IMM = 1 << 1,
        WC_EX_WITH_QP_NUM = 1 << 2,
        WC_EX_WITH_SRC_QP = 1 << 3,
        WC_EX_WITH_SLID = 1 << 4,
        WC_EX_WITH_SL = 1 << 5,
        WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
        WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
        WC_EX_WITH_CVLAN = 1 << 8,
        WC_EX_WITH_FLOW_TAG = 1 << 9,
        WC_EX_WITH_TM_INFO = 1 << 10,
        WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
    }
    /// `enum ibv_qp_type`.
    QP_TYPES: i32 {
        QPT_RC = 2,
        QPT_UC = 3,
        QPT_UD = 4,
        QPT_RAW_PACKET = 8,
        QPT_XRC_SEND = 9,
        QPT_XRC_RECV = 10,
        QPT_DRIVER = 255,
    }
    /// `enum ibv_qp_state`.
    QP_STATES: i32 {
        QPS_RESET = 0,
        QPS_INIT = 1,
        QPS_RTR = 2,
        QPS_RTS = 3,
        QPS_SQD = 4,
        QPS_SQE = 5,
        QPS_ERR = 6,
        QPS_UNKNOWN = 7,
    }
    /// `enum ibv_mig_state`.
    MIG_STATES: i32 {
        MIG_MIGRATED = 0,
        MIG_REARM = 1,
        MIG_ARMED = 2,
    }
    /// `enum ibv_qp_attr_mask`.
    QP_ATTR_MASK: u32 {
        QP_STATE = 1,
        QP_CUR_STATE = 1 << 1,
        QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
        QP_ACCESS_FLAGS = 1 << 3,
        QP_PKEY_INDEX = 1 << 4,
        QP_PORT = 1 << 5,
        QP_QKEY = 1 << 6,
        QP_AV = 1 << 7,
        QP_PATH_MTU = 1 << 8,
        QP_TIMEOUT = 1 << 9,
        QP_RETRY_CNT = 1 << 10,
        QP_RNR_RETRY = 1 << 11,
        QP_RQ_PSN = 1 << 12,
        QP_MAX_QP_RD_ATOMIC = 1 << 13,
        QP_ALT_PATH = 1 << 14,
        QP_MIN_RNR_TIMER = 1 << 15,
        QP_SQ_PSN = 1 << 16,
        QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        QP_PATH_MIG_STATE = 1 << 18,
        QP_CAP = 1 << 19,
        QP_DEST_QPN = 1 << 20,
        QP_RATE_LIMIT = 1 << 25,
    }
    /// `enum ibv_wr_opcode`.
    WR_OPCODES: i32 {
        WR_RDMA_WRITE = 0,
        WR_RDMA_WRITE_WITH_IMM = 1,
        WR_SEND = 2,
        WR_SEND_WITH_IMM = 3,
        WR_RDMA_READ = 4,
        WR_ATOMIC_CMP_AND_SWP = 5,
        WR_ATOMIC_FETCH_AND_ADD = 6,
        WR_LOCAL_INV = 7,
        WR_BIND_MW = 8,
        WR_SEND_WITH_INV = 9,
        WR_TSO = 10,
        WR_DRIVER1 = 11,
        WR_ATOMIC_WRITE = 15,
    }
    /// `enum ibv_send_flags`.
    SEND_FLAGS: u32 {
        SEND_FENCE = 1,
        SEND_SIGNALED = 1 << 1,
        SEND_SOLICITED = 1 << 2,
        SEND_INLINE = 1 << 3,
        SEND_IP_CSUM = 1 << 4,
    }
    /// `enum ibv_qp_create_send_ops_flags`.
    QP_EX_FLAGS: u64 {
        QP_EX_WITH_RDMA_WRITE = 1,
        QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
        QP_EX_WITH_SEND = 1 << 2,
        QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
        QP_EX_WITH_RDMA_READ = 1 << 4,
        QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
        QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
        QP_EX_WITH_LOCAL_INV = 1 << 7,
        QP_EX_WITH_BIND_MW = 1 << 8,
        QP_EX_WITH_SEND_WITH_INV = 1 << 9,
        QP_EX_WITH_TSO = 1 << 10,
        QP_EX_WITH_ATOMIC_WRITE = 1 << 12,
    }
    /// `enum ibv_qp_init_attr_mask`.
    QP_INIT_ATTR_MASK: u32 {
        QP_INIT_ATTR_PD = 1,
        QP_INIT_ATTR_XRCD = 1 << 1,
        QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
        QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3,
        QP_INIT_ATTR_IND_TABLE = 1 << 4,
        QP_INIT_ATTR_RX_HASH = 1 << 5,
        QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
    }
    /// `enum ibv_srq_init_attr_mask`.
    SRQ_INIT_ATTR_MASK: u32 {
        SRQ_INIT_ATTR_TYPE = 1,
        SRQ_INIT_ATTR_PD = 1 << 1,
        SRQ_INIT_ATTR_XRCD = 1 << 2,
        SRQ_INIT_ATTR_CQ = 1 << 3,
        SRQ_INIT_ATTR_TM = 1 << 4,
    }
    /// `enum ibv_wq_type`.
    WQ_TYPES: i32 {
        WQT_RQ = 0,
    }
    /// `enum ibv_wq_state`.
    WQ_STATES: i32 {
        WQS_RESET = 0,
        WQS_RDY = 1,
        WQS_ERR = 2,
    }
    /// `enum ibv_wq_init_attr_mask`.
    WQ_INIT_ATTR_MASK: u32 {
        WQ_INIT_ATTR_FLAGS = 1,
    }
    /// `enum ibv_wq_attr_mask`.
    WQ_ATTR_MASK: u32 {
        WQ_ATTR_STATE = 1,
        WQ_ATTR_CURR_STATE = 1 << 1,
        WQ_ATTR_FLAGS = 1 << 2,
    }
    /// `enum ibv_srq_type`.
    SRQ_TYPES: i32 {
        SRQT_BASIC = 0,
        SRQT_XRC = 1,
        SRQT_TM = 2,
    }
    /// `enum ibv_srq_attr_mask`.
    SRQ_ATTR_MASK: u32 {
        SRQ_MAX_WR = 1,
        SRQ_LIMIT = 1 << 1,
    }
    /// `enum ibv_cq_init_attr_mask`.
    CQ_INIT_ATTR_MASK: u32 {
        CQ_INIT_ATTR_MASK_FLAGS = 1,
        CQ_INIT_ATTR_MASK_PD = 1 << 1,
    }
    /// `enum ibv_create_cq_attr_flags`.
    CREATE_CQ_ATTR_FLAGS: u32 {
        CREATE_CQ_ATTR_SINGLE_THREADED = 1,
        CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    }
    /// `enum ibv_rereg_mr_flags`.
    REREG_MR_FLAGS: u32 {
        REREG_MR_CHANGE_TRANSLATION = 1,
        REREG_MR_CHANGE_PD = 1 << 1,
        REREG_MR_CHANGE_ACCESS = 1 << 2,
    }
    /// `enum ibv_fork_status`.
    FORK_STATUSES: i32 {
        FORK_DISABLED = 0,
        FORK_ENABLED = 1,
        FORK_UNNEEDED = 2,
    }
    /// `enum ibv_odp_transport_cap_bits`.
    ODP_TRANSPORT_CAPS: u32 {
        ODP_SUPPORT_SEND = 1,
        ODP_SUPPORT_RECV = 1 << 1,
        ODP_SUPPORT_WRITE = 1 << 2,
        ODP_SUPPORT_READ = 1 << 3,
        ODP_SUPPORT_ATOMIC = 1 << 4,
        ODP_SUPPORT_SRQ_RECV = 1 << 5,
    }
}

/// Bits of access flags that a device without them ignores (`IBV_ACCESS_OPTIONAL_RANGE`).
pub const ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;
/// `IBV_TRANSPORT_IB`.
pub const TRANSPORT_IB: i32 = 0;
/// `enum ibv_mw_type`.
pub const MW_TYPE_1: i32 = 1;
/// `enum ibv_mw_type`.
pub const MW_TYPE_2: i32 = 2;
/// `IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT`.
pub const ODP_GENERAL_CAPS: u64 = 3;
/// `IBV_VALUES_MASK_RAW_CLOCK`.
pub const VALUES_MASK_RAW_CLOCK: u32 = 1;
/// `IBV_REREG_MR_ERR_INPUT`: nothing changed.
pub const REREG_MR_ERR_INPUT: i32 = -1;
/// `IBV_REREG_MR_ERR_CMD`: the region should not be used any more.
pub const REREG_MR_ERR_CMD: i32 = -4;
/// `IBV_DM_MASK_HANDLE`.
pub const DM_MASK_HANDLE: u32 = 1;
/// `IBV_QPF_GRH_REQUIRED`: address handles need a global route.
pub const QPF_GRH_REQUIRED: u8 = 1;
/// `IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS`.
pub const XRCD_INIT_ATTR_ALL: u32 = 3;
/// `IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS`.
pub const PORT_CAP_FLAGS: u32 = 1 << 16 | 1 << 26;
