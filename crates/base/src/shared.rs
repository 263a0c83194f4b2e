//! Views of memory that a peer process can see or change.
//!
//! Such memory must never become a `&[u8]`: a Rust reference promises that the bytes do not change while it lives, and
//! a peer need not keep that promise. [`OwnBytes`] is memory that we alone write and a peer may be reading;
//! [`PeerBytes`] is memory that a peer may be writing at this very moment. Both allow access only by copying. Read a
//! value *once*, then check it; reading it again may give another value.
//!
//! Words are read and written with atomic accesses (relaxed, unless the name says `publish` or `observe`), and byte
//! ranges with the copy routine of [`crate::copy`], which is opaque to the compiler.
//!
//! This program chooses the offsets, never a peer: an offset out of bounds is a bug in the program and panics, as for
//! slices. For an offset from a peer use [`PeerBytes::slice`], which returns `None`.

// UNSAFETY: raw memory under two safe interfaces; the constructors are unsafe, and everything else checks bounds.
#![allow(unsafe_code)]

use crate::copy::transfer;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes that only the holder of this view writes, and that a peer may be reading.
#[derive(Debug)]
pub struct OwnBytes<'a> {
    ptr: *mut u8,
    len: usize,
    _life: PhantomData<&'a mut [u8]>,
}

/// Bytes that a peer may change at any time.
#[derive(Clone, Copy, Debug)]
pub struct PeerBytes<'a> {
    ptr: *const u8,
    len: usize,
    _life: PhantomData<&'a [u8]>,
}

// SAFETY: an `OwnBytes` is the only view for writing of its bytes, as `&mut [u8]` is, and may move between threads like it.
unsafe impl Send for OwnBytes<'_> {}
// SAFETY: `&OwnBytes` gives access only to its address and length.
unsafe impl Sync for OwnBytes<'_> {}
// SAFETY: a `PeerBytes` reads by atomic or opaque accesses only, which may happen in any thread.
unsafe impl Send for PeerBytes<'_> {}
// SAFETY: as above; also, it holds no state.
unsafe impl Sync for PeerBytes<'_> {}

#[cold]
#[inline(never)]
#[track_caller]
fn out_of_bounds(offset: usize, len: usize, size: usize) -> ! {
    panic!("{len} bytes at offset {offset} do not lie inside a view of {size} bytes");
}

#[cold]
#[inline(never)]
#[track_caller]
fn misaligned(offset: usize) -> ! {
    panic!("the word at offset {offset} is not aligned");
}

/// Panics unless `len` bytes at `offset` lie inside `size` bytes.
#[inline(always)]
#[track_caller]
fn check(offset: usize, len: usize, size: usize) {
    if len > size || offset > size - len {
        out_of_bounds(offset, len, size);
    }
}

macro_rules! put_word {
    ($name:ident, $word:ty, $atomic:ty) => {
        /// Writes a word at `offset`, in the byte order of this machine, with a single store if it is aligned.
        ///
        /// # Panics
        ///
        /// When the word does not lie inside the view.
        #[inline(always)]
        #[track_caller]
        pub fn $name(&mut self, offset: usize, value: $word) {
            check(offset, size_of::<$word>(), self.len);
            // SAFETY: the word lies inside the view, by the check, and the constructor's caller vouched for the view.
            unsafe {
                let at = self.ptr.add(offset);
                if at.addr() % align_of::<$atomic>() == 0 {
                    (*at.cast::<$atomic>()).store(value, Ordering::Relaxed);
                } else {
                    transfer(at, value.to_ne_bytes().as_ptr(), size_of::<$word>());
                }
            }
        }
    };
}

