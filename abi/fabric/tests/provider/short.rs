//! Calls that take the express lane, compared with calls that never do (`fi_tsendmsg`, `fi_trecvmsg`): nothing may differ.

use crate::harness::*;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The memory that the program names for a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Named {
    /// No descriptor.
    Nothing,
    /// A region with the right.
    Right,
    /// A region without the right.
    Wrong,
    /// A region that was closed.
    Closed,
    /// A region that does not cover the buffer.
    Small,
}

const ALL: [Named; 5] = [
    Named::Nothing,
    Named::Right,
    Named::Wrong,
    Named::Closed,
    Named::Small,
];
const TAG: u64 = 3;
/// The context of the send, and of the receive.
const CONTEXTS: [usize; 2] = [11, 12];

#[derive(Clone, Copy, Debug)]
struct Case {
    len: usize,
    room: usize,
    source: Named,
    sink: Named,
    /// Added to the number of the peer.
    beyond: u64,
}

type Completion = Result<(usize, u64, usize, usize, u64, u64), c_int>;

/// What a program sees of a case.
#[derive(Debug, PartialEq)]
struct Outcome {
    codes: [isize; 2],
    completions: Vec<(usize, Completion)>,
    bytes: Vec<u8>,
}

/// The descriptor for a buffer, and the region that must be closed afterwards.
fn name(side: &Side, bytes: &mut [u8], named: Named, right: u64) -> (*mut c_void, Option<Mr>) {
    let len = bytes.len();
    let mr = match named {
        Named::Nothing => return (null_mut(), None),
        Named::Right | Named::Closed => side.reg(bytes, right, 0, 0),
        Named::Wrong => side.reg(bytes, FI_READ, 0, 0),
        Named::Small => side.reg(&mut bytes[..len / 2], right, 0, 0),
    };
    let mr = mr.unwrap();
    let desc = mr.desc();
    match named {
        Named::Closed => {
            assert_eq!(mr.close(), 0);
            (desc, None)
        }
        _ => (desc, Some(mr)),
    }
}

fn message(iov: &libc::iovec, desc: &mut *mut c_void, addr: u64, context: usize) -> MsgTagged {
    MsgTagged {
        msg_iov: iov,
        desc,
        iov_count: 1,
        addr,
        tag: TAG,
        ignore: 0,
        context: context as *mut c_void,
        data: 0,
    }
}

fn send(
    side: &Side,
    bytes: &mut [u8],
    len: usize,
    mut desc: *mut c_void,
    to: u64,
    short: bool,
) -> isize {
    let iov = iovec(&mut bytes[..len]);
    let (at, context) = (iov.iov_base, CONTEXTS[0] as *mut c_void);
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    again(|| unsafe {
        let tagged = &*(*side.ep).tagged;
        match short {
            true => (tagged.send)(side.ep, at, len, desc, to, TAG, context),
            false => (tagged.sendmsg)(side.ep, &message(&iov, &mut desc, to, CONTEXTS[0]), 0),
        }
    })
}

fn receive(side: &Side, into: &mut [u8], room: usize, mut desc: *mut c_void, short: bool) -> isize {
    let iov = iovec(&mut into[..room]);
    let (at, context, from) = (iov.iov_base, CONTEXTS[1] as *mut c_void, FI_ADDR_UNSPEC);
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    unsafe {
        let tagged = &*(*side.ep).tagged;
        match short {
            true => (tagged.recv)(side.ep, at, room, desc, from, TAG, 0, context),
            false => (tagged.recvmsg)(side.ep, &message(&iov, &mut desc, from, CONTEXTS[1]), 0),
        }
    }
}

fn completion(side: &Side, other: &Side) -> Completion {
    match side.completion(&[other]) {
        Ok(it) => {
            let (context, buf) = (it.op_context as usize, it.buf as usize);
            Ok((context, it.flags, it.len, buf, it.data, it.tag))
        }
        Err(error) => Err(error.err),
    }
}

/// Posts a receive, then a send; ends what only one of them began.
fn play(
    a: &Side,
    b: &Side,
    peer: u64,
    case: Case,
    buffers: &mut [Vec<u8>; 2],
    short: bool,
) -> Outcome {
    let [bytes, into] = buffers;
    into.fill(0);
    let (source, source_mr) = name(a, bytes, case.source, FI_SEND);
    let (sink, sink_mr) = name(b, into, case.sink, FI_RECV);
    let received = receive(b, into, case.room, sink, short);
    let sent = send(a, bytes, case.len, source, peer + case.beyond, short);
    let mut completions = Vec::new();
    match (sent, received) {
        (0, 0) => completions.push((1, completion(b, a))),
        (0, _) => {
            let mut rest = vec![0; into.len()];
            let mr = b.reg(&mut rest, FI_RECV, 0, 0).unwrap();
            let len = rest.len();
            assert_eq!(receive(b, &mut rest, len, mr.desc(), false), 0);
            assert!(b.completion(&[a]).is_ok());
            assert_eq!(mr.close(), 0);
        }
        (_, 0) => {
            // SAFETY: the handle is live.
            let code = unsafe { ((*(*b.ep).ops).cancel)(b.ep.cast(), CONTEXTS[1] as *mut c_void) };
            assert_eq!(code, 0);
            completions.push((1, completion(b, a)));
        }
        _ => {}
    }
    if sent == 0 {
        completions.push((0, completion(a, b)));
    }
    for mr in [source_mr, sink_mr].into_iter().flatten() {
        assert_eq!(mr.close(), 0);
    }
    Outcome {
        codes: [sent, received],
        completions,
        bytes: into.clone(),
    }
}

