//! Connections, from the request to the end.

use crate::world::*;
use daplrkey::handles::object::find;
use daplrkey::objects::ep::Ep;
use daplrkey::objects::service::Psp;
use daplrkey::sys::*;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

fn private_data(event: &Event) -> Vec<u8> {
    // SAFETY: the event of a connection, whose private data the provider keeps.
    unsafe {
        let data = event.event_data.connect_event_data;
        match data.private_data.is_null() {
            true => Vec::new(),
            false => std::slice::from_raw_parts(
                data.private_data.cast::<u8>(),
                data.private_data_size as usize,
            )
            .to_vec(),
        }
    }
}

fn query(end: &End) -> EpParam {
    // SAFETY: all zeros is a valid value.
    let mut param: EpParam = unsafe { zeroed() };
    ok!(ep_query_func(end.ep, EP_FIELD_ALL, &raw mut param));
    param
}

fn pair() -> (World, End, World, End) {
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end(), two.end());
    one.connect_to(&active, &two, &passive);
    (one, active, two, passive)
}

#[test]
fn private_data_reaches_both_sides() {
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end(), two.end());
    let (_, evd, conn_qual) = two.psp();
    one.connect(&active, conn_qual, b"question");
    assert_eq!(one.state(&active), EP_STATE_ACTIVE_CONNECTION_PENDING);
    let cr = two.request(evd);
    // SAFETY: all zeros is a valid value.
    let mut param: CrParam = unsafe { zeroed() };
    ok!(cr_query_func(cr, CR_FIELD_ALL, &raw mut param));
    // SAFETY: the provider keeps the data as long as the CR, and the program may write to it.
    unsafe {
        let data = std::slice::from_raw_parts_mut(param.private_data.cast::<u8>(), 8);
        assert_eq!((&*data, param.private_data_size), (&b"question"[..], 8));
        data[0] += 1;
    }
    let answer = b"answer".as_ptr().cast_mut().cast();
    ok!(cr_accept_func(cr, passive.ep, 6, answer));
    let established = expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
    assert_eq!(private_data(&established), b"answer");
    expect(passive.connect, CONNECTION_EVENT_ESTABLISHED);
    assert_eq!(
        kind(dat!(cr_query_func(cr, 0, &raw mut param))),
        INVALID_HANDLE
    );
    for (world, end) in [(&one, &active), (&two, &passive)] {
        assert_eq!(world.state(end), EP_STATE_CONNECTED);
        assert!(!query(end).remote_ia_address_ptr.is_null());
    }
    assert_eq!(query(&active).remote_port_qual, conn_qual);
    assert_eq!(query(&passive).local_port_qual, conn_qual);
}

#[test]
fn a_rejection_carries_private_data_and_an_ep_can_try_again() {
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end(), two.end());
    let (_, evd, conn_qual) = two.psp();
    one.connect(&active, conn_qual, &[]);
    let reason: Vec<u8> = (0..=255).collect();
    let cr = two.request(evd);
    ok!(cr_reject_func(cr, 256, reason.as_ptr().cast_mut().cast()));
    let rejected = expect(active.connect, CONNECTION_EVENT_PEER_REJECTED);
    assert_eq!(private_data(&rejected), reason);
    assert_eq!(one.state(&active), EP_STATE_DISCONNECTED);
    assert_eq!(one.try_connect(active.ep, conn_qual, &[]), INVALID_STATE);
    ok!(ep_reset_func(active.ep));
    one.connect_to(&active, &two, &passive);
}

#[test]
fn a_request_without_a_listener_is_rejected_by_the_provider() {
    let one = World::open();
    let active = one.end();
    let (psp, _, conn_qual) = one.psp();
    ok!(psp_free_func(psp));
    // No other program gets the qualifier while the provider looks for a listener.
    let device = rkey_device::Device::open(rkey_device::Config::default()).unwrap();
    let address = ([127, 0, 0, 1], conn_qual as u16).into();
    let _reserved = device.reserve(address).unwrap();
    one.connect(&active, conn_qual, &[]);
    expect(active.connect, CONNECTION_EVENT_NON_PEER_REJECTED);
}

