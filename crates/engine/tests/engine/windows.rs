//! Windows that are bound and invalidated by send queue work.

use crate::support::*;
use rkey_base::range::VaRange;
use rkey_core::{Access, Key, RKey, Region, Rules, Window, WindowKind};
use rkey_engine::*;

struct Bound {
    pair: Pair,
    a: Qp,
    b: Qp,
    mine: Region,
    theirs: Region,
    window: Window,
}

const RW: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn world(kind: WindowKind) -> Bound {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, _| {});
    let mine = pair.nodes[0].register(0, 1 << 16, ALL);
    let theirs = pair.nodes[1].register(0, 1 << 16, ALL);
    let window = pair.nodes[1]
        .protection
        .create_window(pair.nodes[1].domain, kind)
        .unwrap();
    Bound {
        pair,
        a,
        b,
        mine,
        theirs,
        window,
    }
}

impl Bound {
    fn bind(&self, range: (u64, u64), access: Access, key: Option<Key>) -> Work {
        let start = self.pair.nodes[1].base() + range.0;
        Work::Bind {
            window: self.window.id,
            region: self.theirs.local_key,
            range: VaRange::new(start, range.1).unwrap(),
            access,
            zero_based: false,
            key,
            rules: Rules::VERBS,
        }
    }

    fn post_b(&mut self, id: u64, work: Work) {
        let b = self.b.clone();
        self.pair.send(1, &b, &SendRequest::new(id, work, &[]));
    }

    /// Node 0 writes 8 bytes through a key; returns the status.
    fn write(&mut self, key: Key, offset: u64) -> Status {
        let sge = [self.pair.nodes[0].sge(&self.mine, 0, 8)];
        let remote = Target {
            addr: self.pair.nodes[1].base() + offset,
            key: RKey::Device(key),
        };
        let a = self.a.clone();
        self.pair.send(
            0,
            &a,
            &SendRequest::new(7, Work::Write { remote, imm: None }, &sge),
        );
        self.pair.run_until_idle();
        self.a.poll()[0].status
    }

    fn next_key(&self) -> Key {
        self.pair.nodes[1]
            .protection
            .next_window_key(self.window.id)
            .unwrap()
    }
}

/// A bind is executed in send queue order; the window then grants access to exactly its part with exactly its rights.
///
/// Proves: DA-003
#[test]
fn a_window_grants_access_to_exactly_its_range() {
    for (offset, ok) in [(4096, true), (8184, true), (8185, false), (4095, false)] {
        let mut world = world(WindowKind::Type1);
        let key = world.next_key();
        world.post_b(1, world.bind((4096, 4096), RW, Some(key)));
        world.pair.run_until_idle();
        let done = world.b.poll();
        assert_eq!(statuses(&done), [(1, Status::Success)]);
        assert_eq!(done[0].opcode, CompletionOp::Bind);
        let want = if ok {
            Status::Success
        } else {
            Status::RemoteAccess
        };
        assert_eq!(world.write(key, offset), want, "{offset}");
    }
}

/// The new key may be sent right after the bind on the same queue pair: the bind is complete before
/// the send starts, over many rounds.
///
/// Proves: DA-024, DA-034, DA-035, DA-036, VB-I14
#[test]
fn a_key_may_be_sent_right_after_its_bind() {
    let mut world = world(WindowKind::Type1);
    for round in 0..200u32 {
        let key = world.next_key();
        world.pair.recv(0, &world.a.clone(), 50, &[]);
        let bind = world.bind((0, 4096), RW, Some(key));
        world.post_b(1, bind);
        world.post_b(
            2,
            Work::Send {
                imm: Some(key.0),
                invalidate: None,
            },
        );
        // Delivers only until the key has arrived, then uses it at once.
        while world.a.cq.is_empty() {
            world.pair.carry_requests(1, 1);
            world.pair.drive(0, 1);
        }
        let got = world.a.poll();
        assert_eq!(got[0].imm, key.0);
        world.pair.nodes[0].fill(0, &u64::from(round).to_ne_bytes());
        assert_eq!(world.write(Key(got[0].imm), 8), Status::Success);
        assert_eq!(
            world.pair.nodes[1].bytes(8, 8),
            u64::from(round).to_ne_bytes()
        );
        world.pair.run_until_idle();
        assert_eq!(world.b.poll().len(), 2);
    }
}

