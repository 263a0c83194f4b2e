//! Extended reliable connections: one connection, several shared receive queues behind it.

use crate::support::*;
use rkey_core::{Access, RegionSpec};
use rkey_engine::*;
use std::sync::Arc;

const DOMAIN: XrcdId = XrcdId(7);

/// A shared receive queue at the receiving side with its own domain and completion queue.
struct Behind {
    srq: SrqId,
    domain: rkey_core::DomainId,
    cq: Arc<CqShared>,
}

impl Behind {
    fn new(node: &mut Node, xrcd: XrcdId) -> Self {
        let domain = node.protection.create_domain().unwrap();
        let cq = node.engine.create_cq(64).unwrap();
        let srq = node
            .engine
            .create_xrc_srq(domain, 16, 2, xrcd, cq.id())
            .unwrap();
        Self { srq, domain, cq }
    }

    fn region(&self, node: &Node, offset: u64, len: u64) -> rkey_core::Region {
        let range = rkey_base::range::VaRange::new(node.base() + offset, len).unwrap();
        let ranges = [range];
        let spec = RegionSpec::new(self.domain, &ranges, Access::all());
        node.protection.register(&spec).unwrap()
    }

    fn poll(&self) -> Vec<Completion> {
        let mut all = [Completion::default(); 64];
        let n = self.cq.pop(&mut all);
        all[..n].to_vec()
    }
}

fn to(srq: SrqId) -> Option<UdAddress> {
    Some(UdAddress {
        link: None,
        wire: false,
        qpn: srq.number(),
        qkey: 0,
        route: Route::default(),
    })
}

/// A connection whose sending half is at node 0 and whose receiving half is at node 1.
fn connection() -> (Pair, [Qp; 2]) {
    let mut pair = Pair::new();
    let qps = pair.connect(|at, config| {
        config.qp_type = [QpType::XrcSend, QpType::XrcRecv][at];
        config.xrcd = (at == 1).then_some(DOMAIN);
    });
    (pair, qps)
}

#[test]
fn each_message_goes_to_the_queue_that_it_names() {
    let (mut pair, [a, b]) = connection();
    let queues = [0, 1].map(|_| Behind::new(&mut pair.nodes[1], DOMAIN));
    let mine = pair.nodes[0].register(0, 1 << 16, ALL);
    // The second message takes several fragments.
    let lens = [24u32, 1000];
    for (which, queue) in queues.iter().enumerate() {
        let at = 0x10000 * (which as u64 + 1);
        let region = queue.region(&pair.nodes[1], at, 4096);
        let sges = [pair.nodes[1].sge(&region, at, 2048)];
        let recv = RecvRequest {
            id: 10 + which as u64,
            sges: &sges,
        };
        pair.nodes[1]
            .engine
            .post_srq_recv(queue.srq, &recv)
            .unwrap();
    }
    for which in [1, 0] {
        let data = pattern(which as u64, lens[which] as usize);
        pair.nodes[0].fill(0, &data);
        let sges = [pair.nodes[0].sge(&mine, 0, lens[which])];
        let send = SendRequest {
            ud: to(queues[which].srq),
            ..SendRequest::new(which as u64, send_work(), &sges)
        };
        pair.send(0, &a, &send);
        pair.run_until_idle();
        let got = queues[which].poll();
        assert_eq!(statuses(&got), [(10 + which as u64, Status::Success)]);
        assert_eq!(
            (got[0].qpn, got[0].src_qpn, got[0].bytes),
            (b.qpn, a.qpn, lens[which])
        );
        assert_eq!(
            pair.nodes[1].bytes(0x10000 * (which as u64 + 1), data.len()),
            data
        );
    }
    assert!(queues.iter().all(|queue| queue.poll().is_empty()) && b.poll().is_empty());
    assert_eq!(
        statuses(&a.poll()),
        [(1, Status::Success), (0, Status::Success)]
    );
}

