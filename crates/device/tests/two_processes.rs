//! Operations between two processes, with a target that polls and with one that sleeps.

mod common;

use common::{Peer, Remote, Side, role, sleep_in_read, until};
use rkey_device::Qp;
use rkey_engine::{CompletionFlags, CompletionOp, SendRequest, Status, Work};

/// The target: connects, then sleeps in an unrelated read.
fn sleeping_target() {
    let side = Side::open();
    let (_qp, _) = side.connect();
    sleep_in_read();
}

fn every_one_sided_operation(side: &Side, qp: &Qp, remote: Remote) {
    // A write that fits into a slot, read back.
    side.set(0, 0x1234_5678_9abc_def0);
    let done = side.run(
        qp,
        Work::Write {
            remote: remote.at(8),
            imm: None,
        },
        &[side.sge(0, 8)],
    );
    assert_eq!(done.opcode, CompletionOp::Write);
    let done = side.run(
        qp,
        Work::Read {
            remote: remote.at(8),
        },
        &[side.sge(1, 8)],
    );
    assert_eq!((done.opcode, done.bytes), (CompletionOp::Read, 8));
    assert_eq!(side.word(1), 0x1234_5678_9abc_def0);
    // Atomics return the old value.
    let add = Work::FetchAdd {
        remote: remote.at(8),
        add: 16,
    };
    side.run(qp, add, &[side.sge(2, 8)]);
    assert_eq!(side.word(2), 0x1234_5678_9abc_def0);
    let swap = Work::CompareSwap {
        remote: remote.at(8),
        compare: 0x1234_5678_9abc_df00,
        swap: 5,
    };
    side.run(qp, swap, &[side.sge(2, 8)]);
    assert_eq!(side.word(2), 0x1234_5678_9abc_df00);
    side.run(
        qp,
        Work::Read {
            remote: remote.at(8),
        },
        &[side.sge(1, 8)],
    );
    assert_eq!(side.word(1), 5);
    // The sizes are around every limit of the ring.
    for words in [
        1usize, 2, 26, 27, 28, 100, 512, 1024, 2047, 2048, 2049, 8192, 14_000,
    ] {
        for (i, word) in side.memory[..words].iter().enumerate() {
            word.store(
                (words * 1_000_003 + i) as u64,
                std::sync::atomic::Ordering::Relaxed,
            );
        }
        let bytes = words as u32 * 8;
        side.run(
            qp,
            Work::Write {
                remote: remote.at(16),
                imm: None,
            },
            &[side.sge(0, bytes)],
        );
        let back = 16_000;
        side.run(
            qp,
            Work::Read {
                remote: remote.at(16),
            },
            &[side.sge(back, bytes)],
        );
        for i in 0..words {
            assert_eq!(
                side.word(back + i),
                (words * 1_000_003 + i) as u64,
                "{words} words, at {i}"
            );
        }
    }
}

/// Writes, reads and atomics complete without calls of the target's program, even if the initiator's program also sleeps.
#[test]
fn one_sided_operations_complete_while_the_target_sleeps() {
    if role().is_some() {
        return sleeping_target();
    }
    let side = Side::open();
    let listener = side.listen();
    let test = "one_sided_operations_complete_while_the_target_sleeps";
    let peer = Peer::start(test, "target", listener.local_address());
    let (qp, remote) = side.accept(&listener);
    every_one_sided_operation(&side, &qp, remote);
    // Now the initiator waits instead of polling, and its device falls asleep.
    for round in 0..50u64 {
        if round % 10 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        side.set(0, round);
        let write = Work::Write {
            remote: remote.at(0),
            imm: None,
        };
        qp.post_send(&SendRequest::new(round, write, &[side.sge(0, 8)]))
            .unwrap();
        let done = side.next_asleep();
        assert_eq!((done.id, done.status), (round, Status::Success));
    }
    peer.finish();
}

/// A target that answers each message with another.
fn echo() {
    let side = Side::open();
    let (qp, _) = side.connect();
    for id in 0..64 {
        side.receive(&qp, id, id as usize * 64, 512);
    }
    let mut last = None;
    loop {
        let done = side.next();
        assert_eq!(done.status, Status::Success, "{done:?}");
        if done.opcode == CompletionOp::Recv {
            assert!(done.flags.contains(CompletionFlags::IMM));
            let sges = [side.sge(done.id as usize * 64, done.bytes)];
            let reply = Work::Send {
                imm: Some(done.imm + 1),
                invalidate: None,
            };
            qp.post_send(&SendRequest::new(done.id, reply, &sges))
                .unwrap();
            if done.imm == u32::MAX - 1 {
                last = Some(done.id);
            }
        } else if last == Some(done.id) {
            return;
        } else {
            side.receive(&qp, done.id, done.id as usize * 64, 512);
        }
    }
}

