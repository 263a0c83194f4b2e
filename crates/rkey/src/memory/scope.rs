//! Registering memory that is only borrowed, for the duration of a closure.

use crate::device::domain::Domain;
use crate::error::Result;
use crate::memory::cached::{self, CachedRegion};
use crate::memory::memory_region::MemoryRegion;
use crate::memory::options::RegionOptions;
use crate::memory::owned::{Borrows, with_borrows};
use crate::memory::region::PUBLISHED;
use rkey_cache::Stats;
use std::ops::Deref;
use std::sync::Arc;

/// Registers borrowed memory; created by [`Domain::scope`].
///
/// The scope keeps every region that is made in it and deregisters the remaining ones when it ends. So forgetting a
/// borrowed region is harmless, which a guard object alone could not guarantee.
pub struct Scope<'scope, 'env: 'scope> {
    domain: Domain,
    borrows: &'scope Borrows<'scope, 'env, MemoryRegion>,
}

/// See [`Domain::scope`].
pub(crate) fn run_scope<'env, T>(
    domain: &Domain,
    work: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> T,
) -> T {
    with_borrows(|borrows| {
        work(Scope {
            domain: domain.clone(),
            borrows,
        })
    })
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Registers bytes that are borrowed exclusively until the scope ends.
    ///
    /// # Errors
    /// Same as [`Domain::register`].
    pub fn register(
        &self,
        bytes: &'env mut [u8],
        access: impl Into<RegionOptions>,
    ) -> Result<ScopedRegion<'scope, 'env>> {
        let wish = MemoryRegion::wish(&access.into())?;
        let wrap = |registered| MemoryRegion::new(registered, &wish);
        let memory = self.borrows.exclusive(&self.domain, &wish, bytes, wrap)?;
        Ok(ScopedRegion {
            memory,
            borrows: self.borrows,
        })
    }

    /// Registers bytes for peers to read. The borrow is shared: the program can still read the bytes, but nothing may change them.
    ///
    /// # Errors
    /// Same as [`Domain::register`].
    pub fn publish(&self, bytes: &'env [u8]) -> Result<ScopedRegion<'scope, 'env>> {
        let options = RegionOptions::new(PUBLISHED);
        let wish = MemoryRegion::wish(&options)?;
        let wrap = |registered| MemoryRegion::new(registered, &wish);
        let memory = self.borrows.shared(&self.domain, &wish, bytes, wrap)?;
        Ok(ScopedRegion {
            memory,
            borrows: self.borrows,
        })
    }

    /// Registers bytes as the source of our own sends and writes, unless an earlier registration contains them. The borrow is shared: the program can still read the bytes, but nothing may change them.
    ///
    /// Dropping the result does not deregister the bytes: the registration stays in the scope's cache, until the scope ends or
    /// the cache needs the room. So a program that repeatedly sends from many buffers need not manage
    /// registrations itself. Peers get no keys for cached memory.
    ///
    /// The variables `FI_MR_CACHE_MAX_COUNT` and `FI_MR_CACHE_MAX_SIZE` limit the cache, and
    /// `FI_MR_CACHE_MONITOR=disabled` turns it off: each call then registers the bytes again. No monitor is needed, because the
    /// device reads what is at the addresses at the time of the transfer. `rkey ls` shows the cache of a running program.
    ///
    /// ```
    /// # use rkey::{Access, Device};
    /// # fn main() -> rkey::Result<()> {
    /// # let device = Device::open()?;
    /// # let region = device.domain()?.register(vec![0u8; 64], Access::REMOTE_WRITE)?;
    /// # let listener = device.listen("127.0.0.1:0")?;
    /// # let address = listener.address();
    /// # let peer = std::thread::spawn(move || -> rkey::Result<()> {
    /// # let device = Device::open()?;
    /// # let owner = device.connect(address)?;
    /// # let key: rkey::RemoteKey = owner.receive()?;
    /// # let domain = device.domain()?;
    /// let text = String::from("hello, world");
    /// domain.scope(|scope| {
    ///     for (place, word) in [(0, &text[..5]), (8, &text[7..]), (16, &text[..5])] {
    ///         let bytes = scope.cached(word.as_bytes())?; // registers only the first time
    ///         owner.write(&bytes, bytes.range(), &key, place)?.wait()?;
    ///     }
    ///     assert_eq!((scope.cache_stats().hits, scope.cache_stats().misses), (1, 2));
    ///     Ok(())
    /// })
    /// # });
    /// # let connection = listener.accept()?;
    /// # connection.send(&region.key(..)?)?;
    /// # peer.join().unwrap()?;
    /// # assert_eq!(region.read_vec(0..21)?, b"hello\0\0\0world\0\0\0hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Same as [`Domain::register`].
    pub fn cached(&self, bytes: &'env [u8]) -> Result<CachedRegion<'scope>> {
        let make = || cached::create(&self.domain);
        let guard = self.borrows.cached(bytes, make)?;
        Ok(CachedRegion::new(guard, bytes))
    }

    /// The statistics of the scope's cache: lookups, registrations, evictions, and its contents.
    #[must_use]
    pub fn cache_stats(&self) -> Stats {
        let cache = self.borrows.cache();
        cache.map_or_else(Stats::default, |cache| cache.stats())
    }
}

impl std::fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// Borrowed memory that is registered until this value is dropped or its scope ends, whichever comes first. It
/// dereferences to [`MemoryRegion`].
pub struct ScopedRegion<'scope, 'env> {
    memory: Arc<MemoryRegion>,
    borrows: &'scope Borrows<'scope, 'env, MemoryRegion>,
}

impl Deref for ScopedRegion<'_, '_> {
    type Target = MemoryRegion;

    fn deref(&self) -> &MemoryRegion {
        &self.memory
    }
}

impl Drop for ScopedRegion<'_, '_> {
    fn drop(&mut self) {
        self.borrows.close(&self.memory);
    }
}

impl std::fmt::Debug for ScopedRegion<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.memory.fmt(f)
    }
}

impl Domain {
    /// Registers memory that is only borrowed, for as long as `work` runs.
    ///
    /// Every region made in the scope is deregistered before `scope` returns, even when `work` panics or the program forgets
    /// a region (`std::mem::forget`): the scope itself keeps the list, as [`std::thread::scope`] does with its threads.
    ///
    /// ```
    /// # use rkey::{Access, Device};
    /// # fn main() -> rkey::Result<()> {
    /// let domain = Device::open()?.domain()?;
    /// let mut bytes = [0u8; 64];
    /// let key = domain.scope(|scope| {
    ///     let region = scope.register(&mut bytes, Access::REMOTE_READ)?;
    ///     region.write(0, b"hello")?;
    ///     region.key(..)
    /// })?;
    /// assert_eq!(&bytes[..5], b"hello"); // ours again; the key is refused from now on
    /// # let _ = key; Ok(()) }
    /// ```
    ///
    /// # Aborts
    /// If a region cannot be deregistered (because the device is broken), the process aborts: returning would let the
    /// device write into memory that is no longer ours.
    pub fn scope<'env, T>(&self, work: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> T) -> T {
        run_scope(self, work)
    }
}
