//! Devices and contexts, and the tables of functions that inline functions of the header call.

use super::attr::*;
use super::layout;
use super::objects::*;
use super::work::*;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Length of names.
pub const NAME_MAX: usize = 64;
/// Length of paths.
pub const PATH_MAX: usize = 256;

/// `struct ibv_device`.
#[repr(C)]
pub struct Device {
    /// Obsolete.
    pub ops: [usize; 2],
    /// What it is.
    pub node_type: c_int,
    /// What it speaks.
    pub transport_type: c_int,
    /// Name of the device.
    pub name: [c_char; NAME_MAX],
    /// Name of its character device.
    pub dev_name: [c_char; NAME_MAX],
    /// Where sysfs has the character device.
    pub dev_path: [c_char; PATH_MAX],
    /// Where sysfs has the device.
    pub ibdev_path: [c_char; PATH_MAX],
}
layout!(Device, 664, name @ 24, dev_name @ 88, dev_path @ 152, ibdev_path @ 408);

/// The head of rdma-core's private `struct verbs_device`, at whose `ops` vendor libraries look to see
/// whether a device is theirs.
#[repr(C)]
pub struct VerbsDevice {
    /// The public part.
    pub device: Device,
    /// The vendor's functions; ours is nobody's.
    pub ops: usize,
    /// Room for what follows in other versions.
    pub reserved: [usize; 16],
}
layout!(VerbsDevice, 800, ops @ 664);

/// A function that nothing calls any more.
pub type Unused = Option<unsafe extern "C" fn() -> *mut c_void>;

/// `struct ibv_context_ops`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ContextOps {
    /// Obsolete.
    pub compat_query_device: Unused,
    /// Obsolete.
    pub compat_query_port: Unused,
    /// Obsolete.
    pub compat_pd: [Unused; 2],
    /// Obsolete.
    pub compat_mr: [Unused; 3],
    /// `ibv_alloc_mw`.
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_int) -> *mut Mw>,
    /// `ibv_bind_mw`.
    pub bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    /// `ibv_dealloc_mw`.
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    /// Obsolete.
    pub compat_create_cq: Unused,
    /// `ibv_poll_cq`.
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    /// `ibv_req_notify_cq`.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    /// Obsolete: event, resize, destroy of completion queues; create, modify, query, destroy of SRQs.
    pub compat_cq_srq: [Unused; 7],
    /// `ibv_post_srq_recv`.
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    /// Obsolete.
    pub compat_qp: [Unused; 4],
    /// `ibv_post_send`.
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    /// `ibv_post_recv`.
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    /// Obsolete.
    pub compat_rest: [Unused; 5],
}
layout!(ContextOps, 256, alloc_mw @ 56, poll_cq @ 88, req_notify_cq @ 96, post_srq_recv @ 160, post_send @ 200, post_recv @ 208);

/// `struct ibv_context`.
#[repr(C)]
pub struct Context {
    /// The device.
    pub device: *mut Device,
    /// The functions.
    pub ops: ContextOps,
    /// Names the context to `ibv_import_device`.
    pub cmd_fd: c_int,
    /// Readable while asynchronous events wait.
    pub async_fd: c_int,
    /// Completion vectors.
    pub num_comp_vectors: c_int,
    /// `pthread_mutex_t`, for programs of old.
    pub mutex: Mutex,
    /// All ones: this context is inside a [`VerbsContext`].
    pub abi_compat: usize,
}
layout!(Context, 328, ops @ 8, cmd_fd @ 264, async_fd @ 268, num_comp_vectors @ 272, mutex @ 280, abi_compat @ 320);

/// A slot that this device leaves empty: the inline function answers `EOPNOTSUPP`.
pub type Empty = Option<unsafe extern "C" fn()>;

