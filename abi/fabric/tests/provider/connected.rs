//! Events of connections: the end of a peer is reported, and closed objects get no reports.

use crate::harness::*;
use crate::peer::{Peer, hear, is_peer, say};
use rkey_fi::sys::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const AGAIN: isize = -(libc::EAGAIN as isize);

pub(crate) fn wish() -> Wish {
    Wish {
        ep_type: FI_EP_MSG,
        ..Wish::default()
    }
}

/// Peeks at a queue: the kind of the event, or the error.
pub(crate) fn look(eq: *mut FidEq) -> Result<u32, isize> {
    let (mut event, mut room) = (0, [0u64; 64]);
    let at = room.as_mut_ptr().cast();
    // SAFETY: the handle is live, and the buffer is our own.
    let code = unsafe { ((*(*eq).ops).read)(eq, &mut event, at, size_of_val(&room), FI_PEEK) };
    if code > 0 { Ok(event) } else { Err(code) }
}

pub(crate) fn wait_for(eq: *mut FidEq, wanted: Result<u32, isize>) {
    let started = Instant::now();
    while look(eq) != wanted {
        assert!(started.elapsed() < PATIENCE, "{:?}", look(eq));
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A passive endpoint that listens.
pub(crate) fn listen(fabric: *mut FidFabric, eq: *mut FidEq) -> *mut FidPep {
    let mut pep = null_mut();
    // SAFETY: live handles, and the provider's `fi_info`.
    unsafe {
        let open = (*(*fabric).ops).passive_ep;
        assert_eq!(open(fabric, wish().info(), &mut pep, null_mut()), 0);
        assert_eq!(bind(pep.cast(), eq.cast(), 0), 0);
        assert_eq!(((*(*pep).cm).listen)(pep), 0);
    }
    pep
}

/// An endpoint that connects there, and its event queue.
fn connect(pep: *mut FidPep) -> (*mut FidEp, *mut FidEq) {
    connect_to(&name_of_pep(pep))
}

pub(crate) fn name_of_pep(pep: *mut FidPep) -> Vec<u8> {
    let mut name = vec![0u8; 128];
    let mut len = name.len();
    let at = name.as_mut_ptr().cast();
    // SAFETY: the handle is live, and the buffer is our own.
    let code = unsafe { ((*(*pep).cm).getname)(pep.cast(), at, &mut len) };
    assert_eq!(code, 0);
    name.truncate(len);
    name
}

fn connect_to(name: &[u8]) -> (*mut FidEp, *mut FidEq) {
    connect_as(&wish(), name)
}

/// Like [`connect_to`], with an endpoint of another kind.
pub(crate) fn connect_as(wish: &Wish, name: &[u8]) -> (*mut FidEp, *mut FidEq) {
    let (fabric, domain) = open_domain(wish.version, wish.info());
    let eq = event_queue(fabric);
    let (ep, _, _) = open_disabled(domain, wish.info());
    assert_eq!(bind(ep.cast(), eq.cast(), 0), 0);
    // SAFETY: a live handle, and the name of a passive endpoint.
    let code = unsafe { ((*(*ep).cm).connect)(ep, name.as_ptr().cast(), null_mut(), 0) };
    assert_eq!(code, 0);
    (ep, eq)
}

#[test]
fn closing_a_passive_endpoint_removes_its_requests() {
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let pep = listen(fabric, eq);
    let (ep, theirs) = connect(pep);
    wait_for(eq, Ok(FI_CONNREQ));
    assert_eq!(close(pep.cast()), 0);
    assert_eq!(look(eq), Err(AGAIN));
    // The client is refused and does not wait.
    wait_for(theirs, Err(-259));
    assert_eq!(close(ep.cast()), 0);
    assert_eq!(look(theirs), Err(AGAIN), "the endpoint is closed");
    assert_eq!((close(eq.cast()), close(theirs.cast())), (0, 0));
}

/// The connection fails or is made after its endpoint was closed.
#[test]
fn a_closed_endpoint_gets_no_events() {
    for accepts in [true, false] {
        let (fabric, _) = open_domain(wish().version, wish().info());
        let eq = event_queue(fabric);
        let pep = listen(fabric, eq);
        let (ep, theirs) = connect(pep);
        wait_for(eq, Ok(FI_CONNREQ));
        assert_eq!(close(ep.cast()), 0);
        if accepts {
            let (here, _) = accept(fabric, eq);
            let started = Instant::now();
            while look(eq) == Err(AGAIN) && started.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_micros(200));
            }
            assert_eq!(close(here.cast()), 0);
            assert_eq!(look(eq), Err(AGAIN));
        }
        assert_eq!(close(pep.cast()), 0);
        // Gives the connecting thread time to notice; it must report nothing.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(look(theirs), Err(AGAIN));
    }
}

