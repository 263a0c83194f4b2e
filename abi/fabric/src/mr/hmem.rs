//! Accelerator memory and DMA-bufs (`FI_HMEM`): determines who copies the bytes of a registration, or of a buffer that the program
//! passes without one.
//!
//! In a domain without `FI_HMEM`, all memory counts as system memory (FI-123), which the processor copies.

#![allow(unsafe_code)]
// UNSAFETY: registers memory for which the caller is responsible.

use super::attr::{Dmabuf, Ranges};
use super::runtimes::{denied, refuse};
use crate::domain::{Domain, ProtectionDomain, anywhere};
use crate::errno::{FiError, Result};
use crate::lenient;
use crate::sys::*;
use rkey_device::base::{Copier, VaRange};
use rkey_device::core::{Access, LKey, Region, RegionSpec};
use rkey_device::{Device, DeviceError};
use rkey_kinds::file::{self, Mapping};
use rkey_kinds::{Kind, Refusal, Wanted, discover};
use rkey_kit::settings::{self, DISABLE_P2P};
use std::ffi::c_int;
use std::sync::{Arc, LazyLock};

/// The interface that a program names, with its device.
#[derive(Clone, Copy)]
pub(crate) struct Interface {
    pub(crate) iface: c_int,
    /// The union `device`.
    pub(crate) device: u64,
}

/// Who copies the segments of a region, and the mapping of the file behind it.
pub(crate) struct Foreign {
    /// One for each segment; empty if the processor copies all.
    pub(crate) copiers: Vec<Copier>,
    /// Our mapping of the file.
    _mapping: Option<Arc<Mapping>>,
}

impl Foreign {
    /// `None` if there is nothing to keep.
    fn new(copiers: Vec<Copier>, mapping: Option<Arc<Mapping>>) -> Option<Box<Self>> {
        let copiers = match copiers.iter().any(Option::is_some) {
            true => copiers,
            false => Vec::new(),
        };
        (mapping.is_some() || !copiers.is_empty()).then(|| {
            Box::new(Self {
                copiers,
                _mapping: mapping,
            })
        })
    }

    /// Whether a runtime or driver copies some of the memory.
    pub(crate) fn has_copiers(&self) -> bool {
        !self.copiers.is_empty()
    }

    /// The ranges of the region that the processor copies.
    pub(super) fn of_processor(&self, ranges: &Ranges) -> Ranges {
        if !self.has_copiers() {
            return ranges.clone();
        }
        let all = ranges.iter().zip(&self.copiers);
        all.filter(|(_, copier)| copier.is_none())
            .map(|(range, _)| *range)
            .collect()
    }
}

impl Interface {
    /// The kind of memory that the interface names; `None` is system memory.
    fn kind(self) -> Result<Option<Kind>> {
        Ok(Some(match self.iface {
            FI_HMEM_SYSTEM => return Ok(None),
            FI_HMEM_CUDA => Kind::Cuda,
            FI_HMEM_ROCR => Kind::Rocr,
            FI_HMEM_ZE => Kind::LevelZero,
            FI_HMEM_NEURON => Kind::Neuron,
            FI_HMEM_SYNAPSEAI => Kind::SynapseAi,
            other => {
                return Err(denied(
                    FiError::INVAL,
                    format_args!("fi_mr_attr.iface is {other}, which is not an interface"),
                ));
            }
        }))
    }

    /// The number of the device, as its runtime counts; ROCr has no member of the union (FI-130).
    fn device_of(self, kind: Kind) -> Option<u64> {
        match kind {
            Kind::Rocr => None,
            // The other members of the union are of type int.
            _ => Some(u64::from(self.device as u32)),
        }
    }
}

/// The copier of one range for a registration with these flags; `None` is the processor.
fn hold(
    kind: Kind,
    interface: Interface,
    flags: u64,
    range: VaRange,
    access: Access,
) -> Result<Copier> {
    let host = flags & FI_HMEM_HOST_ALLOC != 0;
    let reads = Access::LOCAL_READ | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let wanted = Wanted {
        range,
        // FI-146: ignored for host memory.
        device: interface.device_of(kind).filter(|_| !host),
        reads: access.intersects(reads),
        device_only: flags & FI_HMEM_DEVICE_ONLY != 0,
        host,
    };
    match rkey_kinds::hold(kind, &wanted) {
        Err(refusal @ Refusal::OtherDevice { .. }) => {
            tracing::debug!("{refusal}");
            lenient::unless_strict(&lenient::OTHER_DEVICE, FiError::INVAL)?;
            let any = Wanted {
                device: None,
                ..wanted
            };
            rkey_kinds::hold(kind, &any).map_err(|refusal| refuse(&refusal))
        }
        other => other.map_err(|refusal| refuse(&refusal)),
    }
}

