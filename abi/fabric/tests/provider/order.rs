//! Completions of a connected endpoint are in the order of its transfers, as with hardware queues.

use crate::harness::*;
use crate::shared::{Server, recv, send};
use rkey_fi::sys::*;

/// A long message is read from its sender's memory, while a short one after it arrives at once.
#[test]
fn a_short_message_does_not_complete_before_a_long_one() {
    let wish = Wish {
        ep_type: FI_EP_MSG,
        ..Wish::default()
    };
    let server = Server::open(&wish);
    let (there, here) = server.connect(&wish);
    let long: Vec<u8> = (0..300_000).map(|n| (n * 7) as u8).collect();
    for expected in [true, false].into_iter().cycle().take(40) {
        let (mut first, mut second) = (vec![0; long.len()], [0; 8]);
        let mut post = || {
            assert_eq!(recv(server.srx, &mut first, 1), 0);
            assert_eq!(recv(server.srx, &mut second, 2), 0);
        };
        if expected {
            post();
            send(&there, 0, &long);
            send(&there, 0, &[9; 8]);
        } else {
            send(&there, 0, &long);
            send(&there, 0, &[9; 8]);
            post();
        }
        for (context, len) in [(1, long.len()), (2, 8)] {
            let entry = here.completion(&[&there]).unwrap();
            assert_eq!((entry.op_context as usize, entry.len), (context, len));
        }
        // The short message is sent at once; the long one completes when the peer has read it.
        for len in [long.len(), 8] {
            let entry = there.completion(&[&here]).unwrap();
            assert_eq!(entry.op_context as usize, len, "at the sender");
        }
        assert!(first == long && second == [9; 8]);
    }
}
