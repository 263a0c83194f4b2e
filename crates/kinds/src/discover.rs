//! Finds the kind of memory at an address, for buffers whose kind the program does not name.

#![allow(unsafe_code)]
// UNSAFETY: copies from and to raw addresses, which the caller of `Anywhere::copier` vouches for.

use crate::complaint::Complaints;
use crate::hold::{Held, Refusal};
use crate::runtime::{self, Allocation, MemoryLocation, Runtime};
use crate::{Kind, Wanted, hold};
use rkey_base::copy;
use rkey_base::fault::Fault;
use rkey_base::foreign::{Copier, ForeignMemory};
use rkey_base::range::VaRange;
use std::sync::Arc;

/// An allocation of a runtime, found by an address.
#[derive(Debug)]
pub struct Found {
    kind: Kind,
    runtime: &'static dyn Runtime,
    allocation: Allocation,
}

impl Found {
    /// The kind of the memory.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the processor must not copy it.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.allocation.location != MemoryLocation::Host
    }

    /// Whether a range is inside the allocation.
    #[must_use]
    pub fn contains(&self, range: &VaRange) -> bool {
        self.allocation.range.contains(range)
    }

    /// The copier for a range that begins at the address.
    ///
    /// # Errors
    /// [`Refusal`]: for example, the range is not inside the allocation, or the memory has been freed in the meantime.
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

/// Asks the loaded runtimes that can tell whether the memory at an address is theirs. `None` means that none of them owns it,
/// which counts as system memory.
///
/// # Errors
/// A call of a runtime failed, so the kind is unknown.
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

/// A copier for all memory of the process: each copy asks the runtimes what kind of memory is there at that moment.
#[derive(Debug)]
pub struct Anywhere {
    complaints: Arc<Complaints>,
}

impl Anywhere {
    /// A copier for memory that the program passes for this use.
    ///
    /// # Safety
    /// As for [`ProcessMemory::new`](rkey_base::memory::ProcessMemory::new): the copier may only be used for addresses that
    /// the program passed to be read or written in this way.
    #[must_use]
    pub unsafe fn copier() -> Arc<dyn ForeignMemory> {
        Arc::new(Self {
            complaints: Arc::default(),
        })
    }

    /// Splits the range at the ends of the runtimes' allocations. Calls `part` for each part with its copier (`None`: the
    /// processor), its offset in the range, and its length in bytes. A part that begins in system memory extends to the end
    /// of the range.
    fn parts(
        &self,
        start: u64,
        len: usize,
        mut part: impl FnMut(Copier, usize, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut at = 0;
        while at < len {
            let address = start.checked_add(at as u64).ok_or(Fault::at(start))?;
            let found = discover(address).map_err(|refusal| {
                self.complaints.log(format_args!("{refusal}"));
                Fault::at(address)
            })?;
            let (copier, now) = match found {
                None => (None, len - at),
                Some(it) => {
                    let rest = it.allocation.range.end().saturating_sub(address).max(1);
                    let now = (len - at).min(usize::try_from(rest).unwrap_or(usize::MAX));
                    let copier = it.is_foreign().then(|| {
                        let complaints = Arc::clone(&self.complaints);
                        Held::of(it.kind, it.runtime, it.allocation, complaints)
                    });
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
        self.parts(src, len, |copier, at, now| {
            let (part, from) = (&mut dst[at..at + now], src + at as u64);
            match copier {
                Some(copier) => copier.load(part, from),
                // SAFETY: `part` is ours to write; the source may be any address.
                None => unsafe { copy::copy(part.as_mut_ptr(), pointer(from), now) },
            }
        })
    }

    fn store(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
        self.parts(dst, src.len(), |copier, at, now| {
            let (part, to) = (&src[at..at + now], dst + at as u64);
            match copier {
                Some(copier) => copier.store(to, part),
                // SAFETY: the caller of `copier` vouches for the addresses that are written.
                None => unsafe { copy::copy(pointer(to), part.as_ptr(), now) },
            }
        })
    }
}
