//! Copies that succeed, copies that really fault, and faults that are not ours.

use super::*;
use crate::process::page_size;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Three pages: the outer ones cannot be accessed.
struct Island {
    start: *mut u8,
}

impl Island {
    fn new() -> Self {
        let page = page_size();
        // SAFETY: new pages at an address of the kernel's choice.
        unsafe {
            let start = libc::mmap(
                ptr::null_mut(),
                3 * page,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            let island = Self {
                start: start.cast(),
            };
            island.protect(libc::PROT_READ | libc::PROT_WRITE);
            island
        }
    }

    /// The accessible page.
    fn shore(&self) -> *mut u8 {
        self.start.wrapping_add(page_size())
    }

    /// The address of the first byte past the island.
    fn end(&self) -> *mut u8 {
        self.start.wrapping_add(2 * page_size())
    }

    fn protect(&self, rights: libc::c_int) {
        // SAFETY: our own pages, to which there are no references.
        let result = unsafe { libc::mprotect(self.shore().cast(), page_size(), rights) };
        assert_eq!(result, 0);
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.start.cast(), 3 * page_size()) };
    }
}

const LENGTHS: [usize; 22] = [
    1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 40, 41, 72, 73, 136, 137, 200, 300, 1000, 4000, 4096,
];

/// A copying function: our own routines, or the kernel's copy. All must pass the same tests.
type Copy = unsafe fn(*mut u8, *const u8, usize) -> Result<(), Fault>;

/// Copies with vector moves, however many bytes.
unsafe fn by_vectors(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    if len <= routine::SMALL_MAX || !std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the caller promises the same.
        return unsafe { copy(dst, src, len) };
    }
    // SAFETY: the length and the processor were checked.
    let outcome = unsafe { routine::rkey_base_copy_vector(dst, src, len) };
    direct::result(outcome, dst, src, len)
}

/// Copies with `rep movsb`, however many bytes.
unsafe fn by_string(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    if len < 8 {
        // SAFETY: the caller promises the same.
        return unsafe { copy(dst, src, len) };
    }
    // SAFETY: the length was checked.
    let outcome = unsafe { routine::rkey_base_copy_string(dst, src, len) };
    direct::result(outcome, dst, src, len)
}

fn guarded(run: impl Fn(Copy)) {
    install().unwrap();
    assert_eq!(mode(), Mode::Guarded);
    assert!(still_installed());
    run(copy);
    run(copy_from_peer);
    run(by_vectors);
    run(by_string);
    run(copy_by_kernel);
}

#[test]
fn copies_are_exact_at_every_length_and_alignment() {
    let source: Vec<u8> = (0..20_000u32).map(|i| (i * 31 / 7) as u8).collect();
    let long = [255, 256, 257, 511, 1000, 4095, 8191, 8192, 8193, 8200, 9999];
    for len in (0..420).chain(long) {
        for (to, from) in [(0, 0), (1, 0), (0, 1), (8, 16), (31, 33), (13, 64)] {
            let mut target = vec![0xEE; len + 100];
            // SAFETY: both ranges lie inside the vectors.
            unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), len) }.unwrap();
            assert_eq!(
                target[to..to + len],
                source[from..from + len],
                "{len} {to} {from}"
            );
            assert!(target[..to].iter().all(|&b| b == 0xEE), "{len} {to} {from}");
            assert!(
                target[to + len..].iter().all(|&b| b == 0xEE),
                "{len} {to} {from}"
            );
        }
    }
}

#[test]
fn an_unmapped_source_is_a_fault() {
    guarded(|copy| {
        let island = Island::new();
        let mut target = vec![0u8; 2 * page_size()];
        for len in LENGTHS.into_iter().chain([8192]) {
            // SAFETY: the target is long enough.
            let result = unsafe { copy(target.as_mut_ptr(), island.end(), len) };
            assert_eq!(result, Err(Fault::at(island.end() as u64)), "{len}");
        }
    });
}

#[test]
fn a_partly_unmapped_source_is_a_fault() {
    guarded(|copy| {
        let island = Island::new();
        let mut target = vec![0u8; 3 * page_size()];
        for len in LENGTHS.into_iter().chain([page_size() + 8000]) {
            // Of the source, the last byte is inaccessible, or the second half, or everything except the first byte.
            for missing in [1, len.div_ceil(2), len - 1] {
                let there = len - missing;
                if there == 0 || missing == 0 || there > page_size() {
                    continue;
                }
                let from = island.end().wrapping_sub(there);
                // SAFETY: the target is long enough.
                let result = unsafe { copy(target.as_mut_ptr(), from, len) };
                assert_eq!(
                    result,
                    Err(Fault::at(island.end() as u64)),
                    "{len} {missing}"
                );
            }
        }
    });
}

