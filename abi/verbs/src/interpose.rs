//! UCX looks whether `/dev/infiniband/<name>` is a character device that it may open, before it uses a
//! device. There is no such file, so `stat` and `access` answer for it when this library is preloaded.
//! Every other path goes to the functions that would have been called without us.

#![allow(unsafe_code)]
// UNSAFETY: replaces two functions of the C library.

use crate::device::DEV_NAME;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

const FOLDER: &[u8] = b"/dev/infiniband/";
/// Major and minor number of the first verbs device.
const NUMBER: (u32, u32) = (231, 192);

/// Whether a path is that of our device.
///
/// # Safety
/// A C string, or null.
unsafe fn is_ours(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: not null, so it is a C string as the caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    path.strip_prefix(FOLDER)
        .is_some_and(|name| name == DEV_NAME.to_bytes())
}

/// The next function of this name after ours.
fn next(name: &CStr) -> usize {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

/// `stat`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, into: *mut libc::stat) -> c_int {
    type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
    static NEXT: OnceLock<usize> = OnceLock::new();
    // SAFETY: a path as the caller promises.
    if unsafe { is_ours(path) } && !into.is_null() {
        // SAFETY: all zeroes is a valid value, and there is room for it.
        unsafe {
            let mut ours: libc::stat = std::mem::zeroed();
            ours.st_mode = libc::S_IFCHR | 0o666;
            ours.st_rdev = libc::makedev(NUMBER.0, NUMBER.1);
            ours.st_nlink = 1;
            into.write(ours);
        }
        return 0;
    }
    match *NEXT.get_or_init(|| next(c"stat")) {
        // A C library without the symbol: the system call writes the same structure.
        // SAFETY: arguments as the caller promises.
        0 => unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, into, 0) as c_int },
        // SAFETY: the function of this name and type, with arguments as the caller promises.
        address => unsafe { std::mem::transmute::<usize, Stat>(address)(path, into) },
    }
}

/// `access`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    static NEXT: OnceLock<usize> = OnceLock::new();
    // SAFETY: a path as the caller promises.
    if unsafe { is_ours(path) } && mode & libc::X_OK == 0 {
        return 0;
    }
    match *NEXT.get_or_init(|| next(c"access")) {
        // SAFETY: arguments as the caller promises.
        0 => unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, mode) as c_int },
        // SAFETY: the function of this name and type, with arguments as the caller promises.
        address => unsafe { std::mem::transmute::<usize, Access>(address)(path, mode) },
    }
}
