//! Datagrams to groups, and raw frames.

use crate::support::*;
use rkey_core::Region;
use rkey_engine::groups::GROUP_QPN;
use rkey_engine::rss::KEY_LEN;
use rkey_engine::*;
use std::sync::Arc;

const GROUP: [u8; 16] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn to_group(target: [u8; 16]) -> Option<UdAddress> {
    Some(UdAddress {
        link: None,
        wire: false,
        qpn: GROUP_QPN,
        qkey: 0x1111,
        route: Route {
            target,
            ..Route::default()
        },
    })
}

/// Creates a raw queue pair that is ready.
fn raw(node: &mut Node, change: impl FnOnce(&mut QpConfig)) -> Qp {
    let qp = node.qp(|config| {
        config.qp_type = QpType::Raw;
        change(config);
    });
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        node.engine
            .modify_qp(qp.id, &QpAttributes::to(state))
            .unwrap();
    }
    qp
}

fn frame(first: u8) -> Vec<u8> {
    let mut frame = pattern(9, 60);
    frame[0] = first;
    frame
}

#[test]
fn datagrams_to_a_group_reach_its_members() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, config| config.qp_type = QpType::Ud);
    let c = pair.nodes[1].qp(|config| config.qp_type = QpType::Ud);
    for step in steps(QpType::Ud, Peer { qpn: 0, node: None }, 1) {
        pair.nodes[1].engine.modify_qp(c.id, &step).unwrap();
    }
    let theirs = pair.nodes[1].register(0, 4096, ALL);
    for (place, qp) in [(0, &b), (1, &c)] {
        let group = Group::Gid(GROUP);
        pair.nodes[1].engine.join_group(qp.id, group).unwrap();
        pair.nodes[1].engine.join_group(qp.id, group).unwrap();
        for id in 0..3 {
            let sges = [pair.nodes[1].sge(&theirs, place * 2048 + id * 128, 100)];
            pair.recv(1, qp, id, &sges);
        }
    }
    let post = |pair: &mut Pair, id, target| {
        let mut request = SendRequest::new(id, send_work(), &[]);
        request.ud = to_group(target);
        request.inline = Some(b"to all");
        pair.send(0, &a, &request);
        let asked = pair.nodes[0].events();
        assert!(
            asked
                .iter()
                .all(|event| matches!(event, Event::GroupNeeded { .. })),
            "{asked:?}"
        );
        asked.len()
    };
    // The engine asks the device for the members, and the datagram waits for the answer.
    assert_eq!(post(&mut pair, 1, GROUP), 1);
    pair.run_until_idle();
    assert!(a.poll().is_empty() && b.poll().is_empty());
    let links = vec![pair.ends[0]];
    pair.nodes[0].engine.connect_group(Group::Gid(GROUP), links);
    pair.run_until_idle();
    assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
    for (place, qp) in [(0, &b), (1, &c)] {
        let got = qp.poll();
        assert_eq!(
            statuses(&got),
            [(0, Status::Success)],
            "once, though it joined twice"
        );
        assert_eq!((got[0].bytes, got[0].src_qpn), (46, a.qpn));
        let bytes = pair.nodes[1].bytes(place * 2048, 46);
        assert_eq!((&bytes[24..40], &bytes[40..]), (&GROUP[..], &b"to all"[..]));
    }
    // A member that has left receives nothing more, nor does a member of another group.
    pair.nodes[1].engine.leave_group(b.id, Group::Gid(GROUP));
    assert_eq!(post(&mut pair, 2, GROUP), 0, "the answer is still valid");
    pair.run_until_idle();
    assert_eq!((b.poll().len(), c.poll().len()), (0, 1));
    assert_eq!(post(&mut pair, 3, [0xff; 16]), 1);
    pair.nodes[0]
        .engine
        .connect_group(Group::Gid([0xff; 16]), vec![pair.ends[0]]);
    pair.run_until_idle();
    assert_eq!((b.poll().len(), c.poll().len()), (0, 0));
    assert_eq!(
        statuses(&a.poll()),
        [(2, Status::Success), (3, Status::Success)]
    );
    // A destroyed queue pair is no longer a member.
    pair.nodes[1].engine.destroy_qp(c.id).unwrap();
    post(&mut pair, 4, GROUP);
    pair.run_until_idle();
    assert_eq!(statuses(&a.poll()), [(4, Status::Success)]);
}

