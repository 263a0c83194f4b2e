//! The attributes and partition keys of the device's only port.

use crate::device::gid;
use crate::sys::PortAttr;
use crate::sys::consts::*;
use crate::translate::flags;
use rkey_device::Device;

/// The number of the port.
pub const PORT: u32 = 1;
/// The only partition key, in host byte order: full membership of the default partition.
pub const PKEY: u16 = 0xffff;
/// The length of `ibv_port_attr` in programs built before it grew, in bytes.
pub const COMPAT_LEN: usize = 48;

/// Link width "4X".
const WIDTH_4X: u8 = 2;
/// Link speed "EDR", 25 Gbit/s per lane.
const SPEED_EDR: u8 = 32;
/// Width times speed, in units of 100 Mbit/s.
pub const SPEED: u64 = 4 * 250;
/// Physical state "link up".
const LINK_UP: u8 = 5;

/// The attributes of the port.
///
/// Width and speed are those of a 100 Gbit/s port. Programs use them for estimates; the real limit is the host's
/// memory. The active MTU is 4096, or less if an interface to other hosts requires it.
#[must_use]
pub fn attributes(device: &Device) -> PortAttr {
    let fits = device.wire().and_then(|wire| {
        let addresses = wire.describe().addresses;
        addresses.iter().map(|it| it.path_mtu).min()
    });
    PortAttr {
        state: PORT_ACTIVE,
        max_mtu: MTU_4096,
        active_mtu: fits.map_or(MTU_4096, |bytes| flags::mtu_number(bytes as u32)),
        gid_tbl_len: gid::TABLE_LEN as i32,
        port_cap_flags: PORT_CM_SUP | PORT_IP_BASED_GIDS,
        max_msg_sz: 1 << 31,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: LINK_UP,
        link_layer: LINK_LAYER_ETHERNET,
        flags: QPF_GRH_REQUIRED,
        active_speed_ex: SPEED_EDR.into(),
        ..PortAttr::default()
    }
}
