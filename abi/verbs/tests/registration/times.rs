//! Completion timestamps record when the completion was added, not when it was polled.

use crate::world::*;
use ibverbs::completion::{channel, cq};
use ibverbs::device::clock;
use ibverbs::events::completion_event;
use ibverbs::sys::consts::*;
use ibverbs::sys::{CompChannel, Cq, CqEx, CqInitAttrEx, PollCqAttr};
use ibverbs::tables::cq_ex;
use std::ptr::null_mut;

const TIMES: u64 = WC_EX_WITH_COMPLETION_TIMESTAMP | WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// A world whose queue pairs complete in an extended queue with a channel.
fn world(wc_flags: u64) -> (World, *mut CqEx, *mut CompChannel) {
    let mut world = World::new();
    // SAFETY: all zeros is valid; objects are live.
    unsafe {
        let channel = channel::create_comp_channel(world.context);
        let mut wanted: CqInitAttrEx = std::mem::zeroed();
        (wanted.cqe, wanted.channel, wanted.wc_flags) = (16, channel, wc_flags);
        let queue = cq_ex::create_cq_ex(world.context, &raw mut wanted);
        assert!(!channel.is_null() && !queue.is_null());
        world.cq = queue.cast();
        (world, queue, channel)
    }
}

/// Does one write, and waits until it is complete without polling the queue.
fn complete(world: &World, channel: *mut CompChannel, id: u64) {
    let region = world.register(0, LEN, ALL);
    let [a, _] = world.pair(QPT_RC);
    // SAFETY: the objects are live; `event` is writable.
    unsafe {
        assert_eq!(cq::req_notify_cq(world.cq, 0), 0);
        let mut entry = sge(world.at(0), 8, (*region).lkey);
        let mut wr = remote(id, WR_RDMA_WRITE, &mut entry, world.at(8), (*region).rkey);
        assert_eq!(send(a, &mut wr), (0, false));
        let (mut queue, mut its) = (null_mut::<Cq>(), null_mut());
        let code = completion_event::get_cq_event(channel, &raw mut queue, &raw mut its);
        assert_eq!((code, queue), (0, world.cq));
        completion_event::ack_cq_events(queue, 1);
    }
}

#[test]
fn a_completion_is_stamped_when_it_completes() {
    let (world, queue, channel) = world(TIMES);
    let mut stamps = vec![clock::timestamp()];
    for id in 1..=2 {
        complete(&world, channel, id);
        stamps.push(clock::timestamp());
    }
    // SAFETY: a live queue, read only between start and end.
    unsafe {
        let q = &*queue;
        let mut attr = PollCqAttr { comp_mask: 0 };
        assert_eq!(q.start_poll.unwrap()(queue, &raw mut attr), 0);
        let mut walls = [0; 2];
        for (id, wall) in (1..=2).zip(&mut walls) {
            assert_eq!(((*queue).wr_id, (*queue).status), (id, WC_SUCCESS));
            let time = q.read_completion_ts.unwrap()(queue);
            let id = id as usize;
            assert!(
                (stamps[id - 1]..=stamps[id]).contains(&time),
                "{id}: {time} {stamps:?}"
            );
            *wall = q.read_completion_wallclock_ns.unwrap()(queue);
            let next = q.next_poll.unwrap()(queue);
            assert_eq!(next, if id == 1 { 0 } else { libc::ENOENT });
        }
        q.end_poll.unwrap()(queue);
        // The wall clock may be set at any time, but not by as much as an hour.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        for wall in walls {
            assert!(now.abs_diff(wall.into()) < 3600 * 1_000_000_000, "{wall}");
        }
        assert_eq!(q.start_poll.unwrap()(queue, &raw mut attr), libc::ENOENT);
    }
}

/// A queue with timestamps works like any other.
#[test]
fn a_completion_queue_with_timestamps_works_like_any_other() {
    for flags in [0, TIMES, WC_EX_WITH_COMPLETION_TIMESTAMP] {
        let (world, queue, channel) = world(flags);
        (1..=3).for_each(|id| complete(&world, channel, id));
        // SAFETY: the queue is live.
        unsafe {
            assert_eq!(cq::resize_cq(world.cq, 64), 0, "{flags}");
            assert!((*queue).cqe >= 64);
        }
        assert_eq!(
            (1..=3).map(|_| world.next().wr_id).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        // Destroying a queue pair removes its completions that were not polled.
        let region = world.register(0, LEN, ALL);
        let [a, b] = world.pair(QPT_RC);
        // SAFETY: the objects are live.
        unsafe {
            let mut entry = sge(world.at(0), 8, (*region).lkey);
            receive(b, 4, &mut entry);
            let mut wr = ibverbs::sys::QpAttr {
                qp_state: QPS_ERR,
                ..Default::default()
            };
            assert_eq!(
                ibverbs::queues::qp::modify_qp(b, &raw mut wr, QP_STATE as i32),
                0
            );
            assert_eq!(ibverbs::queues::creation::destroy_qp(b), 0);
            assert_eq!(ibverbs::queues::creation::destroy_qp(a), 0);
            let mut wc = ibverbs::sys::Wc::default();
            assert_eq!(cq::poll_cq(world.cq, 1, &raw mut wc), 0, "{flags}");
        }
    }
}
