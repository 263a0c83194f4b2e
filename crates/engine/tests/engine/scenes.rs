//! Situations in which short requests are posted, and every effect that the requests can have: tests compare two ways that requests
//! can take, which must not differ in anything else.

use crate::support::*;
use rkey_base::range::VaRange;
use rkey_core::{Access, Addressing, Key, RKey, Region, RegionSpec, Rules, WindowKind};
use rkey_engine::*;
use rkey_link::{Capabilities, DownReason};

/// Two nodes in some situation, before requests are posted.
pub(crate) struct Scene {
    pub(crate) pair: Pair,
    pub(crate) qps: [Qp; 2],
    pub(crate) regions: [Region; 2],
    /// What happens between two posts in this situation.
    between: fn(&mut Scene, u64),
}

/// Every effect that requests can have.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) posts: Vec<Result<(), PostError>>,
    /// The fragments that each post put on the wire.
    wire: Vec<String>,
    completions: [Vec<String>; 2],
    states: Vec<QpState>,
    events: [Vec<String>; 2],
    memory: [Vec<u8>; 2],
}

fn scene(qp_type: QpType, change: impl Fn(usize, &mut QpConfig)) -> Scene {
    scene_with(qp_type, true, change)
}

fn scene_with(qp_type: QpType, receives: bool, change: impl Fn(usize, &mut QpConfig)) -> Scene {
    scene_of(Pair::new(), qp_type, receives, change)
}

fn scene_of(
    mut pair: Pair,
    qp_type: QpType,
    receives: bool,
    change: impl Fn(usize, &mut QpConfig),
) -> Scene {
    let qps = [0, 1].map(|at| {
        pair.nodes[at].qp(|config| {
            config.qp_type = qp_type;
            change(at, config);
        })
    });
    pair.ready(&qps, |_, _| {});
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 4096, ALL));
    pair.nodes[0].fill(0, &pattern(5, 4096));
    for id in 0..if receives { 4 } else { 0 } {
        let room = [pair.nodes[1].sge(&regions[1], 2048 + 128 * id, 128)];
        pair.recv(1, &qps[1], 900 + id, &room);
    }
    Scene {
        pair,
        qps,
        regions,
        between: |_, _| {},
    }
}

pub(crate) fn plain() -> Scene {
    scene(QpType::Rc, |_, _| {})
}

impl Scene {
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn between(mut self, act: fn(&mut Self, u64)) -> Self {
        self.between = act;
        self
    }

    fn to(&mut self, at: usize, state: QpState) {
        let id = self.qps[at].id;
        let attributes = QpAttributes::to(state);
        self.pair.nodes[at]
            .engine
            .modify_qp(id, &attributes)
            .unwrap();
    }

    /// Posts a request. With `short`, posts a signalled message of a prefix and an entry with [`Engine::post_short`], if
    /// that sends it.
    fn post(&mut self, request: &SendRequest<'_>, short: bool) -> Result<(), PostError> {
        let (engine, qp) = (&mut self.pair.nodes[0].engine, self.qps[0].id);
        if short
            && request.flags == SendFlags::SIGNALED
            && let (Ok(prefix), [sge]) = (<&[u8; 16]>::try_from(request.prefix), request.sges)
            && engine.post_short(qp, request.id, prefix, *sge)
        {
            return Ok(());
        }
        engine.post_send(qp, request)
    }

