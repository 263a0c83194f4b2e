//! Handles that are none: null, numbers, objects of another kind, objects that are gone. Each is refused
//! with an error number, and nothing else happens.

#![allow(unsafe_code)]
// UNSAFETY: calls C functions, on purpose with wrong arguments.

use ibverbs::sys::consts::*;
use ibverbs::sys::{Context, Mr, Pd, PortAttr, Qp, QpInitAttr, Srq, SrqInitAttr, Wc};
use ibverbs::tables::context;
use ibverbs::{cq, device, mr, pd, post, qp, query, srq};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: an object that is gone leaves its place to the next one of its kind, and that must not be
/// another test's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the device.
fn open() -> *mut Context {
    // SAFETY: the device is ours.
    let context = unsafe { context::open_device(device::the_device()) };
    assert!(!context.is_null());
    context
}

/// Addresses that are no objects.
fn wild() -> [usize; 6] {
    static SOMETHING: [u64; 64] = [0; 64];
    [
        0,
        1,
        8,
        0xdead_beef,
        usize::MAX,
        &raw const SOMETHING as usize,
    ]
}

#[test]
fn wild_handles_are_refused() {
    let mut port = PortAttr::default();
    let mut wc = Wc::default();
    for address in wild() {
        // SAFETY: nothing is an object, and that is what the calls have to find out.
        unsafe {
            let context = address as *mut Context;
            assert_eq!(query::query_port(context, 1, &raw mut port), libc::EINVAL);
            assert_eq!(context::close_device(context), libc::EINVAL);
            assert!(pd::alloc_pd(context).is_null());
            assert_eq!(pd::dealloc_pd(address as *mut Pd), libc::EINVAL);
            assert!(mr::reg_mr(address as *mut Pd, null_mut(), 8, 0).is_null());
            assert_eq!(mr::dereg_mr(address as *mut Mr), libc::EINVAL);
            assert_eq!(
                cq::poll_cq(address as *mut _, 1, &raw mut wc),
                -libc::EINVAL
            );
            assert_eq!(
                post::post_send(address as *mut Qp, null_mut(), null_mut()),
                libc::EINVAL
            );
            assert_eq!(qp::destroy_qp(address as *mut Qp), libc::EINVAL);
            assert_eq!(srq::destroy_srq(address as *mut Srq), libc::EINVAL);
        }
    }
}

/// Proves: VB-001, VB-020, VB-I20
#[test]
fn a_region_lives_from_registration_to_deregistration() {
    let _alone = alone();
    let context = open();
    let mut memory = vec![0u8; 4096];
    // SAFETY: the memory stays; objects are used as they are meant to be, and then as they are not.
    unsafe {
        let domain = pd::alloc_pd(context);
        assert!(!domain.is_null());
        let region = mr::reg_mr(domain, memory.as_mut_ptr().cast(), 4096, 1);
        assert!(!region.is_null());
        assert_eq!(((*region).pd, (*region).length), (domain, 4096));
        assert_eq!((*region).addr.cast(), memory.as_mut_ptr());
        assert_ne!((*region).lkey, (*region).rkey);
        assert_eq!(pd::dealloc_pd(domain), libc::EBUSY);
        assert_eq!(mr::dereg_mr(region), 0);
        assert_eq!(mr::dereg_mr(region), libc::EINVAL, "it is gone");
        assert_eq!(pd::dealloc_pd(domain), 0);
        assert_eq!(pd::dealloc_pd(domain), libc::EINVAL, "it is gone");
        assert_eq!(context::close_device(context), 0);
        assert_eq!(context::close_device(context), libc::EINVAL, "it is gone");
    }
}

