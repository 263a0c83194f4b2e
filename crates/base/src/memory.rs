//! The trait for access to the memory of a program.
//!
//! Code that moves data (an engine, a link) gets a [`Memory`] and addresses, never a pointer, so the engine can run
//! over [`ProcessMemory`] in a device and over [`ArenaMemory`] in a simulation, where an address is just a number.
//!
//! For all methods, some of the bytes before the faulting one may have been transferred when they return a [`Fault`].
//! Bytes may change during a transfer, by other threads or processes; then each byte has a value that it had at some
//! moment. [`crate::copy`] describes order and atomicity.

// UNSAFETY: `ProcessMemory` copies from and to raw addresses, which its constructor's caller vouches for.
#![allow(unsafe_code)]

use crate::copy;
use crate::fault::Fault;
use crate::range::VaRange;
use crate::shared::{OwnBytes, PeerBytes};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// Memory of a program, by address.
pub trait Memory {
    /// Copies bytes at address `src` into all of `dst`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when a byte cannot be read.
    fn load(&self, dst: OwnBytes<'_>, src: u64) -> Result<(), Fault>;

    /// Copies all of `src` to address `dst`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when a byte cannot be written.
    fn store(&self, dst: u64, src: PeerBytes<'_>) -> Result<(), Fault>;

    /// Copies `src` to address `dst`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when a byte cannot be written.
    fn store_bytes(&self, dst: u64, src: &[u8]) -> Result<(), Fault>;

    /// Copies bytes at address `src` into all of `dst`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when a byte cannot be read.
    fn load_bytes(&self, dst: &mut [u8], src: u64) -> Result<(), Fault>;

    /// Copies `len` bytes from address `src` to address `dst`. If the ranges overlap, the contents of the destination
    /// are unspecified.
    ///
    /// # Errors
    ///
    /// [`Fault`] when a byte of the source cannot be read, or a byte of the destination cannot be written.
    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault>;

    /// Atomically replaces the word at `va` with `swap` if it equals `compare`; returns the old value. The word has the
    /// byte order of the machine. The caller has checked that `va` is a multiple of 8; other addresses return a fault.
    ///
    /// # Errors
    ///
    /// [`Fault`] when the word cannot be written.
    fn compare_swap(&self, va: u64, compare: u64, swap: u64) -> Result<u64, Fault>;

    /// Atomically adds `add` to the word at `va`, wrapping around; returns the old value. See
    /// [`compare_swap`](Self::compare_swap).
    ///
    /// # Errors
    ///
    /// [`Fault`] when the word cannot be written.
    fn fetch_add(&self, va: u64, add: u64) -> Result<u64, Fault>;

    /// The memory of this process, if that is what addresses refer to here; system calls may then copy from and to
    /// them.
    fn process(&self) -> Option<&ProcessMemory> {
        None
    }
}

/// The memory of this process. Faults are returned, not raised: see [`crate::copy`].
#[derive(Debug)]
pub struct ProcessMemory {
    _made_by_new: (),
}

impl ProcessMemory {
    /// Access to the memory of this process; installs the fault handlers of [`crate::copy`] if necessary.
    ///
    /// # Safety
    ///
    /// From now on the methods of [`Memory`] read and write whatever addresses they are given. The caller promises to
    /// pass only addresses inside memory that was registered for that kind of access. The code that registered it
    /// vouched that the bytes may be accessed in that way, or are not mapped at all (which is a fault, not a crash).
    #[must_use]
    pub unsafe fn new() -> Self {
        // If that fails, vanishing memory crashes this process as it would any other; `copy::mode` shows
        // whether it did.
        let _ = copy::install();
        Self { _made_by_new: () }
    }

    /// A length as a `usize`; it cannot exceed the address space.
    #[inline(always)]
    fn length(len: u64, at: u64) -> Result<usize, Fault> {
        usize::try_from(len).map_err(|_| Fault::at(at))
    }

    #[inline(always)]
    fn word(va: u64) -> Result<*mut u64, Fault> {
        if va.is_multiple_of(8) {
            Ok(pointer(va).cast())
        } else {
            Err(Fault::at(va))
        }
    }
}

/// The pointer for an address as a number.
#[inline(always)]
fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl Memory for ProcessMemory {
    #[inline]
    fn load(&self, dst: OwnBytes<'_>, src: u64) -> Result<(), Fault> {
        // SAFETY: `dst` is ours to write for its whole length; the source may be any address.
        unsafe { copy::copy(dst.as_ptr(), pointer(src), dst.len()) }
    }

    #[inline]
    fn store(&self, dst: u64, src: PeerBytes<'_>) -> Result<(), Fault> {
        // SAFETY: the creator of this object promised that its addresses may be written.
        unsafe { copy::copy_from_peer(pointer(dst), src.as_ptr(), src.len()) }
    }

    #[inline]
    fn store_bytes(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
        // SAFETY: as in `store`.
        unsafe { copy::copy(pointer(dst), src.as_ptr(), src.len()) }
    }

    #[inline]
    fn load_bytes(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
        // SAFETY: `dst` is ours to write; the source may be any address.
        unsafe { copy::copy(dst.as_mut_ptr(), pointer(src), dst.len()) }
    }

    #[inline]
    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        let len = Self::length(len, src)?;
        // SAFETY: as in `store`; the source may be any address.
        unsafe { copy::copy(pointer(dst), pointer(src), len) }
    }

    #[inline]
    fn compare_swap(&self, va: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let word = Self::word(va)?;
        // SAFETY: as in `store`; the alignment was checked just now.
        unsafe { copy::compare_swap(word, compare, swap) }
    }

    #[inline]
    fn fetch_add(&self, va: u64, add: u64) -> Result<u64, Fault> {
        let word = Self::word(va)?;
        // SAFETY: as in `store`; the alignment was checked just now.
        unsafe { copy::fetch_add(word, add) }
    }

    #[inline]
    fn process(&self) -> Option<&ProcessMemory> {
        Some(self)
    }
}

/// Memory for tests: owned bytes at a made-up address, with a fault for every access outside them.
///
/// Put it into an [`Arc`], which also implements [`Memory`], to keep a handle for inspecting the bytes.
#[derive(Debug)]
pub struct ArenaMemory {
    range: VaRange,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    bytes: Vec<u8>,
    poisoned: Vec<VaRange>,
}

impl ArenaMemory {
    /// `len` zeros at address `base`.
    ///
    /// # Panics
    ///
    /// When the range would wrap around.
    #[must_use]
    pub fn new(base: u64, len: usize) -> Self {
        let range = VaRange::new(base, len as u64).expect("an arena must lie in the address space");
        Self {
            range,
            inner: Mutex::new(Inner {
                bytes: vec![0; len],
                poisoned: Vec::new(),
            }),
        }
    }

