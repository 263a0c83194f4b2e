//! Peers of scalable endpoints: late, closed, wrong and hostile ones, and one in another process.

use super::*;
use crate::outsider::Outsider;
use crate::peer::{Peer, hear, is_peer, name_in, say, until, word_of};
use crate::shared::{recv, send};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn try_send(side: &Side, to: u64) -> isize {
    // SAFETY: the handle is live; the bytes are copied.
    unsafe { ((*(*side.ep).msg).inject)(side.ep, [7u8; 4].as_ptr().cast(), 4, to) }
}

/// A send to a context that is not enabled yet gets `EAGAIN` for up to 3 s; a send to a context that cannot exist is refused
/// sooner.
#[test]
fn a_send_to_a_context_that_is_not_enabled_yet_can_be_retried() {
    let wish = Wish::default();
    let (a, b) = (Scalable::open(&wish, 1, 1), Scalable::disabled(&wish, 1, 2));
    assert_eq!(enable(b.sep), 0);
    let to = a.peer(&b);
    let tx = &a.tx[0];
    assert_eq!(try_send(tx, rx_addr(to, 1)), -(libc::EAGAIN as isize));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(b.rx[1].enable(), 0);
    assert_eq!(again(|| try_send(tx, rx_addr(to, 1))), 0);
    let mut into = [0u8; 4];
    assert_eq!(recv(b.rx[1].ep, &mut into, 0), 0);
    assert_eq!(b.rx[1].completion(&all(&[&a])).unwrap().len, 4);
    // A busy machine may delay one of the refusals.
    let is_refused_at_once = |index| {
        let started = Instant::now();
        let refused = again(|| try_send(tx, rx_addr(to, index)));
        assert_eq!(refused, -(libc::ECONNREFUSED as isize), "b has two");
        started.elapsed() < Duration::from_millis(2500)
    };
    assert!(
        (2..5).any(is_refused_at_once),
        "the sender waits for contexts that cannot exist"
    );
    // The peer still has the other context, which is never enabled.
    let refused = again(|| try_send(tx, rx_addr(to, 0)));
    assert_eq!(refused, -(libc::ECONNREFUSED as isize));
    a.close();
    b.close();
}

/// When a receive context is closed, the others keep working. Messages to a new context with the same index arrive
/// there.
#[test]
fn a_closed_context_can_be_replaced() {
    let wish = Wish::default();
    let (a, mut b) = (Scalable::open(&wish, 1, 1), Scalable::open(&wish, 1, 2));
    let to = a.peer(&b);
    let tx = &a.tx[0];
    let through = |b: &Scalable, index: usize| {
        let mut into = [0u8; 5];
        assert_eq!(recv(b.rx[index].ep, &mut into, 0), 0);
        send(tx, rx_addr(to, index), b"hello");
        b.rx[index].completion(&all(&[&a])).unwrap();
        tx.completion(&all(&[b])).unwrap();
        assert_eq!(&into, b"hello");
    };
    for _ in 0..3 {
        through(&b, 0);
        through(&b, 1);
        let old = b.rx.remove(0);
        assert_eq!([close(old.ep.cast()), close(old.cq.cast())], [0; 2]);
        b.rx.insert(0, b.receiver(0));
        through_other(&b, tx, to, &a);
        assert_eq!(b.rx[0].enable(), 0);
        // The sender notices that the old context is closed when it reads its queue.
        until("the sender to notice the end", || {
            poll(tx.cq);
            match try_send(tx, to) {
                0 => true,
                code => {
                    assert_eq!(code, -(libc::EAGAIN as isize));
                    false
                }
            }
        });
        let mut into = [0u8; 4];
        assert_eq!(recv(b.rx[0].ep, &mut into, 0), 0);
        assert_eq!(b.rx[0].completion(&all(&[&a])).unwrap().len, 4);
    }
    a.close();
    b.close();
}

/// A message to the second context, while the first has just been closed.
fn through_other(b: &Scalable, tx: &Side, to: u64, a: &Scalable) {
    let mut into = [0u8; 4];
    assert_eq!(recv(b.rx[1].ep, &mut into, 0), 0);
    assert_eq!(again(|| try_send(tx, rx_addr(to, 1))), 0);
    assert_eq!(b.rx[1].completion(&all(&[a])).unwrap().len, 4);
}