/// Messages travel both ways, with immediate data, one at a time.
#[test]
fn messages_travel_in_both_directions() {
    if role().is_some() {
        return echo();
    }
    let side = Side::open();
    let listener = side.listen();
    let peer = Peer::start(
        "messages_travel_in_both_directions",
        "target",
        listener.local_address(),
    );
    let (qp, _) = side.accept(&listener);
    let rounds = 2000u32;
    for round in 0..=rounds {
        let imm = if round == rounds { u32::MAX - 1 } else { round };
        side.receive(&qp, 1, 100, 512);
        side.set(0, imm.into());
        let bytes = 8 + round % 500;
        let send = Work::Send {
            imm: Some(imm),
            invalidate: None,
        };
        qp.post_send(&SendRequest::new(2, send, &[side.sge(0, bytes)]))
            .unwrap();
        let (mut sent, mut answered) = (false, false);
        while !(sent && answered) {
            let done = side.next();
            assert_eq!(done.status, Status::Success, "{done:?}");
            if done.id == 2 {
                sent = true;
            } else {
                assert_eq!((done.bytes, done.imm), (bytes, imm.wrapping_add(1)));
                assert_eq!(side.word(100), u64::from(imm));
                answered = true;
            }
        }
    }
    peer.finish();
}

/// Both processes write to each other at once, without a pause.
#[test]
fn both_processes_write_to_each_other_at_once() {
    fn stream(side: &Side, qp: &Qp, remote: Remote) {
        let total = 20_000u64;
        let (mut posted, mut done) = (0u64, 0u64);
        let mut batch = [rkey_engine::Completion::default(); 16];
        while done < total {
            while posted < total && posted - done < 64 {
                side.set(posted as usize % 64, posted);
                let write = Work::Write {
                    remote: remote.at(64 + posted as usize % 64),
                    imm: None,
                };
                let sges = [side.sge(posted as usize % 64, 8)];
                qp.post_send(&SendRequest::new(posted, write, &sges))
                    .unwrap();
                posted += 1;
            }
            let n = side.cq.poll(&mut batch).unwrap();
            for completion in &batch[..n] {
                assert_eq!((completion.id, completion.status), (done, Status::Success));
                done += 1;
            }
        }
        // The peer has written its last word as well.
        until("the last write of the peer", || {
            side.word(64 + (total as usize - 1) % 64) == total - 1
        });
    }
    if role().is_some() {
        let side = Side::open();
        let (qp, remote) = side.connect();
        stream(&side, &qp, remote);
        return sleep_in_read();
    }
    let side = Side::open();
    let listener = side.listen();
    let peer = Peer::start(
        "both_processes_write_to_each_other_at_once",
        "target",
        listener.local_address(),
    );
    let (qp, remote) = side.accept(&listener);
    stream(&side, &qp, remote);
    peer.finish();
}

/// A thousand queue pairs between two processes: several blocks of numbers, one link each way.
#[test]
fn a_thousand_queue_pairs_share_one_link_each_way() {
    const ROUNDS: usize = 16;
    const EACH: usize = 64;
    if role().is_some() {
        let side = Side::open();
        let mut all = Vec::new();
        for _ in 0..ROUNDS {
            let qps: Vec<Qp> = (0..EACH).map(|_| side.qp()).collect();
            let refs: Vec<&Qp> = qps.iter().collect();
            let peer =
                side.device
                    .connect(common::address(), &refs, &side.invitation(), common::LONG);
            assert_eq!(peer.unwrap().qps.len(), EACH);
            all.extend(qps);
        }
        return sleep_in_read();
    }
    let side = Side::open();
    let listener = side.listen();
    let peer = Peer::start(
        "a_thousand_queue_pairs_share_one_link_each_way",
        "target",
        listener.local_address(),
    );
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        let qps: Vec<Qp> = (0..EACH).map(|_| side.qp()).collect();
        let refs: Vec<&Qp> = qps.iter().collect();
        let incoming = listener.accept(Some(common::LONG)).unwrap();
        let remote = Remote::from(&incoming.peer().private_data[..]);
        incoming.accept(&refs, &[]).unwrap();
        all.extend(qps.into_iter().map(|qp| (qp, remote)));
    }
    let mut numbers: Vec<u32> = all.iter().map(|(qp, _)| qp.qpn()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), ROUNDS * EACH);
    for (i, (qp, remote)) in all.iter().enumerate() {
        side.set(0, i as u64 + 1);
        side.run(
            qp,
            Work::Write {
                remote: remote.at(i),
                imm: None,
            },
            &[side.sge(0, 8)],
        );
    }
    let (qp, remote) = &all[0];
    let bytes = (ROUNDS * EACH * 8) as u32;
    side.run(
        qp,
        Work::Read {
            remote: remote.at(0),
        },
        &[side.sge(4096, bytes)],
    );
    for i in 0..ROUNDS * EACH {
        assert_eq!(side.word(4096 + i), i as u64 + 1);
    }
    let inspection = side.device.inspect().unwrap();
    assert_eq!(inspection.qps.len(), ROUNDS * EACH);
    assert!(inspection.links.len() <= 3, "{:?}", inspection.links);
    peer.finish();
}
