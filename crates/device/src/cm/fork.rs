//! Forked children close their copies of the sockets of the connection manager and of the wire. If they did not, a port would
//! stay taken while a child lives, and peers would not notice that the parent has ended. A thread uses the descriptors on which
//! it sleeps without a lock; in a child, these descriptors refer to a new object ([`KeptFromChild`]), so nothing that the child
//! does with them reaches the parent. The same holds for descriptors of front ends ([`UnsharedFd`]).
//!
//! The handlers lock every connection manager of the process while it forks, so a child finds its sockets in a consistent state.
//! Threads of the parent may be waiting for these locks at that time. Those threads do not exist in the child, but unlocking
//! there would look for them and could hand a lock to one. So the child reinitializes the locks.
// UNSAFETY: registers fork handlers, which unlock mutexes by force and replace descriptors.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, LazyLock, Once, Weak};

use parking_lot::lock_api::RawMutex as _;
use parking_lot::{Mutex, RawMutex};
use rustix::event::{EventfdFlags, eventfd};

/// Owns sockets whose copies forked children close.
pub(crate) trait CloseInChild: Send {
    /// Closes the sockets. Runs in the child, which has no other thread.
    fn close_in_child(&mut self);
}

/// Descriptors that a thread uses without a lock, because it sleeps on them. In a forked child, they refer to a new object that
/// nothing else uses: the child cannot close them, because their owners there still hold their numbers.
#[derive(Debug)]
pub(crate) struct KeptFromChild {
    _descriptors: Arc<Mutex<Vec<Arc<OwnedFd>>>>,
}

impl KeptFromChild {
    /// Keeps these descriptors from forked children, until it is dropped.
    pub(crate) fn new(descriptors: Vec<Arc<OwnedFd>>) -> Self {
        let descriptors = Arc::new(Mutex::new(descriptors));
        watch_last(&descriptors);
        Self {
            _descriptors: descriptors,
        }
    }
}

impl CloseInChild for Vec<Arc<OwnedFd>> {
    fn close_in_child(&mut self) {
        refer_to_new_object(self.iter().map(|it| it.as_raw_fd()));
    }
}

/// Makes numbers of descriptors refer to a new object that nothing else uses. If no descriptor is left for it, the child keeps its
/// copies.
fn refer_to_new_object(numbers: impl Iterator<Item = RawFd>) {
    let Ok(new) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return;
    };
    for number in numbers {
        // SAFETY: both are open: the owners have not closed them. The second number keeps its owner, which does not depend on what it
        // refers to.
        unsafe { libc::dup3(new.as_raw_fd(), number, libc::O_CLOEXEC) };
    }
}

/// The numbers of every [`UnsharedFd`].
#[derive(Default)]
struct Unshared(BTreeSet<RawFd>);

impl CloseInChild for Unshared {
    fn close_in_child(&mut self) {
        refer_to_new_object(self.0.iter().copied());
    }
}

static UNSHARED: LazyLock<Arc<Mutex<Unshared>>> = LazyLock::new(|| {
    let made = Arc::default();
    watch_last(&made);
    made
});

/// A descriptor that forked children do not share. In a child, its number refers to a new object that is never readable. So what
/// the descriptor stands for ends when the parent closes it: a port is free, and an epoll set that watches it no longer reports it.
#[derive(Debug)]
pub struct UnsharedFd(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for UnsharedFd {
    fn from(fd: OwnedFd) -> Self {
        UNSHARED.lock().0.insert(fd.as_raw_fd());
        Self(ManuallyDrop::new(fd))
    }
}

impl Drop for UnsharedFd {
    fn drop(&mut self) {
        // Closed under the lock, so that no child is forked between the two.
        let mut all = UNSHARED.lock();
        all.0.remove(&self.0.as_raw_fd());
        // SAFETY: only here, so the descriptor is closed once, and nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl Deref for UnsharedFd {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for UnsharedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
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
        // SAFETY: this thread has locked these sockets in `before`: they were in the list, which has not changed since.
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
pub(crate) unsafe fn make_new(lock: &RawMutex) {
    // SAFETY: an atomic number, which may be written through a shared reference. No other thread reads it.
    unsafe { std::ptr::from_ref(lock).cast_mut().write(RawMutex::INIT) };
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::tests::{claim, disconnected, establish, listen, start, wait_for};
    use super::{ALL, CloseInChild, KeptFromChild, Mutex, UnsharedFd, watch};
    use crate::progress::reactor::Reactor;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::{AsRawFd, OwnedFd};
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
    pub(crate) fn succeeds_in_child(act: impl FnOnce() -> bool) -> bool {
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

    /// Whether a descriptor is an epoll set.
    pub(crate) fn is_set(descriptor: &OwnedFd) -> bool {
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        std::fs::read_link(link).unwrap().to_str() == Some("anon_inode:[eventpoll]")
    }

    #[test]
    fn a_child_changes_no_doorbell_or_epoll_set_of_its_parent() {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let doorbell = Arc::new(doorbell);
        let set = Reactor::new().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        let token = set.new_token();
        set.add(&reader, token).unwrap();
        let _kept = KeptFromChild::new(vec![set.descriptor(), Arc::clone(&doorbell)]);
        let done = succeeds_in_child(|| {
            set.remove(&reader);
            rustix::io::write(&doorbell, &1_u64.to_ne_bytes()).is_ok()
        });
        assert!(done);
        assert_eq!(set.wait(Some(Duration::ZERO)), [token]);
        let rung = rustix::io::read(&doorbell, &mut [0; 8]);
        assert_eq!(rung, Err(rustix::io::Errno::AGAIN));
    }

    #[test]
    fn an_unshared_descriptor_ends_with_its_owner_although_a_child_still_runs() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (writer, closed) = (UnsharedFd::from(writer), rustix::pipe::pipe().unwrap());
        let number = closed.0.as_raw_fd();
        drop(UnsharedFd::from(closed.0));
        // An ordinary descriptor with the number of one that was closed stays as it is.
        let ordinary = rustix::io::fcntl_dupfd_cloexec(&reader, number).unwrap();
        assert_eq!(ordinary.as_raw_fd(), number);
        let child = Sleeper::new();
        let done = succeeds_in_child(|| {
            rustix::io::write(&*writer, b"x").is_err()
                && rustix::fs::fstat(&ordinary).unwrap().st_ino
                    == rustix::fs::fstat(&reader).unwrap().st_ino
        });
        assert!(done);
        assert_eq!(rustix::io::write(&*writer, b"y"), Ok(1));
        drop(writer);
        let mut bytes = [0; 2];
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(1));
        // No writer is left, so this ends instead of waiting.
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(0));
        drop(child);
    }

    #[test]
    fn a_child_can_drop_a_connection_manager_that_its_parent_uses() {
        let (mut one, other) = (Some(start()), start());
        let set = one.as_ref().unwrap().shared.reactor.descriptor();
        let done = succeeds_in_child(|| {
            drop(one.take());
            !is_set(&set)
        });
        assert!(done && is_set(&set));
        establish(&one.unwrap(), &other);
    }

    /// Contended all the time.
    struct Wanted;

    impl CloseInChild for Wanted {
        fn close_in_child(&mut self) {}
    }

    #[test]
    fn a_child_can_take_locks_that_threads_of_its_parent_wait_for() {
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
    fn a_port_is_released_although_a_forked_child_still_runs() {
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
    fn connections_end_with_their_process_although_a_child_still_runs() {
        let (one, other) = (start(), start());
        establish(&one, &other);
        let child = Sleeper::new();
        drop(one);
        wait_for(&other, disconnected);
        drop(child);
    }
}
