//! Fuzz target `slot`: see `rkey_conformance::entries::slot`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::slot(bytes));
