//! Everything in this crate that reads what another process wrote, for fuzz targets and hostile peers. Each
//! reader says whether the bytes made sense, and must answer for any.

use crate::ep::foreign;
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

/// What endpoints say when they connect.
#[must_use]
pub fn hellos() -> Vec<Vec<u8>> {
    foreign::hellos()
}

/// What an endpoint with this name says when it connects, if it is otherwise like one that said `like`.
#[must_use]
pub fn hello_from(name: SocketAddr, like: &[u8]) -> Option<Vec<u8>> {
    foreign::hello_from(name, like)
}
