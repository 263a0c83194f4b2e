//! Registered bytes that are borrowed, and always deregistered before the borrow ends.

use super::buffer::bytes_of;
use super::lender::{Accessors, BorrowedCache, Lender};
use super::registered::{CHANGING, Registered, RegistrationRequest};
use crate::device::domain::Domain;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use rkey_cache::Guard;
use rkey_core::MemoryKind;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// The registrations of one scope over borrowed bytes. Dropping it deregisters them all.
struct Live<M: Accessors> {
    list: Mutex<Vec<Arc<M>>>,
    /// The registrations that are kept for the next use.
    cache: OnceLock<BorrowedCache<M>>,
}

/// Registers borrowed bytes.
///
/// The lifetimes are as in `std::thread::Scope`: `'scope` is the time in which the regions can be used; `'env` outlives
/// it and is the time for which the bytes are borrowed.
pub(crate) struct Borrows<'scope, 'env: 'scope, M: Accessors> {
    live: &'scope Live<M>,
    /// Makes the type invariant in both lifetimes: neither may be stretched or shrunk.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Runs `work` with a scope for borrowed registrations, and deregisters them all before it returns or unwinds. `work`
/// gets only a reference, so it cannot prevent that.
pub(crate) fn with_borrows<'env, M: Accessors, T>(
    work: impl for<'scope> FnOnce(&'scope Borrows<'scope, 'env, M>) -> T,
) -> T {
    let live = Live {
        list: Mutex::new(Vec::new()),
        cache: OnceLock::new(),
    };
    let borrows = Borrows {
        live: &live,
        scope: PhantomData,
        env: PhantomData,
    };
    work(&borrows)
    // `live` is dropped here, even when `work` unwinds.
}

impl<'scope, 'env, M: Accessors> Borrows<'scope, 'env, M> {
    /// Registers bytes that are borrowed exclusively.
    pub(crate) fn exclusive(
        &'scope self,
        domain: &Domain,
        wish: &RegistrationRequest,
        bytes: &'env mut [u8],
        wrap: impl FnOnce(Registered) -> M,
    ) -> Result<Arc<M>> {
        // SAFETY: the exclusive reference is given up here; dropping `Live` deregisters the bytes (or
        // ends the process) before 'env, for which they are borrowed, can end.
        let mut registered =
            unsafe { Registered::register(domain, wish, bytes_of(bytes), USER, false) }?;
        registered.borrowed = true;
        Ok(self.keep(wrap(registered)))
    }

    /// Registers bytes that are borrowed as shared, for reading.
    pub(crate) fn shared(
        &'scope self,
        domain: &Domain,
        wish: &RegistrationRequest,
        bytes: &'env [u8],
        wrap: impl FnOnce(Registered) -> M,
    ) -> Result<Arc<M>> {
        if wish.access.intersects(CHANGING) {
            return Err(Error::Rights(
                "memory borrowed through a shared reference can only be read".into(),
            ));
        }
        let place = (NonNull::from(bytes).cast(), bytes.len());
        // SAFETY: as above; the registration is constant and has no right by which a byte could
        // change (checked above), so that other shared references to the bytes may be used.
        let mut registered = unsafe { Registered::register(domain, wish, place, USER, true) }?;
        registered.borrowed = true;
        Ok(self.keep(wrap(registered)))
    }

    /// A registration of bytes that are borrowed as shared, from the scope's cache, which `make` creates at the first
    /// call.
    pub(crate) fn cached(
        &self,
        bytes: &'env [u8],
        make: impl FnOnce() -> Result<BorrowedCache<M>>,
    ) -> Result<Guard<'scope, Lender<M>>> {
        let cache = match self.live.cache.get() {
            Some(cache) => cache,
            None => {
                let fresh = make()?;
                self.live.cache.get_or_init(|| fresh)
            }
        };
        // SAFETY: dropping `Live` closes the cache before 'env, for which the bytes are borrowed, can end.
        unsafe { cache.get(bytes) }
    }

    /// The cache, if it was used.
    pub(crate) fn cache(&self) -> Option<&'scope BorrowedCache<M>> {
        self.live.cache.get()
    }

    fn keep(&self, memory: M) -> Arc<M> {
        let memory = Arc::new(memory);
        let mut live = self.live.list.lock();
        live.push(Arc::clone(&memory));
        memory
    }

    /// Deregisters one registration before the scope ends.
    pub(crate) fn close(&self, memory: &Arc<M>) {
        if memory.as_ref().as_ref().close().is_ok() {
            let mut live = self.live.list.lock();
            live.retain(|other| !Arc::ptr_eq(other, memory));
        }
    }
}

impl<M: Accessors> Drop for Live<M> {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.get_mut() {
            cache.close();
        }
        let live = self.list.get_mut();
        for memory in live.drain(..) {
            memory.as_ref().as_ref().close_or_end();
        }
    }
}

const USER: MemoryKind = MemoryKind::User;
