//! Asynchronous events, and the states of queue pairs when they are raised.

use crate::world::*;
use ibverbs::completion::{channel, cq};
use ibverbs::events::{async_event, completion_event};
use ibverbs::queues::{creation, post, qp, srq};
use ibverbs::sys::consts::*;
use ibverbs::sys::{
    AsyncEvent, CompChannel, Cq, Qp, QpAttr, QpInitAttr, RecvWr, Srq, SrqAttr, SrqInitAttr,
};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The next event, acknowledged: its type and the address of its object. `None` if there is none within `time`.
fn next_within(world: &World, time: Duration) -> Option<(i32, usize)> {
    // SAFETY: the context is live; `event` is writable.
    unsafe {
        let fd = (*world.context).async_fd;
        libc::fcntl(
            fd,
            libc::F_SETFL,
            libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK,
        );
        let end = Instant::now() + time;
        let mut event: AsyncEvent = std::mem::zeroed();
        while async_event::get_async_event(world.context, &raw mut event) != 0 {
            assert_eq!(*libc::__errno_location(), libc::EAGAIN);
            // Events need a thread that drives the device; polling drives it.
            cq::poll_cq(world.cq, 0, null_mut());
            if Instant::now() > end {
                return None;
            }
            std::thread::yield_now();
        }
        let seen = (event.event_type, event.element as usize);
        async_event::ack_async_event(&raw mut event);
        Some(seen)
    }
}

fn next(world: &World) -> (i32, usize) {
    next_within(world, Duration::from_secs(60)).expect("an event")
}

fn state(pair: *mut Qp) -> i32 {
    let mut attr = QpAttr::default();
    // SAFETY: all zeros is valid; a live queue pair.
    unsafe {
        let mut init: QpInitAttr = std::mem::zeroed();
        assert_eq!(qp::query_qp(pair, &raw mut attr, 1, &raw mut init), 0);
    }
    attr.qp_state
}

/// A plain transition without further attributes.
fn go(pair: *mut Qp, to: i32, notify: bool) {
    let mut attr = QpAttr {
        qp_state: to,
        en_sqd_async_notify: 1,
        ..QpAttr::default()
    };
    let mask = QP_STATE | if notify { QP_EN_SQD_ASYNC_NOTIFY } else { 0 };
    // SAFETY: the queue pair is live.
    let code = unsafe { qp::modify_qp(pair, &raw mut attr, mask as i32) };
    assert_eq!(code, 0);
}

fn create(world: &World, queue: *mut Cq, shared: *mut Srq) -> *mut Qp {
    // SAFETY: all zeros is valid; objects are live.
    unsafe {
        let mut attr: QpInitAttr = std::mem::zeroed();
        (attr.send_cq, attr.recv_cq, attr.srq) = (queue, queue, shared);
        attr.qp_type = QPT_RC;
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, 4);
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
        let pair = creation::create_qp(world.pd, &raw mut attr);
        assert!(!pair.is_null());
        pair
    }
}

fn shared_queue(world: &World) -> *mut Srq {
    // SAFETY: all zeros is valid; a live domain.
    unsafe {
        let mut wanted: SrqInitAttr = std::mem::zeroed();
        (wanted.attr.max_wr, wanted.attr.max_sge) = (4, 1);
        let queue = srq::create_srq(world.pd, &raw mut wanted);
        assert!(!queue.is_null());
        queue
    }
}

/// A completion queue that overruns fails, and its queue pairs with it.
#[test]
fn an_overrun_fails_the_completion_queue_and_its_queue_pairs() {
    overrun(&World::new(), 0);
}

/// Overruns a completion queue whose count of acknowledged events starts at `events`.
fn overrun(world: &World, events: u32) -> *mut Cq {
    // SAFETY: the context is live.
    let small = unsafe { cq::create_cq(world.context, 1, null_mut(), null_mut(), 0) };
    // SAFETY: the completion queue is live.
    unsafe { (*small).async_events_completed = events };
    let [a, b] = [0, 1].map(|_| create(world, small, null_mut()));
    for pair in [a, b] {
        world.connect(pair, QPT_RC, 0x77);
    }
    for id in 0..2 {
        receive(a, id, &mut sge(0, 0, 0));
    }
    go(a, QPS_ERR, false);
    assert_eq!(next(world), (EVENT_CQ_ERR, small as usize));
    assert_eq!(next(world), (EVENT_QP_FATAL, b as usize));
    assert_eq!((state(a), state(b)), (QPS_ERR, QPS_ERR));
    small
}

