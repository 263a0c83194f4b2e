//! Ownership: objects of another context, objects that still have users, and the memory that a call refers to.

use crate::world::{ALL, LEN, World, request, send, sge};
use ibverbs::completion::{channel, cq};
use ibverbs::device::limits;
use ibverbs::memory::advise::advise_mr;
use ibverbs::memory::mr::{dereg_mr, reg_mr_iova2};
use ibverbs::memory::pd;
use ibverbs::queues::{creation, post, qp, srq, wq};
use ibverbs::sys::consts::*;
use ibverbs::sys::{
    QpAttr, QpInitAttr, QpInitAttrEx, RecvWr, RwqIndTableInitAttr, SrqAttr, SrqInitAttr, Wq,
    WqAttr, WqInitAttr,
};
use std::ptr::null_mut;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn shared_queue(pd: *mut ibverbs::sys::Pd) -> *mut ibverbs::sys::Srq {
    let mut attr = SrqInitAttr {
        srq_context: null_mut(),
        attr: SrqAttr {
            max_wr: 4,
            max_sge: 1,
            srq_limit: 0,
        },
    };
    // SAFETY: the protection domain is live.
    let queue = unsafe { srq::create_srq(pd, &raw mut attr) };
    assert!(!queue.is_null());
    queue
}

fn work_queue(world: &World, from: &World) -> *mut Wq {
    let mut attr = WqInitAttr {
        wq_context: null_mut(),
        wq_type: WQT_RQ,
        max_wr: 4,
        max_sge: 1,
        pd: world.pd,
        cq: from.cq,
        comp_mask: 0,
        // The mask does not say that these fields are set.
        create_flags: 0xdead,
    };
    // SAFETY: the objects are live.
    unsafe { wq::create_wq(world.context, &raw mut attr) }
}

