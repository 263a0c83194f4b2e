//! Forked children close their copies of the sockets of the connection manager and of the wire. Otherwise, while a child lives, a
//! port would stay taken and peers would not notice that the parent has ended.
//!
//! The handlers lock every connection manager of the process while it forks, so a child finds its sockets in a consistent state.
//! Threads of the parent may be waiting for these locks at that time. They do not exist in the child, but unlocking there would
//! look for them and could hand a lock to one. So the child reinitializes the locks.
// UNSAFETY: registers fork handlers, which unlock mutexes by force.
#![allow(unsafe_code)]

use std::sync::{Arc, Once, Weak};

use parking_lot::lock_api::RawMutex as _;
use parking_lot::{Mutex, RawMutex};

/// Owns sockets whose copies forked children close.
pub(crate) trait CloseInChild: Send {
    /// Closes them. Runs in the child, which has no other thread.
    fn close_in_child(&mut self);
}

type Closing = Mutex<dyn CloseInChild>;

static ALL: Mutex<Vec<Weak<Closing>>> = Mutex::new(Vec::new());

/// Makes forked children close these sockets.
pub(crate) fn watch<T: CloseInChild + 'static>(sockets: &Arc<Mutex<T>>) {
    add(sockets, true);
}

/// Like [`watch`], for sockets that a thread may lock while it holds the lock of others: locked after those.
pub(crate) fn watch_last<T: CloseInChild + 'static>(sockets: &Arc<Mutex<T>>) {
    add(sockets, false);
}

fn add<T: CloseInChild + 'static>(sockets: &Arc<Mutex<T>>, is_first: bool) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: functions without arguments in a library that is never unloaded. If there is no memory to register the
        // handlers, children keep their copies until they end or call `exec`.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    let weak: Weak<Mutex<T>> = Arc::downgrade(sockets);
    let mut all = ALL.lock();
    all.retain(|it| it.strong_count() > 0);
    let at = if is_first { 0 } else { all.len() };
    all.insert(at, weak);
}

extern "C" fn before() {
    let all = ALL.lock();
    for sockets in all.iter().filter_map(Weak::upgrade) {
        std::mem::forget(sockets.lock());
    }
    std::mem::forget(all);
}

extern "C" fn in_parent() {
    for sockets in locked() {
        // SAFETY: this thread has locked it in `before`: it was there then, because the list has not changed since.
        unsafe { sockets.force_unlock() };
    }
    // SAFETY: this thread has locked it in `before`.
    unsafe { ALL.force_unlock() };
}

extern "C" fn in_child() {
    for sockets in locked() {
        // SAFETY: this thread has locked it in `before`, and is the only one.
        unsafe {
            (*sockets.data_ptr()).close_in_child();
            make_new(sockets.raw());
        }
    }
    // SAFETY: as above.
    unsafe { make_new(ALL.raw()) };
}

/// Everything that `before` has locked.
fn locked() -> impl Iterator<Item = Arc<Closing>> {
    // SAFETY: this thread has locked the list in `before`, so no other thread changes it.
    let all = unsafe { &*ALL.data_ptr() };
    all.iter().filter_map(Weak::upgrade)
}

/// Unlocks a mutex and forgets the threads that wait for it.
///
/// # Safety
/// The calling thread is the only one in the process, and holds the lock.
unsafe fn make_new(lock: &RawMutex) {
    // SAFETY: an atomic number, which may be written through a shared reference. No other thread reads it.
    unsafe { std::ptr::from_ref(lock).cast_mut().write(RawMutex::INIT) };
}

#[cfg(test)]
mod tests {
    use super::super::tests::{claim, disconnected, establish, listen, start, wait_for};
    use super::{ALL, CloseInChild, Mutex, watch};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// A forked child that sleeps until it is dropped.
    struct Sleeper(libc::pid_t);

    impl Sleeper {
        fn new() -> Self {
            // SAFETY: the child calls only functions that are allowed after a fork.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                // SAFETY: as above; the alarm ends a child whose parent has been killed.
                unsafe {
                    libc::alarm(300);
                    loop {
                        libc::pause();
                    }
                }
            }
            Self(pid)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // SAFETY: our own child, which has not been waited for.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    /// Forks and waits for the child. The child runs `act`; returns `true` if `act` did so within two minutes.
    fn succeeds_in_child(act: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls only functions that work after a fork.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: as above; the alarm ends a child that hangs.
            unsafe {
                libc::alarm(120);
                libc::_exit(libc::c_int::from(!act()));
            }
        }
        let mut status = 0;
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        status == 0
    }

    /// Contended all the time.
    struct Wanted;

    impl CloseInChild for Wanted {
        fn close_in_child(&mut self) {}
    }

    #[test]
    fn a_child_can_lock_although_threads_of_its_parent_waited_for_the_locks() {
        let wanted = Arc::new(Mutex::new(Wanted));
        watch(&wanted);
        let stops = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stops.load(Ordering::Relaxed) {
                        let held = wanted.lock();
                        // Long enough for the other threads to block.
                        crate::time::sleep(Duration::from_micros(500));
                        drop(held);
                    }
                });
            }
            let free = (0..20).all(|_| {
                succeeds_in_child(|| wanted.try_lock().is_some() && ALL.try_lock().is_some())
            });
            stops.store(true, Ordering::Relaxed);
            assert!(free);
        });
    }

    #[test]
    fn a_port_is_released_although_a_child_lives() {
        let (one, other) = (start(), start());
        let at = listen(&one, 16);
        let child = Sleeper::new();
        one.with(|parts| parts.release(at));
        // The child closes its copies before `fork` returns there, which may be after it returns here.
        claim(&other, at);
        // The parent still works.
        establish(&other, &one);
        drop(child);
    }

    #[test]
    fn the_end_of_a_process_ends_its_connections_although_a_child_lives() {
        let (one, other) = (start(), start());
        establish(&one, &other);
        let child = Sleeper::new();
        drop(one);
        wait_for(&other, disconnected);
        drop(child);
    }
}
