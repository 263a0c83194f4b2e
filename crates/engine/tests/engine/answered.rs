//! Compares short reads and atomics that cut through to the link with the same requests through the send queue: nothing else may
//! differ.
//!
//! A second scatter/gather entry, of no bytes, sends a request through the send queue. It has no other effect, and the header does not
//! carry it.

use crate::scenes::{Scene, situations};
use crate::support::*;
use rkey_engine::*;

/// Posts a short read or an atomic, with one scatter/gather entry or with two.
pub(crate) fn post_answered(scene: &mut Scene, id: u64, two: bool) -> Result<(), PostError> {
    let (near, far) = (&scene.pair.nodes[0], &scene.pair.nodes[1]);
    let remote = far.target(&scene.regions[1], 64 * id);
    let (work, len) = match id % 4 {
        0 => (Work::Read { remote }, 24),
        1 => (Work::FetchAdd { remote, add: 3 }, 8),
        2 => {
            let (compare, swap) = (0, 5);
            let swap = Work::CompareSwap {
                remote,
                compare,
                swap,
            };
            (swap, 8)
        }
        _ => (Work::Read { remote }, 64),
    };
    let entry = |offset, len| near.sge(&scene.regions[0], 256 * id + offset, len);
    let sges = [entry(0, len), entry(u64::from(len), 0)];
    let mut request = SendRequest::new(id, work, &sges[..1 + usize::from(two)]);
    request
        .flags
        .set(SendFlags::SIGNALED, !id.is_multiple_of(3));
    request.flags.set(SendFlags::SOLICITED, id == 10);
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
