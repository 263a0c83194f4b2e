//! `ibv_reg_mr_ex` (rdma-core 59): one call for every kind of memory, with an extensible structure.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::memory::buf;
use crate::memory::mr::{reg_dmabuf_mr, reg_mr_iova2};
use crate::object::input;
use crate::sys::consts::*;
use crate::sys::{Mr, MrInitAttr, MrInitAttrBuf, Pd};
use rkey_kit::{Errno, c_call};

/// The fields that this library supports.
const KNOWN: u64 =
    REG_MR_MASK_IOVA | REG_MR_MASK_ADDR | REG_MR_MASK_FD | REG_MR_MASK_FD_OFFSET | REG_MR_MASK_BUF;

/// The memory that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Memory of the program.
    Address,
    /// A mappable file, from this offset.
    File(u64),
    /// A part of an `ibv_alloc_buf` buffer.
    Buf,
}

/// The memory that the attributes name.
///
/// # Errors
/// `EOPNOTSUPP`: a field that this device does not support (DMA handles, fields of later versions); `EINVAL`:
/// no memory, or two kinds.
fn source(attr: &MrInitAttr) -> Result<Source, Errno> {
    let given = |bit| attr.comp_mask & bit != 0;
    if given(!KNOWN) {
        return Err(Errno::OPNOTSUPP);
    }
    if given(REG_MR_MASK_FD_OFFSET) && !given(REG_MR_MASK_FD) {
        return Err(Errno::INVAL);
    }
    let memory = [REG_MR_MASK_ADDR, REG_MR_MASK_FD, REG_MR_MASK_BUF].map(given);
    match memory {
        [true, false, false] => Ok(Source::Address),
        [false, true, false] => Ok(Source::File(if given(REG_MR_MASK_FD_OFFSET) {
            attr.fd_offset
        } else {
            0
        })),
        [true, false, true] => Ok(Source::Buf),
        _ => Err(Errno::INVAL),
    }
}

/// `ibv_reg_mr_ex`. Without `IBV_REG_MR_MASK_IOVA`, requests name the memory by its address, or by its offset
/// in a file.
///
/// # Safety
/// The memory stays valid until the region is deregistered; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn reg_mr_ex(pd: *mut Pd, attr: *mut MrInitAttr) -> *mut Mr {
    c_call(|| {
        let with_buf = attr.cast::<MrInitAttrBuf>();
        // SAFETY: `input` refuses null; the caller guarantees the rest.
        let attr = unsafe { input(attr)? };
        let source = source(attr)?;
        let given = (attr.comp_mask & REG_MR_MASK_IOVA != 0).then_some(attr.iova);
        // SAFETY: guaranteed by the caller; each of these calls validates its arguments.
        let region = unsafe {
            match source {
                Source::Address => {
                    let iova = given.unwrap_or(attr.addr as u64);
                    reg_mr_iova2(pd, attr.addr, attr.length, iova, attr.access as u32)
                }
                Source::File(offset) => {
                    let iova = given.unwrap_or(offset);
                    reg_dmabuf_mr(pd, offset, attr.length, iova, attr.fd, attr.access)
                }
                Source::Buf => {
                    // The mask says that this field is set.
                    buf::check(pd, (*with_buf).buf, attr.addr, attr.length)?;
                    let iova = given.unwrap_or(attr.addr as u64);
                    reg_mr_iova2(pd, attr.addr, attr.length, iova, attr.access as u32)
                }
            }
        };
        if region.is_null() {
            Err(Errno::last())
        } else {
            Ok(region)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reg_mr_ex_needs_exactly_one_kind_of_memory() {
        const ADDR: u64 = REG_MR_MASK_ADDR;
        const FD: u64 = REG_MR_MASK_FD;
        const OFFSET: u64 = REG_MR_MASK_FD_OFFSET;
        const BUF: u64 = REG_MR_MASK_BUF;
        for (comp_mask, expected) in [
            (ADDR, Ok(Source::Address)),
            (ADDR | REG_MR_MASK_IOVA, Ok(Source::Address)),
            (FD, Ok(Source::File(0))),
            (FD | OFFSET, Ok(Source::File(77))),
            (ADDR | BUF, Ok(Source::Buf)),
            (0, Err(Errno::INVAL)),
            (REG_MR_MASK_IOVA, Err(Errno::INVAL)),
            (BUF, Err(Errno::INVAL)),
            (ADDR | FD, Err(Errno::INVAL)),
            (ADDR | BUF | FD, Err(Errno::INVAL)),
            (ADDR | OFFSET, Err(Errno::INVAL)),
            (ADDR | BUF | OFFSET, Err(Errno::INVAL)),
            (ADDR | REG_MR_MASK_DMAH, Err(Errno::OPNOTSUPP)),
            (ADDR | 1 << 6, Err(Errno::OPNOTSUPP)),
            (ADDR | 1 << 63, Err(Errno::OPNOTSUPP)),
        ] {
            let attr = MrInitAttr {
                length: 0,
                access: 0,
                comp_mask,
                iova: 0,
                addr: std::ptr::null_mut(),
                fd: -1,
                fd_offset: 77,
                dmah: std::ptr::null_mut(),
            };
            assert_eq!(source(&attr), expected, "{comp_mask:#x}");
        }
    }
}
