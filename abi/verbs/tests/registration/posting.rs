//! Lists of requests, and the operations of each kind of queue pair.

use crate::world::*;
use ibverbs::queues::{creation, post, qp, srq, wq};
use ibverbs::sys::consts::*;
use ibverbs::sys::{DataBuf, QpInitAttrEx, RecvWr, SendWr, Sge, SrqInitAttr, WqInitAttr};
use std::ptr::null_mut;

/// Proves: VB-I07
#[test]
fn each_service_type_accepts_only_its_operations() {
    let world = World::new();
    let region = world.register(0, 64, ALL);
    // SAFETY: the region is live.
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
            let mut entry = sge(world.at(0), 8, lkey);
            let mut wr = remote(1, opcode, &mut entry, world.at(8), rkey);
            assert_eq!(send(a, &mut wr), (libc::EINVAL, true), "{qp_type} {opcode}");
        }
    }
    let [a, _] = world.pair(QPT_RC);
    for opcode in [WR_RDMA_WRITE, WR_RDMA_READ, WR_ATOMIC_FETCH_AND_ADD] {
        let mut entry = sge(world.at(0), 8, lkey);
        let mut wr = remote(1, opcode, &mut entry, world.at(8), rkey);
        assert_eq!(world.run(a, &mut wr), WC_SUCCESS, "{opcode}");
    }
    let mut entry = sge(world.at(0), 8, lkey);
    let mut wr = request(1, 99, &mut entry);
    assert_eq!(send(a, &mut wr), (libc::EINVAL, true), "no such operation");
}

/// Proves: VB-I08, VB-I09
#[test]
fn posting_stops_at_the_first_bad_request() {
    let mut world = World::new();
    let region = world.register(0, 256, ALL);
    // SAFETY: the region is live.
    let (lkey, rkey) = unsafe { ((*region).lkey, (*region).rkey) };
    let [a, _] = world.pair(QPT_RC);
    let mut entry = sge(world.at(0), 8, lkey);
    let mut list: Vec<SendWr> = (1..=3)
        .map(|id| {
            remote(
                id,
                WR_RDMA_WRITE,
                &mut entry,
                world.at(8 * id as usize),
                rkey,
            )
        })
        .collect();
    list[1].num_sge = 100;
    world.set(0, 7);
    let (mut third, mut bad) = (list[2], null_mut());
    (list[0].next, list[1].next) = (&raw mut list[1], &raw mut third);
    // SAFETY: the queue pair is live; the list stays until the call returns.
    let code = unsafe { post::post_send(a, &raw mut list[0], &raw mut bad) };
    assert_eq!((code, bad), (libc::EINVAL, &raw mut list[1]));
    assert_eq!(world.statuses(1), [(1, WC_SUCCESS)]);
    assert_eq!((world.word(8), world.word(16), world.word(24)), (7, 0, 0));
    // Inline data needs no key, and its buffer may be reused at once.
    let mut inline = remote(4, WR_RDMA_WRITE, &mut entry, world.at(32), rkey);
    inline.send_flags |= SEND_INLINE;
    let mut value = 8u64;
    entry = sge(&raw mut value as u64, 8, 0);
    inline.sg_list = &raw mut entry;
    assert_eq!(send(a, &mut inline), (0, false));
    value = 9;
    assert_eq!(world.statuses(1), [(4, WC_SUCCESS)]);
    assert_eq!((world.word(32), value), (8, 9));
}

