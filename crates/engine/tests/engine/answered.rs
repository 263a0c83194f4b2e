//! Compares short reads and atomics that cut through to the link with the same requests through the send queue: nothing else may
//! differ.
//!
//! A second scatter/gather entry, of no bytes, sends a request through the send queue. It has no other effect, and the header does not
//! carry it.

use crate::scenes::{Scene, situations};
use crate::support::*;
use rkey_base::range::VaRange;
use rkey_core::{Addressing, RegionSpec};
use rkey_engine::*;

/// Posts a read or an atomic, with one scatter/gather entry or with two. Some of them may not cut through: they are too long, have
/// flags or inline data, or are refused.
pub(crate) fn post_answered(scene: &mut Scene, id: u64, two: bool) -> Result<(), PostError> {
    let (near, far) = (&scene.pair.nodes[0], &scene.pair.nodes[1]);
    // The last one is not aligned.
    let remote = far.target(&scene.regions[1], 64 * id + 4 * u64::from(id == 11));
    let read = Work::Read { remote };
    let add = Work::FetchAdd { remote, add: 3 };
    let swap = Work::CompareSwap {
        remote,
        compare: 0,
        swap: 5,
    };
    let (work, len) = match id {
        0 | 7 => (read, 24),
        1 | 11 => (add, 8),
        2 | 10 => (swap, 8),
        // As much as fits into a slot here, and more.
        3 => (read, 64),
        4 => (read, 65),
        5 => (add, 16),
        6 => (read, 0),
        8 => (read, 40),
        _ => (read, 8),
    };
    let entry = |offset, len| near.sge(&scene.regions[0], 256 * id + offset, len);
    let sges = [entry(0, len), entry(u64::from(len), 0)];
    let mut request = SendRequest::new(id, work, &sges[..1 + usize::from(two)]);
    match id {
        7 => request.flags |= SendFlags::RECEIVES,
        8 => request.flags |= SendFlags::FENCE,
        9 => (request.inline, request.sges) = (Some(&[1; 8][..]), &[]),
        10 => request.prefix = &[1; 8],
        _ => {}
    }
    request
        .flags
        .set(SendFlags::SIGNALED, !id.is_multiple_of(3));
    request.flags.set(SendFlags::SOLICITED, id == 2);
    let qp = scene.qps[0].id;
    scene.pair.nodes[0].engine.post_send(qp, &request)
}

#[test]
fn cut_through_reads_and_atomics_have_the_same_results_as_the_send_queue() {
    for (name, scene) in situations() {
        let limit = {
            let scene = scene();
            let info = scene.pair.nodes[0].engine.query_qp(scene.qps[0].id);
            info.unwrap().config.max_send_sge
        };
        if limit < 2 {
            continue;
        }
        let [short, long] =
            [false, true].map(|two| scene().play_each(|scene, id| post_answered(scene, id, two)));
        assert_eq!(short, long, "{name}");
    }
}

/// A queue pair has at most so many reads and atomics outstanding; others wait in the send queue, in order.
#[test]
fn reads_and_atomics_beyond_the_limit_wait() {
    let mut pair = Pair::new();
    let qps = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
    pair.ready(&qps, |_, step| {
        if step.max_reads_out.is_some() {
            step.max_reads_out = Some(2);
        }
    });
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 4096, ALL));
    let remote = pair.nodes[1].target(&regions[1], 0);
    for id in 0..12 {
        let sges = [pair.nodes[0].sge(&regions[0], 8 * id, 8)];
        let work = match id % 2 {
            0 => Work::FetchAdd { remote, add: 1 },
            _ => Work::Read { remote },
        };
        pair.send(0, &qps[0], &SendRequest::new(id, work, &sges));
        assert_eq!(pair.end(0).outbox.len(), 2.min(id as usize + 1));
    }
    pair.run_until_idle();
    let want: Vec<_> = (0..12).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&qps[0].poll()), want);
    let results = pair.nodes[0].bytes(0, 96);
    let results: Vec<u64> = results
        .chunks(8)
        .map(|it| u64::from_le_bytes(it.try_into().unwrap()))
        .collect();
    assert_eq!(results, [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]);
}

/// The address that the peer names must be aligned. That of the memory is another one if the region has addresses of its own.
#[test]
fn an_atomic_at_an_unaligned_address_is_refused_although_its_memory_is_aligned() {
    let mut pair = Pair::new();
    let (qps, regions) = transfer(&mut pair);
    let node = &pair.nodes[1];
    let range = [VaRange::new(node.base() + 4, 64).unwrap()];
    let mut spec = RegionSpec::new(node.domain, &range, ALL);
    spec.addressing = Addressing::Iova(node.base());
    let moved = node.protection.register(&spec).unwrap();
    let sges = [pair.nodes[0].sge(&regions[0], 0, 8)];
    for (id, region, offset) in [(1, &regions[1], 0), (2, &moved, 4)] {
        let remote = pair.nodes[1].target(region, offset);
        let add = Work::FetchAdd { remote, add: 1 };
        pair.send(0, &qps[0], &SendRequest::new(id, add, &sges));
        pair.run_until_idle();
    }
    let want = [(1, Status::Success), (2, Status::RemoteInvalidRequest)];
    assert_eq!(statuses(&qps[0].poll()), want);
    assert_eq!(pair.nodes[1].bytes(8, 8), [0; 8]);
}
