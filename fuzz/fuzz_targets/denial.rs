//! Fuzz target `denial`: see `rkey_conformance::entries::denial`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::denial(bytes));
