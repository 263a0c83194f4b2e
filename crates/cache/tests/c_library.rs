//! What happens to entries in memory of the C library: its heap, the stacks of its threads, and the objects that it loads. Each
//! test runs in a process of its own, where no other thread changes that memory.

// UNSAFETY: the tests move the end of the heap, load libraries, and allocate and free memory as C does.
#![allow(unsafe_code)]

mod common;

use common::memory::PAGE;
use common::ring::Ring;
use common::{SEND, enter, get, is_apart, range, userfaultfd};
use rkey_base::range::VaRange;
use rkey_cache::{
    Cache, Cause, Follows, Kind, Memhooks, Options, Refusal, Registrar, Request, Rounding,
    Userfaultfd, Why,
};
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use std::thread;

/// A registrar that registers nothing.
struct Nothing(Follows);

impl Registrar for Nothing {
    type Registration = ();
    type Error = Infallible;

    fn follows(&self) -> Follows {
        self.0
    }
    fn register(&self, _: &Request) -> Result<(), Infallible> {
        Ok(())
    }
    fn deregister(&self, (): ()) {}
}

fn hooked(rounding: Rounding) -> Cache<Nothing> {
    let mut options = Options::default();
    options.rounding = rounding;
    // Although the registrar needs no monitor.
    options.watch = true;
    let monitor = Arc::new(Memhooks::install().unwrap());
    Cache::new(Nothing(Follows::Addresses), monitor, options).unwrap()
}

/// A cache of pinned pages, with its monitor. `None` if it is not available here.
fn watched() -> Option<(Cache<Ring>, Arc<Userfaultfd>)> {
    let monitor = userfaultfd()?;
    let cache = Cache::new(Ring::new()?, monitor.clone(), Options::default()).unwrap();
    Some((cache, monitor))
}

/// Whether a lookup no longer returns the entry. If nothing is mapped there, the registrar refuses.
fn has_ended(cache: &Cache<Ring>, range: VaRange) -> bool {
    match cache.get(range, SEND, Kind::HOST) {
        Ok(guard) => !guard.why().is_hit(),
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
            true
        }
    }
}

fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// Ways to return the last two pages of the heap, whose start is given.
const SHRINK: [fn(u64) -> bool; 2] = [
    // SAFETY: returns only what the test has added.
    |_| unsafe { libc::sbrk(-2 * PAGE as isize).addr() != usize::MAX },
    // SAFETY: as above.
    |start| unsafe { libc::brk(std::ptr::with_exposed_provenance_mut(start as usize)) == 0 },
];

/// Adds two pages to the heap.
fn grow() -> u64 {
    // SAFETY: adds pages.
    let start = address(unsafe { libc::sbrk(2 * PAGE as isize) });
    // Whole pages belong to the test only if the heap ends at a page.
    assert_eq!(start % PAGE, 0);
    start
}

/// Proves partly: FI-242 (the cache as a library)
#[test]
fn memhooks_sees_the_heap_shrink() {
    if !is_apart("memhooks_sees_the_heap_shrink") {
        return;
    }
    for shrink in SHRINK {
        let cache = hooked(Rounding::Exact);
        let start = grow();
        let buffer = range(start + PAGE, PAGE);
        enter(&cache, buffer);
        assert!(shrink(start));
        assert!(!get(&cache, buffer).is_hit());
    }
}

/// Proves partly: FI-241 (the cache as a library)
#[test]
fn userfaultfd_sees_the_heap_shrink() {
    if !is_apart("userfaultfd_sees_the_heap_shrink") {
        return;
    }
    let Some((cache, monitor)) = watched() else {
        return;
    };
    for shrink in SHRINK {
        let start = grow();
        let buffer = range(start + PAGE, PAGE);
        enter(&cache, buffer);
        let events = monitor.events();
        assert!(shrink(start));
        assert!(has_ended(&cache, buffer));
        assert!(monitor.events() > events);
        // The heap grows again at the same address.
        assert_eq!(grow(), start);
        assert!(!get(&cache, buffer).is_hit());
        assert!(shrink(start));
    }
}

/// A buffer with a mapping of its own moves when it grows.
/// Proves partly: FI-241 (the cache as a library)
#[test]
fn userfaultfd_sees_a_buffer_move_when_it_grows() {
    const LEN: usize = 1 << 22;
    if !is_apart("userfaultfd_sees_a_buffer_move_when_it_grows") {
        return;
    }
    let Some((cache, _)) = watched() else {
        return;
    };
    // SAFETY: memory of the allocator, which is freed once.
    unsafe {
        let buffer = libc::malloc(LEN);
        assert!(!buffer.is_null());
        libc::memset(buffer, 1, LEN);
        let memory = range(address(buffer), LEN as u64);
        enter(&cache, memory);
        let ended = cache.stats().invalidations;
        let larger = black_box(libc::realloc(buffer, 64 * LEN));
        assert!(!larger.is_null());
        assert_eq!(cache.stats().invalidations, ended + 1);
        assert!(has_ended(&cache, memory));
        libc::free(larger);
    }
}