    /// The range of valid addresses.
    #[must_use]
    pub fn range(&self) -> VaRange {
        self.range
    }

    /// The bytes at an address, even poisoned ones, for checking results.
    ///
    /// # Panics
    ///
    /// When they do not lie inside the arena.
    #[must_use]
    pub fn read(&self, va: u64, len: usize) -> Vec<u8> {
        let start = self.offset(va);
        self.lock().bytes[start..start + len].to_vec()
    }

    /// Stores bytes at an address, to prepare a test.
    ///
    /// # Panics
    ///
    /// When they do not lie inside the arena.
    pub fn write(&self, va: u64, bytes: &[u8]) {
        let start = self.offset(va);
        self.lock().bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Makes a part of the arena inaccessible, as if it were unmapped.
    pub fn poison(&self, range: VaRange) {
        self.lock().poisoned.push(range);
    }

    /// Makes everything accessible again.
    pub fn heal(&self) {
        self.lock().poisoned.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The bytes are valid even after a test panicked.
        self.inner.lock()
    }

    /// Panics outside the arena: only for the methods for tests.
    fn offset(&self, va: u64) -> usize {
        assert!(
            va >= self.range.start(),
            "{va:#x} lies before the arena {}",
            self.range
        );
        usize::try_from(va - self.range.start()).expect("an address of the arena")
    }

    /// Returns the offset of `va` in the arena, the number of accessible bytes from there (at most `len`), and a fault if it is
    /// less than `len`.
    fn reach(&self, inner: &Inner, va: u64, len: u64) -> (usize, usize, Result<(), Fault>) {
        if len == 0 {
            return (0, 0, Ok(()));
        }
        if !self.range.contains_address(va) {
            return (0, 0, Err(Fault::at(va)));
        }
        // `va` lies inside, so the rest of the arena from there on fits all the types used here.
        let mut good = len.min(self.range.end() - va);
        if let Some(wanted) = VaRange::new(va, good) {
            for bad in inner
                .poisoned
                .iter()
                .filter_map(|bad| bad.intersection(&wanted))
            {
                good = good.min(bad.start() - va);
            }
        }
        let result = if good == len {
            Ok(())
        } else {
            Err(Fault::at(va + good))
        };
        ((va - self.range.start()) as usize, good as usize, result)
    }

    fn word(&self, va: u64, change: impl FnOnce(u64) -> Option<u64>) -> Result<u64, Fault> {
        if !va.is_multiple_of(8) {
            return Err(Fault::at(va));
        }
        let mut inner = self.lock();
        let (at, _, result) = self.reach(&inner, va, 8);
        result?;
        let bytes = &mut inner.bytes[at..at + 8];
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        let old = u64::from_ne_bytes(word);
        if let Some(new) = change(old) {
            bytes.copy_from_slice(&new.to_ne_bytes());
        }
        Ok(old)
    }
}

impl Memory for ArenaMemory {
    fn load(&self, mut dst: OwnBytes<'_>, src: u64) -> Result<(), Fault> {
        let inner = self.lock();
        let (at, good, result) = self.reach(&inner, src, dst.len() as u64);
        dst.put(0, &inner.bytes[at..at + good]);
        result
    }

