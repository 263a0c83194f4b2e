//! DTOs, binds and shared receive queues.

use crate::world::*;
use daplrkey::sys::*;
use std::mem::zeroed;
use std::ptr::null_mut;

/// A connected pair, with memory for all transfers on both sides.
struct Pair {
    one: World,
    two: World,
    active: End,
    passive: End,
    mine: Memory,
    theirs: Memory,
}

fn pair_with(attr: &EpAttr) -> Pair {
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end_with(attr), two.end_with(attr));
    one.connect_to(&active, &two, &passive);
    let [mine, theirs] = [&one, &two].map(|it| it.memory(4096, MEM_PRIV_ALL_FLAG));
    Pair {
        one,
        two,
        active,
        passive,
        mine,
        theirs,
    }
}

fn pair() -> Pair {
    pair_with(&attr())
}

fn query(rmr: RmrHandle) -> RmrParam {
    // SAFETY: all zeros is a valid value.
    let mut param: RmrParam = unsafe { zeroed() };
    ok!(rmr_query_func(rmr, RMR_FIELD_ALL, &raw mut param));
    param
}

#[test]
fn lengths_are_checked_before_anything_is_posted() {
    let pair = pair();
    let (local, remote) = (pair.mine.local(0, 16), pair.theirs.remote(0, 8));
    assert_eq!(kind(pair.active.write(local, &remote, 1, 0)), LENGTH_ERROR);
    let read = |len: usize, remote: &RmrTriplet| {
        let mut to = pair.mine.local(0, len);
        kind(dat!(ep_post_rdma_read_func(
            pair.active.ep,
            1,
            &raw mut to,
            cookie(2),
            remote,
            0
        )))
    };
    assert_eq!(read(4, &remote), LENGTH_ERROR);
    // A longer local buffer is filled only as far as the remote segment reaches.
    assert_eq!(read(16, &remote), SUCCESS);
    assert_eq!(completion(pair.active.request, 2), (DTO_SUCCESS, 8));
    let mut many = [pair.mine.local(0, 1); 3];
    for count in [3, 33, 1 << 24, Count::MAX, -1] {
        let iov = many.as_mut_ptr();
        let code = dat!(ep_post_send_func(pair.active.ep, count, iov, cookie(3), 0));
        assert_eq!(kind(code), INVALID_PARAMETER, "{count}");
    }
    assert!(empty(pair.active.request));
}

#[test]
fn suppressed_requests_complete_without_events() {
    let pair = pair();
    let remote = pair.theirs.remote(0, 8);
    for number in 0..10_000 {
        let post = || {
            let local = pair.mine.local(0, 8);
            let flags = COMPLETION_SUPPRESS_FLAG;
            pair.active.write(local, &remote, number, flags)
        };
        // A full queue accepts requests again once the peer has answered.
        let mut code = post();
        while kind(code) == INSUFFICIENT_RESOURCES {
            std::thread::yield_now();
            code = post();
        }
        assert_eq!(code, SUCCESS);
    }
    while pair.active.write(pair.mine.local(0, 8), &remote, 77, 0) != SUCCESS {}
    assert_eq!(completion(pair.active.request, 77), (DTO_SUCCESS, 8));
    assert!(empty(pair.active.request));
}

#[test]
fn an_ep_without_completion_evds_transfers_and_breaks_normally() {
    let (one, two) = (World::open(), World::open());
    let mut mute = one.end();
    let connect = mute.connect;
    ok!(ep_free_func(mute.ep));
    let none = null_mut();
    ok!(ep_create_func(
        one.ia,
        one.pz,
        none,
        none,
        connect,
        &attr(),
        &raw mut mute.ep
    ));
    let passive = two.end();
    one.connect_to(&mute, &two, &passive);
    let [mine, theirs] = [&one, &two].map(|it| it.memory(64, MEM_PRIV_ALL_FLAG));
    for number in 0..1000 {
        let write = || mute.write(mine.local(0, 8), &theirs.remote(8, 8), number, 0);
        while write() != SUCCESS {}
    }
    let refused = RmrTriplet {
        rmr_context: theirs.remote ^ 1,
        ..theirs.remote(0, 8)
    };
    while mute.write(mine.local(0, 8), &refused, 0, 0) != SUCCESS {}
    expect(mute.connect, CONNECTION_EVENT_BROKEN);
    expect(passive.connect, CONNECTION_EVENT_BROKEN);
}

