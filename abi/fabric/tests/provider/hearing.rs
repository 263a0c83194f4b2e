//! A program notices that a peer has ended, whichever one method of waiting or polling it uses.

use crate::connected::{listen, name_of_pep, wish};
use crate::harness::*;
use crate::peer::{Peer, hear, is_peer, name_in, say, until};
use crate::waiting::*;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::AtomicI32;
use std::time::{Duration, Instant};

const AVAIL: isize = -259;

/// An event queue with a descriptor.
fn waitable_eq(fabric: *mut FidFabric) -> *mut FidEq {
    let mut eq = null_mut();
    // SAFETY: the handle is live, and the attributes are our own.
    let code = unsafe {
        let mut attr: EqAttr = std::mem::zeroed();
        attr.wait_obj = FI_WAIT_FD;
        ((*(*fabric).ops).eq_open)(fabric, &mut attr, &mut eq, null_mut())
    };
    assert_eq!(code, 0);
    eq
}

/// Takes an event, or returns the error; with `fi_eq_sread` if there is a time.
fn take(eq: *mut FidEq, time: Option<c_int>) -> Result<(u32, EqCmEntry), isize> {
    let (mut event, mut room) = (0, [0u64; 64]);
    let (at, len) = (room.as_mut_ptr().cast(), size_of_val(&room));
    // SAFETY: the handle is live, the memory is our own, and the event is one of a connection.
    unsafe {
        let ops = &*(*eq).ops;
        let code = match time {
            Some(time) => (ops.sread)(eq, &mut event, at, len, time, 0),
            None => (ops.read)(eq, &mut event, at, len, 0),
        };
        if code < 0 {
            return Err(code);
        }
        Ok((event, room.as_ptr().cast::<EqCmEntry>().read()))
    }
}

/// The next event, which must be of this kind.
fn expect(eq: *mut FidEq, kind: u32) -> EqCmEntry {
    let (event, entry) = take(eq, Some(PATIENCE.as_millis() as c_int)).unwrap();
    assert_eq!(event, kind);
    entry
}

/// A passive endpoint that listens.
struct Server {
    fabric: *mut FidFabric,
    eq: *mut FidEq,
    pep: *mut FidPep,
}

/// Our end of a connection, and its queues, which a program can wait for.
#[derive(Clone, Copy)]
struct End {
    fabric: Shared<FidFabric>,
    ep: Shared<FidEp>,
    cq: Shared<FidCq>,
    eq: Shared<FidEq>,
}

impl Server {
    fn open() -> Self {
        let (fabric, _) = open_domain(wish().version, wish().info());
        let eq = waitable_eq(fabric);
        let pep = listen(fabric, eq);
        Self { fabric, eq, pep }
    }

