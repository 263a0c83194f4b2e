//! Compares short requests that cut through to the link with the same requests through the send queue: nothing else may
//! differ.
//!
//! A fence sends a request through the send queue. Without outstanding reads it has no other effect, and the header
//! does not carry it.

use crate::scenes::{plain, situations};
use crate::support::*;
use rkey_engine::*;

#[test]
fn cut_through_has_the_same_results_as_the_send_queue() {
    for (name, scene) in situations() {
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