/// A completion queue is not destroyed until the event that a thread is fetching is acknowledged.
#[test]
fn destroying_a_completion_queue_waits_for_unacknowledged_events() {
    const ROUNDS: usize = 300;
    let world = World::new();
    // SAFETY: the context is live.
    let events = unsafe { channel::create_comp_channel(world.context) };
    assert!(!events.is_null());
    let (gone, seen, events_at) = (AtomicUsize::new(0), AtomicUsize::new(0), events as usize);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut which, mut round) = (null_mut(), null_mut());
            while round as usize != ROUNDS + 1 {
                let events = events_at as *mut CompChannel;
                // SAFETY: the channel is live; both are writable.
                let code = unsafe {
                    completion_event::get_cq_event(events, &raw mut which, &raw mut round)
                };
                assert_eq!(code, 0);
                // Checked several times: the queue must not be destroyed later, either.
                for _ in 0..20 {
                    assert!(round as usize > gone.load(Ordering::Acquire), "{round:?}");
                    std::thread::yield_now();
                }
                seen.fetch_add(1, Ordering::Relaxed);
                // SAFETY: the destroying call waits for this one.
                unsafe { completion_event::ack_cq_events(which, 1) };
            }
        });
        for round in 1..=ROUNDS + 1 {
            // SAFETY: the objects are live; the queue is unused after its destruction.
            unsafe {
                let queue = cq::create_cq(world.context, 4, round as *mut c_void, events, 0);
                assert_eq!(cq::req_notify_cq(queue, 0), 0);
                let pair = create(&world, queue, null_mut());
                world.connect(pair, QPT_RC, 0x77);
                receive(pair, 1, &mut sge(0, 0, 0));
                go(pair, QPS_ERR, false);
                assert_eq!(creation::destroy_qp(pair), 0);
                // The last queue stays until its event is taken, which ends the other thread.
                if round <= ROUNDS {
                    assert_eq!(cq::destroy_cq(queue), 0);
                    gone.store(round, Ordering::Release);
                }
            }
        }
    });
    assert!(seen.load(Ordering::Relaxed) > 0);
}

/// The counters of acknowledged events that programs read wrap around.
#[test]
fn counters_of_acknowledged_events_wrap() {
    let world = World::new();
    // SAFETY: the completion queue is live.
    unsafe {
        (*world.cq).comp_events_completed = u32::MAX;
        completion_event::ack_cq_events(world.cq, 2);
        assert_eq!((*world.cq).comp_events_completed, 1);
    }
    let small = overrun(&world, u32::MAX);
    // SAFETY: the completion queue is live.
    assert_eq!(unsafe { (*small).async_events_completed }, 0);
}

/// Proves: VB-I21
#[test]
fn a_refused_access_fails_both_queue_pairs() {
    let world = World::new();
    let region = world.register(0, 64, ALL);
    let [a, b] = world.pair(QPT_RC);
    // SAFETY: the objects are live.
    unsafe {
        let mut entry = sge(world.at(0), 8, (*region).lkey);
        let wrong = (*region).rkey ^ 1;
        let mut first = remote(1, WR_RDMA_WRITE, &mut entry, world.at(8), wrong);
        let mut second = remote(2, WR_RDMA_WRITE, &mut entry, world.at(8), (*region).rkey);
        first.next = &raw mut second;
        assert_eq!(post::post_send(a, &raw mut first, null_mut()), 0);
        let (refused, flushed) = (world.next(), world.next());
        assert_eq!((refused.wr_id, refused.status), (1, WC_REM_ACCESS_ERR));
        assert_eq!((flushed.wr_id, flushed.status), (2, WC_WR_FLUSH_ERR));
        assert_eq!((refused.qp_num, flushed.qp_num), ((*a).qp_num, (*a).qp_num));
    }
    assert_eq!(next(&world), (EVENT_QP_ACCESS_ERR, b as usize));
    assert_eq!((state(a), state(b)), (QPS_ERR, QPS_ERR));
    assert_eq!(world.word(8), 0);
}

