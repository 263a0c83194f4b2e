//! Fuzz target `udapl`: see `rkey_conformance::entries::udapl`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::udapl(bytes));