#[test]
fn a_partly_unmapped_target_is_a_fault() {
    guarded(|copy| {
        let island = Island::new();
        let source = vec![1u8; 3 * page_size()];
        for len in LENGTHS.into_iter().chain([9000]) {
            let there = (len / 2).min(page_size());
            let to = island.end().wrapping_sub(there);
            // SAFETY: the accessible part of the target is ours.
            let result = unsafe { copy(to, source.as_ptr(), len) };
            assert_eq!(result, Err(Fault::at(island.end() as u64)), "{len}");
        }
    });
}

#[test]
fn a_read_only_target_is_a_fault() {
    guarded(|copy| {
        let island = Island::new();
        island.protect(libc::PROT_READ);
        let source = vec![1u8; page_size()];
        for len in LENGTHS {
            // SAFETY: the target is ours (and cannot be written).
            let result = unsafe { copy(island.shore(), source.as_ptr(), len) };
            assert_eq!(result, Err(Fault::at(island.shore() as u64)), "{len}");
            let mut back = vec![9u8; len];
            // SAFETY: the target is long enough.
            unsafe { copy(back.as_mut_ptr(), island.shore(), len) }.unwrap();
            assert!(back.iter().all(|&b| b == 0));
        }
    });
}

#[test]
fn a_page_past_the_end_of_its_file_is_a_fault() {
    guarded(|copy| {
        let page = page_size();
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 2 * page as u64).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice; copies to its accessible part.
        unsafe {
            let start = rustix::mm::mmap(
                ptr::null_mut(),
                2 * page,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &fd,
                0,
            )
            .unwrap()
            .cast::<u8>();
            let mut buffer = vec![3u8; 2 * page];
            copy(start, buffer.as_ptr(), 2 * page).unwrap();
            rustix::fs::ftruncate(&fd, page as u64).unwrap();
            let gone = start.wrapping_add(page);
            for len in LENGTHS {
                let result = copy(buffer.as_mut_ptr(), gone, len);
                assert_eq!(result, Err(Fault::at(gone as u64)), "{len}");
                assert_eq!(
                    copy(gone, buffer.as_ptr(), len),
                    Err(Fault::at(gone as u64)),
                    "{len}"
                );
            }
            let result = copy(buffer.as_mut_ptr(), start, 2 * page);
            assert_eq!(result, Err(Fault::at(gone as u64)));
            libc::munmap(start.cast(), 2 * page);
        }
    });
}

#[test]
fn impossible_addresses_are_faults() {
    guarded(|copy| {
        let mut buffer = vec![0u8; 10_000];
        let impossible = [
            0,
            8,
            1 << 47,
            1 << 48,
            0x1234_5678_9ABC_DEF0,
            1 << 63,
            0xFFFF_8000_0000_0000,
            0xFFFF_FFFF_8000_0000,
            u64::MAX - 4095,
            u64::MAX - 7,
            u64::MAX,
        ];
        for address in impossible {
            let p = ptr::without_provenance_mut::<u8>(address as usize);
            for len in [1, 4, 8, 16, 64, 100, 200, 10_000] {
                // SAFETY: the buffer is long enough, and nothing is at the other address.
                let (load, store) = unsafe {
                    (
                        copy(buffer.as_mut_ptr(), p, len),
                        copy(p, buffer.as_ptr(), len),
                    )
                };
                assert_eq!(load, Err(Fault::at(address)), "{address:#x} {len}");
                assert_eq!(store, Err(Fault::at(address)), "{address:#x} {len}");
            }
            // SAFETY: nothing is at the address.
            unsafe {
                assert_eq!(copy(p, p, 0), Ok(()));
            }
        }
    });
}

