//! The attributes of an IA and of its provider.

#![allow(unsafe_code)]
// UNSAFETY: the structures contain addresses of constants.

use crate::objects::ia::Ia;
use crate::sys::consts::*;
use crate::sys::{IaAttr, NamedAttr, ProviderAttr, VALUE_UNKNOWN};
use crate::values::hello::MAX_PRIVATE_DATA;
use crate::values::limits::*;
use rkey_device::core::Limits;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

/// Named attributes, which programs only read.
struct Names<const N: usize>([NamedAttr; N]);
// SAFETY: constants.
unsafe impl<const N: usize> Sync for Names<N> {}

impl<const N: usize> Names<N> {
    fn pointer(&'static self) -> *mut NamedAttr {
        self.0.as_ptr().cast_mut()
    }
}

const fn named(name: &'static CStr, value: &'static CStr) -> NamedAttr {
    NamedAttr {
        name: name.as_ptr(),
        value: value.as_ptr(),
    }
}

/// The features of the InfiniBand extension that are supported here; dtest and dtestsrq check for the last two.
static PROVIDER: Names<7> = Names([
    named(c"DAT_EXTENSION_INTERFACE", c"TRUE"),
    named(c"DAT_IB_FETCH_AND_ADD", c"TRUE"),
    named(c"DAT_IB_CMP_AND_SWAP", c"TRUE"),
    named(c"DAT_IB_IMMED_DATA", c"TRUE"),
    named(c"DAT_IB_UD", c"TRUE"),
    named(c"DAT_IB_RDMA_READ", c"TRUE"),
    named(c"DAT_IB_TRANSPORT_MTU", c"4096"),
]);

static TRANSPORT: Names<1> = Names([named(c"DAT_IB_TRANSPORT_MTU", c"4096")]);

fn text(words: &CStr) -> [c_char; NAME_MAX_LENGTH] {
    let mut field = [0; NAME_MAX_LENGTH];
    let room = field.iter_mut().take(NAME_MAX_LENGTH - 1);
    for (to, from) in room.zip(words.to_bytes()) {
        *to = *from as c_char;
    }
    field
}

fn major_minor() -> (u32, u32) {
    let number = |text: &str| text.parse().unwrap_or(0);
    (
        number(env!("CARGO_PKG_VERSION_MAJOR")),
        number(env!("CARGO_PKG_VERSION_MINOR")),
    )
}

/// The attributes of an IA.
#[must_use]
pub fn of_ia(ia: &Ia) -> IaAttr {
    let limits: &Limits = ia.device.limits();
    let config = ia.device.config();
    let count = |number: u32| Count::try_from(number).unwrap_or(Count::MAX);
    let (major, minor) = major_minor();
    IaAttr {
        adapter_name: text(c"rkey software RDMA device"),
        vendor_name: text(c"rkey"),
        hardware_version_major: 0,
        hardware_version_minor: 0,
        firmware_version_major: major,
        firmware_version_minor: minor,
        ia_address_ptr: ia.visible.pointer(),
        max_eps: count(config.max_qps),
        max_dto_per_ep: count(MAX_DTOS),
        max_rdma_read_per_ep_in: count(MAX_READS),
        max_rdma_read_per_ep_out: count(MAX_READS),
        max_evds: count(config.max_cqs),
        max_evd_qlen: count(MAX_EVD_QLEN),
        max_iov_segments_per_dto: count(MAX_IOV),
        max_lmrs: count(limits.max_regions),
        max_lmr_block_size: u32::MAX,
        max_lmr_virtual_address: u64::MAX,
        max_pzs: count(limits.max_domains),
        max_message_size: MAX_MESSAGE,
        max_rdma_size: MAX_MESSAGE,
        max_rmrs: count(limits.max_windows),
        max_rmr_target_address: u64::MAX,
        max_srqs: count(config.max_srqs),
        max_ep_per_srq: count(config.max_qps),
        max_recv_per_srq: count(MAX_DTOS),
        max_iov_segments_per_rdma_read: count(MAX_IOV),
        max_iov_segments_per_rdma_write: count(MAX_IOV),
        max_rdma_read_in: VALUE_UNKNOWN,
        max_rdma_read_out: VALUE_UNKNOWN,
        max_rdma_read_per_ep_in_guaranteed: TRUE,
        max_rdma_read_per_ep_out_guaranteed: TRUE,
        zb_supported: TRUE,
        extension_supported: EXTENSION_IB,
        extension_version: IB_EXTENSION_VERSION,
        num_transport_attr: TRANSPORT.0.len() as Count,
        transport_attr: TRANSPORT.pointer(),
        num_vendor_attr: 0,
        vendor_attr: null_mut(),
    }
}

/// The attributes of the provider. libdat2 finds the registration again by the version and the thread safety.
#[must_use]
pub fn of_provider() -> ProviderAttr {
    let (major, minor) = major_minor();
    ProviderAttr {
        provider_name: text(c"rkey"),
        provider_version_major: major,
        provider_version_minor: minor,
        dapl_version_major: 2,
        dapl_version_minor: 0,
        lmr_mem_types_supported: MEM_TYPE_VIRTUAL | MEM_TYPE_LMR | MEM_TYPE_SHARED_VIRTUAL,
        iov_ownership_on_return: IOV_CONSUMER,
        dat_qos_supported: QOS_BEST_EFFORT,
        completion_flags_supported: COMPLETION_SUPPRESS_FLAG
            | COMPLETION_SOLICITED_WAIT_FLAG
            | COMPLETION_UNSIGNALLED_FLAG
            | COMPLETION_BARRIER_FENCE_FLAG
            | COMPLETION_EVD_THRESHOLD_FLAG,
        is_thread_safe: FALSE,
        max_private_data_size: MAX_PRIVATE_DATA as Count,
        supports_multipath: FALSE,
        ep_creator: PSP_CREATES_EP_IFASKED,
        pz_support: PZ_UNIQUE,
        optimal_buffer_alignment: 64,
        evd_stream_merging_supported: [[TRUE; 6]; 6],
        srq_supported: TRUE,
        srq_watermarks_supported: 1,
        srq_ep_pz_difference_supported: FALSE,
        srq_info_supported: 1,
        ep_recv_info_supported: 1,
        lmr_sync_req: FALSE,
        dto_async_return_guaranteed: TRUE,
        rdma_write_for_rdma_read_req: FALSE,
        rdma_read_lmr_rmr_context_exposure: FALSE,
        rmr_scope_supported: RMR_SCOPE_PZ,
        is_signal_safe: FALSE,
        ha_supported: FALSE,
        ha_loadbalancing: 0,
        num_provider_specific_attr: PROVIDER.0.len() as Count,
        provider_specific_attr: PROVIDER.pointer(),
    }
}
