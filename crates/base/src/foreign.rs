//! Foreign memory: bytes that only their own runtime or driver may copy.
//!
//! The memory of an accelerator has addresses like any other, but the processor's loads and stores may not reach it, or
//! may reach something else. A driver's file (a DMA-buf) can be mapped, but each access needs the driver's consent.
//! Such memory is behind the trait [`ForeignMemory`], whose implementations know how to copy. A [`Span`] is a range of
//! bytes together with its copier; code that moves data calls the span's methods, and so cannot copy foreign memory like
//! system memory.

use crate::fault::Fault;
use crate::memory::{Memory, ProcessMemory};
use crate::range::VaRange;
use crate::shared::{OwnBytes, PeerBytes};
use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;

/// Memory that only its own runtime or driver may copy.
///
/// A value holds the memory as far as the runtime allows; dropping it releases the memory. If the runtime reports that
/// the memory has been freed since the value was created (even if its address is in use again), copies return a [`Fault`].
///
/// Copies may wait for the accelerator's copy engine, but not for programs that run on the accelerator. Any thread may
/// copy. Neither copies nor atomics of this project are atomic with respect to the accelerator's own programs.
pub trait ForeignMemory: Debug + Send + Sync {
    /// Copies bytes at address `src` into all of `dst`.
    ///
    /// # Errors
    /// [`Fault`] if the runtime refuses; a part may have been copied. The implementation logs the reason.
    fn load(&self, dst: &mut [u8], src: u64) -> Result<(), Fault>;

    /// Copies all of `src` to address `dst`.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    fn store(&self, dst: u64, src: &[u8]) -> Result<(), Fault>;

    /// Whether the memory at an address is still the memory that was held, as far as the runtime can tell.
    fn is_current(&self, address: u64) -> bool {
        let _ = address;
        true
    }
}

/// The copier of a range; `None` if the processor copies it.
pub type Copier = Option<Arc<dyn ForeignMemory>>;

/// Bytes of registered memory, and who may copy them.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    range: VaRange,
    foreign: Option<&'a Arc<dyn ForeignMemory>>,
}

/// The maximum number of bytes that one call to a runtime copies through the bounce buffer.
const CHUNK: usize = 256 << 10;

