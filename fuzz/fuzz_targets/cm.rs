//! Fuzz target `cm`: see `rkey_conformance::entries::cm`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::cm(bytes));
