//! The engine's packets for other hosts, and polls for those that arrive. The engine's packets are taken under the engine's lock, sent without it.
//!
//! A thread that runs the engine takes its packets before it releases the lock, so that none is lost if another thread then
//! destroys a queue pair. Only one thread at a time sends, so packets leave in order. That thread also sends what others take
//! in the meantime, but not for ever: it leaves the rest to the engine thread.
//!
//! Acknowledgements of what a poll has received wait for the answer of a program that [answers](super::answers), and leave inside it
//! or behind it, in the same system call. They leave without it when the program polls an empty completion queue again, waits, destroys
//! a queue pair or exits; and after a millisecond if it does nothing of that (the wire's thread looks).

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
    forecast: AnswerForecast,
    /// Whether acknowledgements are delayed. Changes only while `taken` is locked.
    holds: AtomicBool,
}

#[derive(Default)]
struct Taken {
    packets: OutgoingPackets,
    /// Acknowledgements that wait for the program's answer.
    held: OutgoingPackets,
    buffer: Buffer,
}

struct Buffer(Box<PacketBuffer>);

impl Default for Buffer {
    fn default() -> Self {
        Self(Box::new([0; Headers::MAX + MAX_PAYLOAD + icrc::LEN]))
    }
}

impl Transmitter {
    pub(crate) fn new(wire: Arc<Wire>) -> Self {
        Self {
            wire,
            taken: Mutex::default(),
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
            && let Some((WirePeer { local, remote }, length)) =
                engine.wire_transmit(now, &mut buffer.0)
        {
            packets.push(local, remote, &buffer.0[..length]);
        }
    }

    /// Sends the packets that have been taken, unless another thread is sending. `more` takes those that the engine still has.
    /// Returns whether packets may be left, which the engine thread must send.
    #[must_use]
    pub(super) fn send(&self, more: impl Fn()) -> bool {
        self.send_when(|| self.sending.try_lock(), more)
    }

    /// Delays the packets that have been taken, if they only acknowledge what a poll received at `now`, and the program will soon
    /// post an answer. Returns whether it does.
    pub(super) fn hold(&self, now: u64) -> bool {
        let mut taken = self.taken.lock();
        let Taken { packets, held, .. } = &mut *taken;
        if packets.is_empty() || !packets.only_acknowledge() || !self.forecast.arrived(now) {
            return false;
        }
        let together = |(local, ..): (_, _, &_)| self.wire.sends_together(local);
        if !packets.packets().all(together) {
            return false;
        }
        held.append(packets);
        if !self.holds.swap(true, Ordering::Relaxed) {
            self.wire.count_holding(true);
        }
        true
    }

    /// Records that the program posts at `now`.
    pub(super) fn posted(&self, now: u64) {
        self.forecast.posted(now);
    }

    /// Whether acknowledgements are delayed.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        self.holds.load(Ordering::Relaxed)
    }

    /// Like [`Transmitter::holds`], for the wire's thread: sees what a poll delayed before the thread took the sockets back.
    pub(super) fn holds_now(&self) -> bool {
        !self.taken.lock().held.is_empty()
    }

    /// Receives packets in a thread of the program, which polls. What is delayed must have been sent.
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
                let held = self.taken.lock().give(&mut sending, &self.holds);
                if sending.is_empty() {
                    break;
                }
                self.wire.send(&mut sending);
                if held {
                    self.wire.count_holding(false);
                }
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

    /// Moves all packets to `sending`, which is empty. An acknowledgement that is delayed becomes part of the answer if it can
    /// ([`OutgoingPackets::attach`]). If not, it is the last if it leaves in the same system call as the others, and arrives with them;
    /// else it is the first, so that the peer's request ends before the answer arrives. Returns whether any were delayed.
    fn give(&mut self, sending: &mut OutgoingPackets, holds: &AtomicBool) -> bool {
        if !holds.swap(false, Ordering::Relaxed) {
            std::mem::swap(sending, &mut self.packets);
            return false;
        }
        self.packets.attach(&mut self.held);
        let (first, last) = match self.packets.share_a_call_with(&self.held) {
            true => (&mut self.packets, &mut self.held),
            false => (&mut self.held, &mut self.packets),
        };
        std::mem::swap(sending, first);
        sending.append(last);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WireSetting;
    use crate::wire::tests::address;
    use std::net::IpAddr;

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
        assert!(!transmitter.send(|| ()));
        assert_eq!(sent(), 2, "it leaves without an answer");
        acknowledge();
        assert!(transmitter.hold(4));
        transmitter.take_one(ip);
        assert!(transmitter.holds());
        assert!(!transmitter.send(|| ()));
        assert!(!transmitter.holds());
        assert_eq!(sent(), 4);
    }

    #[test]
    fn acknowledgements_leave_before_an_answer_that_needs_a_call_of_its_own() {
        let (here, there) = (address(), address());
        let order = |held: &[IpAddr], packets: &[(IpAddr, usize)]| -> Vec<u8> {
            let mut taken = Taken::default();
            held.iter()
                .for_each(|to| taken.held.push(here, *to, &ACKNOWLEDGEMENT));
            packets
                .iter()
                .for_each(|(to, length)| taken.packets.push(here, *to, &vec![4; *length]));
            let mut sending = OutgoingPackets::default();
            assert!(taken.give(&mut sending, &AtomicBool::new(true)));
            sending.packets().map(|(_, _, packet)| packet[0]).collect()
        };
        let alone = [there];
        assert_eq!(order(&alone, &[(there, 100)]), [4, 0x11]);
        assert_eq!(order(&alone, &[(there, 100); 3]), [4, 4, 4, 0x11]);
        assert_eq!(order(&alone, &[]), [0x11]);
        assert_eq!(order(&alone, &[(here, 100)]), [0x11, 4], "another host");
        assert_eq!(order(&alone, &[(there, 12)]), [0x11, 4], "a shorter answer");
        let longer = [(there, 100), (there, 60)];
        assert_eq!(
            order(&alone, &longer),
            [0x11, 4, 4],
            "the answer ends the call"
        );
        assert_eq!(order(&[there; 2], &[(there, 100)]), [0x11, 0x11, 4]);
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
