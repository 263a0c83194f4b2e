//! EVDs and CNOs: waiting, thresholds, notification, agents.

use crate::world::*;
use daplrkey::handles::object::find;
use daplrkey::objects::ep::Ep;
use daplrkey::sys::*;
use rkey_device::engine::{QpAttributes, QpState};
use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

fn software(number: usize) -> Event {
    let mut event = blank();
    event.event_number = SOFTWARE_EVENT;
    event.event_data.software_event_data = SoftwareEventData {
        pointer: number as *mut c_void,
    };
    event
}

fn post(evd: EvdHandle, number: usize) -> dat_return_type {
    kind(dat!(evd_post_se_func(evd, &software(number))))
}

fn number_of(event: &Event) -> usize {
    assert_eq!(event.event_number, SOFTWARE_EVENT);
    // SAFETY: the event number says which member is valid.
    unsafe { event.event_data.software_event_data }.pointer as usize
}

fn wait_for(evd: EvdHandle, timeout: Timeout, threshold: Count) -> (dat_return_type, usize, Count) {
    let (mut event, mut more) = (blank(), -1);
    let code = dat!(evd_wait_func(
        evd,
        timeout,
        threshold,
        &raw mut event,
        &raw mut more
    ));
    let number = if code == SUCCESS {
        number_of(&event)
    } else {
        0
    };
    (kind(code), number, more)
}

/// A handle that another thread may use.
#[derive(Clone, Copy)]
struct Shared(Handle);
// SAFETY: the provider's calls are safe in any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(self) -> Handle {
        self.0
    }
}

#[test]
fn software_events_arrive_in_order_up_to_the_evds_length() {
    let world = World::open();
    let evd = world.evd(3, EVD_SOFTWARE_FLAG);
    assert!(empty(evd));
    for number in 1..=3 {
        assert_eq!(post(evd, number), SUCCESS);
    }
    assert_eq!(post(evd, 4), QUEUE_FULL);
    ok!(evd_resize_func(evd, 4));
    assert_eq!(post(evd, 4), SUCCESS);
    assert_eq!(kind(dat!(evd_resize_func(evd, 3))), INVALID_STATE);
    assert_eq!(wait_for(evd, 0, 3), (SUCCESS, 1, 3));
    for number in 2..=4 {
        let mut event = blank();
        ok!(evd_dequeue_func(evd, &raw mut event));
        assert_eq!(number_of(&event), number);
    }
    let other = world.evd(3, EVD_CONNECTION_FLAG);
    assert_eq!(post(other, 1), INVALID_PARAMETER);
}

#[test]
fn a_waiter_waits_for_its_threshold_of_events() {
    let world = World::open();
    let evd = Shared(world.evd(8, EVD_SOFTWARE_FLAG));
    assert_eq!(wait_for(evd.get(), SHORT, 1).0, TIMEOUT_EXPIRED);
    assert_eq!(wait_for(evd.get(), 0, 1).0, TIMEOUT_EXPIRED);
    for bad in [0, -1, 9] {
        assert_eq!(wait_for(evd.get(), SHORT, bad).0, INVALID_PARAMETER);
    }
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || wait_for(evd.get(), PATIENCE, 3));
        for number in 1..=3 {
            std::thread::sleep(Duration::from_millis(5));
            assert!(!waiter.is_finished());
            assert_eq!(post(evd.get(), number), SUCCESS);
        }
        assert_eq!(waiter.join().unwrap(), (SUCCESS, 1, 2));
    });
}

