//! The path of an identifier, as programs see it.

use crate::lookup::address;
use crate::state::hub::Entry;
use crate::sys::*;
use std::net::SocketAddr;

/// The default partition.
const PKEY: u16 = 0xffff;
/// The selector value (`IBV_PATH_SELECTOR_EQ`) that marks a path field as exact.
const EXACTLY: u8 = 2;

/// The path record that programs see.
#[must_use]
pub fn record(own: &Entry) -> SaPathRec {
    let gid = |address: Option<SocketAddr>| address.map_or(Gid::default(), address::gid);
    SaPathRec {
        dgid: gid(own.peer),
        sgid: gid(own.local),
        flow_label: own.path.flow_label.to_be(),
        hop_limit: own.path.hop_limit,
        traffic_class: own.path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: PKEY.to_be(),
        mtu_selector: EXACTLY,
        mtu: own.path.mtu as u8,
        rate_selector: EXACTLY,
        packet_life_time_selector: EXACTLY,
        packet_life_time: own.path.ack_timeout.saturating_sub(1),
        ..SaPathRec::default()
    }
}
