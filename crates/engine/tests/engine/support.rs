//! A world in one thread: nodes with engines and memories, and wires between them whose every
//! step the test decides.

use rkey_base::fault::Fault;
use rkey_base::memory::{ArenaMemory, Memory};
use rkey_base::range::VaRange;
use rkey_base::shared::{Foreign, Place};
use rkey_core::{
    Access, DomainId, Key, Limits, LocalKey, Protection, Region, RegionSpec, Secrets, WireKey,
};
use rkey_engine::*;
use rkey_link::{
    Capabilities, DownReason, Head, HeadFlags, Incoming, Link, Malformed, NodeId, Payload,
    PullError, References, SendError, Ticket,
};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum Load {
    Bytes(Vec<u8>),
    List(References),
}

#[derive(Clone, Debug)]
pub(crate) enum Passing {
    Piece(Head, Load),
    /// Requests with smaller tickets are executed.
    Ack(Ticket),
}

/// One end of a wire, in one role. Nothing passes until the world carries it.
pub(crate) struct WireEnd {
    pub(crate) node: NodeId,
    pub(crate) peer_memory: Option<Arc<ArenaMemory>>,
    pub(crate) caps: Capabilities,
    pub(crate) window: usize,
    pub(crate) refuse_reference: bool,
    /// So many pieces it prefers to a reference: 0 if it knows no better.
    pub(crate) pieces_first: usize,
    pub(crate) outbox: VecDeque<Passing>,
    pub(crate) inbox: VecDeque<Passing>,
    sent: Ticket,
    acked: Ticket,
    done: Ticket,
    told: Ticket,
    requester: bool,
    pub(crate) down: Option<DownReason>,
    /// Responses that may wait in `outbox`.
    pub(crate) response_room: usize,
}

impl WireEnd {
    fn new(
        node: NodeId,
        peer_memory: Arc<ArenaMemory>,
        caps: Capabilities,
        requester: bool,
    ) -> Self {
        Self {
            node,
            peer_memory: Some(peer_memory),
            caps,
            window: 16,
            refuse_reference: false,
            pieces_first: 0,
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            sent: 0,
            acked: 0,
            done: 0,
            told: 0,
            requester,
            down: None,
            response_room: 4,
        }
    }

    fn front(&self) -> Option<Incoming<'_>> {
        match self.inbox.front()? {
            Passing::Ack(_) => None,
            Passing::Piece(head, Load::Bytes(bytes)) => Some(Incoming {
                head: *head,
                payload: Payload::Bytes(Foreign::from_slice(bytes)),
            }),
            Passing::Piece(head, Load::List(list)) => Some(Incoming {
                head: *head,
                payload: Payload::Reference(Box::new(*list)),
            }),
        }
    }

    fn send(
        &mut self,
        head: &Head,
        fill: impl FnOnce(Place<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        assert!(head.len <= self.caps.piece_max);
        let mut bytes = vec![0; head.len as usize];
        if head.len > 0 {
            fill(Place::from_slice(&mut bytes)).map_err(SendError::Fault)?;
        }
        self.outbox
            .push_back(Passing::Piece(*head, Load::Bytes(bytes)));
        Ok(())
    }

    fn room(&self) -> Result<(), SendError> {
        if self.down.is_some() {
            return Err(SendError::Down);
        }
        if (self.sent - self.acked) as usize >= self.window {
            Err(SendError::Full)
        } else {
            Ok(())
        }
    }
}

impl Link for WireEnd {
    fn node(&self) -> NodeId {
        self.node
    }

    fn capabilities(&self) -> Capabilities {
        self.caps
    }

    fn is_up(&self) -> Result<(), DownReason> {
        self.down.map_or(Ok(()), Err)
    }

