//! A program does not read its messages: the sender must wait, and nothing is lost.

use crate::harness::*;
use rkey_fi::sys::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// More unexpected messages than any endpoint accepts.
const MANY: u64 = 100_000;
/// If no post succeeds for this long, none will. Measured from the first success, when the peers are connected.
const CALM: Duration = Duration::from_secs(1);
const AGAIN: isize = -(libc::EAGAIN as isize);

/// Two sides with queues of this size, the second with automatic progress.
fn open(queue: usize) -> (Side, Side, u64) {
    let wish = Wish {
        queue,
        ..Wish::default()
    };
    let (a, b) = (
        Side::open(&wish),
        Side::open(&Wish {
            auto_progress: true,
            ..wish
        }),
    );
    let peer = a.peer(&b);
    (a, b, peer)
}

/// Posts until no post succeeds for a while. Returns the number of successes. Reads the sender's completions if
/// requested.
fn post_until_full(a: &Side, read: bool, mut post: impl FnMut(u64) -> isize) -> u64 {
    let (mut done, mut last) = (0, Instant::now());
    while done < MANY && last.elapsed() < if done == 0 { PATIENCE } else { CALM } {
        match post(done) {
            0 => {
                done += 1;
                last = Instant::now();
            }
            code => {
                assert_eq!(code, AGAIN);
                std::thread::yield_now();
            }
        }
        if read && let Some(entry) = poll(a.cq) {
            assert!(entry.is_ok(), "{:?}", entry.err().map(|e| e.err));
        }
    }
    done
}

fn receive(b: &Side, into: &mut [u8], tag: u64) {
    let (at, len) = (into.as_mut_ptr().cast(), into.len());
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    let code = unsafe {
        let recv = (*(*b.ep).tagged).recv;
        let none = null_mut();
        recv(b.ep, at, len, none, FI_ADDR_UNSPEC, tag, 0, none)
    };
    assert_eq!(code, 0);
    let entry = b.completion(&[]).unwrap();
    assert_eq!((entry.tag, entry.len), (tag, len));
}

/// Unexpected messages of every kind: the last one that was accepted is received first, then all others.
#[test]
fn unexpected_messages_are_bounded_and_all_arrive() {
    for (len, inject) in [(0, false), (8, true), (4096, true), (8000, false)] {
        let (a, b, peer) = open(0);
        let fill = |bytes: &mut [u8], tag: u64| bytes.fill(tag as u8 ^ 0x5a);
        // Messages that are not copied keep their contents.
        let kept: Vec<Vec<u8>> = (0..256u64)
            .map(|tag| {
                let mut bytes = vec![0; len];
                fill(&mut bytes, tag);
                bytes
            })
            .collect();
        let sent = post_until_full(&a, true, |tag| {
            let bytes = &kept[tag as usize % 256];
            let (at, none) = (bytes.as_ptr().cast::<c_void>(), null_mut());
            // SAFETY: the handle is live; the bytes stay valid.
            unsafe {
                let ops = &*(*a.ep).tagged;
                match inject {
                    true => (ops.inject)(a.ep, at, len, peer, tag),
                    false => (ops.send)(a.ep, at, len, none, peer, tag, none),
                }
            }
        });
        assert!(sent > 256 && sent < 20_000, "{len} B: {sent} were taken");
        let order = std::iter::once(sent - 1).chain(0..sent - 1);
        for tag in order {
            let (mut into, mut expected) = (vec![0; len], vec![0; len]);
            // The sender responds while its queue is polled.
            while poll(a.cq).is_some() {}
            receive(&b, &mut into, tag);
            fill(&mut expected, tag);
            assert!(into == expected, "{len} B: message {tag}");
        }
        // Now that all messages have been received, another one can be sent.
        let mut into = vec![0; len];
        let at = kept[0].as_ptr().cast();
        // SAFETY: the handle is live; the bytes stay valid.
        let code = again(|| unsafe {
            let send = (*(*a.ep).tagged).send;
            let sent = send(a.ep, at, len, null_mut(), peer, MANY, null_mut());
            while poll(a.cq).is_some() {}
            sent
        });
        assert_eq!(code, 0);
        receive(&b, &mut into, MANY);
    }
}

/// Completion data of writes are unexpected entries.
#[test]
fn unread_completions_are_bounded_and_all_arrive() {
    let (a, b, peer) = open(64);
    let mut buffer = [0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let bytes = [7u8; 8];
    for round in 0..2 {
        let sent = post_until_full(&a, true, |data| {
            let (at, none) = (bytes.as_ptr().cast(), null_mut());
            // SAFETY: the handle is live; the bytes stay valid.
            unsafe { ((*(*a.ep).rma).writedata)(a.ep, at, 8, none, data, peer, 0, 1, none) }
        });
        assert!(sent > 64 && sent < 20_000, "{sent} were taken");
        for data in 0..sent {
            while poll(a.cq).is_some() {}
            assert_eq!(b.completion(&[&a]).unwrap().data, data, "round {round}");
        }
        assert!(poll(b.cq).is_none());
    }
    assert_eq!(mr.close(), 0);
}

/// A program's own completions also need room in its queue.
#[test]
fn a_full_completion_queue_accepts_no_operations() {
    let (a, b, peer) = open(64);
    let mut buffer = [0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let bytes = [7u8; 8];
    let sent = post_until_full(&a, false, |_| {
        let (at, none) = (bytes.as_ptr().cast(), null_mut());
        // SAFETY: the handle is live; the bytes stay valid.
        unsafe { ((*(*a.ep).rma).write)(a.ep, at, 8, none, peer, 0, 1, none) }
    });
    assert!((64..1024).contains(&sent), "{sent} were taken");
    for _ in 0..sent {
        assert!(a.completion(&[]).is_ok());
    }
    assert_eq!(a.write(peer, &bytes, 0, 1), 0);
    assert_eq!(mr.close(), 0);
}

/// `fi_tx_size_left` falls with every operation in progress, and recovers.
#[test]
fn tx_size_left_falls_with_each_operation_in_progress() {
    let (a, b, peer) = open(0);
    let mut buffer = [0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let bytes = [7u8; 8];
    assert_eq!(a.write(peer, &bytes, 0, 1), 0);
    // SAFETY: the handle is live.
    let left = || unsafe { ((*(*a.ep).ops).tx_size_left)(a.ep) };
    let all = left();
    let (at, none) = (bytes.as_ptr().cast::<c_void>(), null_mut());
    // Nothing completes before a queue is polled, and the last ones wait for a receive there.
    for under_way in 1..=48 {
        // SAFETY: the handle is live; the bytes stay valid.
        let code = unsafe {
            match under_way % 3 {
                0 => ((*(*a.ep).rma).write)(a.ep, at, 8, none, peer, 0, 1, none),
                1 => ((*(*a.ep).tagged).inject)(a.ep, at, 8, peer, 1),
                _ => ((*(*a.ep).tagged).send)(a.ep, at, 8, none, peer, 1, none),
            }
        };
        assert_eq!(code, 0);
        assert_eq!(all - left(), under_way);
    }
    for _ in 0..32 {
        assert!(a.completion(&[]).is_ok());
    }
    let started = Instant::now();
    while left() != all {
        while poll(a.cq).is_some() {}
        assert!(started.elapsed() < PATIENCE, "{} of {all}", left());
    }
    assert_eq!(mr.close(), 0);
}
