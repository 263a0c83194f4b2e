//! Code that clippy must refuse in every library, each line with the lint that refuses it. The test in
//! `src/lint/clippy.rs` reads it.

use std::thread::{self, Builder};
use std::time::{Duration, Instant, SystemTime};

pub fn clocks(then: Instant) {
    let _ = Instant::now(); //~ disallowed_methods
    let _ = then.elapsed(); //~ disallowed_methods
    let _ = SystemTime::now(); //~ disallowed_methods
    let now = Instant::now; //~ disallowed_methods
    let _ = now();
    thread::sleep(Duration::ZERO); //~ disallowed_methods
}

pub fn threads() {
    thread::spawn(|| {}); //~ disallowed_methods
    thread::scope(|_| {}); //~ disallowed_methods
    let _ = Builder::new().spawn(|| {}); //~ disallowed_methods
    thread::yield_now();
}

pub fn locks(_: &std::sync::Mutex<u8>, _: &std::sync::RwLock<u8>) {} //~ disallowed_types

pub fn placeholders(it: Option<u8>) -> u8 {
    dbg!(1); //~ dbg_macro
    match it.unwrap() { //~ unwrap_used
        0 => todo!(), //~ todo
        1 => unimplemented!(), //~ unimplemented
        it => it,
    }
}

pub struct Shared(*const u8);

unsafe impl Send for Shared {} //~ undocumented_unsafe_blocks

// SAFETY: the pointer is never read.
unsafe impl Sync for Shared {}

pub fn reads(it: &Shared) -> u8 {
    unsafe { *it.0 } //~ undocumented_unsafe_blocks
}

pub fn reads_twice(it: &Shared) -> u8 {
    // SAFETY: for the first one only.
    let first = unsafe { *it.0 };
    first + unsafe { *it.0 } //~ undocumented_unsafe_blocks
}

pub fn reads_with_a_reason(it: &Shared) -> u8 {
    // SAFETY: valid as long as it is.
    let first: u8 =
        unsafe { *it.0 };
    match first {
        // SAFETY: valid as long as it is.
        0 => unsafe { *it.0 },
        _ => 1,
    }
}

pub fn long() -> [u8; 80] { //~ too_many_lines
    [
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
}
