//! One request, and its results on both sides.

use super::node::Qp;
use super::pair::Pair;
use rkey_core::Access;
use rkey_engine::*;

/// The result of one request of node 0.
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) vendor: u32,
    pub(crate) states: [QpState; 2],
    pub(crate) events: [Vec<Event>; 2],
}

/// Posts the request at node 0, and waits until it ends.
pub(crate) fn attempt(pair: &mut Pair, qps: &[Qp; 2], work: Work, sges: &[Sge]) -> Outcome {
    pair.send(0, &qps[0], &SendRequest::new(77, work, sges));
    pair.run_until_idle();
    let done = qps[0].poll();
    assert_eq!((done.len(), done[0].id), (1, 77));
    Outcome {
        status: done[0].status,
        vendor: done[0].vendor,
        states: [0, 1].map(|at| pair.nodes[at].state(&qps[at])),
        events: [0, 1].map(|at| pair.nodes[at].events()),
    }
}

/// The denials among the events.
pub(crate) fn denied(events: &[Event]) -> Vec<&DenialReport> {
    let report = |event: &'_ Event| matches!(event, Event::Denied(_));
    let all = events.iter().filter(|event| report(event));
    all.map(|event| match event {
        Event::Denied(report) => &**report,
        _ => unreachable!("filtered"),
    })
    .collect()
}

/// Every kind of access to a peer's memory, and the right that it needs.
pub(crate) fn works(remote: Target) -> [(Work, Access); 4] {
    [
        (Work::Write { remote, imm: None }, Access::REMOTE_WRITE),
        (Work::Read { remote }, Access::REMOTE_READ),
        (
            Work::CompareSwap {
                remote,
                compare: 0,
                swap: 1,
            },
            Access::REMOTE_ATOMIC,
        ),
        (Work::FetchAdd { remote, add: 1 }, Access::REMOTE_ATOMIC),
    ]
}
