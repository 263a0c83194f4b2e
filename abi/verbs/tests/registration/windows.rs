//! Windows of both types, as C programs bind and unbind them.

use crate::world::*;
use ibverbs::memory::{mr, mw, pd};
use ibverbs::queues::{bind, creation};
use ibverbs::sys::consts::*;
use ibverbs::sys::{BindMwWr, Mr, Mw, MwBind, MwBindInfo, Qp, SendWr};
use std::ptr::null_mut;

/// Unbinds a window over a queue pair.
type Unbind<'a> = &'a dyn Fn(*mut Qp, *mut Mw);

fn window(world: &World, kind: i32) -> *mut Mw {
    // SAFETY: the protection domain is live.
    let window = unsafe { mw::alloc_mw(world.pd, kind) };
    assert!(!window.is_null());
    window
}

fn key(window: *mut Mw) -> u32 {
    // SAFETY: the window is live.
    unsafe { (*window).rkey }
}

fn part(region: *mut Mr, addr: u64, length: u64) -> MwBindInfo {
    MwBindInfo {
        mr: region,
        addr,
        length,
        mw_access_flags: ACCESS_REMOTE_WRITE,
    }
}

/// The status of an 8-byte write with a key, on separate queue pairs.
fn write(world: &World, near: *mut Mr, addr: u64, rkey: u32) -> i32 {
    let [a, b] = world.pair(QPT_RC);
    // SAFETY: the region is live; the queue pairs are unused from here on.
    unsafe {
        let mut entry = sge(world.at(0), 8, (*near).lkey);
        let status = world.run(a, &mut remote(1, WR_RDMA_WRITE, &mut entry, addr, rkey));
        assert_eq!((creation::destroy_qp(a), creation::destroy_qp(b)), (0, 0));
        status
    }
}

/// A bind of a window of type 2.
fn bind_request(window: *mut Mw, rkey: u32, info: MwBindInfo) -> SendWr {
    let mut wr = request(5, WR_BIND_MW, &mut sge(0, 0, 0));
    (wr.sg_list, wr.num_sge) = (null_mut(), 0);
    wr.extra.bind_mw = BindMwWr {
        mw: window,
        rkey,
        bind_info: info,
    };
    wr
}

/// `ibv_inc_rkey`.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

/// Proves: VB-I10, VB-I11, VB-I17
#[test]
fn a_window_of_type_1_gets_a_new_key_with_each_bind() {
    let world = World::new();
    let (near, far) = (world.register(0, 64, ALL), world.register(4096, 64, ALL));
    let [a, _] = world.pair(QPT_RC);
    let window = window(&world, MW_TYPE_1);
    let unbound = key(window);
    assert_eq!(
        write(&world, near, world.at(4096), unbound),
        WC_REM_ACCESS_ERR
    );
    let mut keys = vec![unbound];
    for _ in 0..3 {
        let status = world.bind(a, window, part(far, world.at(4096), 16));
        assert_eq!(status, WC_SUCCESS);
        assert!(!keys.contains(&key(window)));
        keys.push(key(window));
        assert_eq!(
            write(&world, near, world.at(4096 + 8), key(window)),
            WC_SUCCESS
        );
        assert_eq!(
            write(&world, near, world.at(4096 + 16), key(window)),
            WC_REM_ACCESS_ERR
        );
        for old in &keys[..keys.len() - 1] {
            assert_eq!(write(&world, near, world.at(4096), *old), WC_REM_ACCESS_ERR);
        }
    }
    // SAFETY: the protection domain is live.
    assert!(unsafe { mw::alloc_mw(world.pd, 3) }.is_null());
}

