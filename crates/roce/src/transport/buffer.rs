//! The buffer of one outgoing packet. Headers, payload and padding are written directly into it, and it is
//! sent from there.

use crate::packet::{Headers, MAX_PAYLOAD, padding};

/// The buffer of one packet, with room for the invariant checksum, which the caller appends.
pub type PacketBuffer = [u8; Headers::MAX + MAX_PAYLOAD + 4];

/// Writes a packet with a payload of `length` bytes, which `load` copies into the buffer. Returns the packet's
/// length.
///
/// # Errors
///
/// `load` failed; no packet was written.
pub(crate) fn write_packet<E>(
    to: &mut PacketBuffer,
    headers: &Headers,
    length: u32,
    load: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<Option<usize>, E> {
    let length = length as usize;
    // The transport builds only headers that can be encoded, with at most an MTU of payload.
    let Ok(bytes) = headers.encode(length) else {
        return Ok(None);
    };
    let bytes = bytes.as_ref();
    let (front, rest) = to.split_at_mut(bytes.len());
    front.copy_from_slice(bytes);
    let (payload, rest) = rest.split_at_mut(length);
    if length > 0 {
        load(payload)?;
    }
    let pad = padding(length);
    rest[..pad].fill(0);
    Ok(Some(bytes.len() + length + pad))
}
