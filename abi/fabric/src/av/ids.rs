//! The program's own identifiers for peers (`FI_AV_USER_ID`): completions identify the sender by its identifier instead of
//! its number.

#![allow(unsafe_code)]
// UNSAFETY: a C function.

use super::{Av, AvObject};
use crate::errno::{FiError, Result};
use crate::object::{find, status};
use crate::sys::*;
use std::ffi::c_int;
use std::net::SocketAddr;

impl Av {
    /// The value that completions report for a sender: the program's identifier, or the number. A vector opened with
    /// `FI_AV_USER_ID` reports `FI_ADDR_NOTAVAIL` for peers without an identifier.
    pub(crate) fn reported(&self, source: &SocketAddr) -> u64 {
        let book = self.book.read();
        let Some(number) = book.numbers.get(source) else {
            return FI_ADDR_NOTAVAIL;
        };
        match self.identifies {
            true => book.ids.get(number).copied().unwrap_or(FI_ADDR_NOTAVAIL),
            false if book.ids.is_empty() => *number,
            false => book.ids.get(number).copied().unwrap_or(*number),
        }
    }

    /// Sets the identifier of a peer.
    pub(super) fn identify(&self, number: u64, id: u64) -> Result<()> {
        let mut book = self.book.write();
        let place = usize::try_from(number).ok();
        let known = place.and_then(|place| book.addresses.get(place)).copied();
        known.flatten().ok_or(FiError::INVAL)?;
        book.ids.insert(number, id);
        Ok(())
    }
}

/// `fi_av_set_user_id`.
pub(super) unsafe extern "C" fn set_user_id(
    av: *mut FidAv,
    number: u64,
    id: u64,
    flags: u64,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let av = &unsafe { find::<AvObject, _>(av)? }.inner;
        if !av.identifies {
            tracing::warn!(
                "fi_av_set_user_id needs an address vector that was opened with FI_AV_USER_ID"
            );
            return Err(FiError::INVAL);
        }
        match flags {
            0 => av.identify(number, id),
            // Checked but not stored: identifiers of authorization keys need FI_SOURCE_ERR, which endpoints do not have.
            FI_AUTH_KEY => av.auth_key(number).map(drop).ok_or(FiError::INVAL),
            _ => Err(FiError::BADFLAGS),
        }
    })
}
