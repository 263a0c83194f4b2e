//! Null regions: they read as zeros and drop writes.

use crate::world::*;
use ibverbs::memory::advise::advise_mr;
use ibverbs::memory::mr::{alloc_null_mr, dereg_mr, reg_mr};
use ibverbs::memory::mw;
use ibverbs::memory::rereg::rereg_mr;
use ibverbs::queues::{bind, post};
use ibverbs::sys::consts::*;
use ibverbs::sys::{Mr, MwBindInfo, SendWr, Sge};
use std::ptr::null_mut;

fn null_region(world: &World) -> *mut Mr {
    // SAFETY: the protection domain is live.
    let null = unsafe { alloc_null_mr(world.pd) };
    assert!(!null.is_null());
    null
}

fn lkey(region: *mut Mr) -> u32 {
    // SAFETY: the region is live.
    unsafe { (*region).lkey }
}

fn rkey(region: *mut Mr) -> u32 {
    // SAFETY: the region is live.
    unsafe { (*region).rkey }
}

/// A request with several entries, which must stay valid until it is posted.
fn with_entries(mut wr: SendWr, entries: &mut [Sge]) -> SendWr {
    (wr.sg_list, wr.num_sge) = (entries.as_mut_ptr(), entries.len() as i32);
    wr
}

#[test]
fn a_null_region_reads_as_zeros_and_drops_writes() {
    let mut world = World::new();
    let (region, null) = (world.register(0, LEN, ALL), null_region(&world));
    // SAFETY: the region is live.
    unsafe { assert_eq!(((*null).addr, (*null).length), (null_mut(), usize::MAX)) };
    let [a, _] = world.pair(QPT_RC);
    for offset in (0..LEN).step_by(8) {
        world.set(offset, u64::MAX);
    }
    let key = rkey(region);
    // Writes into the null region first: it must not return those bytes later.
    for opcode in [WR_RDMA_READ, WR_ATOMIC_FETCH_AND_ADD] {
        let mut entry = sge(0xdead_0000, 8, lkey(null));
        let mut wr = remote(1, opcode, &mut entry, world.at(0), key);
        assert_eq!(world.run(a, &mut wr), WC_SUCCESS, "{opcode}");
    }
    assert_eq!(world.word(0), 0, "the atomic added 1");
    let mut entries = [sge(world.at(8), 4, lkey(region)), sge(1, 12, lkey(null))];
    let wr = remote(2, WR_RDMA_WRITE, &mut entries[0], world.at(64), key);
    assert_eq!(
        world.run(a, &mut with_entries(wr, &mut entries)),
        WC_SUCCESS
    );
    assert_eq!(
        [64, 72, 80].map(|at| world.word(at)),
        [0xffff_ffff, 0, u64::MAX]
    );
}

#[test]
fn a_receive_can_skip_bytes_with_a_null_region() {
    for qp_type in [QPT_RC, QPT_UC] {
        let mut world = World::new();
        let (region, null) = (world.register(0, LEN, ALL), null_region(&world));
        let [a, b] = world.pair(qp_type);
        (0..3).for_each(|place| world.set(8 * place, place as u64 + 1));
        // Only the second of three words is in the null region.
        let mut entries = [sge(77, 8, lkey(null)), sge(world.at(64), 8, lkey(region))];
        let mut list = ibverbs::sys::RecvWr {
            wr_id: 1,
            next: null_mut(),
            sg_list: entries.as_mut_ptr(),
            num_sge: 2,
        };
        // SAFETY: the queue pair is live; the request stays until the call returns.
        assert_eq!(unsafe { post::post_recv(b, &raw mut list, null_mut()) }, 0);
        let mut entry = sge(world.at(0), 16, lkey(region));
        assert_eq!(send(a, &mut request(2, WR_SEND, &mut entry)), (0, false));
        assert_eq!(world.statuses(2), [(1, WC_SUCCESS), (2, WC_SUCCESS)]);
        assert_eq!((world.word(64), world.word(72)), (2, 0));
    }
}

