//! Postpones the event of a disconnection until the program has had time to poll the completions that precede it.
//!
//! A program that fetches this event destroys its queue pair, and with it all completions that it has not polled. A NIC delivers a
//! completion long before the message that ends the connection arrives, so a thread that polls continuously has consumed it by
//! then. Here both may be pending at once, if that thread had to wait for a processor. libfabric's `ofi_rxm` depends on the order:
//! one thread polls, another watches connections, and an operation fails if its completion is destroyed.

#![allow(unsafe_code)]
// UNSAFETY: queue pair handles.

use crate::sys::Qp;
use ibverbs::object::find;
use ibverbs::queues::qp::QpObject;
use std::time::{Duration, Instant};

/// How long a disconnection waits for the program to poll: a few scheduler time slices on a busy machine.
const MAX_DELAY: Duration = Duration::from_millis(20);
/// How long a thread in `rdma_get_cm_event` sleeps before it checks again.
pub const RECHECK_INTERVAL: Duration = Duration::from_micros(500);

/// Completes the requests that the peer has acknowledged. If a completion queue of the queue pair is then not empty, returns when
/// the disconnection was first postponed: `since`, or now if that is `None`. Returns `None` if the program has polled everything,
/// or the disconnection has waited long enough.
///
/// # Safety
/// See `ibverbs::object` for the rules of handles.
pub unsafe fn postponed_since(qp: *mut Qp, since: Option<Instant>) -> Option<Instant> {
    // SAFETY: guaranteed by the caller; `find` checks that it is live.
    let object = unsafe { find::<QpObject>(qp) }.ok()?;
    object.qp.device().drive_until_idle().ok()?;
    let options = object.qp.options();
    let is_polled = options.send_cq.is_empty() && options.recv_cq.is_empty();
    waits(is_polled, since, rkey_device::time::now())
}

fn waits(is_polled: bool, since: Option<Instant>, now: Instant) -> Option<Instant> {
    let since = since.unwrap_or(now);
    (!is_polled && now.saturating_duration_since(since) < MAX_DELAY).then_some(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disconnection_waits_until_the_program_has_polled_but_not_forever() {
        let start = Instant::now();
        assert_eq!(waits(true, None, start), None);
        assert_eq!(waits(false, None, start), Some(start));
        let later = start + MAX_DELAY / 2;
        assert_eq!(waits(false, Some(start), later), Some(start));
        assert_eq!(waits(true, Some(start), later), None);
        assert_eq!(waits(false, Some(start), start + MAX_DELAY), None);
    }
}
