//! `ibv_modify_qp`: every transition, for every service, with each attribute that it requires, allows or does not
//! recognise. The table below is copied from the kernel's rules, not from the library's.

use crate::world::*;
use ibverbs::device::query;
use ibverbs::queues::{ah, creation, qp, xrc};
use ibverbs::sys::consts::*;
use ibverbs::sys::{AhAttr, Qp, QpAttr, QpInitAttr, QpInitAttrEx, UdWr, Xrcd, XrcdInitAttr};
use std::time::{Duration, Instant};

/// Services: name, `enum ibv_qp_type`.
const SERVICES: [(&str, i32); 6] = [
    ("rc", QPT_RC),
    ("uc", QPT_UC),
    ("ud", QPT_UD),
    ("raw", QPT_RAW_PACKET),
    ("xs", QPT_XRC_SEND),
    ("xr", QPT_XRC_RECV),
];
const STATES: [&str; 7] = ["reset", "init", "rtr", "rts", "sqd", "sqe", "err"];
/// Attributes by bit: the names in the table below, in the order of `enum ibv_qp_attr_mask` from bit 1 on.
const ATTRIBUTES: [&str; 20] = [
    "cur",
    "notify",
    "access",
    "pkey",
    "port",
    "qkey",
    "av",
    "mtu",
    "timeout",
    "retry",
    "rnr",
    "rqpsn",
    "reads",
    "alt",
    "mintimer",
    "sqpsn",
    "destreads",
    "mig",
    "cap",
    "dest",
];

/// Services, transition, required attributes, allowed attributes. Transitions to RESET from every state, and to ERR
/// from every state but RESET, take none; no others exist.
const STEPS: &[(&str, &str, &str, &str)] = &[
    ("rc uc xs xr", "reset init", "pkey port access", ""),
    ("ud", "reset init", "pkey port qkey", ""),
    ("raw", "reset init", "port", ""),
    ("rc uc xs xr", "init init", "", "pkey port access"),
    ("ud", "init init", "", "pkey port qkey"),
    ("raw", "init init", "", ""),
    (
        "rc xr",
        "init rtr",
        "av mtu dest rqpsn destreads mintimer",
        "alt access pkey",
    ),
    ("uc xs", "init rtr", "av mtu dest rqpsn", "alt access pkey"),
    ("ud", "init rtr", "", "pkey qkey"),
    ("raw", "init rtr", "", ""),
    (
        "rc",
        "rtr rts",
        "timeout retry rnr sqpsn reads",
        "cur alt access mintimer mig",
    ),
    (
        "xs",
        "rtr rts",
        "timeout retry rnr sqpsn reads",
        "cur alt access mig",
    ),
    (
        "xr",
        "rtr rts",
        "timeout sqpsn",
        "cur alt access mintimer mig",
    ),
    ("uc", "rtr rts", "sqpsn", "cur alt access mig"),
    ("ud", "rtr rts", "sqpsn", "cur qkey"),
    ("raw", "rtr rts", "", ""),
    ("rc xr", "rts rts", "", "cur access alt mig mintimer"),
    ("uc xs", "rts rts", "", "cur access alt mig"),
    ("ud", "rts rts", "", "cur qkey"),
    ("raw", "rts rts", "", ""),
    ("rc uc ud xs xr", "rts sqd", "", "notify"),
    ("raw", "rts sqd", "", ""),
    ("rc xr", "sqd rts", "", "cur alt access mintimer mig"),
    ("uc xs", "sqd rts", "", "cur alt access mig"),
    ("ud", "sqd rts", "", "cur qkey"),
    ("raw", "sqd rts", "", ""),
    (
        "rc",
        "sqd sqd",
        "",
        "port av timeout retry rnr reads destreads alt access pkey mintimer mig",
    ),
    (
        "xs",
        "sqd sqd",
        "",
        "port av timeout retry rnr reads alt access pkey mig",
    ),
    (
        "xr",
        "sqd sqd",
        "",
        "port av timeout destreads alt access pkey mintimer mig",
    ),
    ("uc", "sqd sqd", "", "av alt access pkey mig"),
    ("ud", "sqd sqd", "", "pkey qkey"),
    ("raw", "sqd sqd", "", ""),
    ("uc", "sqe rts", "", "cur access"),
    ("ud", "sqe rts", "", "cur qkey"),
    ("raw", "sqe rts", "", ""),
];

