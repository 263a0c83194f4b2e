//! The arguments of a C function with `...`, which libdat2 passes on as a `va_list`.

#![allow(unsafe_code)]
// UNSAFETY: reads registers that were saved and arguments on a stack.

use crate::sys::VaListTag;

/// The remaining arguments: integers and pointers only, 8 bytes each.
pub struct Arguments(*mut VaListTag);

/// The size of the area of saved integer registers (System V ABI for x86-64, 3.5.7).
const SAVED: u32 = 48;

impl Arguments {
    /// `None`: null, or a processor for which the layout of a `va_list` is not known here.
    #[must_use]
    pub fn new(list: *mut VaListTag) -> Option<Self> {
        let known = cfg!(target_arch = "x86_64") && !list.is_null() && list.is_aligned();
        known.then_some(Self(list))
    }

    /// The next argument. If its type is shorter, the upper bits are arbitrary.
    ///
    /// # Safety
    /// There must be another argument.
    pub unsafe fn next(&mut self) -> u64 {
        // SAFETY: a `va_list` of the caller, which has another argument: in the saved registers while the offset is
        // below their size, then on the stack.
        unsafe {
            let list = &mut *self.0;
            if list.gp_offset <= SAVED - 8 {
                let place = list.reg_save_area.byte_add(list.gp_offset as usize);
                list.gp_offset += 8;
                return place.cast::<u64>().read();
            }
            let place = list.overflow_arg_area;
            list.overflow_arg_area = place.byte_add(8);
            place.cast::<u64>().read()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn arguments_are_read_from_registers_then_from_the_stack() {
        let mut registers = [0u64, 1, 2, 3, 4, 5];
        let mut stack = [6u64, 7];
        let mut list = VaListTag {
            gp_offset: 16,
            fp_offset: 48,
            overflow_arg_area: stack.as_mut_ptr().cast(),
            reg_save_area: registers.as_mut_ptr().cast(),
        };
        let mut arguments = Arguments::new(&raw mut list).unwrap();
        for expected in 2..8 {
            // SAFETY: there are six of them.
            assert_eq!(unsafe { arguments.next() }, expected);
        }
        assert!(Arguments::new(std::ptr::null_mut()).is_none());
    }
}
