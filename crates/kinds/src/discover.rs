//! Discovering the kind of memory that an address is of, for memory that the program passes without a registration.

#![allow(unsafe_code)]
// UNSAFETY: copies from and to raw addresses, which the caller of `Anywhere::copier` vouches for.

use crate::hold::{Held, Refusal};
use crate::runtime::{self, Allocation, Place, Runtime};
use crate::{Kind, Wanted, hold};
use rkey_base::copy;
use rkey_base::fault::Fault;
use rkey_base::foreign::{Copier, ForeignMemory};
use rkey_base::range::VaRange;
use std::sync::Arc;

/// Memory that a runtime knows.
#[derive(Debug)]
pub struct Found {
    kind: Kind,
    runtime: &'static dyn Runtime,
    allocation: Allocation,
}

impl Found {
    /// The runtime.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the processor must not copy it.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.allocation.place != Place::Host
    }

    /// Holds a range that begins at the address.
    ///
    /// # Errors
    /// It is not inside the allocation.
    pub fn hold(&self, range: VaRange) -> Result<Copier, Refusal> {
        hold(
            self.kind,
            &Wanted {
                range,
                device: None,
                reads: true,
                device_only: false,
                host: false,
            },
        )
    }
}

/// What the loaded runtimes say of an address; `None` for system memory. Runtimes that cannot say it, and those that are not
/// loaded, are not asked.
///
/// # Errors
/// A runtime failed, so nobody knows.
pub fn discover(address: u64) -> Result<Option<Found>, Refusal> {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.discovers()) {
        let Some(runtime) = runtime::loaded(kind) else {
            continue;
        };
        let found = runtime.find(address);
        let found = found.map_err(|failure| Refusal::failed(kind, &failure))?;
        if let Some(allocation) = found {
            return Ok(Some(Found {
                kind,
                runtime,
                allocation,
            }));
        }
    }
    Ok(None)
}

/// Loads every runtime of this host that can discover its memory.
pub fn load_all() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.discovers()) {
        if let Err(absent) = kind.load() {
            tracing::debug!("{absent}");
        }
    }
}

/// A copier for all memory of the process: it asks, at each copy, which kind the memory is of at that moment.
#[derive(Debug)]
pub struct Anywhere {
    _made_by_copier: (),
}

impl Anywhere {
    /// A copier for memory that the program passes for this use.
    ///
    /// # Safety
    /// As for [`ProcessMemory::new`](rkey_base::memory::ProcessMemory::new): the addresses that it gets are of memory that the
    /// program passed to be read or written in this way.
    #[must_use]
    pub unsafe fn copier() -> Arc<dyn ForeignMemory> {
        Arc::new(Self {
            _made_by_copier: (),
        })
    }

    /// Calls `part` for each part of the range of one kind: the copier, where it begins, and how many bytes it has.
    fn parts(
        start: u64,
        len: usize,
        mut part: impl FnMut(Copier, usize, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut at = 0;
        while at < len {
            let address = start.checked_add(at as u64).ok_or(Fault::at(start))?;
            let found = discover(address).map_err(|refusal| {
                tracing::warn!("{refusal}");
                Fault::at(address)
            })?;
            let (copier, now) = match found {
                None => (None, len - at),
                Some(it) => {
                    let rest = it.allocation.range.end().saturating_sub(address).max(1);
                    let now = (len - at).min(usize::try_from(rest).unwrap_or(usize::MAX));
                    let copier = it
                        .is_foreign()
                        .then(|| Held::of(it.kind, it.runtime, it.allocation));
                    (copier, now)
                }
            };
            part(copier, at, now)?;
            at += now;
        }
        Ok(())
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl ForeignMemory for Anywhere {
    fn load(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
        let len = dst.len();
        Self::parts(src, len, |copier, at, now| {
            let (part, from) = (&mut dst[at..at + now], src + at as u64);
            match copier {
                Some(copier) => copier.load(part, from),
                // SAFETY: `part` is ours to write; the source may be any address.
                None => unsafe { copy::copy(part.as_mut_ptr(), pointer(from), now) },
            }
        })
    }

    fn store(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
        Self::parts(dst, src.len(), |copier, at, now| {
            let (part, to) = (&src[at..at + now], dst + at as u64);
            match copier {
                Some(copier) => copier.store(to, part),
                // SAFETY: the caller of `copier` vouches for the addresses that are written.
                None => unsafe { copy::copy(pointer(to), part.as_ptr(), now) },
            }
        })
    }
}