/// libiscsi has its lists in packed structures.
#[test]
fn a_scatter_gather_list_may_be_unaligned() {
    #[repr(C, packed)]
    struct Packed {
        before: [u8; 3],
        entry: Sge,
    }
    let mut world = World::new();
    let [a, _] = world.pair(QPT_RC);
    let region = world.register(0, LEN, ALL);
    // SAFETY: the region is live.
    let (lkey, rkey) = unsafe { ((*region).lkey, (*region).rkey) };
    world.set(0, 7);
    for flags in [0, SEND_INLINE] {
        let mut packed = Packed {
            before: [0; 3],
            entry: sge(world.at(0), 8, lkey),
        };
        let mut unused = sge(0, 0, 0);
        let mut request = remote(1, WR_RDMA_WRITE, &mut unused, world.at(8), rkey);
        request.sg_list = &raw mut packed.entry;
        assert!(!request.sg_list.is_aligned() && packed.before == [0; 3]);
        request.send_flags |= flags;
        assert_eq!(send(a, &mut request), (0, false));
        assert_eq!(world.statuses(1), [(1, WC_SUCCESS)]);
        assert_eq!(world.word(8), 7);
        world.set(8, 0);
    }
}

/// A list whose only entry ends where readable memory ends.
struct LastElement {
    pages: *mut libc::c_void,
}

const PAGE: usize = 4096;

impl LastElement {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new pages, of which the second is made inaccessible.
        unsafe {
            let pages = libc::mmap(null_mut(), 2 * PAGE, writable, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let second = pages.wrapping_byte_add(PAGE);
            assert_eq!(libc::mprotect(second, PAGE, libc::PROT_NONE), 0);
            Self { pages }
        }
    }

    fn list<T>(&self) -> *mut T {
        self.pages.wrapping_byte_add(PAGE - size_of::<T>()).cast()
    }
}

impl Drop for LastElement {
    fn drop(&mut self) {
        // SAFETY: the pages from `new`, which are no longer used.
        unsafe { libc::munmap(self.pages, 2 * PAGE) };
    }
}

/// A list of an impossible length is never read.
#[test]
fn an_overlong_scatter_gather_list_is_refused_unread() {
    let world = World::new();
    let last = LastElement::new();
    let [a, _] = world.pair(QPT_RC);
    // SAFETY: all zeros is valid; objects are live.
    let (shared, work_queue) = unsafe {
        let mut wanted: SrqInitAttr = std::mem::zeroed();
        (wanted.attr.max_wr, wanted.attr.max_sge) = (4, 1);
        let mut of_wq: WqInitAttr = std::mem::zeroed();
        (of_wq.wq_type, of_wq.max_wr, of_wq.max_sge) = (WQT_RQ, 4, 1);
        (of_wq.pd, of_wq.cq) = (world.pd, world.cq);
        (
            srq::create_srq(world.pd, &raw mut wanted),
            wq::create_wq(world.context, &raw mut of_wq),
        )
    };
    assert!(!shared.is_null() && !work_queue.is_null());
    for count in [3, 100, i32::MAX, i32::MIN, -1] {
        let mut wr = RecvWr {
            wr_id: 1,
            next: null_mut(),
            sg_list: last.list::<Sge>(),
            num_sge: count,
        };
        let mut element = sge(0, 0, 0);
        let mut plain = request(1, WR_SEND, &mut element);
        (plain.sg_list, plain.num_sge) = (last.list(), count);
        let mut inline = plain;
        inline.send_flags |= SEND_INLINE;
        // SAFETY: the queues are live; a list shorter than its stated length must not be read.
        unsafe {
            let post_wq = (*work_queue).post_recv.expect("a function");
            let wr = &raw mut wr;
            assert_eq!(post::post_recv(a, wr, null_mut()), libc::EINVAL, "{count}");
            assert_eq!(post::post_srq_recv(shared, wr, null_mut()), libc::EINVAL);
            assert_eq!(post_wq(work_queue, wr, null_mut()), libc::EINVAL);
        }
        for wr in [&mut plain, &mut inline] {
            assert_eq!(send(a, wr), (libc::EINVAL, true), "{count}");
        }
    }
}

/// The inline limit, in bytes, of a queue pair with two list elements.
const INLINE: u32 = 32;

