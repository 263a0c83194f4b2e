//! The options of a socket.

use super::stream::Sizes;
use super::wire::round_iomaps;
use rkey_kit::Errno;
use std::time::Duration;

/// The limits for the size of a ring, in bytes.
const RING_MIN: u32 = 4096;
const RING_MAX: u32 = 1 << 28;
/// The maximum depth of a queue: within the limits of the device, and less than half of the 2^16 sequence numbers.
const REQUESTS_MAX: u32 = 4096;
/// The default depth of a queue.
const REQUESTS: u32 = 384;
/// The default size of a ring, in bytes.
const RING: u32 = 128 << 10;

/// The options of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of work requests for data.
    pub send_requests: u32,
    /// The number of messages that the peer may send before it gets more credits.
    pub credits: u32,
    /// `RDMA_INLINE`: stored, but without effect.
    pub inline: u32,
    /// The size of the send ring, in bytes.
    pub send_bytes: u32,
    /// The size of the receive ring, in bytes.
    pub receive_bytes: u32,
    /// The number of areas that the peer may map.
    pub iomaps: u16,
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `IPV6_V6ONLY`.
    pub one_family: Option<bool>,
    /// The address family.
    pub family: i32,
    /// `SOCK_STREAM` or `SOCK_DGRAM`.
    pub kind: i32,
    /// `SO_RCVTIMEO`.
    pub receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`.
    pub send_timeout: Option<Duration>,
    /// `SO_LINGER`: how long `rclose` waits.
    pub linger: Option<Duration>,
    /// Boolean options without effect, as bits.
    pub switches: u32,
    /// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`: stored, but without effect.
    pub keepalive: [u32; 3],
}

impl Options {
    /// The defaults.
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

/// Clamps the queue depth that a program requests.
///
/// # Errors
/// `EINVAL`: 0 or negative.
pub fn requests(requested: i32) -> Result<u32, Errno> {
    match u32::try_from(requested) {
        Ok(0) | Err(_) => Err(Errno::INVAL),
        Ok(count) => Ok(count.min(REQUESTS_MAX)),
    }
}

/// The size of the ring for a requested size in bytes. Doubles it, as the kernel does with `SO_SNDBUF` and `SO_RCVBUF`.
#[must_use]
pub fn ring(requested: i32) -> u32 {
    let requested = u32::try_from(requested).unwrap_or(RING_MAX);
    let size = requested.saturating_mul(2).clamp(RING_MIN, RING_MAX);
    size.next_multiple_of(RING_MIN)
}

/// The number of mapped areas for a requested number.
///
/// # Errors
/// `EINVAL`: negative.
pub fn areas(requested: i32) -> Result<u16, Errno> {
    let requested = u32::try_from(requested).map_err(|_| Errno::INVAL)?;
    Ok(round_iomaps(u16::try_from(requested).unwrap_or(u16::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_set_by_socket_options_stay_within_limits() {
        assert_eq!(requests(5), Ok(5));
        assert_eq!(requests(1 << 30), Ok(REQUESTS_MAX));
        assert_eq!(requests(0), Err(Errno::INVAL));
        assert_eq!(requests(-1), Err(Errno::INVAL));
        for (requested, size) in [
            (0, RING_MIN),
            (-1, RING_MAX),
            (i32::MAX, RING_MAX),
            (5000, 12288),
        ] {
            assert_eq!(ring(requested), size);
        }
        assert_eq!(areas(129), Ok(256));
        assert_eq!(areas(1 << 20), Ok(127 << 8));
        assert_eq!(areas(-1), Err(Errno::INVAL));
    }
}
