//! Options of an endpoint: `fi_getopt`, `fi_setopt` (fi_endpoint(3)).

#![allow(unsafe_code)]
// UNSAFETY: C functions that read and write the program's memory.

use super::object::EpObject;
use super::shared::SrxObject;
use super::*;
use crate::info::offer::{CM_DATA_SIZE, INJECT_SIZE, MAX_DGRAM_SIZE, MAX_MSG_SIZE};
use crate::mr::hmem;
use crate::object::{find, status};
use rkey_kinds::Kind;
use std::ffi::{CStr, c_void};
use std::sync::atomic::AtomicI32;

/// The level of options of endpoints.
const LEVEL: c_int = 0;
/// The error for an option that is unknown, that this kind of endpoint does not have, or that cannot be set.
const NO_SUCH: FiError = FiError(libc::ENOPROTOOPT);

/// The maximum lengths of an endpoint's transfers, in bytes, in the order of the options: messages, tagged messages, RMA, atomics,
/// then the injected form of each.
pub(super) struct Limits {
    now: [AtomicUsize; 8],
    most: [usize; 8],
}

impl Limits {
    pub(super) const MESSAGE: usize = 0;
    pub(super) const TAGGED: usize = 1;
    pub(super) const RMA: usize = 2;
    pub(super) const ATOMIC: usize = 3;
    const INJECTED: usize = 4;

    /// The limits of a kind of endpoint, until the program sets lower ones.
    pub(super) fn of(ep_type: c_int) -> Self {
        let most = match ep_type {
            FI_EP_DGRAM => {
                let inject = INJECT_SIZE.min(MAX_DGRAM_SIZE);
                [MAX_DGRAM_SIZE, 0, 0, 0, inject, 0, 0, 0]
            }
            _ => {
                let atomic = rkey_rdm::atomic::BYTES_MAX;
                let all = [MAX_MSG_SIZE, MAX_MSG_SIZE, MAX_MSG_SIZE, atomic];
                let injected = all.map(|most| most.min(INJECT_SIZE));
                let [a, b, c, d] = all;
                let [e, f, g, h] = injected;
                [a, b, c, d, e, f, g, h]
            }
        };
        Self {
            now: most.map(AtomicUsize::new),
            most,
        }
    }

    /// The index of an option.
    fn place(option: c_int) -> Option<usize> {
        let place = option.checked_sub(FI_OPT_MAX_MSG_SIZE)?;
        usize::try_from(place).ok().filter(|&place| place < 8)
    }

    /// Returns `FI_EMSGSIZE` if a transfer of this kind is longer than the program or the endpoint allows.
    #[inline]
    pub(super) fn check(&self, kind: usize, flags: u64, len: usize) -> Result<()> {
        let whole = self.now[kind].load(Ordering::Relaxed);
        if len > whole {
            return Err(too_long("a transfer of this kind (max_msg_size)", whole));
        }
        if flags & FI_INJECT != 0 {
            let injected = self.now[kind + Self::INJECTED].load(Ordering::Relaxed);
            if len > injected {
                return Err(too_long("an injected transfer (inject_size)", injected));
            }
        }
        Ok(())
    }
}

#[cold]
fn too_long(what: &str, most: usize) -> FiError {
    FiError::MSGSIZE.because(format_args!(
        "{what} may have at most {most} B at this endpoint"
    ))
}

/// The objects with options, except passive endpoints.
enum Target<'a> {
    Endpoint(&'a Endpoint),
    Shared(&'a Srx),
}

impl<'a> Target<'a> {
    /// # Safety
    /// See [`crate::object`] for the rules of handles.
    unsafe fn find(fid: *mut Fid) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match find::<EpObject, _>(fid) {
                Ok(ep) => Ok(Self::Endpoint(&ep.inner)),
                Err(_) => Ok(Self::Shared(&find::<SrxObject, _>(fid)?.inner)),
            }
        }
    }

    /// The minimum room for another message in a multi-receive buffer.
    fn min_multi_recv(&self) -> &'a AtomicUsize {
        match self {
            Self::Endpoint(ep) => &ep.min_multi_recv,
            Self::Shared(srx) => &srx.min_multi_recv,
        }
    }

    fn endpoint(&self) -> Result<&'a Endpoint> {
        match self {
            Self::Endpoint(ep) => Ok(ep),
            Self::Shared(_) => Err(NO_SUCH),
        }
    }
}

