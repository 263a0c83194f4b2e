//! Arguments that are addresses: structures and lists that a C program passes, checked as far as that is possible.
//!
//! Null and misaligned addresses are refused with `EINVAL`. The caller guarantees that the memory is valid.

#![allow(unsafe_code)]
// UNSAFETY: turns addresses that C passes into references.

use crate::Errno;

/// A structure that a program passes for us to read.
///
/// # Errors
/// `EINVAL`: null or misaligned.
///
/// # Safety
/// If not null, it points to a `T` that is not written while the reference is in use.
#[inline]
pub unsafe fn input<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    check(pointer)?;
    // SAFETY: aligned and not null, and the caller guarantees the rest.
    Ok(unsafe { &*pointer })
}

/// A structure that a program passes for us to fill in.
///
/// # Errors
/// `EINVAL`: null or misaligned.
///
/// # Safety
/// If not null, it points to a valid `T` that no one else accesses while the reference is in use.
#[inline]
pub unsafe fn output<'a, T>(pointer: *mut T) -> Result<&'a mut T, Errno> {
    check(pointer)?;
    // SAFETY: aligned and not null, and the caller guarantees the rest.
    Ok(unsafe { &mut *pointer })
}

/// Writes a value to memory that a program passes. The old contents need not be a valid `T`.
///
/// # Errors
/// `EINVAL`: null or misaligned.
///
/// # Safety
/// If not null, it is valid for a write of a `T`.
#[inline]
pub unsafe fn store<T>(pointer: *mut T, value: T) -> Result<(), Errno> {
    check(pointer)?;
    // SAFETY: aligned and not null, and the caller guarantees the rest.
    unsafe { pointer.write(value) };
    Ok(())
}

/// A list that a program passes. An empty list may have any address.
///
/// # Errors
/// `EINVAL`: null or misaligned, or longer than the address space.
///
/// # Safety
/// If not null, it points to `count` elements that are not written while the reference is in use.
#[inline]
pub unsafe fn list<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer)?;
    let bytes = count.checked_mul(size_of::<T>());
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Errno::INVAL);
    }
    // SAFETY: aligned, not null, of a possible length, and the caller guarantees the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

#[inline]
fn check<T>(pointer: *const T) -> Result<(), Errno> {
    match !pointer.is_null() && pointer.is_aligned() {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn null_and_misaligned_addresses_are_refused() {
        let mut numbers = [1u64, 2, 3];
        let odd = numbers.as_mut_ptr().wrapping_byte_add(4);
        // SAFETY: each address is refused, or inside the array.
        unsafe {
            for bad in [null_mut(), odd] {
                assert_eq!(input(bad.cast_const()).err(), Some(Errno::INVAL));
                assert_eq!(output(bad).err(), Some(Errno::INVAL));
                assert_eq!(store(bad, 9).err(), Some(Errno::INVAL));
                assert_eq!(list(bad.cast_const(), 1).err(), Some(Errno::INVAL));
            }
            assert_eq!(input(&raw const numbers[1]), Ok(&2));
            *output(&raw mut numbers[1]).unwrap() += 5;
            assert_eq!(store(&raw mut numbers[2], 9), Ok(()));
            assert_eq!(list(numbers.as_ptr(), 3), Ok(&[1, 7, 9][..]));
        }
    }

    #[test]
    fn an_empty_list_may_be_null_and_an_impossible_length_is_refused() {
        let number = 1u64;
        // SAFETY: no element is read.
        unsafe {
            assert_eq!(list::<u64>(null(), 0), Ok(&[][..]));
            for count in [usize::MAX, usize::MAX / 8 + 2, isize::MAX as usize / 8 + 1] {
                assert_eq!(list(&raw const number, count).err(), Some(Errno::INVAL));
            }
        }
    }
}
