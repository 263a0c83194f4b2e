//! Values that several variables have.

use std::path::PathBuf;

/// `none`, or an absolute path.
pub(super) fn path_or_none(text: &str) -> Option<Option<PathBuf>> {
    let path = PathBuf::from(text);
    match text {
        "none" => Some(None),
        _ => path.is_absolute().then_some(Some(path)),
    }
}

/// `off` or `on`.
pub(super) fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "off" => Some(false),
        "on" => Some(true),
        _ => None,
    }
}

/// A whole number with an optional binary suffix; `unlimited` means 2^63 - 1.
pub(super) fn parse_number(text: &str) -> Option<u64> {
    if text == "unlimited" {
        return Some(i64::MAX as u64);
    }
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        b't' | b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
