//! Holding memory of an accelerator: what a registration asks, why it is refused, and the copier that it gets.

use crate::Kind;
use crate::discover::discover;
use crate::runtime::{Absent, Allocation, Failure, Place, Runtime};
use rkey_base::fault::Fault;
use rkey_base::foreign::{Copier, ForeignMemory};
use rkey_base::range::VaRange;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use thiserror::Error;

/// What a registration asks of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The bytes.
    pub range: VaRange,
    /// The number of the accelerator, if the program names it.
    pub device: Option<u64>,
    /// Whether the bytes are read.
    pub reads: bool,
    /// The program says that the memory is at the accelerator alone.
    pub device_only: bool,
    /// The program says that the memory is the host's, allocated by the runtime.
    pub host: bool,
}

/// Why memory is not held.
#[derive(Clone, Debug, Error)]
pub enum Refusal {
    /// The runtime is not on this host.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// Another kind's memory.
    #[error(
        "{address:#x} is not {wanted} memory but {found}: register it with the interface of its allocator"
    )]
    OtherKind {
        /// The address.
        address: u64,
        /// The program's word.
        wanted: Kind,
        /// The runtime that knows the address, or "system memory".
        found: String,
    },
    /// Some of the range is outside the allocation.
    #[error("{range} is not inside one {kind} allocation: that of its first byte is {allocation}")]
    Outside {
        /// The kind.
        kind: Kind,
        /// The program's range.
        range: VaRange,
        /// The allocation.
        allocation: VaRange,
    },
    /// The memory is of another accelerator.
    #[error(
        "the memory is of {kind} device {found}, not {wanted}: set fi_mr_attr.device to that of the allocation"
    )]
    OtherDevice {
        /// The kind.
        kind: Kind,
        /// The program's device.
        wanted: u64,
        /// The allocation's.
        found: u64,
    },
    /// The memory is not of the accelerator alone, or not the host's.
    #[error("{kind} memory at {address:#x} is {found}, not {wanted}: leave the flag out")]
    OtherPlace {
        /// The kind.
        kind: Kind,
        /// The address.
        address: u64,
        /// What a flag says.
        wanted: &'static str,
        /// Where the runtime says that it is.
        found: &'static str,
    },
    /// The runtime cannot copy in this direction.
    #[error(
        "{kind} has no copy from its memory by address: register it without rights to read, send or be read"
    )]
    NotReadable {
        /// The kind.
        kind: Kind,
    },
    /// A call of the runtime failed.
    #[error("{kind}: {why}")]
    Failed {
        /// The kind.
        kind: Kind,
        /// Which call, and its error.
        why: String,
    },
}

impl Refusal {
    pub(crate) fn failed(kind: Kind, failure: &Failure) -> Self {
        let why = failure.to_string();
        Self::Failed { kind, why }
    }
}

impl Place {
    const fn words(self) -> &'static str {
        match self {
            Self::Device => "memory of the device alone",
            Self::Migrating => "managed (it migrates)",
            Self::Host => "memory of the host",
        }
    }
}

/// Holds memory that the program says is of this kind. The copier is `None` if the processor copies it: memory of the host
/// that the runtime allocated.
///
/// # Errors
/// [`Refusal`].
pub fn hold(kind: Kind, wanted: &Wanted) -> Result<Copier, Refusal> {
    let runtime = kind.runtime()?;
    if wanted.reads && !kind.is_readable() {
        return Err(Refusal::NotReadable { kind });
    }
    let address = wanted.range.start();
    let found = if kind.discovers() {
        let found = runtime.find(address);
        found.map_err(|failure| Refusal::failed(kind, &failure))?
    } else {
        let other = discover(address)?.is_some();
        (!other).then_some(Allocation {
            range: wanted.range,
            id: 0,
            device: wanted.device,
            place: if wanted.host {
                Place::Host
            } else {
                Place::Device
            },
            context: 0,
        })
    };
    let Some(allocation) = found else {
        let found = match discover(address)? {
            Some(found) => format!("{} memory", found.kind()),
            None => "system memory".into(),
        };
        return Err(Refusal::OtherKind {
            address,
            wanted: kind,
            found,
        });
    };
    check(kind, wanted, &allocation)?;
    if allocation.place == Place::Host {
        return Ok(None);
    }
    Ok(Some(Held::of(kind, runtime, allocation)))
}

fn check(kind: Kind, wanted: &Wanted, allocation: &Allocation) -> Result<(), Refusal> {
    // The processor copies memory of the host, and finds its end by a fault.
    if allocation.place != Place::Host && !allocation.range.contains(&wanted.range) {
        return Err(Refusal::Outside {
            kind,
            range: wanted.range,
            allocation: allocation.range,
        });
    }
    if let (Some(wanted), Some(found)) = (wanted.device, allocation.device)
        && wanted != found
        && allocation.place != Place::Host
    {
        return Err(Refusal::OtherDevice {
            kind,
            wanted,
            found,
        });
    }
    let other = |wanted: Place| Refusal::OtherPlace {
        kind,
        address: allocation.range.start(),
        wanted: wanted.words(),
        found: allocation.place.words(),
    };
    if wanted.device_only && allocation.place != Place::Device {
        return Err(other(Place::Device));
    }
    if wanted.host && allocation.place != Place::Host {
        return Err(other(Place::Host));
    }
    Ok(())
}

/// Memory of an accelerator, as it was when it was registered.
#[derive(Debug)]
pub(crate) struct Held {
    kind: Kind,
    runtime: &'static dyn Runtime,
    allocation: Allocation,
    /// Whether a failure has been logged. Peers cause accesses, so later ones are not.
    told: AtomicBool,
}

impl Held {
    pub(crate) fn of(
        kind: Kind,
        runtime: &'static dyn Runtime,
        allocation: Allocation,
    ) -> Arc<dyn ForeignMemory> {
        Arc::new(Self {
            kind,
            runtime,
            allocation,
            told: AtomicBool::new(false),
        })
    }

    /// Whether the bytes are still those of the allocation; the allocation as it is now.
    fn current(&self, address: u64) -> Result<Allocation, String> {
        if !self.kind.discovers() {
            return Ok(self.allocation);
        }
        let same =
            |it: &Allocation| it.id == self.allocation.id && it.range == self.allocation.range;
        match self.runtime.find(address) {
            Ok(Some(allocation)) if same(&allocation) => Ok(allocation),
            Ok(Some(_)) => {
                Err("it was freed, and the address belongs to another allocation".into())
            }
            Ok(None) => Err("it was freed".into()),
            Err(failure) => Err(failure.to_string()),
        }
    }

    fn access(
        &self,
        address: u64,
        copy: impl FnOnce(&Allocation) -> Result<(), Failure>,
    ) -> Result<(), Fault> {
        let done = self
            .current(address)
            .and_then(|allocation| copy(&allocation).map_err(|failure| failure.to_string()));
        done.map_err(|why| {
            if !self.told.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "{} memory at {address:#x} cannot be accessed: {why}",
                    self.kind
                );
            }
            Fault::at(address)
        })
    }
}

impl ForeignMemory for Held {
    fn load(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
        if dst.is_empty() {
            return Ok(());
        }
        self.access(src, |allocation| self.runtime.load(allocation, dst, src))
    }

    fn store(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
        if src.is_empty() {
            return Ok(());
        }
        self.access(dst, |allocation| self.runtime.store(allocation, dst, src))
    }
}