thread_local! {
    /// The bounce buffer between a peer's memory and a runtime: a runtime must not see memory that a peer can change.
    static BOUNCE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls `with` with a buffer of `len` bytes that this thread reuses. A nested call (a runtime may call back into one of
/// our copies) and a thread that is exiting get a new buffer.
fn bounce<T>(len: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = BOUNCE.try_with(Cell::take).unwrap_or_default();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let done = with(&mut buffer[..len]);
    let _ = BOUNCE.try_with(|own| own.set(buffer));
    done
}

impl<'a> Span<'a> {
    /// Bytes that the processor copies.
    #[inline]
    #[must_use]
    pub const fn system(range: VaRange) -> Self {
        Self {
            range,
            foreign: None,
        }
    }

    /// Bytes that `copier` copies.
    #[inline]
    #[must_use]
    pub const fn new(range: VaRange, copier: &'a Copier) -> Self {
        Self {
            range,
            foreign: copier.as_ref(),
        }
    }

    /// The addresses of the bytes. Use them only to compare and report, unless [`in_process`](Self::in_process) returns
    /// the same range.
    #[inline]
    #[must_use]
    pub const fn range(&self) -> VaRange {
        self.range
    }

    /// The number of bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.range.len()
    }

    /// Whether the span has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The address of the first byte; see [`range`](Self::range).
    #[inline]
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.range.start()
    }

    /// The bytes, if the processor (and so the kernel) may copy them by their address.
    #[inline]
    #[must_use]
    pub const fn in_process(&self) -> Option<VaRange> {
        match self.foreign {
            None => Some(self.range),
            Some(_) => None,
        }
    }

    /// The copier of the bytes.
    #[must_use]
    pub fn copier(&self) -> Copier {
        self.foreign.cloned()
    }

    /// Copies the first bytes of the span into all of `dst`; `memory` is used if the processor copies.
    ///
    /// # Errors
    /// [`Fault`]: they cannot be read.
    #[inline]
    pub fn load(&self, memory: &impl Memory, dst: OwnBytes<'_>) -> Result<(), Fault> {
        match self.foreign {
            None => memory.load(dst, self.range.start()),
            Some(foreign) => self.load_foreign(&**foreign, dst),
        }
    }

    #[cold]
    #[inline(never)]
    fn load_foreign(
        &self,
        foreign: &dyn ForeignMemory,
        mut dst: OwnBytes<'_>,
    ) -> Result<(), Fault> {
        let len = dst.len();
        self.within(len)?;
        let mut at = 0;
        while at < len {
            let part = (len - at).min(CHUNK);
            bounce(part, |bytes| {
                foreign.load(bytes, self.range.start() + at as u64)?;
                dst.put(at, bytes);
                Ok(())
            })?;
            at += part;
        }
        Ok(())
    }

    /// Copies all of `src` to the first bytes of the span.
    ///
    /// # Errors
    /// [`Fault`]: they cannot be written.
    #[inline]
    pub fn store(&self, memory: &impl Memory, src: PeerBytes<'_>) -> Result<(), Fault> {
        match self.foreign {
            None => memory.store(self.range.start(), src),
            Some(foreign) => self.store_foreign(&**foreign, src),
        }
    }

    #[cold]
    #[inline(never)]
    fn store_foreign(&self, foreign: &dyn ForeignMemory, src: PeerBytes<'_>) -> Result<(), Fault> {
        let len = src.len();
        self.within(len)?;
        let mut at = 0;
        while at < len {
            let part = (len - at).min(CHUNK);
            bounce(part, |bytes| {
                src.get(at, bytes);
                foreign.store(self.range.start() + at as u64, bytes)
            })?;
            at += part;
        }
        Ok(())
    }

    /// Like [`load`](Self::load), into bytes that no peer sees.
    ///
    /// # Errors
    /// [`Fault`]: they cannot be read.
    pub fn load_bytes(&self, memory: &impl Memory, dst: &mut [u8]) -> Result<(), Fault> {
        self.within(dst.len())?;
        match self.foreign {
            None => memory.load_bytes(dst, self.range.start()),
            Some(foreign) => foreign.load(dst, self.range.start()),
        }
    }

    /// Like [`store`](Self::store), from bytes that no peer sees.
    ///
    /// # Errors
    /// [`Fault`]: they cannot be written.
    pub fn store_bytes(&self, memory: &impl Memory, src: &[u8]) -> Result<(), Fault> {
        self.within(src.len())?;
        match self.foreign {
            None => memory.store_bytes(self.range.start(), src),
            Some(foreign) => foreign.store(self.range.start(), src),
        }
    }

    /// Replaces the word at the start of the span with the result of `change`, unless that is `None`; returns the old
    /// word. Atomic only among callers that exclude each other.
    ///
    /// # Errors
    /// [`Fault`]: the word cannot be read or written.
    pub fn update(
        &self,
        memory: &impl Memory,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<u64, Fault> {
        let mut word = [0; 8];
        self.load_bytes(memory, &mut word)?;
        let old = u64::from_ne_bytes(word);
        if let Some(new) = change(old) {
            self.store_bytes(memory, &new.to_ne_bytes())?;
        }
        Ok(old)
    }

    /// The span as a [`Memory`] for links that copy to it. The source of [`Memory::copy`] is in `memory`.
    #[must_use]
    pub fn as_target<'m, M: Memory>(&'m self, memory: &'m M) -> SpanMemory<'m, M> {
        SpanMemory {
            span: self,
            memory,
            target: true,
        }
    }

    /// The span as a [`Memory`] for links that copy from it. The target of [`Memory::copy`] is in `memory`.
    #[must_use]
    pub fn as_source<'m, M: Memory>(&'m self, memory: &'m M) -> SpanMemory<'m, M> {
        SpanMemory {
            span: self,
            memory,
            target: false,
        }
    }

    fn within(&self, len: usize) -> Result<(), Fault> {
        match len as u64 <= self.range.len() {
            true => Ok(()),
            false => Err(Fault::at(self.range.end())),
        }
    }

    /// `len` bytes at an address inside the span.
    fn part(&self, at: u64, len: u64) -> Option<Self> {
        let range = VaRange::new(at, len).filter(|range| self.range.contains(range))?;
        Some(Self { range, ..*self })
    }
}

/// A foreign span as a [`Memory`].
#[derive(Debug)]
pub struct SpanMemory<'a, M> {
    span: &'a Span<'a>,
    memory: &'a M,
    /// Whether the span is the target of a copy; otherwise it is the source.
    target: bool,
}

impl<M: Memory> SpanMemory<'_, M> {
    fn part(&self, at: u64, len: usize) -> Result<Span<'_>, Fault> {
        self.span.part(at, len as u64).ok_or(Fault::at(at))
    }
}

