//! The checks of `ibv_modify_qp`, and what it passes to the engine.
//!
//! The table is the kernel's (`ib_modify_qp_is_ok`), which follows the InfiniBand specification (11.2.5.3). The table includes
//! the attributes of a port, which the engine does not have. Valid calls are translated; the engine then checks the
//! values, and checks the transition again with its own table.

use crate::device::limits::MAX_READS;
use crate::device::port::PORT;
use crate::queues::ah;
use crate::sys::QpAttr;
use crate::sys::consts::*;
use crate::translate::flags;
use rkey_device::engine::{Peer, QpAttributes, QpState, QpType, WirePeer};
use rkey_kit::Errno;

/// The transport services of verbs that this device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The sending half of an extended reliable connection.
    XrcSend,
    /// The receiving half of an extended reliable connection.
    XrcRecv,
    /// Raw frames.
    Raw,
}

impl Service {
    /// From `enum ibv_qp_type`.
    #[must_use]
    pub const fn from_number(number: i32) -> Option<Self> {
        match number {
            QPT_RC => Some(Self::Rc),
            QPT_UC => Some(Self::Uc),
            QPT_UD => Some(Self::Ud),
            QPT_XRC_SEND => Some(Self::XrcSend),
            QPT_XRC_RECV => Some(Self::XrcRecv),
            QPT_RAW_PACKET => Some(Self::Raw),
            _ => None,
        }
    }

    /// The engine's type for it.
    #[must_use]
    pub const fn engine(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
            Self::XrcSend => QpType::XrcSend,
            Self::XrcRecv => QpType::XrcRecv,
            Self::Raw => QpType::Raw,
        }
    }
}

/// States by number: `enum ibv_qp_state`.
const STATES: [(i32, QpState); 7] = [
    (QPS_RESET, QpState::Reset),
    (QPS_INIT, QpState::Init),
    (QPS_RTR, QpState::Rtr),
    (QPS_RTS, QpState::Rts),
    (QPS_SQD, QpState::Sqd),
    (QPS_SQE, QpState::Sqe),
    (QPS_ERR, QpState::Error),
];

/// The state with this number.
///
/// # Errors
/// `EINVAL`: no state has this number.
pub fn state(number: i32) -> Result<QpState, Errno> {
    let state = STATES
        .iter()
        .find(|(n, _)| *n == number)
        .map(|(_, state)| *state);
    state.ok_or(Errno::INVAL)
}

/// The number of a state.
#[must_use]
pub fn state_number(state: QpState) -> i32 {
    STATES
        .iter()
        .find(|(_, s)| *s == state)
        .map_or(QPS_UNKNOWN, |(number, _)| *number)
}

const CONNECT: u32 = QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN;
/// The attributes of every device: the kernel's `IB_QP_ATTR_STANDARD_BITS`.
const STANDARD: u32 = (1 << 21) - 1;
/// Attributes that only the requester of a reliable connection has.
const REQUESTER: u32 = QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC;
/// Attributes that only the responder of a reliable connection has.
const RESPONDER: u32 = QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER;
const MIGRATION: u32 = QP_ALT_PATH | QP_PATH_MIG_STATE;
const PORT_RC: u32 = QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS;
const PORT_UD: u32 = QP_PKEY_INDEX | QP_PORT | QP_QKEY;
/// Attributes that may change from RTR to RTS and while the queue pair is in RTS.
const IN_SERVICE: [u32; 3] = [
    QP_CUR_STATE | QP_ACCESS_FLAGS | QP_MIN_RNR_TIMER | MIGRATION,
    QP_CUR_STATE | QP_ACCESS_FLAGS | MIGRATION,
    QP_CUR_STATE | QP_QKEY,
];

/// A legal transition: the attributes that it requires and those that it allows, for RC, UC and UD.
struct Step(QpState, QpState, [u32; 3], [u32; 3]);

