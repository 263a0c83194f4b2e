//! Who drives the engine.
//!
//! The engine moves only when somebody calls `drive`. There are three situations, kept in one word
//! that changes only under the engine's lock:
//!
//! * [`Mode::Lent`]: the program polls (or has just posted). Whoever polls looks at the rings without
//!   a lock, and drives when there is something. Peers need not ring: our sleep words are even. The
//!   engine thread sleeps, and a timer lets it look every 10 ms whether the program still polls.
//! * [`Mode::Thread`]: nobody polls, and the engine thread drives.
//! * [`Mode::Asleep`]: nobody has anything to do. Our sleep words are odd, so peers ring the bell when
//!   they write to a ring, and that wakes the engine thread. No timer runs unless something is
//!   outstanding. No CPU is used.
//!
//! A program that starts to poll or post takes the device from asleep to lent by itself, without
//! waking the thread: it makes the sleep words even and sets the timer. A program that is about to
//! wait gives it back ([`hand_over`](crate::shared::Shared::hand_over)), also by itself. The thread takes over when a tick finds
//! that no poll has happened since the last one.
//!
//! Time for pollers is the coarse clock of this module, which the thread and every 64th empty poll
//! refresh: reading the real one costs as much as a whole operation.
mod backoff;
mod driver;
mod event_router;
pub(crate) mod engine_thread;
mod idle;
#[cfg(test)]
pub(crate) mod panic_tests;
mod poll_set;
pub(crate) mod reactor;
mod schedule;
mod thread_requests;
mod timer;

pub(crate) use backoff::Backoff;
pub(crate) use driver::kick_peers;
pub(crate) use schedule::{Mode, ProgressState, now_ns};
pub(crate) use thread_requests::ThreadRequests;
