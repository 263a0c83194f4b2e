//! Environment variables: `fi_param_define` and `fi_param_get` for programs that add their own, and `fi_getparams` for those that
//! list them (`fi_info -e`).

#![allow(unsafe_code)]
// UNSAFETY: C functions that read strings of the program and write to its memory.

use crate::status::{Failed, Result, status};
use crate::variadic::formatted;
use parking_lot::Mutex;
use rkey_fi::sys::Provider;
use rkey_kit::argument::store;
use rkey_kit::caught;
use rkey_kit::settings::SETTINGS;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

const STRING: c_int = 0;
const INT: c_int = 1;
const BOOL: c_int = 2;
const SIZE: c_int = 3;

/// `struct fi_param`.
#[repr(C)]
pub struct Param {
    name: *const c_char,
    kind: c_int,
    help: *const c_char,
    value: *const c_char,
}

const _: () = assert!(size_of::<Param>() == 32);

/// A variable that a program has defined.
struct Defined {
    name: CString,
    kind: c_int,
    help: CString,
}

static DEFINED: Mutex<Vec<Defined>> = Mutex::new(Vec::new());

/// The name of a variable: `FI_RKEY_MODE` for the parameter `mode` of the provider `rkey`.
///
/// # Safety
/// `provider` is null or points to a provider; `parameter` is null or a C string.
unsafe fn variable(provider: *const Provider, parameter: *const c_char) -> Result<CString> {
    if parameter.is_null() {
        return Err(Failed::INVAL);
    }
    // SAFETY: guaranteed by the caller.
    let parameter = unsafe { CStr::from_ptr(parameter) }.to_string_lossy();
    // SAFETY: guaranteed by the caller; a provider has a name.
    let provider = unsafe { provider.as_ref().map(|it| CStr::from_ptr(it.name)) };
    let provider = provider.map(|name| format!("{}_", name.to_string_lossy()));
    let name = format!("FI_{}{parameter}", provider.unwrap_or_default());
    CString::new(name.to_uppercase()).map_err(|_| Failed::INVAL)
}

/// The body of `fi_param_define`, which gets the variable arguments as a list: adds a variable, or replaces one.
///
/// # Safety
/// The arguments must be those of `fi_param_define`, and `list` those of its format.
pub(crate) unsafe extern "C" fn define(
    provider: *const Provider,
    parameter: *const c_char,
    kind: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (name, help) = unsafe { (variable(provider, parameter)?, formatted(format, list)) };
        // SAFETY: `variable` refused null.
        let empty = unsafe { *parameter } == 0 || help.is_empty();
        if empty || !(STRING..=SIZE).contains(&kind) {
            return Err(Failed::INVAL);
        }
        let help = CString::new(help).map_err(|_| Failed::INVAL)?;
        let mut defined = DEFINED.lock();
        defined.retain(|it| it.name != name);
        defined.push(Defined { name, kind, help });
        Ok(())
    })
}

/// A whole number: decimal, or hexadecimal with `0x`.
fn number(text: &str) -> Result<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let parsed = match digits.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    parsed.map(|value| sign * value).map_err(|_| Failed::INVAL)
}

fn truth(text: &str) -> Result<c_int> {
    match text.to_lowercase().as_str() {
        "0" | "false" | "no" | "off" => Ok(0),
        "1" | "true" | "yes" | "on" => Ok(1),
        _ => Err(Failed::INVAL),
    }
}

/// `fi_param_get`: the value of a defined variable, converted to its type. `-FI_ENOENT`: not defined; `-FI_ENODATA`: not set;
/// `-FI_EINVAL`: not of this type.
///
/// # Safety
/// The provider must be null or valid, the name null or a C string, and `value` null or room for the variable's type.
pub unsafe extern "C" fn get(
    provider: *const Provider,
    parameter: *const c_char,
    value: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let name = unsafe { variable(provider, parameter)? };
        let defined = DEFINED.lock();
        let kind = defined
            .iter()
            .find(|it| it.name == name)
            .ok_or(Failed::NOENT)?
            .kind;
        // SAFETY: a C string. As for `getenv`, the program must not change its environment meanwhile.
        let text = unsafe { libc::getenv(name.as_ptr()) };
        if text.is_null() {
            return Err(Failed::NODATA);
        }
        // SAFETY: not null, so it is a C string.
        let words = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let words = words.trim();
        // SAFETY: the caller promises room for the type.
        unsafe {
            match kind {
                INT => {
                    let number = c_int::try_from(number(words)?).map_err(|_| Failed::INVAL)?;
                    store(value.cast(), number)?;
                }
                BOOL => store(value.cast(), truth(words)?)?,
                SIZE => {
                    let number = usize::try_from(number(words)?).map_err(|_| Failed::INVAL)?;
                    store(value.cast(), number)?;
                }
                _ => store(value.cast(), text)?,
            }
        }
        Ok(())
    })
}

