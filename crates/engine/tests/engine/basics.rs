//! Every operation runs once, over both kinds of link and with every copy mechanism.

use crate::support::*;
use rkey_base::memory::ArenaMemory;
use rkey_core::{Access, Protection, RKey, RegionSpec, Secrets};
use rkey_engine::*;
use rkey_link::loopback::Loopback;
use rkey_link::{Capabilities, NodeId};
use std::sync::Arc;

fn everything(pair: &mut Pair, len: u32) {
    let [a, b] = pair.connect(|_, _| {});
    let mine = pair.nodes[0].register(0, 1 << 20, ALL);
    let theirs = pair.nodes[1].register(0, 1 << 20, ALL);
    let data = pattern(u64::from(len), len as usize);
    pair.nodes[0].fill(0, &data);
    let sge = [pair.nodes[0].sge(&mine, 0, len)];
    let remote = pair.nodes[1].target(&theirs, 4096);

    pair.send(
        0,
        &a,
        &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
    );
    pair.run_until_idle();
    assert_eq!(pair.nodes[1].bytes(4096, len as usize), data);

    let back = [pair.nodes[0].sge(&mine, 500_000, len)];
    pair.send(0, &a, &SendRequest::new(2, Work::Read { remote }, &back));
    pair.run_until_idle();
    assert_eq!(pair.nodes[0].bytes(500_000, len as usize), data);

    let room = [pair.nodes[1].sge(&theirs, 200_000, len)];
    pair.recv(1, &b, 10, &room);
    pair.send(
        0,
        &a,
        &SendRequest::new(
            3,
            Work::Send {
                imm: Some(7),
                invalidate: None,
            },
            &sge,
        ),
    );
    pair.run_until_idle();
    assert_eq!(pair.nodes[1].bytes(200_000, len as usize), data);

    pair.recv(1, &b, 11, &[]);
    let remote = pair.nodes[1].target(&theirs, 300_000);
    pair.send(
        0,
        &a,
        &SendRequest::new(
            4,
            Work::Write {
                remote,
                imm: Some(8),
            },
            &sge,
        ),
    );
    pair.run_until_idle();
    assert_eq!(pair.nodes[1].bytes(300_000, len as usize), data);

    let done = a.poll();
    assert_eq!(
        statuses(&done),
        [1, 2, 3, 4].map(|id| (id, Status::Success))
    );
    use CompletionOp::{Read, Recv, RecvWriteImm, Send, Write};
    assert_eq!(
        done.iter().map(|c| c.opcode).collect::<Vec<_>>(),
        [Write, Read, Send, Write]
    );
    let got = b.poll();
    assert_eq!(statuses(&got), [10, 11].map(|id| (id, Status::Success)));
    assert_eq!((got[0].opcode, got[0].imm, got[0].bytes), (Recv, 7, len));
    assert_eq!(
        (got[1].opcode, got[1].imm, got[1].bytes),
        (RecvWriteImm, 8, len)
    );
    assert!(got[0].flags.contains(CompletionFlags::IMM));
    assert_eq!(got[0].src_qpn, a.qpn);
}

#[test]
fn every_operation_works_in_fragments() {
    for len in [0, 1, 8, 64, 65, 255, 256, 257, 5000, 100_000] {
        everything(&mut Pair::new(), len);
    }
}

#[test]
fn every_operation_works_by_remote_iovec() {
    let caps = Capabilities {
        remote_iovec: true,
        ..CAPS
    };
    for len in [1023, 1024, 5000, 150_000] {
        everything(&mut Pair::with(caps, EngineConfig::default()), len);
    }
}

/// Sends as much as fits in fragments, and the rest as a remote iovec.
#[test]
fn every_operation_works_partly_by_remote_iovec() {
    let caps = Capabilities {
        remote_iovec: true,
        ..CAPS
    };
    for len in [1024, 1025, 1300, 5000, 150_000] {
        for fragments in 1..6 {
            let mut pair = Pair::with(caps, EngineConfig::default());
            pair.end(0).fragments_first = fragments;
            everything(&mut pair, len);
        }
    }
}

#[test]
fn a_peer_that_cannot_reach_our_memory_gets_fragments() {
    let caps = Capabilities {
        remote_iovec: true,
        ..CAPS
    };
    for fragments in [0, 1, 3] {
        let mut pair = Pair::with(caps, EngineConfig::default());
        pair.tail(1).refuse_remote_iovec = true;
        pair.end(0).fragments_first = fragments;
        everything(&mut pair, 5000);
    }
}

