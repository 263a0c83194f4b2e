//! Fuzz target `engine`: see `rkey_conformance::entries::engine`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::engine(bytes));
