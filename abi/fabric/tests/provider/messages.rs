//! Messages and tags: short and long, expected and unexpected, peeked at, claimed, truncated.

use crate::harness::*;
use crate::registration::pair;
use crate::shared::trecvmsg;
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

pub(crate) fn tsend(side: &Side, peer: u64, bytes: &[u8], tag: u64, context: usize) {
    let (at, len) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    let code = again(|| unsafe {
        let send = (*(*side.ep).tagged).send;
        send(
            side.ep,
            at,
            len,
            null_mut(),
            peer,
            tag,
            context as *mut c_void,
        )
    });
    assert_eq!(code, 0);
}

pub(crate) fn trecv(
    side: &Side,
    from: u64,
    into: &mut [u8],
    tag: u64,
    ignore: u64,
    context: usize,
) {
    let (at, len) = (into.as_mut_ptr().cast(), into.len());
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    let code = unsafe {
        let recv = (*(*side.ep).tagged).recv;
        recv(
            side.ep,
            at,
            len,
            null_mut(),
            from,
            tag,
            ignore,
            context as *mut c_void,
        )
    };
    assert_eq!(code, 0);
}

fn look(side: &Side, tag: u64, flags: u64, context: usize, into: &mut [u8]) -> isize {
    trecvmsg(side.ep, into, tag, context, flags)
}

#[test]
fn messages_of_all_lengths_arrive_whether_expected_or_not() {
    let (a, b, peer) = pair(&Wish::default());
    for len in [0, 1, 300, 480, 481, 4096, 8192, 8193, 100_000, 3_000_000] {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8).collect();
        for expected in [true, false] {
            let mut into = vec![0u8; len];
            if expected {
                trecv(&b, FI_ADDR_UNSPEC, &mut into, 5, 0, 2);
            }
            tsend(&a, peer, &bytes, 5, 1);
            if !expected {
                // Send a second message: when it has arrived, so has the first.
                let mut marker = [0u8; 1];
                trecv(&b, FI_ADDR_UNSPEC, &mut marker, 6, 0, 3);
                tsend(&a, peer, &[1], 6, 4);
                assert_eq!(b.completion(&[&a]).unwrap().op_context as usize, 3);
                trecv(&b, FI_ADDR_UNSPEC, &mut into, 5, 0, 2);
            }
            let entry = b.completion(&[&a]).unwrap();
            assert_eq!(
                (entry.op_context as usize, entry.len, entry.tag),
                (2, len, 5)
            );
            assert_eq!(entry.flags & (FI_RECV | FI_TAGGED), FI_RECV | FI_TAGGED);
            assert!(into == bytes, "{len} bytes, expected: {expected}");
            let mut contexts = vec![a.completion(&[&b]).unwrap().op_context as usize];
            if !expected {
                contexts.push(a.completion(&[&b]).unwrap().op_context as usize);
            }
            assert!(contexts.contains(&1));
        }
    }
}

#[test]
fn receives_match_messages_by_tag_and_in_order() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffers = [[0u8; 4]; 3];
    for (index, buffer) in buffers.iter_mut().enumerate() {
        let (tag, ignore) = if index == 2 { (0, u64::MAX) } else { (7, 0) };
        trecv(&b, FI_ADDR_UNSPEC, buffer, tag, ignore, index);
    }
    for (bytes, tag) in [([1; 4], 9), ([2; 4], 7), ([3; 4], 7)] {
        tsend(&a, peer, &bytes, tag, 0);
        assert!(a.completion(&[&b]).is_ok());
    }
    for context in [2, 0, 1] {
        assert_eq!(b.completion(&[]).unwrap().op_context as usize, context);
    }
    assert_eq!(buffers, [[2; 4], [3; 4], [1; 4]]);
}

/// The sender's address of the next completion.
fn completion_from(side: &Side, peer: &Side) -> u64 {
    let started = std::time::Instant::now();
    loop {
        // SAFETY: live handles, and room for an entry of the longest format and for a number.
        let (code, from) = unsafe {
            ((*(*peer.cq).ops).read)(peer.cq, null_mut(), 0);
            let (mut entry, mut from): (CqTaggedEntry, _) = (std::mem::zeroed(), 0);
            let readfrom = (*(*side.cq).ops).readfrom;
            let code = readfrom(side.cq, (&raw mut entry).cast(), 1, &mut from);
            (code, from)
        };
        if code == 1 {
            return from;
        }
        assert_eq!(code, -(libc::EAGAIN as isize));
        assert!(started.elapsed().as_secs() < 30, "no completion arrived");
        std::thread::yield_now();
    }
}

