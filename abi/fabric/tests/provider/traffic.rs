//! Regions that are changed or closed while peers use them.

use crate::harness::*;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Writes at least once, until the test stops it; `note` gets every result.
fn write_on(a: &Side, peer: u64, stop: &AtomicBool, mut note: impl FnMut(i32)) {
    loop {
        note(a.write(peer, &[1; 32], 0, 1));
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// With notification, a refresh suspends access, with or without `FI_MR_ALLOCATED`; without notification, peers do not
/// notice a refresh.
///
/// Proves: FI-191, FI-195
#[test]
fn a_refresh_suspends_access_only_with_notification() {
    let both = FI_MR_MMU_NOTIFY | FI_MR_ALLOCATED;
    for mode in [0, FI_MR_MMU_NOTIFY, both] {
        let (a, b, peer) = pair(&Wish::mode(mode));
        let mut buffer = vec![0u8; 32];
        let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
        let expected = match mode {
            0 => BTreeSet::from([0]),
            _ => BTreeSet::from([0, libc::EACCES]),
        };
        assert_eq!(refresh_under_writes(&a, peer, mr, mode == 0).0, expected);
        assert_eq!((mr.close(), buffer), (0, vec![1; 32]));
    }
}

/// A bound counter or endpoint makes no difference to a refresh, and stays bound.
///
/// Proves: FI-191, FI-195
#[test]
fn a_refresh_suspends_access_to_bound_regions_too() {
    let events = FI_MSG | FI_RMA | FI_RMA_EVENT;
    for (mode, own_counter, endpoint) in [
        (0, true, false),
        (0, false, true),
        (FI_MR_ENDPOINT, false, true),
        (FI_MR_ENDPOINT, true, true),
        // A counter of the endpoint counts accesses to every region.
        (0, false, false),
    ] {
        let wish = Wish {
            caps: events,
            ..Wish::mode(mode | FI_MR_MMU_NOTIFY)
        };
        let a = Side::open(&wish);
        let info = wish.info();
        let b = Side::waiting(open_domain(wish.version, info), info);
        assert_eq!(bind(b.ep.cast(), b.av.cast(), 0), 0);
        let counter = counter(b.domain);
        if !own_counter {
            assert_eq!(bind(b.ep.cast(), counter.cast(), FI_REMOTE_WRITE), 0);
        }
        assert_eq!(b.enable(), 0);
        let peer = a.peer(&b);
        let mut buffer = vec![0u8; 32];
        let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
        if own_counter {
            assert_eq!(mr.bind(counter, FI_REMOTE_WRITE), 0);
        }
        if endpoint {
            assert_eq!(mr.bind(b.ep, 0), 0);
        }
        assert_eq!(mr.enable(), 0);
        let case = (mode, own_counter, endpoint);
        let (seen, done) = refresh_under_writes(&a, peer, mr, false);
        assert_eq!(seen, BTreeSet::from([0, libc::EACCES]), "{case:?}");
        assert_eq!(wait_count(counter, done), done, "{case:?}");
        // The region is still bound, because an endpoint is closed first.
        if endpoint {
            assert_eq!(close(b.ep.cast()), 0);
        }
        if own_counter {
            assert_eq!(close(counter.cast()), 0);
        }
        assert_eq!(mr.close(), 0, "{case:?}");
    }
}

/// Refreshes the region with key 1 while a peer writes: until a write is refused and another one executes, or, if none
/// is ever refused, for a fixed time. Returns the codes of the writes and the number of successes.
fn refresh_under_writes(a: &Side, peer: u64, mr: Mr, never: bool) -> (BTreeSet<c_int>, u64) {
    assert_eq!(a.write(peer, &[1; 32], 0, 1), 0);
    let (stop, refused, carried_out) = (
        AtomicBool::new(false),
        AtomicBool::new(false),
        AtomicBool::new(false),
    );
    let (region, mut seen, mut done) = (mr.0 as usize, BTreeSet::new(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mr, started) = (Mr(region as *mut FidMr), Instant::now());
            for round in 0.. {
                assert_eq!(mr.refresh(&[]), 0);
                let met = refused.load(Ordering::Relaxed) && carried_out.load(Ordering::Relaxed);
                let done = if never { round == 300 } else { met };
                if done || started.elapsed() > PATIENCE {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        write_on(a, peer, &stop, |answer| {
            seen.insert(answer);
            match answer {
                0 => {
                    done += 1;
                    carried_out.store(true, Ordering::Relaxed);
                }
                _ => refused.store(true, Ordering::Relaxed),
            }
        });
    });
    assert_eq!(
        a.write(peer, &[1; 32], 0, 1),
        0,
        "access is restored afterwards"
    );
    (seen, done + 1)
}

/// Proves: FI-157
#[test]
fn operations_on_a_closing_region_complete_or_fail() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![0u8; 32];
    let stop = AtomicBool::new(false);
    let (domain, at) = (b.domain as usize, buffer.as_mut_ptr() as usize);
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let domain = domain as *mut FidDomain;
            for _ in 0..100 {
                let mut mr = null_mut();
                // SAFETY: a live handle, and a buffer that lives until the region is closed.
                let code = unsafe {
                    let reg = (*(*domain).mr).reg;
                    reg(
                        domain.cast(),
                        at as *const _,
                        32,
                        REMOTE,
                        0,
                        1,
                        0,
                        &mut mr,
                        null_mut(),
                    )
                };
                assert_eq!(code, 0);
                std::thread::yield_now();
                assert_eq!(Mr(mr).close(), 0);
            }
            stop.store(true, Ordering::Relaxed);
        });
        write_on(&a, peer, &stop, |answer| {
            seen.insert(answer);
        });
    });
    assert!(
        seen.iter()
            .all(|answer| [0, libc::EACCES, 266].contains(answer)),
        "{seen:?}"
    );
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    assert_eq!(
        a.write(peer, &[3; 32], 0, 1),
        0,
        "both endpoints are unaffected"
    );
    assert_eq!((mr.close(), buffer), (0, vec![3; 32]));
}