/// A receive context is opened and closed again and again while a peer tries to send to it. Each send fails or
/// succeeds, and in the end the last context receives a message.
#[test]
fn a_context_is_reopened_repeatedly_while_a_peer_sends_to_it() {
    const ROUNDS: u32 = 60;
    /// A side for a thread.
    struct Own<'a>(&'a Side);
    // SAFETY: handles may be used in any thread (FI_THREAD_SAFE).
    unsafe impl Send for Own<'_> {}
    let wish = Wish::default();
    let (a, b) = (Scalable::open(&wish, 1, 1), Scalable::open(&wish, 1, 0));
    let to = a.peer(&b);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let tx = Own(&a.tx[0]);
        let over = &over;
        scope.spawn(move || {
            let Own(tx) = { tx };
            while !over.load(Ordering::Relaxed) {
                let code = try_send(tx, to);
                assert!(code <= 0);
                poll(tx.cq);
                std::thread::yield_now();
            }
        });
        for round in 0..ROUNDS {
            let rx = b.receiver(0);
            assert_eq!(rx.enable(), 0);
            let mut into = [0u8; 4];
            assert_eq!(recv(rx.ep, &mut into, 0), 0);
            let until = Instant::now() + Duration::from_millis(u64::from(round % 5));
            while poll(rx.cq).is_none() && Instant::now() < until {}
            assert_eq!([close(rx.ep.cast()), close(rx.cq.cast())], [0; 2]);
        }
        over.store(true, Ordering::Relaxed);
    });
    let rx = b.receiver(0);
    assert_eq!(rx.enable(), 0);
    until("a message", || {
        poll(a.tx[0].cq);
        try_send(&a.tx[0], to) == 0
    });
    let mut into = [0u8; 4];
    assert_eq!(recv(rx.ep, &mut into, 0), 0);
    assert_eq!(rx.completion(&all(&[&a])).unwrap().len, 4);
    assert_eq!([close(rx.ep.cast()), close(rx.cq.cast())], [0; 2]);
    a.close();
    b.close();
}

/// Each transmit context of one process sends a message to each receive context of another process, which returns the
/// message from its transmit context with the sender's index to the receive context with that index.
#[test]
fn two_processes_exchange_messages_through_all_contexts() {
    const TEST: &str = "scalable::peers::two_processes_exchange_messages_through_all_contexts";
    const CONTEXTS: usize = 2;
    let wish = Wish::default();
    if is_peer() {
        let it = Scalable::open(&wish, CONTEXTS, CONTEXTS);
        say(&word_of(&name_of(it.sep)));
        let to = it.insert(&name_in(&hear().unwrap()));
        for index in (0..CONTEXTS).flat_map(|rx| [rx; CONTEXTS]) {
            let mut bytes = vec![0u8; 30_000];
            assert_eq!(recv(it.rx[index].ep, &mut bytes, 0), 0);
            it.rx[index].completion(&[]).unwrap();
            let tx = usize::from(bytes[0]);
            send(&it.tx[tx], rx_addr(to, tx), &bytes);
            it.tx[tx].completion(&all(&[&it])).unwrap();
        }
        say("done");
        hear();
        return it.close();
    }
    let mut peer = Peer::start(TEST, &[]);
    let it = Scalable::open(&wish, CONTEXTS, CONTEXTS);
    let to = it.insert(&peer.name());
    peer.tell(&word_of(&name_of(it.sep)));
    let bytes = |tx: usize, rx: usize| {
        let mut bytes = vec![(tx * 3 + rx * 7) as u8; 30_000];
        bytes[0] = tx as u8;
        bytes
    };
    for rx in 0..CONTEXTS {
        for tx in 0..CONTEXTS {
            let mut back = vec![0u8; 30_000];
            assert_eq!(recv(it.rx[tx].ep, &mut back, 0), 0);
            let bytes = bytes(tx, rx);
            send(&it.tx[tx], rx_addr(to, rx), &bytes);
            it.rx[tx].completion(&all(&[&it])).unwrap();
            assert!(back == bytes);
            it.tx[tx].completion(&[]).unwrap();
        }
    }
    assert_eq!(peer.heard(), "done");
    // When a peer is killed, operations that wait for it fail, at the context that sent them.
    peer.signal(libc::SIGKILL);
    let long = vec![1u8; 100_000];
    let failed = {
        let at = long.as_ptr().cast();
        // SAFETY: the handle is live; the bytes stay valid.
        let code = again(|| unsafe {
            ((*(*it.tx[1].ep).msg).send)(it.tx[1].ep, at, long.len(), null_mut(), to, null_mut())
        });
        code != 0 || it.tx[1].completion(&[]).is_err()
    };
    assert!(failed);
    assert!(poll(it.tx[0].cq).is_none());
    it.close();
}

/// A hostile peer that requests arbitrary contexts, or connects as if it only sent, gets only contexts that exist and
/// does no harm.
#[test]
fn a_hostile_peer_gets_only_contexts_that_exist() {
    let wish = Wish::default();
    let (a, b) = (Scalable::open(&wish, 1, 1), Scalable::open(&wish, 1, 2));
    let hostile = Outsider::open();
    let there = address_of(&name_of(b.sep));
    let plain = Side::open(&wish);
    let to_plain = address_of(&name_of(plain.ep));
    for context in 0..=255 {
        let asked = hostile.hello_for(there, context, context % 3 == 0);
        let made = hostile.connect(there, &asked, 0);
        assert_eq!(made.is_ok(), context < 2, "{context}");
        let asked = hostile.hello_for(to_plain, context, context % 3 == 0);
        assert_eq!(hostile.connect(to_plain, &asked, 0).is_ok(), context == 0);
    }
    let to = a.peer(&b);
    for index in [0, 1] {
        let mut into = [0u8; 4];
        assert_eq!(recv(b.rx[index].ep, &mut into, 0), 0);
        send(&a.tx[0], rx_addr(to, index), &[index as u8; 4]);
        b.rx[index].completion(&all(&[&a])).unwrap();
        assert_eq!(into, [index as u8; 4]);
    }
}