fn bits(names: &str) -> u32 {
    let bit = |name| {
        let place = ATTRIBUTES.iter().position(|known| *known == name);
        2 << place.unwrap_or_else(|| panic!("{name} is not an attribute"))
    };
    names.split_whitespace().map(bit).sum()
}

/// The bits of the attributes that a transition requires and allows.
fn rule(service: &str, from: &str, to: &str) -> Option<(u32, u32)> {
    if to == "reset" || to == "err" && from != "reset" {
        return Some((0, 0));
    }
    let fits = |(services, step, ..): &&(&str, &str, &str, &str)| {
        services.split(' ').any(|s| s == service) && *step == format!("{from} {to}")
    };
    let (.., needs, may) = STEPS.iter().find(fits)?;
    Some((bits(needs), bits(may)))
}

fn number(state: &str) -> i32 {
    STATES.iter().position(|known| *known == state).unwrap() as i32
}

/// Creates queue pairs and moves them to states.
struct Maker {
    world: World,
    xrcd: *mut Xrcd,
}

impl Maker {
    fn new() -> Self {
        let world = World::new();
        let mut wanted = XrcdInitAttr {
            comp_mask: XRCD_INIT_ATTR_FD | XRCD_INIT_ATTR_OFLAGS,
            fd: -1,
            oflags: libc::O_CREAT,
        };
        // SAFETY: the context is live.
        let xrcd = unsafe { xrc::open_xrcd(world.context, &raw mut wanted) };
        assert!(!xrcd.is_null());
        Self { world, xrcd }
    }

    fn fresh(&self, service: i32) -> *mut Qp {
        if service != QPT_XRC_RECV {
            return self.world.qp(service);
        }
        // SAFETY: all zeros is valid; objects are live.
        let made = unsafe {
            let mut wanted: QpInitAttrEx = std::mem::zeroed();
            (wanted.qp_type, wanted.xrcd) = (service, self.xrcd);
            wanted.comp_mask = QP_INIT_ATTR_XRCD;
            creation::create_qp_ex(self.world.context, &raw mut wanted)
        };
        assert!(!made.is_null());
        made
    }

    /// Values that no fresh queue pair has, different for each `time`. The peer of a queue pair is itself.
    fn values(&self, pair: *mut Qp, time: u8) -> QpAttr {
        let mut attr = QpAttr {
            port_num: 1,
            qp_access_flags: [ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE][usize::from(time)],
            qkey: 0x1234 + u32::from(time),
            path_mtu: MTU_2048,
            // SAFETY: the queue pair is live.
            dest_qp_num: unsafe { (*pair).qp_num },
            rq_psn: 0x12_3456,
            sq_psn: 0x65_4321,
            timeout: 13 + time,
            retry_cnt: 5 + time,
            rnr_retry: 4 + time,
            min_rnr_timer: 11 + time,
            max_rd_atomic: 2 + time,
            max_dest_rd_atomic: 3 + time,
            en_sqd_async_notify: 0,
            ..QpAttr::default()
        };
        attr.ah_attr = self.route();
        attr
    }

    fn route(&self) -> AhAttr {
        let mut attr = QpAttr::default().ah_attr;
        let gid = &raw mut attr.grh.dgid.0;
        // SAFETY: the context is live; `gid` is writable.
        let code = unsafe { query::query_gid(self.world.context, 1, 0, gid) };
        assert_eq!(code, 0);
        (attr.is_global, attr.port_num) = (1, 1);
        attr
    }