/// Sends a message from `a` to `b`. Returns the results at `b` and at `a`.
fn send_from(
    a: &Side,
    b: &Side,
    peer: u64,
    bytes: &[u8],
    desc: *mut c_void,
) -> (Result<usize, c_int>, Result<(), c_int>) {
    let at = bytes.as_ptr().cast();
    // SAFETY: the handle is live; the buffer outlives the endpoint's use of it.
    let code =
        again(|| unsafe { ((*(*a.ep).msg).send)(a.ep, at, bytes.len(), desc, peer, null_mut()) });
    assert_eq!(code, 0);
    let there = b.completion(&[a]).map(|entry| entry.len);
    let here = a.completion(&[b]).map(|_| ());
    (
        there.map_err(|entry| entry.err),
        here.map_err(|entry| entry.err),
    )
}

/// A payload that cannot be stored is an error, whether it travels with the message or is read from the sender.
///
/// Proves: FI-I08
#[test]
fn a_posted_buffer_whose_region_was_closed_is_not_written_to() {
    for (len, told) in [(16, Ok(())), (4096, Ok(())), (65536, Err(libc::EACCES))] {
        let (a, b, peer) = pair(&Wish::mode(FI_MR_LOCAL));
        let (mut into, mut bytes) = (vec![0u8; len], vec![7u8; len]);
        let sink = b.reg(&mut into, FI_RECV, 0, 0).unwrap();
        let source = a.reg(&mut bytes, FI_SEND, 0, 0).unwrap();
        // SAFETY: the handle is live; the buffer outlives the endpoint's use of it.
        let code = unsafe {
            let (recv, none) = ((*(*b.ep).msg).recv, null_mut());
            let at = into.as_mut_ptr().cast();
            recv(b.ep, at, len, sink.desc(), FI_ADDR_UNSPEC, none)
        };
        assert_eq!((code, sink.close()), (0, 0));
        let came = send_from(&a, &b, peer, &bytes, source.desc());
        assert_eq!(came, (Err(libc::EACCES), told), "{len} B");
        assert_eq!((source.close(), into), (0, vec![0; len]));
    }
}

/// A long message is read when its receive is posted. Until then its region can be closed, and other messages can be sent.
///
/// Proves: FI-I08
#[test]
fn a_rendezvous_message_whose_region_was_closed_is_not_read() {
    const LEN: usize = 65536;
    let (a, b, peer) = pair(&Wish::mode(FI_MR_LOCAL));
    let (mut bytes, mut others, mut into) = (vec![7u8; LEN], vec![8u8; LEN], vec![0u8; LEN]);
    let source = a.reg(&mut bytes, FI_SEND, 0, 0).unwrap();
    let other = a.reg(&mut others, FI_SEND, 0, 0).unwrap();
    let sink = b.reg(&mut into, FI_RECV, 0, 0).unwrap();
    for (bytes, desc) in [(&bytes, source.desc()), (&others, other.desc())] {
        let at = bytes.as_ptr().cast();
        // SAFETY: the handle is live; the buffers outlive the endpoint's use of them.
        let code =
            again(|| unsafe { ((*(*a.ep).msg).send)(a.ep, at, LEN, desc, peer, null_mut()) });
        assert_eq!(code, 0);
    }
    assert_eq!(source.close(), 0);
    for expected in [Err(266), Ok(LEN)] {
        // SAFETY: as above.
        let code = unsafe {
            let (recv, none) = ((*(*b.ep).msg).recv, null_mut());
            let at = into.as_mut_ptr().cast();
            recv(b.ep, at, LEN, sink.desc(), FI_ADDR_UNSPEC, none)
        };
        assert_eq!(code, 0);
        let there = b.completion(&[&a]).map(|entry| entry.len);
        let here = a.completion(&[&b]).map(|_| LEN);
        assert_eq!(there.map_err(|entry| entry.err), expected);
        assert_eq!(here.map_err(|entry| entry.err), expected);
        let value = expected.map_or(0, |_| 8);
        assert!(into.iter().all(|byte| *byte == value));
    }
    assert_eq!((other.close(), sink.close()), (0, 0));
}