/// A member on another device with `count` receives, and a sender that has posted a burst of `count` datagrams.
fn burst(pair: &mut Pair, count: u64) -> [Qp; 2] {
    let [a, b] = pair.connect(|_, config| {
        config.qp_type = QpType::Ud;
        config.max_send = 64;
        config.max_recv = 64;
    });
    let theirs = pair.nodes[1].register(0, 8192, ALL);
    let group = Group::Gid(GROUP);
    pair.nodes[1].engine.join_group(b.id, group).unwrap();
    for id in 0..count {
        let sges = [pair.nodes[1].sge(&theirs, id * 64, 64)];
        pair.recv(1, &b, id, &sges);
    }
    for id in 0..count {
        let mut request = SendRequest::new(id, send_work(), &[]);
        request.ud = to_group(GROUP);
        let data = id.to_ne_bytes();
        request.inline = Some(&data);
        pair.send(0, &a, &request);
    }
    let links = vec![pair.ends[0]];
    pair.nodes[0].engine.connect_group(group, links);
    [a, b]
}

#[test]
fn a_group_datagram_waits_for_room_on_the_link() {
    let mut pair = Pair::new();
    let [a, b] = burst(&mut pair, 40);
    // The burst is more than the link holds, which is 16.
    for _ in 0..4 {
        pair.run_until_idle();
    }
    assert_eq!(a.poll().len(), 40);
    let got = b.poll();
    let all: Vec<_> = (0..40).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&got), all, "each once and in order");
    for id in 0..40u64 {
        assert_eq!(pair.nodes[1].bytes(id * 64 + 40, 8), id.to_ne_bytes());
    }
}

/// A member that takes nothing delays the sender once, briefly. Once it has taken something, datagrams wait for it
/// again.
#[test]
fn a_full_link_delays_a_group_datagram_only_briefly() {
    let mut pair = Pair::new();
    let [a, b] = burst(&mut pair, 40);
    // Drives the sender without carrying anything.
    let begin = pair.now;
    let mut ended = Vec::new();
    while ended.len() < 40 {
        let next = pair.drive(0, 64).next_deadline;
        ended.extend(a.poll());
        // When the first datagram has waited, the group's list of links has expired.
        if pair.nodes[0].events().is_empty() {
            pair.now = next.unwrap_or(pair.now);
        } else {
            let links = vec![pair.ends[0]];
            pair.nodes[0].engine.connect_group(Group::Gid(GROUP), links);
        }
    }
    let waited = pair.now - begin;
    assert!((450_000_000..=550_000_000).contains(&waited), "{waited}");
    assert!(ended.iter().all(|one| one.status.is_success()));
    pair.run_until_idle();
    assert_eq!(b.poll().len(), 16, "what the link held");
    // The link has room again, so the next copy that does not fit waits.
    let [c, d] = burst(&mut pair, 40);
    for _ in 0..4 {
        pair.run_until_idle();
    }
    assert_eq!((c.poll().len(), d.poll().len()), (40, 40));
}

/// A datagram that waits for room is dropped with its queue pair.
#[test]
fn a_waiting_group_datagram_is_dropped_with_its_queue_pair() {
    let mut pair = Pair::new();
    let [a, b] = burst(&mut pair, 40);
    pair.nodes[0]
        .engine
        .modify_qp(a.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    pair.run(10_000_000_000);
    let ended = a.poll();
    assert_eq!(ended.len(), 40);
    assert_eq!(
        ended.iter().filter(|one| one.status.is_success()).count(),
        16
    );
    assert_eq!(b.poll().len(), 16);
}

/// A datagram from memory without the right to send is an error even if the group has no members.
#[test]
fn a_datagram_to_an_empty_group_must_still_be_valid() {
    let mut pair = Pair::new();
    let [a, _] = pair.connect(|_, config| config.qp_type = QpType::Ud);
    let foreign = Sge {
        addr: 0,
        len: 8,
        key: rkey_core::LKey(77),
    };
    let sges = [foreign];
    let mut request = SendRequest::new(1, send_work(), &sges);
    request.ud = to_group(GROUP);
    pair.send(0, &a, &request);
    pair.nodes[0]
        .engine
        .connect_group(Group::Gid(GROUP), Vec::new());
    assert_eq!(statuses(&a.poll()), [(1, Status::LocalProtection)]);
}

#[test]
fn frames_go_to_queue_pairs_with_a_matching_flow() {
    let mut pair = Pair::new();
    let sender = raw(&mut pair.nodes[0], |_| {});
    let takers = [0, 1].map(|_| raw(&mut pair.nodes[1], |_| {}));
    let theirs = pair.nodes[1].register(0, 4096, ALL);
    for (first, qp) in [(7, &takers[0]), (8, &takers[1])] {
        let engine = &mut pair.nodes[1].engine;
        let flow = Flow {
            value: vec![first],
            mask: vec![0xff],
        };
        engine.add_flow(qp.id, u32::from(first), flow).unwrap();
        engine.join_group(qp.id, Group::RawFrames).unwrap();
        for id in 0..2 {
            let sges = [pair.nodes[1].sge(&theirs, u64::from(first) * 256 + id * 64, 64)];
            pair.recv(1, qp, id, &sges);
        }
    }
    let send = |pair: &mut Pair, id, first| {
        let data = frame(first);
        let request = SendRequest {
            inline: Some(&data),
            ..SendRequest::new(id, send_work(), &[])
        };
        pair.send(0, &sender, &request);
        let links = vec![pair.ends[0]];
        pair.nodes[0].engine.connect_group(Group::RawFrames, links);
        pair.run_until_idle();
        [takers[0].poll(), takers[1].poll()]
    };
    let [one, two] = send(&mut pair, 1, 7);
    assert_eq!((statuses(&one), two.len()), (vec![(0, Status::Success)], 0));
    assert_eq!((one[0].bytes, one[0].flags), (60, CompletionFlags::empty()));
    assert_eq!(pair.nodes[1].bytes(7 * 256, 60), frame(7));
    let [one, two] = send(&mut pair, 2, 8);
    assert_eq!((one.len(), statuses(&two)), (0, vec![(0, Status::Success)]));
    assert!(
        send(&mut pair, 3, 9).iter().all(Vec::is_empty),
        "no member takes it"
    );
    pair.nodes[1].engine.remove_flow(takers[0].id, 7);
    assert!(
        send(&mut pair, 4, 7).iter().all(Vec::is_empty),
        "no member takes it any longer"
    );
    let want: Vec<_> = (1..=4).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&sender.poll()), want);
    // Anything but a plain send is refused.
    let mut imm = SendRequest::new(
        5,
        Work::Send {
            imm: Some(1),
            invalidate: None,
        },
        &[],
    );
    imm.inline = Some(&[0; 14]);
    let refused = pair.nodes[0].engine.post_send(sender.id, &imm);
    assert!(matches!(refused, Err(PostError::NotSupported(_))));
}

