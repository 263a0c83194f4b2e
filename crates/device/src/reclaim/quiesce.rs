//! Returning the memory that a queue pair's requests named.
//!
//! A request with a remote iovec that has ended here (by a timeout, a flush, or because its queue pair was destroyed) may
//! not have ended at the peer, which copies with its own system call. Deregistering a region waits for such orphaned
//! requests. A front end whose program uses memory without a region calls these functions before it returns the memory.

use std::time::{Duration, Instant};

use rkey_engine::{QpAttributes, QpState};

use crate::device::Device;
use crate::objects::qp::Qp;

impl Qp {
    /// Whether no peer accesses memory any longer because of failed requests of this queue pair. Never waits.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let shared = self.device().shared();
        self.device().is_forked() || shared.reclaim.is_qp_quiet(&shared.driver, self.qpn())
    }

    /// Cuts the links over which a peer may still touch memory because of failed requests of this queue pair. Call this if the
    /// peer has not responded for a long time. [`Qp::is_quiet`] returns true once no peer touches the memory any more.
    pub fn cut_off(&self) {
        let shared = self.device().shared();
        if !self.device().is_forked() {
            shared.reclaim.cut_off_qp(&shared.driver, self.qpn());
        }
    }

    /// Ends the queue pair: flushes everything that is posted. When this returns, no peer touches memory that any of its
    /// requests named. A peer that does not respond by `deadline` loses its link to this device; the function then waits for
    /// system calls that have begun, as [`Device::deregister`] does.
    pub fn quiesce(&self, deadline: Instant) {
        let shared = self.device().shared();
        if !shared.lifecycle().is_usable() {
            return;
        }
        // Every state allows this change.
        let _ = self.modify(&QpAttributes::to(QpState::Error));
        shared
            .reclaim
            .wait_for_qp(&shared.driver, self.qpn(), deadline);
    }
}

impl Device {
    /// Waits until no peer still touches memory because of orphaned requests of the queue pair with this number, which was
    /// reset, destroyed or put into the error state. A peer that does not respond within `patience` loses its link to this
    /// device; the function then waits for system calls that have begun, as [`Device::deregister`] does.
    pub fn wait_until_quiet(&self, qpn: u32, patience: Duration) {
        let shared = self.shared();
        if shared.lifecycle().is_usable() {
            let deadline = Instant::now() + patience;
            shared.reclaim.wait_for_qp(&shared.driver, qpn, deadline);
        }
    }
}