/// Accepts the request in the queue. Returns the endpoint and its completion queue.
fn accept(fabric: *mut FidFabric, eq: *mut FidEq) -> (*mut FidEp, *mut FidCq) {
    accept_request(fabric, take(eq).info, eq, |_| {})
}

/// Like [`accept`], but also returns the request's `fi_info`; `prepare` runs before the endpoint connects, with a queue
/// for its events.
pub(crate) fn accept_request(
    fabric: *mut FidFabric,
    info: *mut Info,
    events: *mut FidEq,
    prepare: impl FnOnce(*mut FidEp),
) -> (*mut FidEp, *mut FidCq) {
    let mut domain = null_mut();
    // SAFETY: live handles, and the `fi_info` of a request.
    unsafe {
        let open = (*(*fabric).ops).domain;
        assert_eq!(open(fabric, info, &mut domain, null_mut()), 0);
        let (here, cq, _) = open_disabled(domain, info);
        assert_eq!(bind(here.cast(), events.cast(), 0), 0);
        assert_eq!(control(here.cast(), FI_ENABLE, null_mut()), 0);
        prepare(here);
        assert_eq!(((*(*here).cm).accept)(here, null_mut(), 0), 0);
        (here, cq)
    }
}

/// Takes the connection event in the queue.
pub(crate) fn take(eq: *mut FidEq) -> EqCmEntry {
    let (mut event, mut room) = (0, [0u64; 64]);
    let at = room.as_mut_ptr().cast();
    // SAFETY: the handle is live, the memory is our own, and the event is one of a connection.
    unsafe {
        let read = (*(*eq).ops).read;
        assert!(read(eq, &mut event, at, size_of_val(&room), 0) > 0);
        room.as_ptr().cast::<EqCmEntry>().read()
    }
}

/// A client closes as soon as it is connected. The server reads the connection event first, then its end, and gets its
/// receives back, both those posted before the end and those posted after it.
#[test]
fn a_shutdown_is_reported_after_the_connection() {
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let pep = listen(fabric, eq);
    for round in 0..12 {
        let (ep, theirs) = connect(pep);
        wait_for(eq, Ok(FI_CONNREQ));
        let (ours, client) = (event_queue(fabric), (ep as usize, theirs as usize));
        let client = std::thread::spawn(move || {
            let (ep, theirs) = (client.0 as *mut FidEp, client.1 as *mut FidEq);
            wait_for(theirs, Ok(FI_CONNECTED));
            // SAFETY: the handle is live.
            assert_eq!(unsafe { ((*(*ep).cm).shutdown)(ep, 0) }, 0);
        });
        let (here, cq) = accept_request(fabric, take(eq).info, ours, |ep| post(ep, 1));
        // A thread polls all the time, even before the connection is established.
        let started = Instant::now();
        while look(ours) == Err(AGAIN) {
            let _ = poll(cq).map(|flushed| assert_flushed(flushed, 1));
            assert!(started.elapsed() < PATIENCE, "no event");
        }
        assert_eq!(look(ours), Ok(FI_CONNECTED), "round {round}");
        take(ours);
        while look(ours) == Err(AGAIN) {
            let _ = poll(cq).map(|flushed| assert_flushed(flushed, 1));
            assert!(started.elapsed() < PATIENCE, "no event");
        }
        assert_eq!(look(ours), Ok(FI_SHUTDOWN), "round {round}");
        take(ours);
        post(here, 2);
        while !poll(cq).is_some_and(|flushed| assert_flushed(flushed, 2)) {
            assert!(started.elapsed() < PATIENCE, "a receive waits forever");
        }
        client.join().unwrap();
        let all: [*mut Fid; 4] = [here.cast(), ep.cast(), ours.cast(), theirs.cast()];
        assert_eq!(all.map(close), [0; 4]);
    }
    assert_eq!(close(pep.cast()), 0);
}

