//! Addresses of endpoints: when they are taken, when they are free again, and what they are called.

use crate::connected::{listen, name_of_pep, wish};
use crate::harness::*;
use rkey_fi::sys::*;
use std::ptr::null_mut;

/// Close and open again at the same address.
const ROUNDS: usize = 1000;

/// A name that no other process of this host uses.
pub(crate) fn own_name(port: u16) -> Vec<u8> {
    let mut name = name_at(port);
    let [_, rest @ ..] = std::process::id().to_be_bytes();
    name[5..8].copy_from_slice(&rest);
    name
}

fn setname<T>(object: *mut T, cm: *const OpsCm, name: &[u8]) -> i32 {
    // SAFETY: a live handle, its calls, and so many bytes.
    unsafe { ((*cm).setname)(object.cast(), name.as_ptr().cast_mut().cast(), name.len()) }
}

/// An endpoint at this address.
fn open_at(domain: *mut FidDomain, info: *mut Info, name: &[u8]) -> *mut FidEp {
    let (ep, _, av) = open_disabled(domain, info);
    assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
    // SAFETY: a live handle.
    assert_eq!(setname(ep, unsafe { (*ep).cm }, name), 0);
    ep
}

fn passive(fabric: *mut FidFabric, eq: *mut FidEq, name: &[u8]) -> *mut FidPep {
    let mut pep = null_mut();
    // SAFETY: live handles, and an information of the provider's.
    unsafe {
        let open = (*(*fabric).ops).passive_ep;
        assert_eq!(open(fabric, wish().info(), &mut pep, null_mut()), 0);
        assert_eq!(bind(pep.cast(), eq.cast(), 0), 0);
        assert_eq!(setname(pep, (*pep).cm, name), 0);
    }
    pep
}

#[test]
fn the_address_of_a_closed_endpoint_is_free() {
    let wish = Wish::default();
    let info = wish.info();
    let (_, domain) = open_domain(wish.version, info);
    // Another one is listened for all the time.
    let other = open_at(domain, info, &own_name(1));
    assert_eq!(control(other.cast(), FI_ENABLE, null_mut()), 0);
    let name = own_name(2);
    for round in 0..ROUNDS {
        let ep = open_at(domain, info, &name);
        let enabled = control(ep.cast(), FI_ENABLE, null_mut());
        assert_eq!((round, enabled), (round, 0));
        assert_eq!(name_of(ep), name);
        assert_eq!(close(ep.cast()), 0);
    }
    assert_eq!(close(other.cast()), 0);
}

#[test]
fn the_address_of_a_closed_passive_endpoint_is_free() {
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let other = listen(fabric, eq);
    let name = own_name(3);
    for round in 0..ROUNDS {
        let pep = passive(fabric, eq, &name);
        // SAFETY: a live handle.
        let listens = unsafe { ((*(*pep).cm).listen)(pep) };
        assert_eq!((round, listens), (round, 0));
        assert_eq!(name_of_pep(pep), name);
        assert_eq!(close(pep.cast()), 0);
    }
    assert_eq!(close(other.cast()), 0);
}