/// `fi_getopt`.
pub(super) unsafe extern "C" fn getopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let target = unsafe { Target::find(fid)? };
        if level != LEVEL {
            return Err(NO_SUCH);
        }
        let number = match option {
            FI_OPT_MIN_MULTI_RECV => target.min_multi_recv().load(Ordering::Relaxed),
            FI_OPT_CM_DATA_SIZE => {
                target.endpoint()?;
                CM_DATA_SIZE
            }
            FI_OPT_FI_HMEM_P2P => {
                let requested = match hmem::is_p2p_disabled() {
                    true => FI_HMEM_P2P_DISABLED,
                    false => target.endpoint()?.hmem_p2p.load(Ordering::Relaxed),
                };
                // SAFETY: the program promises a length and room for as many bytes.
                return unsafe { write_option(requested, value, len) };
            }
            // The device does not trigger operations.
            FI_OPT_XPU_TRIGGER => {
                target.endpoint()?;
                return Err(FiError::OPNOTSUPP);
            }
            _ => {
                let limits = &target.endpoint()?.limits;
                let place = Limits::place(option).ok_or(NO_SUCH)?;
                limits.now[place].load(Ordering::Relaxed)
            }
        };
        // SAFETY: the program promises a length and room for as many bytes.
        unsafe { write_option(number, value, len) }
    })
}

/// Stores the value of an option for the program. If it does not fit, returns `FI_ETOOSMALL` and stores the required length.
///
/// # Safety
/// `len` is null or points to a length, and `value` is null or valid for writes of that many bytes.
unsafe fn write_option<T>(it: T, value: *mut c_void, len: *mut usize) -> Result<()> {
    if len.is_null() {
        return Err(FiError::INVAL);
    }
    // SAFETY: not null, so it points to a length, and `value` is valid for writes of that many bytes.
    unsafe {
        let room = len.replace(size_of::<T>());
        if room < size_of::<T>() || value.is_null() {
            return Err(FiError::TOOSMALL);
        }
        value.cast::<T>().write_unaligned(it);
    }
    Ok(())
}

/// The value of an option; fails with `FI_EINVAL` if its length is not that of `T`.
///
/// # Safety
/// `value` is null or has `len` bytes.
unsafe fn take<T>(value: *const c_void, len: usize) -> Result<T> {
    if value.is_null() || len != size_of::<T>() {
        return Err(FiError::INVAL);
    }
    // SAFETY: the caller guarantees this number of bytes.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// `fi_setopt`.
pub(super) unsafe extern "C" fn setopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let target = unsafe { Target::find(fid)? };
        if level != LEVEL {
            return Err(NO_SUCH);
        }
        // SAFETY: `len` bytes, as the program says.
        unsafe {
            match option {
                FI_OPT_MIN_MULTI_RECV => {
                    let least = take(value, len)?;
                    target.min_multi_recv().store(least, Ordering::Relaxed);
                    Ok(())
                }
                FI_OPT_FI_HMEM_P2P => set_p2p(&target.endpoint()?.hmem_p2p, take(value, len)?),
                FI_OPT_CUDA_API_PERMITTED => {
                    let hmem = target.endpoint()?.domain.hmem;
                    // A C boolean: one byte.
                    let permitted = take::<u8>(value, len)? != 0;
                    let there = has_cuda() || hmem && Kind::Cuda.load().is_ok();
                    if !there {
                        Err(FiError::INVAL.because(format_args!(
                            "FI_OPT_CUDA_API_PERMITTED cannot be set: this host has no CUDA device"
                        )))
                    } else if hmem && !permitted {
                        Err(FiError::OPNOTSUPP.because(format_args!(
                            "FI_OPT_CUDA_API_PERMITTED cannot be false: only the CUDA driver can copy CUDA memory"
                        )))
                    } else {
                        Ok(())
                    }
                }
                FI_OPT_SHARED_MEMORY_PERMITTED => {
                    target.endpoint()?;
                    match take::<u8>(value, len)? {
                        0 => Err(FiError::OPNOTSUPP.because(format_args!(
                            "FI_OPT_SHARED_MEMORY_PERMITTED cannot be false: endpoints reach peers on this host only through shared memory"
                        ))),
                        _ => Ok(()),
                    }
                }
                _ => {
                    let limits = &target.endpoint()?.limits;
                    let place = Limits::place(option).ok_or(NO_SUCH)?;
                    let requested = take::<usize>(value, len)?;
                    if requested > limits.most[place] {
                        return Err(FiError::INVAL);
                    }
                    limits.now[place].store(requested, Ordering::Relaxed);
                    Ok(())
                }
            }
        }
    })
}

