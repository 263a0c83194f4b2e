//! No operation is ever lost or completed twice, regardless of the order in which two engines and the wires between them
//! run, and of what fails.
//!
//! Random programs run on two engines: posts of every kind, late receives, wires that carry a little at a time, small
//! rings, small completion queues, peers that refuse remote iovecs, and (in some programs) a bad key or a wire that
//! breaks. A model that tracks only the order of posting checks each completion, and the bytes.

use crate::support::*;
use proptest::prelude::*;
use rkey_core::{Access, Region};
use rkey_engine::*;
use rkey_link::{Capabilities, DownReason};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    Forbidden,
}

#[derive(Clone, Debug)]
enum Step {
    Post {
        at: usize,
        kind: Kind,
        len: u32,
        flags: u8,
        inline: bool,
    },
    Recv {
        at: usize,
    },
    Requests {
        at: usize,
        count: usize,
    },
    Responses {
        at: usize,
        count: usize,
    },
    Drive {
        at: usize,
        budget: u32,
    },
    Wait {
        us: u64,
    },
    Poll {
        at: usize,
    },
    Break {
        at: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    window: usize,
    response_room: usize,
    remote_iovec: bool,
    refuse: bool,
    fragments_first: usize,
    cq_depth: u32,
    rnr_retry: u8,
}

/// The maximum length of a message; each request has its own memory of this size.
const PLACE: u64 = 1500;
const PLACES: u64 = 256;
/// The offsets of the parts of a node's memory.
const SOURCE: u64 = 0;
const TARGET: u64 = PLACES * PLACE;
const SINK: u64 = 2 * PLACES * PLACE;
const INBOX: u64 = 3 * PLACES * PLACE;
const COUNTER: u64 = 4 * PLACES * PLACE;

#[derive(Clone, Copy, Debug)]
struct Posted {
    id: u64,
    kind: Kind,
    len: u32,
    signaled: bool,
}

/// The model's state for one side.
#[derive(Default)]
struct Side {
    next: u64,
    sends: VecDeque<Posted>,
    receives: VecDeque<u64>,
    /// Payloads of messages that consume a receive at the other side, in order: `None` for a
    /// write with immediate data.
    messages: VecDeque<(u64, Option<u32>)>,
    adds_done: u64,
    failed: bool,
    receive_failed: bool,
    overrun: bool,
}

fn place(area: u64, id: u64) -> u64 {
    area + id % PLACES * PLACE
}

struct World {
    pair: Pair,
    qps: [Qp; 2],
    regions: [Region; 2],
    closed: [Region; 2],
    sides: [Side; 2],
    broken: bool,
}

impl World {
    fn new(shape: Shape) -> Self {
        let caps = Capabilities {
            remote_iovec: shape.remote_iovec,
            remote_iovec_min: 300,
            ..CAPS
        };
        let mut pair = Pair::with(caps, EngineConfig::default());
        let mut qps = [0, 1].map(|at| {
            pair.nodes[at].qp(|config| {
                config.max_send = 16;
                config.max_recv = 16;
            })
        });
        for at in 0..2 {
            pair.nodes[at]
                .engine
                .resize_cq(qps[at].cq.id(), shape.cq_depth)
                .unwrap();
            pair.end(at).window = shape.window;
            pair.tail(at).response_room = shape.response_room;
            pair.tail(at).refuse_remote_iovec = shape.refuse;
            pair.end(at).fragments_first = shape.fragments_first;
        }
        pair.ready(&qps, |_, step| {
            if step.rnr_retry.is_some() {
                step.rnr_retry = Some(shape.rnr_retry);
                step.max_reads_out = Some(2);
            }
        });
        let regions = [0, 1].map(|at| pair.nodes[at].register(0, 1 << 21, ALL));
        let closed = [0, 1].map(|at| pair.nodes[at].register(0, 1 << 21, Access::empty()));
        for at in 0..2 {
            for id in 0..PLACES {
                // The target area starts with the contents that reads expect.
                let data = pattern(id + 1000, PLACE as usize);
                pair.nodes[at].fill(place(SOURCE, id), &pattern(id, PLACE as usize));
                pair.nodes[at].fill(place(INBOX, id), &[0; PLACE as usize]);
                pair.nodes[at].fill(place(TARGET, id), &data);
            }
        }
        qps.iter_mut().for_each(drop);
        Self {
            pair,
            qps,
            regions,
            closed,
            sides: Default::default(),
            broken: false,
        }
    }

