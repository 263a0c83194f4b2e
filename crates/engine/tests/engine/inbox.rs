//! Messages that an inbox takes, and messages of two parts.

use crate::support::*;
use proptest::prelude::*;
use rkey_base::memory::ArenaMemory;
use rkey_core::Reason;
use rkey_engine::*;
use std::sync::Arc;

type Memory = Arc<ArenaMemory>;

/// Takes messages until one begins with `leave`, and records every message that it is offered.
struct Taker {
    seen: Vec<(u32, Vec<u8>)>,
    leave: u8,
}

impl Taker {
    fn new(leave: u8) -> Self {
        Self {
            seen: Vec::new(),
            leave,
        }
    }

    fn firsts(&self) -> Vec<u8> {
        self.seen.iter().map(|(_, bytes)| bytes[0]).collect()
    }
}

impl Inbox<Memory> for Taker {
    fn offer(&mut self, message: &Message<'_, Memory>) -> bool {
        let bytes = message.bytes().to_vec();
        self.seen.push((message.qpn(), bytes.clone()));
        bytes[0] != self.leave
    }
}

/// Delivers everything in flight to node 1, and drives node 1 with an inbox for its queue pair.
fn drive_with(pair: &mut Pair, qp: &Qp, inbox: &mut dyn Inbox<Memory>) {
    pair.carry_all();
    let now = pair.now;
    pair.nodes[1].engine.drive_with(now, 64, qp.cq.id(), inbox);
    pair.carry_all();
    pair.drive(0, 64);
}

fn send_byte(pair: &mut Pair, qp: &Qp, byte: u8) {
    let request = SendRequest {
        inline: Some(&[byte; 9]),
        ..SendRequest::new(byte.into(), send_work(), &[])
    };
    pair.send(0, qp, &request);
}

#[test]
fn an_inbox_takes_messages_in_order_and_needs_no_receive() {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    for byte in 1..=3 {
        send_byte(&mut pair, &qps[0], byte);
    }
    let mut taker = Taker::new(0);
    drive_with(&mut pair, &qps[1], &mut taker);
    assert_eq!(taker.firsts(), [1, 2, 3]);
    assert_eq!(taker.seen[0], (qps[1].qpn, vec![1; 9]));
    assert!(qps[1].poll().is_empty(), "no receive was there");
    let sent = [1, 2, 3].map(|id| (id, Status::Success));
    assert_eq!(statuses(&qps[0].poll()), sent);
}

#[test]
fn once_an_inbox_leaves_a_message_later_ones_go_to_receives() {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    let region = pair.nodes[1].register(0, 4096, ALL);
    for id in 0..3 {
        let sge = pair.nodes[1].sge(&region, 100 * id, 100);
        pair.recv(1, &qps[1], id, &[sge]);
    }
    for byte in 1..=4 {
        send_byte(&mut pair, &qps[0], byte);
    }
    let mut taker = Taker::new(2);
    drive_with(&mut pair, &qps[1], &mut taker);
    assert_eq!(
        taker.firsts(),
        [1, 2],
        "none is offered after one in a receive"
    );
    assert_eq!(qps[1].cq.len(), 3);
    // The completion has not been polled yet, so a later message would overtake it.
    let sge = pair.nodes[1].sge(&region, 300, 100);
    pair.recv(1, &qps[1], 3, &[sge]);
    send_byte(&mut pair, &qps[0], 5);
    let mut none = Taker::new(0);
    drive_with(&mut pair, &qps[1], &mut none);
    assert!(none.seen.is_empty());
    assert_eq!(
        statuses(&qps[1].poll()),
        [0, 1, 2, 3].map(|id| (id, Status::Success))
    );
    for (place, byte) in [(0, 2), (100, 3), (200, 4), (300, 5)] {
        assert_eq!(pair.nodes[1].bytes(place, 9), [byte; 9]);
    }
    send_byte(&mut pair, &qps[0], 6);
    let mut taker = Taker::new(0);
    drive_with(&mut pair, &qps[1], &mut taker);
    assert_eq!(taker.firsts(), [6]);
}