#[test]
fn atomics_return_the_old_value_or_a_fault() {
    install().unwrap();
    let island = Island::new();
    let word = island.shore().cast::<u64>();
    let nowhere = [
        island.end().cast::<u64>(),
        ptr::null_mut(),
        ptr::without_provenance_mut(1 << 63),
        ptr::without_provenance_mut(0xFFFF_8000_0000_0000),
    ];
    // SAFETY: the word is ours; nothing is at the other addresses.
    unsafe {
        assert_eq!(fetch_add(word, 5), Ok(0));
        assert_eq!(compare_swap(word, 4, 9), Ok(5));
        assert_eq!(compare_swap(word, 5, 9), Ok(5));
        assert_eq!(fetch_add(word, u64::MAX), Ok(9));
        assert_eq!(fetch_add(word, 0), Ok(8));
        for p in nowhere {
            assert_eq!(fetch_add(p, 1), Err(Fault::at(p as u64)));
            assert_eq!(compare_swap(p, 1, 2), Err(Fault::at(p as u64)));
        }
        island.protect(libc::PROT_READ);
        assert_eq!(fetch_add(word, 1), Err(Fault::at(word as u64)));
        assert_eq!(compare_swap(word, 8, 2), Err(Fault::at(word as u64)));
        assert_eq!(kernel::populate(word as u64), Err(Fault::at(word as u64)));
        island.protect(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(kernel::populate(word as u64), Ok(()));
        assert_eq!(compare_swap(word, 8, 2), Ok(8));
    }
}

#[test]
fn atomics_are_indivisible() {
    install().unwrap();
    let word = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..50_000 {
                    // SAFETY: the word lives longer than the threads, and is accessed atomically only.
                    unsafe { fetch_add(word.as_ptr(), 1) }.unwrap();
                    loop {
                        let seen = word.load(Ordering::Relaxed);
                        // SAFETY: as above.
                        if unsafe { compare_swap(word.as_ptr(), seen, seen + 2) } == Ok(seen) {
                            break;
                        }
                    }
                }
            });
        }
    });
    assert_eq!(word.into_inner(), 300_000);
}

/// Every copy carries one number in all its words. A reader that finds a number in the last word must find no older one
/// elsewhere.
#[test]
fn the_last_word_of_a_copy_becomes_visible_last() {
    install().unwrap();
    for words in [2, 3, 4, 8, 17, 25, 128, 700, 1500] {
        let target: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (target, done) = (&target, &done);
            scope.spawn(move || {
                let mut source = vec![0u64; words];
                for number in 1..(200_000 / words as u64 + 500) {
                    source.fill(number);
                    let to = target[0].as_ptr().cast();
                    // Long copies use the faster method most of the time, and the other one now and then.
                    // SAFETY: both are `words` long; the target is accessed atomically by the other side.
                    unsafe { copy_from_peer(to, source.as_ptr().cast(), words * 8) }.unwrap();
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let last = target[words - 1].load(Ordering::Acquire);
                for word in target.iter().rev() {
                    assert!(word.load(Ordering::Acquire) >= last);
                }
            }
        });
    }
}

#[test]
fn a_copy_by_the_kernel_is_exact() {
    assert!(kernel::works());
    let source: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let mut target = vec![0u8; 100_000];
    // SAFETY: both have this length.
    unsafe { copy_by_kernel(target.as_mut_ptr(), source.as_ptr(), 100_000) }.unwrap();
    assert_eq!(source, target);
}

// --- tests that need their own process -----------------------------------------------------------------------------

const CASE: &str = "RKEY_BASE_TEST_CASE";

/// Runs a case of `code_of_the_child_process` in its own process.
fn child(case: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "copy::tests::code_of_the_child_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CASE, case)
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap()
}

/// A fault outside the guarded code.
fn fault_elsewhere() -> ! {
    // SAFETY: none, which is the purpose of the test. It runs in a process that should die from it.
    unsafe { ptr::without_provenance_mut::<u8>(16).write_volatile(1) };
    std::process::exit(99);
}

/// A guarded fault, which must be returned as a value.
fn fault_here() {
    let mut byte = 0;
    // SAFETY: nothing is at the source.
    let result = unsafe { copy(&raw mut byte, ptr::without_provenance(24), 1) };
    assert_eq!(result, Err(Fault::at(24)));
}

extern "C" fn exits_with_42(_: libc::c_int) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(42) };
}

extern "C" fn exits_with_43(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's information is valid; ends the process.
    unsafe {
        libc::_exit(if (*info).si_addr() as usize == 16 {
            43
        } else {
            44
        })
    };
}

static BELOW: AtomicU64 = AtomicU64::new(0);

/// A program's handler that passes on faults that it does not recognise, as it should.
extern "C" fn hands_on(n: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: the address of the previous handler, which takes three arguments.
    let below: Handler = unsafe { std::mem::transmute(BELOW.load(Ordering::Relaxed) as usize) };
    below(n, info, context);
}

fn set_handler(handler: usize, flags: libc::c_int) -> usize {
    // SAFETY: zeros are a valid action; the handlers here match the flags.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut old),
            0
        );
        old.sa_sigaction
    }
}

