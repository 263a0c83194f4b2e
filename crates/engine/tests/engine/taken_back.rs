//! Memory is taken back in the middle of a message: the rest of the message is refused, and accesses still in progress
//! are not forgotten.

use crate::support::*;
use rkey_core::Access;
use rkey_engine::*;
use rkey_link::Capabilities;

const REMOTE_IOVEC: Capabilities = Capabilities {
    remote_iovec: true,
    ..CAPS
};

/// Changed rights of a queue pair also apply to a message in progress. If they did not, a peer that has started a write of
/// 4 GiB could keep the right to write for as long as it likes.
///
/// Proves: VB-I06
#[test]
#[cfg_attr(miri, ignore)]
fn revoking_rights_of_a_queue_pair_ends_the_message_in_progress() {
    let len = 1 << 20;
    for (caps, read) in [
        (CAPS, false),
        (CAPS, true),
        (REMOTE_IOVEC, false),
        (REMOTE_IOVEC, true),
    ] {
        let mut pair = Pair::with(caps, EngineConfig::default());
        let [a, b] = pair.connect(|_, _| {});
        let mine = pair.nodes[0].register(0, len, ALL);
        let theirs = pair.nodes[1].register(0, len, ALL);
        let (from, into) = if read { (1, 0) } else { (0, 1) };
        pair.nodes[from].fill(0, &vec![7; len as usize]);
        let sge = [pair.nodes[0].sge(&mine, 0, len as u32)];
        let remote = pair.nodes[1].target(&theirs, 0);
        let (work, rest) = if read {
            (Work::Read { remote }, Access::REMOTE_WRITE)
        } else {
            (Work::Write { remote, imm: None }, Access::REMOTE_READ)
        };
        pair.send(0, &a, &SendRequest::new(1, work, &sge));
        pair.carry_all();
        for _ in 0..2 {
            pair.drive(1, 1);
        }
        pair.carry_responses(0, usize::MAX);
        pair.drive(0, 64);
        let begun = pair.nodes[into].bytes(0, len as usize);
        let begun = begun.iter().filter(|byte| **byte == 7).count();
        assert!(begun > 0 && begun < len as usize, "in the middle of it");
        let rights = QpAttributes {
            access: Some(rest),
            ..QpAttributes::default()
        };
        pair.nodes[1].engine.modify_qp(b.id, &rights).unwrap();
        pair.run_until_idle();
        assert_eq!(statuses(&a.poll()), [(1, Status::RemoteAccess)]);
        let moved = pair.nodes[into].bytes(0, len as usize);
        let moved = moved.iter().filter(|byte| **byte == 7).count();
        assert_eq!(moved, begun, "{caps:?} read {read}");
    }
}

/// A message fails here after a first fragment with a remote iovec has reached the peer: the peer may still read the
/// memory that the fragment names, and deregistering the region must wait for that.
#[test]
#[cfg_attr(miri, ignore)]
fn addresses_sent_before_a_message_fails_remain_exposed() {
    for survive in [false, true] {
        let mut pair = Pair::large(REMOTE_IOVEC, 64 << 20);
        let [a, _b] = pair.connect(|_, config| config.survive_remote_error = survive);
        let mine = pair.nodes[0].register(0, 40 << 20, ALL);
        let theirs = pair.nodes[1].register(0, 40 << 20, ALL);
        let sge = [pair.nodes[0].sge(&mine, 0, 40 << 20)];
        let remote = pair.nodes[1].target(&theirs, 0);
        pair.end(0).window = 1;
        let work = Work::Write { remote, imm: None };
        pair.send(0, &a, &SendRequest::new(1, work, &sge));
        assert!(pair.nodes[0].engine.exposes(mine.local_key));
        // The link has room again, but the region has been deregistered.
        drop(pair.nodes[0].protection.deregister(mine.id).unwrap());
        pair.end(0).window = 16;
        pair.drive(0, 64);
        assert_eq!(statuses(&a.poll()), [(1, Status::LocalProtection)]);
        assert!(
            pair.nodes[0].engine.exposes(mine.local_key),
            "the first fragment is with the peer, survive {survive}"
        );
        assert_eq!(pair.nodes[0].engine.orphaned_links(a.qpn), [pair.ends[0]]);
        pair.run_until_idle();
        assert!(!pair.nodes[0].engine.exposes(mine.local_key));
        assert_eq!(pair.nodes[0].engine.orphaned_links(a.qpn), []);
    }
}

/// A request that times out releases its memory, and so do the requests flushed after it: a peer that got the addresses
/// and continues after all cannot access the memory. A peer that got no addresses keeps its link.
#[test]
fn a_timeout_revokes_the_addresses_sent_to_the_peer() {
    for read in [true, false] {
        for remote_iovec in [true, false] {
            let caps = Capabilities {
                remote_iovec,
                ..CAPS
            };
            let mut pair = Pair::with(caps, EngineConfig::default());
            let ([a, _b], [mine, theirs]) = transfer(&mut pair);
            let sge = [pair.nodes[0].sge(&mine, 0, 1 << 16)];
            let remote = pair.nodes[1].target(&theirs, 0);
            let work = if read {
                Work::Read { remote }
            } else {
                Work::Write { remote, imm: None }
            };
            pair.send(0, &a, &SendRequest::new(1, work, &sge));
            pair.send(0, &a, &SendRequest::new(2, work, &sge));
            let end = pair.ends[0];
            while let Some(at) = pair.drive(0, 64).next_deadline {
                pair.now = pair.now.max(at);
                assert!(pair.now < 10_000 * MS, "it never gives up");
            }
            let want = [(1, Status::RetryExceeded), (2, Status::Flushed)];
            assert_eq!(statuses(&a.poll()), want);
            let node = &mut pair.nodes[0];
            let lost = node.engine.take_detached(end);
            assert_eq!(lost.is_some_and(|link| link.ended), remote_iovec);
            assert_eq!(node.engine.link(end).is_none(), remote_iovec);
            assert!(!remote_iovec || !node.engine.exposes(mine.local_key));
        }
    }
}
