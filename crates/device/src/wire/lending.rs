//! Sockets that the wire's thread lends to a program that polls.
//!
//! If the thread received every datagram, a program that polls would wait until the kernel has woken the thread, often on the
//! program's own processor. So while the program polls, its polls receive the datagrams. The thread notices only now and then
//! whether the program still polls, as the engine thread does. A program that is about to wait returns the sockets
//! ([`Wire::stop_polling`]).
//!
//! The thread watches each socket for one datagram at a time. After it has received what arrived, it watches the socket again, or lends
//! it. It lends sockets only if the wire has one device: a poll then never runs the code of another device, whose locks another
//! thread may hold.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::MutexGuard;

use super::receiver::{Scratch, Turn};
use super::socket::Port;
use super::{Core, Wire};
use crate::progress::now_ns;
use crate::threads;

/// How often the thread checks whether the program still polls.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// A program that has polled this many nanoseconds ago still polls.
const POLLING: u64 = 200_000;
/// After this many ticks without a datagram, the thread watches the sockets again, which makes polls cheaper.
const IDLE_TICKS: u32 = 10;

/// The state of lending.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// When the program polled last, in nanoseconds of the monotonic clock.
    polled_at: AtomicU64,
    /// Whether a poll has received a datagram since the thread last checked.
    has_received: AtomicBool,
    /// How many ticks in a row had no datagram. Only the thread changes it.
    idle_ticks: AtomicU32,
    /// How many devices the wire has, at most.
    pub(super) devices: AtomicUsize,
}

impl Lending {
    pub(super) fn is_any_lent(&self, ports: &[Port]) -> bool {
        ports.iter().any(|it| it.is_lent.load(Ordering::Relaxed))
    }

    /// Whether a program polls, or did so until now.
    fn is_polled(&self) -> bool {
        now_ns().saturating_sub(self.polled_at.load(Ordering::Relaxed)) < POLLING
    }

    /// Records that the program polls at `now`, in nanoseconds of the monotonic clock.
    #[inline]
    pub(super) fn polled_now(&self, now: u64) {
        self.polled_at.store(now, Ordering::Relaxed);
    }
}

impl Wire {
    /// Receives datagrams in a thread of the program, which polls at `now`, in nanoseconds of the monotonic clock. The thread must hold no
    /// lock that [`Receiver::receive`](super::Receiver::receive) takes.
    #[inline]
    pub(crate) fn poll(&self, now: u64) {
        let core = &self.core;
        core.lending.polled_now(now);
        if core.lending.is_any_lent(&core.ports)
            && let Some(scratch) = core.scratch.try_lock()
        {
            self.receive_from(scratch, |port| port.is_lent.load(Ordering::Relaxed));
        }
    }

    /// Whether threads of the program may receive.
    pub(super) fn may_receive_in_program(&self) -> bool {
        self.core.is_usable() && self.core.lending.devices.load(Ordering::Relaxed) == 1
    }

    /// Receives from the chosen sockets in a thread of the program. Returns whether anything had arrived.
    pub(super) fn receive_from(
        &self,
        mut scratch: MutexGuard<'_, Scratch>,
        chosen: impl Fn(&Port) -> bool,
    ) -> bool {
        let core = &self.core;
        if !self.may_receive_in_program() {
            return false;
        }
        let mut has_received = false;
        let outcome = threads::catch_panic("a poll of the wire", || {
            for port in core.ports.iter().filter(|port| chosen(port)) {
                has_received |= core.take(port, &mut scratch, Turn::Poll);
            }
            if has_received {
                core.lending.has_received.store(true, Ordering::Relaxed);
            }
            if !core.lending.is_any_lent(&core.ports) {
                // The thread has taken the sockets back, and may sleep before it sees what is delayed since then.
                core.send_held();
            }
        });
        drop(scratch);
        if let Err(why) = outcome {
            core.fail(why);
        }
        has_received
    }

    /// The program is about to wait, and no longer polls. A thread that [sleeps](super::sleeping) until packets arrive keeps the sockets.
    pub(crate) fn stop_polling(&self) {
        let core = &self.core;
        if core.sleepers.is_any() {
            return;
        }
        core.lending.polled_at.store(0, Ordering::Relaxed);
        if core.is_usable() && core.lending.is_any_lent(&core.ports) {
            core.ring();
        }
    }
}

