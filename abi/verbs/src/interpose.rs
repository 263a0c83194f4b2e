//! UCX looks whether `/dev/infiniband/<name>` is a character device that it may open, before it uses a
//! device. There is no such file, so `stat` and `access` answer for it when this library is preloaded.
//! The functions that would have been called without us come first, and everything but "no such file" is their answer:
//! after that, the path is known to be readable.

#![allow(unsafe_code)]
// UNSAFETY: replaces two functions of the C library.

use crate::device::DEV_NAME;
use rkey_kit::Errno;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

const FOLDER: &[u8] = b"/dev/infiniband/";
/// Major and minor number of the first verbs device.
const NUMBER: (u32, u32) = (231, 192);

/// Whether a call that ended so was about our device.
///
/// # Safety
/// The call was given this path, and what it returned last.
unsafe fn is_ours(code: c_int, path: *const c_char) -> bool {
    if code == 0 || Errno::last() != Errno::NOENT {
        return false;
    }
    // SAFETY: the kernel looked for the file of this name, so it is a C string that can be read.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    path.strip_prefix(FOLDER)
        .is_some_and(|name| name == DEV_NAME.to_bytes())
}

/// The next function of this name after ours.
fn next(name: &CStr) -> usize {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
}

/// `stat` without us.
///
/// # Safety
/// As the function of the C library.
unsafe fn next_stat(path: *const c_char, into: *mut libc::stat) -> c_int {
    type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
    static NEXT: OnceLock<usize> = OnceLock::new();
    match *NEXT.get_or_init(|| next(c"stat")) {
        // A C library without the symbol: the system call writes the same structure.
        // SAFETY: arguments as the caller promises.
        0 => unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, into, 0) as c_int },
        // SAFETY: the function of this name and type, with arguments as the caller promises.
        address => unsafe { std::mem::transmute::<usize, Stat>(address)(path, into) },
    }
}

/// `stat`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, into: *mut libc::stat) -> c_int {
    // SAFETY: arguments as the caller promises.
    unsafe {
        let code = next_stat(path, into);
        if !is_ours(code, path) {
            return code;
        }
        // The kernel finds out whether there is room.
        let code = next_stat(c"/".as_ptr(), into);
        if code == 0 {
            let mut ours: libc::stat = std::mem::zeroed();
            ours.st_mode = libc::S_IFCHR | 0o666;
            ours.st_rdev = libc::makedev(NUMBER.0, NUMBER.1);
            ours.st_nlink = 1;
            into.write(ours);
        }
        code
    }
}

/// `access` without us.
///
/// # Safety
/// As the function of the C library.
unsafe fn next_access(path: *const c_char, mode: c_int) -> c_int {
    type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    static NEXT: OnceLock<usize> = OnceLock::new();
    match *NEXT.get_or_init(|| next(c"access")) {
        // SAFETY: arguments as the caller promises.
        0 => unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, mode) as c_int },
        // SAFETY: the function of this name and type, with arguments as the caller promises.
        address => unsafe { std::mem::transmute::<usize, Access>(address)(path, mode) },
    }
}

/// `access`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: arguments as the caller promises.
    let code = unsafe { next_access(path, mode) };
    // SAFETY: the path and the outcome of the call.
    if mode & libc::X_OK == 0 && unsafe { is_ours(code, path) } {
        0
    } else {
        code
    }
}
