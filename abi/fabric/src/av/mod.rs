//! Address vectors map the numbers that a program passes to the addresses of peers, and back.
//!
//! Maps and tables behave the same: numbers count from 0 and are never reused, so a removed number never refers to
//! another peer.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read and write the program's memory.

mod ids;
mod keys;
mod names;
pub(crate) mod set;

pub(crate) use keys::AuthKey;

use crate::address::{self, Format};
use crate::domain::{Domain, DomainObject};
use crate::eq::{Eq, EqObject};
use crate::errno::{FiError, Result};
use crate::info::text;
use crate::nosys::{self, nosys};
use crate::object::{Users, busy, find, object, publish, remove, status, write_truncated};
use crate::sys::*;
use names::counted_up;
use parking_lot::{Mutex, RwLock};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The maximum number of bits of a number that can select a receive context.
const RX_CTX_BITS_MAX: u32 = 32;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct AvObject {
    fid: UnsafeCell<FidAv>,
    pub(crate) inner: Arc<Av>,
}
object!(AvObject, FidAv, 4096);

/// An address vector.
pub(crate) struct Av {
    pub(crate) domain: Arc<Domain>,
    /// Whether insertions report to the event queue instead of returning a count.
    asynchronous: bool,
    /// How many of a number's highest bits select a receive context.
    rx_ctx_bits: u32,
    /// Whether completions report senders only by the program's identifiers (`FI_AV_USER_ID`).
    identifies: bool,
    eq: Mutex<Option<Arc<Eq>>>,
    book: RwLock<Book>,
    keys: keys::AuthKeys,
    /// The number of removals so far.
    removals: AtomicU64,
    pub(crate) users: Users,
}

#[derive(Default)]
struct Book {
    addresses: Vec<Option<SocketAddr>>,
    numbers: HashMap<SocketAddr, u64>,
    /// The program's identifiers, by number.
    ids: HashMap<u64, u64>,
}

impl Av {
    /// Splits a number into the number without its receive context, and the index of that context (`fi_rx_addr`).
    pub(crate) fn split(&self, number: u64) -> (u64, u64) {
        match self.rx_ctx_bits {
            0 => (number, 0),
            bits => (number << bits >> bits, number >> (u64::BITS - bits)),
        }
    }

    /// The address with this number, for any receive context.
    pub(crate) fn get(&self, number: u64) -> Option<SocketAddr> {
        let index = usize::try_from(self.split(number).0).ok()?;
        self.book.read().addresses.get(index).copied().flatten()
    }

    /// All numbers in use.
    fn numbers(&self) -> Vec<u64> {
        let book = self.book.read();
        let numbered = book.addresses.iter().enumerate();
        numbered
            .filter(|(_, address)| address.is_some())
            .map(|(number, _)| number as u64)
            .collect()
    }

    /// The number of an address, or `FI_ADDR_NOTAVAIL` if it was not inserted.
    pub(crate) fn number(&self, address: &SocketAddr) -> u64 {
        self.book
            .read()
            .numbers
            .get(address)
            .copied()
            .unwrap_or(FI_ADDR_NOTAVAIL)
    }

    /// Like [`Av::number`], for callers that must not block: returns `None` for an unknown address, and while the
    /// program changes the vector.
    pub(crate) fn number_now(&self, address: &SocketAddr) -> Option<u64> {
        self.book.try_read()?.numbers.get(address).copied()
    }

    fn insert(&self, address: SocketAddr) -> u64 {
        let mut book = self.book.write();
        let number = book.addresses.len() as u64;
        book.addresses.push(Some(address));
        book.numbers.insert(address, number);
        number
    }

    /// The number of removals so far. A cache of numbers is outdated when it changes.
    #[inline]
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    fn remove(&self, number: u64) -> bool {
        let mut book = self.book.write();
        let place = usize::try_from(number)
            .ok()
            .and_then(|n| book.addresses.get_mut(n));
        let Some(address) = place.and_then(Option::take) else {
            return false;
        };
        self.removals.fetch_add(1, Ordering::AcqRel);
        self.keys.forget(number);
        book.ids.remove(&number);
        if book.numbers.get(&address) == Some(&number) {
            // The address may have been inserted twice.
            match book
                .addresses
                .iter()
                .position(|other| *other == Some(address))
            {
                Some(other) => book.numbers.insert(address, other as u64),
                None => book.numbers.remove(&address),
            };
        }
        true
    }

