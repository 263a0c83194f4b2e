//! Every reader of bytes from other processes, for fuzz targets and hostile peers. Each function returns whether the
//! bytes made sense, and must accept any input.

use crate::ep::foreign;
use rkey_device::link::NodeId;
use rkey_rdm::collective::names;
use std::net::SocketAddr;

/// The message of a peer that connects.
#[must_use]
pub fn hello(bytes: &[u8]) -> bool {
    foreign::hello(bytes)
}

/// A message of a peer; an atomic is executed on our own memory.
#[must_use]
pub fn message(bytes: &[u8]) -> bool {
    foreign::message(bytes)
}

/// Messages of every kind.
#[must_use]
pub fn messages() -> Vec<Vec<u8>> {
    foreign::messages()
}

/// A message that reads `count` 8-byte numbers from the beginning of a region.
#[must_use]
pub fn reads(key: u64, count: u32) -> Vec<u8> {
    foreign::reads(key, count)
}

/// The messages of endpoints that connect.
#[must_use]
pub fn hellos() -> Vec<Vec<u8>> {
    foreign::hellos()
}

/// The request of an endpoint to the peer at a port; it has this name and device, and no authorization key.
#[must_use]
pub fn asks(name: SocketAddr, device: NodeId, port: u16) -> Vec<u8> {
    foreign::asks(name, device, port)
}

/// The same for a receive context of the peer, from an endpoint that may only send.
#[must_use]
pub fn asks_for(name: SocketAddr, device: NodeId, to: (u16, u8), one_way: bool) -> Vec<u8> {
    foreign::asks_for(name, device, to, one_way)
}

/// Its answer to such a request; `None` if the request made no sense.
#[must_use]
pub fn answers(name: SocketAddr, device: NodeId, asked: &[u8]) -> Option<Vec<u8>> {
    foreign::answers(name, device, asked)
}

/// The name that the members of a collective group derive for it.
#[must_use]
pub fn group_name(members: &[SocketAddr]) -> u64 {
    names::members(members.iter().copied())
}
