//! Attributes: what programs ask for, and what they are told.

use super::objects::{Buf, CompChannel, Cq, Pd, RwqIndTable, Srq, Td, Wq, Xrcd};
use super::{Gid, layout};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the names are the documentation: ibv_query_device(3)
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
layout!(DeviceAttr, 232, node_guid @ 64, max_srq @ 212, phys_port_cnt @ 227);

/// `struct ibv_device_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the names are the documentation: ibv_query_device_ex(3)
pub struct DeviceAttrEx {
    pub orig_attr: DeviceAttr,
    pub comp_mask: u32,
    pub odp_general_caps: u64,
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: [u32; 2],
    pub rss_caps: [u64; 4],
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: [u32; 3],
    pub raw_packet_caps: u32,
    pub tm_caps: [u32; 5],
    pub max_cq_count: u16,
    pub max_cq_period: u16,
    pub max_dm_size: u64,
    pub pci_atomic_caps: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
layout!(DeviceAttrEx, 400, comp_mask @ 232, odp_general_caps @ 240, completion_timestamp_mask @ 264,
    device_cap_flags_ex @ 280, rss_caps @ 296, raw_packet_caps @ 344, tm_caps @ 348, max_cq_count @ 368,
    max_dm_size @ 376, xrc_odp_caps @ 392, phys_port_cnt_ex @ 396);

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs)] // the names are the documentation: ibv_query_port(3)
pub struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// rdma-core 65.
    pub active_speed_ex: u32,
}
layout!(PortAttr, 56, link_layer @ 46, port_cap_flags2 @ 48, active_speed_ex @ 52);

/// `struct ibv_alloc_dm_attr`.
#[repr(C)]
pub struct AllocDmAttr {
    /// Bytes.
    pub length: usize,
    /// Alignment, as a power of two.
    pub log_align_req: u32,
    /// Has to be 0.
    pub comp_mask: u32,
}
layout!(AllocDmAttr, 16);

/// `struct ibv_td_init_attr`.
#[repr(C)]
pub struct TdInitAttr {
    /// Has to be 0.
    pub comp_mask: u32,
}

/// `struct ibv_parent_domain_init_attr`.
#[repr(C)]
pub struct ParentDomainInitAttr {
    /// The protection domain.
    pub pd: *mut Pd,
    /// A thread domain, or null.
    pub td: *mut Td,
    /// Which fields follow.
    pub comp_mask: u32,
    /// The program's allocator.
    pub alloc: usize,
    /// The program's deallocator.
    pub free: usize,
    /// The program's own.
    pub pd_context: *mut c_void,
}
layout!(ParentDomainInitAttr, 48);

/// `struct ibv_xrcd_init_attr`.
#[repr(C)]
pub struct XrcdInitAttr {
    /// Which fields follow.
    pub comp_mask: u32,
    /// The file whose inode names the domain, or -1.
    pub fd: c_int,
    /// `O_CREAT`, `O_EXCL`.
    pub oflags: c_int,
}
layout!(XrcdInitAttr, 12);

/// `struct ibv_flow_attr`; the layers follow.
#[repr(C)]
pub struct FlowAttr {
    /// None.
    pub comp_mask: u32,
    /// `IBV_FLOW_ATTR_NORMAL` and others.
    pub kind: c_int,
    /// Bytes of this structure and the layers.
    pub size: u16,
    /// Which rule counts first.
    pub priority: u16,
    /// Layers.
    pub num_of_specs: u8,
    /// The port.
    pub port: u8,
    /// Flags.
    pub flags: u32,
}
layout!(FlowAttr, 20, size @ 8, num_of_specs @ 12, flags @ 16);

/// `struct ibv_values_ex`.
#[repr(C)]
pub struct ValuesEx {
    /// Which values are wanted.
    pub comp_mask: u32,
    /// The device's clock: seconds, nanoseconds.
    pub raw_clock: [i64; 2],
}
layout!(ValuesEx, 24);

/// `struct ibv_ece`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Ece {
    /// Whose options.
    pub vendor_id: u32,
    /// Which.
    pub options: u32,
    /// Has to be 0.
    pub comp_mask: u32,
}
layout!(Ece, 12);

