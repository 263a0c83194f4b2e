//! RMRs (remote memory regions): windows of the device, with uDAPL's rules.
//!
//! A bind is a request in the queue of an EP. The device reserves the new context when the bind is posted. When the bind
//! executes, the new context becomes valid and the old one stale; requests that were posted later start only after that.

use crate::handles::fail::Result;
use crate::objects::ep::Ep;
use crate::objects::pz::Pz;
use crate::sys::consts::*;
use crate::sys::{LmrTriplet, RmrContext};
use parking_lot::Mutex;
use rkey_device::core::WindowId;
use std::sync::{Arc, Weak};

/// A remote memory region.
pub struct Rmr {
    /// The PZ of the RMR.
    pub pz: Arc<Pz>,
    /// The handle of the RMR.
    pub handle: usize,
    pub(crate) window: WindowId,
    pub(crate) bound: Mutex<Option<Binding>>,
    /// The EPs to which its binds were posted, and that may still have untaken completions of them.
    pub(crate) eps: Mutex<Vec<Weak<Ep>>>,
}

/// What an RMR is bound to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Binding {
    pub(crate) triplet: LmrTriplet,
    pub(crate) privileges: dat_mem_priv_flags,
    pub(crate) context: RmrContext,
}

crate::kind!(
    Rmr,
    HANDLE_TYPE_RMR,
    INVALID_HANDLE_RMR,
    RESOURCE_MEMORY_REGION,
    1 << 15
);

impl Rmr {
    /// Records that a bind has succeeded. Completions of one EP arrive in the order of the binds; among several EPs,
    /// the device records which bind was last.
    pub fn set_bound(&self, to: Binding) {
        let bound = (to.triplet.segment_length > 0).then_some(to);
        if self.eps.lock().len() > 1 {
            let current = self.pz.ia().device.bound_key(self.window);
            if current.map(|key| key.0) != bound.map(|bound| bound.context) {
                return;
            }
        }
        *self.bound.lock() = bound;
    }

    /// Records that an EP may have binds of this RMR.
    pub(crate) fn used_by(&self, ep: &Arc<Ep>) {
        let mut eps = self.eps.lock();
        if !eps.iter().any(|known| known.as_ptr() == Arc::as_ptr(ep)) {
            eps.retain(|known| known.strong_count() > 0);
            eps.push(Arc::downgrade(ep));
        }
    }

    /// Unbinds the RMR and releases it.
    ///
    /// # Errors
    /// The device failed.
    pub fn close(&self) -> Result {
        self.pz.ia().device.deallocate_window(self.window)?;
        self.pz.users.remove();
        Ok(())
    }
}
