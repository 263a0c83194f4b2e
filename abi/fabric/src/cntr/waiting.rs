//! Waiting for a counter by its descriptor, and the controls of counters (fi_cntr(3)).
//!
//! Much of what a counter counts wakes nobody: accesses of peers are counted by the device, and messages make progress
//! when the program looks. So the descriptor is a clock: after `fi_trywait` it becomes readable within a millisecond, and
//! the program looks again.

#![allow(unsafe_code)]
// UNSAFETY: C functions that write to the program's memory.

use super::{CntrObject, Counter};
use crate::errno::{FiError, Result};
use crate::object::{find, input, output, status};
use crate::sys::*;
use crate::wait::Timer;
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// How long a program sleeps between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// The descriptor of a counter.
pub(super) struct Wait {
    clock: Timer,
    /// The values, of successes and of errors, that the program was last told, or told to look for.
    told: Mutex<(u64, u64)>,
}

impl Wait {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            clock: Timer::new()?,
            told: Mutex::default(),
        })
    }

    /// The program learns the number of successes.
    pub(super) fn tell(&self, value: u64) {
        self.told.lock().0 = value;
    }

    /// The program learns the number of errors.
    pub(super) fn tell_errors(&self, errors: u64) {
        self.told.lock().1 = errors;
    }
}

impl Counter {
    /// Prepares to wait for the descriptor: `FI_EAGAIN` if there is something that the program has not been told.
    fn arm(&self) -> Result<()> {
        let wait = self.descriptor.as_ref().ok_or(FiError::INVAL)?;
        self.progress();
        let values = (self.value(), self.failures());
        let mut told = wait.told.lock();
        if std::mem::replace(&mut *told, values) != values {
            return Err(FiError::AGAIN);
        }
        wait.clock.set(Some(LOOK));
        Ok(())
    }
}

/// Whether a program may wait for the descriptor of a counter.
///
/// # Safety
/// A handle, or something that is refused.
pub(crate) unsafe fn trywait(fid: *mut Fid) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { find::<CntrObject, _>(fid)? }.inner.arm()
}

/// `fi_control` of a counter.
pub(super) unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let counter = &unsafe { find::<CntrObject, _>(fid)? }.inner;
        match command {
            FI_GETWAIT => {
                let wait = counter.descriptor.as_ref().ok_or(FiError::NODATA)?;
                // SAFETY: room for a descriptor, as the command asks for.
                unsafe { output(arg.cast(), wait.clock.raw()) }
            }
            FI_GETWAITOBJ => {
                let object = match (&counter.descriptor, counter.waitable) {
                    (Some(_), _) => FI_WAIT_FD,
                    (None, true) => FI_WAIT_UNSPEC,
                    (None, false) => FI_WAIT_NONE,
                };
                // SAFETY: room for a number, as the command asks for.
                unsafe { output(arg.cast(), object) }
            }
            // No flag is defined.
            // SAFETY: room for flags, as the command asks for.
            FI_GETOPSFLAG => unsafe { output(arg.cast(), 0u64) },
            // SAFETY: flags, as the command asks for.
            FI_SETOPSFLAG => match *unsafe { input(arg.cast::<u64>())? } {
                0 => Ok(()),
                _ => Err(FiError::BADFLAGS),
            },
            _ => Err(FiError::NOSYS),
        }
    })
}
