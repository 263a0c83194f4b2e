//! Lists of requests, and what each kind of queue pair can be asked for.

use crate::world::*;
use ibverbs::post;
use ibverbs::sys::SendWr;
use ibverbs::sys::consts::*;
use std::ptr::null_mut;

/// Proves: VB-I07
#[test]
fn each_service_has_its_operations() {
    let world = World::new();
    let region = world.register(0, 64, ALL);
    // SAFETY: a live region.
    let (lkey, rkey) = unsafe { ((*region).lkey, (*region).rkey) };
    let reads = [WR_RDMA_READ, WR_ATOMIC_CMP_AND_SWP, WR_ATOMIC_FETCH_AND_ADD];
    let writes = [WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM];
    let windows = [WR_LOCAL_INV, WR_SEND_WITH_INV];
    for (qp_type, refused) in [
        (QPT_UC, reads.to_vec()),
        (QPT_UD, [&reads[..], &writes, &windows].concat()),
    ] {
        let [a, _] = world.pair(qp_type);
        for opcode in refused {
            let mut piece = sge(world.at(0), 8, lkey);
            let mut wr = remote(1, opcode, &mut piece, world.at(8), rkey);
            assert_eq!(send(a, &mut wr), (libc::EINVAL, true), "{qp_type} {opcode}");
        }
    }
    let [a, _] = world.pair(QPT_RC);
    for opcode in [WR_RDMA_WRITE, WR_RDMA_READ, WR_ATOMIC_FETCH_AND_ADD] {
        let mut piece = sge(world.at(0), 8, lkey);
        let mut wr = remote(1, opcode, &mut piece, world.at(8), rkey);
        assert_eq!(world.run(a, &mut wr), WC_SUCCESS, "{opcode}");
    }
    let mut piece = sge(world.at(0), 8, lkey);
    let mut wr = request(1, 99, &mut piece);
    assert_eq!(send(a, &mut wr), (libc::EINVAL, true), "no such operation");
}

/// Proves: VB-I08, VB-I09
#[test]
fn posting_stops_at_the_first_bad_request() {
    let mut world = World::new();
    let region = world.register(0, 256, ALL);
    // SAFETY: a live region.
    let (lkey, rkey) = unsafe { ((*region).lkey, (*region).rkey) };
    let [a, _] = world.pair(QPT_RC);
    let mut piece = sge(world.at(0), 8, lkey);
    let mut list: Vec<SendWr> = (1..=3)
        .map(|id| {
            remote(
                id,
                WR_RDMA_WRITE,
                &mut piece,
                world.at(8 * id as usize),
                rkey,
            )
        })
        .collect();
    list[1].num_sge = 100;
    world.set(0, 7);
    let (mut third, mut bad) = (list[2], null_mut());
    (list[0].next, list[1].next) = (&raw mut list[1], &raw mut third);
    // SAFETY: a live queue pair, and a list that stays until the call returns.
    let code = unsafe { post::post_send(a, &raw mut list[0], &raw mut bad) };
    assert_eq!((code, bad), (libc::EINVAL, &raw mut list[1]));
    assert_eq!(world.statuses(1), [(1, WC_SUCCESS)]);
    assert_eq!((world.word(8), world.word(16), world.word(24)), (7, 0, 0));
    // Inline data needs no key, and may be changed at once.
    let mut inline = remote(4, WR_RDMA_WRITE, &mut piece, world.at(32), rkey);
    inline.send_flags |= SEND_INLINE;
    let mut value = 8u64;
    piece = sge(&raw mut value as u64, 8, 0);
    inline.sg_list = &raw mut piece;
    assert_eq!(send(a, &mut inline), (0, false));
    value = 9;
    assert_eq!(world.statuses(1), [(4, WC_SUCCESS)]);
    assert_eq!((world.word(32), value), (8, 9));
}
