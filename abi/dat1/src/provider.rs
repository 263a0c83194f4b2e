//! Our provider for DAT 2.0, which this library loads: it is in the shared object of all front ends, so all keys of a
//! program belong to one device.

#![allow(unsafe_code)]
// UNSAFETY: loads a library and calls its function.

use daplrkey::sys::Provider;
use rkey_kit::delivery::{LIBRARY, UDAPL};
use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// `rkey_dat_provider` of the shared object.
type Find = unsafe extern "C" fn(*const c_char, *const c_char) -> *const Provider;

/// The function table of the IA called `name`, on an interface. `None`: the provider cannot be loaded.
#[must_use]
pub fn table(name: &CStr, interface: &str) -> Option<&'static Provider> {
    static FIND: OnceLock<Option<Find>> = OnceLock::new();
    let find = (*FIND.get_or_init(load))?;
    let interface = CString::new(interface).ok()?;
    // SAFETY: two C strings. The table lives as long as the process.
    unsafe { find(name.as_ptr(), interface.as_ptr()).as_ref() }
}

/// Loads the provider from the directory of this library.
fn load() -> Option<Find> {
    rkey_kit::log::start();
    let folders = own_folders();
    let files = folders
        .iter()
        .flat_map(|folder| [UDAPL.file, LIBRARY].map(|name| folder.join(name)));
    let library = files.into_iter().find_map(|file| open(&file));
    let Some(library) = library else {
        tracing::error!(
            "neither {} nor {LIBRARY} is in {folders:?}; put libdat.so.1 next to one of them",
            UDAPL.file
        );
        return None;
    };
    // SAFETY: a handle of `dlopen`, and a C string.
    let found = unsafe { libc::dlsym(library, c"rkey_dat_provider".as_ptr()) };
    // SAFETY: null, or the function, which has this type. The library stays loaded.
    unsafe { std::mem::transmute::<*mut c_void, Option<Find>>(found) }
}

/// The directory where the loader found this library, and the directory of its file, which differs if the loader followed a link.
/// A relative path of the loader is ignored, because the program may have changed its directory since.
fn own_folders() -> Vec<PathBuf> {
    let found = own_path().filter(|path| path.is_absolute());
    let mapped = mapped_path(load as *const () as u64);
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
    // No earlier field has a slash.
    let start = line.iter().position(|byte| *byte == b'/')?;
    Some(PathBuf::from(OsStr::from_bytes(&line[start..])))
}

/// The path at which the loader found this library. It is relative if the program or a search path gave a relative one.
fn own_path() -> Option<PathBuf> {
    // SAFETY: all zeros is a valid value: the strings are null.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address in this library, and room for the result.
    let known = unsafe { libc::dladdr(load as *const c_void, &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string, which stays as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

fn open(path: &Path) -> Option<*mut c_void> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a C string; the library's constructors do nothing that a program could notice.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!library.is_null()).then_some(library)
}