#[test]
fn an_inbox_gets_only_whole_messages_of_its_queue_pair() {
    let mut pair = Pair::new();
    let own = pair.connect(|_, _| {});
    let other = pair.connect(|_, _| {});
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 4096, ALL));
    let sge = pair.nodes[1].sge(&regions[1], 0, 4096);
    pair.recv(1, &own[1], 1, &[sge]);
    pair.recv(1, &other[1], 2, &[sge]);
    send_byte(&mut pair, &other[0], 7);
    let from = pair.nodes[0].sge(&regions[0], 0, 1000);
    pair.send(0, &own[0], &SendRequest::new(8, send_work(), &[from]));
    let mut taker = Taker::new(0);
    drive_with(&mut pair, &own[1], &mut taker);
    pair.run_until_idle();
    assert!(taker.seen.is_empty());
    assert_eq!(statuses(&own[1].poll()), [(1, Status::Success)]);
    assert_eq!(statuses(&other[1].poll()), [(2, Status::Success)]);
}

/// What an inbox and the queue pairs see of messages and other requests in some order: [`Link::next_short`] must not
/// make a difference.
///
/// [`Link::next_short`]: rkey_link::Link::next_short
fn seen_with(reads_short: bool, order: &[u8], leave: u8) -> (Vec<u8>, [Vec<(u64, Status)>; 3]) {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    let other = pair.connect(|_, _| {});
    pair.tail(1).reads_short = reads_short;
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 4096, ALL));
    for id in 0..4 {
        let sge = pair.nodes[1].sge(&regions[1], 100 * id, 100);
        pair.recv(1, &qps[1], id, &[sge]);
        pair.recv(1, &other[1], id, &[sge]);
    }
    let mut taker = Taker::new(leave);
    for (at, kind) in order.iter().enumerate() {
        let id = 10 + at as u8;
        match kind {
            0..=3 => send_byte(&mut pair, &qps[0], id),
            4 => send_byte(&mut pair, &other[0], id),
            5 => {
                let work = Work::Send {
                    imm: Some(7),
                    invalidate: None,
                };
                let from = [pair.nodes[0].sge(&regions[0], 0, 8)];
                pair.send(0, &qps[0], &SendRequest::new(id.into(), work, &from));
            }
            6 => {
                let remote = pair.nodes[1].target(&regions[1], 2048);
                let work = Work::Write { remote, imm: None };
                let from = [pair.nodes[0].sge(&regions[0], 0, 8)];
                pair.send(0, &qps[0], &SendRequest::new(id.into(), work, &from));
            }
            _ => drive_with(&mut pair, &qps[1], &mut taker),
        }
    }
    drive_with(&mut pair, &qps[1], &mut taker);
    pair.run_until_idle();
    let completed = [&qps[0], &qps[1], &other[1]].map(|qp| statuses(&qp.poll()));
    (taker.firsts(), completed)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_inbox_gets_the_same_messages_whichever_way_the_link_reads_them(
        order in prop::collection::vec(0..8u8, 1..12),
        leave in 8..24u8,
    ) {
        prop_assert_eq!(seen_with(true, &order, leave), seen_with(false, &order, leave));
    }
}

/// Copies each message to memory.
struct Placer<'a> {
    node: rkey_core::DomainId,
    sges: &'a [Sge],
    refused: Vec<Reason>,
}

impl Inbox<Memory> for Placer<'_> {
    fn offer(&mut self, message: &Message<'_, Memory>) -> bool {
        let placed = message.scatter(self.node, self.sges, message.bytes());
        self.refused
            .extend(placed.err().map(|denial| denial.reason));
        true
    }
}