    fn store(&self, dst: u64, src: PeerBytes<'_>) -> Result<(), Fault> {
        let mut inner = self.lock();
        let (at, good, result) = self.reach(&inner, dst, src.len() as u64);
        src.get(0, &mut inner.bytes[at..at + good]);
        result
    }

    fn store_bytes(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
        self.store(dst, PeerBytes::from_slice(src))
    }

    fn load_bytes(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
        self.load(OwnBytes::from_slice(dst), src)
    }

    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        let mut inner = self.lock();
        let (from, readable, read) = self.reach(&inner, src, len);
        let (to, writable, written) = self.reach(&inner, dst, len);
        inner
            .bytes
            .copy_within(from..from + readable.min(writable), to);
        if readable <= writable {
            read.and(written)
        } else {
            written
        }
    }

    fn compare_swap(&self, va: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.word(va, |old| (old == compare).then_some(swap))
    }

    fn fetch_add(&self, va: u64, add: u64) -> Result<u64, Fault> {
        self.word(va, |old| Some(old.wrapping_add(add)))
    }
}

/// A handle to a memory is itself a memory.
macro_rules! forward {
    ($handle:ty) => {
        impl<M: Memory + ?Sized> Memory for $handle {
            #[inline]
            fn load(&self, dst: OwnBytes<'_>, src: u64) -> Result<(), Fault> {
                (**self).load(dst, src)
            }
            #[inline]
            fn store(&self, dst: u64, src: PeerBytes<'_>) -> Result<(), Fault> {
                (**self).store(dst, src)
            }
            #[inline]
            fn store_bytes(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
                (**self).store_bytes(dst, src)
            }
            #[inline]
            fn load_bytes(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
                (**self).load_bytes(dst, src)
            }
            #[inline]
            fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
                (**self).copy(dst, src, len)
            }
            #[inline]
            fn compare_swap(&self, va: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
                (**self).compare_swap(va, compare, swap)
            }
            #[inline]
            fn fetch_add(&self, va: u64, add: u64) -> Result<u64, Fault> {
                (**self).fetch_add(va, add)
            }
            #[inline]
            fn process(&self) -> Option<&ProcessMemory> {
                (**self).process()
            }
        }
    };
}

