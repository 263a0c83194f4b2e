//! The parsers of bytes from other processes, for fuzz targets and hostile peers, and seed messages. A parser accepts any input, and
//! returns whether it is valid.

use crate::ep::peer_messages;
use rkey_device::link::NodeId;
use rkey_rdm::collective::names;
use std::net::SocketAddr;

/// Decodes the hello of a peer that connects.
#[must_use]
pub fn hello(bytes: &[u8]) -> bool {
    peer_messages::hello(bytes)
}

/// Decodes a peer's message, and executes an atomic on a scratch buffer.
#[must_use]
pub fn message(bytes: &[u8]) -> bool {
    peer_messages::message(bytes)
}

/// One message of every kind.
#[must_use]
pub fn messages() -> Vec<Vec<u8>> {
    peer_messages::messages()
}

/// An atomic that reads `count` 8-byte numbers from the beginning of a region.
#[must_use]
pub fn reads(key: u64, count: u32) -> Vec<u8> {
    peer_messages::reads(key, count)
}

/// Valid hellos of endpoints that connect.
#[must_use]
pub fn hellos() -> Vec<Vec<u8>> {
    peer_messages::hellos()
}

/// The hello of the endpoint `name` on `device` when it connects to the peer at `port`. It has no authorization key.
#[must_use]
pub fn asks(name: SocketAddr, device: NodeId, port: u16) -> Vec<u8> {
    peer_messages::asks(name, device, port)
}

/// Like [`asks`], but to the receive context `to.1` at port `to.0`. With `one_way`, the endpoint can only send.
#[must_use]
pub fn asks_for(name: SocketAddr, device: NodeId, to: (u16, u8), one_way: bool) -> Vec<u8> {
    peer_messages::asks_for(name, device, to, one_way)
}

/// The answer of the endpoint `name` on `device` to a hello from [`asks`]; `None` if `asked` is not a valid hello.
#[must_use]
pub fn answers(name: SocketAddr, device: NodeId, asked: &[u8]) -> Option<Vec<u8>> {
    peer_messages::answers(name, device, asked)
}

/// The name that a collective group derives from its members.
#[must_use]
pub fn group_name(members: &[SocketAddr]) -> u64 {
    names::members(members.iter().copied())
}
