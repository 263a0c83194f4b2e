//! Habana's SynapseAI (`libSynapse.so`).
//!
//! Device addresses are not addresses of the process, and no call identifies an address, so the program is trusted. Copies go
//! one at a time through our own stream and host buffer for the device.

#![allow(unsafe_code)]
// UNSAFETY: calls C functions of the runtime, and copies from and to its host buffer.

use super::library::functions;
use super::{Absent, Allocation, Failure, Runtime};
use crate::Kind;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::{copy_nonoverlapping, null_mut};

type Code = c_int;

functions! {
    /// The functions of the runtime that we use.
    Functions of Kind::SynapseAi;
    stream_create = "synStreamCreateGeneric":
        unsafe extern "C" fn(*mut *mut c_void, u32, u32) -> Code;
    stream_synchronize = "synStreamSynchronize": unsafe extern "C" fn(*mut c_void) -> Code;
    host_malloc = "synHostMalloc": unsafe extern "C" fn(u32, u64, u32, *mut *mut c_void) -> Code;
    memcpy_async = "synMemCopyAsync": unsafe extern "C" fn(*mut c_void, u64, u64, u64, c_int) -> Code;
}

/// `synDmaDir`.
const HOST_TO_DEVICE: c_int = 0;
const DEVICE_TO_HOST: c_int = 1;

/// The size of a host buffer, in bytes.
const ROOM: usize = 256 << 10;

/// The stream and the host buffer of one device; 0 if not made yet. Never freed.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    stream: usize,
    buffer: usize,
}

/// The runtime.
#[derive(Debug)]
pub(super) struct SynapseAi {
    call: Functions,
    /// By device. Locked during a copy.
    lanes: Mutex<HashMap<u32, Lane>>,
}

fn check(call: &'static str, code: Code) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err(Failure::new(call, format_args!("synStatus {code}"))),
    }
}

impl SynapseAi {
    pub(super) fn load() -> Result<Self, Absent> {
        Ok(Self {
            call: Functions::load()?.0,
            lanes: Mutex::default(),
        })
    }

    /// Calls `with` with the stream and the buffer of a device, which no other thread uses during the call.
    fn with_lane(
        &self,
        of: &Allocation,
        with: impl FnOnce(Lane) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let device = of.device.unwrap_or(0) as u32;
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(device).or_default();
        self.complete(device, lane)?;
        with(*lane)
    }

    /// Creates the parts that a lane lacks. Existing parts stay, even if the rest fails.
    fn complete(&self, device: u32, lane: &mut Lane) -> Result<(), Failure> {
        if lane.stream == 0 {
            let mut stream = null_mut();
            // SAFETY: room for a handle.
            let code = unsafe { (self.call.stream_create)(&raw mut stream, device, 0) };
            check("synStreamCreateGeneric", code)?;
            lane.stream = stream as usize;
        }
        if lane.buffer == 0 {
            let mut buffer = null_mut();
            // SAFETY: room for an address.
            let code = unsafe { (self.call.host_malloc)(device, ROOM as u64, 0, &raw mut buffer) };
            check("synHostMalloc", code)?;
            lane.buffer = buffer as usize;
        }
        Ok(())
    }

    fn run(&self, lane: Lane, src: u64, len: usize, dst: u64, way: c_int) -> Result<(), Failure> {
        let stream = lane.stream as *mut c_void;
        // SAFETY: a stream of ours; one side is its buffer, which has this length; the runtime checks the other side.
        let code = unsafe { (self.call.memcpy_async)(stream, src, len as u64, dst, way) };
        check("synMemCopyAsync", code)?;
        // SAFETY: as above.
        let code = unsafe { (self.call.stream_synchronize)(stream) };
        check("synStreamSynchronize", code)
    }
}

impl Runtime for SynapseAi {
    fn load(&self, from: &Allocation, dst: &mut [u8], src: u64) -> Result<(), Failure> {
        self.with_lane(from, |lane| {
            for (part, at) in dst.chunks_mut(ROOM).zip((src..).step_by(ROOM)) {
                self.run(lane, at, part.len(), lane.buffer as u64, DEVICE_TO_HOST)?;
                let filled = lane.buffer as *const u8;
                // SAFETY: the buffer has at least the length of a part, and only the holder of the lock uses it.
                unsafe { copy_nonoverlapping(filled, part.as_mut_ptr(), part.len()) };
            }
            Ok(())
        })
    }

    fn store(&self, to: &Allocation, dst: u64, src: &[u8]) -> Result<(), Failure> {
        self.with_lane(to, |lane| {
            for (part, at) in src.chunks(ROOM).zip((dst..).step_by(ROOM)) {
                // SAFETY: as in `load`.
                unsafe { copy_nonoverlapping(part.as_ptr(), lane.buffer as *mut u8, part.len()) };
                self.run(lane, lane.buffer as u64, part.len(), at, HOST_TO_DEVICE)?;
            }
            Ok(())
        })
    }
}
