//! Sends a file directly into the memory of another process, with a progress bar.
//!
//! The receiver offers as much registered memory as the file needs; the sender writes to it part by
//! part, with several parts in flight, and the receiver's program sleeps until it gets a message.
//!
//! ```text
//! cargo run --release -p rkey --example send_file               makes a file of 64 MiB and sends it
//! cargo run --release -p rkey --example send_file -- /usr/bin/gdb /tmp/copy
//! ```

use indicatif::{ProgressBar, ProgressStyle};
use rkey::{Access, Device, RemoteKey};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The size of one write, in bytes.
const BLOCK: usize = 1 << 20;
/// The number of writes in flight.
const DEPTH: usize = 4;

#[derive(Serialize, Deserialize)]
struct Offer {
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Done {
    sum: u64,
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["receive", address, target] => receive(address, Path::new(target)),
        [] => {
            let (file, copy) = (scratch("file"), scratch("copy"));
            std::fs::write(&file, sample(64 << 20))?;
            let outcome = send(&file, &copy);
            let same = outcome.is_ok() && std::fs::read(&file)? == std::fs::read(&copy)?;
            let _ = (std::fs::remove_file(&file), std::fs::remove_file(&copy));
            outcome?;
            anyhow::ensure!(same, "the copy differs");
            println!("the copy matches the file");
            Ok(())
        }
        [file, copy] => send(Path::new(file), Path::new(copy)),
        _ => anyhow::bail!("usage: send_file [FILE COPY]"),
    }
}

fn send(file: &Path, copy: &Path) -> anyhow::Result<()> {
    let mut file = File::open(file)?;
    let bytes = file.metadata()?.len();
    anyhow::ensure!(bytes > 0, "the file is empty");

    let device = Device::open()?;
    let listener = device.listen("127.0.0.1:0")?;
    let mut receiver = Command::new(std::env::current_exe()?)
        .arg("receive")
        .arg(listener.address().to_string())
        .arg(copy)
        .spawn()?;
    let peer = listener.accept()?;
    peer.send(&Offer { bytes })?;
    let key: RemoteKey = peer.receive()?;

    let local = device
        .domain()?
        .register(vec![0u8; BLOCK * DEPTH], Access::empty())?;
    let bar = ProgressBar::new(bytes).with_style(ProgressStyle::with_template(
        "{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
    )?);
    let started = Instant::now();
    let (mut sum, mut sent) = (FNV, 0u64);
    let mut block = vec![0u8; BLOCK];
    let mut in_flight = VecDeque::new();
    while sent < bytes {
        if in_flight.len() == DEPTH {
            wait_for(&mut in_flight, &bar)?;
        }
        let len = block.len().min((bytes - sent) as usize);
        file.read_exact(&mut block[..len])?;
        sum = fnv(sum, &block[..len]);
        let place = (sent / BLOCK as u64 % DEPTH as u64) * BLOCK as u64;
        local.write(place, &block[..len])?;
        in_flight.push_back((
            len,
            peer.write(&local, place..place + len as u64, &key, sent)?,
        ));
        sent += len as u64;
    }
    while !in_flight.is_empty() {
        wait_for(&mut in_flight, &bar)?;
    }
    bar.finish();
    peer.send(&Done { sum })?;
    anyhow::ensure!(receiver.wait()?.success(), "the receiver failed");
    println!("{bytes} B in {:?}", started.elapsed());
    Ok(())
}

/// Waits for the oldest write.
fn wait_for(
    in_flight: &mut VecDeque<(usize, rkey::Pending<'_>)>,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    if let Some((len, write)) = in_flight.pop_front() {
        write.wait()?;
        bar.inc(len as u64);
    }
    Ok(())
}

fn receive(address: &str, target: &Path) -> anyhow::Result<()> {
    let device = Device::open()?;
    let sender = device.connect(address)?;
    let offer: Offer = sender.receive()?;
    let memory = device.domain()?.register(
        vec![0u8; usize::try_from(offer.bytes)?],
        Access::REMOTE_WRITE,
    )?;
    let key: RemoteKey = memory.key(..)?;
    sender.send(&key)?;
    let done: Done = sender.receive_timeout(std::time::Duration::from_secs(600))?;
    let bytes = memory.deregister()?;
    anyhow::ensure!(fnv(FNV, &bytes) == done.sum, "the checksum differs");
    File::create(target)?.write_all(&bytes)?;
    Ok(())
}

/// Our own file in the directory for temporary files.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rkey-send-file-{}-{name}", std::process::id()))
}

/// Bytes without a short period.
fn sample(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 16).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The initial value of a checksum.
const FNV: u64 = 0xcbf2_9ce4_8422_2325;

/// A checksum over 8-byte words, so that it costs little compared with the copy.
fn fnv(sum: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let whole = words.by_ref().fold(sum, |sum, word| {
        (sum ^ u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .wrapping_mul(0x0100_0000_01b3)
    });
    words.remainder().iter().fold(whole, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
