//! A target whose memory does not respond: its owner watches it with `userfaultfd(2)`, and lets each access wait.
// UNSAFETY: system calls on memory that only atomics and peers access.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::*;

const PAGE: usize = 4096;
/// A word in the pages that do not respond.
const WORD: usize = WORDS / 2;
/// How long each access waits: longer than a push may take.
const WAIT: Duration = Duration::from_millis(150);
/// `UFFDIO_API`, `UFFDIO_REGISTER` and `UFFDIO_ZEROPAGE`.
const REQUESTS: [libc::c_ulong; 3] = [0xc018_aa3f, 0xc020_aa00, 0xc020_aa04];

/// Some pages in the middle of memory, which userfaultfd watches.
struct Watched {
    fd: OwnedFd,
    start: u64,
}

impl Watched {
    /// `None` if this process may not watch accesses of the kernel, which it says.
    fn new(memory: &[AtomicU64]) -> Option<Self> {
        // SAFETY: only makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            eprintln!("SKIP: no userfaultfd for the kernel's accesses here: {error}");
            return None;
        }
        // SAFETY: the new descriptor has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let start = (&raw const memory[WORD]).addr() & !(PAGE - 1);
        let watched = Self {
            fd,
            start: start as u64,
        };
        watched.request(REQUESTS[0], &mut [0xaa, 0, 0, 0]);
        watched.request(REQUESTS[1], &mut [watched.start, PAGE as u64, 1, 0]);
        Some(watched)
    }

    fn request(&self, request: libc::c_ulong, argument: &mut [u64; 4]) {
        // SAFETY: the argument is as long as that of each request. The page is one that only peers write to here.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, argument.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// From now on, an access to the page waits.
    fn lose(&self) {
        let start = std::ptr::without_provenance_mut(self.start as usize);
        // SAFETY: the page loses its bytes, which only atomics and peers access.
        let result = unsafe { libc::madvise(start, PAGE, libc::MADV_DONTNEED) };
        assert_eq!(result, 0);
    }

    /// Gives the page back, empty. Accesses that wait continue.
    fn respond(&self) {
        self.request(REQUESTS[2], &mut [self.start, PAGE as u64, 0, 0]);
    }
}

/// Writes until a write is pushed.
fn write_until_pushed(pair: &Pair) {
    let (before, deadline) = (pair.pushed(), Instant::now() + LONG);
    while pair.pushed() == before {
        assert!(Instant::now() < deadline, "no write was pushed");
        pair.write_slowly(&pair.qps[0]);
    }
}

/// The attack: a target lets each push wait. The initiator is stuck each time, until the budget is spent.
fn stalls_until_there_are_no_more_pushes(wait: Duration) {
    let Some(pair) = Pair::connect() else { return };
    let Some(watched) = Watched::new(pair.target.memory) else {
        return;
    };
    let (start, mut waited) = (Instant::now(), Duration::ZERO);
    let mut rounds = 0;
    write_until_pushed(&pair);
    loop {
        let before = pair.pushed();
        for _ in 0..300 {
            pair.write_slowly(&pair.qps[0]);
        }
        if pair.pushed() == before {
            break;
        }
        rounds += 1;
        assert!(rounds < 40, "pushes go on, after {waited:?}");
        watched.lose();
        let before = pair.pushed();
        pair.initiator.memory[0].store(rounds, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(wait);
                watched.respond();
            });
            let begin = Instant::now();
            pair.post(&pair.qps[0], pair.target.at(WORD), 8);
            if pair.pushed() > before {
                waited += begin.elapsed();
            }
        });
        assert_eq!(pair.initiator.next().status, Status::Success);
        assert_eq!(pair.target.word(WORD), rounds);
    }
    assert!(rounds > 1, "the budget is for several");
    let most = BUDGET + 2 * wait + start.elapsed() / 20;
    assert!(waited < most, "{waited:?} in {rounds} rounds");
}

/// The budget of a link, in `rkey-engine`.
const BUDGET: Duration = Duration::from_millis(300);

#[test]
fn there_are_no_more_pushes_after_some_that_the_targets_memory_has_stalled() {
    stalls_until_there_are_no_more_pushes(WAIT);
}

#[test]
fn many_short_stalls_end_pushes_like_few_long_ones() {
    stalls_until_there_are_no_more_pushes(WAIT / 2);
}

/// Waits until a thread of this process is in `process_vm_writev(2)`.
fn wait_for_copy(thread: &AtomicU64) {
    let deadline = Instant::now() + LONG;
    let call = format!("{} ", libc::SYS_process_vm_writev);
    loop {
        assert!(Instant::now() < deadline, "the copy does not begin");
        let thread = thread.load(Ordering::Acquire);
        let path = format!("/proc/self/task/{thread}/syscall");
        if std::fs::read_to_string(path).is_ok_and(|now| now.starts_with(&call)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A warrant is in use as long as the copy lasts. If it is replaced all the same, the end of its region waits for the copy.
#[test]
fn a_warrant_that_is_replaced_during_a_copy_lasts_until_the_end_of_the_copy() {
    let Some(pair) = Pair::connect() else { return };
    let Some(watched) = Watched::new(pair.target.memory) else {
        return;
    };
    write_until_pushed(&pair);
    watched.lose();
    let region = *pair.target.region.lock();
    let (thread, responded) = (AtomicU64::new(0), AtomicBool::new(false));
    let before = pair.pushed();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: only returns a number.
            thread.store(unsafe { libc::gettid() } as u64, Ordering::Release);
            pair.post(&pair.qps[0], pair.target.at(WORD), 8);
        });
        wait_for_copy(&thread);
        let (driver, link) = (pair.target.driver(), pair.target.inbound_link());
        let new = super::limits::issue(&pair, link, 0, &region).expect("a replacement");
        driver.command(|engine| engine.withdraw_warrant(&new));
        let copying = driver.command(|engine| engine.revoke_warrants(WarrantScope::Revoked));
        let [(_, old)] = &copying[..] else {
            panic!("{} warrants in use", copying.len());
        };
        assert_eq!((old.unused_for(), old.is_idle()), (Duration::ZERO, false));
        scope.spawn(|| {
            std::thread::sleep(WAIT);
            responded.store(true, Ordering::Release);
            watched.respond();
        });
        pair.target.device.deregister(region).unwrap();
        assert!(responded.load(Ordering::Acquire), "the copy has not ended");
        assert!(old.is_idle());
    });
    assert_eq!(pair.initiator.next().status, Status::Success);
    assert_eq!(pair.pushed(), before + 1);
}