/// Sends from one side to the other. Returns the sender that the receiver's completion reports.
fn named_as(from: &Side, to: &Side, peer: u64) -> u64 {
    let mut into = [0u8; 1];
    trecv(to, FI_ADDR_UNSPEC, &mut into, 1, 0, 1);
    tsend(from, peer, &[1], 1, 1);
    let source = completion_from(to, from);
    assert!(from.completion(&[to]).is_ok());
    source
}

fn av_with(side: &Side, flags: u64) -> (c_int, *mut FidAv) {
    let mut av = null_mut();
    // SAFETY: the handle is live, and the attributes are our own.
    let code = unsafe {
        let mut attr: AvAttr = std::mem::zeroed();
        attr.flags = flags;
        ((*(*side.domain).ops).av_open)(side.domain, &mut attr, &mut av, null_mut())
    };
    (code, av)
}

fn set_user_id(av: *mut FidAv, number: u64, id: u64, flags: u64) -> c_int {
    // SAFETY: the handle is live.
    unsafe { ((*(*av).ops).set_user_id)(av, number, id, flags) }
}

#[test]
fn completions_name_senders_by_their_user_ids() {
    let wish = Wish {
        caps: FI_TAGGED | FI_SOURCE | FI_AV_USER_ID,
        ..Wish::default()
    };
    let info = wish.info();
    let (a, b) = (Side::open(&wish), Side::open(&wish));
    // This endpoint's address vector has the flag.
    let (code, av) = av_with(&b, FI_AV_USER_ID);
    assert_eq!(code, 0);
    let (ep, cq, _) = open_disabled(b.domain, info);
    assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
    assert_eq!(control(ep.cast(), FI_ENABLE, null_mut()), 0);
    let b = Side { ep, cq, av, ..b };
    let to_b = a.peer(&b);
    let from_a = b.peer(&a);
    assert_eq!(
        named_as(&a, &b, to_b),
        FI_ADDR_NOTAVAIL,
        "no identifier yet"
    );
    assert_eq!(set_user_id(av, from_a, 4711, 0), 0);
    assert_eq!(named_as(&a, &b, to_b), 4711);
    assert_eq!(set_user_id(av, from_a, 4712, 0), 0);
    assert_eq!(named_as(&a, &b, to_b), 4712);
    assert_eq!(set_user_id(av, from_a + 1, 1, 0), -libc::EINVAL);
    assert_eq!(set_user_id(av, from_a, 1, FI_MORE), -260, "unknown flag");
    assert_eq!(set_user_id(av, from_a, 1, FI_AUTH_KEY), -libc::EINVAL);
    assert_eq!(
        insert_with_id(&b, &a, 5),
        -libc::EINVAL,
        "the vector has the flag"
    );
}

fn insert_with_id(side: &Side, of: &Side, mut id: u64) -> c_int {
    let name = name_of(of.ep);
    // SAFETY: a live handle, the name of an endpoint, and an identifier that becomes the number.
    unsafe {
        let insert = (*(*side.av).ops).insert;
        let at = name.as_ptr().cast();
        insert(side.av, at, 1, &mut id, FI_AV_USER_ID, null_mut())
    }
}

#[test]
fn a_user_id_can_be_inserted_with_an_address() {
    let wish = Wish {
        caps: FI_TAGGED | FI_SOURCE,
        ..Wish::default()
    };
    let (a, b, c) = (Side::open(&wish), Side::open(&wish), Side::open(&wish));
    let (to_b, c_to_b) = (a.peer(&b), c.peer(&b));
    assert_eq!(insert_with_id(&b, &a, 900), 1);
    let from_c = b.peer(&c);
    assert_eq!(named_as(&a, &b, to_b), 900);
    assert_eq!(named_as(&c, &b, c_to_b), from_c, "it has only a number");
    assert_eq!(set_user_id(b.av, from_c, 1, 0), -libc::EINVAL);
    assert_eq!(av_with(&b, FI_AV_USER_ID).0, -libc::EINVAL, "not requested");
}

