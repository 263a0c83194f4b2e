//! The examples work: each runs alone, as a newcomer would start it.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The directory of the examples that cargo builds with this crate's tests.
fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.join("examples").join(name)
}

fn run(name: &str, words: &[&str]) -> String {
    let path = example(name);
    let mut child = Command::new(&path)
        .args(words)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("{name} did not exit within 120 s");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {} {text}", output.status);
    text
}

#[test]
fn the_two_process_write_example_works() {
    let text = run("two_process_write", &[]);
    assert!(text.contains("hello from the other process"), "{text}");
    assert!(text.contains("at most 7 B fit at this offset"), "{text}");
}

#[test]
fn the_shared_counter_example_works() {
    assert!(run("shared_counter", &["3", "300"]).contains("the counter says 900"));
}

#[test]
fn the_kv_store_example_works() {
    let text = run("kv_store", &[]);
    assert!(text.contains("both clients are done"), "{text}");
    assert!(text.contains("remote write"), "{text}");
}

#[test]
fn the_send_file_example_works() {
    assert!(run("send_file", &[]).contains("the copy matches the file"));
}

#[test]
fn the_task_farm_example_works() {
    let text = run("task_farm", &["3", "100000"]);
    assert!(text.contains("9592 primes below 100000"), "{text}");
}

#[test]
fn the_c_peer_example_works() {
    let text = run("c_peer", &[]);
    assert!(
        text.contains("the owner's memory: hello from Rust"),
        "{text}"
    );
}