const STEPS: &[Step] = &{
    use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};
    [
        Step(Reset, Init, [PORT_RC, PORT_RC, PORT_UD], [0; 3]),
        Step(Init, Init, [0; 3], [PORT_RC, PORT_RC, PORT_UD]),
        Step(
            Init,
            Rtr,
            [
                CONNECT | QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER,
                CONNECT,
                0,
            ],
            [
                QP_ALT_PATH | QP_ACCESS_FLAGS | QP_PKEY_INDEX,
                QP_ALT_PATH | QP_ACCESS_FLAGS | QP_PKEY_INDEX,
                QP_PKEY_INDEX | QP_QKEY,
            ],
        ),
        Step(
            Rtr,
            Rts,
            [
                QP_SQ_PSN | QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC,
                QP_SQ_PSN,
                QP_SQ_PSN,
            ],
            IN_SERVICE,
        ),
        Step(Rts, Rts, [0; 3], IN_SERVICE),
        Step(Rts, Sqd, [0; 3], [QP_EN_SQD_ASYNC_NOTIFY; 3]),
        Step(Sqd, Rts, [0; 3], IN_SERVICE),
        Step(
            Sqd,
            Sqd,
            [0; 3],
            [
                QP_PORT
                    | QP_AV
                    | QP_TIMEOUT
                    | QP_RETRY_CNT
                    | QP_RNR_RETRY
                    | QP_MAX_QP_RD_ATOMIC
                    | QP_MAX_DEST_RD_ATOMIC
                    | QP_ACCESS_FLAGS
                    | QP_PKEY_INDEX
                    | QP_MIN_RNR_TIMER
                    | MIGRATION,
                QP_AV | QP_ACCESS_FLAGS | QP_PKEY_INDEX | MIGRATION,
                QP_PKEY_INDEX | QP_QKEY,
            ],
        ),
        Step(
            Sqe,
            Rts,
            [0; 3],
            [0, QP_CUR_STATE | QP_ACCESS_FLAGS, QP_CUR_STATE | QP_QKEY],
        ),
    ]
};

/// The attributes that a transition requires and those that it allows. `None`: the transition is illegal.
#[must_use]
pub fn rule(service: Service, from: QpState, to: QpState) -> Option<(u32, u32)> {
    if matches!(to, QpState::Reset | QpState::Error) {
        // A queue pair in RESET has nothing to flush, so the kernel refuses RESET to ERR; the specification and the
        // engine allow it.
        let legal = to == QpState::Reset || from != QpState::Reset;
        return legal.then_some((0, 0));
    }
    if from == QpState::Sqe && service.engine().is_reliable() {
        return None;
    }
    let step = STEPS.iter().find(|step| step.0 == from && step.1 == to)?;
    // Each half of an extended reliable connection has the attributes of its own direction.
    let (column, without) = match service {
        Service::Raw => {
            let first = from == QpState::Reset && to == QpState::Init;
            return Some((if first { QP_PORT } else { 0 }, 0));
        }
        Service::Rc => (0, 0),
        Service::Uc => (1, 0),
        Service::Ud => (2, 0),
        Service::XrcSend => (0, RESPONDER),
        Service::XrcRecv => (0, REQUESTER),
    };
    Some((step.2[column] & !without, step.3[column] & !without))
}

/// The attributes that apply to a service. The kernel drops those of the other half of an extended reliable connection
/// before it checks the mask (`modify_qp_mask`), so programs set them for both halves.
#[must_use]
pub const fn counted(service: Service, mask: u32) -> u32 {
    mask & !match service {
        Service::XrcSend => RESPONDER,
        Service::XrcRecv => REQUESTER,
        _ => 0,
    }
}

