//! Everything in this crate that parses a peer's bytes, as functions for a fuzzer: they take
//! arbitrary bytes and return whether a link would accept them. None of them may ever panic.

use crate::Header;
use crate::direct::LeaseOffer;
use crate::ring::{Geometry, HeapHalf, read_bytes};

/// A slot of a request ring (shorter input is padded with zeros).
pub fn request_slot(bytes: &[u8]) -> bool {
    read_bytes(&fill_up(bytes), false).is_ok()
}

/// A slot of a response ring (shorter input is padded with zeros).
pub fn response_slot(bytes: &[u8]) -> bool {
    read_bytes(&fill_up(bytes), true).is_ok()
}

/// The header of a slot, if a link would accept it.
pub fn header(bytes: &[u8; 256], responses: bool) -> Option<Header> {
    read_bytes(bytes, responses).ok().map(|(header, _)| header)
}

/// A packet of the handshake.
pub fn hello(bytes: &[u8]) -> bool {
    crate::shm::accepts(bytes)
}

/// A packet after the handshake: only the header, because the body belongs to the device.
pub fn control(bytes: &[u8]) -> bool {
    bytes.len() == 1 || crate::shm::accepts(bytes)
}

/// The identity at the start of a half.
pub fn identity(bytes: &[u8]) -> bool {
    let geometry = Geometry {
        slots: 16,
        payload: 4096,
        fragment_max: 256,
    };
    let memory = HeapHalf::new(geometry);
    // The sizes are constants within the bounds.
    let Ok(half) = memory.half(geometry) else {
        return false;
    };
    half.pretend_identity(bytes);
    half.check_identity().is_ok()
}

/// A lease offer.
pub fn grant(bytes: &[u8]) -> bool {
    LeaseOffer::from_bytes(bytes).is_ok_and(|grant| grant.to_bytes() == bytes)
}

fn fill_up(bytes: &[u8]) -> [u8; 256] {
    let mut slot = [0; 256];
    let len = bytes.len().min(256);
    slot[..len].copy_from_slice(&bytes[..len]);
    slot
}
