//! A key-value store whose clients read directly from the server's memory.
//!
//! The server keeps a table of slots in registered memory and gives every client a key that grants only remote read. A
//! lookup is one read of the slot, without involving the server's program. Each slot has a checksum; with it the
//! client detects a change in progress and reads again. New values are sent to the server as messages.
//!
//! ```text
//! cargo run -p rkey --example kv_store                     a server and two clients
//! ```

use rkey::{Access, Connection, Device, MemoryRegion, RemoteKey};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::{Duration, Instant};

/// The number of slots; a name is in the slot of its hash or one of the next few.
const SLOTS: u64 = 1024;
/// The size of a slot in bytes: name (24), length (8), value (80), version (8), checksum (8).
const SLOT: u64 = 128;
const NAME: usize = 24;
const VALUE: usize = 80;
/// How many slots, from the slot of its hash on, a name may be in.
const REACH: u64 = 8;
const CLIENTS: u64 = 2;

#[derive(Serialize, Deserialize)]
enum Request {
    Put { name: String, value: String },
    Goodbye,
}

#[derive(Serialize, Deserialize, Debug)]
enum Reply {
    Stored,
    Full,
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["client", address, number] => client(address, number.parse()?),
        [] => serve(),
        _ => anyhow::bail!("usage: kv_store"),
    }
}

fn serve() -> anyhow::Result<()> {
    let device = Device::open()?;
    let table = vec![0u64; (SLOTS * SLOT / 8) as usize];
    let table = device.domain()?.register(table, Access::REMOTE_READ)?;
    for number in 0..100 {
        put(
            &table,
            &format!("planet/{number}"),
            &format!("value {number}, version 0"),
        )?;
    }

    let listener = device.listen("127.0.0.1:0")?;
    let mut children = Vec::new();
    for number in 0..CLIENTS {
        let address = listener.address().to_string();
        let mut command = Command::new(std::env::current_exe()?);
        children.push(
            command
                .args(["client", &address, &number.to_string()])
                .spawn()?,
        );
    }
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let client = listener.accept()?;
        client.send(&table.key(..)?)?;
        clients.push(client);
    }
    // Only writes need the server's program.
    while !clients.is_empty() {
        let mut stay = Vec::new();
        for client in clients {
            match client.receive_timeout(Duration::from_millis(1)) {
                Ok(Request::Put { name, value }) => {
                    let stored = put(&table, &name, &value)?;
                    client.send(&if stored { Reply::Stored } else { Reply::Full })?;
                    stay.push(client);
                }
                Ok(Request::Goodbye) => {}
                Err(rkey::Error::Timeout { .. }) => stay.push(client),
                Err(error) => return Err(error.into()),
            }
        }
        clients = stay;
    }
    for mut child in children {
        anyhow::ensure!(child.wait()?.success(), "a client failed");
    }
    println!("server: both clients are done");
    Ok(())
}

/// Stores a value; `false` if no slot near the name's hash is free.
fn put(table: &MemoryRegion, name: &str, value: &str) -> anyhow::Result<bool> {
    anyhow::ensure!(
        name.len() <= NAME && value.len() <= VALUE,
        "the name or the value is too long"
    );
    for step in 0..REACH {
        let at = (hash(name.as_bytes()) + step) % SLOTS * SLOT;
        let there = table.read_vec(at..at + SLOT)?;
        if there[..NAME] != padded(name) && there.iter().any(|byte| *byte != 0) {
            continue; // this slot has another name
        }
        let mut slot = [0; SLOT as usize];
        slot[..NAME].copy_from_slice(&padded(name));
        slot[24..32].copy_from_slice(&(value.len() as u64).to_le_bytes());
        slot[32..32 + value.len()].copy_from_slice(value.as_bytes());
        slot[112..120].copy_from_slice(&(word(&there, 112) + 1).to_le_bytes());
        let sum = hash(&slot[..120]);
        slot[120..].copy_from_slice(&sum.to_le_bytes());
        table.write(at, &slot)?;
        return Ok(true);
    }
    Ok(false)
}

fn client(address: &str, number: u64) -> anyhow::Result<()> {
    let device = Device::open()?;
    let local = device
        .domain()?
        .register(vec![0u64; SLOT as usize / 8], Access::empty())?;
    let server = device.connect(address)?;
    let key: RemoteKey = server.receive()?;

    let started = Instant::now();
    for round in 0..50 {
        for planet in 0..100 {
            let value = get(&server, &key, &local, &format!("planet/{planet}"))?;
            anyhow::ensure!(value.is_some_and(|v| v.starts_with(&format!("value {planet},"))));
        }
        let mine = format!("planet/{}", number * 10 + round % 10);
        let value = format!(
            "value {}, version {round} of client {number}",
            number * 10 + round % 10
        );
        server.send(&Request::Put {
            name: mine.clone(),
            value: value.clone(),
        })?;
        let reply: Reply = server.receive()?;
        anyhow::ensure!(
            matches!(reply, Reply::Stored),
            "the slots for this name are full"
        );
        anyhow::ensure!(
            get(&server, &key, &local, &mine)? == Some(value),
            "a lookup did not return the value that this client stored"
        );
    }
    anyhow::ensure!(get(&server, &key, &local, "planet/nowhere")?.is_none());
    let each = started.elapsed() / 5000;
    println!("client {number}: 5000 lookups, {each:?} each, none by the server's program");

    // The key grants only remote read, so a write is refused, with the reason.
    let error = server.write_bytes(b"vandal", &key, 0)?.wait().err();
    println!(
        "client {number}: {}",
        error.map_or_else(|| "?".into(), |error| error.to_string())
    );
    server.send(&Request::Goodbye)?;
    Ok(())
}

/// Looks a name up in the server's memory.
fn get(
    server: &Connection,
    key: &RemoteKey,
    local: &MemoryRegion,
    name: &str,
) -> anyhow::Result<Option<String>> {
    let mut step = 0;
    while step < REACH {
        let at = (hash(name.as_bytes()) + step) % SLOTS * SLOT;
        server.read(local, .., key, at)?.wait()?;
        let slot = local.read_vec(..)?;
        if slot.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if word(&slot, 120) != hash(&slot[..120]) {
            continue; // caught in the middle of a change: read it again
        }
        if slot[..NAME] == padded(name) {
            let len = (word(&slot, 24) as usize).min(VALUE);
            return Ok(Some(
                String::from_utf8_lossy(&slot[32..32 + len]).into_owned(),
            ));
        }
        step += 1;
    }
    Ok(None)
}

/// The 8-byte word at an offset of a slot.
fn word(slot: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(slot[at..at + 8].try_into().unwrap_or_default())
}

fn padded(name: &str) -> [u8; NAME] {
    let mut bytes = [0; NAME];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
