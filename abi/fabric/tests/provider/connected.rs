//! Events of connections: the end of a peer is one, and of what has been closed there are none.

use crate::harness::*;
use crate::peer::{Peer, hear, is_peer, say};
use rkey_fi::sys::*;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const AGAIN: isize = -(libc::EAGAIN as isize);

fn wish() -> Wish {
    Wish {
        ep_type: FI_EP_MSG,
        ..Wish::default()
    }
}

/// Looks at a queue without taking anything: the kind of the event, or why there is none.
fn look(eq: *mut FidEq) -> Result<u32, isize> {
    let (mut event, mut room) = (0, [0u64; 64]);
    let at = room.as_mut_ptr().cast();
    // SAFETY: a live handle, and room of our own.
    let code = unsafe { ((*(*eq).ops).read)(eq, &mut event, at, size_of_val(&room), FI_PEEK) };
    if code > 0 { Ok(event) } else { Err(code) }
}

fn wait_for(eq: *mut FidEq, wanted: Result<u32, isize>) {
    let started = Instant::now();
    while look(eq) != wanted {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{:?}",
            look(eq)
        );
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A passive endpoint that listens.
fn listen(fabric: *mut FidFabric, eq: *mut FidEq) -> *mut FidPep {
    let mut pep = null_mut();
    // SAFETY: live handles, and an information of the provider's.
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

fn name_of_pep(pep: *mut FidPep) -> Vec<u8> {
    let mut name = vec![0u8; 128];
    let mut len = name.len();
    let at = name.as_mut_ptr().cast();
    // SAFETY: a live handle, and room of our own.
    let code = unsafe { ((*(*pep).cm).getname)(pep.cast(), at, &mut len) };
    assert_eq!(code, 0);
    name.truncate(len);
    name
}

fn connect_to(name: &[u8]) -> (*mut FidEp, *mut FidEq) {
    let (fabric, domain) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let (ep, _, _) = open_disabled(domain, wish().info());
    assert_eq!(bind(ep.cast(), eq.cast(), 0), 0);
    // SAFETY: a live handle, and a name as a passive endpoint gave it.
    let code = unsafe { ((*(*ep).cm).connect)(ep, name.as_ptr().cast(), null_mut(), 0) };
    assert_eq!(code, 0);
    (ep, eq)
}

#[test]
fn a_request_goes_with_the_passive_endpoint_that_it_was_for() {
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let pep = listen(fabric, eq);
    let (ep, theirs) = connect(pep);
    wait_for(eq, Ok(FI_CONNREQ));
    assert_eq!(close(pep.cast()), 0);
    assert_eq!(look(eq), Err(AGAIN));
    // The client is refused, and not left waiting.
    wait_for(theirs, Err(-259));
    assert_eq!(close(ep.cast()), 0);
    assert_eq!(look(theirs), Err(AGAIN), "of a closed endpoint");
    assert_eq!((close(eq.cast()), close(theirs.cast())), (0, 0));
}

/// A connection that fails or is made after its endpoint was closed.
#[test]
fn a_closed_endpoint_is_not_heard_of() {
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
            while look(eq) == Err(AGAIN) && started.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_micros(200));
            }
            assert_eq!(close(here.cast()), 0);
            assert_eq!(look(eq), Err(AGAIN));
        }
        assert_eq!(close(pep.cast()), 0);
        // Time for the thread that was connecting to hear of it: it has nothing to tell.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(look(theirs), Err(AGAIN));
    }
}

/// Accepts the request that is in the queue: the endpoint and its completion queue.
fn accept(fabric: *mut FidFabric, eq: *mut FidEq) -> (*mut FidEp, *mut FidCq) {
    let info = take(eq).info;
    let mut domain = null_mut();
    // SAFETY: live handles, and the information of a request.
    unsafe {
        let open = (*(*fabric).ops).domain;
        assert_eq!(open(fabric, info, &mut domain, null_mut()), 0);
        let (here, cq, _) = open_disabled(domain, info);
        assert_eq!(bind(here.cast(), eq.cast(), 0), 0);
        assert_eq!(((*(*here).cm).accept)(here, null_mut(), 0), 0);
        (here, cq)
    }
}

/// Takes the event of a connection that is in the queue.
fn take(eq: *mut FidEq) -> EqCmEntry {
    let (mut event, mut room) = (0, [0u64; 64]);
    let at = room.as_mut_ptr().cast();
    // SAFETY: a live handle, room of our own, and an event that is one of a connection.
    unsafe {
        let read = (*(*eq).ops).read;
        assert!(read(eq, &mut event, at, size_of_val(&room), 0) > 0);
        room.as_ptr().cast::<EqCmEntry>().read()
    }
}

/// Nothing is under way: only looking at the queue tells.
#[test]
fn the_end_of_a_process_is_noticed_by_a_peer_that_only_looks() {
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
    let test = "connected::the_end_of_a_process_is_noticed_by_a_peer_that_only_looks";
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
        assert!(started.elapsed() < Duration::from_secs(20), "no event");
        std::thread::yield_now();
    }
    assert_eq!(look(eq), Ok(FI_SHUTDOWN));
    assert_eq!((close(here.cast()), close(pep.cast())), (0, 0));
}