    fn post(&mut self, at: usize, kind: Kind, len: u32, flags: u8, inline: bool) {
        let id = self.sides[at].next;
        let node = &self.pair.nodes[at];
        let other = &self.pair.nodes[1 - at];
        let remote = other.target(&self.regions[1 - at], place(TARGET, id));
        let (work, sge) = match kind {
            Kind::Send => (
                send_work(),
                node.sge(&self.regions[at], place(SOURCE, id), len),
            ),
            Kind::Write => (
                Work::Write { remote, imm: None },
                node.sge(&self.regions[at], place(SOURCE, id), len),
            ),
            Kind::WriteImm => (
                Work::Write {
                    remote,
                    imm: Some(id as u32),
                },
                node.sge(&self.regions[at], place(SOURCE, id), len),
            ),
            Kind::Read => (
                Work::Read { remote },
                node.sge(&self.regions[at], place(SINK, id), len),
            ),
            Kind::FetchAdd => {
                let remote = other.target(&self.regions[1 - at], COUNTER + 8 * at as u64);
                let sge = node.sge(&self.regions[at], place(SINK, id), 8);
                (Work::FetchAdd { remote, add: 1 }, sge)
            }
            Kind::Forbidden => (
                Work::Write {
                    remote: other.target(&self.closed[1 - at], 0),
                    imm: None,
                },
                node.sge(&self.regions[at], place(SOURCE, id), len.max(1)),
            ),
        };
        let sges = [sge];
        let mut request = SendRequest::new(id, work, &sges);
        let signaled = flags & 1 == 1;
        request.flags.set(SendFlags::SIGNALED, signaled);
        request.flags.set(SendFlags::FENCE, flags & 2 == 2);
        request.flags.set(SendFlags::MORE, flags & 4 == 4);
        let bytes = node.bytes(place(SOURCE, id), len as usize);
        if inline && len <= 128 && matches!(kind, Kind::Send | Kind::Write | Kind::WriteImm) {
            request.inline = Some(&bytes);
        }
        // Before a read, the memory must have the model's contents.
        if matches!(kind, Kind::Read) {
            self.pair.nodes[1 - at].fill(place(TARGET, id), &pattern(id + 1000, PLACE as usize));
        }
        match self.pair.nodes[at]
            .engine
            .post_send(self.qps[at].id, &request)
        {
            Ok(()) => {
                let side = &mut self.sides[at];
                side.next += 1;
                side.sends.push_back(Posted {
                    id,
                    kind,
                    len,
                    signaled,
                });
                match kind {
                    Kind::Send => side.messages.push_back((id, Some(len))),
                    Kind::WriteImm => side.messages.push_back((id, None)),
                    _ => {}
                }
            }
            Err(PostError::QueueFull(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn recv(&mut self, at: usize) {
        let id = 1_000_000 + self.sides[at].next;
        let sge = self.pair.nodes[at].sge(&self.regions[at], place(INBOX, id), PLACE as u32);
        let request = RecvRequest { id, sges: &[sge] };
        match self.pair.nodes[at]
            .engine
            .post_recv(self.qps[at].id, &request)
        {
            Ok(()) => {
                self.sides[at].next += 1;
                self.sides[at].receives.push_back(id);
            }
            Err(PostError::QueueFull(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn poll(&mut self, at: usize) {
        for one in self.qps[at].poll() {
            if one.opcode.is_recv() {
                self.received(at, &one)
            } else {
                self.sent(at, &one)
            }
        }
        self.sides[at].overrun |= self.qps[at].cq.is_overrun();
    }

    /// Checks that a completion of the send queue is the next one that is due.
    fn sent(&mut self, at: usize, one: &Completion) {
        let next = loop {
            let next = self.sides[at]
                .sends
                .pop_front()
                .expect("nothing was lost or made up");
            if next.id == one.id {
                break next;
            }
            assert!(!next.signaled, "{} completes before {next:?}", one.id);
            self.check_success(at, &next);
        };
        if self.sides[at].failed {
            assert_eq!(one.status, Status::Flushed, "after an error all is flushed");
        } else if one.status == Status::Success {
            assert!(next.signaled);
            self.check_success(at, &next);
        } else {
            self.sides[at].failed = true;
        }
    }

    fn check_success(&mut self, at: usize, done: &Posted) {
        assert!(!self.sides[at].failed, "{done:?}");
        let len = done.len as usize;
        match done.kind {
            Kind::Write | Kind::WriteImm => {
                let there = self.pair.nodes[1 - at].bytes(place(TARGET, done.id), len);
                assert_eq!(
                    there,
                    pattern(done.id % PLACES, PLACE as usize)[..len],
                    "{done:?}"
                );
            }
            Kind::Read => {
                let here = self.pair.nodes[at].bytes(place(SINK, done.id), len);
                assert_eq!(
                    here,
                    pattern(done.id + 1000, PLACE as usize)[..len],
                    "{done:?}"
                );
            }
            Kind::FetchAdd => {
                let here = self.pair.nodes[at].bytes(place(SINK, done.id), 8);
                assert_eq!(here, self.sides[at].adds_done.to_ne_bytes());
                self.sides[at].adds_done += 1;
            }
            Kind::Send => {}
            Kind::Forbidden => panic!("it was refused"),
        }
    }

    /// Checks that a completion of the receive queue is the next receive, filled by the next message.
    fn received(&mut self, at: usize, one: &Completion) {
        let id = self.sides[at]
            .receives
            .pop_front()
            .expect("nothing was lost or made up");
        assert_eq!(id, one.id);
        if self.sides[at].receive_failed {
            assert_eq!(one.status, Status::Flushed);
        } else if one.status == Status::Success {
            let (from, len) = self.sides[1 - at]
                .messages
                .pop_front()
                .expect("one side sent");
            match len {
                Some(len) => {
                    assert_eq!((one.opcode, one.bytes), (CompletionOp::Recv, len));
                    let here = self.pair.nodes[at].bytes(place(INBOX, id), len as usize);
                    assert_eq!(here, pattern(from % PLACES, PLACE as usize)[..len as usize]);
                }
                None => assert_eq!(
                    (one.opcode, one.imm),
                    (CompletionOp::RecvWriteImm, from as u32)
                ),
            }
        } else {
            self.sides[at].receive_failed = true;
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Post {
                at,
                kind,
                len,
                flags,
                inline,
            } => self.post(at, kind, len, flags, inline),
            Step::Recv { at } => self.recv(at),
            Step::Requests { at, count } => {
                self.pair.carry_requests(at, count);
            }
            Step::Responses { at, count } => {
                self.pair.carry_responses(at, count);
            }
            Step::Drive { at, budget } => {
                self.pair.drive(at, budget);
            }
            Step::Wait { us } => self.pair.now += us * 1000,
            Step::Poll { at } => self.poll(at),
            Step::Break { at } => {
                if let Some(end) = self.pair.nodes[at].engine.link_mut(self.pair.ends[at]) {
                    end.down = Some(DownReason::PeerGone);
                    self.broken = true;
                }
                let tail = self.pair.tails[1 - at];
                if let Some(tail) = self.pair.nodes[1 - at].engine.link_mut(tail) {
                    tail.down = Some(DownReason::PeerGone);
                }
            }
        }
    }

    /// Runs everything to completion, and checks that nothing is left over.
    fn finish(mut self) {
        for _ in 0..100 {
            for at in 0..2 {
                while self.sides[at].receives.len() < 8 && !self.sides[at].overrun {
                    let before = self.sides[at].receives.len();
                    self.recv(at);
                    if self.sides[at].receives.len() == before {
                        break;
                    }
                }
            }
            self.pair.run(self.pair.now + 20_000_000);
            (0..2).for_each(|at| self.poll(at));
        }
        for at in 0..2 {
            let node = &mut self.pair.nodes[at];
            for event in node.events() {
                // This test makes no new links.
                if let Event::LinkNeeded { qp, peer } = event {
                    node.engine.unreachable(qp, peer);
                }
            }
        }
        (0..2).for_each(|at| self.poll(at));
        let healthy = (0..2).all(|at| {
            !self.sides[at].failed && !self.sides[at].overrun && !self.sides[at].receive_failed
        });
        if healthy && !self.broken {
            for at in 0..2 {
                let left: Vec<_> = self.sides[at].sends.drain(..).collect();
                for one in left {
                    assert!(!one.signaled, "never completed: {one:?}");
                    self.check_success(at, &one);
                }
                assert!(
                    self.sides[at].messages.is_empty(),
                    "sent, but never received"
                );
                let counter = self.pair.nodes[1 - at].bytes(COUNTER + 8 * at as u64, 8);
                assert_eq!(counter, self.sides[at].adds_done.to_ne_bytes());
            }
        }
        for at in 0..2 {
            let (id, modify) = (self.qps[at].id, QpAttributes::to(QpState::Error));
            if !self.sides[at].overrun {
                self.pair.nodes[at]
                    .engine
                    .resize_cq(self.qps[at].cq.id(), 256)
                    .unwrap();
            }
            self.pair.nodes[at].engine.modify_qp(id, &modify).unwrap();
            self.poll(at);
            let info = self.pair.nodes[at].engine.query_qp(id).unwrap();
            assert_eq!((info.sends, info.receives), (0, 0));
            if !self.sides[at].overrun {
                let lost = self.sides[at].sends.iter().find(|one| one.signaled);
                assert!(lost.is_none(), "{lost:?}");
                assert!(self.sides[at].receives.is_empty());
            }
        }
    }
}

fn steps(faults: bool) -> impl Strategy<Value = Vec<Step>> {
    let at = 0..2usize;
    let kind = prop_oneof![
        4 => Just(Kind::Send),
        4 => Just(Kind::Write),
        2 => Just(Kind::WriteImm),
        3 => Just(Kind::Read),
        2 => Just(Kind::FetchAdd),
    ];
    let len = prop_oneof![3 => 0..128u32, 2 => 128..700u32, 1 => 700..=PLACE as u32];
    let post = (at.clone(), kind, len, any::<u8>(), any::<bool>()).prop_map(
        |(at, kind, len, flags, inline)| Step::Post {
            at,
            kind,
            len,
            flags,
            inline,
        },
    );
    let bad = (at.clone(), any::<u8>()).prop_map(|(at, flags)| Step::Post {
        at,
        kind: Kind::Forbidden,
        len: 8,
        flags,
        inline: false,
    });
    let weight = u32::from(faults);
    let step = prop_oneof![
        10 => post,
        6 => at.clone().prop_map(|at| Step::Recv { at }),
        8 => (at.clone(), 1..6usize).prop_map(|(at, count)| Step::Requests { at, count }),
        8 => (at.clone(), 1..6usize).prop_map(|(at, count)| Step::Responses { at, count }),
        14 => (at.clone(), 1..5u32).prop_map(|(at, budget)| Step::Drive { at, budget }),
        3 => (1..2000u64).prop_map(|us| Step::Wait { us }),
        4 => at.clone().prop_map(|at| Step::Poll { at }),
        weight => bad,
        weight => at.prop_map(|at| Step::Break { at }),
    ];
    prop::collection::vec(step, 0..180)
}

fn shape(cq_depth: impl Strategy<Value = u32>) -> impl Strategy<Value = Shape> {
    (
        1..6usize,
        1..4usize,
        any::<bool>(),
        any::<bool>(),
        0..4usize,
        cq_depth,
        any::<bool>(),
    )
        .prop_map(
            |(window, response_room, remote_iovec, refuse, fragments_first, cq_depth, patient)| {
                Shape {
                    window,
                    response_room,
                    remote_iovec,
                    refuse,
                    fragments_first,
                    cq_depth,
                    rnr_retry: if patient { 7 } else { 1 },
                }
            },
        )
}

fn check(shape: Shape, steps: &[Step]) {
    let mut world = World::new(shape);
    for step in steps {
        world.run(step);
    }
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore)]
    fn requests_are_executed_exactly_once_without_faults(
        mut shape in shape(Just(256)),
        steps in steps(false),
    ) {
        shape.rnr_retry = 7;
        check(shape, &steps);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn requests_are_executed_exactly_once_with_faults(
        shape in shape(Just(256)),
        steps in steps(true),
    ) {
        check(shape, &steps);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn requests_are_executed_exactly_once_with_small_completion_queues(
        shape in shape(1..12u32),
        steps in steps(true),
    ) {
        check(shape, &steps);
    }
}
