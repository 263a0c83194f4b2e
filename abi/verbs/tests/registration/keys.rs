//! Keys: where they are used, what they allow and when they end; re-registration.

use crate::world::*;
use ibverbs::memory::{mr, pd, rereg};
use ibverbs::queues::{creation, post, srq};
use ibverbs::sys::consts::*;
use ibverbs::sys::{RecvWr, SrqInitAttr};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

/// Proves: VB-005, VB-002, VB-016
#[test]
fn posting_needs_the_local_key() {
    let mut world = World::new();
    let (readable, writable) = (
        world.register(0, 64, 0),
        world.register(64, 64, ACCESS_LOCAL_WRITE),
    );
    // SAFETY: the regions are live.
    let (from, to) = unsafe { ((*readable).lkey, (*writable).lkey) };
    // SAFETY: the region is live.
    unsafe {
        assert_eq!(
            ((*readable).addr as u64, (*readable).length),
            (world.at(0), 64)
        );
    }
    for (index, (source, target, want)) in [
        (from, to, [(1, WC_SUCCESS), (2, WC_SUCCESS)]),
        (from ^ 0x55, to, [(1, WC_LOC_PROT_ERR), (2, -1)]),
        (from, to ^ 0x55, [(1, WC_REM_OP_ERR), (2, WC_LOC_PROT_ERR)]),
        (from, from, [(1, WC_REM_OP_ERR), (2, WC_LOC_PROT_ERR)]),
    ]
    .into_iter()
    .enumerate()
    {
        let [a, b] = world.pair(QPT_RC);
        world.set(0, 40 + index as u64);
        world.set(64, 0);
        receive(b, 2, &mut sge(world.at(64), 64, target));
        let mut entry = sge(world.at(0), 64, source);
        assert_eq!(send(a, &mut request(1, WR_SEND, &mut entry)), (0, false));
        let expected: Vec<_> = want
            .into_iter()
            .filter(|(_, status)| *status >= 0)
            .collect();
        assert_eq!(world.statuses(expected.len()), expected, "case {index}");
        let arrived = if index == 0 { 40 } else { 0 };
        assert_eq!(world.word(64), arrived, "case {index}");
        // SAFETY: the queue pairs are live, and unused from here on.
        unsafe { assert_eq!((creation::destroy_qp(a), creation::destroy_qp(b)), (0, 0)) };
    }
}

/// Proves: VB-005
#[test]
fn receives_of_a_shared_queue_also_need_the_local_key() {
    let mut world = World::new();
    let region = world.register(0, 128, ACCESS_LOCAL_WRITE);
    // SAFETY: every object is live while it is used.
    unsafe {
        let mut wanted: SrqInitAttr = std::mem::zeroed();
        (wanted.attr.max_wr, wanted.attr.max_sge) = (4, 1);
        let queue = srq::create_srq(world.pd, &raw mut wanted);
        let mut attr: ibverbs::sys::QpInitAttr = std::mem::zeroed();
        (attr.send_cq, attr.recv_cq, attr.srq, attr.qp_type) = (world.cq, world.cq, queue, QPT_RC);
        attr.cap.max_send_wr = 1;
        let (a, b) = (
            world.qp(QPT_RC),
            creation::create_qp(world.pd, &raw mut attr),
        );
        assert!(!queue.is_null() && !b.is_null());
        world.connect(a, QPT_RC, (*b).qp_num);
        world.connect(b, QPT_RC, (*a).qp_num);
        let mut target = sge(world.at(64), 8, (*region).lkey);
        let mut wr = RecvWr {
            wr_id: 2,
            next: null_mut(),
            sg_list: &raw mut target,
            num_sge: 1,
        };
        assert_eq!(post::post_srq_recv(queue, &raw mut wr, null_mut()), 0);
        world.set(0, 99);
        let mut entry = sge(world.at(0), 8, (*region).lkey);
        assert_eq!(send(a, &mut request(1, WR_SEND, &mut entry)), (0, false));
        assert_eq!(world.statuses(2), [(1, WC_SUCCESS), (2, WC_SUCCESS)]);
        assert_eq!(world.word(64), 99);
    }
}

