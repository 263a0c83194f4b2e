//! Peers that come and go: what they leave at an endpoint that stays.

use crate::harness::*;
use crate::peer::{Peer, hear, is_peer};
use rkey_fi::sys::*;
use std::ptr::null_mut;

/// Queue pairs that the device may have, and how many peers come.
const ROOM: &str = "24";
const PEERS: usize = 2000;

/// All sides are in the process that has the lower limit.
fn with_little_room(test: &str, run: impl FnOnce()) {
    if is_peer() {
        run();
        while hear().is_some_and(|word| word != "end") {}
        return;
    }
    Peer::start(test, &[("RKEY_MAX_QPS", ROOM)]).finish();
}

fn send(ep: *mut FidEp, peer: u64, bytes: &[u8]) -> isize {
    let (at, len) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: a live handle; the bytes are copied before the call returns.
    again(|| unsafe { ((*(*ep).msg).inject)(ep, at, len, peer) })
}

#[test]
fn an_endpoint_outlives_any_number_of_peers() {
    let test = "coming_and_going::an_endpoint_outlives_any_number_of_peers";
    with_little_room(test, || {
        let wish = Wish::default();
        let (stays, others) = (Side::open(&wish), Side::open(&wish));
        let info = wish.info();
        for n in 0..PEERS {
            let (ep, cq, av) = open_ep(others.domain, info);
            let mut number = 0;
            let name = name_of(stays.ep);
            // SAFETY: live handles, and a name as an endpoint gave it.
            unsafe {
                let insert = (*(*av).ops).insert;
                let at = name.as_ptr().cast();
                assert_eq!(insert(av, at, 1, &mut number, 0, null_mut()), 1);
            }
            let sent = [n as u8; 8];
            // Every other message is expected.
            let mut into = [0u8; 8];
            let mut receive = || {
                let (at, from) = (into.as_mut_ptr().cast(), FI_ADDR_UNSPEC);
                // SAFETY: a live handle; the buffer stays until the completion.
                let code = unsafe {
                    let recv = (*(*stays.ep).msg).recv;
                    recv(stays.ep, at, 8, null_mut(), from, null_mut())
                };
                assert_eq!(code, 0);
            };
            if n % 2 == 0 {
                receive();
            }
            assert_eq!(send(ep, number, &sent), 0, "peer {n}");
            if n % 2 == 1 {
                assert_eq!(close(ep.cast()), 0);
                receive();
            }
            assert_eq!(stays.completion(&[&others]).unwrap().len, 8);
            assert_eq!(into, sent);
            if n % 2 == 0 {
                assert_eq!(close(ep.cast()), 0);
            }
            assert_eq!((close(cq.cast()), close(av.cast())), (0, 0));
        }
    });
}
