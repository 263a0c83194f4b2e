//! Everything in this crate that reads what another process wrote, for fuzz targets and hostile peers. Each
//! reader says whether the bytes made sense, and must answer for any.

use crate::ep::foreign;
use rkey_device::link::NodeId;
use rkey_rdm::collective::names;
use std::net::SocketAddr;

/// What a peer says when it connects.
#[must_use]
pub fn hello(bytes: &[u8]) -> bool {
    foreign::hello(bytes)
}

/// A message of a peer, with the arithmetic of an atomic carried out on memory of ours.
#[must_use]
pub fn message(bytes: &[u8]) -> bool {
    foreign::message(bytes)
}

/// Messages of every kind.
#[must_use]
pub fn messages() -> Vec<Vec<u8>> {
    foreign::messages()
}

/// A message that asks for so many numbers of 8 bytes, from the beginning of a region.
#[must_use]
pub fn reads(key: u64, count: u32) -> Vec<u8> {
    foreign::reads(key, count)
}

/// What endpoints say when they connect.
#[must_use]
pub fn hellos() -> Vec<Vec<u8>> {
    foreign::hellos()
}

/// What an endpoint with this name, on this device and with no authorization key, says when it asks at a port.
#[must_use]
pub fn asks(name: SocketAddr, device: NodeId, port: u16) -> Vec<u8> {
    foreign::asks(name, device, port)
}

/// What it says to a peer that asked; `None` if that was nonsense.
#[must_use]
pub fn answers(name: SocketAddr, device: NodeId, asked: &[u8]) -> Option<Vec<u8>> {
    foreign::answers(name, device, asked)
}

/// What the members of a collective group call it.
#[must_use]
pub fn group_name(members: &[SocketAddr]) -> u64 {
    names::members(members.iter().copied())
}