fn cases() -> Vec<Case> {
    let case = |len, room, source, sink| Case {
        len,
        room,
        source,
        sink,
        beyond: 0,
    };
    let mut all = Vec::new();
    for named in ALL {
        all.push(case(8, 8, named, Named::Right));
        all.push(case(8, 8, Named::Right, named));
    }
    for len in [0, 1, 176, 177, 300] {
        all.push(case(len, 300, Named::Right, Named::Right));
    }
    all.push(case(8, 7, Named::Right, Named::Right));
    all.push(case(8, 0, Named::Right, Named::Right));
    all.push(Case {
        beyond: 1000,
        ..case(8, 8, Named::Right, Named::Right)
    });
    all
}

#[test]
fn the_express_lane_has_the_same_results_as_the_long_way() {
    for mode in [0, FI_MR_LOCAL] {
        let (a, b, peer) = pair(&Wish::mode(mode));
        let mut sent = 0;
        for case in cases() {
            let len = case.len.max(case.room).max(2);
            let mut buffers = [
                (0..len).map(|at| (at as u8).wrapping_add(1)).collect(),
                vec![0; len],
            ];
            let mut play = |short| play(&a, &b, peer, case, &mut buffers, short);
            let (short, long) = (play(true), play(false));
            assert_eq!(short, long, "{case:?}, mode {mode:#x}");
            sent += usize::from(short.codes[0] == 0);
        }
        assert!(sent > 8, "only {sent} messages were sent");
    }
}

/// A limit that the program has lowered, and the number of messages that a program can have in flight, hold in the lane.
#[test]
fn the_express_lane_keeps_limits() {
    let (a, _b, peer) = pair(&Wish::default());
    let mut bytes = [1u8; 16];
    let limit = 8usize;
    // SAFETY: the handle is live, and the value has the length of the option.
    let code = unsafe {
        let setopt = (*(*a.ep).ops).setopt;
        let at = (&raw const limit).cast();
        setopt(
            a.ep.cast(),
            0,
            FI_OPT_MAX_TAGGED_SIZE,
            at,
            size_of::<usize>(),
        )
    };
    assert_eq!(code, 0);
    let too_long = -(libc::EMSGSIZE as isize);
    assert_eq!(send(&a, &mut bytes, 9, null_mut(), peer, true), too_long);
    assert_eq!(send(&a, &mut bytes, 8, null_mut(), peer, true), 0);
}

/// The receiver does not read its queue, so the device refuses the messages for which it has no buffer, and the sender sends them
/// again. It must still have the bytes that were injected.
#[test]
fn injected_messages_keep_their_bytes_until_the_receiver_has_a_buffer() {
    /// More than an endpoint has buffers.
    const MESSAGES: u64 = 300;
    let wish = Wish::default();
    let (sender, receiver) = (Side::open(&wish), Side::open(&wish));
    let peer = sender.peer(&receiver);
    let mut bytes = 0u64.to_le_bytes();
    for number in 0..MESSAGES {
        bytes = number.to_le_bytes();
        let at = bytes.as_ptr().cast();
        // SAFETY: the handle is live; the call copies the bytes.
        let inject = || unsafe { ((*(*sender.ep).tagged).inject)(sender.ep, at, 8, peer, TAG) };
        assert_eq!(again(inject), 0, "message {number}");
    }
    bytes.fill(0xff);
    for number in 0..MESSAGES {
        let mut into = [0u8; 8];
        let at = into.as_mut_ptr().cast();
        // SAFETY: the handle is live; the buffer stays valid until the completion.
        let code = unsafe {
            let recv = (*(*receiver.ep).tagged).recv;
            recv(
                receiver.ep,
                at,
                8,
                null_mut(),
                FI_ADDR_UNSPEC,
                TAG,
                0,
                null_mut(),
            )
        };
        assert_eq!(code, 0);
        assert_eq!(receiver.completion(&[&sender]).unwrap().len, 8);
        assert_eq!(u64::from_le_bytes(into), number);
    }
    assert_eq!(bytes, [0xff; 8]);
}
