//! A registered buffer belongs to the region: the program can reach it only through the region.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let buffer = vec![0u8; 64];
    let region = Device::open()?.domain()?.register(buffer, Access::REMOTE_WRITE)?;
    println!("{}", buffer[0]);
    drop(region);
    Ok(())
}