/// Each kind of failure has its status, flushes the requests after it and ends in the error state.
///
/// Proves: VB-I21
#[test]
fn a_failed_request_names_the_side_at_fault() {
    const NEAR: usize = 0;
    const FAR: usize = 4096;
    let mut world = World::new();
    let near = world.register(NEAR, 64, ALL);
    let far = world.register(FAR, 64, ALL);
    let near_read_only = world.register(NEAR, 64, 0);
    let far_read_only = world.register(FAR, 64, ACCESS_REMOTE_READ);
    let gone = world.register(FAR, 64, ALL);
    // SAFETY: the regions are live.
    let [near, far, near_read_only, far_read_only, gone] =
        [near, far, near_read_only, far_read_only, gone].map(|mr| unsafe {
            let keys = ((*mr).lkey, (*mr).rkey);
            if mr == gone {
                assert_eq!(ibverbs::memory::mr::dereg_mr(mr), 0);
            }
            keys
        });
    let here = WC_LOC_PROT_ERR;
    let there = WC_REM_ACCESS_ERR;
    let write = WR_RDMA_WRITE;
    for (what, opcode, (lkey, at), (rkey, to), status) in [
        ("no lkey", write, (0x7777, NEAR), (far.1, FAR), here),
        ("stale lkey", write, (gone.0, NEAR), (far.1, FAR), here),
        (
            "source past the end",
            write,
            (near.0, NEAR + 60),
            (far.1, FAR),
            here,
        ),
        (
            "no local write",
            WR_RDMA_READ,
            (near_read_only.0, NEAR),
            (far.1, FAR),
            here,
        ),
        ("no rkey", write, (near.0, NEAR), (0x7777, FAR), there),
        ("stale rkey", write, (near.0, NEAR), (gone.1, FAR), there),
        (
            "target past the end",
            write,
            (near.0, NEAR),
            (far.1, FAR + 60),
            there,
        ),
        (
            "target before the start",
            write,
            (near.0, NEAR),
            (far.1, FAR - 4),
            there,
        ),
        (
            "no right",
            write,
            (near.0, NEAR),
            (far_read_only.1, FAR),
            there,
        ),
        (
            "no right",
            WR_ATOMIC_FETCH_AND_ADD,
            (near.0, NEAR),
            (far_read_only.1, FAR),
            there,
        ),
    ] {
        for offset in [NEAR, NEAR + 56, FAR, FAR + 56] {
            world.set(offset, 3);
        }
        let [a, b] = world.pair(QPT_RC);
        let mut entries = [sge(world.at(at), 8, lkey), sge(world.at(NEAR), 8, near.0)];
        let [entry, good] = &mut entries;
        let mut first = remote(1, opcode, entry, world.at(to), rkey);
        let mut second = remote(2, write, good, world.at(FAR + 8), far.1);
        first.next = &raw mut second;
        assert_eq!(send(a, &mut first), (0, false), "{what}");
        let (failed, flushed) = (world.next(), world.next());
        assert_eq!((failed.wr_id, failed.status), (1, status), "{what}");
        assert_eq!(
            (flushed.wr_id, flushed.status),
            (2, WC_WR_FLUSH_ERR),
            "{what}"
        );
        // SAFETY: the queue pair is live.
        let number = unsafe { (*a).qp_num };
        assert_eq!((failed.qp_num, flushed.qp_num), (number, number), "{what}");
        assert_eq!(state(a), QPS_ERR, "{what}");
        // What is posted later is flushed as well.
        let mut later = remote(3, write, good, world.at(FAR + 8), far.1);
        assert_eq!(world.run(a, &mut later), WC_WR_FLUSH_ERR, "{what}");
        for offset in [NEAR, NEAR + 56, FAR, FAR + 56] {
            assert_eq!(world.word(offset), 3, "{what}");
        }
        assert_eq!(world.word(FAR + 8), 0, "{what}");
        // SAFETY: the queue pairs are live, and unused from here on.
        unsafe { assert_eq!((creation::destroy_qp(a), creation::destroy_qp(b)), (0, 0)) };
    }
}

