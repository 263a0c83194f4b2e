//! Threads of the device and of its front ends: named, with the program's signals blocked.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

/// Starts a thread. The thread blocks all signals, which belong to the program, except those that its own faults
/// raise.
///
/// # Errors
/// The system cannot start another thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    spawn_by(Builder::new().name(name.to_owned()), body)
}

/// Starts a thread as [`spawn`] does, with a name and a stack size that the caller chooses.
///
/// # Errors
/// The system cannot start another thread.
pub fn spawn_by<T: Send + 'static>(
    thread: Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread.spawn(move || {
        block_signals();
        body()
    })
}

/// Runs the body of a thread. If it panics, returns what to report: a bug of the thread with this name, and the panic's text.
pub(crate) fn catch_panic(thread: &str, body: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        format!("bug: {thread} panicked: {}", text.unwrap_or("?"))
    })
}

#[allow(unsafe_code)]
// UNSAFETY: `pthread_sigmask` has no safe wrapper.
fn block_signals() {
    // SAFETY: the set lives on this stack and is initialised by sigfillset before it is used.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut set);
        libc::sigdelset(&mut set, libc::SIGSEGV);
        libc::sigdelset(&mut set, libc::SIGBUS);
        libc::sigdelset(&mut set, libc::SIGFPE);
        libc::sigdelset(&mut set, libc::SIGILL);
        libc::sigdelset(&mut set, libc::SIGABRT);
        libc::sigdelset(&mut set, libc::SIGTRAP);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This thread's mask of blocked signals, from `/proc`.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigBlk:\t"));
        u64::from_str_radix(mask.expect("a mask"), 16).expect("a number")
    }

    #[test]
    fn device_threads_block_all_signals_except_those_of_faults() {
        let mask = spawn("rkey-test", blocked).expect("a thread").join();
        let mask = mask.expect("no panic");
        let is_blocked = |signal: i32| mask & (1 << (signal - 1)) != 0;
        assert!([libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1].map(is_blocked) == [true; 3]);
        assert!([libc::SIGSEGV, libc::SIGBUS].map(is_blocked) == [false; 2]);
    }

    #[test]
    fn a_spawned_thread_has_the_given_name() {
        let name = || std::thread::current().name().map(str::to_owned);
        let thread = spawn("rkey-test", name).expect("a thread");
        assert_eq!(
            thread.join().expect("no panic").as_deref(),
            Some("rkey-test")
        );
    }
}