/// Proves: VB-006, VB-007, VB-I04
#[test]
fn a_remote_request_needs_a_valid_key_and_range() {
    let world = World::new();
    let (near, far) = (world.register(0, 64, ALL), world.register(4096, 64, ALL));
    // SAFETY: the regions are live.
    let (lkey, rkey) = unsafe { ((*near).lkey, (*far).rkey) };
    for opcode in [
        WR_RDMA_WRITE,
        WR_RDMA_READ,
        WR_ATOMIC_CMP_AND_SWP,
        WR_ATOMIC_FETCH_AND_ADD,
    ] {
        for (key, addr, want) in [
            (rkey, world.at(4096 + 56), WC_SUCCESS),
            (rkey ^ 1, world.at(4096 + 56), WC_REM_ACCESS_ERR),
            (rkey, world.at(4096 + 64), WC_REM_ACCESS_ERR),
        ] {
            let [a, b] = world.pair(QPT_RC);
            let mut entry = sge(world.at(0), 8, lkey);
            let status = world.run(a, &mut remote(1, opcode, &mut entry, addr, key));
            assert_eq!(status, want, "{opcode} {key:#x}");
            // SAFETY: the queue pairs are live, and unused from here on.
            unsafe { assert_eq!((creation::destroy_qp(a), creation::destroy_qp(b)), (0, 0)) };
        }
    }
}

/// Proves: VB-019, VB-020
#[test]
fn deregistration_invalidates_both_keys() {
    let world = World::new();
    let (near, far) = (world.register(0, 64, ALL), world.register(4096, 64, ALL));
    // SAFETY: live regions, unused after their deregistration.
    let (lkey, gone, rkey) = unsafe {
        let keys = ((*near).lkey, (*far).lkey, (*far).rkey);
        assert_eq!(mr::dereg_mr(far), 0);
        assert!(mr::dereg_mr(far) > 0, "a positive error number");
        keys
    };
    for (key, addr, want) in [
        (lkey, world.at(0), WC_REM_ACCESS_ERR),
        (gone, world.at(4096), WC_LOC_PROT_ERR),
    ] {
        let [a, _] = world.pair(QPT_RC);
        let mut entry = sge(addr, 8, key);
        let mut write = remote(1, WR_RDMA_WRITE, &mut entry, world.at(4096), rkey);
        assert_eq!(world.run(a, &mut write), want);
    }
}

/// Proves: VB-I02, VB-I03
#[test]
fn optional_flags_zero_based_regions_and_reg_mr_iova_work() {
    let mut world = World::new();
    let [a, _] = world.pair(QPT_RC);
    world.set(0, 5);
    // SAFETY: the memory stays valid; every object is live while it is used.
    unsafe {
        for flags in [
            ACCESS_RELAXED_ORDERING,
            ACCESS_HUGETLB,
            ACCESS_ON_DEMAND,
            1 << 29,
        ] {
            let region = world.register(0, 64, flags);
            assert_eq!(mr::dereg_mr(region), 0);
        }
        let start = world.at(4096);
        let near = world.register(0, 64, ALL);
        let access = (ALL | ACCESS_ZERO_BASED) as i32;
        let zero = mr::reg_mr(world.pd, start as *mut _, 64, access);
        let iova = mr::reg_mr_iova(world.pd, start as *mut _, 64, 1 << 40, ALL as i32);
        for (place, (region, addr)) in [(zero, 8u64), (iova, (1 << 40) + 16)]
            .into_iter()
            .enumerate()
        {
            let mut entry = sge(world.at(0), 8, (*near).lkey);
            let mut write = remote(1, WR_RDMA_WRITE, &mut entry, addr, (*region).rkey);
            assert_eq!(world.run(a, &mut write), WC_SUCCESS);
            assert_eq!(world.word(4096 + 8 * (place + 1)), 5);
        }
        assert!(mr::reg_dmabuf_mr(world.pd, 0, 64, 0, -1, 0).is_null());
    }
}

