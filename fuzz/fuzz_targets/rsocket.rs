//! Fuzz target `rsocket`: see `rkey_conformance::entries::rsocket`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::rsocket(bytes));
