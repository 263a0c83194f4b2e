//! `ibv_copy_*_from_kern` and `ibv_copy_*_to_kern`: conversions between the kernel's structures and those of
//! verbs.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::object::{input, output};
use crate::sys::{
    AhAttr, Gid, GlobalRoute, KernAhAttr, KernPathRec, KernQpAttr, QpAttr, QpCap, SaPathRec,
};
use rkey_kit::c_call;

fn ah_attr(kern: &KernAhAttr) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: Gid(kern.grh.dgid),
            flow_label: kern.grh.flow_label,
            sgid_index: kern.grh.sgid_index,
            hop_limit: kern.grh.hop_limit,
            traffic_class: kern.grh.traffic_class,
        },
        dlid: kern.dlid,
        sl: kern.sl,
        src_path_bits: kern.src_path_bits,
        static_rate: kern.static_rate,
        is_global: kern.is_global,
        port_num: kern.port_num,
    }
}

/// `ibv_copy_ah_attr_from_kern`.
///
/// # Safety
/// `to` and `from` are null or point to their structures.
pub unsafe extern "C" fn copy_ah_attr_from_kern(to: *mut AhAttr, from: *const KernAhAttr) {
    c_call(|| {
        // SAFETY: `output` and `input` refuse null; the caller guarantees the rest.
        unsafe { *output(to)? = ah_attr(input(from)?) };
        Ok(())
    });
}

/// `ibv_copy_qp_attr_from_kern`.
///
/// # Safety
/// `to` and `from` are null or point to their structures.
pub unsafe extern "C" fn copy_qp_attr_from_kern(to: *mut QpAttr, from: *const KernQpAttr) {
    c_call(|| {
        // SAFETY: `output` and `input` refuse null; the caller guarantees the rest.
        let (to, kern) = unsafe { (output(to)?, input(from)?) };
        *to = QpAttr {
            qp_state: kern.qp_state as i32,
            cur_qp_state: kern.cur_qp_state as i32,
            path_mtu: kern.path_mtu as i32,
            path_mig_state: kern.path_mig_state as i32,
            qkey: kern.qkey,
            rq_psn: kern.rq_psn,
            sq_psn: kern.sq_psn,
            dest_qp_num: kern.dest_qp_num,
            qp_access_flags: kern.qp_access_flags,
            cap: QpCap {
                max_send_wr: kern.max_send_wr,
                max_recv_wr: kern.max_recv_wr,
                max_send_sge: kern.max_send_sge,
                max_recv_sge: kern.max_recv_sge,
                max_inline_data: kern.max_inline_data,
            },
            ah_attr: ah_attr(&kern.ah_attr),
            alt_ah_attr: ah_attr(&kern.alt_ah_attr),
            pkey_index: kern.pkey_index,
            alt_pkey_index: kern.alt_pkey_index,
            en_sqd_async_notify: kern.en_sqd_async_notify,
            sq_draining: kern.sq_draining,
            max_rd_atomic: kern.max_rd_atomic,
            max_dest_rd_atomic: kern.max_dest_rd_atomic,
            min_rnr_timer: kern.min_rnr_timer,
            port_num: kern.port_num,
            timeout: kern.timeout,
            retry_cnt: kern.retry_cnt,
            rnr_retry: kern.rnr_retry,
            alt_port_num: kern.alt_port_num,
            alt_timeout: kern.alt_timeout,
            rate_limit: to.rate_limit,
        };
        Ok(())
    });
}

/// `ibv_copy_path_rec_from_kern`.
///
/// # Safety
/// `to` and `from` are null or point to their structures.
pub unsafe extern "C" fn copy_path_rec_from_kern(to: *mut SaPathRec, from: *const KernPathRec) {
    c_call(|| {
        // SAFETY: `output` and `input` refuse null; the caller guarantees the rest.
        let (to, kern) = unsafe { (output(to)?, input(from)?) };
        *to = SaPathRec {
            dgid: Gid(kern.dgid),
            sgid: Gid(kern.sgid),
            dlid: kern.dlid,
            slid: kern.slid,
            raw_traffic: kern.raw_traffic as i32,
            flow_label: kern.flow_label,
            hop_limit: kern.hop_limit,
            traffic_class: kern.traffic_class,
            reversible: kern.reversible as i32,
            numb_path: kern.numb_path,
            pkey: kern.pkey,
            sl: kern.sl,
            mtu_selector: kern.mtu_selector,
            mtu: kern.mtu as u8,
            rate_selector: kern.rate_selector,
            rate: kern.rate,
            packet_life_time_selector: kern.packet_life_time_selector,
            packet_life_time: kern.packet_life_time,
            preference: kern.preference,
        };
        Ok(())
    });
}

/// `ibv_copy_path_rec_to_kern`.
///
/// # Safety
/// `to` and `from` are null or point to their structures.
pub unsafe extern "C" fn copy_path_rec_to_kern(to: *mut KernPathRec, from: *const SaPathRec) {
    c_call(|| {
        // SAFETY: `output` and `input` refuse null; the caller guarantees the rest.
        let (to, path) = unsafe { (output(to)?, input(from)?) };
        *to = KernPathRec {
            dgid: path.dgid.0,
            sgid: path.sgid.0,
            dlid: path.dlid,
            slid: path.slid,
            raw_traffic: path.raw_traffic as u32,
            flow_label: path.flow_label,
            reversible: path.reversible as u32,
            mtu: path.mtu.into(),
            pkey: path.pkey,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            numb_path: path.numb_path,
            sl: path.sl,
            mtu_selector: path.mtu_selector,
            rate_selector: path.rate_selector,
            rate: path.rate,
            packet_life_time_selector: path.packet_life_time_selector,
            packet_life_time: path.packet_life_time,
            preference: path.preference,
        };
        Ok(())
    });
}
