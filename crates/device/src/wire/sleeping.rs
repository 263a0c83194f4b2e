//! Threads of the program that sleep until packets arrive, and receive these themselves.
//!
//! If only the wire's thread waited for datagrams, each packet would wake two threads, one after the other: the wire's, and the
//! program's. So a thread of the program that is about to sleep watches the sockets, too ([`PacketSleeper`]). While one sleeps, the wire's
//! thread [lends](super::lending) it the sockets.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::socket::Port;
use super::{Core, Wire};
use crate::error::DeviceError;
use crate::progress::now_ns;
use crate::progress::reactor::Reactor;

/// How many times in a row the wire's thread may receive before a sleeping thread does, until it no longer lends to sleepers: they do not
/// get a processor.
const TOO_SLOW: u32 = 4;

/// The thread of the program that sleeps. Others are woken by the wire's thread: one is enough to receive.
pub(super) struct Sleepers {
    /// All sockets of the wire. Only the sleeper waits for it.
    sockets: Reactor,
    /// Whether there is one: it sleeps, or is about to.
    is_there: AtomicBool,
    /// Whether it waits for the sockets now.
    is_asleep: AtomicBool,
    /// How many times in a row the wire's thread has received before the sleeper did.
    outrun: AtomicU32,
}

impl Sleepers {
    /// Watches the sockets of these ports.
    ///
    /// # Errors
    /// The system cannot watch them.
    pub(super) fn new(ports: &[Port]) -> Result<Self, DeviceError> {
        let sockets = Reactor::new()?;
        for port in ports {
            let token = sockets.new_token();
            port.with_socket(|socket| sockets.add(socket, token))
                .transpose()?;
        }
        Ok(Self {
            sockets,
            is_there: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            outrun: AtomicU32::new(0),
        })
    }

    /// The set of all sockets.
    pub(super) fn sockets(&self) -> &Reactor {
        &self.sockets
    }

    /// Whether a thread sleeps, or is about to.
    pub(super) fn is_any(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Whether a thread sleeps that will receive what arrives.
    pub(super) fn will_receive(&self) -> bool {
        self.is_asleep.load(Ordering::Relaxed) && self.outrun.load(Ordering::Relaxed) < TOO_SLOW
    }

    /// Whether something has arrived that the sleeper has not received. Then it does not get a processor.
    pub(super) fn is_late(&self) -> bool {
        let is_late = self.is_asleep.load(Ordering::Relaxed)
            && !self.sockets.wait(Some(Duration::ZERO)).is_empty();
        if is_late {
            self.outrun();
        }
        is_late
    }

    /// The wire's thread has received datagrams before the sleeper.
    pub(super) fn outrun(&self) {
        if self.is_asleep.load(Ordering::Relaxed) {
            let times = self.outrun.load(Ordering::Relaxed);
            self.outrun
                .store(times.saturating_add(1), Ordering::Relaxed);
        }
    }
}

/// A thread of the program that is about to sleep until packets arrive.
pub(crate) struct PacketSleeper<'a>(&'a Wire);

impl Wire {
    /// Registers the calling thread, which is about to sleep. `None` if there is another one, or this wire's packets cannot be received in
    /// the program's threads.
    pub(crate) fn sleeper(&self) -> Option<PacketSleeper<'_>> {
        if !self.may_receive_in_program()
            || self.core.sleepers.is_there.swap(true, Ordering::AcqRel)
        {
            return None;
        }
        Some(PacketSleeper(self))
    }
}

impl PacketSleeper<'_> {
    /// Whether the thread may still receive.
    pub(crate) fn may_receive(&self) -> bool {
        self.0.may_receive_in_program()
    }

    /// Calls `wait`, which waits for the sockets.
    pub(crate) fn asleep<T>(&self, wait: impl FnOnce() -> T) -> T {
        let is_asleep = &self.0.core.sleepers.is_asleep;
        is_asleep.store(true, Ordering::Relaxed);
        let result = wait();
        is_asleep.store(false, Ordering::Relaxed);
        result
    }

    /// Receives what has arrived. The thread must hold no lock that [`Receiver::receive`](super::Receiver::receive) takes.
    pub(crate) fn receive(&self) {
        let core: &Core = &self.0.core;
        // Another thread may be receiving. Without waiting for it, this thread would find the sockets readable again.
        let scratch = core.scratch.lock();
        if self.0.receive_from(scratch, |_| true) {
            core.sleepers.outrun.store(0, Ordering::Relaxed);
        }
        // The wire's thread may sleep, and does not know that a request waits for its listener.
        if !core.waiting.lock().is_empty() {
            core.ring();
        }
    }
}

/// Readable when datagrams have arrived.
impl AsFd for PacketSleeper<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.core.sleepers.sockets.as_fd()
    }
}

impl Drop for PacketSleeper<'_> {
    fn drop(&mut self) {
        let core = &self.0.core;
        // The thread will poll next, most likely.
        core.lending.polled_now(now_ns());
        core.sleepers.is_there.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Recorder, address, packet, process, wait_until};
    use super::*;
    use crate::objects::event_queue::wait_readable;
    use crate::wire::outgoing::OutgoingPackets;
    use std::net::IpAddr;
    use std::thread::current;
    use std::time::Instant;

    fn send(wire: &Wire, recorder: &Recorder, ip: IpAddr) {
        let mut outgoing = OutgoingPackets::default();
        outgoing.push(ip, ip, &packet(recorder.qp(), 1, b"data"));
        wire.send(&mut outgoing);
    }

    #[test]
    fn a_thread_that_sleeps_receives_what_wakes_it() {
        let ip = address();
        let (wire, recorder) = process(ip);
        let arrived = || recorder.packets.lock().len();
        // The wire's thread is woken as well, and may be first.
        wait_until(|| {
            let before = arrived();
            let sleeper = wire.sleeper().unwrap();
            send(&wire, &recorder, ip);
            while arrived() == before {
                let soon = Instant::now() + Duration::from_millis(1);
                let wakes = || wait_readable(sleeper.as_fd(), Some(soon)).unwrap();
                if sleeper.asleep(wakes) {
                    sleeper.receive();
                }
            }
            *recorder.thread.lock() == Some(current().id())
        });
        assert!(wire.core.sleepers.outrun.load(Ordering::Relaxed) == 0);
        assert!(!wire.core.sleepers.is_any());
    }

    #[test]
    fn a_thread_that_sleeps_but_gets_no_processor_is_passed_over() {
        let ip = address();
        let (wire, recorder) = process(ip);
        let sleeper = wire.sleeper().unwrap();
        assert!(wire.sleeper().is_none(), "one is enough");
        sleeper.asleep(|| {
            for count in 1..=20 {
                send(&wire, &recorder, ip);
                wait_until(|| recorder.packets.lock().len() == count);
                assert_ne!(*recorder.thread.lock(), Some(current().id()));
            }
            assert!(!wire.core.sleepers.will_receive());
            // The wire's thread watches the sockets again.
            wait_until(|| !wire.core.lending.is_any_lent(&wire.core.ports));
        });
        drop(sleeper);
        assert!(wire.sleeper().is_some());
    }

    #[test]
    fn threads_of_a_program_with_two_devices_do_not_receive() {
        let ip = address();
        let (wire, _recorder) = process(ip);
        let other = Recorder::new();
        other.add_to(&wire);
        assert!(wire.sleeper().is_none());
    }
}
