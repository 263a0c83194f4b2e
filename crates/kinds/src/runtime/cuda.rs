//! CUDA, through its driver interface (`libcuda.so.1`).
//!
//! Copies run in a stream of our own in the memory's context, so they do not wait for the program's kernels, and the
//! calling thread's context is restored before they return. Buffer IDs distinguish allocations that had the same address
//! one after the other.

#![allow(unsafe_code)]
// UNSAFETY: calls C functions of the CUDA driver.

use super::library::{function, functions};
use super::{Absent, Allocation, Failure, MemoryLocation, Runtime};
use crate::Kind;
use parking_lot::Mutex;
use rkey_base::range::VaRange;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

type Code = c_int;
type Context = *mut c_void;
type Stream = *mut c_void;

functions! {
    /// The functions of the driver that we use.
    Functions of Kind::Cuda;
    pointer_get_attributes = "cuPointerGetAttributes":
        unsafe extern "C" fn(c_uint, *const c_int, *const *mut c_void, u64) -> Code;
    push_context = "cuCtxPushCurrent_v2": unsafe extern "C" fn(Context) -> Code;
    pop_context = "cuCtxPopCurrent_v2": unsafe extern "C" fn(*mut Context) -> Code;
    primary_context = "cuDevicePrimaryCtxRetain": unsafe extern "C" fn(*mut Context, c_int) -> Code;
    memcpy_async = "cuMemcpyAsync": unsafe extern "C" fn(u64, u64, usize, Stream) -> Code;
    stream_create = "cuStreamCreate": unsafe extern "C" fn(*mut Stream, c_uint) -> Code;
    stream_destroy = "cuStreamDestroy_v2": unsafe extern "C" fn(Stream) -> Code;
    stream_synchronize = "cuStreamSynchronize": unsafe extern "C" fn(Stream) -> Code;
    error_name = "cuGetErrorName": unsafe extern "C" fn(Code, *mut *const c_char) -> Code;
}

/// `cuCtxGetId` (since CUDA 12): the address of a destroyed context can be used again, its id is not.
type ContextId = unsafe extern "C" fn(Context, *mut u64) -> Code;

const NOT_INITIALIZED: Code = 3;
const DEINITIALIZED: Code = 4;
/// A stream that does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;

/// `CUpointer_attribute`.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;

/// `CUmemorytype`.
const MEMORY_HOST: c_uint = 1;

/// The driver.
#[derive(Debug)]
pub(super) struct Cuda {
    call: Functions,
    context_id: Option<ContextId>,
    /// A stream for copies in each context, by the id of the context.
    streams: Mutex<HashMap<u64, usize>>,
    /// Primary contexts that we keep, by device, for memory that belongs to no context.
    primary: Mutex<HashMap<c_int, usize>>,
}

impl Cuda {
    pub(super) fn load() -> Result<Self, Absent> {
        let (call, library) = Functions::load()?;
        // SAFETY: the type is that of the header.
        let context_id = unsafe { function(Kind::Cuda, library, "cuCtxGetId") }.ok();
        Ok(Self {
            call,
            context_id,
            streams: Mutex::default(),
            primary: Mutex::default(),
        })
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: room for a pointer; the driver's strings live as long as the library.
        let named = unsafe { (self.call.error_name)(code, &raw mut name) } == 0 && !name.is_null();
        Err(match named {
            // SAFETY: a C string, as the driver says.
            true => Failure::new(call, unsafe { CStr::from_ptr(name) }.to_string_lossy()),
            false => Failure::new(call, code),
        })
    }

