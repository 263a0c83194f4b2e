//! The list of `fi_info` structures. Libfabric frees it with `free`, so every part comes from the C library's
//! allocator.

#![allow(unsafe_code)]
// UNSAFETY: allocates and fills C structures.

use super::filter::build_key_size;
use super::offer::{self, *};
use super::{DOMAIN_NAME, FABRIC_NAME};
use crate::address::Format;
use crate::errno::{FiError, Result};
use crate::sys::*;
use std::ffi::{CStr, c_char, c_void};
use std::net::SocketAddr;

/// The version of the provider, in libfabric's encoding.
pub(crate) const PROVIDER_VERSION: u32 = version(0, 1);

/// A list under construction, freed unless it is passed to libfabric.
#[derive(Default)]
pub(crate) struct List {
    head: Option<Owned>,
}

/// An `fi_info` with its attributes, and its successors.
struct Owned(*mut Info);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made by `new_info`, never handed out, and freed once.
        unsafe { free(self.0) };
    }
}

impl List {
    /// Whether it has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Adds an entry at the end. `handle` is that of the hints.
    pub(crate) fn add(
        &mut self,
        offer: &Offer,
        format: Format,
        source: SocketAddr,
        dest: Option<SocketAddr>,
        handle: usize,
    ) -> Result<()> {
        let new = Owned(new_info(offer, format, source, dest)?);
        // SAFETY: made just now.
        unsafe { (*new.0).handle = handle as *mut Fid };
        let Some(head) = &self.head else {
            self.head = Some(new);
            return Ok(());
        };
        let mut last = head.0;
        // SAFETY: our own list; its last entry has no successor.
        unsafe {
            while !(*last).next.is_null() {
                last = (*last).next;
            }
            (*last).next = new.0;
        }
        std::mem::forget(new);
        Ok(())
    }

    /// The list, or `FI_ENODATA` if nothing matched.
    pub(crate) fn finish(self) -> Result<*mut Info> {
        let head = self.head.ok_or(FiError::NODATA)?;
        let info = head.0;
        std::mem::forget(head);
        Ok(info)
    }
}

/// A zeroed structure from the C library's allocator.
fn zeroed<T>() -> Result<*mut T> {
    // SAFETY: `calloc` has no precondition.
    let pointer = unsafe { libc::calloc(1, size_of::<T>()) };
    if pointer.is_null() {
        Err(FiError::NOMEM)
    } else {
        Ok(pointer.cast())
    }
}

fn bytes(from: &[u8]) -> Result<*mut c_void> {
    // SAFETY: `calloc` has no precondition.
    let pointer = unsafe { libc::calloc(1, from.len().max(1)) };
    if pointer.is_null() {
        return Err(FiError::NOMEM);
    }
    // SAFETY: the allocation has at least this length and is ours alone.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), pointer.cast::<u8>(), from.len()) };
    Ok(pointer)
}

fn string(from: &CStr) -> Result<*mut c_char> {
    Ok(bytes(from.to_bytes_with_nul())?.cast())
}

/// Creates one entry.
pub(crate) fn new_info(
    offer: &Offer,
    format: Format,
    source: SocketAddr,
    dest: Option<SocketAddr>,
) -> Result<*mut Info> {
    let owned = Owned(zeroed::<Info>()?);
    // SAFETY: our own zeroed `fi_info`; each pointer in it gets a zeroed structure of its type before it
    // is used.
    unsafe {
        let info = &mut *owned.0;
        info.caps = offer.caps;
        info.mode = offer.mode;
        info.addr_format = format.number();
        let address = format.encode(source);
        info.src_addr = bytes(&address)?;
        info.src_addrlen = address.len();
        if let Some(dest) = dest {
            let address = format.encode(dest);
            info.dest_addr = bytes(&address)?;
            info.dest_addrlen = address.len();
        }
        info.tx_attr = zeroed()?;
        transmit(&mut *info.tx_attr, offer);
        info.rx_attr = zeroed()?;
        receive(&mut *info.rx_attr, offer);
        info.ep_attr = zeroed::<LongEpAttr>()?.cast();
        endpoint(&mut *info.ep_attr, offer)?;
        let long = zeroed::<LongDomainAttr>()?;
        info.domain_attr = long.cast();
        domain(&mut (*long).known, offer)?;
        (*long).max_ep_auth_key = 1;
        (*long).max_cntr_value = u64::MAX;
        (*long).max_err_cntr_value = u64::MAX;
        info.fabric_attr = zeroed()?;
        (*info.fabric_attr).name = string(FABRIC_NAME)?;
        if let Some(name) = &offer.prov_name {
            (*info.fabric_attr).prov_name = string(name)?;
        }
        (*info.fabric_attr).prov_version = PROVIDER_VERSION;
        (*info.fabric_attr).api_version = offer.version;
    }
    let info = owned.0;
    std::mem::forget(owned);
    Ok(info)
}

