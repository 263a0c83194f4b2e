//! Addresses of endpoints: when they are reserved and released, and their names.

use crate::connected::{accept_request, listen, name_of_pep, take, wait_for, wish};
use crate::harness::*;
use crate::peer::{is_peer, rerun};
use rkey_fi::sys::*;
use std::ptr::null_mut;

/// How many times an endpoint at the same address is closed and opened again.
const ROUNDS: usize = 1000;

/// A name that no other process of this host uses.
pub(crate) fn own_name(port: u16) -> Vec<u8> {
    let mut name = name_at(port);
    let [_, rest @ ..] = std::process::id().to_be_bytes();
    name[5..8].copy_from_slice(&rest);
    name
}

fn setname<T>(object: *mut T, cm: *const OpsCm, name: &[u8]) -> i32 {
    // SAFETY: a live handle and its operations; the length is the buffer's.
    unsafe { ((*cm).setname)(object.cast(), name.as_ptr().cast_mut().cast(), name.len()) }
}

/// An endpoint at this address.
fn open_at(domain: *mut FidDomain, info: *mut Info, name: &[u8]) -> *mut FidEp {
    let (ep, _, _) = open_disabled(domain, info);
    // SAFETY: the handle is live.
    assert_eq!(setname(ep, unsafe { (*ep).cm }, name), 0);
    ep
}

fn passive(fabric: *mut FidFabric, eq: *mut FidEq, name: &[u8]) -> *mut FidPep {
    let mut pep = null_mut();
    // SAFETY: live handles, and the provider's `fi_info`.
    unsafe {
        let open = (*(*fabric).ops).passive_ep;
        assert_eq!(open(fabric, wish().info(), &mut pep, null_mut()), 0);
        assert_eq!(bind(pep.cast(), eq.cast(), 0), 0);
        assert_eq!(setname(pep, (*pep).cm, name), 0);
    }
    pep
}

/// Whether this process runs only this test. If not, runs such a process and waits for it: in a process that runs other tests, too,
/// one of them may be starting a program, which briefly holds copies of all sockets.
fn is_alone(test: &str) -> bool {
    if !is_peer() {
        let output = rerun(test).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{output:?}"
        );
    }
    is_peer()
}

#[test]
fn the_address_of_a_closed_endpoint_is_free() {
    if !is_alone("addresses::the_address_of_a_closed_endpoint_is_free") {
        return;
    }
    let wish = Wish::default();
    let info = wish.info();
    let (_, domain) = open_domain(wish.version, info);
    // A listener at another address stays open.
    let (other, _, av) = open_ep(domain, info);
    let enable = |ep: *mut FidEp, av: *mut FidAv| {
        assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
        control(ep.cast(), FI_ENABLE, null_mut())
    };
    let name = own_name(2);
    for round in 0..ROUNDS {
        let ep = open_at(domain, info, &name);
        assert_eq!((round, enable(ep, av)), (round, 0));
        assert_eq!(name_of(ep), name);
        assert_eq!(close(ep.cast()), 0);
    }
    assert_eq!(close(other.cast()), 0);
}

#[test]
fn the_address_of_a_closed_passive_endpoint_is_free() {
    if !is_alone("addresses::the_address_of_a_closed_passive_endpoint_is_free") {
        return;
    }
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let other = listen(fabric, eq);
    let name = own_name(3);
    for round in 0..ROUNDS {
        let pep = passive(fabric, eq, &name);
        // SAFETY: the handle is live.
        let listens = unsafe { ((*(*pep).cm).listen)(pep) };
        assert_eq!((round, listens), (round, 0));
        assert_eq!(name_of_pep(pep), name);
        assert_eq!(close(pep.cast()), 0);
    }
    assert_eq!(close(other.cast()), 0);
}

const TAKEN: i32 = -libc::EADDRINUSE;
const BAD_STATE: i32 = -258;

fn port(name: &[u8]) -> u16 {
    u16::from_be_bytes([name[2], name[3]])
}