/// A raw queue pair at node 1 that distributes frames over two receive queues by RSS.
struct Spreading {
    pair: Pair,
    sender: Qp,
    taker: Qp,
    cqs: [Arc<CqShared>; 2],
    queues: [SrqId; 2],
    theirs: Region,
}

impl Spreading {
    fn new() -> Self {
        let mut pair = Pair::new();
        let sender = raw(&mut pair.nodes[0], |_| {});
        let node = &mut pair.nodes[1];
        let taker = node.qp(|config| config.qp_type = QpType::Raw);
        let domain = node.domain;
        let cqs = [0, 1].map(|_| node.engine.create_cq(64).unwrap());
        let queues = [0, 1].map(|at| node.engine.create_wq(domain, 16, 1, cqs[at].id()).unwrap());
        let spread = Rss {
            queues: queues.to_vec(),
            key: std::array::from_fn::<u8, KEY_LEN, _>(|i| (i * 37 + 11) as u8),
            fields: HashFields::all(),
        };
        node.engine.set_rss(taker.id, spread).unwrap();
        node.engine.add_flow(taker.id, 1, Flow::default()).unwrap();
        node.engine.join_group(taker.id, Group::RawFrames).unwrap();
        let theirs = node.register(0, 4096, ALL);
        Self {
            pair,
            sender,
            taker,
            cqs,
            queues,
            theirs,
        }
    }

    fn post(&mut self, at: usize, id: u64) {
        let sges = [self.pair.nodes[1].sge(&self.theirs, 0, 64)];
        let recv = RecvRequest { id, sges: &sges };
        let engine = &mut self.pair.nodes[1].engine;
        engine.post_srq_recv(self.queues[at], &recv).unwrap();
    }

    fn set(&mut self, at: usize, state: WqState) {
        let engine = &mut self.pair.nodes[1].engine;
        engine.set_wq_state(self.queues[at], state).unwrap();
    }

    /// Sends a frame from one of 256 sources.
    fn send(&mut self, source: u8, len: usize) {
        let mut data = frame(0);
        data.resize(len, 0);
        data[12..15].copy_from_slice(&[8, 0, 0x45]);
        data[29] = source;
        let request = SendRequest {
            inline: Some(&data),
            ..SendRequest::new(1, send_work(), &[])
        };
        self.pair.send(0, &self.sender, &request);
        let links = vec![self.pair.ends[0]];
        self.pair.nodes[0]
            .engine
            .connect_group(Group::RawFrames, links);
        self.pair.run_until_idle();
    }

    fn take(&self, at: usize) -> Vec<(u64, Status)> {
        let mut all = [Completion::default(); 64];
        let n = self.cqs[at].pop(&mut all);
        statuses(&all[..n])
    }
}

