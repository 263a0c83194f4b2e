//! Atomics on a peer's memory.

use crate::harness::*;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;

fn add(side: &Side, target: &Side, peer: u64, value: u32, addr: u64, key: u64) -> c_int {
    // SAFETY: a live handle; the operand is copied when it is posted.
    let code = again(|| unsafe {
        let (write, at) = ((*(*side.ep).atomic).write, (&raw const value).cast());
        write(
            side.ep,
            at,
            1,
            null_mut(),
            peer,
            addr,
            key,
            FI_UINT32,
            FI_SUM,
            null_mut(),
        )
    });
    assert_eq!(code, 0);
    side.completion(&[target])
        .err()
        .map_or(0, |error| error.err)
}

fn fetch(
    side: &Side,
    target: &Side,
    peer: u64,
    op: c_int,
    addr: u64,
    key: u64,
) -> Result<u32, c_int> {
    let (one, mut old) = (1u32, 0u32);
    // SAFETY: a live handle; the result stays until the completion.
    let code = again(|| unsafe {
        let (call, at) = ((*(*side.ep).atomic).readwrite, (&raw const one).cast());
        let (old, none) = ((&raw mut old).cast(), null_mut());
        call(
            side.ep,
            at,
            1,
            none,
            old,
            none,
            peer,
            addr,
            key,
            FI_UINT32,
            op,
            null_mut(),
        )
    });
    assert_eq!(code, 0);
    match side.completion(&[target]) {
        Ok(_) => Ok(old),
        Err(error) => Err(error.err),
    }
}

/// Proves: FI-098, FI-099, FI-180, FI-I11, FI-I49
#[test]
fn atomics_need_the_right_to_write_and_to_give_values_back_the_right_to_read() {
    for mode in [0, FI_MR_VIRT_ADDR] {
        let (a, b, peer) = pair(&Wish::mode(mode));
        let mut words = vec![10u8, 0, 0, 0, 0, 0, 0, 0];
        let start = if mode == 0 { 0 } else { words.as_ptr() as u64 };
        let counted = counter(b.domain);
        let writable = b.reg(&mut words, FI_REMOTE_WRITE, 1, 0).unwrap();
        assert_eq!(writable.bind(counted, FI_REMOTE_WRITE), 0);
        assert_eq!(add(&a, &b, peer, 5, start, 1), 0);
        assert_eq!(wait_count(counted, 1), 1);
        assert_eq!(fetch(&a, &b, peer, FI_SUM, start, 1), Err(libc::EACCES));
        assert_eq!((close(counted.cast()), writable.close()), (0, 0));
        let readable = b.reg(&mut words, FI_REMOTE_READ, 2, 0).unwrap();
        assert_eq!(add(&a, &b, peer, 5, start, 2), libc::EACCES);
        assert_eq!(fetch(&a, &b, peer, FI_SUM, start, 2), Err(libc::EACCES));
        assert_eq!(fetch(&a, &b, peer, FI_ATOMIC_READ, start, 2), Ok(15));
        assert_eq!(readable.close(), 0);
        let both = b.reg(&mut words, REMOTE, 3, 0).unwrap();
        assert_eq!(fetch(&a, &b, peer, FI_SUM, start, 3), Ok(15));
        assert_eq!(
            add(&a, &b, peer, 5, start + 5, 3),
            libc::EACCES,
            "behind the end"
        );
        assert_eq!(add(&a, &b, peer, 5, start, 99), 266);
        assert_eq!(both.close(), 0);
        assert_eq!(words, [16, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn a_comparison_swaps_or_does_not() {
    let (a, b, peer) = pair(&Wish::default());
    let mut words = vec![7u8, 0, 0, 0, 0, 0, 0, 0];
    let mr = b.reg(&mut words, REMOTE, 1, 0).unwrap();
    for (compare, swap, before) in [(7u64, 9u64, 7u64), (7, 11, 9), (9, 13, 9)] {
        let mut old = 0u64;
        // SAFETY: a live handle; the result stays until the completion.
        let code = again(|| unsafe {
            let call = (*(*a.ep).atomic).compwrite;
            let (swap, compare) = ((&raw const swap).cast(), (&raw const compare).cast());
            let (old, none) = ((&raw mut old).cast(), null_mut());
            call(
                a.ep, swap, 1, none, compare, none, old, none, peer, 0, 1, FI_UINT64, FI_CSWAP,
                none,
            )
        });
        assert_eq!(code, 0);
        assert!(a.completion(&[&b]).is_ok());
        assert_eq!(old, before);
    }
    assert_eq!(mr.close(), 0);
    assert_eq!(words[0], 13);
}