/// Who copies the ranges of a registration; `None` if the processor copies all. `interface` is from the registration's
/// attributes.
#[cold]
pub(super) fn copiers(
    domain: &Domain,
    interface: Interface,
    flags: u64,
    ranges: &Ranges,
    access: Access,
) -> Result<Option<Box<Foreign>>> {
    let both = FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC;
    if flags & both == both {
        return Err(denied(
            FiError::INVAL,
            format_args!("FI_HMEM_DEVICE_ONLY and FI_HMEM_HOST_ALLOC exclude each other"),
        ));
    }
    let Some(kind) = interface.kind()? else {
        if flags & FI_HMEM_DEVICE_ONLY != 0 {
            return Err(denied(
                FiError::INVAL,
                format_args!(
                    "FI_HMEM_DEVICE_ONLY needs the interface of a device: FI_HMEM_SYSTEM memory is accessible to the processor"
                ),
            ));
        }
        return found(domain, ranges);
    };
    let hold = |range: &VaRange| hold(kind, interface, flags, *range, access);
    let copiers = ranges.iter().map(hold).collect::<Result<_>>()?;
    Ok(Foreign::new(copiers, None))
}

/// Who copies ranges for which the program names `FI_HMEM_SYSTEM` or no interface. With `FI_MR_HMEM` the program must name the
/// interface of foreign memory (FI-081); otherwise the provider asks the runtimes (FI-082).
fn found(domain: &Domain, ranges: &Ranges) -> Result<Option<Box<Foreign>>> {
    let one = |range: &VaRange| {
        let found = discover(range.start()).map_err(|refusal| refuse(&refusal))?;
        match found.filter(|found| found.is_foreign()) {
            None => Ok(None),
            Some(found) if domain.has(FI_MR_HMEM) => Err(denied(
                FiError::INVAL,
                format_args!(
                    "{range} is {} memory: the domain has FI_MR_HMEM, so register the buffer with fi_mr_regattr, and set iface and device",
                    found.kind()
                ),
            )),
            Some(found) => found.hold(*range).map_err(|refusal| refuse(&refusal)),
        }
    };
    let copiers = ranges.iter().map(one).collect::<Result<_>>()?;
    Ok(Foreign::new(copiers, None))
}

/// The memory of a DMA-buf: its range here, and who copies it. If the program names the interface of the buffer's device
/// and the address at which the buffer begins there, the device's runtime copies; otherwise the file is mapped.
pub(super) fn dma_buf(
    buf: &Dmabuf,
    interface: Interface,
    flags: u64,
    access: Access,
) -> Result<(VaRange, Option<Box<Foreign>>)> {
    if flags & FI_HMEM_DEVICE_ONLY != 0 && interface.iface == FI_HMEM_SYSTEM {
        return Err(denied(
            FiError::INVAL,
            format_args!("FI_HMEM_DEVICE_ONLY needs the interface of a device"),
        ));
    }
    if let Some(kind) = interface.kind()?
        && buf.base != 0
    {
        let range = VaRange::new(buf.base + buf.offset, buf.len as u64).ok_or(FiError::INVAL)?;
        let copier = hold(kind, interface, flags, range, access)?;
        return Ok((range, Foreign::new(vec![copier], None)));
    }
    let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = file::map(buf.fd, buf.offset, buf.len, access.intersects(writes));
    let memory = memory.map_err(|error| match error.raw_os_error() {
        Some(libc::ENODEV) => denied(FiError::OPNOTSUPP, format_args!(
            "the file cannot be mapped: if it is a DMA-buf of a device, name its iface and base_addr"
        )),
        number => FiError(number.unwrap_or(libc::EIO)),
    })?;
    let foreign = Foreign::new(vec![memory.copier], Some(memory.mapping));
    Ok((memory.range, foreign))
}

/// Registers a region; `foreign` says who copies its segments.
///
/// # Safety
/// Same as for [`Device::register`].
#[inline]
pub(super) unsafe fn register(
    device: &Device,
    spec: &RegionSpec<'_>,
    foreign: Option<&Foreign>,
) -> std::result::Result<Region, DeviceError> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match foreign {
            Some(foreign) if foreign.has_copiers() => {
                device.register_foreign(spec, &foreign.copiers)
            }
            _ => device.register(spec),
        }
    }
}

/// Whether the environment forbids peer-to-peer transfers (FI-218). There are none, so this only changes what an endpoint
/// reports.
pub(crate) fn is_p2p_disabled() -> bool {
    static DISABLED: LazyLock<bool> = LazyLock::new(|| match DISABLE_P2P.value() {
        Ok(value) => value.is_some_and(|value| settings::is_yes(&value)),
        Err(error) => {
            tracing::warn!("{error}");
            false
        }
    });
    *DISABLED
}

/// Whether the processor must not access a buffer that the program passes.
pub(crate) fn is_foreign(addr: u64) -> Result<bool> {
    let found = discover(addr).map_err(|refusal| refuse(&refusal))?;
    Ok(found.is_some_and(|found| found.is_foreign()))
}

/// The key of a protection domain for a buffer without a registration.
pub(super) fn unregistered(pd: &ProtectionDomain, foreign: bool) -> Result<LKey> {
    match foreign {
        true => pd.everything_foreign(),
        false => Ok(pd.everything()),
    }
}

/// Copies bytes that the program injects: with `FI_MR_HMEM` only from system memory (FI-I13).
#[cold]
pub(crate) fn load_injected(domain: &Domain, into: &mut [u8], addr: u64) -> Result<()> {
    if domain.has(FI_MR_HMEM) && !into.is_empty() && is_foreign(addr)? {
        return Err(denied(
            FiError::INVAL,
            format_args!(
                "{} B at {addr:#x} are in accelerator memory: a domain with FI_MR_HMEM can inject only system memory",
                into.len()
            ),
        ));
    }
    anywhere().load(into, addr).map_err(|_| FiError::FAULT)
}
