//! Rendezvous messages in registered memory. The peer reads such a message under a separate key; closing the region
//! that the program named also ends that key.

use parking_lot::Mutex;
use rkey_device::Device;
use rkey_device::core::{LKey, Region};
use rkey_device::denials::refused;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The messages of a domain that peers have not read yet, by their region.
#[derive(Default)]
pub(crate) struct ExposedMessages {
    /// The number of entries, for a shortcut when there are none.
    count: AtomicUsize,
    by_region: Mutex<HashMap<LKey, Vec<Region>>>,
}

impl ExposedMessages {
    /// Adds a message in the program's region `owner`, which the peer reads under the key of `message`.
    ///
    /// Another thread may have closed the region since the caller checked it. If the caller then posts a request and
    /// checks again, either it finds the region closed or the closing thread finds this entry: both take the engine's
    /// lock in between.
    pub(crate) fn add(&self, owner: LKey, message: Region) {
        let mut by_region = self.by_region.lock();
        by_region.entry(owner).or_default().push(message);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Must be called when the message has been read or has failed.
    pub(crate) fn remove(&self, owner: LKey, message: Region) {
        let mut by_region = self.by_region.lock();
        let Some(list) = by_region.get_mut(&owner) else {
            return;
        };
        let Some(at) = list.iter().position(|it| it.id == message.id) else {
            return;
        };
        list.swap_remove(at);
        if list.is_empty() {
            by_region.remove(&owner);
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends the messages of a closed region: once this returns, no peer reads any of them.
    #[inline]
    pub(crate) fn end(&self, owner: LKey, device: &Device) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.end_some(owner, device);
        }
    }

    #[cold]
    fn end_some(&self, owner: LKey, device: &Device) {
        let list = self.by_region.lock().remove(&owner).unwrap_or_default();
        self.count.fetch_sub(list.len(), Ordering::Relaxed);
        if !list.is_empty() {
            refused(&format!(
                "a region was closed before {} of the messages sent from it had arrived; these messages fail. \
                 Close a region only after the operations that use it have completed.",
                list.len()
            ));
        }
        for message in list {
            // An error means that the peer has read the message in the meantime.
            let _ = device.deregister(message);
        }
    }
}
