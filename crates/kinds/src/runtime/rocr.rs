//! AMD's ROCr (`libhsa-runtime64.so.1`).
//!
//! The runtime has no ids for allocations, but calls back when one is freed. We assign each allocation a number when we first
//! see it, and drop the number in that callback.

#![allow(unsafe_code)]
// UNSAFETY: calls C functions of the runtime, and is called by it.

use super::library::functions;
use super::{Absent, Allocation, Failure, MemoryLocation, Runtime};
use crate::Kind;
use parking_lot::Mutex;
use rkey_base::range::VaRange;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

type Code = c_int;

functions! {
    /// The functions of the runtime that we use.
    Functions of Kind::Rocr;
    pointer_info = "hsa_amd_pointer_info":
        unsafe extern "C" fn(*const c_void, *mut PointerInfo, *mut c_void, *mut u32, *mut c_void) -> Code;
    agent_info = "hsa_agent_get_info": unsafe extern "C" fn(u64, c_int, *mut c_void) -> Code;
    on_free = "hsa_amd_register_deallocation_callback":
        unsafe extern "C" fn(*mut c_void, extern "C" fn(*mut c_void, *mut c_void), *mut c_void) -> Code;
    memory_copy = "hsa_memory_copy": unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> Code;
}

/// `HSA_STATUS_ERROR_NOT_INITIALIZED`.
const NOT_INITIALIZED: Code = 0x100b;
/// `HSA_AGENT_INFO_DEVICE`, and its value for a processor.
const AGENT_DEVICE: c_int = 17;
const AGENT_IS_PROCESSOR: c_int = 0;

/// The first fields of `hsa_amd_pointer_info_t`; the runtime writes as many bytes as `size` says.
#[repr(C)]
#[derive(Debug)]
struct PointerInfo {
    size: u32,
    kind: c_int,
    agent_base: *mut c_void,
    host_base: *mut c_void,
    bytes: usize,
    user_data: *mut c_void,
    owner: u64,
}

/// `hsa_amd_pointer_type_t`: allocations of this process and of another one. Memory of the other types is not the runtime's.
const ALLOCATED: c_int = 1;
const IMPORTED: c_int = 4;

/// The numbers of live allocations, by address.
static LIVE: Mutex<Numbers> = Mutex::new(Numbers {
    next: 1,
    by_address: BTreeMap::new(),
});

struct Numbers {
    next: u64,
    by_address: BTreeMap<u64, u64>,
}

/// Called by the runtime when it frees an allocation.
extern "C" fn freed(address: *mut c_void, _: *mut c_void) {
    LIVE.lock().by_address.remove(&(address as u64));
}

/// The runtime.
#[derive(Debug)]
pub(super) struct Rocr(Functions);

fn check(call: &'static str, code: Code) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err(Failure::new(call, format_args!("HSA status {code:#x}"))),
    }
}

impl Rocr {
    pub(super) fn load() -> Result<Self, Absent> {
        Ok(Self(Functions::load()?.0))
    }

    /// The number of the allocation that begins here.
    fn number(&self, start: u64) -> Result<u64, Failure> {
        if let Some(number) = LIVE.lock().by_address.get(&start) {
            return Ok(*number);
        }
        // SAFETY: the start of an allocation, as the runtime said, and a function that lives as long as the process. The lock
        // is not held: the runtime calls back under its own.
        let code = unsafe { (self.0.on_free)(start as *mut c_void, freed, null_mut()) };
        check("hsa_amd_register_deallocation_callback", code)?;
        let mut live = LIVE.lock();
        let next = live.next;
        live.next += 1;
        Ok(*live.by_address.entry(start).or_insert(next))
    }

    fn copy(&self, dst: u64, src: u64, len: usize) -> Result<(), Failure> {
        // SAFETY: the runtime checks the accelerator's side; the other side is a buffer of the caller with this length.
        let code = unsafe { (self.0.memory_copy)(dst as *mut c_void, src as *const c_void, len) };
        check("hsa_memory_copy", code)
    }
}

impl Runtime for Rocr {
    fn find(&self, address: u64) -> Result<Option<Allocation>, Failure> {
        let mut info = PointerInfo {
            size: size_of::<PointerInfo>() as u32,
            kind: 0,
            agent_base: null_mut(),
            host_base: null_mut(),
            bytes: 0,
            user_data: null_mut(),
            owner: 0,
        };
        // SAFETY: the structure says its size; the list of agents is not asked for.
        let code = unsafe {
            (self.0.pointer_info)(
                address as *const c_void,
                &raw mut info,
                null_mut(),
                null_mut(),
                null_mut(),
            )
        };
        if code == NOT_INITIALIZED {
            return Ok(None);
        }
        check("hsa_amd_pointer_info", code)?;
        if info.kind != ALLOCATED && info.kind != IMPORTED {
            return Ok(None);
        }
        let start = info.agent_base as u64;
        let Some(range) = VaRange::new(start, info.bytes as u64) else {
            return Ok(None);
        };
        let mut device: c_int = 0;
        // SAFETY: an agent that the runtime named, and room for `hsa_device_type_t`.
        let code =
            unsafe { (self.0.agent_info)(info.owner, AGENT_DEVICE, (&raw mut device).cast()) };
        check("hsa_agent_get_info", code)?;
        let location = match device {
            AGENT_IS_PROCESSOR => MemoryLocation::Host,
            _ => MemoryLocation::Device,
        };
        let id = match location {
            MemoryLocation::Host => 0,
            _ => self.number(start)?,
        };
        Ok(Some(Allocation {
            range,
            id,
            device: None,
            location,
            context: 0,
        }))
    }

    fn load(&self, _: &Allocation, dst: &mut [u8], src: u64) -> Result<(), Failure> {
        self.copy(dst.as_mut_ptr().expose_provenance() as u64, src, dst.len())
    }

    fn store(&self, _: &Allocation, dst: u64, src: &[u8]) -> Result<(), Failure> {
        self.copy(dst, src.as_ptr().expose_provenance() as u64, src.len())
    }
}
