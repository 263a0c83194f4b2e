//! Registrations of borrowed memory that are kept for the next use.

use crate::device::domain::Domain;
use crate::error::Result;
use crate::memory::memory_region::MemoryRegion;
use crate::memory::owned::{BorrowedCache, Lender};
use rkey_cache::{Guard, Settings};
use std::ops::{Deref, Range};
use std::sync::OnceLock;

/// The variables of `fi_mr(3)`, which are read once.
fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let settings = Settings::read(|name| std::env::var(name).ok());
        for ignored in &settings.ignored {
            tracing::warn!("{ignored}");
        }
        settings
    })
}

/// The cache of a scope.
pub(crate) fn create(domain: &Domain) -> Result<BorrowedCache<MemoryRegion>> {
    let settings = settings();
    BorrowedCache::new(
        domain,
        settings.options(),
        &settings.choose_none(),
        MemoryRegion::new,
    )
}

/// Borrowed bytes that are registered at least until this is dropped; see [`Scope::cached`](crate::Scope::cached). It
/// dereferences to the [`MemoryRegion`], in which the bytes are at [`range`](Self::range).
pub struct CachedRegion<'scope> {
    guard: Guard<'scope, Lender<MemoryRegion>>,
    range: Range<u64>,
}

impl<'scope> CachedRegion<'scope> {
    pub(crate) fn new(guard: Guard<'scope, Lender<MemoryRegion>>, bytes: &[u8]) -> Self {
        let start = bytes.as_ptr().addr() as u64 - guard.range().start();
        let range = start..start + bytes.len() as u64;
        Self { guard, range }
    }

    /// The range of the bytes in the region, which may contain other bytes as well.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns whether an earlier registration was reused.
    #[must_use]
    pub fn is_hit(&self) -> bool {
        self.guard.why().is_hit()
    }

    /// Returns why an earlier registration was or was not reused, in words: "hit", "miss: no entry overlaps the range".
    #[must_use]
    pub fn why(&self) -> String {
        self.guard.why().to_string()
    }
}

impl Deref for CachedRegion<'_> {
    type Target = MemoryRegion;

    fn deref(&self) -> &MemoryRegion {
        &self.guard
    }
}

impl std::fmt::Debug for CachedRegion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedRegion")
            .field("region", &**self)
            .field("range", &self.range)
            .field("why", &self.why())
            .finish()
    }
}