    /// Inserts addresses, and returns how many were inserted. An asynchronous vector returns 0 instead, and reports each
    /// failure and the end of the insertion to its event queue.
    ///
    /// # Safety
    /// `numbers` is null or has room for each number; with `FI_SYNC_ERR`, `context` has room for each error.
    unsafe fn insert_all(
        &self,
        fid: *mut FidAv,
        addresses: &[Option<SocketAddr>],
        numbers: *mut u64,
        flags: u64,
        context: *mut c_void,
    ) -> Result<c_int> {
        let keyed = flags & FI_AUTH_KEY != 0;
        let identified = flags & FI_AV_USER_ID != 0;
        if flags & !(FI_MORE | FI_SYNC_ERR | FI_AUTH_KEY | FI_AV_USER_ID) != 0
            || keyed && !self.domain.av_keys
        {
            return Err(FiError::BADFLAGS);
        }
        if identified && (self.identifies || self.domain.av_keys) {
            tracing::warn!(
                "an insertion with FI_AV_USER_ID needs an address vector that was opened without that flag and without FI_AV_AUTH_KEY"
            );
            return Err(FiError::INVAL);
        }
        if (keyed || identified) && numbers.is_null() {
            return Err(FiError::INVAL);
        }
        if flags & FI_SYNC_ERR != 0 && (self.asynchronous || context.is_null()) {
            return Err(FiError::BADFLAGS);
        }
        let eq = self.eq.lock().clone();
        if self.asynchronous && eq.is_none() {
            return Err(FiError::NOEQ);
        }
        let (mut done, mut failed) = (0, Vec::new());
        for (index, address) in addresses.iter().enumerate() {
            let key = match keyed {
                // SAFETY: the pointer is not null, and the array has a number for each address.
                true => Some(self.keys.get(unsafe { *numbers.add(index) })),
                false => None,
            };
            let address = address.filter(|_| !matches!(key, Some(None)));
            let number = address.map_or(FI_ADDR_NOTAVAIL, |address| self.insert(address));
            if identified && address.is_some() {
                // SAFETY: the pointer is not null, and the array has a number for each address.
                self.identify(number, unsafe { *numbers.add(index) })?;
            }
            if let (Some(_), Some(Some(key))) = (address, key) {
                self.keys.assign(number, key);
            }
            failed.extend(address.is_none().then_some(index));
            done += c_int::from(address.is_some());
            if !numbers.is_null() {
                // SAFETY: the array has room for a number for each address.
                unsafe { *numbers.add(index) = number };
            }
            if flags & FI_SYNC_ERR != 0 {
                let error = if address.is_some() {
                    0
                } else {
                    FiError::INVAL.0
                };
                // SAFETY: the array has room for an error for each address.
                unsafe { *context.cast::<c_int>().add(index) = error };
            }
        }
        let Some(eq) = eq.filter(|_| self.asynchronous) else {
            return Ok(done);
        };
        for index in failed {
            eq.failed(crate::eq::Failure {
                fid: fid as usize,
                context: context as usize,
                data: index as u64,
                error: FiError::INVAL,
                error_data: Vec::new(),
            });
        }
        eq.completed(FI_AV_COMPLETE, fid as usize, context as usize, done as u64);
        Ok(0)
    }
}

static FID_OPS: Ops = Ops {
    close,
    bind,
    ..nosys::OPS
};

static OPS: OpsAv = OpsAv {
    size: size_of::<OpsAv>(),
    insert,
    insertsvc,
    insertsym,
    remove: remove_numbers,
    lookup,
    straddr,
    av_set: set::av_set,
    insert_auth_key: keys::insert_auth_key,
    lookup_auth_key: keys::lookup_auth_key,
    set_user_id: ids::set_user_id,
    lookup2: nosys!(c_int, *mut FidAv, u64, *mut c_void, *mut usize, u64),
};

