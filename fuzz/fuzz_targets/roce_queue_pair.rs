//! Fuzz target `roce_queue_pair`: see `rkey_conformance::entries::roce_queue_pair`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rkey_conformance::entries::roce_queue_pair(bytes));
