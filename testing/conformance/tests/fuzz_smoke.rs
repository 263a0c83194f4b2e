//! Hostile bytes for every reader of a peer's bytes, on stable Rust and from fixed seeds. `RKEY_FUZZ_SECONDS` sets the
//! time for each entry (default: half a second). A failure prints the bytes, which then become a test next to the bug.

use rkey_conformance::entries::{self, Entry};
use rkey_conformance::mutate::{Random, input};
use std::time::{Duration, Instant};

fn seconds() -> f64 {
    std::env::var("RKEY_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.5)
}

/// Prints the current input if the entry panics.
struct Witness<'a>(&'a str, &'a [u8]);

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "entry {} failed on {} bytes: {:02x?}",
                self.0,
                self.1.len(),
                self.1
            );
        }
    }
}

fn soak(name: &str) {
    let entry: &Entry = entries::named(name).expect("the entry exists");
    let samples = entry.inputs();
    let mut random = Random::new(0x726b_6579);
    let end = Instant::now() + Duration::from_secs_f64(seconds());
    let mut tries = 0_u64;
    for sample in &samples {
        (entry.run)(sample);
    }
    // At least some inputs run, however slow the machine.
    while tries < 1000 || Instant::now() < end {
        let bytes = input(&mut random, &samples);
        let _witness = Witness(name, &bytes);
        (entry.run)(&bytes);
        tries += 1;
    }
    println!("{name}: {tries} inputs");
}

#[test]
fn hostile_ring_slots_do_no_harm() {
    soak("slot");
}

#[test]
fn hostile_control_messages_of_links_do_no_harm() {
    soak("packet");
}

#[test]
fn hostile_connection_packets_do_no_harm() {
    soak("connect");
}

#[test]
fn hostile_datagrams_of_other_hosts_do_no_harm() {
    soak("datagram");
}

#[test]
fn hostile_denials_do_no_harm() {
    soak("denial");
}

#[test]
fn hostile_raw_keys_do_no_harm() {
    soak("raw_key");
}

#[test]
fn hostile_remote_keys_do_no_harm() {
    soak("remote_key");
}

#[test]
fn hostile_messages_to_an_engine_do_no_harm() {
    soak("engine");
}

#[test]
fn hostile_libfabric_messages_do_no_harm() {
    soak("fabric");
}

#[test]
fn hostile_udapl_messages_do_no_harm() {
    soak("udapl");
}

#[test]
fn hostile_connection_manager_messages_do_no_harm() {
    soak("cm");
}

#[test]
fn hostile_messages_to_an_rsocket_do_no_harm() {
    soak("rsocket");
}

#[test]
fn hostile_roce_datagrams_do_no_harm() {
    soak("roce");
}

#[test]
fn hostile_roce_packets_to_a_queue_pair_do_no_harm() {
    soak("roce_queue_pair");
}

#[test]
fn every_entry_has_a_fuzz_target() {
    let manifest = include_str!("../../../fuzz/Cargo.toml");
    for entry in entries::ALL {
        assert!(
            manifest.contains(&format!("name = \"{}\"", entry.name)),
            "no target {}",
            entry.name
        );
    }
}
