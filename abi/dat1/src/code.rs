//! Return codes: DAT 2.0 inserted two subtypes into the list of DAT 1.2, and moved one type.

#![allow(unsafe_code)]
// UNSAFETY: a C function.

use crate::layouts::NOT_IMPLEMENTED;
use daplrkey::sys::{self, CLASS_ERROR, Return, SUBTYPE_MASK, TYPE_MASK};
use rkey_kit::argument;
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

/// Subtypes that DAT 1.2 lacks. Later subtypes have smaller numbers there.
const INSERTED: [u32; 2] = [sys::INVALID_HANDLE_CSP, sys::INVALID_STATE_SRQ_SHUTDOWN];

/// A return code of DAT 1.2. `subtype` is the number that DAT 2.0 uses.
pub(crate) fn error(kind: u32, subtype: u32) -> Return {
    to_dat1_code(CLASS_ERROR | kind | subtype)
}

/// The return code for the bad argument with this number (from 1).
pub(crate) fn bad_argument(number: u32) -> Return {
    error(sys::INVALID_PARAMETER, sys::INVALID_ARG1 + number - 1)
}

/// Converts a return code of DAT 2.0 to that of DAT 1.2.
pub(crate) fn to_dat1_code(code: Return) -> Return {
    let subtype = code & SUBTYPE_MASK;
    let before = INSERTED.iter().filter(|&&inserted| inserted < subtype);
    let kind = match code & TYPE_MASK {
        sys::NOT_IMPLEMENTED => NOT_IMPLEMENTED,
        kind => kind,
    };
    (code & !(TYPE_MASK | SUBTYPE_MASK)) | kind | (subtype - before.count() as u32)
}

/// Like [`to_dat1_code`], for functions whose arguments are numbered differently in DAT 1.2: `number` converts an
/// argument number of DAT 2.0.
pub(crate) fn renumbered(code: Return, number: impl Fn(u32) -> u32) -> Return {
    let first = sys::INVALID_ARG1;
    let subtype = code & SUBTYPE_MASK;
    if code & TYPE_MASK != sys::INVALID_PARAMETER
        || !(first..=sys::INVALID_ARG10).contains(&subtype)
    {
        return to_dat1_code(code);
    }
    bad_argument(number(subtype - first + 1))
}

/// The names of all types and subtypes, by their numbers in DAT 1.2.
struct Names {
    types: Vec<(u32, CString)>,
    subtypes: Vec<(u32, CString)>,
}

fn names() -> &'static Names {
    static NAMES: OnceLock<Names> = OnceLock::new();
    NAMES.get_or_init(|| {
        let with_prefix = |name: &str| CString::new(format!("DAT_{name}")).unwrap_or_default();
        let named = |list: &[(u32, &str)]| {
            let known = list.iter().filter(|(code, _)| !INSERTED.contains(code));
            known
                .map(|&(code, name)| (to_dat1_code(code), with_prefix(name)))
                .collect()
        };
        Names {
            types: named(sys::RETURN_TYPES),
            subtypes: named(sys::RETURN_SUBTYPES),
        }
    })
}

/// `dat_strerror`: the names of a return code's type and subtype.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_strerror(
    code: Return,
    major: *mut *const c_char,
    minor: *mut *const c_char,
) -> Return {
    let find = |list: &'static [(u32, CString)], wanted: u32| {
        let found = list.iter().find(|(code, _)| *code == wanted);
        found.map(|(_, name)| name.as_ptr())
    };
    let names = names();
    let texts = (
        find(&names.types, code & TYPE_MASK),
        find(&names.subtypes, code & SUBTYPE_MASK),
    );
    let (Some(kind), Some(subtype)) = texts else {
        return bad_argument(1);
    };
    // SAFETY: room for pointers, as the caller promises.
    unsafe {
        if argument::store(major, kind).is_err() {
            return bad_argument(2);
        }
        if argument::store(minor, subtype).is_err() {
            return bad_argument(3);
        }
    }
    sys::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_codes_have_the_numbers_of_dat_1_2() {
        assert_eq!(to_dat1_code(sys::SUCCESS), sys::SUCCESS);
        assert_eq!(
            error(sys::INVALID_HANDLE, sys::INVALID_HANDLE_SRQ),
            0x8005_0019
        );
        assert_eq!(
            error(sys::INVALID_PARAMETER, sys::INVALID_ARG1),
            0x8006_0024
        );
        assert_eq!(
            error(sys::INVALID_STATE, sys::INVALID_STATE_SRQ_IN_USE) & 0xffff,
            86
        );
        assert_eq!(
            error(sys::PRIVILEGES_VIOLATION, sys::PRIVILEGES_READ) & 0xffff,
            87
        );
        assert_eq!(
            to_dat1_code(CLASS_ERROR | sys::NOT_IMPLEMENTED),
            0x8fff_0000
        );
        assert_eq!(
            renumbered(
                CLASS_ERROR | sys::INVALID_PARAMETER | sys::INVALID_ARG3,
                |n| n - 1
            ),
            bad_argument(2)
        );
        assert_eq!(
            renumbered(CLASS_ERROR | sys::INVALID_STATE, |_| 1),
            CLASS_ERROR | sys::INVALID_STATE
        );
    }

    #[test]
    fn dat_strerror_names_the_type_and_the_subtype() {
        let (mut major, mut minor) = (std::ptr::null(), std::ptr::null());
        let code = error(sys::PROTECTION_VIOLATION, sys::PROTECTION_RDMA_WRITE);
        // SAFETY: room for two pointers; the names live as long as the process.
        let texts = unsafe {
            assert_eq!(
                dat_strerror(code, &raw mut major, &raw mut minor),
                sys::SUCCESS
            );
            [major, minor].map(|text| std::ffi::CStr::from_ptr(text).to_str().unwrap())
        };
        assert_eq!(
            texts,
            ["DAT_PROTECTION_VIOLATION", "DAT_PROTECTION_RDMA_WRITE"]
        );
    }
}
