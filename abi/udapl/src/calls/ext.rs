//! The InfiniBand extension (dat_ib_extensions.h): immediate data, atomics, attributes without an open IA.

#![allow(unsafe_code)]
// UNSAFETY: C functions; reads the arguments of a C function with `...`.

use crate::calls::post::{Segments, segments, target};
use crate::calls::{ia, ia_attr};
use crate::handles::argument;
use crate::handles::fail::{Fail, Result, call};
use crate::handles::object::find;
use crate::handles::va_list::Arguments;
use crate::objects::datagram::QKEY;
use crate::objects::ep::Ep;
use crate::objects::ia::Ia;
use crate::objects::requests::{Options, RequestKind};
use crate::sys::consts::*;
use crate::sys::{
    ExtendedOp, Handle, IaAttr, IaHandle, IbAddrHandle, LmrTriplet, ProviderAttr, Return,
    RmrTriplet, VaListTag,
};
use rkey_device::core::LKey;
use rkey_device::engine::{Route, Sge, UdAddress, Work};
use std::sync::Arc;

/// `dat_extension_op`.
///
/// # Safety
/// The arguments are those of the operation (dat_ib_extensions.h).
pub unsafe extern "C" fn call_extension(
    handle: Handle,
    op: ExtendedOp,
    arguments: *mut VaListTag,
) -> Return {
    call("dat_extension_op", || {
        let mut arguments = Arguments::new(arguments).ok_or(Fail::argument(3))?;
        // SAFETY: the caller promises the arguments; `find` validates the handles.
        unsafe {
            match op {
                IB_RDMA_WRITE_IMMED_OP => write_immediate(find(handle)?, &mut arguments),
                IB_CMP_AND_SWAP_OP => compare_and_swap(find(handle)?, &mut arguments),
                IB_FETCH_AND_ADD_OP => fetch_and_add(find(handle)?, &mut arguments),
                IB_UD_SEND_OP => send_datagram(find(handle)?, &mut arguments),
                // Address handles and requests of datagram EPs hold nothing that must be freed.
                IB_UD_AH_FREE_OP | IB_UD_CM_FREE_OP => find::<Ep>(handle).map(drop),
                IB_OPEN_QUERY_OP => open_query(handle, &mut arguments),
                IB_CLOSE_QUERY_OP => close_query(handle),
                _ => Err(Fail::new(NOT_IMPLEMENTED, NO_SUBTYPE)),
            }
        }
    })
}

fn check_state(ep: &Ep) -> Result {
    match ep.takes_requests() {
        true => Ok(()),
        false => Err(ep.not_now()),
    }
}

/// `dat_ib_post_rdma_write_immed`.
///
/// # Safety
/// The arguments are those of the operation.
unsafe fn write_immediate(ep: &Arc<Ep>, arguments: &mut Arguments) -> Result {
    // SAFETY: guaranteed by the caller; the order is that of the macro in the header.
    let (segments, total, cookie, remote, data, flags) = unsafe {
        let count = arguments.next() as Count;
        let iov = arguments.next() as *const LmrTriplet;
        let (segments, total) = segments(count, iov)?;
        let cookie = arguments.next();
        let remote = argument::input(5, arguments.next() as *const RmrTriplet)?;
        let (data, flags) = (arguments.next() as u32, arguments.next() as u32);
        (segments, total, cookie, remote, data, flags)
    };
    let options = Options::of_request(ep, 7, flags)?;
    check_state(ep)?;
    if total > u64::from(remote.segment_length) {
        return Err(Fail::LENGTH);
    }
    let work = Work::Write {
        remote: target(remote),
        imm: Some(data),
    };
    ep.post(
        work,
        &segments,
        cookie,
        options,
        RequestKind::WriteImmediate,
    )
}

/// The local segment for the old value of an atomic operation.
///
/// # Safety
/// `triplet` is null or points to a triplet.
unsafe fn result_segment(number: u32, triplet: *const LmrTriplet) -> Result<Segments> {
    // SAFETY: guaranteed by the caller.
    let triplet = unsafe { argument::input(number, triplet)? };
    if triplet.segment_length < 8 {
        return Err(Fail::LENGTH);
    }
    let mut segments = Segments::new();
    segments.push(Sge {
        addr: triplet.virtual_address,
        len: 8,
        key: LKey(triplet.lmr_context),
    });
    Ok(segments)
}

