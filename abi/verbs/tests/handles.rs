//! Invalid handles: null, integers, objects of another kind, destroyed objects. Each is refused with an error number, and
//! without side effects.

#![allow(unsafe_code)]
// UNSAFETY: calls C functions, deliberately with wrong arguments.

use ibverbs::completion::cq;
use ibverbs::device::{devices, query};
use ibverbs::memory::{mr, pd};
use ibverbs::queues::{creation, post, srq};
use ibverbs::sys::consts::*;
use ibverbs::sys::{Context, Mr, Pd, PortAttr, Qp, QpInitAttr, Srq, SrqInitAttr, Wc};
use ibverbs::tables::context;
use parking_lot::{Mutex, MutexGuard};
use std::ptr::null_mut;

/// Runs one test at a time: the slot of a destroyed object goes to the next one of its kind, which must not belong to
/// another test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// Opens the device.
fn open() -> *mut Context {
    // SAFETY: the device is ours.
    let context = unsafe { context::open_device(devices::the_device()) };
    assert!(!context.is_null());
    context
}

/// Addresses without an object.
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
        // SAFETY: none of these is an object, which the calls must detect.
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
            assert_eq!(creation::destroy_qp(address as *mut Qp), libc::EINVAL);
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
    // SAFETY: the memory stays valid; invalid handles must be refused.
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
        assert_eq!(mr::dereg_mr(region), libc::EINVAL, "already deregistered");
        assert_eq!(pd::dealloc_pd(domain), 0);
        assert_eq!(pd::dealloc_pd(domain), libc::EINVAL, "already deallocated");
        assert_eq!(context::close_device(context), 0);
        assert_eq!(
            context::close_device(context),
            libc::EINVAL,
            "already closed"
        );
    }
}

/// Proves: VB-003, VB-004, VB-014, VB-015, VB-017, VB-I01, VB-I23
#[test]
fn invalid_registrations_are_refused() {
    let _alone = alone();
    let context = open();
    let mut memory = vec![0u8; 4096];
    let start = memory.as_mut_ptr().cast();
    // SAFETY: the memory stays valid.
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
        // The right to flush is optional, and this device does not offer it.
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
fn absurd_sizes_and_objects_of_the_wrong_kind_are_refused() {
    let _alone = alone();
    let context = open();
    // SAFETY: the objects are live; invalid arguments must be refused.
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
        assert!(creation::create_qp(domain, &raw mut attr).is_null());
        attr.cap.max_send_wr = 4;
        attr.qp_type = 77;
        assert!(creation::create_qp(domain, &raw mut attr).is_null());
        attr.qp_type = QPT_RC;
        attr.recv_cq = domain.cast();
        assert!(
            creation::create_qp(domain, &raw mut attr).is_null(),
            "a protection domain is not a completion queue"
        );
        attr.recv_cq = queue;
        let pair = creation::create_qp(domain, &raw mut attr);
        assert!(!pair.is_null());
        assert_eq!(cq::destroy_cq(queue), libc::EBUSY);
        assert_eq!(pd::dealloc_pd(domain), libc::EBUSY);
        let mut queue_attr: SrqInitAttr = std::mem::zeroed();
        assert!(srq::create_srq(domain, &raw mut queue_attr).is_null());
        assert_eq!(creation::destroy_qp(pair), 0);
        assert_eq!(cq::destroy_cq(queue), 0);
        assert_eq!(pd::dealloc_pd(domain), 0);
        assert_eq!(context::close_device(context), 0);
    }
}

/// Closing a context destroys what the program left behind.
#[test]
fn closing_a_context_destroys_its_objects() {
    let _alone = alone();
    let context = open();
    let mut memory = vec![0u8; 4096];
    // SAFETY: the memory stays valid; later uses must be refused.
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