/// Checks the attributes that are set for a transition.
///
/// # Errors
/// `EOPNOTSUPP`: an attribute unknown to the kernel, or rate limits, which no queue pair here has; `EINVAL`: no
/// such transition, or an attribute is missing or not allowed. The log has the details.
pub fn check(service: Service, from: QpState, to: QpState, mask: u32) -> Result<(), Errno> {
    if mask & !STANDARD != 0 {
        let unknown = names(mask & !STANDARD);
        tracing::info!("ibv_modify_qp: this device does not support {unknown}");
        return Err(Errno::OPNOTSUPP);
    }
    let Some((required, optional)) = rule(service, from, to) else {
        tracing::info!(
            "ibv_modify_qp: {service:?} queue pairs have no transition from {from:?} to {to:?}"
        );
        return Err(Errno::INVAL);
    };
    let missing = required & !mask;
    let extra = mask & !(required | optional | QP_STATE);
    if missing != 0 || extra != 0 {
        tracing::info!(
            missing = names(missing),
            not_allowed = names(extra),
            "ibv_modify_qp: wrong attributes for the transition of a {service:?} queue pair from {from:?} to {to:?}"
        );
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// The names of attributes, for messages.
fn names(mask: u32) -> String {
    let known = QP_ATTR_MASK.iter().filter(|(bit, _)| mask & bit != 0);
    let mut names: Vec<_> = known.map(|(_, name)| format!("IBV_{name}")).collect();
    let unknown = QP_ATTR_MASK.iter().fold(mask, |left, (bit, _)| left & !bit);
    if unknown != 0 {
        names.push(format!("{unknown:#x}"));
    }
    names.join(" | ")
}

/// The given attributes in the engine's form, without those that the engine does not have.
///
/// # Errors
/// `EINVAL`: a meaningless value.
pub fn attributes(
    service: Service,
    to: QpState,
    mask: u32,
    attr: &QpAttr,
) -> Result<QpAttributes, Errno> {
    let state = (mask & QP_STATE != 0).then_some(to);
    let mut out = QpAttributes {
        state,
        ..QpAttributes::default()
    };
    if out.state == Some(QpState::Reset) || out.state == Some(QpState::Error) {
        return Ok(out);
    }
    let given = |bit| mask & bit != 0;
    if given(QP_ACCESS_FLAGS) {
        out.access = Some(flags::qp_access(attr.qp_access_flags));
    }
    if given(QP_DEST_QPN) && service != Service::Ud {
        if attr.dest_qp_num >= 1 << 24 {
            return Err(Errno::INVAL);
        }
        out.peer = Some(Peer {
            qpn: attr.dest_qp_num,
            node: None,
        });
    }
    if given(QP_PATH_MTU) {
        out.path_mtu = Some(flags::mtu_bytes(attr.path_mtu)?);
    }
    // Packet sequence numbers have 24 bits; the kernel takes the low ones.
    out.send_msn = given(QP_SQ_PSN).then_some(attr.sq_psn & 0xff_ffff);
    out.recv_msn = given(QP_RQ_PSN).then_some(attr.rq_psn & 0xff_ffff);
    out.timeout = given(QP_TIMEOUT).then_some(attr.timeout);
    out.retry_count = given(QP_RETRY_CNT).then_some(attr.retry_cnt);
    out.rnr_retry = given(QP_RNR_RETRY).then_some(attr.rnr_retry);
    out.min_rnr_timer = given(QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer);
    out.max_reads_out = given(QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic);
    out.max_reads_in = given(QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic);
    out.qkey = (given(QP_QKEY) && service == Service::Ud).then_some(attr.qkey);
    Ok(out)
}

/// Checks the values of attributes that the engine does not have (port, partition key, paths, addresses), and the limits
/// for reads. Returns the path to the peer, if it is on another host.
pub(crate) fn check_port_values(
    device: &rkey_device::Device,
    mask: u32,
    attr: &QpAttr,
) -> Result<Option<WirePeer>, Errno> {
    let wrong = mask & QP_PORT != 0 && u32::from(attr.port_num) != PORT
        || mask & QP_PKEY_INDEX != 0 && attr.pkey_index != 0
        || mask & QP_MAX_QP_RD_ATOMIC != 0 && i32::from(attr.max_rd_atomic) > MAX_READS
        || mask & QP_MAX_DEST_RD_ATOMIC != 0 && i32::from(attr.max_dest_rd_atomic) > MAX_READS;
    if wrong {
        return Err(Errno::INVAL);
    }
    // Ethernet ports have no alternate path.
    if mask & QP_ALT_PATH != 0
        || mask & QP_PATH_MIG_STATE != 0 && attr.path_mig_state != MIG_MIGRATED
    {
        return Err(Errno::INVAL);
    }
    if mask & QP_AV == 0 {
        return Ok(None);
    }
    let path = ah::check(device, &attr.ah_attr)?;
    if mask & QP_PATH_MTU != 0
        && let Some(most) = path.and_then(|path| device.wire()?.mtu(path.local))
        && flags::mtu_bytes(attr.path_mtu)? as usize > most.bytes()
    {
        tracing::warn!(
            "ibv_modify_qp: path_mtu is too large: packets of {} bytes are the largest that fit the MTU of the interface to the peer",
            most.bytes()
        );
        return Err(Errno::INVAL);
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_device::engine::rule as qp_rule;

    const SERVICES: [Service; 6] = [
        Service::Rc,
        Service::Uc,
        Service::Ud,
        Service::XrcSend,
        Service::XrcRecv,
        Service::Raw,
    ];

    /// The calls of `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong`.
    #[test]
    fn the_pingpong_programs_masks_are_legal() {
        use QpState::{Init, Reset, Rtr, Rts};
        let init = QP_STATE | QP_PKEY_INDEX | QP_PORT;
        let uc_rtr = QP_STATE | QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN;
        let rc_rts =
            QP_STATE | QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_SQ_PSN | QP_MAX_QP_RD_ATOMIC;
        for (service, from, to, mask) in [
            (Service::Rc, Reset, Init, init | QP_ACCESS_FLAGS),
            (
                Service::Rc,
                Init,
                Rtr,
                uc_rtr | QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER,
            ),
            (Service::Rc, Rtr, Rts, rc_rts),
            (Service::Uc, Reset, Init, init | QP_ACCESS_FLAGS),
            (Service::Uc, Init, Rtr, uc_rtr),
            (Service::Uc, Rtr, Rts, QP_STATE | QP_SQ_PSN),
            (Service::Ud, Reset, Init, init | QP_QKEY),
            (Service::Ud, Init, Rtr, QP_STATE),
            (Service::Ud, Rtr, Rts, QP_STATE | QP_SQ_PSN),
        ] {
            assert_eq!(
                check(service, from, to, mask),
                Ok(()),
                "{service:?} {from:?} {to:?}"
            );
            // Dropping any required attribute, or adding one that is not allowed, makes the call illegal.
            for (bit, _) in QP_ATTR_MASK {
                if mask & bit != 0 && *bit != QP_STATE {
                    assert_eq!(check(service, from, to, mask & !bit), Err(Errno::INVAL));
                }
            }
            assert_eq!(check(service, from, to, mask | QP_CAP), Err(Errno::INVAL));
            for bit in 21..32 {
                assert_eq!(
                    check(service, from, to, mask | 1 << bit),
                    Err(Errno::OPNOTSUPP),
                    "bit {bit}"
                );
            }
        }
    }

    /// perftest sets the attributes of a reliable connection for both halves of an extended one.
    #[test]
    fn an_xrc_queue_pair_ignores_attributes_of_the_other_half() {
        use QpState::{Init, Rtr, Rts};
        let rtr = QP_STATE | CONNECT | RESPONDER;
        let rts = QP_STATE | QP_SQ_PSN | QP_TIMEOUT | REQUESTER;
        for (service, others) in [(Service::XrcSend, RESPONDER), (Service::XrcRecv, REQUESTER)] {
            for (from, to, mask) in [(Init, Rtr, rtr), (Rtr, Rts, rts)] {
                let counted = counted(service, mask);
                assert_eq!(counted, mask & !others, "{service:?} {from:?}");
                assert_eq!(check(service, from, to, counted), Ok(()), "{service:?}");
            }
        }
        for service in [Service::Rc, Service::Uc, Service::Ud, Service::Raw] {
            assert_eq!(counted(service, u32::MAX), u32::MAX);
        }
    }

    /// Every transition that is legal here is legal in the engine, and vice versa with one exception.
    #[test]
    fn verbs_and_the_engine_allow_the_same_transitions() {
        for service in SERVICES {
            for (_, from) in STATES {
                for (_, to) in STATES {
                    let engine = qp_rule(service.engine(), from, to).is_some()
                        && (from, to) != (QpState::Reset, QpState::Error);
                    assert_eq!(
                        rule(service, from, to).is_some(),
                        engine,
                        "{service:?} {from:?} {to:?}"
                    );
                }
            }
        }
    }

    /// Every call that passes the check gives the engine all attributes that it requires, and none that it does not
    /// take.
    #[test]
    fn every_legal_call_satisfies_the_engine() {
        let attr = QpAttr {
            path_mtu: MTU_1024,
            qp_access_flags: 0xf,
            ..QpAttr::default()
        };
        for service in SERVICES {
            for (_, from) in STATES {
                for (_, to) in STATES {
                    let Some((required, optional)) = rule(service, from, to) else {
                        continue;
                    };
                    let step = qp_rule(service.engine(), from, to).unwrap();
                    for mask in [required, required | optional] {
                        let mask = mask | QP_STATE;
                        let out = attributes(service, to, mask, &attr).unwrap().given();
                        assert!(out.contains(step.required), "{service:?} {from:?} {to:?}");
                        let taken = step.required | step.optional;
                        assert!(
                            taken.contains(out),
                            "{service:?} {from:?} {to:?} {:?}",
                            out.difference(taken)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn invalid_attribute_values_are_refused() {
        use QpState::Rtr;
        let bad = |mask, attr| attributes(Service::Rc, Rtr, mask, &attr).err();
        let attr = QpAttr::default();
        assert_eq!(
            bad(
                QP_PATH_MTU,
                QpAttr {
                    path_mtu: 9,
                    ..attr
                }
            ),
            Some(Errno::INVAL)
        );
        assert_eq!(
            bad(
                QP_DEST_QPN,
                QpAttr {
                    dest_qp_num: 1 << 24,
                    ..attr
                }
            ),
            Some(Errno::INVAL)
        );
        assert_eq!(
            (state(7), state(-1)),
            (Err(Errno::INVAL), Err(Errno::INVAL))
        );
    }
}