/// `struct ibv_modify_cq_attr`.
#[repr(C)]
pub struct ModifyCqAttr {
    /// Which fields follow.
    pub attr_mask: u32,
    /// Completions before an event.
    pub cq_count: u16,
    /// Microseconds before an event.
    pub cq_period: u16,
}
layout!(ModifyCqAttr, 8);

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub struct CqInitAttrEx {
    /// How many completions it has to hold.
    pub cqe: u32,
    /// The program's own.
    pub cq_context: *mut c_void,
    /// Where events go.
    pub channel: *mut CompChannel,
    /// Completion vector.
    pub comp_vector: u32,
    /// Which readers are wanted.
    pub wc_flags: u64,
    /// Which fields follow.
    pub comp_mask: u32,
    /// Flags.
    pub flags: u32,
    /// The parent domain.
    pub parent_domain: *mut Pd,
}
layout!(CqInitAttrEx, 56, wc_flags @ 32, parent_domain @ 48);

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives.
    pub max_wr: u32,
    /// Pieces of a receive.
    pub max_sge: u32,
    /// Below so many receives an event is raised.
    pub srq_limit: u32,
}
layout!(SrqAttr, 12);

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub struct SrqInitAttr {
    /// The program's own.
    pub srq_context: *mut c_void,
    /// Sizes.
    pub attr: SrqAttr,
}
layout!(SrqInitAttr, 24);

/// `struct ibv_srq_init_attr_ex`.
#[repr(C)]
pub struct SrqInitAttrEx {
    /// The program's own.
    pub srq_context: *mut c_void,
    /// Sizes.
    pub attr: SrqAttr,
    /// Which fields follow.
    pub comp_mask: u32,
    /// What kind.
    pub srq_type: c_int,
    /// The protection domain.
    pub pd: *mut Pd,
    /// The XRC domain.
    pub xrcd: *mut Xrcd,
    /// Where receives complete (XRC).
    pub cq: *mut Cq,
    /// Tag matching.
    pub tm_cap: [u32; 2],
}
layout!(SrqInitAttrEx, 64, cq @ 48, tm_cap @ 56);

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Sends.
    pub max_send_wr: u32,
    /// Receives.
    pub max_recv_wr: u32,
    /// Pieces of a send.
    pub max_send_sge: u32,
    /// Pieces of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpInitAttr {
    /// The program's own.
    pub qp_context: *mut c_void,
    /// Where sends complete.
    pub send_cq: *mut Cq,
    /// Where receives complete.
    pub recv_cq: *mut Cq,
    /// Where receives come from.
    pub srq: *mut Srq,
    /// Sizes.
    pub cap: QpCap,
    /// The transport service.
    pub qp_type: c_int,
    /// Complete all sends.
    pub sq_sig_all: c_int,
}
layout!(QpInitAttr, 64, cap @ 32, qp_type @ 52);

/// `struct ibv_rx_hash_conf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RxHashConf {
    /// Which function.
    pub rx_hash_function: u8,
    /// Bytes of its key.
    pub rx_hash_key_len: u8,
    /// Its key.
    pub rx_hash_key: *mut u8,
    /// What is hashed.
    pub rx_hash_fields_mask: u64,
}
layout!(RxHashConf, 24, rx_hash_key @ 8, rx_hash_fields_mask @ 16);

/// `struct ibv_wq_init_attr`.
#[repr(C)]
pub struct WqInitAttr {
    /// The program's own.
    pub wq_context: *mut c_void,
    /// What kind.
    pub wq_type: c_int,
    /// Receives.
    pub max_wr: u32,
    /// Pieces of a receive.
    pub max_sge: u32,
    /// The protection domain.
    pub pd: *mut Pd,
    /// Where receives complete.
    pub cq: *mut Cq,
    /// Which fields follow.
    pub comp_mask: u32,
    /// Flags.
    pub create_flags: u32,
}
layout!(WqInitAttr, 48, max_wr @ 12, pd @ 24, comp_mask @ 40);

/// `struct ibv_wq_attr`.
#[repr(C)]
pub struct WqAttr {
    /// Which fields count.
    pub attr_mask: u32,
    /// The state to go to.
    pub wq_state: c_int,
    /// The state it is in, as the program believes.
    pub curr_wq_state: c_int,
    /// Flags.
    pub flags: u32,
    /// Which flags count.
    pub flags_mask: u32,
}
layout!(WqAttr, 20);

