//! Peers that connect and exit, and what a remaining endpoint keeps of them.

use crate::harness::*;
use crate::outsider::Outsider;
use crate::peer::{Peer, hear, is_peer, until};
use rkey_fi::sys::*;
use std::ptr::null_mut;
use std::time::Duration;

/// The device's limit for queue pairs, and the number of peers.
const ROOM: &str = "24";
const PEERS: usize = 2000;

/// Runs all sides in a process with the lower limit.
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
    // SAFETY: the handle is live; the bytes are copied before the call returns.
    again(|| unsafe { ((*(*ep).msg).inject)(ep, at, len, peer) })
}

#[test]
fn an_endpoint_serves_any_number_of_peers_in_succession() {
    let test = "coming_and_going::an_endpoint_serves_any_number_of_peers_in_succession";
    with_little_room(test, || {
        let wish = Wish::default();
        let (stays, others) = (Side::open(&wish), Side::open(&wish));
        let info = wish.info();
        for n in 0..PEERS {
            let (ep, cq, av) = open_ep(others.domain, info);
            let mut number = 0;
            let name = name_of(stays.ep);
            // SAFETY: live handles, and the name of an endpoint.
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
                // SAFETY: the handle is live; the buffer stays valid until the completion.
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

/// Posts a receive of eight bytes, tagged or not.
fn receive(ep: *mut FidEp, into: &mut [u8; 8], tag: Option<u64>) {
    let (at, from) = (into.as_mut_ptr().cast(), FI_ADDR_UNSPEC);
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    let code = unsafe {
        match tag {
            None => ((*(*ep).msg).recv)(ep, at, 8, null_mut(), from, null_mut()),
            Some(tag) => {
                let recv = (*(*ep).tagged).recv;
                recv(ep, at, 8, null_mut(), from, tag, 0, null_mut())
            }
        }
    };
    assert_eq!(code, 0);
}

#[test]
fn unread_messages_of_all_peers_together_are_bounded() {
    // The messages of each newcomer: five newcomers leave more than an endpoint stores.
    const EACH: usize = 4000;
    let wish = Wish::default();
    let (stays, others) = (Side::open(&wish), Side::open(&wish));
    let info = wish.info();
    let newcomer = || {
        let (ep, cq, av) = open_ep(others.domain, info);
        let (name, mut number) = (name_of(stays.ep), 0);
        // SAFETY: live handles, and the name of an endpoint.
        unsafe {
            let (insert, at) = ((*(*av).ops).insert, name.as_ptr().cast());
            assert_eq!(insert(av, at, 1, &mut number, 0, null_mut()), 1);
        }
        let side = Side {
            ep,
            cq,
            av,
            ..others
        };
        (side, number)
    };
    let leave = |side: Side| {
        assert_eq!(close(side.ep.cast()), 0);
        assert_eq!((close(side.cq.cast()), close(side.av.cast())), (0, 0));
    };
    let inject = |side: &Side, peer: u64, tag: Option<u64>| {
        let bytes = [1u8; 8];
        again(|| {
            let (at, len) = (bytes.as_ptr().cast(), bytes.len());
            // SAFETY: the handle is live; the bytes are copied before the call returns.
            let code = unsafe {
                match tag {
                    None => ((*(*side.ep).msg).inject)(side.ep, at, len, peer),
                    Some(tag) => ((*(*side.ep).tagged).inject)(side.ep, at, len, peer, tag),
                }
            };
            for cq in [side.cq, stays.cq] {
                assert!(code == 0 || poll(cq).is_none());
            }
            code
        })
    };
    let mut left = 0;
    let refused = loop {
        let (side, number) = newcomer();
        let code = inject(&side, number, None);
        if code != 0 {
            leave(side);
            break code;
        }
        for _ in 1..EACH {
            assert_eq!(inject(&side, number, None), 0);
        }
        // Messages arrive in order, so the earlier ones have arrived.
        let mut last = [0u8; 8];
        receive(stays.ep, &mut last, Some(left as u64));
        assert_eq!(inject(&side, number, Some(left as u64)), 0);
        assert_eq!(stays.completion(&[&side]).unwrap().len, 8);
        leave(side);
        left += 1;
        assert!(left < 8, "peers can leave any number");
    };
    assert_eq!(refused, -(libc::ECONNREFUSED as isize));
    assert!(left >= 5, "{left} peers");
    // No message is lost, and reading them lets other peers in.
    let mut into = [0u8; 8];
    for _ in 0..left * EACH {
        receive(stays.ep, &mut into, None);
        assert_eq!(stays.completion(&[]).unwrap().len, 8);
    }
    let (side, number) = newcomer();
    assert_eq!(inject(&side, number, None), 0);
    receive(stays.ep, &mut into, None);
    assert_eq!(stays.completion(&[&side]).unwrap().len, 8);
    leave(side);
}

/// Both sides request a connection at once. Ours is refused because the peer's serves both.
#[test]
fn a_peers_connection_also_serves_our_sends() {
    let (side, outsider) = (Side::open(&Wish::default()), Outsider::open());
    let number = side.insert(&outsider.name());
    let at = b"x".as_ptr().cast();
    // SAFETY: a live handle, and a byte that is copied.
    let inject = || unsafe { ((*(*side.ep).msg).inject)(side.ep, at, 1, number) };
    assert_eq!(inject(), -(libc::EAGAIN as isize), "it is connecting");
    let asked = outsider.caller(PATIENCE).unwrap();
    let there = address_of(&name_of(side.ep));
    let line = outsider.connect(there, &outsider.hello(there), 1).unwrap();
    // The endpoint has usually registered this connection by then; otherwise the test shows less.
    std::thread::sleep(Duration::from_millis(200));
    asked.reject("later");
    until("the message to be sent", || {
        // The endpoint may request one more connection before it registers ours.
        if let Some(asked) = outsider.caller(Duration::from_millis(1)) {
            asked.reject("later");
        }
        inject() == 0
    });
    until("the message", || line.has_heard());
}

/// The program gets no completion for an injected message that arrives, but one for a message that does not
/// (fi_msg(3)).
#[test]
fn an_injected_message_that_fails_is_reported() {
    let (side, outsider) = (Side::open(&Wish::default()), Outsider::open());
    let number = side.insert(&outsider.name());
    let inject = || {
        // SAFETY: a live handle, and a byte that is copied.
        unsafe { ((*(*side.ep).tagged).inject)(side.ep, b"x".as_ptr().cast(), 1, number, 7) }
    };
    assert_eq!(inject(), -(libc::EAGAIN as isize), "it is connecting");
    let asked = outsider.caller(PATIENCE).unwrap();
    let answer = outsider.answer(&asked);
    // The peer receives nothing, and exits.
    let line = outsider.accept(asked, &answer, 0).unwrap();
    assert_eq!(again(inject), 0);
    assert!(poll(side.cq).is_none(), "still in transit");
    drop(line);
    drop(outsider);
    let error = side.completion(&[]).unwrap_err();
    assert!(error.err > 0 && error.flags & (FI_TAGGED | FI_SEND) == FI_TAGGED | FI_SEND);
}
