//! The buffers for messages that arrive, which all connections of an endpoint share.

#![allow(unsafe_code)]
// UNSAFETY: the device writes to the memory, which is read by address.

use rkey_rdm::limits::{BUFFER_LEN, BUFFERS};

/// The buffers.
pub(super) struct Buffers {
    start: *mut u8,
}

// SAFETY: the memory is only read through `read`, whose callers have exclusive use of a buffer.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

impl Buffers {
    pub(super) fn new() -> Self {
        let bytes = vec![0u8; BUFFERS as usize * BUFFER_LEN].into_boxed_slice();
        Self {
            start: Box::into_raw(bytes).cast(),
        }
    }

    /// The address of a buffer.
    pub(super) fn address(&self, index: u32) -> u64 {
        (self.start as usize + (index % BUFFERS) as usize * BUFFER_LEN) as u64
    }

    /// The first bytes of a buffer.
    ///
    /// # Safety
    /// The device has completed the receive into it, and it is not posted again while the result is used.
    pub(super) unsafe fn read(&self, index: u32, len: usize) -> &[u8] {
        let len = len.min(BUFFER_LEN);
        // SAFETY: it is inside the allocation, and the caller promises that the device does not write to it while the result is used.
        unsafe { std::slice::from_raw_parts(self.address(index) as *const u8, len) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.start, BUFFERS as usize * BUFFER_LEN);
        // SAFETY: it is the allocation of `new`, which is no longer in use: the queue of receives was destroyed before.
        drop(unsafe { Box::from_raw(bytes) });
    }
}
