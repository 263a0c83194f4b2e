//! Programs look whether `/dev/infiniband/<name>` is a character device that they may open, before they use a device:
//! UCX by `stat` and `access`, programs that were built for older C libraries by `__xstat`. Others ask by `realpath`
//! where its link in sysfs leads. There are no such files, so these functions, and those that tell the same in another
//! way, answer for [them](mod@made_up) when this library is preloaded.
//! The functions that would have been called without us come first, and everything but "no such file" is their answer:
//! after that, the path is known to be readable.
//!
//! Some of these functions may be called from signal handlers (signal-safety(7)), and `dlsym` may not: it takes locks.
//! So the functions of the C library are looked up when this library is loaded.

#![allow(unsafe_code)]
// UNSAFETY: replaces functions of the C library.

use crate::made_up::{self, File};
use rkey_kit::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Major and minor number of the first verbs device.
const NUMBER: (u32, u32) = (231, 192);
/// The versions of symbols that the C library keeps for old programs only.
#[cfg(target_arch = "x86_64")]
const OLD: [&CStr; 2] = [c"GLIBC_2.2.5", c"GLIBC_2.4"];
/// The versions of symbols that the C library keeps for old programs only.
#[cfg(target_arch = "aarch64")]
const OLD: [&CStr; 1] = [c"GLIBC_2.17"];

/// What a call that failed was about, if it is made up.
///
/// # Safety
/// The call was given this path.
unsafe fn made_up(failed: bool, path: *const c_char) -> Option<File> {
    if !failed || Errno::last() != Errno::NOENT {
        return None;
    }
    // SAFETY: the kernel looked for the file of this name, so it is a C string that can be read.
    let found = made_up::find(unsafe { CStr::from_ptr(path) }.to_bytes());
    if found.is_none() {
        // Looking may have changed it.
        Errno::NOENT.set();
    }
    found
}

/// Type and rights of a file that is made up, and its number if it is a device.
fn mode(file: &File) -> (u32, (u32, u32)) {
    match file {
        File::Device => (libc::S_IFCHR | 0o666, NUMBER),
        File::Link(_) => (libc::S_IFLNK | 0o777, (0, 0)),
        File::Folder(_) | File::Other(_) => (libc::S_IFDIR | 0o755, (0, 0)),
    }
}

/// The file that is looked at: a link, or where it leads.
fn followed(file: File, follow: bool) -> File {
    match file {
        File::Link(target) if follow => File::Folder(target),
        other => other,
    }
}

/// The function of the C library that one of ours comes before.
struct Next {
    name: &'static CStr,
    /// Its address; [`UNKNOWN`] before it was looked up, [`ABSENT`] if there is none.
    address: AtomicUsize,
}

const UNKNOWN: usize = 0;
const ABSENT: usize = 1;

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(UNKNOWN),
        }
    }

    /// Its address, or [`ABSENT`].
    #[inline]
    fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            // Called by what was loaded before us, before anything of the program runs.
            UNKNOWN => self.look_up(),
            known => known,
        }
    }

    /// Looks it up. Threads that do so at once find the same.
    #[cold]
    fn look_up(&self) -> usize {
        let found = next(self.name).max(ABSENT);
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// How often functions were looked up.
#[cfg(test)]
static LOOK_UPS: AtomicUsize = AtomicUsize::new(0);

/// The next function of this name after ours, or 0.
fn next(name: &CStr) -> usize {
    #[cfg(test)]
    LOOK_UPS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the names are C strings.
    let newest = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    let old = OLD.iter().map(|version| {
        // SAFETY: as above.
        unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }
    });
    let mut found = std::iter::once(newest).chain(old);
    found
        .find(|address| !address.is_null())
        .map_or(0, |address| address as usize)
}

/// Calls the next function of this name, or else, where the C library has none, makes a system call.
macro_rules! without_us {
    ($name:literal, ($($arg:ident: $type:ty),*) -> $result:ty, $otherwise:expr) => {{
        type Function = unsafe extern "C" fn($($type),*) -> $result;
        static NEXT: Next = Next::new($name);
        extern "C" fn look_up() {
            NEXT.look_up();
        }
        // SAFETY: the loader calls what is in this section once, and `look_up` needs none of its arguments.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static AT_LOAD: extern "C" fn() = look_up;
        // SAFETY: arguments as the caller of the enclosing function promises.
        unsafe {
            match NEXT.address() {
                ABSENT => $otherwise,
                // The function of this name has this type.
                address => std::mem::transmute::<usize, Function>(address)($($arg),*),
            }
        }
    }};
}

