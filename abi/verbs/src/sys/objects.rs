//! The objects whose addresses a program holds, and which it reads.

use super::context::Context;
use super::work::{DataBuf, MwBindInfo, Sge};
use super::{Gid, layout};
use std::ffi::{c_int, c_uint, c_void};

/// `pthread_mutex_t`, never locked by us; all zeroes is an unlocked one.
pub type Mutex = [u64; 5];
/// `pthread_cond_t`; all zeroes is one that nobody waits for.
pub type Cond = [u64; 6];

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    /// The context.
    pub context: *mut Context,
    /// Names it to `ibv_import_pd`.
    pub handle: u32,
}
layout!(Pd, 16);

/// `struct ibv_td`.
#[repr(C)]
pub struct Td {
    /// The context.
    pub context: *mut Context,
}

/// `struct ibv_xrcd`.
#[repr(C)]
pub struct Xrcd {
    /// The context.
    pub context: *mut Context,
}

/// `struct ibv_wq`.
#[repr(C)]
pub struct Wq {
    /// The context.
    pub context: *mut Context,
    /// The program's own.
    pub wq_context: *mut c_void,
    /// The protection domain.
    pub pd: *mut Pd,
    /// Where receives complete.
    pub cq: *mut Cq,
    /// Its number.
    pub wq_num: u32,
    /// Names it.
    pub handle: u32,
    /// Its state.
    pub state: c_int,
    /// What kind.
    pub wq_type: c_int,
    /// `ibv_post_wq_recv`.
    pub post_recv: Option<
        unsafe extern "C" fn(
            *mut Wq,
            *mut super::work::RecvWr,
            *mut *mut super::work::RecvWr,
        ) -> c_int,
    >,
    /// `pthread_mutex_t`.
    pub mutex: Mutex,
    /// `pthread_cond_t`.
    pub cond: Cond,
    /// Events that the program is done with.
    pub events_completed: u32,
    /// None.
    pub comp_mask: u32,
}
layout!(Wq, 152, wq_num @ 32, state @ 40, post_recv @ 48, mutex @ 56, cond @ 96, comp_mask @ 148);

/// `struct ibv_rwq_ind_table`.
#[repr(C)]
pub struct RwqIndTable {
    /// The context.
    pub context: *mut Context,
    /// Names it.
    pub ind_tbl_handle: c_int,
    /// Its number.
    pub ind_tbl_num: c_int,
    /// None.
    pub comp_mask: u32,
}
layout!(RwqIndTable, 24, comp_mask @ 16);

/// `struct ibv_flow`.
#[repr(C)]
pub struct Flow {
    /// None.
    pub comp_mask: u32,
    /// The context.
    pub context: *mut Context,
    /// Names it.
    pub handle: u32,
}
layout!(Flow, 24, context @ 8, handle @ 16);

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    /// The context.
    pub context: *mut Context,
    /// The protection domain.
    pub pd: *mut Pd,
    /// First byte.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// Names it to `ibv_import_mr`.
    pub handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}
layout!(Mr, 48, addr @ 16, lkey @ 36, rkey @ 40);

/// `struct ibv_mw`.
#[repr(C)]
pub struct Mw {
    /// The context.
    pub context: *mut Context,
    /// The protection domain.
    pub pd: *mut Pd,
    /// Remote key.
    pub rkey: u32,
    /// A number of its own.
    pub handle: u32,
    /// 1 or 2.
    pub mw_type: c_int,
}
layout!(Mw, 32, rkey @ 16);

/// `struct ibv_dm`.
#[repr(C)]
pub struct Dm {
    /// The context.
    pub context: *mut Context,
    /// `ibv_memcpy_to_dm`.
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut Dm, u64, *const c_void, usize) -> c_int>,
    /// `ibv_memcpy_from_dm`.
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Dm, u64, usize) -> c_int>,
    /// Which fields follow.
    pub comp_mask: u32,
    /// Names it to `ibv_import_dm`.
    pub handle: u32,
}
layout!(Dm, 32);