/// When the post returns, the peer has the addresses of the payload that does not fit into the ring, so the program need
/// not poll to get it sent.
#[test]
fn a_long_message_is_sent_even_if_its_program_does_not_poll() {
    let caps = Capabilities {
        remote_iovec: true,
        ..CAPS
    };
    let mut pair = Pair::with(caps, EngineConfig::default());
    let [a, _b] = pair.connect(|_, _| {});
    let mine = pair.nodes[0].register(0, 1 << 20, ALL);
    let theirs = pair.nodes[1].register(0, 1 << 20, ALL);
    pair.nodes[0].fill(0, &pattern(3, 100_000));
    pair.end(0).fragments_first = 2;
    let sge = [pair.nodes[0].sge(&mine, 0, 100_000)];
    let remote = pair.nodes[1].target(&theirs, 0);
    let write = Work::Write { remote, imm: None };
    pair.send(0, &a, &SendRequest::new(1, write, &sge));
    assert!(pair.nodes[0].engine.exposes(mine.local_key));
    pair.carry_requests(0, usize::MAX);
    while pair.drive(1, 16).did {}
    assert_eq!(pair.nodes[1].bytes(0, 100_000), pattern(3, 100_000));
    pair.run_until_idle();
    assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
}

#[test]
fn atomics_change_eight_bytes_and_return_the_old_value() {
    let mut pair = Pair::new();
    let [a, _b] = pair.connect(|_, _| {});
    let mine = pair.nodes[0].register(0, 64, ALL);
    let theirs = pair.nodes[1].register(0, 64, ALL);
    pair.nodes[1].fill(8, &41u64.to_ne_bytes());
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    let remote = pair.nodes[1].target(&theirs, 8);
    pair.send(
        0,
        &a,
        &SendRequest::new(1, Work::FetchAdd { remote, add: 1 }, &sge),
    );
    pair.run_until_idle();
    assert_eq!(pair.nodes[0].bytes(0, 8), 41u64.to_ne_bytes());
    let swap = Work::CompareSwap {
        remote,
        compare: 42,
        swap: 7,
    };
    pair.send(0, &a, &SendRequest::new(2, swap, &sge));
    pair.run_until_idle();
    assert_eq!(pair.nodes[0].bytes(0, 8), 42u64.to_ne_bytes());
    assert_eq!(pair.nodes[1].bytes(8, 8), 7u64.to_ne_bytes());
    // A second compare-and-swap does not match and changes nothing.
    pair.send(0, &a, &SendRequest::new(3, swap, &sge));
    pair.run_until_idle();
    assert_eq!(pair.nodes[1].bytes(8, 8), 7u64.to_ne_bytes());
    assert_eq!(
        statuses(&a.poll()),
        [1, 2, 3].map(|id| (id, Status::Success))
    );
}

#[test]
fn every_operation_works_over_the_loopback() {
    let node = NodeId { pid: 1, nonce: 9 };
    let memory = Arc::new(ArenaMemory::new(1 << 32, 1 << 20));
    let protection = Arc::new(Protection::new(limits(), Secrets([1, 2, 3, 4])));
    let domain = protection.create_domain().unwrap();
    let base = memory.range().start();
    let spec = [memory.range()];
    let region = protection
        .register(&RegionSpec::new(domain, &spec, Access::all()))
        .unwrap();
    let config = EngineConfig {
        node,
        ..EngineConfig::default()
    };
    let section = protection.section().unwrap();
    let mut engine = Engine::new(config, section, Arc::clone(&memory));
    let link = engine.attach(Loopback::new(node));
    let cq = engine.create_cq(64).unwrap();
    let config = QpConfig::new(domain, &cq.id());
    let (a, b) = (
        engine.create_qp(&config, 256).unwrap(),
        engine.create_qp(&config, 257).unwrap(),
    );
    for (qp, other, at) in [(a, 257, 0), (b, 256, 1)] {
        let peer = Peer {
            qpn: other,
            node: Some(node),
        };
        for step in steps(QpType::Rc, peer, at) {
            engine.modify_qp(qp, &step).unwrap();
        }
        engine.connect_qp(qp, link).unwrap();
    }
    let mut all = vec![Completion::default(); 16];
    for len in [8u32, 500, 20_000, 300_000] {
        let data = pattern(3, len as usize);
        memory.write(base, &data);
        let sge = [Sge {
            addr: base,
            len,
            key: region.local_key,
        }];
        let remote = Target {
            addr: base + 400_000,
            key: RKey::Device(region.key),
        };
        let room = [Sge {
            addr: base + 720_000,
            len,
            key: region.local_key,
        }];
        engine
            .post_recv(b, &RecvRequest { id: 9, sges: &room })
            .unwrap();
        let write = Work::Write { remote, imm: None };
        engine
            .post_send(a, &SendRequest::new(1, write, &sge))
            .unwrap();
        engine
            .post_send(a, &SendRequest::new(2, send_work(), &sge))
            .unwrap();
        engine
            .post_send(b, &SendRequest::new(3, Work::Read { remote }, &room))
            .unwrap();
        let mut ids = Vec::new();
        for now in 0..10_000 {
            engine.drive(now, 64);
            let n = cq.pop(&mut all);
            ids.extend(statuses(&all[..n]));
            if ids.len() == 4 {
                break;
            }
        }
        ids.sort_by_key(|one| one.0);
        assert_eq!(ids, [1, 2, 3, 9].map(|id| (id, Status::Success)));
        assert_eq!(memory.read(base + 400_000, len as usize), data);
        assert_eq!(memory.read(base + 720_000, len as usize), data);
    }
    // A denial with both sides in one process is reported once: the completion names the target's report.
    let remote = Target {
        addr: base,
        key: RKey::Device(rkey_core::Key(0x7777_7777)),
    };
    let write = Work::Write { remote, imm: None };
    let sge = [Sge {
        addr: base,
        len: 8,
        key: region.local_key,
    }];
    engine
        .post_send(a, &SendRequest::new(8, write, &sge))
        .unwrap();
    for now in 0..100 {
        engine.drive(now, 64);
    }
    let n = cq.pop(&mut all);
    let denied = all[..n].iter().find(|done| done.id == 8).unwrap();
    assert_eq!(denied.status, Status::RemoteAccess);
    let reports = engine.reports();
    assert_eq!((reports.total(), reports.all().len()), (1, 1));
    let report = reports.find(denied.vendor).unwrap();
    assert_eq!((report.side, report.work_id), (Side::Target, Some(8)));
    let told = std::iter::from_fn(|| engine.poll_event());
    let told = told.filter(|event| matches!(event, Event::Denied(_)));
    assert_eq!(told.count(), 1);
}

