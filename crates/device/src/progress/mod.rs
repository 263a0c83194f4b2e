//! How the engine is driven.
//!
//! The engine does work only when a thread calls `drive`. The [`EngineDriver`] owns the engine and decides which thread that is; the
//! [`Schedule`] keeps the [`Mode`], which changes only under the engine's lock:
//!
//! * [`Mode::Program`]: the program polls, or has just posted. A polling thread checks the rings without a lock, and
//!   drives when there is work. Peers need not ring the doorbell: our sleep words are even. The engine thread sleeps; a
//!   timer makes it check every tick (10 ms by default) whether the program still polls.
//! * [`Mode::Thread`]: the program does not poll, and the engine thread drives.
//! * [`Mode::Asleep`]: there is no work. Our sleep words are odd, so a peer that writes to a ring also rings the doorbell, which
//!   wakes the engine thread. The timer runs only if requests are outstanding. No CPU is used.
//!
//! A program that starts to poll or post wakes the engine without the engine thread: it makes the sleep words even and sets the
//! timer. A program that is about to wait hands over the engine ([`EngineDriver::hand_over`]), also without the engine
//! thread. The engine thread takes over when a tick finds no poll since the last one.
//!
//! Pollers take the time from a coarse clock, which the engine thread and every 64th empty poll refresh: reading the real clock
//! costs as much as a whole operation.
//!
//! | module | what it is |
//! | --- | --- |
//! | `driver`, `engine` | the engine, and the calls that all threads use to drive it: posts, commands, drives |
//! | `polling` | a program's polls of an empty completion queue |
//! | `handover` | falling asleep, and passing the engine between the program and the engine thread |
//! | `packets` | taking, sending and receiving packets for other hosts |
//! | `links` | the links in the poll set, the loopback, and links to cut |
//! | `pending_work` | whether the engine has work that no ring shows |
//! | `schedule` | who drives, the coarse clock, the deadline |
//! | `event_router` | acts on the engine's events |
//! | `engine_thread` | waits for sockets, doorbell and timer; drives while the program does not |
//! | `thread_requests` | work that other threads delegate to the engine thread |
//! | `transmitter` | packets for other hosts |
//! | `answers` | whether acknowledgements wait for the program's answer |
//! | `poll_set` | the rings that pollers check without a lock |
//! | `idle` | how long pollers have found nothing |
//! | `exit` | acknowledgements that are published when the process exits |
//! | `reactor`, `timer`, `backoff` | epoll, a timer, growing pauses |

mod answers;
mod backoff;
mod driver;
mod engine;
pub(crate) mod engine_thread;
mod event_router;
pub(crate) mod exit;
mod handover;
mod idle;
mod links;
mod packets;
#[cfg(test)]
pub(crate) mod panic_tests;
mod pending_work;
mod poll_set;
mod polling;
pub(crate) mod reactor;
mod schedule;
mod thread_requests;
mod timer;
mod transmitter;

pub(crate) use backoff::Backoff;
pub(crate) use driver::EngineDriver;
pub(crate) use engine::DeviceEngine;
pub(crate) use event_router::EventRouter;
pub(crate) use schedule::{Mode, Schedule, now_ns};
pub(crate) use thread_requests::{ThreadRequests, UnresponsivePeer};
pub(crate) use transmitter::Transmitter;