#[test]
fn a_receive_can_be_limited_to_one_peer() {
    let wish = Wish {
        caps: FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE,
        ..Wish::default()
    };
    let (a, b, peer) = pair(&wish);
    let c = Side::open(&wish);
    let (c_to_b, from_a, from_c) = (c.peer(&b), b.peer(&a), b.peer(&c));
    let (mut one, mut two) = ([0u8; 1], [0u8; 1]);
    trecv(&b, from_c, &mut one, 1, 0, 10);
    trecv(&b, from_a, &mut two, 1, 0, 20);
    tsend(&a, peer, &[1], 1, 0);
    assert_eq!(b.completion(&[&a]).unwrap().op_context as usize, 20);
    tsend(&c, c_to_b, &[3], 1, 0);
    assert_eq!(b.completion(&[&c]).unwrap().op_context as usize, 10);
    assert_eq!((one, two), ([3], [1]));
}

#[test]
fn a_message_that_is_too_long_is_truncated_with_an_error() {
    let (a, b, peer) = pair(&Wish::default());
    for len in [100usize, 20_000] {
        let mut into = vec![0u8; 60];
        trecv(&b, FI_ADDR_UNSPEC, &mut into, 1, 0, 0);
        let bytes = vec![7; len];
        tsend(&a, peer, &bytes, 1, 0);
        let error = b.completion(&[&a]).unwrap_err();
        assert_eq!((error.err, error.len, error.olen), (265, 60, len - 60));
        assert_eq!(into, [7; 60]);
        assert!(a.completion(&[&b]).is_ok());
    }
}

#[test]
fn messages_are_peeked_at_claimed_and_discarded() {
    let (a, b, peer) = pair(&Wish::default());
    let nothing = &mut [];
    assert_eq!(look(&b, 5, FI_PEEK, 1, nothing), 0);
    assert_eq!(b.completion(&[]).unwrap_err().err, libc::ENOMSG);
    for len in [10usize, 50_000] {
        let bytes = vec![9u8; len];
        tsend(&a, peer, &bytes, 5, 0);
        // A peek that finds the message shows that it has arrived.
        let entry = loop {
            assert_eq!(look(&b, 5, FI_PEEK, 1, nothing), 0);
            match b.completion(&[&a]) {
                Ok(entry) => break entry,
                Err(error) => assert_eq!(error.err, libc::ENOMSG),
            }
        };
        assert_eq!((entry.len, entry.tag), (len, 5));
        assert_eq!(look(&b, 5, FI_PEEK | FI_CLAIM, 77, nothing), 0);
        assert_eq!(b.completion(&[]).unwrap().len, len);
        assert_eq!(look(&b, 5, FI_PEEK, 1, nothing), 0);
        assert_eq!(b.completion(&[]).unwrap_err().err, libc::ENOMSG, "claimed");
        let mut into = vec![0u8; len];
        assert_eq!(look(&b, 5, FI_CLAIM, 77, &mut into), 0);
        assert_eq!(b.completion(&[&a]).unwrap().len, len);
        assert_eq!(into, bytes);
        assert!(a.completion(&[&b]).is_ok());
        assert_eq!(
            look(&b, 5, FI_CLAIM, 77, &mut into),
            -(libc::EINVAL as isize)
        );
    }
    tsend(&a, peer, &[1; 4], 6, 0);
    loop {
        assert_eq!(look(&b, 6, FI_PEEK | FI_DISCARD, 1, nothing), 0);
        match b.completion(&[&a]) {
            Ok(entry) => break assert_eq!(entry.len, 4),
            Err(error) => assert_eq!(error.err, libc::ENOMSG),
        }
    }
    assert_eq!(look(&b, 6, FI_PEEK, 1, nothing), 0);
    assert_eq!(
        b.completion(&[]).unwrap_err().err,
        libc::ENOMSG,
        "discarded"
    );
}

