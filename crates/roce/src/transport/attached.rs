//! An acknowledgement inside a request.
//!
//! On a short path, sending a datagram takes longer than everything else. So the answer of a program can carry the
//! acknowledgement of what it answers: a whole packet of 16 bytes behind the payload, before the padding. The lowest bit of
//! such a request's [mark](super::early_mark) is inverted. It is one of the bits that the invariant checksum covers: if damage could
//! change it, the acknowledgement would be taken for payload.
//!
//! The standard has no such packet, so only sides do this that have agreed to selective retransmission, and whose peer has shown by
//! the marks of its requests that it has agreed, too. A request with an attached acknowledgement is not kept if it arrives early:
//! otherwise, an attacker who guesses a mark would have two chances with one packet.

use crate::packet::{
    Aeth, Body, Bth, Headers, MAX_PAYLOAD, Packet, Request, Service, only_acknowledges, padding,
};

/// The length of an acknowledgement, in bytes.
pub const ATTACHED_LEN: usize = Bth::LEN + Aeth::LEN;

/// The reserved bits of an acknowledgement that may be attached.
pub(super) const ATTACHABLE: u16 = 1;

/// The bit of a request's mark that is inverted if an acknowledgement is attached.
const INVERTED: u16 = 1;
/// The reserved bits that the invariant checksum covers.
const COVERED: u16 = 0x7f;

/// Attaches an acknowledgement to the request packet that starts at `start`, and is the last in `bytes`. Returns whether it could:
/// the peer supports it, both packets go to one queue pair, and the request has a payload. The packet becomes [`ATTACHED_LEN`] bytes
/// longer; the caller makes sure that the path MTU allows it.
///
/// ```
/// use rkey_roce::transport::attach;
/// use rkey_roce::packet::{Body, Headers, Packet, Psn, Request, Service, Tail};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let body = Body::Request(Service::Rc, Request::SendOnly(Tail::None));
/// let mut bytes = Vec::new();
/// Packet { headers: Headers::new(7, Psn::new(1), body), payload: b"answer" }.encode(&mut bytes)?;
/// let mut acknowledgement = [0; 16];
/// acknowledgement[0] = 0x11; // RC ACKNOWLEDGE
/// // The peer has not agreed: the packets do not have the bits that say so.
/// assert!(!attach(&mut bytes, 0, &acknowledgement));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn attach(bytes: &mut Vec<u8>, start: usize, acknowledgement: &[u8]) -> bool {
    let Some(length) = bytes
        .get(start..)
        .and_then(|it| length_before_padding(it, acknowledgement))
    else {
        return false;
    };
    bytes.extend_from_slice(acknowledgement);
    bytes[start + length..].rotate_right(acknowledgement.len());
    // The lowest reserved bits are the last of this byte: see `Bth::encode`.
    bytes[start + 8] ^= INVERTED as u8;
    true
}

/// The length of a request without its padding; `None` if this acknowledgement cannot be attached to it.
fn length_before_padding(request: &[u8], acknowledgement: &[u8]) -> Option<usize> {
    let Packet { headers, payload } = Packet::decode(request).ok()?;
    let it = Packet::decode(acknowledgement).ok()?.headers;
    let fits = only_acknowledges(acknowledgement)
        && it.reserved == ATTACHABLE
        && it.destination == headers.destination
        && headers.migrated
        && payload.len() + ATTACHED_LEN <= MAX_PAYLOAD
        && matches!(headers.body, Body::Request(Service::Rc, request) if request.has_payload());
    fits.then_some(request.len() - padding(payload.len()))
}

/// Whether an acknowledgement is attached to a request with these headers. `mark` is that of the peer, with which this side has agreed
/// to selective retransmission.
pub(super) fn has_attached(headers: &Headers, request: &Request, mark: u16) -> bool {
    headers.migrated && (headers.reserved ^ mark) & COVERED == INVERTED && request.has_payload()
}

/// Whether a request has the mark of the peer, perhaps with an attached acknowledgement.
pub(super) fn is_of_agreed_peer(headers: &Headers, mark: u16) -> bool {
    headers.migrated && (headers.reserved ^ mark) & !INVERTED == 0
}

/// Takes a request and the acknowledgement that is attached to it apart. `None` if there is none.
pub(super) fn detach<'a>(packet: &Packet<'a>) -> Option<(Packet<'a>, Packet<'a>)> {
    let (payload, last) = packet.payload.split_last_chunk::<ATTACHED_LEN>()?;
    let acknowledgement = Packet::decode(last).ok()?;
    let is_plain = only_acknowledges(last)
        && acknowledgement.headers.destination == packet.headers.destination;
    is_plain.then_some((Packet { payload, ..*packet }, acknowledgement))
}
