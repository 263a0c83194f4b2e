//! Hints for the processor: they affect when something happens, never what happens.

// UNSAFETY: the prefetch instruction has no intrinsic that works without a target feature, so it is written in
// assembly.
#![allow(unsafe_code)]

/// Asks the processor to fetch the cache line of `ptr` in a state in which it can be written at once.
///
/// Never faults, for any address. Does nothing on processors without the instruction.
#[inline(always)]
pub fn prefetch_write(ptr: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `prefetchw` reads and writes nothing that a program can observe, raises no exception for any address,
    // and is a no-operation on 64-bit processors that do not implement it. It does not change the flags or the stack.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) ptr, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = ptr;
}

/// Asks the processor to fetch the cache line of `ptr` for reading. Never faults.
#[inline(always)]
pub fn prefetch_read(ptr: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `prefetcht0` (part of the x86-64 baseline) has no effect that a program can observe and raises no
    // exception for any address. It does not change the flags or the stack.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) ptr, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = ptr;
}

/// Asks the processor to fetch the cache line of `ptr` into the second-level cache, for reading. Never faults.
#[inline(always)]
pub fn prefetch_outer(ptr: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `prefetcht1` is like `prefetcht0` in [`prefetch_read`].
    unsafe {
        std::arch::asm!("prefetcht1 [{}]", in(reg) ptr, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = ptr;
}

/// Hints to the processor that this loop waits for another processor.
#[inline(always)]
pub fn pause() {
    std::hint::spin_loop();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetching_never_faults() {
        for address in [0usize, 1, 0x1000, usize::MAX, 1 << 63, 0x8000_0000_0000] {
            prefetch_write(std::ptr::without_provenance(address));
            prefetch_read(std::ptr::without_provenance(address));
            prefetch_outer(std::ptr::without_provenance(address));
        }
        pause();
    }
}
