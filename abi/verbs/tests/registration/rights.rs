//! What access flags allow: every combination against every use of a region, and the other permissions that
//! count.

use crate::world::*;
use ibverbs::memory::{mr, mw, pd};
use ibverbs::queues::{creation, qp};
use ibverbs::sys::consts::*;
use ibverbs::sys::{Mr, MwBindInfo, Qp, QpAttr};

/// The offset of the region under test; the other memory has all rights.
const TRIED: usize = 4096;
const FLAGS: [u32; 5] = [
    ACCESS_LOCAL_WRITE,
    ACCESS_REMOTE_WRITE,
    ACCESS_REMOTE_READ,
    ACCESS_REMOTE_ATOMIC,
    ACCESS_MW_BIND,
];

/// A use of a region by a work request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// It is the source of a send.
    Gather,
    /// A message is received into it.
    Receive,
    /// The result of this operation is written into it.
    Answer(i32),
    /// A peer accesses it by this operation.
    Remote(i32),
    /// A window of type 1 is bound to it.
    Bind,
}

const USES: [Use; 9] = [
    Use::Gather,
    Use::Receive,
    Use::Answer(WR_RDMA_READ),
    Use::Answer(WR_ATOMIC_FETCH_AND_ADD),
    Use::Remote(WR_RDMA_WRITE),
    Use::Remote(WR_RDMA_READ),
    Use::Remote(WR_ATOMIC_CMP_AND_SWP),
    Use::Remote(WR_ATOMIC_FETCH_AND_ADD),
    Use::Bind,
];

impl Use {
    /// The flag that allows it (`ibv_reg_mr(3)`); a send needs none.
    fn needs(self) -> u32 {
        match self {
            Self::Gather => 0,
            Self::Receive | Self::Answer(_) => ACCESS_LOCAL_WRITE,
            Self::Remote(WR_RDMA_WRITE) => ACCESS_REMOTE_WRITE,
            Self::Remote(WR_RDMA_READ) => ACCESS_REMOTE_READ,
            Self::Remote(_) => ACCESS_REMOTE_ATOMIC,
            Self::Bind => ACCESS_MW_BIND,
        }
    }

    /// The status without the flag, on the side that posted the request or the receive.
    fn refused(self) -> i32 {
        match self {
            Self::Gather | Self::Receive | Self::Answer(_) => WC_LOC_PROT_ERR,
            Self::Remote(_) => WC_REM_ACCESS_ERR,
            Self::Bind => WC_MW_BIND_ERR,
        }
    }

    /// Whether an allowed use changes the region.
    fn changes(self) -> bool {
        !matches!(self, Self::Gather | Self::Bind | Self::Remote(WR_RDMA_READ))
    }
}

fn local_key(region: *mut Mr) -> u32 {
    // SAFETY: the region is live.
    unsafe { (*region).lkey }
}

fn remote_key(region: *mut Mr) -> u32 {
    // SAFETY: the region is live.
    unsafe { (*region).rkey }
}

fn destroy(pair: [*mut Qp; 2]) {
    for own in pair {
        // SAFETY: a live queue pair, unused from here on.
        assert_eq!(unsafe { creation::destroy_qp(own) }, 0);
    }
}

/// Uses a region over the queue pairs. Returns the status on the side that owns the region or posted the request.
fn status(world: &World, [a, b]: [*mut Qp; 2], region: *mut Mr, good: *mut Mr, how: Use) -> i32 {
    let mut near = sge(world.at(0), 8, local_key(good));
    let mut tried = sge(world.at(TRIED), 8, local_key(region));
    match how {
        Use::Gather => {
            receive(b, 2, &mut near);
            assert_eq!(send(a, &mut request(1, WR_SEND, &mut tried)), (0, false));
            assert_eq!(world.statuses(2)[1], (2, WC_SUCCESS));
            WC_SUCCESS
        }
        Use::Receive => {
            receive(b, 2, &mut tried);
            assert_eq!(send(a, &mut request(1, WR_SEND, &mut near)), (0, false));
            let both = world.statuses(2);
            let refused = both[1].1 != WC_SUCCESS;
            let sender = if refused { WC_REM_OP_ERR } else { WC_SUCCESS };
            assert_eq!(both[0], (1, sender));
            both[1].1
        }
        Use::Answer(opcode) => {
            let mut wr = remote(1, opcode, &mut tried, world.at(0), remote_key(good));
            world.run(a, &mut wr)
        }
        Use::Remote(opcode) => {
            let mut wr = remote(1, opcode, &mut near, world.at(TRIED), remote_key(region));
            world.run(a, &mut wr)
        }
        Use::Bind => {
            // SAFETY: the protection domain is live; the window is unused from here on.
            unsafe {
                let window = mw::alloc_mw(world.pd, MW_TYPE_1);
                let info = MwBindInfo {
                    mr: region,
                    addr: world.at(TRIED),
                    length: 8,
                    mw_access_flags: ACCESS_REMOTE_READ,
                };
                let status = world.bind(a, window, info);
                assert_eq!(mw::dealloc_mw(window), 0);
                status
            }
        }
    }
}

