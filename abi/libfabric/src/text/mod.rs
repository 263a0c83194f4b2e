//! `fi_tostr` and `fi_tostr_r`: structures, flags and values as text, line for line as libfabric 1.17 prints them, and the fields and names
//! of later versions.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read values of the program.

mod address;
mod names;
mod structures;

use names::{extensible, flags, value};
use rkey_fi::FI_VERSION;
use rkey_fi::sys::{Fid, Ops};
use rkey_kit::caught;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};

/// The size of the text that `fi_tostr` returns, with the zero that ends it.
const ROOM: usize = 8192;

thread_local! {
    static TEXT: UnsafeCell<[u8; ROOM]> = const { UnsafeCell::new([0; ROOM]) };
}

/// Formats an address like `%p`.
fn pointer(address: *const c_void) -> String {
    match address.is_null() {
        true => "(nil)".to_owned(),
        false => format!("{address:p}"),
    }
}

/// The description that an object gives of itself, or its address.
///
/// # Safety
/// `fid` is the handle of an object.
unsafe fn object(fid: *const Fid) -> String {
    const LEN: usize = 1024;
    // SAFETY: guaranteed by the caller.
    let ops = unsafe { (*fid).ops.as_ref() };
    let can = |ops: &&Ops| ops.size >= std::mem::offset_of!(Ops, ops_set);
    if let Some(ops) = ops.filter(can) {
        let mut text = [0u8; LEN];
        // SAFETY: the object's own function, and a buffer of this length whose last byte is not passed.
        let code = unsafe { (ops.tostr)(fid, text.as_mut_ptr().cast(), LEN - 1) };
        if code == 0
            && let Ok(text) = CStr::from_bytes_until_nul(&text)
        {
            return text.to_string_lossy().into_owned();
        }
    }
    format!("fid: {}\n", pointer(fid.cast()))
}

/// The text for data of a type (`enum fi_type`).
///
/// # Safety
/// The data is not null, and of this type.
unsafe fn text(data: *const c_void, kind: c_int) -> String {
    // SAFETY: guaranteed by the caller, for the types that this reads.
    let (long, short) = unsafe { (|| *data.cast::<u64>(), || *data.cast::<u32>()) };
    const LEVELS: [&str; 4] = crate::log::LEVELS;
    const PARTS: [&str; 10] = crate::log::PARTS;
    let word = |words: &[&'static str], at: u32| {
        words
            .get(at as usize)
            .copied()
            .unwrap_or("Unknown")
            .to_owned()
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        match kind {
            0 => structures::info(data.cast()),
            1 => value(short(), names::EP_TYPE).to_owned(),
            2 => flags(long(), names::CAPS),
            3 => flags(long(), names::OP_FLAGS),
            4 => extensible(short(), names::ADDR_FORMAT).to_owned(),
            5 => structures::tx_attr(data.cast(), ""),
            6 => structures::rx_attr(data.cast(), ""),
            7 => structures::ep_attr(data.cast(), ""),
            8 => structures::domain_attr(data.cast(), ""),
            9 => structures::fabric_attr(data.cast(), ""),
            10 => value(short(), names::THREADING).to_owned(),
            11 => value(short(), names::PROGRESS).to_owned(),
            12 => extensible(short(), names::PROTOCOL).to_owned(),
            13 => flags(long(), names::ORDER),
            14 => flags(long(), names::MODE),
            15 => value(short(), names::AV_TYPE).to_owned(),
            16 => value(short(), names::ATOMIC_TYPE).to_owned(),
            17 => value(short(), names::ATOMIC_OP).to_owned(),
            18 => format!("{}.{}.0", FI_VERSION >> 16, FI_VERSION & 0xffff),
            19 => value(short(), names::EQ_EVENT).to_owned(),
            20 => flags(long(), names::CQ_FLAGS),
            21 => flags(short().into(), names::MR_MODE),
            22 => value(short(), names::OP_TYPE).to_owned(),
            23 => object(data.cast()),
            24 => value(short(), names::COLLECTIVE_OP).to_owned(),
            25 => value(short(), names::HMEM_IFACE).to_owned(),
            26 => value(short(), names::CQ_FORMAT).to_owned(),
            27 => word(&LEVELS, short()),
            28 => word(&PARTS, short()),
            _ => "Unknown type".to_owned(),
        }
    }
}

/// `fi_tostr_r`: the text in the program's buffer, truncated if it is too long. Null: no data, no buffer, or no room.
///
/// # Safety
/// The arguments must be valid as described in fabric(7): data of this type, and a buffer of `len` bytes.
pub unsafe extern "C" fn tostr_r(
    buffer: *mut c_char,
    len: usize,
    data: *const c_void,
    kind: c_int,
) -> *mut c_char {
    if data.is_null() || buffer.is_null() || len == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: guaranteed by the caller.
    let text = caught(|| unsafe { text(data, kind) }).unwrap_or_default();
    let text = text.as_bytes();
    let cut = text.len().min(len - 1);
    // SAFETY: the caller promises `len` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), cut);
        *buffer.add(cut) = 0;
    }
    buffer
}

/// `fi_tostr`: the text in memory of the calling thread, which its next call overwrites.
///
/// # Safety
/// The data must be null or of this type.
pub unsafe extern "C" fn tostr(data: *const c_void, kind: c_int) -> *mut c_char {
    // Thread-local memory no longer exists while the thread exits.
    let buffer = TEXT.try_with(|text| text.get().cast::<c_char>());
    let Ok(buffer) = buffer else {
        return std::ptr::null_mut();
    };
    // SAFETY: the buffer is this thread's; the caller promises the rest.
    unsafe { tostr_r(buffer, ROOM, data, kind) }
}
