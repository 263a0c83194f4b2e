//! Compares short requests that cut through to the link with the same requests through the send queue: nothing else may
//! differ.
//!
//! A fence sends a request through the send queue. Without outstanding reads it has no other effect, and the header
//! does not carry it.

use crate::support::*;
use rkey_base::range::VaRange;
use rkey_core::{Access, Region};
use rkey_engine::*;
use rkey_link::DownReason;

/// Two nodes in some situation, before requests are posted.
struct Scene {
    pair: Pair,
    qps: [Qp; 2],
    regions: [Region; 2],
    /// What happens between two posts in this situation.
    between: fn(&mut Scene, u64),
}

/// Every effect that requests can have.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    posts: Vec<Result<(), PostError>>,
    /// The fragments that each post put on the wire.
    wire: Vec<String>,
    completions: [Vec<String>; 2],
    states: Vec<QpState>,
    events: [Vec<String>; 2],
    memory: Vec<u8>,
}

fn scene(qp_type: QpType, change: impl Fn(usize, &mut QpConfig)) -> Scene {
    let mut pair = Pair::new();
    let qps = [0, 1].map(|at| {
        pair.nodes[at].qp(|config| {
            config.qp_type = qp_type;
            change(at, config);
        })
    });
    pair.ready(&qps, |_, _| {});
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 4096, ALL));
    pair.nodes[0].fill(0, &pattern(5, 4096));
    for id in 0..4 {
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

fn plain() -> Scene {
    scene(QpType::Rc, |_, _| {})
}

impl Scene {
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
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

    /// Posts short requests of every kind, and lets them end.
    fn play(mut self, extra: SendFlags, short: bool) -> Outcome {
        let mut outcome = Outcome::default();
        for id in 0..12 {
            (self.between)(&mut self, id);
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
            request.flags.set(SendFlags::SIGNALED, id % 3 != 0);
            request.flags |= extra;
            let before = self.outbox();
            outcome.posts.push(self.post(&request, short));
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
        outcome.memory = self.pair.nodes[1].bytes(0, 4096);
        outcome
    }

    /// The fragments that wait at the requester's end of the wire.
    fn outbox(&mut self) -> Vec<String> {
        let link = self.pair.nodes[0].engine.link_mut(self.pair.ends[0]);
        let passing = link.map(|link| link.outbox.iter().map(|it| format!("{it:?}")).collect());
        passing.unwrap_or_default()
    }
}

/// The name of a situation, and how to set it up. Together they cover every state of a queue pair, its link and its
/// memory that affects whether, when or how a request is sent.
type Situation = (&'static str, fn() -> Scene);

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

#[test]
fn cut_through_has_the_same_results_as_the_send_queue() {
    let situations = [queue_pairs(), links(), states(), resources()].concat();
    for (name, scene) in situations {
        let short = scene().play(SendFlags::empty(), false);
        let long = scene().play(SendFlags::FENCE, false);
        assert_eq!(short, long, "{name}");
        let shortest = scene().play(SendFlags::empty(), true);
        assert_eq!(shortest, long, "{name}, with post_short");
        let accepted = short.posts.iter().filter(|post| post.is_ok()).count();
        assert!(accepted > 0, "{name}: no request cut through");
    }
}

/// A request does not overtake waiting ones.
#[test]
fn no_request_overtakes_a_waiting_request() {
    let mut scene = plain();
    scene.pair.end(0).window = 1;
    let (near, far) = (&scene.pair.nodes[0], &scene.pair.nodes[1]);
    let sges = [near.sge(&scene.regions[0], 0, 8)];
    let remote = far.target(&scene.regions[1], 0);
    for id in 0..6 {
        let mut request = SendRequest::new(id, Work::Write { remote, imm: None }, &sges);
        let bytes = id.to_le_bytes();
        if id % 2 == 1 {
            (request.inline, request.sges) = (Some(&bytes[..]), &[]);
        }
        scene.pair.send(0, &scene.qps[0], &request);
        // The window opens while earlier requests wait: a later one must not take the room.
        scene.pair.end(0).window += usize::from(id == 3);
    }
    scene.pair.run_until_idle();
    let done = statuses(&scene.qps[0].poll());
    let want: Vec<_> = (0..6).map(|id| (id, Status::Success)).collect();
    assert_eq!(done, want);
    assert_eq!(scene.pair.nodes[1].bytes(0, 8), 5u64.to_le_bytes());
}
