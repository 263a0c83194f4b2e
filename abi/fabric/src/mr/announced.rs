//! Messages that were announced out of registered memory. A peer reads such a message by a key of its own; when the
//! region that the program named is closed, that key ends with it.

use parking_lot::Mutex;
use rkey_device::Device;
use rkey_device::core::{LocalKey, Region};
use rkey_device::denials::refused;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The messages of a domain that have not been fetched, by the regions that they lie in.
#[derive(Default)]
pub(crate) struct Announced {
    /// How many entries there are, for those who would only find none.
    count: AtomicUsize,
    by_region: Mutex<HashMap<LocalKey, Vec<Region>>>,
}

impl Announced {
    /// A message, which peers read by the key of `message`, lies in the region `owner` of the program's.
    ///
    /// The region may have been closed since it was looked at, by another thread. Who has posted something after this
    /// call, and looks then, finds it closed; or who has closed it finds this entry. Both pass the lock of the engine
    /// in between.
    pub(crate) fn add(&self, owner: LocalKey, message: Region) {
        let mut by_region = self.by_region.lock();
        by_region.entry(owner).or_default().push(message);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The message is over.
    pub(crate) fn remove(&self, owner: LocalKey, message: Region) {
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

    /// A region has been closed: peers read no message that lies in it, and none is being read when this returns.
    #[inline]
    pub(crate) fn end(&self, owner: LocalKey, device: &Device) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.end_some(owner, device);
        }
    }

    #[cold]
    fn end_some(&self, owner: LocalKey, device: &Device) {
        let list = self.by_region.lock().remove(&owner).unwrap_or_default();
        self.count.fetch_sub(list.len(), Ordering::Relaxed);
        if !list.is_empty() {
            refused(&format!(
                "a region was closed while {} of the messages sent from it had not arrived: these fail. \
                 Close a region after the completions of what uses it.",
                list.len()
            ));
        }
        for message in list {
            // It may have been fetched meanwhile.
            let _ = device.close_region(message);
        }
    }
}
