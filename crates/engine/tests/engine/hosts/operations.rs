//! Every operation between two hosts, and its effect on memory and completions.

use super::network::FAIR;
use super::*;
use rkey_base::range::VaRange;
use rkey_core::{Access, RKey, Rules, WindowKind};

const LENGTH: u32 = 3001;

/// The objects of a test.
struct World {
    hosts: Hosts,
    qps: [Qp; 2],
    regions: [Region; 2],
}

fn world(mtu: u32) -> World {
    let mut hosts = Hosts::new(1, FAIR);
    let qps = hosts.connect_with(
        |_, _| {},
        |_, step| step.path_mtu = step.path_mtu.map(|_| mtu),
    );
    let regions = hosts.regions();
    World {
        hosts,
        qps,
        regions,
    }
}

impl World {
    /// Executes a request of node 0; returns its completion.
    fn execute(&mut self, work: Work, sges: &[Sge]) -> Completion {
        let [a, _] = self.qps.clone();
        self.hosts.send(0, &a, &SendRequest::new(7, work, sges));
        assert!(self.hosts.run());
        let done = a.poll();
        assert_eq!(statuses(&done), [(7, Status::Success)]);
        done[0]
    }

    fn sge(&self, at: usize, offset: u64, len: u32) -> Sge {
        self.hosts.nodes[at].sge(&self.regions[at], offset, len)
    }

    fn remote(&self, offset: u64) -> Target {
        self.hosts.nodes[1].target(&self.regions[1], offset)
    }

    fn bytes(&self, at: usize, offset: u64, len: u32) -> Vec<u8> {
        self.hosts.nodes[at].bytes(offset, len as usize)
    }
}

#[test]
fn messages_arrive_in_receive_buffers() {
    for mtu in [256, 1024, 4096] {
        let mut world = world(mtu);
        let b = world.qps[1].clone();
        // Two entries on both sides, divided at different places.
        let from = [world.sge(0, 100, 1234), world.sge(0, 8000, LENGTH - 1234)];
        let into = [world.sge(1, 16, 2000), world.sge(1, 9000, 4000)];
        for imm in [None, Some(0x0102_0304)] {
            world.hosts.recv(1, &b, 50, &into);
            let invalidate = None;
            let done = world.execute(Work::Send { imm, invalidate }, &from);
            assert_eq!((done.opcode, done.bytes), (CompletionOp::Send, LENGTH));
            let got = b.poll();
            assert_eq!(statuses(&got), [(50, Status::Success)]);
            assert_eq!((got[0].opcode, got[0].bytes), (CompletionOp::Recv, LENGTH));
            assert_eq!(got[0].src_qpn, world.qps[0].qpn);
            assert_eq!(got[0].flags.contains(CompletionFlags::IMM), imm.is_some());
            assert_eq!(got[0].imm, imm.unwrap_or(0));
            let sent = [
                world.bytes(0, 100, 1234),
                world.bytes(0, 8000, LENGTH - 1234),
            ];
            let here = [
                world.bytes(1, 16, 2000),
                world.bytes(1, 9000, LENGTH - 2000),
            ];
            assert!(sent.concat() == here.concat());
        }
    }
}

#[test]
fn writes_and_reads_move_exactly_their_bytes() {
    for mtu in [256, 1024, 4096] {
        let mut world = world(mtu);
        let b = world.qps[1].clone();
        let before = world.bytes(1, 0, 1 << 16);
        let remote = world.remote(4097);
        let from = [world.sge(0, 3, LENGTH)];
        let done = world.execute(Work::Write { remote, imm: None }, &from);
        assert_eq!((done.opcode, done.bytes), (CompletionOp::Write, LENGTH));
        assert!(b.poll().is_empty());
        let mut want = before;
        want[4097..4097 + LENGTH as usize].copy_from_slice(&world.bytes(0, 3, LENGTH));
        assert!(world.bytes(1, 0, 1 << 16) == want);

        world.hosts.recv(1, &b, 51, &[]);
        let imm = Some(99);
        world.execute(Work::Write { remote, imm }, &from);
        let got = b.poll();
        assert_eq!(statuses(&got), [(51, Status::Success)]);
        assert_eq!(
            (got[0].opcode, got[0].imm, got[0].bytes),
            (CompletionOp::RecvWriteImm, 99, LENGTH)
        );

        let into = [world.sge(0, 30_000, 1), world.sge(0, 40_000, LENGTH - 1)];
        let remote = world.remote(20_001);
        let done = world.execute(Work::Read { remote }, &into);
        assert_eq!((done.opcode, done.bytes), (CompletionOp::Read, LENGTH));
        let read = [
            world.bytes(0, 30_000, 1),
            world.bytes(0, 40_000, LENGTH - 1),
        ];
        assert!(read.concat() == world.bytes(1, 20_001, LENGTH));
    }
}

