//! Descriptors of local memory.

use crate::harness::*;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::c_void;
use std::ptr::null_mut;

fn send(side: &Side, peer: u64, bytes: &[u8], desc: *mut c_void) -> isize {
    let (at, len) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    again(|| unsafe { ((*(*side.ep).msg).send)(side.ep, at, len, desc, peer, null_mut()) })
}

fn recv(side: &Side, into: &mut [u8], desc: *mut c_void) -> isize {
    let (at, len) = (into.as_mut_ptr().cast(), into.len());
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    unsafe { ((*(*side.ep).msg).recv)(side.ep, at, len, desc, FI_ADDR_UNSPEC, null_mut()) }
}

/// Proves: FI-024, FI-042
#[test]
fn with_local_registration_every_buffer_needs_its_descriptor() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_LOCAL));
    let mut target = vec![0u8; 64];
    let remote = b.reg(&mut target, REMOTE, 1, 0).unwrap();
    let (mut bytes, mut other) = (vec![7u8; 64], vec![0u8; 64]);
    let einval = -libc::EINVAL;
    assert_eq!(a.write(peer, &bytes, 0, 1), einval);
    assert_eq!(a.read(peer, &mut bytes.clone(), 0, 1), einval);
    assert_eq!(send(&a, peer, &bytes, null_mut()), einval as isize);
    assert_eq!(recv(&a, &mut other, null_mut()), einval as isize);
    let mr = a
        .reg(&mut bytes, FI_SEND | FI_RECV | FI_READ | FI_WRITE, 0, 0)
        .unwrap();
    assert_eq!(a.write_with(peer, &bytes, mr.desc(), 0, 1), 0);
    assert_eq!(
        a.write_with(peer, &other, mr.desc(), 0, 1),
        einval,
        "another buffer"
    );
    assert_eq!(
        a.write_with(peer, &bytes, 64 as *mut c_void, 0, 1),
        einval,
        "no descriptor"
    );
    assert_eq!(
        a.write_with(peer, &bytes, remote.desc(), 0, 1),
        einval,
        "of another domain"
    );
    assert_eq!(mr.close(), 0);
    let desc = mr.0.cast();
    assert_eq!(
        a.write_with(peer, &bytes, desc, 0, 1),
        einval,
        "of a closed region"
    );
    assert_eq!(remote.close(), 0);
    assert_eq!(target, bytes);
}

/// Proves: FI-090, FI-091, FI-092, FI-093, FI-094, FI-095
#[test]
fn each_kind_of_local_access_needs_its_own_right() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_LOCAL));
    let mut target = vec![3u8; 8];
    let remote = b.reg(&mut target, REMOTE, 1, 0).unwrap();
    let mut sink = vec![0u8; 8];
    let sink_mr = b.reg(&mut sink, FI_RECV, 2, 0).unwrap();
    for access in [FI_SEND, FI_RECV, FI_READ, FI_WRITE] {
        let mut bytes = vec![7u8; 8];
        let mr = a.reg(&mut bytes, access, 0, 0).unwrap();
        let expected = |right, code| if access == right { 0 } else { code };
        let refused = -libc::EACCES;
        assert_eq!(
            a.write_with(peer, &bytes, mr.desc(), 0, 1),
            expected(FI_WRITE, refused)
        );
        assert_eq!(bytes, [7; 8], "a source is only read");
        let read = a.read_with(peer, &mut bytes, mr.desc(), 0, 1);
        assert_eq!(read, expected(FI_READ, refused));
        if read == 0 {
            assert_eq!(bytes, target);
        }
        let sent = send(&a, peer, &bytes, mr.desc());
        assert_eq!(sent, expected(FI_SEND, refused) as isize);
        if sent == 0 {
            assert_eq!(recv(&b, &mut sink, sink_mr.desc()), 0);
            assert!(a.completion(&[&b]).is_ok() && b.completion(&[&a]).is_ok());
            assert_eq!(sink, bytes);
        }
        let received = recv(&a, &mut bytes, mr.desc());
        assert_eq!(received, expected(FI_RECV, refused) as isize);
        if received == 0 {
            // SAFETY: the handle is live; the receive is canceled before the buffer is freed.
            unsafe { ((*(*a.ep).ops).cancel)(a.ep.cast(), null_mut()) };
            assert_eq!(a.completion(&[]).unwrap_err().err, libc::ECANCELED);
        }
        assert_eq!(mr.close(), 0);
    }
    assert_eq!((remote.close(), sink_mr.close()), (0, 0));
}