    /// A queue pair in this state.
    fn in_state(&self, (name, service): (&str, i32), state: &str) -> *mut Qp {
        let pair = self.fresh(service);
        let path: &[&str] = match state {
            "reset" => &[],
            "init" => &["init"],
            "rtr" => &["init", "rtr"],
            "rts" | "sqe" => &["init", "rtr", "rts"],
            "sqd" => &["init", "rtr", "rts", "sqd"],
            _ => &["init", "err"],
        };
        let mut from = "reset";
        for to in path {
            let (needs, _) = rule(name, from, to).unwrap();
            let attr = self.values(pair, 0);
            assert_eq!(modify(pair, attr, to, needs | QP_STATE), 0, "{name} {to}");
            from = to;
        }
        if state == "sqe" {
            self.spoil(pair, service);
        }
        assert_eq!(query(pair).qp_state, number(state), "{name} {state}");
        pair
    }

    /// Posts a send of unregistered memory.
    fn spoil(&self, pair: *mut Qp, service: i32) {
        let mut entry = sge(self.world.at(0), 60, 0x7777);
        let mut wr = request(1, WR_SEND, &mut entry);
        let mut route = self.route();
        // SAFETY: the domain is live; the handle lives until the end.
        unsafe {
            let handle = ah::create_ah(self.world.pd, &raw mut route);
            assert!(!handle.is_null());
            if service == QPT_UD {
                wr.wr.ud = UdWr {
                    ah: handle,
                    remote_qpn: (*pair).qp_num,
                    remote_qkey: 1,
                };
            }
            assert_eq!(send(pair, &mut wr), (0, false));
            assert_eq!(self.world.next().status, WC_LOC_PROT_ERR);
            assert_eq!(ah::destroy_ah(handle), 0);
        }
        let end = Instant::now() + Duration::from_secs(60);
        while query(pair).qp_state == QPS_RTS {
            assert!(Instant::now() < end, "the queue pair stays in RTS");
        }
    }
}

fn modify(pair: *mut Qp, mut attr: QpAttr, to: &str, mask: u32) -> i32 {
    (attr.qp_state, attr.cur_qp_state) = (number(to), query(pair).qp_state);
    // SAFETY: the queue pair is live.
    unsafe { qp::modify_qp(pair, &raw mut attr, mask as i32) }
}

fn query(pair: *mut Qp) -> QpAttr {
    let mut attr = QpAttr::default();
    // SAFETY: all zeros is valid; a live queue pair.
    unsafe {
        let mut init: QpInitAttr = std::mem::zeroed();
        assert_eq!(qp::query_qp(pair, &raw mut attr, 0, &raw mut init), 0);
        assert_eq!(init.qp_type, (*pair).qp_type);
        assert_eq!(attr.qp_state, (*pair).state);
    }
    attr
}

/// The queried attribute of this bit, as a number.
fn value(attr: &QpAttr, bit: u32) -> u64 {
    match bit {
        QP_ACCESS_FLAGS => attr.qp_access_flags.into(),
        QP_PKEY_INDEX => attr.pkey_index.into(),
        QP_PORT => attr.port_num.into(),
        QP_QKEY => attr.qkey.into(),
        QP_AV => attr.ah_attr.grh.dgid.0.iter().map(|b| u64::from(*b)).sum(),
        QP_PATH_MTU => attr.path_mtu as u64,
        QP_TIMEOUT => attr.timeout.into(),
        QP_RETRY_CNT => attr.retry_cnt.into(),
        QP_RNR_RETRY => attr.rnr_retry.into(),
        QP_RQ_PSN => attr.rq_psn.into(),
        QP_MAX_QP_RD_ATOMIC => attr.max_rd_atomic.into(),
        QP_MIN_RNR_TIMER => attr.min_rnr_timer.into(),
        QP_SQ_PSN => attr.sq_psn.into(),
        QP_MAX_DEST_RD_ATOMIC => attr.max_dest_rd_atomic.into(),
        QP_PATH_MIG_STATE => attr.path_mig_state as u64,
        QP_DEST_QPN => attr.dest_qp_num.into(),
        QP_CUR_STATE | QP_EN_SQD_ASYNC_NOTIFY => 0, // they concern only the call
        _ => panic!("{bit:#x} is not an attribute"),
    }
}

fn each_bit(mask: u32) -> impl Iterator<Item = u32> {
    (0..32)
        .map(|bit| 1 << bit)
        .filter(move |bit| mask & bit != 0)
}

