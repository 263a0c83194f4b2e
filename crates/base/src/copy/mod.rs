//! Copies and atomics that return a fault where a plain access would crash.
//!
//! Memory that a program registered may vanish at any time: the program unmaps it, or truncates the file behind it. A
//! device must answer such an access with an error instead of crashing the program. So all accesses to memory that may
//! vanish use this module.
//!
//! The fast implementation (x86-64) is an assembler routine with a handler for `SIGSEGV` and `SIGBUS` that knows the
//! routine's instructions: no check before the copy, no cost without a fault. Without handlers (on other processors, or
//! if a program insists on its own handlers) the kernel copies, with `process_vm_readv(2)` on our own process, which
//! takes about 0.4 µs per copy.
//!
//! # What an observer sees (x86-64, guarded)
//!
//! * A copy of 1, 2, 4 or 8 bytes to an aligned address is a single store: never half of it is visible.
//! * Longer copies store bytes in ascending order, and the last 8 bytes with a separate store that becomes visible
//!   after all others. So a program that polls the last (aligned) word of the data finds the rest complete. Bytes
//!   before the last word may be stored twice, with the same value.
//! * Copies by the kernel have no order and are not atomic.
//!
//! # Limits
//!
//! If the calling thread has the two signals blocked, the kernel kills the process at a fault: see
//! [`prepare_thread`].

// UNSAFETY: assembler, signal handlers and raw addresses are the whole point of this module. It is split into the
// machine code (`routine`), the choice between two of its routines (`trials`, which reads the time stamp counter), the handlers
// (`handler`) and the copies by the kernel (`kernel`).
#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod handler;
mod kernel;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod routine;
#[cfg(all(test, target_arch = "x86_64", not(miri), not(loom)))]
mod tests;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod trials;

use crate::fault::Fault;
use crate::hint::prefetch_outer;
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

/// The current implementation of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// [`install`] was not called, or failed: copies are fast, and a fault ends the process.
    Unguarded = 0,
    /// The handlers are installed: copies are fast and return faults.
    Guarded = 1,
    /// The kernel copies: slower, and without handlers. The processor still executes the atomics, after a check that
    /// the page is mapped; if it vanishes within nanoseconds of that, the process crashes.
    ByKernel = 2,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Unguarded as u8);

/// Whether [`check`] has found the handlers displaced before.
static DISPLACED: Mutex<bool> = Mutex::new(false);

/// Installs the handlers for `SIGSEGV` and `SIGBUS`, once; further calls do nothing.
///
/// Faults outside the copies of this module go to the previous handlers.
///
/// A shared library that contains this module must not be unloaded afterwards (link it with `-z nodelete`).
///
/// # Errors
///
/// When the handlers cannot be installed and the kernel does not allow `process_vm_*` copies within our own process.
pub fn install() -> io::Result<()> {
    if mode() != Mode::Unguarded {
        return Ok(());
    }
    match handlers::install() {
        Ok(()) => set_mode(Mode::Guarded),
        Err(_) if kernel::works() => set_mode(Mode::ByKernel),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The current implementation of copies.
#[must_use]
#[inline]
pub fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        0 => Mode::Unguarded,
        1 => Mode::Guarded,
        _ => Mode::ByKernel,
    }
}

fn set_mode(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Whether a fault would still be caught: false when the program installed its own handlers over ours.
///
/// The check costs two system calls (a quarter of a microsecond).
#[must_use]
pub fn still_installed() -> bool {
    match mode() {
        Mode::Unguarded => false,
        Mode::Guarded => handlers::in_place(),
        Mode::ByKernel => true,
    }
}

/// Call this at the start of a batch of work: ensures that faults are caught, and returns how copies are made.
///
/// If the program displaced our handlers, this reinstalls them on top, once. If they are displaced again, the program
/// insists, and the kernel copies from then on.
pub fn check() -> Mode {
    if still_installed() {
        return mode();
    }
    if mode() == Mode::Unguarded {
        // An error leaves the mode as it is, which the caller sees.
        let _ = install();
        return mode();
    }
    // Only one thread at a time may do this: a second one must not mistake the same displacement for another.
    let mut displaced_before = DISPLACED.lock();
    if still_installed() {
        return mode();
    }
    let insists = std::mem::replace(&mut *displaced_before, true);
    if (insists && kernel::works()) || (handlers::reinstall().is_err() && kernel::works()) {
        set_mode(Mode::ByKernel);
    }
    mode()
}

/// Unblocks `SIGSEGV` and `SIGBUS` in the calling thread. Threads that copy for others should call it once: a thread
/// inherits its signal mask, and a fault with the signal blocked kills the process.
///
/// # Errors
///
/// When the kernel refuses, which it has no reason to do.
pub fn prepare_thread() -> io::Result<()> {
    handlers::unblock()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
use handler as handlers;

/// Processors without a guarded routine: the kernel copies.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod handlers {
    use std::io;

    pub(super) fn install() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub(super) fn in_place() -> bool {
        false
    }
    pub(super) fn reinstall() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub(super) fn unblock() -> io::Result<()> {
        Ok(())
    }
}

/// Copies `len` bytes from `src` to `dst`, or returns the address that cannot be accessed. Before a fault, some of
/// the bytes may have been copied. The module's documentation describes the order in which bytes become visible.
///
/// Other threads and processes may access the two ranges at the same time; each byte then has a value that it had at
/// some moment. If the ranges overlap, the result is unspecified.
///
/// # Errors
///
/// [`Fault`] when a byte of `src` cannot be read or a byte of `dst` cannot be written.
///
/// # Safety
///
/// The caller must be allowed to overwrite the writable bytes at `dst`: no other code may rely on a Rust reference to
/// them. Neither address needs to be valid.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    if mode() == Mode::ByKernel {
        // SAFETY: the caller promises the same.
        return unsafe { copy_by_kernel(dst, src, len) };
    }
    // SAFETY: the caller is responsible for the destination.
    unsafe { direct::copy(dst, src, len) }
}

