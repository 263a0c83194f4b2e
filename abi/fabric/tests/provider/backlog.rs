//! Connection requests that the program does not answer: their number is limited.

use crate::connected::{accept_request, listen, look, name_of_pep, wait_for, wish};
use crate::harness::*;
use crate::peer::{Peer, is_peer, until};
use crate::silent::{first_words, say};
use rkey_fi::sys::*;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;

/// Clients.
const MANY: usize = 1000;
/// The maximum number of requests that wait at a passive endpoint (docs/api-fabric.md).
const BOUND: usize = 128;
const AGAIN: isize = -(libc::EAGAIN as isize);

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// An endpoint that requests a connection, and its events.
fn ask(pep: *mut FidPep) -> (*mut FidEp, *mut FidEq) {
    let (fabric, domain) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let (ep, _, _) = open_disabled(domain, wish().info());
    assert_eq!(bind(ep.cast(), eq.cast(), 0), 0);
    let (name, data) = (name_of_pep(pep), [7u8; 3]);
    let (to, data, len) = (name.as_ptr().cast(), data.as_ptr().cast(), data.len());
    // SAFETY: a live handle, the name of a passive endpoint, and data of this length.
    assert_eq!(unsafe { ((*(*ep).cm).connect)(ep, to, data, len) }, 0);
    (ep, eq)
}

/// Refuses requests until one has data, which it accepts. Returns its endpoint.
fn accept_real_one(pep: *mut FidPep, eq: *mut FidEq, fabric: *mut FidFabric) -> *mut FidEp {
    loop {
        until("a request", || look(eq) != Err(AGAIN));
        let (mut event, mut room) = (0, [0u64; 64]);
        let (at, len) = (room.as_mut_ptr().cast(), size_of_val(&room));
        // SAFETY: the handles are live, the memory is our own, and the `fi_info` is that of a request.
        unsafe {
            let got = ((*(*eq).ops).read)(eq, &mut event, at, len, 0);
            assert_eq!(event, FI_CONNREQ);
            let info = room.as_ptr().cast::<EqCmEntry>().read().info;
            if got as usize > size_of::<EqCmEntry>() {
                let events = event_queue(fabric);
                let (here, _) = accept_request(fabric, info, events, |_| {});
                wait_for(events, Ok(FI_CONNECTED));
                return here;
            }
            assert_eq!(((*(*pep).cm).reject)(pep, (*info).handle, null_mut(), 0), 0);
        }
    }
}

/// Whether a client has been answered.
fn is_answered(client: &OwnedFd) -> bool {
    let (fd, events, revents) = (client.as_raw_fd(), libc::POLLIN, 0);
    let mut set = libc::pollfd {
        fd,
        events,
        revents,
    };
    // SAFETY: a list of one.
    unsafe { libc::poll(&mut set, 1, 0) == 1 }
}

#[test]
fn unanswered_connection_requests_are_bounded() {
    let test = "backlog::unanswered_connection_requests_are_bounded";
    if !is_peer() {
        // The test counts descriptors, so it needs its own process.
        return Peer::start(test, &[]).finish();
    }
    let words = first_words(&Side::open(&Wish::default()));
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let pep = listen(fabric, eq);
    let address = address_of(&name_of_pep(pep));
    // Clients that request a connection and exit do not prevent others from connecting.
    let before = descriptors();
    for _ in 0..MANY {
        drop(say(&words, address));
    }
    // There are more clients than the kernel's queue holds, so the endpoint has accepted most of them.
    until("most sockets to be closed", || {
        descriptors() <= before + 2 * BOUND
    });
    let (ep, theirs) = ask(pep);
    let here = accept_real_one(pep, eq, fabric);
    wait_for(theirs, Ok(FI_CONNECTED));
    assert_eq!((close(here.cast()), close(ep.cast())), (0, 0));
    // The next clients stay: those beyond the bound are refused.
    let clients: Vec<_> = (0..MANY).map(|_| say(&words, address)).collect();
    let waiting = || clients.iter().filter(|it| !is_answered(it)).count();
    until("the refusals", || waiting() <= BOUND);
    assert_eq!(waiting(), BOUND);
    drop(clients);
    // There is room again for a client that behaves.
    let (ep, theirs) = ask(pep);
    let here = accept_real_one(pep, eq, fabric);
    wait_for(theirs, Ok(FI_CONNECTED));
    let rest: [*mut Fid; 3] = [here.cast(), ep.cast(), pep.cast()];
    assert_eq!(rest.map(close), [0; 3]);
}