/// Proves: FI-036, FI-043, FI-046, FI-047, FI-049
#[test]
fn without_local_registration_a_descriptor_is_optional() {
    let (a, b, peer) = pair(&Wish::default());
    let mut target = vec![0u8; 8];
    let remote = b.reg(&mut target, REMOTE, 1, 0).unwrap();
    let mut bytes = vec![1u8; 8];
    assert_eq!(a.write(peer, &bytes, 0, 1), 0);
    assert_eq!(a.read(peer, &mut bytes, 0, 1), 0);
    let mr = a.reg(&mut bytes, FI_SEND | FI_WRITE, 9, 0).unwrap();
    assert_eq!(a.write_with(peer, &bytes, mr.desc(), 0, 1), 0);
    let mut into = vec![0u8; 8];
    assert_eq!(recv(&b, &mut into, null_mut()), 0);
    assert_eq!(send(&a, peer, &bytes, mr.desc()), 0);
    assert!(a.completion(&[&b]).is_ok() && b.completion(&[&a]).is_ok());
    assert_eq!((into, mr.close(), remote.close()), (vec![1; 8], 0, 0));
}

/// Proves: FI-044, FI-045, FI-256
#[test]
fn before_1_22_invalid_descriptors_are_ignored() {
    for (version, code) in [(V1_17, 0), (V1_22, -libc::EINVAL)] {
        let (a, b, peer) = pair(&Wish {
            version,
            ..Wish::default()
        });
        let mut target = vec![0u8; 8];
        let remote = b.reg(&mut target, REMOTE, 1, 0).unwrap();
        for garbage in [8usize, usize::MAX, (&raw const target) as usize] {
            assert_eq!(
                a.write_with(peer, &[1; 8], garbage as *mut c_void, 0, 1),
                code
            );
        }
        assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
        assert_eq!(remote.close(), 0);
    }
}

/// Unmapped memory makes the operation fail, but does not crash the program.
#[test]
fn a_transfer_with_an_unmapped_buffer_fails() {
    let (a, b, peer) = pair(&Wish::default());
    let mut target = vec![0u8; 8192];
    let remote = b.reg(&mut target, REMOTE, 1, 0).unwrap();
    let hole = map_at(0, 8192, libc::PROT_NONE);
    // SAFETY: an unmapped address, which the provider must survive.
    let bytes = unsafe { std::slice::from_raw_parts(hole as *const u8, 4) };
    // Either the call or the completion reports the error.
    let error = |code: isize| match code {
        0 => a.completion(&[]).unwrap_err().err,
        _ => -code as i32,
    };
    assert_eq!(error(send(&a, peer, bytes, null_mut())), libc::EFAULT);
    // SAFETY: a live handle and the same address.
    let code = again(|| unsafe {
        let at = hole as *const c_void;
        ((*(*a.ep).rma).write)(a.ep, at, 8192, null_mut(), peer, 0, 1, null_mut())
    });
    assert_eq!(error(code), libc::EFAULT);
    // A registered range without pages gives the same error.
    let mr = a.reg_at(hole, 8192, FI_WRITE, 0, 0).unwrap();
    assert_eq!(a.write_with(peer, bytes, mr.desc(), 0, 1), libc::EFAULT);
    assert_eq!(mr.close(), 0);
    assert_eq!(a.write(peer, &[1; 8], 0, 1), 0, "still usable");
    assert_eq!(remote.close(), 0);
    unmap(hole, 8192);
}
