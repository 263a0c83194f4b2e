//! The one place with `unsafe`: who owns registered bytes, and for how long.
//!
//! The device may read and write registered memory at any moment, from its own thread and for
//! peers. That is sound if three things hold, and this file is where they are made to hold:
//!
//! 1. **The bytes stay where they are.** A buffer is moved to the heap *before* its address is
//!    taken and is not moved again until its registration is closed.
//! 2. **Nobody else has a reference to them.** While registered, a buffer is reached only through
//!    raw addresses: copies and atomics made by the device's own copy routine. `&[u8]` exists only
//!    where the registration has no right by which a byte could change.
//! 3. **They are not freed before the device has let go.** Closing a registration first makes its
//!    keys refuse, then waits until no operation touches the memory. Only then is the buffer given
//!    back or dropped. If closing fails for a reason that leaves the registration alive, the
//!    buffer is leaked (owned) or the process ends (borrowed); it is never freed.
//!
//! In-flight operations need no lifetime of their own: the engine holds a lease on the region for
//! each step it copies, and asks for a new lease for the next. After the close it gets a refusal.

// UNSAFETY: memory that outside agents change cannot be described by Rust's references; the rules
// above are the contract under which the device is given raw addresses.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use rkey_core::{Access, Addressing, DomainId, MemoryKind, RegionId, RegionSpec};
use rkey_device::base::{copy, range::VaRange};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that can be registered: a value that owns them alone and keeps them where they are.
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
    /// Where the bytes are and how many there are.
    fn expose(&mut self) -> (NonNull<u8>, usize);

    /// The segment that peers can map, for rkey's own allocator.
    #[doc(hidden)]
    fn kind(&self) -> MemoryKind {
        MemoryKind::User
    }
}

/// A [`Buffer`] that no other process has mapped, so that nobody but this process's device can
/// change its bytes.
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

// SAFETY: a Vec owns its initialised elements (len, not capacity) on the heap; it does not
// reallocate while nobody touches it.
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

fn bytes_of<T>(slice: &mut [T]) -> (NonNull<u8>, usize) {
    let len = size_of_val(slice);
    (NonNull::from(slice).cast(), len)
}

// SAFETY: the arena is mapped until the value is dropped, begins as zeroes, and is reached by raw
// addresses only: the type gives no reference into it.
unsafe impl Buffer for crate::SharedMemory {
    fn expose(&mut self) -> (NonNull<u8>, usize) {
        self.raw_parts()
    }

    fn kind(&self) -> MemoryKind {
        self.segment()
    }
}

/// What a registration is to be.
pub(crate) struct Wish {
    pub(crate) domain: DomainId,
    pub(crate) access: Access,
    pub(crate) addressing: Addressing,
    pub(crate) requested_key: Option<u64>,
}

/// A live registration: the raw bytes, and the device that may touch them.
///
/// Whoever holds one must keep the bytes valid until [`Registered::close`] has said that they are
/// ours again. The holders are [`Owned`] and [`Borrows`], both in this file. Dropping it closes it,
/// in case that a panic keeps a holder from doing so.
pub(crate) struct Registered {
    device: rkey_device::Device,
    region: rkey_core::Region,
    start: NonNull<u8>,
    len: usize,
    /// Whether nobody, not even the owner, may change the bytes.
    constant: bool,
    /// Whether the bytes go back to somebody else, whatever happens.
    borrowed: bool,
    closed: AtomicBool,
}

