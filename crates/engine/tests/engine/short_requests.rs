//! Compares short requests that the responder executes straight from the ring ([`Link::next_short`]) with the same requests on the
//! long way: nothing else may differ.
//!
//! [`Link::next_short`]: rkey_link::Link::next_short

use crate::answered::post_answered;
use crate::scenes::{Outcome, Scene, plain, situations};
use crate::support::*;
use proptest::prelude::*;
use rkey_base::range::VaRange;
use rkey_core::{Access, Addressing, Region, RegionSpec};
use rkey_engine::*;
use rkey_link::{Header, HeaderFlags, Op};

fn play(scene: fn() -> Scene, reads_short: bool) -> [Outcome; 2] {
    let established = || {
        let mut scene = scene();
        scene.establish();
        scene.pair.tail(1).reads_short = reads_short;
        scene
    };
    let with_answers = established().play_each(|scene, id| post_answered(scene, id, false));
    [established().play(SendFlags::empty(), false), with_answers]
}

#[test]
fn short_requests_have_the_same_results_as_on_the_long_way() {
    for (name, scene) in situations() {
        assert_eq!(play(scene, true), play(scene, false), "{name}");
    }
}

#[test]
fn short_requests_do_not_take_the_long_way() {
    let mut scene = plain();
    scene.establish();
    let before = scene.pair.tail(1).shown.get();
    assert!(before > 0, "the first request takes the long way");
    let sges = [scene.pair.nodes[0].sge(&scene.regions[0], 0, 8)];
    let remote = scene.pair.nodes[1].target(&scene.regions[1], 0);
    let all = [
        Work::Write { remote, imm: None },
        send_work(),
        Work::Read { remote },
        Work::FetchAdd { remote, add: 1 },
        Work::CompareSwap {
            remote,
            compare: 1,
            swap: 2,
        },
    ];
    for (id, work) in (0..).zip(all) {
        let request = SendRequest::new(id, work, &sges);
        scene.pair.send(0, &scene.qps[0], &request);
    }
    scene.pair.run_until_idle();
    assert_eq!(scene.qps[0].poll().len(), 5);
    assert_eq!(scene.pair.tail(1).shown.get(), before);
}

/// What happens to the responder.
#[derive(Clone, Debug)]
enum Step {
    /// A fragment arrives, which may break any rule.
    Arrive(Strange),
    /// The engine takes at most this many fragments.
    Drive(u32),
    /// The program posts a receive of this many bytes.
    Receive(u32),
    /// The queue pair gets these rights.
    Allow(Access),
    /// The region with the device's key ends.
    Close,
    Fail,
    /// The program posts a send.
    Post,
    /// The requester acknowledges this many more of its sends.
    Acknowledge(u64),
}

/// A fragment for the responder.
#[derive(Clone, Debug)]
struct Strange {
    op: Op,
    flags: HeaderFlags,
    /// How far its number is from the next one.
    ahead: u32,
    len: u32,
    /// How much longer the message is.
    more: u32,
    offset: u64,
    key: usize,
    /// Whether it names the peer as its sender.
    is_from_peer: bool,
    /// Whether it arrives from another device.
    is_from_elsewhere: bool,
}

