//! Fuzz target `connect`: see `rkey_conformance::entries::connect`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::connect(bytes));