    /// The context in which an allocation is copied.
    fn context(&self, of: &Allocation) -> Result<Context, Failure> {
        if of.context != 0 {
            return Ok(of.context as Context);
        }
        let device = of.device.unwrap_or(0) as c_int;
        let mut primary = self.primary.lock();
        if let Some(context) = primary.get(&device) {
            return Ok(*context as Context);
        }
        let mut context = null_mut();
        // SAFETY: room for a context.
        let code = unsafe { (self.call.primary_context)(&raw mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        primary.insert(device, context as usize);
        Ok(context)
    }

    /// Copies in the context of an allocation.
    fn copy(&self, of: &Allocation, dst: u64, src: u64, len: usize) -> Result<(), Failure> {
        let context = self.context(of)?;
        // SAFETY: a context that the driver gave us, at most a moment ago.
        self.check("cuCtxPushCurrent", unsafe {
            (self.call.push_context)(context)
        })?;
        let copied = self.copy_here(context, dst, src, len);
        let mut popped = null_mut();
        // SAFETY: room for a context; the one that was pushed above.
        let code = unsafe { (self.call.pop_context)(&raw mut popped) };
        copied?;
        self.check("cuCtxPopCurrent", code)
    }

    /// Copies in the current context.
    fn copy_here(&self, context: Context, dst: u64, src: u64, len: usize) -> Result<(), Failure> {
        let (stream, kept) = self.stream(context)?;
        // SAFETY: a stream of the current context. The driver checks both addresses; the host's side is a buffer of the
        // caller with this length, which stays until the stream is synchronised.
        let (copied, done) = unsafe {
            let copied = (self.call.memcpy_async)(dst, src, len, stream);
            (copied, (self.call.stream_synchronize)(stream))
        };
        if !kept {
            // SAFETY: a stream that only this call used.
            unsafe { (self.call.stream_destroy)(stream) };
        }
        self.check("cuMemcpyAsync", copied)?;
        self.check("cuStreamSynchronize", done)
    }

    /// A stream for copies in the current context, and whether it is kept for later copies.
    fn stream(&self, context: Context) -> Result<(Stream, bool), Failure> {
        let id = self.context_id.and_then(|get| {
            let mut id = 0;
            // SAFETY: the current context, and room for its id.
            (unsafe { get(context, &raw mut id) } == 0).then_some(id)
        });
        let mut streams = self.streams.lock();
        if let Some(stream) = id.and_then(|id| streams.get(&id)) {
            return Ok((*stream as Stream, true));
        }
        let mut stream = null_mut();
        // SAFETY: room for a stream.
        let code = unsafe { (self.call.stream_create)(&raw mut stream, NON_BLOCKING) };
        self.check("cuStreamCreate", code)?;
        if let Some(id) = id {
            streams.insert(id, stream as usize);
        }
        Ok((stream, id.is_some()))
    }
}

impl Runtime for Cuda {
    fn find(&self, address: u64) -> Result<Option<Allocation>, Failure> {
        let (mut context, mut kind, mut id, mut managed) = (0usize, 0 as c_uint, 0u64, 0 as c_uint);
        let (mut ordinal, mut start, mut size): (c_int, u64, usize) = (0, 0, 0);
        let wanted = [
            (CONTEXT, (&raw mut context).cast::<c_void>()),
            (MEMORY_TYPE, (&raw mut kind).cast()),
            (BUFFER_ID, (&raw mut id).cast()),
            (IS_MANAGED, (&raw mut managed).cast()),
            (DEVICE_ORDINAL, (&raw mut ordinal).cast()),
            (RANGE_START, (&raw mut start).cast()),
            (RANGE_SIZE, (&raw mut size).cast()),
        ];
        let (names, places) = (wanted.map(|it| it.0), wanted.map(|it| it.1));
        // SAFETY: as many attributes as pointers, each to room for its attribute.
        let code = unsafe {
            (self.call.pointer_get_attributes)(
                names.len() as c_uint,
                names.as_ptr(),
                places.as_ptr(),
                address,
            )
        };
        if code == NOT_INITIALIZED || code == DEINITIALIZED {
            return Ok(None);
        }
        self.check("cuPointerGetAttributes", code)?;
        // For addresses that the driver does not know, all attributes are zero.
        if kind == 0 {
            return Ok(None);
        }
        let Some(range) = VaRange::new(start, size as u64) else {
            return Ok(None);
        };
        Ok(Some(Allocation {
            range,
            id,
            device: u64::try_from(ordinal).ok(),
            location: match (managed & 0xff, kind) {
                (0, MEMORY_HOST) => MemoryLocation::Host,
                (0, _) => MemoryLocation::Device,
                _ => MemoryLocation::Migrating,
            },
            context,
        }))
    }

    fn load(&self, from: &Allocation, dst: &mut [u8], src: u64) -> Result<(), Failure> {
        self.copy(
            from,
            dst.as_mut_ptr().expose_provenance() as u64,
            src,
            dst.len(),
        )
    }

    fn store(&self, to: &Allocation, dst: u64, src: &[u8]) -> Result<(), Failure> {
        self.copy(to, dst, src.as_ptr().expose_provenance() as u64, src.len())
    }
}