/// As in the kernel, objects of another context do not exist in this one.
#[test]
fn objects_of_another_context_are_refused() {
    let (one, other) = (World::new(), World::new());
    // SAFETY: the objects are live; all zeros is valid.
    unsafe {
        let events = channel::create_comp_channel(other.context);
        assert!(!events.is_null());
        let made = cq::create_cq(one.context, 16, null_mut(), events, 0);
        assert!(made.is_null() && errno() == libc::EINVAL);
        let mut attr: QpInitAttr = std::mem::zeroed();
        attr.qp_type = QPT_RC;
        let foreign = shared_queue(other.pd);
        for (send_cq, recv_cq, srq) in [
            (other.cq, one.cq, null_mut()),
            (one.cq, other.cq, null_mut()),
            (one.cq, one.cq, foreign),
        ] {
            (attr.send_cq, attr.recv_cq, attr.srq) = (send_cq, recv_cq, srq);
            assert!(creation::create_qp(one.pd, &raw mut attr).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        assert!(work_queue(&one, &other).is_null() && errno() == libc::EINVAL);
        assert!(!work_queue(&one, &one).is_null());
    }
}

/// A protection domain in use remains, and no other domain gets its slot.
#[test]
fn unimport_pd_keeps_a_domain_that_is_in_use() {
    let world = World::new();
    // SAFETY: the objects are live.
    unsafe {
        let imported = pd::import_pd(world.context, (*world.pd).handle);
        assert!(!imported.is_null());
        let queue = shared_queue(imported);
        pd::unimport_pd(imported);
        // One of these would get the slot if it were free.
        let next: Vec<_> = (0..8).map(|_| pd::alloc_pd(world.context)).collect();
        assert!(!next.contains(&imported));
        assert_eq!(srq::destroy_srq(queue), 0);
        pd::unimport_pd(imported);
        for pd in next {
            assert_eq!(pd::dealloc_pd(pd), 0);
        }
    }
}

/// A query reports the limit in force: 0 once the event of the limit has been raised.
#[test]
fn the_limit_of_a_shared_receive_queue_is_cleared_by_its_event() {
    let world = World::new();
    let queue = shared_queue(world.pd);
    let mut attr = SrqAttr {
        max_wr: 0,
        max_sge: 0,
        srq_limit: 2,
    };
    // SAFETY: the queue is live.
    unsafe {
        // There are fewer receives, so the event is raised at once.
        assert_eq!(srq::modify_srq(queue, &raw mut attr, SRQ_LIMIT as i32), 0);
        assert_eq!(srq::query_srq(queue, &raw mut attr), 0);
        assert_eq!((attr.max_wr, attr.max_sge, attr.srq_limit), (4, 1, 0));
        attr.srq_limit = 5;
        let refused = srq::modify_srq(queue, &raw mut attr, SRQ_LIMIT as i32);
        assert_eq!(refused, libc::EINVAL, "more than the queue holds");
    }
}

/// A queue in the error state takes no receives, and `bad_wr` names the first.
#[test]
fn a_work_queue_in_error_names_the_refused_receive() {
    let world = World::new();
    let queue = work_queue(&world, &world);
    // SAFETY: the objects are live.
    unsafe {
        for state in [WQS_RDY, WQS_ERR] {
            let mut attr: WqAttr = std::mem::zeroed();
            (attr.attr_mask, attr.wq_state) = (WQ_ATTR_STATE, state);
            assert_eq!(wq::modify_wq(queue, &raw mut attr), 0);
        }
        let mut wr = RecvWr {
            wr_id: 1,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
        };
        let mut bad = null_mut();
        let code = (*queue).post_recv.unwrap()(queue, &raw mut wr, &raw mut bad);
        assert_eq!(code, libc::EINVAL);
        assert!(std::ptr::eq(bad, &raw const wr));
    }
}

/// Flags that the mask does not include are ignored.
#[test]
fn creation_flags_that_the_mask_omits_are_ignored() {
    let world = World::new();
    let mut key = [7u8; 40];
    // SAFETY: the objects are live; all zeros is valid.
    unsafe {
        let mut queues = [work_queue(&world, &world)];
        let mut table: RwqIndTableInitAttr = std::mem::zeroed();
        table.ind_tbl = queues.as_mut_ptr();
        let table = wq::create_table(world.context, &raw mut table);
        assert!(!table.is_null());
        let mut attr: QpInitAttrEx = std::mem::zeroed();
        attr.qp_type = QPT_RAW_PACKET;
        attr.comp_mask = QP_INIT_ATTR_PD | QP_INIT_ATTR_IND_TABLE | QP_INIT_ATTR_RX_HASH;
        (attr.pd, attr.rwq_ind_tbl, attr.create_flags) = (world.pd, table, 0xdead);
        attr.rx_hash_conf.rx_hash_function = limits::TOEPLITZ;
        attr.rx_hash_conf.rx_hash_key_len = key.len() as u8;
        attr.rx_hash_conf.rx_hash_key = key.as_mut_ptr();
        assert!(!creation::create_qp_ex(world.context, &raw mut attr).is_null());
    }
}

/// Advice for a region with an IOVA applies to the region's memory, not to what the process has mapped at that address.
#[test]
fn advice_applies_to_the_memory_of_the_region() {
    const PAGES: usize = 2;
    const BYTES: usize = PAGES * 4096;
    let world = World::new();
    // SAFETY: fresh mappings, which stay until the end.
    let mappings = [0, 1].map(|_| unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(null_mut(), BYTES, rights, kind, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        libc::madvise(start, BYTES, libc::MADV_NOHUGEPAGE);
        start
    });
    let resident = |start| {
        let mut pages = [0u8; PAGES];
        // SAFETY: a live mapping, and a byte for each of its pages.
        let code = unsafe { libc::mincore(start, BYTES, pages.as_mut_ptr()) };
        assert_eq!(code, 0);
        pages.map(|page| page & 1)
    };
    let [memory, elsewhere] = mappings;
    // SAFETY: the objects are live.
    unsafe {
        let region = reg_mr_iova2(world.pd, memory, BYTES, elsewhere as u64, ALL);
        assert!(!region.is_null());
        let mut entry = sge(elsewhere as u64 + 4096, 8, (*region).lkey);
        let advice = 1; // IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE
        assert_eq!(advise_mr(world.pd, advice, 0, &raw mut entry, 1), 0);
        assert_eq!(resident(elsewhere), [0, 0]);
        assert_eq!(resident(memory), [0, 1]);
        assert_eq!(dereg_mr(region), 0);
        for start in mappings {
            assert_eq!(libc::munmap(start, BYTES), 0);
        }
    }
}

/// A queue cannot shrink below the sends in progress, however long they take.
#[test]
fn a_completion_queue_does_not_shrink_below_the_outstanding_sends() {
    let world = World::new();
    let [a, b] = world.pair(QPT_RC);
    let region = world.register(0, LEN, ALL);
    // SAFETY: the objects are live.
    unsafe {
        let mut slow = QpAttr {
            min_rnr_timer: 28, // 164 ms
            ..QpAttr::default()
        };
        let mask = QP_MIN_RNR_TIMER as i32;
        assert_eq!(qp::modify_qp(b, &raw mut slow, mask), 0);
        for id in 0..3 {
            let mut entry = sge(world.at(0), 8, (*region).lkey);
            assert_eq!(send(a, &mut request(id, WR_SEND, &mut entry)), (0, false));
        }
        // The peer has no receive for them yet.
        for _ in 0..100 {
            let mut wc = ibverbs::sys::Wc::default();
            assert_eq!(cq::poll_cq(world.cq, 1, &raw mut wc), 0);
        }
        let shared = world.cq;
        for id in 3..6 {
            let mut entry = sge(world.at(64), 8, (*region).lkey);
            let mut wr = RecvWr {
                wr_id: id,
                next: null_mut(),
                sg_list: &raw mut entry,
                num_sge: 1,
            };
            assert_eq!(post::post_recv(b, &raw mut wr, null_mut()), 0);
        }
        assert_eq!(cq::resize_cq(shared, 5), libc::EINVAL);
        assert_eq!(world.statuses(6).len(), 6);
        assert_eq!(cq::resize_cq(shared, 5), 0);
    }
}
