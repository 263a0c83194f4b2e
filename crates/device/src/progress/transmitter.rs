//! The engine's packets for other hosts, and polls for those that arrive. The engine's packets are taken under the engine's lock, sent without it.
//!
//! A thread that runs the engine takes its packets before it releases the lock, so that none is lost if another thread then
//! destroys a queue pair. Only one thread at a time sends, so packets leave in order. That thread also sends what others take
//! in the meantime, but not for ever: it leaves the rest to the engine thread.
//!
//! Acknowledgements of what a poll has received wait for the answer of a program that [answers](super::answers), and leave behind it in
//! the same system call. They leave without it as soon as the program polls again, waits, fails or destroys a queue pair, or exits; and
//! after a millisecond if it does nothing (the wire's thread calls [`Transmitter::send_held`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rkey_base::memory::Memory;
use rkey_engine::{Engine, WirePeer};
use rkey_link::Link;
use rkey_roce::icrc;
use rkey_roce::packet::{Headers, MAX_PAYLOAD};
use rkey_roce::transport::PacketBuffer;

use super::answers::AnswerForecast;
use crate::wire::outgoing::OutgoingPackets;
use crate::wire::{Wire, exit};

/// How many times a thread sends what has been taken before it leaves the rest to the engine thread.
const ROUNDS: u32 = 16;

/// Sends packets.
pub(crate) struct Transmitter {
    wire: Arc<Wire>,
    taken: Mutex<Taken>,
    /// Held while packets are sent.
    sending: Mutex<OutgoingPackets>,
    forecast: AnswerForecast,
    /// Whether acknowledgements are held back. Changes only while `taken` is locked.
    holds: AtomicBool,
}

struct Taken {
    packets: OutgoingPackets,
    /// Acknowledgements that wait for the program's answer.
    held: OutgoingPackets,
    buffer: Box<PacketBuffer>,
}

impl Transmitter {
    pub(crate) fn new(wire: Arc<Wire>) -> Self {
        let taken = Taken {
            packets: OutgoingPackets::default(),
            held: OutgoingPackets::default(),
            buffer: Box::new([0; Headers::MAX + MAX_PAYLOAD + icrc::LEN]),
        };
        Self {
            wire,
            taken: Mutex::new(taken),
            sending: Mutex::default(),
            forecast: AnswerForecast::default(),
            holds: AtomicBool::new(false),
        }
    }

    /// Takes the engine's packets. The caller then unlocks the engine and calls [`Transmitter::send`].
    pub(super) fn take<L: Link, M: Memory>(&self, engine: &mut Engine<L, M>, now: u64) {
        let mut taken = self.taken.lock();
        let Taken {
            packets, buffer, ..
        } = &mut *taken;
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

    /// Holds back the packets that have been taken, if they only acknowledge what a poll received at `now`, and the program will soon
    /// post an answer. Returns whether it does.
    pub(super) fn hold(&self, now: u64) -> bool {
        let mut taken = self.taken.lock();
        let Taken { packets, held, .. } = &mut *taken;
        if packets.is_empty() || !packets.only_acknowledge() || !self.forecast.arrived(now) {
            return false;
        }
        held.append(packets);
        if !self.holds.swap(true, Ordering::Relaxed) {
            exit::count_holding(true);
        }
        true
    }

    /// Records that the program posts at `now`.
    pub(super) fn posted(&self, now: u64) {
        self.forecast.posted(now);
    }

    /// Sends what is held back. Returns whether packets may be left, which the engine thread must send.
    #[must_use]
    pub(crate) fn send_held(&self) -> bool {
        self.holds.load(Ordering::Relaxed) && self.send(|| ())
    }

    /// Like [`Transmitter::send_held`], for the wire's thread: sees what a poll held back before the thread took the sockets back.
    #[must_use]
    pub(super) fn send_all_held(&self) -> bool {
        drop(self.taken.lock());
        self.send_held()
    }

    /// Receives packets in a thread of the program, which polls. What is held back must have been [sent](Self::send_held).
    #[inline]
    pub(super) fn poll(&self, now: u64) {
        self.forecast.polled();
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
                self.taken.lock().give(&mut sending, &self.holds);
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
            if self.taken.lock().is_empty() {
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

impl Drop for Transmitter {
    fn drop(&mut self) {
        // In a forked child, another thread's locks stay locked. No engine is left that could have more packets.
        if self.holds.load(Ordering::Relaxed) && self.wire.is_usable() {
            let _ = self.drain();
        }
    }
}

impl Taken {
    fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.held.is_empty()
    }

    /// Moves all packets to `sending`, which is empty: acknowledgements that are held back are the last.
    fn give(&mut self, sending: &mut OutgoingPackets, holds: &AtomicBool) {
        std::mem::swap(sending, &mut self.packets);
        if holds.load(Ordering::Relaxed) {
            sending.append(&mut self.held);
            holds.store(false, Ordering::Relaxed);
            exit::count_holding(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WireSetting;
    use crate::wire::tests::address;

    /// A packet that acknowledges.
    const ACKNOWLEDGEMENT: [u8; 16] = {
        let mut bytes = [0; 16];
        bytes[0] = 0x11;
        bytes
    };

    #[test]
    fn acknowledgements_leave_behind_the_answer_of_a_program_that_answers() {
        let ip = address();
        let wire = Wire::of_process(&WireSetting::Addresses(vec![ip]).into()).unwrap();
        let transmitter = Transmitter::new(Arc::clone(&wire));
        let acknowledge = || (transmitter.taken.lock().packets).push(ip, ip, &ACKNOWLEDGEMENT);
        acknowledge();
        assert!(!transmitter.hold(1), "nothing is known");
        assert!(!transmitter.send(|| ()));
        transmitter.posted(2);

        let sent = || wire.describe().counts.sent;
        assert_eq!(sent(), 1);
        acknowledge();
        assert!(transmitter.hold(3));
        assert!(!transmitter.send_held());
        assert_eq!(sent(), 2);
        acknowledge();
        assert!(transmitter.hold(4));
        transmitter.take_one(ip);
        let (mut sending, holds) = (OutgoingPackets::default(), &transmitter.holds);
        transmitter.taken.lock().give(&mut sending, holds);
        let opcodes: Vec<u8> = sending.packets().map(|(_, _, packet)| packet[0]).collect();
        assert_eq!(opcodes, [0, 0x11]);
        assert!(!transmitter.send_held(), "nothing is held");
    }

    #[test]
    fn only_plain_acknowledgements_wait() {
        let ip = address();
        let wire = Wire::of_process(&WireSetting::Addresses(vec![ip]).into()).unwrap();
        let transmitter = Transmitter::new(Arc::clone(&wire));
        let push = |packet: &[u8]| (transmitter.taken.lock().packets).push(ip, ip, packet);
        push(&ACKNOWLEDGEMENT);
        assert!(!transmitter.hold(1));
        transmitter.posted(2);
        transmitter.take_one(ip);
        assert!(!transmitter.hold(3), "a request does not wait");
        assert!(!transmitter.drain());
        let mut refusal = ACKNOWLEDGEMENT;
        refusal[12] = 0x60;
        push(&refusal);
        assert!(!transmitter.hold(4), "a NAK does not wait");
        assert!(!transmitter.drain());
        push(&ACKNOWLEDGEMENT);
        assert!(transmitter.hold(5));
        let sent = wire.describe().counts.sent;
        drop(transmitter);
        assert_eq!(wire.describe().counts.sent, sent + 1, "it is not lost");
    }

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
