//! Registrations that report to an event queue.

use crate::harness::*;
use rkey_fi::sys::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;

/// The next event: its number and entry, or the code.
fn event(eq: *mut FidEq) -> Result<(u32, EqEntry), isize> {
    // SAFETY: a live handle and room for an entry.
    unsafe {
        let (mut number, mut entry): (u32, EqEntry) = (0, std::mem::zeroed());
        let read = (*(*eq).ops).read;
        match read(
            eq,
            &mut number,
            (&raw mut entry).cast(),
            size_of::<EqEntry>(),
            0,
        ) {
            24 => Ok((number, entry)),
            code => Err(code),
        }
    }
}

/// Proves: FI-115, FI-201, FI-204, FI-206, FI-I01, FI-I02
#[test]
fn completed_registrations_report_their_context() {
    let mut b = Side::open(&Wish::default());
    assert_eq!(b.bind_eq(FI_REG_MR), 0);
    let mut buffer = [0u8; 8];
    let iov = [iovec(&mut buffer)];
    let mut attr = attributes(&iov, REMOTE, 1);
    attr.known.context = 0x5555 as *mut c_void;
    let first = b.regattr(&attr, 0).unwrap();
    let mut second = null_mut();
    // SAFETY: a live handle, and a buffer that lives until the region is closed.
    let code = unsafe {
        let reg = (*(*b.domain).mr).reg;
        let context = 0x6666 as *mut c_void;
        reg(
            b.domain.cast(),
            iov[0].iov_base,
            8,
            REMOTE,
            0,
            2,
            0,
            &mut second,
            context,
        )
    };
    assert_eq!(code, 0);
    for (fid, context) in [(first.0, 0x5555), (second, 0x6666)] {
        let (number, entry) = event(b.eq).unwrap();
        assert_eq!(
            (number, entry.fid.cast(), entry.context as usize),
            (FI_MR_COMPLETE, fid, context)
        );
    }
    assert_eq!(event(b.eq).err(), Some(-(libc::EAGAIN as isize)));
    assert_eq!(first.key(), 1);
    assert_eq!((first.close(), Mr(second).close()), (0, 0));
}

/// A thread that reads events while another one registers finds the handle already stored in the caller's
/// variable.
///
/// Proves: FI-202
#[test]
fn the_handle_is_stored_before_its_event_can_be_read() {
    const ROUNDS: usize = 4000;
    const PAGE: usize = 4096;
    let mut b = Side::open(&Wish::default());
    assert_eq!(b.bind_eq(FI_REG_MR), 0);
    // Each handle has a fresh page, so storing it takes a page fault, and an event that is written too early leaves the
    // reader plenty of time to find nothing there.
    let pages = map_at(0, ROUNDS * PAGE, RW);
    // SAFETY: mapped just now, for as long as the test runs; zero bytes are a null pointer.
    let handle = |round: usize| unsafe { &*((pages + round * PAGE) as *const AtomicPtr<FidMr>) };
    let (domain, eq, mut buffer) = (b.domain as usize, b.eq as usize, [0u8; 8]);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let eq = eq as *mut FidEq;
            for round in 0..ROUNDS {
                let started = Instant::now();
                let entry = loop {
                    match event(eq) {
                        Ok((FI_MR_COMPLETE, entry)) => break entry,
                        Ok(other) => panic!("unexpected event {}", other.0),
                        Err(_) => assert!(started.elapsed() < PATIENCE, "no event {round}"),
                    }
                    std::hint::spin_loop();
                };
                assert_eq!(entry.context as usize, round);
                let stored = handle(round).load(Ordering::Relaxed);
                assert_eq!(stored, entry.fid.cast(), "round {round}");
                assert_eq!(Mr(stored).close(), 0);
            }
        });
        let domain = domain as *mut FidDomain;
        for round in 0..ROUNDS {
            // SAFETY: a live handle, a buffer that outlives the region, and room for the handle.
            let code = unsafe {
                let reg = (*(*domain).mr).reg;
                let (at, key) = (buffer.as_mut_ptr().cast(), round as u64);
                let room = handle(round).as_ptr();
                let context = round as *mut c_void;
                reg(domain.cast(), at, 8, REMOTE, 0, key, 0, room, context)
            };
            assert_eq!(code, 0);
            if reader.is_finished() {
                break;
            }
        }
        reader.join().unwrap();
    });
    unmap(pages, ROUNDS * PAGE);
}

/// Proves: FI-203
#[test]
fn a_refused_registration_reports_no_event() {
    let mut b = Side::open(&Wish::default());
    assert_eq!(b.bind_eq(FI_REG_MR), 0);
    let mr = b.reg(&mut [0u8; 8], REMOTE, 1, 0).unwrap();
    assert!(event(b.eq).is_ok());
    assert!(b.reg(&mut [0u8; 8], REMOTE, 1, 0).is_err());
    assert!(b.reg_at(8, 0, REMOTE, 2, 0).is_err());
    assert_eq!(event(b.eq).err(), Some(-(libc::EAGAIN as isize)));
    assert_eq!(mr.close(), 0);
}

/// Proves: FI-116, FI-200, FI-I01
#[test]
fn without_fi_reg_mr_registration_is_synchronous() {
    let mut b = Side::open(&Wish::default());
    assert_eq!(b.bind_eq(0), 0);
    let mut buffer = [0u8; 8];
    let iov = [iovec(&mut buffer)];
    let mut attr = attributes(&iov, REMOTE, 1);
    attr.known.context = usize::MAX as *mut c_void;
    let mr = b.regattr(&attr, 0).unwrap();
    assert_eq!(mr.key(), 1);
    assert_eq!(event(b.eq).err(), Some(-(libc::EAGAIN as isize)));
    assert_eq!(mr.close(), 0);
}