/// Like [`copy`], from bytes that another processor has written a moment ago.
///
/// # Errors
///
/// Same as for [`copy`].
///
/// # Safety
///
/// Same as for [`copy`].
#[inline]
pub unsafe fn copy_from_peer(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    if len < FETCH_MIN {
        // SAFETY: the caller promises the same.
        return unsafe { copy(dst, src, len) };
    }
    // SAFETY: the caller promises the same.
    unsafe { copy_many_from_peer(dst, src, len) }
}

/// From this length on, fetching all lines first is faster than the processor's own prefetching, which must recognise the pattern.
const FETCH_MIN: usize = 1024;
/// Up to this length. Longer runs give the processor the time to recognise it.
const FETCH_MAX: usize = 8192;

unsafe fn copy_many_from_peer(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    if mode() == Mode::ByKernel {
        // SAFETY: the caller promises the same.
        return unsafe { copy_by_kernel(dst, src, len) };
    }
    if len <= FETCH_MAX {
        for line in (0..len).step_by(64) {
            prefetch_outer(src.wrapping_add(line));
        }
    }
    // SAFETY: the caller is responsible for the destination.
    unsafe { direct::copy_from_peer(dst, src, len) }
}

/// Like [`copy`], by the kernel. Refuses ranges that wrap around the address space, because [`kernel::copy`] adds
/// offsets without a check.
#[cold]
unsafe fn copy_by_kernel(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    for start in [src as u64, dst as u64] {
        if start.checked_add(len as u64).is_none() {
            return Err(Fault::at(start));
        }
    }
    // SAFETY: the caller promises the same.
    unsafe { kernel::copy(dst as u64, src as u64, len) }
}

/// Atomically replaces the word at `p` with `swap` if it equals `compare`, and returns the old value.
///
/// Sequentially consistent, and atomic also with respect to other processes and plain accesses.
///
/// # Errors
///
/// [`Fault`] when the word cannot be written; the word is then unchanged.
///
/// # Safety
///
/// Same as for [`copy`]; also, `p` must be a multiple of 8.
#[inline]
pub unsafe fn compare_swap(p: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    if mode() == Mode::ByKernel {
        kernel::populate(p as u64)?;
    }
    // SAFETY: the caller is responsible for the word and its alignment.
    unsafe { direct::compare_swap(p, compare, swap) }
}

/// Atomically adds `add` to the word at `p`, wrapping around, and returns the old value. See [`compare_swap`].
///
/// # Errors
///
/// [`Fault`] when the word cannot be written; the word is then unchanged.
///
/// # Safety
///
/// Same as for [`compare_swap`].
#[inline]
pub unsafe fn fetch_add(p: *mut u64, add: u64) -> Result<u64, Fault> {
    if mode() == Mode::ByKernel {
        kernel::populate(p as u64)?;
    }
    // SAFETY: the caller is responsible for the word and its alignment.
    unsafe { direct::fetch_add(p, add) }
}

