//! Queries about the device: its limits, its port, its GIDs and partition keys, its clock.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::clock::timestamp;
use crate::device::context::ContextObject;
use crate::device::gid;
use crate::device::limits::{MAX_AH, MAX_DM, MAX_GROUPS, MAX_READS, MAX_TABLE, TOEPLITZ};
use crate::device::port::{self, PORT};
use crate::object::{find, input, output};
use crate::sys::consts::*;
use crate::sys::{
    Context, CqModerationCaps, DeviceAttr, DeviceAttrEx, GidEntry, OdpCaps, PacketPacingCaps,
    PciAtomicCaps, PerTransportCaps, PortAttr, RssCaps, TmCaps, TsoCaps, ValuesEx,
};
use rkey_kit::{Errno, c_call, c_call_or_minus_one};
use std::ffi::{c_int, c_void};

/// A limit as an attribute field, at most `INT_MAX`.
fn number(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

/// Attributes of the device.
fn device_attributes(device: &rkey_device::Device) -> DeviceAttr {
    let config = device.config();
    let mut fw_ver = [0; 64];
    for (place, byte) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *place = byte as std::ffi::c_char;
    }
    DeviceAttr {
        fw_ver,
        node_guid: gid::guid().to_be(),
        sys_image_guid: gid::guid().to_be(),
        max_mr_size: config.limits.max_region_bytes,
        page_size_cap: !0xfff,
        vendor_id: 0xff_ffff,
        vendor_part_id: 1,
        hw_ver: 0,
        max_qp: number(config.max_qps),
        max_qp_wr: number(config.max_queue_depth),
        device_cap_flags: DEVICE_CURR_QP_STATE_MOD
            | DEVICE_PORT_ACTIVE_EVENT
            | DEVICE_SYS_IMAGE_GUID
            | DEVICE_RC_RNR_NAK_GEN
            | DEVICE_SRQ_RESIZE
            | DEVICE_MEM_WINDOW
            | DEVICE_XRC
            | DEVICE_MEM_MGT_EXTENSIONS
            | DEVICE_MEM_WINDOW_TYPE_2B,
        max_sge: number(config.max_sge),
        max_sge_rd: number(config.max_sge),
        max_cq: number(config.max_cqs),
        max_cqe: number(config.max_cq_depth),
        max_mr: number(config.limits.max_regions),
        max_pd: number(config.limits.max_domains),
        max_qp_rd_atom: MAX_READS,
        max_ee_rd_atom: 0,
        max_res_rd_atom: MAX_READS.saturating_mul(number(config.max_qps)),
        max_qp_init_rd_atom: MAX_READS,
        max_ee_init_rd_atom: 0,
        atomic_cap: ATOMIC_GLOB,
        max_ee: 0,
        max_rdd: 0,
        max_mw: number(config.limits.max_windows),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: number(config.max_qps),
        max_mcast_grp: MAX_GROUPS,
        max_mcast_qp_attach: MAX_GROUPS,
        max_total_mcast_qp_attach: MAX_GROUPS.saturating_mul(MAX_GROUPS),
        max_ah: number(MAX_AH),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: number(config.max_srqs),
        max_srq_wr: number(config.max_queue_depth),
        max_srq_sge: number(config.max_sge),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
    }
}

/// `ibv_query_device`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let context = unsafe { find::<ContextObject>(context)? };
        // SAFETY: the caller guarantees that it is writable.
        *unsafe { output(attr)? } = device_attributes(context.device());
        Ok(0)
    })
}

/// The capabilities for RSS, which raw packet queue pairs support.
fn rss_caps() -> RssCaps {
    RssCaps {
        supported_qpts: 1 << QPT_RAW_PACKET,
        max_rwq_indirection_tables: MAX_TABLE,
        max_rwq_indirection_table_size: MAX_TABLE,
        rx_hash_fields_mask: rkey_device::engine::HashFields::all().bits().into(),
        rx_hash_function: TOEPLITZ,
    }
}