#[test]
fn an_unanswered_request_times_out_and_accepting_its_cr_fails() {
    // Long enough for the request to arrive, even on a busy machine.
    const TIMEOUT: Timeout = 3_000_000;
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end(), two.end());
    let (_, evd, conn_qual) = two.psp();
    ok!(ep_connect_func(
        active.ep,
        one.address(),
        conn_qual,
        TIMEOUT,
        0,
        null_mut(),
        QOS_BEST_EFFORT,
        CONNECT_DEFAULT_FLAG
    ));
    let cr = two.request(evd);
    expect(active.connect, CONNECTION_EVENT_TIMED_OUT);
    ok!(cr_accept_func(cr, passive.ep, 0, null_mut()));
    expect(passive.connect, CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
    assert_eq!(two.state(&passive), EP_STATE_DISCONNECTED);
}

#[test]
fn both_sides_see_a_disconnect_after_their_receives_are_flushed() {
    for flags in [CLOSE_ABRUPT_FLAG, CLOSE_GRACEFUL_FLAG] {
        let (one, active, two, passive) = pair();
        let [mine, theirs] = [&one, &two].map(|it| it.memory(64, MEM_PRIV_ALL_FLAG));
        assert_eq!(active.recv(mine.local(0, 8), 1, 0), SUCCESS);
        assert_eq!(passive.recv(theirs.local(0, 8), 2, 0), SUCCESS);
        ok!(ep_disconnect_func(active.ep, flags));
        for (end, number) in [(&active, 1), (&passive, 2)] {
            expect(end.connect, CONNECTION_EVENT_DISCONNECTED);
            let mut event = blank();
            ok!(evd_dequeue_func(end.recv, &raw mut event));
            // SAFETY: the receives' EVD has only completions.
            let data = unsafe { event.event_data.dto_completion_event_data };
            assert_eq!(data.status, DTO_ERR_FLUSHED, "{number}");
        }
        assert_eq!(one.state(&active), EP_STATE_DISCONNECTED);
        assert_eq!(two.state(&passive), EP_STATE_DISCONNECTED);
        // Disconnecting again has no effect.
        ok!(ep_disconnect_func(active.ep, flags));
        assert!(empty(active.connect));
    }
}

#[test]
fn messages_sent_before_a_disconnect_arrive() {
    let (one, active, two, passive) = pair();
    let [mine, theirs] = [&one, &two].map(|it| it.memory(1 << 16, MEM_PRIV_ALL_FLAG));
    for number in 0..8 {
        assert_eq!(passive.recv(theirs.local(0, 4096), number, 0), SUCCESS);
    }
    for number in 0..8 {
        assert_eq!(active.send(mine.local(0, 4096), number, 0), SUCCESS);
    }
    ok!(ep_disconnect_func(active.ep, CLOSE_GRACEFUL_FLAG));
    expect(passive.connect, CONNECTION_EVENT_DISCONNECTED);
    for number in 0..8 {
        assert_eq!(completion(passive.recv, number), (DTO_SUCCESS, 4096));
        assert_eq!(completion(active.request, number), (DTO_SUCCESS, 4096));
    }
}

#[test]
fn eps_reconnect_after_a_reset_many_times() {
    let (one, active, two, passive) = pair();
    let [mine, theirs] = [&one, &two].map(|it| it.memory(64, MEM_PRIV_ALL_FLAG));
    for round in 0..100u64 {
        // A refused access ends half of the connections, a disconnect the others.
        let refused = RmrTriplet {
            rmr_context: theirs.remote ^ 0x55,
            ..theirs.remote(0, 8)
        };
        if round % 2 == 0 {
            assert_eq!(active.write(mine.local(0, 8), &refused, round, 0), SUCCESS);
            assert_eq!(completion(active.request, round).0, DTO_ERR_REMOTE_ACCESS);
            expect(active.connect, CONNECTION_EVENT_BROKEN);
            expect(passive.connect, CONNECTION_EVENT_BROKEN);
        } else {
            ok!(ep_disconnect_func(passive.ep, CLOSE_ABRUPT_FLAG));
            expect(active.connect, CONNECTION_EVENT_DISCONNECTED);
            expect(passive.connect, CONNECTION_EVENT_DISCONNECTED);
        }
        ok!(ep_reset_func(active.ep));
        ok!(ep_reset_func(passive.ep));
        one.connect_to(&active, &two, &passive);
        assert_eq!(
            active.write(mine.local(0, 8), &theirs.remote(0, 8), round, 0),
            SUCCESS
        );
        assert_eq!(
            completion(active.request, round),
            (DTO_SUCCESS, 8),
            "{round}"
        );
    }
}

