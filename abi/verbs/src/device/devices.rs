//! The list of devices: always exactly one, `rkey0`.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and a list that C code frees.

use crate::device::gid;
use crate::object::input;
use crate::sys::consts::*;
use crate::sys::{Device, DeviceOps, VerbsDevice};
use parking_lot::Mutex;
use rkey_kit::{Errno, c_call, c_call_or_minus_one};
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// The name of the device.
pub const NAME: &CStr = c"rkey0";
/// The name of its character device, which does not exist; [`crate::compat::interpose`] emulates it.
pub const DEV_NAME: &CStr = c"uverbs-rkey0";
/// The index of the device.
const INDEX: c_int = 0;

/// The address of a structure that is never freed.
struct StaticDevice(*mut VerbsDevice);
// SAFETY: the structure is never written once it exists.
unsafe impl Send for StaticDevice {}
// SAFETY: as above.
unsafe impl Sync for StaticDevice {}

/// The device that programs see.
pub fn the_device() -> *mut Device {
    static DEVICE: OnceLock<StaticDevice> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        StaticDevice(Box::into_raw(Box::new(VerbsDevice {
            device: Device {
                _ops: DeviceOps {
                    _dummy1: None,
                    _dummy2: None,
                },
                node_type: NODE_CA,
                transport_type: TRANSPORT_IB,
                name: text(NAME.to_bytes()),
                dev_name: text(DEV_NAME.to_bytes()),
                dev_path: text(b"/sys/class/infiniband_verbs/uverbs-rkey0"),
                ibdev_path: text(b"/sys/class/infiniband/rkey0"),
            },
            ops: 0,
            reserved: [0; 16],
        })))
    });
    device.0.cast()
}

/// A string in a field of fixed size, padded with zeros.
fn text<const N: usize>(bytes: &[u8]) -> [c_char; N] {
    let mut field = [0; N];
    for (place, &byte) in field.iter_mut().zip(bytes).take(N - 1) {
        *place = byte as c_char;
    }
    field
}

/// Checks that a program has passed our device.
///
/// # Errors
/// `EINVAL`: it does not.
pub fn check(device: *const Device) -> Result<(), Errno> {
    if device == the_device().cast_const() {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

/// The device lists that programs have not freed yet.
static LISTS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn new_list(devices: &[*mut Device]) -> *mut *mut Device {
    let mut list = devices.to_vec();
    list.push(std::ptr::null_mut());
    let list = Box::into_raw(list.into_boxed_slice()).cast::<*mut Device>();
    LISTS.lock().push(list as usize);
    list
}

/// `ibv_get_device_list`.
///
/// # Safety
/// `count` is null or valid for writes.
pub unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut Device {
    c_call(|| {
        rkey_kit::log::start();
        if !count.is_null() {
            // SAFETY: not null, so the caller guarantees that it is valid for writes.
            unsafe { *count = 1 };
        }
        Ok(new_list(&[the_device()]))
    })
}

/// `ibv_get_device_list` of 2006, whose structures had another layout: always returns an empty list.
///
/// # Safety
/// `count` is null or valid for writes.
pub unsafe extern "C" fn get_device_list_1_0(count: *mut c_int) -> *mut *mut Device {
    c_call(|| {
        if !count.is_null() {
            // SAFETY: not null, so the caller guarantees that it is valid for writes.
            unsafe { *count = 0 };
        }
        Ok(new_list(&[]))
    })
}

/// `ibv_free_device_list`.
///
/// # Safety
/// The list must not be used afterwards.
pub unsafe extern "C" fn free_device_list(list: *mut *mut Device) {
    c_call(|| {
        let mut lists = LISTS.lock();
        let Some(place) = lists.iter().position(|&known| known == list as usize) else {
            return Ok(()); // not ours, or already freed
        };
        lists.swap_remove(place);
        drop(lists);
        let mut len = 1;
        // SAFETY: a list of ours ends with a null pointer, which is part of its allocation.
        while unsafe { !(*list.add(len - 1)).is_null() } {
            len += 1;
        }
        // SAFETY: `new_list` made it from a boxed slice of this length, and it was in the registry, so it is freed only once.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, len)) });
        Ok(())
    });
}

/// `ibv_get_device_name`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn get_device_name(device: *mut Device) -> *const c_char {
    c_call(|| check(device).map(|()| NAME.as_ptr()))
}

/// `ibv_get_device_index`: returns -1 if `device` is not ours.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn get_device_index(device: *mut Device) -> c_int {
    if check(device).is_ok() { INDEX } else { -1 }
}

/// `ibv_get_device_guid`: returns the GUID in network byte order, or 0 if `device` is not ours.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn get_device_guid(device: *mut Device) -> u64 {
    if check(device).is_ok() {
        gid::guid().to_be()
    } else {
        0
    }
}

/// `ibv_get_sysfs_path`: returns the usual mount point of sysfs.
pub extern "C" fn get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: reads a small file and cuts off its last newline.
///
/// # Safety
/// `folder` and `file` are null or C strings; `buffer` is null or valid for writes of `size` bytes.
pub unsafe extern "C" fn read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    let read = || {
        if buffer.is_null() || size == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: C strings, checked for null.
        let (folder, file) =
            unsafe { (CStr::from_ptr(input(folder)?), CStr::from_ptr(input(file)?)) };
        let path = [folder.to_bytes(), b"/", file.to_bytes()].concat();
        let path = std::ffi::OsString::from(String::from_utf8_lossy(&path).into_owned());
        let mut bytes = std::fs::read(path).map_err(|error| Errno::from(&error))?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        bytes.truncate(size - 1);
        // SAFETY: the buffer has `size` bytes, and `bytes` has at least one fewer.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len());
            *buffer.add(bytes.len()) = 0;
        }
        Ok(bytes.len() as c_int)
    };
    c_call_or_minus_one(read)
}
