//! `fi_fabric`: the parent of domains, event queues and passive endpoints. It owns the device.

#![allow(unsafe_code)]
// UNSAFETY: reads the handle, to which libfabric's core writes.

use crate::errno::Result;
use crate::info::offer::IOV_LIMIT;
use crate::object::{Users, object};
use crate::sys::*;
use parking_lot::Mutex;
use rkey_device::core::Api;
use rkey_device::{Config, Device};
use rkey_endpoint::listeners::Listeners;
use rkey_rdm::limits::{BUFFERS, INLINE_MAX, SENDS};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct FabricObject {
    fid: UnsafeCell<FidFabric>,
    pub(crate) inner: Arc<Fabric>,
}
object!(FabricObject, FidFabric, 1024);

/// The transport timeout of endpoints, as a value of `RKEY_TIMEOUT`: 13 seconds including retries. libfabric's
/// API has no timeouts, so endpoints wait for a slow peer. Whatever the timeout, they notice at once when a peer exits.
const TRANSPORT_TIMEOUT: u8 = 19;

/// The limits that a device must allow for endpoints to work.
const NEEDED_INLINE: u32 = INLINE_MAX as u32;
pub(crate) const NEEDED_SGE: u32 = IOV_LIMIT as u32 + 1;
const NEEDED_DEPTH: u32 = if BUFFERS > SENDS { BUFFERS } else { SENDS };

/// A fabric. The device is opened when an object first needs it.
#[derive(Default)]
pub(crate) struct Fabric {
    device: Mutex<Option<Device>>,
    pub(crate) listeners: Listeners,
    pub(crate) users: Users,
}

impl Fabric {
    /// The device.
    pub(crate) fn device(&self) -> Result<Device> {
        let mut device = self.device.lock();
        if let Some(device) = &*device {
            return Ok(device.clone());
        }
        let mut config = Config::default();
        config.timeout = TRANSPORT_TIMEOUT;
        config.api = Api::Libfabric;
        // Endpoints log denials themselves, under their own names.
        config.logs_own_denials = true;
        let config = config.with_env().map(|mut config| {
            enough_for_endpoints(&mut config);
            config
        });
        let config = config.map_err(rkey_device::DeviceError::from);
        let opened = config.and_then(Device::open_shared).map_err(|error| {
            tracing::warn!(%error, "cannot open the device");
            crate::errno::of_device(&error)
        })?;
        Ok(device.insert(opened).clone())
    }
}

/// Raises limits that are so low that every transfer of an endpoint would fail.
fn enough_for_endpoints(config: &mut Config) {
    let limits = [
        ("RKEY_MAX_INLINE", &mut config.max_inline, NEEDED_INLINE),
        ("RKEY_MAX_SGE", &mut config.max_sge, NEEDED_SGE),
        (
            "RKEY_MAX_QUEUE_DEPTH",
            &mut config.max_queue_depth,
            NEEDED_DEPTH,
        ),
    ];
    for (name, limit, needed) in limits {
        if *limit < needed {
            tracing::warn!("{name}={limit} is too low for libfabric endpoints; using {needed}");
            *limit = needed;
        }
    }
}

impl FabricObject {
    pub(crate) fn new(fid: FidFabric) -> Self {
        Self {
            fid: UnsafeCell::new(fid),
            inner: Arc::default(),
        }
    }

    /// The API version that the program requested, as libfabric's core stored it.
    pub(crate) fn api_version(&self) -> u32 {
        // SAFETY: the core writes the field once, before the program gets the handle.
        unsafe { (*self.fid.get()).api_version }
    }
}