#[test]
fn dup_connect_sends_the_same_request_as_another_ep() {
    let (one, two) = (World::open(), World::open());
    let (active, like, passive) = (one.end(), one.end(), two.end());
    let (_, evd, conn_qual) = two.psp();
    one.connect(&active, conn_qual, &[]);
    let cr = two.request(evd);
    ok!(cr_accept_func(cr, passive.ep, 0, null_mut()));
    expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
    let dup = |ep: EpHandle, like: EpHandle| {
        let qos = QOS_BEST_EFFORT;
        kind(dat!(ep_dup_connect_func(
            ep,
            like,
            PATIENCE,
            0,
            null_mut(),
            qos
        )))
    };
    assert_eq!(dup(like.ep, active.ep), SUCCESS);
    let cr = two.request(evd);
    ok!(cr_reject_func(cr, 0, null_mut()));
    expect(like.connect, CONNECTION_EVENT_PEER_REJECTED);
    assert_eq!(dup(active.ep, like.ep), INVALID_STATE);
}

#[test]
fn an_rsp_serves_one_request_for_its_ep() {
    let (one, two) = (World::open(), World::open());
    let (active, late, passive) = (one.end(), one.end(), two.end());
    let (psp, evd, conn_qual) = two.psp();
    let mut rsp = null_mut();
    let create = |rsp: *mut RspHandle| {
        kind(dat!(rsp_create_func(
            two.ia, conn_qual, passive.ep, evd, rsp
        )))
    };
    assert_eq!(create(&raw mut rsp), CONN_QUAL_IN_USE);
    assert_eq!(two.state(&passive), EP_STATE_UNCONNECTED);
    ok!(psp_free_func(psp));
    assert_eq!(create(&raw mut rsp), SUCCESS);
    assert_eq!(two.state(&passive), EP_STATE_RESERVED);
    assert_eq!(kind(dat!(ep_free_func(passive.ep))), INVALID_STATE);
    one.connect(&active, conn_qual, &[]);
    let cr = two.request(evd);
    assert_eq!(two.state(&passive), EP_STATE_PASSIVE_CONNECTION_PENDING);
    ok!(cr_accept_func(cr, null_mut(), 0, null_mut()));
    expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
    expect(passive.connect, CONNECTION_EVENT_ESTABLISHED);
    // A second request waits until the RSP is freed, and is then refused.
    one.connect(&late, conn_qual, &[]);
    ok!(rsp_free_func(rsp));
    expect(late.connect, CONNECTION_EVENT_NON_PEER_REJECTED);
}

#[test]
fn a_psp_can_create_the_ep_for_a_request() {
    let (one, two) = (World::open(), World::open());
    let active = one.end();
    let evd = two.evd(8, EVD_CR_FLAG);
    let (mut psp, mut conn_qual) = (null_mut(), 0);
    let flags = PSP_PROVIDER_FLAG;
    ok!(psp_create_any_func(
        two.ia,
        &raw mut conn_qual,
        evd,
        flags,
        &raw mut psp
    ));
    one.connect(&active, conn_qual, &[]);
    let cr = two.request(evd);
    // SAFETY: all zeros is a valid value.
    let mut param: CrParam = unsafe { zeroed() };
    ok!(cr_query_func(cr, CR_FIELD_ALL, &raw mut param));
    let ep = param.local_ep_handle;
    let accept = || kind(dat!(cr_accept_func(cr, null_mut(), 0, null_mut())));
    assert_eq!(accept(), INVALID_STATE);
    let other = two.end();
    let mut parts = query(&other);
    let fields = EP_FIELD_PZ_HANDLE
        | EP_FIELD_RECV_EVD_HANDLE
        | EP_FIELD_REQUEST_EVD_HANDLE
        | EP_FIELD_CONNECT_EVD_HANDLE
        | EP_FIELD_EP_ATTR_MAX_RECV_DTOS;
    parts.ep_attr.max_recv_dtos = 5;
    ok!(ep_modify_func(ep, fields, &raw const parts));
    assert_eq!(accept(), SUCCESS);
    expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
    let event = expect(other.connect, CONNECTION_EVENT_ESTABLISHED);
    // SAFETY: the event of a connection.
    assert_eq!(unsafe { event.event_data.connect_event_data }.ep_handle, ep);
    let made = End { ep, ..other };
    assert_eq!(query(&made).ep_attr.max_recv_dtos, 5);
    assert_eq!(
        kind(dat!(ep_modify_func(ep, fields, &raw const parts))),
        INVALID_STATE
    );
}

