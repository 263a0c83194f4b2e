//! The hooks: one for each function that unmaps, moves, discards or frees memory. They take no lock, allocate nothing, and
//! preserve `errno`.

// UNSAFETY: defines functions with the C calling convention, which call the functions that they replace.
#![allow(unsafe_code)]

use super::slots::{self, Stub};
use super::{NotHooked, Path, STATE};
use crate::monitor::pages;
use crate::why::Cause;
use rkey_base::range::VaRange;
use std::ffi::{CStr, CString, c_int, c_long, c_void};
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function, the hook for it, and its address.
struct Hook {
    name: &'static CStr,
    hook: fn() -> usize,
    original: AtomicUsize,
}

macro_rules! hooks {
    ($($constant:ident $function:ident = $name:literal: $hook:ident as $type:ty,)*) => {
        $(static $constant: Hook = Hook {
            name: $name,
            hook: || ($hook as $type as *const c_void).expose_provenance(),
            original: AtomicUsize::new(0),
        };)*

        const HOOKS: &[&Hook] = &[$(&$constant),*];

        $(impl Call for original::$function {
            type Function = $type;
            fn get() -> $type {
                let address = $constant.original.load(Ordering::Relaxed);
                // SAFETY: a hook runs only after `find_originals` has stored the address of the function of that name,
                // whose type this is.
                unsafe { std::mem::transmute::<usize, $type>(address) }
            }
        })*

        mod original {
            $(pub(super) struct $function;)*
        }
    };
}

/// The function that a hook replaces.
trait Call {
    type Function;
    fn get() -> Self::Function;
}

type Munmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Brk = unsafe extern "C" fn(*mut c_void) -> c_int;
type Sbrk = unsafe extern "C" fn(isize) -> *mut c_void;
type Shmat = unsafe extern "C" fn(c_int, *const c_void, c_int) -> *mut c_void;
type Shmdt = unsafe extern "C" fn(*const c_void) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type ReallocArray = unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;
type Dlclose = unsafe extern "C" fn(*mut c_void) -> c_int;

hooks! {
    MUNMAP Munmap = c"munmap": munmap as Munmap,
    MMAP Mmap = c"mmap": mmap as Mmap,
    MMAP64 Mmap64 = c"mmap64": mmap64 as Mmap,
    MREMAP Mremap = c"mremap": mremap as Mremap,
    MADVISE Madvise = c"madvise": madvise as Madvise,
    BRK Brk = c"brk": brk as Brk,
    SBRK Sbrk = c"sbrk": sbrk as Sbrk,
    SHMAT Shmat = c"shmat": shmat as Shmat,
    SHMDT Shmdt = c"shmdt": shmdt as Shmdt,
    FREE Free = c"free": free as Free,
    REALLOC Realloc = c"realloc": realloc as Realloc,
    REALLOCARRAY ReallocArray = c"reallocarray": reallocarray as ReallocArray,
    DLCLOSE Dlclose = c"dlclose": dlclose as Dlclose,
}

/// `malloc_usable_size` of the allocator whose `free` is hooked.
static USABLE_SIZE: AtomicUsize = AtomicUsize::new(0);

/// The function that `dlsym` finds in the program's search order.
fn look_up(name: &CStr) -> Option<usize> {
    // SAFETY: the name is a C string; the search order of the program changes nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then(|| found.expose_provenance())
}

/// The function that the program's calls reach. In a program that is not position-independent, `dlsym` may return code that
/// calls the function through a slot instead. A hook there would call itself.
fn find(name: &CStr) -> Option<usize> {
    let address = look_up(name)?;
    if !slots::is_stub(&Stub { name, address }) {
        return Some(address);
    }
    let libraries = slots::libraries();
    libraries.iter().find_map(|library| find_in(library, name))
}

/// A function that a loaded library defines itself.
fn find_in(library: &CStr, name: &CStr) -> Option<usize> {
    // SAFETY: the library is loaded already, so no code of it runs now, and it stays loaded after `dlclose`. The names are C strings.
    let found = unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return None;
        }
        let found = libc::dlsym(handle, name.as_ptr());
        libc::dlclose(handle);
        found
    };
    // `dlsym` also searches the libraries that this one needs.
    let defined = !found.is_null() && owner(found.addr()).as_deref() == Some(library);
    defined.then(|| found.expose_provenance())
}

/// The path of the object that contains an address.
fn owner(address: usize) -> Option<CString> {
    // SAFETY: a structure of pointers, which may be null.
    let mut info = unsafe { std::mem::zeroed::<libc::Dl_info>() };
    let address = ptr::without_provenance::<c_void>(address);
    // SAFETY: the linker looks for the address in its list, and names the object by a C string that lives as long as it.
    unsafe {
        let found = libc::dladdr(address, &raw mut info) != 0 && !info.dli_fname.is_null();
        found.then(|| CStr::from_ptr(info.dli_fname).to_owned())
    }
}

