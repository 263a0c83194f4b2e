//! The fields and types that libfabric appended after 1.17, up to API 2.6. A structure that programs pass keeps its
//! layout of 1.17, because older programs pass the shorter structure; the longer one begins with it.

pub struct fi_ops_domain {
    pub xpu_ctx: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut c_void,
        ctx: *mut *mut c_void,
        context: *mut c_void,
    ) -> c_int,
}

pub struct fi_ops_ep {
    pub export_xpu: unsafe extern "C" fn(ep: *mut fid_ep, xpu: *mut c_void) -> c_int,
}

pub struct fi_ops_av {
    pub insert_auth_key: unsafe extern "C" fn(
        av: *mut fid_av,
        auth_key: *const c_void,
        auth_key_size: usize,
        fi_addr: *mut u64,
        flags: u64,
    ) -> c_int,
    pub lookup_auth_key: unsafe extern "C" fn(
        av: *mut fid_av,
        addr: u64,
        auth_key: *mut c_void,
        auth_key_size: *mut usize,
    ) -> c_int,
    pub set_user_id:
        unsafe extern "C" fn(av: *mut fid_av, fi_addr: u64, user_id: u64, flags: u64) -> c_int,
    pub lookup2: unsafe extern "C" fn(
        av: *mut fid_av,
        fi_addr: u64,
        addr: *mut c_void,
        addrlen: *mut usize,
        flags: u64,
    ) -> c_int,
}

pub struct fi_ops_cq {
    pub export_xpu: unsafe extern "C" fn(cq: *mut fid_cq, xpu: *mut c_void) -> c_int,
}

pub struct fi_ops_cntr {
    pub export_xpu: unsafe extern "C" fn(cntr: *mut fid_cntr, xpu: *mut c_void) -> c_int,
}

/// 1.20.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LongCqErrEntry {
    pub known: fi_cq_err_entry,
    pub src_addr: u64,
}
const _: () = assert!(size_of::<LongCqErrEntry>() == 88);

/// 2.6.
#[repr(C)]
pub struct LongEpAttr {
    pub known: fi_ep_attr,
    pub xpu_ctx: *mut c_void,
}
const _: () = assert!(size_of::<LongEpAttr>() == 104);

/// 1.20, 2.0, 2.5, 2.6.
#[repr(C)]
pub struct LongDomainAttr {
    pub known: fi_domain_attr,
    pub max_ep_auth_key: usize,
    pub max_group_id: u32,
    pub max_cntr_value: u64,
    pub max_err_cntr_value: u64,
    pub max_xpu_ctx_cnt: usize,
}
const _: () = assert!(size_of::<LongDomainAttr>() == 232);

/// 1.19 and later.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LongMrAttr {
    pub known: fi_mr_attr,
    pub hmem_data: *mut c_void,
    pub page_size: usize,
    pub base_mr: *const c_void,
    pub sub_mr_cnt: usize,
}
const _: () = assert!(size_of::<LongMrAttr>() == 112);

/// 1.20: the type that `mr_iov` points to with `FI_MR_DMABUF`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_dmabuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut c_void,
}
const _: () = assert!(size_of::<fi_mr_dmabuf>() == 32);

/// 2.0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_auth_key {
    pub av: *mut fid_av,
    pub src_addr: u64,
}
const _: () = assert!(size_of::<fi_mr_auth_key>() == 16);

pub const FI_MR_DMABUF: u64 = 1 << 40;
pub const FI_MR_SINGLE_USE: u64 = 1 << 41;
pub const FI_AV_USER_ID: u64 = 1 << 41;
/// The vector also has numbers of authorization keys.
pub const FI_AUTH_KEY: u64 = 1 << 57;
/// A value of `auth_key_size`: the keys are in the address vector.
pub const FI_AV_AUTH_KEY: usize = usize::MAX;
pub const FI_PROGRESS_CONTROL_UNIFIED: fi_progress = 3;
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

// Macros with casts, which bindgen does not evaluate.
pub const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
/// A value of `tx_ctx_cnt` and `rx_ctx_cnt`: the context is shared.
pub const FI_SHARED_CONTEXT: usize = usize::MAX;

/// A flag of libfabric's own layers, in no public header: the region must not be cached.
pub const OFI_MR_NOCACHE: u64 = 1 << 60;