/// Posts an empty receive.
fn post(ep: *mut FidEp, context: usize) {
    let context = context as *mut c_void;
    // SAFETY: the handle is live; no memory is passed.
    let code = unsafe { ((*(*ep).msg).recv)(ep, null_mut(), 0, null_mut(), 0, context) };
    assert_eq!(code, 0);
}

/// Checks that a receive was flushed. Returns whether it is the one with this context.
fn assert_flushed(flushed: Result<CqTaggedEntry, CqErrEntry>, context: usize) -> bool {
    let Err(error) = flushed else {
        panic!("nothing was sent");
    };
    assert_eq!(error.err, libc::ECANCELED);
    error.op_context as usize == context
}

/// Without requests in progress, only polling the queue detects the end.
#[test]
fn a_program_that_only_polls_notices_that_its_peer_was_killed() {
    if is_peer() {
        let hex = hear().unwrap();
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let name: Vec<u8> = (0..hex.len()).step_by(2).map(digits).collect();
        let (_, eq) = connect_to(&name);
        wait_for(eq, Ok(FI_CONNECTED));
        say("connected");
        while hear().is_some() {}
        return;
    }
    let test = "connected::a_program_that_only_polls_notices_that_its_peer_was_killed";
    let mut peer = Peer::start(test, &[]);
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let pep = listen(fabric, eq);
    let hex: Vec<String> = name_of_pep(pep)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    peer.tell(&hex.concat());
    wait_for(eq, Ok(FI_CONNREQ));
    let (here, cq) = accept(fabric, eq);
    wait_for(eq, Ok(FI_CONNECTED));
    take(eq);
    assert_eq!(peer.heard(), "connected");
    peer.signal(libc::SIGKILL);
    let started = Instant::now();
    while look(eq) == Err(AGAIN) {
        assert!(poll(cq).is_none());
        assert!(started.elapsed() < PATIENCE, "no event");
        std::thread::yield_now();
    }
    assert_eq!(look(eq), Ok(FI_SHUTDOWN));
    assert_eq!((close(here.cast()), close(pep.cast())), (0, 0));
}

/// Events that a program writes into its queue are only bytes, even if they look like connection requests: later requests are
/// still reported, and those of clients that have exited are removed.
#[test]
fn events_written_by_the_program_are_not_taken_for_requests() {
    let (fabric, _) = open_domain(wish().version, wish().info());
    let mut eq: *mut FidEq = null_mut();
    // SAFETY: the handle is live, the attributes are our own, and there is room for a handle.
    unsafe {
        let mut attr: EqAttr = std::mem::zeroed();
        attr.flags = FI_WRITE;
        let open = (*(*fabric).ops).eq_open;
        assert_eq!(open(fabric, &mut attr, &mut eq, null_mut()), 0);
    }
    let pep = listen(fabric, eq);
    // The second event is too short for a request; the third has an invalid address where a request has one.
    let written: [&[u8]; 3] = [b"", b"four", &[0x41; 32]];
    for bytes in written {
        // SAFETY: a live handle, and this many bytes.
        let code = unsafe {
            let write = (*(*eq).ops).write;
            write(eq, FI_CONNREQ, bytes.as_ptr().cast(), bytes.len(), 0)
        };
        assert_eq!(code, bytes.len() as isize);
    }
    let clients = [connect(pep), connect(pep)];
    // Both requests have usually arrived by then; otherwise the test shows less.
    std::thread::sleep(Duration::from_millis(200));
    for bytes in written {
        let (mut event, mut room) = (0, [0u8; 64]);
        // SAFETY: the handle is live, and the buffer is our own.
        let code = unsafe {
            let read = (*(*eq).ops).read;
            read(eq, &mut event, room.as_mut_ptr().cast(), room.len(), 0)
        };
        assert_eq!((code, event), (bytes.len() as isize, FI_CONNREQ));
        assert_eq!(&room[..bytes.len()], bytes);
    }
    // Both requests are reported, though the first found the program's events in the queue.
    for _ in clients {
        wait_for(eq, Ok(FI_CONNREQ));
        take(eq);
    }
    for (ep, theirs) in clients {
        assert_eq!((close(ep.cast()), close(theirs.cast())), (0, 0));
    }
    assert_eq!((close(pep.cast()), close(eq.cast())), (0, 0));
}