macro_rules! get_word {
    ($name:ident, $word:ty, $atomic:ty) => {
        /// Reads the word at `offset`, in the byte order of this machine, with a single load if it is aligned.
        ///
        /// # Panics
        ///
        /// When the word does not lie inside the view.
        #[inline(always)]
        #[track_caller]
        #[must_use]
        pub fn $name(&self, offset: usize) -> $word {
            check(offset, size_of::<$word>(), self.len);
            // SAFETY: the word lies inside the view, by the check, and the constructor's caller vouched for the view.
            unsafe {
                let at = self.ptr.add(offset);
                if at.addr() % align_of::<$atomic>() == 0 && !cfg!(miri) {
                    (*at.cast::<$atomic>()).load(Ordering::Relaxed)
                } else {
                    let mut bytes = [0; size_of::<$word>()];
                    transfer(bytes.as_mut_ptr(), at, size_of::<$word>());
                    <$word>::from_ne_bytes(bytes)
                }
            }
        }
    };
}

macro_rules! publish_word {
    ($name:ident, $word:ty, $atomic:ty) => {
        /// Writes the aligned word at `offset` so that a reader with the `observe` of the same size also sees
        /// everything written before (a release store).
        ///
        /// # Panics
        ///
        /// When the word is not inside the view, or is not aligned.
        #[inline(always)]
        #[track_caller]
        pub fn $name(&mut self, offset: usize, value: $word) {
            check(offset, size_of::<$word>(), self.len);
            // SAFETY: the word lies inside the view, by the check, and the constructor's caller vouched for the view;
            // its alignment is checked before it is used.
            unsafe {
                let at = self.ptr.add(offset);
                if at.addr() % align_of::<$atomic>() != 0 {
                    misaligned(offset);
                }
                (*at.cast::<$atomic>()).store(value, Ordering::Release);
            }
        }
    };
}

macro_rules! observe_word {
    ($name:ident, $word:ty, $atomic:ty) => {
        /// Reads the aligned word at `offset`; everything written before it was published is visible afterwards (an
        /// acquire load).
        ///
        /// # Panics
        ///
        /// When the word does not lie inside the view, or is not aligned.
        #[inline(always)]
        #[track_caller]
        #[must_use]
        pub fn $name(&self, offset: usize) -> $word {
            check(offset, size_of::<$word>(), self.len);
            // SAFETY: the word lies inside the view, by the check, and the constructor's caller vouched for the view;
            // its alignment is checked before it is used. A load writes nothing, so read-only memory is enough.
            unsafe {
                let at = self.ptr.add(offset);
                if at.addr() % align_of::<$atomic>() != 0 {
                    misaligned(offset);
                }
                (*at.cast::<$atomic>()).load(Ordering::Acquire)
            }
        }
    };
}

