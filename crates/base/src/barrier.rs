//! Memory barriers that cost nothing on one side.
//!
//! Two sides that each write a word and then read the other's ("I am going to sleep" against "there is work"; "I am
//! using this memory" against "this memory is being freed") need a full fence on both sides, and on the busy side the
//! fence costs more than everything else. `membarrier(2)` moves the whole cost to the rare side: [`heavy`] makes every
//! processor that runs a registered process execute a full fence, wherever it is in its code, so the busy side only has
//! to keep the *compiler* from reordering: [`light`].
//!
//! The pair works only if the process on the *light* side has registered. When they connect, processes tell each other
//! whether [`register`] succeeded; if it failed on either side, both must use real fences.
//!
//! A forked child inherits a registration; `exec` loses it.

// UNSAFETY: `membarrier` needs a raw system call.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

/// From `linux/membarrier.h`.
const CMD_QUERY: libc::c_int = 0;
const CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

const UNKNOWN: u8 = 0;
const REGISTERED: u8 = 1;
const REFUSED: u8 = 2;

static REGISTRATION: AtomicU8 = AtomicU8::new(UNKNOWN);

fn membarrier(command: libc::c_int) -> libc::c_long {
    // SAFETY: the call takes three integers and touches none of our memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// Registers this process, so that [`heavy`] barriers of any process on this machine reach its threads. Returns whether
/// that worked; further calls return the same result without a system call.
///
/// The first call takes a few microseconds, or possibly milliseconds in a process with several threads.
pub fn register() -> bool {
    match REGISTRATION.load(Ordering::Relaxed) {
        REGISTERED => return true,
        REFUSED => return false,
        _ => {}
    }
    let wanted = libc::c_long::from(CMD_GLOBAL_EXPEDITED | CMD_REGISTER_GLOBAL_EXPEDITED);
    // An error is -1, which has all bits set: check the sign first.
    let offered = membarrier(CMD_QUERY);
    let done = offered >= 0
        && offered & wanted == wanted
        && membarrier(CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
    REGISTRATION.store(if done { REGISTERED } else { REFUSED }, Ordering::Relaxed);
    done
}

/// Whether [`register`] was called and succeeded.
#[inline]
#[must_use]
pub fn available() -> bool {
    REGISTRATION.load(Ordering::Relaxed) == REGISTERED
}

/// A full fence on this processor and on every processor that runs a registered process.
///
/// The call takes between 0.2 µs (if no other process runs) and about 20 µs. Without `membarrier`, it is a full fence on
/// this processor only, which is enough if the other side uses full fences as well, as the module documentation
/// requires.
#[inline]
pub fn heavy() {
    fence(Ordering::SeqCst);
    if available() {
        // The system call cannot fail: the kernel offered the command when we registered, and the command takes no
        // arguments that could be wrong.
        membarrier(CMD_GLOBAL_EXPEDITED);
    }
    fence(Ordering::SeqCst);
}

/// The free side of the pair: keeps the compiler from moving memory accesses across this line.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    #[test]
    fn registering_twice_gives_the_same_result() {
        let first = register();
        assert_eq!(register(), first);
        assert_eq!(available(), first);
        heavy();
        light();
        eprintln!("membarrier(GLOBAL_EXPEDITED) works here: {first}");
    }

    /// Each side raises its flag and reads the other's: at least one must see the other.
    #[test]
    fn at_least_one_side_sees_the_others_flag() {
        if !register() {
            eprintln!("SKIP: no membarrier on this machine");
            return;
        }
        const ROUNDS: u32 = 2_000;
        // Each flag holds the number of the round in which it was last raised.
        let (busy, rare) = (AtomicU32::new(0), AtomicU32::new(0));
        let (start, seen) = (AtomicU32::new(0), AtomicU32::new(0));
        let missed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while start.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                    busy.store(round, Ordering::Relaxed);
                    light();
                    let other = rare.load(Ordering::Relaxed);
                    seen.store(round << 1 | u32::from(other == round), Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                start.store(round, Ordering::Release);
                rare.store(round, Ordering::Relaxed);
                heavy();
                let other = busy.load(Ordering::Relaxed) == round;
                let busy_saw = loop {
                    let seen = seen.load(Ordering::Acquire);
                    if seen >> 1 == round {
                        break seen & 1 == 1;
                    }
                    std::thread::yield_now();
                };
                if !other && !busy_saw {
                    missed.store(true, Ordering::Relaxed);
                }
            }
        });
        assert!(!missed.load(Ordering::Relaxed));
    }
}