/// Finds the functions. No hook is called before this has returned.
pub(super) fn find_originals() -> Result<(), NotHooked> {
    let missing = |name: &'static CStr| NotHooked::Missing(name.to_str().unwrap_or("?"));
    for hook in HOOKS {
        let found = find(hook.name).ok_or(missing(hook.name))?;
        hook.original.store(found, Ordering::Relaxed);
    }
    let name = c"malloc_usable_size";
    let found = find(name).ok_or(missing(name))?;
    let allocator = [&FREE, &REALLOC].map(|hook| hook.original.load(Ordering::Relaxed));
    check_owners(found, &allocator)?;
    USABLE_SIZE.store(found, Ordering::SeqCst);
    Ok(())
}

/// Checks that the function that returns the size of memory belongs to the allocator that frees it.
fn check_owners(usable_size: usize, allocator: &[usize]) -> Result<(), NotHooked> {
    let expected = owner(usable_size);
    let same = |&function: &usize| expected.is_some() && owner(function) == expected;
    if allocator.iter().all(same) {
        Ok(())
    } else {
        Err(NotHooked::Sizes)
    }
}

/// The addresses of a function and its hook.
pub(super) fn hook_of(name: &CStr) -> Option<(usize, usize)> {
    let hook = HOOKS.iter().find(|hook| hook.name == name)?;
    Some((hook.original.load(Ordering::Relaxed), (hook.hook)()))
}

/// The pages of `len` bytes at an address. `None` if the range is invalid; the call then fails.
fn memory(address: *const c_void, len: usize) -> Option<VaRange> {
    VaRange::new(address.addr() as u64, len as u64).map(|range| pages(&range))
}

unsafe extern "C" fn munmap(address: *mut c_void, len: usize) -> c_int {
    let _change = STATE.change(memory(address, len), Cause::Unmapped);
    // SAFETY: the caller's arguments, for the function that it has called.
    unsafe { original::Munmap::get()(address, len) }
}

/// Maps memory, over other memory if the flags say so.
fn mapping(
    address: *mut c_void,
    len: usize,
    flags: c_int,
    call: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let no_replace = libc::MAP_FIXED_NOREPLACE & !libc::MAP_FIXED;
    if flags & libc::MAP_FIXED == 0 || flags & no_replace != 0 {
        return call();
    }
    let _change = STATE.change(memory(address, len), Cause::Unmapped);
    call()
}

unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's arguments, for the function that it has called.
    let call = || unsafe { original::Mmap::get()(address, len, protection, flags, fd, offset) };
    mapping(address, len, flags, call)
}

unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's arguments, for the function that it has called.
    let call = || unsafe { original::Mmap64::get()(address, len, protection, flags, fd, offset) };
    mapping(address, len, flags, call)
}

/// Callers pass the last argument only with `MREMAP_FIXED`. Without that flag, this hook passes on whatever the register or the
/// stack contains.
unsafe extern "C" fn mremap(
    address: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let _from = STATE.change(memory(address, len), Cause::Moved);
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let _to = fixed.then(|| STATE.change(memory(new_address, new_len), Cause::Moved));
    // SAFETY: the caller's arguments, for the function that it has called.
    unsafe { original::Mremap::get()(address, len, new_len, flags, new_address) }
}

/// `MADV_GUARD_INSTALL`, which the C library's headers do not have yet.
const GUARD_INSTALL: c_int = 102;

unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's arguments, for the function that it has called.
    let call = || unsafe { original::Madvise::get()(address, len, advice) };
    match advice {
        libc::MADV_DONTNEED
        | libc::MADV_FREE
        | libc::MADV_REMOVE
        | libc::MADV_DONTNEED_LOCKED
        | GUARD_INSTALL => {
            let _change = STATE.change(memory(address, len), Cause::Discarded);
            call()
        }
        _ => call(),
    }
}

/// All memory from an address on.
fn above(address: u64) -> Option<VaRange> {
    VaRange::new(address, (i64::MAX as u64).saturating_sub(address))
}

unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    // SAFETY: asks for the end of the heap.
    let now = unsafe { original::Sbrk::get()(0) };
    // SAFETY: the caller's argument, for the function that it has called.
    let call = || unsafe { original::Brk::get()(end) };
    if end >= now {
        return call();
    }
    let _change = STATE.change(memory(end, now.addr() - end.addr()), Cause::Unmapped);
    call()
}

unsafe extern "C" fn sbrk(step: isize) -> *mut c_void {
    // SAFETY: as in `brk`.
    let call = || unsafe { original::Sbrk::get()(step) };
    if step >= 0 {
        return call();
    }
    // SAFETY: asks for the end of the heap.
    let now = unsafe { original::Sbrk::get()(0) };
    let end = now.addr().saturating_sub(step.unsigned_abs());
    let _change = STATE.change(
        above(end as u64).map(|range| pages(&range)),
        Cause::Unmapped,
    );
    call()
}

unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's arguments, for the function that it has called.
    let call = || unsafe { original::Shmat::get()(id, address, flags) };
    if flags & libc::SHM_REMAP == 0 {
        return call();
    }
    let _change = STATE.change(above(address.addr() as u64), Cause::Unmapped);
    call()
}

unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    // The segment's length is not known here, so everything above its start counts as changed.
    let _change = STATE.change(above(address.addr() as u64), Cause::Unmapped);
    // SAFETY: the caller's argument, for the function that it has called.
    unsafe { original::Shmdt::get()(address) }
}

/// The memory that is about to be freed.
///
/// # Safety
/// `address` is from the allocator, and not freed.
unsafe fn chunk(address: *mut c_void) -> Option<VaRange> {
    type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
    let found = USABLE_SIZE.load(Ordering::Relaxed);
    // SAFETY: `find_originals` stored the address of the function of that name before there were hooks, and this is its type. The
    // caller guarantees that the address is valid for it.
    let len = unsafe { std::mem::transmute::<usize, UsableSize>(found)(address) };
    VaRange::new(address.addr() as u64, len as u64)
}

unsafe extern "C" fn free(address: *mut c_void) {
    // SAFETY: the caller's argument, for the function that it has called.
    let call = || unsafe { original::Free::get()(address) };
    if address.is_null() {
        return call();
    }
    // SAFETY: the caller frees it, so it is from the allocator.
    let _change = STATE.change(unsafe { chunk(address) }, Cause::Freed);
    call();
}

unsafe extern "C" fn realloc(address: *mut c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's arguments, for the function that it has called.
    let call = || unsafe { original::Realloc::get()(address, len) };
    if address.is_null() {
        return call();
    }
    // SAFETY: as in `free`.
    let _change = STATE.change(unsafe { chunk(address) }, Cause::Freed);
    call()
}

unsafe extern "C" fn reallocarray(address: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's arguments, for the function that it has called.
    let call = || unsafe { original::ReallocArray::get()(address, count, size) };
    if address.is_null() {
        return call();
    }
    // SAFETY: as in `free`.
    let _change = STATE.change(unsafe { chunk(address) }, Cause::Freed);
    call()
}

unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // The linker does not say which memory it unmaps.
    let _change = STATE.change(None, Cause::Unmapped);
    // SAFETY: the caller's argument, for the function that it has called.
    unsafe { original::Dlclose::get()(handle) }
}

/// Maps new memory for `exercise`.
fn map(address: *mut c_void, flags: c_int) -> *mut c_void {
    // SAFETY: private memory at an address of the kernel's choice, or over memory that `exercise` has mapped.
    unsafe {
        libc::mmap(
            address,
            LEN,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    }
}

/// Large enough that the allocator uses a separate mapping.
const LEN: usize = 1 << 22;

/// Maps or allocates memory, and changes it in one way.
pub(super) fn exercise(path: Path) {
    if matches!(path, Path::Free | Path::Realloc) {
        // SAFETY: memory of the allocator, which this frees once.
        unsafe {
            // Opaque, or the compiler removes the pair of calls.
            let chunk = black_box(libc::malloc(LEN));
            if path == Path::Realloc && !chunk.is_null() {
                let larger = libc::realloc(chunk, 2 * LEN);
                let last = if larger.is_null() { chunk } else { larger };
                original::Free::get()(last);
            } else {
                libc::free(chunk);
            }
        }
        return;
    }
    let start = map(ptr::null_mut(), 0);
    if start == libc::MAP_FAILED {
        return;
    }
    // SAFETY: memory that was mapped above, to which nothing refers; each arm keeps or unmaps it, and the last line unmaps it
    // without a hook. `munmap` as `dlsym` returns it has the type that is named.
    unsafe {
        match path {
            Path::Munmap => {
                libc::munmap(start, LEN);
                return;
            }
            Path::MapOver => {
                map(start, libc::MAP_FIXED);
            }
            Path::Mremap => {
                libc::mremap(start, LEN, LEN, 0);
            }
            Path::Madvise => {
                libc::madvise(start, LEN, libc::MADV_DONTNEED);
            }
            Path::Dlsym => {
                if let Some(found) = look_up(c"munmap") {
                    std::mem::transmute::<usize, Munmap>(found)(start, LEN);
                    return;
                }
            }
            Path::SystemCall => {
                libc::syscall(libc::SYS_munmap as c_long, start, LEN);
                return;
            }
            Path::Free | Path::Realloc => {}
        }
        original::Munmap::get()(start, LEN);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// A program may define its own `free` but no `malloc_usable_size`. The C library's `malloc_usable_size` must not get
    /// that allocator's memory.
    #[test]
    fn the_size_of_freed_memory_must_come_from_its_allocator() {
        let size = find(c"malloc_usable_size").unwrap();
        let free = find(c"free").unwrap();
        assert_eq!(check_owners(size, &[free]), Ok(()));
        let own = (self::free as Free as *const c_void).addr();
        assert_eq!(check_owners(size, &[free, own]), Err(NotHooked::Sizes));
    }

    #[test]
    fn functions_are_found_in_the_library_that_defines_them() {
        let libraries = slots::libraries();
        let found: Vec<_> = libraries
            .iter()
            .filter_map(|library| find_in(library, c"munmap"))
            .collect();
        assert_eq!(found.first().copied(), find(c"munmap"));
    }
}
