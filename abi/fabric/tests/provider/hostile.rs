//! A peer that is no libfabric program: it connects as one does, and then says anything.

use crate::harness::*;
use crate::messages::trecv;
use crate::outsider::Outsider;
use crate::registration::pair;
use rkey_conformance::mutate::{Random, input};
use rkey_fi::fuzzing;
use rkey_fi::sys::*;
use std::ptr::null_mut;

/// Connections, one after the other, and what is said on each at most.
const CONNECTIONS: usize = 60;
const MESSAGES: usize = 80;
/// A tag that no random message has.
const OURS: u64 = 0x5eed_0f0a_c0ff_ee01;

/// One message of a decent peer, received by its tag.
fn exchange(a: &Side, b: &Side, peer: u64, round: usize) {
    let bytes = [round as u8; 300];
    let mut into = [0u8; 300];
    trecv(b, FI_ADDR_UNSPEC, &mut into, OURS, 0, 99);
    // SAFETY: a live handle; the bytes stay until the completion.
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
        // What the hostile peer caused is in the queue, too.
        if b.completion(&[a]).is_ok_and(|entry| entry.tag == OURS) {
            break;
        }
    }
    a.completion(&[b]).unwrap();
    assert_eq!(into, bytes);
}

/// A peer that asks for more and more, and takes no answer, is cut off while what waits for it is some megabytes.
#[test]
fn a_peer_that_takes_no_answers_is_cut_off() {
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
        assert!(bytes < 2 * MOST, "{bytes} B wait for a peer");
    }
    assert!(bytes > 0, "it was not heard at all");
    assert_eq!(mr.close(), 0);
    assert_eq!(close(b.ep.cast()), 0);
}

/// Whatever a peer says, it changes no byte that it may not, others are served, and it is cut off at most.
#[test]
fn a_peer_that_says_anything_does_no_harm() {
    // Collectives are there only if they are asked for: then everything that a peer may say is heard.
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
        // Some do not even say what they are.
        let odd = round % 10 == 9;
        let first = if odd {
            input(&mut random, std::slice::from_ref(&hello))
        } else {
            hello.clone()
        };
        let receives = if round % 2 == 0 { 200 } else { 0 };
        let Ok(line) = hostile.connect(to, &first, receives) else {
            assert!(odd, "a good hello was refused");
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
    assert!(cut_off > 0, "nothing was nonsense");
    assert_eq!(regions.map(|mr| mr.close()), [0; 2]);
    assert_eq!([a, b].map(|side| close(side.ep.cast())), [0; 2]);
}
