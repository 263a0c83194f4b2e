//! Work requests and completions.

use super::layout;
use super::objects::{Ah, Mr, Mw};
use std::ffi::{c_int, c_uint, c_void};

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    /// Where.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}
layout!(Sge, 16);

/// `struct ibv_data_buf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DataBuf {
    /// Where.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
}
layout!(DataBuf, 16);

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MwBindInfo {
    /// The region.
    pub mr: *mut Mr,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Rights.
    pub mw_access_flags: c_uint,
}
layout!(MwBindInfo, 32);

/// `struct ibv_mw_bind`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MwBind {
    /// Id.
    pub wr_id: u64,
    /// How to treat it.
    pub send_flags: c_uint,
    /// What to bind.
    pub bind_info: MwBindInfo,
}
layout!(MwBind, 48, bind_info @ 16);

/// The part of a request for RDMA.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaWr {
    /// Where at the peer.
    pub remote_addr: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// The part of a request for atomics.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AtomicWr {
    /// Where at the peer.
    pub remote_addr: u64,
    /// What to compare with, or to add.
    pub compare_add: u64,
    /// What to put there.
    pub swap: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// The part of a request for datagrams.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UdWr {
    /// Where to.
    pub ah: *mut Ah,
    /// To which queue pair.
    pub remote_qpn: u32,
    /// With which queue key.
    pub remote_qkey: u32,
}

/// The part that depends on the operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub union WrKind {
    /// RDMA.
    pub rdma: RdmaWr,
    /// Atomics.
    pub atomic: AtomicWr,
    /// Datagrams.
    pub ud: UdWr,
}

/// The part of a request that binds a window.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BindMwWr {
    /// The window.
    pub mw: *mut Mw,
    /// Its new key.
    pub rkey: u32,
    /// What to bind.
    pub bind_info: MwBindInfo,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    /// Id.
    pub wr_id: u64,
    /// The next request.
    pub next: *mut SendWr,
    /// Local memory.
    pub sg_list: *mut Sge,
    /// How many pieces.
    pub num_sge: c_int,
    /// What to do.
    pub opcode: c_int,
    /// How to treat it.
    pub send_flags: c_uint,
    /// Immediate data in network byte order, or the key to invalidate.
    pub imm_data: u32,
    /// What depends on the operation.
    pub wr: WrKind,
    /// The peer's SRQ (XRC).
    pub xrc_remote_srqn: u32,
    /// The window to bind.
    pub bind_mw: BindMwWr,
}
layout!(SendWr, 128, num_sge @ 24, opcode @ 28, send_flags @ 32, imm_data @ 36, wr @ 40, xrc_remote_srqn @ 72, bind_mw @ 80);

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    /// Id.
    pub wr_id: u64,
    /// The next request.
    pub next: *mut RecvWr,
    /// Local memory.
    pub sg_list: *mut Sge,
    /// How many pieces.
    pub num_sge: c_int,
}
layout!(RecvWr, 32);

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    /// Id.
    pub wr_id: u64,
    /// How it ended.
    pub status: c_int,
    /// What it was.
    pub opcode: c_int,
    /// Number of the report that explains a refusal.
    pub vendor_err: u32,
    /// Bytes.
    pub byte_len: u32,
    /// Immediate data in network byte order, or the invalidated key.
    pub imm_data: u32,
    /// The queue pair here.
    pub qp_num: u32,
    /// The queue pair there.
    pub src_qp: u32,
    /// What else is valid.
    pub wc_flags: c_uint,
    /// Partition.
    pub pkey_index: u16,
    /// LID there.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Path bits.
    pub dlid_path_bits: u8,
}
layout!(Wc, 48, status @ 8, imm_data @ 24, wc_flags @ 36, pkey_index @ 40, sl @ 44);
