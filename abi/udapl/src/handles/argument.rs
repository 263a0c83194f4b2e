//! Checks and reads arguments: addresses, counts, timeouts; an error names the argument by its number.

#![allow(unsafe_code)]
// UNSAFETY: turns addresses that C passes into references.

use crate::handles::fail::{Fail, Result};
use crate::sys::{Count, TIMEOUT_INFINITE, Timeout};
use rkey_device::time;
use rkey_kit::argument;
use std::time::{Duration, Instant};

/// Reads a structure that a program passes.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`: null or misaligned.
///
/// # Safety
/// Same as [`argument::input`].
#[inline]
pub unsafe fn input<'a, T>(number: u32, pointer: *const T) -> Result<&'a T> {
    // SAFETY: guaranteed by the caller.
    unsafe { argument::input(pointer) }.map_err(|_| Fail::argument(number))
}

/// Checks that there is room for a result, before the call does anything.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`: null or misaligned.
#[inline]
pub fn room<T>(number: u32, pointer: *mut T) -> Result {
    match !pointer.is_null() && pointer.is_aligned() {
        true => Ok(()),
        false => Err(Fail::argument(number)),
    }
}

/// Writes a result.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`: null or misaligned.
///
/// # Safety
/// Same as [`argument::store`].
#[inline]
pub unsafe fn store<T>(number: u32, pointer: *mut T, value: T) -> Result {
    // SAFETY: guaranteed by the caller.
    unsafe { argument::store(pointer, value) }.map_err(|_| Fail::argument(number))
}

/// Writes a result that the program may omit.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`: misaligned.
///
/// # Safety
/// Same as [`argument::store`].
pub unsafe fn store_if<T>(number: u32, pointer: *mut T, value: T) -> Result {
    if pointer.is_null() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { store(number, pointer, value) }
}

/// Reads a list that a program passes. The address of an empty list is ignored.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`: a negative count, or null or misaligned.
///
/// # Safety
/// Same as [`argument::list`].
#[inline]
pub unsafe fn list<'a, T>(
    (count_number, count): (u32, Count),
    (number, pointer): (u32, *const T),
) -> Result<&'a [T]> {
    let count = usize::try_from(count).map_err(|_| Fail::argument(count_number))?;
    // SAFETY: guaranteed by the caller.
    unsafe { argument::list(pointer, count) }.map_err(|_| Fail::argument(number))
}

/// Checks that a mask has only known bits.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`.
pub fn mask(number: u32, mask: u64, all: u64) -> Result {
    match mask & !all {
        0 => Ok(()),
        _ => Err(Fail::argument(number)),
    }
}

/// Checks that a number is not negative.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`.
pub fn count(number: u32, count: Count) -> Result<u32> {
    u32::try_from(count).map_err(|_| Fail::argument(number))
}

/// The deadline for a DAT timeout (microseconds); `None`: never.
#[must_use]
pub fn deadline(timeout: Timeout) -> Option<Instant> {
    match timeout {
        TIMEOUT_INFINITE => None,
        micros => Some(time::now() + Duration::from_micros(micros.into())),
    }
}
