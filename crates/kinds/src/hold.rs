//! Registrations of accelerator memory: what the program asks for, why it is refused, and the copier that it gets.

use crate::Kind;
use crate::complaint::Complaints;
use crate::discover::discover;
use crate::runtime::{Absent, Allocation, Failure, MemoryLocation, Runtime};
use rkey_base::fault::Fault;
use rkey_base::foreign::{Copier, ForeignMemory};
use rkey_base::range::VaRange;
use std::sync::Arc;
use thiserror::Error;

/// What a registration requests.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The bytes.
    pub range: VaRange,
    /// The number of the accelerator, if the program names it.
    pub device: Option<u64>,
    /// Whether the program or its peers may read the bytes.
    pub reads: bool,
    /// The program says that the memory is only on the accelerator (`FI_HMEM_DEVICE_ONLY`).
    pub device_only: bool,
    /// The program says that the memory is host memory that the runtime allocated (`FI_HMEM_HOST_ALLOC`).
    pub host: bool,
}

/// Why [`hold()`] refuses memory.
#[derive(Clone, Debug, Error)]
pub enum Refusal {
    /// The runtime is not on this host.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// The address belongs to memory of another kind.
    #[error(
        "{address:#x} is not {wanted} memory but {found}: register it with the interface of its allocator"
    )]
    OtherKind {
        /// The address.
        address: u64,
        /// The kind that the program named.
        wanted: Kind,
        /// The kind of the memory: "CUDA memory", for example, or "system memory".
        found: String,
    },
    /// Some of the range is outside the allocation.
    #[error("{range} is not inside one {kind} allocation: the first byte belongs to {allocation}")]
    Outside {
        /// The kind.
        kind: Kind,
        /// The program's range.
        range: VaRange,
        /// The allocation.
        allocation: VaRange,
    },
    /// The memory is on another accelerator.
    #[error(
        "the memory is on {kind} device {found}, not {wanted}: set fi_mr_attr.device to {found}"
    )]
    OtherDevice {
        /// The kind.
        kind: Kind,
        /// The program's device.
        wanted: u64,
        /// The device of the allocation.
        found: u64,
    },
    /// A flag says that the memory is only on the accelerator, or on the host, but it is not.
    #[error("{kind} memory at {address:#x} is {found}: register it without {flag}")]
    OtherPlace {
        /// The kind.
        kind: Kind,
        /// The address.
        address: u64,
        /// The flag that contradicts the runtime.
        flag: &'static str,
        /// Where the memory is, according to the runtime.
        found: &'static str,
    },
    /// The runtime cannot read its memory by address.
    #[error(
        "{kind} memory cannot be read by address: register it without FI_SEND, FI_WRITE and FI_REMOTE_READ"
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
        /// The call that failed, and its error.
        why: String,
    },
}

impl Refusal {
    pub(crate) fn failed(kind: Kind, failure: &Failure) -> Self {
        let why = failure.to_string();
        Self::Failed { kind, why }
    }
}

impl MemoryLocation {
    const fn words(self) -> &'static str {
        match self {
            Self::Device => "only on the accelerator",
            Self::Migrating => "managed (it migrates)",
            Self::Host => "host memory",
        }
    }
}

/// Compares the program's claims with the runtime's answers, and returns the memory's copier. `None`: the runtime allocated
/// host memory, which the processor copies.
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
            location: if wanted.host {
                MemoryLocation::Host
            } else {
                MemoryLocation::Device
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
    if allocation.location == MemoryLocation::Host {
        return Ok(None);
    }
    let complaints = Arc::default();
    Ok(Some(Held::of(kind, runtime, allocation, complaints)))
}

fn check(kind: Kind, wanted: &Wanted, allocation: &Allocation) -> Result<(), Refusal> {
    // The processor copies host memory, and detects that it was freed by a page fault.
    if allocation.location != MemoryLocation::Host && !allocation.range.contains(&wanted.range) {
        return Err(Refusal::Outside {
            kind,
            range: wanted.range,
            allocation: allocation.range,
        });
    }
    if let (Some(wanted), Some(found)) = (wanted.device, allocation.device)
        && wanted != found
        && allocation.location != MemoryLocation::Host
    {
        return Err(Refusal::OtherDevice {
            kind,
            wanted,
            found,
        });
    }
    let other = |flag: &'static str| Refusal::OtherPlace {
        kind,
        address: allocation.range.start(),
        flag,
        found: allocation.location.words(),
    };
    if wanted.device_only && allocation.location != MemoryLocation::Device {
        return Err(other("FI_HMEM_DEVICE_ONLY"));
    }
    if wanted.host && allocation.location != MemoryLocation::Host {
        return Err(other("FI_HMEM_HOST_ALLOC"));
    }
    Ok(())
}

/// Accelerator memory, with the allocation that was found when this was made.
#[derive(Debug)]
pub(crate) struct Held {
    kind: Kind,
    runtime: &'static dyn Runtime,
    allocation: Allocation,
    complaints: Arc<Complaints>,
}

impl Held {
    pub(crate) fn of(
        kind: Kind,
        runtime: &'static dyn Runtime,
        allocation: Allocation,
        complaints: Arc<Complaints>,
    ) -> Arc<dyn ForeignMemory> {
        Arc::new(Self {
            kind,
            runtime,
            allocation,
            complaints,
        })
    }

    /// The allocation as the runtime reports it now, or why it is no longer the one that was found. A runtime that cannot
    /// discover memory is not asked.
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
            self.complaints.log(format_args!(
                "{} memory at {address:#x} cannot be accessed: {why}",
                self.kind
            ));
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

    fn is_current(&self, address: u64) -> bool {
        self.current(address).is_ok()
    }
}