/// Runs one case in the child process; does nothing when the suite runs it as a test.
#[test]
fn code_of_the_child_process() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    match case.as_str() {
        "elsewhere" => {
            install().unwrap();
            fault_here();
            fault_elsewhere();
        }
        "sent" => {
            set_handler(libc::SIG_DFL, 0);
            install().unwrap();
            // SAFETY: ends this process on purpose.
            unsafe { libc::raise(libc::SIGSEGV) };
        }
        "before" => {
            set_handler(exits_with_42 as *const () as usize, 0);
            install().unwrap();
            fault_here();
            fault_elsewhere();
        }
        "default before" => {
            set_handler(libc::SIG_DFL, 0);
            install().unwrap();
            fault_here();
            fault_elsewhere();
        }
        "ignored before" => {
            set_handler(libc::SIG_IGN, 0);
            install().unwrap();
            fault_here();
            // SAFETY: a signal that is sent is ignored; a fault is not.
            unsafe { libc::raise(libc::SIGSEGV) };
            fault_elsewhere();
        }
        "displaced" => {
            install().unwrap();
            set_handler(exits_with_43 as *const () as usize, libc::SA_SIGINFO);
            assert!(!still_installed());
            assert_eq!(check(), Mode::Guarded);
            assert!(still_installed());
            fault_here();
            fault_elsewhere();
        }
        "displaced by one that hands on" => {
            install().unwrap();
            let below = set_handler(hands_on as *const () as usize, libc::SA_SIGINFO);
            BELOW.store(below as u64, Ordering::Relaxed);
            fault_here(); // it already reaches us
            assert_eq!(check(), Mode::Guarded);
            fault_here();
            fault_elsewhere(); // and this one must not loop
        }
        "displaced twice" => {
            install().unwrap();
            set_handler(exits_with_42 as *const () as usize, 0);
            assert_eq!(check(), Mode::Guarded);
            set_handler(exits_with_43 as *const () as usize, libc::SA_SIGINFO);
            assert_eq!(check(), Mode::ByKernel);
            assert_eq!(check(), Mode::ByKernel);
            fault_here();
            let mut word = 5u64;
            // SAFETY: our own word, and addresses where nothing is.
            unsafe {
                assert_eq!(fetch_add(&raw mut word, 1), Ok(5));
                let nowhere = ptr::without_provenance_mut(32);
                assert_eq!(fetch_add(nowhere, 1), Err(Fault::at(32)));
                assert_eq!(compare_swap(nowhere, 1, 2), Err(Fault::at(32)));
            }
            fault_elsewhere();
        }
        "another copy of this library" => {
            // A handler whose first instruction is preceded by our mark counts as ours, whichever copy of the library installed it.
            install().unwrap();
            let again = handler_of_another_copy();
            set_handler(again, libc::SA_SIGINFO);
            assert!(still_installed());
            assert_eq!(check(), Mode::Guarded);
            std::process::exit(45);
        }
        "blocked" => {
            install().unwrap();
            // SAFETY: blocks a signal in this thread.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, libc::SIGSEGV);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
            }
            prepare_thread().unwrap();
            fault_here();
            std::process::exit(46);
        }
        "stack overflow" => {
            install().unwrap();
            #[expect(unconditional_recursion, reason = "meant to overflow the stack")]
            fn deeper(n: u64) -> u64 {
                let room = std::hint::black_box([n; 64]);
                deeper(n + 1) + room[(n % 64) as usize]
            }
            std::process::exit((deeper(0) % 2) as i32);
        }
        other => panic!("no case {other}"),
    }
}

/// The entry of a handler as in another copy of this library: the mark, then code. It is never called.
fn handler_of_another_copy() -> usize {
    #[repr(align(16))]
    struct Code([u64; 4]);
    static CODE: Code = Code([0, handler::MARK, 0, 0]);
    (&raw const CODE.0[2]) as usize
}

#[test]
fn faults_outside_a_copy_still_end_the_process() {
    for case in ["elsewhere", "sent", "default before", "ignored before"] {
        assert_eq!(child(case).signal(), Some(libc::SIGSEGV), "{case}");
    }
}

#[test]
fn a_handler_installed_before_ours_still_runs() {
    assert_eq!(child("before").code(), Some(42));
}

#[test]
fn a_handler_installed_after_ours_gets_faults_outside_copies() {
    assert_eq!(child("displaced").code(), Some(43));
    assert_eq!(
        child("displaced by one that hands on").signal(),
        Some(libc::SIGSEGV)
    );
}

#[test]
fn a_handler_that_the_program_installs_again_is_kept() {
    assert_eq!(child("displaced twice").code(), Some(43));
}

#[test]
fn a_handler_of_another_copy_of_the_library_is_kept() {
    assert_eq!(child("another copy of this library").code(), Some(45));
}

#[test]
fn preparing_a_thread_unblocks_the_fault_signals() {
    assert_eq!(child("blocked").code(), Some(46));
}

/// The language runtime reports the overflow and aborts: its handler was reached, on its own stack.
#[test]
fn stack_overflows_are_still_reported() {
    assert_eq!(child("stack overflow").signal(), Some(libc::SIGABRT));
}
