//! Address handles: the destinations of datagrams.
//!
//! A queue pair number is unique on a host, so an address only has to identify a host or a multicast group.
//! Hops, flow labels and rates are stored but have no effect.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::context::ContextObject;
use crate::device::gid;
use crate::device::limits::MAX_AH;
use crate::device::port::PORT;
use crate::memory::pd::PdObject;
use crate::object::{Object, find, input, insert, output, remove};
use crate::sys::consts::WC_GRH;
use crate::sys::{Ah, AhAttr, Context, Gid, GlobalRoute, Grh, Pd, Wc};
use rkey_device::Device;
use rkey_device::engine::{Route, WirePeer};
use rkey_device::wire::Wire;
use rkey_kit::settings::LOCAL_ROUTES;
use rkey_kit::{Errno, c_call};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::OnceLock;

/// An address handle, as the program sees it.
#[repr(C)]
pub struct AhObject {
    c: UnsafeCell<Ah>,
    /// Destination and source GID.
    pub route: Route,
    /// The path to the destination, if it is on another host.
    pub wire: bool,
}

// SAFETY: the C structure is written only while the object is created.
unsafe impl Sync for AhObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for AhObject {}

rkey_kit::object!(AhObject, c: Ah, MAX_AH);

/// Checks the address of a peer; returns the path to the peer, if it is on another host. The source of a global route must be a GID
/// of the table, and its destination a GID of this host, a multicast group or, if the device has a wire (`RKEY_WIRE`), an address of
/// another host. An address without a global route is in the same subnet, and thus on this host; programs that use only LIDs (qperf)
/// rely on this.
///
/// # Errors
/// `EINVAL`: the port is not 1, or no GID has the index; `ENETUNREACH`: the destination cannot be reached.
pub fn check(device: &Device, attr: &AhAttr) -> Result<Option<WirePeer>, Errno> {
    if u32::from(attr.port_num) != PORT {
        return Err(Errno::INVAL);
    }
    if attr.is_global == 0 {
        return Ok(None);
    }
    let Some(source) = gid::get(attr.grh.sgid_index.into()) else {
        tracing::warn!(
            "no GID has index {}; choose an index that `ibv_devinfo -v` lists",
            attr.grh.sgid_index
        );
        return Err(Errno::INVAL);
    };
    if gid::is_multicast(attr.grh.dgid) || gid::is_ours(attr.grh.dgid) {
        return Ok(None);
    }
    let peer = WirePeer::of(&route(attr, source.gid));
    let WirePeer { local, remote } = peer;
    let Some(wire) = device.wire() else {
        tracing::warn!(
            "GID {remote} is not on this host: to reach other hosts, set RKEY_WIRE=auto"
        );
        return Err(Errno::NETUNREACH);
    };
    if !wire.serves(local) || local.is_ipv4() != remote.is_ipv4() {
        tracing::warn!(
            "GID {remote} cannot be reached from GID {local} (index {}): {}",
            attr.grh.sgid_index,
            advice(&sources(wire, remote))
        );
        return Err(Errno::NETUNREACH);
    }
    Ok(Some(peer))
}

/// The indexes and addresses of the GIDs that packets to a host can come from.
fn sources(wire: &Wire, remote: IpAddr) -> Vec<(usize, IpAddr)> {
    let own = gid::table().into_iter().enumerate();
    own.map(|(index, entry)| (index, gid::address(entry.gid)))
        .filter(|(_, own)| wire.serves(*own) && own.is_ipv4() == remote.is_ipv4())
        .collect()
}

/// What to do about a source GID that cannot be used, if these can.
fn advice(sources: &[(usize, IpAddr)]) -> String {
    let Some(((index, address), others)) = sources.split_first() else {
        return "RKEY_WIRE lists no address of that family".to_owned();
    };
    let mut text = format!("choose GID index {index} ({address})");
    for (index, address) in others {
        let _ = write!(text, " or {index} ({address})");
    }
    text
}

/// The route of an address, from a GID of this host.
fn route(attr: &AhAttr, source: Gid) -> Route {
    Route {
        source: source.0,
        target: attr.grh.dgid.0,
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
    }
}

/// Whether address handles may lack a global route, although Ethernet ports require one: some programs
/// (qperf with datagrams) never set it.
fn allows_local_routes() -> bool {
    static TAKES: OnceLock<bool> = OnceLock::new();
    *TAKES.get_or_init(|| match LOCAL_ROUTES.value() {
        Ok(value) => value.as_deref() == Some("1"),
        Err(error) => {
            tracing::warn!("{error}; using {}", LOCAL_ROUTES.default);
            false
        }
    })
}

/// `ibv_create_ah`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let (object, attr) = unsafe { (find::<PdObject>(pd)?, input(attr)?) };
        if attr.is_global == 0 && !allows_local_routes() {
            tracing::warn!(
                "this address handle has no global route, and an Ethernet port needs one: set is_global (most programs have an option such as -g 0), or allow it for peers on this host with {}=1",
                LOCAL_ROUTES.name
            );
            return Err(Errno::INVAL);
        }
        // SAFETY: a protection domain keeps its context alive.
        let context = unsafe { find::<ContextObject>(object.context)? };
        let wire = check(context.device(), attr)?.is_some();
        let c = UnsafeCell::new(Ah {
            context: object.context,
            pd,
            handle: 0,
        });
        let handle = insert(AhObject {
            c,
            route: route(
                attr,
                gid::get(attr.grh.sgid_index.into()).map_or(Gid([0; 16]), |entry| entry.gid),
            ),
            wire,
        })?;
        object.users.add();
        Ok(handle)
    })
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// No other thread may use the address handle.
pub unsafe extern "C" fn destroy_ah(ah: *mut Ah) -> c_int {
    c_call(|| {
        // SAFETY: `remove` and `find` validate the handle; the object keeps its protection domain alive.
        unsafe {
            let object = remove::<AhObject>(ah)?;
            if let Ok(pd) = find::<PdObject>((*object.c.get()).pd) {
                pd.users.remove();
            }
        }
        Ok(0)
    })
}

