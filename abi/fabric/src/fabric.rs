//! `fi_fabric`: what domains, event queues and passive endpoints hang on. It owns the device.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::cm::Cm;
use crate::domain::domain_open;
use crate::eq::eq_open;
use crate::errno::{FiError, Result};
use crate::info::FABRIC_NAME;
use crate::nosys::{self, nosys};
use crate::object::{Users, find, object, place, remove, status};
use crate::pep::passive_ep;
use crate::sys::*;
use crate::{cq, ep, eq};
use parking_lot::Mutex;
use rkey_device::core::Api;
use rkey_device::{Config, Device};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

/// What a program has a handle of.
#[repr(C)]
pub(crate) struct FabricObject {
    fid: UnsafeCell<FidFabric>,
    pub(crate) inner: Arc<Fabric>,
}
object!(FabricObject, FidFabric, 1024);

/// The transport timeout of endpoints, as `RKEY_TIMEOUT` counts it: with its retries 13 seconds. Programs of libfabric
/// know no timeouts: a peer that is only slow is to be waited for. One that ended is noticed at once all the same.
const PATIENT: u8 = 19;

/// A fabric. The device is opened when the first object needs it.
#[derive(Default)]
pub(crate) struct Fabric {
    device: Mutex<Option<Device>>,
    pub(crate) cm: Cm,
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
            tracing::warn!(%error, "the device cannot be opened");
            crate::errno::of_device(&error)
        })?;
        // Endpoints tell of them, by their own names.
        opened.leave_own_denials_to_program();
        Ok(device.insert(opened).clone())
    }
}

/// Limits below what endpoints need would only make every transfer fail.
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
            tracing::warn!(
                "{name}={limit} is too little for libfabric endpoints: they take {needed}"
            );
            *limit = needed;
        }
    }
}

impl FabricObject {
    /// The version of libfabric that the program was written for, as the core noted it.
    pub(crate) fn api_version(&self) -> u32 {
        // SAFETY: the core writes the field before the program gets the handle, and never again.
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
/// Arguments as fi_fabric(3) asks for them.
pub(crate) unsafe extern "C" fn fabric(
    attr: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    status(|| {
        rkey_kit::log::start();
        // SAFETY: null or attributes, as the caller promises.
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
        // SAFETY: room for a handle, as the caller promises.
        unsafe { place(object, fabric) }.map(drop)
    })
}

/// `fi_close` of a fabric: `-FI_EBUSY` while something hangs on it.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        unsafe { find::<FabricObject, _>(fid)? }
            .inner
            .users
            .none("domains, event queues or passive endpoints of the fabric")?;
        // SAFETY: the program uses the fabric no more.
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
    // SAFETY: arguments as the caller promises.
    unsafe { domain_open(fabric, info, domain, context) }
}

/// `fi_trywait`: whether all of these objects may be waited for.
unsafe extern "C" fn trywait(fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        unsafe { find::<FabricObject, _>(fabric)? };
        let count = usize::try_from(count).map_err(|_| FiError::INVAL)?;
        // SAFETY: a list of this length, as the caller promises.
        for &fid in unsafe { crate::object::list(fids.cast_const(), count)? } {
            // SAFETY: handles of the program: each begins with a `fid`.
            match unsafe { crate::object::input(fid.cast_const())? }.fclass {
                // SAFETY: handles, or something that is refused.
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
