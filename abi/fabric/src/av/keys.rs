//! Authorization keys in address vectors (`FI_AV_AUTH_KEY`): endpoints and regions take the vector's
//! keys when they are enabled.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read and write the program's memory.

use super::{Av, AvObject};
use crate::errno::{FiError, Result};
use crate::object::{Users, busy, find, list, status, store, write_truncated};
use crate::sys::*;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The maximum length of a key, in bytes.
const MAX_LEN: usize = 256;
/// The first number of a key, far above the numbers of addresses.
const FIRST: u64 = 1 << 48;

/// An authorization key.
pub(crate) struct AuthKey {
    pub(crate) bytes: Vec<u8>,
    /// Enabled endpoints and regions that use the key.
    pub(crate) users: Users,
}

/// The keys of an address vector, and the addresses that were inserted with a key.
#[derive(Default)]
pub(super) struct AuthKeys(RwLock<Keys>);

#[derive(Default)]
struct Keys {
    /// By number minus [`FIRST`]; numbers are never reused.
    keys: Vec<Option<Arc<AuthKey>>>,
    of_address: HashMap<u64, Arc<AuthKey>>,
}

impl Keys {
    fn get(&self, number: u64) -> Option<&Arc<AuthKey>> {
        let index = usize::try_from(number.checked_sub(FIRST)?).ok()?;
        self.keys.get(index)?.as_ref()
    }
}

impl AuthKeys {
    /// Adds a key, and returns its number. A known key keeps its number.
    fn insert(&self, bytes: &[u8]) -> u64 {
        let mut table = self.0.write();
        let known = |key: &Option<Arc<AuthKey>>| key.as_ref().is_some_and(|it| it.bytes == bytes);
        let index = table.keys.iter().position(known).unwrap_or_else(|| {
            table.keys.push(Some(Arc::new(AuthKey {
                bytes: bytes.to_vec(),
                users: Users::default(),
            })));
            table.keys.len() - 1
        });
        FIRST + index as u64
    }

    /// The key with this number from [`insert_auth_key`].
    pub(super) fn get(&self, number: u64) -> Option<Arc<AuthKey>> {
        self.0.read().get(number).cloned()
    }

    /// Removes a key (FI-I23).
    pub(super) fn remove(&self, number: u64) -> Result<()> {
        let mut table = self.0.write();
        table
            .get(number)
            .ok_or(FiError::INVAL)?
            .users
            .none()
            .map_err(|_| busy("endpoints or regions that use the authorization key"))?;
        let index = (number - FIRST) as usize;
        table.keys[index] = None;
        Ok(())
    }

    /// Binds an address to a key.
    pub(super) fn assign(&self, address: u64, key: Arc<AuthKey>) {
        self.0.write().of_address.insert(address, key);
    }

    /// Undoes [`AuthKeys::assign`].
    pub(super) fn forget(&self, address: u64) {
        self.0.write().of_address.remove(&address);
    }

    fn of_address(&self, address: u64) -> Option<Arc<AuthKey>> {
        self.0.read().of_address.get(&address).cloned()
    }
}

impl Av {
    /// The keys of the vector.
    pub(crate) fn auth_keys(&self) -> Vec<Arc<AuthKey>> {
        self.keys.0.read().keys.iter().flatten().cloned().collect()
    }

    /// The key with this number from [`insert_auth_key`].
    pub(crate) fn auth_key(&self, number: u64) -> Option<Arc<AuthKey>> {
        self.keys.get(number)
    }

    /// The key that an address was inserted with.
    pub(crate) fn key_of_address(&self, address: u64) -> Option<Arc<AuthKey>> {
        self.keys.of_address(address)
    }

    /// Whether an endpoint with this key may use an address, that is, the address was inserted with the same key or without one.
    pub(crate) fn allows(&self, address: u64, key: &[u8]) -> bool {
        self.keys
            .of_address(self.split(address).0)
            .is_none_or(|own| own.bytes == key)
    }
}

/// `fi_av_insert_auth_key` (FI-I22).
pub(super) unsafe extern "C" fn insert_auth_key(
    av: *mut FidAv,
    auth_key: *const c_void,
    len: usize,
    number: *mut u64,
    flags: u64,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let av = &unsafe { find::<AvObject, _>(av)? }.inner;
        if flags != 0 {
            return Err(FiError::BADFLAGS);
        }
        if !av.domain.av_keys || len == 0 || len > MAX_LEN || number.is_null() {
            return Err(FiError::INVAL);
        }
        // SAFETY: the program promises the length.
        let bytes = unsafe { list(auth_key.cast::<u8>(), len)? };
        // SAFETY: the caller guarantees that it is writable.
        unsafe { store(number, av.keys.insert(bytes)) }
    })
}

/// `fi_av_lookup_auth_key`: returns a key, by its number or by the number of an address that was inserted with it.
pub(super) unsafe extern "C" fn lookup_auth_key(
    av: *mut FidAv,
    number: u64,
    room: *mut c_void,
    len: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let av = &unsafe { find::<AvObject, _>(av)? }.inner;
        let key = match number {
            FIRST.. => av.keys.get(number),
            _ => av.keys.of_address(number),
        };
        let key = key.ok_or(FiError::INVAL)?;
        // SAFETY: the caller guarantees that it is writable.
        unsafe { write_truncated(&key.bytes, room, len) }.map(drop)
    })
}