/// The first of two buffers may no longer be written; the message does not move to the second one instead.
#[test]
fn a_payload_for_a_closed_buffer_does_not_go_to_the_next_buffer() {
    const HALF: usize = 32768;
    let (a, b, peer) = pair(&Wish::mode(FI_MR_LOCAL));
    let mut bytes = vec![7u8; 2 * HALF];
    let (mut one, mut two) = (vec![0u8; HALF], vec![0u8; HALF]);
    let source = a.reg(&mut bytes, FI_SEND, 0, 0).unwrap();
    let first = b.reg(&mut one, FI_RECV, 0, 0).unwrap();
    let second = b.reg(&mut two, FI_RECV, 0, 0).unwrap();
    let iov = [iovec(&mut one), iovec(&mut two)];
    let mut descs = [first.desc(), second.desc()];
    // SAFETY: the handle is live; the buffers outlive the endpoint's use of them.
    let code = unsafe {
        let (recvv, none) = ((*(*b.ep).msg).recvv, null_mut());
        recvv(
            b.ep,
            iov.as_ptr(),
            descs.as_mut_ptr(),
            2,
            FI_ADDR_UNSPEC,
            none,
        )
    };
    assert_eq!((code, first.close()), (0, 0));
    let came = send_from(&a, &b, peer, &bytes, source.desc());
    assert_eq!(came, (Err(libc::EACCES), Err(libc::EACCES)));
    assert_eq!((source.close(), second.close()), (0, 0));
    assert_eq!((one, two), (vec![0; HALF], vec![0; HALF]));
}

/// Writes with remote completion data to one or two remote buffers.
fn write_data(a: &Side, peer: u64, data: u64, places: &[RmaIov]) -> Result<(), i32> {
    let mut bytes = vec![7u8; places.iter().map(|place| place.len).sum()];
    let iov = [iovec(&mut bytes)];
    let msg = MsgRma {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: peer,
        rma_iov: places.as_ptr(),
        rma_iov_count: places.len(),
        context: null_mut(),
        data,
    };
    // SAFETY: the handle is live; the lists and the bytes stay valid until the completion.
    let code = again(|| unsafe { ((*(*a.ep).rma).writemsg)(a.ep, &msg, FI_REMOTE_CQ_DATA) });
    assert_eq!(code, 0);
    a.completion(&[]).map(drop).map_err(|error| error.err)
}

/// The target gets completion data only if the whole write was executed.
#[test]
fn a_refused_write_delivers_no_completion_data() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![0u8; 16];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let place = |addr, key| RmaIov { addr, len: 4, key };
    for data in [5, u64::MAX - 5] {
        assert_eq!(write_data(&a, peer, data, &[place(0, 2)]), Err(266));
        assert_eq!(
            write_data(&a, peer, data, &[place(14, 1)]),
            Err(libc::EACCES)
        );
        for places in [[place(0, 2), place(4, 1)], [place(0, 1), place(4, 2)]] {
            assert_eq!(write_data(&a, peer, data, &places), Err(266));
        }
    }
    let mut told = Vec::new();
    for (data, places) in [
        (6, &[place(8, 1)][..]),
        (u64::MAX - 6, &[place(0, 1)]),
        (7, &[place(0, 1), place(8, 1)]),
    ] {
        assert_eq!(write_data(&a, peer, data, places), Ok(()));
        let entry = b.completion(&[&a]).unwrap();
        told.push((entry.data, entry.len));
    }
    assert_eq!(told, [(6, 4), (u64::MAX - 6, 4), (7, 8)]);
    assert!(poll(b.cq).is_none(), "no completion");
    assert_eq!(mr.close(), 0);
}