/// The attributes that a half of an extended reliable connection ignores: those of the other half.
fn ignored(service: &str) -> u32 {
    match service {
        "xs" => QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER,
        "xr" => QP_MAX_QP_RD_ATOMIC | QP_RETRY_CNT | QP_RNR_RETRY,
        _ => 0,
    }
}

/// The masks to try for a transition, and the results: the required attributes, those with each allowed one, all
/// allowed ones, and the required ones with one missing or one too many.
fn tries(service: &str, needs: u32, may: u32) -> Vec<(u32, i32)> {
    const TAKEN: i32 = 0;
    let all = bits(&ATTRIBUTES.join(" "));
    // Bits that no device defines.
    let unknown = !0u32 << 21;
    // Ethernet ports have no alternate path; the kernel checks that after its table.
    let may = may & !QP_ALT_PATH;
    let ignored = ignored(service);
    let refused = !needs & !may & !ignored & !unknown & !QP_STATE;
    let mut list = vec![(needs, TAKEN), (needs | may | ignored & all, TAKEN)];
    list.extend(each_bit(may | ignored).map(|bit| (needs | bit, TAKEN)));
    list.extend(each_bit(needs).map(|bit| (needs & !bit, libc::EINVAL)));
    list.extend(each_bit(refused).map(|bit| (needs | bit, libc::EINVAL)));
    list.extend(each_bit(unknown).map(|bit| (needs | bit, libc::EOPNOTSUPP)));
    list
}

#[test]
fn every_transition_takes_exactly_its_attributes() {
    let maker = Maker::new();
    for service in SERVICES {
        for from in STATES {
            if from == "sqe" && !matches!(service.0, "uc" | "ud" | "raw") {
                continue; // only these services have this state
            }
            let mut pair = maker.in_state(service, from);
            for to in STATES {
                let step = rule(service.0, from, to);
                let list = match step {
                    Some((needs, may)) => tries(service.0, needs, may),
                    None => [0, bits(&ATTRIBUTES.join(" "))]
                        .map(|mask| (mask, libc::EINVAL))
                        .to_vec(),
                };
                for (mask, expected) in list {
                    // A call without IBV_QP_STATE is a transition to the same state.
                    for state in [QP_STATE, 0] {
                        if state == 0 && (from != to || mask == 0) {
                            continue;
                        }
                        let attr = maker.values(pair, 1);
                        let before = query(pair);
                        let code = modify(pair, attr, to, mask | state);
                        let what = format!("{service:?} {from} -> {to}, {mask:#x} {state}");
                        assert_eq!(code, expected, "{what}");
                        let now = query(pair);
                        if expected != 0 {
                            assert_eq!(now, before, "{what}");
                            continue;
                        }
                        assert_eq!(now.qp_state, number(to), "{what}");
                        let ignored = ignored(service.0);
                        for bit in each_bit(ignored & mask).filter(|_| to != "reset") {
                            let (now, before) = (value(&now, bit), value(&before, bit));
                            assert_eq!(now, before, "{what}: {bit:#x} is ignored");
                        }
                        for bit in each_bit(mask & !ignored) {
                            assert_eq!(value(&now, bit), value(&attr, bit), "{what}: {bit:#x}");
                        }
                        // SAFETY: unused from here on.
                        assert_eq!(unsafe { creation::destroy_qp(pair) }, 0);
                        pair = maker.in_state(service, from);
                    }
                }
            }
            // SAFETY: unused from here on.
            assert_eq!(unsafe { creation::destroy_qp(pair) }, 0);
        }
    }
}

/// A transition, whether it succeeds, and a change of its attributes.
type Case = (&'static str, &'static str, bool, fn(&mut QpAttr));

