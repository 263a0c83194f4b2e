//! Fuzz target `packet`: see `rkey_conformance::entries::packet`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::packet(bytes));