#[test]
fn atomics_return_the_old_value() {
    let mut world = world(1024);
    let remote = world.remote(512);
    let into = [world.sge(0, 64, 8)];
    let word = |world: &World, at| {
        u64::from_ne_bytes(world.bytes(at, [64, 512][at], 8).try_into().unwrap())
    };
    world.hosts.nodes[1].fill(512, &40u64.to_ne_bytes());
    let done = world.execute(Work::FetchAdd { remote, add: 2 }, &into);
    assert_eq!(done.opcode, CompletionOp::FetchAdd);
    assert_eq!((word(&world, 0), word(&world, 1)), (40, 42));
    let swap = |compare| Work::CompareSwap {
        remote,
        compare,
        swap: u64::MAX,
    };
    world.execute(swap(41), &into);
    assert_eq!((word(&world, 0), word(&world, 1)), (42, 42));
    world.execute(swap(42), &into);
    assert_eq!((word(&world, 0), word(&world, 1)), (42, u64::MAX));
}

#[test]
fn inline_data_may_be_reused_at_once() {
    let mut world = world(1024);
    let [a, b] = world.qps.clone();
    let into = [world.sge(1, 0, 200)];
    world.hosts.recv(1, &b, 50, &into);
    let remote = world.remote(1000);
    let mut bytes = *b"inline!";
    for (id, work) in [(1, send_work()), (2, Work::Write { remote, imm: None })] {
        let mut request = SendRequest::new(id, work, &[]);
        request.inline = Some(&bytes);
        world.hosts.send(0, &a, &request);
    }
    bytes.fill(0);
    // A prefix comes before the bytes of the entries.
    world.hosts.recv(1, &b, 51, &[world.sge(1, 300, 200)]);
    let from = [world.sge(0, 5, 20)];
    let mut request = SendRequest::new(3, send_work(), &from);
    request.prefix = b"prefix";
    world.hosts.send(0, &a, &request);
    assert!(world.hosts.run());
    assert_eq!(
        statuses(&a.poll()),
        [1, 2, 3].map(|id| (id, Status::Success))
    );
    assert_eq!(b.poll().len(), 2);
    assert_eq!(world.bytes(1, 0, 7), b"inline!");
    assert_eq!(world.bytes(1, 1000, 7), b"inline!");
    assert_eq!(
        world.bytes(1, 300, 26),
        [&b"prefix"[..], &world.bytes(0, 5, 20)].concat()
    );
}

#[test]
fn empty_messages_are_delivered() {
    let mut world = world(1024);
    let b = world.qps[1].clone();
    world.hosts.recv(1, &b, 50, &[]);
    world.execute(send_work(), &[]);
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
    let remote = Target {
        addr: 0,
        key: RKey::Device(NO_RKEY),
    };
    world.execute(Work::Write { remote, imm: None }, &[]);
    world.execute(Work::Read { remote }, &[]);
}

/// Unsignalled sends have no completions, and a solicited message raises the event of a queue that is armed for it.
#[test]
fn unsignalled_sends_are_silent_and_solicited_ones_raise_the_event() {
    let mut world = world(1024);
    let [a, b] = world.qps.clone();
    let engine = &mut world.hosts.nodes[1].engine;
    engine.arm_cq(b.cq.id(), true).unwrap();
    for (id, flags) in [
        (1, SendFlags::empty()),
        (2, SendFlags::SIGNALED | SendFlags::SOLICITED),
    ] {
        world.hosts.nodes[1].events();
        world.hosts.recv(1, &b, 50 + id, &[]);
        let mut request = SendRequest::new(id, send_work(), &[]);
        request.flags = flags;
        world.hosts.send(0, &a, &request);
        assert!(world.hosts.run());
        let events = world.hosts.nodes[1].events();
        let ready = events
            .iter()
            .filter(|event| matches!(event, Event::CqReady(_)));
        assert_eq!(ready.count(), usize::from(id == 2));
        let got = b.poll();
        assert_eq!(got[0].flags.contains(CompletionFlags::SOLICITED), id == 2);
    }
    assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
}