/// While remote iovecs are disabled, requests carry their payload. Remote iovecs that were already sent remain outstanding
/// until the peer has acknowledged them.
#[test]
fn remote_iovecs_can_be_disabled() {
    let caps = Capabilities {
        remote_iovec: true,
        ..CAPS
    };
    let len = 200_000;
    for read in [false, true] {
        let mut pair = Pair::large(caps, 1 << 20);
        let [a, _b] = pair.connect(|_, _| {});
        let mine = pair.nodes[0].register(0, 1 << 20, ALL);
        let theirs = pair.nodes[1].register(0, 1 << 20, ALL);
        let (from, into) = if read { (1, 0) } else { (0, 1) };
        let sge = [pair.nodes[0].sge(&mine, 0, len)];
        let remote = pair.nodes[1].target(&theirs, 0);
        let work = if read {
            Work::Read { remote }
        } else {
            Work::Write { remote, imm: None }
        };
        for (id, held_back) in [(1, false), (2, true), (3, false)] {
            let data = pattern(id, len as usize);
            pair.nodes[from].fill(0, &data);
            pair.nodes[0].engine.forbid_remote_iovecs(held_back);
            pair.send(0, &a, &SendRequest::new(id, work, &sge));
            assert_eq!(pair.nodes[0].engine.has_remote_iovecs(), !held_back);
            pair.run_until_idle();
            assert!(!pair.nodes[0].engine.has_remote_iovecs());
            assert_eq!(statuses(&a.poll()), [(id, Status::Success)]);
            assert!(pair.nodes[into].bytes(0, len as usize) == data);
        }
    }
}

/// A message longer than one remote iovec allows uses several, and a long read shows progress, even if remote iovecs
/// stop working in the middle.
#[test]
#[cfg_attr(miri, ignore)]
fn long_messages_by_remote_iovec_show_progress() {
    let caps = Capabilities {
        remote_iovec: true,
        ..CAPS
    };
    let len = 40 << 20;
    for refuse in [false, true] {
        for read in [false, true] {
            let mut pair = Pair::large(caps, 64 << 20);
            let [a, _b] = pair.connect(|_, _| {});
            let mine = pair.nodes[0].register(0, 64 << 20, ALL);
            let theirs = pair.nodes[1].register(0, 64 << 20, ALL);
            let (from, into) = if read { (1, 0) } else { (0, 1) };
            let data = pattern(8, len as usize);
            pair.nodes[from].fill(0, &data);
            let sge = [pair.nodes[0].sge(&mine, 0, len)];
            let remote = pair.nodes[1].target(&theirs, 0);
            let work = if read {
                Work::Read { remote }
            } else {
                Work::Write { remote, imm: None }
            };
            pair.send(0, &a, &SendRequest::new(1, work, &sge));
            assert!(pair.nodes[0].engine.exposes(mine.local_key));
            pair.carry_all();
            for _ in 0..100 {
                pair.drive(1, 64); // 256 KiB
            }
            assert!(
                pair.carry_responses(0, usize::MAX) >= 1,
                "it shows progress"
            );
            pair.tail(1).refuse_remote_iovec = refuse;
            pair.run_until_idle();
            assert_eq!(
                statuses(&a.poll()),
                [(1, Status::Success)],
                "{refuse} {read}"
            );
            assert!(
                pair.nodes[into].bytes(0, len as usize) == data,
                "{refuse} {read}"
            );
            assert!(!pair.nodes[0].engine.exposes(mine.local_key));
        }
    }
}

