//! Two processes: one owns memory and sends a key, and the other writes into the memory.
//!
//! ```text
//! cargo run -p rkey --example two_process_write            both sides; the second process is started here
//! cargo run -p rkey --example two_process_write owner      only the owner
//! cargo run -p rkey --example two_process_write writer 127.0.0.1:7471
//! ```

use rkey::{Access, Device, Listener, RemoteKey};
use std::process::Command;

const ADDRESS: &str = "127.0.0.1:7471";

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        // Both sides: we are the owner and start the writer as a separate process.
        [] => {
            let device = Device::open()?;
            let listener = device.listen("127.0.0.1:0")?;
            let mut writer = Command::new(std::env::current_exe()?)
                .args(["writer", &listener.address().to_string()])
                .spawn()?;
            own(&device, &listener)?;
            anyhow::ensure!(writer.wait()?.success(), "the writer failed");
            Ok(())
        }
        ["owner"] => {
            let device = Device::open()?;
            own(&device, &device.listen(ADDRESS)?)
        }
        ["writer", address] => write(address),
        _ => anyhow::bail!("usage: two_process_write [owner | writer ADDRESS]"),
    }
}

/// Registers memory, gives the peer a key for a part of it, and checks what it wrote.
fn own(device: &Device, listener: &Listener) -> anyhow::Result<()> {
    let region = device
        .domain()?
        .register(vec![b'.'; 64], Access::REMOTE_WRITE)?;
    let peer = listener.accept()?;

    peer.send(&region.key(16..48)?)?; // only these 32 bytes
    let () = peer.receive()?; // the peer says when it is done

    let buffer = region.deregister()?; // from here on, only we can access it
    println!("owner: {}", String::from_utf8_lossy(&buffer));
    anyhow::ensure!(&buffer[16..21] == b"hello", "the bytes did not arrive");
    Ok(())
}

/// Gets the key and writes with it. Meanwhile, the owner's program does nothing.
fn write(address: &str) -> anyhow::Result<()> {
    let device = Device::open()?;
    let local = device
        .domain()?
        .register(b"hello from the other process".to_vec(), Access::empty())?;
    let owner = device.connect(address)?;
    let key: RemoteKey = owner.receive()?;
    println!("writer: I may use {key}");

    owner.write(&local, .., &key, 0)?.wait()?;

    // A write one byte too far is refused before it is sent, because the key contains the length.
    let refused = owner.write(&local, 0..8, &key, 25).err();
    println!(
        "writer: {}",
        refused.map_or_else(|| "?".into(), |error| error.to_string())
    );

    owner.send(&())?;
    Ok(())
}