/// `struct ibv_ah`.
#[repr(C)]
pub struct Ah {
    /// The context.
    pub context: *mut Context,
    /// The protection domain.
    pub pd: *mut Pd,
    /// A number of its own.
    pub handle: u32,
}
layout!(Ah, 24);

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompChannel {
    /// The context.
    pub context: *mut Context,
    /// Readable while events wait.
    pub fd: c_int,
    /// Completion queues that use it.
    pub refcnt: c_int,
}
layout!(CompChannel, 16);

/// `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    /// The context.
    pub context: *mut Context,
    /// Where events go.
    pub channel: *mut CompChannel,
    /// The program's own.
    pub cq_context: *mut c_void,
    /// A number of its own.
    pub handle: u32,
    /// How many completions it holds.
    pub cqe: c_int,
    /// Not used by us.
    pub mutex: Mutex,
    /// Not used by us.
    pub cond: Cond,
    /// Acknowledged completion events.
    pub comp_events_completed: u32,
    /// Acknowledged asynchronous events.
    pub async_events_completed: u32,
}
layout!(Cq, 128, cqe @ 28, mutex @ 32, comp_events_completed @ 120);

/// A reader of an extended completion queue.
pub type Read<T> = Option<unsafe extern "C" fn(*mut CqEx) -> T>;

/// `struct ibv_cq_ex`; its head is a [`Cq`].
#[repr(C)]
pub struct CqEx {
    /// The head.
    pub cq: Cq,
    /// Which fields follow.
    pub comp_mask: u32,
    /// Status of the current completion.
    pub status: c_int,
    /// Id of the current completion.
    pub wr_id: u64,
    /// `ibv_start_poll`.
    pub start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int>,
    /// `ibv_next_poll`.
    pub next_poll: Read<c_int>,
    /// `ibv_end_poll`.
    pub end_poll: Read<()>,
    /// `ibv_wc_read_opcode`.
    pub read_opcode: Read<c_int>,
    /// `ibv_wc_read_vendor_err`.
    pub read_vendor_err: Read<u32>,
    /// `ibv_wc_read_byte_len`.
    pub read_byte_len: Read<u32>,
    /// `ibv_wc_read_imm_data`.
    pub read_imm_data: Read<u32>,
    /// `ibv_wc_read_qp_num`.
    pub read_qp_num: Read<u32>,
    /// `ibv_wc_read_src_qp`.
    pub read_src_qp: Read<u32>,
    /// `ibv_wc_read_wc_flags`.
    pub read_wc_flags: Read<c_uint>,
    /// `ibv_wc_read_slid`.
    pub read_slid: Read<u32>,
    /// `ibv_wc_read_sl`.
    pub read_sl: Read<u8>,
    /// `ibv_wc_read_dlid_path_bits`.
    pub read_dlid_path_bits: Read<u8>,
    /// `ibv_wc_read_completion_ts`.
    pub read_completion_ts: Read<u64>,
    /// `ibv_wc_read_cvlan`.
    pub read_cvlan: Read<u16>,
    /// `ibv_wc_read_flow_tag`.
    pub read_flow_tag: Read<u32>,
    /// `ibv_wc_read_tm_info`.
    pub read_tm_info: Option<unsafe extern "C" fn(*mut CqEx, *mut TmInfo)>,
    /// `ibv_wc_read_completion_wallclock_ns`.
    pub read_completion_wallclock_ns: Read<u64>,
}
layout!(CqEx, 288, comp_mask @ 128, wr_id @ 136, start_poll @ 144, read_completion_wallclock_ns @ 280);

/// `struct ibv_poll_cq_attr`.
#[repr(C)]
pub struct PollCqAttr {
    /// Has to be 0.
    pub comp_mask: u32,
}

/// `struct ibv_wc_tm_info`.
#[repr(C)]
pub struct TmInfo {
    /// The tag.
    pub tag: u64,
    /// The sender's own.
    pub private: u32,
}

/// `struct ibv_srq`.
#[repr(C)]
pub struct Srq {
    /// The context.
    pub context: *mut Context,
    /// The program's own.
    pub srq_context: *mut c_void,
    /// The protection domain.
    pub pd: *mut Pd,
    /// A number of its own.
    pub handle: u32,
    /// Not used by us.
    pub mutex: Mutex,
    /// Not used by us.
    pub cond: Cond,
    /// Acknowledged asynchronous events.
    pub events_completed: u32,
}
layout!(Srq, 128, handle @ 24, mutex @ 32, events_completed @ 120);