#[test]
fn frames_are_distributed_over_ready_receive_queues() {
    let mut all = Spreading::new();
    for at in 0..2 {
        (0..16).for_each(|id| all.post(at, id + 100 * at as u64));
    }
    let send = |all: &mut Spreading| {
        (0..16).for_each(|source| all.send(source, 60));
        [0, 1].map(|at| {
            let taken = all.take(at);
            assert!(taken.iter().all(|(_, status)| *status == Status::Success));
            taken.len()
        })
    };
    // A queue that is not ready takes no frames.
    all.set(0, WqState::Ready);
    let [first, none] = send(&mut all);
    assert!((1..16).contains(&first) && none == 0, "{first} {none}");
    all.set(1, WqState::Ready);
    // Posted receives are dropped or flushed, depending on the state.
    all.set(1, WqState::Error);
    let want: Vec<_> = (100..116).map(|id| (id, Status::Flushed)).collect();
    assert_eq!(all.take(1), want);
    all.set(0, WqState::Reset);
    assert!(all.cqs[0].is_empty());
    let engine = &mut all.pair.nodes[1].engine;
    assert!(matches!(
        engine.destroy_cq(all.cqs[0].id()),
        Err(EngineError::Busy { .. })
    ));
    engine.destroy_qp(all.taker.id).unwrap();
    for (queue, cq) in all.queues.into_iter().zip(&all.cqs) {
        engine.destroy_srq(queue).unwrap();
        engine.destroy_cq(cq.id()).unwrap();
    }
}

/// A receive that was too small for a frame is still in its queue, and not in use.
#[test]
fn a_frame_that_does_not_fit_leaves_its_receive_in_the_queue() {
    let mut all = Spreading::new();
    for at in 0..2 {
        all.set(at, WqState::Ready);
        (0..16).for_each(|id| all.post(at, id));
    }
    // The queue for each source.
    let mut source = [None; 2];
    for candidate in 0..16 {
        all.send(candidate, 60);
        for at in 0..2 {
            if all.take(at).len() == 1 {
                source[at] = Some(candidate);
            }
        }
    }
    let source = source.map(|source| source.expect("both queues have got a frame"));
    for at in 0..2 {
        all.set(at, WqState::Reset);
        all.set(at, WqState::Ready);
        all.post(at, 50);
        all.post(at, 51);
    }
    // A frame for one queue does not use a receive of the other.
    all.send(source[0], 65);
    all.send(source[1], 60);
    assert_eq!(all.take(0), []);
    assert_eq!(all.take(1), [(50, Status::Success)]);
    all.send(source[0], 60);
    assert_eq!(all.take(0), [(50, Status::Success)]);
    // The receive stays in its queue and is flushed with the queue.
    all.send(source[0], 65);
    all.set(0, WqState::Reset);
    all.set(0, WqState::Ready);
    all.post(0, 60);
    all.send(source[0], 60);
    assert_eq!(all.take(0), [(60, Status::Success)]);
    all.send(source[1], 65);
    all.set(1, WqState::Error);
    assert_eq!(all.take(1), [(51, Status::Flushed)]);
}

/// The same holds for datagrams and a shared receive queue that other queue pairs also use.
#[test]
fn a_datagram_that_does_not_fit_leaves_its_receive_in_the_queue() {
    let mut pair = Pair::new();
    let domain = pair.nodes[1].domain;
    let srq = pair.nodes[1].engine.create_srq(domain, 4, 1).unwrap();
    let [a, b] = pair.connect(|side, config| {
        config.qp_type = QpType::Ud;
        config.srq = (side == 1).then_some(srq);
    });
    let engine = &mut pair.nodes[1].engine;
    engine.join_group(b.id, Group::Gid(GROUP)).unwrap();
    let theirs = pair.nodes[1].register(0, 4096, ALL);
    let sges = [pair.nodes[1].sge(&theirs, 0, 64)];
    let recv = RecvRequest { id: 7, sges: &sges };
    pair.nodes[1].engine.post_srq_recv(srq, &recv).unwrap();
    let mut send = |len: usize| {
        let data = pattern(3, len);
        let mut request = SendRequest::new(1, send_work(), &[]);
        (request.ud, request.inline) = (to_group(GROUP), Some(&data[..]));
        pair.send(0, &a, &request);
        let links = vec![pair.ends[0]];
        pair.nodes[0].engine.connect_group(Group::Gid(GROUP), links);
        pair.run_until_idle();
        let left = pair.nodes[1].engine.query_srq(srq).unwrap().2;
        (statuses(&b.poll()), left)
    };
    assert_eq!(send(25), (vec![], 1), "40 bytes of header and 25");
    assert_eq!(send(24), (vec![(7, Status::Success)], 0));
}