/// `fstatat` of the kernel.
///
/// # Safety
/// As the function of the C library.
unsafe fn kernel_stat(
    folder: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: arguments as the caller promises.
    unsafe { libc::syscall(libc::SYS_newfstatat, folder, path, into, flags) as c_int }
}

/// Answers for a file that is made up after `stat` failed.
///
/// # Safety
/// As `stat`, whose result this was.
unsafe fn answer_stat(
    code: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: arguments as the caller promises.
    unsafe {
        let Some(file) = made_up(code != 0, path) else {
            return code;
        };
        if let File::Other(path) = file {
            return kernel_stat(libc::AT_FDCWD, path.as_ptr(), into, flags & LINK);
        }
        // The kernel finds out whether there is room.
        let code = kernel_stat(libc::AT_FDCWD, c"/".as_ptr(), into, 0);
        if code == 0 {
            let (mode, number) = mode(&followed(file, flags & LINK == 0));
            let mut ours: libc::stat = std::mem::zeroed();
            ours.st_mode = mode;
            ours.st_rdev = libc::makedev(number.0, number.1);
            ours.st_nlink = 1;
            into.write(ours);
        }
        code
    }
}

/// Functions that fill in a `struct stat`: what comes before its path and after its room, in which folder it looks
/// and with which flags.
macro_rules! stats {
    ($($name:ident, $c_name:literal, ($($before:ident),*), ($($after:ident),*), $folder:expr, $flags:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the function of the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: c_int,)*
            path: *const c_char,
            into: *mut libc::stat,
            $($after: c_int,)*
        ) -> c_int {
            let code = without_us!(
                $c_name,
                ($($before: c_int,)* path: *const c_char, into: *mut libc::stat $(, $after: c_int)*) -> c_int,
                kernel_stat($folder, path, into, $flags)
            );
            // SAFETY: arguments as the caller promises.
            unsafe { answer_stat(code, path, into, $flags) }
        }
    )*};
}

const HERE: c_int = libc::AT_FDCWD;
const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;

// With addresses of 64 bits `struct stat64` is `struct stat`, and the versions of the older functions name it as well.
stats! {
    stat, c"stat", (), (), HERE, 0;
    stat64, c"stat64", (), (), HERE, 0;
    lstat, c"lstat", (), (), HERE, LINK;
    lstat64, c"lstat64", (), (), HERE, LINK;
    fstatat, c"fstatat", (folder), (flags), folder, flags;
    fstatat64, c"fstatat64", (folder), (flags), folder, flags;
    __xstat, c"__xstat", (version), (), HERE, 0;
    __xstat64, c"__xstat64", (version), (), HERE, 0;
    __lxstat, c"__lxstat", (version), (), HERE, LINK;
    __lxstat64, c"__lxstat64", (version), (), HERE, LINK;
    __fxstatat, c"__fxstatat", (version, folder), (flags), folder, flags;
    __fxstatat64, c"__fxstatat64", (version, folder), (flags), folder, flags;
}

/// `statx`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut libc::statx,
) -> c_int {
    let ask = |path: *const c_char| {
        without_us!(
            c"statx",
            (folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int,
            libc::syscall(libc::SYS_statx, folder, path, flags, mask, into) as c_int
        )
    };
    let code = ask(path);
    // SAFETY: the path and the outcome of the call.
    let Some(file) = (unsafe { made_up(code != 0, path) }) else {
        return code;
    };
    if let File::Other(path) = file {
        return ask(path.as_ptr());
    }
    // The kernel finds out whether there is room.
    let code = ask(c"/".as_ptr());
    if code == 0 {
        let (mode, number) = mode(&followed(file, flags & LINK == 0));
        // SAFETY: all zeroes is valid, and the kernel has just written there.
        unsafe {
            let mut ours: libc::statx = std::mem::zeroed();
            ours.stx_mask = libc::STATX_BASIC_STATS;
            ours.stx_mode = mode as u16;
            (ours.stx_rdev_major, ours.stx_rdev_minor) = number;
            ours.stx_nlink = 1;
            into.write(ours);
        }
    }
    code
}

/// Answers for a file that is made up after `access` failed: everybody may do what its rights say.
///
/// # Safety
/// As `access`, whose result this was.
unsafe fn answer_access(code: c_int, path: *const c_char, wanted: c_int) -> c_int {
    // SAFETY: the path and the outcome of the call.
    let Some(file) = (unsafe { made_up(code != 0, path) }) else {
        return code;
    };
    if let File::Other(path) = file {
        // SAFETY: a path of ours.
        return unsafe {
            libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), wanted) as c_int
        };
    }
    let allowed = (mode(&followed(file, true)).0 & 7) as c_int;
    if wanted & !allowed != 0 {
        Errno::ACCES.set();
        return -1;
    }
    0
}

