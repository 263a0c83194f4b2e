//! The memory monitor that a program imports into the registration cache (`fi_import_fid`, FI-248, FI-I45). A process has at most
//! one. Domains opened while there is one have a cache.

#![allow(unsafe_code)]
// UNSAFETY: calls functions of the program, and writes to its structure.

use crate::errno::{FiError, Result};
use crate::nosys;
use crate::object::{input, status};
use crate::sys::*;
use parking_lot::{Mutex, RwLock};
use rkey_cache::{Imported, Source, Timing};
use rkey_device::base::VaRange;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

/// The monitor of the caches, and the program's part of it.
pub(crate) type ProgramMonitor = Imported<Program>;

static MONITOR: LazyLock<Arc<ProgramMonitor>> =
    LazyLock::new(|| Arc::new(Imported::new(Program::default(), Timing::Loose)));

/// The functions of a program's monitor. They may be called until `fi_close` of the monitor returns.
#[derive(Clone, Copy)]
struct Functions {
    fid: NonNull<FidMemMonitor>,
    start: unsafe extern "C" fn(*mut FidMemMonitor) -> c_int,
    stop: unsafe extern "C" fn(*mut FidMemMonitor),
    subscribe: unsafe extern "C" fn(*mut FidMemMonitor, *const c_void, usize) -> c_int,
    unsubscribe: unsafe extern "C" fn(*mut FidMemMonitor, *const c_void, usize),
    valid: unsafe extern "C" fn(*mut FidMemMonitor, *const c_void, usize) -> bool,
}

// SAFETY: the address of the program's structure is passed to its own functions, which it promises to be callable from
// every thread.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

/// The program's part of the monitor, if it has imported one.
#[derive(Default)]
pub(crate) struct Program {
    /// Locked for reading while a function of the program runs, so that closing the monitor waits for it.
    functions: RwLock<Option<Functions>>,
    /// How many caches use the monitor.
    caches: Mutex<usize>,
}

impl Program {
    /// Calls a function of the program. Returns `None` if the program has closed its monitor. The call may recurse, because the functions
    /// may register memory.
    fn call<T>(&self, call: impl FnOnce(&Functions) -> T) -> Option<T> {
        self.functions.read_recursive().as_ref().map(call)
    }
}

impl Source for Program {
    fn subscribe(&self, range: VaRange) -> bool {
        // SAFETY: the function is the program's, and `functions` is locked, so the monitor is not closed.
        let code = self.call(|it| unsafe {
            (it.subscribe)(
                it.fid.as_ptr(),
                range.start() as *const c_void,
                range.len() as usize,
            )
        });
        code == Some(0)
    }

    fn unsubscribe(&self, range: VaRange) {
        // SAFETY: as above.
        self.call(|it| unsafe {
            (it.unsubscribe)(
                it.fid.as_ptr(),
                range.start() as *const c_void,
                range.len() as usize,
            );
        });
    }

    fn valid(&self, range: VaRange) -> bool {
        // SAFETY: as above.
        let valid = self.call(|it| unsafe {
            (it.valid)(
                it.fid.as_ptr(),
                range.start() as *const c_void,
                range.len() as usize,
            )
        });
        valid == Some(true)
    }
}

/// Whether the program has imported a monitor.
pub(crate) fn exists() -> bool {
    MONITOR.source().functions.read().is_some()
}

/// A cache's use of the program's monitor. The first use starts the monitor, and the end of the last use stops it.
pub(crate) struct Use(Arc<ProgramMonitor>);

impl Use {
    /// Starts using the monitor, if the program has imported one and can start it.
    pub(crate) fn begin() -> Option<Self> {
        let program = MONITOR.source();
        let mut caches = program.caches.lock();
        let start = |it: &Functions| match *caches {
            // SAFETY: the function is the program's, and `functions` is locked, so the monitor is not closed.
            0 => unsafe { (it.start)(it.fid.as_ptr()) },
            _ => 0,
        };
        let code = program.call(start)?;
        if code != 0 {
            tracing::warn!(
                "the imported memory monitor did not start ({:?}); registrations are not cached",
                FiError(code.wrapping_neg())
            );
            return None;
        }
        *caches += 1;
        Some(Self(Arc::clone(&MONITOR)))
    }

