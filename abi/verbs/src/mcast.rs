//! Multicast groups. What is sent to a group reaches all members on this host that belong to the same user
//! (or are shared with everybody), the sender's own included.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::errno;
use crate::gid;
use crate::modify::Service;
use crate::object::{find, input};
use crate::qp::QpObject;
use crate::sys::{Gid, Qp};
use rkey_kit::{Errno, fence};
use std::ffi::c_int;

/// A queue pair for datagrams, and a group.
///
/// # Safety
/// A queue pair and a GID, or anything else.
unsafe fn find_both<'a>(
    qp: *mut Qp,
    gid: *const [u8; 16],
) -> Result<(&'a QpObject, [u8; 16]), Errno> {
    // SAFETY: as the caller promises, or refused.
    let (object, group) = unsafe { (find::<QpObject>(qp)?, *input(gid)?) };
    if object.service != Service::Ud || !gid::is_multicast(Gid(group)) {
        return Err(Errno::INVAL);
    }
    Ok((object, group))
}

/// `ibv_attach_mcast`. The LID of a group means nothing on Ethernet.
///
/// # Safety
/// A queue pair and a GID, or anything else.
pub unsafe extern "C" fn attach_mcast(qp: *mut Qp, gid: *const [u8; 16], _lid: u16) -> c_int {
    fence(|| {
        // SAFETY: as the caller promises.
        let (object, group) = unsafe { find_both(qp, gid)? };
        object.qp.join(group).map_err(errno::from)?;
        Ok(0)
    })
}

/// `ibv_detach_mcast`: `EINVAL` if the queue pair was not attached.
///
/// # Safety
/// A queue pair and a GID, or anything else.
pub unsafe extern "C" fn detach_mcast(qp: *mut Qp, gid: *const [u8; 16], _lid: u16) -> c_int {
    fence(|| {
        // SAFETY: as the caller promises.
        let (object, group) = unsafe { find_both(qp, gid)? };
        if object.qp.leave(group).map_err(errno::from)? {
            Ok(0)
        } else {
            Err(Errno::INVAL)
        }
    })
}