/// A connected queue pair with the extended interface.
fn extended(world: &World) -> *mut ibverbs::sys::QpEx {
    // SAFETY: all zeros is valid; objects are live.
    unsafe {
        let mut attr: QpInitAttrEx = std::mem::zeroed();
        (attr.send_cq, attr.recv_cq, attr.pd) = (world.cq, world.cq, world.pd);
        attr.qp_type = QPT_RC;
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, 4);
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (2, 2);
        // Less than the room of two list elements.
        attr.cap.max_inline_data = 8;
        attr.comp_mask = QP_INIT_ATTR_PD | QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = QP_EX_WITH_SEND | QP_EX_WITH_RDMA_WRITE;
        let pair = creation::create_qp_ex(world.context, &raw mut attr);
        assert!(!pair.is_null());
        assert_eq!(attr.cap.max_inline_data, INLINE);
        let other = world.qp(QPT_RC);
        world.connect(pair, QPT_RC, (*other).qp_num);
        world.connect(other, QPT_RC, (*pair).qp_num);
        qp::qp_to_qp_ex(pair)
    }
}

#[test]
fn an_overlong_list_in_the_extended_interface_is_refused_unread() {
    let world = World::new();
    let last = LastElement::new();
    let pair = extended(&world);
    // SAFETY: the queue pair is live; a list shorter than its stated length must not be read.
    unsafe {
        for count in [3, 100, usize::MAX] {
            (*pair).wr_start.expect("a function")(pair);
            (*pair).wr_send.expect("a function")(pair);
            (*pair).wr_set_sge_list.expect("a function")(pair, count, last.list::<Sge>());
            let code = (*pair).wr_complete.expect("a function")(pair);
            assert_eq!(code, libc::EINVAL, "{count}");
        }
        for count in [INLINE as usize + 1, usize::MAX] {
            (*pair).wr_start.expect("a function")(pair);
            (*pair).wr_send.expect("a function")(pair);
            (*pair).wr_set_inline_data_list.expect("a function")(
                pair,
                count,
                last.list::<DataBuf>(),
            );
            let code = (*pair).wr_complete.expect("a function")(pair);
            assert_eq!(code, libc::EINVAL, "{count}");
        }
    }
}

/// The extended interface posts either all requests of a list or none.
#[test]
fn in_the_extended_interface_a_bad_request_stops_the_whole_list() {
    let mut world = World::new();
    let region = world.register(0, 256, ALL);
    // SAFETY: the region is live.
    let (lkey, rkey) = unsafe { ((*region).lkey, (*region).rkey) };
    world.set(0, 7);
    let pair = extended(&world);
    // SAFETY: a live queue pair and its functions.
    unsafe {
        let write = |id, to| {
            ((*pair).wr_id, (*pair).wr_flags) = (id, SEND_SIGNALED);
            (*pair).wr_rdma_write.expect("a function")(pair, rkey, world.at(to));
            (*pair).wr_set_sge.expect("a function")(pair, lkey, world.at(0), 8);
        };
        let complete = || (*pair).wr_complete.expect("a function")(pair);
        let start = || (*pair).wr_start.expect("a function")(pair);
        // The second exceeds the inline limit.
        start();
        write(1, 8);
        write(2, 16);
        let mut long = [1u8; INLINE as usize + 1];
        (*pair).wr_set_inline_data.expect("a function")(pair, long.as_mut_ptr().cast(), long.len());
        assert_eq!(complete(), libc::EINVAL);
        // One request more than fits.
        start();
        (1..=5).for_each(|id| write(id, 8));
        assert_eq!(complete(), libc::ENOMEM);
        // As many requests as fit.
        start();
        (1..=4).for_each(|id| write(10 + id, 16 + 8 * id as usize));
        assert_eq!(complete(), 0);
    }
    let all = [11, 12, 13, 14].map(|id| (id, WC_SUCCESS));
    assert_eq!(world.statuses(4), all);
    assert_eq!((world.word(8), world.word(16)), (0, 0));
    assert_eq!((world.word(24), world.word(48)), (7, 7));
}