/// Proves: VB-I12
#[test]
fn invalid_binds_are_refused_at_once() {
    let world = World::new();
    let region = world.register(0, 64, ALL);
    let [a, _] = world.pair(QPT_RC);
    let (one, two) = (window(&world, MW_TYPE_1), window(&world, MW_TYPE_2));
    let bind = |window, info| {
        let mut bind = MwBind {
            wr_id: 1,
            send_flags: SEND_SIGNALED,
            bind_info: info,
        };
        // SAFETY: the objects are live.
        unsafe { bind::bind_mw(a, window, &raw mut bind) }
    };
    assert_eq!(bind(two, part(region, world.at(0), 8)), libc::EINVAL);
    assert_eq!(bind(one, part(null_mut(), world.at(0), 0)), libc::EINVAL);
    assert_eq!(bind(one, part(null_mut(), 0, 8)), libc::EINVAL);
    // SAFETY: every object is live while it is used.
    unsafe {
        let other = pd::alloc_pd(world.context);
        let foreign = mr::reg_mr(other, world.at(64) as *mut _, 64, ALL as i32);
        assert_eq!(bind(one, part(foreign, world.at(64), 8)), libc::EPERM);
    }
}

/// Proves: VB-I13, VB-I15
#[test]
fn binds_that_lack_a_right_or_exceed_the_region_fail() {
    let world = World::new();
    for (access, addr, len) in [
        (ACCESS_LOCAL_WRITE, 0, 8),
        (ACCESS_MW_BIND, 0, 8),
        (ALL, 60, 8),
    ] {
        let region = world.register(0, 64, access);
        let [a, _] = world.pair(QPT_RC);
        let window = window(&world, MW_TYPE_1);
        let before = key(window);
        let info = part(region, world.at(addr), len);
        assert_eq!(world.bind(a, window, info), WC_MW_BIND_ERR, "{access:#x}");
        assert_ne!(
            key(window),
            before,
            "the program restores the old key itself"
        );
    }
}

/// Remote write and atomics need a region with `IBV_ACCESS_LOCAL_WRITE`; remote read does not.
///
/// Proves: VB-I13
#[test]
fn a_window_cannot_have_rights_that_its_region_lacks() {
    let mut world = World::new();
    let near = world.register(4096, 64, ALL);
    let no_write = ACCESS_MW_BIND | ACCESS_REMOTE_READ;
    for kind in [MW_TYPE_1, MW_TYPE_2] {
        for bits in 1u32..8 {
            let chosen = [
                ACCESS_REMOTE_READ,
                ACCESS_REMOTE_WRITE,
                ACCESS_REMOTE_ATOMIC,
            ];
            let rights = chosen.iter().enumerate();
            let rights: u32 = rights
                .filter(|(n, _)| bits >> n & 1 != 0)
                .map(|(_, right)| right)
                .sum();
            let writes = rights & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) != 0;
            for (access, allowed) in [
                (no_write, !writes),
                (no_write | ACCESS_LOCAL_WRITE, true),
                (ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ, false),
            ] {
                world.set(0, 5);
                let region = world.register(0, 64, access);
                let [a, b] = world.pair(QPT_RC);
                let window = window(&world, kind);
                let info = MwBindInfo {
                    mw_access_flags: rights,
                    ..part(region, world.at(0), 64)
                };
                let rkey;
                let status = if kind == MW_TYPE_1 {
                    let status = world.bind(b, window, info);
                    rkey = key(window);
                    status
                } else {
                    rkey = next_key(key(window));
                    world.run(b, &mut bind_request(window, rkey, info))
                };
                let what = format!("type {kind}: {rights:#x} of a region with {access:#x}");
                let expected = if allowed { WC_SUCCESS } else { WC_MW_BIND_ERR };
                assert_eq!(status, expected, "{what}");
                // A window that was not bound allows nothing; a bound one allows exactly its own rights.
                // SAFETY: the region is live.
                let mut entry = sge(world.at(4096), 8, unsafe { (*near).lkey });
                let opcode = if rights & ACCESS_REMOTE_ATOMIC != 0 {
                    WR_ATOMIC_FETCH_AND_ADD
                } else if writes {
                    WR_RDMA_WRITE
                } else {
                    WR_RDMA_READ
                };
                world.set(4096, 9);
                let mut wr = remote(1, opcode, &mut entry, world.at(0), rkey);
                // A queue pair whose bind failed responds to nothing.
                let others = (!allowed).then(|| world.pair(QPT_RC));
                let status = world.run(others.map_or(a, |others| others[0]), &mut wr);
                if allowed {
                    assert_eq!(status, WC_SUCCESS, "{what}");
                    let now = match opcode {
                        WR_ATOMIC_FETCH_AND_ADD => 6,
                        WR_RDMA_WRITE => 9,
                        _ => 5,
                    };
                    assert_eq!(world.word(0), now, "{what}");
                } else {
                    assert_ne!(status, WC_SUCCESS, "{what}");
                    assert_eq!(world.word(0), 5, "{what}");
                }
                // SAFETY: objects unused from here on.
                unsafe {
                    for pair in [a, b].into_iter().chain(others.into_iter().flatten()) {
                        assert_eq!(creation::destroy_qp(pair), 0);
                    }
                    assert_eq!(mw::dealloc_mw(window), 0);
                    assert_eq!(mr::dereg_mr(region), 0, "{what}");
                }
            }
        }
    }
}

