//! AWS Neuron (`libnrt.so.1`).
//!
//! The runtime copies to a device address (`nrt_memcpy_to_device`). It has no call that copies from an address, and none that
//! identifies an address. So regions can only be written, and the program is trusted.

#![allow(unsafe_code)]
// UNSAFETY: calls a C function of the runtime.

use super::library::functions;
use super::{Absent, Allocation, Failure, Runtime};
use crate::Kind;
use std::ffi::{c_int, c_void};

functions! {
    /// The function of the runtime that we use.
    Functions of Kind::Neuron;
    copy_to_device = "nrt_memcpy_to_device":
        unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;
}

/// The runtime.
#[derive(Debug)]
pub(super) struct Neuron(Functions);

impl Neuron {
    pub(super) fn load() -> Result<Self, Absent> {
        Ok(Self(Functions::load()?.0))
    }
}

impl Runtime for Neuron {
    fn load(&self, _: &Allocation, _: &mut [u8], _: u64) -> Result<(), Failure> {
        Err(Failure::new(
            "a copy from the device",
            "the runtime has no such call",
        ))
    }

    fn store(&self, _: &Allocation, dst: u64, src: &[u8]) -> Result<(), Failure> {
        let to = dst as *mut c_void;
        // SAFETY: the runtime checks the device's side; the source has this length.
        match unsafe { (self.0.copy_to_device)(to, src.as_ptr().cast(), src.len()) } {
            0 => Ok(()),
            status => {
                let code = format_args!("NRT_STATUS {status}");
                Err(Failure::new("nrt_memcpy_to_device", code))
            }
        }
    }
}
