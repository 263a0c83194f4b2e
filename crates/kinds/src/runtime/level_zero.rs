//! Intel's oneAPI Level Zero (`libze_loader.so.1`).
//!
//! The driver's allocation ids distinguish allocations that had the same address one after the other. Copies run one at a
//! time, in our own immediate command list for the device.

#![allow(unsafe_code)]
// UNSAFETY: calls C functions of the Level Zero loader.

use super::library::functions;
use super::{Absent, Allocation, Failure, MemoryLocation, Runtime};
use crate::Kind;
use parking_lot::Mutex;
use rkey_base::range::VaRange;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

type Code = u32;
type Handle = *mut c_void;

functions! {
    /// The functions of the loader that we use.
    Functions of Kind::LevelZero;
    driver_get = "zeDriverGet": unsafe extern "C" fn(*mut u32, *mut Handle) -> Code;
    device_get = "zeDeviceGet": unsafe extern "C" fn(Handle, *mut u32, *mut Handle) -> Code;
    sub_devices = "zeDeviceGetSubDevices":
        unsafe extern "C" fn(Handle, *mut u32, *mut Handle) -> Code;
    context_create = "zeContextCreate":
        unsafe extern "C" fn(Handle, *const ContextDesc, *mut Handle) -> Code;
    properties = "zeMemGetAllocProperties":
        unsafe extern "C" fn(Handle, *const c_void, *mut Properties, *mut Handle) -> Code;
    range = "zeMemGetAddressRange":
        unsafe extern "C" fn(Handle, *const c_void, *mut *mut c_void, *mut usize) -> Code;
    list_create = "zeCommandListCreateImmediate":
        unsafe extern "C" fn(Handle, Handle, *const QueueDesc, *mut Handle) -> Code;
    append_copy = "zeCommandListAppendMemoryCopy":
        unsafe extern "C" fn(Handle, *mut c_void, *const c_void, usize, Handle, u32, *mut Handle) -> Code;
}

/// `ZE_RESULT_ERROR_UNINITIALIZED`.
const UNINITIALIZED: Code = 0x7800_0001;

/// `ze_structure_type_t`.
const CONTEXT_DESC: u32 = 0xd;
const QUEUE_DESC: u32 = 0xe;
const PROPERTIES: u32 = 0x17;

/// `ze_context_desc_t`.
#[repr(C)]
#[derive(Debug)]
struct ContextDesc {
    stype: u32,
    next: *const c_void,
    flags: u32,
}

/// `ze_command_queue_desc_t`.
#[repr(C)]
#[derive(Debug)]
struct QueueDesc {
    stype: u32,
    next: *const c_void,
    ordinal: u32,
    index: u32,
    flags: u32,
    mode: u32,
    priority: u32,
}

/// `ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS`: a command has finished when its call returns.
const SYNCHRONOUS: u32 = 1;

/// `ze_memory_allocation_properties_t`.
#[repr(C)]
#[derive(Debug)]
struct Properties {
    stype: u32,
    next: *mut c_void,
    kind: u32,
    id: u64,
    page_size: u64,
}

/// `ze_memory_type_t`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const SHARED: u32 = 3;

/// A driver of the loader: our context, and its devices.
#[derive(Debug)]
struct Driver {
    context: usize,
    devices: Vec<Device>,
}

/// A device. An allocation can belong to one of its sub-devices ("tiles"); a command list of the whole device copies that, too.
#[derive(Debug)]
struct Device {
    handle: usize,
    sub_devices: Vec<usize>,
}

impl Device {
    fn has(&self, handle: Handle) -> bool {
        self.handle == handle as usize || self.sub_devices.contains(&(handle as usize))
    }
}

/// The loader.
#[derive(Debug)]
pub(super) struct LevelZero {
    call: Functions,
    /// Known once the program has initialised the loader.
    drivers: Mutex<Option<&'static [Driver]>>,
    /// The command list for copies of each device. Locked during a copy: only one thread at a time may use a list.
    lists: Mutex<HashMap<usize, usize>>,
}

fn check(call: &'static str, code: Code) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err(Failure::new(call, format_args!("ze_result {code:#x}"))),
    }
}

/// The handles that a call lists. The first call returns only their number.
fn list(
    name: &'static str,
    mut call: impl FnMut(*mut u32, *mut Handle) -> Code,
) -> Result<Vec<Handle>, Failure> {
    let mut count = 0;
    check(name, call(&raw mut count, null_mut()))?;
    let mut handles = vec![null_mut(); count as usize];
    if count > 0 {
        check(name, call(&raw mut count, handles.as_mut_ptr()))?;
    }
    // There may be fewer by now.
    handles.truncate(count as usize);
    Ok(handles)
}

impl LevelZero {
    pub(super) fn load() -> Result<Self, Absent> {
        Ok(Self {
            call: Functions::load()?.0,
            drivers: Mutex::new(None),
            lists: Mutex::default(),
        })
    }

