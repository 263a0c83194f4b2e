//! Atomics on a peer's memory.

use crate::harness::*;
use crate::peer::until;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;

pub(crate) fn add(side: &Side, target: &Side, peer: u64, value: u32, addr: u64, key: u64) -> c_int {
    // SAFETY: the handle is live; the operand is copied when it is posted.
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
    // SAFETY: the handle is live; the result stays valid until the completion.
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

/// Proves: FI-023, FI-098, FI-099, FI-180, FI-I11, FI-I49
#[test]
fn atomics_need_the_right_to_write_and_fetching_ones_the_right_to_read() {
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
            "past the end"
        );
        assert_eq!(add(&a, &b, peer, 5, start, 99), 266);
        assert_eq!(both.close(), 0);
        assert_eq!(words, [16, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn a_compare_and_swap_succeeds_only_on_equality() {
    let (a, b, peer) = pair(&Wish::default());
    let mut words = vec![7u8, 0, 0, 0, 0, 0, 0, 0];
    let mr = b.reg(&mut words, REMOTE, 1, 0).unwrap();
    for (compare, swap, before) in [(7u64, 9u64, 7u64), (7, 11, 9), (9, 13, 9)] {
        let mut old = 0u64;
        // SAFETY: the handle is live; the result stays valid until the completion.
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

#[test]
fn atomics_support_sixteen_byte_numbers() {
    let (a, b, peer) = pair(&Wish::default());
    let mut memory = vec![0u8; 32];
    memory[..16].copy_from_slice(&(u128::from(u64::MAX)).to_ne_bytes());
    // 1.5 as a long double: significand, then sign and exponent.
    let one_and_a_half = (0x3fff_u128 << 64 | 0xc000_0000_0000_0000).to_ne_bytes();
    memory[16..].copy_from_slice(&one_and_a_half);
    let mr = b.reg(&mut memory, REMOTE, 1, 0).unwrap();
    for (datatype, operand, addr, op) in [
        (FI_UINT128, 1u128.to_ne_bytes(), 0, FI_SUM),
        (FI_LONG_DOUBLE, one_and_a_half, 16, FI_PROD),
    ] {
        let mut attr = AtomicAttr::default();
        // SAFETY: the handles are live; the operand is copied when it is posted.
        let code = again(|| unsafe {
            let query = (*(*a.domain).ops).query_atomic;
            assert_eq!(query(a.domain, datatype, op, &mut attr, 0), 0);
            let write = (*(*a.ep).atomic).write;
            let (at, none) = (operand.as_ptr().cast(), null_mut());
            write(a.ep, at, 1, none, peer, addr, 1, datatype, op, none)
        });
        assert_eq!((code, attr.size), (0, 16));
        assert!(a.completion(&[&b]).is_ok());
    }
    assert_eq!(mr.close(), 0);
    assert_eq!(memory[..16], (1u128 << 64).to_ne_bytes());
    let two_and_a_quarter = (0x4000_u128 << 64 | 0x9000_0000_0000_0000).to_ne_bytes();
    assert_eq!(memory[16..26], two_and_a_quarter[..10]);
}

/// The old value is stored in memory with the right for results of reads, and the operand is read from memory with the
/// right for sources of writes.
///
/// Proves: FI-092, FI-093
#[test]
fn with_local_registration_operands_and_results_need_their_rights() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_LOCAL));
    let mut target = vec![9u8, 0, 0, 0, 0, 0, 0, 0];
    let remote = b.reg(&mut target, REMOTE, 1, 0).unwrap();
    let mut sum = 9;
    for (operand, result) in [
        (FI_WRITE, FI_READ),
        (FI_READ, FI_READ),
        (FI_WRITE, FI_WRITE),
        (FI_SEND, FI_RECV),
    ] {
        let (mut one, mut old) = (vec![1u8, 0, 0, 0], vec![0u8; 4]);
        let from = a.reg(&mut one, operand, 0, 0).unwrap();
        let into = a.reg(&mut old, result, 0, 0).unwrap();
        let good = (operand, result) == (FI_WRITE, FI_READ);
        // SAFETY: the handle is live; the buffers stay valid until the completion.
        let code = again(|| unsafe {
            let call = (*(*a.ep).atomic).readwrite;
            let (at, to) = (one.as_ptr().cast(), old.as_mut_ptr().cast());
            let (from, into, none) = (from.desc(), into.desc(), null_mut());
            call(
                a.ep, at, 1, from, to, into, peer, 0, 1, FI_UINT32, FI_SUM, none,
            )
        });
        assert_eq!(code, if good { 0 } else { -libc::EACCES as isize });
        if good {
            assert!(a.completion(&[&b]).is_ok());
            assert_eq!(old, [sum, 0, 0, 0]);
            sum += 1;
        }
        assert_eq!((from.close(), into.close()), (0, 0));
    }
    assert_eq!(remote.close(), 0);
    assert_eq!(target[0], sum);
}

/// The call copies the operand, which needs no registration, even where other buffers do, and may be freed at once.
#[test]
fn an_injected_atomic_executes_without_a_completion() {
    for mode in [0, FI_MR_LOCAL] {
        let (a, b, peer) = pair(&Wish::mode(mode));
        let mut target = vec![0u8; 8];
        let mr = b.reg(&mut target, REMOTE, 1, 0).unwrap();
        for round in 1..=3u64 {
            let mut operand = Box::new(5u64);
            let code = again(|| {
                // SAFETY: live handles, and a number.
                unsafe {
                    let inject = (*(*a.ep).atomic).inject;
                    let from = (&raw const *operand).cast();
                    inject(a.ep, from, 1, peer, 0, 1, FI_UINT64, FI_SUM)
                }
            });
            assert_eq!(code, 0, "mode {mode:#x}");
            *operand = 1000;
            until("the sum", || {
                while let Some(entry) = poll(b.cq) {
                    assert!(entry.is_err(), "the target gets no completion");
                }
                assert!(poll(a.cq).is_none(), "success gives no completion");
                // SAFETY: only this thread drives the peer's endpoint.
                unsafe { target.as_ptr().cast::<u64>().read_volatile() == 5 * round }
            });
        }
        assert_eq!(mr.close(), 0);
    }
}
