//! Two nodes and the wires between them, and how their queue pairs become ready.

use super::node::{ALL, Node, Qp};
use super::wire::{CAPS, WireEnd};
use rkey_core::{Access, Region};
use rkey_engine::*;
use rkey_link::{Capabilities, NodeId};
use std::sync::Arc;

/// Two nodes and the wires between them.
pub(crate) struct Pair {
    pub(crate) nodes: [Node; 2],
    /// The requester ends, by node.
    pub(crate) ends: [LinkId; 2],
    /// The responder ends, by node.
    pub(crate) tails: [LinkId; 2],
    /// Additional wires from node 0 to node 1: the ends at both.
    wires: Vec<[LinkId; 2]>,
    pub(crate) now: u64,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(CAPS, EngineConfig::default())
    }

    pub(crate) fn with(caps: Capabilities, config: EngineConfig) -> Self {
        Self::of([Node::with(1, config), Node::with(2, config)], caps)
    }

    pub(crate) fn large(caps: Capabilities, memory: usize) -> Self {
        let config = EngineConfig::default();
        Self::of(
            [1, 2].map(|pid| Node::with_memory(pid, config, memory)),
            caps,
        )
    }

    fn of(mut nodes: [Node; 2], caps: Capabilities) -> Self {
        let memories = [Arc::clone(&nodes[0].memory), Arc::clone(&nodes[1].memory)];
        let ids = [nodes[0].node, nodes[1].node];
        let mut end = |at: usize, requester: bool| {
            let other = 1 - at;
            let wire = WireEnd::new(ids[other], Arc::clone(&memories[other]), caps, requester);
            nodes[at].engine.attach(wire)
        };
        // A round looks at links in this order. So if responses come before the requests of the peer, as they must for a queue
        // pair with outstanding requests, that is not because of the order.
        let tails = [end(0, false), end(1, false)];
        let ends = [end(0, true), end(1, true)];
        Self {
            nodes,
            ends,
            tails,
            wires: Vec::new(),
            now: 0,
        }
    }

    /// Adds another link from node 0 to node 1, which node 1 attributes to `origin`. Requests of `qp` use it from now
    /// on.
    pub(crate) fn add_wire(&mut self, origin: Origin, qp: &Qp) -> [LinkId; 2] {
        let [near, far] = &mut self.nodes;
        let end = WireEnd::new(far.node, Arc::clone(&far.memory), CAPS, true);
        let tail = WireEnd::new(near.node, Arc::clone(&near.memory), CAPS, false);
        let wire = [
            near.engine.attach(end),
            far.engine.attach_from(tail, origin),
        ];
        near.engine.connect_qp(qp.id, wire[0]).unwrap();
        self.wires.push(wire);
        wire
    }

    /// Adds a link to node 1 from a device that is neither node; the test puts its requests into the link.
    pub(crate) fn add_stranger(&mut self) -> LinkId {
        let stranger = NodeId { pid: 3, nonce: 3 };
        let memory = Arc::clone(&self.nodes[0].memory);
        let tail = WireEnd::new(stranger, memory, CAPS, false);
        self.nodes[1].engine.attach(tail)
    }

    /// Removes both ends of a wire.
    pub(crate) fn cut_wire(&mut self, wire: [LinkId; 2]) {
        self.wires.retain(|other| *other != wire);
        for at in 0..2 {
            let reason = rkey_link::DownReason::Closed;
            self.nodes[at].engine.detach(wire[at], reason);
        }
    }

    /// Carries everything on the additional wires.
    fn carry_wires(&mut self) -> usize {
        let mut count = 0;
        for [end, tail] in self.wires.clone() {
            for (from, to) in [((0, end), (1, tail)), ((1, tail), (0, end))] {
                let Some(sender) = self.nodes[from.0].engine.link_mut(from.1) else {
                    continue;
                };
                let moved: Vec<_> = sender.outbox.drain(..).collect();
                count += moved.len();
                if let Some(receiver) = self.nodes[to.0].engine.link_mut(to.1) {
                    receiver.inbox.extend(moved);
                }
            }
        }
        count
    }

    /// The requester end at a node.
    pub(crate) fn end(&mut self, at: usize) -> &mut WireEnd {
        self.nodes[at].engine.link_mut(self.ends[at]).unwrap()
    }

    pub(crate) fn tail(&mut self, at: usize) -> &mut WireEnd {
        self.nodes[at].engine.link_mut(self.tails[at]).unwrap()
    }

    /// Carries at most `count` items from requester `at` to its responder.
    pub(crate) fn carry_requests(&mut self, at: usize, count: usize) -> usize {
        let Some(end) = self.nodes[at].engine.link_mut(self.ends[at]) else {
            return 0;
        };
        let count = count.min(end.outbox.len());
        let moved: Vec<_> = end.outbox.drain(..count).collect();
        if let Some(tail) = self.nodes[1 - at].engine.link_mut(self.tails[1 - at]) {
            tail.inbox.extend(moved);
        }
        count
    }

    /// Carries at most `count` items back to requester `at`.
    pub(crate) fn carry_responses(&mut self, at: usize, count: usize) -> usize {
        let Some(tail) = self.nodes[1 - at].engine.link_mut(self.tails[1 - at]) else {
            return 0;
        };
        let count = count.min(tail.outbox.len());
        let moved: Vec<_> = tail.outbox.drain(..count).collect();
        if let Some(end) = self.nodes[at].engine.link_mut(self.ends[at]) {
            end.inbox.extend(moved);
        }
        count
    }

    pub(crate) fn carry_all(&mut self) -> usize {
        let carried: usize = (0..2)
            .map(|at| self.carry_requests(at, usize::MAX) + self.carry_responses(at, usize::MAX))
            .sum();
        carried + self.carry_wires()
    }

    pub(crate) fn drive(&mut self, at: usize, budget: u32) -> Progress {
        self.nodes[at].engine.drive(self.now, budget)
    }

    /// Runs until nothing moves, without letting time pass.
    pub(crate) fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            let did = self.drive(0, 64).did | self.drive(1, 64).did;
            if self.carry_all() == 0 && !did {
                return;
            }
        }
        panic!("it never becomes idle");
    }

    /// Runs until nothing moves and no deadline is left before `limit`.
    pub(crate) fn run(&mut self, limit: u64) {
        loop {
            self.run_until_idle();
            let next = [0, 1].map(|at| self.drive(at, 64).next_deadline);
            match next.into_iter().flatten().min() {
                Some(at) if at <= limit => self.now = self.now.max(at),
                _ => return,
            }
        }
    }

    /// Two connected reliable queue pairs, ready to send.
    pub(crate) fn connect(&mut self, change: impl Fn(usize, &mut QpConfig)) -> [Qp; 2] {
        let qps = [0, 1].map(|at| self.nodes[at].qp(|config| change(at, config)));
        self.ready(&qps, |_, _| {});
        qps
    }

    pub(crate) fn ready(&mut self, qps: &[Qp; 2], change: impl Fn(usize, &mut QpAttributes)) {
        for at in 0..2 {
            self.up(at, &qps[at], &qps[1 - at], &change);
        }
        self.nodes[0].events();
        self.nodes[1].events();
    }

    /// Brings one side to ready-to-send. `change` can modify the attributes of each step.
    pub(crate) fn up(
        &mut self,
        at: usize,
        own: &Qp,
        other: &Qp,
        change: impl Fn(usize, &mut QpAttributes),
    ) {
        let peer = Peer {
            qpn: other.qpn,
            node: None,
        };
        let kind = self.nodes[at]
            .engine
            .query_qp(own.id)
            .unwrap()
            .config
            .qp_type;
        for mut step in steps(kind, peer, at as u32) {
            change(at, &mut step);
            self.nodes[at].engine.modify_qp(own.id, &step).unwrap();
            if step.state == Some(QpState::Rtr) && kind != QpType::Ud {
                self.nodes[at]
                    .engine
                    .connect_qp(own.id, self.ends[at])
                    .unwrap();
            }
        }
    }

    pub(crate) fn send(&mut self, at: usize, qp: &Qp, request: &SendRequest<'_>) {
        self.nodes[at].engine.post_send(qp.id, request).unwrap();
    }

    pub(crate) fn recv(&mut self, at: usize, qp: &Qp, id: u64, sges: &[Sge]) {
        self.nodes[at]
            .engine
            .post_recv(qp.id, &RecvRequest { id, sges })
            .unwrap();
    }
}