/// `ibv_query_device_ex`.
///
/// # Safety
/// `attr` has room for `size` bytes; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    input_mask: *const c_void,
    attr: *mut DeviceAttrEx,
    size: usize,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let context = unsafe { find::<ContextObject>(context)? };
        if !input_mask.is_null() {
            // SAFETY: the input structure begins with its mask.
            let mask = *unsafe { input(input_mask.cast::<u32>())? };
            if mask != 0 {
                return Err(Errno::INVAL);
            }
        }
        if attr.is_null() || size < size_of::<DeviceAttr>() {
            return Err(Errno::INVAL);
        }
        let config = context.device().config();
        let odp = ODP_SUPPORT_SEND | ODP_SUPPORT_RECV | ODP_SUPPORT_SRQ_RECV;
        let full = DeviceAttrEx {
            orig_attr: device_attributes(context.device()),
            comp_mask: 0,
            odp_caps: OdpCaps {
                general_caps: ODP_SUPPORT | ODP_SUPPORT_IMPLICIT,
                per_transport_caps: PerTransportCaps {
                    rc_odp_caps: odp | ODP_SUPPORT_WRITE | ODP_SUPPORT_READ | ODP_SUPPORT_ATOMIC,
                    uc_odp_caps: odp | ODP_SUPPORT_WRITE,
                    ud_odp_caps: odp,
                },
            },
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: 1_000_000,
            device_cap_flags_ex: device_attributes(context.device()).device_cap_flags.into(),
            tso_caps: TsoCaps::default(),
            rss_caps: rss_caps(),
            max_wq_type_rq: config.max_srqs,
            packet_pacing_caps: PacketPacingCaps::default(),
            raw_packet_caps: 0,
            tm_caps: TmCaps::default(),
            cq_mod_caps: CqModerationCaps::default(),
            max_dm_size: MAX_DM,
            pci_atomic_caps: PciAtomicCaps::default(),
            xrc_odp_caps: odp | ODP_SUPPORT_WRITE | ODP_SUPPORT_READ | ODP_SUPPORT_ATOMIC,
            phys_port_cnt_ex: 1,
        };
        // SAFETY: the caller guarantees room for `size` bytes; fields of later versions are cleared.
        unsafe { write_sized(attr, &full, size) };
        Ok(0)
    })
}

/// Writes a structure for a program that may have been compiled with a shorter or longer one.
///
/// # Safety
/// `to` has room for `size` bytes.
unsafe fn write_sized<T: Copy>(to: *mut T, from: &T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: both have at least `known` bytes, and the target has `size`.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to.cast::<u8>(), known);
        std::ptr::write_bytes(to.cast::<u8>().add(known), 0, size - known);
    }
}

/// `ibv_query_port`, as called by the header's inline function.
///
/// # Safety
/// `attr` has room for `size` bytes; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn query_port_ex(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
    size: usize,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        let context = unsafe { find::<ContextObject>(context)? };
        if u32::from(port) != PORT || attr.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller guarantees room for `size` bytes.
        unsafe { write_sized(attr, &port::attributes(context.device()), size) };
        Ok(0)
    })
}

/// The exported `ibv_query_port`, for programs with the shorter structure.
///
/// # Safety
/// `attr` has room for [`port::COMPAT_LEN`] bytes; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { query_port_ex(context, port, attr, port::COMPAT_LEN) }
}

/// `ibv_query_gid`: empty entries of the table are all zeros.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    gid: *mut [u8; 16],
) -> c_int {
    let body = || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<ContextObject>(context)? };
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        if u32::from(port) != PORT || index >= gid::TABLE_LEN {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller guarantees that it is writable.
        *unsafe { output(gid)? } = gid::get(index).map_or([0; 16], |entry| entry.gid.0);
        Ok(0)
    };
    c_call_or_minus_one(body)
}