    fn request(
        &mut self,
        head: &Head,
        fill: impl FnOnce(Place<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        assert!(self.requester && !head.op.is_response());
        self.room()?;
        self.send(head, fill)?;
        self.sent += 1;
        Ok(self.sent - 1)
    }

    fn request_by_reference(
        &mut self,
        head: &Head,
        refs: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        assert!(self.requester && !refs.is_empty());
        self.room()?;
        let mut head = *head;
        head.flags |= HeadFlags::BY_REFERENCE;
        let sum: u64 = refs.iter().map(|r| r.1).sum();
        let want = if head.op == rkey_link::Op::Read {
            head.total
        } else {
            head.len
        };
        assert_eq!(sum, u64::from(want));
        let list = References::new(refs).expect("not too long");
        self.outbox
            .push_back(Passing::Piece(head, Load::List(list)));
        self.sent += 1;
        Ok(self.sent - 1)
    }

    fn prefers_pieces(&self) -> bool {
        ((self.sent - self.acked) as usize) < self.pieces_first.min(self.window)
    }

    fn prefers_pieces_back(&self, len: u64) -> bool {
        len <= self.pieces_first as u64 * u64::from(self.caps.piece_max)
    }

    fn response(&self) -> Result<Option<Incoming<'_>>, Malformed> {
        Ok(if self.requester { self.front() } else { None })
    }

    fn response_done(&mut self) {
        if self.requester && self.front().is_some() {
            self.inbox.pop_front();
        }
    }

    fn acked(&mut self) -> Result<Ticket, Malformed> {
        while let (true, Some(Passing::Ack(ticket))) = (self.requester, self.inbox.front()) {
            self.acked = *ticket;
            self.inbox.pop_front();
        }
        Ok(self.acked)
    }

    fn incoming(&self) -> Result<Option<Incoming<'_>>, Malformed> {
        Ok(if self.requester { None } else { self.front() })
    }

    fn incoming_done(&mut self) {
        if !self.requester && self.inbox.pop_front().is_some() {
            self.done += 1;
        }
    }

    fn room_to_respond(&self) -> bool {
        !self.requester && self.outbox.len() < self.response_room
    }

    fn respond(
        &mut self,
        head: &Head,
        fill: impl FnOnce(Place<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        assert!(!self.requester && head.op.is_response());
        if self.outbox.len() >= self.response_room {
            return Err(SendError::Full);
        }
        self.send(head, fill)
    }

    fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError> {
        let peer = self.peer_memory.as_ref().ok_or(PullError::Gone)?;
        if self.refuse_reference {
            return Err(PullError::Refused);
        }
        let mut bytes = vec![0; len as usize];
        peer.load_bytes(&mut bytes, src)
            .map_err(|fault| PullError::Remote(fault.address))?;
        mem.store_bytes(dst, &bytes).map_err(PullError::Local)
    }

    fn push<M: Memory>(
        &self,
        mem: &M,
        dst_remote: u64,
        src_local: u64,
        len: u64,
    ) -> Result<(), PullError> {
        let peer = self.peer_memory.as_ref().ok_or(PullError::Gone)?;
        if self.refuse_reference {
            return Err(PullError::Refused);
        }
        let mut bytes = vec![0; len as usize];
        mem.load_bytes(&mut bytes, src_local)
            .map_err(PullError::Local)?;
        peer.store_bytes(dst_remote, &bytes)
            .map_err(|fault| PullError::Remote(fault.address))
    }

    fn pending(&self) -> bool {
        !self.inbox.is_empty() || (!self.requester && self.done > self.told)
    }

    fn flush(&mut self) {
        if !self.requester && self.done > self.told {
            self.told = self.done;
            self.outbox.push_back(Passing::Ack(self.done));
        }
    }
}

pub(crate) const CAPS: Capabilities = Capabilities {
    inline_max: 64,
    piece_max: 256,
    by_reference: false,
    reference_min: 1024,
    direct: false,
};

/// A device: engine, memory and protection table.
pub(crate) struct Node {
    pub(crate) engine: Engine<WireEnd, Arc<ArenaMemory>>,
    pub(crate) memory: Arc<ArenaMemory>,
    pub(crate) protection: Arc<Protection>,
    pub(crate) domain: DomainId,
    pub(crate) node: NodeId,
    next_qpn: u32,
}

pub(crate) fn limits() -> Limits {
    Limits {
        key_slots: 4096,
        ..Limits::default()
    }
}

pub(crate) const ALL: Access = Access::all();

impl Node {
    pub(crate) fn new(pid: u32) -> Self {
        Self::with(pid, EngineConfig::default())
    }

    pub(crate) fn with(pid: u32, config: EngineConfig) -> Self {
        Self::with_memory(pid, config, 1 << 22)
    }