/// A thread with a stack so large that the C library does not keep it for other threads. Returns a page of the stack, which the
/// thread passes to `enter`, after the thread has ended.
fn stack_of_a_thread(enter: impl FnOnce(VaRange) + Send) -> VaRange {
    const STACK: usize = 64 << 20;
    thread::scope(|scope| {
        let body = move || {
            let room = black_box([1_u8; 3 * PAGE as usize]);
            let page = range(address(room.as_ptr()).next_multiple_of(PAGE), PAGE);
            enter(page);
            black_box(&room);
            page
        };
        let builder = thread::Builder::new().stack_size(STACK);
        builder.spawn_scoped(scope, body).unwrap().join().unwrap()
    })
}

fn is_mapped(page: VaRange) -> bool {
    let mut resident = 0_u8;
    let start = std::ptr::with_exposed_provenance_mut(page.start() as usize);
    // SAFETY: the kernel reads no memory there, and writes one byte.
    let result = unsafe { libc::mincore(start, PAGE as usize, &raw mut resident) };
    let error = std::io::Error::last_os_error();
    assert!(result == 0 || error.raw_os_error() == Some(libc::ENOMEM));
    result == 0
}

/// Proves partly: FI-241 (the cache as a library)
#[test]
fn userfaultfd_sees_the_end_of_a_threads_stack() {
    if !is_apart("userfaultfd_sees_the_end_of_a_threads_stack") {
        return;
    }
    let Some((cache, monitor)) = watched() else {
        return;
    };
    let stack = stack_of_a_thread(|page| enter(&cache, page));
    assert!(!is_mapped(stack), "the C library has kept the stack");
    assert!(monitor.events() > 0);
    assert!(has_ended(&cache, stack));
}

/// The C library unmaps the stack without a slot, so the entry remains, as the documentation says.
#[test]
fn memhooks_does_not_see_the_end_of_a_threads_stack() {
    if !is_apart("memhooks_does_not_see_the_end_of_a_threads_stack") {
        return;
    }
    let cache = hooked(Rounding::Exact);
    let stack = stack_of_a_thread(|page| enter(&cache, page));
    assert!(!is_mapped(stack), "the C library has kept the stack");
    assert_eq!(get(&cache, stack), Why::Hit);
}

/// Runs `true` by `posix_spawn`.
fn spawn() {
    let program = c"/bin/true".as_ptr();
    let arguments = [program.cast_mut(), std::ptr::null_mut()];
    let (mut pid, mut status) = (0, 0);
    // SAFETY: C strings, and an empty list of variables.
    let result = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            program,
            std::ptr::null(),
            std::ptr::null(),
            arguments.as_ptr(),
            arguments[1..].as_ptr(),
        )
    };
    assert_eq!(result, 0);
    // SAFETY: waits for the child; `status` is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
}

/// The child shares the parent's memory until it starts the program, so it has to end no entry.
#[test]
fn posix_spawn_ends_no_entry_of_other_memory() {
    if !is_apart("posix_spawn_ends_no_entry_of_other_memory") {
        return;
    }
    let buffer = vec![1_u8; 1 << 22];
    let memory = range(address(buffer.as_ptr()), 1 << 22);
    let hooked = hooked(Rounding::Exact);
    enter(&hooked, memory);
    spawn();
    assert_eq!(get(&hooked, memory), Why::Hit);
    if let Some((cache, _)) = watched() {
        enter(&cache, memory);
        spawn();
        assert_eq!(get(&cache, memory), Why::Hit);
    }
}

/// A chunk, and one that begins in the page in which the first one lies. Both are from `malloc`.
fn neighbours() -> (*mut libc::c_void, *mut libc::c_void) {
    // SAFETY: allocates. The chunks that are not returned stay allocated until the process ends.
    let mut chunks = std::iter::repeat_with(|| unsafe { libc::malloc(200) });
    let mut last = chunks.next().unwrap();
    for chunk in chunks.take(100) {
        // Each lies in this one page.
        let pages = [last, chunk].map(|chunk| {
            let start = address(chunk);
            [start / PAGE, (start + 199) / PAGE]
        });
        if pages.as_flattened().iter().all(|page| *page == pages[0][0]) {
            return (last, chunk);
        }
        last = chunk;
    }
    panic!("no two chunks in one page");
}