/// `ibv_query_gid_type`, numbered as in sysfs: 0 for InfiniBand and RoCE v1, 1 for RoCE v2.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn query_gid_type(
    context: *mut Context,
    port: u8,
    index: u32,
    gid_type: *mut c_int,
) -> c_int {
    let body = || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<ContextObject>(context)? };
        if u32::from(port) != PORT || index as usize >= gid::TABLE_LEN {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller guarantees that it is writable.
        *unsafe { output(gid_type)? } = c_int::from(gid::get(index as usize).is_some());
        Ok(0)
    };
    c_call_or_minus_one(body)
}

fn gid_entry(index: usize, entry: gid::Entry) -> GidEntry {
    GidEntry {
        gid: entry.gid,
        gid_index: index as u32,
        port_num: PORT,
        gid_type: GID_TYPE_ROCE_V2,
        ndev_ifindex: entry.interface,
    }
}

/// `ibv_query_gid_ex`.
///
/// # Safety
/// `entry` has room for `size` bytes; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<ContextObject>(context)? };
        if port != PORT || flags != 0 || index as usize >= gid::TABLE_LEN || entry.is_null() {
            return Err(Errno::INVAL);
        }
        let found = gid::get(index as usize).ok_or(Errno::NODATA)?;
        // SAFETY: the caller guarantees room for `size` bytes.
        unsafe { write_sized(entry, &gid_entry(index as usize, found), size) };
        Ok(0)
    })
}

/// `ibv_query_gid_table`: returns the number of valid entries.
///
/// # Safety
/// `entries` has room for `max` entries of `size` bytes; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<ContextObject>(context)? };
        if flags != 0 || (entries.is_null() && max > 0) || size == 0 {
            return Err(Errno::INVAL);
        }
        let table = gid::table();
        if max < table.len() {
            return Err(Errno::INVAL);
        }
        for (index, entry) in table.iter().enumerate() {
            let place = entries.wrapping_byte_add(index * size);
            // SAFETY: the index is below `max`, and the caller guarantees that many entries.
            unsafe { write_sized(place, &gid_entry(index, *entry), size) };
        }
        Ok(table.len() as isize)
    })
}

/// `ibv_query_pkey`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn query_pkey(
    context: *mut Context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let body = || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<ContextObject>(context)? };
        if u32::from(port) != PORT || index != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller guarantees that it is writable.
        *unsafe { output(pkey)? } = port::PKEY.to_be();
        Ok(0)
    };
    c_call_or_minus_one(body)
}

/// `ibv_get_pkey_index`: returns -1 if the key is not in the table.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn get_pkey_index(context: *mut Context, port: u8, pkey: u16) -> c_int {
    // SAFETY: `find` validates the handle.
    let open = unsafe { find::<ContextObject>(context) }.is_ok();
    if open && u32::from(port) == PORT && u16::from_be(pkey) == port::PKEY {
        0
    } else {
        -1
    }
}

/// `ibv_query_rt_values_ex`: the clock of completion timestamps.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn query_rt_values(context: *mut Context, values: *mut ValuesEx) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<ContextObject>(context)? };
        // SAFETY: the caller guarantees valid values.
        let values = unsafe { output(values)? };
        if values.comp_mask & !VALUES_MASK_RAW_CLOCK != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if values.comp_mask & VALUES_MASK_RAW_CLOCK != 0 {
            let now = timestamp();
            values.raw_clock = libc::timespec {
                tv_sec: (now / 1_000_000_000) as i64,
                tv_nsec: (now % 1_000_000_000) as i64,
            };
        }
        Ok(0)
    })
}
/// `ibv_query_port_speed`: in units of 100 Mbit/s.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn query_port_speed(
    context: *mut Context,
    number: u32,
    speed: *mut u64,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `output` refuses null; the caller guarantees the rest.
        let speed = unsafe {
            find::<ContextObject>(context)?;
            output(speed)?
        };
        if number != port::PORT {
            return Err(Errno::INVAL);
        }
        *speed = port::SPEED;
        Ok(0)
    })
}
