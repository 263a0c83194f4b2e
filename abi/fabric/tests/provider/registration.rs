//! The three registration calls, and addressing.

use crate::harness::*;
use rkey_fi::sys::*;
use std::ptr::null_mut;

/// Two sides, and the first one's number for the second.
pub(crate) fn pair(wish: &Wish) -> (Side, Side, u64) {
    let (a, b) = (Side::open(wish), Side::open(wish));
    let peer = a.peer(&b);
    (a, b, peer)
}

/// Proves: FI-001, FI-005, FI-006, FI-007, FI-017, FI-114, FI-020, FI-033, FI-034, FI-113, FI-166, FI-200
#[test]
fn by_default_a_region_is_addressed_from_zero_by_its_requested_key() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![0u8; 64];
    let mr = b.reg(&mut buffer, REMOTE, 0x1234_5678_9abc, 0).unwrap();
    assert_eq!(mr.key(), 0x1234_5678_9abc);
    assert!(!mr.desc().is_null());
    assert_eq!(a.write(peer, &[7; 4], 16, mr.key()), 0);
    let mut back = [0; 4];
    assert_eq!(a.read(peer, &mut back, 16, mr.key()), 0);
    assert_eq!(back, [7; 4]);
    assert_eq!(mr.close(), 0);
    assert_eq!(buffer[15..21], [0, 7, 7, 7, 7, 0]);
}

/// Proves: FI-002, FI-109, FI-I38
#[test]
fn several_buffers_make_one_region() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffers = [vec![0u8; 8], vec![0u8; 4], vec![0u8; 8]];
    let iov: Vec<_> = buffers.iter_mut().map(|buffer| iovec(buffer)).collect();
    let mut mr = null_mut();
    // SAFETY: handles of a side, and buffers that live until the region is closed.
    let code = unsafe {
        let regv = (*(*b.domain).mr).regv;
        regv(
            b.domain.cast(),
            iov.as_ptr(),
            3,
            REMOTE,
            0,
            9,
            0,
            &mut mr,
            null_mut(),
        )
    };
    assert_eq!(code, 0);
    let bytes: Vec<u8> = (1..=20).collect();
    assert_eq!(a.write(peer, &bytes, 0, 9), 0);
    assert_eq!(
        a.write(peer, &[99; 2], 19, 9),
        libc::EACCES,
        "one byte too many"
    );
    assert_eq!(Mr(mr).close(), 0);
    assert_eq!(buffers.concat(), bytes);
}

/// With virtual addresses a transfer stays within one of the buffers.
///
/// Proves: FI-I38
#[test]
fn a_transfer_by_virtual_address_stays_within_one_buffer() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_VIRT_ADDR));
    let mut memory = [0u8; 64];
    let start = memory.as_ptr() as u64;
    let (first, rest) = memory.split_at_mut(16);
    let iov = [iovec(first), iovec(&mut rest[16..32])];
    let mr = b.regattr(&attributes(&iov, REMOTE, 9), 0).unwrap();
    assert_eq!(a.write(peer, &[1; 16], start, 9), 0);
    assert_eq!(a.write(peer, &[2; 16], start + 32, 9), 0);
    assert_eq!(a.write(peer, &[3; 4], start + 14, 9), libc::EACCES);
    assert_eq!(a.write(peer, &[3; 4], start + 20, 9), libc::EACCES);
    assert_eq!(mr.close(), 0);
    assert_eq!(
        memory[14..34],
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2]
    );
}