/// Proves: DA-018, DA-I07
#[test]
fn an_rmr_query_returns_the_last_bind_even_if_suppressed() {
    let pair = pair();
    let mut rmr = null_mut();
    ok!(rmr_create_func(pair.one.pz, &raw mut rmr));
    assert_eq!(query(rmr).lmr_triplet.segment_length, 0);
    let mut contexts = Vec::new();
    for flags in [COMPLETION_SUPPRESS_FLAG, 0, COMPLETION_SUPPRESS_FLAG] {
        let part = pair.mine.local(8 * contexts.len() + 8, 8);
        let mut context = 0;
        ok!(rmr_bind_func(
            rmr,
            pair.mine.lmr,
            &raw const part,
            MEM_PRIV_REMOTE_WRITE_FLAG,
            VA_TYPE_VA,
            pair.active.ep,
            cookie(5),
            flags,
            &raw mut context
        ));
        assert!(!contexts.contains(&context));
        contexts.push(context);
        let param = query(rmr);
        assert_eq!((param.lmr_triplet, param.rmr_context), (part, context));
        assert_eq!(param.mem_priv, MEM_PRIV_REMOTE_WRITE_FLAG);
    }
    let event = expect(pair.active.request, RMR_BIND_COMPLETION_EVENT);
    // SAFETY: the event number says which member is valid.
    let data = unsafe { event.event_data.rmr_completion_event_data };
    assert_eq!((data.rmr_handle, data.status), (rmr, DTO_SUCCESS));
    assert!(empty(pair.active.request));
    // The other side can write only through the last context.
    for (context, status) in [
        (contexts[2], DTO_SUCCESS),
        (contexts[1], DTO_ERR_REMOTE_ACCESS),
    ] {
        let to = RmrTriplet {
            rmr_context: context,
            ..pair.mine.remote(24, 8)
        };
        assert_eq!(
            pair.passive.write(pair.theirs.local(0, 8), &to, 9, 0),
            SUCCESS
        );
        assert_eq!(completion(pair.passive.request, 9).0, status);
    }
    ok!(rmr_free_func(rmr));
}

/// Proves: DA-054
#[test]
fn a_full_request_queue_refuses_a_bind() {
    let pair = pair();
    let mut rmr = null_mut();
    ok!(rmr_create_func(pair.one.pz, &raw mut rmr));
    // While the other side has no receive, sends stay in the queue.
    let mut posted = 0;
    while pair.active.send(pair.mine.local(0, 8), posted, 0) == SUCCESS {
        posted += 1;
    }
    assert_eq!(posted, 16);
    let part = pair.mine.local(0, 8);
    let mut context = 0;
    let code = dat!(rmr_bind_func(
        rmr,
        pair.mine.lmr,
        &raw const part,
        MEM_PRIV_ALL_FLAG,
        VA_TYPE_VA,
        pair.active.ep,
        cookie(0),
        0,
        &raw mut context
    ));
    assert_eq!(kind(code), INSUFFICIENT_RESOURCES);
    ok!(lmr_free_func(pair.mine.lmr));
}

#[test]
fn an_srq_serves_several_eps_and_reports_its_low_watermark() {
    let (one, two) = (World::open(), World::open());
    let mut srq_attr = SrqAttr {
        max_recv_dtos: 8,
        max_recv_iov: 1,
        low_watermark: 3,
    };
    let mut srq = null_mut();
    ok!(srq_create_func(
        two.ia,
        two.pz,
        &raw mut srq_attr,
        &raw mut srq
    ));
    let parts = two.end();
    let mut ends = Vec::new();
    for _ in 0..2 {
        let passive = end_with_srq(&two, &parts, srq);
        let active = one.end();
        one.connect_to(&active, &two, &passive);
        ends.push((active, passive));
    }
    let [mine, theirs] = [&one, &two].map(|it| it.memory(64, MEM_PRIV_ALL_FLAG));
    let post = |number| {
        let mut to = theirs.local(0, 8);
        kind(dat!(srq_post_recv_func(
            srq,
            1,
            &raw mut to,
            cookie(number)
        )))
    };
    for number in 0..8 {
        assert_eq!(post(number), SUCCESS);
    }
    assert_eq!(post(8), INSUFFICIENT_RESOURCES);
    assert_eq!(kind(dat!(srq_free_func(srq))), INVALID_STATE);
    for number in 0..6 {
        let (active, _) = &ends[number as usize % 2];
        assert_eq!(active.send(mine.local(0, 8), number, 0), SUCCESS);
        let event = expect(parts.recv, DTO_COMPLETION_EVENT);
        // SAFETY: the event number says which member is valid.
        let data = unsafe { event.event_data.dto_completion_event_data };
        assert_eq!(data.ep_handle, ends[number as usize % 2].1.ep);
        // SAFETY: plain bits.
        assert_eq!(unsafe { data.user_cookie.as_64 }, number);
    }
    let about = |event: &Event| {
        // SAFETY: the EVD has only asynchronous errors.
        let data = unsafe { event.event_data.asynch_error_event_data };
        (data.dat_handle, data.reason)
    };
    let low = wait(two.async_evd);
    assert_eq!(about(&low), (srq, SRQ_LOW_WATERMARK_EVENT));
    // Each EP that leaves service causes an event (dtestsrq counts them).
    for (active, passive) in &ends {
        ok!(ep_disconnect_func(active.ep, CLOSE_ABRUPT_FLAG));
        let event = expect(two.async_evd, ASYNC_ERROR_EP_BROKEN);
        assert_eq!(about(&event), (passive.ep, EP_TRANSFER_TO_ERROR));
        expect(parts.connect, CONNECTION_EVENT_DISCONNECTED);
        ok!(ep_free_func(passive.ep));
    }
    ok!(srq_free_func(srq));
}

