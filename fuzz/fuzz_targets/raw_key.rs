//! Fuzz target `raw_key`: see `rkey_conformance::entries::raw_key`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::raw_key(bytes));