/// FI-I27: runtimes always copy the memory of their own devices, so there are no peer-to-peer transfers. Forbidding
/// them has no effect, and requiring them is impossible.
fn set_p2p(place: &AtomicI32, requested: c_int) -> Result<()> {
    match requested {
        FI_HMEM_P2P_ENABLED | FI_HMEM_P2P_PREFERRED | FI_HMEM_P2P_DISABLED => {
            place.store(requested, Ordering::Relaxed);
            Ok(())
        }
        _ => Err(FiError::OPNOTSUPP.because(format_args!(
            "accelerator memory is always copied by its runtime: FI_HMEM_P2P_REQUIRED cannot be met"
        ))),
    }
}

/// Whether the CUDA library and a device exist (fi_endpoint(3), `FI_OPT_CUDA_API_PERMITTED`).
fn has_cuda() -> bool {
    const LIBRARY: &CStr = c"libcuda.so.1";
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        return false;
    }
    // SAFETY: a C string. The library is the driver's, which programs with CUDA have loaded; none of it is called.
    unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        !library.is_null() && libc::dlclose(library) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_the_indexes_of_their_options() {
        assert_eq!(Limits::place(FI_OPT_MAX_MSG_SIZE), Some(Limits::MESSAGE));
        assert_eq!(Limits::place(FI_OPT_MAX_ATOMIC_SIZE), Some(Limits::ATOMIC));
        let injected = Limits::place(FI_OPT_INJECT_MSG_SIZE);
        assert_eq!(injected, Some(Limits::INJECTED));
        assert_eq!(Limits::place(FI_OPT_INJECT_ATOMIC_SIZE), Some(7));
        for other in [FI_OPT_SHARED_MEMORY_PERMITTED, 20, c_int::MAX, c_int::MIN] {
            assert_eq!(Limits::place(other), None, "{other}");
        }
    }

    #[test]
    fn injected_transfers_have_a_limit_of_their_own() {
        let limits = Limits::of(FI_EP_RDM);
        assert!(limits.check(Limits::RMA, 0, INJECT_SIZE + 1).is_ok());
        assert!(limits.check(Limits::RMA, FI_INJECT, INJECT_SIZE).is_ok());
        let error = limits.check(Limits::RMA, FI_INJECT, INJECT_SIZE + 1);
        assert_eq!(error, Err(FiError::MSGSIZE));
        let datagrams = Limits::of(FI_EP_DGRAM);
        let error = datagrams.check(Limits::MESSAGE, 0, MAX_DGRAM_SIZE + 1);
        assert_eq!(error, Err(FiError::MSGSIZE));
    }
}