/// A peer that names another queue in the middle of a message gets an error: the receive that the message has taken
/// completes once, and nothing more is written to it.
#[test]
fn a_message_that_changes_its_queue_midway_is_refused() {
    let (mut pair, [a, b]) = connection();
    let queues = [0, 1].map(|_| Behind::new(&mut pair.nodes[1], DOMAIN));
    let mine = pair.nodes[0].register(0, 1 << 16, ALL);
    let region = queues[0].region(&pair.nodes[1], 0x10000, 4096);
    let sges = [pair.nodes[1].sge(&region, 0x10000, 2048)];
    let recv = RecvRequest {
        id: 10,
        sges: &sges,
    };
    let at_target = &mut pair.nodes[1].engine;
    at_target.post_srq_recv(queues[0].srq, &recv).unwrap();
    let data = pattern(1, 1000);
    pair.nodes[0].fill(0, &data);
    let sges = [pair.nodes[0].sge(&mine, 0, 1000)];
    let send = SendRequest {
        ud: to(queues[0].srq),
        ..SendRequest::new(1, send_work(), &sges)
    };
    pair.send(0, &a, &send);
    let (mut fragments, mut first) = (0, 0);
    for passing in &mut pair.end(0).outbox {
        if let Passing::Fragment(header, _) = passing {
            if fragments == 0 {
                first = header.len as usize;
            } else {
                header.key = u64::from(queues[1].srq.number()) << 32;
            }
            fragments += 1;
        }
    }
    assert!(fragments > 1);
    pair.run_until_idle();
    assert_eq!(statuses(&queues[0].poll()), [(10, Status::Flushed)]);
    assert!(queues[1].poll().is_empty() && b.poll().is_empty());
    assert_eq!(pair.nodes[1].state(&b), QpState::Error);
    assert_eq!(statuses(&a.poll()), [(1, Status::RemoteInvalidRequest)]);
    let rest = pair.nodes[1].bytes(0x10000 + first as u64, 1000 - first);
    assert_eq!(rest, vec![0; 1000 - first]);
}

/// The receive that a message has taken ends with its queue. The rest of the message has no effect on a completion
/// queue that reuses the destroyed one's index.
#[test]
fn destroying_a_queue_ends_the_message_in_progress() {
    let (mut pair, [a, b]) = connection();
    let queue = Behind::new(&mut pair.nodes[1], DOMAIN);
    let mine = pair.nodes[0].register(0, 1 << 16, ALL);
    let region = queue.region(&pair.nodes[1], 0x10000, 4096);
    let sges = [pair.nodes[1].sge(&region, 0x10000, 2048)];
    let recv = RecvRequest {
        id: 10,
        sges: &sges,
    };
    let at_target = &mut pair.nodes[1].engine;
    at_target.post_srq_recv(queue.srq, &recv).unwrap();
    let sges = [pair.nodes[0].sge(&mine, 0, 1000)];
    let send = SendRequest {
        ud: to(queue.srq),
        ..SendRequest::new(1, send_work(), &sges)
    };
    pair.send(0, &a, &send);
    // The first fragment arrives; the rest is still on its way.
    let rest = pair.end(0).outbox.split_off(1);
    assert!(!rest.is_empty());
    pair.run_until_idle();
    let node = &mut pair.nodes[1];
    let waiting = |node: &Node| node.engine.query_qp(b.id).unwrap().receives;
    assert_eq!(waiting(node), 1, "taken by the message");
    node.engine.destroy_srq(queue.srq).unwrap();
    assert_eq!(waiting(node), 0);
    node.engine.destroy_cq(queue.cq.id()).unwrap();
    let other = node.engine.create_cq(64).unwrap();
    assert_eq!(other.id().index, queue.cq.id().index, "the same index");
    pair.end(0).outbox.extend(rest);
    pair.run_until_idle();
    assert_eq!(statuses(&a.poll()), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.nodes[1].state(&b), QpState::Error);
    assert!(other.is_empty() && b.poll().is_empty() && queue.poll().is_empty());
}