impl<'a> OwnBytes<'a> {
    /// The `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// For the whole of `'a` the bytes must be valid for reading and writing, must not be covered by a Rust reference,
    /// and must be written only through this view.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self {
            ptr,
            len,
            _life: PhantomData,
        }
    }

    /// Bytes that no peer can access, for code that takes an `OwnBytes`.
    #[must_use]
    #[inline(always)]
    pub const fn from_slice(bytes: &'a mut [u8]) -> Self {
        Self {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len(),
            _life: PhantomData,
        }
    }

    /// The number of bytes.
    #[must_use]
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    #[must_use]
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the bytes.
    #[must_use]
    #[inline(always)]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    ///
    /// When they do not fit into the view.
    #[inline(always)]
    #[track_caller]
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        // Frequent sizes become plain moves where the length is known when this is inlined.
        if let Ok(word) = <[u8; 8]>::try_from(bytes) {
            return self.put_u64(offset, u64::from_ne_bytes(word));
        }
        check(offset, bytes.len(), self.len);
        if let Some((low, high)) = bytes.split_first_chunk::<8>()
            && let Ok(high) = <[u8; 8]>::try_from(high)
        {
            self.put_u64(offset, u64::from_ne_bytes(*low));
            return self.put_u64(offset + 8, u64::from_ne_bytes(high));
        }
        if let Ok(words) = <[u8; 32]>::try_from(bytes) {
            for (at, word) in words.as_chunks::<8>().0.iter().enumerate() {
                self.put_u64(offset + 8 * at, u64::from_ne_bytes(*word));
            }
            return;
        }
        // SAFETY: the destination lies inside the view, by the check, and `&mut self` and the constructor's promise
        // exclude that `bytes` overlaps it.
        unsafe { transfer(self.ptr.add(offset), bytes.as_ptr(), bytes.len()) };
    }

    put_word!(put_u8, u8, AtomicU8);
    put_word!(put_u16, u16, AtomicU16);
    put_word!(put_u32, u32, AtomicU32);
    put_word!(put_u64, u64, AtomicU64);
    publish_word!(publish_u32, u32, AtomicU32);
    publish_word!(publish_u64, u64, AtomicU64);

    /// Splits the view in two: the first `at` bytes, and the rest.
    ///
    /// # Panics
    ///
    /// When there are fewer than `at` bytes.
    #[inline(always)]
    #[track_caller]
    #[must_use]
    pub fn split(self, at: usize) -> (OwnBytes<'a>, OwnBytes<'a>) {
        check(at, 0, self.len);
        // SAFETY: both parts lie inside the view, by the check, and do not overlap; the view itself is consumed.
        unsafe {
            (
                OwnBytes::new(self.ptr, at),
                OwnBytes::new(self.ptr.add(at), self.len - at),
            )
        }
    }

    /// The same bytes for a shorter time.
    #[inline(always)]
    #[must_use]
    pub fn reborrow(&mut self) -> OwnBytes<'_> {
        // SAFETY: the new view borrows this one, which cannot be used while the new one lives.
        unsafe { OwnBytes::new(self.ptr, self.len) }
    }

    /// The same bytes, as a peer sees them.
    #[cfg(test)]
    fn as_peer(&self) -> PeerBytes<'_> {
        // SAFETY: the bytes are valid for as long as this view, and it is borrowed.
        unsafe { PeerBytes::new(self.ptr, self.len) }
    }
}