/// `fi_av_open`.
///
/// # Safety
/// The arguments must be valid as described in fi_av(3).
pub(crate) unsafe extern "C" fn av_open(
    domain: *mut FidDomain,
    attr: *mut AvAttr,
    av: *mut *mut FidAv,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let (owner, attr) = unsafe { (find::<DomainObject, _>(domain)?, attr.as_mut()) };
        let attr = attr.ok_or(FiError::INVAL)?;
        // Sharing a vector between processes would need a capability, FI_SHARED_AV.
        if !attr.name.is_null() {
            return Err(FiError::NOSYS);
        }
        let bits = u32::try_from(attr.rx_ctx_bits).ok();
        // Numbers count from 0, so the highest bits of those that are inserted are zero.
        let rx_ctx_bits = bits
            .filter(|bits| *bits <= RX_CTX_BITS_MAX)
            .ok_or(FiError::INVAL)?;
        if attr.flags & !(FI_COMPLETION | FI_AV_USER_ID) != 0 {
            return Err(FiError::BADFLAGS);
        }
        let identifies = attr.flags & FI_AV_USER_ID != 0;
        if identifies && !owner.inner.user_ids {
            tracing::warn!(
                "an address vector with FI_AV_USER_ID needs a domain that was opened with the capability FI_AV_USER_ID"
            );
            return Err(FiError::INVAL);
        }
        match attr.av_type {
            FI_AV_MAP | FI_AV_TABLE => {}
            FI_AV_UNSPEC if owner.inner.default_av != FI_AV_UNSPEC => {
                attr.av_type = owner.inner.default_av;
            }
            FI_AV_UNSPEC => attr.av_type = FI_AV_TABLE,
            _ => return Err(FiError::INVAL),
        }
        let inner = Av {
            domain: Arc::clone(&owner.inner),
            asynchronous: attr.flags & FI_COMPLETION != 0,
            rx_ctx_bits,
            identifies,
            eq: Mutex::default(),
            book: RwLock::default(),
            keys: keys::AuthKeys::default(),
            removals: AtomicU64::new(0),
            users: Users::default(),
        };
        let object = AvObject {
            fid: UnsafeCell::new(FidAv {
                fid: Fid::new(FI_CLASS_AV, context, &FID_OPS),
                ops: &OPS,
            }),
            inner: Arc::new(inner),
        };
        // SAFETY: the caller guarantees room for a handle.
        unsafe { publish(object, av)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// `fi_close`.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<AvObject, _>(fid)? }
            .inner
            .users
            .none()
            .map_err(|_| {
                busy("endpoints that are bound to the address vector, or sets of its addresses")
            })?;
        // SAFETY: the program no longer uses the vector.
        let object = unsafe { remove::<AvObject, _>(fid)? };
        if let Some(eq) = object.inner.eq.lock().take() {
            eq.forget(fid as usize);
            eq.users.remove();
        }
        object.inner.domain.users.remove();
        Ok(())
    })
}

/// `fi_av_bind`: binds the event queue for insertions.
unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handles.
        let (av, eq) = unsafe { (find::<AvObject, _>(fid)?, find::<EqObject, _>(bound)?) };
        if flags != 0 {
            return Err(FiError::BADFLAGS);
        }
        let mut place = av.inner.eq.lock();
        if place.is_some() {
            return Err(FiError::BUSY);
        }
        eq.inner.users.add();
        *place = Some(Arc::clone(&eq.inner));
        Ok(())
    })
}

/// Reads the address at a pointer; also returns the pointer just past the address.
///
/// # Safety
/// `at` points to an address of this format, or to at least two bytes of an address of another family.
pub(crate) unsafe fn address_at(format: Format, at: *const u8) -> (Option<SocketAddr>, *const u8) {
    let len = match format {
        // SAFETY: the caller guarantees a C string.
        Format::Text => unsafe { CStr::from_ptr(at.cast()) }
            .to_bytes_with_nul()
            .len(),
        _ => {
            // SAFETY: the caller guarantees at least two bytes.
            let family = c_int::from(unsafe { at.cast::<u16>().read_unaligned() });
            match family {
                libc::AF_INET => size_of::<libc::sockaddr_in>(),
                libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
                // An unknown family; array elements have the length of the format.
                _ => return (None, at.wrapping_add(unknown_len(format))),
            }
        }
    };
    // SAFETY: the family or the terminator determines the length.
    let bytes = unsafe { std::slice::from_raw_parts(at, len) };
    let address = format.decode(bytes).map(|(address, _)| address);
    (address, at.wrapping_add(len))
}

fn unknown_len(format: Format) -> usize {
    match format {
        Format::In6 => size_of::<libc::sockaddr_in6>(),
        _ => size_of::<libc::sockaddr_in>(),
    }
}

/// `fi_av_insert`.
unsafe extern "C" fn insert(
    av: *mut FidAv,
    addr: *const c_void,
    count: usize,
    numbers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    counted(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<AvObject, _>(av)? };
        if addr.is_null() && count > 0 || count > c_int::MAX as usize {
            return Err(FiError::INVAL);
        }
        let format = object.inner.domain.format;
        let mut at = addr.cast::<u8>();
        let addresses: Vec<_> = (0..count)
            .map(|_| {
                // SAFETY: the caller guarantees an array of addresses.
                let (address, next) = unsafe { address_at(format, at) };
                at = next;
                address
            })
            .collect();
        // SAFETY: the caller guarantees room for each number.
        unsafe {
            object
                .inner
                .insert_all(av, &addresses, numbers, flags, context)
        }
    })
}

