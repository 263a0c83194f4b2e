//! The fields that rdma-core 45 to 65 added to the structures of 44, and a private structure that no header describes.
//! The numbers are those of a C compiler on x86-64.

/// rdma-core 65: the effective speed in units of 100 Mb/s.
pub struct ibv_port_attr {
    pub active_speed_ex: u32,
}
const _: () = assert!(size_of::<ibv_port_attr>() == 56);
const _: () = assert!(::std::mem::offset_of!(ibv_port_attr, active_speed_ex) == 52);

pub struct ibv_qp_ex {
    pub wr_flush: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, kind: u8, level: u8),
    >,
}
const _: () = assert!(size_of::<ibv_qp_ex>() == 360);
const _: () = assert!(::std::mem::offset_of!(ibv_qp_ex, wr_flush) == 352);

// An extended context grows at its front.
#[front]
pub struct verbs_context {
    pub free_buf: Option<unsafe extern "C" fn()>,
    pub alloc_buf: Option<unsafe extern "C" fn()>,
    pub dm_export_dmabuf_fd: Option<unsafe extern "C" fn()>,
    pub reg_mr_ex: Option<unsafe extern "C" fn(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr>,
    pub dealloc_dmah: Option<unsafe extern "C" fn()>,
    pub alloc_dmah: Option<unsafe extern "C" fn()>,
}
const _: () = assert!(size_of::<verbs_context>() == 696);
const _: () = assert!(::std::mem::offset_of!(verbs_context, reg_mr_ex) == 24);
const _: () = assert!(::std::mem::offset_of!(verbs_context, query_port) == 48);
const _: () = assert!(::std::mem::offset_of!(verbs_context, query_device_ex) == 264);
const _: () = assert!(::std::mem::offset_of!(verbs_context, close_xrcd) == 344);
const _: () = assert!(::std::mem::offset_of!(verbs_context, sz) == 360);
const _: () = assert!(::std::mem::offset_of!(verbs_context, context) == 368);

/// `struct ibv_mr_init_attr` of rdma-core 61: without its last field, which exists only if the mask says so.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut c_void,
}
const _: () = assert!(size_of::<ibv_mr_init_attr>() == 64);
const _: () = assert!(::std::mem::offset_of!(ibv_mr_init_attr, dmah) == 56);

/// `struct ibv_mr_init_attr` of rdma-core 65.
#[repr(C)]
pub struct MrInitAttrBuf {
    pub head: ibv_mr_init_attr,
    pub buf: *mut Buf,
}
const _: () = assert!(size_of::<MrInitAttrBuf>() == 72);

/// `struct ibv_buf`, which is opaque to programs.
#[repr(C)]
pub struct Buf {
    pub private: [u64; 0],
}

/// The beginning of rdma-core's private `struct verbs_device`: vendor libraries compare its `ops` with their own to see
/// whether a device is theirs.
#[repr(C)]
pub struct VerbsDevice {
    pub device: ibv_device,
    pub ops: usize,
    /// Room for the fields of other versions.
    pub reserved: [usize; 16],
}
const _: () = assert!(size_of::<VerbsDevice>() == 800);
const _: () = assert!(::std::mem::offset_of!(VerbsDevice, ops) == 664);

pub const IBV_REG_MR_MASK_IOVA: u64 = 1;
pub const IBV_REG_MR_MASK_ADDR: u64 = 2;
pub const IBV_REG_MR_MASK_FD: u64 = 4;
pub const IBV_REG_MR_MASK_FD_OFFSET: u64 = 8;
pub const IBV_REG_MR_MASK_DMAH: u64 = 16;
pub const IBV_REG_MR_MASK_BUF: u64 = 32;

/// Flushing of persistent memory, which is newer than 44.
pub const IBV_ACCESS_FLUSH_GLOBAL: ibv_access_flags = 1 << 8;
pub const IBV_ACCESS_FLUSH_PERSISTENT: ibv_access_flags = 1 << 9;

// Macros that name enumerations of the kernel's headers.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;
/// Bits of access flags that a device without these features ignores.
pub const IBV_ACCESS_OPTIONAL_RANGE: ibv_access_flags = 0x3ff0_0000;
