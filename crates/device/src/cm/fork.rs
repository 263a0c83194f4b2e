//! Forked children close their copies of the connection manager's sockets. Otherwise a port would stay taken, and peers would not
//! notice the end of the parent, while a child lives.
//!
//! The handlers lock every connection manager of the process while it forks, so a child finds its sockets in a consistent state.
// UNSAFETY: registers fork handlers, which unlock mutexes by force.
#![allow(unsafe_code)]

use std::sync::{Arc, Once, Weak};

use parking_lot::Mutex;

/// An object with sockets, whose copies forked children close.
pub(super) trait CloseInChild: Send {
    /// Closes them. Runs in the child, whose only thread is this one.
    fn close_in_child(&mut self);
}

type Closing = Mutex<dyn CloseInChild>;

static ALL: Mutex<Vec<Weak<Closing>>> = Mutex::new(Vec::new());

/// Makes forked children close these sockets.
pub(super) fn watch<T: CloseInChild + 'static>(sockets: &Arc<Mutex<T>>) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: functions without arguments in a library that is never unloaded. If there is no memory to register the
        // handlers, children keep their copies until they end or call `exec`.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    let weak: Weak<Mutex<T>> = Arc::downgrade(sockets);
    let mut all = ALL.lock();
    all.retain(|it| it.strong_count() > 0);
    all.push(weak);
}

extern "C" fn before() {
    let all = ALL.lock();
    for sockets in all.iter().filter_map(Weak::upgrade) {
        std::mem::forget(sockets.lock());
    }
    std::mem::forget(all);
}

extern "C" fn in_parent() {
    unlock(|_| {});
}

extern "C" fn in_child() {
    unlock(|sockets| {
        // SAFETY: this thread has locked it in `before`.
        unsafe { (*sockets.data_ptr()).close_in_child() };
    });
}

fn unlock(then: impl Fn(&Closing)) {
    // SAFETY: this thread has locked the list in `before`, so no other thread changes it.
    let all = unsafe { &*ALL.data_ptr() };
    for sockets in all.iter().filter_map(Weak::upgrade) {
        then(&sockets);
        // SAFETY: this thread has locked it in `before`: it was there then, because the list has not changed since.
        unsafe { sockets.force_unlock() };
    }
    // SAFETY: this thread has locked it in `before`.
    unsafe { ALL.force_unlock() };
}

#[cfg(test)]
mod tests {
    use super::super::tests::{claim, disconnected, establish, listen, start, wait_for};

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

    #[test]
    fn a_port_is_free_although_a_child_lives() {
        let (one, other) = (start(), start());
        let at = listen(&one, 16);
        let child = Sleeper::new();
        one.with(|parts| parts.release(at));
        // The child closes its copies before `fork` returns there, perhaps after it has returned here.
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
