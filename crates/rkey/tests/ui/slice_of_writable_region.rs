//! Memory that a peer may write is never a slice: a region has no `as_slice`, and does not
//! dereference to bytes.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let region = Device::open()?.domain()?.register(vec![0u8; 64], Access::REMOTE_WRITE)?;
    let bytes: &[u8] = region.as_slice();
    println!("{}", bytes[0]);
    Ok(())
}
