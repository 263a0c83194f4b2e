//! Calls that manual pages forbid and other providers accept: accepted by default, refused in strict mode
//! (`FI_RKEY_STRICT=1`).

use crate::harness::*;
use crate::keys::{map, unmap_key};
use crate::peer::strictly;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;

const OPBADSTATE: c_int = -258;
const BUSY: c_int = -libc::EBUSY;

/// A counter without a wait object.
fn unwaitable(domain: *mut FidDomain) -> *mut FidCntr {
    let mut counter = null_mut();
    // SAFETY: the handle is live, the attributes are our own, and there is room for a handle.
    let code = unsafe {
        let mut attr: CntrAttr = std::mem::zeroed();
        attr.wait_obj = FI_WAIT_NONE;
        ((*(*domain).ops).cntr_open)(domain, &mut attr, &mut counter, null_mut())
    };
    assert_eq!(code, 0);
    counter
}

/// `fi_cntr_wait`.
fn wait(counter: *mut FidCntr, threshold: u64, milliseconds: c_int) -> c_int {
    // SAFETY: the handle is live.
    unsafe { ((*(*counter).ops).wait)(counter, threshold, milliseconds) }
}

#[test]
fn a_region_may_be_closed_before_its_counter() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![0u8; 16];
    let counted = counter(b.domain);
    for key in 1..=2 {
        let mr = b.reg(&mut buffer, REMOTE, key, 0).unwrap();
        assert_eq!(mr.bind(counted, FI_REMOTE_WRITE), 0);
        assert_eq!(a.write(peer, &[9; 4], 0, key), 0);
        assert_eq!(wait_count(counted, key), key);
        assert_eq!(mr.close(), 0);
        assert_ne!(a.write(peer, &[8; 4], 0, key), 0, "closed");
    }
    assert_eq!(count(counted), 2, "the count is kept");
    assert_eq!(buffer[..4], [9; 4]);
    assert_eq!((close(counted.cast()), close(a.ep.cast())), (0, 0));
    assert_eq!(close(b.ep.cast()), 0);
    b.close_rest();
}

/// Proves in strict mode: FI-161, FI-229, FI-267, FI-I06
#[test]
fn in_strict_mode_a_counter_keeps_its_region_busy() {
    let test = "lenient::in_strict_mode_a_counter_keeps_its_region_busy";
    strictly(test, || {
        for version in [V1_17, version(2, 0)] {
            let (a, b, peer) = pair(&Wish {
                version,
                ..Wish::default()
            });
            let mut buffer = vec![0u8; 16];
            let mr = b.reg(&mut buffer, REMOTE, 1, FI_RMA_EVENT).unwrap();
            let counted = counter(b.domain);
            assert_eq!(mr.bind(counted, FI_REMOTE_WRITE), 0);
            assert_eq!((mr.close(), mr.close()), (BUSY, BUSY));
            assert_eq!(a.write(peer, &[9; 4], 0, 1), 0, "still open");
            assert_eq!(wait_count(counted, 1), 1, "counted");
            assert_eq!((close(counted.cast()), mr.close()), (0, 0));
        }
    });
}

#[test]
fn a_region_may_be_closed_before_its_endpoint() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_ENDPOINT));
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    assert_eq!((mr.bind(b.ep, 0), mr.enable()), (0, 0));
    assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
    assert_eq!(mr.close(), 0);
    assert_ne!(a.write(peer, &[2; 8], 0, 1), 0, "closed");
    assert_eq!(buffer, [1; 8]);
    assert_eq!(close(b.ep.cast()), 0);
    b.close_rest();
}

/// Proves in strict mode: FI-161, FI-267
#[test]
fn in_strict_mode_an_endpoint_keeps_its_region_busy_before_2_0() {
    let test = "lenient::in_strict_mode_an_endpoint_keeps_its_region_busy_before_2_0";
    strictly(test, || {
        let (a, b, peer) = pair(&Wish::mode(FI_MR_ENDPOINT));
        let mut buffer = vec![0u8; 8];
        let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
        assert_eq!((mr.bind(b.ep, 0), mr.enable()), (0, 0));
        assert_eq!(mr.close(), BUSY);
        assert_eq!(a.write(peer, &[1; 8], 0, 1), 0, "still open");
        assert_eq!((close(b.ep.cast()), mr.close()), (0, 0));
    });
}