/// An entry of whole pages ends with any chunk in its pages, an exact one only with its own.
#[test]
fn freeing_a_neighbour_ends_an_entry_of_whole_pages_under_memhooks() {
    if !is_apart("freeing_a_neighbour_ends_an_entry_of_whole_pages_under_memhooks") {
        return;
    }
    for (rounding, why) in [
        (Rounding::Pages, Why::Ended(Cause::Freed)),
        (Rounding::Exact, Why::Hit),
    ] {
        let cache = hooked(rounding);
        let (buffer, neighbour) = neighbours();
        let memory = range(address(buffer), 200);
        enter(&cache, memory);
        // SAFETY: a chunk of `malloc`, which is freed once.
        unsafe { libc::free(neighbour) };
        assert_eq!(get(&cache, memory), why, "{rounding:?}");
    }
}

/// Loads a library that this program does not use yet.
fn load(name: &std::ffi::CStr) -> Option<*mut libc::c_void> {
    // SAFETY: the libraries of these tests only set up their own data when they are loaded.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        println!("skipped: {} cannot be loaded", name.to_string_lossy());
        return None;
    }
    Some(library)
}

fn symbol(library: *mut libc::c_void, name: &std::ffi::CStr) -> *mut libc::c_void {
    // SAFETY: a live handle and a C string.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null());
    symbol
}

/// `crypt_ra` reallocates the buffer that it is given, if that is too small.
/// Proves partly: FI-242 (the cache as a library)
#[test]
fn memhooks_hooks_an_object_that_was_loaded_later_at_the_next_miss() {
    type CryptRa = unsafe extern "C" fn(
        *const libc::c_char,
        *const libc::c_char,
        *mut *mut libc::c_void,
        *mut i32,
    ) -> *mut libc::c_char;
    const LEN: usize = 64;
    if !is_apart("memhooks_hooks_an_object_that_was_loaded_later_at_the_next_miss") {
        return;
    }
    let cache = hooked(Rounding::Exact);
    // SAFETY: allocates.
    let buffers = [(); 2].map(|()| unsafe { libc::malloc(LEN) });
    let [first, second] = buffers.map(|buffer| range(address(buffer), LEN as u64));
    enter(&cache, first);
    let Some(library) = load(c"libcrypt.so.1") else {
        return;
    };
    // SAFETY: the function of that name has this type (crypt(3)).
    let crypt_ra =
        unsafe { std::mem::transmute::<*mut libc::c_void, CryptRa>(symbol(library, c"crypt_ra")) };
    let reallocate = |mut buffer| {
        let mut size = LEN as i32;
        // SAFETY: C strings, and a chunk of that size from `malloc`.
        let result = unsafe {
            let (phrase, setting) = (c"phrase".as_ptr(), c"$1$salt$".as_ptr());
            crypt_ra(phrase, setting, &raw mut buffer, &raw mut size)
        };
        assert!(!result.is_null());
        assert!(size > LEN as i32, "the buffer was not reallocated");
    };
    reallocate(buffers[0]);
    assert_eq!(get(&cache, first), Why::Hit, "not hooked yet");
    // This miss sets the slots of the library.
    enter(&cache, second);
    reallocate(buffers[1]);
    assert!(!get(&cache, second).is_hit(), "the call was not seen");
}

/// The private mappings that belong to a loaded library: of its file, and without a file.
fn mappings(name: &str) -> (Vec<VaRange>, Vec<VaRange>) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let (mut files, mut anonymous) = (Vec::<VaRange>::new(), Vec::<VaRange>::new());
    let mut end = 0;
    for line in maps.lines() {
        let mut parts = line.split_whitespace();
        let (start, stop) = parts.next().unwrap().split_once('-').unwrap();
        let [start, stop] = [start, stop].map(|part| u64::from_str_radix(part, 16).unwrap());
        let path = parts.nth(4);
        let mapping = range(start, stop - start);
        if path.is_some_and(|path| path.contains(name)) {
            files.push(mapping);
            end = stop;
        } else if path.is_none() && start == end {
            anonymous.push(mapping);
        }
    }
    (files, anonymous)
}

/// The mappings of the library's file are never cached. Its other data is, and those entries end.
/// Proves partly: FI-241 (the cache as a library)
#[test]
fn no_entry_of_a_library_outlives_dlclose_under_userfaultfd() {
    if !is_apart("no_entry_of_a_library_outlives_dlclose_under_userfaultfd") {
        return;
    }
    let Some(monitor) = userfaultfd() else {
        return;
    };
    // Not all pages of the library can be pinned.
    let cache = Cache::new(Nothing(Follows::Pages), monitor, Options::default()).unwrap();
    let Some(library) = load(c"libresolv.so.2") else {
        return;
    };
    let (files, anonymous) = mappings("libresolv.so.2");
    for file in &files {
        let page = range(file.start(), PAGE);
        assert_eq!(get(&cache, page), Why::Unwatched(Refusal::File), "{page}");
    }
    let data = range(anonymous[0].start(), PAGE);
    enter(&cache, data);
    // SAFETY: nothing refers to the library.
    assert_eq!(unsafe { libc::dlclose(library) }, 0);
    assert!(!is_mapped(data), "the library is still loaded");
    assert!(!get(&cache, data).is_hit());
}
