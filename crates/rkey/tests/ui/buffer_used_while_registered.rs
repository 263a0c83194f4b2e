//! A registered buffer belongs to the region: the program cannot reach it behind the peers' back.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let buffer = vec![0u8; 64];
    let region = Device::open()?.domain()?.register(buffer, Access::REMOTE_WRITE)?;
    println!("{}", buffer[0]);
    drop(region);
    Ok(())
}