#[test]
fn a_request_can_be_handed_to_another_psp() {
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end(), two.end());
    let (_, first_evd, first) = two.psp();
    let (_, second_evd, second) = two.psp();
    one.connect(&active, first, b"data");
    let cr = two.request(first_evd);
    let handoff = |cr: CrHandle, to: ConnQual| kind(dat!(cr_handoff_func(cr, to)));
    assert_eq!(handoff(cr, 1), CONN_QUAL_UNAVAILABLE);
    assert_eq!(handoff(cr, second), SUCCESS);
    let cr = two.request(second_evd);
    ok!(cr_accept_func(cr, passive.ep, 0, null_mut()));
    expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
}

/// Another thread frees the PSP during the hand-off: it takes no requests, but its handle is still found.
#[test]
fn a_hand_off_that_fails_leaves_the_request_with_its_cr() {
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end(), two.end());
    let (_, first_evd, first) = two.psp();
    let (psp, _, second) = two.psp();
    one.connect(&active, first, b"data");
    let cr = two.request(first_evd);
    // SAFETY: a live handle.
    unsafe { find::<Psp>(psp) }.unwrap().0.close();
    let handoff = kind(dat!(cr_handoff_func(cr, second)));
    assert_eq!(handoff, CONN_QUAL_UNAVAILABLE);
    ok!(cr_accept_func(cr, passive.ep, 0, null_mut()));
    expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
}

#[test]
fn qualifiers_that_differ_only_in_high_bits_do_not_collide() {
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end(), two.end());
    let evd = two.evd(8, EVD_CR_FLAG);
    let low = u64::from(std::process::id() % 60_000 + 1);
    let mut psps = [null_mut(); 2];
    for (psp, high) in psps.iter_mut().zip([0x0aff_0000u64, 0x7fff_0aff_0000]) {
        ok!(psp_create_func(
            two.ia,
            high | low,
            evd,
            PSP_CONSUMER_FLAG,
            psp
        ));
    }
    one.connect(&active, 0x7fff_0aff_0000 | low, &[]);
    let event = expect(evd, CONNECTION_REQUEST_EVENT);
    // SAFETY: the event number says which member is valid.
    let data = unsafe { event.event_data.cr_arrival_event_data };
    assert_eq!(data.conn_qual, 0x7fff_0aff_0000 | low);
    ok!(cr_accept_func(data.cr_handle, passive.ep, 0, null_mut()));
    expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
    let mut psp = null_mut();
    for bad in [0, 1 << 48, u64::MAX] {
        let flags = PSP_CONSUMER_FLAG;
        let code = dat!(psp_create_func(two.ia, bad, evd, flags, &raw mut psp));
        assert_eq!(kind(code), CONN_QUAL_UNAVAILABLE, "{bad:#x}");
    }
}

#[test]
fn an_abrupt_close_of_an_ia_disconnects_and_a_graceful_one_is_refused() {
    let (one, active, two, passive) = pair();
    let close = |world: &World| kind(dat!(ia_close_func(world.ia, CLOSE_GRACEFUL_FLAG)));
    assert_eq!(close(&two), INVALID_STATE);
    assert_eq!(two.state(&passive), EP_STATE_CONNECTED);
    drop(two);
    expect(active.connect, CONNECTION_EVENT_DISCONNECTED);
    for handle in [passive.ep, passive.connect] {
        let mut found = 0;
        let code = dat!(get_handle_type_func(handle, &raw mut found));
        assert_eq!(kind(code), INVALID_HANDLE);
    }
    drop(one);
}

#[test]
fn an_ep_can_be_created_with_default_attributes() {
    let world = World::open();
    let mut ep = null_mut();
    let none = null_mut();
    ok!(ep_create_func(
        world.ia,
        world.pz,
        none,
        none,
        none,
        DEFAULTS,
        &raw mut ep
    ));
    ok!(ep_free_func(ep));
    assert_eq!(kind(dat!(ep_free_func(ep))), INVALID_HANDLE);
}

/// Whether this process runs only this test. If not, starts a process that does, which must succeed: other tests would open and
/// close descriptors at the same time.
fn runs_alone(test: &str) -> bool {
    const ALONE: &str = "RKEY_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", test, "--nocapture"]).env(ALONE, "1");
    assert!(again.status().unwrap().success());
    false
}

/// How many threads and descriptors the process has.
fn resources() -> [usize; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(|it| std::fs::read_dir(it).unwrap().count())
}