/// `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    /// The context.
    pub context: *mut Context,
    /// The program's own.
    pub qp_context: *mut c_void,
    /// The protection domain.
    pub pd: *mut Pd,
    /// Where sends complete.
    pub send_cq: *mut Cq,
    /// Where receives complete.
    pub recv_cq: *mut Cq,
    /// Where receives come from.
    pub srq: *mut Srq,
    /// A number of its own.
    pub handle: u32,
    /// The queue pair number.
    pub qp_num: u32,
    /// The state as the last modify or query found it.
    pub state: c_int,
    /// The transport service.
    pub qp_type: c_int,
    /// Not used by us.
    pub mutex: Mutex,
    /// Not used by us.
    pub cond: Cond,
    /// Acknowledged asynchronous events.
    pub events_completed: u32,
}
layout!(Qp, 160, handle @ 48, qp_num @ 52, state @ 56, qp_type @ 60, mutex @ 64, events_completed @ 152);

/// `struct ibv_qp_ex`; its head is a [`Qp`].
#[repr(C)]
pub struct QpEx {
    /// The head.
    pub qp: Qp,
    /// Which fields follow.
    pub comp_mask: u64,
    /// Id of the next work request.
    pub wr_id: u64,
    /// Flags of the next work request.
    pub wr_flags: c_uint,
    /// `ibv_wr_atomic_cmp_swp`.
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
    /// `ibv_wr_atomic_fetch_add`.
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    /// `ibv_wr_bind_mw`.
    pub wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
    /// `ibv_wr_local_inv`.
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    /// `ibv_wr_rdma_read`.
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    /// `ibv_wr_rdma_write`.
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    /// `ibv_wr_rdma_write_imm`.
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    /// `ibv_wr_send`.
    pub wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
    /// `ibv_wr_send_imm`.
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    /// `ibv_wr_send_inv`.
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    /// `ibv_wr_send_tso`.
    pub wr_send_tso: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, u16, u16)>,
    /// `ibv_wr_set_ud_addr`.
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
    /// `ibv_wr_set_xrc_srqn`.
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    /// `ibv_wr_set_inline_data`.
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
    /// `ibv_wr_set_inline_data_list`.
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
    /// `ibv_wr_set_sge`.
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    /// `ibv_wr_set_sge_list`.
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    /// `ibv_wr_start`.
    pub wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
    /// `ibv_wr_complete`.
    pub wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    /// `ibv_wr_abort`.
    pub wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
    /// `ibv_wr_atomic_write`.
    pub wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)>,
    /// `ibv_wr_flush` (rdma-core 65).
    pub wr_flush: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, usize, u8, u8)>,
}
layout!(QpEx, 360, comp_mask @ 160, wr_id @ 168, wr_flags @ 176, wr_atomic_cmp_swp @ 184, wr_start @ 320, wr_atomic_write @ 344);

/// `struct ibv_async_event`.
#[repr(C)]
pub struct AsyncEvent {
    /// The object: its address, or for port events the number of the port.
    pub element: usize,
    /// What happened.
    pub event_type: c_int,
}
layout!(AsyncEvent, 16, event_type @ 8);

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its place in the table.
    pub gid_index: u32,
    /// The port.
    pub port_num: u32,
    /// What kind it is.
    pub gid_type: u32,
    /// The network interface.
    pub ndev_ifindex: u32,
}
layout!(GidEntry, 32);

/// `struct ibv_grh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Grh {
    /// Version, traffic class and flow label.
    pub version_tclass_flow: u32,
    /// Length of the payload.
    pub paylen: u16,
    /// What follows.
    pub next_hdr: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// From whom.
    pub sgid: Gid,
    /// To whom.
    pub dgid: Gid,
}
layout!(Grh, 40, sgid @ 8, dgid @ 24);

/// `struct ibv_buf`, of which programs see nothing.
#[repr(C)]
pub struct Buf {
    /// Nothing.
    pub private: [u64; 0],
}