/// Copies bytes that are known to be mapped, but that another process may be reading or writing at the same time.
///
/// # Safety
///
/// `src` must be valid for reading and `dst` for writing `len` bytes; the ranges must not overlap.
#[inline]
pub(crate) unsafe fn transfer(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise. A fault cannot happen with valid ranges, so there is no error to check.
    let _ = unsafe { direct::copy(dst, src, len) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod direct {
    use super::routine::{self, Outcome};
    use super::trials::{Method, Trials};
    use crate::fault::Fault;

    /// How this process copies long runs of bytes that another processor has written.
    static LONG: Trials = Trials::new();

    #[inline]
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
        let outcome = if len <= routine::SMALL_MAX {
            // SAFETY: the length fits; the caller is responsible for the destination, and faults are returned.
            unsafe { routine::rkey_base_copy_small(dst, src, len) }
        } else {
            // SAFETY: as above, for any length above the small ones.
            unsafe { copy_large(dst, src, len) }
        };
        result(outcome, dst, src, len)
    }

    pub(super) unsafe fn copy_from_peer(
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        if len < routine::STRING_MIN || !std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the caller promises the same.
            return unsafe { copy(dst, src, len) };
        }
        let outcome = LONG.run(len, |method| match method {
            // SAFETY: longer than `SMALL_MAX`, and the processor has AVX; the caller is responsible for the destination.
            Method::Vector => unsafe { routine::rkey_base_copy_vector(dst, src, len) },
            // SAFETY: longer than 8 bytes; the caller is responsible for the destination.
            Method::String => unsafe { routine::rkey_base_copy_string(dst, src, len) },
        });
        result(outcome, dst, src, len)
    }

    #[inline]
    pub(super) fn result(
        outcome: Outcome,
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        if outcome.fault == 0 {
            Ok(())
        } else {
            Err(locate(
                outcome,
                &[(src as u64, len as u64), (dst as u64, len as u64)],
            ))
        }
    }

    unsafe fn copy_large(dst: *mut u8, src: *const u8, len: usize) -> Outcome {
        // The range need not be checked for wrapping: a range that wraps contains address 2^64 - 1, which is never
        // mapped for a program, so the copy faults there at the latest.
        if len < routine::STRING_MIN && std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: longer than `SMALL_MAX`, and the processor has AVX; the caller is responsible for the
            // destination.
            unsafe { routine::rkey_base_copy_vector(dst, src, len) }
        } else {
            // SAFETY: longer than 8 bytes; the caller is responsible for the destination.
            unsafe { routine::rkey_base_copy_string(dst, src, len) }
        }
    }

    #[inline]
    pub(super) unsafe fn compare_swap(p: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        // SAFETY: the caller is responsible for the word; faults are returned.
        word(p, unsafe {
            routine::rkey_base_compare_swap(p, compare, swap)
        })
    }

    #[inline]
    pub(super) unsafe fn fetch_add(p: *mut u64, add: u64) -> Result<u64, Fault> {
        // SAFETY: the caller is responsible for the word; faults are returned.
        word(p, unsafe { routine::rkey_base_fetch_add(p, add) })
    }

    #[inline]
    fn word(p: *mut u64, outcome: Outcome) -> Result<u64, Fault> {
        if outcome.fault == 0 {
            Ok(outcome.value)
        } else {
            Err(locate(outcome, &[(p as u64, 8)]))
        }
    }

    /// Builds a fault from the values that the handler returned. The processor reports the address of a missing page,
    /// but not an address that cannot exist at all; then the fault is at the start of the first range that cannot
    /// exist.
    #[cold]
    fn locate(outcome: Outcome, ranges: &[(u64, u64)]) -> Fault {
        let address = outcome.value;
        if ranges
            .iter()
            .any(|&(start, len)| address.wrapping_sub(start) < len)
        {
            return Fault::at(address);
        }
        // Addresses from here to the kernel's half are never mapped (48-bit addresses; with 57 bits the processor
        // reports the address between the two limits).
        const LIMIT: u64 = 1 << 47;
        let impossible =
            |&&(start, len): &&(u64, u64)| start.checked_add(len).is_none_or(|end| end > LIMIT);
        let (start, _) = *ranges.iter().find(impossible).unwrap_or(&ranges[0]);
        Fault::at(start)
    }
}

/// The implementation without a guarded routine: plain atomics, byte by byte where necessary.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod direct {
    use crate::fault::Fault;
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    /// The load is volatile because the source may be read-only and an atomic would require write access.
    unsafe fn load<T: Copy>(p: *const T) -> T {
        // SAFETY: the caller has checked address and alignment.
        unsafe { p.read_volatile() }
    }

    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
        let mut at = 0;
        while at < len {
            // SAFETY: `at < len`, or `at + 8 <= len`, inside the ranges that the caller is responsible for; the
            // alignment of the words is checked here. Atomic accesses do not race.
            unsafe {
                let (d, s) = (dst.add(at), src.add(at));
                if len - at >= 8 && d.addr() % 8 == 0 && s.addr() % 8 == 0 {
                    let word = load(s.cast::<u64>());
                    (*d.cast::<AtomicU64>()).store(word, Ordering::Release);
                    at += 8;
                } else {
                    let byte = load(s);
                    (*d.cast::<AtomicU8>()).store(byte, Ordering::Release);
                    at += 1;
                }
            }
        }
        Ok(())
    }

    pub(super) use self::copy as copy_from_peer;

    pub(super) unsafe fn compare_swap(p: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        // SAFETY: the caller is responsible for the word and its alignment.
        let word = unsafe { AtomicU64::from_ptr(p) };
        let swapped = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        Ok(swapped.unwrap_or_else(|old| old))
    }

    pub(super) unsafe fn fetch_add(p: *mut u64, add: u64) -> Result<u64, Fault> {
        // SAFETY: the caller is responsible for the word and its alignment.
        Ok(unsafe { AtomicU64::from_ptr(p) }.fetch_add(add, Ordering::SeqCst))
    }
}
