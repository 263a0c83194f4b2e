//! C functions with `...`. Rust cannot define them, so each is assembly that saves the registers with arguments, makes a
//! `va_list` of them as the calling convention of x86-64 says, and passes its address to a function in Rust.

#![allow(unsafe_code)]
// UNSAFETY: assembly that saves registers; calls `vsnprintf`.

use std::ffi::{c_char, c_int, c_void};

unsafe extern "C" {
    /// A `va_list` is an array, so it is passed by its address.
    fn vsnprintf(into: *mut c_char, len: usize, format: *const c_char, list: *mut c_void) -> c_int;
}

/// The text of a format and its arguments, truncated to 4 KiB.
///
/// # Safety
/// `format` is null or a C string; `list` is a `va_list` with the arguments that the format requires.
pub(crate) unsafe fn formatted(format: *const c_char, list: *mut c_void) -> String {
    let mut buffer = [0u8; 4096];
    if format.is_null() {
        return String::new();
    }
    // SAFETY: the buffer has this length; the caller promises the rest.
    let len = unsafe { vsnprintf(buffer.as_mut_ptr().cast(), buffer.len(), format, list) };
    let len = usize::try_from(len).unwrap_or(0).min(buffer.len() - 1);
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// The body of a function with `...`: saves the registers of arguments, calls `{f}` with the named arguments and the address of the
/// list as the last one, and returns. All named arguments are integers or pointers; `$saved` is how many bytes of the saved registers
/// they take, and `$pass` passes the address from `rax`.
///
/// The list is as in the System V ABI for x86-64 (3.5.7): offsets of the next integer and floating-point register in the area of
/// saved registers, the address of the arguments on the stack, and that of the area. The first six integer arguments are
/// in registers, so a seventh, the address of the list, is on the stack.
macro_rules! body {
    ($saved:literal, $pass:literal) => {
        concat!(
            "sub rsp, 216\n",
            "mov [rsp + 32], rdi\n",
            "mov [rsp + 40], rsi\n",
            "mov [rsp + 48], rdx\n",
            "mov [rsp + 56], rcx\n",
            "mov [rsp + 64], r8\n",
            "mov [rsp + 72], r9\n",
            "test al, al\n",
            "je 2f\n",
            "movaps [rsp + 80], xmm0\n",
            "movaps [rsp + 96], xmm1\n",
            "movaps [rsp + 112], xmm2\n",
            "movaps [rsp + 128], xmm3\n",
            "movaps [rsp + 144], xmm4\n",
            "movaps [rsp + 160], xmm5\n",
            "movaps [rsp + 176], xmm6\n",
            "movaps [rsp + 192], xmm7\n",
            "2:\n",
            "mov dword ptr [rsp + 8], ",
            $saved,
            "\n",
            "mov dword ptr [rsp + 12], 48\n",
            "lea rax, [rsp + 224]\n",
            "mov [rsp + 16], rax\n",
            "lea rax, [rsp + 32]\n",
            "mov [rsp + 24], rax\n",
            "lea rax, [rsp + 8]\n",
            $pass,
            "\n",
            "call {f}\n",
            "add rsp, 216\n",
            "ret"
        )
    };
}
/// Like the above, with four named arguments.
macro_rules! after_four {
    () => {
        $crate::variadic::body!("32", "mov r8, rax")
    };
}
/// Like the above, with six named arguments.
macro_rules! after_six {
    () => {
        $crate::variadic::body!("48", "mov [rsp], rax")
    };
}

pub(crate) use {after_four, after_six, body};