/// The engine reports memory that a peer may still access, even after the request has ended on this side.
#[test]
fn remote_iovecs_outlive_their_requests() {
    let caps = Capabilities {
        remote_iovec: true,
        ..CAPS
    };
    let mut pair = Pair::with(caps, EngineConfig::default());
    let [a, _] = pair.connect(|_, _| {});
    let [mine, other] = [0, 0].map(|at| pair.nodes[0].register(at, 1 << 16, ALL));
    let theirs = pair.nodes[1].register(0, 1 << 16, ALL);
    let sge = [pair.nodes[0].sge(&mine, 0, 1 << 16)];
    let remote = pair.nodes[1].target(&theirs, 0);
    pair.send(0, &a, &SendRequest::new(1, Work::Read { remote }, &sge));
    pair.nodes[0]
        .engine
        .modify_qp(a.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    assert_eq!(statuses(&a.poll()), [(1, Status::Flushed)]);
    let links = pair.nodes[0].engine.links_exposing(mine.local_key);
    assert_eq!(links, [pair.ends[0]]);
    assert!(!pair.nodes[0].engine.exposes(other.local_key));
    assert_eq!(pair.nodes[0].engine.orphaned_links(a.qpn), links);
    assert_eq!(pair.nodes[0].engine.orphaned_links(a.qpn + 1), []);
    pair.nodes[0].engine.destroy_qp(a.id).unwrap();
    assert!(pair.nodes[0].engine.exposes(mine.local_key));
    assert_eq!(pair.nodes[0].engine.orphaned_links(a.qpn), links);
    pair.run_until_idle();
    assert!(!pair.nodes[0].engine.exposes(mine.local_key));
    assert_eq!(pair.nodes[0].engine.orphaned_links(a.qpn), []);
}

#[test]
fn an_atomic_write_needs_an_aligned_address() {
    for aligned in [true, false] {
        let mut pair = Pair::new();
        let [a, _] = pair.connect(|_, _| {});
        let theirs = pair.nodes[1].register(0, 64, Access::REMOTE_WRITE);
        let remote = pair.nodes[1].target(&theirs, if aligned { 8 } else { 4 });
        let work = Work::AtomicWrite { remote, value: 77 };
        pair.send(0, &a, &SendRequest::new(1, work, &[]));
        pair.run_until_idle();
        let done = a.poll();
        assert_eq!(done[0].opcode, CompletionOp::AtomicWrite);
        if aligned {
            assert_eq!((done[0].status, done[0].bytes), (Status::Success, 8));
            assert_eq!(pair.nodes[1].bytes(8, 8), 77u64.to_ne_bytes());
        } else {
            assert_eq!(done[0].status, Status::RemoteInvalidRequest);
        }
    }
}

/// Both sides send, each over its own link. The answer to a message arrives together with the message's acknowledgement, on a link
/// that was attached earlier.
#[test]
fn a_message_completes_before_the_answer_to_it() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, _| {});
    // From here on, the requests of node 0 use a link that it attached after the one on which it receives.
    let origin = Origin {
        process: Process::default(),
        here: false,
        explain: true,
    };
    pair.add_wire(origin, &a);
    let [mine, theirs] = [0, 1].map(|at| pair.nodes[at].register(0, 64, ALL));
    let sges = [
        [pair.nodes[0].sge(&mine, 0, 8)],
        [pair.nodes[1].sge(&theirs, 0, 8)],
    ];
    pair.recv(0, &a, 10, &sges[0]);
    pair.recv(1, &b, 20, &sges[1]);
    pair.send(0, &a, &SendRequest::new(1, send_work(), &sges[0]));
    pair.carry_all();
    pair.drive(1, 64);
    assert_eq!(statuses(&b.poll()), [(20, Status::Success)]);
    pair.send(1, &b, &SendRequest::new(2, send_work(), &sges[1]));
    pair.carry_all();
    pair.drive(0, 64);
    let both = [(1, Status::Success), (10, Status::Success)];
    assert_eq!(statuses(&a.poll()), both);
}