forward!(Arc<M>);
forward!(&M);

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what every memory must do, at an address with at least 64 accessible bytes.
    fn behaves(memory: &impl Memory, base: u64) {
        memory.store_bytes(base, b"some words for a test").unwrap();
        memory.copy(base + 32, base + 5, 5).unwrap();
        let mut back = [0; 5];
        memory.load_bytes(&mut back, base + 32).unwrap();
        assert_eq!(&back, b"words");
        memory
            .store(base + 40, PeerBytes::from_slice(b"12345678"))
            .unwrap();
        let mut place = [0; 10];
        memory
            .load(OwnBytes::from_slice(&mut place), base + 39)
            .unwrap();
        assert_eq!(&place[1..9], b"12345678");
        memory.store_bytes(base + 48, &7u64.to_ne_bytes()).unwrap();
        assert_eq!(memory.fetch_add(base + 48, 3), Ok(7));
        assert_eq!(memory.compare_swap(base + 48, 9, 1), Ok(10));
        assert_eq!(memory.compare_swap(base + 48, 10, u64::MAX), Ok(10));
        assert_eq!(memory.fetch_add(base + 48, 2), Ok(u64::MAX));
        assert_eq!(memory.compare_swap(base + 48, 1, 0), Ok(1));
        assert_eq!(memory.fetch_add(base + 44, 2), Err(Fault::at(base + 44)));
        memory.load_bytes(&mut [], 0).unwrap();
        memory.store_bytes(0, &[]).unwrap();
        memory.copy(0, u64::MAX, 0).unwrap();
    }

    #[test]
    fn loads_stores_copies_and_atomics_work_in_an_arena() {
        let memory = Arc::new(ArenaMemory::new(0x10_0000, 4096));
        behaves(&memory, 0x10_0000);
        behaves(&memory, 0x10_0000 + 4096 - 64);
        assert_eq!(memory.read(0x10_0005, 5), b"words");
        assert!(memory.process().is_none());
    }

    #[test]
    fn loads_stores_copies_and_atomics_work_in_process_memory() {
        let mut bytes = vec![0u64; 8];
        // SAFETY: the only addresses given to it lie in `bytes`, or are not accessed.
        let memory = unsafe { ProcessMemory::new() };
        behaves(&memory, bytes.as_mut_ptr().expose_provenance() as u64);
        assert!(memory.process().is_some());
    }

    #[test]
    fn an_arena_faults_at_the_first_byte_outside() {
        let memory = ArenaMemory::new(0x1000, 0x100);
        assert_eq!(memory.store_bytes(0xFFF, b"ab"), Err(Fault::at(0xFFF)));
        assert_eq!(memory.store_bytes(0x10FE, b"abcd"), Err(Fault::at(0x1100)));
        assert_eq!(memory.read(0x10FE, 2), b"ab");
        assert_eq!(
            memory.load_bytes(&mut [0; 3], u64::MAX - 1),
            Err(Fault::at(u64::MAX - 1))
        );
        assert_eq!(memory.copy(0x1000, 0x1080, 0x100), Err(Fault::at(0x1100)));
        assert_eq!(memory.copy(0x1080, 0x1000, 0x100), Err(Fault::at(0x1100)));
        assert_eq!(memory.copy(0x5000, 0x1000, 1), Err(Fault::at(0x5000)));
        assert_eq!(memory.fetch_add(0x1100, 1), Err(Fault::at(0x1100)));
        memory.poison(VaRange::new(0x1010, 0x10).unwrap());
        assert_eq!(
            memory.store_bytes(0x1000, &[1; 0x30]),
            Err(Fault::at(0x1010))
        );
        assert_eq!(memory.store_bytes(0x1018, &[1; 2]), Err(Fault::at(0x1018)));
        assert_eq!(memory.store_bytes(0x1020, &[1; 2]), Ok(()));
        memory.heal();
        assert_eq!(memory.store_bytes(0x1000, &[1; 0x30]), Ok(()));
    }
}
