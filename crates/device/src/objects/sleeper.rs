//! How a thread of the program sleeps: until a descriptor is readable, or packets from other hosts arrive.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::event_queue::{wait_for_any, wait_readable};
use crate::device::Device;
use crate::error::DeviceError;
use crate::wire::PacketSleeper;

/// A thread of the program that is about to wait for completions. Packets from other hosts that arrive meanwhile wake it directly, and
/// it receives them itself.
pub struct Sleeper<'a>(Option<PacketSleeper<'a>>);

/// Why a thread no longer sleeps.
pub(super) struct Woken {
    /// Not because the deadline has passed.
    pub(super) in_time: bool,
    /// Whether the descriptor is readable.
    pub(super) is_readable: bool,
}

impl Device {
    /// Registers the calling thread, which is about to wait. Call this before the thread arms what it waits for, and drop the value when
    /// the thread no longer waits.
    #[must_use]
    pub fn sleeper(&self) -> Sleeper<'_> {
        Sleeper(self.wire().and_then(|wire| wire.sleeper()))
    }
}

impl Sleeper<'_> {
    /// Whether packets wake the thread.
    #[must_use]
    pub fn receives_packets(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until the descriptor is readable, or packets have arrived, which this call receives. Returns `false` if `deadline` passed
    /// first (`None`: without limit). The thread must hold no lock that others need for progress.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn wait(&self, fd: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool, DeviceError> {
        Ok(self.sleep(fd, deadline)?.in_time)
    }

    /// Like [`Sleeper::wait`], but also returns whether the descriptor is readable.
    pub(super) fn sleep(
        &self,
        fd: BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> Result<Woken, DeviceError> {
        let Some(packets) = self.0.as_ref().filter(|it| it.may_receive()) else {
            let is_readable = wait_readable(fd, deadline)?;
            return Ok(Woken {
                in_time: is_readable,
                is_readable,
            });
        };
        let mut set = [
            PollFd::from_borrowed_fd(fd, PollFlags::IN),
            PollFd::new(packets, PollFlags::IN),
        ];
        let is_ready = packets.asleep(|| wait_for_any(&mut set, deadline))?;
        let [is_readable, is_packet] = [0, 1].map(|at: usize| !set[at].revents().is_empty());
        let mut in_time = is_ready;
        if is_packet {
            packets.receive();
            // Packets that concern others do not prolong the wait.
            let is_due = deadline.is_some_and(|at| at <= Instant::now());
            in_time = !is_due || is_readable;
        }
        Ok(Woken {
            in_time,
            is_readable,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::wire::tests::address;
    use rkey_roce::icrc;
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::Duration;

    /// Datagrams that no device wants wake the thread, but do not prolong its wait.
    #[test]
    fn a_wait_ends_in_time_although_datagrams_arrive() {
        let ip = address();
        let mut config = Config::default();
        config.set("RKEY_WIRE", &ip.to_string()).unwrap();
        let device = Device::open(config).unwrap();
        let cq = device.create_cq(4, None).unwrap();
        let (stops, sent) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = UdpSocket::bind((ip, 0)).unwrap();
                while !stops.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&[7; 200], (ip, icrc::PORT));
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
            while sent.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let before = sent.load(Ordering::Relaxed);
            let ended = cq.wait(Some(Duration::from_millis(50)));
            stops.store(true, Ordering::Relaxed);
            assert!(!ended.unwrap());
            assert!(sent.load(Ordering::Relaxed) > before + 10);
        });
    }
}