/// Like [`resources`], once the numbers no longer change: a joined thread stays in the list a little longer.
fn settled() -> [usize; 2] {
    let (mut last, mut same) = (resources(), 0);
    while same < 40 {
        std::thread::sleep(Duration::from_millis(5));
        let now = resources();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// Waits until the process has as many threads and descriptors as before.
fn returns_to(before: [usize; 2]) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let now = resources();
        if now == before {
            return;
        }
        assert!(Instant::now() < end, "{now:?} instead of {before:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_closed_ia_leaves_no_threads_and_no_descriptors() {
    if !runs_alone("connections::a_closed_ia_leaves_no_threads_and_no_descriptors") {
        return;
    }
    drop(pair());
    let before = settled();
    for _ in 0..20 {
        let (one, active, two, passive) = pair();
        let [mine, theirs] = [&one, &two].map(|it| it.memory(64, MEM_PRIV_ALL_FLAG));
        let write = active.write(mine.local(0, 8), &theirs.remote(0, 8), 1, 0);
        assert_eq!(write, SUCCESS);
        assert_eq!(completion(active.request, 1), (DTO_SUCCESS, 8));
        assert_eq!(passive.recv(theirs.local(0, 8), 2, 0), SUCCESS);
    }
    returns_to(before);
}

/// Freeing an EP while its request is unanswered leaves nothing that uses its PZ, and no descriptor.
#[test]
fn a_withdrawn_request_leaves_no_resources() {
    if !runs_alone("connections::a_withdrawn_request_leaves_no_resources") {
        return;
    }
    let (one, two) = (World::open(), World::open());
    let (_, evd, conn_qual) = two.psp();
    let mut before = None;
    for round in 0..6 {
        let mut pz = null_mut();
        ok!(pz_create_func(one.ia, &raw mut pz));
        let active = one.end_in(pz, &attr());
        one.connect(&active, conn_qual, &[]);
        let cr = two.request(evd);
        if round % 2 == 0 {
            ok!(ep_disconnect_func(active.ep, CLOSE_ABRUPT_FLAG));
            expect(active.connect, CONNECTION_EVENT_DISCONNECTED);
        }
        ok!(ep_free_func(active.ep));
        ok!(pz_free_func(pz));
        for evd in [active.recv, active.request, active.connect] {
            ok!(evd_free_func(evd));
        }
        ok!(cr_reject_func(cr, 0, null_mut()));
        match before {
            None => before = Some(settled()),
            Some(before) => returns_to(before),
        }
    }
}

/// The worker may still use the queue pair when the event that it has delivered makes the program free the EP and its PZ.
#[test]
fn a_pz_is_freed_after_its_eps_whatever_other_threads_do() {
    let one = World::open();
    let mut pz = null_mut();
    ok!(pz_create_func(one.ia, &raw mut pz));
    let end = one.end_in(pz, &attr());
    // SAFETY: a live handle.
    let used = unsafe { find::<Ep>(end.ep) }.unwrap().qp().unwrap();
    ok!(ep_free_func(end.ep));
    ok!(pz_free_func(pz));
    assert!(used.query().is_err());
}

#[test]
fn an_ep_that_a_psp_created_is_freed_when_its_request_is_rejected() {
    let (one, two) = (World::open(), World::open());
    let (active, other) = (one.end(), two.end());
    let evd = two.evd(8, EVD_CR_FLAG);
    let (mut psp, mut conn_qual) = (null_mut(), 0);
    ok!(psp_create_any_func(
        two.ia,
        &raw mut conn_qual,
        evd,
        PSP_PROVIDER_FLAG,
        &raw mut psp
    ));
    for configured in [false, true] {
        one.connect(&active, conn_qual, &[]);
        let cr = two.request(evd);
        // SAFETY: all zeros is a valid value.
        let mut param: CrParam = unsafe { zeroed() };
        ok!(cr_query_func(cr, CR_FIELD_ALL, &raw mut param));
        let ep = param.local_ep_handle;
        if configured {
            let parts = query(&other);
            ok!(ep_modify_func(ep, EP_FIELD_PZ_HANDLE, &raw const parts));
        }
        ok!(cr_reject_func(cr, 0, null_mut()));
        expect(active.connect, CONNECTION_EVENT_PEER_REJECTED);
        ok!(ep_reset_func(active.ep));
        assert_eq!(kind(dat!(ep_free_func(ep))), INVALID_HANDLE);
    }
    ok!(ep_free_func(other.ep));
    ok!(pz_free_func(two.pz));
}
