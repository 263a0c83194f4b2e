//! Requests for connections: what the passive side is told, and in which order.

use crate::connected::*;
use crate::harness::*;
use rkey_fi::sys::*;
use std::ptr::null_mut;
use std::time::Instant;

/// A peer that connects one endpoint after another, each when it has seen that the one before is connected: whoever
/// reads one queue for everything hears of each connection before the next request.
#[test]
fn a_connection_is_told_before_the_next_request_of_its_peer() {
    const ENDPOINTS: usize = 300;
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let pep = listen(fabric, eq);
    let name = name_of_pep(pep);
    let peer = std::thread::spawn(move || {
        let (fabric, domain) = open_domain(wish().version, wish().info());
        let eq = event_queue(fabric);
        for _ in 0..ENDPOINTS {
            let (ep, cq, av) = open_disabled(domain, wish().info());
            assert_eq!(bind(ep.cast(), eq.cast(), 0), 0);
            // SAFETY: a live handle, and a name as a passive endpoint gave it.
            let code = unsafe { ((*(*ep).cm).connect)(ep, name.as_ptr().cast(), null_mut(), 0) };
            assert_eq!(code, 0);
            wait_for(eq, Ok(FI_CONNECTED));
            take(eq);
            let all: [*mut Fid; 3] = [ep.cast(), cq.cast(), av.cast()];
            assert_eq!(all.map(close), [0; 3]);
        }
    });
    // How many requests have come, and how many were connected.
    let (mut requests, mut connected, started) = (0, 0, Instant::now());
    while connected < ENDPOINTS {
        match look(eq) {
            Ok(FI_CONNREQ) => {
                assert_eq!(requests, connected, "the one before is not connected yet");
                requests += 1;
                let (here, _) = accept_request(fabric, take(eq).info, eq, |_| {});
                assert!(!here.is_null());
            }
            Ok(event) => {
                connected += usize::from(event == FI_CONNECTED);
                take(eq);
            }
            Err(_) => assert!(started.elapsed() < 6 * PATIENCE, "{requests} {connected}"),
        }
    }
    peer.join().unwrap();
    assert_eq!(close(pep.cast()), 0);
}
