//! The shared object of the front ends, for a library that is not part of it. The library loads the shared object from its own
//! directory, so that all front ends of the process share one device.

#![allow(unsafe_code)]
// UNSAFETY: loads a library and looks up a symbol.

use crate::delivery::{FrontEnd, LIBRARY};
use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The shared object of the front ends. It is never unloaded.
#[derive(Clone, Copy, Debug)]
pub struct Companion(NonNull<c_void>);

// SAFETY: a handle of `dlopen`, which every thread may use.
unsafe impl Send for Companion {}
// SAFETY: as above.
unsafe impl Sync for Companion {}

impl Companion {
    /// Loads the shared object from the directory of the calling library, whose file name is `library`. The shared object has the name of
    /// `front_end` there, or its own. If loading fails, logs what to do.
    #[must_use]
    pub fn load(library: &str, front_end: &FrontEnd) -> Option<Self> {
        crate::log::start();
        let folders = own_folders();
        let files = folders
            .iter()
            .flat_map(|folder| [front_end.file, LIBRARY].map(|name| folder.join(name)));
        let found = files.into_iter().find_map(|file| open(&file));
        if found.is_none() {
            tracing::error!(
                "neither {} nor {LIBRARY} is in {folders:?}: put one of these two files into the directory of {library}",
                front_end.file
            );
        }
        found.map(Self)
    }

    /// The address of an exported function.
    #[must_use]
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: a handle of `dlopen`, and a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// The directory where the loader found this library, and the directory of its file, which differs if the loader followed a link.
/// A relative path from the loader is ignored, because the program may since have changed its working directory.
fn own_folders() -> Vec<PathBuf> {
    let found = own_path().filter(|path| path.is_absolute());
    let mapped = mapped_path(own_folders as *const () as u64);
    let paths = found.into_iter().chain(mapped);
    let mut folders: Vec<PathBuf> = paths
        .filter_map(|path| path.parent().map(Path::to_owned))
        .collect();
    folders.dedup();
    folders
}

/// The file that is mapped at an address, as the kernel names it.
fn mapped_path(address: u64) -> Option<PathBuf> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let line = maps.split(|byte| *byte == b'\n').find(|line| {
        let range = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        let range = std::str::from_utf8(range).ok();
        let range = range.and_then(|range| range.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        range.is_some_and(|(start, end)| (number(start)..number(end)).contains(&address))
    })?;
    // No earlier field contains a slash.
    let start = line.iter().position(|byte| *byte == b'/')?;
    Some(PathBuf::from(OsStr::from_bytes(&line[start..])))
}

/// The path at which the loader found this library. It is relative if the program or a search path specified a relative one.
fn own_path() -> Option<PathBuf> {
    // SAFETY: all zeros is a valid value: the strings are null.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address in this library, and a result that is valid for writes.
    let known = unsafe { libc::dladdr(own_path as *const c_void, &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string, which stays as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

fn open(path: &Path) -> Option<NonNull<c_void>> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a C string; the library's constructors have no side effects that a program could notice.
    NonNull::new(unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) })
}