/// `dat_ib_post_cmp_and_swap`.
///
/// # Safety
/// The arguments are those of the operation.
unsafe fn compare_and_swap(ep: &Arc<Ep>, arguments: &mut Arguments) -> Result {
    // SAFETY: guaranteed by the caller; the order is that of the macro in the header.
    unsafe {
        let (compare, swap) = (arguments.next(), arguments.next());
        let segments = result_segment(4, arguments.next() as *const LmrTriplet)?;
        let cookie = arguments.next();
        let remote = target(argument::input(6, arguments.next() as *const RmrTriplet)?);
        let options = Options::of_request(ep, 7, arguments.next() as u32)?;
        check_state(ep)?;
        let work = Work::CompareSwap {
            remote,
            compare,
            swap,
        };
        ep.post(work, &segments, cookie, options, RequestKind::CompareSwap)
    }
}

/// `dat_ib_post_fetch_and_add`.
///
/// # Safety
/// The arguments are those of the operation.
unsafe fn fetch_and_add(ep: &Arc<Ep>, arguments: &mut Arguments) -> Result {
    // SAFETY: guaranteed by the caller; the order is that of the macro in the header.
    unsafe {
        let add = arguments.next();
        let segments = result_segment(3, arguments.next() as *const LmrTriplet)?;
        let cookie = arguments.next();
        let remote = target(argument::input(5, arguments.next() as *const RmrTriplet)?);
        let options = Options::of_request(ep, 6, arguments.next() as u32)?;
        check_state(ep)?;
        let work = Work::FetchAdd { remote, add };
        ep.post(work, &segments, cookie, options, RequestKind::FetchAdd)
    }
}

/// `dat_ib_post_send_ud`.
///
/// # Safety
/// The arguments are those of the operation.
unsafe fn send_datagram(ep: &Arc<Ep>, arguments: &mut Arguments) -> Result {
    // SAFETY: guaranteed by the caller; the order is that of the macro in the header.
    let (segments, qpn, cookie, flags) = unsafe {
        let count = arguments.next() as Count;
        let (segments, _) = segments(count, arguments.next() as *const LmrTriplet)?;
        let to = argument::input(4, arguments.next() as *const IbAddrHandle)?;
        (segments, to.qpn, arguments.next(), arguments.next() as u32)
    };
    let options = Options::of_request(ep, 6, flags)?;
    if !ep.is_datagram() {
        return Err(Fail::handle(INVALID_HANDLE_EP));
    }
    let to = UdAddress {
        link: None,
        wire: false,
        qpn,
        qkey: QKEY,
        route: Route::default(),
    };
    let work = Work::Send {
        imm: None,
        invalidate: None,
    };
    ep.post_to(
        work,
        &segments,
        cookie,
        options,
        RequestKind::Datagram,
        Some(to),
    )
}

/// `dat_ib_open_query`: the attributes of an IA that the program has not opened. Its name is passed as the handle.
///
/// # Safety
/// The arguments are those of the operation.
unsafe fn open_query(name: Handle, arguments: &mut Arguments) -> Result {
    // SAFETY: guaranteed by the caller; the order is that of the macro in the header.
    unsafe {
        let ia = arguments.next() as *mut IaHandle;
        let ia_mask = arguments.next();
        let ia_attr = arguments.next() as *mut IaAttr;
        let provider_mask = arguments.next();
        let provider_attr = arguments.next() as *mut ProviderAttr;
        argument::room(2, ia)?;
        let (handle, made) = ia::make(name.cast())?;
        let store = || {
            if ia_mask != 0 {
                argument::store(4, ia_attr, ia_attr::of_ia(&made))?;
            }
            if provider_mask != 0 {
                argument::store(6, provider_attr, ia_attr::of_provider())?;
            }
            argument::store(2, ia, handle)
        };
        store().inspect_err(|_| ia::close_all(&made, handle as usize))
    }
}

/// `dat_ib_close_query`.
///
/// # Safety
/// No other thread may use the IA.
unsafe fn close_query(ia: Handle) -> Result {
    // SAFETY: `find` validates the handle.
    let object = Arc::clone(unsafe { find::<Ia>(ia)? });
    ia::close_all(&object, ia as usize);
    Ok(())
}
