//! How often a socket has become readable and writable, for `EPOLLET`.
//!
//! A socket's descriptor is not enough: a thread in `rpoll`, or a second epoll instance, rearms it and so takes the event from all
//! others.

use std::ffi::c_short;

/// What reports that a socket is readable.
const READS: c_short = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP;
/// What reports that a socket is writable.
const WRITES: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// How often a socket has become readable and writable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    reads: u64,
    writes: u64,
    /// How often the socket's phase has changed, or its connection has ended.
    phases: u64,
}

impl Edges {
    /// Data, a connection or the end of the data has arrived.
    pub fn readable(&mut self) {
        self.reads += 1;
    }

    /// There is room to send again.
    pub fn writable(&mut self) {
        self.writes += 1;
    }

    /// The socket's phase has changed, or its connection has ended: every event may be new.
    pub fn phase(&mut self) {
        self.phases += 1;
    }

    /// Whether one of the wanted events may have happened again since `earlier`.
    #[must_use]
    pub fn are_new(self, earlier: Self, wanted: c_short) -> bool {
        self.phases != earlier.phases
            || (wanted & READS != 0 && self.reads != earlier.reads)
            || (wanted & WRITES != 0 && self.writes != earlier.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_is_new_for_those_who_want_its_events() {
        let earlier = Edges::default();
        assert!(!earlier.are_new(earlier, READS | WRITES));
        let mut now = earlier;
        now.readable();
        assert!(now.are_new(earlier, libc::POLLIN | libc::POLLOUT));
        assert!(!now.are_new(earlier, libc::POLLOUT) && !now.are_new(now, libc::POLLIN));
        let mut now = earlier;
        now.writable();
        assert!(now.are_new(earlier, libc::POLLOUT) && !now.are_new(earlier, libc::POLLRDHUP));
        now.phase();
        assert!(now.are_new(earlier, 0));
    }
}
