//! The configuration of a queue pair: its peer and its limits.

use crate::packet::{Mtu, Psn, RnrTimer};

/// The service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionType {
    /// RC: everything arrives exactly once and in order, or the connection fails.
    Reliable,
    /// UC: a message arrives whole or not at all. Sends and writes only.
    Unreliable,
}

/// The attributes of a connected queue pair, as `ibv_modify_qp(3)` sets them.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The service.
    pub connection: ConnectionType,
    /// The path MTU. Both sides must use the same value.
    pub mtu: Mtu,
    /// The number of the peer's queue pair (24 bits).
    pub peer: u32,
    /// The partition key of every packet.
    pub pkey: u16,
    /// The PSN of the first packet sent (`sq_psn`).
    pub send_psn: Psn,
    /// The PSN of the first packet expected (`rq_psn`).
    pub receive_psn: Psn,
    /// The response timeout is 4.096 µs · 2^timeout; each timeout uses up a retry, and doubles the next one, up to four times the
    /// first, until there is progress. 0 means no timeout (5 bits).
    pub timeout: u8,
    /// A response that is later than usual, and at least this late (in nanoseconds), makes the requester send the oldest packet again
    /// before the timeout, without using up a retry. `None`: only after the timeout.
    pub probe_after: Option<u64>,
    /// The maximum number of retries in a row without progress, after a timeout or a lost packet (3 bits).
    pub retry_count: u8,
    /// The maximum number of retries while the peer has no receive posted; 7 means no limit (3 bits).
    pub rnr_retry: u8,
    /// How long the peer waits after it finds no receive posted here.
    pub min_rnr_timer: RnrTimer,
    /// The maximum number of reads and atomics that this side may have outstanding (`max_rd_atomic`); each part of a long read
    /// counts. The peer must accept as many.
    pub max_reads_out: u8,
    /// How many reads and atomics the peer may have outstanding (`max_dest_rd_atomic`); 0 refuses them.
    pub max_reads_in: u8,
    /// The maximum number of unacknowledged packets on paths with short round trips, and the longest burst; at least 1.
    pub window: u32,
    /// The maximum number of unacknowledged packets on paths with long round trips: there, the window grows by [`Self::window`] for each
    /// millisecond. No memory is used for them.
    pub longest_window: u32,
    /// Whether the peer is a device of this kind that has agreed to selective retransmission: packets that arrive before earlier ones are
    /// kept, and only what is missing is sent again. Reliable connections only. Both sides must use the same value, but a side whose peer uses
    /// another one falls back to the standard.
    pub selective: bool,
}

impl Config {
    /// A reliable connection with typical values: up to 128 packets of 1024 bytes outstanding, more on long paths, and 16 reads, a
    /// timeout of about 67 ms, 7 retries, and unlimited RNR retries (after 640 µs each).
    #[must_use]
    pub const fn reliable(peer: u32, send_psn: Psn, receive_psn: Psn) -> Self {
        let Some(min_rnr_timer) = RnrTimer::new(12) else {
            unreachable!()
        };
        Self {
            connection: ConnectionType::Reliable,
            mtu: Mtu::Bytes1024,
            peer,
            pkey: 0xffff,
            send_psn,
            receive_psn,
            timeout: 14,
            probe_after: Some(1_000_000),
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer,
            max_reads_out: 16,
            max_reads_in: 16,
            window: 128,
            longest_window: 1 << 14,
            selective: false,
        }
    }
}

/// The reserved bits of the requests of a side that has agreed to selective retransmission, and whose first PSN is this. Only such requests
/// are kept if they arrive early. (One bit is inverted if an acknowledgement is [attached](super::attach) to the request.) An attacker
/// who does not see the packets, and could hit one of many early PSNs, must also guess these 13 bits.
#[must_use]
pub const fn early_mark(first: Psn) -> u16 {
    // Fibonacci hashing: the highest bits depend on all bits of the PSN.
    (first.get().wrapping_mul(0x9e37_79b9) >> 19) as u16
}

/// The duration of a 5-bit timeout code, in nanoseconds; `None` if there is no timeout (IBA volume 1, 9.7.6.1.3).
///
/// ```
/// assert_eq!(rkey_roce::transport::timeout_ns(14), Some(67_108_864));
/// assert_eq!(rkey_roce::transport::timeout_ns(0), None);
/// ```
#[must_use]
pub const fn timeout_ns(code: u8) -> Option<u64> {
    match code & 31 {
        0 => None,
        code => Some(4096 << code),
    }
}
