//! The settings of a socket, as values.

use super::stream::Sizes;
use super::wire::round_iomaps;
use rkey_kit::Errno;
use std::time::Duration;

/// The smallest and the largest ring.
const RING_MIN: u32 = 4096;
const RING_MAX: u32 = 1 << 28;
/// The most requests of a queue, within what the device grants and half of the sequence numbers.
const REQUESTS_MAX: u32 = 4096;
/// Requests, if the program does not choose.
const REQUESTS: u32 = 384;
/// The size of a ring, if the program does not choose.
const RING: u32 = 128 << 10;

/// What a program has chosen.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Work requests for data.
    pub send_requests: u32,
    /// Messages that the peer may send before it gets more credits.
    pub credits: u32,
    /// Bytes that are sent from requests themselves: kept for the program only.
    pub inline: u32,
    /// Bytes of the two rings.
    pub send_bytes: u32,
    /// See `send_bytes`.
    pub receive_bytes: u32,
    /// Areas that the peer may map.
    pub iomaps: u16,
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `IPV6_V6ONLY`.
    pub one_family: Option<bool>,
    /// The address family.
    pub family: i32,
    /// `SOCK_STREAM` or `SOCK_DGRAM`.
    pub kind: i32,
    /// How long calls that receive wait.
    pub receive_timeout: Option<Duration>,
    /// How long calls that send wait.
    pub send_timeout: Option<Duration>,
    /// How long `rclose` waits, if the program says.
    pub linger: Option<Duration>,
    /// Switches that have no effect, as bits.
    pub switches: u32,
    /// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`: without effect.
    pub keepalive: [u32; 3],
}

impl Options {
    /// What a new socket has.
    #[must_use]
    pub fn new(family: i32, kind: i32) -> Self {
        Self {
            send_requests: REQUESTS,
            credits: REQUESTS,
            inline: 64,
            send_bytes: RING,
            receive_bytes: RING,
            iomaps: 0,
            reuse_address: false,
            one_family: None,
            family,
            kind,
            receive_timeout: None,
            send_timeout: None,
            linger: None,
            switches: 0,
            keepalive: [7200, 75, 9],
        }
    }

    /// The sizes of a stream.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes {
            send_requests: self.send_requests,
            credits: self.credits as u16,
            send_bytes: self.send_bytes,
            receive_bytes: self.receive_bytes,
            iomaps: self.iomaps,
        }
    }
}

/// A number of requests that a program wishes: what it gets.
///
/// # Errors
/// `EINVAL`: none, or a negative number.
pub fn requests(wished: i32) -> Result<u32, Errno> {
    match u32::try_from(wished) {
        Ok(0) | Err(_) => Err(Errno::INVAL),
        Ok(count) => Ok(count.min(REQUESTS_MAX)),
    }
}

/// The size of a ring that a program wishes: what it gets. As the kernel does, this doubles it.
#[must_use]
pub fn ring(wished: i32) -> u32 {
    let wished = u32::try_from(wished).unwrap_or(RING_MAX);
    let size = wished.saturating_mul(2).clamp(RING_MIN, RING_MAX);
    size.next_multiple_of(RING_MIN)
}

/// How many mapped areas there is room for.
///
/// # Errors
/// `EINVAL`: a negative number.
pub fn areas(wished: i32) -> Result<u16, Errno> {
    let wished = u32::try_from(wished).map_err(|_| Errno::INVAL)?;
    Ok(round_iomaps(u16::try_from(wished).unwrap_or(u16::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stay_within_limits() {
        assert_eq!(requests(5), Ok(5));
        assert_eq!(requests(1 << 30), Ok(REQUESTS_MAX));
        assert_eq!(requests(0), Err(Errno::INVAL));
        assert_eq!(requests(-1), Err(Errno::INVAL));
        for (wished, size) in [
            (0, RING_MIN),
            (-1, RING_MAX),
            (i32::MAX, RING_MAX),
            (5000, 12288),
        ] {
            assert_eq!(ring(wished), size);
        }
        assert_eq!(areas(129), Ok(256));
        assert_eq!(areas(1 << 20), Ok(127 << 8));
        assert_eq!(areas(-1), Err(Errno::INVAL));
    }
}