/// The variables of this library and its provider.
fn own() -> impl Iterator<Item = (&'static str, &'static str)> {
    const LIBRARY: [(&str, &str); 2] = [
        (
            "FI_PROVIDER",
            "names of providers, separated by commas: rkey is offered only if the list contains it (if the list begins with ^: only if it does not)",
        ),
        (
            "FI_LOG_LEVEL",
            "warn, trace, info or debug: the level of messages that programs log with fi_log; RKEY_LOG sets the level of the provider",
        ),
    ];
    let settings = SETTINGS.iter().map(|it| (it.name, it.meaning));
    LIBRARY
        .into_iter()
        .chain(settings.filter(|(name, _)| name.starts_with("FI_")))
}

/// All variables, each with its type and its meaning.
fn all() -> Vec<Defined> {
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let mut all: Vec<Defined> = own()
        .map(|(name, meaning)| Defined {
            name: text(name),
            kind: STRING,
            help: text(meaning),
        })
        .collect();
    let defined = DEFINED.lock();
    all.extend(defined.iter().map(|it| Defined {
        name: it.name.clone(),
        kind: it.kind,
        help: it.help.clone(),
    }));
    all
}

/// `fi_getparams`: the variables, and the values of those that are set. An entry without a name ends the list.
///
/// # Safety
/// The arguments must be null or writable.
pub unsafe extern "C" fn getparams(params: *mut *mut Param, count: *mut c_int) -> c_int {
    status(|| {
        let all = all();
        // SAFETY: the caller promises null or room.
        unsafe { store(params, std::ptr::null_mut())? };
        // SAFETY: as above.
        unsafe { store(count, 0)? };
        // SAFETY: `calloc` has no precondition.
        let list: *mut Param = unsafe { libc::calloc(all.len() + 1, size_of::<Param>()).cast() };
        if list.is_null() {
            return Err(Failed::NOMEM);
        }
        for (at, it) in all.iter().enumerate() {
            // SAFETY: C strings; the list has room for all, and is ours.
            unsafe {
                let value = libc::getenv(it.name.as_ptr());
                let entry = Param {
                    name: libc::strdup(it.name.as_ptr()),
                    kind: it.kind,
                    help: libc::strdup(it.help.as_ptr()),
                    value: match value.is_null() {
                        true => std::ptr::null(),
                        false => libc::strdup(value),
                    },
                };
                let whole = !entry.name.is_null() && !entry.help.is_null();
                list.add(at).write(entry);
                if !whole {
                    release(list, all.len());
                    return Err(Failed::NOMEM);
                }
            }
        }
        // SAFETY: checked above.
        unsafe {
            *params = list;
            *count = c_int::try_from(all.len()).unwrap_or(c_int::MAX);
        }
        Ok(())
    })
}

/// Frees a list of `count` entries.
///
/// # Safety
/// The list came from `getparams`, has at least this many entries, and is no longer in use.
unsafe fn release(list: *mut Param, count: usize) {
    for at in 0..count {
        // SAFETY: guaranteed by the caller; strings are null or from `strdup`.
        unsafe {
            let entry = &*list.add(at);
            libc::free(entry.name.cast_mut().cast());
            libc::free(entry.help.cast_mut().cast());
            libc::free(entry.value.cast_mut().cast());
        }
    }
    // SAFETY: from `calloc`.
    unsafe { libc::free(list.cast()) };
}

/// `fi_freeparams`.
///
/// # Safety
/// `params` is null, or a list from `fi_getparams` that is no longer in use.
pub unsafe extern "C" fn freeparams(params: *mut Param) {
    let _ = caught(|| {
        if params.is_null() {
            return;
        }
        let mut count = 0;
        // SAFETY: an entry without a name ends the list.
        while unsafe { !(*params.add(count)).name.is_null() } {
            count += 1;
        }
        // SAFETY: counted above.
        unsafe { release(params, count) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_and_boolean_parameters_are_parsed() {
        assert_eq!(number("17"), Ok(17));
        assert_eq!(number("-1"), Ok(-1));
        assert_eq!(number("0x10"), Ok(16));
        assert_eq!(number("many"), Err(Failed::INVAL));
        assert_eq!(truth("Yes"), Ok(1));
        assert_eq!(truth("off"), Ok(0));
        assert_eq!(truth("2"), Err(Failed::INVAL));
    }
}