/// Proves: FI-003, FI-004, FI-019, FI-108
#[test]
fn reg_regv_and_regattr_make_equivalent_regions() {
    let (a, b, peer) = pair(&Wish::default());
    for access in [FI_REMOTE_READ, FI_REMOTE_WRITE, REMOTE] {
        for call in 0..3 {
            let mut buffer = vec![0u8; 16];
            let mut mr = null_mut();
            let iov = [iovec(&mut buffer)];
            // SAFETY: handles of a side, and a buffer that lives until the region is closed.
            let code = unsafe {
                let (ops, domain) = (&*(*b.domain).mr, b.domain.cast());
                match call {
                    0 => (ops.reg)(
                        domain,
                        iov[0].iov_base,
                        16,
                        access,
                        0,
                        5,
                        0,
                        &mut mr,
                        null_mut(),
                    ),
                    1 => (ops.regv)(
                        domain,
                        iov.as_ptr(),
                        1,
                        access,
                        0,
                        5,
                        0,
                        &mut mr,
                        null_mut(),
                    ),
                    _ => (ops.regattr)(domain, &attributes(&iov, access, 5).known, 0, &mut mr),
                }
            };
            assert_eq!(code, 0);
            let expected = |right| if access & right != 0 { 0 } else { libc::EACCES };
            assert_eq!(a.write(peer, &[1; 8], 0, 5), expected(FI_REMOTE_WRITE));
            assert_eq!(a.read(peer, &mut [0; 8], 0, 5), expected(FI_REMOTE_READ));
            assert_eq!(a.write(peer, &[1; 8], 9, 5), libc::EACCES);
            assert_eq!(Mr(mr).close(), 0);
        }
    }
}

/// Proves: FI-053, FI-054, FI-060, FI-I11
#[test]
fn with_virtual_addresses_an_offset_is_refused() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_VIRT_ADDR));
    let mut buffer = vec![0u8; 64];
    let start = buffer.as_ptr() as u64;
    let mr = b.reg(&mut buffer, REMOTE, 5, 0).unwrap();
    assert_eq!(a.write(peer, &[7; 4], start + 8, 5), 0);
    assert_eq!(a.write(peer, &[8; 1], start + 63, 5), 0);
    assert_eq!(a.write(peer, &[9; 1], start + 64, 5), libc::EACCES);
    assert_eq!(a.write(peer, &[9; 4], 8, 5), libc::EACCES);
    assert_eq!(mr.close(), 0);
    assert_eq!((&buffer[7..13], buffer[63]), (&[0, 7, 7, 7, 7, 0][..], 8));
}

/// Proves: FI-018, FI-057, FI-058, FI-214, FI-264
#[test]
fn requested_keys_are_ignored_where_the_provider_chooses_keys() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_PROV_KEY));
    let (mut one, mut two) = (vec![0u8; 16], vec![0u8; 16]);
    let first = b.reg(&mut one, REMOTE, 7, 0).unwrap();
    let second = b.reg(&mut two, REMOTE, 7, 0).unwrap();
    let third = b.reg(&mut [0u8; 16], REMOTE, FI_KEY_NOTAVAIL, 0).unwrap();
    assert_eq!(third.close(), 0);
    assert_ne!(first.key(), second.key());
    assert_eq!(a.write(peer, &[1; 16], 0, first.key()), 0);
    assert_eq!(a.write(peer, &[2; 16], 0, second.key()), 0);
    assert_ne!(a.write(peer, &[3; 16], 0, 7), 0);
    assert_eq!((first.close(), second.close()), (0, 0));
    assert_eq!((one, two), (vec![1; 16], vec![2; 16]));
}

