//! An interface whose packets a process sends and receives.
#![allow(unsafe_code)] // UNSAFETY: no safe wrapper creates such an interface (TUNSETIFF).

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::ffi::{c_int, c_short};
use std::io;
use std::os::fd::OwnedFd;

/// IP packets, without a link layer (`IFF_TUN`).
const TUN: c_short = 1;
/// Nothing precedes the IP header (`IFF_NO_PI`).
const NO_PI: c_short = 0x1000;

/// `TUNSETIFF`.
const SET: Opcode = opcode::write::<c_int>(b'T', 202);

/// `struct ifreq`.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: c_short,
    rest: [u8; 22],
}

/// Creates an interface in the network namespace of the calling thread. It exists while the descriptor is open, which never blocks.
/// Each read returns one packet, each write sends one.
pub(super) fn create(name: &str) -> io::Result<OwnedFd> {
    let mut request = Request {
        name: [0; 16],
        flags: TUN | NO_PI,
        rest: [0; 22],
    };
    // The name ends with a zero.
    let place = request.name[..15].get_mut(..name.len());
    let place = place.ok_or(io::ErrorKind::InvalidInput)?;
    place.copy_from_slice(name.as_bytes());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let interface = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    // SAFETY: `TUNSETIFF` reads and writes a `struct ifreq`, although its number says that it reads an integer.
    unsafe { ioctl(&interface, Updater::<SET, Request>::new(&mut request)) }?;
    Ok(interface)
}