impl Core {
    /// Whether a program polls, or sleeps until packets arrive, and may receive them.
    fn may_lend(&self) -> bool {
        let is_there = self.lending.is_polled() || self.sleepers.will_receive();
        is_there && self.lending.devices.load(Ordering::Relaxed) == 1
    }

    /// Receives from a socket that is readable, and watches it again or lends it.
    pub(super) fn take_or_lend(&self, index: usize) {
        let port = &self.ports[index];
        if self.take(port, &mut self.scratch.lock(), Turn::Thread) {
            self.sleepers.outrun();
        }
        match self.may_lend() {
            true => port.is_lent.store(true, Ordering::Relaxed),
            false => self.watch_again(index),
        }
    }

    /// Takes the sockets back from a program that no longer polls, or for which nothing arrives.
    pub(super) fn take_back(&self) {
        let lending = &self.lending;
        if !lending.is_any_lent(&self.ports) {
            return;
        }
        let ticks = match lending.has_received.swap(false, Ordering::Relaxed) {
            true => 0,
            false => lending.idle_ticks.load(Ordering::Relaxed) + 1,
        };
        lending.idle_ticks.store(ticks, Ordering::Relaxed);
        // A program that sleeps is woken at once, unless it gets no processor.
        let is_late = ticks > 0 && !lending.is_polled() && self.sleepers.is_late();
        if self.may_lend() && ticks < IDLE_TICKS && !is_late {
            return;
        }
        lending.idle_ticks.store(0, Ordering::Relaxed);
        for (index, port) in self.ports.iter().enumerate() {
            if port.is_lent.swap(false, Ordering::Relaxed) {
                self.watch_again(index);
            }
        }
    }

    fn watch_again(&self, index: usize) {
        let token = self.tokens[index];
        self.ports[index].with_socket(|socket| self.reactor.watch_again(socket, token));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Recorder, address, packet, process, wait_until};
    use super::*;
    use crate::wire::outgoing::OutgoingPackets;
    use std::net::IpAddr;
    use std::thread::{ThreadId, current};

    /// Sends a packet to the only device of `wire`, which polls if `polls`. Returns the thread that has received the packet.
    fn receives(wire: &Wire, recorder: &Recorder, ip: IpAddr, polls: bool) -> ThreadId {
        let before = recorder.packets.lock().len();
        let mut outgoing = OutgoingPackets::default();
        outgoing.push(ip, ip, &packet(recorder.qp(), 1, b"data"));
        wire.send(&mut outgoing);
        wait_until(|| {
            if polls {
                wire.poll(now_ns());
            }
            recorder.packets.lock().len() > before
        });
        recorder.thread.lock().unwrap()
    }

    #[test]
    fn a_program_receives_while_it_polls_and_the_thread_receives_afterwards() {
        let ip = address();
        let (wire, recorder) = process(ip);
        assert_ne!(receives(&wire, &recorder, ip, false), current().id());
        wait_until(|| receives(&wire, &recorder, ip, true) == current().id());
        // The program does not say that it has stopped.
        assert_ne!(receives(&wire, &recorder, ip, false), current().id());
        wait_until(|| receives(&wire, &recorder, ip, true) == current().id());
        wire.stop_polling();
        assert_ne!(receives(&wire, &recorder, ip, false), current().id());
        assert!(!wire.core.lending.is_any_lent(&wire.core.ports));
    }

    #[test]
    fn sockets_return_when_nothing_arrives() {
        let ip = address();
        let (wire, recorder) = process(ip);
        wait_until(|| receives(&wire, &recorder, ip, true) == current().id());
        wait_until(|| {
            wire.poll(now_ns());
            !wire.core.lending.is_any_lent(&wire.core.ports)
        });
    }

    /// A poll may delay acknowledgements, and be the last one.
    #[test]
    fn the_thread_sends_what_a_poll_has_held_back() {
        let ip = address();
        let (wire, recorder) = process(ip);
        wait_until(|| receives(&wire, &recorder, ip, true) == current().id());
        let asked = || recorder.asked.load(Ordering::Relaxed);
        let before = asked();
        wait_until(|| asked() > before);
    }

    #[test]
    fn a_program_with_two_devices_does_not_receive_in_its_polls() {
        let ip = address();
        let (wire, recorder) = process(ip);
        let other = Recorder::new();
        other.add_to(&wire);
        for _ in 0..100 {
            assert_ne!(receives(&wire, &recorder, ip, true), current().id());
        }
    }
}