    /// Registers the target's memory anew, and enables it if need be.
    fn register_at_target(&mut self, change: impl FnOnce(&mut RegionSpec<'_>)) {
        let node = &self.pair.nodes[1];
        let range = [VaRange::new(node.base(), 4096).unwrap()];
        let mut spec = RegionSpec::new(node.domain, &range, ALL);
        change(&mut spec);
        self.regions[1] = node.protection.register(&spec).unwrap();
    }

    /// Posts a receive of these bytes of the target's memory.
    fn receive_at_target(&mut self, id: u64, at: u64, lens: &[u32]) {
        let sge = |len: &u32| self.pair.nodes[1].sge(&self.regions[1], at, *len);
        let sges: Vec<Sge> = lens.iter().map(sge).collect();
        self.pair.recv(1, &self.qps[1], id, &sges);
    }

    /// Binds a window to these bytes of the target's memory; returns its key.
    fn bind_at_target(&mut self, at: u64, len: u64) -> Key {
        let node = &self.pair.nodes[1];
        let table = &node.protection;
        let kind = WindowKind::Type1;
        let window = table.create_window(node.domain, kind).unwrap().id;
        let key = table.next_window_key(window).unwrap();
        let work = Work::Bind {
            window,
            region: self.regions[1].local_key,
            range: VaRange::new(node.base() + at, len).unwrap(),
            access: Access::REMOTE,
            zero_based: false,
            key: Some(key),
            rules: Rules::VERBS,
        };
        self.pair
            .send(1, &self.qps[1], &SendRequest::new(600, work, &[]));
        self.pair.run_until_idle();
        assert_eq!(statuses(&self.qps[1].poll()), [(600, Status::Success)]);
        key
    }

    /// Changes the rights of the target's queue pair.
    fn allow_at_target(&mut self, access: Access) {
        let attributes = QpAttributes {
            access: Some(access),
            ..QpAttributes::default()
        };
        let id = self.qps[1].id;
        self.pair.nodes[1]
            .engine
            .modify_qp(id, &attributes)
            .unwrap();
    }

    /// Sends a write of no bytes: from then on, the target's queue pair is established.
    pub(crate) fn establish(&mut self) {
        let remote = Target {
            addr: 0,
            key: RKey::Device(NO_RKEY),
        };
        let request = SendRequest::new(999, Work::Write { remote, imm: None }, &[]);
        self.pair.send(0, &self.qps[0], &request);
        self.pair.run_until_idle();
        assert_eq!(statuses(&self.qps[0].poll()), [(999, Status::Success)]);
    }

    /// Posts short sends and writes of every kind, and lets them end.
    pub(crate) fn play(self, extra: SendFlags, short: bool) -> Outcome {
        self.play_each(|scene, id| scene.post_message(id, extra, short))
    }

    fn post_message(&mut self, id: u64, extra: SendFlags, short: bool) -> Result<(), PostError> {
        let (near, far) = (&self.pair.nodes[0], &self.pair.nodes[1]);
        let remote = far.target(&self.regions[1], 64 * id);
        let sges = [near.sge(&self.regions[0], 32 * id, 24)];
        let write = Work::Write { remote, imm: None };
        let mut request = SendRequest::new(id, write, &sges);
        let bytes = pattern(id, 40);
        match id % 4 {
            0 => (request.inline, request.sges) = (Some(&bytes[..8]), &[]),
            1 => {}
            2 => (request.work, request.prefix) = (send_work(), &bytes[..16]),
            _ => {
                (request.work, request.inline) = (send_work(), Some(&bytes[..]));
                request.sges = &[];
            }
        }
        request
            .flags
            .set(SendFlags::SIGNALED, !id.is_multiple_of(3));
        request.flags.set(SendFlags::SOLICITED, id == 10);
        request.flags |= extra;
        self.post(&request, short)
    }

    /// Posts requests, and lets them end.
    pub(crate) fn play_each(
        mut self,
        mut post: impl FnMut(&mut Self, u64) -> Result<(), PostError>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        for id in 0..12 {
            (self.between)(&mut self, id);
            let before = self.outbox();
            outcome.posts.push(post(&mut self, id));
            let after = self.outbox();
            outcome.wire.push(format!("{:?}", &after[before.len()..]));
            outcome.states.push(self.pair.nodes[0].state(&self.qps[0]));
        }
        self.pair.run(20_000 * MS);
        for at in 0..2 {
            let completions = self.qps[at].poll();
            outcome.completions[at] = completions.iter().map(|it| format!("{it:?}")).collect();
            outcome
                .states
                .push(self.pair.nodes[at].state(&self.qps[at]));
            let events = self.pair.nodes[at].events();
            outcome.events[at] = events.iter().map(|it| format!("{it:?}")).collect();
        }
        outcome.memory = [0, 1].map(|at| self.pair.nodes[at].bytes(0, 4096));
        outcome
    }

    /// The fragments that wait at the requester's end of the wire.
    fn outbox(&mut self) -> Vec<String> {
        let link = self.pair.nodes[0].engine.link_mut(self.pair.ends[0]);
        let passing = link.map(|link| link.outbox.iter().map(|it| format!("{it:?}")).collect());
        passing.unwrap_or_default()
    }
}

/// The name of a situation, and how to set it up. Together they cover every state of both queue pairs, their links, receives and
/// memory that affects whether, when or how a request is sent or executed.
pub(crate) type Situation = (&'static str, fn() -> Scene);

/// Kinds of queue pairs, and their limits.
fn queue_pairs() -> Vec<Situation> {
    vec![
        ("nothing waits", plain),
        ("one at a time", || {
            plain().between(|it, _| it.pair.run_until_idle())
        }),
        ("unreliable", || scene(QpType::Uc, |_, _| {})),
        ("all are signalled", || {
            scene(QpType::Rc, |_, config| config.signal_all = true)
        }),
        ("a full queue", || {
            scene(QpType::Rc, |_, config| config.max_send = 3)
        }),
        ("little inline data", || {
            scene(QpType::Rc, |_, config| config.max_inline = 16)
        }),
        ("no entries", || {
            scene(QpType::Rc, |_, config| config.max_send_sge = 0)
        }),
    ]
}

/// The link: full, lost, or missing.
fn links() -> Vec<Situation> {
    vec![
        ("a full link", || {
            plain().with(|it| it.pair.end(0).window = 5)
        }),
        ("a link that has room again", || {
            plain()
                .with(|it| it.pair.end(0).window = 2)
                .between(|it, id| {
                    if id % 4 == 3 {
                        it.pair.run_until_idle();
                    }
                })
        }),
        ("remote iovecs for short requests", || {
            let caps = Capabilities {
                remote_iovec: true,
                remote_iovec_min: 32,
                ..CAPS
            };
            let pair = Pair::with(caps, EngineConfig::default());
            scene_of(pair, QpType::Rc, true, |_, _| {})
        }),
        ("a link that is down", || {
            plain().between(|it, id| {
                if id == 5 {
                    it.pair.end(0).down = Some(DownReason::PeerGone);
                }
            })
        }),
        ("no link", || {
            plain().between(|it, id| {
                if id == 5 {
                    let end = it.pair.ends[0];
                    it.pair.nodes[0].engine.detach(end, DownReason::Closed);
                }
            })
        }),
    ]
}

/// States of both queue pairs, and the receives of the target.
fn states() -> Vec<Situation> {
    vec![
        ("draining", || {
            plain().between(|it, id| match id {
                4 => it.to(0, QpState::Sqd),
                9 => it.to(0, QpState::Rts),
                _ => {}
            })
        }),
        ("failed here", || {
            plain().between(|it, id| {
                if id == 6 {
                    it.to(0, QpState::Error);
                }
            })
        }),
        ("reset", || {
            plain().between(|it, id| {
                if id == 6 {
                    it.to(0, QpState::Reset);
                }
            })
        }),
        ("failed there", || {
            plain().between(|it, id| {
                if id == 6 {
                    it.pair.run_until_idle();
                    it.to(1, QpState::Error);
                }
            })
        }),
        ("receives are missing", || {
            plain().between(|it, id| {
                if id == 10 {
                    let room = it.pair.nodes[1].sge(&it.regions[1], 3072, 128);
                    for more in 0..4 {
                        it.pair.recv(1, &it.qps[1], 950 + more, &[room]);
                    }
                }
                it.pair.run_until_idle();
            })
        }),
        ("receives come late", || {
            plain().between(|it, id| {
                it.pair.run_until_idle();
                it.pair.now += MS / 4;
                if id == 11 {
                    let room = it.pair.nodes[1].sge(&it.regions[1], 3072, 128);
                    for more in 0..4 {
                        it.pair.recv(1, &it.qps[1], 950 + more, &[room]);
                    }
                }
            })
        }),
    ]
}

/// Memory that may not be accessed, and completion queues that are full.
fn resources() -> Vec<Situation> {
    vec![
        ("no right to write there", || {
            plain().with(|it| {
                let rights = Access::REMOTE_READ;
                it.regions[1] = it.pair.nodes[1].register(0, 4096, rights);
            })
        }),
        ("a key that is stale there", || {
            plain().between(|it, id| {
                if id == 4 {
                    it.pair.run_until_idle();
                    assert!(it.pair.nodes[1].close(&it.regions[1]));
                }
            })
        }),
        ("a key that is stale here", || {
            plain().between(|it, id| {
                if id == 5 {
                    assert!(it.pair.nodes[0].close(&it.regions[0]));
                }
            })
        }),
        ("memory that is not mapped", || {
            plain().with(|it| {
                let hole = VaRange::new(it.pair.nodes[0].base() + 32 * 5, 8).unwrap();
                it.pair.nodes[0].memory.poison(hole);
            })
        }),
        ("a queue that overran", || {
            plain().with(|it| {
                let cq = it.qps[0].cq.id();
                it.pair.nodes[0].engine.resize_cq(cq, 2).unwrap();
            })
        }),
    ]
}

/// The memory that writes name at the target.
fn targets() -> Vec<Situation> {
    vec![
        ("a requested key", || {
            plain().with(|it| it.register_at_target(|spec| spec.requested_key = Some(1 << 40)))
        }),
        ("a window", || {
            plain().with(|it| {
                it.regions[1].key = it.bind_at_target(8, 600);
            })
        }),
        ("a scatter list", || {
            plain().with(|it| {
                let base = it.pair.nodes[1].base();
                let ranges = [(0, 300), (1000, 300)].map(|(at, len)| VaRange::new(base + at, len));
                let ranges = ranges.map(Option::unwrap);
                let node = &it.pair.nodes[1];
                let mut spec = RegionSpec::new(node.domain, &ranges, ALL);
                spec.addressing = Addressing::Iova(base);
                it.regions[1] = node.protection.register(&spec).unwrap();
            })
        }),
        ("a zero-based region", || {
            plain().with(|it| it.register_at_target(|spec| spec.addressing = Addressing::Zero))
        }),
        ("a region for another peer", || {
            plain().with(|it| it.register_at_target(|spec| spec.peer = Some(77)))
        }),
        ("a disabled region", || {
            plain().with(|it| it.register_at_target(|spec| spec.disabled = true))
        }),
        ("a region with a counter", || {
            plain().with(|it| {
                it.register_at_target(|spec| spec.disabled = true);
                let (table, id) = (&it.pair.nodes[1].protection, it.regions[1].id);
                table.bind_counter(id, 42).unwrap();
                table.enable(id).unwrap();
            })
        }),
        ("a region that ends before the last writes", || {
            plain().with(|it| it.regions[1] = it.pair.nodes[1].register(0, 600, ALL))
        }),
        ("memory that is not mapped there", || {
            plain().with(|it| {
                let hole = VaRange::new(it.pair.nodes[1].base() + 64 * 5 + 4, 8).unwrap();
                it.pair.nodes[1].memory.poison(hole);
            })
        }),
        ("a queue pair whose rights change", || {
            plain().between(|it, id| match id {
                4 => {
                    it.pair.run_until_idle();
                    it.allow_at_target(Access::REMOTE_READ);
                }
                _ => it.pair.now += MS,
            })
        }),
        ("a queue pair that no longer allows reads", || {
            plain().between(|it, id| {
                it.pair.run_until_idle();
                if id == 4 {
                    it.allow_at_target(Access::REMOTE_WRITE);
                }
            })
        }),
        ("a queue pair that serves no reads", || {
            plain().with(|it| {
                let none = QpAttributes {
                    max_reads_in: Some(0),
                    ..QpAttributes::to(QpState::Sqd)
                };
                it.to(1, QpState::Sqd);
                let id = it.qps[1].id;
                it.pair.nodes[1].engine.modify_qp(id, &none).unwrap();
                it.to(1, QpState::Rts);
            })
        }),
    ]
}

/// A target of sends that has no receives yet.
fn without_receives(change: impl Fn(usize, &mut QpConfig)) -> Scene {
    scene_with(QpType::Rc, false, change)
}

/// The receives of the target, and where they complete.
fn receives() -> Vec<Situation> {
    vec![
        ("a receive that is too small", || {
            without_receives(|_, _| {}).with(|it| {
                it.receive_at_target(1, 2048, &[128]);
                it.receive_at_target(2, 2048, &[16]);
                it.receive_at_target(3, 2048, &[128]);
            })
        }),
        ("receives of several entries, and of none", || {
            without_receives(|_, config| config.max_recv_sge = 3).with(|it| {
                it.receive_at_target(1, 2048, &[8, 16, 64]);
                it.receive_at_target(2, 3000, &[5, 0, 128]);
                it.receive_at_target(3, 3200, &[]);
            })
        }),
        ("shared receives", || {
            let mut pair = Pair::new();
            let node = &mut pair.nodes[1];
            let srq = node.engine.create_srq(node.domain, 8, 1).unwrap();
            let of_target = |at, config: &mut QpConfig| config.srq = (at == 1).then_some(srq);
            let scene = scene_of(pair, QpType::Rc, false, of_target);
            scene.with(|it| {
                let node = &mut it.pair.nodes[1];
                for (id, len) in [(1, 128), (2, 64), (3, 16), (4, 128)] {
                    let sges = [node.sge(&it.regions[1], 2048 + 128 * id, len)];
                    let receive = RecvRequest { id, sges: &sges };
                    node.engine.post_srq_recv(srq, &receive).unwrap();
                }
                node.engine.modify_srq(srq, Some(3), None).unwrap();
            })
        }),
        ("a receive whose key is stale", || {
            without_receives(|_, _| {}).with(|it| {
                it.receive_at_target(1, 2048, &[128]);
                let gone = it.pair.nodes[1].register(2048, 256, ALL);
                let sge = it.pair.nodes[1].sge(&gone, 2048, 128);
                it.pair.recv(1, &it.qps[1], 2, &[sge]);
                assert!(it.pair.nodes[1].close(&gone));
            })
        }),
        ("a receive in memory that is not mapped", || {
            plain().with(|it| {
                let hole = VaRange::new(it.pair.nodes[1].base() + 2048 + 128 + 8, 8).unwrap();
                it.pair.nodes[1].memory.poison(hole);
            })
        }),
        ("an armed completion queue", || {
            plain().between(|it, id| {
                it.pair.run_until_idle();
                let cq = it.qps[1].cq.id();
                it.pair.nodes[1].engine.arm_cq(cq, id % 2 == 0).unwrap();
            })
        }),
        ("a full completion queue there", || {
            plain().with(|it| {
                let cq = it.qps[1].cq.id();
                it.pair.nodes[1].engine.resize_cq(cq, 2).unwrap();
            })
        }),
        ("a target that has requests of its own", || {
            plain().between(|it, id| {
                let sges = [it.pair.nodes[1].sge(&it.regions[1], 0, 8)];
                let remote = it.pair.nodes[0].target(&it.regions[0], 4000);
                let request = SendRequest::new(500 + id, Work::Write { remote, imm: None }, &sges);
                it.pair.send(1, &it.qps[1], &request);
                it.pair.carry_all();
                it.pair.drive(1, 64);
            })
        }),
        ("long messages between the short ones", || {
            plain().between(|it, id| {
                if id % 3 == 1 {
                    let sges = [it.pair.nodes[0].sge(&it.regions[0], 0, 700)];
                    let remote = it.pair.nodes[1].target(&it.regions[1], 3000);
                    let request =
                        SendRequest::new(500 + id, Work::Write { remote, imm: None }, &sges);
                    it.pair.send(0, &it.qps[0], &request);
                }
                it.pair.carry_requests(0, 2);
                it.pair.drive(1, 1);
            })
        }),
        ("a target without room for responses", || {
            plain().between(|it, id| {
                it.pair.tail(1).response_room = if id < 11 { 0 } else { 4 };
                it.pair.carry_requests(0, usize::MAX);
                it.pair.drive(1, 64);
            })
        }),
    ]
}

/// All situations.
pub(crate) fn situations() -> Vec<Situation> {
    [
        queue_pairs(),
        links(),
        states(),
        resources(),
        targets(),
        receives(),
    ]
    .concat()
}
