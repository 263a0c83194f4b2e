//! One side's memory: its layout, and pointers to it.

use crate::Malformed;
use rkey_base::shared::{OwnBytes, PeerBytes};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The version of the layout and of the meaning of every word in it.
pub(crate) const VERSION: u32 = 3;
/// "rkeyhalf", read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"rkeyhalf");

/// The size of a slot, in bytes.
pub(crate) const SLOT: usize = 256;
/// The number of leases (and of in-use words) of a link.
pub(crate) const LEASES: usize = 256;

const ACK: usize = 256;
const SLEEP: usize = 384;
const REVOKED: usize = 512;
const BUSY: usize = 640;
const WARRANTS: usize = 768;
const GENERATIONS: usize = 2048;
const IN_USE: usize = 4096;
const IN_USE_STRIDE: usize = 64;
const SLOTS: usize = IN_USE + LEASES * IN_USE_STRIDE;

/// The sizes of one half. The owner chooses them, and the other side checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// The number of slots, a power of two.
    pub(crate) slots: u32,
    /// The size of the payload ring in bytes, a power of two.
    pub(crate) payload: u32,
    /// The maximum payload of one fragment; at most half of `payload`.
    pub(crate) fragment_max: u32,
}

impl Geometry {
    /// Checks that this implementation supports the sizes.
    pub(crate) fn check(&self) -> Result<(), Malformed> {
        let Self {
            slots,
            payload,
            fragment_max,
        } = *self;
        if !slots.is_power_of_two() || !(16..=1 << 14).contains(&slots) {
            return Err(Malformed::new("the number of slots is out of bounds"));
        }
        if !payload.is_power_of_two() || !(1 << 12..=1 << 28).contains(&payload) {
            return Err(Malformed::new("the payload ring's size is out of bounds"));
        }
        if fragment_max < 256 || fragment_max > payload / 2 {
            return Err(Malformed::new("the fragment size is out of bounds"));
        }
        Ok(())
    }

    /// The size of the whole half, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        SLOTS + self.slots as usize * SLOT + self.payload as usize
    }

    /// The maximum number of unacknowledged slots: half of the ring, so that the slots just ahead of the producer were
    /// read long ago and can be prefetched for writing.
    pub(crate) fn window(&self) -> u64 {
        u64::from(self.slots / 2)
    }

    /// The number of payload bytes that can be in flight in fragments of the maximum size before any is acknowledged, if the first is at the
    /// beginning of the ring. Otherwise, there can be one fragment less.
    pub(crate) fn room(&self) -> u64 {
        let fragment = u64::from(self.fragment_max);
        self.window().min(u64::from(self.payload) / fragment) * fragment
    }

    fn words(&self) -> [u64; 3] {
        [
            MAGIC,
            u64::from(VERSION) | u64::from(self.slots) << 32,
            u64::from(self.payload) | u64::from(self.fragment_max) << 32,
        ]
    }
}

/// Keeps the memory of the halves mapped.
#[derive(Clone)]
pub(crate) struct KeepMapped {
    _memory: Arc<dyn Any + Send + Sync>,
}

impl KeepMapped {
    pub(crate) fn new(memory: Arc<dyn Any + Send + Sync>) -> Self {
        Self { _memory: memory }
    }
}

impl std::fmt::Debug for KeepMapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeepMapped")
    }
}

/// Pointers into one half.
///
/// Invariant: `base` is aligned to 128 bytes and valid for `geometry.bytes()` bytes (for writing, if the half is our
/// own) as long as the [`KeepMapped`] that travels with it lives, and `geometry` has passed [`Geometry::check`]. Other
/// processes may change a peer's half at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half {
    base: *mut u8,
    geometry: Geometry,
}

// SAFETY: a `Half` is only an address; every access goes through the methods below, which use
// atomics, or through the one sender of the half, which is not shared.
unsafe impl Send for Half {}
// SAFETY: as above.
unsafe impl Sync for Half {}

impl Half {
    /// Uses memory as a half.
    ///
    /// # Safety
    /// The invariant of the type must hold.
    ///
    /// # Errors
    /// The geometry is out of bounds or does not fit `len`.
    pub(crate) unsafe fn new(
        base: *mut u8,
        len: usize,
        geometry: Geometry,
    ) -> Result<Self, Malformed> {
        geometry.check()?;
        if geometry.bytes() > len {
            return Err(Malformed::new("the segment is too small for its rings"));
        }
        if !(base as usize).is_multiple_of(128) {
            return Err(Malformed::new("the segment is not aligned"));
        }
        Ok(Self { base, geometry })
    }

    /// The sizes.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.geometry.bytes());
        // SAFETY: all callers pass offsets of the layout above, inside `bytes()` and multiples of 8, and the base is
        // aligned and valid (invariant). An atomic may be read while a peer writes it, and this side only reads a
        // peer's half.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Writes the identity (only in our own half).
    pub(crate) fn identify(&self) {
        for (i, word) in self.geometry.words().into_iter().enumerate() {
            self.word(i * 8).store(word, Ordering::Relaxed);
        }
    }

