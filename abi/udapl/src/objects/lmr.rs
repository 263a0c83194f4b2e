//! LMRs (local memory regions).
//!
//! `DAT_MEM_TYPE_SHARED_VIRTUAL` lets LMRs of several processes share the resources of one registration. A registration here
//! uses no resources that could be shared, so such an LMR is treated as ordinary virtual memory.

#![allow(unsafe_code)]
// UNSAFETY: registers memory for a program.

use crate::handles::fail::{Fail, Result};
use crate::handles::object::{find, insert};
use crate::objects::ia::Ia;
use crate::objects::pz::Pz;
use crate::sys::consts::*;
use crate::sys::{LmrContext, LmrHandle, RegionDescription, RmrContext, Vaddr, Vlen};
use crate::values::privileges::rights;
use rkey_device::base::VaRange;
use rkey_device::core::{Access, Addressing, Region, RegionSpec, Rules};
use std::sync::Arc;

/// A local memory region.
pub struct Lmr {
    /// The PZ of the LMR.
    pub pz: Arc<Pz>,
    /// The device's region.
    pub region: Region,
    /// The memory, as this process addresses it.
    pub memory: VaRange,
    /// The rights that the program requested.
    pub access: Access,
    /// The program's description of the LMR.
    pub(crate) asked: LmrRequest,
}

/// An LMR as the program describes it.
#[derive(Clone, Copy)]
pub struct LmrRequest {
    /// `DAT_MEM_TYPE_*`.
    pub mem_type: dat_mem_type,
    /// The memory.
    pub description: RegionDescription,
    /// The length of the LMR, in bytes.
    pub length: Vlen,
    /// `DAT_MEM_PRIV_*`.
    pub privileges: dat_mem_priv_flags,
    /// `DAT_VA_TYPE_*`.
    pub va_type: dat_va_type,
}

// SAFETY: addresses in the description are only returned to the program.
unsafe impl Send for LmrRequest {}
// SAFETY: as above.
unsafe impl Sync for LmrRequest {}

crate::kind!(
    Lmr,
    HANDLE_TYPE_LMR,
    INVALID_HANDLE_LMR,
    RESOURCE_MEMORY_REGION,
    1 << 20
);

impl Lmr {
    /// The context that names it in local buffers and in binds.
    #[must_use]
    pub fn context(&self) -> LmrContext {
        self.region.local_key.0
    }

    /// The context for peers; 0 if it grants peers no rights.
    pub(crate) fn remote_context(&self) -> RmrContext {
        match self.access.intersects(Access::REMOTE) {
            true => self.region.key.0,
            false => 0,
        }
    }

    /// The address of its first byte in DTOs and binds.
    #[must_use]
    pub fn start(&self) -> Vaddr {
        match self.asked.va_type {
            VA_TYPE_ZB => 0,
            _ => self.memory.start(),
        }
    }

    /// Deregisters the LMR. When this returns, no peer accesses the memory.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`: RMRs are bound to it.
    pub fn close(&self) -> Result {
        self.pz.ia().device.deregister(self.region)?;
        self.pz.users.remove();
        Ok(())
    }
}

/// The memory that a description names. If it names an LMR, that is all of the LMR's memory.
///
/// # Safety
/// The description has the kind `mem_type`.
unsafe fn memory(ia: &Arc<Ia>, asked: &LmrRequest) -> Result<VaRange> {
    // SAFETY: the caller promises which member is there; all are plain addresses.
    let start = unsafe {
        match asked.mem_type {
            MEM_TYPE_VIRTUAL => asked.description.for_va as u64,
            MEM_TYPE_SHARED_VIRTUAL => asked.description.for_shared_memory.virtual_address as u64,
            MEM_TYPE_LMR => {
                let original = find::<Lmr>(asked.description.for_lmr_handle)?;
                if !Arc::ptr_eq(original.pz.ia(), ia) {
                    return Err(Fail::handle(INVALID_HANDLE_LMR));
                }
                return Ok(original.memory);
            }
            _ => return Err(Fail::argument(2)),
        }
    };
    if asked.length == 0 {
        return Err(Fail::LENGTH);
    }
    VaRange::new(start, asked.length).ok_or(Fail::LENGTH)
}

/// Registers memory.
///
/// # Errors
/// `DAT_LENGTH_ERROR`, `DAT_INVALID_PARAMETER`, `DAT_INVALID_HANDLE`, `DAT_INSUFFICIENT_RESOURCES`.
///
/// # Safety
/// The description has the kind that it states, and names memory of the program.
pub unsafe fn make(ia: &Arc<Ia>, pz: &Arc<Pz>, asked: LmrRequest) -> Result<(LmrHandle, Arc<Lmr>)> {
    if !Arc::ptr_eq(pz.ia(), ia) {
        return Err(Fail::handle(INVALID_HANDLE_PZ));
    }
    let access = rights(6, asked.privileges)?;
    let addressing = match asked.va_type {
        VA_TYPE_VA => Addressing::Virtual,
        VA_TYPE_ZB => Addressing::Zero,
        _ => return Err(Fail::argument(7)),
    };
    // SAFETY: guaranteed by the caller.
    let memory = unsafe { memory(ia, &asked)? };
    // Programs such as dtest send from LMRs without DAT_MEM_PRIV_LOCAL_READ_FLAG: InfiniBand has no such right. Binds do
    // require it, see `calls::rmr`.
    let granted = access | Access::LOCAL_READ;
    let spec = RegionSpec {
        addressing,
        rules: Rules::UDAPL,
        ..RegionSpec::new(pz.domain, std::slice::from_ref(&memory), granted)
    };
    // SAFETY: a program registers only its own memory, and lets DTOs access it.
    let region = unsafe { ia.device.register(&spec)? };
    let lmr = Arc::new(Lmr {
        pz: Arc::clone(pz),
        region,
        memory,
        access,
        asked,
    });
    pz.users.add();
    match insert::<Lmr>(ia.table, |_| Ok(Arc::clone(&lmr))) {
        Ok(handle) => Ok((handle, lmr)),
        Err(fail) => {
            let _ = lmr.close();
            Err(fail)
        }
    }
}