/// A rebind makes the previous key stale, and nothing can be changed through it.
///
/// Proves: DA-025, VB-I17
#[test]
fn a_rebind_makes_the_old_key_stale() {
    let mut world = world(WindowKind::Type1);
    let old = world.next_key();
    world.post_b(1, world.bind((0, 4096), RW, Some(old)));
    world.pair.nodes[0].fill(0, &[1; 8]);
    assert_eq!(world.write(old, 0), Status::Success);
    let new = world.next_key();
    assert_ne!(old, new);
    world.post_b(2, world.bind((0, 4096), RW, Some(new)));
    world.pair.run_until_idle();
    world.pair.nodes[0].fill(0, &[2; 8]);
    assert_eq!(world.write(old, 0), Status::RemoteAccess);
    assert_eq!(world.pair.nodes[1].bytes(0, 8), [1; 8]);
}

/// A bind of no bytes unbinds the window.
#[test]
fn a_bind_of_no_bytes_unbinds_the_window() {
    let mut world = world(WindowKind::Type1);
    let key = world.next_key();
    world.post_b(1, world.bind((0, 4096), RW, Some(key)));
    assert!(
        world.pair.nodes[1]
            .protection
            .deregister(world.theirs.id)
            .is_err()
    );
    let next = world.next_key();
    world.post_b(2, world.bind((0, 0), RW, Some(next)));
    world.pair.run_until_idle();
    assert_eq!(
        statuses(&world.b.poll()),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(world.write(key, 0), Status::RemoteAccess);
    assert!(world.pair.nodes[1].close(&world.theirs));
}

/// A type 2 window: the program chooses the key, and must invalidate it before it binds again.
///
/// Proves: VB-I18
#[test]
fn type_two_windows_are_invalidated_before_they_are_bound_again() {
    let mut world = world(WindowKind::Type2B);
    let first = world.window.key.with_consumer_bits(1);
    let second = world.window.key.with_consumer_bits(2);
    world.post_b(1, world.bind((0, 4096), RW, Some(first)));
    world.pair.run_until_idle();
    assert_eq!(world.write(first, 0), Status::Success);
    world.post_b(2, Work::Invalidate { key: first });
    world.post_b(3, world.bind((0, 4096), RW, Some(second)));
    world.pair.run_until_idle();
    let done = world.b.poll();
    assert_eq!(statuses(&done), [1, 2, 3].map(|id| (id, Status::Success)));
    assert_eq!(done[1].opcode, CompletionOp::Invalidate);
    assert_eq!(world.write(second, 0), Status::Success);
    // Again, without invalidating.
    world.post_b(4, world.bind((0, 4096), RW, Some(first)));
    world.post_b(5, send_work());
    world.pair.run_until_idle();
    let want = [(4, Status::WindowBind), (5, Status::Flushed)];
    assert_eq!(statuses(&world.b.poll()), want);
    let events = world.pair.nodes[1].events();
    assert!(
        events
            .iter()
            .any(|e| matches!(e, Event::BindFailed { work_id: 4, .. }))
    );
}

/// A send can invalidate the key that its sender was given.
#[test]
fn a_send_of_the_peer_can_invalidate_a_key() {
    let mut world = world(WindowKind::Type2B);
    let key = world.window.key.with_consumer_bits(9);
    world.post_b(1, world.bind((0, 4096), RW, Some(key)));
    world.pair.run_until_idle();
    let (a, b) = (world.a.clone(), world.b.clone());
    world.pair.recv(1, &b, 50, &[]);
    let work = Work::Send {
        imm: None,
        invalidate: Some(key),
    };
    world.pair.send(0, &a, &SendRequest::new(2, work, &[]));
    world.pair.run_until_idle();
    let got = world.b.poll();
    assert_eq!(
        statuses(&got),
        [(1, Status::Success), (50, Status::Success)]
    );
    assert_eq!(
        (got[1].flags, got[1].imm),
        (CompletionFlags::INVALIDATED, key.0)
    );
    assert_eq!(statuses(&world.a.poll()), [(2, Status::Success)]);
    assert_eq!(world.write(key, 0), Status::RemoteAccess);

    // A key that does not belong to a window is refused, and the receive ends with an error.
    let mut world = self::world(WindowKind::Type2B);
    let (a, b) = (world.a.clone(), world.b.clone());
    world.pair.recv(1, &b, 50, &[]);
    let work = Work::Send {
        imm: None,
        invalidate: Some(world.theirs.key),
    };
    world.pair.send(0, &a, &SendRequest::new(2, work, &[]));
    world.pair.run_until_idle();
    assert_eq!(statuses(&world.b.poll()), [(50, Status::LocalAccess)]);
    assert_eq!(statuses(&world.a.poll()), [(2, Status::RemoteAccess)]);
}

/// The binds request rights that the region does not have, or memory that it does not cover, or name a region without the
/// right to bind.
///
/// Proves: VB-I13
#[test]
fn invalid_binds_fail() {
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
    for (which, right) in (0..3).flat_map(|which| rights.map(|right| (which, right))) {
        let mut world = world(WindowKind::Type1);
        let access = match which {
            0 => Access::LOCAL_READ | right | Access::BIND, // no local write
            1 => ALL.difference(Access::BIND),
            _ => ALL,
        };
        world.theirs = world.pair.nodes[1].register(0, 4096, access);
        let range = if which == 2 { (1, 4096) } else { (0, 4096) };
        let key = world.next_key();
        world.post_b(1, world.bind(range, right, Some(key)));
        world.pair.run_until_idle();
        assert_eq!(
            statuses(&world.b.poll()),
            [(1, Status::WindowBind)],
            "{which} {right:?}"
        );
        assert_eq!(world.pair.nodes[1].state(&world.b), QpState::Error);
        let over = world.pair.nodes[1].close(&world.theirs);
        assert!(over, "nothing is bound");
    }
}

/// A fenced bind starts only when the reads before it are complete.
///
/// Proves: DA-I14
#[test]
fn a_fenced_bind_waits_for_reads() {
    let mut world = world(WindowKind::Type1);
    let b = world.b.clone();
    let sge = [world.pair.nodes[1].sge(&world.theirs, 0, 8)];
    let remote = world.pair.nodes[0].target(&world.mine, 0);
    world
        .pair
        .send(1, &b, &SendRequest::new(1, Work::Read { remote }, &sge));
    let key = world.next_key();
    let mut request = SendRequest::new(2, world.bind((0, 4096), RW, Some(key)), &[]);
    request.flags |= SendFlags::FENCE;
    world.pair.send(1, &b, &request);
    world.pair.drive(1, 64);
    let who = rkey_core::Accessor {
        domain: world.pair.nodes[1].domain,
        qp: b.qpn,
        peer: None,
    };
    let bound = |world: &Bound| {
        let base = world.pair.nodes[1].base();
        let key = RKey::Device(key);
        let table = &world.pair.nodes[1].protection;
        table
            .check_remote(&who, key, base, 8, rkey_core::Operation::Read)
            .is_ok()
    };
    assert!(!bound(&world));
    world.pair.run_until_idle();
    assert!(bound(&world));
    assert_eq!(
        statuses(&b.poll()),
        [(1, Status::Success), (2, Status::Success)]
    );
}

/// A flushed bind was not executed, and releases its reserved key.
#[test]
fn a_flushed_bind_does_not_bind() {
    let mut world = world(WindowKind::Type1);
    let b = world.b.clone();
    world.pair.nodes[1]
        .engine
        .modify_qp(b.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    let key = world.next_key();
    world.post_b(1, world.bind((0, 4096), RW, Some(key)));
    assert_eq!(statuses(&b.poll()), [(1, Status::Flushed)]);
    let over = world.pair.nodes[1].close(&world.theirs);
    assert!(over, "nothing is bound");
}
