//! `fi_log`, for programs that use libfabric's log for their own messages. Our provider has its own log (`RKEY_LOG`).

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::variadic::formatted;
use rkey_fi::sys::Provider;
use rkey_kit::caught;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::sync::OnceLock;

/// The levels, as `FI_LOG_LEVEL` names them.
pub(crate) const LEVELS: [&str; 4] = ["warn", "trace", "info", "debug"];
/// The parts of libfabric that messages come from.
pub(crate) const PARTS: [&str; 10] = [
    "core", "fabric", "domain", "ep_ctrl", "ep_data", "av", "cq", "eq", "mr", "cntr",
];

/// The level in a value of `FI_LOG_LEVEL`; -1: nothing is logged.
fn level(value: Option<&str>) -> c_int {
    let found = LEVELS
        .iter()
        .position(|level| value.is_some_and(|value| value.trim().eq_ignore_ascii_case(level)));
    found.map_or(-1, |at| at as c_int)
}

/// `fi_log_enabled`: whether messages of this level are logged (`FI_LOG_LEVEL`). The provider and the part have no effect.
pub extern "C" fn log_enabled(_: *const Provider, wanted: c_int, _: c_int) -> c_int {
    static LEVEL: OnceLock<c_int> = OnceLock::new();
    let most = LEVEL.get_or_init(|| level(std::env::var("FI_LOG_LEVEL").ok().as_deref()));
    c_int::from(wanted <= *most)
}

/// `fi_log_ready`: like `fi_log_enabled`, for a message that may be frequent. Such a message is logged once: `showtime` is 0
/// until then.
///
/// # Safety
/// `showtime` must be null or a number of the caller.
pub unsafe extern "C" fn log_ready(
    provider: *const Provider,
    wanted: c_int,
    part: c_int,
    showtime: *mut u64,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    match unsafe { showtime.as_mut() } {
        Some(showtime) if *showtime == 0 && log_enabled(provider, wanted, part) != 0 => {
            *showtime = u64::MAX;
            1
        }
        _ => 0,
    }
}

/// The body of `fi_log`, which gets the variable arguments as a list: writes the message to standard error.
///
/// # Safety
/// The arguments must be those of `fi_log`, and `list` those of its format.
pub(crate) unsafe extern "C" fn log(
    provider: *const Provider,
    level: c_int,
    part: c_int,
    function: *const c_char,
    line: c_int,
    format: *const c_char,
    list: *mut c_void,
) {
    let _ = caught(|| {
        // SAFETY: guaranteed by the caller.
        let text = |text: *const c_char| match text.is_null() {
            true => "?".into(),
            // SAFETY: not null, so it is a C string, as the caller promises.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
        };
        // SAFETY: guaranteed by the caller.
        let (name, message) = unsafe {
            let name = provider.as_ref().map_or(std::ptr::null(), |it| it.name);
            (text(name), formatted(format, list))
        };
        let word = |words: &'static [&str], at: c_int| {
            let word = usize::try_from(at).ok().and_then(|at| words.get(at));
            word.copied().unwrap_or("?")
        };
        let (level, part) = (word(&LEVELS, level), word(&PARTS, part));
        let function = text(function);
        let process = std::process::id();
        let message = message.trim_end_matches('\n');
        let line =
            format!("libfabric:{process}:{name}:{part}:{function}():{line}<{level}> {message}\n");
        // A program without standard error has no log.
        let _ = std::io::stderr().write_all(line.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_levels_are_parsed_by_name() {
        assert_eq!(level(None), -1);
        assert_eq!(level(Some("loud")), -1);
        assert_eq!(level(Some("WARN")), 0);
        assert_eq!(level(Some(" debug")), 3);
    }
}