#[test]
fn an_evd_has_one_waiter_which_set_unwaitable_releases() {
    let world = World::open();
    let evd = Shared(world.evd(8, EVD_SOFTWARE_FLAG));
    let ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            loop {
                let got = wait_for(evd.get(), PATIENCE, 1);
                // Wait again if the call failed only because the other thread was waiting.
                if got.0 != INVALID_STATE || ending.load(Ordering::SeqCst) {
                    return got;
                }
            }
        });
        while wait_for(evd.get(), 0, 1).0 != INVALID_STATE {}
        assert_eq!(kind(dat!(evd_free_func(evd.get()))), INVALID_STATE);
        ending.store(true, Ordering::SeqCst);
        ok!(evd_set_unwaitable_func(evd.get()));
        assert_eq!(waiter.join().unwrap().0, INVALID_STATE);
    });
    assert_eq!(post(evd.get(), 1), SUCCESS);
    assert_eq!(wait_for(evd.get(), 0, 1).0, INVALID_STATE);
    ok!(evd_clear_unwaitable_func(evd.get()));
    assert_eq!(wait_for(evd.get(), 0, 1), (SUCCESS, 1, 0));
    ok!(evd_free_func(evd.get()));
}

/// An agent that counts its calls and remembers the EVD of the last one.
#[derive(Default)]
struct Calls {
    count: AtomicUsize,
    evd: AtomicUsize,
}

unsafe extern "C" fn agent(calls: Pvoid, evd: EvdHandle) {
    // SAFETY: the test passes a `Calls` that it keeps.
    let calls = unsafe { &*calls.cast::<Calls>() };
    calls.evd.store(evd as usize, Ordering::SeqCst);
    calls.count.fetch_add(1, Ordering::SeqCst);
}

fn cno(world: &World, agent: OsWaitProxyAgent) -> CnoHandle {
    let mut cno = null_mut();
    ok!(cno_create_func(world.ia, agent, &raw mut cno));
    cno
}

const NO_AGENT: OsWaitProxyAgent = OsWaitProxyAgent {
    instance_data: null_mut(),
    proxy_agent_func: None,
};

fn wait_for_cno(cno: CnoHandle, timeout: Timeout) -> (dat_return_type, EvdHandle) {
    let mut evd = null_mut();
    let code = dat!(cno_wait_func(cno, timeout, &raw mut evd));
    (kind(code), evd)
}

#[test]
fn a_cno_reports_which_evd_has_events() {
    let world = World::open();
    let cno = cno(&world, NO_AGENT);
    let [first, second] = [1, 2].map(|_| world.evd(8, EVD_SOFTWARE_FLAG));
    for evd in [first, second] {
        ok!(evd_modify_cno_func(evd, cno));
    }
    assert_eq!(kind(dat!(cno_free_func(cno))), INVALID_STATE);
    assert_eq!(wait_for_cno(cno, SHORT).0, TIMEOUT_EXPIRED);
    for number in 0..2 {
        assert_eq!(post(second, number), SUCCESS);
    }
    assert_eq!(post(first, 0), SUCCESS);
    assert_eq!(wait_for_cno(cno, PATIENCE), (SUCCESS, second));
    assert_eq!(wait_for_cno(cno, PATIENCE), (SUCCESS, first));
    assert_eq!(wait_for_cno(cno, 0).0, TIMEOUT_EXPIRED);
    // A disabled EVD triggers when it is enabled again.
    while !empty(first) {}
    ok!(evd_disable_func(first));
    assert_eq!(post(first, 1), SUCCESS);
    assert_eq!(wait_for_cno(cno, SHORT).0, TIMEOUT_EXPIRED);
    ok!(evd_enable_func(first));
    assert_eq!(wait_for_cno(cno, PATIENCE), (SUCCESS, first));
    for evd in [first, second] {
        ok!(evd_modify_cno_func(evd, null_mut()));
    }
    ok!(cno_free_func(cno));
    assert_eq!(wait_for_cno(cno, 0).0, INVALID_HANDLE);
}