/// `struct ibv_rwq_ind_table_init_attr`.
#[repr(C)]
pub struct RwqIndTableInitAttr {
    /// The logarithm of the number of queues.
    pub log_ind_tbl_size: u32,
    /// The queues.
    pub ind_tbl: *mut *mut Wq,
    /// None.
    pub comp_mask: u32,
}
layout!(RwqIndTableInitAttr, 24, ind_tbl @ 8, comp_mask @ 16);

/// `struct ibv_qp_init_attr_ex`. Its head has the fields of [`QpInitAttr`], and `comp_mask` follows
/// where that has its padding.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpInitAttrEx {
    /// The program's own.
    pub qp_context: *mut c_void,
    /// Where sends complete.
    pub send_cq: *mut Cq,
    /// Where receives complete.
    pub recv_cq: *mut Cq,
    /// Where receives come from.
    pub srq: *mut Srq,
    /// Sizes.
    pub cap: QpCap,
    /// The transport service.
    pub qp_type: c_int,
    /// Complete all sends.
    pub sq_sig_all: c_int,
    /// Which fields follow.
    pub comp_mask: u32,
    /// The protection domain.
    pub pd: *mut Pd,
    /// The XRC domain.
    pub xrcd: *mut Xrcd,
    /// Flags.
    pub create_flags: u32,
    /// Segmentation offload.
    pub max_tso_header: u16,
    /// Receive side scaling.
    pub rwq_ind_tbl: *mut RwqIndTable,
    /// Receive side scaling.
    pub rx_hash_conf: RxHashConf,
    /// Source queue pair.
    pub source_qpn: u32,
    /// Which work requests of the extended interface are wanted.
    pub send_ops_flags: u64,
}
layout!(QpInitAttrEx, 136, comp_mask @ 60, pd @ 64, create_flags @ 80, rwq_ind_tbl @ 88, source_qpn @ 120, send_ops_flags @ 128);

/// `struct ibv_qp_open_attr`.
#[repr(C)]
pub struct QpOpenAttr {
    /// Which fields follow.
    pub comp_mask: u32,
    /// The number.
    pub qp_num: u32,
    /// The XRC domain.
    pub xrcd: *mut Xrcd,
    /// The program's own.
    pub qp_context: *mut c_void,
    /// The transport service.
    pub qp_type: c_int,
}
layout!(QpOpenAttr, 32);

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// To whom.
    pub dgid: Gid,
    /// Flow label.
    pub flow_label: u32,
    /// From whom: index of our GID.
    pub sgid_index: u8,
    /// Hops.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}
layout!(GlobalRoute, 24, sgid_index @ 20);

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// Global route.
    pub grh: GlobalRoute,
    /// LID there.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Path bits.
    pub src_path_bits: u8,
    /// Rate.
    pub static_rate: u8,
    /// Whether the global route counts.
    pub is_global: u8,
    /// Port here.
    pub port_num: u8,
}
layout!(AhAttr, 32, dlid @ 24, is_global @ 29, port_num @ 30);

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the documentation: ibv_modify_qp(3)
pub struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
layout!(QpAttr, 144, cap @ 36, ah_attr @ 56, pkey_index @ 120, max_rd_atomic @ 126, alt_timeout @ 134, rate_limit @ 136);

/// `struct ibv_mr_init_attr`, as it was before rdma-core 65.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MrInitAttr {
    /// Bytes.
    pub length: usize,
    /// Flags.
    pub access: c_int,
    /// Which fields follow.
    pub comp_mask: u64,
    /// How requests name the first byte.
    pub iova: u64,
    /// The first byte.
    pub addr: *mut c_void,
    /// A file that stands for memory.
    pub fd: c_int,
    /// The first byte in it.
    pub fd_offset: u64,
    /// A hint for DMA.
    pub dmah: *mut c_void,
}
layout!(MrInitAttr, 64, access @ 8, comp_mask @ 16, iova @ 24, addr @ 32, fd @ 40, fd_offset @ 48, dmah @ 56);

/// `struct ibv_mr_init_attr` of rdma-core 65. Its last field is there only when the mask says so.
#[repr(C)]
pub struct MrInitAttrBuf {
    /// What there was before.
    pub head: MrInitAttr,
    /// A buffer of the library's.
    pub buf: *mut Buf,
}
layout!(MrInitAttrBuf, 72, buf @ 64);