/// Every operation uses the protection domain of the queue that the request names.
#[test]
fn requests_use_the_domain_of_the_queue_that_they_name() {
    for wrong in [false, true] {
        let (mut pair, [a, _]) = connection();
        let queues = [0, 1].map(|_| Behind::new(&mut pair.nodes[1], DOMAIN));
        let mine = pair.nodes[0].register(0, 4096, ALL);
        let region = queues[0].region(&pair.nodes[1], 0, 4096);
        pair.nodes[0].fill(0, &7u64.to_ne_bytes());
        let sges = [pair.nodes[0].sge(&mine, 0, 8)];
        let remote = pair.nodes[1].target(&region, 64);
        let works = [
            Work::Write { remote, imm: None },
            Work::FetchAdd { remote, add: 5 },
            Work::Read { remote },
        ];
        for (id, work) in works.into_iter().enumerate() {
            let ud = to(queues[usize::from(wrong)].srq);
            let request = SendRequest {
                ud,
                ..SendRequest::new(id as u64, work, &sges)
            };
            pair.send(0, &a, &request);
            pair.run_until_idle();
        }
        let done = statuses(&a.poll());
        if wrong {
            assert_eq!(done[0], (0, Status::RemoteAccess));
            assert_eq!(pair.nodes[1].bytes(64, 8), [0; 8]);
        } else {
            assert_eq!(
                done,
                [
                    (0, Status::Success),
                    (1, Status::Success),
                    (2, Status::Success)
                ]
            );
            assert_eq!(pair.nodes[0].bytes(0, 8), 12u64.to_ne_bytes());
        }
    }
}

/// Requests cannot name a queue that does not exist, serves other connections, or is an ordinary one.
#[test]
fn requests_that_name_an_unusable_queue_are_refused() {
    for case in 0..4 {
        let (mut pair, [a, b]) = connection();
        let node = &mut pair.nodes[1];
        let (other, gone) = (Behind::new(node, XrcdId(8)), Behind::new(node, DOMAIN));
        node.engine.destroy_srq(gone.srq).unwrap();
        let plain = node.engine.create_srq(gone.domain, 4, 1).unwrap();
        let named = [
            other.srq.number(),
            gone.srq.number(),
            plain.number(),
            0xff_ffff,
        ][case];
        let ud = Some(UdAddress {
            link: None,
            wire: false,
            qpn: named,
            qkey: 0,
            route: Route::default(),
        });
        pair.send(
            0,
            &a,
            &SendRequest {
                ud,
                ..SendRequest::new(1, send_work(), &[])
            },
        );
        pair.run_until_idle();
        assert_eq!(
            statuses(&a.poll()),
            [(1, Status::RemoteInvalidRequest)],
            "case {case}"
        );
        assert_eq!(pair.nodes[1].state(&b), QpState::Error);
    }
}

#[test]
fn each_half_of_an_xrc_connection_refuses_unsupported_posts() {
    let (mut pair, [a, b]) = connection();
    let recv = RecvRequest { id: 1, sges: &[] };
    for (at, qp) in [(0, &a), (1, &b)] {
        let refused = pair.nodes[at].engine.post_recv(qp.id, &recv);
        assert!(
            matches!(refused, Err(PostError::NotSupported(_))),
            "{refused:?}"
        );
    }
    let send = SendRequest::new(1, send_work(), &[]);
    assert_eq!(
        pair.nodes[0].engine.post_send(a.id, &send),
        Err(PostError::NoAddress)
    );
    let refused = pair.nodes[1].engine.post_send(b.id, &send);
    assert!(
        matches!(refused, Err(PostError::NotSupported(_))),
        "{refused:?}"
    );
}

/// The domain and queues that a receiving half uses for its messages do not replace those that it was created with.
#[test]
fn a_receiving_half_keeps_its_own_domain_and_queues() {
    let (mut pair, [a, b]) = connection();
    let queue = Behind::new(&mut pair.nodes[1], DOMAIN);
    let recv = RecvRequest { id: 1, sges: &[] };
    pair.nodes[1]
        .engine
        .post_srq_recv(queue.srq, &recv)
        .unwrap();
    let ud = to(queue.srq);
    pair.send(
        0,
        &a,
        &SendRequest {
            ud,
            ..SendRequest::new(1, send_work(), &[])
        },
    );
    pair.run_until_idle();
    let node = &mut pair.nodes[1];
    assert!(matches!(
        node.engine.destroy_cq(queue.cq.id()),
        Err(EngineError::Busy { .. })
    ));
    node.engine.destroy_qp(b.id).unwrap();
    assert!(
        queue.poll().is_empty(),
        "completions go with their queue pair"
    );
    node.engine.destroy_srq(queue.srq).unwrap();
    node.engine.destroy_cq(queue.cq.id()).unwrap();
    node.engine.destroy_cq(b.cq.id()).unwrap();
    node.protection.close_domain(queue.domain).unwrap();
    let own = node.domain;
    node.protection.close_domain(own).unwrap();
}
