//! The states of queue pairs, as the hosts of endpoints see them.

use rkey_device::Qp;
use rkey_device::engine::{QpAttributes, QpState};

/// Whether a queue pair can send.
#[must_use]
pub fn is_ready(qp: &Qp) -> bool {
    qp.query().is_ok_and(|info| info.state == QpState::Rts)
}

/// Whether a queue pair has failed.
#[must_use]
pub fn is_broken(qp: &Qp) -> bool {
    let info = qp.query();
    info.is_ok_and(|info| matches!(info.state, QpState::Error | QpState::Sqe))
}

/// Puts a queue pair into the error state.
pub fn end(qp: &Qp) {
    // A queue pair that cannot be changed no longer exists.
    let _ = qp.modify(&QpAttributes::to(QpState::Error));
}