    /// Writes arbitrary bytes to the identity: for fuzzing.
    pub(crate) fn pretend_identity(&self, bytes: &[u8]) {
        for (i, part) in bytes.chunks_exact(8).take(ACK / 8).enumerate() {
            let mut word = [0; 8];
            word.copy_from_slice(part);
            self.word(i * 8)
                .store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// Checks that the identity in the memory matches the handshake.
    pub(crate) fn check_identity(&self) -> Result<(), Malformed> {
        for (i, word) in self.geometry.words().into_iter().enumerate() {
            if self.word(i * 8).load(Ordering::Relaxed) != word {
                return Err(Malformed::new(
                    "the segment's identity differs from the one in the hello",
                ));
            }
        }
        Ok(())
    }

    /// The ack word: how many fragments the owner has consumed, and how many responses it had sent by then.
    #[inline]
    pub(crate) fn ack(&self) -> &AtomicU64 {
        self.word(ACK)
    }

    /// The owner's sleep epoch.
    #[inline]
    pub(crate) fn sleep(&self) -> &AtomicU64 {
        self.word(SLEEP)
    }

    /// Requester: whether the peer may no longer access the owner's memory.
    pub(crate) fn revoked(&self) -> &AtomicU64 {
        self.word(REVOKED)
    }

    /// Responder: whether the owner is copying to or from the other side's memory. Requester: the number of the warrant with
    /// which the owner is copying to the other side's memory, or 0.
    pub(crate) fn busy(&self) -> &AtomicU64 {
        self.word(BUSY)
    }

    /// Responder: bit n modulo 64 is set while warrant n is valid.
    pub(crate) fn warrants(&self) -> &AtomicU64 {
        self.word(WARRANTS)
    }

    /// The generation word of a lease; `None` if there is no such lease.
    pub(crate) fn generation(&self, lease: usize) -> Option<&AtomicU64> {
        (lease < LEASES).then(|| self.word(GENERATIONS + lease * 8))
    }

    /// The in-use word of a lease; `None` if there is no such lease.
    pub(crate) fn in_use(&self, lease: usize) -> Option<&AtomicU64> {
        (lease < LEASES).then(|| self.word(IN_USE + lease * IN_USE_STRIDE))
    }

    /// The slot that the `index`-th fragment uses.
    #[inline]
    pub(crate) fn slot(&self, index: u64) -> *mut u8 {
        let at = index as usize & (self.geometry.slots as usize - 1);
        // SAFETY: `at` is below `slots`, so the slot lies inside the half (invariant).
        unsafe { self.base.add(SLOTS + at * SLOT) }
    }

    /// The first word of a slot: sequence number, operation, flags, length.
    #[inline]
    pub(crate) fn slot_word(&self, index: u64) -> &AtomicU64 {
        let at = index as usize & (self.geometry.slots as usize - 1);
        self.word(SLOTS + at * SLOT)
    }

    #[inline]
    fn payload(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let size = self.geometry.payload as usize;
        if offset > size || len > size - offset {
            return None;
        }
        // SAFETY: just checked to lie inside the payload ring, which lies inside the half.
        Some(unsafe {
            self.base
                .add(SLOTS + self.geometry.slots as usize * SLOT + offset)
        })
    }

    /// Bytes of the payload ring, for the peer that reads them.
    #[inline]
    pub(crate) fn payload_as_peer(&self, offset: usize, len: usize) -> Option<PeerBytes<'_>> {
        let start = self.payload(offset, len)?;
        // SAFETY: valid for `len` bytes (checked by `payload`) for the life of the half.
        Some(unsafe { PeerBytes::new(start, len) })
    }

    /// Bytes of the payload ring, for the owner that writes them.
    #[inline]
    pub(crate) fn payload_place(&self, offset: usize, len: usize) -> Option<OwnBytes<'_>> {
        let start = self.payload(offset, len)?;
        // SAFETY: valid for `len` bytes (checked by `payload`) for the life of the half; callers have the one sender
        // of this half, so there is no other writer.
        Some(unsafe { OwnBytes::new(start, len) })
    }
}

/// A half in ordinary memory, for a device that talks to itself.
pub(crate) struct HeapHalf {
    lines: Box<[HalfChunk]>,
}

/// 128 bytes, with the alignment that the format of a half requires.
#[repr(C, align(128))]
#[derive(Default)]
struct HalfChunk([AtomicU64; 16]);

impl HeapHalf {
    /// Zeroed memory of the right size.
    pub(crate) fn new(geometry: Geometry) -> Self {
        let lines = geometry.bytes().div_ceil(size_of::<HalfChunk>());
        Self {
            lines: (0..lines).map(|_| HalfChunk::default()).collect(),
        }
    }

    /// The half. It is valid as long as `self` lives, so the caller stores `self` in the [`KeepMapped`].
    pub(crate) fn half(&self, geometry: Geometry) -> Result<Half, Malformed> {
        let base = self.lines.as_ptr().cast_mut().cast::<u8>();
        let len = self.lines.len() * size_of::<HalfChunk>();
        // SAFETY: the box is aligned to 128, `len` bytes long, and made of atomics, so it may be
        // written through a shared pointer. Callers keep `self` alive.
        let half = unsafe { Half::new(base, len, geometry)? };
        half.identify();
        Ok(half)
    }
}
