//! The engine's packets for other hosts, and polls for those that arrive. The engine's packets are taken under the engine's lock, sent without it.
//!
//! A thread that runs the engine takes its packets before it releases the lock, so that none is lost if another thread then
//! destroys a queue pair. Only one thread at a time sends, so packets leave in order. That thread also sends what others take
//! in the meantime, but not for ever: it leaves the rest to the engine thread.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rkey_base::memory::Memory;
use rkey_engine::{Engine, WirePeer};
use rkey_link::Link;
use rkey_roce::icrc;
use rkey_roce::packet::{Headers, MAX_PAYLOAD};
use rkey_roce::transport::PacketBuffer;

use crate::wire::Wire;
use crate::wire::outgoing::OutgoingPackets;

/// How many times a thread sends what has been taken before it leaves the rest to the engine thread.
const ROUNDS: u32 = 16;

/// Sends packets.
pub(crate) struct Transmitter {
    wire: Arc<Wire>,
    taken: Mutex<Taken>,
    /// Held while packets are sent.
    sending: Mutex<OutgoingPackets>,
}

struct Taken {
    packets: OutgoingPackets,
    buffer: Box<PacketBuffer>,
}

impl Transmitter {
    pub(crate) fn new(wire: Arc<Wire>) -> Self {
        let taken = Taken {
            packets: OutgoingPackets::default(),
            buffer: Box::new([0; Headers::MAX + MAX_PAYLOAD + icrc::LEN]),
        };
        Self {
            wire,
            taken: Mutex::new(taken),
            sending: Mutex::default(),
        }
    }

    /// Takes the engine's packets. The caller then unlocks the engine and calls [`Transmitter::send`].
    pub(super) fn take<L: Link, M: Memory>(&self, engine: &mut Engine<L, M>, now: u64) {
        let mut taken = self.taken.lock();
        let Taken { packets, buffer } = &mut *taken;
        while !packets.is_full()
            && let Some((WirePeer { local, remote }, length)) = engine.wire_transmit(now, buffer)
        {
            packets.push(local, remote, &buffer[..length]);
        }
    }

    /// Sends the packets that have been taken, unless another thread is sending. `more` takes those that the engine still has.
    /// Returns whether packets may be left, which the engine thread must send.
    #[must_use]
    pub(super) fn send(&self, more: impl Fn()) -> bool {
        self.send_when(|| self.sending.try_lock(), more)
    }

    /// Receives packets in a thread of the program, which polls.
    #[inline]
    pub(super) fn poll(&self, now: u64) {
        self.wire.poll(now);
    }

    /// The program no longer polls.
    pub(super) fn stop_polling(&self) {
        self.wire.stop_polling();
    }

    /// Returns once all packets that have been taken are sent: whether later ones may be left, which the engine thread must send.
    #[must_use]
    pub(super) fn drain(&self) -> bool {
        self.send_when(|| Some(self.sending.lock()), || ())
    }

    fn send_when<'a>(
        &'a self,
        lock: impl Fn() -> Option<MutexGuard<'a, OutgoingPackets>>,
        more: impl Fn(),
    ) -> bool {
        let mut rounds = 0;
        while let Some(mut sending) = lock() {
            loop {
                std::mem::swap(&mut *sending, &mut self.taken.lock().packets);
                if sending.is_empty() {
                    break;
                }
                self.wire.send(&mut sending);
                rounds += 1;
                if rounds == ROUNDS {
                    return true;
                }
                more();
            }
            drop(sending);
            // A thread that failed to lock `sending` relies on this one.
            if self.taken.lock().packets.is_empty() {
                return false;
            }
        }
        false
    }

    /// Takes a meaningless packet, from an address to itself.
    #[cfg(test)]
    pub(super) fn take_one(&self, ip: std::net::IpAddr) {
        self.taken.lock().packets.push(ip, ip, &[0; 16]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WireSetting;
    use crate::wire::tests::address;

    #[test]
    fn a_thread_sends_only_a_limited_number_of_other_threads_packets() {
        let ip = address();
        let wire = Wire::of_process(&WireSetting::Addresses(vec![ip]).into()).unwrap();
        let transmitter = Transmitter::new(Arc::clone(&wire));
        let take = || transmitter.take_one(ip);
        let sent = || wire.describe().counts.sent;
        take();
        assert!(transmitter.send(take), "the rest is left to another thread");
        assert_eq!(sent(), u64::from(ROUNDS));
        take();
        assert!(!transmitter.send(|| ()));
        assert_eq!(sent(), u64::from(ROUNDS) + 1);
        take();
        assert!(!transmitter.drain());
        assert_eq!(sent(), u64::from(ROUNDS) + 2);
    }
}