// SAFETY: the pointer is only used for copies and atomics by a routine that the compiler does not
// see into (it works for any number of threads and processes), and all else is Send and Sync.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes must be valid for reads (and writes, unless `constant` and the rights forbid
    /// them) by raw access until `close` on the result returns `Ok`, and until then no reference to
    /// them may be used; a shared reference may be if the registration is `constant` and grants no
    /// right by which a byte could change.
    unsafe fn register(
        device: &rkey_device::Device,
        wish: &Wish,
        (start, len): (NonNull<u8>, usize),
        kind: MemoryKind,
        constant: bool,
    ) -> Result<Self> {
        let address = start.as_ptr().expose_provenance() as u64;
        let range = VaRange::new(address, len as u64)
            .filter(|range| !range.is_empty())
            .ok_or_else(|| Error::Rights("a buffer of 0 B cannot be registered".into()))?;
        let ranges = [range];
        let mut spec = RegionSpec::new(wish.domain, &ranges, wish.access);
        spec.addressing = wish.addressing;
        spec.requested_key = wish.requested_key;
        spec.memory = kind;
        // SAFETY: the caller promises that the bytes stay valid until the registration is closed,
        // which is what `register` asks for.
        let region = unsafe { device.register(&spec) }?;
        let device = device.clone();
        Ok(Self {
            device,
            region,
            start,
            len,
            constant,
            borrowed: false,
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn region(&self) -> &rkey_core::Region {
        &self.region
    }

    pub(crate) fn id(&self) -> RegionId {
        self.region.id
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Where `len` bytes at `offset` are, if they are inside.
    fn at(&self, offset: u64, len: usize) -> Result<NonNull<u8>> {
        let out = || Error::OutOfRange {
            what: "region",
            offset,
            len: len as u64,
            available: self.len as u64,
        };
        let start = usize::try_from(offset).map_err(|_| out())?;
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(out());
        }
        // SAFETY: start + len <= self.len, so the result is inside the registered bytes.
        Ok(unsafe { self.start.add(start) })
    }

    /// The aligned 8-byte word at `offset`, if it is inside.
    fn word_at(&self, offset: u64) -> Result<*mut u64> {
        let word = self.at(offset, 8)?.cast::<u64>();
        if !word.is_aligned() {
            return Err(Error::Misaligned {
                offset,
                address: word.as_ptr().addr() as u64,
            });
        }
        Ok(word.as_ptr())
    }

    fn writable(&self) -> Result<()> {
        if self.constant {
            return Err(Error::Rights(
                "published memory does not change while it is published; register it instead"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Copies bytes at `offset` out of the region. Peers may change them meanwhile.
    pub(crate) fn load(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = self.at(offset, into.len())?;
        // SAFETY: `from` covers into.len() bytes of the registration, which its holder keeps valid;
        // `into` is exclusively ours, so the two do not overlap.
        unsafe { copy::copy(into.as_mut_ptr(), from.as_ptr(), into.len()) }
            .map_err(|fault| Error::Device(fault.into()))
    }

    /// Copies bytes into the region at `offset`.
    pub(crate) fn store(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.writable()?;
        let to = self.at(offset, from.len())?;
        // SAFETY: `to` covers from.len() bytes of the registration, which its holder keeps valid,
        // and no reference to them is in use (it is not constant); `from` is a live slice.
        unsafe { copy::copy(to.as_ptr(), from.as_ptr(), from.len()) }
            .map_err(|fault| Error::Device(fault.into()))
    }

    /// Atomically adds to a word; gives its old value.
    pub(crate) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        self.writable()?;
        let word = self.word_at(offset)?;
        // SAFETY: an aligned word inside the registration, see `word_at`.
        unsafe { copy::fetch_add(word, add) }.map_err(|f| Error::Device(f.into()))
    }

    /// Atomically replaces a word if it has an expected value; gives its old value.
    pub(crate) fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64> {
        self.writable()?;
        let word = self.word_at(offset)?;
        // SAFETY: an aligned word inside the registration, see `word_at`.
        unsafe { copy::compare_swap(word, compare, swap) }.map_err(|f| Error::Device(f.into()))
    }

    /// Reads an aligned word at once: never half of one value and half of another.
    pub(crate) fn load_u64(&self, offset: u64) -> Result<u64> {
        self.word_at(offset)?;
        let mut bytes = [0; 8];
        self.load(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes an aligned word at once.
    pub(crate) fn store_u64(&self, offset: u64, value: u64) -> Result<()> {
        self.word_at(offset)?;
        self.store(offset, &value.to_le_bytes())
    }

    /// Revokes the keys and windows of the region and waits until nobody touches the bytes. After
    /// `Ok` the device will never touch them again. Closing twice is fine.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.device.revoke_region(self.region) {
            // In a forked child nobody works on our copy of the memory.
            Ok(()) | Err(rkey_device::DeviceError::Forked) => {
                self.closed.store(true, Ordering::Release);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Registered {
    /// Closes the registration of borrowed bytes. If that is not possible, the process ends: the
    /// bytes go back to their owner now, and the device might still write to them.
    fn close_or_end(&self) {
        if let Err(error) = self.close() {
            eprintln!("rkey: borrowed memory cannot be deregistered ({error}); ending the process");
            std::process::abort();
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.borrowed {
            self.close_or_end();
        } else {
            // Owned bytes are freed only after a close that succeeded, see `Owned`.
            let _ = self.close();
        }
    }
}

/// A buffer and its registration. The buffer lives on the heap, reached only by a raw pointer,
/// until the registration is closed.
pub(crate) struct Owned<B: Buffer, M: AsRef<Registered>> {
    memory: M,
    /// From `Box::into_raw`; dangling only after `take`.
    buffer: NonNull<B>,
}

// SAFETY: Owned owns the B behind the pointer like a Box would, and gives no reference to it.
unsafe impl<B: Buffer, M: AsRef<Registered> + Send> Send for Owned<B, M> {}
// SAFETY: through &Owned only `memory` can be reached, never the B.
unsafe impl<B: Buffer, M: AsRef<Registered> + Sync> Sync for Owned<B, M> {}

impl<B: Buffer, M: AsRef<Registered>> Owned<B, M> {
    /// Takes the buffer and registers it; `wrap` makes the accessors around the registration.
    pub(crate) fn register(
        device: &rkey_device::Device,
        wish: &Wish,
        buffer: B,
        constant: bool,
        wrap: impl FnOnce(Registered) -> M,
    ) -> Result<Self> {
        if constant && wish.access.intersects(CHANGING) {
            return Err(Error::Rights("published memory can only be read".into()));
        }
        let buffer = NonNull::from(Box::leak(Box::new(buffer)));
        // SAFETY: just leaked, so valid, and nobody else has it.
        let owner = unsafe { &mut *buffer.as_ptr() };
        let (kind, bytes) = (owner.kind(), owner.expose());
        // SAFETY: `Buffer` promises that the bytes stay valid at their address while nobody
        // touches the B, and nobody does until `release`, which comes after `close`.
        match unsafe { Registered::register(device, wish, bytes, kind, constant) } {
            Ok(registered) => Ok(Self {
                memory: wrap(registered),
                buffer,
            }),
            Err(error) => {
                // SAFETY: from Box::leak above; nothing was registered.
                drop(unsafe { Box::from_raw(buffer.as_ptr()) });
                Err(error)
            }
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Closes the registration and gives the buffer back.
    pub(crate) fn take(self) -> Result<B> {
        self.memory.as_ref().close()?;
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used again, so `memory` is moved out exactly once.
        drop(unsafe { std::ptr::read(&raw const this.memory) });
        // SAFETY: from Box::leak; the registration is closed, so nobody reaches the bytes, and
        // `this` is never dropped, so the box is made again only once.
        Ok(*unsafe { Box::from_raw(this.buffer.as_ptr()) })
    }

    /// The bytes, if nothing can change them.
    pub(crate) fn constant_bytes(&self) -> Option<&[u8]> {
        let registered = self.memory.as_ref();
        // SAFETY: a constant registration has no right by which the device writes (`register`
        // and `shared` see to it), refuses the owner's own stores, and (PrivateBuffer) no other process has the bytes mapped. The
        // result lives as long as &self, so the buffer is neither taken nor dropped meanwhile.
        registered.constant.then(|| unsafe {
            std::slice::from_raw_parts(registered.start.as_ptr(), registered.len)
        })
    }
}

impl<B: Buffer, M: AsRef<Registered>> Drop for Owned<B, M> {
    fn drop(&mut self) {
        if self.memory.as_ref().close().is_ok() {
            // SAFETY: from Box::leak, not taken (`take` forgets self), and the registration is
            // closed, so nobody reaches the bytes any more.
            drop(unsafe { Box::from_raw(self.buffer.as_ptr()) });
        }
        // Otherwise the device may still write to the buffer: better lost than reused.
    }
}

/// The registrations of one scope over borrowed bytes. Dropping it closes them all.
struct Live<M: AsRef<Registered>>(Mutex<Vec<Arc<M>>>);

/// Where borrowed bytes can be registered.
///
/// The lifetimes are as in `std::thread::Scope`: `'scope` is the time in which the regions can be
/// used, `'env` outlives it and is the time for which the bytes are borrowed.
pub(crate) struct Borrows<'scope, 'env: 'scope, M: AsRef<Registered>> {
    live: &'scope Live<M>,
    /// Invariant: neither lifetime may be stretched or shrunk.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Runs `work` with a place for borrowed registrations, and closes them all before it returns or
/// unwinds. `work` gets only a reference, so it cannot keep the closing from happening.
pub(crate) fn with_borrows<'env, M: AsRef<Registered>, T>(
    work: impl for<'scope> FnOnce(&'scope Borrows<'scope, 'env, M>) -> T,
) -> T {
    let live = Live(Mutex::new(Vec::new()));
    let borrows = Borrows {
        live: &live,
        scope: PhantomData,
        env: PhantomData,
    };
    work(&borrows)
    // `live` is dropped here, and also when `work` unwinds.
}

impl<'scope, 'env, M: AsRef<Registered>> Borrows<'scope, 'env, M> {
    /// Registers bytes that are borrowed exclusively.
    pub(crate) fn exclusive(
        &'scope self,
        device: &rkey_device::Device,
        wish: &Wish,
        bytes: &'env mut [u8],
        wrap: impl FnOnce(Registered) -> M,
    ) -> Result<Arc<M>> {
        // SAFETY: the exclusive reference is given up here; dropping `Live` closes the registration (or
        // ends the process) before 'env, for which the bytes are borrowed, can end.
        let mut registered =
            unsafe { Registered::register(device, wish, bytes_of(bytes), USER, false) }?;
        registered.borrowed = true;
        Ok(self.keep(wrap(registered)))
    }

    /// Registers bytes that are borrowed as shared, for reading.
    pub(crate) fn shared(
        &'scope self,
        device: &rkey_device::Device,
        wish: &Wish,
        bytes: &'env [u8],
        wrap: impl FnOnce(Registered) -> M,
    ) -> Result<Arc<M>> {
        if wish.access.intersects(CHANGING) {
            return Err(Error::Rights(
                "memory that is borrowed as shared can only be read".into(),
            ));
        }
        let place = (NonNull::from(bytes).cast(), bytes.len());
        // SAFETY: as above; the registration is constant and has no right by which a byte could
        // change (checked above), so that other shared references to the bytes may be used.
        let mut registered = unsafe { Registered::register(device, wish, place, USER, true) }?;
        registered.borrowed = true;
        Ok(self.keep(wrap(registered)))
    }

    fn keep(&self, memory: M) -> Arc<M> {
        let memory = Arc::new(memory);
        let mut live = self.live.0.lock().unwrap_or_else(PoisonError::into_inner);
        live.push(Arc::clone(&memory));
        memory
    }

    /// Closes one registration before the scope ends.
    pub(crate) fn close(&self, memory: &Arc<M>) {
        if memory.as_ref().as_ref().close().is_ok() {
            let mut live = self.live.0.lock().unwrap_or_else(PoisonError::into_inner);
            live.retain(|other| !Arc::ptr_eq(other, memory));
        }
    }
}

impl<M: AsRef<Registered>> Drop for Live<M> {
    fn drop(&mut self) {
        let live = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for memory in live.drain(..) {
            memory.as_ref().as_ref().close_or_end();
        }
    }
}

/// Memory of the program's own.
const USER: MemoryKind = MemoryKind::User;

/// The rights by which the device may change a byte.
const CHANGING: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::COLLECTIVE);