/// The transfers take every path between two devices: inside a slot, through the ring and as remote iovecs.
#[test]
fn a_null_region_works_for_transfers_of_every_size() {
    const BIG: usize = (3 << 20) + 5;
    let (here, there) = (World::new(), World::new());
    let (a, b) = (here.qp(QPT_RC), there.qp(QPT_RC));
    // SAFETY: the queue pairs are live.
    let numbers = unsafe { [(*a).qp_num, (*b).qp_num] };
    here.connect(a, QPT_RC, numbers[1]);
    there.connect(b, QPT_RC, numbers[0]);
    let null = null_region(&here);
    for len in [1, 300, 5000, 70_000, BIG] {
        let mut memory = vec![0xab_u8; len + 1];
        let start = memory.as_mut_ptr();
        // SAFETY: the memory stays valid until its region is deregistered.
        let region = unsafe { reg_mr(there.pd, start.cast(), memory.len(), ALL as i32) };
        assert!(!region.is_null());
        for opcode in [WR_RDMA_READ, WR_RDMA_WRITE] {
            let mut entry = sge(u64::MAX - BIG as u64, len as u32, lkey(null));
            let mut wr = remote(1, opcode, &mut entry, start as u64, rkey(region));
            assert_eq!(here.run(a, &mut wr), WC_SUCCESS, "{len} B, {opcode}");
        }
        // SAFETY: a live region, unused from here on.
        assert_eq!(unsafe { dereg_mr(region) }, 0);
        assert!(memory[..len].iter().all(|byte| *byte == 0), "{len} B");
        assert_eq!(memory[len], 0xab);
    }
}

#[test]
fn a_null_region_is_local_only_and_cannot_change() {
    let world = World::new();
    let (region, null) = (world.register(0, 64, ALL), null_region(&world));
    // SAFETY: the objects are live.
    unsafe {
        for what in [
            REREG_MR_CHANGE_TRANSLATION,
            REREG_MR_CHANGE_PD,
            REREG_MR_CHANGE_ACCESS,
        ] {
            let start = world.at(0) as *mut _;
            let code = rereg_mr(null, what as i32, world.pd, start, 64, ALL as i32);
            assert_eq!(code, REREG_MR_ERR_INPUT, "{what}");
        }
        let mut entry = sge(world.at(0), 8, lkey(null));
        assert_eq!(advise_mr(world.pd, 0, 0, &raw mut entry, 1), libc::ENOENT);
        let window = mw::alloc_mw(world.pd, MW_TYPE_1);
        assert!(!window.is_null());
        let info = MwBindInfo {
            mr: null,
            addr: 0,
            length: 64,
            mw_access_flags: ACCESS_REMOTE_READ,
        };
        let [a, _] = world.pair(QPT_RC);
        let mut bind = ibverbs::sys::MwBind {
            wr_id: 77,
            send_flags: SEND_SIGNALED,
            bind_info: info,
        };
        let bound =
            bind::bind_mw(a, window, &raw mut bind) == 0 && world.next().status == WC_SUCCESS;
        assert!(!bound, "no window can be bound to a null region");
    }
    for opcode in [WR_RDMA_READ, WR_RDMA_WRITE] {
        let [a, _] = world.pair(QPT_RC);
        let mut entry = sge(world.at(0), 8, lkey(region));
        let mut wr = remote(1, opcode, &mut entry, 0, rkey(null));
        assert_eq!(world.run(a, &mut wr), WC_REM_ACCESS_ERR, "{opcode}");
    }
    let [a, _] = world.pair(QPT_RC);
    let gone = lkey(null);
    // SAFETY: a live region, deregistered at the end.
    unsafe {
        assert_eq!(dereg_mr(null), 0);
        assert_eq!(dereg_mr(null), libc::EINVAL);
        assert!(alloc_null_mr(null_mut()).is_null());
    }
    let mut entry = sge(0, 8, gone);
    let mut wr = remote(2, WR_RDMA_WRITE, &mut entry, world.at(0), rkey(region));
    assert_eq!(world.run(a, &mut wr), WC_LOC_PROT_ERR);
}
