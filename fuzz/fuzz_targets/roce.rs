//! Fuzz target `roce`: see `rkey_conformance::entries::roce`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::roce(bytes));