/// Runs the body of a function that returns a count as an `int`.
fn counted(body: impl FnOnce() -> Result<c_int>) -> c_int {
    let mut result = 0;
    match status(|| body().map(|count| result = count)) {
        0 => result,
        error => error,
    }
}

/// `fi_av_insertsvc`.
unsafe extern "C" fn insertsvc(
    av: *mut FidAv,
    node: *const c_char,
    service: *const c_char,
    number: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    counted(|| {
        // SAFETY: `find` validates the handle; the caller guarantees C strings.
        let (object, node, service) =
            unsafe { (find::<AvObject, _>(av)?, text(node)?, text(service)?) };
        if node.is_none() || service.is_none() {
            return Err(FiError::INVAL);
        }
        let address = address::resolve(node, service, object.inner.domain.format, false).ok();
        // SAFETY: the caller guarantees that it is writable.
        unsafe {
            object
                .inner
                .insert_all(av, &[address], number, flags, context)
        }
    })
}

/// `fi_av_insertsym`: every node with every service. Names that end in a number count up (fi_av(3)).
unsafe extern "C" fn insertsym(
    av: *mut FidAv,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    numbers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    counted(|| {
        // SAFETY: `find` validates the handle; the caller guarantees C strings.
        let (object, node, service) =
            unsafe { (find::<AvObject, _>(av)?, text(node)?, text(service)?) };
        let (Some(node), Some(service)) = (node, service) else {
            return Err(FiError::INVAL);
        };
        if nodes.saturating_mul(services) > 1 << 20 {
            return Err(FiError::INVAL);
        }
        let format = object.inner.domain.format;
        let mut addresses = Vec::new();
        for n in 0..nodes {
            for s in 0..services {
                let (node, service) = (counted_up(node, n), counted_up(service, s));
                addresses.push(address::resolve(Some(&node), Some(&service), format, false).ok());
            }
        }
        // SAFETY: the caller guarantees room for each number.
        unsafe {
            object
                .inner
                .insert_all(av, &addresses, numbers, flags, context)
        }
    })
}

/// `fi_av_remove`.
unsafe extern "C" fn remove_numbers(
    av: *mut FidAv,
    numbers: *mut u64,
    count: usize,
    flags: u64,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees the list.
        let (object, numbers) = unsafe {
            (
                find::<AvObject, _>(av)?,
                crate::object::list(numbers.cast_const(), count)?,
            )
        };
        if flags & !FI_AUTH_KEY != 0 {
            return Err(FiError::BADFLAGS);
        }
        if flags != 0 {
            let keys = &object.inner.keys;
            return numbers.iter().try_for_each(|&number| keys.remove(number));
        }
        let mut known = true;
        for &number in numbers {
            known &= object.inner.remove(number);
        }
        if known { Ok(()) } else { Err(FiError::INVAL) }
    })
}

/// `fi_av_lookup`.
unsafe extern "C" fn lookup(
    av: *mut FidAv,
    number: u64,
    addr: *mut c_void,
    len: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<AvObject, _>(av)? };
        let address = object.inner.get(number).ok_or(FiError::INVAL)?;
        let bytes = object.inner.domain.format.encode(address);
        // SAFETY: the caller guarantees that both are writable.
        unsafe { write_truncated(&bytes, addr, len) }.map(drop)
    })
}

/// `fi_av_straddr`.
unsafe extern "C" fn straddr(
    av: *mut FidAv,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    let body = || {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<AvObject, _>(av)? };
        if addr.is_null() {
            return Err(FiError::INVAL);
        }
        // SAFETY: the caller guarantees an address of the domain's format.
        let (address, _) = unsafe { address_at(object.inner.domain.format, addr.cast()) };
        let mut text = rkey_rdm::address::to_text(address.ok_or(FiError::INVAL)?).into_bytes();
        text.push(0);
        // SAFETY: the caller guarantees this length.
        unsafe {
            let capacity = len.as_ref().copied().unwrap_or(0);
            if !write_truncated(&text, buf.cast(), len)? && capacity > 0 {
                *buf.add(capacity - 1) = 0;
            }
        }
        Ok(())
    };
    if status(body) == 0 {
        buf
    } else {
        std::ptr::null()
    }
}
