//! Fuzz target `remote_key`: see `rkey_conformance::entries::remote_key`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::remote_key(bytes));
