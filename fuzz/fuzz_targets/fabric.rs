//! Fuzz target `fabric`: see `rkey_conformance::entries::fabric`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::fabric(bytes));
