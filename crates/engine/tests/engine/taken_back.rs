//! What was taken back in the middle of a message: the rest of the message does not pass, and what is still under way
//! is not forgotten.

use crate::support::*;
use rkey_engine::*;
use rkey_link::Capabilities;

const BY_REFERENCE: Capabilities = Capabilities {
    by_reference: true,
    ..CAPS
};

/// A message by reference that fails here, after some of it was told to the peer: the peer reads on in what it was
/// told of, and whoever closes the region has to wait for that.
#[test]
#[cfg_attr(miri, ignore)]
fn what_a_peer_was_told_before_a_message_failed_is_not_forgotten() {
    for survive in [false, true] {
        let mut pair = Pair::large(BY_REFERENCE, 64 << 20);
        let [a, _b] = pair.connect(|_, config| config.survive_remote_error = survive);
        let mine = pair.nodes[0].register(0, 40 << 20, ALL);
        let theirs = pair.nodes[1].register(0, 40 << 20, ALL);
        let sge = [pair.nodes[0].sge(&mine, 0, 40 << 20)];
        let remote = pair.nodes[1].target(&theirs, 0);
        pair.end(0).window = 1;
        let work = Work::Write { remote, imm: None };
        pair.send(0, &a, &SendRequest::new(1, work, &sge));
        assert!(pair.nodes[0].engine.references(mine.local_key));
        // The link has room again, and the region is gone.
        drop(pair.nodes[0].protection.close_region(mine.id).unwrap());
        pair.end(0).window = 16;
        pair.drive(0, 64);
        assert_eq!(statuses(&a.poll()), [(1, Status::LocalProtection)]);
        assert!(
            pair.nodes[0].engine.references(mine.local_key),
            "the first piece is with the peer, survive {survive}"
        );
        assert_eq!(pair.nodes[0].engine.haunted_links(a.qpn), [pair.ends[0]]);
        pair.settle();
        assert!(!pair.nodes[0].engine.references(mine.local_key));
        assert_eq!(pair.nodes[0].engine.haunted_links(a.qpn), []);
    }
}