impl<M: Memory> Memory for SpanMemory<'_, M> {
    fn load(&self, dst: OwnBytes<'_>, src: u64) -> Result<(), Fault> {
        self.part(src, dst.len())?.load(self.memory, dst)
    }

    fn store(&self, dst: u64, src: PeerBytes<'_>) -> Result<(), Fault> {
        self.part(dst, src.len())?.store(self.memory, src)
    }

    fn store_bytes(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
        self.part(dst, src.len())?.store_bytes(self.memory, src)
    }

    fn load_bytes(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
        self.part(src, dst.len())?.load_bytes(self.memory, dst)
    }

    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        let mut at = 0;
        while at < len {
            let part = (len - at).min(CHUNK as u64);
            let (to, from) = (dst.wrapping_add(at), src.wrapping_add(at));
            bounce(part as usize, |bytes| {
                if self.target {
                    self.memory.load_bytes(bytes, from)?;
                    self.store_bytes(to, bytes)
                } else {
                    self.load_bytes(bytes, from)?;
                    self.memory.store_bytes(to, bytes)
                }
            })?;
            at += part;
        }
        Ok(())
    }

    fn compare_swap(&self, va: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let word = self.part(va, 8)?;
        word.update(self.memory, |old| (old == compare).then_some(swap))
    }

    fn fetch_add(&self, va: u64, add: u64) -> Result<u64, Fault> {
        let word = self.part(va, 8)?;
        word.update(self.memory, |old| Some(old.wrapping_add(add)))
    }

    fn process(&self) -> Option<&ProcessMemory> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ArenaMemory;
    use parking_lot::Mutex;

    /// Foreign memory for tests, at an address of an arena that has other bytes there.
    #[derive(Debug)]
    struct Shelf(u64, Mutex<Vec<u8>>);

    impl ForeignMemory for Shelf {
        fn load(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
            let at = (src - self.0) as usize;
            dst.copy_from_slice(&self.1.lock()[at..at + dst.len()]);
            Ok(())
        }
        fn store(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
            let at = (dst - self.0) as usize;
            self.1.lock()[at..at + src.len()].copy_from_slice(src);
            Ok(())
        }
    }

    const LEN: usize = 3 * CHUNK + 8;

    #[test]
    fn a_span_is_copied_only_by_its_copier() {
        let arena = ArenaMemory::new(0x1000, 2 * LEN);
        let shelf = Arc::new(Shelf(0x1000, Mutex::new(vec![0; LEN])));
        let copier: Copier = Some(Arc::clone(&shelf) as Arc<dyn ForeignMemory>);
        let range = VaRange::new(0x1000, LEN as u64).unwrap();
        let span = Span::new(range, &copier);
        assert_eq!((span.in_process(), span.range()), (None, range));
        let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        span.store(&arena, PeerBytes::from_slice(&bytes)).unwrap();
        assert_eq!(*shelf.1.lock(), bytes);
        assert_eq!(arena.read(0x1000, LEN), vec![0; LEN]);
        let mut back = vec![0; LEN];
        span.load(&arena, OwnBytes::from_slice(&mut back)).unwrap();
        assert_eq!(back, bytes);
        let beyond = span.store_bytes(&arena, &[0; LEN + 1]);
        assert_eq!(beyond, Err(Fault::at(range.end())));
    }

    #[test]
    fn links_copy_between_system_and_foreign_memory() {
        let arena = ArenaMemory::new(0x1000_0000, LEN);
        let shelf = Arc::new(Shelf(0x1000, Mutex::new(vec![0; LEN])));
        let copier: Copier = Some(Arc::clone(&shelf) as Arc<dyn ForeignMemory>);
        let span = Span::new(VaRange::new(0x1000, LEN as u64).unwrap(), &copier);
        let memory = span.as_target(&arena);
        assert!(memory.process().is_none());
        arena.write(0x1000_0000, &vec![7; LEN]);
        memory.copy(0x1000, 0x1000_0000, LEN as u64).unwrap();
        assert_eq!(*shelf.1.lock(), vec![7; LEN]);
        shelf.1.lock().fill(9);
        let source = span.as_source(&arena);
        source.copy(0x1000_0000, 0x1000, LEN as u64).unwrap();
        assert_eq!(arena.read(0x1000_0000, LEN), vec![9; LEN]);
        assert_eq!(memory.fetch_add(0x1008, 1), Ok(0x0909_0909_0909_0909));
        assert_eq!(memory.compare_swap(0x1008, 1, 2), Ok(0x0909_0909_0909_090a));
        assert_eq!(memory.store_bytes(0xfff, &[1; 8]), Err(Fault::at(0xfff)));
    }

    #[test]
    fn the_processor_copies_system_memory() {
        let arena = ArenaMemory::new(0x1000, 64);
        let span = Span::system(VaRange::new(0x1008, 8).unwrap());
        span.store_bytes(&arena, &7u64.to_ne_bytes()).unwrap();
        assert_eq!(span.update(&arena, |old| Some(old + 1)), Ok(7));
        assert_eq!(arena.read(0x1008, 8), 8u64.to_ne_bytes());
        assert!(span.copier().is_none());
    }
}