#[test]
fn an_agent_is_called_for_completions_that_are_not_polled() {
    let (one, two) = (World::open(), World::open());
    let (active, passive) = (one.end(), two.end());
    one.connect_to(&active, &two, &passive);
    let calls = Calls::default();
    let agent = OsWaitProxyAgent {
        instance_data: (&raw const calls).cast_mut().cast(),
        proxy_agent_func: Some(agent),
    };
    let cno = cno(&two, agent);
    ok!(evd_modify_cno_func(passive.recv, cno));
    let [mine, theirs] = [&one, &two].map(|it| it.memory(64, MEM_PRIV_ALL_FLAG));
    for round in 1..=20 {
        assert_eq!(passive.recv(theirs.local(0, 8), 7, 0), SUCCESS);
        assert_eq!(active.send(mine.local(0, 8), 8, 0), SUCCESS);
        while calls.count.load(Ordering::SeqCst) < round {
            std::thread::yield_now();
        }
        assert_eq!(calls.evd.load(Ordering::SeqCst), passive.recv as usize);
        assert_eq!(completion(passive.recv, 7), (DTO_SUCCESS, 8));
        assert_eq!(completion(active.request, 8), (DTO_SUCCESS, 8));
    }
    drop((one, two));
}

#[test]
fn a_completion_without_notification_can_be_taken_but_wakes_no_thread() {
    let (one, two) = (World::open(), World::open());
    let quiet = EpAttr {
        request_completion_flags: COMPLETION_UNSIGNALLED_FLAG,
        recv_completion_flags: COMPLETION_UNSIGNALLED_FLAG,
        ..attr()
    };
    let (active, passive) = (one.end_with(&quiet), two.end_with(&quiet));
    one.connect_to(&active, &two, &passive);
    let [mine, theirs] = [&one, &two].map(|it| it.memory(64, MEM_PRIV_ALL_FLAG));
    let remote = theirs.remote(0, 8);
    let write = |number, flags| active.write(mine.local(0, 8), &remote, number, flags);
    // A thread that is already waiting keeps waiting until a completion notifies.
    let evd = Shared(active.request);
    let thread = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            // SAFETY: takes no memory.
            thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            let (mut event, mut more) = (blank(), 0);
            ok!(evd_wait_func(
                evd.get(),
                PATIENCE,
                1,
                &raw mut event,
                &raw mut more
            ));
            // SAFETY: the EVD has only completions.
            unsafe { event.event_data.dto_completion_event_data.user_cookie.as_64 }
        });
        until_asleep(&thread);
        assert_eq!(write(1, COMPLETION_UNSIGNALLED_FLAG), SUCCESS);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        assert_eq!(write(2, 0), SUCCESS);
        assert_eq!(waiter.join().unwrap(), 1);
    });
    assert_eq!(completion(active.request, 2), (DTO_SUCCESS, 8));
    for (number, flags) in [(3, COMPLETION_UNSIGNALLED_FLAG), (4, 0)] {
        assert_eq!(passive.recv(theirs.local(0, 8), number, flags), SUCCESS);
        assert_eq!(active.send(mine.local(0, 8), number, 0), SUCCESS);
    }
    assert_eq!(completion(passive.recv, 3), (DTO_SUCCESS, 8));
    assert_eq!(completion(passive.recv, 4), (DTO_SUCCESS, 8));
}

/// Waits until a thread of this process sleeps.
fn until_asleep(thread: &AtomicI32) {
    let is_asleep = || {
        let path = format!("/proc/self/task/{}/stat", thread.load(Ordering::SeqCst));
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default();
        state.trim_start().starts_with('S')
    };
    // A thread that waits for a lock also sleeps, but only for a moment.
    let mut looks = 0;
    while looks < 5 {
        looks = if is_asleep() { looks + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Lets another thread wait for an EVD, calls `with` once it waits, and returns its result. No other thread may wait
/// for the EVD.
fn waited(evd: Shared, threshold: Count, with: impl FnOnce()) -> (dat_return_type, usize, Count) {
    let ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            loop {
                let got = wait_for(evd.get(), PATIENCE, threshold);
                // Wait again if the call failed only because the main thread was waiting at that moment.
                if got.0 != INVALID_STATE || ending.load(Ordering::SeqCst) {
                    return got;
                }
            }
        });
        while wait_for(evd.get(), 0, threshold).0 != INVALID_STATE {}
        ending.store(true, Ordering::SeqCst);
        with();
        waiter.join().unwrap()
    })
}