    /// The drivers; none before the program has initialised the loader.
    fn drivers(&self) -> Result<&'static [Driver], Failure> {
        let mut drivers = self.drivers.lock();
        if let Some(drivers) = *drivers {
            return Ok(drivers);
        }
        let mut initialised = true;
        let handles = list("zeDriverGet", |count, into| {
            // SAFETY: room for what the call says.
            let code = unsafe { (self.call.driver_get)(count, into) };
            initialised = code != UNINITIALIZED;
            if initialised { code } else { 0 }
        })?;
        if !initialised {
            return Ok(&[]);
        }
        let all = handles.into_iter().map(|driver| self.driver(driver));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        Ok(drivers.insert(Vec::leak(all)))
    }

    fn driver(&self, driver: Handle) -> Result<Driver, Failure> {
        // SAFETY: a driver of the loader, and room for what the call says.
        let devices = list("zeDeviceGet", |count, into| unsafe {
            (self.call.device_get)(driver, count, into)
        })?;
        let device = |handle: Handle| {
            // SAFETY: a device of the driver, and room for what the call says.
            let sub_devices = list("zeDeviceGetSubDevices", |count, into| unsafe {
                (self.call.sub_devices)(handle, count, into)
            })?;
            Ok(Device {
                handle: handle as usize,
                sub_devices: sub_devices.into_iter().map(|it| it as usize).collect(),
            })
        };
        let devices = devices.into_iter().map(device).collect::<Result<_, _>>()?;
        let desc = ContextDesc {
            stype: CONTEXT_DESC,
            next: null(),
            flags: 0,
        };
        let mut context = null_mut();
        // SAFETY: a complete description, and room for a handle.
        let code = unsafe { (self.call.context_create)(driver, &raw const desc, &raw mut context) };
        check("zeContextCreate", code)?;
        Ok(Driver {
            context: context as usize,
            devices,
        })
    }

    /// The allocation with this address at the driver with this number.
    fn find_at(
        &self,
        number: u64,
        driver: &Driver,
        at: u64,
    ) -> Result<Option<Allocation>, Failure> {
        let (context, pointer) = (driver.context as Handle, at as *const c_void);
        let mut it = Properties {
            stype: PROPERTIES,
            next: null_mut(),
            kind: 0,
            id: 0,
            page_size: 0,
        };
        let mut device = null_mut();
        let (mut start, mut size) = (null_mut(), 0);
        // SAFETY: our context; the structure says its type; room for handles and numbers.
        unsafe {
            let code = (self.call.properties)(context, pointer, &raw mut it, &raw mut device);
            check("zeMemGetAllocProperties", code)?;
            if !(HOST..=SHARED).contains(&it.kind) {
                return Ok(None);
            }
            let code = (self.call.range)(context, pointer, &raw mut start, &raw mut size);
            check("zeMemGetAddressRange", code)?;
        }
        let Some(range) = VaRange::new(start as u64, size as u64) else {
            return Ok(None);
        };
        let index = driver.devices.iter().position(|it| it.has(device));
        Ok(Some(Allocation {
            range,
            id: it.id,
            // As `fi_hmem_ze_device` encodes driver and device.
            device: index.map(|index| number << 16 | index as u64),
            location: match it.kind {
                HOST => MemoryLocation::Host,
                DEVICE => MemoryLocation::Device,
                _ => MemoryLocation::Migrating,
            },
            context: number as usize,
        }))
    }

    fn copy(&self, of: &Allocation, dst: u64, src: u64, len: usize) -> Result<(), Failure> {
        let driver = self.drivers()?.get(of.context);
        // Memory that migrates and belongs to no device is copied by the first.
        let device = driver.and_then(|driver| {
            let index = of.device.map_or(0, |number| number as usize & 0xffff);
            driver.devices.get(index)
        });
        let (Some(driver), Some(device)) = (driver, device) else {
            return Err(Failure::new("zeDeviceGet", "there is no such device"));
        };
        let mut lists = self.lists.lock();
        let list = match lists.get(&device.handle) {
            Some(list) => *list as Handle,
            None => {
                let list = self.list(driver, device.handle)?;
                lists.insert(device.handle, list as usize);
                list
            }
        };
        // SAFETY: a list of ours, which no other thread uses; the driver checks the accelerator's side, and the other side is a
        // buffer of the caller with this length. The list is synchronous.
        let code = unsafe {
            (self.call.append_copy)(
                list,
                dst as *mut c_void,
                src as *const c_void,
                len,
                null_mut(),
                0,
                null_mut(),
            )
        };
        check("zeCommandListAppendMemoryCopy", code)
    }

    fn list(&self, driver: &Driver, device: usize) -> Result<Handle, Failure> {
        let desc = QueueDesc {
            stype: QUEUE_DESC,
            next: null(),
            ordinal: 0,
            index: 0,
            flags: 0,
            mode: SYNCHRONOUS,
            priority: 0,
        };
        let (context, mut list) = (driver.context as Handle, null_mut());
        // SAFETY: our context, a device of its driver, a complete description, and room for a handle.
        let code = unsafe {
            (self.call.list_create)(context, device as Handle, &raw const desc, &raw mut list)
        };
        check("zeCommandListCreateImmediate", code)?;
        Ok(list)
    }
}

impl Runtime for LevelZero {
    fn find(&self, address: u64) -> Result<Option<Allocation>, Failure> {
        for (number, driver) in (0..).zip(self.drivers()?) {
            if let Some(found) = self.find_at(number, driver, address)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn load(&self, from: &Allocation, dst: &mut [u8], src: u64) -> Result<(), Failure> {
        let to = dst.as_mut_ptr().expose_provenance() as u64;
        self.copy(from, to, src, dst.len())
    }

    fn store(&self, to: &Allocation, dst: u64, src: &[u8]) -> Result<(), Failure> {
        let from = src.as_ptr().expose_provenance() as u64;
        self.copy(to, dst, from, src.len())
    }
}
