//! A peer that is not a libfabric program: it connects like one, and then sends arbitrary bytes.

use crate::harness::*;
use crate::messages::trecv;
use crate::outsider::Outsider;
use crate::registration::pair;
use rkey_conformance::mutate::{Random, input};
use rkey_fi::fuzzing;
use rkey_fi::sys::*;
use std::ptr::null_mut;

/// The number of successive connections, and the maximum number of messages on each.
const CONNECTIONS: usize = 60;
const MESSAGES: usize = 80;
/// A tag that no random message has.
const OURS: u64 = 0x5eed_0f0a_c0ff_ee01;

/// One message of a well-behaved peer, received by its tag.
fn exchange(a: &Side, b: &Side, peer: u64, round: usize) {
    let bytes = [round as u8; 300];
    let mut into = [0u8; 300];
    trecv(b, FI_ADDR_UNSPEC, &mut into, OURS, 0, 99);
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    let code = again(|| unsafe {
        let send = (*(*a.ep).tagged).send;
        let _ = poll(b.cq);
        send(
            a.ep,
            bytes.as_ptr().cast(),
            300,
            null_mut(),
            peer,
            OURS,
            null_mut(),
        )
    });
    assert_eq!(code, 0);
    loop {
        // The queue also has completions that the hostile peer caused.
        if b.completion(&[a]).is_ok_and(|entry| entry.tag == OURS) {
            break;
        }
    }
    a.completion(&[b]).unwrap();
    assert_eq!(into, bytes);
}

/// A peer that keeps sending requests, but receives no responses, is disconnected once a few megabytes of responses are pending
/// for it.
#[test]
fn a_peer_that_takes_no_responses_is_disconnected() {
    const MOST: usize = 16 << 20;
    let b = Side::open(&Wish::default());
    let mut shown = vec![3u8; 4096];
    let mr = b.reg(&mut shown, REMOTE, 1, 0).unwrap();
    let hostile = Outsider::open();
    let to = address_of(&name_of(b.ep));
    let line = hostile.connect(to, &hostile.hello(to), 0).unwrap();
    let asked = vec![fuzzing::reads(1, 512); 100];
    let mut bytes = 0;
    while line.says(&asked, || {
        let _ = poll(b.cq);
    }) {
        bytes += asked.len() * shown.len();
        assert!(bytes < 2 * MOST, "{bytes} B are pending for a peer");
    }
    assert!(bytes > 0, "no response was prepared");
    assert_eq!(mr.close(), 0);
    assert_eq!(close(b.ep.cast()), 0);
}

/// Whatever a peer sends, it changes no byte without the right, and other peers are served. At worst, the peer is
/// disconnected.
#[test]
fn arbitrary_messages_from_a_peer_do_no_harm() {
    // Collectives exist only on request; here the endpoint processes every message that a peer may send.
    let everything = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_COLLECTIVE;
    let (a, b, peer) = pair(&Wish {
        caps: everything,
        ..Wish::default()
    });
    let (mut secret, mut shown) = ([0x77u8; 4096], [0x33u8; 4096]);
    let regions = [
        b.reg(&mut secret, FI_RECV, 0, 0).unwrap(),
        b.reg(&mut shown, FI_REMOTE_READ, 1, 0).unwrap(),
    ];
    let hostile = Outsider::open();
    let to = address_of(&name_of(b.ep));
    let hello = hostile.hello(to);
    let samples = fuzzing::messages();
    let mut random = Random::new(4);
    let mut cut_off = 0;
    for round in 0..CONNECTIONS {
        // Some peers do not even send a valid hello.
        let odd = round % 10 == 9;
        let first = if odd {
            input(&mut random, std::slice::from_ref(&hello))
        } else {
            hello.clone()
        };
        let receives = if round % 2 == 0 { 200 } else { 0 };
        let Ok(line) = hostile.connect(to, &first, receives) else {
            assert!(odd, "a valid hello was refused");
            continue;
        };
        let said = (0..MESSAGES).all(|_| {
            let bytes = input(&mut random, &samples);
            line.says(&[bytes], || {
                let _ = poll(b.cq);
            })
        });
        cut_off += usize::from(!said);
        exchange(&a, &b, peer, round);
        assert_eq!((secret, shown), ([0x77; 4096], [0x33; 4096]));
    }
    assert!(cut_off > 0, "no message violated the protocol");
    assert_eq!(regions.map(|mr| mr.close()), [0; 2]);
    assert_eq!([a, b].map(|side| close(side.ep.cast())), [0; 2]);
}