#[test]
fn closing_the_ia_ends_the_wait_for_an_evd() {
    for flags in [EVD_SOFTWARE_FLAG, EVD_SOFTWARE_FLAG | EVD_DTO_FLAG] {
        let world = World::open();
        let evd = Shared(world.evd(8, flags));
        assert_eq!(waited(evd, 1, || drop(world)).0, ABORT);
        assert_eq!(wait_for(evd.get(), 0, 1).0, INVALID_HANDLE);
    }
}

#[test]
fn an_evd_that_has_a_waiter_does_not_notify_its_cno() {
    let world = World::open();
    let cno = Shared(cno(&world, NO_AGENT));
    let evd = Shared(world.evd(8, EVD_SOFTWARE_FLAG));
    ok!(evd_modify_cno_func(evd.get(), cno.get()));
    let got = waited(evd, 2, || {
        assert_eq!(post(evd.get(), 1), SUCCESS);
        assert_eq!(wait_for_cno(cno.get(), 0).0, TIMEOUT_EXPIRED);
        ok!(evd_set_unwaitable_func(evd.get()));
    });
    assert_eq!(got.0, INVALID_STATE);
    // The waiting thread left the event in the EVD.
    assert_eq!(wait_for_cno(cno.get(), PATIENCE), (SUCCESS, evd.get()));
}

#[test]
fn waiters_of_a_cno_return_when_it_loses_its_last_evd() {
    let world = World::open();
    let cno = Shared(cno(&world, NO_AGENT));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let (code, evd) = wait_for_cno(cno.get(), PATIENCE);
            (code, evd as usize)
        });
        // The thread may begin to wait at any time.
        while !waiter.is_finished() {
            let evd = world.evd(8, EVD_SOFTWARE_FLAG);
            ok!(evd_modify_cno_func(evd, cno.get()));
            ok!(evd_free_func(evd));
        }
        assert_eq!(waiter.join().unwrap(), (SUCCESS, 0));
    });
    ok!(cno_free_func(cno.get()));
}

/// An agent that returns only when the test allows it.
#[derive(Default)]
struct Slow {
    calls: AtomicUsize,
    may_return: AtomicBool,
    returned: AtomicBool,
}

unsafe extern "C" fn slow_agent(slow: Pvoid, _evd: EvdHandle) {
    // SAFETY: the test passes a `Slow` that it keeps.
    let slow = unsafe { &*slow.cast::<Slow>() };
    slow.calls.fetch_add(1, Ordering::SeqCst);
    while !slow.may_return.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    slow.returned.store(true, Ordering::SeqCst);
}

impl Slow {
    fn agent(&self) -> OsWaitProxyAgent {
        OsWaitProxyAgent {
            instance_data: std::ptr::from_ref(self).cast_mut().cast(),
            proxy_agent_func: Some(slow_agent),
        }
    }

