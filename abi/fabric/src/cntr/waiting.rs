//! Waiting for a counter by its descriptor, and `fi_control` of counters (fi_cntr(3)).
//!
//! Most events that a counter counts wake no thread: the device counts remote accesses, and messages progress only when
//! the program polls. So the descriptor acts as a timer: it becomes readable a millisecond after `fi_trywait`, and
//! the program reads the counter again.

#![allow(unsafe_code)]
// UNSAFETY: C functions that write to the program's memory.

use super::{CntrObject, Counter};
use crate::errno::{FiError, Result};
use crate::object::{find, input, status, store};
use crate::sys::*;
use crate::wait::Timer;
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// How long a program sleeps between two reads.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The descriptor of a counter.
pub(super) struct Wait {
    clock: Timer,
    /// The numbers of successes and errors that the program last read, or was told to read by `FI_EAGAIN`.
    told: Mutex<(u64, u64)>,
}

impl Wait {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            clock: Timer::new()?,
            told: Mutex::default(),
        })
    }

    /// Records that the program read the number of successes.
    pub(super) fn record(&self, value: u64) {
        self.told.lock().0 = value;
    }

    /// Records that the program read the number of errors.
    pub(super) fn record_errors(&self, errors: u64) {
        self.told.lock().1 = errors;
    }
}

impl Counter {
    /// Prepares to wait on the descriptor. Returns `FI_EAGAIN` if the counter has changed since the program last read it.
    fn arm(&self) -> Result<()> {
        let wait = self.descriptor.as_ref().ok_or(FiError::INVAL)?;
        self.progress();
        let values = (self.value(), self.failures());
        let mut told = wait.told.lock();
        if std::mem::replace(&mut *told, values) != values {
            return Err(FiError::AGAIN);
        }
        wait.clock.set(Some(POLL_INTERVAL));
        Ok(())
    }
}

/// Prepares for a wait on the descriptor of a counter; returns `FI_EAGAIN` if the counter has changed since the program last
/// read it.
///
/// # Safety
/// The handle may be invalid; a live object stays alive during the call.
pub(crate) unsafe fn trywait(fid: *mut Fid) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { find::<CntrObject, _>(fid)? }.inner.arm()
}

/// `fi_control` of a counter.
pub(super) unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let counter = &unsafe { find::<CntrObject, _>(fid)? }.inner;
        match command {
            FI_GETWAIT => {
                let wait = counter.descriptor.as_ref().ok_or(FiError::NODATA)?;
                // SAFETY: the command requires room for a descriptor.
                unsafe { store(arg.cast(), wait.clock.raw()) }
            }
            FI_GETWAITOBJ => {
                let object = match (&counter.descriptor, counter.waitable) {
                    (Some(_), _) => FI_WAIT_FD,
                    (None, true) => FI_WAIT_UNSPEC,
                    (None, false) => FI_WAIT_NONE,
                };
                // SAFETY: the command requires room for a number.
                unsafe { store(arg.cast(), object) }
            }
            // No flags are defined.
            // SAFETY: the command requires room for flags.
            FI_GETOPSFLAG => unsafe { store(arg.cast(), 0u64) },
            // SAFETY: the command requires flags.
            FI_SETOPSFLAG => match *unsafe { input(arg.cast::<u64>())? } {
                0 => Ok(()),
                _ => Err(FiError::BADFLAGS),
            },
            _ => Err(FiError::NOSYS),
        }
    })
}