fn transmit(tx: &mut TxAttr, offer: &Offer) {
    tx.caps = offer.tx_caps;
    tx.mode = offer.mode;
    tx.op_flags = offer.tx_op_flags;
    tx.msg_order = offer.msg_order;
    tx.inject_size = offer.inject_size;
    tx.size = offer.tx_size;
    tx.iov_limit = IOV_LIMIT;
    if offer.caps & (FI_RMA | FI_ATOMIC) != 0 {
        tx.rma_iov_limit = RMA_IOV_LIMIT;
    }
}

fn receive(rx: &mut RxAttr, offer: &Offer) {
    rx.caps = offer.rx_caps;
    rx.mode = offer.mode;
    rx.op_flags = offer.rx_op_flags;
    rx.msg_order = offer.msg_order;
    rx.size = offer.rx_size;
    rx.iov_limit = IOV_LIMIT;
}

fn endpoint(ep: &mut EpAttr, offer: &Offer) -> Result<()> {
    let longest = if offer.ep_type == FI_EP_DGRAM {
        MAX_DGRAM_SIZE
    } else {
        MAX_MSG_SIZE
    };
    ep.ep_type = offer.ep_type;
    ep.protocol = PROTO_RKEY;
    ep.protocol_version = 1;
    ep.max_msg_size = longest;
    ep.max_order_raw_size = longest;
    ep.max_order_waw_size = longest;
    ep.mem_tag_format = u64::MAX;
    ep.tx_ctx_cnt = offer.tx_contexts;
    ep.rx_ctx_cnt = offer.rx_contexts;
    if !offer.auth_key.is_empty() {
        ep.auth_key = bytes(&offer.auth_key)?.cast();
        ep.auth_key_size = offer.auth_key.len();
    }
    Ok(())
}

fn domain(domain: &mut DomainAttr, offer: &Offer) -> Result<()> {
    domain.name = string(DOMAIN_NAME)?;
    domain.threading = offer.threading;
    domain.control_progress = offer.control_progress;
    domain.data_progress = offer.data_progress;
    domain.resource_mgmt = offer.resource_mgmt;
    domain.av_type = offer.av_type;
    domain.mr_mode = offer.mr_mode;
    domain.mr_key_size = build_key_size(offer.mr_mode);
    domain.cq_data_size = CQ_DATA_SIZE;
    domain.cq_cnt = 1024;
    domain.ep_cnt = 1024;
    domain.tx_ctx_cnt = 1024;
    domain.rx_ctx_cnt = 1024;
    domain.max_ep_tx_ctx = offer::contexts(offer.ep_type);
    domain.max_ep_rx_ctx = offer::contexts(offer.ep_type);
    domain.max_ep_stx_ctx = MAX_SHARING;
    domain.max_ep_srx_ctx = MAX_SHARING;
    domain.cntr_cnt = 65_536;
    domain.mr_iov_limit = MR_IOV_LIMIT;
    domain.caps = offer::COMM | offer.caps & FI_AV_USER_ID;
    domain.mr_cnt = 1 << 18;
    if offer.av_keys {
        domain.auth_key_size = FI_AV_AUTH_KEY;
    }
    if !offer.domain_auth_key.is_empty() {
        domain.auth_key = bytes(&offer.domain_auth_key)?.cast();
        domain.auth_key_size = offer.domain_auth_key.len();
    }
    Ok(())
}

/// Frees a list that was not passed to libfabric.
///
/// # Safety
/// The list was created here, and must not be used afterwards.
pub(crate) unsafe fn free(mut info: *mut Info) {
    while !info.is_null() {
        // SAFETY: our own entry: its pointers are null or from the C allocator.
        unsafe {
            let it = &mut *info;
            let next = it.next;
            if let Some(domain) = it.domain_attr.as_mut() {
                libc::free(domain.name.cast());
                libc::free(domain.auth_key.cast());
            }
            if let Some(fabric) = it.fabric_attr.as_mut() {
                libc::free(fabric.name.cast());
                libc::free(fabric.prov_name.cast());
            }
            if let Some(ep) = it.ep_attr.as_mut() {
                libc::free(ep.auth_key.cast());
            }
            for part in [
                it.src_addr,
                it.dest_addr,
                it.tx_attr.cast(),
                it.rx_attr.cast(),
                it.ep_attr.cast(),
                it.domain_attr.cast(),
                it.fabric_attr.cast(),
                info.cast(),
            ] {
                libc::free(part);
            }
            info = next;
        }
    }
}