/// `struct verbs_context`, which grows at its front.
#[repr(C)]
pub struct VerbsContext {
    /// What rdma-core 65 asks providers for `ibv_free_buf` and `ibv_alloc_buf`; without, it allocates by itself.
    pub bufs: [Empty; 2],
    /// `ibv_dm_export_dmabuf_fd`.
    pub dm_export_dmabuf_fd: Empty,
    /// `ibv_reg_mr_ex`.
    pub reg_mr_ex: Option<unsafe extern "C" fn(*mut Pd, *mut MrInitAttr) -> *mut Mr>,
    /// `ibv_dealloc_dmah`, `ibv_alloc_dmah`.
    pub dmahs: [Empty; 2],
    /// `ibv_query_port`.
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    /// `ibv_advise_mr`.
    pub advise_mr: Option<unsafe extern "C" fn(*mut Pd, c_int, u32, *mut Sge, u32) -> c_int>,
    /// `ibv_alloc_null_mr`.
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut Pd) -> *mut Mr>,
    /// `ibv_read_counters`.
    pub read_counters: Empty,
    /// `ibv_attach_counters_point_flow`.
    pub attach_counters_point_flow: Empty,
    /// `ibv_create_counters`.
    pub create_counters: Empty,
    /// `ibv_destroy_counters`.
    pub destroy_counters: Empty,
    /// `ibv_reg_dm_mr`.
    pub reg_dm_mr: Option<unsafe extern "C" fn(*mut Pd, *mut Dm, u64, usize, c_uint) -> *mut Mr>,
    /// `ibv_alloc_dm`.
    pub alloc_dm: Option<unsafe extern "C" fn(*mut Context, *mut AllocDmAttr) -> *mut Dm>,
    /// `ibv_free_dm`.
    pub free_dm: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
    /// `ibv_modify_flow_action_esp`, `ibv_destroy_flow_action`, `ibv_create_flow_action_esp`.
    pub flow_actions: [Empty; 3],
    /// `ibv_modify_qp_rate_limit`.
    pub modify_qp_rate_limit: Empty,
    /// `ibv_alloc_parent_domain`.
    pub alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd>,
    /// `ibv_dealloc_td`.
    pub dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
    /// `ibv_alloc_td`.
    pub alloc_td: Option<unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td>,
    /// `ibv_modify_cq`.
    pub modify_cq: Option<unsafe extern "C" fn(*mut Cq, *mut ModifyCqAttr) -> c_int>,
    /// `ibv_post_srq_ops`.
    pub post_srq_ops: Empty,
    /// `ibv_destroy_rwq_ind_table`.
    pub destroy_rwq_ind_table: Option<unsafe extern "C" fn(*mut RwqIndTable) -> c_int>,
    /// `ibv_create_rwq_ind_table`.
    pub create_rwq_ind_table:
        Option<unsafe extern "C" fn(*mut Context, *mut RwqIndTableInitAttr) -> *mut RwqIndTable>,
    /// `ibv_destroy_wq`.
    pub destroy_wq: Option<unsafe extern "C" fn(*mut Wq) -> c_int>,
    /// `ibv_modify_wq`.
    pub modify_wq: Option<unsafe extern "C" fn(*mut Wq, *mut WqAttr) -> c_int>,
    /// `ibv_create_wq`.
    pub create_wq: Option<unsafe extern "C" fn(*mut Context, *mut WqInitAttr) -> *mut Wq>,
    /// `ibv_query_rt_values_ex`.
    pub query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
    /// `ibv_create_cq_ex`.
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
    /// For rdma-core itself.
    pub private: usize,
    /// `ibv_query_device_ex`.
    pub query_device_ex: Option<
        unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int,
    >,
    /// `ibv_destroy_flow`.
    pub destroy_flow: Option<unsafe extern "C" fn(*mut Flow) -> c_int>,
    /// Never used.
    pub placeholder2: usize,
    /// `ibv_create_flow`.
    pub create_flow: Option<unsafe extern "C" fn(*mut Qp, *mut FlowAttr) -> *mut Flow>,
    /// Never used.
    pub placeholder1: usize,
    /// `ibv_open_qp`.
    pub open_qp: Option<unsafe extern "C" fn(*mut Context, *mut QpOpenAttr) -> *mut Qp>,
    /// `ibv_create_qp_ex`.
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    /// `ibv_get_srq_num`.
    pub get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
    /// `ibv_create_srq_ex`.
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
    /// `ibv_open_xrcd`.
    pub open_xrcd: Option<unsafe extern "C" fn(*mut Context, *mut XrcdInitAttr) -> *mut Xrcd>,
    /// `ibv_close_xrcd`.
    pub close_xrcd: Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>,
    /// Never used.
    pub placeholder3: u64,
    /// Size of this structure: tells programs which slots there are.
    pub size: usize,
    /// The public part.
    pub context: Context,
}
layout!(VerbsContext, 696, reg_mr_ex @ 24, query_port @ 48, alloc_dm @ 112, alloc_td @ 176, modify_cq @ 184, query_rt_values @ 240,
    create_cq_ex @ 248, query_device_ex @ 264, create_flow @ 288, open_qp @ 304, create_qp_ex @ 312, create_srq_ex @ 328,
    open_xrcd @ 336, close_xrcd @ 344, size @ 360, context @ 368);