    fn with_memory(pid: u32, config: EngineConfig, len: usize) -> Self {
        let node = NodeId {
            pid,
            nonce: u64::from(pid),
        };
        let memory = Arc::new(ArenaMemory::new(u64::from(pid) << 32, len));
        let seed = u64::from(pid) * 0x9e37_79b9;
        let protection = Arc::new(Protection::new(limits(), Secrets([seed, 2, 3, 4])));
        let domain = protection.create_domain().unwrap();
        let config = EngineConfig { node, ..config };
        let engine = Engine::new(config, Arc::clone(&protection), Arc::clone(&memory));
        Self {
            engine,
            memory,
            protection,
            domain,
            node,
            next_qpn: pid << 8,
        }
    }

    pub(crate) fn base(&self) -> u64 {
        self.memory.range().start()
    }

    pub(crate) fn register(&self, offset: u64, len: u64, access: Access) -> Region {
        let range = VaRange::new(self.base() + offset, len).unwrap();
        self.protection
            .register(&RegionSpec::new(self.domain, &[range], access))
            .unwrap()
    }

    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(self.base() + offset, bytes);
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        self.memory.read(self.base() + offset, len)
    }

    pub(crate) fn sge(&self, region: &Region, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.base() + offset,
            len,
            key: region.local_key,
        }
    }

    pub(crate) fn target(&self, region: &Region, offset: u64) -> Target {
        Target {
            addr: self.base() + offset,
            key: WireKey::Device(region.key),
        }
    }

    /// A queue pair with a completion queue of its own.
    pub(crate) fn qp(&mut self, change: impl FnOnce(&mut QpConfig)) -> Qp {
        let cq = self.engine.create_cq(1024).unwrap();
        let mut config = QpConfig::new(QpType::Rc, self.domain, cq.id());
        change(&mut config);
        let qpn = self.next_qpn;
        self.next_qpn += 1;
        let id = self.engine.create_qp(&config, qpn).unwrap();
        Qp { id, qpn, cq }
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    pub(crate) fn state(&self, qp: &Qp) -> QpState {
        self.engine.query_qp(qp.id).unwrap().state
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Qp {
    pub(crate) id: QpId,
    pub(crate) qpn: u32,
    pub(crate) cq: Arc<CqShared>,
}

impl Qp {
    pub(crate) fn poll(&self) -> Vec<Completion> {
        let mut all = vec![Completion::default(); 256];
        let n = self.cq.pop(&mut all);
        all.truncate(n);
        all
    }
}

/// Two nodes and the wires between them.
pub(crate) struct Pair {
    pub(crate) nodes: [Node; 2],
    /// Requester ends: `[0]` is at node 0.
    pub(crate) ends: [LinkId; 2],
    /// Responder ends.
    pub(crate) tails: [LinkId; 2],
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
        let ends = [end(0, true), end(1, true)];
        let tails = [end(0, false), end(1, false)];
        Self {
            nodes,
            ends,
            tails,
            now: 0,
        }
    }

    /// The wire end of a node.
    pub(crate) fn end(&mut self, at: usize) -> &mut WireEnd {
        self.nodes[at].engine.link_mut(self.ends[at]).unwrap()
    }

    pub(crate) fn tail(&mut self, at: usize) -> &mut WireEnd {
        self.nodes[at].engine.link_mut(self.tails[at]).unwrap()
    }

    /// Carries at most `count` things from requester `at` to its responder.
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

    /// Carries at most `count` things back to requester `at`.
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
        (0..2)
            .map(|at| self.carry_requests(at, usize::MAX) + self.carry_responses(at, usize::MAX))
            .sum()
    }

    pub(crate) fn drive(&mut self, at: usize, budget: u32) -> Progress {
        self.nodes[at].engine.drive(self.now, budget)
    }

    /// Until nothing moves, without letting time pass.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            let did = self.drive(0, 64).did | self.drive(1, 64).did;
            if self.carry_all() == 0 && !did {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Until nothing moves and no deadline is left before `limit`.
    pub(crate) fn run(&mut self, limit: u64) {
        loop {
            self.settle();
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

    /// Brings one side up to ready-to-send. `change` sees the attributes of each step.
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

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

pub(crate) fn send_work() -> Work {
    Work::Send {
        imm: None,
        invalidate: None,
    }
}

pub(crate) fn statuses(all: &[Completion]) -> Vec<(u64, Status)> {
    all.iter().map(|c| (c.id, c.status)).collect()
}

pub(crate) const NO_KEY: LocalKey = LocalKey(0);
pub(crate) const NO_RKEY: Key = Key(0);
