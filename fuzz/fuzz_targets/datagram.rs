//! Fuzz target `datagram`: see `rkey_conformance::entries::datagram`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::datagram(bytes));