    /// Its name in hexadecimal.
    fn word(&self) -> String {
        let name = name_of_pep(self.pep);
        name.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Accepts the next connection.
    fn accept(&self, progress: c_int) -> End {
        let info = expect(self.eq, FI_CONNREQ).info;
        let (mut domain, mut ep) = (null_mut(), null_mut());
        // SAFETY: live handles, and the `fi_info` of a request, which is ours.
        unsafe {
            (*(*info).domain_attr).data_progress = progress;
            let open = (*(*self.fabric).ops).domain;
            assert_eq!(open(self.fabric, info, &mut domain, null_mut()), 0);
            let open = (*(*domain).ops).endpoint;
            assert_eq!(open(domain, info, &mut ep, null_mut()), 0);
        }
        let (cq, eq) = (waitable_cq(domain), waitable_eq(self.fabric));
        assert_eq!(bind(ep.cast(), cq.cast(), FI_SEND | FI_RECV), 0);
        assert_eq!(bind(ep.cast(), eq.cast(), 0), 0);
        // SAFETY: the handle is live.
        assert_eq!(unsafe { ((*(*ep).cm).accept)(ep, null_mut(), 0) }, 0);
        expect(eq, FI_CONNECTED);
        End {
            fabric: Shared(self.fabric),
            ep: Shared(ep),
            cq: Shared(cq),
            eq: Shared(eq),
        }
    }
}

/// In the peer, connects to a name.
fn connect(name: &[u8]) -> *mut FidEp {
    let (fabric, domain) = open_domain(wish().version, wish().info());
    let eq = waitable_eq(fabric);
    let (ep, _, _) = open_disabled(domain, wish().info());
    assert_eq!(bind(ep.cast(), eq.cast(), 0), 0);
    // SAFETY: a live handle, and the name of a passive endpoint.
    let code = unsafe { ((*(*ep).cm).connect)(ep, name.as_ptr().cast(), null_mut(), 0) };
    assert_eq!(code, 0);
    expect(eq, FI_CONNECTED);
    ep
}

/// The methods with which a program notices the end of a connection.
#[derive(Clone, Copy, Debug)]
enum Method {
    EventsRead,
    EventsWaited,
    EventsPolled,
    CompletionsWaited,
    CompletionsPolled,
    /// With automatic progress, through the descriptor of the event queue, without `fi_trywait`.
    ByItself,
}

const METHODS: [Method; 6] = [
    Method::EventsRead,
    Method::EventsWaited,
    Method::EventsPolled,
    Method::CompletionsWaited,
    Method::CompletionsPolled,
    Method::ByItself,
];

/// Notices the end of a connection without using the other queue.
fn hear_of_the_end(method: Method, end: End) {
    let (fabric, cq, eq) = (end.fabric.get(), end.cq.get(), end.eq.get());
    let started = Instant::now();
    let in_time = || assert!(started.elapsed() < 2 * PATIENCE, "{method:?}");
    match method {
        Method::EventsRead => {
            while take(eq, None).map(|(event, _)| event) != Ok(FI_SHUTDOWN) {
                in_time();
                std::thread::sleep(Duration::from_micros(200));
            }
            return;
        }
        Method::EventsWaited => {
            let got = take(eq, Some(LONG)).map(|(event, _)| event);
            assert_eq!(got, Ok(FI_SHUTDOWN), "{method:?}");
            in_time();
            return;
        }
        Method::EventsPolled => {
            while take(eq, None).map(|(event, _)| event) != Ok(FI_SHUTDOWN) {
                in_time();
                if trywait(fabric, eq.cast()) == 0 {
                    assert!(readable(descriptor(eq.cast())), "{method:?}");
                }
            }
            return;
        }
        Method::ByItself => {
            while take(eq, None).map(|(event, _)| event) != Ok(FI_SHUTDOWN) {
                in_time();
                assert!(readable(descriptor(eq.cast())), "{method:?}");
            }
        }
        Method::CompletionsWaited => {
            let (code, took) = sread(cq);
            assert_eq!(code, AVAIL);
            assert!(took < 2 * PATIENCE);
        }
        Method::CompletionsPolled => {}
    }
    // The receive is flushed.
    let error = loop {
        match poll(cq) {
            Some(result) => break result.unwrap_err(),
            None => assert!(
                trywait(fabric, cq.cast()) != 0 || readable(descriptor(cq.cast())),
                "{method:?}"
            ),
        }
        in_time();
    };
    assert_eq!(error.err, libc::ECANCELED);
    if !matches!(method, Method::ByItself) {
        assert_eq!(take(eq, None).map(|(event, _)| event), Ok(FI_SHUTDOWN));
    }
}

/// In the peer, connects, and then uses its connections as the test instructs.
fn end_connections() {
    let name = name_in(&hear().unwrap());
    let eps = METHODS.map(|_| connect(&name));
    say("connected");
    while let Some(what) = hear() {
        for ep in eps {
            // SAFETY: the handle is live.
            let shutdown = |ep: *mut FidEp| unsafe { ((*(*ep).cm).shutdown)(ep, 0) };
            match what.as_str() {
                "close" => assert_eq!(close(ep.cast()), 0),
                "shut down" => assert_eq!(shutdown(ep), 0),
                _ => return,
            }
        }
        say("done");
    }
}

/// A peer makes one connection for each method of noticing its end. When all threads sleep, the peer ends the connections.
fn every_method_reports_it(test: &str, end: impl FnOnce(&mut Peer)) {
    let mut peer = Peer::start(test, &[]);
    let server = Server::open();
    peer.tell(&server.word());
    let ends = METHODS.map(|method| {
        server.accept(match method {
            Method::ByItself => FI_PROGRESS_AUTO,
            _ => FI_PROGRESS_MANUAL,
        })
    });
    assert_eq!(peer.heard(), "connected");
    let mut buffers = METHODS.map(|_| [0u8; 8]);
    for (end, buffer) in ends.iter().zip(&mut buffers) {
        let (ep, at) = (end.ep.get(), buffer.as_mut_ptr().cast());
        // SAFETY: the handle is live; the buffer stays valid until the endpoint is closed.
        let code = unsafe { ((*(*ep).msg).recv)(ep, at, 8, null_mut(), 0, null_mut()) };
        assert_eq!(code, 0);
    }
    let threads = METHODS.map(|_| AtomicI32::new(0));
    std::thread::scope(|scope| {
        for ((&method, &end), thread) in METHODS.iter().zip(&ends).zip(&threads) {
            scope.spawn(move || {
                note_thread(thread);
                hear_of_the_end(method, end);
            });
        }
        for thread in &threads {
            until_asleep(thread);
        }
        end(&mut peer);
    });
    for end in ends {
        assert_eq!(close(end.ep.get().cast()), 0);
        assert_eq!(close(end.eq.get().cast()), 0);
        assert_eq!(close(end.cq.get().cast()), 0);
    }
    assert_eq!(close(server.pep.cast()), 0);
}

#[test]
fn a_peer_notices_a_closed_endpoint() {
    if is_peer() {
        return end_connections();
    }
    every_method_reports_it("hearing::a_peer_notices_a_closed_endpoint", |peer| {
        peer.tell("close");
        assert_eq!(peer.heard(), "done");
    });
}

#[test]
fn a_peer_notices_a_shut_down_connection() {
    if is_peer() {
        return end_connections();
    }
    let test = "hearing::a_peer_notices_a_shut_down_connection";
    every_method_reports_it(test, |peer| {
        peer.tell("shut down");
        assert_eq!(peer.heard(), "done");
    });
}

#[test]
fn a_peer_notices_a_killed_process() {
    if is_peer() {
        return end_connections();
    }
    every_method_reports_it("hearing::a_peer_notices_a_killed_process", |peer| {
        peer.signal(libc::SIGKILL);
    });
}

/// In the peer, sends as many messages as requested.
fn send_messages() {
    let ep = connect(&name_in(&hear().unwrap()));
    say("connected");
    while let Some(number) = hear().and_then(|word| word.parse::<usize>().ok()) {
        for _ in 0..number {
            // SAFETY: the handle is live; the bytes are copied.
            let inject = || unsafe { ((*(*ep).msg).inject)(ep, [7u8; 8].as_ptr().cast(), 8, 0) };
            assert_eq!(again(inject), 0);
        }
    }
}

/// The peer's end wakes a thread that waits for events; messages that another thread takes do not.
#[test]
fn messages_do_not_wake_a_thread_that_waits_for_events() {
    if is_peer() {
        return send_messages();
    }
    let test = "hearing::messages_do_not_wake_a_thread_that_waits_for_events";
    messages_wake_no_event_waiter(test, |end| {
        until("a message", || match poll(end.cq.get()) {
            Some(entry) => entry.map(|entry| entry.len).is_ok_and(|len| len == 8),
            None => false,
        });
    });
}

/// Messages that another thread sleeps for do not wake a thread that waits for events, either.
#[test]
fn messages_wake_only_the_thread_that_waits_for_them() {
    if is_peer() {
        return send_messages();
    }
    let test = "hearing::messages_wake_only_the_thread_that_waits_for_them";
    messages_wake_no_event_waiter(test, |end| {
        let (fabric, cq) = (end.fabric.get(), end.cq.get());
        while poll(cq).is_none() {
            assert!(trywait(fabric, cq.cast()) != 0 || readable(descriptor(cq.cast())));
        }
    });
}

fn messages_wake_no_event_waiter(test: &str, take: impl Fn(End)) {
    const MESSAGES: usize = 500;
    let mut peer = Peer::start(test, &[]);
    let server = Server::open();
    peer.tell(&server.word());
    let end = server.accept(FI_PROGRESS_MANUAL);
    assert_eq!(peer.heard(), "connected");
    let thread = AtomicI32::new(0);
    let mut buffers = vec![[0u8; 8]; MESSAGES];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            note_thread(&thread);
            hear_of_the_end(Method::EventsWaited, end);
        });
        until_asleep(&thread);
        let before = sleeps(&thread);
        for buffer in &mut buffers {
            let (ep, at) = (end.ep.get(), buffer.as_mut_ptr().cast());
            // SAFETY: the handle is live; the buffer stays valid until the completion.
            let recv = || unsafe { ((*(*ep).msg).recv)(ep, at, 8, null_mut(), 0, null_mut()) };
            assert_eq!(again(recv), 0);
            peer.tell("1");
            take(end);
        }
        // The thread may have slept at a lock before its wait.
        let more = sleeps(&thread) - before;
        assert!(more < MESSAGES as u64 / 10, "woken {more} times");
        peer.signal(libc::SIGKILL);
    });
    assert_eq!(close(end.ep.get().cast()), 0);
}
