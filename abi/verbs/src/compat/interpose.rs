//! Stand-ins for C library functions, for programs that check `/dev/infiniband/<name>` before they use a
//! device.
//!
//! Such programs check whether this file is a character device that they may open: UCX with `stat` and `access`, programs
//! built for older C libraries with `__xstat`. Others follow the device's link in sysfs with `realpath`. These files do not
//! exist, so when this library is preloaded, these functions and their variants emulate [them](mod@emulated). The
//! original function always runs first, and any result but "no such file" is final. This error also shows that the
//! kernel could read the path.
//!
//! Signal handlers may call some of these functions (signal-safety(7)) but not `dlsym`, which takes locks. So
//! the originals are looked up when this library is loaded.

#![allow(unsafe_code)]
// UNSAFETY: replaces functions of the C library.

use crate::compat::emulated::{self, File};
use rkey_kit::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The major and minor number of the first verbs device.
const NUMBER: (u32, u32) = (231, 192);
/// Symbol versions that the C library keeps only for old programs.
#[cfg(target_arch = "x86_64")]
const OLD: [&CStr; 2] = [c"GLIBC_2.2.5", c"GLIBC_2.4"];
/// Symbol versions that the C library keeps only for old programs.
#[cfg(target_arch = "aarch64")]
const OLD: [&CStr; 1] = [c"GLIBC_2.17"];

/// The emulated file at the path of a call, if the call `failed` because there is no such file.
///
/// # Safety
/// The C library was called with this path just before.
unsafe fn emulated(failed: bool, path: *const c_char) -> Option<File> {
    if !failed || Errno::last() != Errno::NOENT {
        return None;
    }
    // SAFETY: the kernel looked the path up, so it is a readable C string.
    let found = emulated::find(unsafe { CStr::from_ptr(path) }.to_bytes());
    if found.is_none() {
        // Our own lookup may have changed errno.
        Errno::NOENT.set();
    }
    found
}

/// Type and permissions of an emulated file, and its device number.
fn mode(file: &File) -> (u32, (u32, u32)) {
    match file {
        File::Device => (libc::S_IFCHR | 0o666, NUMBER),
        File::Link(_) => (libc::S_IFLNK | 0o777, (0, 0)),
        File::Folder(_) | File::Other(_) => (libc::S_IFDIR | 0o755, (0, 0)),
    }
}

/// The file itself, or the target of a link that the call follows.
fn followed(file: File, follow: bool) -> File {
    match file {
        File::Link(target) if follow => File::Folder(target),
        other => other,
    }
}

/// The C library's function that one of ours replaces.
struct Next {
    name: &'static CStr,
    /// The address of the function; [`UNKNOWN`] before the lookup, [`ABSENT`] if there is no such function.
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