/// The source and the destination GID in the header of a datagram. If it arrived over IPv4, the last 20 of the 40 bytes are its
/// IPv4 header, and the first 20 are unused.
fn gids(grh: &Grh) -> (Gid, Gid) {
    const FIRST_WORD: usize = 20 - 8;
    // The header from its ninth byte on.
    let mut rest = [0; 32];
    rest[..16].copy_from_slice(&grh.sgid.0);
    rest[16..].copy_from_slice(&grh.dgid.0);
    if grh.version_tclass_flow != 0 || rest[FIRST_WORD] != 0x45 {
        return (grh.sgid, grh.dgid);
    }
    let mapped = |at: usize| {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&rest[at..at + 4]);
        Gid(gid)
    };
    (mapped(FIRST_WORD + 12), mapped(FIRST_WORD + 16))
}

/// The address of the sender of a datagram.
fn sender(wc: &Wc, grh: Option<&Grh>) -> AhAttr {
    let gids = grh.map(gids);
    let mut dgid = gids.map_or(Gid([0; 16]), |(source, _)| source);
    // A datagram without a header comes from this host.
    if dgid == Gid([0; 16]) {
        dgid = gid::table().first().map_or(dgid, |entry| entry.gid);
    }
    let sgid_index = gids
        .and_then(|(_, ours)| gid::table().iter().position(|entry| entry.gid == ours))
        .unwrap_or(0);
    AhAttr {
        grh: GlobalRoute {
            dgid,
            sgid_index: sgid_index as u8,
            hop_limit: 0xff,
            ..GlobalRoute::default()
        },
        dlid: wc.slid,
        sl: wc.sl,
        is_global: 1,
        port_num: PORT as u8,
        ..AhAttr::default()
    }
}

/// `ibv_init_ah_from_wc`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output; `grh` is null or readable, at any alignment.
pub unsafe extern "C" fn init_ah_from_wc(
    context: *mut Context,
    port: u8,
    wc: *mut Wc,
    grh: *mut Grh,
    attr: *mut AhAttr,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` and `output` refuse null; the caller guarantees the rest;
        // the header need not be aligned.
        let (wc, attr) = unsafe {
            find::<ContextObject>(context)?;
            (input(wc)?, output(attr)?)
        };
        if u32::from(port) != PORT {
            return Err(Errno::INVAL);
        }
        let with_grh = wc.wc_flags & WC_GRH != 0 && !grh.is_null();
        // SAFETY: the pointer is not null, and the completion says that the header is valid.
        let grh = with_grh.then(|| unsafe { grh.read_unaligned() });
        *attr = sender(wc, grh.as_ref());
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and attributes.
pub unsafe extern "C" fn create_ah_from_wc(
    pd: *mut Pd,
    wc: *mut Wc,
    grh: *mut Grh,
    port: u8,
) -> *mut Ah {
    // SAFETY: `find` validates the handle.
    let context = unsafe { find::<PdObject>(pd) }.map_or(std::ptr::null_mut(), |pd| pd.context);
    let mut attr = AhAttr::default();
    // SAFETY: guaranteed by the caller.
    unsafe {
        if init_ah_from_wc(context, port, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        create_ah(pd, &raw mut attr)
    }
}

/// `ibv_resolve_eth_l2_from_gid`. The device never puts this address into an Ethernet frame, so any address works.
///
/// # Safety
/// See [`crate::object`] for the rules of handles and output.
pub unsafe extern "C" fn resolve_eth_l2_from_gid(
    context: *mut Context,
    attr: *mut AhAttr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    c_call(|| {
        // SAFETY: `find` and `check` validate the handle; `input` and `output` refuse null, the caller guarantees
        // the rest.
        let mac = unsafe {
            let context = find::<ContextObject>(context)?;
            check(context.device(), input(attr)?)?;
            output(mac)?
        };
        *mac = [2, 0, 0, 0, 0, 1];
        if !vlan.is_null() {
            // SAFETY: not null; the caller guarantees the room.
            unsafe { *vlan = u16::MAX };
        }
        Ok(0)
    })
}

/// Destroys the remaining address handles of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in AhObject::pool().live(|ah| (*ah.c.get()).context == context) {
            drop(remove::<AhObject>(object.cast()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_and_ipv6_headers_of_a_datagram_identify_the_sender() {
        let six = Grh {
            version_tclass_flow: 0x6000_0000_u32.to_be(),
            paylen: 0,
            next_hdr: 17,
            hop_limit: 64,
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
        };
        assert!(gids(&six) == (Gid([1; 16]), Gid([2; 16])));
        // An IPv4 header in the last 20 of the 40 bytes. `rest` is the part from the source GID on; the IPv4 header begins at its byte 12.
        let mut rest = [0; 32];
        rest[12] = 0x45;
        rest[24..28].copy_from_slice(&[192, 0, 2, 1]);
        rest[28..].copy_from_slice(&[192, 0, 2, 2]);
        let (source, target) = rest.split_at(16);
        let four = Grh {
            version_tclass_flow: 0,
            sgid: Gid(source.try_into().unwrap()),
            dgid: Gid(target.try_into().unwrap()),
            ..six
        };
        let gid = |last| Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]);
        assert!(gids(&four) == (gid(1), gid(2)));
    }
}