/// The endpoint owns the address from `fi_setname` on, before anything listens or connects there, until the endpoint is
/// closed.
#[test]
fn fi_setname_reserves_the_address() {
    if !is_alone("addresses::fi_setname_reserves_the_address") {
        return;
    }
    let wish = Wish::default();
    for ep_type in [FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM] {
        let wish = Wish { ep_type, ..wish };
        let info = wish.info();
        let (_, domain) = open_domain(wish.version, info);
        let free = own_name(0);
        let first = open_at(domain, info, &free);
        let name = name_of(first);
        assert_ne!(port(&name), 0);
        assert_eq!(name[4..8], free[4..8]);
        let (second, _, _) = open_disabled(domain, info);
        // SAFETY: the handle is live.
        let cm = unsafe { (*second).cm };
        assert_eq!(setname(second, cm, &name), TAKEN);
        // The assigned port is kept if none is requested, and may be requested again.
        assert_eq!(setname(first, cm, &free), 0);
        assert_eq!(setname(first, cm, &name), 0);
        assert_eq!(name_of(first), name);
        assert_eq!(setname(first, cm, &name[..7]), -libc::EINVAL);
        // Another address has a different port; the old one is free.
        let other = own_name(4);
        assert_eq!(setname(first, cm, &other), 0);
        assert_eq!(name_of(first), other);
        assert_eq!(setname(second, cm, &name), 0);
        assert_eq!(close(first.cast()), 0);
        assert_eq!(setname(second, cm, &other), 0);
        assert_eq!(close(second.cast()), 0);
    }
}

#[test]
fn a_name_does_not_change_when_the_endpoint_listens_or_connects() {
    let (fabric, domain) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let pep = passive(fabric, eq, &own_name(0));
    let listener = name_of_pep(pep);
    assert_ne!(port(&listener), 0);
    // SAFETY: the handle is live.
    assert_eq!(unsafe { ((*(*pep).cm).listen)(pep) }, 0);
    assert_eq!(name_of_pep(pep), listener);
    for named in [None, Some(own_name(0)), Some(own_name(5))] {
        let (ep, _, _) = open_disabled(domain, wish().info());
        let theirs = event_queue(fabric);
        assert_eq!(bind(ep.cast(), theirs.cast(), 0), 0);
        // SAFETY: live handles, and the name of a passive endpoint.
        unsafe {
            let cm = &*(*ep).cm;
            if let Some(name) = &named {
                assert_eq!(setname(ep, cm, name), 0);
            }
            let name = name_of(ep);
            assert_ne!(port(&name), 0);
            assert_eq!((cm.connect)(ep, listener.as_ptr().cast(), null_mut(), 0), 0);
            assert_eq!(name_of(ep), name);
            assert_eq!(setname(ep, cm, &own_name(6)), BAD_STATE);
            wait_for(eq, Ok(FI_CONNREQ));
            let (here, _) = accept_request(fabric, take(eq).info, eq, |_| {});
            wait_for(theirs, Ok(FI_CONNECTED));
            wait_for(eq, Ok(FI_CONNECTED));
            take(eq);
            // Both sides report the same names for the two endpoints.
            assert_eq!(
                (name_of(ep), name_of(here)),
                (name.clone(), listener.clone())
            );
            assert_eq!((peer_of(ep), peer_of(here)), (listener.clone(), name));
            assert_eq!((close(ep.cast()), close(here.cast())), (0, 0));
        }
    }
    assert_eq!(close(pep.cast()), 0);
}

/// The name of the peer that an endpoint is connected to.
fn peer_of(ep: *mut FidEp) -> Vec<u8> {
    let (mut name, mut len) = (vec![0u8; 128], 128);
    // SAFETY: the handle is live, and the buffer is our own.
    let code = unsafe { ((*(*ep).cm).getpeer)(ep, name.as_mut_ptr().cast(), &mut len) };
    assert_eq!(code, 0);
    name.truncate(len);
    name
}