#[test]
fn queue_pairs_with_peers_on_other_hosts_share_receives() {
    let mut hosts = Hosts::new(1, FAIR);
    let domain = hosts.nodes[1].domain;
    let srq = hosts.nodes[1].engine.create_srq(domain, 8, 1).unwrap();
    let share = |at: usize, config: &mut QpConfig| {
        config.srq = (at == 1).then_some(srq);
    };
    let pairs = [hosts.connect(share), hosts.connect(share)];
    let regions = hosts.regions();
    for id in 0..4 {
        let sges = [hosts.nodes[1].sge(&regions[1], id * 1000, 1000)];
        let receive = RecvRequest { id, sges: &sges };
        hosts.nodes[1].engine.post_srq_recv(srq, &receive).unwrap();
    }
    hosts.nodes[1]
        .engine
        .modify_srq(srq, Some(3), None)
        .unwrap();
    hosts.nodes[1].events();
    for (id, from) in [(0, 1), (1, 0), (2, 1)] {
        let sges = [hosts.nodes[0].sge(&regions[0], 7, 500 + id as u32)];
        hosts.send(
            0,
            &pairs[from][0],
            &SendRequest::new(id, send_work(), &sges),
        );
        assert!(hosts.run());
        let got = pairs[from][1].poll();
        assert_eq!(statuses(&got), [(id, Status::Success)]);
        let here = hosts.nodes[1].bytes(id * 1000, got[0].bytes as usize);
        assert!(here == hosts.nodes[0].bytes(7, 500 + id as usize));
    }
    let events = hosts.nodes[1].events();
    let limits = events
        .iter()
        .filter(|event| matches!(event, Event::Async(AsyncEvent::SrqLimit(_))));
    assert_eq!(limits.count(), 1);
}

/// A key may be sent right after its bind, and the peer invalidates it with its answer.
#[test]
fn windows_are_bound_and_invalidated_in_order() {
    let mut world = world(1024);
    let [a, b] = world.qps.clone();
    let node = &mut world.hosts.nodes[1];
    let window = node
        .protection
        .create_window(node.domain, WindowKind::Type2B)
        .unwrap();
    let key = window.key.with_consumer_bits(9);
    let bind = Work::Bind {
        window: window.id,
        region: world.regions[1].local_key,
        range: VaRange::new(node.base(), 4096).unwrap(),
        access: Access::REMOTE_WRITE,
        zero_based: false,
        key: Some(key),
        rules: Rules::VERBS,
    };
    let tell = Work::Send {
        imm: Some(key.0),
        invalidate: None,
    };
    world.hosts.recv(0, &a, 40, &[]);
    // The bind waits for the write before it.
    let remote = world.hosts.nodes[0].target(&world.regions[0], 0);
    let sges = [world.sge(1, 0, 5000)];
    world.hosts.send(
        1,
        &b,
        &SendRequest::new(1, Work::Write { remote, imm: None }, &sges),
    );
    world.hosts.send(1, &b, &SendRequest::new(2, bind, &[]));
    world.hosts.send(1, &b, &SendRequest::new(3, tell, &[]));
    assert!(world.hosts.run());
    assert_eq!(
        statuses(&b.poll()),
        [1, 2, 3].map(|id| (id, Status::Success))
    );
    assert_eq!(a.poll()[0].imm, key.0);
    let remote = Target {
        addr: world.hosts.nodes[1].base() + 8,
        key: RKey::Device(key),
    };
    let from = [world.sge(0, 0, 8)];
    world.execute(Work::Write { remote, imm: None }, &from);
    assert_eq!(world.bytes(1, 8, 8), world.bytes(0, 0, 8));
    world.hosts.recv(1, &b, 50, &[]);
    let (imm, invalidate) = (None, Some(key));
    world.execute(Work::Send { imm, invalidate }, &[]);
    let got = b.poll();
    assert_eq!(statuses(&got), [(50, Status::Success)]);
    assert!(got[0].flags.contains(CompletionFlags::INVALIDATED));
    assert_eq!(got[0].imm, key.0);
    world.hosts.send(
        0,
        &a,
        &SendRequest::new(8, Work::Write { remote, imm: None }, &from),
    );
    assert!(world.hosts.run());
    assert_eq!(statuses(&a.poll()), [(8, Status::RemoteAccess)]);
}

