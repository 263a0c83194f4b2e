//! Buffers that can be registered: values that own bytes and keep them at one address.

use rkey_core::MemoryKind;
use std::ptr::NonNull;

/// Bytes that can be registered: a value that is their only owner and keeps them in place.
///
/// Implemented for `Vec<u8>`, `Box<[u8]>`, `Vec<u64>` and `Box<[u64]>` (bytes whose address is a
/// multiple of 8, as atomics need) and for [`SharedMemory`](crate::SharedMemory).
///
/// # Safety
/// `expose` must give the address and length of bytes that
/// * are initialised, readable and writable, and may hold any bit pattern,
/// * belong to this value alone: no reference and no other value reaches them,
/// * stay valid at that address until the value is used again or dropped, in particular when
///   another thread or process writes to them.
pub unsafe trait Buffer: Send + 'static {
    /// The address and the length of the bytes.
    fn expose(&mut self) -> (NonNull<u8>, usize);

    /// The segment that peers can map, for rkey's own allocator.
    #[doc(hidden)]
    fn kind(&self) -> MemoryKind {
        MemoryKind::User
    }
}

/// A [`Buffer`] that no other process has mapped, so that only this process's device could change its bytes.
///
/// # Safety
/// No other process may hold a writable mapping of the bytes, now or later.
pub unsafe trait PrivateBuffer: Buffer {}

// SAFETY: the heap of this process is not shared with others.
unsafe impl PrivateBuffer for Vec<u8> {}
// SAFETY: as above.
unsafe impl PrivateBuffer for Box<[u8]> {}
// SAFETY: as above.
unsafe impl PrivateBuffer for Vec<u64> {}
// SAFETY: as above.
unsafe impl PrivateBuffer for Box<[u64]> {}

// SAFETY: a Vec owns its initialised elements (len, not capacity) on the heap; it does not reallocate while it is not
// used.
unsafe impl Buffer for Vec<u8> {
    fn expose(&mut self) -> (NonNull<u8>, usize) {
        bytes_of(self.as_mut_slice())
    }
}

// SAFETY: a boxed slice owns its bytes on the heap and cannot be resized.
unsafe impl Buffer for Box<[u8]> {
    fn expose(&mut self) -> (NonNull<u8>, usize) {
        bytes_of(self.as_mut())
    }
}

// SAFETY: as for Vec<u8>; every bit pattern is a u64.
unsafe impl Buffer for Vec<u64> {
    fn expose(&mut self) -> (NonNull<u8>, usize) {
        bytes_of(self.as_mut_slice())
    }
}

// SAFETY: as for Box<[u8]>; every bit pattern is a u64.
unsafe impl Buffer for Box<[u64]> {
    fn expose(&mut self) -> (NonNull<u8>, usize) {
        bytes_of(self.as_mut())
    }
}

pub(super) fn bytes_of<T>(slice: &mut [T]) -> (NonNull<u8>, usize) {
    let len = size_of_val(slice);
    (NonNull::from(slice).cast(), len)
}

// SAFETY: the arena is mapped until the value is dropped, starts as zeros, and is accessed only through raw addresses:
// the type gives no reference into it.
unsafe impl Buffer for crate::SharedMemory {
    fn expose(&mut self) -> (NonNull<u8>, usize) {
        self.raw_parts()
    }

    fn kind(&self) -> MemoryKind {
        self.segment()
    }
}