/// Registrations with bits in `access` that are not rights, and one with an offset.
fn odd_requests(b: &Side, buffer: &mut [u8]) -> Vec<Result<Mr, c_int>> {
    let mut results: Vec<_> = [FI_TAGGED, FI_RMA | FI_MSG, FI_ATOMIC, 1 << 62]
        .iter()
        .zip(1..)
        .map(|(bits, key)| b.reg(buffer, REMOTE | bits, key, 0))
        .collect();
    let iov = [iovec(buffer)];
    let mut attr = attributes(&iov, REMOTE, 9);
    attr.known.offset = 8;
    results.push(b.regattr(&attr, 0));
    results
}

/// Unknown rights allow nothing, and an offset has no effect.
#[test]
fn unknown_access_bits_and_an_offset_are_ignored() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![5u8; 16];
    for (mr, key) in odd_requests(&b, &mut buffer)
        .into_iter()
        .zip([1, 2, 3, 4, 9])
    {
        let mr = mr.unwrap();
        assert_eq!(a.write(peer, &[6; 4], 0, key), 0, "{key}");
        assert_eq!(a.write(peer, &[7; 4], 16, key), libc::EACCES, "{key}");
        assert_eq!(buffer[..5], [6, 6, 6, 6, 5]);
        buffer.fill(5);
        assert_eq!(mr.close(), 0);
    }
    // Without any other right, no peer reaches the region.
    let none = b.reg(&mut buffer, FI_RMA | FI_MSG, 1, 0).unwrap();
    assert_ne!(a.write(peer, &[6; 4], 0, 1), 0);
    assert_eq!((none.close(), buffer), (0, vec![5; 16]));
}

/// Proves in strict mode: FI-016, FI-089, FI-112
#[test]
fn in_strict_mode_unknown_access_bits_and_an_offset_are_refused() {
    let test = "lenient::in_strict_mode_unknown_access_bits_and_an_offset_are_refused";
    strictly(test, || {
        let b = Side::open(&Wish::default());
        let mut buffer = vec![0u8; 16];
        for result in odd_requests(&b, &mut buffer) {
            assert_eq!(result.err(), Some(-libc::EINVAL));
        }
    });
}

#[test]
fn waiting_for_a_counter_without_a_wait_object_polls() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let counted = unwaitable(b.domain);
    assert_eq!(mr.bind(counted, FI_REMOTE_WRITE), 0);
    assert_eq!(wait(counted, 1, 1), -libc::ETIMEDOUT);
    std::thread::scope(|scope| {
        let address = counted as usize;
        let waiting = scope.spawn(move || wait(address as *mut FidCntr, 1, 20_000));
        assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
        assert_eq!(waiting.join().unwrap(), 0);
    });
    assert_eq!((mr.close(), close(counted.cast())), (0, 0));
}

#[test]
fn in_strict_mode_waiting_for_a_counter_without_a_wait_object_fails() {
    let test = "lenient::in_strict_mode_waiting_for_a_counter_without_a_wait_object_fails";
    strictly(test, || {
        let b = Side::open(&Wish::default());
        let counted = unwaitable(b.domain);
        assert_eq!(wait(counted, 0, 0), -libc::EINVAL);
        assert_eq!((wait(counter(b.domain), 0, 0), count(counted)), (0, 0));
    });
}