/// Proves partly: VB-I02 (`ibv_reg_dmabuf_mr`)
#[test]
fn a_memfd_can_be_registered_as_a_dma_buf() {
    let file = memfd();
    can_be_registered(file.try_clone().unwrap().into(), &file);
}

/// Runs only where the kernel has a driver that makes DMA-bufs; elsewhere the suite's output says that the test was skipped.
#[test]
fn a_dma_buf_of_the_kernel_can_be_registered() {
    if let Some((buffer, pages)) = rkey_fakes::dma_buf(8192) {
        can_be_registered(buffer, &File::from(pages));
    }
}

/// A file of 8192 bytes.
fn memfd() -> File {
    // SAFETY: a name; a new descriptor.
    let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"file".as_ptr(), 0)) };
    let file = File::from(file);
    file.set_len(8192).unwrap();
    file
}

/// Registers a buffer, whose bytes are also those of a file.
fn can_be_registered(buffer: OwnedFd, pages: &File) {
    let mut world = World::new();
    let [a, _] = world.pair(QPT_RC);
    world.set(0, 5);
    let near = world.register(0, 64, ALL);
    let fd = buffer.as_raw_fd();
    // SAFETY: live objects.
    let refused = unsafe { mr::reg_dmabuf_mr(world.pd, 4096, 8192, 0, fd, ALL as i32) };
    assert!(refused.is_null(), "longer than the file");
    // SAFETY: as above; the region keeps the file.
    unsafe {
        let region = mr::reg_dmabuf_mr(world.pd, 4160, 64, 1 << 40, fd, ALL as i32);
        assert!(!region.is_null());
        drop(buffer);
        let mut entry = sge(world.at(0), 8, (*near).lkey);
        let mut write = remote(1, WR_RDMA_WRITE, &mut entry, 1 << 40, (*region).rkey);
        assert_eq!(world.run(a, &mut write), WC_SUCCESS);
        let mut bytes = [0; 8];
        pages.read_exact_at(&mut bytes, 4160).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 5);
        // A read from the region, and a write whose source is the region.
        pages.write_all_at(&9u64.to_ne_bytes(), 4168).unwrap();
        let mut read = remote(2, WR_RDMA_READ, &mut entry, (1 << 40) + 8, (*region).rkey);
        assert_eq!(world.run(a, &mut read), WC_SUCCESS);
        assert_eq!(world.word(0), 9);
        let far = world.register(4096, 64, ALL);
        let mut local = sge((1 << 40) + 8, 8, (*region).lkey);
        let at = world.at(4096);
        let mut write = remote(3, WR_RDMA_WRITE, &mut local, at, (*far).rkey);
        assert_eq!(world.run(a, &mut write), WC_SUCCESS);
        assert_eq!(world.word(4096), 9);
        assert_eq!((mr::dereg_mr(region), mr::dereg_mr(far)), (0, 0));
    }
}

/// A region that is only read has a mapping that can only be read.
#[test]
fn re_registration_can_allow_writes_if_the_descriptor_of_the_file_does() {
    let mut world = World::new();
    world.set(0, 5);
    let near = world.register(0, 64, ALL);
    let file = memfd();
    let reader = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    for (fd, writes) in [(&file, true), (&reader, false)] {
        let (fd, reads) = (fd.as_raw_fd(), ACCESS_REMOTE_READ);
        // SAFETY: live objects.
        unsafe {
            let region = mr::reg_dmabuf_mr(world.pd, 0, 64, 0, fd, reads as i32);
            assert!(!region.is_null());
            let transfer = |opcode| {
                let [a, b] = world.pair(QPT_RC);
                let mut entry = sge(world.at(0), 8, (*near).lkey);
                let status = world.run(a, &mut remote(1, opcode, &mut entry, 0, (*region).rkey));
                assert_eq!((creation::destroy_qp(a), creation::destroy_qp(b)), (0, 0));
                status
            };
            assert_eq!(transfer(WR_RDMA_WRITE), WC_REM_ACCESS_ERR);
            let what = REREG_MR_CHANGE_ACCESS as i32;
            let changed = rereg::rereg_mr(region, what, null_mut(), null_mut(), 0, ALL as i32);
            if writes {
                assert_eq!((changed, transfer(WR_RDMA_WRITE)), (0, WC_SUCCESS));
            } else {
                assert_eq!(changed, REREG_MR_ERR_INPUT);
                assert_eq!(transfer(WR_RDMA_WRITE), WC_REM_ACCESS_ERR, "unchanged");
            }
            assert_eq!(transfer(WR_RDMA_READ), WC_SUCCESS);
            assert_eq!(mr::dereg_mr(region), 0);
        }
    }
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 5);
}

