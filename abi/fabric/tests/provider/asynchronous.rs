//! Registration whose result comes through an event queue.

use crate::harness::*;
use rkey_fi::sys::*;
use std::ffi::c_void;
use std::ptr::null_mut;

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

/// Proves: FI-115, FI-201, FI-202, FI-204, FI-206, FI-I01, FI-I02
#[test]
fn completed_registrations_are_told_with_their_context() {
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

/// Proves: FI-203
#[test]
fn a_registration_that_is_refused_makes_no_event() {
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
fn without_the_flag_registration_stays_synchronous() {
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
