//! The attributes for moving queue pairs between states, derived from what both sides have agreed on.

use crate::lookup::address;
use crate::queues::verbs::{PORT, READS_MAX, gid_index};
use crate::state::hub::Entry;
use crate::state::member::Member;
use crate::sys::*;
use ibverbs::sys::*;
use rkey_kit::Errno;

/// The retry count of every connection.
const RETRY_COUNT: u8 = 7;

/// The queue pair number that addresses all members of a group.
pub const GROUP_QP: u32 = 0xff_ffff;
const GROUP_HOP_LIMIT: u8 = 64;

/// The address vector of the peer's queue pair.
///
/// # Errors
/// `EINVAL`: our address or the peer's is unknown.
pub fn address_of_peer(own: &Entry) -> Result<AhAttr, Errno> {
    let (Some(local), Some(peer)) = (own.local, own.peer) else {
        return Err(Errno::INVAL);
    };
    Ok(AhAttr {
        grh: GlobalRoute {
            dgid: address::gid(peer),
            flow_label: own.path.flow_label,
            sgid_index: gid_index(local),
            hop_limit: own.path.hop_limit,
            traffic_class: own.path.traffic_class,
        },
        is_global: 1,
        port_num: PORT,
        ..AhAttr::default()
    })
}

/// The attributes of an address handle for a group.
///
/// # Errors
/// `EINVAL`: the identifier has no address.
pub fn address_of_group(own: &Entry, member: &Member) -> Result<AhAttr, Errno> {
    let local = own.local.ok_or(Errno::INVAL)?;
    Ok(AhAttr {
        grh: GlobalRoute {
            dgid: Gid(member.address.gid),
            flow_label: 0,
            sgid_index: gid_index(local),
            hop_limit: GROUP_HOP_LIMIT,
            traffic_class: own.options.tos,
        },
        is_global: 1,
        port_num: PORT,
        ..AhAttr::default()
    })
}

/// The attributes for a transition to a state, and their mask.
///
/// # Errors
/// `EINVAL`: the peer is still unknown, or the state is not INIT, RTR or RTS.
pub fn attributes(own: &Entry, state: ibv_qp_state) -> Result<(QpAttr, u32), Errno> {
    let (attr, mask) = match (state, own.is_datagram()) {
        (QPS_INIT, true) => (of_datagrams(), QP_PKEY_INDEX | QP_PORT | QP_QKEY),
        (QPS_RTR, true) => (QpAttr::default(), 0),
        (QPS_RTS, true) => (QpAttr::default(), QP_SQ_PSN),
        (QPS_INIT, false) => (initial(own), QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS),
        (QPS_RTR, false) => ready_to_receive(own)?,
        (QPS_RTS, false) => ready_to_send(own)?,
        _ => return Err(Errno::INVAL),
    };
    let attr = QpAttr {
        qp_state: state,
        ..attr
    };
    Ok((attr, mask | QP_STATE))
}

fn of_datagrams() -> QpAttr {
    QpAttr {
        port_num: PORT,
        qkey: UDP_QKEY,
        ..QpAttr::default()
    }
}

fn initial(own: &Entry) -> QpAttr {
    let access = match (own.connection.is_some(), own.responder_resources) {
        (false, _) => 0,
        (true, 0) => ACCESS_REMOTE_WRITE,
        (true, _) => ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC,
    };
    QpAttr {
        port_num: PORT,
        qp_access_flags: access,
        ..QpAttr::default()
    }
}

fn ready_to_receive(own: &Entry) -> Result<(QpAttr, u32), Errno> {
    let remote = own.remote.ok_or(Errno::INVAL)?;
    let attr = QpAttr {
        path_mtu: own.path.mtu as ibv_mtu,
        rq_psn: own.starting_psn,
        dest_qp_num: remote.qpn,
        ah_attr: address_of_peer(own)?,
        max_dest_rd_atomic: own.responder_resources.min(READS_MAX),
        min_rnr_timer: 0,
        ..QpAttr::default()
    };
    let mask = QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN;
    let reliable = match own.qp_type {
        QPT_UC | QPT_XRC_SEND => 0,
        _ => QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER,
    };
    Ok((attr, mask | reliable))
}

fn ready_to_send(own: &Entry) -> Result<(QpAttr, u32), Errno> {
    let remote = own.remote.ok_or(Errno::INVAL)?;
    let attr = QpAttr {
        sq_psn: remote.starting_psn,
        // The program may have set the option after the path was resolved, or on the passive side.
        timeout: own.options.ack_timeout.unwrap_or(own.path.ack_timeout),
        retry_cnt: RETRY_COUNT,
        rnr_retry: own.rnr_retry,
        max_rd_atomic: own.initiator_depth.min(READS_MAX),
        ..QpAttr::default()
    };
    let reliable = match own.qp_type {
        QPT_UC => 0,
        QPT_XRC_RECV => QP_TIMEOUT,
        _ => QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC,
    };
    Ok((attr, QP_SQ_PSN | reliable))
}