#[test]
fn an_inbox_stores_only_in_memory_that_its_keys_allow() {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    let region = pair.nodes[1].register(0, 64, ALL);
    let gone = pair.nodes[1].register(128, 64, ALL);
    let (first, second) = (
        pair.nodes[1].sge(&region, 0, 5),
        pair.nodes[1].sge(&region, 32, 32),
    );
    let lost = pair.nodes[1].sge(&gone, 128, 64);
    drop(pair.nodes[1].protection.deregister(gone.id).unwrap());
    let domain = pair.nodes[1].domain;
    let put = |pair: &mut Pair, sges: &[Sge], byte| {
        send_byte(pair, &qps[0], byte);
        let mut placer = Placer {
            node: domain,
            sges,
            refused: Vec::new(),
        };
        drive_with(pair, &qps[1], &mut placer);
        placer.refused
    };
    assert!(put(&mut pair, &[first, second], 3).is_empty());
    assert_eq!(pair.nodes[1].bytes(0, 6), [3, 3, 3, 3, 3, 0]);
    assert_eq!(pair.nodes[1].bytes(32, 5), [3, 3, 3, 3, 0]);
    let refused = put(&mut pair, &[lost], 4);
    assert!(
        matches!(
            refused[..],
            [Reason::StaleKey { .. } | Reason::Deregistering]
        ),
        "{refused:?}"
    );
    let range = rkey_base::range::VaRange::new(first.addr, 1).unwrap();
    pair.nodes[1].memory.poison(range);
    let refused = put(&mut pair, &[first, second], 5);
    assert!(matches!(refused[..], [Reason::Fault { .. }]), "{refused:?}");
}

#[test]
fn a_prefix_comes_before_the_bytes_in_memory() {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, config| config.max_inline = 64);
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 8192, ALL));
    // The messages travel in a slot, in one fragment, and in several fragments.
    for (id, len) in [(1, 0), (2, 8), (3, 150), (4, 1000)] {
        let payload = pattern(id, len);
        pair.nodes[0].fill(0, &payload);
        let from = [pair.nodes[0].sge(&regions[0], 0, len as u32)];
        let to = pair.nodes[1].sge(&regions[1], 4096, 4096);
        pair.recv(1, &qps[1], id, &[to]);
        let prefix = pattern(id + 100, 40);
        let request = SendRequest {
            prefix: &prefix,
            ..SendRequest::new(id, send_work(), &from)
        };
        pair.send(0, &qps[0], &request);
        pair.run_until_idle();
        let arrived = qps[1].poll();
        assert_eq!(statuses(&arrived), [(id, Status::Success)]);
        assert_eq!(arrived[0].bytes as usize, 40 + len);
        assert_eq!(pair.nodes[1].bytes(4096, 40), prefix);
        assert_eq!(pair.nodes[1].bytes(4136, len), payload);
        assert_eq!(statuses(&qps[0].poll()), [(id, Status::Success)]);
    }
}

#[test]
fn only_plain_sends_may_have_a_prefix() {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, config| config.max_inline = 16);
    let region = pair.nodes[1].register(0, 64, ALL);
    let prefix = [1; 8];
    let remote = pair.nodes[1].target(&region, 0);
    let with_imm = Work::Send {
        imm: Some(1),
        invalidate: None,
    };
    for (work, inline) in [
        (Work::Write { remote, imm: None }, None),
        (Work::Read { remote }, None),
        (with_imm, None),
        (send_work(), Some(&prefix[..])),
    ] {
        let request = SendRequest {
            prefix: &prefix,
            inline,
            ..SendRequest::new(1, work, &[])
        };
        let refused = pair.nodes[0].engine.post_send(qps[0].id, &request);
        assert!(
            matches!(refused, Err(PostError::NotSupported(_))),
            "{work:?}: {refused:?}"
        );
    }
    let request = SendRequest {
        prefix: &[1; 17],
        ..SendRequest::new(1, send_work(), &[])
    };
    assert_eq!(
        pair.nodes[0].engine.post_send(qps[0].id, &request),
        Err(PostError::InlineTooLong { given: 17, max: 16 })
    );
}