fn strange() -> impl Strategy<Value = Strange> {
    let whole = HeaderFlags::FIRST | HeaderFlags::LAST;
    let flags = prop_oneof![
        12 => Just(whole),
        4 => Just(whole | HeaderFlags::REQUESTED_KEY),
        2 => Just(HeaderFlags::FIRST),
        1 => Just(HeaderFlags::LAST),
        1 => Just(whole | HeaderFlags::IMMEDIATE),
        1 => Just(whole | HeaderFlags::SOLICITED),
        1 => Just(whole | HeaderFlags::ACK_NOW),
    ];
    let fields = (
        prop_oneof![
            2 => Just(Op::Send),
            4 => Just(Op::Write),
            2 => Just(Op::Read),
            1 => Just(Op::CompareSwap),
            1 => Just(Op::FetchAdd),
        ],
        flags,
        prop_oneof![12 => Just(0u32), 1 => Just(1u32)],
        0u32..40,
        prop_oneof![15 => Just(0u32), 1 => 1u32..40],
        prop_oneof![15 => 0u64..900, 1 => 900u64..1100],
        prop_oneof![12 => Just(0usize), 4 => 0usize..6],
        prop::bool::weighted(0.95),
        prop::bool::weighted(0.05),
    );
    fields.prop_map(
        |(op, flags, ahead, len, more, offset, key, is_from_peer, is_from_elsewhere)| Strange {
            op,
            flags,
            ahead,
            len,
            // The first of several fragments.
            more: more.max(u32::from(!flags.contains(HeaderFlags::LAST))),
            offset,
            key,
            is_from_peer,
            is_from_elsewhere,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let rights = prop_oneof![
        Just(Access::REMOTE),
        Just(Access::REMOTE_READ),
        Just(Access::REMOTE_WRITE),
    ];
    prop_oneof![
        60 => strange().prop_map(Step::Arrive),
        40 => (1u32..4).prop_map(Step::Drive),
        10 => prop_oneof![Just(64u32), 1u32..40].prop_map(Step::Receive),
        3 => rights.prop_map(Step::Allow),
        2 => Just(Step::Close),
        1 => Just(Step::Fail),
        10 => Just(Step::Post),
        10 => (1u64..3).prop_map(Step::Acknowledge),
    ]
}

/// What kind of responder it is.
#[derive(Clone, Debug)]
struct Setting {
    qp_type: QpType,
    /// Whether the queue pair stays in service after it has refused a request.
    lenient: bool,
    is_ready_to_send: bool,
}

/// A responder and its memory.
struct Scenery {
    pair: Pair,
    qps: [Qp; 2],
    /// The link from a device that is not the peer's.
    elsewhere: LinkId,
    plain: Region,
    /// The keys that requests name: of a region, of one that may only be read, of one with a requested key, two of none, and of a
    /// region whose addresses are 4 B below those of its memory.
    keys: [u64; 6],
    /// The number of the next message.
    msn: u32,
    /// How many sends of the responder have been acknowledged.
    acknowledged: u64,
    /// What the responder sent, and the results of calls.
    out: Vec<String>,
}

impl Scenery {
    fn new(setting: &Setting, reads_short: bool) -> Self {
        let mut pair = Pair::new();
        let qps = [0, 1].map(|at| {
            pair.nodes[at].qp(|config| {
                config.qp_type = setting.qp_type;
                config.survive_remote_error = setting.lenient;
            })
        });
        let peer = Peer {
            qpn: qps[0].qpn,
            node: Some(pair.nodes[0].node),
        };
        let all = steps(setting.qp_type, peer, 1);
        for attributes in &all[..2 + usize::from(setting.is_ready_to_send)] {
            let engine = &mut pair.nodes[1].engine;
            engine.modify_qp(qps[1].id, attributes).unwrap();
        }
        let link = pair.ends[1];
        pair.nodes[1].engine.connect_qp(qps[1].id, link).unwrap();
        let node = &pair.nodes[1];
        let range = [VaRange::new(node.base(), 1000).unwrap()];
        let mut spec = RegionSpec::new(node.domain, &range, ALL);
        let plain = node.protection.register(&spec).unwrap();
        spec.access = Access::REMOTE_READ;
        let read_only = node.protection.register(&spec).unwrap();
        (spec.access, spec.requested_key) = (ALL, Some(7));
        let requested = node.protection.register(&spec).unwrap();
        let moved = [VaRange::new(node.base() + 4, 1000).unwrap()];
        let mut spec = RegionSpec::new(node.domain, &moved, ALL);
        spec.addressing = Addressing::Iova(node.base());
        let moved = node.protection.register(&spec).unwrap();
        let [plain_key, read_only, requested, moved] =
            [&plain, &read_only, &requested, &moved].map(|region| region.key.0);
        let keys = [plain_key, read_only, requested, 7, 1 << 20, moved].map(u64::from);
        let elsewhere = pair.add_stranger();
        for link in [pair.tails[1], elsewhere] {
            let link = pair.nodes[1].engine.link_mut(link).unwrap();
            link.reads_short = reads_short;
        }
        Self {
            pair,
            qps,
            elsewhere,
            plain,
            keys,
            msn: 0xff_fff0,
            acknowledged: 0,
            out: Vec::new(),
        }
    }

    fn arrive(&mut self, id: u64, it: &Strange) {
        let (base, flags) = (self.pair.nodes[1].base(), it.flags);
        let key = match flags.contains(HeaderFlags::REQUESTED_KEY) {
            true if it.key == 0 => 7,
            // A device's key, or none, in the place of a requested one.
            _ => self.keys[it.key],
        };
        let is_send = it.op == Op::Send;
        let has_payload = is_send || it.op == Op::Write;
        // Half of the atomics are not aligned.
        let offset = match it.op.has_operands() {
            true => it.offset / 8 * 8 + 4 * u64::from(it.len % 2),
            false => it.offset,
        };
        let header = Header {
            flags,
            dst_qp: self.qps[1].qpn,
            src_qp: self.qps[0].qpn + u32::from(!it.is_from_peer),
            msn: (self.msn + it.ahead) & 0xff_ffff,
            len: if has_payload { it.len } else { 0 },
            total: match it.op {
                Op::Read => 8 * (it.len + it.more),
                _ => it.len + it.more,
            },
            addr: if is_send { 0 } else { base + offset },
            key: if is_send { 0 } else { key },
            imm: u32::from(flags.contains(HeaderFlags::IMMEDIATE)),
            operands: match it.op.has_operands() {
                true => [0, id],
                false => [0; 2],
            },
            ..Header::new(it.op)
        };
        let bytes = pattern(id, header.len as usize);
        let fragment = Passing::Fragment(header, Load::Bytes(bytes));
        let link = match it.is_from_elsewhere {
            true => self.elsewhere,
            false => self.pair.tails[1],
        };
        let link = self.pair.nodes[1].engine.link_mut(link).unwrap();
        link.inbox.push_back(fragment);
        if flags.contains(HeaderFlags::LAST) && it.is_from_peer && !it.is_from_elsewhere {
            self.msn = (header.msn + 1) & 0xff_ffff;
        }
    }

    fn drive(&mut self, budget: u32) {
        self.pair.drive(1, budget);
        for link in [self.pair.tails[1], self.elsewhere] {
            let link = self.pair.nodes[1].engine.link_mut(link).unwrap();
            let sent = link.outbox.drain(..);
            let responses = sent.filter(|it| matches!(it, Passing::Fragment(..)));
            self.out.extend(responses.map(|it| format!("{it:?}")));
        }
    }

    fn modify(&mut self, attributes: &QpAttributes) {
        let engine = &mut self.pair.nodes[1].engine;
        let changed = engine.modify_qp(self.qps[1].id, attributes);
        self.out.push(format!("{changed:?}"));
    }

    fn take(&mut self, id: u64, step: &Step) {
        match step {
            Step::Arrive(fragment) => self.arrive(id, fragment),
            Step::Drive(budget) => self.drive(*budget),
            Step::Receive(len) => {
                let sges = &[self.pair.nodes[1].sge(&self.plain, 500, *len)];
                let engine = &mut self.pair.nodes[1].engine;
                let posted = engine.post_recv(self.qps[1].id, &RecvRequest { id, sges });
                self.out.push(format!("{posted:?}"));
            }
            Step::Allow(access) => self.modify(&QpAttributes {
                access: Some(*access),
                ..QpAttributes::default()
            }),
            Step::Close => drop(self.pair.nodes[1].protection.deregister(self.plain.id)),
            Step::Fail => self.modify(&QpAttributes::to(QpState::Error)),
            Step::Post => {
                let request = SendRequest {
                    inline: Some(&[1; 8]),
                    ..SendRequest::new(id, send_work(), &[])
                };
                let engine = &mut self.pair.nodes[1].engine;
                let posted = engine.post_send(self.qps[1].id, &request);
                self.out.push(format!("{posted:?}"));
            }
            Step::Acknowledge(more) => {
                let sent = self.pair.end(1).outbox.len() as u64;
                self.acknowledged = sent.min(self.acknowledged + more);
                let ack = Passing::Ack(self.acknowledged);
                self.pair.end(1).inbox.push_back(ack);
            }
        }
    }

    /// Everything that the requester and the responder's program can see.
    fn results(mut self) -> impl PartialEq + std::fmt::Debug {
        for _ in 0..100 {
            self.drive(64);
        }
        let completions = self.qps[1].poll();
        let node = &mut self.pair.nodes[1];
        let (events, memory) = (format!("{:?}", node.events()), node.bytes(0, 1100));
        (
            self.out,
            completions,
            events,
            memory,
            node.state(&self.qps[1]),
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn strange_requests_have_the_same_results_whichever_way_the_link_reads_them(
        steps in prop::collection::vec(step(), 1..60),
        qp_type in prop_oneof![4 => Just(QpType::Rc), 1 => Just(QpType::Uc)],
        lenient in prop::bool::weighted(0.8),
        is_ready_to_send in prop::bool::weighted(0.8),
    ) {
        let setting = Setting {
            qp_type,
            lenient,
            is_ready_to_send,
        };
        let results = [true, false].map(|reads_short| {
            let mut scenery = Scenery::new(&setting, reads_short);
            for (id, step) in (0..).zip(&steps) {
                scenery.take(id, step);
            }
            scenery.results()
        });
        prop_assert_eq!(&results[0], &results[1]);
    }
}