/// An EP that takes its receives from an SRQ, with the EVDs of another end.
fn end_with_srq(world: &World, parts: &End, srq: SrqHandle) -> End {
    let mut ep = null_mut();
    ok!(ep_create_with_srq_func(
        world.ia,
        world.pz,
        parts.recv,
        parts.request,
        parts.connect,
        srq,
        &attr(),
        &raw mut ep
    ));
    End { ep, ..*parts }
}

#[test]
fn receives_of_an_srq_fit_even_if_their_events_are_not_taken() {
    const MANY: u64 = 1_000;
    // First with an SRQ that grows, then with one that the program refills.
    for grown in [true, false] {
        let (one, two) = (World::open(), World::open());
        let mut srq_attr = SrqAttr {
            max_recv_dtos: 8,
            max_recv_iov: 1,
            low_watermark: 0,
        };
        let mut srq = null_mut();
        let room = &raw mut srq;
        ok!(srq_create_func(two.ia, two.pz, &raw mut srq_attr, room));
        let parts = two.end();
        let passive = end_with_srq(&two, &parts, srq);
        let active = one.end();
        one.connect_to(&active, &two, &passive);
        let [mine, theirs] = [&one, &two].map(|it| it.memory(64, MEM_PRIV_ALL_FLAG));
        let post = |number| {
            let mut to = theirs.local(0, 8);
            ok!(srq_post_recv_func(srq, 1, &raw mut to, cookie(number)));
        };
        let send = |number| {
            assert_eq!(active.send(mine.local(0, 8), number, 0), SUCCESS);
            assert_eq!(completion(active.request, number), (DTO_SUCCESS, 8));
        };
        if grown {
            ok!(srq_resize_func(srq, MANY as Count));
            (0..MANY).for_each(post);
            (0..MANY).for_each(send);
        } else {
            for number in 0..MANY {
                post(number);
                send(number);
            }
        }
        for number in 0..MANY {
            assert_eq!(completion(parts.recv, number), (DTO_SUCCESS, 8));
        }
        ok!(ep_free_func(passive.ep));
        ok!(srq_free_func(srq));
    }
}

#[test]
fn an_rmr_query_returns_the_last_of_binds_through_several_eps() {
    let (one, two) = (World::open(), World::open());
    let ends = [1, 2].map(|_| {
        let (active, passive) = (one.end(), two.end());
        one.connect_to(&active, &two, &passive);
        (active, passive)
    });
    let mut memory = one.memory(64, MEM_PRIV_ALL_FLAG);
    let whole = memory.local(0, 64);
    let mut rmr = null_mut();
    ok!(rmr_create_func(one.pz, &raw mut rmr));
    let handle = memory.lmr;
    let bind = |end: &End, number: u32| {
        let part = LmrTriplet {
            segment_length: 8 * number,
            ..whole
        };
        let mut context = 0;
        ok!(rmr_bind_func(
            rmr,
            handle,
            &raw const part,
            MEM_PRIV_ALL_FLAG,
            VA_TYPE_VA,
            end.ep,
            cookie(number.into()),
            0,
            &raw mut context
        ));
        context
    };
    let completed = |end: &End| expect(end.request, RMR_BIND_COMPLETION_EVENT);
    let theirs = two.memory(8, MEM_PRIV_ALL_FLAG);
    for round in 1..=2 {
        memory.bytes[0] = round;
        bind(&ends[0].0, 3);
        let written = ends[0]
            .0
            .write(memory.local(0, 1), &theirs.remote(0, 1), 9, 0);
        assert_eq!(written, SUCCESS);
        // The write follows the bind, which is therefore done.
        // SAFETY: the memory lives, and only the device writes it.
        while unsafe { theirs.bytes.as_ptr().read_volatile() } != round {
            std::thread::yield_now();
        }
        let last = bind(&ends[1].0, 4);
        completed(&ends[1].0);
        // The query takes the completion of the earlier bind, if nothing took it before.
        if round == 2 {
            completed(&ends[0].0);
        }
        let found = query(rmr);
        assert_eq!(found.rmr_context, last);
        assert_eq!(found.lmr_triplet.segment_length, 32);
        while !empty(ends[0].0.request) {}
    }
}

#[test]
fn evds_and_pzs_in_use_cannot_be_freed() {
    let pair = pair();
    let free_pz = || kind(dat!(pz_free_func(pair.two.pz)));
    assert_eq!(free_pz(), INVALID_STATE);
    for evd in [
        pair.passive.recv,
        pair.passive.request,
        pair.passive.connect,
    ] {
        assert_eq!(kind(dat!(evd_free_func(evd))), INVALID_STATE);
    }
    assert_eq!(kind(dat!(evd_free_func(pair.two.async_evd))), INVALID_STATE);
    ok!(ep_free_func(pair.passive.ep));
    ok!(lmr_free_func(pair.theirs.lmr));
    for evd in [
        pair.passive.recv,
        pair.passive.request,
        pair.passive.connect,
    ] {
        ok!(evd_free_func(evd));
    }
    assert_eq!(free_pz(), SUCCESS);
}