/// Two messages are claimed with one context: each can be received, in the order in which they were claimed.
#[test]
fn messages_claimed_with_one_context_are_all_received() {
    let (a, b, peer) = pair(&Wish::default());
    for (tag, byte) in [(5, 1), (6, 2), (7, 3)] {
        tsend(&a, peer, &[byte; 4], tag, 0);
        loop {
            assert_eq!(look(&b, tag, FI_PEEK | FI_CLAIM, 77, &mut []), 0);
            match b.completion(&[&a]) {
                Ok(entry) => break assert_eq!(entry.tag, tag),
                Err(error) => assert_eq!(error.err, libc::ENOMSG),
            }
        }
    }
    let mut into = [0u8; 4];
    for byte in [1, 2] {
        assert_eq!(look(&b, 5, FI_CLAIM, 77, &mut into), 0);
        assert!(b.completion(&[&a]).is_ok());
        assert_eq!(into, [byte; 4]);
    }
    assert_eq!(look(&b, 5, FI_CLAIM | FI_DISCARD, 77, &mut []), 0);
    assert_eq!(b.completion(&[&a]).unwrap().tag, 7);
    let none = look(&b, 5, FI_CLAIM, 77, &mut into);
    assert_eq!(none, -(libc::EINVAL as isize));
}

/// A buffer at the end of the address space, which no process can map, causes an error for each message received there.
#[test]
fn a_message_to_an_impossible_buffer_completes_with_an_error() {
    let (a, b, peer) = pair(&Wish::default());
    let iov = [libc::iovec {
        iov_base: (usize::MAX - 100) as *mut c_void,
        iov_len: 4096,
    }];
    let msg = Msg {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        context: null_mut(),
        data: 0,
    };
    // SAFETY: the handle is live; nothing can be written to such memory.
    let code = unsafe { ((*(*b.ep).msg).recvmsg)(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION) };
    assert_eq!(code, 0);
    for _ in 0..3 {
        let bytes = [1u8; 80];
        // SAFETY: the handle is live; the bytes are copied at once.
        let code =
            again(|| unsafe { ((*(*a.ep).msg).inject)(a.ep, bytes.as_ptr().cast(), 80, peer) });
        assert_eq!(code, 0);
        assert_eq!(b.completion(&[&a]).unwrap_err().err, libc::EFAULT);
    }
}

#[test]
fn a_multi_receive_buffer_takes_many_messages() {
    let (a, b, peer) = pair(&Wish::default());
    let mut into = vec![0u8; 256];
    let iov = [iovec(&mut into)];
    let msg = Msg {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        context: 5 as *mut c_void,
        data: 0,
    };
    // SAFETY: the handle is live; the buffer stays valid until it is released.
    let code = unsafe { ((*(*b.ep).msg).recvmsg)(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION) };
    assert_eq!(code, 0);
    for round in 0..4u8 {
        let bytes = [round + 1; 60];
        // SAFETY: the handle is live; the bytes are copied at once.
        let code =
            again(|| unsafe { ((*(*a.ep).msg).inject)(a.ep, bytes.as_ptr().cast(), 60, peer) });
        assert_eq!(code, 0);
        let entry = b.completion(&[&a]).unwrap();
        let offset = entry.buf as usize - iov[0].iov_base as usize;
        assert_eq!((offset, entry.len), (60 * usize::from(round), 60));
        // After the fourth, less than the minimum of 64 bytes is left.
        assert_eq!(entry.flags & FI_MULTI_RECV != 0, round == 3);
    }
    assert_eq!((into[59], into[60], into[239], into[240]), (1, 2, 4, 0));
}

#[test]
fn completion_data_arrives_with_messages_and_after_writes() {
    let (a, b, peer) = pair(&Wish::default());
    let mut into = [0u8; 4];
    trecv(&b, FI_ADDR_UNSPEC, &mut into, 1, 0, 0);
    let mut target = vec![0u8; 8];
    let mr = b.reg(&mut target, REMOTE, 1, 0).unwrap();
    let data = 0x1122_3344_5566_7788;
    // SAFETY: the handles are live; the bytes stay valid until the completions.
    unsafe {
        let (bytes, none) = ([7u8; 4], null_mut());
        let at = bytes.as_ptr().cast();
        let send = (*(*a.ep).tagged).senddata;
        assert_eq!(again(|| send(a.ep, at, 4, none, data, peer, 1, none)), 0);
        assert!(a.completion(&[&b]).is_ok());
        let entry = b.completion(&[&a]).unwrap();
        assert_eq!(
            (entry.data, entry.flags & FI_REMOTE_CQ_DATA != 0),
            (data, true)
        );
        let write = (*(*a.ep).rma).writedata;
        assert_eq!(
            again(|| write(a.ep, at, 4, none, data + 1, peer, 2, 1, none)),
            0
        );
        assert!(a.completion(&[&b]).is_ok());
    }
    let entry = b.completion(&[&a]).unwrap();
    let flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
    assert_eq!(
        (entry.data, entry.len, entry.flags & flags),
        (data + 1, 4, flags)
    );
    assert_eq!(mr.close(), 0);
    assert_eq!(target, [0, 0, 7, 7, 7, 7, 0, 0]);
}