#[test]
fn a_message_longer_than_its_receive_is_an_error_on_both_sides() {
    let world = World::new();
    let region = world.register(0, 64, ALL);
    let [a, b] = world.pair(QPT_RC);
    // SAFETY: the region is live.
    let lkey = unsafe { (*region).lkey };
    receive(b, 2, &mut sge(world.at(0), 4, lkey));
    let mut entry = sge(world.at(8), 8, lkey);
    assert_eq!(send(a, &mut request(1, WR_SEND, &mut entry)), (0, false));
    assert_eq!(
        world.statuses(2),
        [(1, WC_REM_INV_REQ_ERR), (2, WC_LOC_LEN_ERR)]
    );
    assert_eq!(next(&world), (EVENT_QP_REQ_ERR, b as usize));
}

/// The event for a drained send queue is raised only for programs that requested it.
#[test]
fn a_drained_send_queue_raises_an_event_on_request() {
    let world = World::new();
    let [a, _] = world.pair(QPT_RC);
    go(a, QPS_SQD, false);
    assert_eq!(next_within(&world, Duration::from_millis(20)), None);
    go(a, QPS_RTS, false);
    go(a, QPS_SQD, true);
    assert_eq!(next(&world), (EVENT_SQ_DRAINED, a as usize));
    assert_eq!(state(a), QPS_SQD);
}

#[test]
fn a_message_that_arrives_in_rtr_raises_an_event() {
    let world = World::new();
    let [a, b] = world.pair(QPT_RC);
    // SAFETY: the queue pairs are live.
    let peer = unsafe { (*a).qp_num };
    go(b, QPS_RESET, false);
    let mut attr = QpAttr {
        port_num: 1,
        path_mtu: MTU_4096,
        dest_qp_num: peer,
        ..QpAttr::default()
    };
    (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
    // SAFETY: the objects are live; `gid` is writable.
    unsafe {
        let gid = &raw mut attr.ah_attr.grh.dgid.0;
        assert_eq!(
            ibverbs::device::query::query_gid(world.context, 1, 0, gid),
            0
        );
        attr.qp_state = QPS_INIT;
        let init = QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS;
        assert_eq!(qp::modify_qp(b, &raw mut attr, init as i32), 0);
        receive(b, 2, &mut sge(0, 0, 0));
        attr.qp_state = QPS_RTR;
        let rtr = QP_STATE | QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN;
        let rtr = rtr | QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER;
        assert_eq!(qp::modify_qp(b, &raw mut attr, rtr as i32), 0);
    }
    let mut empty = request(1, WR_SEND, &mut sge(0, 0, 0));
    (empty.sg_list, empty.num_sge) = (null_mut(), 0);
    assert_eq!(send(a, &mut empty), (0, false));
    assert_eq!(world.statuses(2), [(1, WC_SUCCESS), (2, WC_SUCCESS)]);
    assert_eq!(next(&world), (EVENT_COMM_EST, b as usize));
    assert_eq!(state(b), QPS_RTR);
}

#[test]
fn a_shared_receive_queue_below_its_limit_raises_an_event() {
    let world = World::new();
    let queue = shared_queue(&world);
    let (a, b) = (
        create(&world, world.cq, null_mut()),
        create(&world, world.cq, queue),
    );
    // SAFETY: the objects are live.
    unsafe {
        world.connect(a, QPT_RC, (*b).qp_num);
        world.connect(b, QPT_RC, (*a).qp_num);
        for id in 10..12 {
            let mut wr = RecvWr {
                wr_id: id,
                next: null_mut(),
                sg_list: null_mut(),
                num_sge: 0,
            };
            assert_eq!(post::post_srq_recv(queue, &raw mut wr, null_mut()), 0);
        }
        let mut attr = SrqAttr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: 2,
        };
        assert_eq!(srq::modify_srq(queue, &raw mut attr, SRQ_LIMIT as i32), 0);
    }
    assert_eq!(
        next_within(&world, Duration::from_millis(20)),
        None,
        "not below the limit yet"
    );
    let mut empty = request(1, WR_SEND, &mut sge(0, 0, 0));
    (empty.sg_list, empty.num_sge) = (null_mut(), 0);
    assert_eq!(send(a, &mut empty), (0, false));
    assert_eq!(world.statuses(2), [(1, WC_SUCCESS), (10, WC_SUCCESS)]);
    assert_eq!(next(&world), (EVENT_SRQ_LIMIT_REACHED, queue as usize));
    go(b, QPS_ERR, false);
    assert_eq!(next(&world), (EVENT_QP_LAST_WQE_REACHED, b as usize));
}