/// For programs that do not know initially which side they are (fi_endpoint(3)): a passive endpoint reserves the address,
/// and an endpoint opened with its handle connects from there.
#[test]
fn an_endpoint_takes_over_the_address_of_a_passive_one() {
    if !is_alone("addresses::an_endpoint_takes_over_the_address_of_a_passive_one") {
        return;
    }
    let (fabric, domain) = open_domain(wish().version, wish().info());
    let (eq, theirs) = (event_queue(fabric), event_queue(fabric));
    let listener = listen(fabric, eq);
    let pep = passive(fabric, theirs, &own_name(0));
    let name = name_of_pep(pep);
    let made = |info: *mut Info, handle: *mut Fid| {
        let mut ep = null_mut();
        // SAFETY: live handles, and the provider's `fi_info`.
        let code = unsafe {
            (*info).handle = handle;
            ((*(*domain).ops).endpoint)(domain, info, &mut ep, null_mut())
        };
        if code == 0 { Ok(ep) } else { Err(code) }
    };
    // Taking over the address fails for an endpoint of another kind, after listening, and in a domain of another fabric.
    let unconnected = Wish::default().info();
    assert_eq!(made(unconnected, pep.cast()), Err(-libc::EINVAL));
    assert_eq!(made(wish().info(), listener.cast()), Err(BAD_STATE));
    let (foreign, _) = open_domain(wish().version, wish().info());
    let others = event_queue(foreign);
    let strange = passive(foreign, others, &own_name(0));
    assert_eq!(made(wish().info(), strange.cast()), Err(-libc::EINVAL));
    assert_eq!(close(strange.cast()), 0);
    assert_eq!(name_of_pep(pep), name, "nothing has changed");

    let ep = made(wish().info(), pep.cast()).unwrap();
    // From now on, the passive endpoint is unusable, and bound to nothing.
    assert_eq!(made(wish().info(), pep.cast()), Err(BAD_STATE));
    // SAFETY: the handle is live.
    assert_eq!(unsafe { ((*(*pep).cm).listen)(pep) }, BAD_STATE);
    // SAFETY: as above.
    assert_eq!(setname(pep, unsafe { (*pep).cm }, &own_name(7)), BAD_STATE);
    assert_eq!(bind(pep.cast(), theirs.cast(), 0), BAD_STATE);
    assert_eq!(close(theirs.cast()), 0);
    assert_eq!(close(pep.cast()), 0);
    assert_eq!(name_of(ep), name);
    let again = passive(fabric, eq, &own_name(0));
    // SAFETY: as above.
    assert_eq!(setname(again, unsafe { (*again).cm }, &name), TAKEN);

    let (other, cq, _) = open_disabled(domain, wish().info());
    assert_eq!(close(other.cast()), 0);
    let theirs = event_queue(fabric);
    assert_eq!(bind(ep.cast(), cq.cast(), FI_SEND | FI_RECV), 0);
    assert_eq!(bind(ep.cast(), theirs.cast(), 0), 0);
    let at = name_of_pep(listener);
    // SAFETY: live handles, and the name of a passive endpoint.
    unsafe {
        let code = ((*(*ep).cm).connect)(ep, at.as_ptr().cast(), null_mut(), 0);
        assert_eq!(code, 0);
        wait_for(eq, Ok(FI_CONNREQ));
        let (here, _) = accept_request(fabric, take(eq).info, eq, |_| {});
        wait_for(theirs, Ok(FI_CONNECTED));
        wait_for(eq, Ok(FI_CONNECTED));
        assert_eq!((name_of(ep), peer_of(here)), (name.clone(), name.clone()));
        assert_eq!((close(ep.cast()), close(here.cast())), (0, 0));
        // Closing the endpoint releases the address that it took over.
        assert_eq!(setname(again, (*again).cm, &name), 0);
    }
    let all: [*mut Fid; 2] = [again.cast(), listener.cast()];
    assert_eq!(all.map(close), [0; 2]);
}

/// The address in a `fi_info` is also reserved, by a passive endpoint at once.
#[test]
fn a_passive_endpoint_reserves_the_source_address_of_its_info() {
    if !is_alone("addresses::a_passive_endpoint_reserves_the_source_address_of_its_info") {
        return;
    }
    let (fabric, domain) = open_domain(wish().version, wish().info());
    let name = own_name(8);
    let at = |ep_type| {
        let info = Wish { ep_type, ..wish() }.info();
        // SAFETY: the provider's `fi_info`, and a name of the same length as the one there.
        unsafe {
            assert_eq!((*info).src_addrlen, name.len());
            let to = (*info).src_addr.cast::<u8>();
            std::ptr::copy_nonoverlapping(name.as_ptr(), to, name.len());
        }
        info
    };
    let passive = || {
        let mut pep = null_mut();
        // SAFETY: live handles, and the provider's `fi_info`.
        let code =
            unsafe { ((*(*fabric).ops).passive_ep)(fabric, at(FI_EP_MSG), &mut pep, null_mut()) };
        if code == 0 { Ok(pep) } else { Err(code) }
    };
    let pep = passive().unwrap();
    assert_eq!(name_of_pep(pep), name);
    assert_eq!(passive(), Err(TAKEN));
    // An endpoint that only connects may share the address, as it may share a port with a listener.
    let (ep, _, _) = open_disabled(domain, at(FI_EP_MSG));
    assert_eq!(name_of(ep), name);
    assert_eq!((close(pep.cast()), close(ep.cast())), (0, 0));
    // If no endpoint has the address, it is reserved.
    let (ep, _, _) = open_disabled(domain, at(FI_EP_MSG));
    assert_eq!(name_of(ep), name);
    assert_eq!(passive(), Err(TAKEN));
    assert_eq!(close(ep.cast()), 0);
    assert_eq!(close(passive().unwrap().cast()), 0);
}