/// Proves: VB-003, VB-004, VB-014, VB-015, VB-017, VB-I01, VB-I23
#[test]
fn registrations_that_are_refused() {
    let _alone = alone();
    let context = open();
    let mut memory = vec![0u8; 4096];
    let start = memory.as_mut_ptr().cast();
    // SAFETY: the memory stays.
    unsafe {
        let domain = pd::alloc_pd(context);
        let refused = |len: usize, access: u32| {
            *libc::__errno_location() = 0;
            let region = mr::reg_mr(domain, start, len, access as i32);
            let errno = *libc::__errno_location();
            if !region.is_null() {
                assert_eq!(mr::dereg_mr(region), 0);
            }
            (region.is_null(), errno)
        };
        for access in [ACCESS_REMOTE_WRITE, ACCESS_REMOTE_ATOMIC, 1 << 10, 1 << 30] {
            assert_eq!(refused(4096, access), (true, libc::EINVAL), "{access:#x}");
        }
        // A device may have the right to flush, and this one has not.
        for access in [ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT] {
            let refusal = (true, libc::EOPNOTSUPP);
            assert_eq!(refused(4096, access), refusal, "{access:#x}");
        }
        assert_eq!(refused(0, 0), (true, libc::EINVAL));
        assert_eq!(refused(usize::MAX, 0), (true, libc::EINVAL));
        for access in [
            0,
            ACCESS_REMOTE_READ,
            ACCESS_MW_BIND,
            ACCESS_RELAXED_ORDERING,
        ] {
            assert!(!refused(4096, access).0, "{access:#x}");
        }
        assert_eq!(context::close_device(context), 0);
    }
}

#[test]
fn absurd_sizes_and_wrong_objects() {
    let _alone = alone();
    let context = open();
    // SAFETY: objects are live; what is wrong is refused.
    unsafe {
        let domain = pd::alloc_pd(context);
        let queue = cq::create_cq(context, 16, null_mut(), null_mut(), 0);
        assert!(!queue.is_null());
        for depth in [0, -1, i32::MAX] {
            assert!(cq::create_cq(context, depth, null_mut(), null_mut(), 0).is_null());
        }
        assert!(cq::create_cq(context, 16, null_mut(), null_mut(), 99).is_null());
        let mut attr: QpInitAttr = std::mem::zeroed();
        (attr.send_cq, attr.recv_cq, attr.qp_type) = (queue, queue, QPT_RC);
        attr.cap.max_send_wr = u32::MAX;
        assert!(qp::create_qp(domain, &raw mut attr).is_null());
        attr.cap.max_send_wr = 4;
        attr.qp_type = 77;
        assert!(qp::create_qp(domain, &raw mut attr).is_null());
        attr.qp_type = QPT_RC;
        attr.recv_cq = domain.cast();
        assert!(
            qp::create_qp(domain, &raw mut attr).is_null(),
            "a domain is no queue"
        );
        attr.recv_cq = queue;
        let pair = qp::create_qp(domain, &raw mut attr);
        assert!(!pair.is_null());
        assert_eq!(cq::destroy_cq(queue), libc::EBUSY);
        assert_eq!(pd::dealloc_pd(domain), libc::EBUSY);
        let mut queue_attr: SrqInitAttr = std::mem::zeroed();
        assert!(srq::create_srq(domain, &raw mut queue_attr).is_null());
        assert_eq!(qp::destroy_qp(pair), 0);
        assert_eq!(cq::destroy_cq(queue), 0);
        assert_eq!(pd::dealloc_pd(domain), 0);
        assert_eq!(context::close_device(context), 0);
    }
}

/// What a program leaves behind goes with its context.
#[test]
fn closing_takes_everything_along() {
    let _alone = alone();
    let context = open();
    let mut memory = vec![0u8; 4096];
    // SAFETY: the memory stays; nothing is used after the context was closed, except to be refused.
    unsafe {
        let domain = pd::alloc_pd(context);
        let region = mr::reg_mr(domain, memory.as_mut_ptr().cast(), 4096, 1);
        let queue = cq::create_cq(context, 16, null_mut(), null_mut(), 0);
        assert_eq!(context::close_device(context), 0);
        assert_eq!(mr::dereg_mr(region), libc::EINVAL);
        assert_eq!(cq::destroy_cq(queue), libc::EINVAL);
        assert_eq!(pd::dealloc_pd(domain), libc::EINVAL);
    }
}
