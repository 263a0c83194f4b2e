//! Code that clippy must refuse in the sans-I/O crates, each line with the lint that refuses it. The test in `src/lint/clippy.rs`
//! reads it.

use std::time::{Duration, Instant};

pub fn clocks(then: Instant) -> Duration {
    let _ = std::time::SystemTime::now(); //~ disallowed_methods disallowed_types
    Instant::now() - then //~ disallowed_methods
}

pub fn threads() {
    std::thread::yield_now(); //~ disallowed_methods
    let it = std::thread::Builder::new(); //~ disallowed_methods disallowed_types
    let _ = it.spawn(|| {}); //~ disallowed_methods
}

pub fn files() -> bool {
    let _ = std::fs::File::open("a"); //~ disallowed_types
    std::fs::read("a").is_ok() //~ disallowed_methods
}

pub fn processes() -> u32 {
    let _ = std::process::Command::new("a"); //~ disallowed_types
    let _ = std::net::TcpStream::connect("a:1"); //~ disallowed_types
    let _ = std::env::var("A"); //~ disallowed_methods
    std::process::id() //~ disallowed_methods
}

pub fn prints() {
    println!(); //~ print_stdout
    eprintln!(); //~ print_stderr
}

pub fn placeholders(it: Option<u8>) -> u8 {
    it.unwrap() //~ unwrap_used
}

pub fn locks(_: &std::sync::Mutex<u8>) {} //~ disallowed_types