/// `access`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    let code = without_us!(
        c"access",
        (path: *const c_char, mode: c_int) -> c_int,
        libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, mode) as c_int
    );
    // SAFETY: arguments as the caller promises.
    unsafe { answer_access(code, path, mode) }
}

/// `faccessat`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faccessat(
    folder: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    let code = without_us!(
        c"faccessat",
        (folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int,
        libc::syscall(libc::SYS_faccessat2, folder, path, mode, flags) as c_int
    );
    // SAFETY: arguments as the caller promises.
    unsafe { answer_access(code, path, mode) }
}

/// The C library's `realpath`.
///
/// # Safety
/// As the function of the C library.
unsafe fn next_realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    without_us!(
        c"realpath",
        (path: *const c_char, into: *mut c_char) -> *mut c_char,
        no_function()
    )
}

/// Answers for a file that is made up after `realpath` failed.
///
/// # Safety
/// As `realpath`, whose result this was.
unsafe fn answer_realpath(
    found: *mut c_char,
    path: *const c_char,
    into: *mut c_char,
) -> *mut c_char {
    // SAFETY: the path and the outcome of the call.
    let Some(file) = (unsafe { made_up(found.is_null(), path) }) else {
        return found;
    };
    // SAFETY: our path, which is shorter than any room for a path; the program gives back what is allocated.
    unsafe {
        let path = match &file {
            File::Device => path,
            File::Link(path) | File::Folder(path) => path.as_ptr(),
            File::Other(path) => return next_realpath(path.as_ptr(), into),
        };
        if into.is_null() {
            libc::strdup(path)
        } else {
            std::ptr::copy(path, into, libc::strlen(path) + 1);
            into
        }
    }
}

/// `realpath`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    // SAFETY: as the caller promises.
    unsafe { answer_realpath(next_realpath(path, into), path, into) }
}

/// `canonicalize_file_name`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: as the caller promises.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

/// `realpath` as programs call it that are built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    into: *mut c_char,
    room: usize,
) -> *mut c_char {
    let found = without_us!(
        c"__realpath_chk",
        (path: *const c_char, into: *mut c_char, room: usize) -> *mut c_char,
        no_function()
    );
    // SAFETY: as the caller promises; the real function has found that there is room for any path.
    unsafe { answer_realpath(found, path, into) }
}

/// The C library lacks a function.
fn no_function() -> *mut c_char {
    Errno::NOSYS.set();
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is called from a signal handler must not look anything up.
    #[test]
    fn functions_are_looked_up_at_load_and_never_again() {
        let at_load = LOOK_UPS.load(Ordering::Relaxed);
        assert_eq!(at_load, 12 + 5, "stat and its kin, and five others");
        let path = c"/dev/infiniband/uverbs-rkey0".as_ptr();
        // SAFETY: paths and room of our own.
        unsafe {
            let mut room: libc::stat = std::mem::zeroed();
            assert_eq!(stat(path, &mut room), 0);
            assert_eq!(room.st_mode & libc::S_IFMT, libc::S_IFCHR);
            assert_eq!(lstat64(path, &mut room), 0);
            assert_eq!(fstatat(HERE, path, &mut room, 0), 0);
            assert_eq!(__xstat(1, path, &mut room), 0);
            let mut more: libc::statx = std::mem::zeroed();
            assert_eq!(statx(HERE, path, 0, libc::STATX_MODE, &mut more), 0);
            assert_eq!(access(path, libc::R_OK), 0);
            assert_eq!(faccessat(HERE, path, libc::R_OK, 0), 0);
            let mut real = [0; libc::PATH_MAX as usize];
            assert!(!realpath(path, real.as_mut_ptr()).is_null());
            assert!(!__realpath_chk(path, real.as_mut_ptr(), real.len()).is_null());
        }
        assert_eq!(LOOK_UPS.load(Ordering::Relaxed), at_load);
    }
}