#[test]
fn an_endpoint_can_send_to_itself() {
    let a = Side::open(&Wish::default());
    let me = a.peer(&a);
    let mut into = vec![0u8; 20_000];
    let bytes = vec![4u8; 20_000];
    trecv(&a, FI_ADDR_UNSPEC, &mut into, 1, 0, 8);
    tsend(&a, me, &bytes, 1, 9);
    let one = a.completion(&[]).unwrap().op_context as usize;
    let two = a.completion(&[]).unwrap().op_context as usize;
    assert_eq!((one + two, one.min(two)), (17, 8));
    assert_eq!(into, bytes);
}

#[test]
fn a_call_that_names_an_unknown_peer_fails() {
    let a = Side::open(&Wish::default());
    let peer = a.insert(&name_at(1));
    assert_eq!(a.write(peer, &[1], 0, 1), -libc::ECONNREFUSED);
    assert_eq!(
        a.write(peer + 1, &[1], 0, 1),
        -libc::EINVAL,
        "no peer has that number"
    );
}

/// Some messages are copied directly from the link to their receive, some pass through a buffer, and some are read from
/// their sender.
#[test]
fn messages_match_in_order_whichever_path_they_take() {
    const COUNT: usize = 90;
    let (a, b, peer) = pair(&Wish::default());
    let lens = [8, 9000, 600];
    let sent: Vec<_> = (0..COUNT)
        .map(|n| vec![n as u8 + 1; lens[n % lens.len()]])
        .collect();
    let mut got = vec![vec![0u8; 9000]; COUNT];
    let (early, late) = got.split_at_mut(COUNT / 2);
    for (n, into) in early.iter_mut().enumerate() {
        trecv(&b, FI_ADDR_UNSPEC, into, 5, 0, n);
    }
    for (n, bytes) in sent.iter().enumerate() {
        tsend(&a, peer, bytes, 5, n);
    }
    for (n, into) in late.iter_mut().enumerate() {
        trecv(&b, FI_ADDR_UNSPEC, into, 5, 0, COUNT / 2 + n);
    }
    let mut contexts = Vec::new();
    for _ in 0..COUNT {
        let entry = b.completion(&[&a]).unwrap();
        let n = entry.op_context as usize;
        assert_eq!(entry.len, sent[n].len());
        contexts.push(n);
    }
    contexts.sort_unstable();
    assert!(contexts.into_iter().eq(0..COUNT));
    let mut contexts: Vec<_> = (0..COUNT)
        .map(|_| a.completion(&[&b]).unwrap().op_context as usize)
        .collect();
    contexts.sort_unstable();
    assert!(contexts.into_iter().eq(0..COUNT));
    for (n, (into, bytes)) in got.iter().zip(&sent).enumerate() {
        assert!(into[..bytes.len()] == **bytes, "message {n}");
    }
}

/// Messages that fail at their sender consume no credit: later ones still arrive.
#[test]
fn failed_sends_use_no_credit() {
    let (a, b, peer) = pair(&Wish::default());
    let hole = map_at(0, 8192, libc::PROT_NONE);
    // SAFETY: an unmapped address, which the provider must survive.
    let nothing = unsafe { std::slice::from_raw_parts(hole as *const u8, 8192) };
    // Send more messages than a peer may have unexpected.
    for n in 0..600 {
        tsend(&a, peer, nothing, 5, n);
        assert_eq!(a.completion(&[]).unwrap_err().err, libc::EFAULT);
    }
    let bytes = [7u8; 8192];
    tsend(&a, peer, &bytes, 5, 1);
    // The eager message completes before a receive is posted.
    assert_eq!(a.completion(&[&b]).unwrap().op_context as usize, 1);
    let mut into = [0u8; 8192];
    trecv(&b, FI_ADDR_UNSPEC, &mut into, 5, 0, 2);
    assert_eq!(b.completion(&[&a]).unwrap().op_context as usize, 2);
    assert_eq!(into, bytes);
    unmap(hole, 8192);
}