#[test]
fn invalid_attribute_values_are_refused() {
    let maker = Maker::new();
    let cases: &[Case] = &[
        ("reset", "init", false, |attr| attr.port_num = 0),
        ("reset", "init", false, |attr| attr.port_num = 2),
        ("reset", "init", false, |attr| attr.port_num = 99),
        ("reset", "init", false, |attr| attr.pkey_index = 1),
        ("reset", "init", false, |attr| attr.pkey_index = u16::MAX),
        // Like the kernel, ignores rights that no queue pair here has.
        ("reset", "init", true, |attr| attr.qp_access_flags |= 0x300),
        ("reset", "init", true, |attr| {
            attr.qp_access_flags |= 1 << 15
        }),
        ("init", "rtr", false, |attr| attr.path_mtu = 0),
        ("init", "rtr", false, |attr| attr.path_mtu = 6),
        ("init", "rtr", false, |attr| attr.path_mtu = -1),
        ("init", "rtr", false, |attr| attr.min_rnr_timer = 32),
        ("init", "rtr", false, |attr| attr.dest_qp_num = 1 << 24),
        ("init", "rtr", false, |attr| {
            attr.max_dest_rd_atomic = u8::MAX
        }),
        ("init", "rtr", false, |attr| attr.ah_attr.port_num = 0),
        ("init", "rtr", false, |attr| attr.ah_attr.port_num = 99),
        ("init", "rtr", false, |attr| {
            attr.ah_attr.grh.sgid_index = 255
        }),
        // As in the kernel, only the low 24 bits of packet numbers count.
        ("init", "rtr", true, |attr| attr.rq_psn |= 0x100_0000),
        ("rtr", "rts", true, |attr| attr.sq_psn |= 0xff00_0000),
        ("rtr", "rts", true, |attr| attr.timeout = 31),
        ("rtr", "rts", false, |attr| attr.timeout = 32),
        ("rtr", "rts", false, |attr| attr.timeout = u8::MAX),
        ("rtr", "rts", true, |attr| attr.retry_cnt = 7),
        ("rtr", "rts", false, |attr| attr.retry_cnt = 8),
        ("rtr", "rts", true, |attr| attr.rnr_retry = 7),
        ("rtr", "rts", false, |attr| attr.rnr_retry = 8),
        ("rtr", "rts", false, |attr| attr.max_rd_atomic = u8::MAX),
    ];
    for (place, (from, to, taken, change)) in cases.iter().enumerate() {
        let pair = maker.in_state(SERVICES[0], from);
        let (needs, _) = rule("rc", from, to).unwrap();
        let (before, mut attr) = (query(pair), maker.values(pair, 1));
        change(&mut attr);
        let code = modify(pair, attr, to, needs | QP_STATE);
        let now = query(pair);
        if *taken {
            assert_eq!(code, 0, "case {place}");
            let low = |psn: u32| psn & 0xff_ffff;
            let psn = match *to {
                "init" => (0, 0),
                "rtr" => (now.rq_psn, attr.rq_psn),
                _ => (now.sq_psn, attr.sq_psn),
            };
            assert_eq!(psn.0, low(psn.1), "case {place}");
        } else {
            assert_eq!((code, now), (libc::EINVAL, before), "case {place}");
        }
    }
}

#[test]
fn invalid_queue_pair_states_are_refused() {
    let maker = Maker::new();
    let pair = maker.in_state(SERVICES[0], "rts");
    let mut attr = maker.values(pair, 0);
    let mut set = |state, current, mask: u32| {
        (attr.qp_state, attr.cur_qp_state) = (state, current);
        // SAFETY: the queue pair is live.
        unsafe { qp::modify_qp(pair, &raw mut attr, mask as i32) }
    };
    for state in [QPS_UNKNOWN, 8, -1, i32::MAX, i32::MIN] {
        assert_eq!(set(state, QPS_RTS, QP_STATE), libc::EINVAL, "{state}");
        assert_eq!(
            set(QPS_RTS, state, QP_STATE | QP_CUR_STATE),
            libc::EINVAL,
            "{state}"
        );
    }
    // The queue pair is not in the state that the program claims.
    assert_eq!(set(QPS_RTS, QPS_SQD, QP_STATE | QP_CUR_STATE), libc::EINVAL);
    assert_eq!(set(QPS_RTS, QPS_RTS, QP_STATE | QP_CUR_STATE), 0);
    assert_eq!(query(pair).qp_state, QPS_RTS);
}