/// The steps to ready-to-send of a queue pair at node `at`.
pub(crate) fn steps(kind: QpType, peer: Peer, at: u32) -> Vec<QpAttributes> {
    let (send, recv) = (0xff_fff0 + at, 0xff_fff0 + 1 - at);
    match kind {
        QpType::Rc => vec![
            QpAttributes::init(Access::REMOTE),
            QpAttributes::rtr(peer, recv),
            QpAttributes::rts(send),
        ],
        QpType::XrcSend => vec![
            QpAttributes::init(Access::REMOTE),
            QpAttributes {
                min_rnr_timer: None,
                max_reads_in: None,
                ..QpAttributes::rtr(peer, recv)
            },
            QpAttributes::rts(send),
        ],
        QpType::XrcRecv => vec![
            QpAttributes::init(Access::REMOTE),
            QpAttributes::rtr(peer, recv),
            QpAttributes {
                max_reads_out: None,
                retry_count: None,
                rnr_retry: None,
                ..QpAttributes::rts(send)
            },
        ],
        QpType::Raw => [QpState::Init, QpState::Rtr, QpState::Rts]
            .map(QpAttributes::to)
            .to_vec(),
        QpType::Uc => vec![
            QpAttributes::init(Access::REMOTE),
            QpAttributes {
                state: Some(QpState::Rtr),
                peer: Some(peer),
                path_mtu: Some(4096),
                recv_msn: Some(recv),
                ..QpAttributes::default()
            },
            QpAttributes {
                send_msn: Some(send),
                ..QpAttributes::to(QpState::Rts)
            },
        ],
        QpType::Ud => vec![
            QpAttributes {
                qkey: Some(0x1111),
                ..QpAttributes::to(QpState::Init)
            },
            QpAttributes::to(QpState::Rtr),
            QpAttributes {
                send_msn: Some(send),
                ..QpAttributes::to(QpState::Rts)
            },
        ],
    }
}

/// Connected queue pairs, and a region at each node.
pub(crate) fn transfer(pair: &mut Pair) -> ([Qp; 2], [Region; 2]) {
    let qps = pair.connect(|_, _| {});
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 1 << 20, ALL));
    (qps, regions)
}