impl<'a> PeerBytes<'a> {
    /// The `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// For the whole of `'a` the bytes must be valid for reading. Other processes may change them, but this process
    /// only by atomic accesses or through an [`OwnBytes`].
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self {
            ptr,
            len,
            _life: PhantomData,
        }
    }

    /// Bytes that no peer can access, for code that takes a `PeerBytes`.
    #[must_use]
    #[inline(always)]
    pub const fn from_slice(bytes: &'a [u8]) -> Self {
        Self {
            ptr: bytes.as_ptr(),
            len: bytes.len(),
            _life: PhantomData,
        }
    }

    /// The number of bytes.
    #[must_use]
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    #[must_use]
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the bytes.
    #[must_use]
    #[inline(always)]
    pub const fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Copies bytes from `offset` into all of `into`.
    ///
    /// # Panics
    ///
    /// When they do not lie inside the view.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, offset: usize, into: &mut [u8]) {
        if into.len() == 8 {
            into.copy_from_slice(&self.get_u64(offset).to_ne_bytes());
            return;
        }
        check(offset, into.len(), self.len);
        // SAFETY: the source lies inside the view (checked above); `into` is an exclusive reference and hence
        // elsewhere.
        unsafe { transfer(into.as_mut_ptr(), self.ptr.add(offset), into.len()) };
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.get(0, &mut bytes);
        bytes
    }

    get_word!(get_u8, u8, AtomicU8);
    get_word!(get_u16, u16, AtomicU16);
    get_word!(get_u32, u32, AtomicU32);
    get_word!(get_u64, u64, AtomicU64);
    observe_word!(observe_u32, u32, AtomicU32);
    observe_word!(observe_u64, u64, AtomicU64);

    /// The `len` bytes from `offset`, or `None` when they do not all lie inside the view.
    #[inline(always)]
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Option<PeerBytes<'a>> {
        if len > self.len || offset > self.len - len {
            return None;
        }
        // SAFETY: the part lies inside the view, by the check, and is valid for as long as it.
        Some(unsafe { PeerBytes::new(self.ptr.add(offset), len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_are_stored_at_their_offsets() {
        let mut memory = [0u64; 8];
        // SAFETY: the array's bytes, which have no other user.
        let mut place = unsafe { OwnBytes::new(memory.as_mut_ptr().cast(), 64) };
        place.put_u64(0, 0x1122_3344_5566_7788);
        place.put_u32(8, 1);
        place.put_u16(12, 2);
        place.put_u8(14, 3);
        place.put_u64(17, 4); // not aligned
        place.put(25, b"hello");
        place.put(30, b"8 bytes!");
        place.publish_u32(40, 5);
        place.publish_u64(48, 6);
        let peer = place.as_peer();
        assert_eq!(peer.get_u64(0), 0x1122_3344_5566_7788);
        assert_eq!(peer.get_u32(8), 1);
        assert_eq!(peer.get_u16(12), 2);
        assert_eq!(peer.get_u8(14), 3);
        assert_eq!(peer.get_u64(17), 4);
        let mut bytes = [0; 13];
        peer.get(25, &mut bytes);
        assert_eq!(&bytes, b"hello8 bytes!");
        let mut bytes = [0; 8];
        peer.get(30, &mut bytes);
        assert_eq!(&bytes, b"8 bytes!");
        assert_eq!(peer.observe_u32(40), 5);
        assert_eq!(peer.observe_u64(48), 6);
        assert_eq!(peer.to_vec().len(), 64);
    }

    #[test]
    fn copies_of_every_length_and_alignment_are_exact() {
        let source: Vec<u8> = (0..600u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in (0..300).chain([400, 511]) {
            for offset in [0, 1, 3, 8, 15, 33] {
                let mut target = vec![0xEE; 600];
                OwnBytes::from_slice(&mut target).put(offset, &source[5..5 + len]);
                assert_eq!(target[offset..offset + len], source[5..5 + len]);
                assert!(target[..offset].iter().all(|&b| b == 0xEE));
                assert!(target[offset + len..].iter().all(|&b| b == 0xEE));
                let mut back = vec![0; len];
                PeerBytes::from_slice(&target).get(offset, &mut back);
                assert_eq!(back, source[5..5 + len]);
            }
        }
    }

    #[test]
    fn split_and_slice_check_bounds() {
        let mut bytes = *b"abcdefgh";
        let (mut left, mut right) = OwnBytes::from_slice(&mut bytes).split(3);
        left.put(0, b"XYZ");
        right.put(4, b"!");
        right.reborrow().put(0, b"-");
        assert_eq!((left.len(), right.len()), (3, 5));
        assert_eq!(&bytes, b"XYZ-efg!");
        let peer = PeerBytes::from_slice(&bytes);
        assert_eq!(
            peer.slice(3, 5).map(|f| f.to_vec()),
            Some(b"-efg!".to_vec())
        );
        assert_eq!(peer.slice(8, 0).map(|f| f.len()), Some(0));
        assert!(peer.slice(4, 5).is_none());
        assert!(peer.slice(usize::MAX, 2).is_none());
        assert!(peer.slice(2, usize::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "do not lie inside")]
    fn writing_past_the_end_panics() {
        OwnBytes::from_slice(&mut [0; 8]).put_u32(5, 1);
    }

    #[test]
    #[should_panic(expected = "do not lie inside")]
    fn reading_past_the_end_panics() {
        let _ = PeerBytes::from_slice(&[0; 8]).get_u64(usize::MAX);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn publishing_a_misaligned_word_panics() {
        let mut memory = [0u64; 2];
        // SAFETY: the array's bytes, with no other user.
        unsafe { OwnBytes::new(memory.as_mut_ptr().cast(), 16) }.publish_u32(2, 1);
    }
}