    /// Waits until the worker of the IA is in the agent.
    fn wait_for_call(&self) {
        while self.calls.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn no_agent_runs_once_its_evd_or_cno_is_freed() {
    for free_evd in [true, false] {
        let world = World::open();
        let slow = Slow::default();
        let cno = Shared(cno(&world, slow.agent()));
        let [first, second] = [1, 2].map(|_| Shared(world.evd(8, EVD_SOFTWARE_FLAG)));
        for evd in [first, second] {
            ok!(evd_modify_cno_func(evd.get(), cno.get()));
        }
        assert_eq!(post(first.get(), 1), SUCCESS);
        slow.wait_for_call();
        // The worker is busy with the first EVD.
        assert_eq!(post(second.get(), 1), SUCCESS);
        ok!(evd_free_func(second.get()));
        std::thread::scope(|scope| {
            let freed = scope.spawn(|| {
                if free_evd {
                    ok!(evd_free_func(first.get()));
                } else {
                    ok!(evd_modify_cno_func(first.get(), null_mut()));
                    ok!(cno_free_func(cno.get()));
                }
                assert!(slow.returned.load(Ordering::SeqCst));
            });
            std::thread::sleep(Duration::from_millis(20));
            slow.may_return.store(true, Ordering::SeqCst);
            freed.join().unwrap();
        });
        drop(world);
        assert_eq!(slow.calls.load(Ordering::SeqCst), 1);
    }
}

/// `dtestcm` counts the events of all its EPs: it takes the first ones for confirmations, and the others for disconnects.
#[test]
fn eps_end_after_the_confirmations_that_were_sent_before() {
    const EPS: usize = 4;
    let (one, two) = (World::open(), World::open());
    let (_, requests, conn_qual) = two.psp();
    let (parts, connect) = (two.end(), two.evd(2 * EPS as Count, EVD_CONNECTION_FLAG));
    let passive: [EpHandle; EPS] = std::array::from_fn(|_| {
        let mut ep = null_mut();
        let (recv, request) = (parts.recv, parts.request);
        ok!(ep_create_func(
            two.ia,
            two.pz,
            recv,
            request,
            connect,
            &attr(),
            &raw mut ep
        ));
        ep
    });
    let active: [End; EPS] = std::array::from_fn(|_| one.end());
    let crs = active.each_ref().map(|end| {
        one.connect(end, conn_qual, &[]);
        two.request(requests)
    });
    let slow = Slow::default();
    let evd = two.evd(8, EVD_SOFTWARE_FLAG);
    ok!(evd_modify_cno_func(evd, cno(&two, slow.agent())));
    assert_eq!(post(evd, 1), SUCCESS);
    slow.wait_for_call();
    // The worker is busy, so all confirmations are waiting when it continues, and some of the connections have already broken.
    for (cr, ep) in crs.into_iter().zip(passive) {
        ok!(cr_accept_func(cr, ep, 0, null_mut()));
    }
    for end in &active {
        expect(end.connect, CONNECTION_EVENT_ESTABLISHED);
    }
    for ep in &passive[..2] {
        // SAFETY: a live handle.
        let qp = unsafe { find::<Ep>(*ep) }.unwrap().qp().unwrap();
        qp.modify(&QpAttributes::to(QpState::Error)).unwrap();
    }
    slow.may_return.store(true, Ordering::SeqCst);
    for _ in 0..EPS {
        expect(connect, CONNECTION_EVENT_ESTABLISHED);
    }
    for _ in 0..2 {
        expect(connect, CONNECTION_EVENT_BROKEN);
    }
    drop(two);
}

#[test]
fn an_evd_that_another_ia_reports_errors_to_is_in_use() {
    let world = World::open();
    let mut evd = world.evd(8, EVD_ASYNC_FLAG);
    let mut other = null_mut();
    let name = c"rkey-test".as_ptr().cast_mut();
    ok!(ia_open_func(name, 8, &raw mut evd, &raw mut other));
    assert_eq!(kind(dat!(evd_free_func(evd))), INVALID_STATE);
    ok!(ia_close_func(other, CLOSE_GRACEFUL_FLAG));
    ok!(evd_free_func(evd));
}

#[test]
fn every_handle_has_a_context_and_a_type() {
    let world = World::open();
    let evd = world.evd(8, EVD_SOFTWARE_FLAG);
    for (handle, expected) in [
        (world.ia, HANDLE_TYPE_IA),
        (world.pz, HANDLE_TYPE_PZ),
        (evd, HANDLE_TYPE_EVD),
    ] {
        let mut found = -1;
        ok!(get_handle_type_func(handle, &raw mut found));
        assert_eq!(found, expected);
        ok!(set_consumer_context_func(handle, cookie(handle as u64 + 1)));
    }
    // SAFETY: all zeros is a valid value.
    let mut context: Context = unsafe { zeroed() };
    ok!(get_consumer_context_func(evd, &raw mut context));
    // SAFETY: plain bits.
    assert_eq!(unsafe { context.as_64 }, evd as u64 + 1);
    ok!(evd_free_func(evd));
    assert_eq!(
        kind(dat!(get_consumer_context_func(evd, &raw mut context))),
        INVALID_HANDLE
    );
}