/// Proves: FI-015, FI-266, FI-271, FI-I34
#[test]
fn invalid_registrations_are_refused() {
    let b = Side::open(&Wish::default());
    let mut buffer = vec![0u8; 16];
    let at = buffer.as_ptr() as usize;
    let refused = |result: Result<Mr, i32>| assert_eq!(result.err(), Some(-libc::EINVAL));
    refused(b.reg_at(at, 0, REMOTE, 1, 0));
    refused(b.reg_at(usize::MAX - 4, 16, REMOTE, 1, 0));
    let iov = [iovec(&mut buffer)];
    let mut attr = attributes(&iov, REMOTE, 1);
    attr.known.iov_count = 0;
    refused(b.regattr(&attr, 0));
    attr.known.iov_count = 1;
    attr.known.mr_iov = std::ptr::null();
    refused(b.regattr(&attr, 0));
    let mut mr = null_mut();
    // SAFETY: null attributes and a handle of another class are refused without being used.
    unsafe {
        let ops = &*(*b.domain).mr;
        assert_eq!(
            (ops.regattr)(b.domain.cast(), std::ptr::null(), 0, &mut mr),
            -libc::EINVAL
        );
        let reg = |fid, mr| (ops.reg)(fid, iov[0].iov_base, 16, REMOTE, 0, 1, 0, mr, null_mut());
        assert_eq!(reg(b.cq.cast(), &mut mr), -libc::EINVAL);
        assert_eq!(reg(b.domain.cast(), null_mut()), -libc::EINVAL);
    }
    assert!(mr.is_null());
}

/// Proves: FI-110
#[test]
fn a_region_has_at_most_mr_iov_limit_segments() {
    let b = Side::open(&Wish::default());
    // SAFETY: the provider's `fi_info`.
    let limit = unsafe { (*(*Wish::default().info()).domain_attr).mr_iov_limit };
    let mut buffer = vec![0u8; limit + 1];
    let iov: Vec<_> = buffer.chunks_mut(1).map(iovec).collect();
    let mr = b.regattr(&attributes(&iov[..limit], REMOTE, 1), 0).unwrap();
    assert_eq!(mr.close(), 0);
    assert!(b.regattr(&attributes(&iov, REMOTE, 1), 0).err().unwrap() < 0);
}

/// Proves: FI-141, FI-145, FI-147, FI-149, FI-150, FI-228
#[test]
fn all_registration_calls_refuse_unsupported_flags() {
    let b = Side::open(&Wish::default());
    let mut buffer = vec![0u8; 16];
    let iov = [iovec(&mut buffer)];
    for flag in [
        FI_MULTICAST,
        FI_HMEM_DEVICE_ONLY,
        FI_HMEM_HOST_ALLOC,
        FI_MR_DMABUF,
        FI_AUTH_KEY,
    ] {
        let mut mr = null_mut();
        // SAFETY: handles of a side, and a buffer that lives long enough.
        unsafe {
            let (ops, fid) = (&*(*b.domain).mr, b.domain.cast());
            let reg = (ops.reg)(
                fid,
                iov[0].iov_base,
                16,
                REMOTE,
                0,
                1,
                flag,
                &mut mr,
                null_mut(),
            );
            let regv = (ops.regv)(
                fid,
                iov.as_ptr(),
                1,
                REMOTE,
                0,
                1,
                flag,
                &mut mr,
                null_mut(),
            );
            let attr = attributes(&iov, REMOTE, 1);
            let regattr = (ops.regattr)(fid, &attr.known, flag, &mut mr);
            assert_eq!((reg, regv, regattr), (-260, -260, -260), "{flag:#x}");
        }
    }
    let mr = b.reg(&mut buffer, REMOTE, 1, FI_RMA_EVENT).unwrap();
    assert_eq!(mr.close(), 0);
}

/// Proves: FI-117, FI-120, FI-I20
#[test]
fn regions_and_endpoints_default_to_the_domains_authorization_key() {
    let wish = Wish {
        domain_key: b"domain",
        ..Wish::default()
    };
    let (a, b, peer) = pair(&wish);
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
    // The same key is set for the endpoint itself.
    let same = Side::open(&Wish {
        auth_key: b"domain",
        ..Wish::default()
    });
    assert_eq!(same.write(same.peer(&b), &[2; 8], 0, 1), 0);
    let other = Side::open(&Wish {
        auth_key: b"other",
        ..Wish::default()
    });
    assert_ne!(other.write(other.peer(&b), &[3; 8], 0, 1), 0);
    assert_eq!((mr.close(), buffer), (0, vec![2; 8]));
}

