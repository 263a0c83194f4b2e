//! A program learns of a disconnection after it has had time to poll the completions that came before it.
//!
//! A program that is told of a disconnection destroys its queue pair, and with it the completions that nobody has polled. A NIC
//! delivers a completion long before the message arrives that ends the connection, so a thread that polls all the time has it by
//! then. Here both arrive at once if that thread had to wait for a processor. libfabric's reliable datagrams depend on it: one
//! thread polls, another watches connections, and the operation whose completion was destroyed fails.

#![allow(unsafe_code)]
// UNSAFETY: handles of queue pairs.

use crate::sys::Qp;
use ibverbs::object::find;
use ibverbs::qp::QpObject;
use std::time::{Duration, Instant};

/// How long a disconnection waits for the program to poll. It is some turns of the scheduler on a busy machine.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long a thread that waits for events sleeps before it looks again.
pub const NAP: Duration = Duration::from_micros(500);

/// Completes what the peer has acknowledged. If the queue pair's completion queues then have entries, returns since when the
/// disconnection has waited, which is now unless it is in `since`; `None` once it has waited long enough.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn wait_since(qp: *mut Qp, since: Option<Instant>) -> Option<Instant> {
    // SAFETY: guaranteed by the caller; `find` checks that it is live.
    let object = unsafe { find::<QpObject>(qp) }.ok()?;
    object.qp.device().drive_until_idle().ok()?;
    let options = object.qp.options();
    let is_polled = options.send_cq.is_empty() && options.recv_cq.is_empty();
    waits(is_polled, since, rkey_device::time::now())
}

fn waits(is_polled: bool, since: Option<Instant>, now: Instant) -> Option<Instant> {
    let since = since.unwrap_or(now);
    (!is_polled && now.saturating_duration_since(since) < PATIENCE).then_some(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disconnection_waits_until_the_program_has_polled_but_not_for_ever() {
        let start = Instant::now();
        assert_eq!(waits(true, None, start), None);
        assert_eq!(waits(false, None, start), Some(start));
        let later = start + PATIENCE / 2;
        assert_eq!(waits(false, Some(start), later), Some(start));
        assert_eq!(waits(true, Some(start), later), None);
        assert_eq!(waits(false, Some(start), start + PATIENCE), None);
    }
}
