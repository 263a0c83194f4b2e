//! Multicast groups. A datagram to a group reaches all members on this host that the sender can reach (of the same user, or
//! with `RKEY_SHARE=all` on both sides), including the sender itself.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::gid;
use crate::object::{find, input};
use crate::queues::modify::Service;
use crate::queues::qp::QpObject;
use crate::sys::{Gid, Qp};
use crate::translate::errno;
use rkey_kit::{Errno, c_call};
use std::ffi::c_int;

/// Finds a datagram queue pair and reads the address of a group.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
unsafe fn find_both<'a>(
    qp: *mut Qp,
    gid: *const [u8; 16],
) -> Result<(&'a QpObject, [u8; 16]), Errno> {
    // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
    let (object, group) = unsafe { (find::<QpObject>(qp)?, *input(gid)?) };
    if object.service != Service::Ud || !gid::is_multicast(Gid(group)) {
        return Err(Errno::INVAL);
    }
    Ok((object, group))
}

/// `ibv_attach_mcast`. The LID of a group has no meaning on Ethernet.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn attach_mcast(qp: *mut Qp, gid: *const [u8; 16], _lid: u16) -> c_int {
    c_call(|| {
        // SAFETY: guaranteed by the caller.
        let (object, group) = unsafe { find_both(qp, gid)? };
        object.qp.join(group).map_err(errno::from)?;
        Ok(0)
    })
}

/// `ibv_detach_mcast`: `EINVAL` if the queue pair was not attached.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn detach_mcast(qp: *mut Qp, gid: *const [u8; 16], _lid: u16) -> c_int {
    c_call(|| {
        // SAFETY: guaranteed by the caller.
        let (object, group) = unsafe { find_both(qp, gid)? };
        if object.qp.leave(group).map_err(errno::from)? {
            Ok(0)
        } else {
            Err(Errno::INVAL)
        }
    })
}