    /// The address of the function, or [`ABSENT`].
    #[inline]
    fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            // Another library called our function before our constructors ran.
            UNKNOWN => self.look_up(),
            known => known,
        }
    }

    /// Looks the function up. Concurrent lookups find the same address.
    #[cold]
    fn look_up(&self) -> usize {
        let found = next(self.name).max(ABSENT);
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// The number of lookups.
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

/// Calls the next function of this name, or makes the system call if the C library lacks the function.
macro_rules! without_us {
    ($name:literal, ($($arg:ident: $type:ty),*) -> $result:ty, $otherwise:expr) => {{
        type Function = unsafe extern "C" fn($($type),*) -> $result;
        static NEXT: Next = Next::new($name);
        extern "C" fn look_up() {
            NEXT.look_up();
        }
        // SAFETY: the loader calls the functions of this section once; `look_up` ignores their arguments.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static AT_LOAD: extern "C" fn() = look_up;
        // SAFETY: the caller of the enclosing function promises valid arguments.
        unsafe {
            match NEXT.address() {
                ABSENT => $otherwise,
                // The function of this name has this type.
                address => std::mem::transmute::<usize, Function>(address)($($arg),*),
            }
        }
    }};
}

/// The system call `newfstatat`.
///
/// # Safety
/// Same as for the C library's function.
unsafe fn kernel_stat(
    folder: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller guarantees valid arguments.
    unsafe { libc::syscall(libc::SYS_newfstatat, folder, path, into, flags) as c_int }
}

/// The result of `stat`: `code`, or the answer for an emulated file if the call failed.
///
/// # Safety
/// Same as for `stat`, which returned `code`.
unsafe fn answer_stat(
    code: c_int,
    path: *const c_char,
    into: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller guarantees valid arguments.
    unsafe {
        let Some(file) = emulated(code != 0, path) else {
            return code;
        };
        if let File::Other(path) = file {
            return kernel_stat(libc::AT_FDCWD, path.as_ptr(), into, flags & LINK);
        }
        // The kernel checks that `into` is writable.
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

/// Functions that fill in a `struct stat`: the arguments before the path and after the buffer, the directory, and the
/// flags.
macro_rules! stats {
    ($($name:ident, $c_name:literal, ($($before:ident),*), ($($after:ident),*), $folder:expr, $flags:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// Same as for the C library's function.
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
            // SAFETY: the caller guarantees valid arguments.
            unsafe { answer_stat(code, path, into, $flags) }
        }
    )*};
}

const HERE: c_int = libc::AT_FDCWD;
const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;

// On 64-bit systems, `struct stat64` is the same as `struct stat`, even for the old functions.
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
/// Same as for the C library's function.
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
    // SAFETY: the path of the call and its outcome.
    let Some(file) = (unsafe { emulated(code != 0, path) }) else {
        return code;
    };
    if let File::Other(path) = file {
        return ask(path.as_ptr());
    }
    // The kernel checks that the buffer is writable.
    let code = ask(c"/".as_ptr());
    if code == 0 {
        let (mode, number) = mode(&followed(file, flags & LINK == 0));
        // SAFETY: all zeros is valid, and the kernel has just written there.
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

/// The result of `access`: `code`, or the answer for an emulated file if the call failed. The permissions of such a file
/// are the same for every user.
///
/// # Safety
/// Same as for `access`, which returned `code`.
unsafe fn answer_access(code: c_int, path: *const c_char, wanted: c_int) -> c_int {
    // SAFETY: the path of the call and its outcome.
    let Some(file) = (unsafe { emulated(code != 0, path) }) else {
        return code;
    };
    if let File::Other(path) = file {
        // SAFETY: our own C string.
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
/// Same as for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    let code = without_us!(
        c"access",
        (path: *const c_char, mode: c_int) -> c_int,
        libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, mode) as c_int
    );
    // SAFETY: the caller guarantees valid arguments.
    unsafe { answer_access(code, path, mode) }
}

/// `faccessat`.
///
/// # Safety
/// Same as for the C library's function.
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
    // SAFETY: the caller guarantees valid arguments.
    unsafe { answer_access(code, path, mode) }
}

/// The C library's own `realpath`.
///
/// # Safety
/// Same as for the C library's function.
unsafe fn next_realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    without_us!(
        c"realpath",
        (path: *const c_char, into: *mut c_char) -> *mut c_char,
        no_function()
    )
}

/// The result of `realpath`: `found`, or the answer for an emulated file if the call failed.
///
/// # Safety
/// Same as for `realpath`, which returned `found`.
unsafe fn answer_realpath(
    found: *mut c_char,
    path: *const c_char,
    into: *mut c_char,
) -> *mut c_char {
    // SAFETY: the path of the call and its outcome.
    let Some(file) = (unsafe { emulated(found.is_null(), path) }) else {
        return found;
    };
    // SAFETY: our path fits any buffer for paths; the program frees what is allocated here.
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
/// Same as for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { answer_realpath(next_realpath(path, into), path, into) }
}

/// `canonicalize_file_name`.
///
/// # Safety
/// Same as for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

/// `realpath` in programs built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// Same as for the C library's function.
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
    // SAFETY: the C library's function has checked that the buffer has room for any path.
    unsafe { answer_realpath(found, path, into) }
}

/// Fails with `ENOSYS`: the C library lacks the function.
fn no_function() -> *mut c_char {
    Errno::NOSYS.set();
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that a signal handler may call must not look up symbols.
    #[test]
    fn libc_functions_are_looked_up_only_at_load() {
        let at_load = LOOK_UPS.load(Ordering::Relaxed);
        assert_eq!(at_load, 12 + 5, "12 variants of stat and 5 other functions");
        let path = c"/dev/infiniband/uverbs-rkey0".as_ptr();
        // SAFETY: our own path and buffer.
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
