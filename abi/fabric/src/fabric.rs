//! `fi_fabric`: the parent of domains, event queues and passive endpoints. It owns the device.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::domain::domain_open;
use crate::eq::eq_open;
use crate::errno::{FiError, Result};
use crate::info::FABRIC_NAME;
use crate::nosys::{self, nosys};
use crate::object::{Users, busy, find, object, publish, remove, status};
use crate::pep::passive_ep;
use crate::sys::*;
use crate::{cq, ep, eq};
use parking_lot::Mutex;
use rkey_device::core::Api;
use rkey_device::{Config, Device};
use rkey_endpoint::listeners::Listeners;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct FabricObject {
    fid: UnsafeCell<FidFabric>,
    pub(crate) inner: Arc<Fabric>,
}
object!(FabricObject, FidFabric, 1024);

/// The transport timeout of endpoints, in the units of `RKEY_TIMEOUT`: with its retries 13 seconds. Libfabric's
/// API has no timeouts: endpoints wait for a slow peer. They notice a peer that has ended at once, whatever the
/// timeout.
const PATIENT: u8 = 19;

/// A fabric. Its first object opens the device.
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
        config.timeout = PATIENT;
        config.api = Api::Libfabric;
        let config = config.with_env().map(|mut config| {
            enough_for_endpoints(&mut config);
            config
        });
        let config = config.map_err(rkey_device::DeviceError::from);
        let opened = config.and_then(Device::open).map_err(|error| {
            tracing::warn!(%error, "cannot open the device");
            crate::errno::of_device(&error)
        })?;
        // Endpoints log denials themselves, under their own names.
        opened.leave_own_denials_to_program();
        Ok(device.insert(opened).clone())
    }
}

/// Raises limits that are below what endpoints need, which would only make every transfer fail.
fn enough_for_endpoints(config: &mut Config) {
    let limits = [
        ("RKEY_MAX_INLINE", &mut config.max_inline, ep::NEEDED_INLINE),
        ("RKEY_MAX_SGE", &mut config.max_sge, ep::NEEDED_SGE),
        (
            "RKEY_MAX_QUEUE_DEPTH",
            &mut config.max_queue_depth,
            ep::NEEDED_DEPTH,
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
    /// The API version of the program, as libfabric's core stored it.
    pub(crate) fn api_version(&self) -> u32 {
        // SAFETY: the core writes the field once, before the program gets the handle.
        unsafe { (*self.fid.get()).api_version }
    }
}

static FID_OPS: Ops = Ops {
    close,
    ..nosys::OPS
};

static OPS: OpsFabric = OpsFabric {
    size: size_of::<OpsFabric>(),
    domain: domain_open,
    passive_ep,
    eq_open,
    wait_open: nosys!(c_int, *mut FidFabric, *mut c_void, *mut *mut c_void),
    trywait,
    domain2,
};

/// `fi_fabric`, as libfabric's core calls it.
///
/// # Safety
/// Arguments as fi_fabric(3) requires.
pub(crate) unsafe extern "C" fn fabric(
    attr: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    status(|| {
        rkey_kit::log::start();
        // SAFETY: the caller promises null or attributes.
        let name = unsafe { attr.as_ref() }.map_or(std::ptr::null_mut(), |attr| attr.name);
        // SAFETY: the name is null or a C string.
        if !name.is_null() && unsafe { CStr::from_ptr(name) } != FABRIC_NAME {
            return Err(FiError::NODATA);
        }
        let object = FabricObject {
            fid: UnsafeCell::new(FidFabric {
                fid: Fid::new(FI_CLASS_FABRIC, context, &FID_OPS),
                ops: &OPS,
                api_version: 0,
            }),
            inner: Arc::default(),
        };
        // SAFETY: the caller promises room for a handle.
        unsafe { publish(object, fabric) }.map(drop)
    })
}

/// `fi_close` of a fabric: `-FI_EBUSY` while it has open objects.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<FabricObject, _>(fid)? }
            .inner
            .users
            .none()
            .map_err(|_| busy("domains, event queues or passive endpoints of the fabric"))?;
        // SAFETY: the program no longer uses the fabric.
        unsafe { remove::<FabricObject, _>(fid) }.map(drop)
    })
}

unsafe extern "C" fn domain2(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return FiError::BADFLAGS.code();
    }
    // SAFETY: the caller promises valid arguments.
    unsafe { domain_open(fabric, info, domain, context) }
}

/// `fi_trywait`: whether a program may wait for all of these objects.
unsafe extern "C" fn trywait(fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<FabricObject, _>(fabric)? };
        let count = usize::try_from(count).map_err(|_| FiError::INVAL)?;
        // SAFETY: the caller promises a list of this length.
        for &fid in unsafe { crate::object::list(fids.cast_const(), count)? } {
            // SAFETY: the program's handles: each begins with a `fid`.
            match unsafe { crate::object::input(fid.cast_const())? }.fclass {
                // SAFETY: `trywait` validates the handle.
                FI_CLASS_CQ => unsafe { cq::trywait(fid)? },
                // SAFETY: as above.
                FI_CLASS_EQ => unsafe { eq::trywait(fid)? },
                // SAFETY: as above.
                FI_CLASS_CNTR => unsafe { crate::cntr::trywait(fid)? },
                _ => return Err(FiError::INVAL),
            }
        }
        Ok(())
    })
}