    pub(crate) fn monitor(&self) -> Arc<ProgramMonitor> {
        Arc::clone(&self.0)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let program = self.0.source();
        let mut caches = program.caches.lock();
        *caches -= 1;
        if *caches == 0 {
            // SAFETY: the function is the program's, and `functions` is locked, so the monitor is not closed.
            program.call(|it| unsafe { (it.stop)(it.fid.as_ptr()) });
        }
    }
}

static NOTIFY: OpsMemNotify = OpsMemNotify {
    size: size_of::<OpsMemNotify>(),
    notify,
};

static FID_OPS: Ops = Ops {
    close,
    ..nosys::OPS
};

/// Imports a program's monitor: fills in its `fid.ops` and `import_ops`.
///
/// # Safety
/// `fid` is null or the beginning of an object of libfabric; a monitor stays valid until the program has closed it.
pub(crate) unsafe fn import(fid: *mut Fid) -> Result<()> {
    // SAFETY: the caller guarantees an object, which begins with a `fid`.
    if unsafe { input(fid.cast_const())? }.fclass != FI_CLASS_MEM_MONITOR {
        return Err(FiError::NOSYS.because(format_args!(
            "the cache can import only objects of class FI_CLASS_MEM_MONITOR"
        )));
    }
    let fid = NonNull::new(fid.cast::<FidMemMonitor>()).ok_or(FiError::INVAL)?;
    // SAFETY: an object of this class is a monitor.
    let functions = unsafe { functions(fid)? };
    let program = MONITOR.source();
    let caches = program.caches.lock();
    let mut place = program.functions.write();
    if place.is_some() || *caches > 0 {
        return Err(FiError::BUSY.because(format_args!(
            "a memory monitor is already imported, or domains still use the previous one: first close that monitor and those domains"
        )));
    }
    // SAFETY: the program's monitor, which no function uses yet.
    unsafe {
        (*fid.as_ptr()).fid.ops = &raw const FID_OPS;
        (*fid.as_ptr()).import_ops = &raw const NOTIFY;
    }
    *place = Some(functions);
    Ok(())
}

/// # Safety
/// `fid` is a monitor of the program.
unsafe fn functions(fid: NonNull<FidMemMonitor>) -> Result<Functions> {
    // SAFETY: guaranteed by the caller. A table that says that it is shorter is not read beyond its size.
    let ops = unsafe {
        let table = fid.as_ref().export_ops;
        if *input(table.cast::<usize>())? < size_of::<OpsMemMonitor>() {
            return Err(FiError::INVAL.because(format_args!(
                "the table of the memory monitor is too short: set its size to sizeof(struct fi_ops_mem_monitor)"
            )));
        }
        input(table)?
    };
    let all = || {
        Some(Functions {
            fid,
            start: ops.start?,
            stop: ops.stop?,
            subscribe: ops.subscribe?,
            unsubscribe: ops.unsubscribe?,
            valid: ops.valid?,
        })
    };
    all().ok_or_else(|| {
        FiError::INVAL.because(format_args!("a function of the memory monitor is missing"))
    })
}

/// `fi_ops_mem_notify.notify`: memory has changed or is about to. Takes no lock, and allocates nothing.
unsafe extern "C" fn notify(_: *mut FidMemMonitor, addr: *const c_void, len: usize) {
    let _ = rkey_kit::caught(|| {
        let start = addr as u64;
        // A range that wraps around ends with the address space.
        let len = (len as u64).min(u64::MAX - start);
        if let Some(range) = VaRange::new(start, len) {
            MONITOR.notify(range);
        }
    });
}

/// `fi_close` of a monitor. When this returns, none of its functions is running, so the program must not call this from one of them.
/// Invalidates all entries of the caches.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        let program = MONITOR.source();
        let ours = |it: &Functions| std::ptr::eq(it.fid.as_ptr().cast(), fid);
        {
            let mut place = program.functions.write();
            if !place.as_ref().is_some_and(ours) {
                return Err(FiError::INVAL);
            }
            *place = None;
        }
        if let Some(everything) = VaRange::new(0, u64::MAX) {
            MONITOR.notify(everything);
        }
        Ok(())
    })
}

const _: () = assert!(offset_of!(FidMemMonitor, fid) == 0);