/// An unreliable connection sends and writes, and its requests end when they have left.
#[test]
fn unreliable_connections_send_and_write() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, config| config.qp_type = QpType::Uc);
    let regions = hosts.regions();
    let into = [hosts.nodes[1].sge(&regions[1], 0, 9000)];
    let from = [hosts.nodes[0].sge(&regions[0], 1, 9000)];
    hosts.recv(1, &b, 50, &into);
    hosts.send(0, &a, &SendRequest::new(1, send_work(), &from));
    let remote = hosts.nodes[1].target(&regions[1], 20_000);
    hosts.send(
        0,
        &a,
        &SendRequest::new(2, Work::Write { remote, imm: None }, &from),
    );
    // Without a receive, the message is lost.
    hosts.send(0, &a, &SendRequest::new(3, send_work(), &from));
    assert!(hosts.run());
    assert_eq!(
        statuses(&a.poll()),
        [1, 2, 3].map(|id| (id, Status::Success))
    );
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
    for offset in [0, 20_000] {
        assert!(hosts.nodes[1].bytes(offset, 9000) == hosts.nodes[0].bytes(1, 9000));
    }
}

/// Many queue pairs take turns: none waits for all the others to finish.
#[test]
fn queue_pairs_take_turns() {
    let mut hosts = Hosts::new(1, FAIR);
    let pairs: Vec<_> = (0..3).map(|_| hosts.connect(|_, _| {})).collect();
    let regions = hosts.regions();
    let remote = hosts.nodes[1].target(&regions[1], 0);
    let from = [hosts.nodes[0].sge(&regions[0], 0, 1 << 16)];
    for [a, _] in &pairs {
        for id in 0..4 {
            hosts.send(
                0,
                a,
                &SendRequest::new(id, Work::Write { remote, imm: None }, &from),
            );
        }
    }
    let mut place: Box<PacketBuffer> = Box::new([0; _]);
    let mut order = Vec::new();
    for _ in 0..96 {
        let (_, length) = hosts.nodes[0].engine.wire_transmit(1, &mut place).unwrap();
        let packet = Packet::decode(&place[..length]).unwrap();
        order.push(packet.headers.destination);
    }
    for turn in order.chunks(48) {
        for [_, b] in &pairs {
            assert_eq!(turn.iter().filter(|number| **number == b.qpn).count(), 16);
        }
    }
}

/// Each call of `wire_transmit` takes time.
#[test]
fn the_engine_knows_when_it_has_nothing_left_to_send() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    let regions = hosts.regions();
    let [from, into] = [0, 1].map(|at| [hosts.nodes[at].sge(&regions[at], 0, 64)]);
    hosts.recv(1, &b, 50, &into);
    let message = Work::Send {
        imm: None,
        invalidate: None,
    };
    hosts.send(0, &a, &SendRequest::new(1, message, &from));
    let mut place: Box<PacketBuffer> = Box::new([0; _]);
    for sender in [0, 1] {
        let engine = &mut hosts.nodes[sender].engine;
        assert!(engine.has_wire_output());
        let (_, length) = engine.wire_transmit(1, &mut place).unwrap();
        assert!(!engine.has_wire_output());
        hosts.deliver(1 - sender, path(1 - sender), &place[..length]);
    }
    // The acknowledgement is not answered.
    assert!(!hosts.nodes[0].engine.has_wire_output());
    assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
}

/// The network loses the fourth of ten packets. Without an agreement, it and what follows it is sent again.
#[test]
fn only_the_lost_packet_is_sent_again_if_both_sides_agree() {
    for (agreed, sent_again) in [([true, true], 1), ([true, false], 7), ([false, true], 7)] {
        let mut hosts = Hosts::new(1, FAIR);
        let qps = hosts.connect_with(
            |_, _| {},
            |at, step| {
                step.path_mtu = step.path_mtu.map(|_| 256);
                step.selective = step.peer.map(|_| agreed[at]);
            },
        );
        let regions = hosts.regions();
        let mut world = World {
            hosts,
            qps,
            regions,
        };
        let mut count = 0;
        world.hosts.network.censor = Some(Box::new(move |from, _| {
            count += u32::from(from == 0);
            from == 0 && count == 4
        }));
        let (from, remote) = (world.sge(0, 0, 2560), world.remote(0));
        let kept = world.bytes(0, 0, 2560);
        world.execute(Work::Write { remote, imm: None }, &[from]);
        assert_eq!(world.bytes(1, 0, 2560), kept);
        let engine = &world.hosts.nodes[0].engine;
        let counters = engine.wire_counters(world.qps[0].id).unwrap();
        assert_eq!(
            (counters.retransmitted, counters.sequence_naks),
            (sent_again, 1)
        );
    }
}