/// Binds every kind of counter to an endpoint that has already done the counted operation once without a counter.
#[test]
fn a_counter_that_is_bound_late_counts_from_then_on() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let [sends, writes, reads] = [(); 3].map(|()| counter(a.domain));
    let [received, written, read] = [(); 3].map(|()| counter(b.domain));
    let exchange = || {
        let mut there = [0u8; 4];
        assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
        assert_eq!(a.read(peer, &mut [0; 8], 0, 1), 0);
        // SAFETY: the handles are live; both buffers stay valid until the completions.
        unsafe {
            let at = there.as_mut_ptr().cast();
            let recv = (*(*b.ep).msg).recv;
            let code = recv(b.ep, at, 4, null_mut(), FI_ADDR_UNSPEC, null_mut());
            assert_eq!(code, 0);
            let send = (*(*a.ep).msg).send;
            let from = c"abc".as_ptr().cast();
            let none = null_mut();
            assert_eq!(again(|| send(a.ep, from, 4, none, peer, none)), 0);
        }
        assert!(a.completion(&[&b]).is_ok() && b.completion(&[&a]).is_ok());
        assert_eq!(&there, b"abc\0");
    };
    exchange();
    for (ep, counter, flags) in [
        (a.ep, sends, FI_SEND),
        (a.ep, writes, FI_WRITE),
        (a.ep, reads, FI_READ),
        (b.ep, received, FI_RECV),
        (b.ep, written, FI_REMOTE_WRITE),
        (b.ep, read, FI_REMOTE_READ),
    ] {
        assert_eq!(bind(ep.cast(), counter.cast(), flags), 0, "{flags:#x}");
        assert_eq!(bind(ep.cast(), counter.cast(), flags), BUSY, "{flags:#x}");
    }
    assert_eq!(bind(b.ep.cast(), b.cq.cast(), FI_RECV), OPBADSTATE);
    let all = [sends, writes, reads, received, written, read];
    for n in 1..=2 {
        exchange();
        assert_eq!(all.map(|counter| wait_count(counter, n)), [n; 6]);
    }
    assert_eq!(close(sends.cast()), BUSY);
    assert_eq!(mr.close(), 0);
    assert_eq!((close(a.ep.cast()), close(b.ep.cast())), (0, 0));
    assert_eq!(all.map(count), [2; 6], "counts are kept");
    assert_eq!(all.map(|counter| close(counter.cast())), [0; 6]);
    for side in [a, b] {
        side.close_rest();
    }
}

#[test]
fn in_strict_mode_counters_are_bound_before_the_endpoint_is_enabled() {
    let test = "lenient::in_strict_mode_counters_are_bound_before_the_endpoint_is_enabled";
    strictly(test, || {
        let b = Side::open(&Wish::default());
        let counted = counter(b.domain);
        for flags in [FI_SEND, FI_REMOTE_WRITE] {
            assert_eq!(bind(b.ep.cast(), counted.cast(), flags), OPBADSTATE);
        }
        assert_eq!(close(counted.cast()), 0);
    });
}

/// A domain in this mode, and the key under which it has mapped another side's region.
fn mapped(mode: c_int) -> (*mut FidDomain, u64) {
    let wish = Wish::mode(mode);
    let b = Side::open(&wish);
    let mr = b.reg(&mut [0u8; 8], REMOTE, 4, 0).unwrap();
    let (_, _, mut raw, _) = mr.raw(if mode == 0 { 8 } else { 40 });
    let (_, domain) = open_domain(wish.version, wish.info());
    let key = map(domain, 0, &mut raw).unwrap();
    assert_eq!(mr.close(), 0);
    (domain, key)
}

#[test]
fn a_domain_with_mapped_keys_may_be_closed() {
    for mode in [0, FI_MR_RAW] {
        let (domain, _) = mapped(mode);
        assert_eq!(close(domain.cast()), 0);
    }
}

/// Proves in strict mode: FI-176
#[test]
fn in_strict_mode_mapped_keys_keep_the_domain_open() {
    let test = "lenient::in_strict_mode_mapped_keys_keep_the_domain_open";
    strictly(test, || {
        for mode in [0, FI_MR_RAW] {
            let (domain, key) = mapped(mode);
            assert_eq!(close(domain.cast()), BUSY);
            assert_eq!(unmap_key(domain, key), 0);
            assert_eq!(close(domain.cast()), 0);
        }
    });
}

/// Registers with a page size that no system has.
fn with_odd_pages(version: u32) -> Result<Mr, c_int> {
    let b = Side::open(&Wish {
        version,
        ..Wish::default()
    });
    let mut buffer = [0u8; 8];
    let iov = [iovec(&mut buffer)];
    let attr = LongMrAttr {
        page_size: 12345,
        ..attributes(&iov, REMOTE, 1)
    };
    b.regattr(&attr, 0)
}

#[test]
fn an_unknown_page_size_is_ignored() {
    assert_eq!(with_odd_pages(V1_22).unwrap().close(), 0);
}

/// Proves in strict mode: FI-138, FI-I43
#[test]
fn in_strict_mode_an_unknown_page_size_is_refused() {
    let test = "lenient::in_strict_mode_an_unknown_page_size_is_refused";
    strictly(test, || {
        assert_eq!(with_odd_pages(V1_17).unwrap().close(), 0, "not evaluated");
        assert_eq!(with_odd_pages(V1_22).err(), Some(-libc::EINVAL));
    });
}