/// Proves: VB-I16, VB-021, VB-I19
#[test]
fn every_kind_of_unbind_invalidates_the_key() {
    let world = World::new();
    let near = world.register(0, 64, ALL);
    let unbind_1 = |a: *mut Qp, window| {
        assert_eq!(world.bind(a, window, part(null_mut(), 0, 0)), WC_SUCCESS);
    };
    let local_invalidate = |a: *mut Qp, window: *mut Mw| {
        let mut wr = request(6, WR_LOCAL_INV, &mut sge(0, 0, 0));
        (wr.sg_list, wr.num_sge, wr.imm_data) = (null_mut(), 0, key(window));
        assert_eq!(world.run(a, &mut wr), WC_SUCCESS);
    };
    let free = |_: *mut Qp, window| {
        // SAFETY: a live window, unused from here on.
        assert_eq!(unsafe { mw::dealloc_mw(window) }, 0);
    };
    let ways: [(i32, Unbind<'_>); 4] = [
        (MW_TYPE_1, &unbind_1),
        (MW_TYPE_1, &free),
        (MW_TYPE_2, &local_invalidate),
        (MW_TYPE_2, &free),
    ];
    for (index, (kind, unbind)) in ways.into_iter().enumerate() {
        let far = world.register(4096, 64, ALL);
        let [a, b] = world.pair(QPT_RC);
        let window = window(&world, kind);
        let info = part(far, world.at(4096), 64);
        if kind == MW_TYPE_1 {
            assert_eq!(world.bind(b, window, info), WC_SUCCESS);
        } else {
            let new = next_key(key(window));
            assert_eq!(
                world.run(b, &mut bind_request(window, new, info)),
                WC_SUCCESS
            );
            // SAFETY: the window is live; with type 2 the program stores the key itself.
            unsafe { (*window).rkey = new };
        }
        let rkey = key(window);
        // SAFETY: the objects are live.
        unsafe {
            assert_eq!(mr::dereg_mr(far), libc::EBUSY, "unbind {index}");
            let mut entry = sge(world.at(0), 8, (*near).lkey);
            let mut wr = remote(1, WR_RDMA_WRITE, &mut entry, world.at(4096), rkey);
            assert_eq!(world.run(a, &mut wr), WC_SUCCESS, "the region is unchanged");
            unbind(b, window);
            assert_eq!(world.run(a, &mut wr), WC_REM_ACCESS_ERR, "unbind {index}");
            assert_eq!(mr::dereg_mr(far), 0, "unbind {index}");
        }
        // The completions that the refusal flushed on the other side do not matter here.
        // SAFETY: live queue pairs, unused from here on.
        unsafe { assert_eq!((creation::destroy_qp(a), creation::destroy_qp(b)), (0, 0)) };
    }
}

/// Proves: VB-I16, VB-I18
#[test]
fn a_peer_unbinds_a_window_of_type_2() {
    let world = World::new();
    let far = world.register(4096, 64, ALL);
    let [a, b] = world.pair(QPT_RC);
    let window = window(&world, MW_TYPE_2);
    let new = next_key(key(window));
    let info = part(far, world.at(4096), 64);
    assert_eq!(
        world.run(b, &mut bind_request(window, new, info)),
        WC_SUCCESS
    );
    receive(b, 2, &mut sge(world.at(4096), 8, 0));
    let mut wr = request(1, WR_SEND_WITH_INV, &mut sge(0, 0, 0));
    (wr.sg_list, wr.num_sge, wr.imm_data) = (null_mut(), 0, new);
    assert_eq!(send(a, &mut wr), (0, false));
    let (first, second) = (world.next(), world.next());
    let received = if first.wr_id == 2 { first } else { second };
    assert_eq!((first.status, second.status), (WC_SUCCESS, WC_SUCCESS));
    assert_eq!(
        (received.wc_flags & WC_WITH_INV, received.imm_data),
        (WC_WITH_INV, new)
    );
    // Unbound, it can be bound again; bound, it cannot.
    let again = next_key(new);
    assert_eq!(
        world.run(b, &mut bind_request(window, again, info)),
        WC_SUCCESS
    );
    let third = next_key(again);
    assert_eq!(
        world.run(b, &mut bind_request(window, third, info)),
        WC_MW_BIND_ERR
    );
    // SAFETY: the objects are live, and unused from here on.
    unsafe {
        assert_eq!(mr::dereg_mr(far), libc::EBUSY);
        assert_eq!((mw::dealloc_mw(window), mr::dereg_mr(far)), (0, 0));
    }
}

/// Proves: VB-I14
#[test]
fn a_new_key_may_be_sent_right_after_its_bind() {
    const BIND: u64 = 3;
    const SEND: u64 = 4;
    let mut world = World::new();
    let (near, far) = (world.register(0, 64, ALL), world.register(4096, 64, ALL));
    // SAFETY: the region is live.
    let lkey = unsafe { (*near).lkey };
    let [a, b] = world.pair(QPT_RC);
    let window = window(&world, MW_TYPE_1);
    for _ in 0..100 {
        world.set(8, 0);
        receive(a, 2, &mut sge(world.at(8), 8, lkey));
        let mut bind = MwBind {
            wr_id: BIND,
            send_flags: SEND_SIGNALED,
            bind_info: part(far, world.at(4096), 64),
        };
        // SAFETY: the objects are live.
        assert_eq!(unsafe { bind::bind_mw(b, window, &raw mut bind) }, 0);
        // Send the new key without polling for the completion of the bind.
        let new = u64::from(key(window));
        let mut message = request(SEND, WR_SEND, &mut sge(0, 0, 0));
        let mut entry = sge(&raw const new as u64, 8, 0);
        message.sg_list = &raw mut entry;
        message.send_flags |= SEND_INLINE;
        assert_eq!(send(b, &mut message), (0, false));
        let mut others = 2;
        loop {
            let done = world.next();
            assert_eq!(done.status, WC_SUCCESS, "{}", done.wr_id);
            if done.wr_id == 2 {
                break;
            }
            others -= 1;
        }
        let told = world.word(8) as u32;
        let mut entry = sge(world.at(0), 8, lkey);
        let mut write = remote(1, WR_RDMA_WRITE, &mut entry, world.at(4096), told);
        assert_eq!(send(a, &mut write), (0, false));
        for (id, status) in world.statuses(1 + others) {
            assert_eq!(status, WC_SUCCESS, "{id}");
        }
    }
}