/// Proves: FI-118, FI-119
#[test]
fn a_region_serves_endpoints_with_its_authorization_key() {
    let with = |auth_key| Wish {
        auth_key,
        ..Wish::default()
    };
    let (a, b, peer) = pair(&with(b"secret"));
    let mut buffer = vec![0u8; 16];
    let iov = [iovec(&mut buffer)];
    let mut attr = attributes(&iov, REMOTE, 1);
    // The domain has no key, so this endpoint cannot use a region without one.
    let other = b.regattr(&attr, 0).unwrap();
    assert_ne!(a.write(peer, &[1; 4], 0, 1), 0);
    assert_eq!(other.close(), 0);
    let mut key = *b"secret";
    (attr.known.auth_key, attr.known.auth_key_size) = (key.as_mut_ptr(), key.len());
    let ours = b.regattr(&attr, 0).unwrap();
    assert_eq!(a.write(peer, &[1; 4], 0, 1), 0);
    // An endpoint with another key is refused when it connects.
    let c = Side::open(&with(b"other!"));
    let from_c = c.peer(&b);
    assert_ne!(c.write(from_c, &[2; 4], 0, 1), 0);
    assert_eq!(ours.close(), 0);
    assert_eq!(buffer[..4], [1; 4]);
    // Before 1.5 these keys did not exist, whatever the fields contain.
    let (a, b, peer) = pair(&Wish {
        version: version(1, 4),
        ..Wish::default()
    });
    attr.known.auth_key = 8 as *mut u8;
    attr.known.auth_key_size = 1 << 40;
    let mr = b.regattr(&attr, 0).unwrap();
    assert_eq!(a.write(peer, &[3; 4], 0, 1), 0);
    assert_eq!(mr.close(), 0);
}

/// Proves: FI-I40
#[test]
fn overlapping_regions_have_separate_rights() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![5u8; 16];
    let at = buffer.as_mut_ptr() as usize;
    let readable = b.reg_at(at, 16, FI_REMOTE_READ, 1, 0).unwrap();
    let writable = b.reg_at(at, 16, FI_REMOTE_WRITE, 2, 0).unwrap();
    assert_eq!(a.write(peer, &[6; 4], 0, 1), libc::EACCES);
    assert_eq!(a.write(peer, &[6; 4], 0, 2), 0);
    let mut back = [0; 4];
    assert_eq!(a.read(peer, &mut back, 0, 2), libc::EACCES);
    assert_eq!(a.read(peer, &mut back, 0, 1), 0);
    assert_eq!(back, [6; 4]);
    assert_eq!((readable.close(), writable.close()), (0, 0));
}

/// All present and future memory in one region, as MPI registers it for dynamic windows.
///
/// Proves: FI-I34
#[test]
fn a_region_may_cover_the_whole_address_space() {
    let (a, b, peer) = pair(&Wish::default());
    let mr = b.reg_at(0, usize::MAX, REMOTE, 1, 0).unwrap();
    let second = b.reg_at(0, usize::MAX, REMOTE, 2, 0).unwrap();
    // Memory that was not mapped at registration.
    let later = vec![0u8; 16];
    let there = later.as_ptr() as u64;
    assert_eq!(a.write(peer, &[7; 16], there, 1), 0);
    let mut back = [0; 16];
    assert_eq!((a.read(peer, &mut back, there, 2), back), (0, [7; 16]));
    for (nothing, error) in [
        (64, libc::EFAULT),
        ((1 << 47) - 16, libc::EFAULT),
        ((1 << 47) - 8, libc::EACCES),
        (1 << 60, libc::EACCES),
        (u64::MAX - 15, libc::EACCES),
    ] {
        assert_eq!(a.write(peer, &[8; 16], nothing, 1), error, "{nothing:#x}");
    }
    assert_eq!((mr.close(), second.close(), later), (0, 0, vec![7; 16]));
}
