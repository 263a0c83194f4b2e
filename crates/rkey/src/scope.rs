//! Registering memory that is only borrowed, for the duration of a closure.

use crate::domain::Domain;
use crate::error::Result;
use crate::memory::MemoryRegion;
use crate::options::RegionOptions;
use crate::owned::{Borrows, with_borrows};
use crate::region::PUBLISHED;
use std::ops::Deref;
use std::sync::Arc;

/// Registers borrowed memory; created by [`Domain::scope`].
///
/// The scope keeps every region that is made in it and deregisters the remaining ones when it ends. So forgetting a
/// borrowed region does no harm, which a guard object alone could not guarantee.
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

    /// Registers bytes for peers to read. They are borrowed as shared: the program can still read them, and nothing may
    /// change them.
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