/// Proves: VB-009, VB-010, VB-011, VB-012, VB-013, VB-014, VB-015, VB-016, VB-017, VB-018
#[test]
fn each_flag_allows_only_its_own_kind_of_access() {
    let mut world = World::new();
    let good = world.register(0, 64, ALL);
    for bits in 0..1 << FLAGS.len() {
        let chosen = FLAGS.iter().enumerate().filter(|(n, _)| bits >> n & 1 != 0);
        let access: u32 = chosen.map(|(_, flag)| flag).sum();
        let writes = access & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) != 0;
        if writes && access & ACCESS_LOCAL_WRITE == 0 {
            let at = world.at(TRIED) as *mut _;
            // SAFETY: memory of the world.
            assert!(unsafe { mr::reg_mr(world.pd, at, 64, access as i32) }.is_null());
            continue;
        }
        let region = world.register(TRIED, 64, access);
        for how in USES {
            let what = format!("{how:?} with {access:#x}");
            world.set(0, 7);
            world.set(TRIED, 1);
            let pair = world.pair(QPT_RC);
            let allowed = access & how.needs() == how.needs();
            let expected = if allowed { WC_SUCCESS } else { how.refused() };
            assert_eq!(status(&world, pair, region, good, how), expected, "{what}");
            let changed = world.word(TRIED) != 1;
            assert_eq!(changed, allowed && how.changes(), "{what}");
            destroy(pair);
        }
        // SAFETY: the region is live.
        assert_eq!(unsafe { mr::dereg_mr(region) }, 0);
    }
}

/// Proves: VB-I05
#[test]
fn keys_work_only_on_queue_pairs_of_their_domain() {
    let mut world = World::new();
    let good = world.register(0, 64, ALL);
    // SAFETY: the context is live; memory of the world.
    let (other, foreign) = unsafe {
        let other = pd::alloc_pd(world.context);
        let at = world.at(TRIED) as *mut _;
        (other, mr::reg_mr(other, at, 64, ALL as i32))
    };
    assert!(!foreign.is_null());
    world.set(TRIED, 1);
    for how in USES.into_iter().filter(|how| *how != Use::Bind) {
        let pair = world.pair(QPT_RC);
        let refused = match how {
            Use::Gather => {
                let mut tried = sge(world.at(TRIED), 8, local_key(foreign));
                world.run(pair[0], &mut request(1, WR_SEND, &mut tried))
            }
            how => status(&world, pair, foreign, good, how),
        };
        assert_eq!(refused, how.refused(), "{how:?}");
        assert_eq!(world.word(TRIED), 1, "{how:?}");
        destroy(pair);
    }
    // SAFETY: live objects, destroyed before what they depend on.
    unsafe { assert_eq!((mr::dereg_mr(foreign), pd::dealloc_pd(other)), (0, 0)) };
}

/// Proves: VB-I06
#[test]
fn the_targets_queue_pair_must_also_allow_the_access() {
    let mut world = World::new();
    let (good, region) = (world.register(0, 64, ALL), world.register(TRIED, 64, ALL));
    let remote = [
        ACCESS_REMOTE_WRITE,
        ACCESS_REMOTE_READ,
        ACCESS_REMOTE_ATOMIC,
    ];
    for bits in 0..1 << remote.len() {
        let chosen = remote
            .iter()
            .enumerate()
            .filter(|(n, _)| bits >> n & 1 != 0);
        let flags: u32 = chosen.map(|(_, flag)| flag).sum();
        for how in USES.into_iter().filter(|how| matches!(how, Use::Remote(_))) {
            world.set(0, 7);
            world.set(TRIED, 1);
            let pair = world.pair(QPT_RC);
            let mut attr = QpAttr {
                qp_access_flags: flags,
                ..QpAttr::default()
            };
            // SAFETY: the queue pair is live.
            let code = unsafe { qp::modify_qp(pair[1], &raw mut attr, QP_ACCESS_FLAGS as i32) };
            assert_eq!(code, 0);
            let allowed = flags & how.needs() != 0;
            let expected = if allowed { WC_SUCCESS } else { how.refused() };
            let ended = status(&world, pair, region, good, how);
            assert_eq!(ended, expected, "{how:?} with {flags:#x}");
            if !allowed {
                assert_eq!(world.word(TRIED), 1, "{how:?} with {flags:#x}");
            }
            destroy(pair);
        }
    }
}
