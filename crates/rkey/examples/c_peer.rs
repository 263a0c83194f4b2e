//! Two processes, one of which may be a C program with `librdmacm`: an owner of memory, and a visitor that writes, reads and
//! counts in it. `c_peer.c` is the same in C.
//!
//! ```text
//! cargo run -p rkey --example c_peer                              both sides in Rust; the visitor is started here
//! cargo run -p rkey --example c_peer owner 127.0.0.1:7471         the owner; then, in another terminal, a visitor in C:
//! gcc -o c_peer crates/rkey/examples/c_peer.c -lrdmacm -libverbs
//! target/release/rkey run -- ./c_peer visitor 127.0.0.1 7471
//! ```
//!
//! `c_peer owner 127.0.0.1 7471` (C) and `c_peer visitor 127.0.0.1:7471` (Rust) are the reverse.

use anyhow::{Context, ensure};
use rkey::{Access, Device, RemoteKey, cm};
use std::process::Command;

/// The memory of the owner: a counter of 8 bytes, then room for text.
const BYTES: usize = 64;
const TEXT: u64 = 16;

/// A test that includes this file calls its functions instead.
#[allow(dead_code, reason = "a test includes this file")]
fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => {
            let listener = Device::open()?.listen_cm("127.0.0.1:0")?;
            let mut visitor = Command::new(std::env::current_exe()?)
                .args(["visitor", &listener.address().to_string()])
                .spawn()?;
            println!("the owner's memory: {}", own(&listener)?);
            ensure!(visitor.wait()?.success(), "the visitor failed");
            Ok(())
        }
        ["owner", address] => {
            println!(
                "the owner's memory: {}",
                own(&Device::open()?.listen_cm(*address)?)?
            );
            Ok(())
        }
        ["visitor", address] => visit(&Device::open()?, address),
        _ => anyhow::bail!("usage: c_peer [owner ADDRESS | visitor ADDRESS]"),
    }
}

/// Gives one visitor access to memory. Returns what it wrote.
pub(crate) fn own(listener: &cm::Listener) -> anyhow::Result<String> {
    let request = listener.next_request()?;
    ensure!(
        request.private_data().starts_with(b"visitor"),
        "the private data of the request is not \"visitor\""
    );

    // The key travels in the private data of the answer: address, length and number, in network byte order.
    let region = listener
        .domain()
        .register(vec![0u64; BYTES / 8], Access::REMOTE)?;
    let key = region.key(..)?;
    let number = u32::try_from(key.key()).context("the key has more than 32 bits")?;
    let mut told = Vec::new();
    told.extend(key.address().to_be_bytes());
    told.extend(key.len().to_be_bytes());
    told.extend(number.to_be_bytes());
    let peer = request.accept(&told)?;

    let message = peer.receive()?;
    ensure!(message.bytes == b"done", "unexpected message: {message:?}");
    ensure!(region.load_u64(0)? == 7, "the visitor did not add 7");
    let text = region.read_vec(TEXT..BYTES as u64)?;
    peer.send(b"thanks")?;
    peer.wait_disconnected(listener.domain().device().timeout())?;
    let end = text.iter().position(|byte| *byte == 0);
    Ok(String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]).into_owned())
}

/// Writes, reads and counts in the owner's memory.
pub(crate) fn visit(device: &Device, address: &str) -> anyhow::Result<()> {
    let owner = device.connect_cm(address, b"visitor")?;
    let told = owner.private_data();
    let key = RemoteKey::from_parts(
        u64::from_be_bytes(told[0..8].try_into()?),
        u64::from_be_bytes(told[8..16].try_into()?),
        u32::from_be_bytes(told[16..20].try_into()?),
    )?;
    println!("visitor: I may use {key}");

    owner.write_bytes(b"hello from Rust", &key, TEXT)?.wait()?;
    let old = owner.fetch_and_add(&key, 0, 7)?.wait()?;
    ensure!(old == 0, "the counter was {old} instead of 0");
    let local = device
        .domain()?
        .register(vec![0u8; 5], Access::LOCAL_WRITE)?;
    owner.read(&local, .., &key, TEXT)?.wait()?;
    ensure!(
        local.read_vec(..)? == b"hello",
        "the text read back is not the text written"
    );

    owner.send(b"done")?;
    let message = owner.receive()?;
    ensure!(
        message.bytes == b"thanks",
        "unexpected message: {message:?}"
    );
    owner.disconnect()?;
    Ok(())
}