/// Proves: VB-I22
#[test]
fn re_registration_keeps_both_keys() {
    let mut world = World::new();
    let (near, far) = (world.register(0, 64, ALL), world.register(4096, 64, ALL));
    world.set(0, 6);
    // SAFETY: the memory stays valid; every object is live while it is used.
    unsafe {
        let (lkey, rkey) = ((*near).lkey, (*far).rkey);
        let write = |addr: u64| {
            let [a, b] = world.pair(QPT_RC);
            let mut entry = sge(world.at(0), 8, lkey);
            let status = world.run(a, &mut remote(1, WR_RDMA_WRITE, &mut entry, addr, rkey));
            assert_eq!((creation::destroy_qp(a), creation::destroy_qp(b)), (0, 0));
            status
        };
        let change = |what: u32, pd, addr: u64, len: usize, access: u32| {
            rereg::rereg_mr(far, what as i32, pd, addr as *mut _, len, access as i32)
        };
        let (none, old, new) = (null_mut(), world.at(4096), world.at(8192));
        assert_eq!(write(old), WC_SUCCESS);
        // A refused call changes nothing, and its code says so.
        for (what, pd, len, access) in [
            (0, none, 64, ALL),
            (1 << 3, none, 64, ALL),
            (REREG_MR_CHANGE_TRANSLATION, none, 0, 0),
            (REREG_MR_CHANGE_PD, none, 64, 0),
            (REREG_MR_CHANGE_ACCESS, none, 64, ACCESS_REMOTE_WRITE),
            (REREG_MR_CHANGE_ACCESS, none, 64, 1 << 31),
        ] {
            assert_eq!(
                change(what, pd, new, len, access),
                REREG_MR_ERR_INPUT,
                "{what}"
            );
            assert_eq!(write(old), WC_SUCCESS);
        }
        assert_eq!(change(REREG_MR_CHANGE_TRANSLATION, none, new, 128, 0), 0);
        assert_eq!(
            ((*far).addr as u64, (*far).length, (*far).rkey),
            (new, 128, rkey)
        );
        assert_eq!((write(old), write(new)), (WC_REM_ACCESS_ERR, WC_SUCCESS));
        assert_eq!(world.word(8192), 6);
        assert_eq!(
            change(REREG_MR_CHANGE_ACCESS, none, 0, 0, ACCESS_REMOTE_READ),
            0
        );
        assert_eq!(write(new), WC_REM_ACCESS_ERR);
        let other = pd::alloc_pd(world.context);
        let both = REREG_MR_CHANGE_ACCESS | REREG_MR_CHANGE_PD;
        assert_eq!(change(both, other, 0, 0, ALL), 0);
        assert_eq!(((*far).pd, write(new)), (other, WC_REM_ACCESS_ERR));
        assert_eq!(
            pd::dealloc_pd(other),
            libc::EBUSY,
            "the region has moved there"
        );
        let all = both | REREG_MR_CHANGE_TRANSLATION;
        assert_eq!(change(all, world.pd, old, 64, ALL), 0);
        assert_eq!((write(old), pd::dealloc_pd(other)), (WC_SUCCESS, 0));
    }
}
