//! The wire's counters: packets received and sent, and packets dropped, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Why a datagram was dropped. The sender gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dropped {
    /// The bytes are not a packet.
    Malformed,
    /// An empty datagram, with which another host checks whether any program listens here.
    Empty,
    /// The invariant checksum is wrong.
    Checksum,
    /// With `RKEY_WIRE_KEY`: no host that has the key sent it. Without: a process that has a key passed it on.
    Forged,
    /// With `RKEY_WIRE_KEY`: it has arrived before.
    Replayed,
    /// The partition key is not the default one.
    Partition,
    /// The source address is a multicast or wildcard address, or an address of this host: programs here use shared memory.
    Source,
    /// A packet to queue pair 1 that is not a message of the connection manager, or has the wrong Q_Key.
    Management,
    /// No process here owns the destination queue pair number or communication id.
    NoReceiver,
    /// The owning process cannot accept more packets at the moment.
    Busy,
    /// A message without a receiver, after too many others in the same second.
    TooMany,
    /// A connection from another user's process that wants to forward packets, or a malformed message from another process.
    Forwarding,
    /// A packet of this process that the kernel refused to send.
    Unsent,
}

impl Dropped {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::Malformed,
        Self::Empty,
        Self::Checksum,
        Self::Forged,
        Self::Replayed,
        Self::Partition,
        Self::Source,
        Self::Management,
        Self::NoReceiver,
        Self::Busy,
        Self::TooMany,
        Self::Forwarding,
        Self::Unsent,
    ];
}

/// The counters of a process.
#[derive(Debug, Default)]
pub(super) struct WireCounters {
    received: AtomicU64,
    sent: AtomicU64,
    forwarded: AtomicU64,
    dropped: [AtomicU64; Dropped::ALL.len()],
}

/// A snapshot of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Packets received from other hosts.
    pub received: u64,
    /// Packets sent to other hosts.
    pub sent: u64,
    /// Packets forwarded to the process that owns their destination.
    pub forwarded: u64,
    /// Dropped packets, by reason. Reasons that never occurred are left out.
    pub dropped: Vec<(Dropped, u64)>,
}

impl WireCounters {
    pub(super) fn received(&self, packets: u64) {
        self.received.fetch_add(packets, Ordering::Relaxed);
    }

    pub(super) fn sent(&self, packets: u64) {
        self.sent.fetch_add(packets, Ordering::Relaxed);
    }

    pub(super) fn forwarded(&self, packets: u64) {
        self.forwarded.fetch_add(packets, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, why: Dropped, packets: u64) {
        self.dropped[why as usize].fetch_add(packets, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = Dropped::ALL.into_iter().zip(self.dropped.iter().map(get));
        Counts {
            received: get(&self.received),
            sent: get(&self.sent),
            forwarded: get(&self.forwarded),
            dropped: all.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_to_drop_a_packet_has_its_own_count() {
        let counters = WireCounters::default();
        for (index, why) in Dropped::ALL.into_iter().enumerate() {
            counters.dropped(why, index as u64);
        }
        let counts = counters.now();
        let wanted = Dropped::ALL.into_iter().zip(0..).skip(1);
        assert_eq!(counts.dropped, wanted.collect::<Vec<_>>());
    }
}
