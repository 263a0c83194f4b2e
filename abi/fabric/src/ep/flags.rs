//! Operation flags of a handle: `FI_GETOPSFLAG` and `FI_SETOPSFLAG` of `fi_control`.

#![allow(unsafe_code)]
// UNSAFETY: reads and writes the program's memory.

use super::object::EpObject;
use super::*;
use crate::info::offer::{RX_OP_FLAGS, TX_OP_FLAGS};
use crate::object::input;
use std::ffi::c_void;
use std::sync::atomic::AtomicU64;

/// The default flags of transfers. An alias has its own.
pub(super) struct OpFlags {
    transmit: AtomicU64,
    receive: AtomicU64,
}

impl OpFlags {
    pub(super) fn new(transmit: u64, receive: u64) -> Self {
        Self {
            transmit: AtomicU64::new(transmit),
            receive: AtomicU64::new(receive),
        }
    }

    #[inline]
    pub(super) fn transmit(&self) -> u64 {
        self.transmit.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn receive(&self) -> u64 {
        self.receive.load(Ordering::Relaxed)
    }

    /// The flags of the side (transmit or receive) that `sides` selects, and those that the program may set.
    fn of(&self, sides: u64) -> Result<(&AtomicU64, u64)> {
        match sides & (FI_SEND | FI_RECV) {
            FI_SEND => Ok((&self.transmit, TX_OP_FLAGS)),
            FI_RECV => Ok((&self.receive, RX_OP_FLAGS)),
            _ => Err(FiError::INVAL),
        }
    }

    /// Sets the flags of the side that `flags` selects.
    pub(super) fn set(&self, flags: u64) -> Result<()> {
        let (place, known) = self.of(flags)?;
        let flags = flags & !(FI_SEND | FI_RECV);
        if flags & !known != 0 {
            return Err(FiError::BADFLAGS);
        }
        place.store(flags, Ordering::Relaxed);
        Ok(())
    }
}

/// `FI_GETOPSFLAG`: the argument selects the side, and is replaced by its flags.
///
/// # Safety
/// `arg` is null, or points to flags of the program that may be written.
pub(super) unsafe fn get(object: &EpObject, arg: *mut c_void) -> Result<()> {
    let arg = arg.cast::<u64>();
    // SAFETY: guaranteed by the caller.
    let (flags, _) = object.flags.of(*unsafe { input(arg.cast_const())? })?;
    // SAFETY: guaranteed by the caller.
    unsafe { crate::object::store(arg, flags.load(Ordering::Relaxed)) }
}

/// `FI_SETOPSFLAG`.
///
/// # Safety
/// `arg` is null, or points to flags of the program.
pub(super) unsafe fn set(object: &EpObject, arg: *mut c_void) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    object.flags.set(*unsafe { input(arg.cast::<u64>())? })
}
